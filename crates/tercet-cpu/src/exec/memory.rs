//! The memory of a run, and how a step gets its part of it.
//!
//! Everything is safe Rust: the ranges that a step writes are split off the arena, output tensors
//! and states are borrowed apart, and what remains is shared with the operands. A plan that let a
//! step read what it writes would end in a panic here, not in a race.

use smallvec::SmallVec;
use tercet_ir::{EvalCtx, EvalError, Tensor};

use crate::args::{Args, Packed, View, ViewMut};
use crate::pages::{Buffer, Word};
use crate::plan::{Operand, Root, Slot, Step};
use tercet_ir::layout::Layout;

/// What the steps of a run read and write.
pub(crate) struct Memory<'m> {
    pub(crate) arena: &'m mut [u8],
    pub(crate) slots: &'m [Slot],
    pub(crate) states: &'m mut [Buffer],
    pub(crate) outputs: SmallVec<[&'m mut [u8]; 8]>,
    pub(crate) inputs: &'m [&'m [u8]],
    pub(crate) consts: &'m [Option<Tensor>],
}

/// What a step writes, apart from the rest of the memory.
enum Taken<'a> {
    Arena,
    Output(usize, &'a mut [u8]),
    State(usize, Buffer),
}

/// A call of a step's kernel.
pub(crate) struct Call<'c> {
    pub(crate) step: &'c Step,
    pub(crate) operands: &'c [Operand],
    pub(crate) layouts: &'c [Layout],
    pub(crate) packed: Option<&'c Packed>,
    pub(crate) ctx: EvalCtx,
    pub(crate) parallel: bool,
}

impl<'m> Memory<'m> {
    /// The bytes of a root that no step is writing.
    pub(crate) fn read(&self, root: Root) -> &[u8] {
        match root {
            Root::Input(i) => self.inputs[i],
            Root::Const(c) => const_bytes(self.consts, c),
            Root::State(s) => self.states[s].bytes(),
            Root::Output(o) => self.outputs[o],
            Root::Slot(s) => {
                let slot = self.slots[s];
                &self.arena[slot.offset..slot.offset + slot.bytes]
            }
        }
    }

    /// Calls `f` with the arguments of a step.
    ///
    /// # Errors
    /// Those of `f`.
    pub(crate) fn call(
        &mut self,
        call: &Call<'_>,
        f: &(dyn Fn(&mut Args<'_>) -> Result<(), EvalError> + Send + Sync),
    ) -> Result<(), EvalError> {
        let Call {
            step,
            operands,
            layouts,
            ..
        } = *call;
        let outs = &operands[step.ins..];
        let mut taken: SmallVec<[Taken<'m>; 3]> = outs
            .iter()
            .map(|o| match o.root {
                Root::Output(i) => Taken::Output(i, std::mem::take(&mut self.outputs[i])),
                Root::State(s) => Taken::State(s, std::mem::take(&mut self.states[s])),
                Root::Slot(_) => Taken::Arena,
                Root::Input(_) | Root::Const(_) => {
                    unreachable!("invariant: steps of a run write no inputs or constants")
                }
            })
            .collect();
        let done = self.with_args(call, &mut taken, layouts, f);
        for taken in taken {
            match taken {
                Taken::Arena => {}
                Taken::Output(i, bytes) => self.outputs[i] = bytes,
                Taken::State(s, buffer) => self.states[s] = buffer,
            }
        }
        done
    }

    fn with_args(
        &mut self,
        call: &Call<'_>,
        taken: &mut [Taken<'m>],
        layouts: &[Layout],
        f: &(dyn Fn(&mut Args<'_>) -> Result<(), EvalError> + Send + Sync),
    ) -> Result<(), EvalError> {
        let Call { step, operands, .. } = *call;
        let (ins, outs) = operands.split_at(step.ins);
        let mut ranges: SmallVec<[Written; 4]> = SmallVec::new();
        for (at, out) in outs.iter().enumerate() {
            if let Root::Slot(s) = out.root {
                let len = layouts[step.ins + at].numel() * out.dtype.size_bytes();
                ranges.push(Written {
                    at,
                    start: self.slots[s].offset,
                    len,
                });
            }
        }
        if let Some((s, _)) = &step.scratch {
            let Slot { offset, bytes } = self.slots[*s];
            ranges.push(Written {
                at: outs.len(),
                start: offset,
                len: bytes,
            });
        }
        ranges.sort_unstable_by_key(|r| r.start);
        let split = Split::new(self.arena, &ranges);
        let Split {
            shared,
            mut written,
        } = split;
        let ins = ins.iter().zip(layouts).map(|(operand, layout)| {
            let root: &[u8] = match operand.root {
                _ if operand.absent || layout.numel() == 0 => nothing(),
                Root::Input(i) => self.inputs[i],
                Root::Const(c) => const_bytes(self.consts, c),
                Root::State(s) => self.states[s].bytes(),
                Root::Output(o) => self.outputs[o],
                Root::Slot(s) => shared_range(&shared, self.slots[s]),
            };
            View {
                root,
                within: operand.within,
                dtype: operand.dtype,
                layout,
            }
        });
        let ins = ins.collect();
        let mut results: SmallVec<[ViewMut<'_>; 3]> = SmallVec::new();
        for ((at, (out, layout)), taken) in
            outs.iter().zip(&layouts[step.ins..]).enumerate().zip(taken)
        {
            let bytes: &mut [u8] = match taken {
                Taken::Arena => take_written(&mut written, at),
                Taken::Output(_, bytes) => bytes,
                Taken::State(_, buffer) => buffer.bytes_mut(),
            };
            results.push(ViewMut {
                bytes,
                dtype: out.dtype,
                layout,
            });
        }
        let scratch = take_written(&mut written, outs.len());
        f(&mut Args {
            ctx: call.ctx,
            parallel: call.parallel,
            ins,
            outs: results,
            scratch,
            packed: call.packed,
        })
    }
}

/// No bytes, aligned for every dtype.
pub(crate) fn nothing<'a>() -> &'a [u8] {
    bytemuck::cast_slice::<Word, u8>(&[])
}

fn const_bytes(consts: &[Option<Tensor>], c: usize) -> &[u8] {
    consts[c]
        .as_ref()
        .expect("invariant: constants are computed before the steps that read them")
        .bytes()
}

/// A range of the arena that a step writes: result `at`, or scratch after the last result.
#[derive(Clone, Copy)]
struct Written {
    at: usize,
    start: usize,
    len: usize,
}

/// The arena in parts: those that a step writes, and the rest.
struct Split<'a> {
    shared: SmallVec<[(usize, &'a [u8]); 5]>,
    written: SmallVec<[(usize, &'a mut [u8]); 4]>,
}

impl<'a> Split<'a> {
    /// `ranges` ascend and do not overlap.
    fn new(arena: &'a mut [u8], ranges: &[Written]) -> Split<'a> {
        let mut split = Split {
            shared: SmallVec::new(),
            written: SmallVec::new(),
        };
        let mut rest = arena;
        let mut at = 0;
        for range in ranges {
            if range.len == 0 {
                continue;
            }
            let (before, tail) = rest.split_at_mut(range.start - at);
            let (own, tail) = tail.split_at_mut(range.len);
            split.shared.push((at, before));
            split.written.push((range.at, own));
            at = range.start + range.len;
            rest = tail;
        }
        split.shared.push((at, rest));
        split
    }
}

/// The bytes of a slot among the parts that the step does not write. A slot may be longer at the
/// bounds than in this run: its part ends where a written range begins.
fn shared_range<'a>(parts: &[(usize, &'a [u8])], slot: Slot) -> &'a [u8] {
    let (start, part) = parts
        .iter()
        .rev()
        .find(|(start, _)| *start <= slot.offset)
        .expect("invariant: a step reads no range that it writes");
    let from = slot.offset - start;
    let to = (from + slot.bytes).min(part.len());
    &part[from..to]
}

fn take_written<'a>(written: &mut SmallVec<[(usize, &'a mut [u8]); 4]>, at: usize) -> &'a mut [u8] {
    match written.iter().position(|(i, _)| *i == at) {
        Some(i) => written.swap_remove(i).1,
        // Aligned for every dtype, as all memory is.
        None => bytemuck::cast_slice_mut::<Word, u8>(&mut []),
    }
}

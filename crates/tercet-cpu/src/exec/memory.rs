//! Memory of a run, and the views of it that a step gets.
//!
//! Everything is safe Rust. The ranges that a step writes are split off the arena, and output
//! tensors and states are borrowed separately. All operands are shared borrows of the rest, so that
//! two operands may overlap. If a faulty plan lets a step read its own results, the code panics
//! here; a data race is impossible.

use smallvec::SmallVec;
use tercet_ir::{EvalCtx, EvalError, Tensor};

use crate::aligned_alloc::{AlignedBuffer, AlignedWord};
use crate::args::{KernelArgs, KernelView, KernelViewMut, PackedConst};
use crate::plan::{ArenaSlot, CpuStep, MemoryRoot, StepOperand};
use tercet_ir::layout::Layout;

/// Memory that the steps of a run read and write.
pub(crate) struct RunMemory<'m> {
    pub(crate) arena: &'m mut [u8],
    pub(crate) slots: &'m [ArenaSlot],
    pub(crate) states: &'m mut [AlignedBuffer],
    pub(crate) outputs: SmallVec<[&'m mut [u8]; 8]>,
    pub(crate) inputs: &'m [&'m [u8]],
    pub(crate) consts: &'m [Option<Tensor>],
}

/// Mutable memory that a step writes, separate from the memory that it reads.
enum StepOutputs<'a> {
    Arena,
    Output(usize, &'a mut [u8]),
    State(usize, AlignedBuffer),
}

/// Call of a step's kernel.
pub(crate) struct StepCall<'c> {
    pub(crate) step: &'c CpuStep,
    pub(crate) operands: &'c [StepOperand],
    pub(crate) layouts: &'c [Layout],
    pub(crate) packed: Option<&'c PackedConst>,
    pub(crate) ctx: EvalCtx,
    pub(crate) parallel: bool,
}

impl<'m> RunMemory<'m> {
    /// Bytes of a memory root that no step is writing.
    pub(crate) fn read(&self, root: MemoryRoot) -> &[u8] {
        match root {
            MemoryRoot::Input(i) => self.inputs[i],
            MemoryRoot::Const(c) => const_bytes(self.consts, c),
            MemoryRoot::State(s) => self.states[s].bytes(),
            MemoryRoot::Output(o) => self.outputs[o],
            MemoryRoot::Slot(s) => {
                let slot = self.slots[s];
                &self.arena[slot.offset..slot.offset + slot.bytes]
            }
        }
    }

    /// Calls `f` with the arguments of a step.
    ///
    /// # Errors
    /// Errors of `f`.
    pub(crate) fn call(
        &mut self,
        call: &StepCall<'_>,
        f: &(dyn Fn(&mut KernelArgs<'_>) -> Result<(), EvalError> + Send + Sync),
    ) -> Result<(), EvalError> {
        let StepCall {
            step,
            operands,
            layouts,
            ..
        } = *call;
        let outs = &operands[step.ins..];
        let mut taken: SmallVec<[StepOutputs<'m>; 3]> = outs
            .iter()
            .map(|o| match o.root {
                MemoryRoot::Output(i) => {
                    StepOutputs::Output(i, std::mem::take(&mut self.outputs[i]))
                }
                MemoryRoot::State(s) => StepOutputs::State(s, std::mem::take(&mut self.states[s])),
                MemoryRoot::Slot(_) => StepOutputs::Arena,
                MemoryRoot::Input(_) | MemoryRoot::Const(_) => {
                    unreachable!("invariant: steps of a run never write inputs or constants")
                }
            })
            .collect();
        let done = self.with_args(call, &mut taken, layouts, f);
        for taken in taken {
            match taken {
                StepOutputs::Arena => {}
                StepOutputs::Output(i, bytes) => self.outputs[i] = bytes,
                StepOutputs::State(s, buffer) => self.states[s] = buffer,
            }
        }
        done
    }

    fn with_args(
        &mut self,
        call: &StepCall<'_>,
        taken: &mut [StepOutputs<'m>],
        layouts: &[Layout],
        f: &(dyn Fn(&mut KernelArgs<'_>) -> Result<(), EvalError> + Send + Sync),
    ) -> Result<(), EvalError> {
        let StepCall { step, operands, .. } = *call;
        let (ins, outs) = operands.split_at(step.ins);
        let mut ranges: SmallVec<[WrittenRange; 4]> = SmallVec::new();
        for (at, out) in outs.iter().enumerate() {
            if let MemoryRoot::Slot(s) = out.root {
                let len = layouts[step.ins + at].numel() * out.dtype.size_bytes();
                ranges.push(WrittenRange {
                    at,
                    start: self.slots[s].offset,
                    len,
                });
            }
        }
        if let Some((s, _)) = &step.scratch {
            let ArenaSlot { offset, bytes } = self.slots[*s];
            ranges.push(WrittenRange {
                at: outs.len(),
                start: offset,
                len: bytes,
            });
        }
        ranges.sort_unstable_by_key(|r| r.start);
        let split = ArenaSplit::new(self.arena, &ranges);
        let ArenaSplit {
            shared,
            outputs: mut written,
        } = split;
        let ins = ins.iter().zip(layouts).map(|(operand, layout)| {
            let root: &[u8] = match operand.root {
                _ if operand.absent || layout.numel() == 0 => nothing(),
                MemoryRoot::Input(i) => self.inputs[i],
                MemoryRoot::Const(c) => const_bytes(self.consts, c),
                MemoryRoot::State(s) => self.states[s].bytes(),
                MemoryRoot::Output(o) => self.outputs[o],
                MemoryRoot::Slot(s) => shared_range(&shared, self.slots[s]),
            };
            KernelView {
                root,
                within: operand.within,
                dtype: operand.dtype,
                layout,
            }
        });
        let ins = ins.collect();
        let mut results: SmallVec<[KernelViewMut<'_>; 3]> = SmallVec::new();
        for ((at, (out, layout)), taken) in
            outs.iter().zip(&layouts[step.ins..]).enumerate().zip(taken)
        {
            let bytes: &mut [u8] = match taken {
                StepOutputs::Arena => take_written(&mut written, at),
                StepOutputs::Output(_, bytes) => bytes,
                StepOutputs::State(_, buffer) => buffer.bytes_mut(),
            };
            results.push(KernelViewMut {
                bytes,
                dtype: out.dtype,
                layout,
            });
        }
        let scratch = take_written(&mut written, outs.len());
        f(&mut KernelArgs {
            ctx: call.ctx,
            parallel: call.parallel,
            ins,
            outs: results,
            scratch,
            packed: call.packed,
        })
    }
}

/// An empty slice that is aligned for every dtype.
pub(crate) fn nothing<'a>() -> &'a [u8] {
    bytemuck::cast_slice::<AlignedWord, u8>(&[])
}

fn const_bytes(consts: &[Option<Tensor>], c: usize) -> &[u8] {
    consts[c]
        .as_ref()
        .expect("invariant: constants are computed before the steps that read them")
        .bytes()
}

/// Range of the arena that a step writes. `at` is the index of the result that is stored there; for
/// scratch memory, `at` is the number of results.
#[derive(Clone, Copy)]
struct WrittenRange {
    at: usize,
    start: usize,
    len: usize,
}

/// The arena, split into the ranges that a step writes and the remaining ranges.
struct ArenaSplit<'a> {
    shared: SmallVec<[(usize, &'a [u8]); 5]>,
    outputs: SmallVec<[(usize, &'a mut [u8]); 4]>,
}

impl<'a> ArenaSplit<'a> {
    /// Splits the arena at `ranges`, which are ascending and disjoint.
    fn new(arena: &'a mut [u8], ranges: &[WrittenRange]) -> ArenaSplit<'a> {
        let mut split = ArenaSplit {
            shared: SmallVec::new(),
            outputs: SmallVec::new(),
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
            split.outputs.push((range.at, own));
            at = range.start + range.len;
            rest = tail;
        }
        split.shared.push((at, rest));
        split
    }
}

/// Bytes of a slot within the ranges that the step does not write. A slot is sized for the bounds
/// and may be longer than this run needs; its slice ends at the next written range.
fn shared_range<'a>(parts: &[(usize, &'a [u8])], slot: ArenaSlot) -> &'a [u8] {
    let (start, part) = parts
        .iter()
        .rev()
        .find(|(start, _)| *start <= slot.offset)
        .expect("invariant: a step never reads a range that it writes");
    let from = slot.offset - start;
    let to = (from + slot.bytes).min(part.len());
    &part[from..to]
}

fn take_written<'a>(written: &mut SmallVec<[(usize, &'a mut [u8]); 4]>, at: usize) -> &'a mut [u8] {
    match written.iter().position(|(i, _)| *i == at) {
        Some(i) => written.swap_remove(i).1,
        // Even an empty slice is aligned for every dtype, as kernels require.
        None => bytemuck::cast_slice_mut::<AlignedWord, u8>(&mut []),
    }
}

//! `If`, `While` and `Scan`: execute the programs of nested graphs.
//!
//! Loop-carried values are double-buffered, so a body never writes a buffer that it reads.

use std::sync::Arc;

use smallvec::SmallVec;
use tercet_ir::ops::{Scan, While};
use tercet_ir::{EvalError, Node, Op, OpKind};

use crate::args::KernelArgs;
use crate::exec::{SubgraphBuffers, SubgraphProgram, bytes_of};
use crate::lower::{CpuKernel, LowerFn, LoweredNode, row};

/// The kernels of this file.
pub(super) const KERNELS: &[CpuKernel] = &[
    row("if", OpKind::If, LowerFn::Control),
    row("while", OpKind::While, LowerFn::Control),
    row("scan", OpKind::Scan, LowerFn::Control),
];

/// Alignment that an element of a result sequence must have for the loop body to write it in place.
/// Kernels require results that are aligned for every dtype.
const PART_ALIGN_BYTES: usize = 16;

type ByteSlices<'a> = SmallVec<[&'a [u8]; 8]>;
type ByteSlicesMut<'a> = SmallVec<[&'a mut [u8]; 8]>;

/// Lowers a control-flow node; `subs` are its programs in the order of [`Op::subgraphs`].
pub(crate) fn lower(node: &Node, subs: &[Arc<SubgraphProgram>]) -> LoweredNode {
    let (operands, subs) = (node.inputs.len(), subs.to_vec());
    let lowered = match node.op.clone() {
        Op::While(op) => LoweredNode::new(operands, move |args| repeat(&op, &subs, args)),
        Op::Scan(op) => LoweredNode::new(operands, move |args| scan(&op, &subs[0], args)),
        _ => LoweredNode::new(operands, move |args| branch(&subs, args)),
    };
    LoweredNode {
        fallible: true,
        // The steps inside decide individually whether to use several threads.
        work: |_| usize::MAX,
        ..lowered
    }
}

fn branch(subs: &[Arc<SubgraphProgram>], args: &mut KernelArgs<'_>) -> Result<(), EvalError> {
    let [predicate, captures @ ..] = args.ins.as_slice() else {
        unreachable!("invariant: a branch has a predicate")
    };
    let taken = match bytes_of(predicate) {
        [0] => &subs[1],
        _ => &subs[0],
    };
    let shapes: SmallVec<[&[usize]; 8]> = captures.iter().map(|v| v.shape()).collect();
    let inputs: ByteSlices<'_> = captures.iter().map(bytes_of).collect();
    let outputs: ByteSlicesMut<'_> = args.outs.iter_mut().map(|o| &mut *o.bytes).collect();
    taken.start(args.ctx, &shapes)?.run(&inputs, outputs)
}

/// Double-buffered loop-carried values: one buffer set is read, the other is written.
struct CarriedValues<'s> {
    lens: SmallVec<[usize; 8]>,
    /// The buffers of the first set, then those of the second.
    spare: SubgraphBuffers<'s>,
    /// True if the current iteration reads the second buffer set and writes the first.
    is_swapped: bool,
}

impl<'s> CarriedValues<'s> {
    fn new(body: &'s SubgraphProgram, first: &[&[u8]]) -> Result<CarriedValues<'s>, EvalError> {
        let lens: SmallVec<[usize; 8]> = first.iter().map(|b| b.len()).collect();
        let twice: SmallVec<[usize; 16]> = lens.iter().chain(&lens).copied().collect();
        let mut spare = body.spare(&twice)?;
        for (to, from) in spare.buffers.iter_mut().zip(first) {
            to.bytes_mut()[..from.len()].copy_from_slice(from);
        }
        Ok(CarriedValues {
            lens,
            spare,
            is_swapped: false,
        })
    }

    /// The loop-carried values that the current iteration reads.
    fn now(&self) -> impl Iterator<Item = &[u8]> {
        let skipped = if self.is_swapped { self.len() } else { 0 };
        let buffers = self.spare.buffers.iter().skip(skipped);
        buffers.zip(&self.lens).map(|(b, len)| &b.bytes()[..*len])
    }

    /// The loop-carried values that the current iteration reads, and the buffers into which it
    /// writes the next ones.
    fn both(&mut self) -> (ByteSlices<'_>, ByteSlicesMut<'_>) {
        let (a, b) = self.spare.buffers.split_at_mut(self.lens.len());
        let (now, next) = if self.is_swapped { (b, a) } else { (a, b) };
        let now = now.iter().zip(&self.lens);
        let next = next.iter_mut().zip(&self.lens);
        (
            now.map(|(b, len)| &b.bytes()[..*len]).collect(),
            next.map(|(b, len)| &mut b.bytes_mut()[..*len]).collect(),
        )
    }

    fn step(&mut self) {
        self.is_swapped = !self.is_swapped;
    }

    fn len(&self) -> usize {
        self.lens.len()
    }
}

fn repeat(
    op: &While,
    subs: &[Arc<SubgraphProgram>],
    args: &mut KernelArgs<'_>,
) -> Result<(), EvalError> {
    let shapes: SmallVec<[&[usize]; 8]> = args.ins.iter().map(|v| v.shape()).collect();
    let mut cond = subs[0].start(args.ctx, &shapes)?;
    // The body is started only when the first iteration runs, because its sizes may be valid only
    // then.
    let mut body = None;
    let given: ByteSlices<'_> = args.ins.iter().map(bytes_of).collect();
    let (first, captures) = given.split_at(op.carried());
    let mut carried = CarriedValues::new(&subs[1], first)?;
    let mut done = 0;
    loop {
        let mut more = [0u8];
        {
            let inputs: ByteSlices<'_> = carried.now().chain(captures.iter().copied()).collect();
            cond.run(&inputs, [&mut more[..]].into_iter().collect())?;
        }
        if more == [0] {
            break;
        }
        if done == op.max_iter {
            let max_iter = op.max_iter;
            return Err(EvalError::MaxIter { max_iter });
        }
        let body = match &mut body {
            Some(body) => body,
            None => body.insert(subs[1].start(args.ctx, &shapes)?),
        };
        {
            let (mut inputs, outputs) = carried.both();
            inputs.extend(captures.iter().copied());
            body.run(&inputs, outputs)?;
        }
        carried.step();
        done += 1;
    }
    for (out, now) in args.outs.iter_mut().zip(carried.now()) {
        out.bytes.copy_from_slice(now);
    }
    Ok(())
}

fn scan(op: &Scan, body: &SubgraphProgram, args: &mut KernelArgs<'_>) -> Result<(), EvalError> {
    let given: ByteSlices<'_> = args.ins.iter().map(bytes_of).collect();
    let (first, rest) = given.split_at(op.carried);
    let (sequences, captures) = rest.split_at(op.scanned);
    let steps = args.ins[op.carried].shape()[0];
    let mut carried = CarriedValues::new(body, first)?;
    let (ends, made) = args.outs.split_at_mut(carried.len());
    // A step writes its part of a result sequence directly if that is aligned; otherwise the part
    // is copied.
    let parts: SmallVec<[usize; 8]> = made
        .iter()
        .map(|o| o.bytes.len().checked_div(steps).unwrap_or(0))
        .collect();
    let mut apart = body.spare(&parts)?;
    if steps > 0 {
        let mut shapes: SmallVec<[&[usize]; 8]> = args.ins.iter().map(|v| v.shape()).collect();
        for shape in &mut shapes[op.carried..op.carried + op.scanned] {
            *shape = &shape[1..];
        }
        let mut run = body.start(args.ctx, &shapes)?;
        for step in 0..steps {
            let at = |reverse: bool, bytes: usize| {
                let at = if reverse { steps - 1 - step } else { step };
                at * bytes..(at + 1) * bytes
            };
            {
                let (mut inputs, mut outputs) = carried.both();
                for (sequence, reverse) in sequences.iter().zip(&op.reverse) {
                    inputs.push(&sequence[at(*reverse, sequence.len() / steps)]);
                }
                inputs.extend(captures.iter().copied());
                let places = made.iter_mut().zip(&mut apart.buffers).zip(&parts);
                for (((out, apart), bytes), reverse) in places.zip(&op.reverse_results) {
                    outputs.push(match bytes % PART_ALIGN_BYTES {
                        0 => &mut out.bytes[at(*reverse, *bytes)],
                        _ => &mut apart.bytes_mut()[..*bytes],
                    });
                }
                run.run(&inputs, outputs)?;
            }
            let places = made.iter_mut().zip(&apart.buffers).zip(&parts);
            for (((out, apart), bytes), reverse) in places.zip(&op.reverse_results) {
                if bytes % PART_ALIGN_BYTES != 0 {
                    out.bytes[at(*reverse, *bytes)].copy_from_slice(&apart.bytes()[..*bytes]);
                }
            }
            carried.step();
        }
    }
    for (out, now) in ends.iter_mut().zip(carried.now()) {
        out.bytes.copy_from_slice(now);
    }
    Ok(())
}

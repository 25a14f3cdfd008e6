//! Elementwise kernels: every elementwise operator runs as a `Map` of one step or of many.
//!
//! A block interpreter: the result is cut into blocks of [`BLOCK`] elements; for each block the
//! steps run one after the other, each one function over whole registers that stay in the first
//! cache level. Operands are read where they lie if they are f32 and dense within the block, else
//! loaded into a register. Where all values are f32, a block goes through the steps tile by tile in
//! one call ([`chain`]).
//!
//! Invariants: f16 and bf16 are computed in f32 and rounded after each step; integers and f64 are
//! exact, through the IR's own scalar functions; a result does not depend on how blocks are spread
//! over threads.

mod body;
mod chain;
mod geometry;
mod load;
mod step;

use smallvec::SmallVec;
use tercet_ir::ops::AxisMap;
use tercet_ir::{DType, Dim, Graph, Node, Op, Support};

use crate::args::Args;
use crate::kernels::SimdLevel;
use crate::lower::{Accept, Lowered};
use body::{Body, Dst};
use geometry::Geometry;

/// Elements of a block: registers of 4 KiB.
pub(crate) const BLOCK: usize = 1024;

/// Tasks per thread, so that uneven threads even out.
const TASKS_PER_THREAD: usize = 4;

/// Elements of a task, at least.
const TASK: usize = 1 << 14;

/// The kernel of an elementwise node.
pub(crate) fn lower(graph: &Graph, node: &Node) -> Lowered {
    let dtypes: Vec<DType> = node.inputs.iter().map(|v| graph.ty(*v).dtype).collect();
    let shapes: Vec<&[Dim]> = node.inputs.iter().map(|v| &*graph.ty(*v).shape).collect();
    let map = body::as_map(&node.op, &shapes, &node.outputs[0].shape);
    let steps = map
        .step_dtypes(&dtypes)
        .expect("invariant: the graph checked the steps");
    let rank = node.outputs[0].rank();
    let in_place = (0..dtypes.len())
        .filter(|&i| {
            map.inputs[i].is_identity(rank)
                && dtypes[i].size_bytes() == node.outputs[0].dtype.size_bytes()
        })
        .collect();
    let body = Body::new(&map, &dtypes, &steps);
    let bytes = body.scratch_bytes;
    let level = SimdLevel::detect();
    let run = move |args: &mut Args<'_>| {
        run(level, &body, args);
        Ok(())
    };
    Lowered {
        accepts: vec![Accept::Any; dtypes.len()],
        in_place,
        scratch: Some(Box::new(move |_, threads| {
            bytes * threads * TASKS_PER_THREAD
        })),
        ..Lowered::new(dtypes.len(), run)
    }
}

/// Refuses a `Map` that reads two axes of an operand along one axis of the result with different
/// shifts: such a diagonal has no stride.
pub(crate) fn supports(_: &Graph, node: &Node) -> Support {
    let Op::Map(map) = &node.op else {
        return Support::Native;
    };
    for input in &map.inputs {
        for (i, a) in input.axes.iter().enumerate() {
            let clash = |b: &AxisMap| a.from.is_some() && b.from == a.from && b.shift != a.shift;
            if input.axes[i + 1..].iter().any(clash) {
                return Support::Missing {
                    reason: "a diagonal with different shifts".to_string(),
                };
            }
        }
    }
    Support::Native
}

fn run(level: SimdLevel, body: &Body, args: &mut Args<'_>) {
    let Args {
        ins,
        outs,
        scratch,
        parallel,
        ..
    } = args;
    let geometry = Geometry::new(&body.inputs, ins, outs[0].layout.shape(), body.block);
    if geometry.blocks() == 0 {
        return;
    }
    let job = Job {
        level,
        body,
        geometry: &geometry,
        ins,
    };
    let per_task = body.scratch_bytes;
    let tasks = match (*parallel, per_task) {
        (false, _) => 1,
        (true, 0) => rayon::current_num_threads() * TASKS_PER_THREAD,
        (true, n) => scratch.len() / n,
    };
    let tasks = tasks.min(outs[0].layout.numel() / TASK);
    let outs = outs.iter_mut().map(|o| &mut *o.bytes).collect();
    job.split(0..geometry.blocks(), tasks.max(1), outs, scratch);
}

/// What every task of a run shares.
struct Job<'a> {
    level: SimdLevel,
    body: &'a Body,
    geometry: &'a Geometry,
    ins: &'a [crate::args::View<'a>],
}

type Outs<'a> = SmallVec<[&'a mut [u8]; 3]>;

impl Job<'_> {
    /// Halves blocks, results and scratch memory until each task has its own.
    fn split(
        &self,
        blocks: std::ops::Range<usize>,
        tasks: usize,
        outs: Outs<'_>,
        scratch: &mut [u8],
    ) {
        if tasks <= 1 || blocks.len() <= 1 {
            let own = self.body.scratch_bytes;
            return self.serial(blocks, outs, &mut scratch[..own]);
        }
        let left_tasks = tasks / 2;
        let left_blocks = blocks.len() * left_tasks / tasks;
        let middle = blocks.start + left_blocks.max(1);
        let cut = self.geometry.start(middle) - self.geometry.start(blocks.start);
        let mut left = Outs::new();
        let mut right = Outs::new();
        for (out, size) in outs.into_iter().zip(&self.body.result_bytes) {
            let (a, b) = out.split_at_mut(cut * size);
            left.push(a);
            right.push(b);
        }
        let (own, rest) = scratch.split_at_mut(left_tasks * self.body.scratch_bytes);
        rayon::join(
            || self.split(blocks.start..middle, left_tasks, left, own),
            || self.split(middle..blocks.end, tasks - left_tasks, right, rest),
        );
    }

    fn serial(&self, blocks: std::ops::Range<usize>, mut outs: Outs<'_>, scratch: &mut [u8]) {
        let origin = self.geometry.start(blocks.start);
        for (at, block) in blocks.enumerate() {
            let block = self.geometry.block(block);
            let from = block.start - origin;
            let mut parts: Outs<'_> = outs
                .iter_mut()
                .zip(&self.body.result_bytes)
                .map(|(o, size)| &mut o[from * size..(from + block.len) * size])
                .collect();
            if let Some(chain) = &self.body.chain {
                chain.run(self, &block, &mut parts, scratch);
                continue;
            }
            let sources = load::load(self, &block, &parts, scratch, at == 0);
            for (i, step) in self.body.steps.iter().enumerate() {
                if at > 0 && step.once {
                    continue;
                }
                step::run(self, i, &block, &sources, &mut parts, scratch);
            }
            for (k, result) in self.body.results.iter().enumerate() {
                if let Dst::Reg(reg) = self.body.steps[*result].dst {
                    load::store(
                        self.level,
                        reg,
                        self.body.steps[*result].dtype,
                        scratch,
                        parts[k],
                    );
                }
            }
        }
    }
}

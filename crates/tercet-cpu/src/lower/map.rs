//! Elementwise kernels: every elementwise operator runs as a `Map` of one step or of many.
//!
//! A block interpreter: the result is cut into blocks of [`BLOCK`] elements; for each block the
//! steps run one after the other, each one function over whole registers that stay in the first
//! cache level. Operands are read where they lie if they are f32 and dense within the block, else
//! loaded into a register. Where all values are f32, a block goes through the steps tile by tile in
//! one call ([`chain`]), and where integers are known to be small ([`whole`]); a map of one byte is a table ([`table`]),
//! and a sum of two keeps to registers ([`sums`]).
//!
//! Invariants: f16 and bf16 are computed in f32 and rounded after each step; integers and f64 are
//! exact, through the IR's own scalar functions; a result does not depend on how blocks are spread
//! over threads.
#![allow(unsafe_code, reason = "tasks write disjoint ranges of several results")]

mod body;
mod chain;
mod derivative;
mod gate;
mod geometry;
mod integers;
mod load;
mod step;
mod sums;
mod table;
mod whole;

use smallvec::SmallVec;
use tercet_ir::ops::AxisMap;
use tercet_ir::{DType, Dim, Graph, Node, Op, Support};

use crate::args::Args;
use crate::kernels::parallel::{SharedMut, for_each_with_scratch};
use crate::kernels::{SimdLevel, Threads, chain as chains};
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
    if let Some(lowered) = table::lower(graph, node, &map, &dtypes, &steps) {
        return lowered;
    }
    if let Some(lowered) = sums::lower(graph, node, &map, &dtypes, &steps) {
        return lowered;
    }
    let body = Body::new(&map, &dtypes, &steps, &[]);
    let one = |i: &usize| dtypes[*i] == DType::I32 && shapes[*i].iter().all(Dim::is_one);
    let small: Vec<usize> = (0..dtypes.len()).filter(one).collect();
    // Zero points that are computed: nearly always as small as codes are.
    let counting = match body.chain.is_none() && !small.is_empty() {
        true => Some(Body::new(&map, &dtypes, &steps, &small)).filter(|b| b.chain.is_some()),
        false => None,
    };
    let bytes = counting.iter().map(|body| body.scratch_bytes);
    let bytes = bytes.fold(body.scratch_bytes, usize::max);
    let level = SimdLevel::detect();
    // A gate is written where no operand lies.
    let gates = gate::may(graph, node);
    let in_place = if gates { Vec::new() } else { in_place };
    let run = move |args: &mut Args<'_>| {
        if gates && gate::run(args) {
            return Ok(());
        }
        let is_small = |i: &usize| {
            let x = &args.ins[*i];
            let value = x.root_as::<i32>().get(x.layout.offset);
            value.is_some_and(|x| x.unsigned_abs() <= whole::SMALL.unsigned_abs())
        };
        let body = match &counting {
            Some(counting) if small.iter().all(is_small) => counting,
            _ => &body,
        };
        run(level, body, args);
        Ok(())
    };
    Lowered {
        accepts: vec![Accept::Any; dtypes.len()],
        in_place,
        scratch: Some(Box::new(move |_, threads| bytes * threads)),
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
    let blocks = geometry.blocks();
    if blocks == 0 {
        return;
    }
    let mut job = Job {
        level,
        body,
        geometry: &geometry,
        ins,
        settled: chains::Steps::new(),
    };
    if let Some(chain) = &body.chain {
        job.settled = chain.settled(&job);
    }
    let threads = Threads::parallel(*parallel);
    let tasks = match threads.count() {
        1 => 1,
        n => (n * TASKS_PER_THREAD)
            .min(outs[0].layout.numel() / TASK)
            .clamp(1, blocks),
    };
    let outs: SmallVec<[SharedMut<u8>; 3]> =
        outs.iter_mut().map(|o| SharedMut::new(o.bytes)).collect();
    for_each_with_scratch(threads, tasks, scratch, body.scratch_bytes, |i, own| {
        let blocks = i * blocks / tasks..(i + 1) * blocks / tasks;
        let (start, end) = (geometry.start(blocks.start), geometry.start(blocks.end));
        let outs = outs.iter().zip(&body.result_bytes).map(|(out, size)| {
            // SAFETY: blocks follow each other in the results, and each is of one task.
            unsafe { out.slice(start * size, (end - start) * size) }
        });
        job.serial(blocks, outs.collect(), own);
    });
}

/// What every task of a run shares.
struct Job<'a> {
    level: SimdLevel,
    body: &'a Body,
    geometry: &'a Geometry,
    ins: &'a [crate::args::View<'a>],
    /// The steps of its chain.
    settled: chains::Steps,
}

type Outs<'a> = SmallVec<[&'a mut [u8]; 3]>;

impl Job<'_> {
    /// Runs blocks one after the other; `outs` are their parts of the results.
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

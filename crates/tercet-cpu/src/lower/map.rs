//! Elementwise kernels: every elementwise operator runs as a `Map` of one or more steps.
//!
//! The kernel is a block interpreter: the result is cut into blocks of [`BLOCK`] elements. Each
//! step is one function over registers of a block, which stay in the L1 cache. Operands are read in
//! place if they are f32 and contiguous within the block; other operands are loaded into registers.
//!
//! Special cases:
//!
//! - If all values are f32 or exact in f32 ([`integer_range`]), one call runs all steps tile by tile
//!   ([`chain`]).
//! - A map of one byte-sized operand becomes a lookup table ([`byte_lut`]).
//! - One function of integers runs in their own width ([`native`]).
//! - One function of two operands reads their rows in place ([`pairs`]).
//! - A quantized sum of two operands is computed in vector registers ([`sums`]).
//!
//! Invariants: f16 and bf16 are computed in f32 and rounded after each step. Integers and f64 are
//! exact, through the IR's scalar functions. A result does not depend on the distribution of blocks
//! over threads.
#![allow(unsafe_code, reason = "tasks write disjoint ranges of several results")]

mod body;
mod broadcast_mul;
mod byte_lut;
mod casts;
mod chain;
mod derivative;
mod geometry;
mod integer_range;
mod integers;
mod load;
mod native;
mod pairs;
mod step;
pub(crate) mod sums;

use smallvec::SmallVec;
use tercet_ir::ops::AxisMap;
use tercet_ir::{DType, Dim, Graph, Node, Op, OpKind, Support};

use crate::args::KernelArgs;
use crate::kernels::parallel::{SharedMut, for_each_with_scratch};
use crate::kernels::{KernelThreads, SimdLevel, chain as chains};
use crate::lower::{AcceptedLayout, CpuKernel, LowerFn, LoweredNode, row};
use body::{MapBody, MapStepDst};
use geometry::MapGeometry;

const MAP: LowerFn = LowerFn::Kernel(lower);

/// The kernels of this file.
pub(super) const KERNELS: &[CpuKernel] = &[
    row("map", OpKind::Unary, MAP),
    row("map", OpKind::Binary, MAP),
    row("map", OpKind::Compare, MAP),
    row("map", OpKind::Where, MAP),
    row("map", OpKind::Fma, MAP),
    row("map", OpKind::Clamp, MAP),
    row("map", OpKind::Cast, MAP),
    CpuKernel {
        supports,
        ..row("map", OpKind::Map, MAP)
    },
];

/// Elements of a block; an f32 register has 4 KiB.
pub(crate) const BLOCK: usize = 1024;

/// Tasks per thread, for load balancing.
const TASKS_PER_THREAD: usize = 4;

/// Minimum elements of a task.
const TASK: usize = 1 << 14;

/// Maximum elements of an I32 operand whose values a run examines.
const MAX_ZERO_POINTS: usize = 1 << 12;

/// Lowers an elementwise node.
pub(crate) fn lower(graph: &Graph, node: &Node) -> LoweredNode {
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
    if let Some(lowered) = byte_lut::lower(graph, node, &map, &dtypes, &steps) {
        return lowered;
    }
    if let Some(lowered) = casts::lower(graph, node, &map, &dtypes, &steps) {
        return lowered;
    }
    if let Some(lowered) = sums::lower(graph, node, &map, &dtypes, &steps) {
        return lowered;
    }
    if let Some(lowered) = native::lower(&map, &dtypes, &steps) {
        return lowered;
    }
    let body = MapBody::new(&map, &dtypes, &steps, &[]);
    // The zero points of a tensor or of its channels.
    let few = |i: &usize| {
        let numel = shapes[*i]
            .iter()
            .try_fold(1usize, |n, dim| n.checked_mul(dim.known()?));
        dtypes[*i] == DType::I32 && numel.is_some_and(|n| n <= MAX_ZERO_POINTS)
    };
    let small: Vec<usize> = (0..dtypes.len()).filter(few).collect();
    // I32 operands of few elements are usually zero points, as small as the quantized values. This
    // variant of the map assumes small values; a run uses it if all elements are small.
    let counting = match body.chain.is_none() && !small.is_empty() {
        true => Some(MapBody::new(&map, &dtypes, &steps, &small)).filter(|b| b.chain.is_some()),
        false => None,
    };
    let bytes = counting.iter().map(|body| body.scratch_bytes);
    let bytes = bytes.fold(body.scratch_bytes, usize::max);
    let level = SimdLevel::detect();
    // The broadcast multiplication does not work in place.
    let gates = broadcast_mul::may(graph, node);
    let in_place = if gates { Vec::new() } else { in_place };
    let pair = pairs::of(&map, &dtypes);
    let run = move |args: &mut KernelArgs<'_>| {
        if gates && broadcast_mul::run(args) {
            return Ok(());
        }
        if let Some(pair) = &pair
            && pair.run(level, &body.inputs, args)
        {
            return Ok(());
        }
        let is_small = |i: &usize| {
            let x = &args.ins[*i];
            let values = match x.layout.is_dense() && !x.root.is_empty() {
                true => x.dense::<i32>(),
                false => return false,
            };
            let is_small = |x: &i32| x.unsigned_abs() <= integer_range::SMALL.unsigned_abs();
            values.iter().all(is_small)
        };
        let body = match &counting {
            Some(counting) if small.iter().all(is_small) => counting,
            _ => &body,
        };
        run(level, body, args);
        Ok(())
    };
    LoweredNode {
        accepts: vec![AcceptedLayout::Any; dtypes.len()],
        in_place,
        scratch: Some(Box::new(move |_, threads| bytes * threads)),
        ..LoweredNode::new(dtypes.len(), run)
    }
}

/// Rejects a `Map` in which one axis of the result indexes two axes of an operand with different
/// shifts: no single stride describes such a diagonal.
pub(crate) fn supports(_: &Graph, node: &Node) -> Support {
    let Op::Map(map) = &node.op else {
        return Support::Native;
    };
    for input in &map.inputs {
        for (i, a) in input.axes.iter().enumerate() {
            let clash = |b: &AxisMap| a.from.is_some() && b.from == a.from && b.shift != a.shift;
            if input.axes[i + 1..].iter().any(clash) {
                return Support::Missing {
                    reason: "no kernel for a diagonal with different shifts".to_string(),
                };
            }
        }
    }
    Support::Native
}

fn run(level: SimdLevel, body: &MapBody, args: &mut KernelArgs<'_>) {
    let KernelArgs {
        ins,
        outs,
        scratch,
        parallel,
        ..
    } = args;
    let geometry = MapGeometry::new(&body.inputs, ins, outs[0].layout.shape(), body.block);
    let blocks = geometry.blocks();
    if blocks == 0 {
        return;
    }
    let mut job = MapTaskArgs {
        level,
        body,
        geometry: &geometry,
        ins,
        settled: chains::ChainSteps::new(),
    };
    if let Some(chain) = &body.chain {
        job.settled = chain.settled(&job);
    }
    let threads = KernelThreads::parallel(*parallel);
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
            // SAFETY: blocks are disjoint ranges of the results, and each belongs to one task.
            unsafe { out.slice(start * size, (end - start) * size) }
        });
        job.serial(blocks, outs.collect(), own);
    });
}

/// Arguments shared by all tasks of a run.
struct MapTaskArgs<'a> {
    level: SimdLevel,
    body: &'a MapBody,
    geometry: &'a MapGeometry,
    ins: &'a [crate::args::KernelView<'a>],
    /// Steps of the chain for this run.
    settled: chains::ChainSteps,
}

type MapOuts<'a> = SmallVec<[&'a mut [u8]; 3]>;

impl MapTaskArgs<'_> {
    /// Runs blocks one after the other; `outs` are their parts of the results.
    fn serial(&self, blocks: std::ops::Range<usize>, mut outs: MapOuts<'_>, scratch: &mut [u8]) {
        let origin = self.geometry.start(blocks.start);
        for (at, block) in blocks.enumerate() {
            let block = self.geometry.block(block);
            let from = block.start - origin;
            let mut parts: MapOuts<'_> = outs
                .iter_mut()
                .zip(&self.body.result_bytes)
                .map(|(o, size)| &mut o[from * size..(from + block.len) * size])
                .collect();
            if let Some(chain) = &self.body.chain {
                chain.run(self, &block, &mut parts, scratch, at == 0);
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
                if let MapStepDst::Reg(reg) = self.body.steps[*result].dst {
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

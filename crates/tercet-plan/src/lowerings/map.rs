//! Lowering of elementwise operators: `Map`, and `Unary`, `Binary`, `Compare`, `Where`, `Fma`,
//! `Clamp` and `Cast`, which are treated as maps of one step.
//!
//! Each map is compiled to generated WGSL (`map/codegen.rs`). The source depends on the steps, the
//! dtypes and the axes along which operands are read. Sizes, strides and offsets are kernel
//! parameters, so that one kernel serves all of them. A map with too many operands for one kernel
//! is split into several kernels, which pass intermediate results in memory. If a result is written
//! in place of an operand, both share one binding, and each thread reads its elements before it
//! writes.
//!
//! Next: `map/operand.rs` for operand access; `map/row_wise.rs` for maps with row reductions
//! between them.

mod body;
mod channels;
mod codegen;
pub(crate) mod columns;
mod columns_text;
mod operand;
pub(crate) mod row_wise;
mod row_wise_codegen;
mod strips;
mod vector;

use std::collections::BTreeSet;
use std::ops::Range;

use tercet_ir::ops::{IndexMap, Map, MapArg, MapStep, Op};
use tercet_ir::scalar::ScalarOp;
use tercet_ir::{CompileError, DType, Graph, Node, OpKind, Shape, Support};

pub(crate) use self::body::steps_of;
use self::codegen::{MapKernelSource, OperandRead};
use self::operand::{CoordinateGroups, IndexedOperand};
use self::vector::VectorWidth;
use super::{Lowering, missing, unsupported_reason};
use crate::caps::DeviceCaps;
use crate::emit::{LoweringCtx, SlotView};
use crate::fusions::GluEpilogue;
use tercet_program::SymInt;
use tercet_program::{ArgAccess, ParamWord};

/// Lowering of elementwise operators.
pub(crate) static MAP: Lowering = Lowering {
    name: "map",
    ops: &[
        OpKind::Unary,
        OpKind::Binary,
        OpKind::Compare,
        OpKind::Where,
        OpKind::Fma,
        OpKind::Clamp,
        OpKind::Cast,
        OpKind::Map,
    ],
    kernels: &[],
    supports,
    lower,
};

/// Supports every map in which all steps have dtypes that GPUs support.
fn supports(graph: &Graph, node: &Node, _: &DeviceCaps) -> Support {
    let steps = match &node.op {
        Op::Map(map) => step_dtypes(graph, node, map),
        _ => Vec::new(),
    };
    match steps.into_iter().find_map(unsupported_reason) {
        Some(reason) => missing(reason),
        None => Support::Native,
    }
}

fn step_dtypes(graph: &Graph, node: &Node, map: &Map) -> Vec<DType> {
    let inputs: Vec<DType> = node.inputs.iter().map(|v| graph.ty(*v).dtype).collect();
    map.step_dtypes(&inputs)
        .unwrap_or_else(|e| unreachable!("invariant: the graph is well typed: {e}"))
}

/// The scalar operation of an elementwise operator other than `Map`; `None` for other operators.
fn step_of(op: &Op) -> Option<ScalarOp> {
    match op {
        Op::Unary(o) => Some(ScalarOp::Unary(o.f)),
        Op::Binary(o) => Some(ScalarOp::Binary(o.f)),
        Op::Compare(o) => Some(ScalarOp::Compare(o.f)),
        Op::Where(_) => Some(ScalarOp::Where),
        Op::Fma(_) => Some(ScalarOp::Fma),
        Op::Clamp(o) => Some(ScalarOp::Clamp { lo: o.lo, hi: o.hi }),
        Op::Cast(o) => Some(ScalarOp::Cast(o.to)),
        _ => None,
    }
}

pub(crate) fn as_map(graph: &Graph, node: &Node) -> Map {
    if let Op::Map(map) = &node.op {
        return map.clone();
    }
    let op = step_of(&node.op).unwrap_or_else(|| {
        unreachable!("invariant: {:?} belongs to this lowering", node.op.kind())
    });
    let shape = node.outputs[0].shape.clone();
    let inputs = node.inputs.iter();
    let args: Vec<MapArg> = (0..node.inputs.len()).map(MapArg::Input).collect();
    Map {
        inputs: inputs
            .map(|v| IndexMap::broadcast(&graph.ty(*v).shape, &shape))
            .collect(),
        shape,
        body: vec![MapStep::new(op, args)],
        results: vec![0],
    }
}

/// Emits the gating after a matmul as a separate elementwise kernel. The kernel reads the matmul
/// results from `both`, and writes `y` and optionally a rounded copy.
pub(crate) fn gate(
    e: &mut LoweringCtx<'_>,
    gate: &GluEpilogue,
    both: SlotView,
    y: &SlotView,
    rounded: Option<SlotView>,
) {
    let graph = e.graph;
    let node = graph.node(gate.map);
    let mut map = as_map(graph, node);
    let mut results = vec![(map.results[0], y.clone())];
    if let Some(rounded) = rounded {
        let cast = ScalarOp::Cast(rounded.dtype);
        let of = MapArg::Step(map.results[0]);
        results.push((map.body.len(), rounded));
        map.body.push(MapStep::new(cast, vec![of]));
    }
    let region = e.with_output_view(gate.product, both, |e| MapLowering::new(e, node, &map));
    region.dispatch(e, &results);
}

fn lower(e: &mut LoweringCtx<'_>, node: &Node) -> Result<(), CompileError> {
    let map = as_map(e.graph, node);
    let mut region = MapLowering::new(e, node, &map);
    let limit = e.caps.max_storage_buffers as usize;
    while let Some(step) = region.too_wide(limit) {
        region.materialize_step(e, step)?;
    }
    let groups = region.groups(&map.results, limit);
    if groups.len() > 1 {
        e.update_apart();
    }
    let mut results = Vec::new();
    for (port, &step) in map.results.iter().enumerate() {
        results.push((step, e.result(port)?));
    }
    for group in groups {
        region.dispatch(e, &results[group]);
    }
    Ok(())
}

/// A map under lowering.
struct MapLowering<'m> {
    shape: &'m Shape,
    body: &'m [MapStep],
    /// Dtype of each step.
    dtypes: Vec<DType>,
    /// Operands of the map, followed by the steps whose results earlier kernels stored in memory.
    operands: Vec<IndexedOperand>,
    /// For each step, the index of the operand that stores its result; `None` if it is not in
    /// memory.
    kept: Vec<Option<usize>>,
}

impl<'m> MapLowering<'m> {
    fn new(e: &mut LoweringCtx<'_>, node: &Node, map: &'m Map) -> MapLowering<'m> {
        let operands = (node.inputs.iter().zip(&map.inputs)).map(|(v, index)| {
            let view = e.view(*v);
            IndexedOperand::new(e, &view, index, &map.shape)
        });
        MapLowering {
            operands: operands.collect(),
            shape: &map.shape,
            body: &map.body,
            dtypes: step_dtypes(e.graph, node, map),
            kept: vec![None; map.body.len()],
        }
    }

    /// Index of the operand that a step's argument reads; `None` if the argument is a step that the
    /// same kernel computes.
    fn operand(&self, arg: MapArg) -> Option<usize> {
        match arg {
            MapArg::Input(i) => Some(i),
            MapArg::Step(s) => self.kept[s],
        }
    }

    /// For each step, the indices of all operands that it depends on, directly or through other
    /// steps.
    fn leaves(&self) -> Vec<BTreeSet<usize>> {
        let mut all: Vec<BTreeSet<usize>> = Vec::with_capacity(self.body.len());
        for (at, step) in self.body.iter().enumerate() {
            let mut own = BTreeSet::new();
            for &arg in &step.args {
                match (self.operand(arg), arg) {
                    (Some(i), _) | (None, MapArg::Input(i)) => _ = own.insert(i),
                    (None, MapArg::Step(s)) => own.extend(&all[s]),
                }
            }
            if let Some(i) = self.kept[at] {
                own = BTreeSet::from([i]);
            }
            all.push(own);
        }
        all
    }

    /// Selects a step whose result a separate kernel stores in memory, because a step that uses it
    /// depends on more than `limit` operands. Of the arguments of that user, the one that depends
    /// on the most operands is selected. A step has at most three arguments, so storing one in
    /// memory reduces the number of operands.
    fn too_wide(&self, limit: usize) -> Option<usize> {
        let leaves = self.leaves();
        let wide = leaves.iter().position(|own| own.len() >= limit)?;
        let steps = self.body[wide].args.iter().filter_map(|arg| match *arg {
            MapArg::Step(s) => Some(s),
            MapArg::Input(_) => None,
        });
        steps.max_by_key(|&s| leaves[s].len())
    }

    fn materialize_step(
        &mut self,
        e: &mut LoweringCtx<'_>,
        step: usize,
    ) -> Result<(), CompileError> {
        let to = e.temp(self.dtypes[step], self.shape)?;
        self.dispatch(e, &[(step, to.clone())]);
        self.kept[step] = Some(self.operands.len());
        let straight = IndexMap::identity(self.shape.len());
        self.operands
            .push(IndexedOperand::new(e, &to, &straight, self.shape));
        Ok(())
    }

    /// Splits the map's results into ranges. One kernel computes each range from at most `limit`
    /// operands.
    fn groups(&self, results: &[usize], limit: usize) -> Vec<Range<usize>> {
        let leaves = self.leaves();
        let mut groups = Vec::new();
        let (mut start, mut operands) = (0, BTreeSet::new());
        for (at, step) in results.iter().enumerate() {
            let more: BTreeSet<usize> = operands.union(&leaves[*step]).copied().collect();
            if at > start && more.len() + (at + 1 - start) > limit {
                groups.push(start..at);
                (start, operands) = (at, leaves[*step].clone());
            } else {
                operands = more;
            }
        }
        groups.push(start..results.len());
        groups
    }

    /// The indices of the steps that a kernel must compute for these results, in order.
    fn live_steps(&self, results: &[(usize, SlotView)]) -> Vec<usize> {
        let mut live = vec![false; self.body.len()];
        for (step, _) in results {
            live[*step] = true;
        }
        for at in (0..self.body.len()).rev() {
            if live[at] && self.kept[at].is_none() {
                for arg in &self.body[at].args {
                    if let MapArg::Step(s) = *arg {
                        live[s] = true;
                    }
                }
            }
        }
        (0..self.body.len()).filter(|&s| live[s]).collect()
    }

    /// Emits one kernel that computes and writes these results of the map.
    fn dispatch(&self, e: &mut LoweringCtx<'_>, results: &[(usize, SlotView)]) {
        let live = self.live_steps(results);
        let mut reads: Vec<OperandRead> = Vec::new();
        let mut operands: Vec<&IndexedOperand> = Vec::new();
        let mut read_of = vec![0; self.operands.len()];
        for &step in &live {
            let own = self.kept[step].into_iter();
            let args = self.body[step].args.iter().filter_map(|a| self.operand(*a));
            for i in own.chain(args.filter(|_| self.kept[step].is_none())) {
                let operand = &self.operands[i];
                read_of[i] = match operands.iter().position(|o| *o == operand) {
                    Some(known) => known,
                    None => {
                        operands.push(operand);
                        operands.len() - 1
                    }
                };
            }
        }
        let numel = e.numel(self.shape);
        let coordinates = CoordinateGroups::new(e, self.shape, &operands);
        // Parameter words: the number of elements, and a zero that shader compilers cannot
        // recognize as a constant.
        let mut words = vec![numel, SymInt::ZERO];
        words.extend(&coordinates.sizes);
        for operand in &operands {
            let mut read = coordinates.read(e, operand, &mut words);
            read.result = results.iter().position(|(_, y)| y.slot == operand.slot);
            reads.push(read);
        }
        let dtypes: Vec<DType> = results.iter().map(|(_, view)| view.dtype).collect();
        let vectors = VectorWidth::new(e, &coordinates, &operands, &dtypes, self.max_elements(e));
        if let Some(vectors) = vectors {
            vector::choose(e, &coordinates, &operands, &mut reads, vectors);
        }
        let kernel = MapKernelSource {
            axes: coordinates.sizes.len() + 1,
            reads,
            steps: self.named_steps(&live, &read_of),
            results: (results.iter())
                .map(|(step, view)| (*step, view.dtype))
                .collect(),
            words: words.len(),
            vectors,
        };
        let apart = kernel.reads.iter().zip(&operands);
        let apart = apart.filter(|(read, _)| read.result.is_none());
        let mut slots: Vec<_> = apart.map(|(_, o)| o.slot).collect();
        let mut access = vec![ArgAccess::Read; slots.len()];
        for (_, view) in results {
            access.push(ArgAccess::Write);
            slots.push(view.slot);
        }
        let items = e.tape().ceil_div(numel, kernel.lanes());
        let grid = e.grid_of(items, codegen::GROUP);
        let words: Vec<ParamWord> = words.into_iter().map(ParamWord::SymInt).collect();
        e.dispatch_wgsl(&kernel.name(), kernel.text(), &access, &slots, &words, grid);
    }

    /// Maximum number of result elements, if all symbols have their upper bounds.
    fn max_elements(&self, e: &LoweringCtx<'_>) -> usize {
        let sizes = self.shape.iter().map(|d| e.bound(d).unwrap_or(0));
        sizes.fold(1, usize::saturating_mul)
    }

    /// The steps `live`, each with the WGSL names of its arguments.
    fn named_steps(&self, live: &[usize], read_of: &[usize]) -> Vec<codegen::NamedStep<'m>> {
        let body: &'m [MapStep] = self.body;
        let steps = live.iter().map(|&at| {
            let step = &body[at];
            let name = |arg: &MapArg| match (self.operand(*arg), *arg) {
                (Some(i), _) | (None, MapArg::Input(i)) => format!("v{}", read_of[i]),
                (None, MapArg::Step(s)) => format!("s{s}"),
            };
            codegen::NamedStep {
                at,
                op: &step.op,
                args: match self.kept[at] {
                    Some(_) => Vec::new(),
                    None => step.args.iter().map(name).collect(),
                },
                kept: self.kept[at].map(|i| format!("v{}", read_of[i])),
                from: self.from(step),
                to: self.dtypes[at],
            }
        });
        steps.collect()
    }

    /// Dtype of a step's last argument.
    fn from(&self, step: &MapStep) -> DType {
        match step.args.last() {
            Some(MapArg::Input(i)) => self.operands[*i].dtype,
            Some(MapArg::Step(s)) => self.dtypes[*s],
            None => DType::F32,
        }
    }
}

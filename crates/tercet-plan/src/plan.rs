//! Top level of compilation: allocates slots for inputs, parameters and states, lowers the nodes
//! (`walk.rs`), then outputs and state updates, then schedules steps and plans memory.

use std::collections::HashMap;

use tercet_ir::backend::check_interface;
use tercet_ir::layout::in_place_updates;
use tercet_ir::legalize::{NodeOrigins, legalize, origins};
use tercet_ir::{
    CompileError, CompileOptions, DType, Dim, Graph, NodeId, Op, OpKind, Port, Signature,
    StateAssign, UnsupportedNode, Value, passes,
};

use crate::binding_limit::{PartitionedValues, split};
use crate::caps::DeviceCaps;
use crate::concat_elision::ElidedConcats;
use crate::emit::{GraphAnalysis, LoweringCtx, SlotPlacement, SlotView};
use crate::lowerings::{PlanTarget, check, copy, unsupported_reason};
use crate::narrow::narrow_i64;
use crate::schedule;
use crate::soa_weights;
use crate::walk::{InPlaceUpdate, LeafPlacement, nodes, shared_packed, turned_attention};
use tercet_program::ControlFlowGraph;
use tercet_program::SoaLayout;
use tercet_program::SymInt;
use tercet_program::device_dtype;
use tercet_program::{ArgAccess, ParamWord};
use tercet_program::{GpuProgram, IoBinding, ProgramBuffer, ProgramStep, ShapeBranches, StepOp};

/// Compilation options that do not change the results of the program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlanOptions {
    /// Adds guard space after every slot and disables memory reuse, so that writes outside of a
    /// slot can be detected ([`GpuProgram::redzones`]).
    pub sentinels: bool,
}

/// Compiles a graph to a program: graph passes, I64 narrowing, legalization, planning.
///
/// # Errors
/// [`CompileError`] that lists every unsupported node, or names the unbounded symbol or the tensor
/// that is too large.
pub fn compile(
    graph: &Graph,
    options: &CompileOptions,
    caps: &DeviceCaps,
) -> Result<GpuProgram, CompileError> {
    compile_with(graph, options, caps, PlanOptions::default())
}

/// Like [`compile`], with compilation options.
///
/// # Errors
/// The errors of [`compile`].
pub fn compile_with(
    graph: &Graph,
    options: &CompileOptions,
    caps: &DeviceCaps,
    choices: PlanOptions,
) -> Result<GpuProgram, CompileError> {
    let graph = &*options.opened(graph)?;
    check_interface(graph, &options.bounds)?;
    let optimized = {
        let _span = tracing::debug_span!("passes").entered();
        passes::optimize_for(graph, options, &PlanTarget(caps))?
    };
    let legal = {
        let _span = tracing::debug_span!("legalize").entered();
        let legal = legalize(&narrow_i64(&optimized)?, &PlanTarget(caps))?;
        match split(&legal, caps)? {
            Some(in_parts) => legalize(&in_parts, &PlanTarget(caps))?,
            None => legal,
        }
    };
    let _span = tracing::debug_span!("plan").entered();
    let origins = origins(&legal);
    plan(
        &legal,
        Signature::of(graph),
        origins,
        options,
        caps,
        choices,
    )
}

/// Plans a legal graph. `signature` is that of the source graph; `origins` maps legal nodes to
/// source nodes.
///
/// # Errors
/// The errors of [`compile`].
pub fn plan(
    legal: &Graph,
    signature: Signature,
    origins: NodeOrigins,
    options: &CompileOptions,
    caps: &DeviceCaps,
    choices: PlanOptions,
) -> Result<GpuProgram, CompileError> {
    let has_flow = legal.nodes().any(|(_, n)| !n.op.subgraphs().is_empty());
    let draft = |in_place: bool| -> Result<(LoweringCtx<'_>, ProgramInterface), CompileError> {
        let facts = GraphAnalysis {
            bounds: &options.bounds,
            signature: &signature,
            origins: origins.clone(),
            soa_layouts: soa_weights::find_soa_layouts(legal),
            partitioned: PartitionedValues::new(legal, caps),
            enclosing_nodes: Vec::new(),
            shared_packed: shared_packed(legal),
            transposed_attention: turned_attention(legal),
            reduced_matmul_dtype: options.matmul_precision,
            has_chains: caps.ordered_dispatches && !has_flow && has_chains(legal),
            has_flow,
        };
        let mut e = LoweringCtx::new(legal, caps, facts);
        let borders = walk(&mut e, in_place)?;
        Ok((e, borders))
    };
    let (mut e, mut borders) = draft(true)?;
    if writes_state_before_check(&e) {
        // A data check or a branch that reads the new contents of a state cannot run before the
        // state is written. New contents are therefore computed in other slots and copied to the
        // states at the end of the run.
        (e, borders) = draft(false)?;
    }
    e.check_forced_variants()?;
    e.close_chain();
    let checks = e.draft.data_checks.len() as i64;
    for at in std::mem::take(&mut e.draft.check_count_words) {
        e.draft.params[at] = ParamWord::SymInt(SymInt::Const(checks));
    }
    e.draft.data_checks.sort_by_key(|c| c.site.node);
    check::join(&mut e);
    if e.facts.has_flow {
        e.close();
        clear_records(&mut e);
    }
    let symbols = legal.symbols();
    let symbols = symbols.into_iter().filter_map(|s| {
        let bound = options.bounds.get(&s)?;
        Some((s, bound))
    });
    let symbols = symbols.collect();
    let draft = e.draft;
    schedule::finish(draft, borders, signature.clone(), symbols, caps, choices)
}

/// Minimum number of quantized matmuls (those of one layer) for which dependent launches repay
/// clearing their counters in every run.
const CHAINED_PRODUCTS: usize = 4;

/// Whether the graph has enough quantized matmuls for dependent launches.
fn has_chains(graph: &Graph) -> bool {
    let products = graph.nodes();
    let products = products.filter(|(_, n)| n.op.kind() == OpKind::DequantMatMul);
    products.count() >= CHAINED_PRODUCTS
}

/// Clears the fault records at the start of a run, because a run may skip some checks.
fn clear_records(e: &mut LoweringCtx<'_>) {
    let Some(dst) = e.draft.faults else {
        return;
    };
    let clear = ProgramStep {
        work: StepOp::Fill { dst, word: 0 },
        barrier: false,
        branches: ShapeBranches::new(),
        node: NodeId(0),
        op: "check",
    };
    match e.draft.flow.first_mut() {
        Some(ControlFlowGraph::Stage(steps)) => steps.insert(0, clear),
        Some(_) | None => e.draft.flow.insert(0, ControlFlowGraph::Stage(vec![clear])),
    }
}

/// Inputs, outputs and states of the program under construction.
#[derive(Debug, Default)]
pub(crate) struct ProgramInterface {
    pub(crate) inputs: Vec<IoBinding>,
    pub(crate) params: Vec<IoBinding>,
    pub(crate) states: Vec<IoBinding>,
    pub(crate) outputs: Vec<IoBinding>,
}

fn walk(e: &mut LoweringCtx<'_>, in_place: bool) -> Result<ProgramInterface, CompileError> {
    let facts = &e.facts;
    let joined = ElidedConcats::new(e.graph, facts.signature, &facts.soa_layouts, e.caps);
    let mut borders = leaves(e, &joined)?;
    let updates = match in_place {
        true => in_place_updates(e.graph),
        false => HashMap::new(),
    };
    let slots = updates.into_iter().filter_map(|(value, leaf)| {
        let Op::State(state) = &e.graph.node(leaf).op else {
            return None;
        };
        let states = e.facts.signature.states.iter();
        let mut states = states.zip(&borders.states);
        let (_, io) = states.find(|(port, _)| port.name == state.name)?;
        let slot = io.slot;
        Some((value, InPlaceUpdate { leaf, slot }))
    });
    let in_place = slots.collect();
    nodes(e, &LeafPlacement::Interface(&borders, &joined), &in_place)?;
    outputs(e, &mut borders)?;
    assigns(e)?;
    Ok(borders)
}

/// Allocates slots for the whole signature, including entries that the legal graph does not read.
fn leaves(
    e: &mut LoweringCtx<'_>,
    joined: &ElidedConcats,
) -> Result<ProgramInterface, CompileError> {
    let mut borders = ProgramInterface::default();
    let signature = e.facts.signature;
    let planes: HashMap<String, SoaLayout> = e
        .facts
        .soa_layouts
        .iter()
        .filter_map(|(v, planes)| {
            let Op::Param(param) = &e.graph.node(v.node).op else {
                return None;
            };
            Some((param.name.clone(), *planes))
        })
        .collect();
    let lists = [&signature.inputs, &signature.params, &signature.states];
    for (kind, ports) in lists.into_iter().enumerate() {
        for (i, port) in ports.iter().enumerate() {
            let i = i as u32;
            let (home, list) = match kind {
                0 => (SlotPlacement::Input, &mut borders.inputs),
                1 => {
                    let (buffer, offset) = joined.buffer_offsets.get(&i).copied().unwrap_or((i, 0));
                    (
                        SlotPlacement::At(ProgramBuffer::Param(buffer), offset),
                        &mut borders.params,
                    )
                }
                _ => (
                    SlotPlacement::At(ProgramBuffer::State(i), 0),
                    &mut borders.states,
                ),
            };
            let planes = planes.get(&port.name).filter(|_| kind == 1).copied();
            // Errors that occur while this slot is allocated name this leaf.
            let leaf = e.graph.leaf(&port.name);
            if let Some(leaf) = leaf {
                e.set_node(leaf);
            }
            let in_parts = leaf.is_some_and(|leaf| e.facts.partitioned.has_leaf(leaf));
            list.push(io(e, port, planes, home, in_parts)?);
        }
    }
    Ok(borders)
}

pub(crate) fn place(
    e: &mut LoweringCtx<'_>,
    dtype: DType,
    shape: &[Dim],
    planes: Option<SoaLayout>,
    home: SlotPlacement,
) -> Result<SlotView, CompileError> {
    match planes {
        Some(planes) => e.allocate_soa(&planes, shape, home),
        None => e.allocate(dtype, shape, home),
    }
}

fn io(
    e: &mut LoweringCtx<'_>,
    port: &Port,
    planes: Option<SoaLayout>,
    home: SlotPlacement,
    in_parts: bool,
) -> Result<IoBinding, CompileError> {
    let dtype = device_dtype(port.ty.dtype);
    let view = match (in_parts, &planes) {
        (false, _) => place(e, dtype, &port.ty.shape, planes, home)?,
        (true, None) => e.allocate_unbound(dtype, &port.ty.shape, home)?,
        (true, Some(planes)) => e.allocate_unbound(dtype, &planes.stored(&port.ty.shape), home)?,
    };
    let words = e.words(dtype, &port.ty.shape);
    Ok(IoBinding {
        ty: port.ty.clone(),
        slot: view.slot,
        bytes: e.tape().mul(words, SymInt::Const(4)),
        soa_layout: planes,
    })
}

/// Lowers the outputs. If an output is a whole slot, that slot becomes the readback slot; otherwise
/// the output is copied.
fn outputs(e: &mut LoweringCtx<'_>, borders: &mut ProgramInterface) -> Result<(), CompileError> {
    let graph = e.graph;
    for (port, output) in e.facts.signature.outputs.iter().zip(graph.outputs()) {
        e.move_to_border(output.value.node, "output");
        let view = e.view(output.value);
        if e.facts.partitioned.is_elided_concat(output.value.node) {
            check_dtype(e, &view)?;
            let whole = partitioned_output(e, output.value, &view)?;
            let io = io_of(e, port, &whole);
            borders.outputs.push(io);
            continue;
        }
        check_dtype(e, &view)?;
        let slot = &e.draft.slots[view.slot.0 as usize];
        let whole = slot.home == SlotPlacement::Arena
            && slot.dtype == view.dtype
            && view.layout.covers_root(slot.numel.as_ref());
        if whole {
            e.draft.slots[view.slot.0 as usize].home = SlotPlacement::Output;
            let io = io_of(e, port, &view);
            borders.outputs.push(io);
            continue;
        }
        let to = e.allocate(view.dtype, view.layout.shape(), SlotPlacement::Output)?;
        copy::emit(e, &view, &to)?;
        let io = io_of(e, port, &to);
        borders.outputs.push(io);
    }
    Ok(())
}

/// Lowers an output above the binding limit: each partition is computed in place, or copied to its
/// position.
fn partitioned_output(
    e: &mut LoweringCtx<'_>,
    value: Value,
    like: &SlotView,
) -> Result<SlotView, CompileError> {
    let whole = e.allocate_unbound(like.dtype, like.layout.shape(), SlotPlacement::Output)?;
    for (first, part) in e.facts.partitioned.concat_operands(e.graph, value) {
        let view = e.view(part);
        let home = e.part(whole.slot, (first * view.dtype.size_bytes()) as u64);
        let slot = &mut e.draft.slots[view.slot.0 as usize];
        if slot.home == SlotPlacement::Arena
            && slot.dtype == view.dtype
            && view.layout.covers_root(slot.numel.as_ref())
        {
            slot.home = home;
            continue;
        }
        let to = e.allocate(view.dtype, view.layout.shape(), home)?;
        copy::emit(e, &view, &to)?;
    }
    Ok(whole)
}

/// Rejects an input, parameter or state whose dtype no kernel supports. Lowerings check only the
/// operands of nodes, so pass-through values are checked here.
fn check_dtype(e: &LoweringCtx<'_>, view: &SlotView) -> Result<(), CompileError> {
    let Some(reason) = unsupported_reason(view.dtype) else {
        return Ok(());
    };
    Err(CompileError::Unsupported {
        target: e.caps.target,
        nodes: vec![UnsupportedNode {
            node: e.facts.origins.origin(e.cursor.at),
            op: e.cursor.op,
            results: e.graph.node(e.cursor.at).outputs.clone(),
            reason: reason.to_string(),
            remedy: "cast it to f32".to_string(),
        }],
    })
}

fn io_of(e: &mut LoweringCtx<'_>, port: &Port, view: &SlotView) -> IoBinding {
    let words = e.words(view.dtype, view.layout.shape());
    IoBinding {
        ty: port.ty.clone(),
        slot: view.slot,
        bytes: e.tape().mul(words, SymInt::Const(4)),
        soa_layout: None,
    }
}

/// Emits the copies of new values to states that are not updated in place. These commits are the
/// last steps of a run: all new values are read before any state is written.
fn assigns(e: &mut LoweringCtx<'_>) -> Result<(), CompileError> {
    let graph = e.graph;
    let mut commits = Vec::new();
    for assign in graph.assigns() {
        e.move_to_border(assign.value.node, "assign");
        for (state, value) in assigned(e, assign) {
            if state.slot == value.slot && value == state {
                continue;
            }
            check_dtype(e, &value)?;
            let home = e.draft.slots[value.slot.0 as usize].home;
            let from = match home {
                SlotPlacement::At(ProgramBuffer::State(_), _) => {
                    let copy = e.temp(value.dtype, value.layout.shape())?;
                    copy::emit(e, &value, &copy)?;
                    copy
                }
                SlotPlacement::Arena
                | SlotPlacement::Prepared
                | SlotPlacement::Output
                | SlotPlacement::Input
                | SlotPlacement::Counters
                | SlotPlacement::Within(..)
                | SlotPlacement::At(..) => e.dense(&value)?,
            };
            commits.push((from, state));
        }
    }
    for (from, state) in commits {
        copy::commit(e, &from, &state);
    }
    Ok(())
}

/// Views of a state and of its new value, split into the same partitions.
fn assigned(e: &LoweringCtx<'_>, assign: &StateAssign) -> Vec<(SlotView, SlotView)> {
    let parts = &e.facts.partitioned;
    if !parts.has_leaf(assign.state.node) {
        return vec![(e.view(assign.state), e.view(assign.value))];
    }
    let pairs = parts.concat_operands(e.graph, assign.value).into_iter();
    let pairs = pairs.filter_map(|(first, value)| {
        let node = parts.part(assign.state.node, first)?;
        Some((e.view(Value { node, port: 0 }), e.view(value)))
    });
    pairs.collect()
}

/// True if a state is written before a data check or before data-dependent control flow. A failed
/// check or a branch may end the run before states that should keep their old contents.
fn writes_state_before_check(e: &LoweringCtx<'_>) -> bool {
    let touches = |s: &ProgramStep, buffer: fn(ProgramBuffer) -> bool| {
        let accesses = s.accesses(&e.draft.kernels);
        accesses.into_iter().any(|(slot, access)| {
            let home = e.draft.slots[slot.0 as usize].home;
            access == ArgAccess::Write && matches!(home, SlotPlacement::At(b, _) if buffer(b))
        })
    };
    let is_state: fn(ProgramBuffer) -> bool = |b| matches!(b, ProgramBuffer::State(_));
    let (last, closed) = (&e.draft.steps, &e.draft.flow);
    let mut before = closed.iter().filter_map(|flow| match flow {
        ControlFlowGraph::Stage(steps) => Some(steps),
        ControlFlowGraph::Sizes(_)
        | ControlFlowGraph::If { .. }
        | ControlFlowGraph::While { .. }
        | ControlFlowGraph::Repeat { .. } => None,
    });
    if before.any(|steps| steps.iter().any(|s| touches(s, is_state))) {
        return true;
    }
    let state = last.iter().position(|s| touches(s, is_state));
    let check = last
        .iter()
        .rposition(|s| touches(s, |b| b == ProgramBuffer::Faults));
    matches!((state, check), (Some(state), Some(check)) if state < check)
}

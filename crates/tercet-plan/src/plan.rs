//! The order of planning: leaves, nodes through their families (`walk.rs`), outputs, states; then
//! schedule and memory.

use std::collections::HashMap;

use tercet_ir::backend::check_borders;
use tercet_ir::layout::in_place_updates;
use tercet_ir::legalize::{Origins, legalize, origins};
use tercet_ir::{
    Assign, CompileError, CompileOptions, DType, Dim, Graph, NodeId, Op, OpKind, Port, Signature,
    UnsupportedNode, Value, passes,
};

use crate::caps::Caps;
use crate::driver::device_dtype;
use crate::emit::{Emit, Facts, Home, View};
use crate::families::{PlanTarget, check, copy, refused};
use crate::flow::Flow;
use crate::joined::Joined;
use crate::kernel::{Access, Word};
use crate::narrow::narrow_i64;
use crate::num::Num;
use crate::planes::{self, Planes};
use crate::program::{Arms, Buffer, Io, Program, Step, Work};
use crate::schedule;
use crate::split::{Parts, split};
use crate::walk::{Leaves, Update, nodes, shared_packed, turned_attention};

/// Choices of planning that do not change results.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlanOptions {
    /// Leaves room after every slot and never shares memory over time, so that writes outside a
    /// slot can be seen: [`Program::gaps`].
    pub sentinels: bool,
}

/// The program of a graph: passes, narrowing of I64, legalization, planning.
///
/// # Errors
/// [`CompileError`] that lists every node the device cannot run, or names the symbol without a
/// bound, or the tensor that is too large.
pub fn compile(
    graph: &Graph,
    options: &CompileOptions,
    caps: &Caps,
) -> Result<Program, CompileError> {
    compile_with(graph, options, caps, PlanOptions::default())
}

/// As [`compile`], with choices of planning.
///
/// # Errors
/// As [`compile`].
pub fn compile_with(
    graph: &Graph,
    options: &CompileOptions,
    caps: &Caps,
    choices: PlanOptions,
) -> Result<Program, CompileError> {
    let graph = &*options.opened(graph)?;
    check_borders(graph, &options.bounds)?;
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

/// The program of a legal graph. `signature` is that of the graph as it was given, `origins` its nodes
/// for the legal ones.
///
/// # Errors
/// As [`compile`].
pub fn plan(
    legal: &Graph,
    signature: Signature,
    origins: Origins,
    options: &CompileOptions,
    caps: &Caps,
    choices: PlanOptions,
) -> Result<Program, CompileError> {
    let has_flow = legal.nodes().any(|(_, n)| !n.op.subgraphs().is_empty());
    let draft = |in_place: bool| -> Result<(Emit<'_>, Borders), CompileError> {
        let facts = Facts {
            bounds: &options.bounds,
            signature: &signature,
            origins: origins.clone(),
            planes: planes::of(legal),
            parts: Parts::of(legal, caps),
            around: Vec::new(),
            shared_packed: shared_packed(legal),
            turned_attention: turned_attention(legal),
            products: options.products,
            has_chains: caps.ordered_dispatches && !has_flow && has_chains(legal),
            has_flow,
        };
        let mut e = Emit::new(legal, caps, facts);
        let borders = walk(&mut e, in_place)?;
        Ok((e, borders))
    };
    let (mut e, mut borders) = draft(true)?;
    if writes_state_before_check(&e) {
        // A check that needs a state's new contents cannot come before the state is written, nor can
        // what data decides: states are then written at the end, from copies.
        (e, borders) = draft(false)?;
    }
    e.close_chain();
    let checks = e.draft.data_checks.len() as i64;
    for at in std::mem::take(&mut e.draft.guards) {
        e.draft.params[at] = Word::Num(Num::Const(checks));
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

/// Products with packed weights from which on chains are worth their counters, which every run clears: those of a layer.
const CHAINED_PRODUCTS: usize = 4;

/// Whether a graph has products enough for chains of dispatches.
fn has_chains(graph: &Graph) -> bool {
    let products = graph.nodes();
    let products = products.filter(|(_, n)| n.op.kind() == OpKind::DequantMatMul);
    products.count() >= CHAINED_PRODUCTS
}

/// Clears the records of checks before anything else: a run may leave some of them out.
fn clear_records(e: &mut Emit<'_>) {
    let Some(dst) = e.draft.faults else {
        return;
    };
    let clear = Step {
        work: Work::Fill { dst, word: 0 },
        barrier: false,
        arms: Arms::new(),
        node: NodeId(0),
        op: "check",
    };
    match e.draft.flow.first_mut() {
        Some(Flow::Stage(steps)) => steps.insert(0, clear),
        Some(_) | None => e.draft.flow.insert(0, Flow::Stage(vec![clear])),
    }
}

/// What the program's border is made of.
#[derive(Debug, Default)]
pub(crate) struct Borders {
    pub(crate) inputs: Vec<Io>,
    pub(crate) params: Vec<Io>,
    pub(crate) states: Vec<Io>,
    pub(crate) outputs: Vec<Io>,
}

fn walk(e: &mut Emit<'_>, in_place: bool) -> Result<Borders, CompileError> {
    let facts = &e.facts;
    let joined = Joined::of(e.graph, facts.signature, &facts.planes, e.caps);
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
        Some((value, Update { leaf, slot }))
    });
    let in_place = slots.collect();
    nodes(e, &Leaves::Borders(&borders, &joined), &in_place)?;
    outputs(e, &mut borders)?;
    assigns(e)?;
    Ok(borders)
}

/// Slots of everything in the signature, also of what the legal graph does not read.
fn leaves(e: &mut Emit<'_>, joined: &Joined) -> Result<Borders, CompileError> {
    let mut borders = Borders::default();
    let signature = e.facts.signature;
    let planes: HashMap<String, Planes> = e
        .facts
        .planes
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
                0 => (Home::Input, &mut borders.inputs),
                1 => {
                    let (buffer, offset) = joined.homes.get(&i).copied().unwrap_or((i, 0));
                    (Home::At(Buffer::Param(buffer), offset), &mut borders.params)
                }
                _ => (Home::At(Buffer::State(i), 0), &mut borders.states),
            };
            let planes = planes.get(&port.name).filter(|_| kind == 1).copied();
            // Errors name it.
            let leaf = e.graph.leaf(&port.name);
            if let Some(leaf) = leaf {
                e.move_to(leaf);
            }
            let in_parts = leaf.is_some_and(|leaf| e.facts.parts.has_leaf(leaf));
            list.push(io(e, port, planes, home, in_parts)?);
        }
    }
    Ok(borders)
}

pub(crate) fn place(
    e: &mut Emit<'_>,
    dtype: DType,
    shape: &[Dim],
    planes: Option<Planes>,
    home: Home,
) -> Result<View, CompileError> {
    match planes {
        Some(planes) => e.place_planes(&planes, shape, home),
        None => e.place(dtype, shape, home),
    }
}

fn io(
    e: &mut Emit<'_>,
    port: &Port,
    planes: Option<Planes>,
    home: Home,
    in_parts: bool,
) -> Result<Io, CompileError> {
    let dtype = device_dtype(port.ty.dtype);
    let view = match (in_parts, &planes) {
        (false, _) => place(e, dtype, &port.ty.shape, planes, home)?,
        (true, None) => e.place_unbound(dtype, &port.ty.shape, home)?,
        (true, Some(planes)) => e.place_unbound(dtype, &planes.stored(&port.ty.shape), home)?,
    };
    let words = e.words(dtype, &port.ty.shape);
    Ok(Io {
        ty: port.ty.clone(),
        slot: view.slot,
        bytes: e.tape().mul(words, Num::Const(4)),
        planes,
    })
}

/// Outputs are computed where they are read back from if they are the whole of a slot, else copied.
fn outputs(e: &mut Emit<'_>, borders: &mut Borders) -> Result<(), CompileError> {
    let graph = e.graph;
    for (port, output) in e.facts.signature.outputs.iter().zip(graph.outputs()) {
        e.move_to_border(output.value.node, "output");
        let view = e.view(output.value);
        if e.facts.parts.is_joined(output.value.node) {
            check_dtype(e, &view)?;
            let whole = joined_output(e, output.value, &view)?;
            let io = io_of(e, port, &whole);
            borders.outputs.push(io);
            continue;
        }
        check_dtype(e, &view)?;
        let slot = &e.draft.slots[view.slot.0 as usize];
        let whole = slot.home == Home::Arena
            && slot.dtype == view.dtype
            && view.layout.is_whole(slot.numel.as_ref());
        if whole {
            e.draft.slots[view.slot.0 as usize].home = Home::Output;
            let io = io_of(e, port, &view);
            borders.outputs.push(io);
            continue;
        }
        let to = e.place(view.dtype, view.layout.shape(), Home::Output)?;
        copy::emit(e, &view, &to)?;
        let io = io_of(e, port, &to);
        borders.outputs.push(io);
    }
    Ok(())
}

/// An output that kernels reach in parts: each is computed, or copied, to where it lies in the whole.
fn joined_output(e: &mut Emit<'_>, value: Value, like: &View) -> Result<View, CompileError> {
    let whole = e.place_unbound(like.dtype, like.layout.shape(), Home::Output)?;
    for (first, part) in e.facts.parts.joined(e.graph, value) {
        let view = e.view(part);
        let home = e.part(whole.slot, (first * view.dtype.size_bytes()) as u64);
        let slot = &mut e.draft.slots[view.slot.0 as usize];
        if slot.home == Home::Arena
            && slot.dtype == view.dtype
            && view.layout.is_whole(slot.numel.as_ref())
        {
            slot.home = home;
            continue;
        }
        let to = e.place(view.dtype, view.layout.shape(), home)?;
        copy::emit(e, &view, &to)?;
    }
    Ok(whole)
}

/// Refuses to pass on what comes in with a dtype that no kernel takes: nothing else asks about leaves.
fn check_dtype(e: &Emit<'_>, view: &View) -> Result<(), CompileError> {
    let Some(reason) = refused(view.dtype) else {
        return Ok(());
    };
    Err(CompileError::Unsupported {
        target: e.caps.target,
        nodes: vec![UnsupportedNode {
            node: e.facts.origins.of(e.cursor.at),
            op: e.cursor.op,
            results: e.graph.node(e.cursor.at).outputs.clone(),
            reason: reason.to_string(),
            remedy: "cast it to f32".to_string(),
        }],
    })
}

fn io_of(e: &mut Emit<'_>, port: &Port, view: &View) -> Io {
    let words = e.words(view.dtype, view.layout.shape());
    Io {
        ty: port.ty.clone(),
        slot: view.slot,
        bytes: e.tape().mul(words, Num::Const(4)),
        planes: None,
    }
}

/// States that are not updated in place take their values at the end, all reads before any write.
fn assigns(e: &mut Emit<'_>) -> Result<(), CompileError> {
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
                Home::At(Buffer::State(_), _) => {
                    let copy = e.temp(value.dtype, value.layout.shape())?;
                    copy::emit(e, &value, &copy)?;
                    copy
                }
                Home::Arena
                | Home::Prepared
                | Home::Output
                | Home::Input
                | Home::Counters
                | Home::Within(..)
                | Home::At(..) => e.dense(&value)?,
            };
            commits.push((from, state));
        }
    }
    for (from, state) in commits {
        copy::commit(e, &from, &state);
    }
    Ok(())
}

/// The places of a state and of what it takes, each in as many parts as the other.
fn assigned(e: &Emit<'_>, assign: &Assign) -> Vec<(View, View)> {
    let parts = &e.facts.parts;
    if !parts.has_leaf(assign.state.node) {
        return vec![(e.view(assign.state), e.view(assign.value))];
    }
    let pairs = parts.joined(e.graph, assign.value).into_iter();
    let pairs = pairs.filter_map(|(first, value)| {
        let node = parts.part(assign.state.node, first)?;
        Some((e.view(Value { node, port: 0 }), e.view(value)))
    });
    pairs.collect()
}

/// True if some step that writes a state stands before one that records a check, or before data decides
/// what a run plays: both may end the run.
fn writes_state_before_check(e: &Emit<'_>) -> bool {
    let touches = |s: &Step, buffer: fn(Buffer) -> bool| {
        let accesses = s.accesses(&e.draft.kernels);
        accesses.into_iter().any(|(slot, access)| {
            let home = e.draft.slots[slot.0 as usize].home;
            access == Access::Write && matches!(home, Home::At(b, _) if buffer(b))
        })
    };
    let is_state: fn(Buffer) -> bool = |b| matches!(b, Buffer::State(_));
    let (last, closed) = (&e.draft.steps, &e.draft.flow);
    let mut before = closed.iter().filter_map(|flow| match flow {
        Flow::Stage(steps) => Some(steps),
        Flow::Sizes(_) | Flow::If { .. } | Flow::While { .. } | Flow::Repeat { .. } => None,
    });
    if before.any(|steps| steps.iter().any(|s| touches(s, is_state))) {
        return true;
    }
    let state = last.iter().position(|s| touches(s, is_state));
    let check = last
        .iter()
        .rposition(|s| touches(s, |b| b == Buffer::Faults));
    matches!((state, check), (Some(state), Some(check)) if state < check)
}

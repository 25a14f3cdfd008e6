//! The order of planning: leaves, nodes through their families, outputs, states; then schedule and
//! memory.

use std::collections::{HashMap, HashSet};

use tercet_ir::backend::check_borders;
use tercet_ir::layout::{View as Looked, check_slice, in_place_updates, is_view, view_of};
use tercet_ir::legalize::{legalize, origins};
use tercet_ir::{
    CompileError, CompileOptions, DType, Dim, Graph, Node, NodeId, Op, OpKind, Port, Signature,
    UnsupportedNode, Value, passes,
};

use crate::caps::Caps;
use crate::driver::device_dtype;
use crate::emit::{Emit, Home, View, all_known};
use crate::families::{PlanTarget, copy, find, matmul, norm, refused, rope};
use crate::fusions::{After, Fusions};
use crate::joined::Joined;
use crate::kernel::{Access, Word};
use crate::narrow::narrow_i64;
use crate::num::Num;
use crate::planes::{self, Planes};
use crate::program::{Buffer, Io, Program, SizeCheck, SizeRule, SlotId, Step};
use crate::schedule;

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
    check_borders(graph, &options.bounds)?;
    let optimized = {
        let _span = tracing::debug_span!("passes").entered();
        passes::optimize(graph, options)?
    };
    let legal = {
        let _span = tracing::debug_span!("legalize").entered();
        let narrow = narrow_i64(&optimized)?;
        legalize(&narrow, &PlanTarget(caps))?
    };
    let _span = tracing::debug_span!("plan").entered();
    let origins = origins(graph, &legal);
    plan(
        &legal,
        Signature::of(graph),
        origins,
        options,
        caps,
        choices,
    )
}

/// The program of a legal graph. `signature` is that of the graph as it was given, `origins` its node
/// for each legal one.
///
/// # Errors
/// As [`compile`].
pub fn plan(
    legal: &Graph,
    signature: Signature,
    origins: Vec<Option<NodeId>>,
    options: &CompileOptions,
    caps: &Caps,
    choices: PlanOptions,
) -> Result<Program, CompileError> {
    let draft = |in_place: bool| -> Result<(Emit<'_>, Borders), CompileError> {
        let mut e = Emit::new(legal, caps, &options.bounds, &signature, origins.clone());
        let borders = walk(&mut e, in_place)?;
        Ok((e, borders))
    };
    let (mut e, mut borders) = draft(true)?;
    if writes_state_before_check(&e) {
        // A check that needs a state's new contents cannot come before the state is written: states
        // are then written at the end, from copies.
        (e, borders) = draft(false)?;
    }
    let checks = e.draft.data_checks.len() as i64;
    for at in std::mem::take(&mut e.draft.guards) {
        e.draft.params[at] = Word::Num(Num::Const(checks));
    }
    e.draft.data_checks.sort_by_key(|c| c.node);
    let symbols = legal.symbols();
    let symbols = symbols.into_iter().filter_map(|s| {
        let bound = options.bounds.get(&s)?;
        Some((s, bound))
    });
    let symbols = symbols.collect();
    let draft = e.draft;
    schedule::finish(draft, borders, signature.clone(), symbols, caps, choices)
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
    e.planes = planes::of(e.graph);
    let joined = Joined::of(e.graph, e.signature, &e.planes, e.caps.max_binding_bytes);
    let mut borders = leaves(e, &joined)?;
    let updates = match in_place {
        true => in_place_updates(e.graph),
        false => HashMap::new(),
    };
    let graph = e.graph;
    let into_states = into_states(graph, &updates);
    let fusions = Fusions::of(graph);
    for (id, node) in graph.nodes() {
        e.at = id;
        e.op = node.op.kind().doc().name;
        if into_states.contains(&id) && !reads_state(e, node) {
            e.deferred.insert(id);
            e.places.push(Vec::new());
            continue;
        }
        if is_taken_in(e, &fusions, node)? {
            e.deferred.insert(id);
            e.places.push(Vec::new());
            continue;
        }
        if let Some(&first) = joined.nodes.get(&id) {
            let ty = &node.outputs[0];
            let home = Home::At(Buffer::Param(first), 0);
            let planes = e.planes.get(&Value { node: id, port: 0 }).copied();
            let place = place(e, ty.dtype, &ty.shape, planes, home)?;
            e.places.push(vec![place]);
            continue;
        }
        let state = updates.get(&id).map(|leaf| e.places[leaf.index()][0].slot);
        let after = fusions.taken_by(id);
        let after = after.filter(|(product, _)| e.deferred.contains(product));
        let places = match after {
            Some((product, after)) => lower_after(e, *product, after)?,
            None => lower(e, &borders, node, state)?,
        };
        e.places.push(places);
    }
    e.flush();
    outputs(e, &mut borders)?;
    assigns(e)?;
    Ok(borders)
}

/// Nodes whose result does nothing but go into a state that is updated in place, where the kernel
/// can write it there itself.
fn into_states(graph: &Graph, updates: &HashMap<NodeId, NodeId>) -> HashSet<NodeId> {
    let uses = graph.use_counts();
    let fits = updates.iter().filter_map(|(update, state)| {
        let value = *graph.node(*update).inputs.get(1)?;
        let is_only_reader = uses[value.node.index()][value.port as usize] == 1;
        let state = &graph.node(*state).outputs[0];
        let fits = rope::fits_state(graph.node(value.node), state);
        (is_only_reader && fits).then_some(value.node)
    });
    fits.collect()
}

/// True if the node at hand is left to a later one that does the same by the way. A norm is then noted for
/// the products that read it.
fn is_taken_in(e: &mut Emit<'_>, fusions: &Fusions, node: &Node) -> Result<bool, CompileError> {
    let of = Value {
        node: e.at,
        port: 0,
    };
    let is_norm = matches!(node.op, Op::RmsNorm(_)) && fusions.is_norm(of);
    if !(is_norm || fusions.is_left(e.at)) || reads_state(e, node) || is_constant(e, node) {
        return Ok(false);
    }
    if is_norm {
        let x = e.view(node.inputs[0]);
        norm::leave(e, node, of, x)?;
    }
    Ok(true)
}

/// True if the node has the same results in every run with the same parameters.
fn is_constant(e: &Emit<'_>, node: &Node) -> bool {
    !varies(&node.op)
        && node.outputs.iter().all(|t| all_known(&t.shape))
        && node
            .inputs
            .iter()
            .all(|v| !e.is_left(*v) && e.is_constant(&e.view(*v)))
}

/// True if the node reads a state where it lies: later it may hold another value.
fn reads_state(e: &Emit<'_>, node: &Node) -> bool {
    let mut inputs = node.inputs.iter().filter(|v| !e.is_left(**v));
    inputs.any(|v| matches!(e.home(e.view(*v).slot), Home::At(Buffer::State(_), _)))
}

/// Slots of everything in the signature, also of what the legal graph does not read.
fn leaves(e: &mut Emit<'_>, joined: &Joined) -> Result<Borders, CompileError> {
    let mut borders = Borders::default();
    let signature = e.signature;
    let planes: HashMap<String, Planes> = e
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
            list.push(io(e, port, planes, home)?);
        }
    }
    Ok(borders)
}

fn place(
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
) -> Result<Io, CompileError> {
    let dtype = device_dtype(port.ty.dtype);
    let view = place(e, dtype, &port.ty.shape, planes, home)?;
    let words = e.words(dtype, &port.ty.shape);
    Ok(Io {
        ty: port.ty.clone(),
        slot: view.slot,
        bytes: e.tape().mul(words, Num::Const(4)),
        planes,
    })
}

fn lower(
    e: &mut Emit<'_>,
    borders: &Borders,
    node: &Node,
    into_state: Option<SlotId>,
) -> Result<Vec<View>, CompileError> {
    let kind = node.op.kind();
    if let Some(view) = leaf(e, borders, node)? {
        return Ok(vec![view]);
    }
    if is_view(kind) {
        let from = e.view(node.inputs[0]);
        return Ok(vec![look(e, node, &from)?]);
    }
    let constant = is_constant(e, node);
    let graph = e.graph;
    let family = find(graph, node, e.caps).unwrap_or_else(|why| {
        unreachable!("invariant: the legalizer leaves nodes that a family lowers: {kind:?}, {why}")
    });
    e.constant = constant && into_state.is_none();
    e.into_state = into_state;
    e.results = vec![None; node.outputs.len()];
    let done = (family.lower)(e, node);
    e.constant = false;
    e.into_state = None;
    done?;
    let results = std::mem::take(&mut e.results).into_iter();
    let placed = results.map(|r| {
        r.unwrap_or_else(|| unreachable!("invariant: {} makes every result", family.name))
    });
    Ok(placed.collect())
}

/// Lowers a product together with the node at hand, which it was left to.
fn lower_after(
    e: &mut Emit<'_>,
    product: NodeId,
    after: &After,
) -> Result<Vec<View>, CompileError> {
    let graph = e.graph;
    let node = graph.node(e.at);
    let port = match after {
        After::Gate(_) => 0,
        After::Sum { port, .. } => *port,
    };
    e.results = vec![None; node.outputs.len()];
    let y = e.result(port as usize)?;
    e.op = graph.node(product).op.kind().doc().name;
    matmul::lower_with(e, graph.node(product), after, &y)?;
    e.results.clear();
    if port > 0 {
        // The norm of the sum is left to products, which do not look at its place.
        let of = Value {
            node: e.at,
            port: 0,
        };
        norm::leave(e, node, of, y.clone())?;
    }
    Ok(vec![y; node.outputs.len()])
}

fn leaf(e: &mut Emit<'_>, borders: &Borders, node: &Node) -> Result<Option<View>, CompileError> {
    let ty = &node.outputs[0];
    let signature = e.signature;
    let slot = |ports: &[Port], list: &[Io], name: &str| {
        let at = ports.iter().position(|p| p.name == name);
        list[at.unwrap_or_else(|| unreachable!("invariant: passes keep leaves: {name}"))].slot
    };
    let slot = match &node.op {
        Op::Input(o) => slot(&signature.inputs, &borders.inputs, &o.name),
        Op::Param(o) => slot(&signature.params, &borders.params, &o.name),
        Op::State(o) => slot(&signature.states, &borders.states, &o.name),
        Op::Const(o) => {
            return e.constant(o.tensor.clone()).map(Some);
        }
        _ => return Ok(None),
    };
    let planes = e.planes.get(&Value {
        node: e.at,
        port: 0,
    });
    let layout = match planes {
        Some(planes) => planes.layout(&ty.shape),
        None => tercet_ir::layout::SymLayout::dense(&ty.shape),
    };
    let layout = layout.unwrap_or_else(|| unreachable!("invariant: the slot was placed"));
    Ok(Some(View {
        slot,
        layout,
        dtype: ty.dtype,
    }))
}

/// The operand under another layout; a copy of it where that has none.
fn look(e: &mut Emit<'_>, node: &Node, from: &View) -> Result<View, CompileError> {
    let operand = e.graph.ty(node.inputs[0]);
    if let Some(slice) = check_slice(node, operand) {
        let given = e.origins.get(e.at.index()).copied().flatten();
        e.draft.size_checks.push(SizeCheck {
            node: given.unwrap_or(e.at),
            op: "slice",
            rule: SizeRule::Slice {
                slice: slice.clone(),
                from: operand.shape.clone(),
                to: node.outputs[0].shape.clone(),
            },
        });
    }
    if let Looked::Free(layout) = view_of(node, operand, &from.layout) {
        return Ok(View {
            layout,
            ..from.clone()
        });
    }
    let dense = e.dense(from)?;
    match view_of(node, operand, &dense.layout) {
        Looked::Free(layout) => Ok(View { layout, ..dense }),
        Looked::NeedsDense => Err(CompileError::OutOfMemory {
            what: "a view at the symbols' bounds",
            bytes: u64::MAX,
        }),
    }
}

/// True for leaves that change between runs and for what gives another value at each run.
fn varies(op: &Op) -> bool {
    matches!(
        op.kind(),
        OpKind::Input | OpKind::State | OpKind::RngUniform | OpKind::RngNormal | OpKind::Sample
    )
}

/// Outputs are computed where they are read back from if they are the whole of a slot, else copied.
fn outputs(e: &mut Emit<'_>, borders: &mut Borders) -> Result<(), CompileError> {
    let graph = e.graph;
    e.op = "output";
    for (port, output) in e.signature.outputs.iter().zip(graph.outputs()) {
        e.at = output.value.node;
        let view = e.view(output.value);
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

/// Refuses to pass on what comes in with a dtype that no kernel takes: nothing else asks about leaves.
fn check_dtype(e: &Emit<'_>, view: &View) -> Result<(), CompileError> {
    let Some(reason) = refused(view.dtype) else {
        return Ok(());
    };
    let node = e.origins.get(e.at.index()).copied().flatten();
    Err(CompileError::Unsupported {
        target: e.caps.target,
        nodes: vec![UnsupportedNode {
            node: node.unwrap_or(e.at),
            op: e.op,
            results: e.graph.node(e.at).outputs.clone(),
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
    e.op = "assign";
    let mut commits = Vec::new();
    for assign in graph.assigns() {
        e.at = assign.value.node;
        let (state, value) = (e.view(assign.state), e.view(assign.value));
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
            Home::Arena | Home::Prepared | Home::Output | Home::Input | Home::At(..) => {
                e.dense(&value)?
            }
        };
        commits.push((from, state));
    }
    for (from, state) in commits {
        copy::commit(e, &from, &state);
    }
    Ok(())
}

/// True if some step that writes a state stands before one that records a check.
fn writes_state_before_check(e: &Emit<'_>) -> bool {
    let touches = |s: &Step, buffer: fn(Buffer) -> bool| {
        let accesses = s.accesses(&e.draft.kernels);
        accesses.into_iter().any(|(slot, access)| {
            let home = e.draft.slots[slot.0 as usize].home;
            access == Access::Write && matches!(home, Home::At(b, _) if buffer(b))
        })
    };
    let steps = &e.draft.steps;
    let state = steps
        .iter()
        .position(|s| touches(s, |b| matches!(b, Buffer::State(_))));
    let check = steps
        .iter()
        .rposition(|s| touches(s, |b| b == Buffer::Faults));
    matches!((state, check), (Some(state), Some(check)) if state < check)
}

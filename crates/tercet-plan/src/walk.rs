//! The nodes of a graph in their order, each through its family: of the graph itself and of graphs inside
//! nodes.

use std::collections::{HashMap, HashSet};

use tercet_ir::layout::{View as Looked, check_slice, is_view, view_of};
use tercet_ir::{CompileError, Node, NodeId, Op, OpKind, Port, Value};

use crate::emit::{Emit, Home, View, all_known};
use crate::families::{find, matmul, norm};
use crate::fusions::{After, Fusions};
use crate::joined::Joined;
use crate::plan::{Borders, place};
use crate::program::{Buffer, Io, SizeRule, SlotId};

/// Emits the nodes of a graph inside a node; the places of its results.
///
/// # Errors
/// Those of the families.
pub(crate) fn walk_block(
    e: &mut Emit<'_>,
    arguments: &[View],
    in_place: &HashMap<NodeId, SlotId>,
) -> Result<Vec<View>, CompileError> {
    let inputs = e
        .graph
        .nodes()
        .filter(|(_, n)| n.op.kind() == OpKind::Input);
    let given = inputs.map(|(id, _)| id).zip(arguments.iter().cloned());
    let leaves = Leaves::Arguments(given.collect());
    let homes = |_: &Emit<'_>, id: NodeId| in_place.get(&id).copied();
    nodes(e, &leaves, &HashSet::new(), homes)?;
    let outputs = e.graph.outputs().iter();
    Ok(outputs.map(|o| e.view(o.value)).collect())
}

/// Where the leaves of a graph lie.
pub(crate) enum Leaves<'b> {
    /// At the border of the program.
    Borders(&'b Borders, &'b Joined),
    /// Where the arguments of a graph inside a node do.
    Arguments(HashMap<NodeId, View>),
}

/// Emits the nodes of a graph. `home` gives the slot that a node writes its first result into, where that
/// lies already.
pub(crate) fn nodes(
    e: &mut Emit<'_>,
    leaves: &Leaves<'_>,
    into_states: &HashSet<NodeId>,
    home: impl Fn(&Emit<'_>, NodeId) -> Option<SlotId>,
) -> Result<(), CompileError> {
    let graph = e.graph;
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
        if let Some(place) = joined_parameters(e, leaves, node)? {
            e.places.push(vec![place]);
            continue;
        }
        let into = home(e, id);
        let after = fusions.taken_by(id);
        let after = after.filter(|(product, _)| e.deferred.contains(product));
        let places = match after {
            Some((product, after)) => lower_after(e, *product, after)?,
            None => lower(e, leaves, node, into)?,
        };
        e.places.push(places);
    }
    e.flush();
    Ok(())
}

/// The place of a node that stands for parameters which lie behind each other.
fn joined_parameters(
    e: &mut Emit<'_>,
    leaves: &Leaves<'_>,
    node: &Node,
) -> Result<Option<View>, CompileError> {
    let Leaves::Borders(_, joined) = leaves else {
        return Ok(None);
    };
    let Some(&first) = joined.nodes.get(&e.at) else {
        return Ok(None);
    };
    let ty = &node.outputs[0];
    let home = Home::At(Buffer::Param(first), 0);
    let value = Value {
        node: e.at,
        port: 0,
    };
    let planes = e.planes.get(&value).copied();
    place(e, ty.dtype, &ty.shape, planes, home).map(Some)
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

fn lower(
    e: &mut Emit<'_>,
    leaves: &Leaves<'_>,
    node: &Node,
    into_state: Option<SlotId>,
) -> Result<Vec<View>, CompileError> {
    let kind = node.op.kind();
    if let Some(view) = leaf(e, leaves, node)? {
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

fn leaf(e: &mut Emit<'_>, leaves: &Leaves<'_>, node: &Node) -> Result<Option<View>, CompileError> {
    if let Op::Const(o) = &node.op {
        return e.constant(o.tensor.clone()).map(Some);
    }
    match leaves {
        Leaves::Borders(borders, _) => Ok(named_leaf(e, borders, node)),
        Leaves::Arguments(given) => Ok(given.get(&e.at).cloned()),
    }
}

/// An input, parameter or state.
fn named_leaf(e: &Emit<'_>, borders: &Borders, node: &Node) -> Option<View> {
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
        _ => return None,
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
    Some(View {
        slot,
        layout,
        dtype: ty.dtype,
    })
}

/// The operand under another layout; a copy of it where that has none.
fn look(e: &mut Emit<'_>, node: &Node, from: &View) -> Result<View, CompileError> {
    let operand = e.graph.ty(node.inputs[0]);
    if let Some(slice) = check_slice(node, operand) {
        let rule = SizeRule::Slice {
            slice: slice.clone(),
            from: operand.shape.clone(),
            to: node.outputs[0].shape.clone(),
        };
        e.check_sizes("slice", rule);
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

/// True for leaves that change between runs, for what gives another value at each run, and for what has
/// stages of its own.
fn varies(op: &Op) -> bool {
    matches!(
        op.kind(),
        OpKind::Input | OpKind::State | OpKind::RngUniform | OpKind::RngNormal | OpKind::Sample
    ) || !op.subgraphs().is_empty()
}

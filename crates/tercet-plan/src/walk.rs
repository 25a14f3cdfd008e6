//! The nodes of a graph in their order, each through its family: of the graph itself and of graphs inside
//! nodes. Nodes that are emitted together (`fusions`) come where the last of them stands.

use std::collections::{HashMap, HashSet};

use tercet_ir::layout::{SymLayout, View as Looked, check_slice, is_view, view_of};
use tercet_ir::ops::Layout;
use tercet_ir::{CompileError, Graph, Node, NodeId, Op, OpKind, Port, Type, Value};

use crate::emit::{Emit, Home, UpdatedSlots, View, all_known};
use crate::families::map::{columns, row_wise};
use crate::families::rope::append::Append;
use crate::families::{Family, attention, find, matmul, rope, top_k};
use crate::fusions::{Choice, Fusions, Group, KvAppend, Narrow, RowWise};
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
    in_place: &Updates,
) -> Result<Vec<View>, CompileError> {
    let inputs = e
        .graph
        .nodes()
        .filter(|(_, n)| n.op.kind() == OpKind::Input);
    let given = inputs.map(|(id, _)| id).zip(arguments.iter().cloned());
    let leaves = Leaves::Arguments(given.collect());
    nodes(e, &leaves, in_place)?;
    let outputs = e.graph.outputs().iter();
    Ok(outputs.map(|o| e.view(o.value)).collect())
}

/// A value that is written where a leaf lies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Update {
    /// A state, or what a loop carries.
    pub(crate) leaf: NodeId,
    /// Where that lies.
    pub(crate) slot: SlotId,
}

/// The values of a graph that are written where leaves lie.
pub(crate) type Updates = HashMap<Value, Update>;

/// Where the leaves of a graph lie.
pub(crate) enum Leaves<'b> {
    /// At the border of the program.
    Borders(&'b Borders, &'b Joined),
    /// Where the arguments of a graph inside a node do.
    Arguments(HashMap<NodeId, View>),
}

/// Emits the nodes of a graph; values of `in_place` where leaves lie.
pub(crate) fn nodes(
    e: &mut Emit<'_>,
    leaves: &Leaves<'_>,
    in_place: &Updates,
) -> Result<(), CompileError> {
    let graph = e.graph;
    let fusions = Fusions::of(graph, e.caps, in_place);
    for (id, node) in graph.nodes() {
        if fusions.is_deferred(id) {
            continue;
        }
        e.move_to(id);
        let ports = 0..node.outputs.len() as u8;
        let slots = ports.filter_map(|port| {
            let update = in_place.get(&Value { node: id, port })?;
            Some((port, update.slot))
        });
        let into: UpdatedSlots = slots.collect();
        let places = match fusions.ending_at(id) {
            Some(group) => lower_group(e, group, into)?,
            None => lower(e, leaves, node, into)?,
        };
        e.set_places(id, places);
    }
    Ok(())
}

/// The place of a part of a leaf above the binding limit, a slot of its own within that of the leaf; and of a result
/// above it, which no kernel looks at.
fn in_parts(e: &mut Emit<'_>, node: &Node) -> Result<Option<View>, CompileError> {
    let ty = &node.outputs[0];
    if e.facts.parts.is_joined(e.cursor.at) {
        // Its operands lie where it does.
        let nothing = e.absent()?;
        let view = SymLayout::dense(&ty.shape).map(|layout| View {
            slot: nothing,
            layout,
            dtype: ty.dtype,
        });
        return Ok(view);
    }
    let [of] = node.inputs[..] else {
        return Ok(None);
    };
    let Some(first) = e.facts.parts.first(of.node, e.cursor.at) else {
        return Ok(None);
    };
    let planes = e.facts.planes.get(&of).copied();
    let offset = match planes {
        Some(planes) => first / planes.row_bytes.max(1) * planes.stride_bytes(),
        None => first * ty.dtype.size_bytes(),
    };
    let home = e.part(e.view(of).slot, offset as u64);
    place(e, ty.dtype, &ty.shape, planes, home).map(Some)
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
    let Some(&first) = joined.nodes.get(&e.cursor.at) else {
        return Ok(None);
    };
    let ty = &node.outputs[0];
    let home = Home::At(Buffer::Param(first), 0);
    let value = Value {
        node: e.cursor.at,
        port: 0,
    };
    let planes = e.facts.planes.get(&value).copied();
    place(e, ty.dtype, &ty.shape, planes, home).map(Some)
}

/// True if the node has the same results in every run with the same parameters.
fn is_constant(e: &Emit<'_>, node: &Node) -> bool {
    has_one_size(e.graph, node)
        && !varies(&node.op)
        && node.inputs.iter().all(|v| e.is_constant(&e.view(*v)))
}

/// What nodes of a graph decode and others read, too.
pub(crate) fn shared_packed(graph: &Graph) -> HashSet<Value> {
    let decoded = graph.nodes().filter_map(|(_, node)| match node.op {
        Op::Dequantize(_) => Some((node.inputs[0], 0)),
        _ => None,
    });
    let mut readers: HashMap<Value, usize> = decoded.collect();
    if !readers.is_empty() {
        for value in graph.nodes().flat_map(|(_, node)| &node.inputs) {
            if let Some(count) = readers.get_mut(value) {
                *count += 1;
            }
        }
    }
    let shared = readers.into_iter().filter(|(_, count)| *count > 1);
    shared.map(|(value, _)| value).collect()
}

/// Attention with heads before positions whose results are read the other way round alone, as exported models do: it writes
/// them so, and nobody copies.
pub(crate) fn turned_attention(graph: &Graph) -> HashSet<NodeId> {
    let mut turned: HashSet<NodeId> = HashSet::new();
    for (id, node) in graph.nodes() {
        if let Op::Attention(op) = &node.op
            && op.layout == Layout::Bhsd
            && node.outputs.len() == 1
        {
            turned.insert(id);
        }
    }
    if turned.is_empty() {
        return turned;
    }
    let (mut turns, uses) = (HashMap::<NodeId, usize>::new(), graph.use_counts());
    for (_, node) in graph.nodes() {
        if let Op::Transpose(op) = &node.op
            && op.perm == [0, 2, 1, 3]
        {
            *turns.entry(node.inputs[0].node).or_default() += 1;
        }
    }
    turned.retain(|id| {
        turns
            .get(id)
            .is_some_and(|n| uses[id.index()][0] as usize == *n)
    });
    turned
}

/// True for what decodes weights that others read packed, as gradients do: kept decoded, they would take several times the memory
/// that packing saves.
fn is_decoded_beside(e: &Emit<'_>, node: &Node) -> bool {
    matches!(node.op, Op::Dequantize(_)) && e.facts.shared_packed.contains(&node.inputs[0])
}

/// True if no size of operands and results is of a run: a constant may be spread over such a size, and summed again.
pub(crate) fn has_one_size(graph: &Graph, node: &Node) -> bool {
    let operands = node.inputs.iter().map(|v| graph.ty(*v));
    let mut types = operands.chain(&node.outputs);
    types.all(|ty| all_known(&ty.shape))
}

fn family_of(e: &Emit<'_>, node: &Node) -> &'static Family {
    find(e.graph, node, e.caps).unwrap_or_else(|why| {
        let kind = node.op.kind();
        unreachable!("invariant: the legalizer leaves nodes that a family lowers: {kind:?}, {why}")
    })
}

fn lower(
    e: &mut Emit<'_>,
    leaves: &Leaves<'_>,
    node: &Node,
    into: UpdatedSlots,
) -> Result<Vec<View>, CompileError> {
    let kind = node.op.kind();
    if let Some(place) = in_parts(e, node)? {
        return Ok(vec![place]);
    }
    if let Some(place) = joined_parameters(e, leaves, node)? {
        return Ok(vec![place]);
    }
    if let Some(view) = leaf(e, leaves, node)? {
        return Ok(vec![view]);
    }
    if is_view(kind) {
        let from = e.view(node.inputs[0]);
        return Ok(vec![look(e, node, &from)?]);
    }
    let constant = is_constant(e, node) && into.is_empty() && !is_decoded_beside(e, node);
    let family = family_of(e, node);
    e.as_constant(constant, |e| {
        e.results_of(into, |e| (family.lower)(e, node))
    })
}

/// Lowers a group of which the node at hand is the last one.
fn lower_group(
    e: &mut Emit<'_>,
    group: &Group,
    into: UpdatedSlots,
) -> Result<Vec<View>, CompileError> {
    let graph = e.graph;
    let node = graph.node(e.cursor.at);
    match group {
        Group::Product(group) => {
            e.results_of(UpdatedSlots::new(), |e| matmul::lower_fused(e, node, group))
        }
        Group::RopeUpdate { rope } => {
            e.results_of(into, |e| rope::lower_update(e, graph.node(*rope), node))
        }
        Group::KvAppend(group) => lower_append(e, node, group),
        Group::Choice(choice) => lower_choice(e, choice),
        Group::RowWise(group) => lower_rows(e, group),
        Group::Widened(group) => {
            let [a, b] = &group.operands;
            let a = lower_narrow(e, a)?;
            let b = lower_narrow(e, b)?;
            e.results_of(into, |e| {
                let y = e.result(0)?;
                matmul::product_into(e, &a, &b, &y)
            })
        }
        Group::Normed { norm } => lower_normed(e, *norm),
        Group::Columns(group) => {
            let views = columns::lower(e, group)?;
            for (sum, view) in group.sums.iter().zip(views) {
                e.set_places(*sum, vec![view]);
            }
            Ok(e.places(e.cursor.at))
        }
    }
}

/// Lowers a norm and the product that alone reads it as one kernel, or else one after the other.
fn lower_normed(e: &mut Emit<'_>, norm: NodeId) -> Result<Vec<View>, CompileError> {
    let last = e.cursor.at;
    let (node, product) = (e.graph.node(norm), e.graph.node(last));
    let normed = matmul::Normed::of(e, node, product)?;
    e.move_to(norm);
    let places = match &normed {
        Some(_) => {
            let mut places = vec![nowhere(e, &node.outputs[0])?];
            for ty in &node.outputs[1..] {
                places.push(e.temp(ty.dtype, &ty.shape)?);
            }
            places
        }
        None => {
            let family = family_of(e, node);
            e.results_of(UpdatedSlots::new(), |e| (family.lower)(e, node))?
        }
    };
    let sum = places.get(1).cloned();
    e.set_places(norm, places);
    e.move_to(last);
    e.results_of(UpdatedSlots::new(), |e| match &normed {
        Some(normed) => {
            let y = e.result(0)?;
            normed.emit(e, &y, sum.as_ref())
        }
        None => (family_of(e, product).lower)(e, product),
    })
}

/// Where an operand lies that was not widened, as views see it.
fn lower_narrow(e: &mut Emit<'_>, operand: &Narrow) -> Result<View, CompileError> {
    let mut view = e.view(operand.of);
    for &id in &operand.views {
        let node = e.graph.node(id);
        view = look(e, node, &view)?;
    }
    Ok(view)
}

/// Lowers a group over rows as one kernel, or else each of its nodes.
fn lower_rows(e: &mut Emit<'_>, group: &RowWise) -> Result<Vec<View>, CompileError> {
    let last = e.cursor.at;
    let made = row_wise::lower(e, group)?;
    for &id in &group.nodes {
        let node = e.graph.node(id);
        let places = match &made {
            Some(made) => {
                let mut places = Vec::new();
                for port in 0..node.outputs.len() as u8 {
                    places.push(match made.get(&Value { node: id, port }) {
                        Some(view) => view.clone(),
                        // Nothing outside of the group reads it.
                        None => nowhere(e, &node.outputs[usize::from(port)])?,
                    });
                }
                places
            }
            None => {
                e.move_to(id);
                let family = family_of(e, node);
                e.results_of(UpdatedSlots::new(), |e| (family.lower)(e, node))?
            }
        };
        e.set_places(id, places);
    }
    e.move_to(last);
    Ok(e.places(last))
}

/// Lowers a choice as one kernel.
fn lower_choice(e: &mut Emit<'_>, choice: &Choice) -> Result<Vec<View>, CompileError> {
    let last = e.cursor.at;
    e.move_to(choice.top_k);
    let of = [choice.softmax.is_some(), choice.shares.is_some()];
    let node = e.graph.node(choice.top_k);
    let from = choice.softmax.map_or(node, |id| e.graph.node(id));
    let x = e.view(from.inputs[0]);
    let places = e.results_of(UpdatedSlots::new(), |e| {
        top_k::lower_choice(e, node, &x, of)
    })?;
    if let Some([sum, div]) = choice.shares {
        let unread = nowhere(e, &e.graph.node(sum).outputs[0])?;
        e.set_places(sum, vec![unread]);
        e.set_places(div, vec![places[0].clone()]);
    }
    e.set_places(choice.top_k, places);
    e.move_to(last);
    Ok(e.places(last))
}

/// The place of a result that no step reads.
fn nowhere(e: &mut Emit<'_>, ty: &Type) -> Result<View, CompileError> {
    let layout = SymLayout::dense(&ty.shape);
    Ok(View {
        slot: e.absent()?,
        layout: layout.unwrap_or_else(|| unreachable!("invariant: others of its shape have one")),
        dtype: ty.dtype,
    })
}

fn lower_append(
    e: &mut Emit<'_>,
    node: &Node,
    group: &KvAppend,
) -> Result<Vec<View>, CompileError> {
    let append = Append::of(e, group)?;
    if group.attention.is_some() {
        return e.results_of(UpdatedSlots::new(), |e| {
            attention::lower_after(e, node, Some(append))
        });
    }
    append.emit(e);
    Ok(e.places(e.cursor.at))
}

fn leaf(e: &mut Emit<'_>, leaves: &Leaves<'_>, node: &Node) -> Result<Option<View>, CompileError> {
    if let Op::Const(o) = &node.op {
        let place = match e.facts.parts.has_leaf(e.cursor.at) {
            true => e.constant_unbound(o.tensor.clone())?,
            false => e.constant(o.tensor.clone())?,
        };
        return Ok(Some(place));
    }
    match leaves {
        Leaves::Borders(borders, _) => Ok(named_leaf(e, borders, node)),
        Leaves::Arguments(given) => Ok(given.get(&e.cursor.at).cloned()),
    }
}

/// An input, parameter or state.
fn named_leaf(e: &Emit<'_>, borders: &Borders, node: &Node) -> Option<View> {
    let ty = &node.outputs[0];
    let signature = e.facts.signature;
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
    let planes = e.facts.planes.get(&Value {
        node: e.cursor.at,
        port: 0,
    });
    let layout = match planes {
        Some(planes) => planes.layout(&ty.shape),
        None => SymLayout::dense(&ty.shape),
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
        e.check_sizes(rule);
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
pub(crate) fn varies(op: &Op) -> bool {
    matches!(
        op.kind(),
        OpKind::Input | OpKind::State | OpKind::RngUniform | OpKind::RngNormal | OpKind::Sample
    ) || !op.subgraphs().is_empty()
}

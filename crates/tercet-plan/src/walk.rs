//! Lowers the nodes of a graph in order, including those of nested graphs. A fusion group
//! (`fusions`) is lowered at its last node.

use std::collections::{HashMap, HashSet};

use tercet_ir::layout::{SymLayout, ViewLowering as Looked, check_slice, is_view, view_of};
use tercet_ir::ops::AttentionLayout;
use tercet_ir::{CompileError, Graph, Node, NodeId, Op, OpKind, Port, Type, Value};

use crate::concat_elision::ElidedConcats;
use crate::emit::{LoweringCtx, SlotPlacement, SlotView, UpdatedSlots, all_known};
use crate::fusions::{
    FusionGroup, Fusions, KvAppendGroup, RouterTopK, RowWiseGroup, UncastOperand,
};
use crate::lowerings::map::{columns, row_wise};
use crate::lowerings::rope::append::RopeAppend;
use crate::lowerings::{Lowering, attention, find, gather, grouped, matmul, rope, top_k};
use crate::plan::{ProgramInterface, place};
use tercet_program::{IoBinding, ProgramBuffer, SizeRule, SlotId};

/// Lowers a nested graph and returns the views of its results.
///
/// # Errors
/// The errors of the lowerings.
pub(crate) fn walk_block(
    e: &mut LoweringCtx<'_>,
    arguments: &[SlotView],
    in_place: &InPlaceUpdates,
) -> Result<Vec<SlotView>, CompileError> {
    let inputs = e
        .graph
        .nodes()
        .filter(|(_, n)| n.op.kind() == OpKind::Input);
    let given = inputs.map(|(id, _)| id).zip(arguments.iter().cloned());
    let leaves = LeafPlacement::Arguments(given.collect());
    nodes(e, &leaves, in_place)?;
    let outputs = e.graph.outputs().iter();
    Ok(outputs.map(|o| e.view(o.value)).collect())
}

/// A value that kernels write directly into the slot of a state or of a loop-carried value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InPlaceUpdate {
    /// The leaf: a state, or a value carried by a loop.
    pub(crate) leaf: NodeId,
    /// Slot of the leaf.
    pub(crate) slot: SlotId,
}

/// The values of a graph that kernels write directly into slots of states or loop-carried values.
pub(crate) type InPlaceUpdates = HashMap<Value, InPlaceUpdate>;

/// Where the leaves of a graph (inputs, parameters, states, arguments) have their slots.
pub(crate) enum LeafPlacement<'b> {
    /// Inputs, parameters and states of the program.
    Interface(&'b ProgramInterface, &'b ElidedConcats),
    /// Arguments of a nested graph.
    Arguments(HashMap<NodeId, SlotView>),
}

/// Lowers the nodes of a graph; values in `in_place` are written directly into the slots of states
/// or loop-carried values.
pub(crate) fn nodes(
    e: &mut LoweringCtx<'_>,
    leaves: &LeafPlacement<'_>,
    in_place: &InPlaceUpdates,
) -> Result<(), CompileError> {
    let graph = e.graph;
    let fusions = Fusions::new(graph, e.caps, in_place);
    for (id, node) in graph.nodes() {
        if fusions.is_deferred(id) {
            continue;
        }
        e.set_node(id);
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

/// View of one partition of an input, parameter or state that exceeds the binding limit: a separate
/// slot within the leaf's slot. For a result above the limit, a placeholder view that no kernel
/// reads.
fn in_parts(e: &mut LoweringCtx<'_>, node: &Node) -> Result<Option<SlotView>, CompileError> {
    let ty = &node.outputs[0];
    if e.facts.partitioned.is_elided_concat(e.cursor.at) {
        // The operands are already in memory at their positions in the concatenation, so nothing is
        // emitted.
        let nothing = e.placeholder_slot()?;
        let view = SymLayout::dense(&ty.shape).map(|layout| SlotView {
            slot: nothing,
            layout,
            dtype: ty.dtype,
        });
        return Ok(view);
    }
    let [of] = node.inputs[..] else {
        return Ok(None);
    };
    let Some(first) = e.facts.partitioned.first(of.node, e.cursor.at) else {
        return Ok(None);
    };
    let planes = e.facts.soa_layouts.get(&of).copied();
    let offset = match planes {
        Some(planes) => first / planes.row_bytes.max(1) * planes.stride_bytes(),
        None => first * ty.dtype.size_bytes(),
    };
    let home = e.part(e.view(of).slot, offset as u64);
    place(e, ty.dtype, &ty.shape, planes, home).map(Some)
}

/// View of a node that is an elided concatenation of parameters.
fn joined_parameters(
    e: &mut LoweringCtx<'_>,
    leaves: &LeafPlacement<'_>,
    node: &Node,
) -> Result<Option<SlotView>, CompileError> {
    let LeafPlacement::Interface(_, joined) = leaves else {
        return Ok(None);
    };
    let Some(&first) = joined.nodes.get(&e.cursor.at) else {
        return Ok(None);
    };
    let ty = &node.outputs[0];
    let home = SlotPlacement::At(ProgramBuffer::Param(first), 0);
    let value = Value {
        node: e.cursor.at,
        port: 0,
    };
    let planes = e.facts.soa_layouts.get(&value).copied();
    place(e, ty.dtype, &ty.shape, planes, home).map(Some)
}

/// True if the node has the same results in every run with the same parameters.
fn is_constant(e: &LoweringCtx<'_>, node: &Node) -> bool {
    has_one_size(e.graph, node)
        && !varies_between_runs(&node.op)
        && node.inputs.iter().all(|v| e.is_constant(&e.view(*v)))
}

/// Quantized values that one node dequantizes and other nodes read as well.
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

/// Attention nodes with heads before positions whose only readers transpose the result, as in
/// exported models. These nodes write their results in the transposed order directly, which saves
/// the copy.
pub(crate) fn turned_attention(graph: &Graph) -> HashSet<NodeId> {
    let mut turned: HashSet<NodeId> = HashSet::new();
    for (id, node) in graph.nodes() {
        if let Op::Attention(op) = &node.op
            && op.layout == AttentionLayout::Bhsd
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

/// True for a `Dequantize` whose operand has other readers, as in backward graphs. Storing the
/// dequantized result permanently would take several times the memory that quantization saves.
fn is_dequantized_separately(e: &LoweringCtx<'_>, node: &Node) -> bool {
    matches!(node.op, Op::Dequantize(_)) && e.facts.shared_packed.contains(&node.inputs[0])
}

/// True if no operand or result of the node has a symbolic size. A constant expanded to a symbolic
/// size and reduced again does not qualify.
pub(crate) fn has_one_size(graph: &Graph, node: &Node) -> bool {
    let operands = node.inputs.iter().map(|v| graph.ty(*v));
    let mut types = operands.chain(&node.outputs);
    types.all(|ty| all_known(&ty.shape))
}

fn family_of(e: &LoweringCtx<'_>, node: &Node) -> &'static Lowering {
    find(e.graph, node, e.caps).unwrap_or_else(|why| {
        let kind = node.op.kind();
        unreachable!("invariant: every legalized node has a lowering: {kind:?}, {why}")
    })
}

fn lower(
    e: &mut LoweringCtx<'_>,
    leaves: &LeafPlacement<'_>,
    node: &Node,
    into: UpdatedSlots,
) -> Result<Vec<SlotView>, CompileError> {
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
        return Ok(vec![view_or_copy(e, node, &from)?]);
    }
    let constant = is_constant(e, node) && into.is_empty() && !is_dequantized_separately(e, node);
    let family = family_of(e, node);
    e.as_constant(constant, |e| {
        e.results_of(into, |e| (family.lower)(e, node))
    })
}

/// Lowers a fusion group at its last node, which is the current one.
fn lower_group(
    e: &mut LoweringCtx<'_>,
    group: &FusionGroup,
    into: UpdatedSlots,
) -> Result<Vec<SlotView>, CompileError> {
    let graph = e.graph;
    let node = graph.node(e.cursor.at);
    match group {
        FusionGroup::MatMul(group) => {
            e.results_of(UpdatedSlots::new(), |e| matmul::lower_fused(e, node, group))
        }
        FusionGroup::RopeUpdate { rope } => {
            e.results_of(into, |e| rope::lower_update(e, graph.node(*rope), node))
        }
        FusionGroup::KvAppend(group) => lower_append(e, group),
        FusionGroup::Choice(choice) => lower_choice(e, choice),
        FusionGroup::RowWise(group) => lower_rows(e, group),
        FusionGroup::UncastMatMul(group) => {
            let [a, b] = &group.operands;
            let a = lower_narrow(e, a)?;
            let b = lower_narrow(e, b)?;
            e.results_of(into, |e| {
                let y = e.result(0)?;
                matmul::product_into(e, &a, &b, &y)
            })
        }
        FusionGroup::Normed { norm } => lower_norm_matmul(e, *norm),
        FusionGroup::RepeatedRows(of) => e.results_of(into, |e| {
            grouped::lower_repeated(e, node, of.rows, of.repeats)
        }),
        FusionGroup::JoinedRows(of) => {
            let gather = graph.node(of.gather);
            let parts = of.parts.map(|v| e.view(v));
            e.results_of(into, |e| {
                gather::lower_joined(e, gather, &parts, of.per, of.widens)
            })
        }
        FusionGroup::Columns(group) => {
            let views = columns::lower(e, group)?;
            for (sum, view) in group.sums.iter().zip(views) {
                e.set_places(*sum, vec![view]);
            }
            Ok(e.places(e.cursor.at))
        }
    }
}

/// Lowers a norm and the matmul that alone reads it as one kernel, or as two nodes if no kernel
/// supports both.
fn lower_norm_matmul(e: &mut LoweringCtx<'_>, norm: NodeId) -> Result<Vec<SlotView>, CompileError> {
    let last = e.cursor.at;
    let (node, product) = (e.graph.node(norm), e.graph.node(last));
    let normed = matmul::NormGemv::new(e, node, product)?;
    e.set_node(norm);
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
    e.set_node(last);
    e.results_of(UpdatedSlots::new(), |e| match &normed {
        Some(normed) => {
            let y = e.result(0)?;
            normed.emit(e, &y, sum.as_ref())
        }
        None => (family_of(e, product).lower)(e, product),
    })
}

/// View of the 16-bit operand in front of an elided cast, with its view operators applied.
fn lower_narrow(
    e: &mut LoweringCtx<'_>,
    operand: &UncastOperand,
) -> Result<SlotView, CompileError> {
    let mut view = e.view(operand.of);
    for &id in &operand.views {
        let node = e.graph.node(id);
        view = view_or_copy(e, node, &view)?;
    }
    Ok(view)
}

/// Lowers a group of row-wise operators as one kernel, or node by node if no kernel supports the
/// group.
fn lower_rows(
    e: &mut LoweringCtx<'_>,
    group: &RowWiseGroup,
) -> Result<Vec<SlotView>, CompileError> {
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
                        // No node outside of the group reads this result.
                        None => nowhere(e, &node.outputs[usize::from(port)])?,
                    });
                }
                places
            }
            None => {
                e.set_node(id);
                let family = family_of(e, node);
                e.results_of(UpdatedSlots::new(), |e| (family.lower)(e, node))?
            }
        };
        e.set_places(id, places);
    }
    e.set_node(last);
    Ok(e.places(last))
}

/// Lowers a mixture-of-experts router (softmax, top-k, normalization) as one kernel.
fn lower_choice(
    e: &mut LoweringCtx<'_>,
    choice: &RouterTopK,
) -> Result<Vec<SlotView>, CompileError> {
    let last = e.cursor.at;
    e.set_node(choice.top_k);
    let of = [choice.softmax.is_some(), choice.normalization.is_some()];
    let node = e.graph.node(choice.top_k);
    let from = choice.softmax.map_or(node, |id| e.graph.node(id));
    let x = e.view(from.inputs[0]);
    let places = e.results_of(UpdatedSlots::new(), |e| {
        top_k::lower_choice(e, node, &x, of)
    })?;
    if let Some([sum, div]) = choice.normalization {
        let unread = nowhere(e, &e.graph.node(sum).outputs[0])?;
        e.set_places(sum, vec![unread]);
        e.set_places(div, vec![places[0].clone()]);
    }
    e.set_places(choice.top_k, places);
    e.set_node(last);
    Ok(e.places(last))
}

/// Placeholder view of a result that no step reads.
fn nowhere(e: &mut LoweringCtx<'_>, ty: &Type) -> Result<SlotView, CompileError> {
    let layout = SymLayout::dense(&ty.shape);
    Ok(SlotView {
        slot: e.placeholder_slot()?,
        layout: layout
            .unwrap_or_else(|| unreachable!("invariant: values of this shape have a layout")),
        dtype: ty.dtype,
    })
}

fn lower_append(
    e: &mut LoweringCtx<'_>,
    group: &KvAppendGroup,
) -> Result<Vec<SlotView>, CompileError> {
    let append = RopeAppend::new(e, group)?;
    if let Some(attention) = group.attention {
        return e.results_of(UpdatedSlots::new(), |e| {
            attention::lower_after(e, attention, Some(append))
        });
    }
    append.emit(e);
    Ok(e.places(e.cursor.at))
}

fn leaf(
    e: &mut LoweringCtx<'_>,
    leaves: &LeafPlacement<'_>,
    node: &Node,
) -> Result<Option<SlotView>, CompileError> {
    if let Op::Const(o) = &node.op {
        let place = match e.facts.partitioned.has_leaf(e.cursor.at) {
            true => e.constant_unbound(o.tensor.clone())?,
            false => e.constant(o.tensor.clone())?,
        };
        return Ok(Some(place));
    }
    match leaves {
        LeafPlacement::Interface(borders, _) => Ok(named_leaf(e, borders, node)),
        LeafPlacement::Arguments(given) => Ok(given.get(&e.cursor.at).cloned()),
    }
}

/// View of an input, parameter or state; `None` for other nodes.
fn named_leaf(e: &LoweringCtx<'_>, borders: &ProgramInterface, node: &Node) -> Option<SlotView> {
    let ty = &node.outputs[0];
    let signature = e.facts.signature;
    let slot = |ports: &[Port], list: &[IoBinding], name: &str| {
        let at = ports.iter().position(|p| p.name == name);
        list[at.unwrap_or_else(|| unreachable!("invariant: passes retain leaves: {name}"))].slot
    };
    let slot = match &node.op {
        Op::Input(o) => slot(&signature.inputs, &borders.inputs, &o.name),
        Op::Param(o) => slot(&signature.params, &borders.params, &o.name),
        Op::State(o) => slot(&signature.states, &borders.states, &o.name),
        _ => return None,
    };
    let planes = e.facts.soa_layouts.get(&Value {
        node: e.cursor.at,
        port: 0,
    });
    let layout = match planes {
        Some(planes) => planes.layout(&ty.shape),
        None => SymLayout::dense(&ty.shape),
    };
    let layout = layout.unwrap_or_else(|| unreachable!("invariant: the slot was placed"));
    Some(SlotView {
        slot,
        layout,
        dtype: ty.dtype,
    })
}

/// The operand with the layout of a view operator; a copy if strides cannot express it.
fn view_or_copy(
    e: &mut LoweringCtx<'_>,
    node: &Node,
    from: &SlotView,
) -> Result<SlotView, CompileError> {
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
        return Ok(SlotView {
            layout,
            ..from.clone()
        });
    }
    let dense = e.dense(from)?;
    match view_of(node, operand, &dense.layout) {
        Looked::Free(layout) => Ok(SlotView { layout, ..dense }),
        Looked::NeedsDense => Err(CompileError::OutOfMemory {
            what: "a view at the symbols' bounds",
            bytes: u64::MAX,
        }),
    }
}

/// True for leaves that change between runs, random operators, and operators with nested stages.
pub(crate) fn varies_between_runs(op: &Op) -> bool {
    matches!(
        op.kind(),
        OpKind::Input | OpKind::State | OpKind::RngUniform | OpKind::RngNormal | OpKind::Sample
    ) || !op.subgraphs().is_empty()
}

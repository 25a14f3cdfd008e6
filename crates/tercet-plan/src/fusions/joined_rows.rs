//! Gathers from two joined operands: the gather reads both operands, and no kernel copies them side by side. If the
//! result is cast from 16-bit floats to F32, the gather also casts.
//!
//! Batches of sequences gather the attention results of their rows from those of slots and those of a prompt.

use tercet_ir::ops::Op;
use tercet_ir::{DType, Dim, NodeId, OpKind, Value};

use super::dataflow::{UseDefGraph, first};
use super::{FusionGroup, Fusions};

/// A gather along the axis of a concatenation of two operands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JoinedRows {
    pub(crate) gather: NodeId,
    pub(crate) parts: [Value; 2],
    /// Elements per word.
    pub(crate) per: u32,
    /// True if the group ends with a cast to F32.
    pub(crate) widens: bool,
}

/// Finds gathers along the axis of a concatenation of two operands that only the gather reads.
pub(super) fn find(flow: &UseDefGraph<'_>, found: &mut Fusions) {
    for (id, node) in flow.graph.nodes() {
        let Op::Gather(gather) = &node.op else {
            continue;
        };
        let joined = node.inputs[0];
        let concat = flow.graph.node(joined.node);
        let (Op::Concat(op), &[x, more]) = (&concat.op, &concat.inputs[..]) else {
            continue;
        };
        let fits = op.axis == gather.axis
            && flow.is_only_reader(id, joined)
            && ![id, joined.node].iter().any(|node| found.has(*node))
            && !flow.is_constant(joined.node);
        let Some(per) = words_behind(flow, joined, gather.axis).filter(|_| fits) else {
            continue;
        };
        let widened = widening(flow, found, id);
        let last = widened.as_ref().map_or(id, |(cast, _)| *cast);
        if !flow.are_unchanged_until(&[x, more], last) {
            continue;
        }
        found.deferred.insert(joined.node);
        let widens = widened.is_some();
        if let Some((_, before)) = widened {
            found.deferred.extend(before);
        }
        let group = JoinedRows {
            gather: id,
            parts: [x, more],
            per,
            widens,
        };
        found.groups.insert(last, FusionGroup::JoinedRows(group));
    }
}

/// Elements per word, if the elements behind the axis are whole words.
fn words_behind(flow: &UseDefGraph<'_>, joined: Value, axis: usize) -> Option<u32> {
    let ty = flow.graph.ty(joined);
    match ty.dtype.size_bytes() {
        4 => Some(1),
        2 => {
            let behind: Option<Vec<usize>> = ty.shape[axis + 1..].iter().map(Dim::known).collect();
            let count: usize = behind?.iter().product();
            count.is_multiple_of(2).then_some(2)
        }
        _ => None,
    }
}

/// The cast to F32 that alone reads the gather, and the nodes before it: the gather and views of its result.
fn widening(
    flow: &UseDefGraph<'_>,
    found: &Fusions,
    gather: NodeId,
) -> Option<(NodeId, Vec<NodeId>)> {
    let mut before = vec![gather];
    let mut at = gather;
    loop {
        let &[reader] = flow.readers(first(at)) else {
            return None;
        };
        let node = flow.graph.node(reader);
        if found.has(reader) {
            return None;
        }
        let from = flow.graph.ty(first(at)).dtype;
        let is_half = matches!(from, DType::F16 | DType::BF16);
        match node.op.kind() {
            OpKind::Cast if is_half && node.outputs[0].dtype == DType::F32 => {
                return Some((reader, before));
            }
            OpKind::Reshape => before.push(reader),
            _ => return None,
        }
        at = reader;
    }
}

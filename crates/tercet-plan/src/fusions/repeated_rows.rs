//! Repeated rows before matmuls of experts: each row is repeated once per selected expert, and the
//! matmul reads the rows before the repetition.

use tercet_ir::ops::Op;
use tercet_ir::{Dim, NodeId, Value};

use super::dataflow::{UseDefGraph, first};
use super::{FusionGroup, Fusions};

/// The rows of a matmul of experts: each row of a value stands for several adjacent rows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RepeatedRows {
    /// The rows, `[rows, 1, k]`.
    pub(crate) rows: Value,
    pub(crate) repeats: usize,
}

/// Finds rows that only matmuls of experts read, and that are repeated by an expansion.
pub(super) fn find(flow: &UseDefGraph<'_>, found: &mut Fusions) {
    for (id, _) in flow.graph.nodes() {
        let Some(repeated) = repetition(flow, id) else {
            continue;
        };
        let readers = flow.readers(first(id));
        let fits = |reader: &NodeId| {
            let node = flow.graph.node(*reader);
            let is_grouped = matches!(node.op, Op::GroupedMatMul(_) | Op::DequantGroupedMatMul(_));
            is_grouped
                && node.inputs[1..].iter().all(|v| v.node != id)
                && !found.has(*reader)
                && !flow.is_constant(*reader)
                && flow.are_unchanged_until(&[repeated.rows], *reader)
        };
        if found.has(id) || flow.is_constant(id) || readers.is_empty() || !readers.iter().all(fits)
        {
            continue;
        }
        found.deferred.insert(id);
        for reader in readers {
            found
                .groups
                .insert(*reader, FusionGroup::RepeatedRows(repeated));
        }
    }
}

/// For a reshape of `[rows, repeats, k]` to `[rows repeats, k]`, whose operand is expanded from
/// `[rows, 1, k]`: the rows.
fn repetition(flow: &UseDefGraph<'_>, id: NodeId) -> Option<RepeatedRows> {
    let node = flow.graph.node(id);
    let Op::Reshape(_) = node.op else { return None };
    let expand = flow.graph.node(node.inputs[0].node);
    let Op::Expand(_) = expand.op else {
        return None;
    };
    let rows = expand.inputs[0];
    let [from, many, to] = [rows, node.inputs[0], first(id)].map(|v| &flow.graph.ty(v).shape[..]);
    let ([n, one, k], [many_n, repeats, many_k], [_, to_k]) = (from, many, to) else {
        return None;
    };
    let repeats = repeats.known()?;
    let same = n == many_n && k == many_k && k == to_k;
    let fits = same && *one == Dim::Known(1) && repeats > 1;
    fits.then_some(RepeatedRows { rows, repeats })
}

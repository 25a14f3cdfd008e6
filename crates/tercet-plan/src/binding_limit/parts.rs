//! What the planner knows of values in parts: which leaves no kernel binds as a whole, and which concatenations are only
//! results or states.

use std::collections::{HashMap, HashSet};

use tercet_ir::ops::{Op, Slice};
use tercet_ir::{DType, Graph, Node, NodeId, Type, Value};

use super::demand::lies_in_order;
use super::range::{Cut, Region, cut, first_of, full};
use super::{bytes_of, over};
use crate::caps::Caps;

/// Rows of packed blocks may lie in planes, at multiples of so many bytes.
const PLANE_ALIGN: u64 = 16;

/// The parts of a leaf above the limit; `None` below it, or where none would fit.
pub(super) fn leaf_parts(node: &Node, caps: &Caps) -> Option<Vec<Region>> {
    match &node.op {
        Op::Input(_) | Op::State(_) | Op::Const(_) => border_parts(&node.outputs[0], caps),
        Op::Param(_) if node.outputs[0].dtype != DType::U8 => border_parts(&node.outputs[0], caps),
        Op::Param(_) => packed_parts(&node.outputs[0], caps),
        _ => None,
    }
}

/// The parts of what lies at the border of a program, each from where a binding may begin.
pub(super) fn border_parts(ty: &Type, caps: &Caps) -> Option<Vec<Region>> {
    if !over(ty, caps) {
        return None;
    }
    let sizes = ty.shape.as_known()?;
    aligned(&sizes, sizes.len(), caps, &|r| vec![bytes_of(ty.dtype, r)])
}

/// As [`border_parts`], for rows that may be those of packed blocks: parts begin where bindings may both in the order of
/// the file and in planes.
fn packed_parts(ty: &Type, caps: &Caps) -> Option<Vec<Region>> {
    let sizes = ty.shape.as_known()?;
    let bytes = |region: &Region| {
        let in_file = bytes_of(ty.dtype, region);
        let row = region.last().map_or(1, |r| r.len() as u64);
        let rows = in_file / row.max(1);
        vec![
            in_file,
            rows.saturating_mul(row.next_multiple_of(PLANE_ALIGN)),
        ]
    };
    let most = bytes(&full(&sizes)).into_iter().max()?;
    if most <= caps.max_binding_bytes {
        return None;
    }
    aligned(&sizes, 1, caps, &bytes)
}

fn aligned(
    sizes: &[usize],
    axes: usize,
    caps: &Caps,
    bytes: &dyn Fn(&Region) -> Vec<u64>,
) -> Option<Vec<Region>> {
    let fits = |r: &Region| bytes(r).into_iter().all(|n| n <= caps.max_binding_bytes);
    cut(
        sizes,
        &Cut {
            axes,
            fits: &fits,
            bytes,
            align_bytes: u64::from(caps.storage_align_bytes),
            anywhere: false,
            like: None,
        },
    )
}

/// The leaves and results of a legal graph that kernels reach in parts only.
#[derive(Clone, Debug, Default)]
pub(crate) struct Parts {
    /// For each leaf the slices that read it, by their first elements.
    leaves: HashMap<NodeId, HashMap<usize, NodeId>>,
    /// Concatenations that are results, or in them.
    joined: HashSet<NodeId>,
}

impl Parts {
    /// Those of a graph.
    pub(crate) fn of(graph: &Graph, caps: &Caps) -> Parts {
        let mut found = Parts::default();
        let is_over = |node: &Node| node.outputs.iter().any(|t| over(t, caps));
        let cut: HashMap<NodeId, Vec<Region>> = graph
            .nodes()
            .filter_map(|(id, node)| Some((id, leaf_parts(node, caps)?)))
            .collect();
        if cut.is_empty() && !graph.nodes().any(|(_, n)| is_over(n)) {
            return found;
        }
        let mut readers: HashMap<NodeId, Vec<NodeId>> = HashMap::new();
        for (id, node) in graph.nodes() {
            for v in &node.inputs {
                readers.entry(v.node).or_default().push(id);
            }
        }
        let results: HashSet<NodeId> = graph.results().map(|v| v.node).collect();
        for (id, node) in graph.nodes().rev() {
            let mut readers = readers.get(&id).into_iter().flatten();
            let is_read = results.contains(&id) || readers.clone().next().is_some();
            if is_over(node)
                && is_read
                && lies_in_order(node)
                && readers.all(|r| found.joined.contains(r))
            {
                found.joined.insert(id);
            }
        }
        for (id, parts) in cut {
            let slices = slices(graph, id, &parts, readers.get(&id));
            let assigned = graph.assigns().iter().filter(|a| a.state.node == id);
            let mut taken = assigned.map(|a| a.value.node);
            if let Some(slices) = slices
                && !results.contains(&id)
                && taken.all(|v| found.joined.contains(&v))
            {
                found.leaves.insert(id, slices);
            }
        }
        found
    }

    /// True for a leaf that no kernel binds as a whole.
    pub(crate) fn has_leaf(&self, leaf: NodeId) -> bool {
        self.leaves.contains_key(&leaf)
    }

    /// The slice of a leaf from one of its elements on.
    pub(crate) fn part(&self, leaf: NodeId, first: usize) -> Option<NodeId> {
        self.leaves.get(&leaf)?.get(&first).copied()
    }

    /// The first element that a slice of a leaf in parts takes.
    pub(crate) fn first(&self, leaf: NodeId, slice: NodeId) -> Option<usize> {
        let mut slices = self.leaves.get(&leaf)?.iter();
        slices
            .find(|(_, id)| **id == slice)
            .map(|(first, _)| *first)
    }

    /// True for a concatenation that nothing computes: its operands are where it is.
    pub(crate) fn is_joined(&self, node: NodeId) -> bool {
        self.joined.contains(&node)
    }

    /// What such a concatenation is made of, with first elements.
    pub(crate) fn joined(&self, graph: &Graph, value: Value) -> Vec<(usize, Value)> {
        let (mut found, mut next, mut open) = (Vec::new(), 0, vec![value]);
        while let Some(v) = open.pop() {
            match self.is_joined(v.node) {
                true => open.extend(graph.node(v.node).inputs.iter().rev()),
                false => {
                    found.push((next, v));
                    let sizes = graph.ty(v).shape.iter().filter_map(|d| d.known());
                    next += sizes.product::<usize>();
                }
            }
        }
        found
    }
}

/// The readers of a leaf by first elements, if they are its parts.
fn slices(
    graph: &Graph,
    leaf: NodeId,
    parts: &[Region],
    readers: Option<&Vec<NodeId>>,
) -> Option<HashMap<usize, NodeId>> {
    let sizes = graph.node(leaf).outputs[0].shape.as_known()?;
    let mut found = HashMap::new();
    for id in readers.into_iter().flatten() {
        let node = graph.node(*id);
        let Op::Slice(slice) = &node.op else {
            return None;
        };
        let region = taken(slice, node, &sizes)?;
        if !parts.contains(&region) {
            return None;
        }
        found.insert(first_of(&sizes, &region), *id);
    }
    (found.len() == parts.len()).then_some(found)
}

/// What a slice takes, one element after the other.
fn taken(slice: &Slice, node: &Node, sizes: &[usize]) -> Option<Region> {
    let expected = node.outputs[0].shape.as_known()?;
    let axes = slice.axes(sizes, &expected).ok()?;
    let range = |a: &tercet_ir::ops::SliceAxis| (a.step == 1).then(|| a.start..a.start + a.len);
    axes.iter().map(range).collect()
}

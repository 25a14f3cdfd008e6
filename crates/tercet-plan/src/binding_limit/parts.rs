//! Finds the partitioned values of a rewritten graph: leaves that no kernel binds whole, and
//! concatenations that are only outputs or new state values.

use std::collections::{HashMap, HashSet};

use tercet_ir::ops::{Op, Slice};
use tercet_ir::{DType, Graph, Node, NodeId, Type, Value};

use super::demand::is_contiguous_concat;
use super::range::{IndexRegion, PartitionSpec, cut, first_of, full};
use super::{bytes_of, over};
use crate::caps::DeviceCaps;

/// Alignment in bytes of the quantized rows of a partition in structure-of-arrays layout.
const PLANE_ALIGN: u64 = 16;

/// The partitions (regions) of a leaf above the binding limit. `None` if the leaf is within the
/// limit, or if no partitioning fits.
pub(super) fn leaf_parts(node: &Node, caps: &DeviceCaps) -> Option<Vec<IndexRegion>> {
    match &node.op {
        Op::Input(_) | Op::State(_) | Op::Const(_) => border_parts(&node.outputs[0], caps),
        Op::Param(_) if node.outputs[0].dtype != DType::U8 => border_parts(&node.outputs[0], caps),
        Op::Param(_) => packed_parts(&node.outputs[0], caps),
        _ => None,
    }
}

/// The partitions (regions) of an input, output or state; each starts at an aligned binding offset.
pub(super) fn border_parts(ty: &Type, caps: &DeviceCaps) -> Option<Vec<IndexRegion>> {
    if !over(ty, caps) {
        return None;
    }
    let sizes = ty.shape.as_known()?;
    aligned(&sizes, sizes.len(), caps, &|r| vec![bytes_of(ty.dtype, r)])
}

/// Like [`border_parts`], for a parameter whose rows may be quantized. Each partition starts at an
/// aligned offset both in the block order of model files and in structure-of-arrays layout.
fn packed_parts(ty: &Type, caps: &DeviceCaps) -> Option<Vec<IndexRegion>> {
    let sizes = ty.shape.as_known()?;
    let bytes = |region: &IndexRegion| {
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
    caps: &DeviceCaps,
    bytes: &dyn Fn(&IndexRegion) -> Vec<u64>,
) -> Option<Vec<IndexRegion>> {
    let fits = |r: &IndexRegion| bytes(r).into_iter().all(|n| n <= caps.max_binding_bytes);
    cut(
        sizes,
        &PartitionSpec {
            axes,
            is_small_enough: &fits,
            bytes,
            align_bytes: u64::from(caps.storage_align_bytes),
            any_offset: false,
            preferred_extent: None,
        },
    )
}

/// Leaves and results of a legal graph that kernels bind only in partitions.
#[derive(Clone, Debug, Default)]
pub struct PartitionedValues {
    /// For each partitioned leaf: the slices that read it, by the linear index of their first
    /// element.
    leaves: HashMap<NodeId, HashMap<usize, NodeId>>,
    /// Concatenations without a kernel: graph results above the binding limit, and concatenations
    /// that only these read.
    output_concats: HashSet<NodeId>,
}

impl PartitionedValues {
    /// Finds the partitioned leaves and results of a graph.
    pub fn new(graph: &Graph, caps: &DeviceCaps) -> PartitionedValues {
        let mut found = PartitionedValues::default();
        let is_over = |node: &Node| node.outputs.iter().any(|t| over(t, caps));
        let cut: HashMap<NodeId, Vec<IndexRegion>> = graph
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
                && is_contiguous_concat(node)
                && readers.all(|r| found.output_concats.contains(r))
            {
                found.output_concats.insert(id);
            }
        }
        for (id, parts) in cut {
            let slices = slices(graph, id, &parts, readers.get(&id));
            let assigned = graph.assigns().iter().filter(|a| a.state.node == id);
            let mut taken = assigned.map(|a| a.value.node);
            if let Some(slices) = slices
                && !results.contains(&id)
                && taken.all(|v| found.output_concats.contains(&v))
            {
                found.leaves.insert(id, slices);
            }
        }
        found
    }

    /// True if kernels bind this leaf only in partitions.
    pub fn has_leaf(&self, leaf: NodeId) -> bool {
        self.leaves.contains_key(&leaf)
    }

    /// The slice of a partitioned leaf whose first element has this linear index.
    pub(crate) fn part(&self, leaf: NodeId, first: usize) -> Option<NodeId> {
        self.leaves.get(&leaf)?.get(&first).copied()
    }

    /// The linear index of the first element that this slice reads from a partitioned leaf.
    pub(crate) fn first(&self, leaf: NodeId, slice: NodeId) -> Option<usize> {
        let mut slices = self.leaves.get(&leaf)?.iter();
        slices
            .find(|(_, id)| **id == slice)
            .map(|(first, _)| *first)
    }

    /// True for a concatenation that needs no kernel, because its operands are computed directly in
    /// its memory.
    pub fn is_elided_concat(&self, node: NodeId) -> bool {
        self.output_concats.contains(&node)
    }

    /// The operands of a concatenation that needs no kernel, each with the index of its first
    /// element in the result.
    pub(crate) fn concat_operands(&self, graph: &Graph, value: Value) -> Vec<(usize, Value)> {
        let (mut found, mut next, mut open) = (Vec::new(), 0, vec![value]);
        while let Some(v) = open.pop() {
            match self.is_elided_concat(v.node) {
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

/// The slices that read a leaf, by the linear index of their first element. `None` unless exactly
/// one slice reads each partition and no other node reads the leaf.
fn slices(
    graph: &Graph,
    leaf: NodeId,
    parts: &[IndexRegion],
    readers: Option<&Vec<NodeId>>,
) -> Option<HashMap<usize, NodeId>> {
    let sizes = graph.node(leaf).outputs[0].shape.as_known()?;
    let mut found = HashMap::new();
    for id in readers.into_iter().flatten() {
        let node = graph.node(*id);
        let Op::Slice(slice) = &node.op else {
            return None;
        };
        let region = slice_region(slice, node, &sizes)?;
        if !parts.contains(&region) {
            return None;
        }
        found.insert(first_of(&sizes, &region), *id);
    }
    (found.len() == parts.len()).then_some(found)
}

/// The operand region that a slice reads; `None` if a step of the slice is not 1.
fn slice_region(slice: &Slice, node: &Node, sizes: &[usize]) -> Option<IndexRegion> {
    let expected = node.outputs[0].shape.as_known()?;
    let axes = slice.axes(sizes, &expected).ok()?;
    let range = |a: &tercet_ir::ops::SliceAxis| (a.step == 1).then(|| a.start..a.start + a.len);
    axes.iter().map(range).collect()
}

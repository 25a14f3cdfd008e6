//! Partitioning of values above the binding limit, so that kernels bind one partition at a time
//! (ADR 0019).
//!
//! Browsers limit a binding to 128 MiB. [`split`] rewrites a legal graph so that no kernel exceeds
//! this limit. Kernels read a leaf above the limit (such as a parameter or a state) through slices.
//! A node with partitioned operands or results is computed once per partition
//! (`binding_limit/demand.rs`). Outputs and states above the limit are concatenations of their
//! partitions. The planner places these partitions in one buffer ([`PartitionedValues`]), so slices
//! and concatenations copy nothing. `binding_limit/partial.rs` covers reductions and matmuls over
//! the partitioned axis, and gathers from a partitioned table.
//!
//! A partition is a range of elements in row-major order: one index on each of the first axes, a
//! range on the next axis, and the full extent of the remaining axes. A node whose operator cannot
//! work on partitions needs the whole value. Compilation fails if a value that is needed whole
//! exceeds the limit.

mod demand;
mod partial;
pub(crate) mod parts;
mod place;
pub(crate) mod range;
use std::collections::HashMap;

use tercet_ir::layout::is_view;
use tercet_ir::ops::Op;
use tercet_ir::{
    CompileError, DType, Graph, Node, NodeId, NodeOrigin, OpError, Shape, Type, Value,
};

use self::partial::PartialOperand;
pub(crate) use self::parts::PartitionedValues;
use self::parts::{border_parts, leaf_parts};
use self::place::PartitionedValue;
use self::range::{IndexRegion, PartitionSpec, cut, first_of, from_elements, full, numel};
use crate::caps::DeviceCaps;

/// Returns the graph with all values above the binding limit partitioned, except where an operator
/// does not support partitions. `None` if no value exceeds the limit.
///
/// # Errors
/// [`CompileError::Rewrite`] if an operator rejects a partition; this does not occur.
pub fn split(graph: &Graph, caps: &DeviceCaps) -> Result<Option<Graph>, CompileError> {
    let is_over = |node: &Node| {
        let in_memory = !is_view(node.op.kind());
        leaf_parts(node, caps).is_some()
            || (in_memory && node.outputs.iter().any(|t| over(t, caps)))
    };
    if !graph.nodes().any(|(_, node)| is_over(node)) {
        return Ok(None);
    }
    let mut new = PartitionRewriter {
        source: graph,
        caps,
        graph: Graph::new(),
        places: Vec::with_capacity(graph.len()),
        regions: HashMap::new(),
        adding_for: None,
    };
    for (id, node) in graph.nodes() {
        let origin = graph.origin(id);
        let at = origin.node;
        new.adding_for = Some(origin.clone());
        new.graph.add_for(Some(origin));
        let done = new.node(id, node);
        let places = done.map_err(|source| CompileError::Rewrite { node: at, source })?;
        new.places.push(places);
    }
    let failed = |v: Value| {
        move |source| CompileError::Rewrite {
            node: v.node,
            source,
        }
    };
    for o in graph.outputs() {
        let value = new.result(o.value).map_err(failed(o.value))?;
        new.graph.add_for(None);
        (new.graph.output(&o.name, value)).map_err(failed(o.value))?;
    }
    for a in graph.assigns() {
        let value = new.result(a.value).map_err(failed(a.value))?;
        let state = new.whole_value(a.state).map_err(failed(a.state))?;
        new.graph.add_for(None);
        (new.graph.assign(state, value)).map_err(failed(a.value))?;
    }
    new.graph.add_for(None);
    Ok(Some(new.graph))
}

/// Size of a region in bytes.
pub fn bytes_of(dtype: DType, region: &IndexRegion) -> u64 {
    let bytes = numel(region).and_then(|n| n.checked_mul(dtype.size_bytes()));
    bytes.map_or(u64::MAX, |n| n as u64)
}

/// True if the size of a value of this type is known and exceeds the binding limit.
pub fn over(ty: &Type, caps: &DeviceCaps) -> bool {
    let sizes = ty.shape.as_known();
    sizes.is_some_and(|sizes| bytes_of(ty.dtype, &full(&sizes)) > caps.max_binding_bytes)
}

struct PartitionRewriter<'g> {
    source: &'g Graph,
    caps: &'g DeviceCaps,
    graph: Graph,
    /// For each node of the original graph: its results in the rewritten graph, whole or
    /// partitioned.
    places: Vec<Vec<PartitionedValue>>,
    /// Cache: for regions of values of the original graph, the values of the rewritten graph that
    /// contain them.
    regions: HashMap<(Value, IndexRegion), Value>,
    adding_for: Option<NodeOrigin>,
}

impl PartitionRewriter<'_> {
    fn node(&mut self, id: NodeId, node: &Node) -> Result<Vec<PartitionedValue>, OpError> {
        if node.inputs.is_empty() {
            let first = self.graph.add(node.op.clone(), &[])?;
            let mut place = PartitionedValue::whole(first);
            if let Some(regions) = leaf_parts(node, self.caps) {
                place.is_large = true;
                place.parts = self.slices(first, regions)?;
            }
            return Ok(vec![place]);
        }
        let is_large = node.inputs.iter().any(|v| self.place(*v).is_large)
            || (!is_view(node.op.kind()) && node.outputs.iter().any(|t| over(t, self.caps)));
        if is_large
            && node.op.subgraphs().is_empty()
            && let Some(places) = self.in_parts(id, node)?
        {
            return Ok(places);
        }
        let mut inputs = Vec::with_capacity(node.inputs.len());
        for v in &node.inputs {
            inputs.push(self.whole_value(*v)?);
        }
        let first = self.graph.add(node.op.clone(), &inputs)?;
        let ports = (0..node.outputs.len() as u8).map(|p| PartitionedValue::whole(first.port(p)));
        Ok(ports.collect())
    }

    /// Rewritten results of a node with an operand or result above the binding limit. `None` if the
    /// node needs its operands whole.
    fn in_parts(
        &mut self,
        id: NodeId,
        node: &Node,
    ) -> Result<Option<Vec<PartitionedValue>>, OpError> {
        match &node.op {
            Op::Reshape(_) => return self.reshaped(node),
            Op::Transpose(_) if self.feeds_only_matmuls(id, node) => {
                let transposed = Some(node.inputs[0]);
                let is_large = true;
                return Ok(Some(vec![PartitionedValue {
                    transposed,
                    is_large,
                    ..PartitionedValue::default()
                }]));
            }
            Op::Concat(o) if demand::is_contiguous_concat(node) => {
                return self.concatenate(node, o.axis);
            }
            Op::Reduce(o) if self.is_partitioned_along(node.inputs[0], &o.axes) => {
                return self.reduced(node, o);
            }
            _ => {}
        }
        let pieces = self.pieces(node);
        let is_one = !node.outputs.iter().any(|t| over(t, self.caps))
            && self.others(node, &pieces).all(|v| !self.place(v).is_large);
        if is_one {
            let reads = vec![None; node.inputs.len()];
            let values = self.apply(node, node.op.clone(), &reads, &pieces)?;
            return Ok(Some(
                values.into_iter().map(PartitionedValue::whole).collect(),
            ));
        }
        let Some(regions) = self.regions_of(node, &pieces) else {
            return Ok(None);
        };
        let mut places: Vec<PartitionedValue> = (node.outputs.iter())
            .map(|ty| PartitionedValue {
                is_large: over(ty, self.caps),
                ..PartitionedValue::default()
            })
            .collect();
        for region in regions {
            let Some(demand) = demand::demand(self.source, node, &region) else {
                return Ok(None);
            };
            let values = self.apply(node, demand.op, &demand.reads, &pieces)?;
            for (place, value) in places.iter_mut().zip(values) {
                place.parts.push((region.clone(), value));
            }
        }
        Ok(Some(places))
    }

    /// Operands of a node except the one that it consumes partition by partition.
    fn others<'n>(
        &self,
        node: &'n Node,
        pieces: &PartialOperand,
    ) -> impl Iterator<Item = Value> + 'n {
        let left_out = pieces.operand();
        let kept = node.inputs.iter().enumerate();
        kept.filter(move |(at, _)| Some(*at) != left_out)
            .map(|(_, v)| *v)
    }

    /// Partitioning of a node's results. The results are partitioned like a partitioned operand, if
    /// the resulting partitions fit the binding limit.
    fn regions_of(&self, node: &Node, pieces: &PartialOperand) -> Option<Vec<IndexRegion>> {
        let ty = &node.outputs[0];
        let sizes = ty.shape.as_known()?;
        if node.outputs.iter().any(|t| t.shape != ty.shape) {
            return None;
        }
        let limit = self.caps.max_binding_bytes;
        let reaches = |at: usize, read: &Option<IndexRegion>| {
            let v = node.inputs[at];
            match read {
                Some(region) => bytes_of(self.source.ty(v).dtype, region) <= limit,
                None => !self.place(v).is_large,
            }
        };
        let fits = |out: &IndexRegion| {
            let results = node.outputs.iter();
            let Some(demand) = demand::demand(self.source, node, out) else {
                return false;
            };
            let mut reads = demand.reads.iter().enumerate();
            results.map(|t| bytes_of(t.dtype, out)).all(|n| n <= limit)
                && reads.all(|(at, read)| pieces.operand() == Some(at) || reaches(at, read))
        };
        let like = self.others(node, pieces).find_map(|v| {
            let place = self.place(v);
            let ((first, _), own) = (place.parts.first()?, self.source.ty(v).shape.as_known()?);
            let axis = first.iter().zip(&own).rposition(|(r, n)| r.len() != *n)?;
            let is_same = own.get(..=axis) == sizes.get(..=axis);
            (place.is_large && is_same).then(|| (axis, first[axis].len()))
        });
        let bytes = |out: &IndexRegion| vec![bytes_of(ty.dtype, out)];
        cut(
            &sizes,
            &PartitionSpec {
                axes: demand::axes(self.source, node),
                is_small_enough: &fits,
                bytes: &bytes,
                align_bytes: u64::from(self.caps.storage_align_bytes),
                any_offset: true,
                preferred_extent: like,
            },
        )
    }

    /// Results of a concatenation: the partitions of the operands become partitions of the result.
    fn concatenate(
        &mut self,
        node: &Node,
        axis: usize,
    ) -> Result<Option<Vec<PartitionedValue>>, OpError> {
        let ty = &node.outputs[0];
        let mut parts = Vec::new();
        let mut start = 0;
        for v in &node.inputs {
            let Some(sizes) = self.source.ty(*v).shape.as_known() else {
                return Ok(None);
            };
            let place = self.place(*v).clone();
            let own = match (place.parts.is_empty(), over(self.source.ty(*v), self.caps)) {
                (true, false) => vec![(full(&sizes), self.whole_value(*v)?)],
                (false, _) => place.parts,
                (true, true) => return Ok(None),
            };
            for (mut region, value) in own {
                region[axis] = region[axis].start + start..region[axis].end + start;
                parts.push((region, value));
            }
            start += sizes[axis];
        }
        Ok(Some(vec![PartitionedValue {
            parts,
            is_large: over(ty, self.caps),
            ..PartitionedValue::default()
        }]))
    }

    /// Results of a reshape. The partitions of the operand become partitions of the result if each
    /// is also a region of the new shape.
    fn reshaped(&mut self, node: &Node) -> Result<Option<Vec<PartitionedValue>>, OpError> {
        let (of, ty) = (node.inputs[0], &node.outputs[0]);
        let known = (self.source.ty(of).shape.as_known(), ty.shape.as_known());
        let (Some(from), Some(to)) = known else {
            return Ok(None);
        };
        let place = self.place(of).clone();
        let elements = |sizes: &[usize], region: &IndexRegion| {
            let first = first_of(sizes, region);
            Some(first..first + numel(region)?)
        };
        let shape = |region: &IndexRegion| {
            let sizes: Vec<usize> = region.iter().map(ExactSizeIterator::len).collect();
            Shape::known(&sizes)
        };
        let mut parts = Vec::new();
        let same =
            (place.parts.iter()).map(|(r, v)| Some((from_elements(&to, elements(&from, r)?)?, *v)));
        if let Some(same) = same.collect::<Option<Vec<_>>>() {
            for (region, value) in same {
                let value = self.graph.reshape(value, shape(&region))?;
                parts.push((region, value));
            }
        } else {
            let Some(regions) = border_parts(ty, self.caps) else {
                return Ok(None);
            };
            let mut line = Vec::with_capacity(place.parts.len());
            for (region, value) in place.parts {
                let Some(range) = elements(&from, &region) else {
                    return Ok(None);
                };
                let value = self.graph.reshape(value, [range.len()])?;
                line.push((vec![range], value));
            }
            for region in regions {
                let Some(want) = elements(&to, &region) else {
                    return Ok(None);
                };
                let value = self.piece(&line, &vec![want])?;
                let value = self.graph.reshape(value, shape(&region))?;
                parts.push((region, value));
            }
        }
        Ok(Some(vec![PartitionedValue {
            parts,
            is_large: true,
            ..PartitionedValue::default()
        }]))
    }

    /// Adds a graph output or new state value to the rewritten graph. A value above the binding
    /// limit becomes a concatenation of partitions at aligned binding offsets.
    fn result(&mut self, old: Value) -> Result<Value, OpError> {
        let ty = self.source.ty(old);
        if !over(ty, self.caps) {
            return self.whole_value(old);
        }
        let Some(regions) = border_parts(ty, self.caps) else {
            return self.whole_value(old);
        };
        self.graph.add_for(Some(self.source.origin(old.node)));
        let mut pieces = Vec::with_capacity(regions.len());
        for region in regions {
            let piece = self.region(old, &region)?;
            pieces.push((region, piece));
        }
        self.join(pieces)
    }
}

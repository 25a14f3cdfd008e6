//! Values above the binding limit, in parts that kernels bind one at a time (ADR 0019).
//!
//! Browsers bind 128 MiB at once. [`split`] rewrites a legal graph so that no kernel needs more: a leaf above the limit
//! is read through slices of it, a node is computed once for each part of what it reads or gives (`split/demand.rs`), and
//! results and states above the limit are concatenations of their parts. The planner gives the parts of leaves and
//! results slots of their own within one buffer ([`Parts`]), so that neither slices nor concatenations copy anything.
//! Sums over the cut axis, products over it and rows gathered from parts are in `split/partial.rs`.
//!
//! A part is a range of elements in row-major order: single indices of the first axes, a range of the next, all of the
//! others. What does not follow from parts needs the whole, and is refused as values above the limit are.

mod demand;
mod partial;
mod parts;
mod place;
mod range;
#[cfg(test)]
mod tests;

use std::collections::HashMap;

use tercet_ir::layout::is_view;
use tercet_ir::ops::Op;
use tercet_ir::{CompileError, DType, Graph, Node, NodeId, OpError, Origin, Shape, Type, Value};

use self::partial::Pieces;
pub(crate) use self::parts::Parts;
use self::parts::{border_parts, leaf_parts};
use self::place::Place;
use self::range::{Cut, Region, cut, first_of, full, numel, of_elements};
use crate::caps::Caps;

/// The graph with values above the limit in parts, where operators allow it; `None` if there are none.
///
/// # Errors
/// [`CompileError::Rewrite`] when an operator refuses a part, which none does.
pub(crate) fn split(graph: &Graph, caps: &Caps) -> Result<Option<Graph>, CompileError> {
    let is_over = |node: &Node| {
        let in_memory = !is_view(node.op.kind());
        leaf_parts(node, caps).is_some()
            || (in_memory && node.outputs.iter().any(|t| over(t, caps)))
    };
    if !graph.nodes().any(|(_, node)| is_over(node)) {
        return Ok(None);
    }
    let mut new = Rewrite {
        old: graph,
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
        let state = new.whole(a.state).map_err(failed(a.state))?;
        new.graph.add_for(None);
        (new.graph.assign(state, value)).map_err(failed(a.value))?;
    }
    new.graph.add_for(None);
    Ok(Some(new.graph))
}

/// The bytes of a region in a dtype.
fn bytes_of(dtype: DType, region: &Region) -> u64 {
    let bytes = numel(region).and_then(|n| n.checked_mul(dtype.size_bytes()));
    bytes.map_or(u64::MAX, |n| n as u64)
}

/// True for a known size above the limit.
fn over(ty: &Type, caps: &Caps) -> bool {
    let sizes = ty.shape.as_known();
    sizes.is_some_and(|sizes| bytes_of(ty.dtype, &full(&sizes)) > caps.max_binding_bytes)
}

struct Rewrite<'g> {
    old: &'g Graph,
    caps: &'g Caps,
    graph: Graph,
    /// The results of the old nodes.
    places: Vec<Vec<Place>>,
    /// Regions of old values that were asked for.
    regions: HashMap<(Value, Region), Value>,
    adding_for: Option<Origin>,
}

impl Rewrite<'_> {
    fn node(&mut self, id: NodeId, node: &Node) -> Result<Vec<Place>, OpError> {
        if node.inputs.is_empty() {
            let first = self.graph.add(node.op.clone(), &[])?;
            let mut place = Place::whole(first);
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
            inputs.push(self.whole(*v)?);
        }
        let first = self.graph.add(node.op.clone(), &inputs)?;
        let ports = (0..node.outputs.len() as u8).map(|p| Place::whole(first.port(p)));
        Ok(ports.collect())
    }

    /// The results of a node that reads or gives a value above the limit; `None` where it needs a whole.
    fn in_parts(&mut self, id: NodeId, node: &Node) -> Result<Option<Vec<Place>>, OpError> {
        match &node.op {
            Op::Reshape(_) => return self.reshaped(node),
            Op::Transpose(_) if self.is_for_products(id, node) => {
                let transposed = Some(node.inputs[0]);
                let is_large = true;
                return Ok(Some(vec![Place {
                    transposed,
                    is_large,
                    ..Place::default()
                }]));
            }
            Op::Concat(o) if demand::lies_in_order(node) => return self.behind(node, o.axis),
            Op::Reduce(o) if self.is_cut_along(node.inputs[0], &o.axes) => {
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
            return Ok(Some(values.into_iter().map(Place::whole).collect()));
        }
        let Some(regions) = self.regions_of(node, &pieces) else {
            return Ok(None);
        };
        let mut places: Vec<Place> = (node.outputs.iter())
            .map(|ty| Place {
                is_large: over(ty, self.caps),
                ..Place::default()
            })
            .collect();
        for region in regions {
            let Some(demand) = demand::demand(self.old, node, &region) else {
                return Ok(None);
            };
            let values = self.apply(node, demand.op, &demand.reads, &pieces)?;
            for (place, value) in places.iter_mut().zip(values) {
                place.parts.push((region.clone(), value));
            }
        }
        Ok(Some(places))
    }

    /// The operands that are not read piece by piece.
    fn others<'n>(&self, node: &'n Node, pieces: &Pieces) -> impl Iterator<Item = Value> + 'n {
        let left_out = pieces.operand();
        let kept = node.inputs.iter().enumerate();
        kept.filter(move |(at, _)| Some(*at) != left_out)
            .map(|(_, v)| *v)
    }

    /// The parts of a node's results: like those of an operand, where they are small enough.
    fn regions_of(&self, node: &Node, pieces: &Pieces) -> Option<Vec<Region>> {
        let ty = &node.outputs[0];
        let sizes = ty.shape.as_known()?;
        if node.outputs.iter().any(|t| t.shape != ty.shape) {
            return None;
        }
        let limit = self.caps.max_binding_bytes;
        let reaches = |at: usize, read: &Option<Region>| {
            let v = node.inputs[at];
            match read {
                Some(region) => bytes_of(self.old.ty(v).dtype, region) <= limit,
                None => !self.place(v).is_large,
            }
        };
        let fits = |out: &Region| {
            let results = node.outputs.iter();
            let Some(demand) = demand::demand(self.old, node, out) else {
                return false;
            };
            let mut reads = demand.reads.iter().enumerate();
            results.map(|t| bytes_of(t.dtype, out)).all(|n| n <= limit)
                && reads.all(|(at, read)| pieces.operand() == Some(at) || reaches(at, read))
        };
        let like = self.others(node, pieces).find_map(|v| {
            let place = self.place(v);
            let ((first, _), own) = (place.parts.first()?, self.old.ty(v).shape.as_known()?);
            let axis = first.iter().zip(&own).rposition(|(r, n)| r.len() != *n)?;
            let is_same = own.get(..=axis) == sizes.get(..=axis);
            (place.is_large && is_same).then(|| (axis, first[axis].len()))
        });
        let bytes = |out: &Region| vec![bytes_of(ty.dtype, out)];
        cut(
            &sizes,
            &Cut {
                axes: demand::axes(self.old, node),
                fits: &fits,
                bytes: &bytes,
                align_bytes: u64::from(self.caps.storage_align_bytes),
                anywhere: true,
                like,
            },
        )
    }

    /// Operands one behind the other are parts of what they are together.
    fn behind(&mut self, node: &Node, axis: usize) -> Result<Option<Vec<Place>>, OpError> {
        let ty = &node.outputs[0];
        let mut parts = Vec::new();
        let mut start = 0;
        for v in &node.inputs {
            let Some(sizes) = self.old.ty(*v).shape.as_known() else {
                return Ok(None);
            };
            let place = self.place(*v).clone();
            let own = match (place.parts.is_empty(), over(self.old.ty(*v), self.caps)) {
                (true, false) => vec![(full(&sizes), self.whole(*v)?)],
                (false, _) => place.parts,
                (true, true) => return Ok(None),
            };
            for (mut region, value) in own {
                region[axis] = region[axis].start + start..region[axis].end + start;
                parts.push((region, value));
            }
            start += sizes[axis];
        }
        Ok(Some(vec![Place {
            parts,
            is_large: over(ty, self.caps),
            ..Place::default()
        }]))
    }

    /// The parts of another shape: those of the operand where they are parts of it, too.
    fn reshaped(&mut self, node: &Node) -> Result<Option<Vec<Place>>, OpError> {
        let (of, ty) = (node.inputs[0], &node.outputs[0]);
        let known = (self.old.ty(of).shape.as_known(), ty.shape.as_known());
        let (Some(from), Some(to)) = known else {
            return Ok(None);
        };
        let place = self.place(of).clone();
        let elements = |sizes: &[usize], region: &Region| {
            let first = first_of(sizes, region);
            Some(first..first + numel(region)?)
        };
        let shape = |region: &Region| {
            let sizes: Vec<usize> = region.iter().map(ExactSizeIterator::len).collect();
            Shape::known(&sizes)
        };
        let mut parts = Vec::new();
        let same =
            (place.parts.iter()).map(|(r, v)| Some((of_elements(&to, elements(&from, r)?)?, *v)));
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
        Ok(Some(vec![Place {
            parts,
            is_large: true,
            ..Place::default()
        }]))
    }

    /// What the graph gives or a state is assigned: above the limit a concatenation of parts that begin where bindings
    /// may.
    fn result(&mut self, old: Value) -> Result<Value, OpError> {
        let ty = self.old.ty(old);
        if !over(ty, self.caps) {
            return self.whole(old);
        }
        let Some(regions) = border_parts(ty, self.caps) else {
            return self.whole(old);
        };
        self.graph.add_for(Some(self.old.origin(old.node)));
        let mut pieces = Vec::with_capacity(regions.len());
        for region in regions {
            let piece = self.region(old, &region)?;
            pieces.push((region, piece));
        }
        self.join(pieces)
    }
}

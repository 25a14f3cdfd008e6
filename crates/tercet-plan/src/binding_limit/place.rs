//! Maps each value of the original graph to the rewritten graph, where it exists whole,
//! partitioned, or both.

use tercet_ir::ops::Slice;
use tercet_ir::{OpError, Value};

use super::PartitionRewriter;
use super::range::{IndexRegion, full, intersect, within};

/// The representation of a value of the original graph in the rewritten graph.
#[derive(Clone, Debug, Default)]
pub(super) struct PartitionedValue {
    /// The unpartitioned value in the rewritten graph. The partitions of a leaf are slices of this
    /// value.
    pub(super) whole: Option<Value>,
    /// Partitions in row-major order, each with the region of the whole value that it contains.
    pub(super) parts: Vec<(IndexRegion, Value)>,
    /// The operand of the transpose that computes this value, if only matmuls read the transpose.
    /// The matmuls then use the rows of this operand as columns of their right operand.
    pub(super) transposed: Option<Value>,
    /// True if the whole value exceeds the binding limit, so that no kernel may bind it.
    pub(super) is_large: bool,
}

impl PartitionedValue {
    pub(super) fn whole(value: Value) -> PartitionedValue {
        PartitionedValue {
            whole: Some(value),
            ..PartitionedValue::default()
        }
    }

    /// True if every partition is a range of the first axis.
    pub(super) fn is_by_rows(&self, sizes: &[usize]) -> bool {
        let rest = full(sizes.get(1..).unwrap_or_default());
        let by_rows = |(region, _): &(IndexRegion, Value)| region.get(1..) == Some(&rest[..]);
        !self.parts.is_empty() && self.parts.iter().all(by_rows)
    }
}

impl PartitionRewriter<'_> {
    pub(super) fn place(&self, old: Value) -> &PartitionedValue {
        &self.places[old.node.index()][usize::from(old.port)]
    }

    /// Returns the unpartitioned form of a value of the original graph. If this form exceeds the
    /// binding limit, the planner later reports an error that names its node.
    pub(super) fn whole_value(&mut self, old: Value) -> Result<Value, OpError> {
        let place = self.place(old).clone();
        if let Some(whole) = place.whole {
            return Ok(whole);
        }
        let now = self.adding_for.clone();
        self.graph.add_for(Some(self.source.origin(old.node)));
        let whole = match place.transposed {
            Some(of) => {
                let of = self.whole_value(of)?;
                self.graph.transpose(of, &[1, 0])?
            }
            None => self.join(place.parts)?,
        };
        self.graph.add_for(now);
        self.places[old.node.index()][usize::from(old.port)].whole = Some(whole);
        Ok(whole)
    }

    /// Returns a region of a value of the original graph: a partition, a slice of a partition, or a
    /// concatenation of slices of several partitions.
    pub(super) fn region(&mut self, old: Value, want: &IndexRegion) -> Result<Value, OpError> {
        let place = self.place(old);
        if let Some((_, part)) = place.parts.iter().find(|(region, _)| region == want) {
            return Ok(*part);
        }
        if let Some(known) = self.regions.get(&(old, want.clone())) {
            return Ok(*known);
        }
        let sizes = self.source.ty(old).shape.as_known().unwrap_or_default();
        let is_all = *want == full(&sizes);
        let value = match place.parts.is_empty() || (is_all && !place.is_large) {
            true => {
                let whole = self.whole_value(old)?;
                self.slice(whole, want, is_all)?
            }
            false => {
                let parts = place.parts.clone();
                self.piece(&parts, want)?
            }
        };
        self.regions.insert((old, want.clone()), value);
        Ok(value)
    }

    /// Returns a region of a partitioned value, assembled from these partitions.
    pub(super) fn piece(
        &mut self,
        parts: &[(IndexRegion, Value)],
        want: &IndexRegion,
    ) -> Result<Value, OpError> {
        let mut pieces = Vec::new();
        for (around, part) in parts {
            if let Some(both) = intersect(around, want) {
                let piece = self.slice(*part, &within(&both, around), both == *around)?;
                pieces.push((both, piece));
            }
        }
        self.join(pieces)
    }

    /// Returns a slice of a value of the rewritten graph, or the value itself if `is_all`.
    fn slice(&mut self, of: Value, region: &IndexRegion, is_all: bool) -> Result<Value, OpError> {
        if is_all {
            return Ok(of);
        }
        let slice = Slice {
            starts: region.iter().map(|r| r.start as i64).collect(),
            ends: region.iter().map(|r| r.end as i64).collect(),
            steps: vec![1; region.len()],
        };
        self.graph.add(slice, &[of])
    }

    /// Adds one slice of a leaf per region.
    pub(super) fn slices(
        &mut self,
        leaf: Value,
        regions: Vec<IndexRegion>,
    ) -> Result<Vec<(IndexRegion, Value)>, OpError> {
        let mut parts = Vec::with_capacity(regions.len());
        for region in regions {
            let part = self.slice(leaf, &region, false)?;
            parts.push((region, part));
        }
        Ok(parts)
    }

    /// Concatenates the pieces of a region, which are in row-major order, into one value: first
    /// along the last axis, then along earlier axes. Pieces that are joined along an axis then have
    /// a single index on all earlier axes, so they are contiguous in the result.
    pub(super) fn join(&mut self, mut pieces: Vec<(IndexRegion, Value)>) -> Result<Value, OpError> {
        let rank = pieces.first().map_or(0, |(region, _)| region.len());
        for axis in (0..rank).rev() {
            let mut joined: Vec<(IndexRegion, Vec<Value>)> = Vec::new();
            for (region, value) in pieces {
                match joined.last_mut() {
                    Some((before, values)) if follows(before, &region, axis) => {
                        before[axis].end = region[axis].end;
                        values.push(value);
                    }
                    Some(_) | None => joined.push((region, vec![value])),
                }
            }
            pieces = Vec::with_capacity(joined.len());
            for (region, values) in joined {
                let value = match values[..] {
                    [one] => one,
                    _ => self.graph.concat(&values, axis)?,
                };
                pieces.push((region, value));
            }
        }
        let first = pieces.first().map(|(_, value)| *value);
        Ok(first.unwrap_or_else(|| unreachable!("invariant: a partitioned value has partitions")))
    }
}

/// True if a region starts where the previous region ends along this axis, and both are equal on
/// all other axes.
fn follows(before: &IndexRegion, next: &IndexRegion, axis: usize) -> bool {
    let mut others = (0..next.len()).filter(|a| *a != axis);
    before[axis].end == next[axis].start && others.all(|a| before[a] == next[a])
}

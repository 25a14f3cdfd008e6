//! Where the values of the old graph are in the new one: whole, in parts, or both.

use tercet_ir::ops::Slice;
use tercet_ir::{OpError, Value};

use super::Rewrite;
use super::range::{Region, full, meet, within};

/// A value of the old graph in the new one.
#[derive(Clone, Debug, Default)]
pub(super) struct Place {
    /// The whole; of a leaf in parts the leaf.
    pub(super) whole: Option<Value>,
    /// Parts in row-major order, with what they are of the whole.
    pub(super) parts: Vec<(Region, Value)>,
    /// The transpose of a value in parts, which only products read: they take the rows of that as columns.
    pub(super) transposed: Option<Value>,
    /// No kernel may bind the whole.
    pub(super) is_large: bool,
}

impl Place {
    pub(super) fn whole(value: Value) -> Place {
        Place {
            whole: Some(value),
            ..Place::default()
        }
    }

    /// True where every part is a range of the first axis.
    pub(super) fn is_by_rows(&self, sizes: &[usize]) -> bool {
        let rest = full(sizes.get(1..).unwrap_or_default());
        let by_rows = |(region, _): &(Region, Value)| region.get(1..) == Some(&rest[..]);
        !self.parts.is_empty() && self.parts.iter().all(by_rows)
    }
}

impl Rewrite<'_> {
    pub(super) fn place(&self, old: Value) -> &Place {
        &self.places[old.node.index()][usize::from(old.port)]
    }

    /// The whole of an old value. What is above the limit is so for the planner to refuse, in the name of its node.
    pub(super) fn whole(&mut self, old: Value) -> Result<Value, OpError> {
        let place = self.place(old).clone();
        if let Some(whole) = place.whole {
            return Ok(whole);
        }
        let now = self.adding_for.clone();
        self.graph.add_for(Some(self.old.origin(old.node)));
        let whole = match place.transposed {
            Some(of) => {
                let of = self.whole(of)?;
                self.graph.transpose(of, &[1, 0])?
            }
            None => self.join(place.parts)?,
        };
        self.graph.add_for(now);
        self.places[old.node.index()][usize::from(old.port)].whole = Some(whole);
        Ok(whole)
    }

    /// A region of an old value: a part, a slice of one, or a copy of pieces of several.
    pub(super) fn region(&mut self, old: Value, want: &Region) -> Result<Value, OpError> {
        let place = self.place(old);
        if let Some((_, part)) = place.parts.iter().find(|(region, _)| region == want) {
            return Ok(*part);
        }
        if let Some(known) = self.regions.get(&(old, want.clone())) {
            return Ok(*known);
        }
        let sizes = self.old.ty(old).shape.as_known().unwrap_or_default();
        let is_all = *want == full(&sizes);
        let value = match place.parts.is_empty() || (is_all && !place.is_large) {
            true => {
                let whole = self.whole(old)?;
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

    /// A region of what parts are together.
    pub(super) fn piece(
        &mut self,
        parts: &[(Region, Value)],
        want: &Region,
    ) -> Result<Value, OpError> {
        let mut pieces = Vec::new();
        for (around, part) in parts {
            if let Some(both) = meet(around, want) {
                let piece = self.slice(*part, &within(&both, around), both == *around)?;
                pieces.push((both, piece));
            }
        }
        self.join(pieces)
    }

    /// A region of a value of the new graph.
    fn slice(&mut self, of: Value, region: &Region, is_all: bool) -> Result<Value, OpError> {
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

    /// Slices of a leaf.
    pub(super) fn slices(
        &mut self,
        leaf: Value,
        regions: Vec<Region>,
    ) -> Result<Vec<(Region, Value)>, OpError> {
        let mut parts = Vec::with_capacity(regions.len());
        for region in regions {
            let part = self.slice(leaf, &region, false)?;
            parts.push((region, part));
        }
        Ok(parts)
    }

    /// Pieces in row-major order as one value: along the last axis first, so that what is joined along an axis is one
    /// index of the axes before, and lies in order.
    pub(super) fn join(&mut self, mut pieces: Vec<(Region, Value)>) -> Result<Value, OpError> {
        let rank = pieces.first().map_or(0, |(region, _)| region.len());
        for axis in (0..rank).rev() {
            let mut joined: Vec<(Region, Vec<Value>)> = Vec::new();
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
        Ok(first.unwrap_or_else(|| unreachable!("invariant: a value in parts has one")))
    }
}

/// True if a region goes on along an axis where the one before ends.
fn follows(before: &Region, next: &Region, axis: usize) -> bool {
    let mut others = (0..next.len()).filter(|a| *a != axis);
    before[axis].end == next[axis].start && others.all(|a| before[a] == next[a])
}

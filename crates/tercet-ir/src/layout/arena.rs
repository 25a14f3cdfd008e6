//! The memory plan: offsets in one arena for slots with live ranges of steps.
//!
//! Slots are placed from the largest to the smallest, each into the smallest gap that is free over
//! its live range. (Greedy by size: Pisarchyk and Lee, "Efficient Memory Management for Deep Neural
//! Net Inference", 2020.) Invariant: two slots that are live in the same step never overlap.

use std::collections::BTreeMap;

/// Size and live range of a slot.
///
/// ```
/// use tercet_ir::layout::{LiveRange, place};
/// let early = LiveRange { bytes: 256, first: 0, last: 1 };
/// let late = LiveRange { bytes: 128, first: 2, last: 3 };
/// let (offsets, arena_bytes) = place(&[early, late], 64).expect("the arena fits in memory");
/// assert_eq!((offsets, arena_bytes), (vec![0, 0], 256));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LiveRange {
    /// Size in bytes at the symbols' upper bounds.
    pub bytes: usize,
    /// Index of the step that writes the slot.
    pub first: usize,
    /// Index of the last step that reads the slot, at least `first`.
    pub last: usize,
}

/// The offset of every slot, a multiple of `align_bytes`, and the size of the arena. `None` if the
/// arena exceeds the address space.
pub fn place(lives: &[LiveRange], align_bytes: usize) -> Option<(Vec<usize>, usize)> {
    place_counted(lives, align_bytes, &mut 0)
}

/// As [`place`]; adds the number of examined arena ranges to `looked_at`.
pub fn place_counted(
    lives: &[LiveRange],
    align_bytes: usize,
    looked_at: &mut usize,
) -> Option<(Vec<usize>, usize)> {
    let mut order: Vec<usize> = (0..lives.len()).collect();
    order.sort_by_key(|&i| (std::cmp::Reverse(lives[i].bytes), lives[i].first));
    let mut offsets = vec![0; lives.len()];
    let mut taken = OccupancyTree::new(lives);
    let mut meeting = Vec::new();
    let mut total = 0;
    for i in order {
        let size = lives[i].bytes.checked_next_multiple_of(align_bytes)?;
        if size == 0 {
            continue;
        }
        taken.meeting(&lives[i], &mut meeting);
        *looked_at += meeting.len();
        offsets[i] = best_gap(&meeting, size);
        let end = offsets[i].checked_add(size)?;
        total = total.max(end);
        taken.add(&lives[i], (offsets[i], end));
    }
    isize::try_from(total).ok()?;
    Some((offsets, total))
}

/// Disjoint, non-adjacent byte ranges: a map from start to end.
#[derive(Clone, Debug, Default)]
struct DisjointRanges(BTreeMap<usize, usize>);

impl DisjointRanges {
    /// Adds a range and merges it with overlapping and adjacent ranges.
    fn add(&mut self, (mut start, mut end): (usize, usize)) {
        if let Some((&before, &until)) = self.0.range(..=start).next_back()
            && until >= start
        {
            if until >= end {
                return;
            }
            start = before;
        }
        while let Some((&next, &until)) = self.0.range(start..=end).next() {
            end = end.max(until);
            self.0.remove(&next);
        }
        self.0.insert(start, end);
    }
}

/// The occupied byte ranges over time: a segment tree over the steps at which live ranges begin and
/// end. The tree finds the slots that are live at the same time without examining all slots.
struct OccupancyTree {
    /// The steps, ascending.
    steps: Vec<usize>,
    /// For each tree node, the slots that are live in all of its steps but not in all steps of its
    /// parent.
    over: Vec<DisjointRanges>,
    /// For each tree node, the slots that were added to it or to a descendant.
    below: Vec<DisjointRanges>,
}

impl OccupancyTree {
    fn new(lives: &[LiveRange]) -> OccupancyTree {
        let mut steps: Vec<usize> = lives.iter().flat_map(|l| [l.first, l.last]).collect();
        steps.sort_unstable();
        steps.dedup();
        let nodes = 2 * steps.len();
        OccupancyTree {
            steps,
            over: vec![DisjointRanges::default(); nodes],
            below: vec![DisjointRanges::default(); nodes],
        }
    }

    /// The tree leaves of the first and the last step of a live range.
    fn leaves(&self, life: &LiveRange) -> (usize, usize) {
        let leaf = |step| self.steps.len() + self.steps.partition_point(|s| *s < step);
        (leaf(life.first), leaf(life.last))
    }

    fn add(&mut self, life: &LiveRange, range: (usize, usize)) {
        let (first, last) = self.leaves(life);
        for_each_part(first, last, |node| {
            self.over[node].add(range);
            self.below[node].add(range);
        });
        for_each_above(first, last, |node| self.below[node].add(range));
    }

    /// Writes to `into` the byte ranges of all slots that are live in at least one step of this
    /// live range, sorted by start.
    fn meeting(&self, life: &LiveRange, into: &mut Vec<(usize, usize)>) {
        into.clear();
        let (first, last) = self.leaves(life);
        let mut take =
            |ranges: &DisjointRanges| into.extend(ranges.0.iter().map(|(s, e)| (*s, *e)));
        for_each_part(first, last, |node| take(&self.below[node]));
        for_each_above(first, last, |node| take(&self.over[node]));
        into.sort_unstable();
    }
}

/// Calls `f` with the smallest set of tree nodes that covers the leaves from `first` to `last`.
fn for_each_part(first: usize, last: usize, mut f: impl FnMut(usize)) {
    let (mut from, mut to) = (first, last + 1);
    while from < to {
        if from % 2 == 1 {
            f(from);
            from += 1;
        }
        if to % 2 == 1 {
            to -= 1;
            f(to);
        }
        (from, to) = (from / 2, to / 2);
    }
}

/// Calls `f` with two leaves and all their ancestors.
fn for_each_above(first: usize, last: usize, mut f: impl FnMut(usize)) {
    let (mut from, mut to) = (first, last);
    while to > 0 {
        f(to);
        if from != to && from > 0 {
            f(from);
        }
        (from, to) = (from / 2, to / 2);
    }
}

/// The start of the smallest gap that fits `size`, or the end of the last range if none does.
pub fn best_gap(taken: &[(usize, usize)], size: usize) -> usize {
    let mut best: Option<(usize, usize)> = None;
    let mut end = 0;
    for &(start, until) in taken {
        if start >= end {
            let gap = start - end;
            if gap >= size && best.is_none_or(|(g, _)| gap < g) {
                best = Some((gap, end));
            }
        }
        end = end.max(until);
    }
    best.map_or(end, |(_, at)| at)
}

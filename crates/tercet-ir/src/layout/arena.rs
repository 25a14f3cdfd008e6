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
fn place_counted(
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
fn best_gap(taken: &[(usize, usize)], size: usize) -> usize {
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ALIGN_BYTES: usize = 64;

    fn life() -> impl Strategy<Value = LiveRange> {
        (0usize..5000, 0usize..40, 0usize..10).prop_map(|(bytes, first, len)| LiveRange {
            bytes,
            first,
            last: first + len,
        })
    }

    fn meets(a: &LiveRange, b: &LiveRange) -> bool {
        a.first <= b.last && b.first <= a.last
    }

    /// The same placement, computed by examining every slot placed before.
    fn place_plainly(lives: &[LiveRange]) -> Vec<usize> {
        let mut order: Vec<usize> = (0..lives.len()).collect();
        order.sort_by_key(|&i| (std::cmp::Reverse(lives[i].bytes), lives[i].first));
        let mut offsets = vec![0; lives.len()];
        let mut placed: Vec<usize> = Vec::new();
        for i in order.into_iter().filter(|i| lives[*i].bytes > 0) {
            let size = |i: usize| lives[i].bytes.next_multiple_of(ALIGN_BYTES);
            let met = placed.iter().filter(|&&j| meets(&lives[j], &lives[i]));
            let mut taken: Vec<_> = met.map(|&j| (offsets[j], offsets[j] + size(j))).collect();
            taken.sort_unstable();
            offsets[i] = best_gap(&taken, size(i));
            placed.push(i);
        }
        offsets
    }

    /// Live ranges of `n` values of one size; value `i` is read by value `i + 1` and by value `2
    /// i`.
    fn shared(n: usize) -> Vec<LiveRange> {
        let life = |i| LiveRange {
            bytes: 64,
            first: i,
            last: (2 * i + 1).min(n),
        };
        (0..n).map(life).collect()
    }

    #[test]
    fn work_grows_as_the_number_of_slots() {
        let work = |lives: &[LiveRange]| {
            let mut looked_at = 0;
            place_counted(lives, ALIGN_BYTES, &mut looked_at).unwrap();
            looked_at
        };
        let (few, many) = (work(&shared(2_000)), work(&shared(32_000)));
        // The input is sixteen times larger. Quadratic work would grow 256 times.
        assert!(many < 40 * few, "{few} {many}");
    }

    proptest! {
        #[test]
        fn places_are_those_of_a_look_at_every_slot(lives in proptest::collection::vec(life(), 0..60)) {
            prop_assert_eq!(place(&lives, ALIGN_BYTES).unwrap().0, place_plainly(&lives));
        }

        #[test]
        fn live_slots_never_overlap(lives in proptest::collection::vec(life(), 0..60)) {
            let (offsets, total) = place(&lives, ALIGN_BYTES).unwrap();
            for (i, a) in lives.iter().enumerate() {
                prop_assert!(offsets[i] % ALIGN_BYTES == 0);
                prop_assert!(a.bytes == 0 || offsets[i] + a.bytes <= total);
                for (j, b) in lives.iter().enumerate().skip(i + 1) {
                    let apart = offsets[i] + a.bytes <= offsets[j]
                        || offsets[j] + b.bytes <= offsets[i];
                    prop_assert!(apart || !meets(a, b) || a.bytes == 0 || b.bytes == 0);
                }
            }
        }
    }

    #[test]
    fn a_chain_needs_two_slots() {
        let lives: Vec<LiveRange> = (0..10)
            .map(|i| LiveRange {
                bytes: 1000,
                first: i,
                last: i + 1,
            })
            .collect();
        assert_eq!(place(&lives, ALIGN_BYTES).unwrap().1, 2 * 1024);
    }

    #[test]
    fn sizes_beyond_the_address_space_are_refused() {
        let huge = LiveRange {
            bytes: usize::MAX - 100,
            first: 0,
            last: 0,
        };
        assert_eq!(place(&[huge], ALIGN_BYTES), None);
    }
}

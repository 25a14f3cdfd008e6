//! The memory plan: offsets in one arena for slots that live over ranges of steps.
//!
//! Slots are placed from the largest to the smallest, each into the tightest gap that is free over
//! its whole life. (Greedy by size: Pisarchyk and Lee, "Efficient Memory Management for Deep Neural
//! Net Inference", 2020.) Invariant: two slots that live in one step never overlap.

use std::collections::BTreeMap;

/// What a slot needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Life {
    /// Its size at the symbols' bounds.
    pub bytes: usize,
    /// The step that writes it.
    pub first: usize,
    /// The last step that reads it, at least `first`.
    pub last: usize,
}

/// Where every slot lies, at multiples of `align_bytes`, and the size of the arena; `None` when it exceeds the address space.
pub fn place(lives: &[Life], align_bytes: usize) -> Option<(Vec<usize>, usize)> {
    place_counted(lives, align_bytes, &mut 0)
}

/// As [`place`]; adds to `looked_at` how many ranges of the arena were looked at.
fn place_counted(
    lives: &[Life],
    align_bytes: usize,
    looked_at: &mut usize,
) -> Option<(Vec<usize>, usize)> {
    let mut order: Vec<usize> = (0..lives.len()).collect();
    order.sort_by_key(|&i| (std::cmp::Reverse(lives[i].bytes), lives[i].first));
    let mut offsets = vec![0; lives.len()];
    let mut taken = Taken::new(lives);
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

/// Ranges of bytes that do not touch: ends by starts.
#[derive(Clone, Debug, Default)]
struct Ranges(BTreeMap<usize, usize>);

impl Ranges {
    /// Adds a range, merged with those that it meets or touches.
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

/// What is taken when: a segment tree over the steps at which lives begin and end, so that the slots that
/// live at the same time as another are found without a look at each of them.
struct Taken {
    /// The steps, ascending.
    steps: Vec<usize>,
    /// Of each node of the tree, the slots that live over all of its steps and not over all of its parent's.
    over: Vec<Ranges>,
    /// Of each node, the slots that were added to it or below it.
    below: Vec<Ranges>,
}

impl Taken {
    fn new(lives: &[Life]) -> Taken {
        let mut steps: Vec<usize> = lives.iter().flat_map(|l| [l.first, l.last]).collect();
        steps.sort_unstable();
        steps.dedup();
        let nodes = 2 * steps.len();
        Taken {
            steps,
            over: vec![Ranges::default(); nodes],
            below: vec![Ranges::default(); nodes],
        }
    }

    /// The leaves of the first and of the last step of a life.
    fn leaves(&self, life: &Life) -> (usize, usize) {
        let leaf = |step| self.steps.len() + self.steps.partition_point(|s| *s < step);
        (leaf(life.first), leaf(life.last))
    }

    fn add(&mut self, life: &Life, range: (usize, usize)) {
        let (first, last) = self.leaves(life);
        for_each_part(first, last, |node| {
            self.over[node].add(range);
            self.below[node].add(range);
        });
        for_each_above(first, last, |node| self.below[node].add(range));
    }

    /// The ranges of the slots that live at a step of this life, sorted by their starts.
    fn meeting(&self, life: &Life, into: &mut Vec<(usize, usize)>) {
        into.clear();
        let (first, last) = self.leaves(life);
        let mut take = |ranges: &Ranges| into.extend(ranges.0.iter().map(|(s, e)| (*s, *e)));
        for_each_part(first, last, |node| take(&self.below[node]));
        for_each_above(first, last, |node| take(&self.over[node]));
        into.sort_unstable();
    }
}

/// Calls `f` with the fewest nodes that make up the leaves from `first` to `last`.
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

/// Calls `f` with two leaves and all nodes above them.
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

/// The start of the smallest gap that holds `size`, else the end.
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

    fn life() -> impl Strategy<Value = Life> {
        (0usize..5000, 0usize..40, 0usize..10).prop_map(|(bytes, first, len)| Life {
            bytes,
            first,
            last: first + len,
        })
    }

    fn meets(a: &Life, b: &Life) -> bool {
        a.first <= b.last && b.first <= a.last
    }

    /// The same by a look at every slot that was placed before.
    fn place_plainly(lives: &[Life]) -> Vec<usize> {
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

    /// Of `n` values of one size, value `i` is read by the next one and by number `2 i`.
    fn shared(n: usize) -> Vec<Life> {
        let life = |i| Life {
            bytes: 64,
            first: i,
            last: (2 * i + 1).min(n),
        };
        (0..n).map(life).collect()
    }

    #[test]
    fn work_grows_as_the_number_of_slots() {
        let work = |lives: &[Life]| {
            let mut looked_at = 0;
            place_counted(lives, ALIGN_BYTES, &mut looked_at).unwrap();
            looked_at
        };
        let (few, many) = (work(&shared(2_000)), work(&shared(32_000)));
        // Sixteen times as many; by a look at every other one it would be 256 times the work.
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
        let lives: Vec<Life> = (0..10)
            .map(|i| Life {
                bytes: 1000,
                first: i,
                last: i + 1,
            })
            .collect();
        assert_eq!(place(&lives, ALIGN_BYTES).unwrap().1, 2 * 1024);
    }

    #[test]
    fn sizes_beyond_the_address_space_are_refused() {
        let huge = Life {
            bytes: usize::MAX - 100,
            first: 0,
            last: 0,
        };
        assert_eq!(place(&[huge], ALIGN_BYTES), None);
    }
}

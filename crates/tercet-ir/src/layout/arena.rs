//! The memory plan: offsets in one arena for slots that live over ranges of steps.
//!
//! Slots are placed from the largest to the smallest, each into the tightest gap that is free over
//! its whole life. (Greedy by size: Pisarchyk and Lee, "Efficient Memory Management for Deep Neural
//! Net Inference", 2020.) Invariant: two slots that live in one step never overlap.

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

impl Life {
    fn meets(&self, other: &Life) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

/// Where every slot lies, at multiples of `align_bytes`, and the size of the arena; `None` when it exceeds the address space.
pub fn place(lives: &[Life], align_bytes: usize) -> Option<(Vec<usize>, usize)> {
    let mut order: Vec<usize> = (0..lives.len()).collect();
    order.sort_by_key(|&i| (std::cmp::Reverse(lives[i].bytes), lives[i].first));
    let mut offsets = vec![0; lives.len()];
    let mut placed: Vec<usize> = Vec::new();
    let mut total = 0;
    for i in order {
        let size = lives[i].bytes.checked_next_multiple_of(align_bytes)?;
        if size == 0 {
            continue;
        }
        let mut taken: Vec<(usize, usize)> = placed
            .iter()
            .filter(|&&j| lives[j].meets(&lives[i]))
            .map(|&j| (offsets[j], lives[j].bytes))
            .collect();
        taken.sort_unstable();
        offsets[i] = best_gap(&taken, size, align_bytes);
        total = total.max(offsets[i].checked_add(size)?);
        placed.push(i);
    }
    isize::try_from(total).ok()?;
    Some((offsets, total))
}

/// The start of the smallest gap that holds `size`, else the end.
fn best_gap(taken: &[(usize, usize)], size: usize, align_bytes: usize) -> usize {
    let mut best: Option<(usize, usize)> = None;
    let mut end = 0;
    for &(start, bytes) in taken {
        if start >= end {
            let gap = start - end;
            if gap >= size && best.is_none_or(|(g, _)| gap < g) {
                best = Some((gap, end));
            }
        }
        end = end.max((start + bytes).next_multiple_of(align_bytes));
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

    proptest! {
        #[test]
        fn live_slots_never_overlap(lives in proptest::collection::vec(life(), 0..60)) {
            let (offsets, total) = place(&lives, ALIGN_BYTES).unwrap();
            for (i, a) in lives.iter().enumerate() {
                prop_assert!(offsets[i] % ALIGN_BYTES == 0);
                prop_assert!(a.bytes == 0 || offsets[i] + a.bytes <= total);
                for (j, b) in lives.iter().enumerate().skip(i + 1) {
                    let apart = offsets[i] + a.bytes <= offsets[j]
                        || offsets[j] + b.bytes <= offsets[i];
                    prop_assert!(apart || !a.meets(b) || a.bytes == 0 || b.bytes == 0);
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

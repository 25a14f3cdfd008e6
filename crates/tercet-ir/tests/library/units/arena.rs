//! The memory plan: placed slots.

use proptest::prelude::*;
use tercet_ir::internals::{best_gap, place_counted};
use tercet_ir::layout::{LiveRange, place};

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

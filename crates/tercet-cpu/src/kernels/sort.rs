//! Sorting on several threads, in place.

use super::parallel::{Chunks, Threads, for_each_part};

/// Keys that one thread sorts faster than several would.
const FEW: usize = 1 << 13;

/// Sorts keys; which of equal keys comes first cannot be told.
///
/// Halves are parted at their median until each thread has some, then sorted apart.
pub(crate) fn sort_unstable<T: Ord + Send>(threads: Threads, keys: &mut [T]) {
    let wanted = (2 * threads.count()).min(keys.len() / FEW);
    if threads.count() == 1 || wanted < 2 {
        return keys.sort_unstable();
    }
    let parts = wanted.next_power_of_two();
    let len = keys.len().div_ceil(parts);
    let mut halves = parts / 2;
    while halves > 0 {
        let half = len * halves;
        for_each_part(threads, Chunks::new(keys, 2 * half), |_, keys| {
            if keys.len() > half {
                keys.select_nth_unstable(half);
            }
        });
        halves /= 2;
    }
    for_each_part(threads, Chunks::new(keys, len), |_, keys| {
        keys.sort_unstable()
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "minutes; how tasks are shared is tested in `team`")]
    fn keys_are_sorted_as_by_one_thread() {
        let check = |n: u64, of: u64| {
            let mut keys: Vec<u64> = (0..n)
                .map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15) % of)
                .collect();
            let mut want = keys.clone();
            want.sort_unstable();
            sort_unstable(Threads::Pool, &mut keys);
            assert!(keys == want, "{n} keys below {of}");
        };
        check(0, 1);
        check(1, 9);
        for n in [
            2 * FEW as u64 - 1,
            2 * FEW as u64,
            5 * FEW as u64 + 7,
            300_001,
        ] {
            check(n, u64::MAX);
            check(n, 10);
            check(n, 1);
        }
    }
}

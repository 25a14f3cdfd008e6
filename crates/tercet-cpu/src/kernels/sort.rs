//! Parallel in-place sorting.

use super::parallel::{DisjointChunks, KernelThreads, for_each_part};

/// Number of keys up to which one thread is faster than several.
const MAX_SINGLE_THREAD_KEYS: usize = 1 << 13;

/// Sorts keys; the order of equal keys is unspecified.
///
/// Partitions recursively at the median until each thread has a part, then sorts the parts in
/// parallel.
pub(crate) fn sort_unstable<T: Ord + Send>(threads: KernelThreads, keys: &mut [T]) {
    let wanted = (2 * threads.count()).min(keys.len() / MAX_SINGLE_THREAD_KEYS);
    if threads.count() == 1 || wanted < 2 {
        return keys.sort_unstable();
    }
    let parts = wanted.next_power_of_two();
    let len = keys.len().div_ceil(parts);
    let mut halves = parts / 2;
    while halves > 0 {
        let half = len * halves;
        for_each_part(threads, DisjointChunks::new(keys, 2 * half), |_, keys| {
            if keys.len() > half {
                keys.select_nth_unstable(half);
            }
        });
        halves /= 2;
    }
    for_each_part(threads, DisjointChunks::new(keys, len), |_, keys| {
        keys.sort_unstable()
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(
        miri,
        ignore = "takes minutes; task sharing is tested in `worker_pool`"
    )]
    fn keys_are_sorted_as_by_one_thread() {
        let check = |n: u64, of: u64| {
            let mut keys: Vec<u64> = (0..n)
                .map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15) % of)
                .collect();
            let mut want = keys.clone();
            want.sort_unstable();
            sort_unstable(KernelThreads::Pool, &mut keys);
            assert!(keys == want, "{n} keys below {of}");
        };
        check(0, 1);
        check(1, 9);
        for n in [
            2 * MAX_SINGLE_THREAD_KEYS as u64 - 1,
            2 * MAX_SINGLE_THREAD_KEYS as u64,
            5 * MAX_SINGLE_THREAD_KEYS as u64 + 7,
            300_001,
        ] {
            check(n, u64::MAX);
            check(n, 10);
            check(n, 1);
        }
    }
}

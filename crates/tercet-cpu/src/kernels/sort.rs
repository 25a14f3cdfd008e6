//! Parallel in-place sorting.

use super::parallel::{DisjointChunks, KernelThreads, for_each_part};

/// Number of keys up to which one thread is faster than several.
pub const MAX_SINGLE_THREAD_KEYS: usize = 1 << 13;

/// Sorts keys; the order of equal keys is unspecified.
///
/// Partitions recursively at the median until each thread has a part, then sorts the parts in
/// parallel.
pub fn sort_unstable<T: Ord + Send>(threads: KernelThreads, keys: &mut [T]) {
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

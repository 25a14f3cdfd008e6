//! Parallel sorting.

use tercet_cpu::internals::{MAX_SINGLE_THREAD_KEYS, sort_unstable};
use tercet_cpu::kernels::KernelThreads;

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

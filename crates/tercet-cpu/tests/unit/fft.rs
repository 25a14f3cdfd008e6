//! Plans of Fourier transforms.

use tercet_cpu::internals::{CpuFftPlan, greatest_scratch_len, radices, scratch_len};

#[test]
fn scratch_memory_suffices_for_shorter_lengths() {
    let mut most = 0;
    for n in 1..600 {
        most = most.max(scratch_len(n));
        assert!(greatest_scratch_len(n) >= most, "{n}");
        assert_eq!(CpuFftPlan::new(n, false).scratch(), scratch_len(n), "{n}");
    }
}

#[test]
fn factors_of_a_length() {
    assert_eq!(radices(1), [] as [usize; 0]);
    assert_eq!(radices(32), [4, 4, 2]);
    assert_eq!(radices(360), [4, 2, 3, 3, 5]);
    assert_eq!(radices(2 * 1009), [2, 1009]);
}

//! Tests of the structure of FFT kernels.

use tercet_plan::internals::fft::{FftKernelPlan, WORKGROUP, radices};

#[test]
fn radices_multiply_to_the_length() {
    for n in 1..=4096u32 {
        let Some(found) = radices(n, 16) else {
            assert!([11, 13, 17, 19].iter().any(|p| n % p == 0) || n > 22, "{n}");
            continue;
        };
        assert_eq!(found.iter().product::<u32>(), n);
        assert!(found.iter().all(|r| [1, 2, 3, 4, 5, 7, 8, 16].contains(r)));
    }
    assert_eq!(radices(4096, 16), Some(vec![16, 16, 16]));
    assert_eq!(radices(2048, 8), Some(vec![8, 8, 8, 4]));
    assert_eq!(radices(512, 16), Some(vec![8, 8, 8]));
    assert_eq!(radices(22, 16), None);
}

#[test]
fn rows_fit_the_shared_memory() {
    for bytes in [16 << 10, 32 << 10, 48 << 10] {
        for n in 1..=4096 {
            let Some(plan) = FftKernelPlan::new(n, bytes) else {
                continue;
            };
            let used = WORKGROUP / plan.threads * plan.n;
            let used = if plan.spread {
                used + used / 16 + 1
            } else {
                used
            };
            assert!(used * 8 <= bytes && plan.threads <= WORKGROUP, "{n}");
        }
    }
}

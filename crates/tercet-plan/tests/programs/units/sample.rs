//! Tests of the fixed-point weights of sampling.

use tercet_plan::internals::sample::{fraction, scale};

#[test]
fn scales_are_log2_e_over_the_temperature() {
    for t in [1.0, 0.7, 3.0, 1e-3, 1e9, 2.5e-310, f64::MAX] {
        let (c, exponent) = scale(t);
        assert!(c >= 1 << 63, "{t}");
        let log = (c as f64).log2() + f64::from(exponent);
        let want = std::f64::consts::LOG2_E.log2() - t.log2();
        assert!((log - want).abs() < 1e-9, "{t}: {log} {want}");
    }
}

#[test]
fn sums_of_weights_stay_below_two_to_the_62() {
    for kept in [1u128, 2, 3, 40, 256, 150_000, i32::MAX as u128] {
        let unit = 1u128 << fraction(kept as usize);
        assert!(kept * unit < 1 << 62, "{kept}");
    }
}

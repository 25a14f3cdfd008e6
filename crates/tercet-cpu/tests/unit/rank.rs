//! Sort keys of elements.

use half::{bf16, f16};
use tercet_cpu::internals::SortKey;

fn check<T: SortKey + std::fmt::Debug>(ascending: &[T]) {
    for pair in ascending.windows(2) {
        assert!(pair[0].rank(false) < pair[1].rank(false), "{pair:?}");
        assert!(pair[0].rank(true) > pair[1].rank(true), "{pair:?}");
    }
}

#[test]
fn ranks_follow_the_order() {
    const INF: f32 = f32::INFINITY;
    let floats = [-INF, -2.5, -1e-30, 0.0, 1e-30, 2.5, INF];
    check(&floats);
    check(&floats.map(f64::from));
    check(&[-INF, -2.5, -1e-6, 0.0, 1e-6, 2.5, INF].map(f16::from_f32));
    check(&floats.map(bf16::from_f32));
    check(&[i32::MIN, -1, 0, 1, i32::MAX]);
    check(&[i64::MIN, -1, 0, 1, i64::MAX]);
    check(&[i16::MIN, -1, 0, 1, i16::MAX]);
    check(&[i8::MIN, -1, 0, 1, i8::MAX]);
    check(&[0u32, 1, u32::MAX]);
    check(&[0u8, 1, u8::MAX]);
}

#[test]
fn nan_is_the_most_extreme_and_zeros_are_equal() {
    for largest in [true, false] {
        let end = if largest {
            f32::INFINITY
        } else {
            f32::NEG_INFINITY
        };
        for nan in [f32::NAN, -f32::NAN] {
            assert!(nan.rank(largest) < end.rank(largest));
        }
        assert_eq!(0f32.rank(largest), (-0f32).rank(largest));
        assert!(f16::NAN.rank(largest) < f16::from_f32(end).rank(largest));
    }
}

//! Order-preserving integer keys of elements, for top-k and argmax. The element that the operator
//! selects first has the lowest key.

use half::{bf16, f16};
use tercet_ir::Element;

/// Element type with a sort key.
pub(crate) trait SortKey: Element {
    /// Sort key of the element: larger elements have lower keys if `largest`, otherwise smaller
    /// elements have lower keys. NaN always has the lowest key, and both zeros have the same key.
    /// Keys of elements of up to 4 bytes fit in 32 bits.
    fn rank(self, largest: bool) -> u64;
}

macro_rules! floats {
    ($($t:ty, $bits:ty, $infinity:expr);* $(;)?) => {$(impl SortKey for $t {
        #[inline(always)]
        fn rank(self, largest: bool) -> u64 {
            const SIGN: $bits = 1 << (<$bits>::BITS - 1);
            let bits = self.to_bits();
            let magnitude = bits & !SIGN;
            if magnitude > $infinity {
                return 0;
            }
            // Keys of positive numbers are above `SIGN`, keys of negative numbers below; both zeros
            // have the key `SIGN`.
            let ascending = match bits == magnitude {
                true => SIGN + magnitude,
                false => SIGN - magnitude,
            };
            u64::from(if largest { !ascending } else { ascending })
        }
    })*};
}
floats! {
    f32, u32, 0x7f80_0000;
    f64, u64, 0x7ff0_0000_0000_0000;
    f16, u16, 0x7c00;
    bf16, u16, 0x7f80;
}

macro_rules! ints {
    ($($t:ty, $bits:ty);* $(;)?) => {$(impl SortKey for $t {
        #[inline(always)]
        fn rank(self, largest: bool) -> u64 {
            let ascending = self.abs_diff(<$t>::MIN);
            u64::from(if largest { !ascending } else { ascending })
        }
    })*};
}
ints! { i32, u32; u32, u32; i64, u64; i16, u16; i8, u8; u8, u8 }

#[cfg(test)]
mod tests {
    use super::*;

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
}

//! Order-preserving integer keys of elements, for top-k and argmax. The element that the operator
//! selects first has the lowest key.

use half::{bf16, f16};
use tercet_ir::Element;

/// Element type with a sort key.
pub trait SortKey: Element {
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

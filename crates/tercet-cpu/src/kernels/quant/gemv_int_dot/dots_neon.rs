//! Integer dot products of aarch64: `sdot`.

use std::arch::aarch64::*;
use std::ops::Range;

use super::super::super::simd::SimdLevel;
use super::super::super::simd::neon::sdot;
use super::super::QuantView;
use super::super::code_vector::{CodeVector, from_integers};
use super::{FixedPointRow, GROUP, IntDotProduct};

/// Dot products of four signed bytes; quantized values below 64 are signed bytes too.
#[derive(Clone, Copy)]
struct SdotProduct;

impl IntDotProduct for SdotProduct {
    #[inline(always)]
    unsafe fn dot(codes: CodeVector, digits: *const i8) -> CodeVector {
        let half = |codes: uint8x16_t, digits: *const i8| {
            // SAFETY: the requirements are those of this function.
            unsafe {
                let codes = vreinterpretq_s8_u8(codes);
                let limb = |plane: usize| vld1q_s8(digits.add(GROUP * plane));
                let high = sdot(vdupq_n_s32(0), codes, limb(2));
                let middle = sdot(vshlq_n_s32::<8>(high), codes, limb(1));
                sdot(vshlq_n_s32::<8>(middle), codes, limb(0))
            }
        };
        from_integers(int32x4x2_t(
            half(codes.0, digits),
            half(codes.1, digits.add(16)),
        ))
    }
}

/// Computes the products of the rows `rows` of W.
///
/// # Safety
/// Same as [`super::dot_row`].
pub(super) unsafe fn all_rows(
    level: SimdLevel,
    row: FixedPointRow<'_>,
    w: &QuantView<'_>,
    rows: Range<usize>,
    y: *mut f32,
) {
    #[target_feature(enable = "dotprod")]
    unsafe fn dotprod(row: FixedPointRow<'_>, w: &QuantView<'_>, rows: Range<usize>, y: *mut f32) {
        super::all_rows::<SdotProduct>(row, w, rows, y);
    }
    assert!(level.dots, "`supports` rejects levels without `sdot`");
    dotprod(row, w, rows, y);
}

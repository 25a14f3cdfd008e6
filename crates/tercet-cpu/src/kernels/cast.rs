//! Conversions of blocks between dtypes, in one pass.

use tercet_ir::DType;

use super::simd::{Simd, simd_dispatch};
use super::{SimdLevel, convert};

/// Converts elements of bytes; the slices have the same number of elements.
pub type CastFn = fn(SimdLevel, &[u8], &mut [u8]);

macro_rules! casts {
    ($($name:ident: $from:ty => $to:ty = |$x:ident| $value:expr;)*) => {$(
        fn $name(level: SimdLevel, x: &[u8], out: &mut [u8]) {
            simd_dispatch!(
                fn cast(x: &[$from], out: &mut [$to]) = body
            );
            /// # Safety
            /// Requires the instructions of `S`.
            #[inline(always)]
            unsafe fn body<S: Simd>(x: &[$from], out: &mut [$to]) {
                out.iter_mut().zip(x).for_each(|(y, x)| {
                    let $x = *x;
                    *y = $value;
                });
            }
            cast(level, bytemuck::cast_slice(x), bytemuck::cast_slice_mut(out));
        }
    )*};
}

// Floats convert toward zero and saturate; NaN becomes 0. Integers wrap.
casts! {
    f32_i32: f32 => i32 = |x| {
        // The next float below 2^31 limits the conversion.
        let y = within(x, -2_147_483_648.0, 2_147_483_520.0);
        if x >= 2_147_483_648.0 { i32::MAX } else { y }
    };
    f32_i64: f32 => i64 = |x| x as i64;
    f32_i16: f32 => i16 = |x| within(x, -32_768.0, 32_767.0) as i16;
    f32_i8: f32 => i8 = |x| within(x, -128.0, 127.0) as i8;
    f32_u8: f32 => u8 = |x| within(x, 0.0, 255.0) as u8;
    f32_f64: f32 => f64 = |x| f64::from(x);
    f32_bool: f32 => u8 = |x| u8::from(x != 0.0);
    f64_f32: f64 => f32 = |x| x as f32;
    i32_f32: i32 => f32 = |x| x as f32;
    i32_i64: i32 => i64 = |x| i64::from(x);
    i32_i16: i32 => i16 = |x| x as i16;
    i32_bool: i32 => u8 = |x| u8::from(x != 0);
    i64_f32: i64 => f32 = |x| x as f32;
    i64_i32: i64 => i32 = |x| x as i32;
    i64_bool: i64 => u8 = |x| u8::from(x != 0);
    u8_f32: u8 => f32 = |x| f32::from(x);
    u8_i32: u8 => i32 = |x| i32::from(x);
    i16_f32: i16 => f32 = |x| f32::from(x);
    i16_i32: i16 => i32 = |x| i32::from(x);
    i8_f32: i8 => f32 = |x| f32::from(x);
    i8_i32: i8 => i32 = |x| i32::from(x);
    u8_i64: u8 => i64 = |x| i64::from(x);
}

/// Converts a float toward zero after a clamp to bounds inside the range of `i32`; NaN becomes 0. The compiler does
/// not vectorize the saturating `as`.
#[inline(always)]
fn within(x: f32, least: f32, greatest: f32) -> i32 {
    let y = if x > least { x } else { least };
    let y = if y < greatest { y } else { greatest };
    let y = if x.is_nan() { 0.0 } else { y };
    // SAFETY: the number is inside the range of the type.
    unsafe { y.to_int_unchecked::<i32>() }
}

/// The conversion between two dtypes, if there is one.
pub fn function(from: DType, to: DType) -> Option<CastFn> {
    use DType::{BF16, Bool, F16, F32, F64, I8, I16, I32, I64, U8};
    Some(match (from, to) {
        (F32, I32) => f32_i32,
        (F32, I64) => f32_i64,
        (F32, I16) => f32_i16,
        (F32, I8) => f32_i8,
        (F32, U8) => f32_u8,
        (F32, F64) => f32_f64,
        (F32, Bool) => f32_bool,
        (F64, F32) => f64_f32,
        (I32, F32) => i32_f32,
        (I32, I64) => i32_i64,
        (I32, I16) => i32_i16,
        (I32, Bool) => i32_bool,
        (I64, F32) => i64_f32,
        (I64, I32) => i64_i32,
        (I64, Bool) => i64_bool,
        // Booleans are bytes of 0 and 1.
        (U8 | Bool, F32) => u8_f32,
        (U8 | Bool, I32) => u8_i32,
        (U8 | Bool, I64) => u8_i64,
        (I16, F32) => i16_f32,
        (I16, I32) => i16_i32,
        (I8, F32) => i8_f32,
        (I8, I32) => i8_i32,
        (F32, F16) => |level, x, out| {
            convert::f32_to_f16(
                level,
                bytemuck::cast_slice(x),
                bytemuck::cast_slice_mut(out),
            );
        },
        (F32, BF16) => |level, x, out| {
            convert::f32_to_bf16(
                level,
                bytemuck::cast_slice(x),
                bytemuck::cast_slice_mut(out),
            );
        },
        (F16, F32) => |level, x, out| {
            convert::f16_to_f32(
                level,
                bytemuck::cast_slice(x),
                bytemuck::cast_slice_mut(out),
            );
        },
        (BF16, F32) => |level, x, out| {
            convert::bf16_to_f32(
                level,
                bytemuck::cast_slice(x),
                bytemuck::cast_slice_mut(out),
            );
        },
        _ => return None,
    })
}

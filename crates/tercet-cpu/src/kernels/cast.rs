//! Conversions of blocks between dtypes, in one pass.

use tercet_ir::DType;

use super::simd::{Simd, simd_dispatch};
use super::{SimdLevel, convert};

/// Converts elements of bytes; the slices have the same number of elements.
pub(crate) type CastFn = fn(SimdLevel, &[u8], &mut [u8]);

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
pub(crate) fn function(from: DType, to: DType) -> Option<CastFn> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use tercet_ir::scalar::{Scalar, convert as exact};
    use tercet_ir::{Tensor, TensorType};

    /// Values at the ends of all ranges.
    fn samples() -> Vec<f64> {
        let mut x = vec![
            0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 1.9, 127.5, -128.9, 255.4, 256.0, -300.0, 32_767.5,
            -32_769.0, 65_519.0, 1e9,
        ];
        x.extend([
            2_147_483_648.0,
            -2_147_483_649.0,
            1e19,
            -1e19,
            16_777_217.0,
            1e-8,
        ]);
        x.extend((0..50).map(|i| f64::from(i * i * i) * 0.37 - 900.0));
        x
    }

    #[test]
    fn conversions_are_those_of_single_numbers() {
        let mut found = 0;
        for (from, to) in DType::ALL
            .iter()
            .flat_map(|a| DType::ALL.iter().map(move |b| (*a, *b)))
        {
            let Some(cast) = function(from, to) else {
                continue;
            };
            found += 1;
            let given = samples();
            let x = Tensor::from_f64s(TensorType::new(from, &[given.len()]), &given).unwrap();
            let want: Vec<f64> = match from.is_float() {
                true => x
                    .to_f64s()
                    .iter()
                    .map(|x| exact(Scalar::F(*x), to).as_f64())
                    .collect(),
                false => x
                    .to_i64s()
                    .iter()
                    .map(|x| exact(Scalar::I(*x), to).as_f64())
                    .collect(),
            };
            for &level in SimdLevel::available() {
                let mut out = Tensor::zeros(TensorType::new(to, &[given.len()])).unwrap();
                cast(level, x.bytes(), out.bytes_mut());
                assert_eq!(out.to_f64s(), want, "{from} to {to} at {}", level.name());
            }
        }
        assert_eq!(found, 29);
        let mut out = [7u8; 4];
        f32_i32(SimdLevel::portable(), &f32::NAN.to_ne_bytes(), &mut out);
        assert_eq!(out, [0; 4]);
    }
}

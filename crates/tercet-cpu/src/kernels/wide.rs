//! Elementwise functions on blocks of `i64` and `f64`, the registers of integers and of F64.
//!
//! Quotients of integers below 2^52 come from a division of floats, whose truncation is exact: a quotient that
//! is not whole differs from the next integer by more than the rounding error.

use tercet_ir::DType;
use tercet_ir::scalar::{self, BinaryFn, CompareFn, UnaryFn};

use super::simd::{Simd, simd_dispatch};

#[inline(always)]
fn each<T: Copy, U>(x: &[T], out: &mut [U], f: impl Fn(T) -> U) {
    out.iter_mut().zip(x).for_each(|(out, x)| *out = f(*x));
}

#[inline(always)]
fn both<T: Copy, U>(a: &[T], b: &[T], out: &mut [U], f: impl Fn(T, T) -> U) {
    let pairs = out.iter_mut().zip(a).zip(b);
    pairs.for_each(|((out, a), b)| *out = f(*a, *b));
}

simd_dispatch!(
    /// Computes `f` of two blocks of integers of this dtype, wrapped to it. Returns false for functions of floats
    /// and powers.
    pub(crate) fn integers(f: BinaryFn, dtype: DType, a: &[i64], b: &[i64], out: &mut [i64]) -> bool = integers_body
);

/// # Safety
/// Requires the instructions of `S`.
#[inline(always)]
unsafe fn integers_body<S: Simd>(
    f: BinaryFn,
    dtype: DType,
    a: &[i64],
    b: &[i64],
    out: &mut [i64],
) -> bool {
    let mask = 8 * dtype.size_bytes() as i64 - 1;
    match f {
        BinaryFn::Add => both(a, b, out, i64::wrapping_add),
        BinaryFn::Sub => both(a, b, out, i64::wrapping_sub),
        BinaryFn::Mul => both(a, b, out, i64::wrapping_mul),
        BinaryFn::Max => both(a, b, out, |a, b| if a > b { a } else { b }),
        BinaryFn::Min => both(a, b, out, |a, b| if a < b { a } else { b }),
        BinaryFn::And => both(a, b, out, |a, b| a & b),
        BinaryFn::Or => both(a, b, out, |a, b| a | b),
        BinaryFn::Xor => both(a, b, out, |a, b| a ^ b),
        BinaryFn::Shl => both(a, b, out, |a, b| a << (b & mask)),
        BinaryFn::Shr => both(a, b, out, |a, b| a >> (b & mask)),
        BinaryFn::Div if are_small(a, b) => both(a, b, out, quotient),
        BinaryFn::Rem if are_small(a, b) => both(a, b, out, |a, b| a - quotient(a, b) * b),
        BinaryFn::Div => both(a, b, out, |a, b| if b == 0 { a } else { a.wrapping_div(b) }),
        BinaryFn::Rem => both(a, b, out, |a, b| if b == 0 { 0 } else { a.wrapping_rem(b) }),
        BinaryFn::Pow if b.iter().fold(true, |all, b| all & (*b == 2)) => {
            both(a, b, out, |a, _| a.wrapping_mul(a))
        }
        BinaryFn::Pow | BinaryFn::Atan2 => return false,
    }
    wrap(dtype, out);
    true
}

/// True if all quotients come from floats without rounding errors, and no divisor is 0.
#[inline(always)]
fn are_small(a: &[i64], b: &[i64]) -> bool {
    const BOUND: u64 = 1 << 52;
    // A number within the bounds stays below twice the bound when it is raised by it.
    let fits = |x: i64| (x as u64).wrapping_add(BOUND) < 2 * BOUND;
    let pairs = a.iter().zip(b);
    pairs.fold(true, |all, (a, b)| all & fits(*a) & fits(*b) & (*b != 0))
}

#[inline(always)]
fn quotient(a: i64, b: i64) -> i64 {
    (a as f64 / b as f64) as i64
}

/// Wraps integers to the width of their dtype.
#[inline(always)]
fn wrap(dtype: DType, x: &mut [i64]) {
    match dtype {
        DType::I32 => x.iter_mut().for_each(|x| *x = i64::from(*x as i32)),
        DType::U32 => x.iter_mut().for_each(|x| *x = i64::from(*x as u32)),
        DType::I16 => x.iter_mut().for_each(|x| *x = i64::from(*x as i16)),
        DType::I8 => x.iter_mut().for_each(|x| *x = i64::from(*x as i8)),
        DType::U8 => x.iter_mut().for_each(|x| *x = i64::from(*x as u8)),
        DType::I64 | DType::F32 | DType::F16 | DType::BF16 | DType::F64 | DType::Bool => {}
    }
}

simd_dispatch!(
    /// Computes `f` of a block of integers, wrapped to the dtype.
    pub(crate) fn integer(f: UnaryFn, dtype: DType, x: &[i64], out: &mut [i64]) = integer_body
);

/// # Safety
/// Requires the instructions of `S`.
#[inline(always)]
unsafe fn integer_body<S: Simd>(f: UnaryFn, dtype: DType, x: &[i64], out: &mut [i64]) {
    match f {
        UnaryFn::Relu => each(x, out, |x| if x > 0 { x } else { 0 }),
        UnaryFn::Neg => each(x, out, i64::wrapping_neg),
        UnaryFn::Abs => each(x, out, i64::wrapping_abs),
        UnaryFn::Sign => each(x, out, |x| i64::from(x > 0) - i64::from(x < 0)),
        UnaryFn::Not => each(x, out, |x| !x),
        // Rounding functions return integers unchanged; the other functions accept only floats.
        _ => out.copy_from_slice(x),
    }
    wrap(dtype, out);
}

simd_dispatch!(
    /// Clamps a block of integers between `lo` and `hi`.
    pub(crate) fn clamp_integers(x: &[i64], lo: i64, hi: i64, out: &mut [i64]) = clamp_integers_body
);

/// # Safety
/// Requires the instructions of `S`.
#[inline(always)]
unsafe fn clamp_integers_body<S: Simd>(x: &[i64], lo: i64, hi: i64, out: &mut [i64]) {
    each(x, out, |x| {
        let x = if x < lo { lo } else { x };
        if x > hi { hi } else { x }
    });
}

simd_dispatch!(
    /// Converts between integer dtypes by wrapping.
    pub(crate) fn wrapped(dtype: DType, x: &[i64], out: &mut [i64]) = wrapped_body
);

/// # Safety
/// Requires the instructions of `S`.
#[inline(always)]
unsafe fn wrapped_body<S: Simd>(dtype: DType, x: &[i64], out: &mut [i64]) {
    out.copy_from_slice(x);
    wrap(dtype, out);
}

simd_dispatch!(
    /// Converts floats toward zero to an integer dtype, saturated; NaN becomes 0.
    pub(crate) fn floats_to_integers(dtype: DType, x: &[f32], out: &mut [i64]) = floats_to_integers_body
);

/// # Safety
/// Requires the instructions of `S`.
#[inline(always)]
unsafe fn floats_to_integers_body<S: Simd>(dtype: DType, x: &[f32], out: &mut [i64]) {
    match dtype {
        DType::I32 => each(x, out, |x| i64::from(x as i32)),
        DType::U32 => each(x, out, |x| i64::from(x as u32)),
        DType::I16 => each(x, out, |x| i64::from(x as i16)),
        DType::I8 => each(x, out, |x| i64::from(x as i8)),
        DType::U8 => each(x, out, |x| i64::from(x as u8)),
        DType::I64 | DType::F32 | DType::F16 | DType::BF16 | DType::F64 | DType::Bool => {
            each(x, out, |x| x as i64);
        }
    }
}

simd_dispatch!(
    /// Converts integers to floats, rounded once.
    pub(crate) fn integers_to_floats(x: &[i64], out: &mut [f32]) = integers_to_floats_body
);

/// # Safety
/// Requires the instructions of `S`.
#[inline(always)]
unsafe fn integers_to_floats_body<S: Simd>(x: &[i64], out: &mut [f32]) {
    each(x, out, |x| x as f32);
}

simd_dispatch!(
    /// Compares two blocks of integers.
    pub(crate) fn compare_integers(f: CompareFn, a: &[i64], b: &[i64], out: &mut [u8]) = compare_body::<i64>
);
simd_dispatch!(
    /// Compares two blocks of F64.
    pub(crate) fn compare_doubles(f: CompareFn, a: &[f64], b: &[f64], out: &mut [u8]) = compare_body::<f64>
);
simd_dispatch!(
    /// Compares two blocks of booleans.
    pub(crate) fn compare_bytes(f: CompareFn, a: &[u8], b: &[u8], out: &mut [u8]) = compare_body::<u8>
);

/// # Safety
/// Requires the instructions of `S`.
#[inline(always)]
unsafe fn compare_body<S: Simd, T: Copy + PartialOrd>(
    f: CompareFn,
    a: &[T],
    b: &[T],
    out: &mut [u8],
) {
    match f {
        CompareFn::Eq => both(a, b, out, |a, b| u8::from(a == b)),
        CompareFn::Ne => both(a, b, out, |a, b| u8::from(a != b)),
        CompareFn::Lt => both(a, b, out, |a, b| u8::from(a < b)),
        CompareFn::Le => both(a, b, out, |a, b| u8::from(a <= b)),
        CompareFn::Gt => both(a, b, out, |a, b| u8::from(a > b)),
        CompareFn::Ge => both(a, b, out, |a, b| u8::from(a >= b)),
    }
}

simd_dispatch!(
    /// Tells which floats are not 0; NaN is not.
    pub(crate) fn nonzero_floats(x: &[f32], out: &mut [u8]) = nonzero_body::<f32>
);
simd_dispatch!(
    /// Tells which integers are not 0.
    pub(crate) fn nonzero_integers(x: &[i64], out: &mut [u8]) = nonzero_body::<i64>
);

/// # Safety
/// Requires the instructions of `S`.
#[inline(always)]
unsafe fn nonzero_body<S: Simd, T: Copy + PartialEq + Default>(x: &[T], out: &mut [u8]) {
    each(x, out, |x| u8::from(x != T::default()));
}

simd_dispatch!(
    /// Tells which floats are infinite.
    pub(crate) fn infinite(x: &[f32], out: &mut [u8]) = infinite_body
);

/// # Safety
/// Requires the instructions of `S`.
#[inline(always)]
unsafe fn infinite_body<S: Simd>(x: &[f32], out: &mut [u8]) {
    each(x, out, |x| u8::from(x.abs() == f32::INFINITY));
}

simd_dispatch!(
    /// Tells which floats are NaN.
    pub(crate) fn not_numbers(x: &[f32], out: &mut [u8]) = not_numbers_body
);

/// # Safety
/// Requires the instructions of `S`.
#[inline(always)]
unsafe fn not_numbers_body<S: Simd>(x: &[f32], out: &mut [u8]) {
    each(x, out, |x| u8::from(x.is_nan()));
}

simd_dispatch!(
    /// Selects 64-bit words: those of `a` if the condition is not 0, else those of `b`.
    pub(crate) fn select_words(cond: &[u8], a: &[u64], b: &[u64], out: &mut [u64]) = select_body::<u64>
);
simd_dispatch!(
    /// Selects bytes, as [`select_words`].
    pub(crate) fn select_bytes(cond: &[u8], a: &[u8], b: &[u8], out: &mut [u8]) = select_body::<u8>
);

/// # Safety
/// Requires the instructions of `S`.
#[inline(always)]
unsafe fn select_body<S: Simd, T: Copy>(cond: &[u8], a: &[T], b: &[T], out: &mut [T]) {
    let values = a.iter().zip(b);
    for ((out, cond), (a, b)) in out.iter_mut().zip(cond).zip(values) {
        *out = if *cond != 0 { *a } else { *b };
    }
}

simd_dispatch!(
    /// Computes `f` of two blocks of F64. Returns false for functions of integers.
    pub(crate) fn doubles(f: BinaryFn, a: &[f64], b: &[f64], out: &mut [f64]) -> bool = doubles_body
);

/// # Safety
/// Requires the instructions of `S`.
#[inline(always)]
unsafe fn doubles_body<S: Simd>(f: BinaryFn, a: &[f64], b: &[f64], out: &mut [f64]) -> bool {
    match f {
        BinaryFn::Add => both(a, b, out, |a, b| a + b),
        BinaryFn::Sub => both(a, b, out, |a, b| a - b),
        BinaryFn::Mul => both(a, b, out, |a, b| a * b),
        BinaryFn::Div => both(a, b, out, |a, b| a / b),
        BinaryFn::Rem => both(a, b, out, |a, b| a % b),
        BinaryFn::Max => both(a, b, out, scalar::maximum),
        BinaryFn::Min => both(a, b, out, scalar::minimum),
        BinaryFn::Pow if b.iter().fold(true, |all, b| all & (*b == 2.0)) => {
            both(a, b, out, |a, _| a * a)
        }
        BinaryFn::Pow => both(a, b, out, f64::powf),
        BinaryFn::Atan2 => both(a, b, out, f64::atan2),
        BinaryFn::And | BinaryFn::Or | BinaryFn::Xor | BinaryFn::Shl | BinaryFn::Shr => {
            return false;
        }
    }
    true
}

simd_dispatch!(
    /// Computes `f` of a block of F64.
    pub(crate) fn double(f: UnaryFn, x: &[f64], out: &mut [f64]) = double_body
);

/// # Safety
/// Requires the instructions of `S`.
#[inline(always)]
unsafe fn double_body<S: Simd>(f: UnaryFn, x: &[f64], out: &mut [f64]) {
    match f {
        UnaryFn::Neg => each(x, out, |x| -x),
        UnaryFn::Abs => each(x, out, f64::abs),
        UnaryFn::Sqrt => each(x, out, f64::sqrt),
        UnaryFn::Recip => each(x, out, |x| 1.0 / x),
        UnaryFn::Floor => each(x, out, f64::floor),
        UnaryFn::Ceil => each(x, out, f64::ceil),
        UnaryFn::Trunc => each(x, out, f64::trunc),
        UnaryFn::Round => each(x, out, f64::round_ties_even),
        f => each(x, out, |x| f.eval_f64(x)),
    }
}

simd_dispatch!(
    /// Converts F32 to F64.
    pub(crate) fn floats_to_doubles(x: &[f32], out: &mut [f64]) = floats_to_doubles_body
);

/// # Safety
/// Requires the instructions of `S`.
#[inline(always)]
unsafe fn floats_to_doubles_body<S: Simd>(x: &[f32], out: &mut [f64]) {
    each(x, out, f64::from);
}

simd_dispatch!(
    /// Converts F64 to F32, rounded once.
    pub(crate) fn doubles_to_floats(x: &[f64], out: &mut [f32]) = doubles_to_floats_body
);

/// # Safety
/// Requires the instructions of `S`.
#[inline(always)]
unsafe fn doubles_to_floats_body<S: Simd>(x: &[f64], out: &mut [f32]) {
    each(x, out, |x| x as f32);
}

simd_dispatch!(
    /// Converts integers to F64.
    pub(crate) fn integers_to_doubles(x: &[i64], out: &mut [f64]) = integers_to_doubles_body
);

/// # Safety
/// Requires the instructions of `S`.
#[inline(always)]
unsafe fn integers_to_doubles_body<S: Simd>(x: &[i64], out: &mut [f64]) {
    each(x, out, |x| x as f64);
}

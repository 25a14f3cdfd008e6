//! Elementwise functions of integers in registers of the width of their dtype.

use tercet_ir::scalar::{BinaryFn, UnaryFn};

use super::simd::{Simd, simd_dispatch};

/// Integer type whose functions wrap. A quotient by 0 is the dividend, and the remainder is 0.
pub trait NativeInt: bytemuck::Pod + Ord + Send + Sync {
    /// The sum.
    fn plus(self, other: Self) -> Self;
    /// The difference.
    fn minus(self, other: Self) -> Self;
    /// The product.
    fn times(self, other: Self) -> Self;
    /// The truncated quotient.
    fn quotient(self, other: Self) -> Self;
    /// The remainder, with the sign of the dividend.
    fn remainder(self, other: Self) -> Self;
    /// Bits of both.
    fn and(self, other: Self) -> Self;
    /// Bits of either.
    fn or(self, other: Self) -> Self;
    /// Bits of exactly one.
    fn xor(self, other: Self) -> Self;
    /// Shift to the left, by the count modulo the width.
    fn left(self, other: Self) -> Self;
    /// Shift to the right, by the count modulo the width.
    fn right(self, other: Self) -> Self;
    /// The number with the opposite sign.
    fn negative(self) -> Self;
    /// The absolute value.
    fn magnitude(self) -> Self;
    /// -1, 0 or 1.
    fn sign(self) -> Self;
    /// All bits inverted.
    fn inverse(self) -> Self;
    /// The number, or 0 if it is negative.
    fn positive(self) -> Self;

    /// Computes a function of two blocks at a SIMD level. False for functions that integers do not have.
    fn run_binary(
        level: super::SimdLevel,
        f: BinaryFn,
        a: &[Self],
        b: &[Self],
        out: &mut [Self],
    ) -> bool;

    /// Computes a function of a block at a SIMD level. False for functions that integers do not have.
    fn run_unary(level: super::SimdLevel, f: UnaryFn, x: &[Self], out: &mut [Self]) -> bool;
}

/// Float type of quotients.
trait QuotientFloat {
    /// The low 32 bits of the number without its fraction. The least of the 32-bit numbers divided
    /// by -1 wraps.
    fn low_word(self) -> u32;
}

impl QuotientFloat for f32 {
    #[inline(always)]
    fn low_word(self) -> u32 {
        self as i32 as u32
    }
}

impl QuotientFloat for f64 {
    #[inline(always)]
    fn low_word(self) -> u32 {
        // The low bits of the sum contain the integer. A conversion to 64 bits would not be
        // vectorized.
        const WHOLE: f64 = 6_755_399_441_055_744.0;
        (self.trunc() + WHOLE).to_bits() as u32
    }
}

/// `$float` represents all values of the type, and its truncated quotients are exact.
macro_rules! native {
    ($($t:ty, $float:ty, $abs:tt;)*) => {$(impl NativeInt for $t {
        #[inline(always)]
        fn plus(self, other: $t) -> $t { self.wrapping_add(other) }
        #[inline(always)]
        fn minus(self, other: $t) -> $t { self.wrapping_sub(other) }
        #[inline(always)]
        fn times(self, other: $t) -> $t { self.wrapping_mul(other) }
        #[inline(always)]
        fn quotient(self, other: $t) -> $t {
            let q = (self as $float / other as $float).low_word() as $t;
            if other == 0 { self } else { q }
        }
        #[inline(always)]
        fn remainder(self, other: $t) -> $t {
            let q = (self as $float / other as $float).low_word() as $t;
            if other == 0 { 0 } else { self.wrapping_sub(q.wrapping_mul(other)) }
        }
        #[inline(always)]
        fn and(self, other: $t) -> $t { self & other }
        #[inline(always)]
        fn or(self, other: $t) -> $t { self | other }
        #[inline(always)]
        fn xor(self, other: $t) -> $t { self ^ other }
        #[inline(always)]
        fn left(self, other: $t) -> $t { self.wrapping_shl(other as u32 & (<$t>::BITS - 1)) }
        #[inline(always)]
        fn right(self, other: $t) -> $t { self.wrapping_shr(other as u32 & (<$t>::BITS - 1)) }
        #[inline(always)]
        fn negative(self) -> $t { self.wrapping_neg() }
        #[inline(always)]
        fn magnitude(self) -> $t { native!(@magnitude $abs self) }
        #[inline(always)]
        fn sign(self) -> $t { native!(@sign $abs self) }
        #[inline(always)]
        fn inverse(self) -> $t { !self }
        #[inline(always)]
        fn positive(self) -> $t { if self > 0 { self } else { 0 } }

        fn run_binary(
            level: super::SimdLevel,
            f: BinaryFn,
            a: &[$t],
            b: &[$t],
            out: &mut [$t],
        ) -> bool {
            simd_dispatch!(fn run(f: BinaryFn, a: &[$t], b: &[$t], out: &mut [$t]) -> bool = binary::<$t>);
            run(level, f, a, b, out)
        }

        fn run_unary(level: super::SimdLevel, f: UnaryFn, x: &[$t], out: &mut [$t]) -> bool {
            simd_dispatch!(fn run(f: UnaryFn, x: &[$t], out: &mut [$t]) -> bool = unary::<$t>);
            run(level, f, x, out)
        }
    })*};
    (@magnitude signed $x:expr) => { $x.wrapping_abs() };
    (@magnitude unsigned $x:expr) => { $x };
    (@sign signed $x:expr) => { $x.signum() };
    (@sign unsigned $x:expr) => { $x.min(1) };
}
native! {
    i8, f32, signed;
    u8, f32, unsigned;
    i16, f32, signed;
    i32, f64, signed;
    u32, f64, unsigned;
}

/// Computes `f` of two blocks. Returns false for functions that integers do not have.
///
/// # Safety
/// Requires the instructions of `S`.
#[inline(always)]
unsafe fn binary<S: Simd, T: NativeInt>(f: BinaryFn, a: &[T], b: &[T], out: &mut [T]) -> bool {
    #[inline(always)]
    fn both<T: Copy>(a: &[T], b: &[T], out: &mut [T], f: impl Fn(T, T) -> T) {
        let pairs = out.iter_mut().zip(a).zip(b);
        pairs.for_each(|((out, a), b)| *out = f(*a, *b));
    }
    match f {
        BinaryFn::Add => both(a, b, out, T::plus),
        BinaryFn::Sub => both(a, b, out, T::minus),
        BinaryFn::Mul => both(a, b, out, T::times),
        BinaryFn::Div => both(a, b, out, T::quotient),
        BinaryFn::Rem => both(a, b, out, T::remainder),
        BinaryFn::Max => both(a, b, out, |a, b| if a > b { a } else { b }),
        BinaryFn::Min => both(a, b, out, |a, b| if a < b { a } else { b }),
        BinaryFn::And => both(a, b, out, T::and),
        BinaryFn::Or => both(a, b, out, T::or),
        BinaryFn::Xor => both(a, b, out, T::xor),
        BinaryFn::Shl => both(a, b, out, T::left),
        BinaryFn::Shr => both(a, b, out, T::right),
        BinaryFn::Pow | BinaryFn::Atan2 => return false,
    }
    true
}

/// Computes `f` of a block. Returns false for functions that integers do not have.
///
/// # Safety
/// Requires the instructions of `S`.
#[inline(always)]
unsafe fn unary<S: Simd, T: NativeInt>(f: UnaryFn, x: &[T], out: &mut [T]) -> bool {
    #[inline(always)]
    fn each<T: Copy>(x: &[T], out: &mut [T], f: impl Fn(T) -> T) {
        out.iter_mut().zip(x).for_each(|(out, x)| *out = f(*x));
    }
    match f {
        UnaryFn::Relu => each(x, out, T::positive),
        UnaryFn::Neg => each(x, out, T::negative),
        UnaryFn::Abs => each(x, out, T::magnitude),
        UnaryFn::Sign => each(x, out, T::sign),
        UnaryFn::Not => each(x, out, T::inverse),
        _ => return false,
    }
    true
}

//! Element types: the closed list of dtypes and the Rust types that store them.

use std::fmt;

use half::{bf16, f16};

/// The coarse class of a [`DType`]. The class decides how values are computed and accumulated.
///
/// ```
/// use tercet_tensor::{DType, DTypeClass};
/// assert_eq!(DType::BF16.class(), DTypeClass::Float);
/// assert_eq!(DType::U8.class(), DTypeClass::Unsigned);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DTypeClass {
    /// IEEE 754 binary floats and bfloat16.
    Float,
    /// Two's complement integers.
    Signed,
    /// Unsigned integers.
    Unsigned,
    /// Booleans, one byte each, 0 or 1.
    Bool,
}

macro_rules! dtypes {
    ($($(#[$doc:meta])* $Variant:ident $name:literal $bytes:literal $class:ident),* $(,)?) => {
        /// The element type of a tensor.
        ///
        /// ```
        /// use tercet_tensor::DType;
        /// assert_eq!(DType::from_name("bf16"), Some(DType::BF16));
        /// assert_eq!(DType::BF16.size_bytes(), 2);
        /// assert!(DType::BF16.is_float());
        /// assert_eq!(DType::I8.int_range(), Some((-128, 127)));
        /// ```
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum DType { $($(#[$doc])* $Variant),* }

        impl DType {
            /// Every dtype, in declaration order.
            pub const ALL: &'static [DType] = &[$(DType::$Variant),*];

            /// The dtype's name in the text form, for example `f32`.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$Variant => $name),* }
            }

            /// The size of one element in bytes.
            pub const fn size_bytes(self) -> usize {
                match self { $(Self::$Variant => $bytes),* }
            }

            /// The dtype's class: float, signed, unsigned or bool.
            pub const fn class(self) -> DTypeClass {
                match self { $(Self::$Variant => DTypeClass::$class),* }
            }
        }
    };
}

dtypes! {
    /// IEEE 754 binary32.
    F32 "f32" 4 Float,
    /// IEEE 754 binary16.
    F16 "f16" 2 Float,
    /// bfloat16: the upper half of a binary32.
    BF16 "bf16" 2 Float,
    /// IEEE 754 binary64 (CPU only).
    F64 "f64" 8 Float,
    /// 32-bit signed integer.
    I32 "i32" 4 Signed,
    /// 32-bit unsigned integer.
    U32 "u32" 4 Unsigned,
    /// 64-bit signed integer (CPU; narrowed on GPU executors when every value fits).
    I64 "i64" 8 Signed,
    /// 16-bit signed integer.
    I16 "i16" 2 Signed,
    /// 8-bit signed integer.
    I8 "i8" 1 Signed,
    /// 8-bit unsigned integer; also the storage of quantized weight blocks.
    U8 "u8" 1 Unsigned,
    /// Boolean, stored as one byte, 0 or 1.
    Bool "bool" 1 Bool,
}

impl DType {
    /// The floats: `F32 F16 BF16 F64`.
    pub const FLOATS: &'static [DType] = &[DType::F32, DType::F16, DType::BF16, DType::F64];
    /// The integers: `I32 U32 I64 I16 I8 U8`.
    pub const INTS: &'static [DType] = &[
        DType::I32,
        DType::U32,
        DType::I64,
        DType::I16,
        DType::I8,
        DType::U8,
    ];
    /// Floats and integers: everything but `Bool`.
    pub const NUMBERS: &'static [DType] = &[
        DType::F32,
        DType::F16,
        DType::BF16,
        DType::F64,
        DType::I32,
        DType::U32,
        DType::I64,
        DType::I16,
        DType::I8,
        DType::U8,
    ];

    /// The dtype with this text form name, if any.
    pub fn from_name(name: &str) -> Option<DType> {
        Self::ALL.iter().copied().find(|d| d.name() == name)
    }

    /// True for `F32 F16 BF16 F64`.
    pub const fn is_float(self) -> bool {
        matches!(self.class(), DTypeClass::Float)
    }

    /// True for signed and unsigned integers, false for floats and `Bool`.
    pub const fn is_int(self) -> bool {
        matches!(self.class(), DTypeClass::Signed | DTypeClass::Unsigned)
    }

    /// The minimum and maximum of an integer or `Bool` dtype; `None` for floats.
    pub const fn int_range(self) -> Option<(i64, i64)> {
        match self {
            DType::I16 => Some((i16::MIN as i64, i16::MAX as i64)),
            DType::I8 => Some((i8::MIN as i64, i8::MAX as i64)),
            DType::U8 => Some((0, u8::MAX as i64)),
            DType::I32 => Some((i32::MIN as i64, i32::MAX as i64)),
            DType::U32 => Some((0, u32::MAX as i64)),
            DType::I64 => Some((i64::MIN, i64::MAX)),
            DType::Bool => Some((0, 1)),
            DType::F32 | DType::F16 | DType::BF16 | DType::F64 => None,
        }
    }

    /// Rounds to the nearest value of this float dtype, ties to even.
    pub fn round_f64(self, x: f64) -> f64 {
        match self {
            DType::F32 => f64::from(x as f32),
            DType::F16 => f16_from_f64(x).to_f64(),
            DType::BF16 => bf16_from_f64(x).to_f64(),
            DType::F64
            | DType::I32
            | DType::U32
            | DType::I64
            | DType::I16
            | DType::I8
            | DType::U8
            | DType::Bool => x,
        }
    }

    /// Reduces an integer modulo a power of two to the width of this dtype, as two's complement
    /// arithmetic does. `Bool` normalizes to 0 or 1, and floats return the number unchanged.
    pub const fn wrap_i64(self, x: i64) -> i64 {
        match self {
            DType::I16 => x as i16 as i64,
            DType::I8 => x as i8 as i64,
            DType::U8 => x as u8 as i64,
            DType::I32 => x as i32 as i64,
            DType::U32 => x as u32 as i64,
            DType::Bool => (x != 0) as i64,
            DType::I64 | DType::F32 | DType::F16 | DType::BF16 | DType::F64 => x,
        }
    }
}

/// Rounds `f64` to F16 once, to nearest even. (The conversion of `half` drops the low bits of the
/// `f64` first.)
pub(crate) fn f16_from_f64(x: f64) -> f16 {
    f16::from_f32(f32_to_odd(x))
}

/// Rounds `f64` to BF16 once, to nearest even.
pub(crate) fn bf16_from_f64(x: f64) -> bf16 {
    bf16::from_f32(f32_to_odd(x))
}

/// Rounds to odd: an inexact result has its last bit set. If a second rounding targets a type with
/// at least two bits less, it rounds as if from the exact value (Boldo and Melquiond, 2008).
fn f32_to_odd(x: f64) -> f32 {
    let y = x as f32;
    let back = f64::from(y);
    if back == x || x.is_nan() || y.is_infinite() || y.to_bits() & 1 == 1 {
        return y;
    }
    let bits = y.to_bits();
    f32::from_bits(if back.abs() < x.abs() {
        bits + 1
    } else {
        bits.wrapping_sub(1)
    })
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A Rust type that stores one element of a [`DType`]. `Bool` has no Rust type here: its bytes are
/// read and written as `u8` through [`crate::Tensor::bytes`].
///
/// ```
/// use tercet_tensor::{DType, Element, Tensor, TensorError};
///
/// /// Applies `f` to every element.
/// fn map<T: Element>(tensor: &Tensor, f: impl Fn(T) -> T) -> Result<Tensor, TensorError> {
///     let mapped: Vec<T> = tensor.as_slice::<T>()?.iter().map(|x| f(*x)).collect();
///     Tensor::from_slice(tensor.shape(), &mapped)
/// }
/// let doubled = map::<i64>(&Tensor::from_slice(&[2], &[3i64, 4])?, |x| 2 * x)?;
/// assert_eq!((doubled.dtype(), doubled.to_i64s()), (DType::I64, vec![6, 8]));
/// # Ok::<(), TensorError>(())
/// ```
pub trait Element: bytemuck::Pod + Send + Sync + 'static {
    /// The dtype whose elements this type stores.
    const DTYPE: DType;
}

macro_rules! elements {
    ($($t:ty => $d:ident),* $(,)?) => { $(impl Element for $t { const DTYPE: DType = DType::$d; })* };
}
elements! { f32 => F32, f16 => F16, bf16 => BF16, f64 => F64, i32 => I32, u32 => U32, i64 => I64, i16 => I16, i8 => I8, u8 => U8 }

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for &d in DType::ALL {
            assert_eq!(DType::from_name(d.name()), Some(d));
        }
    }

    #[test]
    fn wrapping_is_twos_complement() {
        assert_eq!(DType::I8.wrap_i64(128), -128);
        assert_eq!(DType::I16.wrap_i64(-32769), 32767);
        assert_eq!(DType::U32.wrap_i64(-1), u32::MAX as i64);
        assert_eq!(DType::Bool.wrap_i64(7), 1);
    }

    #[test]
    fn f16_rounds_once_from_f64() {
        // 1 + 2^-11 + 2^-40 is above the tie; rounding through f32 first would lose the tail.
        let x = 1.0 + 2f64.powi(-11) + 2f64.powi(-40);
        assert_eq!(DType::F16.round_f64(x), 1.0 + 2f64.powi(-10));
    }
}

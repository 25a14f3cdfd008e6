//! The table of ONNX dtypes and their representations in Tercet.
//!
//! Dtypes that Tercet does not have are *narrow*. Values of narrow dtypes are stored in a larger
//! dtype, the carrier. Arithmetic on them is emulated to wrap, saturate and round as in the
//! original dtype (`emulated_dtypes`).

use tercet_ir::DType;

/// An ONNX dtype: one that the graph has, or one emulated in a carrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnnxDType {
    Plain(DType),
    EmulatedDType(Narrow),
}

impl OnnxDType {
    /// The narrow dtype, if the graph does not have this dtype.
    pub(crate) fn emulated(self) -> Option<Narrow> {
        match self {
            OnnxDType::Plain(_) => None,
            OnnxDType::EmulatedDType(narrow) => Some(narrow),
        }
    }
}

impl std::fmt::Display for OnnxDType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            OnnxDType::Plain(dtype) => write!(f, "{dtype}"),
            OnnxDType::EmulatedDType(narrow) => f.write_str(narrow.name()),
        }
    }
}

/// A dtype that the graph does not have.
///
/// ```
/// use tercet_onnx::internals::Narrow;
/// assert_eq!(Narrow::U4.carrier(), tercet_ir::DType::U8);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Narrow {
    /// Unsigned integers of 16 bits.
    U16,
    /// Each number is stored as the I64 with the same bits, which is equal modulo 2^64.
    U64,
    /// Unsigned integers of 4 bits.
    U4,
    /// Signed integers of 4 bits.
    I4,
    /// Unsigned integers of 2 bits.
    U2,
    /// Signed integers of 2 bits.
    I2,
    /// Floats with 4 bits of exponent and 3 of mantissa, without infinities.
    E4M3FN,
    /// As `E4M3FN`, without a negative zero.
    E4M3FNUZ,
    /// Floats with 5 bits of exponent and 2 of mantissa.
    E5M2,
    /// As `E5M2`, without infinities and a negative zero.
    E5M2FNUZ,
    /// Floats with 2 bits of exponent and 1 of mantissa, without infinities and NaN.
    E2M1,
    /// Strings, stored as indices into the model's string table (`strings`).
    Text,
}

/// A small float format: sign, exponent, mantissa. An element with exponent and mantissa 0 is zero,
/// unless `special` differs.
///
/// ```
/// use tercet_onnx::internals::{Minifloat, Narrow};
/// let format: Minifloat = Narrow::E5M2.float().expect("a float");
/// assert_eq!((format.exponent_bits, format.mantissa_bits), (5, 2));
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Minifloat {
    /// The number of bits of the exponent.
    pub exponent_bits: u32,
    /// The number of bits of the mantissa.
    pub mantissa_bits: u32,
    /// The exponent of the smallest normal number.
    pub(crate) min_exponent: i32,
    /// The largest finite number.
    pub greatest: f64,
    /// The bit patterns that encode infinities and NaN.
    pub special: MinifloatSpecials,
}

/// The bit patterns of a small float format that encode infinities and NaN.
///
/// ```
/// use tercet_onnx::internals::{MinifloatSpecials, Narrow};
/// let format = Narrow::E5M2.float().expect("a float");
/// assert_eq!(format.special, MinifloatSpecials::Ieee);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MinifloatSpecials {
    /// A bit pattern of ones, apart from the sign, is NaN. There are no infinities.
    OnesAreNan,
    /// As IEEE 754: the maximum exponent is infinity with mantissa 0, otherwise NaN.
    Ieee,
    /// The bit pattern of -0 is NaN. There are no infinities.
    MinusZeroIsNan,
    /// Every bit pattern is a finite number.
    None,
}

impl Narrow {
    /// The graph dtype that stores the values.
    pub fn carrier(self) -> DType {
        match self {
            Narrow::U16 => DType::I32,
            Narrow::U64 | Narrow::Text => DType::I64,
            Narrow::U4 | Narrow::U2 => DType::U8,
            Narrow::I4 | Narrow::I2 => DType::I8,
            Narrow::E4M3FN | Narrow::E4M3FNUZ | Narrow::E5M2 | Narrow::E5M2FNUZ | Narrow::E2M1 => {
                DType::F32
            }
        }
    }

    /// Bits per element in a file.
    pub(crate) fn bits(self) -> usize {
        match self {
            Narrow::U16 => 16,
            Narrow::U64 | Narrow::Text => 64,
            Narrow::U4 | Narrow::I4 | Narrow::E2M1 => 4,
            Narrow::U2 | Narrow::I2 => 2,
            Narrow::E4M3FN | Narrow::E4M3FNUZ | Narrow::E5M2 | Narrow::E5M2FNUZ => 8,
        }
    }

    /// The minimum and maximum of an integer dtype of at most 16 bits.
    pub(crate) fn int_range(self) -> Option<(i64, i64)> {
        match self {
            Narrow::U16 => Some((0, 65535)),
            Narrow::U4 => Some((0, 15)),
            Narrow::I4 => Some((-8, 7)),
            Narrow::U2 => Some((0, 3)),
            Narrow::I2 => Some((-2, 1)),
            Narrow::U64
            | Narrow::Text
            | Narrow::E4M3FN
            | Narrow::E4M3FNUZ
            | Narrow::E5M2
            | Narrow::E5M2FNUZ
            | Narrow::E2M1 => None,
        }
    }

    /// The format, if this is a float dtype.
    pub fn float(self) -> Option<Minifloat> {
        let format = |exponent_bits, mantissa_bits, min_exponent, greatest, special| Minifloat {
            exponent_bits,
            mantissa_bits,
            min_exponent,
            greatest,
            special,
        };
        match self {
            Narrow::E4M3FN => Some(format(4, 3, -6, 448.0, MinifloatSpecials::OnesAreNan)),
            Narrow::E4M3FNUZ => Some(format(4, 3, -7, 240.0, MinifloatSpecials::MinusZeroIsNan)),
            Narrow::E5M2 => Some(format(5, 2, -14, 57344.0, MinifloatSpecials::Ieee)),
            Narrow::E5M2FNUZ => Some(format(
                5,
                2,
                -15,
                57344.0,
                MinifloatSpecials::MinusZeroIsNan,
            )),
            Narrow::E2M1 => Some(format(2, 1, 0, 6.0, MinifloatSpecials::None)),
            Narrow::U16
            | Narrow::U64
            | Narrow::Text
            | Narrow::U4
            | Narrow::I4
            | Narrow::U2
            | Narrow::I2 => None,
        }
    }

    /// The ONNX name of the dtype.
    pub(crate) fn name(self) -> &'static str {
        let own = ELEM_TYPES
            .iter()
            .find(|e| e.2 == Some(OnnxDType::EmulatedDType(self)));
        own.map_or("", |e| e.1)
    }

    /// The value of an element's bit pattern.
    pub fn value(self, code: u64) -> f64 {
        if let Some(format) = self.float() {
            return format.value(code);
        }
        match self.int_range() {
            Some((least, _)) if least < 0 => {
                let unused = 64 - self.bits();
                (((code << unused) as i64) >> unused) as f64
            }
            Some(_) | None => code as f64,
        }
    }
}

impl Minifloat {
    fn value(self, code: u64) -> f64 {
        let (e, m) = (self.exponent_bits, self.mantissa_bits);
        let mantissa = code & ((1 << m) - 1);
        let exponent = (code >> m) & ((1 << e) - 1);
        let negative = (code >> (e + m)) & 1 == 1;
        let ones = exponent == (1 << e) - 1;
        let nan = match self.special {
            MinifloatSpecials::OnesAreNan => ones && mantissa == (1 << m) - 1,
            MinifloatSpecials::Ieee => ones && mantissa != 0,
            MinifloatSpecials::MinusZeroIsNan => negative && exponent == 0 && mantissa == 0,
            MinifloatSpecials::None => false,
        };
        let part = mantissa as f64 / f64::from(1u32 << m);
        let size = match exponent {
            _ if nan => f64::NAN,
            _ if ones && self.special == MinifloatSpecials::Ieee => f64::INFINITY,
            0 => part * 2f64.powi(self.min_exponent),
            n => (1.0 + part) * 2f64.powi(self.min_exponent + n as i32 - 1),
        };
        if negative { -size } else { size }
    }
}

/// The dtypes of `TensorProto.DataType`: number, name, and the representation if supported.
pub(crate) const ELEM_TYPES: &[(i32, &str, Option<OnnxDType>)] = &[
    (1, "float", Some(OnnxDType::Plain(DType::F32))),
    (2, "uint8", Some(OnnxDType::Plain(DType::U8))),
    (3, "int8", Some(OnnxDType::Plain(DType::I8))),
    (4, "uint16", Some(OnnxDType::EmulatedDType(Narrow::U16))),
    (5, "int16", Some(OnnxDType::Plain(DType::I16))),
    (6, "int32", Some(OnnxDType::Plain(DType::I32))),
    (7, "int64", Some(OnnxDType::Plain(DType::I64))),
    (8, "string", Some(OnnxDType::EmulatedDType(Narrow::Text))),
    (9, "bool", Some(OnnxDType::Plain(DType::Bool))),
    (10, "float16", Some(OnnxDType::Plain(DType::F16))),
    (11, "double", Some(OnnxDType::Plain(DType::F64))),
    (12, "uint32", Some(OnnxDType::Plain(DType::U32))),
    (13, "uint64", Some(OnnxDType::EmulatedDType(Narrow::U64))),
    (14, "complex64", None),
    (15, "complex128", None),
    (16, "bfloat16", Some(OnnxDType::Plain(DType::BF16))),
    (
        17,
        "float8e4m3fn",
        Some(OnnxDType::EmulatedDType(Narrow::E4M3FN)),
    ),
    (
        18,
        "float8e4m3fnuz",
        Some(OnnxDType::EmulatedDType(Narrow::E4M3FNUZ)),
    ),
    (
        19,
        "float8e5m2",
        Some(OnnxDType::EmulatedDType(Narrow::E5M2)),
    ),
    (
        20,
        "float8e5m2fnuz",
        Some(OnnxDType::EmulatedDType(Narrow::E5M2FNUZ)),
    ),
    (21, "uint4", Some(OnnxDType::EmulatedDType(Narrow::U4))),
    (22, "int4", Some(OnnxDType::EmulatedDType(Narrow::I4))),
    (
        23,
        "float4e2m1",
        Some(OnnxDType::EmulatedDType(Narrow::E2M1)),
    ),
    (24, "float8e8m0", None),
    (25, "uint2", Some(OnnxDType::EmulatedDType(Narrow::U2))),
    (26, "int2", Some(OnnxDType::EmulatedDType(Narrow::I2))),
];

/// The dtype of a `TensorProto.DataType` number, or the reason why it is unsupported.
pub(crate) fn elem(number: i64) -> Result<OnnxDType, String> {
    let known = ELEM_TYPES.iter().find(|(n, _, _)| i64::from(*n) == number);
    match known {
        Some((_, _, Some(elem))) => Ok(*elem),
        Some((_, name, None)) => Err(format!(
            "dtype {name} is not supported; cast it when exporting"
        )),
        None => Err(format!("{number} is not an ONNX dtype")),
    }
}

/// The graph dtype of a `TensorProto.DataType` number, or the reason why there is none.
pub(crate) fn dtype(number: i64) -> Result<DType, String> {
    match elem(number)? {
        OnnxDType::Plain(dtype) => Ok(dtype),
        OnnxDType::EmulatedDType(narrow) => Err(format!(
            "dtype {} is not supported here; cast it when exporting",
            narrow.name()
        )),
    }
}

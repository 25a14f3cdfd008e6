//! Dtypes of ONNX and what they are here, in one list.
//!
//! Dtypes that the graph does not have are *narrow*: values of them are held in a dtype that has room for all of them, their
//! carrier, and arithmetic on them is made to wrap, saturate and round as theirs does (`narrow`).

use tercet_ir::DType;

/// A dtype of ONNX: one of the graph, or one that is carried by another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnnxDType {
    Plain(DType),
    EmulatedDType(Narrow),
}

impl OnnxDType {
    /// The dtype, if it is one that the graph does not have.
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Narrow {
    U16,
    I16,
    /// Held by its bits, as the I64 that is equal modulo 2^64.
    U64,
    U4,
    I4,
    U2,
    I2,
    E4M3FN,
    E4M3FNUZ,
    E5M2,
    E5M2FNUZ,
    E2M1,
    /// Held as its place in the list of the model's strings (`strings`).
    Text,
}

/// A float of few bits: sign, exponent, mantissa, which are 0 alone where nothing else is said.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Minifloat {
    pub(crate) exponent_bits: u32,
    pub(crate) mantissa_bits: u32,
    /// The exponent of the least normal number.
    pub(crate) min_exponent: i32,
    pub(crate) greatest: f64,
    /// Which codes are no numbers.
    pub(crate) special: MinifloatSpecials,
}

/// What the codes of a minifloat mean that are no finite numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MinifloatSpecials {
    /// All ones beside the sign are NaN; no infinities.
    OnesAreNan,
    /// The greatest exponent is infinity, and with a mantissa NaN.
    Ieee,
    /// The code of -0 is NaN; no infinities.
    MinusZeroIsNan,
    /// Every code is a number.
    None,
}

impl Narrow {
    /// The dtype of the graph that values are held in.
    pub(crate) fn carrier(self) -> DType {
        match self {
            Narrow::U16 | Narrow::I16 => DType::I32,
            Narrow::U64 | Narrow::Text => DType::I64,
            Narrow::U4 | Narrow::U2 => DType::U8,
            Narrow::I4 | Narrow::I2 => DType::I8,
            Narrow::E4M3FN | Narrow::E4M3FNUZ | Narrow::E5M2 | Narrow::E5M2FNUZ | Narrow::E2M1 => {
                DType::F32
            }
        }
    }

    /// Bits of an element in a file.
    pub(crate) fn bits(self) -> usize {
        match self {
            Narrow::U16 | Narrow::I16 => 16,
            Narrow::U64 | Narrow::Text => 64,
            Narrow::U4 | Narrow::I4 | Narrow::E2M1 => 4,
            Narrow::U2 | Narrow::I2 => 2,
            Narrow::E4M3FN | Narrow::E4M3FNUZ | Narrow::E5M2 | Narrow::E5M2FNUZ => 8,
        }
    }

    /// The least and greatest value of an integer of at most 16 bits.
    pub(crate) fn int_range(self) -> Option<(i64, i64)> {
        match self {
            Narrow::U16 => Some((0, 65535)),
            Narrow::I16 => Some((-32768, 32767)),
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

    /// The format of a float.
    pub(crate) fn float(self) -> Option<Minifloat> {
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
            | Narrow::I16
            | Narrow::U64
            | Narrow::Text
            | Narrow::U4
            | Narrow::I4
            | Narrow::U2
            | Narrow::I2 => None,
        }
    }

    /// What it is called in ONNX.
    pub(crate) fn name(self) -> &'static str {
        let own = ELEM_TYPES
            .iter()
            .find(|e| e.2 == Some(OnnxDType::EmulatedDType(self)));
        own.map_or("", |e| e.1)
    }

    /// The value of the bits of an element.
    pub(crate) fn value(self, code: u64) -> f64 {
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

/// The dtypes of `TensorProto.DataType`: number, name, and the dtype here where there is one.
pub(crate) const ELEM_TYPES: &[(i32, &str, Option<OnnxDType>)] = &[
    (1, "float", Some(OnnxDType::Plain(DType::F32))),
    (2, "uint8", Some(OnnxDType::Plain(DType::U8))),
    (3, "int8", Some(OnnxDType::Plain(DType::I8))),
    (4, "uint16", Some(OnnxDType::EmulatedDType(Narrow::U16))),
    (5, "int16", Some(OnnxDType::EmulatedDType(Narrow::I16))),
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

/// What a number of `TensorProto.DataType` is, or why it is nothing.
pub(crate) fn elem(number: i64) -> Result<OnnxDType, String> {
    let known = ELEM_TYPES.iter().find(|(n, _, _)| i64::from(*n) == number);
    match known {
        Some((_, _, Some(elem))) => Ok(*elem),
        Some((_, name, None)) => Err(format!(
            "dtype {name} is not supported; cast it when exporting"
        )),
        None => Err(format!("{number} is no dtype of ONNX")),
    }
}

/// The dtype of the graph that a number of `TensorProto.DataType` is, or why there is none.
pub(crate) fn dtype(number: i64) -> Result<DType, String> {
    match elem(number)? {
        OnnxDType::Plain(dtype) => Ok(dtype),
        OnnxDType::EmulatedDType(narrow) => Err(format!(
            "dtype {} is not supported there; cast it when exporting",
            narrow.name()
        )),
    }
}

//! Text form syntax of tensors.

use tercet_tensor::{DType, Tensor, TensorType, Type};

use super::{AttrError, AttrLiteral, AttrValue, FloatAttr};

/// Maximum element count of tensors that print as numbers; larger ones print as hexadecimal bytes.
const SPELLED_ELEMENTS: usize = 64;

/// `dense(f32[2], [1.0, 2.0])`. Large tensors, and those whose NaN bits decimal numbers would lose,
/// print as `hex(f32[2], "0000803f00000040")`.
impl AttrValue for Tensor {
    fn kind() -> String {
        "tensor".to_string()
    }
    fn to_literal(&self) -> AttrLiteral {
        let ty = AttrLiteral::Type(Type::from(self.ty()));
        let values = self.to_f64s();
        if self.numel() > SPELLED_ELEMENTS || values.iter().any(|x| x.is_nan()) {
            let hex = self.bytes().iter().map(|b| format!("{b:02x}")).collect();
            return AttrLiteral::Call("hex".to_string(), vec![ty, AttrLiteral::Str(hex)]);
        }
        let items = match self.dtype().is_float() {
            true => values.into_iter().map(AttrLiteral::Float).collect(),
            false => self
                .to_i64s()
                .into_iter()
                .map(|i| AttrLiteral::Int(i.into()))
                .collect(),
        };
        AttrLiteral::Call("dense".to_string(), vec![ty, AttrLiteral::List(items)])
    }

    fn from_literal(l: &AttrLiteral) -> Result<Self, AttrError> {
        let expected = || AttrError::kind("dense(TYPE, [NUMBERS]) or hex(TYPE, \"BYTES\")", l);
        let AttrLiteral::Call(form, args) = l else {
            return Err(expected());
        };
        let [AttrLiteral::Type(ty), data] = args.as_slice() else {
            return Err(expected());
        };
        let shape = ty.shape.as_known().ok_or_else(expected)?;
        let ty = TensorType {
            dtype: ty.dtype,
            shape,
        };
        let bad = |e: crate::TensorError| AttrError::kind(e.to_string(), l);
        match (form.as_str(), data) {
            ("dense", AttrLiteral::List(items)) if ty.dtype.is_float() => {
                let values: Result<Vec<FloatAttr>, _> =
                    items.iter().map(FloatAttr::from_literal).collect();
                let values: Vec<f64> = values?.into_iter().map(|r| r.0).collect();
                Tensor::from_f64s(ty, &values).map_err(bad)
            }
            ("dense", AttrLiteral::List(items)) => {
                let value = |item| parse_integer(ty.dtype, item);
                let values: Result<Vec<i64>, _> = items.iter().map(value).collect();
                Tensor::from_i64s(ty, &values?).map_err(bad)
            }
            ("hex", AttrLiteral::Str(hex)) => {
                Tensor::from_bytes(ty, &parse_hex(hex).ok_or_else(expected)?).map_err(bad)
            }
            _ => Err(expected()),
        }
    }
}

/// Parses an element of an integer or boolean tensor.
fn parse_integer(dtype: DType, l: &AttrLiteral) -> Result<i64, AttrError> {
    let (least, most) = match dtype {
        DType::Bool => {
            let truth = bool::from_literal(l).ok().map(i64::from);
            let number = || i64::from_literal(l).ok().filter(|i| (0..2).contains(i));
            return truth
                .or_else(number)
                .ok_or_else(|| AttrError::kind("true or false, or 1 or 0", l));
        }
        DType::I32 => (i32::MIN.into(), i32::MAX.into()),
        DType::U32 => (0, u32::MAX.into()),
        DType::I16 => (i16::MIN.into(), i16::MAX.into()),
        DType::I8 => (i8::MIN.into(), i8::MAX.into()),
        DType::U8 => (0, u8::MAX.into()),
        DType::I64 | DType::F32 | DType::F16 | DType::BF16 | DType::F64 => (i64::MIN, i64::MAX),
    };
    let value = i64::from_literal(l).ok();
    value
        .filter(|i| (least..=most).contains(i))
        .ok_or_else(|| AttrError::kind(format!("an integer that fits {dtype}"), l))
}

fn parse_hex(hex: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> = hex
        .chars()
        .map(|c| c.to_digit(16).map(|d| d as u8))
        .collect();
    let digits = digits?;
    let pairs = digits.chunks_exact(2);
    pairs
        .remainder()
        .is_empty()
        .then(|| pairs.map(|p| p[0] << 4 | p[1]).collect())
}

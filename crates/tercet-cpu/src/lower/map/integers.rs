//! Integer steps on 64-bit registers, with vectorizable loops for the operations that are common in
//! quantized graphs.

use tercet_ir::DType;
use tercet_ir::scalar::{BinaryFn, ScalarOp};

use super::body::{MapBodyStep, MapRegisterClass};
use super::step::MapStepOperands;

/// Runs a step that is a sum, a product or a conversion of integers over one block. Returns false
/// for other steps.
pub(super) fn run_step(step: &MapBodyStep, x: &MapStepOperands<'_>, out: &mut [i64]) -> bool {
    match (&step.op, x.args.len()) {
        (ScalarOp::Binary(f), 2) => binary(*f, step.dtype, [x.get(0), x.get(1)], out),
        (ScalarOp::Cast(_), 1) => match x.class(0) {
            MapRegisterClass::F32 => from_floats(step.dtype, x.get(0), out),
            MapRegisterClass::Int => from_integers(step.dtype, x.get(0), out),
            MapRegisterClass::F64 | MapRegisterClass::Bool => false,
        },
        (_, _) => false,
    }
}

fn binary(f: BinaryFn, dtype: DType, [a, b]: [&[i64]; 2], out: &mut [i64]) -> bool {
    fn each(out: &mut [i64], a: &[i64], b: &[i64], f: impl Fn(i64, i64) -> i64) {
        let pairs = out.iter_mut().zip(a).zip(b);
        pairs.for_each(|((out, a), b)| *out = f(*a, *b));
    }
    // Integer dtypes other than I32 wrap at another width and are not supported here.
    if dtype != DType::I32 {
        return false;
    }
    let wrapped = |x: i64| i64::from(x as i32);
    match f {
        BinaryFn::Add => each(out, a, b, |a, b| wrapped(a.wrapping_add(b))),
        BinaryFn::Sub => each(out, a, b, |a, b| wrapped(a.wrapping_sub(b))),
        BinaryFn::Mul => each(out, a, b, |a, b| wrapped(a.wrapping_mul(b))),
        BinaryFn::Max => each(out, a, b, i64::max),
        BinaryFn::Min => each(out, a, b, i64::min),
        _ => return false,
    }
    true
}

/// Converts toward zero and saturates to the range of the dtype; NaN becomes 0.
fn from_floats(dtype: DType, from: &[f32], out: &mut [i64]) -> bool {
    fn each(out: &mut [i64], from: &[f32], f: impl Fn(f32) -> i64) {
        out.iter_mut().zip(from).for_each(|(out, x)| *out = f(*x));
    }
    match dtype {
        DType::I32 => each(out, from, |x| i64::from(x as i32)),
        DType::U8 => each(out, from, |x| i64::from(x as u8)),
        DType::I8 => each(out, from, |x| i64::from(x as i8)),
        _ => return false,
    }
    true
}

fn from_integers(dtype: DType, from: &[i64], out: &mut [i64]) -> bool {
    fn each(out: &mut [i64], from: &[i64], f: impl Fn(i64) -> i64) {
        out.iter_mut().zip(from).for_each(|(out, x)| *out = f(*x));
    }
    match dtype {
        DType::I32 => each(out, from, |x| i64::from(x as i32)),
        DType::U8 => each(out, from, |x| i64::from(x as u8)),
        DType::I8 => each(out, from, |x| i64::from(x as i8)),
        DType::I64 => out.copy_from_slice(from),
        _ => return false,
    }
    true
}

/// Compares two blocks element by element.
pub(super) fn compare(a: &[i64], b: &[i64], out: &mut [u8], f: impl Fn(i64, i64) -> bool) {
    let pairs = out.iter_mut().zip(a).zip(b);
    pairs.for_each(|((out, a), b)| *out = u8::from(f(*a, *b)));
}

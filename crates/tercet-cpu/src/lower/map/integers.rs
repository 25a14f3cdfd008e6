//! Steps on 64-bit registers, which hold integers and F64, by vectorized functions.

use bytemuck::{cast_slice, cast_slice_mut};
use tercet_ir::DType;
use tercet_ir::scalar::ScalarOp;

use super::body::{MapBodyStep, MapRegisterClass};
use super::step::MapStepOperands;
use crate::kernels::{SimdLevel, wide};

/// Runs an integer step over one block. Returns false for steps without such a function.
pub(super) fn run_step(
    level: SimdLevel,
    step: &MapBodyStep,
    x: &MapStepOperands<'_>,
    out: &mut [i64],
) -> bool {
    match &step.op {
        ScalarOp::Unary(f) => wide::integer(level, *f, step.dtype, x.get(0), out),
        ScalarOp::Binary(f) => {
            return wide::integers(level, *f, step.dtype, x.get(0), x.get(1), out);
        }
        ScalarOp::Clamp { lo, hi } => {
            let Some((least, greatest)) = step.from.int_range() else {
                return false;
            };
            let bound = |x: f64| (x as i64).clamp(least, greatest);
            wide::clamp_integers(
                level,
                x.get(0),
                bound(lo.0.ceil()),
                bound(hi.0.floor()),
                out,
            );
        }
        ScalarOp::Where => {
            let (a, b): (&[i64], &[i64]) = (x.get(1), x.get(2));
            let out = cast_slice_mut(out);
            wide::select_words(level, x.get(0), cast_slice(a), cast_slice(b), out);
        }
        ScalarOp::Cast(_) => match x.class(0) {
            MapRegisterClass::F32 => wide::floats_to_integers(level, step.dtype, x.get(0), out),
            MapRegisterClass::Int => wide::wrapped(level, step.dtype, x.get(0), out),
            MapRegisterClass::Bool => {
                let from: &[u8] = x.get(0);
                out.iter_mut()
                    .zip(from)
                    .for_each(|(out, x)| *out = i64::from(*x));
            }
            MapRegisterClass::F64 => return false,
        },
        ScalarOp::Const(..) | ScalarOp::Compare(_) | ScalarOp::Fma => return false,
    }
    true
}

/// Runs an F64 step over one block. Returns false for steps without such a function.
pub(super) fn run_double_step(
    level: SimdLevel,
    step: &MapBodyStep,
    x: &MapStepOperands<'_>,
    out: &mut [f64],
) -> bool {
    match &step.op {
        ScalarOp::Unary(f) => wide::double(level, *f, x.get(0), out),
        ScalarOp::Binary(f) => return wide::doubles(level, *f, x.get(0), x.get(1), out),
        ScalarOp::Where => {
            let (a, b): (&[f64], &[f64]) = (x.get(1), x.get(2));
            let out = cast_slice_mut(out);
            wide::select_words(level, x.get(0), cast_slice(a), cast_slice(b), out);
        }
        ScalarOp::Cast(_) => match x.class(0) {
            MapRegisterClass::F32 => wide::floats_to_doubles(level, x.get(0), out),
            MapRegisterClass::Int => wide::integers_to_doubles(level, x.get(0), out),
            MapRegisterClass::F64 => out.copy_from_slice(x.get(0)),
            MapRegisterClass::Bool => return false,
        },
        ScalarOp::Const(..) | ScalarOp::Compare(_) | ScalarOp::Fma | ScalarOp::Clamp { .. } => {
            return false;
        }
    }
    true
}

/// Runs a step from 64-bit registers, or a selection of booleans, to booleans. Returns false for others.
pub(super) fn run_predicate(
    level: SimdLevel,
    step: &MapBodyStep,
    x: &MapStepOperands<'_>,
    out: &mut [u8],
) -> bool {
    match (&step.op, x.class(0)) {
        (ScalarOp::Compare(f), MapRegisterClass::Int) => {
            wide::compare_integers(level, *f, x.get(0), x.get(1), out);
        }
        (ScalarOp::Compare(f), MapRegisterClass::F64) => {
            wide::compare_doubles(level, *f, x.get(0), x.get(1), out);
        }
        (ScalarOp::Compare(f), MapRegisterClass::Bool) => {
            wide::compare_bytes(level, *f, x.get(0), x.get(1), out);
        }
        (ScalarOp::Cast(DType::Bool), MapRegisterClass::F32) => {
            wide::nonzero_floats(level, x.get(0), out);
        }
        (ScalarOp::Cast(DType::Bool), MapRegisterClass::Int) => {
            wide::nonzero_integers(level, x.get(0), out);
        }
        (ScalarOp::Where, _) => wide::select_bytes(level, x.get(0), x.get(1), x.get(2), out),
        (_, _) => return false,
    }
    true
}

//! Range analysis: finds integer maps that f32 computes exactly.
//!
//! Dequantization and quantization consist of integer maps that f32 computes exactly.
//! Dequantization subtracts a zero point from bytes and converts to float; quantization rounds and
//! clamps floats and converts to bytes. Ranges follow from the dtypes of the operands, from
//! constants and from clamps.

use tercet_ir::DType;
use tercet_ir::ops::{Map, MapArg, MapStep};
use tercet_ir::scalar::{BinaryFn, ScalarOp, UnaryFn};

use super::chain;

/// Bound of integers `-LIMIT..=LIMIT` that [`crate::kernels::convert::integral_to_i32`] converts
/// exactly.
const LIMIT: f64 = 4_194_304.0;

/// Range of the values of an operand or a step, without NaN; `None` if unknown.
type ValueRange = Option<(f64, f64)>;

/// Maximum magnitude that a map may assume for a single-element I32 operand, such as a zero point.
/// Each run checks that the value of this operand is within the limit.
pub(super) const SMALL: i32 = 1 << 16;

/// True if every value of a map can be computed in f32, integers exactly, and no result is boolean.
/// An I32 operand that is only converted to F32 counts as a float. An operand in `small` is assumed
/// to be within [`SMALL`].
pub(super) fn is_exact_in_f32(
    map: &Map,
    inputs: &[DType],
    dtypes: &[DType],
    small: &[usize],
) -> bool {
    let of_input = |(i, dtype): (usize, &DType)| match small.contains(&i) {
        true => Some((f64::from(-SMALL), f64::from(SMALL))),
        false => range_of(*dtype),
    };
    let of_inputs: Vec<ValueRange> = inputs.iter().enumerate().map(of_input).collect();
    for (i, dtype) in inputs.iter().enumerate() {
        let known = match dtype {
            DType::F32 | DType::U8 | DType::I8 | DType::I16 => true,
            DType::I32 if small.contains(&i) => true,
            DType::I32 => map.body.iter().all(|step| {
                let reads = step.args.contains(&MapArg::Input(i));
                !reads || step.op == ScalarOp::Cast(DType::F32)
            }),
            DType::F16 | DType::BF16 | DType::F64 | DType::U32 | DType::I64 | DType::Bool => false,
        };
        if !known {
            return false;
        }
    }
    if map.results.iter().any(|&s| dtypes[s] == DType::Bool) {
        return false;
    }
    let mut done: Vec<ValueRange> = Vec::with_capacity(map.body.len());
    for (step, dtype) in map.body.iter().zip(dtypes) {
        let of = |arg: &MapArg| match *arg {
            MapArg::Input(i) => (of_inputs[i], inputs[i]),
            MapArg::Step(s) => (done[s], dtypes[s]),
        };
        let args: Vec<(ValueRange, DType)> = step.args.iter().map(of).collect();
        let range = match dtype {
            DType::F32 => match chain::supports(&step.op) {
                true => float_range(step, &args),
                false => return false,
            },
            DType::U8 | DType::I8 | DType::I16 | DType::I32 => {
                match integer_range(step, *dtype, &args) {
                    Some(range) => Some(range),
                    None => return false,
                }
            }
            // Booleans are represented as the floats 0 and 1; only `select` steps may read them.
            DType::Bool
                if chain::supports_predicate(&step.op)
                    && args.iter().all(|a| a.1 == DType::F32) =>
            {
                None
            }
            DType::F16 | DType::BF16 | DType::F64 | DType::U32 | DType::I64 | DType::Bool => {
                return false;
            }
        };
        done.push(range);
    }
    true
}

/// Removes integer conversions that do not change the float value, and returns the map with its
/// step dtypes. [`is_exact_in_f32`] must have accepted the map.
pub(super) fn without_copies(map: &Map, inputs: &[DType], dtypes: &[DType]) -> (Map, Vec<DType>) {
    let dtype = |arg: &MapArg| match *arg {
        MapArg::Input(i) => inputs[i],
        MapArg::Step(s) => dtypes[s],
    };
    let is_copy = |s: usize, step: &MapStep| {
        let bounded = |other: &MapStep| {
            // The bounds of a clamp are rounded to the dtype of its operand.
            matches!(other.op, ScalarOp::Clamp { .. }) && other.args.contains(&MapArg::Step(s))
        };
        matches!(step.op, ScalarOp::Cast(_))
            && dtype(&step.args[0]).int_range().is_some()
            && !map.results.contains(&s)
            && !map.body.iter().any(bounded)
    };
    // Replacement of each step.
    let mut stands: Vec<MapArg> = Vec::with_capacity(dtypes.len());
    let (mut body, mut left) = (Vec::new(), Vec::new());
    for (s, step) in map.body.iter().enumerate() {
        let mut step = step.clone();
        let copy = is_copy(s, &step);
        for arg in &mut step.args {
            if let MapArg::Step(of) = *arg {
                *arg = stands[of];
            }
        }
        if copy {
            stands.push(step.args[0]);
            continue;
        }
        stands.push(MapArg::Step(body.len()));
        body.push(step);
        left.push(dtypes[s]);
    }
    let results = map.results.iter().map(|&s| match stands[s] {
        MapArg::Step(s) => s,
        MapArg::Input(_) => unreachable!("invariant: results remain steps"),
    });
    let map = Map {
        results: results.collect(),
        body,
        ..map.clone()
    };
    (map, left)
}

fn range_of(dtype: DType) -> ValueRange {
    match dtype {
        DType::U8 | DType::I8 | DType::I16 => {
            let (lo, hi) = dtype.int_range()?;
            Some((lo as f64, hi as f64))
        }
        _ => None,
    }
}

fn float_range(step: &MapStep, args: &[(ValueRange, DType)]) -> ValueRange {
    match (&step.op, args) {
        (ScalarOp::Clamp { lo, hi }, _) => Some((lo.0, hi.0)),
        (ScalarOp::Cast(_), &[(range, _)]) => range,
        (ScalarOp::Unary(UnaryFn::Round | UnaryFn::Trunc), &[(range, _)]) => {
            range.map(|(lo, hi)| (lo.floor(), hi.ceil()))
        }
        (_, _) => None,
    }
}

/// Range of an integer step that f32 computes exactly.
fn integer_range(step: &MapStep, dtype: DType, args: &[(ValueRange, DType)]) -> ValueRange {
    let (lo, hi) = match (&step.op, args) {
        (ScalarOp::Const(_, v), _) if v.0.fract() == 0.0 => (v.0, v.0),
        // Conversion rounds toward zero; NaN becomes 0.
        (ScalarOp::Cast(_), &[(Some((lo, hi)), _)]) => (lo.trunc().min(0.0), hi.trunc().max(0.0)),
        (ScalarOp::Binary(BinaryFn::Add), &[(Some(a), _), (Some(b), _)]) => (a.0 + b.0, a.1 + b.1),
        (ScalarOp::Binary(BinaryFn::Sub), &[(Some(a), _), (Some(b), _)]) => (a.0 - b.1, a.1 - b.0),
        (_, _) => return None,
    };
    let (least, greatest) = dtype.int_range()?;
    let holds = lo >= (least as f64).max(-LIMIT) && hi <= (greatest as f64).min(LIMIT);
    holds.then_some((lo, hi))
}

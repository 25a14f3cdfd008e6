//! Quantized addition (QLinearAdd): maps that dequantize two 8-bit operands, add them, and quantize
//! the sum.

use tercet_ir::ops::{Map, MapArg, MapStep};
use tercet_ir::scalar::{BinaryFn, Scalar, ScalarOp, UnaryFn};
use tercet_ir::{DType, EvalError, Graph, Node};

use super::{TASK, byte_lut, integer_range};
use crate::args::KernelArgs;
use crate::kernels::SimdLevel;
use crate::kernels::int8_add::{Int8Add, Int8AddEpilogue, int8_add};
use crate::lower::LoweredNode;
use crate::lower::elem::parts;

/// Maximum scale of an operand, so that the sum of two dequantized bytes stays far below infinity.
const MAX_SCALE: f32 = 1e30;

/// Mask of the operands that a value depends on, one bit per operand: both operands.
const BOTH: u8 = 3;

/// Lowers a map that is a quantized addition; `None` for other maps.
pub(super) fn lower(
    graph: &Graph,
    node: &Node,
    map: &Map,
    inputs: &[DType],
    dtypes: &[DType],
) -> Option<LoweredNode> {
    let &[a @ (DType::U8 | DType::I8), b] = inputs else {
        return None;
    };
    let out = &node.outputs[0];
    let same = |i: usize| {
        map.inputs[i].is_identity(out.rank()) && graph.ty(node.inputs[i]).shape == out.shape
    };
    if a != b || !same(0) || !same(1) || !integer_range::is_exact_in_f32(map, inputs, dtypes, &[]) {
        return None;
    }
    let sum = recognize(map, a, dtypes)?;
    let level = SimdLevel::detect();
    let run = move |args: &mut KernelArgs<'_>| -> Result<(), EvalError> {
        let (a, b) = (args.ins[0].dense_bytes(), args.ins[1].dense_bytes());
        parts(args.parallel, args.outs[0].bytes, TASK, |i, y| {
            let own = i * TASK..i * TASK + y.len();
            int8_add(level, &sum, &a[own.clone()], &b[own], y);
        });
        Ok(())
    };
    Some(LoweredNode::new(2, run))
}

/// Recognizes a quantized addition in a map whose integers are known to be small.
fn recognize(map: &Map, from: DType, dtypes: &[DType]) -> Option<Int8Add> {
    let mut depends: Vec<u8> = Vec::with_capacity(map.body.len());
    for step in &map.body {
        let of = |arg: &MapArg| match *arg {
            MapArg::Input(i) => 1 << i,
            MapArg::Step(s) => depends[s],
        };
        let own = step.args.iter().map(of).fold(0, |all, one| all | one);
        depends.push(own);
    }
    let last = map.body.len().checked_sub(1)?;
    let meet = depends.iter().position(|d| *d == BOTH)?;
    let MapStep { op, args } = &map.body[meet];
    let (&[MapArg::Step(a), MapArg::Step(b)], ScalarOp::Binary(BinaryFn::Add)) =
        (args.as_slice(), op)
    else {
        return None;
    };
    if map.results != [last] || dtypes[meet] != DType::F32 || depends[a] == depends[b] {
        return None;
    }
    // Float addition is commutative.
    let [a, b] = if depends[a] == 1 { [a, b] } else { [b, a] };
    let values = byte_lut::all_values(map, from, dtypes);
    let constant = |s: usize| (depends[s] == 0).then(|| values[0][s]);
    let (mut actions, mut before) = (Vec::new(), meet);
    for (s, step) in map.body.iter().enumerate().skip(meet + 1) {
        if depends[s] == 0 {
            continue;
        }
        // Conversions to integers are omitted, which is valid only if the values are integers
        // already.
        if dtypes[s].int_range().is_some() && !is_whole(&actions) {
            return None;
        }
        actions.extend(step_actions(step, dtypes[s], before, &constant)?);
        before = s;
    }
    let signed = |dtype: DType| match dtype {
        DType::U8 => Some(false),
        DType::I8 => Some(true),
        _ => None,
    };
    let linear = |s: usize| {
        let number = |byte: usize| values[byte][s].as_f64() as f32;
        linear(signed(from)?, number)
    };
    Some(Int8Add {
        signed: signed(from)?,
        operands: [linear(a)?, linear(b)?],
        actions,
        signed_result: signed(dtypes[last])?,
    })
}

/// True if these steps of the epilogue turn every value into an integer.
fn is_whole(actions: &[Int8AddEpilogue]) -> bool {
    let keeps = |action: &Int8AddEpilogue| match action {
        Int8AddEpilogue::Add(by) | Int8AddEpilogue::Max(by) | Int8AddEpilogue::Min(by) => {
            by.fract() == 0.0
        }
        Int8AddEpilogue::Mul(_) | Int8AddEpilogue::Div(_) | Int8AddEpilogue::Round => false,
    };
    let rounded = actions
        .iter()
        .rposition(|action| *action == Int8AddEpilogue::Round);
    rounded.is_some_and(|at| actions[at + 1..].iter().all(keeps))
}

/// Epilogue steps that compute the value of a map step from the value of the step `before`.
fn step_actions(
    step: &MapStep,
    dtype: DType,
    before: usize,
    constant: &dyn Fn(usize) -> Option<Scalar>,
) -> Option<Vec<Int8AddEpilogue>> {
    let number = |value: f64| {
        let value = value as f32;
        value.is_finite().then_some(value)
    };
    let is_before = |arg: &MapArg| *arg == MapArg::Step(before);
    let by = |arg: &MapArg| match *arg {
        MapArg::Step(s) => number(constant(s)?.as_f64()),
        MapArg::Input(_) => None,
    };
    match (&step.op, step.args.as_slice()) {
        (ScalarOp::Unary(UnaryFn::Relu), [x]) if is_before(x) => {
            Some(vec![Int8AddEpilogue::Max(0.0)])
        }
        (ScalarOp::Unary(UnaryFn::Round), [x]) if is_before(x) && dtype == DType::F32 => {
            Some(vec![Int8AddEpilogue::Round])
        }
        (ScalarOp::Cast(_), [x]) if is_before(x) => Some(Vec::new()),
        (ScalarOp::Clamp { lo, hi }, [x]) if is_before(x) => {
            let [lo, hi] = [number(lo.0)?, number(hi.0)?];
            Some(vec![Int8AddEpilogue::Max(lo), Int8AddEpilogue::Min(hi)])
        }
        (ScalarOp::Binary(f), [x, c]) if is_before(x) => {
            let c = by(c)?;
            Some(vec![match f {
                BinaryFn::Add => Int8AddEpilogue::Add(c),
                BinaryFn::Sub => Int8AddEpilogue::Add(-c),
                BinaryFn::Mul if c.abs() < MAX_SCALE => Int8AddEpilogue::Mul(c),
                BinaryFn::Div if c.abs() > 1.0 / MAX_SCALE => Int8AddEpilogue::Div(c),
                BinaryFn::Max => Int8AddEpilogue::Max(c),
                BinaryFn::Min => Int8AddEpilogue::Min(c),
                _ => return None,
            }])
        }
        (ScalarOp::Binary(BinaryFn::Add), [c, x]) if is_before(x) => {
            Some(vec![Int8AddEpilogue::Add(by(c)?)])
        }
        (_, _) => None,
    }
}

/// Zero point and scale, if every byte maps exactly to `(code - zero) scale`.
pub fn linear(signed: bool, number: impl Fn(usize) -> f32) -> Option<[f32; 2]> {
    let byte = |code: i32| usize::from(code as u8);
    let (least, greatest) = if signed { (-128, 127) } else { (0, 255) };
    let zero = (least..=greatest).find(|code| number(byte(*code)) == 0.0)?;
    let scale = match zero < greatest {
        true => number(byte(zero + 1)),
        false => -number(byte(zero - 1)),
    };
    let is = |code: i32| {
        let want = (code as f32 - zero as f32) * scale;
        number(byte(code)).to_bits() == want.to_bits()
    };
    let small = scale.abs() < MAX_SCALE && scale != 0.0;
    (small && (least..=greatest).all(is)).then_some([zero as f32, scale])
}

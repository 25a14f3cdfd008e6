//! Runs one step over one block: vector functions for f32 registers, otherwise the IR's scalar
//! functions per element.

use bytemuck::{Pod, cast_slice, cast_slice_mut};
use tercet_ir::DType;
use tercet_ir::scalar::{BinaryFn, CompareFn, Scalar, ScalarOp, UnaryFn};

use super::body::{MapBodyStep, MapRegister, MapRegisterClass, MapStepArg, MapStepDst};
use super::geometry::MapBlock;
use super::load::{MapOperandSource, round};
use super::{BLOCK, MapTaskArgs, integers};
use crate::kernels::vmath::{self, VmathComparison};
use crate::kernels::wide;

/// Operands of a step for one block.
pub(super) struct MapStepOperands<'a> {
    job: &'a MapTaskArgs<'a>,
    sources: &'a [MapOperandSource],
    pub(super) args: &'a [MapStepArg],
    len: usize,
    /// Scratch memory before (`low`) and after (`high`) the register that the step writes.
    low: &'a [u8],
    high: &'a [u8],
    high_start: usize,
}

impl MapStepOperands<'_> {
    pub(super) fn get<T: Pod>(&self, at: usize) -> &[T] {
        let reg = match self.args[at] {
            MapStepArg::Reg(reg) => reg,
            MapStepArg::Input(i) => match self.sources[i] {
                MapOperandSource::Root(start) => {
                    return &self.job.ins[i].root_as()[start..start + self.len];
                }
                MapOperandSource::Reg => self.job.body.inputs[i].reg,
            },
        };
        cast_slice(self.reg(reg))
    }

    fn reg(&self, reg: MapRegister) -> &[u8] {
        let range = reg.range(self.len);
        match range.start < self.high_start {
            true => &self.low[range],
            false => &self.high[range.start - self.high_start..range.end - self.high_start],
        }
    }

    pub(super) fn class(&self, at: usize) -> MapRegisterClass {
        match self.args[at] {
            MapStepArg::Reg(reg) => reg.class,
            MapStepArg::Input(i) => self.job.body.inputs[i].reg.class,
        }
    }
}

/// Runs step `at` of the body.
pub(super) fn run(
    job: &MapTaskArgs<'_>,
    at: usize,
    block: &MapBlock,
    sources: &[MapOperandSource],
    outs: &mut [&mut [u8]],
    scratch: &mut [u8],
) {
    let step = &job.body.steps[at];
    let mut x = MapStepOperands {
        job,
        sources,
        args: &step.args,
        len: block.len,
        low: &[],
        high: &[],
        high_start: usize::MAX,
    };
    match step.dst {
        MapStepDst::Out(k) => {
            x.low = scratch;
            apply(step, &x, outs[k]);
        }
        MapStepDst::Reg(reg) => {
            // A uniform value that is read element by element fills its whole register, for blocks
            // of every length.
            let len = match (step.once, step.broadcast) {
                (true, true) => BLOCK,
                (true, false) => 1,
                (false, _) => block.len,
            };
            let range = reg.range(len);
            let (low, rest) = scratch.split_at_mut(range.start);
            let (own, high) = rest.split_at_mut(range.len());
            (x.low, x.high, x.high_start) = (low, high, range.end);
            if !step.once {
                return apply(step, &x, own);
            }
            x.len = 1;
            let mut known = reg.range(1).len();
            apply(step, &x, &mut own[..known]);
            while known < own.len() {
                let more = known.min(own.len() - known);
                own.copy_within(..more, known);
                known += more;
            }
        }
    }
}

fn apply(step: &MapBodyStep, x: &MapStepOperands<'_>, out: &mut [u8]) {
    match MapRegisterClass::for_dtype(step.dtype) {
        MapRegisterClass::F32 => {
            let out: &mut [f32] = cast_slice_mut(out);
            if floats(step, x, out) {
                return round(x.job.level, step.dtype, out);
            }
            scalars(step, x, out, |s| s.as_f64() as f32);
        }
        MapRegisterClass::F64 => {
            let out: &mut [f64] = cast_slice_mut(out);
            if !integers::run_double_step(x.job.level, step, x, out) {
                scalars(step, x, out, Scalar::as_f64);
            }
        }
        MapRegisterClass::Int => {
            let out: &mut [i64] = cast_slice_mut(out);
            if !integers::run_step(x.job.level, step, x, out) {
                scalars(step, x, out, Scalar::as_i64);
            }
        }
        MapRegisterClass::Bool => {
            if !truths(step, x, out) {
                scalars::<u8>(step, x, out, |s| u8::from(s.truth()));
            }
        }
    }
}

/// Vectorized functions from f32 registers to f32 registers. Returns false for other functions. The
/// caller rounds.
fn floats(step: &MapBodyStep, x: &MapStepOperands<'_>, out: &mut [f32]) -> bool {
    let level = x.job.level;
    match &step.op {
        ScalarOp::Unary(f) => return unary(x, *f, out),
        ScalarOp::Binary(f) => {
            let apply = match f {
                BinaryFn::Add => vmath::add,
                BinaryFn::Sub => vmath::sub,
                BinaryFn::Mul => vmath::mul,
                BinaryFn::Div => vmath::div,
                BinaryFn::Max => vmath::max,
                BinaryFn::Min => vmath::min,
                BinaryFn::Rem => |_, a: &[f32], b: &[f32], out: &mut [f32]| {
                    let pairs = out.iter_mut().zip(a).zip(b);
                    pairs.for_each(|((o, a), b)| *o = a % b);
                },
                BinaryFn::Pow => vmath::pow,
                BinaryFn::Atan2
                | BinaryFn::And
                | BinaryFn::Or
                | BinaryFn::Xor
                | BinaryFn::Shl
                | BinaryFn::Shr => return false,
            };
            apply(level, x.get(0), x.get(1), out);
        }
        ScalarOp::Where => vmath::select(level, x.get(0), x.get(1), x.get(2), out),
        // f32 has a fused multiply-add with one rounding; narrower floats use f64.
        ScalarOp::Fma if step.dtype == DType::F32 => {
            vmath::fma(level, x.get(0), x.get(1), x.get(2), out);
        }
        ScalarOp::Clamp { lo, hi } => {
            let bound = |b: f64| [step.from.round_f64(b) as f32; 64];
            let (lo, hi) = (bound(lo.0), bound(hi.0));
            let from: &[f32] = x.get(0);
            for (out, from) in out.chunks_mut(64).zip(from.chunks(64)) {
                let n = out.len();
                let mut raised = [0f32; 64];
                vmath::max(level, from, &lo[..n], &mut raised[..n]);
                vmath::min(level, &raised[..n], &hi[..n], out);
            }
        }
        ScalarOp::Cast(_) if x.class(0) == MapRegisterClass::F32 => out.copy_from_slice(x.get(0)),
        ScalarOp::Cast(_) if x.class(0) == MapRegisterClass::Bool => {
            let from: &[u8] = x.get(0);
            out.iter_mut()
                .zip(from)
                .for_each(|(o, &b)| *o = f32::from(b));
        }
        ScalarOp::Cast(_) if step.dtype == DType::F32 && x.class(0) == MapRegisterClass::Int => {
            wide::integers_to_floats(level, x.get(0), out);
        }
        ScalarOp::Cast(_) if step.dtype == DType::F32 && x.class(0) == MapRegisterClass::F64 => {
            wide::doubles_to_floats(level, x.get(0), out);
        }
        ScalarOp::Const(..) | ScalarOp::Compare(_) | ScalarOp::Fma | ScalarOp::Cast(_) => {
            return false;
        }
    }
    true
}

fn unary(x: &MapStepOperands<'_>, f: UnaryFn, out: &mut [f32]) -> bool {
    let Some(apply) = vmath::vectorized(f) else {
        return false;
    };
    apply(x.job.level, x.get(0), out);
    true
}

/// Converts a comparison of the IR to the type that the kernels use.
pub(super) fn comparison(f: CompareFn) -> VmathComparison {
    match f {
        CompareFn::Eq => VmathComparison::Eq,
        CompareFn::Ne => VmathComparison::Ne,
        CompareFn::Lt => VmathComparison::Lt,
        CompareFn::Le => VmathComparison::Le,
        CompareFn::Gt => VmathComparison::Gt,
        CompareFn::Ge => VmathComparison::Ge,
    }
}

/// Vectorized predicates of f32 registers. Returns false for other predicates.
fn truths(step: &MapBodyStep, x: &MapStepOperands<'_>, out: &mut [u8]) -> bool {
    match &step.op {
        ScalarOp::Compare(f) if x.class(0) == MapRegisterClass::F32 => {
            vmath::compare(x.job.level, comparison(*f), x.get(0), x.get(1), out);
        }
        ScalarOp::Unary(UnaryFn::IsNan) if x.class(0) == MapRegisterClass::F32 => {
            wide::not_numbers(x.job.level, x.get(0), out);
        }
        ScalarOp::Unary(UnaryFn::IsInf) if x.class(0) == MapRegisterClass::F32 => {
            wide::infinite(x.job.level, x.get(0), out);
        }
        ScalarOp::Unary(UnaryFn::Not) => {
            let from: &[u8] = x.get(0);
            out.iter_mut().zip(from).for_each(|(o, &b)| *o = b ^ 1);
        }
        ScalarOp::Binary(f @ (BinaryFn::And | BinaryFn::Or | BinaryFn::Xor)) => {
            let (a, b): (&[u8], &[u8]) = (x.get(0), x.get(1));
            let pairs = out.iter_mut().zip(a).zip(b);
            match f {
                BinaryFn::And => pairs.for_each(|((o, a), b)| *o = a & b),
                BinaryFn::Or => pairs.for_each(|((o, a), b)| *o = a | b),
                _ => pairs.for_each(|((o, a), b)| *o = a ^ b),
            }
        }
        ScalarOp::Compare(_) | ScalarOp::Where | ScalarOp::Cast(_) => {
            return integers::run_predicate(x.job.level, step, x, out);
        }
        ScalarOp::Const(..)
        | ScalarOp::Unary(_)
        | ScalarOp::Binary(_)
        | ScalarOp::Fma
        | ScalarOp::Clamp { .. } => return false,
    }
    true
}

/// Runs any step element by element with the IR's scalar function, which rounds to the step's
/// dtype.
fn scalars<U: Copy>(
    step: &MapBodyStep,
    x: &MapStepOperands<'_>,
    out: &mut [U],
    to: impl Fn(Scalar) -> U,
) {
    let mut args = [Scalar::I(0); 3];
    let n = step.args.len();
    if n == 0 {
        return out.fill(to(step.op.eval(step.from, step.dtype, &[])));
    }
    for (i, out) in out.iter_mut().enumerate() {
        for (a, arg) in args[..n].iter_mut().enumerate() {
            *arg = match x.class(a) {
                MapRegisterClass::F32 => Scalar::F(f64::from(x.get::<f32>(a)[i])),
                MapRegisterClass::F64 => Scalar::F(x.get::<f64>(a)[i]),
                MapRegisterClass::Int => Scalar::I(x.get::<i64>(a)[i]),
                MapRegisterClass::Bool => Scalar::I(i64::from(x.get::<u8>(a)[i])),
            };
        }
        *out = to(step.op.eval(step.from, step.dtype, &args[..n]));
    }
}

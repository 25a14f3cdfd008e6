//! Lowering of `RngUniform` and `RngNormal` (Philox per element, with the run counter from the
//! launch) and of `Philox`.

use tercet_ir::ops::Op;
use tercet_ir::random::UniformRange;
use tercet_ir::{CompileError, Node, OpKind};

use super::{Lowering, always, code, portable};
use crate::emit::LoweringCtx;
use crate::scalar::{PRELUDE, WgslHelper};
use tercet_program::SymInt;
use tercet_program::{ArgAccess, TypedKernel};

crate::params! {
    /// Parameter block of `rng_uniform.wgsl`.
    pub struct RngUniformParams {
        numel: U32,
        seed_low: U32,
        seed_high: U32,
        stream: U32,
        step_low: U32,
        step_high: U32,
        lo: F32,
        span: F32,
        last: F32,
        zero: U32,
    }
    /// Parameter block of `rng_normal.wgsl`.
    pub struct RngNormalParams {
        numel: U32,
        seed_low: U32,
        seed_high: U32,
        stream: U32,
        step_low: U32,
        step_high: U32,
        mean: F32,
        deviation: F32,
    }
    /// Parameter block of `rng_words.wgsl`.
    pub struct RngWordsParams {
        counters: U32,
    }
}

/// WGSL source of the Philox generator.
pub(super) const PHILOX: &str = portable!("philox.wgsl");

static UNIFORM: TypedKernel<RngUniformParams> = TypedKernel::wgsl(
    "rng_uniform",
    &[
        PRELUDE,
        WgslHelper::Wide.text(),
        PHILOX,
        portable!("rng_uniform.wgsl"),
    ],
    &[ArgAccess::Write],
    &["DTYPE"],
);

static NORMAL: TypedKernel<RngNormalParams> = TypedKernel::wgsl(
    "rng_normal",
    &[
        PRELUDE,
        WgslHelper::Wide.text(),
        PHILOX,
        portable!("rng_normal.wgsl"),
    ],
    &[ArgAccess::Write],
    &["DTYPE"],
);

static WORDS: TypedKernel<RngWordsParams> = TypedKernel::wgsl(
    "rng_words",
    &[
        PRELUDE,
        WgslHelper::Wide.text(),
        PHILOX,
        portable!("rng_words.wgsl"),
    ],
    &[ArgAccess::Read, ArgAccess::Read, ArgAccess::Write],
    &[],
);

/// Lowering of `RngUniform`, `RngNormal` and `Philox`.
pub(crate) static RANDOMS: Lowering = Lowering {
    name: "rng",
    ops: &[OpKind::RngUniform, OpKind::RngNormal, OpKind::Philox],
    kernels: &[&UNIFORM.def, &NORMAL.def, &WORDS.def],
    supports: always,
    lower,
};

/// The low and the high 32-bit word of a number.
pub(super) fn halves(n: u64) -> [SymInt; 2] {
    [SymInt::from(n as u32), SymInt::from((n >> 32) as u32)]
}

/// Lowers `Philox`: random words for given counters.
fn lower_words(e: &mut LoweringCtx<'_>, node: &Node) -> Result<(), CompileError> {
    let [counter, key] = [node.inputs[0], node.inputs[1]].map(|v| e.view(v));
    let (counter, key) = (e.dense(&counter)?, e.dense(&key)?);
    let y = e.result(0)?;
    let numel = e.numel(y.layout.shape());
    let counters = e.tape().ceil_div(numel, 4u32);
    let grid = e.grid_of(counters, 256);
    let args = [counter.slot, key.slot, y.slot];
    e.dispatch(&WORDS, &[], &args, &RngWordsParams { counters }, grid);
    Ok(())
}

fn lower(e: &mut LoweringCtx<'_>, node: &Node) -> Result<(), CompileError> {
    if matches!(node.op, Op::Philox(_)) {
        return lower_words(e, node);
    }
    let y = e.result(0)?;
    let numel = e.numel(y.layout.shape());
    let [step_low, step_high] = e.tape().step();
    let blocks = e.tape().ceil_div(numel, 4u32);
    let grid = e.grid_of(blocks, 256);
    let consts = [code(y.dtype)];
    match &node.op {
        Op::RngUniform(op) => {
            let range = UniformRange::new(op.dtype, op.lo.0, op.hi.0)
                .unwrap_or_else(|| unreachable!("invariant: the operator checked its range"));
            let [seed_low, seed_high] = e.tape().seed(op.seed);
            let params = RngUniformParams {
                numel,
                seed_low,
                seed_high,
                stream: op.stream.into(),
                step_low,
                step_high,
                lo: range.lo as f32,
                span: range.span as f32,
                last: range.last as f32,
                zero: SymInt::ZERO,
            };
            e.dispatch(&UNIFORM, &consts, &[y.slot], &params, grid);
        }
        Op::RngNormal(op) => {
            let [seed_low, seed_high] = e.tape().seed(op.seed);
            let params = RngNormalParams {
                numel,
                seed_low,
                seed_high,
                stream: op.stream.into(),
                step_low,
                step_high,
                mean: op.mean.0 as f32,
                deviation: op.std.0 as f32,
            };
            e.dispatch(&NORMAL, &consts, &[y.slot], &params, grid);
        }
        _ => unreachable!("invariant: a lowering receives only its own operators"),
    }
    Ok(())
}

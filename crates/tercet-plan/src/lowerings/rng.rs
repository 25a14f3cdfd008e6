//! `RngUniform` and `RngNormal`: Philox by element, the count of runs from the launch; and `Philox` itself.

use tercet_ir::ops::Op;
use tercet_ir::random::UniformRange;
use tercet_ir::{CompileError, Node, OpKind};

use super::{Family, always, code, portable};
use crate::emit::Emit;
use crate::kernel::{Access, Kernel};
use crate::num::Num;
use crate::scalar::{PRELUDE, Piece};

crate::params! {
    /// The block of `rng_uniform.wgsl`.
    pub struct UniformParams {
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
    /// The block of `rng_normal.wgsl`.
    pub struct NormalParams {
        numel: U32,
        seed_low: U32,
        seed_high: U32,
        stream: U32,
        step_low: U32,
        step_high: U32,
        mean: F32,
        deviation: F32,
    }
    /// The block of `rng_words.wgsl`.
    pub struct WordsParams {
        counters: U32,
    }
}

/// Philox and what it needs.
pub(super) const PHILOX: &str = portable!("philox.wgsl");

static UNIFORM: Kernel<UniformParams> = Kernel::wgsl(
    "rng_uniform",
    &[
        PRELUDE,
        Piece::Wide.text(),
        PHILOX,
        portable!("rng_uniform.wgsl"),
    ],
    &[Access::Write],
    &["DTYPE"],
);

static NORMAL: Kernel<NormalParams> = Kernel::wgsl(
    "rng_normal",
    &[
        PRELUDE,
        Piece::Wide.text(),
        PHILOX,
        portable!("rng_normal.wgsl"),
    ],
    &[Access::Write],
    &["DTYPE"],
);

static WORDS: Kernel<WordsParams> = Kernel::wgsl(
    "rng_words",
    &[
        PRELUDE,
        Piece::Wide.text(),
        PHILOX,
        portable!("rng_words.wgsl"),
    ],
    &[Access::Read, Access::Read, Access::Write],
    &[],
);

/// `RngUniform`, `RngNormal` and `Philox`.
pub(crate) static RANDOMS: Family = Family {
    name: "rng",
    ops: &[OpKind::RngUniform, OpKind::RngNormal, OpKind::Philox],
    kernels: &[&UNIFORM.def, &NORMAL.def, &WORDS.def],
    supports: always,
    lower,
};

/// The low and the high word.
pub(super) fn halves(n: u64) -> [Num; 2] {
    [Num::from(n as u32), Num::from((n >> 32) as u32)]
}

/// The words of given counters.
fn lower_words(e: &mut Emit<'_>, node: &Node) -> Result<(), CompileError> {
    let [counter, key] = [node.inputs[0], node.inputs[1]].map(|v| e.view(v));
    let (counter, key) = (e.dense(&counter)?, e.dense(&key)?);
    let y = e.result(0)?;
    let numel = e.numel(y.layout.shape());
    let counters = e.tape().ceil_div(numel, 4u32);
    let grid = e.grid_of(counters, 256);
    let args = [counter.slot, key.slot, y.slot];
    e.dispatch(&WORDS, &[], &args, &WordsParams { counters }, grid);
    Ok(())
}

fn lower(e: &mut Emit<'_>, node: &Node) -> Result<(), CompileError> {
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
            let params = UniformParams {
                numel,
                seed_low,
                seed_high,
                stream: op.stream.into(),
                step_low,
                step_high,
                lo: range.lo as f32,
                span: range.span as f32,
                last: range.last as f32,
                zero: Num::ZERO,
            };
            e.dispatch(&UNIFORM, &consts, &[y.slot], &params, grid);
        }
        Op::RngNormal(op) => {
            let [seed_low, seed_high] = e.tape().seed(op.seed);
            let params = NormalParams {
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
        _ => unreachable!("invariant: a family lowers its own operators"),
    }
    Ok(())
}

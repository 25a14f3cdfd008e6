//! Lowering of `Sample`: token ids drawn from logits.
//!
//! The CPU reference adds up `exp((logit - max) / temperature)` in f64, starting with the largest
//! logit. The kernels sort rows as for `TopK` and use fixed-point weights, so that sums are exact
//! in any order. A draw differs from the reference only if the random number is very close to the
//! border between two tokens. Very close means within about 2^-45 per logit, relative to a total
//! weight of at least 1.

use tercet_ir::ops::{Op, Sample};
use tercet_ir::{CompileError, Node, OpKind};

use super::arg_extreme::{self, ArgExtremeMode};
use super::rng::{PHILOX, halves};
use super::rows::RowLayout;
use super::top_k::{NanOrder, SortDirection, TopKCount, ordered};
use super::words::words;
use super::{Lowering, always, portable};
use crate::emit::{LoweringCtx, SlotView};
use crate::scalar::{PRELUDE, WgslHelper};
use tercet_program::SymInt;
use tercet_program::{ArgAccess, TypedKernel};

crate::params! {
    /// Parameter block of `sample_weights.wgsl`.
    pub struct SampleWeightsParams {
        rows: U32,
        kept: U32,
        blocks: U32,
        row_stride: U32,
        fraction: U32,
        c_low: U32,
        c_high: U32,
        c_exponent: I32,
    }
    /// Parameter block of `sample_draw.wgsl`.
    pub struct SampleDrawParams {
        rows: U32,
        kept: U32,
        blocks: U32,
        row_stride: U32,
        top_p_low: U32,
        top_p_high: U32,
        seed_low: U32,
        seed_high: U32,
        stream: U32,
        step_low: U32,
        step_high: U32,
    }
}

const WIDE64: &str = portable!("wide64.wgsl");

static WEIGHTS: TypedKernel<SampleWeightsParams> = TypedKernel::wgsl(
    "sample_weights",
    &[
        PRELUDE,
        WgslHelper::Wide.text(),
        WIDE64,
        portable!("sample_weights.wgsl"),
    ],
    &[ArgAccess::Read, ArgAccess::Write, ArgAccess::Write],
    &[],
);

static DRAW: TypedKernel<SampleDrawParams> = TypedKernel::wgsl(
    "sample_draw",
    &[
        PRELUDE,
        WgslHelper::Wide.text(),
        WIDE64,
        PHILOX,
        portable!("sample_draw.wgsl"),
    ],
    &[
        ArgAccess::Read,
        ArgAccess::Read,
        ArgAccess::Read,
        ArgAccess::Read,
        ArgAccess::Write,
    ],
    &[],
);

/// Lowering of `Sample`.
pub(crate) static SAMPLES: Lowering = Lowering {
    name: "sample",
    ops: &[OpKind::Sample],
    kernels: &[&WEIGHTS.def, &DRAW.def],
    supports: always,
    lower,
};

/// Number of token weights per block of `sample_weights.wgsl`.
const BLOCK: usize = 256;

/// Number and length of the rows of logits: in a run, and at most.
struct LogitRowLayout {
    rows: SymInt,
    rows_bound: usize,
    kept: TopKCount,
}

fn lower(e: &mut LoweringCtx<'_>, node: &Node) -> Result<(), CompileError> {
    let Op::Sample(op) = &node.op else {
        unreachable!("invariant: a lowering receives only its own operators")
    };
    let x = e.view(node.inputs[0]);
    let y = e.result(0)?;
    let axis = x.layout.shape().len() - 1;
    let shape = x.layout.shape();
    let (rows, vocab) = (e.numel(&shape[..axis]), e.num(&shape[axis]));
    let some_row = e.tape().min(rows, SymInt::ONE);
    let reason = "a row without logits cannot be sampled".to_string();
    e.check_less_equal(some_row, vocab, reason);
    if op.temperature.0 == 0.0 {
        let rows = RowLayout::new(e, &x, &[axis])?;
        let sought = ArgExtremeMode {
            is_min: false,
            nan_low: true,
        };
        return arg_extreme::emit(e, sought, &x, rows, &y);
    }
    let extreme = SortDirection {
        is_largest: true,
        nan: NanOrder::Low,
    };
    let mut rows_bound = 1usize;
    for dim in &shape[..axis] {
        rows_bound = rows_bound.saturating_mul(e.bound(dim)?);
    }
    let vocab_bound = e.bound(&shape[axis])?;
    let kept = match op.top_k {
        0 => TopKCount {
            count: vocab,
            bound: vocab_bound,
        },
        k => TopKCount {
            count: e
                .tape()
                .min(vocab, SymInt::Const(k.min(vocab_bound) as i64)),
            bound: k.min(vocab_bound),
        },
    };
    let rows = LogitRowLayout {
        rows,
        rows_bound,
        kept,
    };
    draw(e, op, &x, &y, &rows, extreme)
}

fn draw(
    e: &mut LoweringCtx<'_>,
    op: &Sample,
    x: &SlotView,
    y: &SlotView,
    of: &LogitRowLayout,
    extreme: SortDirection,
) -> Result<(), CompileError> {
    let axis = x.layout.shape().len() - 1;
    let order = ordered(e, x, axis, of.kept, extreme)?;
    let kept = of.kept.count;
    let blocks_bound = of.kept.bound.div_ceil(BLOCK);
    let blocks = e.tape().ceil_div(kept, BLOCK as u32);
    let pairs = |n: usize| of.rows_bound.saturating_mul(n).saturating_mul(2);
    let weights = words(e, pairs(of.kept.bound))?;
    let sums = words(e, pairs(blocks_bound))?;
    let (c, c_exponent) = scale(op.temperature.0);
    let [c_low, c_high] = halves(c);
    let params = SampleWeightsParams {
        rows: of.rows,
        kept,
        blocks,
        row_stride: order.stride,
        fraction: fraction(of.kept.bound).into(),
        c_low,
        c_high,
        c_exponent: c_exponent.into(),
    };
    let groups = e.tape().mul(of.rows, blocks);
    let grid = e.flat_grid(groups);
    let args = [order.keys, weights.slot, sums.slot];
    e.dispatch(&WEIGHTS, &[], &args, &params, grid);

    let [top_p_low, top_p_high] = halves((op.top_p.0 * (1u64 << 63) as f64) as u64);
    let [seed_low, seed_high] = e.tape().seed(op.seed);
    let [step_low, step_high] = e.tape().step();
    let params = SampleDrawParams {
        rows: of.rows,
        kept,
        blocks,
        row_stride: order.stride,
        top_p_low,
        top_p_high,
        seed_low,
        seed_high,
        stream: op.stream.into(),
        step_low,
        step_high,
    };
    let grid = e.flat_grid(of.rows);
    let args = [order.keys, order.indices, weights.slot, sums.slot, y.slot];
    e.dispatch(&DRAW, &[], &args, &params, grid);
    Ok(())
}

/// Fraction bits of the fixed-point weights, so that a sum of `kept` weights, each at most 1, is
/// below 2^62.
pub fn fraction(kept: usize) -> u32 {
    62 - (usize::BITS - kept.leading_zeros())
}

/// `log2(e) / temperature` as `c 2^exponent`, with the highest bit of `c` set.
pub fn scale(temperature: f64) -> (u64, i32) {
    const LOG2_E: u128 = 0xB8AA_3B29_5C17_F0BC; // in units of 2^-63
    let bits = temperature.to_bits();
    let (field, fraction) = ((bits >> 52) as i32 & 0x7ff, bits & ((1 << 52) - 1));
    let (whole, exponent) = match field {
        0 => (fraction, -1074),
        _ => (fraction | 1 << 52, field - 1075),
    };
    let shift = whole.leading_zeros() - 11;
    let (whole, exponent) = (whole << shift, exponent - shift as i32);
    let quotient = (LOG2_E << 60) / u128::from(whole);
    let drop = u128::BITS - quotient.leading_zeros() - u64::BITS;
    ((quotient >> drop) as u64, drop as i32 - 123 - exponent)
}

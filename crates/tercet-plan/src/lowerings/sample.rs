//! `Sample`: token ids drawn from logits.
//!
//! The reference adds `exp((logit - greatest) / temperature)` in f64, from the greatest logit on. Here
//! rows are ordered as for `TopK`, and weights are whole numbers of a small unit, so that sums are
//! exact in any order. A draw can differ from the reference only where the random number falls within
//! about 2^-45 for each logit, of a total of at least 1, of the border between two tokens.

use tercet_ir::ops::{Op, Sample};
use tercet_ir::{CompileError, Node, OpKind};

use super::arg_extreme::{self, Sought};
use super::rng::{PHILOX, halves};
use super::rows::Rows;
use super::top_k::{Extreme, NanPlace, Needed, ordered};
use super::words::words;
use super::{Family, always, portable};
use crate::emit::{Emit, View};
use crate::kernel::{Access, Kernel};
use crate::num::Num;
use crate::scalar::{PRELUDE, Piece};

crate::params! {
    /// The block of `sample_weights.wgsl`.
    pub struct WeightsParams {
        rows: U32,
        kept: U32,
        blocks: U32,
        row_stride: U32,
        fraction: U32,
        c_low: U32,
        c_high: U32,
        c_exponent: I32,
    }
    /// The block of `sample_draw.wgsl`.
    pub struct DrawParams {
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

static WEIGHTS: Kernel<WeightsParams> = Kernel::wgsl(
    "sample_weights",
    &[
        PRELUDE,
        Piece::Wide.text(),
        WIDE64,
        portable!("sample_weights.wgsl"),
    ],
    &[Access::Read, Access::Write, Access::Write],
    &[],
);

static DRAW: Kernel<DrawParams> = Kernel::wgsl(
    "sample_draw",
    &[
        PRELUDE,
        Piece::Wide.text(),
        WIDE64,
        PHILOX,
        portable!("sample_draw.wgsl"),
    ],
    &[
        Access::Read,
        Access::Read,
        Access::Read,
        Access::Read,
        Access::Write,
    ],
    &[],
);

/// `Sample`.
pub(crate) static SAMPLES: Family = Family {
    name: "sample",
    ops: &[OpKind::Sample],
    kernels: &[&WEIGHTS.def, &DRAW.def],
    supports: always,
    lower,
};

/// Weights of a block of `sample_weights.wgsl`.
const BLOCK: usize = 256;

/// Logits: how many rows and how long, at each run and at most.
struct Logits {
    rows: Num,
    rows_bound: usize,
    kept: Needed,
}

fn lower(e: &mut Emit<'_>, node: &Node) -> Result<(), CompileError> {
    let Op::Sample(op) = &node.op else {
        unreachable!("invariant: a family lowers its own operators")
    };
    let x = e.view(node.inputs[0]);
    let y = e.result(0)?;
    let axis = x.layout.shape().len() - 1;
    let shape = x.layout.shape();
    let (rows, vocab) = (e.numel(&shape[..axis]), e.num(&shape[axis]));
    let some_row = e.tape().min(rows, Num::ONE);
    let reason = "a row without logits cannot be sampled".to_string();
    e.check_at_most(some_row, vocab, reason);
    if op.temperature.0 == 0.0 {
        let rows = Rows::of(e, &x, &[axis])?;
        let sought = Sought {
            least: false,
            nan_low: true,
        };
        return arg_extreme::emit(e, sought, &x, rows, &y);
    }
    let extreme = Extreme {
        is_largest: true,
        nan: NanPlace::Low,
    };
    let mut rows_bound = 1usize;
    for dim in &shape[..axis] {
        rows_bound = rows_bound.saturating_mul(e.bound(dim)?);
    }
    let vocab_bound = e.bound(&shape[axis])?;
    let kept = match op.top_k {
        0 => Needed {
            count: vocab,
            bound: vocab_bound,
        },
        k => Needed {
            count: e.tape().min(vocab, Num::Const(k.min(vocab_bound) as i64)),
            bound: k.min(vocab_bound),
        },
    };
    let rows = Logits {
        rows,
        rows_bound,
        kept,
    };
    draw(e, op, &x, &y, &rows, extreme)
}

fn draw(
    e: &mut Emit<'_>,
    op: &Sample,
    x: &View,
    y: &View,
    of: &Logits,
    extreme: Extreme,
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
    let params = WeightsParams {
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
    let params = DrawParams {
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

/// The bits after the point of weights, so that the sum of this many, each at most 1, is below 2^62.
fn fraction(kept: usize) -> u32 {
    62 - (usize::BITS - kept.leading_zeros())
}

/// `log2(e) / temperature` as `c 2^exponent`, the highest bit of `c` set.
fn scale(temperature: f64) -> (u64, i32) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_are_log2_e_over_the_temperature() {
        for t in [1.0, 0.7, 3.0, 1e-3, 1e9, 2.5e-310, f64::MAX] {
            let (c, exponent) = scale(t);
            assert!(c >= 1 << 63, "{t}");
            let log = (c as f64).log2() + f64::from(exponent);
            let want = std::f64::consts::LOG2_E.log2() - t.log2();
            assert!((log - want).abs() < 1e-9, "{t}: {log} {want}");
        }
    }

    #[test]
    fn sums_of_weights_stay_below_two_to_the_62() {
        for kept in [1u128, 2, 3, 40, 256, 150_000, i32::MAX as u128] {
            let unit = 1u128 << fraction(kept as usize);
            assert!(kept * unit < 1 << 62, "{kept}");
        }
    }
}

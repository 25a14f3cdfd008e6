//! F32 cases with various magnitudes: within rows, between rows, columns and heads, and with widely
//! spread scores. Kernels that emulate F32 with narrower numbers (split-F16) must be as accurate as
//! F32 kernels in all these cases, or use such a kernel instead.

use super::{AttentionCaseDims, AttentionOptionsFn, bools, lens};
use crate::case::{CaseGraph, InputFill, OpCase};
use crate::dtype::DType;
use crate::error::OpError;
use crate::graph::Value;
use crate::ops::attention::{AttentionLayout, AttentionOptions};

/// More rows than a query tile, and several blocks of keys.
const SIZES: AttentionCaseDims = AttentionCaseDims {
    b: 1,
    sq: 100,
    sk: 90,
    q_heads: 2,
    kv_heads: 2,
    d: 16,
    dv: 20,
    layout: AttentionLayout::Bhsd,
};

/// The index of an element: head, row and column.
type HeadRowCol = [usize; 3];

/// Three functions that give the factor of each element of queries, keys and values.
type AttentionOperandFactors = [fn(HeadRowCol) -> f64; 3];

fn one(_: HeadRowCol) -> f64 {
    1.0
}

/// A number from -1 to 1 that varies with the index.
fn any([head, row, column]: HeadRowCol) -> f64 {
    let mixed = (head * 7919 + row * 104_729 + column * 1_299_709 + 12345) % 10_007;
    mixed as f64 / 5003.0 - 1.0
}

fn by_rows([head, row, _]: HeadRowCol) -> f64 {
    any([head, row, 0])
}

fn operand(
    c: &mut CaseGraph,
    name: &str,
    [rows, columns]: [usize; 2],
    factor: fn(HeadRowCol) -> f64,
) -> Result<Value, OpError> {
    let shape = [1, SIZES.q_heads, rows, columns];
    let x = c.input(name, shape, InputFill::Normal)?;
    let factors = (0..SIZES.q_heads * rows * columns)
        .map(|at| factor([at / columns / rows, at / columns % rows, at % columns]));
    let by = c.input(
        &format!("{name}_by"),
        shape,
        InputFill::Values(factors.collect()),
    )?;
    c.graph.mul(x, by)
}

fn spread(name: &str, factors: AttentionOperandFactors, choose: AttentionOptionsFn) -> OpCase {
    let case = OpCase::new(name, move |c| {
        let q = operand(c, "q", [SIZES.sq, SIZES.d], factors[0])?;
        let k = operand(c, "k", [SIZES.sk, SIZES.d], factors[1])?;
        let v = operand(c, "v", [SIZES.sk, SIZES.dv], factors[2])?;
        let options = AttentionOptions::new(SIZES.q_heads, SIZES.kv_heads, SIZES.layout);
        let options = choose(c, options)?;
        let y = c.graph.attention(q, k, v, options)?;
        c.output(y)
    });
    case.only(&[DType::F32])
}

pub(super) fn cases() -> Vec<OpCase> {
    // Long: this function is a table of test cases, one per row.
    vec![
        spread("spread_little", [one, one, one], |_, o| Ok(o)),
        spread("spread_little_keep", [one, one, one], |c, o| {
            Ok(o.keep(bools(c, &[1, 2, SIZES.sq, SIZES.sk])?))
        }),
        spread("spread_little_keep_keys", [one, one, one], |c, o| {
            Ok(o.keep(bools(c, &[1, SIZES.sk])?))
        }),
        spread(
            "spread_within_rows",
            [
                |at| 10f64.powf(1.5 * any(at)),
                |at| 10f64.powf(1.5 * any(at)),
                |at| 10f64.powf(1.5 * any(at)),
            ],
            |_, o| Ok(o.scale(0.01)),
        ),
        spread(
            "spread_widely_within_rows",
            [
                |at| 10f64.powf(6.0 * any(at)),
                |at| 10f64.powf(6.0 * any(at)),
                |at| 10f64.powf(6.0 * any(at)),
            ],
            |_, o| Ok(o.scale(1e-11)),
        ),
        spread(
            "spread_widely_between_rows",
            [
                |at| 10f64.powf(6.0 * by_rows(at)),
                |at| 10f64.powf(6.0 * by_rows(at)),
                |at| 10f64.powf(6.0 * by_rows(at)),
            ],
            |_, o| Ok(o.scale(1e-11)),
        ),
        // Columns of queries and keys with very different magnitudes but similar products.
        spread(
            "spread_between_columns",
            [
                |[_, _, column]| 10f64.powf(6.0 - 0.8 * column as f64),
                |[_, _, column]| 10f64.powf(0.8 * column as f64 - 6.0),
                |[_, _, column]| 10f64.powf(0.6 * column as f64 - 6.0),
            ],
            |_, o| Ok(o.causal()),
        ),
        // One head with similar magnitudes, and one with very different magnitudes.
        spread(
            "spread_in_one_head",
            [one, one, |at| {
                if at[0] == 1 {
                    10f64.powf(6.0 * any(at))
                } else {
                    1.0
                }
            }],
            |_, o| Ok(o.causal()),
        ),
        // The magnitude of values grows or shrinks with the key index.
        spread(
            "spread_upwards_over_keys",
            [one, one, |[_, row, _]| 1e-5 * 4f64.powi(row as i32 / 9)],
            |_, o| Ok(o.causal()),
        ),
        spread(
            "spread_downwards_over_keys",
            [one, one, |[_, row, _]| 1e5 * 32f64.powi(-(row as i32 / 30))],
            |_, o| Ok(o.causal()),
        ),
        spread(
            "spread_over_keys_with_bias_and_cap",
            [one, one, |[_, row, _]| 4f64.powi(row as i32 / 18)],
            |c, o| {
                let bias = c.input("bias", [1, 1, SIZES.sq, SIZES.sk], InputFill::Normal)?;
                Ok(o.bias(bias).softcap(3.0))
            },
        ),
        spread("small_numbers", [|_| 1e-9, |_| 1e-9, |_| 1e-9], |_, o| {
            Ok(o.scale(1e18))
        }),
        spread("great_numbers", [|_| 1e9, |_| 1e9, |_| 1e9], |_, o| {
            Ok(o.scale(-1e-18))
        }),
        // Values so small that the scale factor of split-F16 does not cover them.
        spread("smallest_numbers", [one, one, |_| 1e-30], |_, o| Ok(o)),
        spread("greatest_numbers", [one, one, |_| 1e30], |_, o| Ok(o)),
        spread("scores_far_apart", [|_| 6.0, one, one], |_, o| Ok(o)),
        // Blocks of only zeros, for which a scale computed from the maximum magnitude would be
        // invalid.
        spread(
            "zeros_among_keys_and_values",
            [
                |[_, row, _]| f64::from(row < 40),
                |[_, row, _]| f64::from(row >= 40),
                |[_, row, _]| 1e-3 * f64::from(row < 32),
            ],
            |_, o| Ok(o),
        ),
        // Data beyond the length of a batch entry must not be read.
        spread(
            "not_finite_beyond_the_keys",
            [
                one,
                |[_, row, _]| if row < 50 { 1.0 } else { f64::NAN },
                |[_, row, _]| if row < 50 { 1.0 } else { f64::NAN },
            ],
            |c, o| Ok(o.kv_len(lens(c, &[], &[50.0])?)),
        ),
        spread(
            "queries_not_finite",
            [|at| if at[1] == 3 { f64::NAN } else { 1.0 }, one, one],
            |_, o| Ok(o.causal()),
        ),
        spread(
            "keys_not_finite_in_one_head",
            [
                one,
                |at| match at {
                    [1, 60, _] => f64::NAN,
                    _ => 1.0,
                },
                one,
            ],
            |_, o| Ok(o.causal()),
        ),
    ]
}

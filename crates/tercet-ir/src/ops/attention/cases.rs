//! Test cases of attention: every mask, layout and mask shape, the alignment of queries to keys,
//! and queries for which all keys are masked.

mod fusion_orders;
mod long;
mod parts;
mod rejections;
mod sizes;
mod spread;
mod tokens;
pub(super) mod training;

use super::{AttentionLayout, AttentionOptions};
use crate::case::{CaseGraph, InputFill, OpCase};
use crate::dtype::DType;
use crate::error::OpError;
use crate::graph::Value;
use crate::types::{Shape, Type};
pub(super) use rejections::rejects;

/// The sizes of a case.
#[derive(Clone, Copy)]
struct AttentionCaseDims {
    b: usize,
    sq: usize,
    sk: usize,
    q_heads: usize,
    kv_heads: usize,
    d: usize,
    dv: usize,
    layout: AttentionLayout,
}

const BASE: AttentionCaseDims = AttentionCaseDims {
    b: 2,
    sq: 5,
    sk: 7,
    q_heads: 4,
    kv_heads: 2,
    d: 8,
    dv: 8,
    layout: AttentionLayout::Bshd,
};
const HEADS_FIRST: AttentionCaseDims = AttentionCaseDims {
    layout: AttentionLayout::Bhsd,
    ..BASE
};

impl AttentionCaseDims {
    fn shape(self, s: usize, h: usize, d: usize) -> [usize; 4] {
        match self.layout {
            AttentionLayout::Bshd => [self.b, s, h, d],
            AttentionLayout::Bhsd => [self.b, h, s, d],
        }
    }
}

type AttentionOptionsFn = fn(&mut CaseGraph, AttentionOptions) -> Result<AttentionOptions, OpError>;

/// A case with normally distributed data.
fn random(name: &str, dims: AttentionCaseDims, choose: AttentionOptionsFn) -> OpCase {
    OpCase::new(name, move |c| {
        let q = c.input(
            "q",
            dims.shape(dims.sq, dims.q_heads, dims.d),
            InputFill::Normal,
        )?;
        let k = c.input(
            "k",
            dims.shape(dims.sk, dims.kv_heads, dims.d),
            InputFill::Normal,
        )?;
        let v = c.input(
            "v",
            dims.shape(dims.sk, dims.kv_heads, dims.dv),
            InputFill::Normal,
        )?;
        let options = AttentionOptions::new(dims.q_heads, dims.kv_heads, dims.layout);
        let options = choose(c, options)?;
        let y = c.graph.attention(q, k, v, options)?;
        c.output(y)
    })
}

fn bools(c: &mut CaseGraph, shape: &[usize]) -> Result<Value, OpError> {
    c.input_of("mask", Type::new(DType::Bool, shape), InputFill::Normal)
}

fn lens(c: &mut CaseGraph, shape: &[usize], values: &[f64]) -> Result<Value, OpError> {
    c.input_of(
        "kv_len",
        Type::new(DType::I32, shape),
        InputFill::Values(values.to_vec()),
    )
}

/// A case with one head and one element per head. The queries are zero, so each result is the mean
/// of the visible values. `v` holds `[b][sk]`, `want` `[b][sq]`.
fn means(
    name: &str,
    [b, sq]: [usize; 2],
    v: &'static [f64],
    want: &'static [f64],
    choose: AttentionOptionsFn,
) -> OpCase {
    OpCase::new(name, move |c| {
        let sk = v.len() / b;
        let q = c.input("q", [b, sq, 1, 1], InputFill::Values(vec![0.0; b * sq]))?;
        // A key is NaN if its value is NaN; kernels must read neither.
        let k = v.iter().map(|x| if x.is_nan() { *x } else { 1.0 });
        let k = c.input("k", [b, sk, 1, 1], InputFill::Values(k.collect()))?;
        let v = c.input("v", [b, sk, 1, 1], InputFill::Values(v.to_vec()))?;
        let options = choose(c, AttentionOptions::new(1, 1, AttentionLayout::Bshd))?;
        let y = c.graph.attention(q, k, v, options)?;
        c.output_expect(y, want)
    })
}

pub(super) fn cases() -> Vec<OpCase> {
    let mut all = random_cases();
    all.extend(mean_cases());
    all.extend(special_cases());
    all.extend(sizes::cases());
    all.extend(long::cases());
    all.extend(parts::cases());
    all.extend(spread::cases());
    all.extend(tokens::cases());
    all.extend(fusion_orders::cases());
    all
}

fn random_cases() -> Vec<OpCase> {
    // Long: this function is a table of test cases, one per row.
    let wide = AttentionCaseDims {
        d: 80,
        dv: 13,
        ..BASE
    };
    let long = AttentionCaseDims {
        sq: 33,
        sk: 300,
        d: 64,
        dv: 64,
        ..BASE
    };
    let decode = AttentionCaseDims {
        sq: 1,
        sk: 129,
        ..long
    };
    let single = AttentionCaseDims {
        kv_heads: 1,
        q_heads: 3,
        ..BASE
    };
    vec![
        random("none_bshd", BASE, |_, o| Ok(o)),
        random("none_bhsd", HEADS_FIRST, |_, o| Ok(o)),
        random("causal_bshd", BASE, |_, o| Ok(o.causal())),
        random("causal_bhsd", HEADS_FIRST, |_, o| Ok(o.causal())),
        random("window_bshd", BASE, |_, o| Ok(o.window(3))),
        random("window_beyond_the_keys", BASE, |_, o| Ok(o.window(1000))),
        random("value_dim_differs", wide, |_, o| Ok(o.causal())),
        random("one_kv_head", single, |_, o| Ok(o.causal())),
        random(
            "as_many_kv_heads",
            AttentionCaseDims {
                kv_heads: 4,
                ..BASE
            },
            |_, o| Ok(o),
        ),
        random("long_causal", long, |_, o| Ok(o.causal())),
        random("long_window", long, |_, o| Ok(o.window(100))),
        random("decode", decode, |_, o| Ok(o.causal())),
        random("decode_kv_len", decode, |c, o| {
            Ok(o.causal().kv_len(lens(c, &[2], &[129.0, 70.0])?))
        }),
        random("scale", BASE, |_, o| Ok(o.scale(0.25))),
        random("scale_of_one", BASE, |_, o| Ok(o.causal().scale(1.0))),
        random("softcap", BASE, |_, o| {
            Ok(o.causal().scale(2.0).softcap(1.5))
        }),
        random("kv_len_scalar", BASE, |c, o| {
            Ok(o.kv_len(lens(c, &[], &[4.0])?))
        }),
        random("kv_len_causal", HEADS_FIRST, |c, o| {
            Ok(o.causal().kv_len(lens(c, &[2], &[6.0, 3.0])?))
        }),
        random("kv_len_window", BASE, |c, o| {
            Ok(o.window(2).kv_len(lens(c, &[2], &[7.0, 1.0])?))
        }),
        random("keep_keys", BASE, |c, o| Ok(o.keep(bools(c, &[2, 7])?))),
        random("keep_queries", BASE, |c, o| {
            Ok(o.keep(bools(c, &[2, 5, 7])?))
        }),
        random("keep_heads", HEADS_FIRST, |c, o| {
            Ok(o.keep(bools(c, &[2, 4, 5, 7])?))
        }),
        random("keep_broadcast", BASE, |c, o| {
            Ok(o.keep(bools(c, &[1, 1, 5, 7])?))
        }),
        random("bias_heads", BASE, |c, o| {
            Ok(o.bias(c.input("bias", [2, 4, 5, 7], InputFill::Normal)?))
        }),
        random("bias_broadcast_keys", HEADS_FIRST, |c, o| {
            Ok(o.bias(c.input("bias", [1, 4, 5, 1], InputFill::Normal)?))
        }),
        random("bias_keys_softcap_kv_len", BASE, |c, o| {
            let bias = c.input("bias", [2, 7], InputFill::Normal)?;
            Ok(o.bias(bias)
                .softcap(2.0)
                .kv_len(lens(c, &[2], &[5.0, 7.0])?))
        }),
        random("no_queries", AttentionCaseDims { sq: 0, ..BASE }, |_, o| {
            Ok(o.causal())
        }),
        random("no_keys", AttentionCaseDims { sk: 0, ..BASE }, |_, o| Ok(o)),
        random("no_batch", AttentionCaseDims { b: 0, ..BASE }, |c, o| {
            Ok(o.kv_len(lens(c, &[0], &[])?))
        }),
        random(
            "head_dim_zero",
            AttentionCaseDims { d: 0, ..BASE },
            |_, o| Ok(o),
        ),
    ]
}

fn mean_cases() -> Vec<OpCase> {
    // Long: this function is a table of test cases, one per row.
    const NAN: f64 = f64::NAN;
    const FOUR: &[f64] = &[2.0, 4.0, 8.0, 16.0];
    vec![
        means("pinned_none", [1, 2], FOUR, &[7.5, 7.5], |_, o| Ok(o)),
        means("pinned_causal_last_query", [1, 1], FOUR, &[7.5], |_, o| {
            Ok(o.causal())
        }),
        // The position of the first query precedes the first key.
        means(
            "pinned_causal_more_queries",
            [1, 3],
            &[2.0, 4.0],
            &[0.0, 2.0, 3.0],
            |_, o| Ok(o.causal()),
        ),
        means(
            "pinned_causal_kv_len",
            [3, 2],
            &[2.0, 4.0, NAN, 2.0, NAN, NAN, NAN, NAN, NAN],
            &[2.0, 3.0, 0.0, 2.0, 0.0, 0.0],
            |c, o| Ok(o.causal().kv_len(lens(c, &[3], &[2.0, 1.0, 0.0])?)),
        ),
        means(
            "pinned_kv_len",
            [2, 1],
            &[2.0, 4.0, 6.0, NAN],
            &[3.0, 6.0],
            |c, o| Ok(o.kv_len(lens(c, &[2], &[2.0, 1.0])?)),
        ),
        means(
            "pinned_window",
            [1, 4],
            FOUR,
            &[2.0, 3.0, 6.0, 12.0],
            |_, o| Ok(o.window(2)),
        ),
        means(
            "pinned_window_of_one",
            [1, 2],
            FOUR,
            &[8.0, 16.0],
            |_, o| Ok(o.window(1)),
        ),
        means(
            "pinned_window_kv_len",
            [1, 2],
            &[2.0, 4.0, 8.0, NAN],
            &[3.0, 6.0],
            |c, o| Ok(o.window(2).kv_len(lens(c, &[], &[3.0])?)),
        ),
        means(
            "pinned_keep",
            [2, 1],
            &[2.0, NAN, 6.0, NAN, NAN, NAN],
            &[4.0, 0.0],
            |c, o| {
                let mask = Type::new(DType::Bool, [2, 3]);
                let keep = InputFill::Values(vec![1.0, 0.0, 1.0, 0.0, 0.0, 0.0]);
                Ok(o.keep(c.input_of("mask", mask, keep)?))
            },
        ),
        means(
            "pinned_bias_masks",
            [2, 1],
            &[2.0, NAN, 6.0, NAN, NAN, NAN],
            &[4.0, 0.0],
            |c, o| {
                let inf = f64::NEG_INFINITY;
                let bias = InputFill::Values(vec![3.0, inf, 3.0, inf, inf, inf]);
                Ok(o.bias(c.input("bias", [2, 3], bias)?))
            },
        ),
        means("pinned_keep_within_kv_len", [1, 1], FOUR, &[4.0], |c, o| {
            let mask = Type::new(DType::Bool, [1, 4]);
            let mask = c.input_of("mask", mask, InputFill::Values(vec![0.0, 1.0, 0.0, 1.0]))?;
            Ok(o.keep(mask).kv_len(lens(c, &[1], &[3.0])?))
        }),
        // If the cap came after the mask, it would make masked keys visible again.
        means("softcap_before_the_mask", [1, 1], FOUR, &[3.0], |c, o| {
            let bias = InputFill::Values(vec![0.0, 0.0, -30000.0, -30000.0]);
            Ok(o.softcap(2.0).bias(c.input("bias", [1, 4], bias)?))
        }),
        means("nan_bias_gives_nan", [1, 1], FOUR, &[NAN], |c, o| {
            let bias = InputFill::Values(vec![0.0, NAN, 0.0, 0.0]);
            Ok(o.bias(c.input("bias", [1, 4], bias)?))
        }),
    ]
}

fn special_cases() -> Vec<OpCase> {
    let fault = |name: &str, len: f64, message: &'static str| {
        OpCase::new(name, move |c| {
            let x = c.input("x", [1, 3, 1, 2], InputFill::Normal)?;
            let options = AttentionOptions::new(1, 1, AttentionLayout::Bshd);
            let options = options.kv_len(lens(c, &[], &[len])?);
            let y = c.graph.attention(x, x, x, options)?;
            c.expect_fault(message);
            c.output(y)
        })
    };
    vec![
        fault("kv_len_too_long", 4.0, "kv_len is 4; accepted: 0 to 3"),
        fault("kv_len_negative", -1.0, "kv_len is -1; accepted: 0 to 3"),
        OpCase::new("pinned_grouped_heads", |c| {
            let q = c.input("q", [1, 1, 4, 2], InputFill::Normal)?;
            let k = c.input("k", [1, 1, 2, 2], InputFill::Normal)?;
            let v = c.input("v", [1, 1, 2, 1], InputFill::Values(vec![3.0, 5.0]))?;
            let y =
                c.graph
                    .attention(q, k, v, AttentionOptions::new(4, 2, AttentionLayout::Bshd))?;
            c.output_expect(y, &[3.0, 3.0, 5.0, 5.0])
        }),
        // Scores of 0 and 8192: the maximum is subtracted before the exponential.
        OpCase::new("large_scores_do_not_overflow", |c| {
            let q = c.input("q", [1, 1, 1, 4], InputFill::Values(vec![64.0; 4]))?;
            let k = [0.0, 64.0].iter().flat_map(|&x| [x; 4]).collect();
            let k = c.input("k", [1, 2, 1, 4], InputFill::Values(k))?;
            let v = c.input("v", [1, 2, 1, 1], InputFill::Values(vec![2.0, 7.0]))?;
            let y =
                c.graph
                    .attention(q, k, v, AttentionOptions::new(1, 1, AttentionLayout::Bshd))?;
            c.output_expect(y, &[7.0])
        }),
        OpCase::new("symbolic_sequences", |c| {
            let (b, s, n) = (c.sym("b", 2, 4), c.sym("s", 3, 8), c.sym("n", 6, 16));
            let q: Shape = [b.clone(), s, 4.into(), 8.into()].into();
            let kv: Shape = [b.clone(), n, 2.into(), 8.into()].into();
            let q = c.input("q", q, InputFill::Normal)?;
            let k = c.input("k", kv.clone(), InputFill::Normal)?;
            let v = c.input("v", kv, InputFill::Normal)?;
            let len = InputFill::Values(vec![6.0, 4.0]);
            let len = c.input_of("kv_len", Type::new(DType::I32, [b]), len)?;
            let options = AttentionOptions::new(4, 2, AttentionLayout::Bshd).causal();
            let y = c.graph.attention(q, k, v, options.kv_len(len))?;
            c.output(y)
        }),
    ]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::{EvalCtx, Graph, Tensor, evaluate};

    /// Attention of one query `2` over keys `1, -0.5` with values `0, 1`. The result is the weight
    /// of the second key.
    fn second_weight(
        choose: impl Fn(AttentionOptions, Value) -> AttentionOptions,
    ) -> Result<f64, Box<dyn std::error::Error>> {
        let mut g = Graph::new();
        let f64s = |shape: &[usize], x: &[f64]| Tensor::from_slice(shape, x);
        let q = g.constant(f64s(&[1, 1, 1, 1], &[2.0])?)?;
        let k = g.constant(f64s(&[1, 2, 1, 1], &[1.0, -0.5])?)?;
        let v = g.constant(f64s(&[1, 2, 1, 1], &[0.0, 1.0])?)?;
        let bias = g.constant(f64s(&[1, 2], &[0.25, 1.0])?)?;
        let options = choose(AttentionOptions::new(1, 1, AttentionLayout::Bshd), bias);
        let y = g.attention(q, k, v, options)?;
        let done = evaluate(&g, &EvalCtx::default(), &BTreeMap::new())?;
        Ok(done.get(y).as_slice::<f64>()?[0])
    }

    #[test]
    fn scale_then_softcap_then_bias() -> Result<(), Box<dyn std::error::Error>> {
        // With two scores, the second has weight 1 / (1 + exp(first - second)).
        let weight = |a: f64, b: f64| 1.0 / (1.0 + (a - b).exp());
        let near = |got: f64, want: f64| assert!((got - want).abs() < 1e-14, "{got} {want}");
        near(second_weight(|o, _| o)?, weight(2.0, -1.0));
        near(second_weight(|o, _| o.scale(0.5))?, weight(1.0, -0.5));
        let cap = |s: f64| 0.75 * (s / 0.75f64).tanh();
        let got = second_weight(|o, _| o.scale(0.5).softcap(0.75))?;
        near(got, weight(cap(1.0), cap(-0.5)));
        let got = second_weight(|o, bias| o.scale(0.5).softcap(0.75).bias(bias))?;
        near(got, weight(cap(1.0) + 0.25, cap(-0.5) + 1.0));
        Ok(())
    }
}

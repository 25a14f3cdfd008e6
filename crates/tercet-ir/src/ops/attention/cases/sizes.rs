//! Cases by size: many queries with every mask kind, wide and odd heads, many keys, views.

use super::{AttentionCaseDims, AttentionOptionsFn, BASE, HEADS_FIRST, bools, lens, random};
use crate::case::{InputFill, OpCase};
use crate::dtype::DType;
use crate::ops::attention::{AttentionLayout, AttentionOptions};
use crate::types::{Shape, Type};

const MANY: AttentionCaseDims = AttentionCaseDims {
    sq: 21,
    sk: 40,
    ..BASE
};

pub(super) fn cases() -> Vec<OpCase> {
    let mut all = many_queries();
    all.extend(as_many_heads_as_tokens());
    all.extend(wide_heads());
    all.extend(long_keys());
    all.extend(views());
    all
}

/// The number of heads equals the number of queries and keys, so exchanged axes are not visible in
/// a shape.
fn as_many_heads_as_tokens() -> Vec<OpCase> {
    let square = AttentionCaseDims {
        sq: 8,
        sk: 8,
        q_heads: 8,
        kv_heads: 8,
        ..BASE
    };
    let grouped = AttentionCaseDims {
        kv_heads: 2,
        ..square
    };
    let first = |dims| AttentionCaseDims {
        layout: AttentionLayout::Bhsd,
        ..dims
    };
    vec![
        random("heads_as_tokens_bshd", square, |_, o| Ok(o)),
        random("heads_as_tokens_bhsd", first(square), |_, o| Ok(o.causal())),
        random("grouped_heads_as_tokens_bshd", grouped, |_, o| {
            Ok(o.causal())
        }),
        random("grouped_heads_as_tokens_bhsd", first(grouped), |_, o| Ok(o)),
    ]
}

fn many_queries() -> Vec<OpCase> {
    // Long: this function is a table of test cases, one per row.
    let heads_first = AttentionCaseDims {
        sq: 9,
        ..HEADS_FIRST
    };
    let many_causal = AttentionCaseDims {
        sq: 40,
        sk: 17,
        ..MANY
    };
    let tiles = AttentionCaseDims {
        b: 1,
        sq: 150,
        sk: 150,
        d: 24,
        dv: 40,
        ..BASE
    };
    let many_heads = AttentionCaseDims {
        b: 4,
        sq: 40,
        sk: 90,
        q_heads: 8,
        kv_heads: 8,
        ..BASE
    };
    let many_heads_odd = AttentionCaseDims {
        d: 7,
        dv: 5,
        ..many_heads
    };
    vec![
        random("many_keep_heads", MANY, |c, o| {
            Ok(o.keep(bools(c, &[2, 4, 21, 40])?))
        }),
        random("many_bias_softcap", MANY, |c, o| {
            let bias = c.input("bias", [2, 1, 21, 40], InputFill::Normal)?;
            Ok(o.bias(bias).softcap(2.0))
        }),
        random("many_window_kv_len", MANY, |c, o| {
            Ok(o.window(5).kv_len(lens(c, &[2], &[39.0, 7.0])?))
        }),
        random("many_kv_len", heads_first, |c, o| {
            Ok(o.kv_len(lens(c, &[], &[3.0])?))
        }),
        random("more_queries_than_keys", many_causal, |_, o| Ok(o.causal())),
        random("many_keep_keys", MANY, |c, o| {
            Ok(o.keep(bools(c, &[2, 40])?))
        }),
        random("many_bias_keys_kv_len", MANY, |c, o| {
            let bias = c.input("bias", [1, 1, 1, 40], InputFill::Normal)?;
            Ok(o.bias(bias).kv_len(lens(c, &[2], &[40.0, 11.0])?))
        }),
        random("many_causal_softcap", many_causal, |_, o| {
            Ok(o.causal().scale(2.0).softcap(1.5))
        }),
        random("rows_of_several_tiles", tiles, |_, o| Ok(o.window(45))),
        random("rows_of_several_tiles_bias", tiles, |c, o| {
            let bias = c.input("bias", [1, 4, 150, 150], InputFill::Normal)?;
            Ok(o.bias(bias))
        }),
        // The bias is 0 for the first blocks of keys, and so low for the last ones that it almost
        // masks them.
        random("rows_of_several_tiles_bias_on_last_keys", tiles, |c, o| {
            let bias = (0..150).map(|at| if at < 100 { 0.0 } else { -20.0 });
            let bias = InputFill::Values(bias.collect());
            Ok(o.scale(0.3).bias(c.input("bias", [1, 1, 1, 150], bias)?))
        }),
        random("many_heads_causal", many_heads, |_, o| Ok(o.causal())),
        // With a large scale, scores of later keys are often far above the maximum of the preceding
        // keys.
        random("many_heads_large_scores", many_heads, |_, o| {
            Ok(o.scale(4.0))
        }),
        random("many_heads_negative_scale", many_heads, |_, o| {
            Ok(o.causal().scale(-2.0))
        }),
        random("many_heads_odd", many_heads_odd, |_, o| Ok(o.causal())),
        // Key blocks that are not masked, partially masked and fully masked.
        random("many_heads_keep_first_keys", many_heads, |c, o| {
            let seen = (0..4 * 90).map(|at| f64::from(at % 90 < [90, 70, 40, 0][at / 90]));
            let mask = Type::new(DType::Bool, [4, 90]);
            Ok(o.keep(c.input_of("mask", mask, InputFill::Values(seen.collect()))?))
        }),
        random("many_heads_kv_len", many_heads, |c, o| {
            Ok(o.kv_len(lens(c, &[4], &[90.0, 64.0, 1.0, 0.0])?))
        }),
        not_finite("many_values_not_finite_causal", f64::NAN, |_, o| {
            Ok(o.causal())
        }),
        not_finite("many_values_not_finite_kv_len", f64::INFINITY, |c, o| {
            Ok(o.kv_len(lens(c, &[], &[30.0])?))
        }),
        not_finite("many_values_not_finite_keep", f64::INFINITY, |c, o| {
            let seen = (0..40 * 40).map(|at| f64::from(at / 40 >= 20 || at % 40 < 30));
            let mask = Type::new(DType::Bool, [1, 40, 40]);
            Ok(o.keep(c.input_of("mask", mask, InputFill::Values(seen.collect()))?))
        }),
    ]
}

/// 40 queries and keys; the values of keys 30 and 35 are not finite. `first` is the result of
/// queries that attend to key 30 but not to 35. The decomposition turns infinities with nonzero
/// weight into NaN, so there this result is NaN.
fn not_finite(name: &str, first: f64, choose: AttentionOptionsFn) -> OpCase {
    OpCase::new(name, move |c| {
        let shape = [1, 40, 1, 8];
        let q = c.input("q", shape, InputFill::Normal)?;
        let k = c.input("k", shape, InputFill::Normal)?;
        let v = (0..40 * 8).map(|at| match (at / 8, at % 8) {
            (30, 2) => first,
            (30, 5) | (35, _) => f64::NAN,
            (key, column) => (key * 8 + column) as f64 / 64.0 - 2.0,
        });
        let v = c.input("v", shape, InputFill::Values(v.collect()))?;
        let options = choose(c, AttentionOptions::new(1, 1, AttentionLayout::Bshd))?;
        let y = c.graph.attention(q, k, v, options)?;
        c.output(y)
    })
}

fn wide_heads() -> Vec<OpCase> {
    let odd = AttentionCaseDims {
        d: 33,
        dv: 71,
        ..MANY
    };
    let wide = AttentionCaseDims {
        b: 1,
        d: 320,
        dv: 576,
        ..MANY
    };
    let latent = AttentionCaseDims {
        sq: 1,
        d: 576,
        dv: 512,
        q_heads: 8,
        kv_heads: 1,
        ..wide
    };
    let of_320 = AttentionCaseDims {
        d: 320,
        dv: 320,
        ..wide
    };
    let of_576 = AttentionCaseDims {
        d: 576,
        dv: 576,
        layout: AttentionLayout::Bhsd,
        ..wide
    };
    let one_of_576 = AttentionCaseDims { sq: 1, ..of_576 };
    let widest = AttentionCaseDims {
        sq: 1,
        sk: 5,
        d: 1100,
        dv: 1030,
        ..wide
    };
    vec![
        random("odd_heads", odd, |_, o| Ok(o.causal())),
        random("heads_of_320_and_576", wide, |_, o| Ok(o.causal())),
        random("heads_of_320", of_320, |_, o| Ok(o.causal())),
        random("heads_of_576", of_576, |_, o| Ok(o.window(9))),
        random("one_query_of_576", one_of_576, |_, o| Ok(o.causal())),
        random("one_latent_head", latent, |_, o| Ok(o)),
        random("heads_of_1100_and_1030", widest, |_, o| Ok(o)),
    ]
}

fn long_keys() -> Vec<OpCase> {
    let long = AttentionCaseDims {
        sq: 2,
        sk: 700,
        d: 16,
        dv: 24,
        ..BASE
    };
    let odd = AttentionCaseDims { dv: 7, ..long };
    let of_128 = AttentionCaseDims {
        sq: 1,
        sk: 300,
        d: 128,
        dv: 128,
        q_heads: 8,
        ..BASE
    };
    vec![
        random("long_keys_of_128", of_128, |_, o| Ok(o.causal())),
        random("long_keys_of_128_kv_len", of_128, |c, o| {
            Ok(o.kv_len(lens(c, &[2], &[299.0, 130.0])?))
        }),
        random("long_keys_causal", long, |_, o| Ok(o.causal())),
        random("long_keys_window", long, |c, o| {
            Ok(o.window(150).kv_len(lens(c, &[2], &[700.0, 333.0])?))
        }),
        random("long_keys_kv_len", odd, |c, o| {
            Ok(o.causal().kv_len(lens(c, &[2], &[1.0, 0.0])?))
        }),
        random("long_keys_keep", long, |c, o| {
            Ok(o.keep(bools(c, &[2, 700])?))
        }),
        // One executable with symbolic numbers of queries and keys, from one query to more than a
        // tile.
        OpCase::new("symbolic_prefill_and_decode", |c| {
            let (s, n) = (c.sym("s", 3, 40), c.sym("n", 150, 300));
            let q: Shape = [1.into(), 4.into(), s, 8.into()].into();
            let kv: Shape = [1.into(), 2.into(), n, 8.into()].into();
            let q = c.input("q", q, InputFill::Normal)?;
            let k = c.input("k", kv.clone(), InputFill::Normal)?;
            let v = c.input("v", kv, InputFill::Normal)?;
            let options = AttentionOptions::new(4, 2, AttentionLayout::Bhsd).causal();
            let y = c.graph.attention(q, k, v, options)?;
            c.output(y)
        }),
    ]
}

fn views() -> Vec<OpCase> {
    // Queries, keys and values are slices of packed QKV rows of 8 heads.
    let packed = |name: &str, s: usize| {
        OpCase::new(name, move |c| {
            let x = c.input("qkv", [2, s, 8, 8], InputFill::Normal)?;
            let q = c.graph.narrow(x, 2, 0, 4)?;
            let k = c.graph.narrow(x, 2, 4, 2)?;
            let v = c.graph.narrow(x, 2, 6, 2)?;
            let options = AttentionOptions::new(4, 2, AttentionLayout::Bshd).causal();
            let y = c.graph.attention(q, k, v, options)?;
            c.output(y)
        })
    };
    let turned = |name: &str, s: usize| {
        OpCase::new(name, move |c| {
            let q = c.input("q", [2, 6, s, 4], InputFill::Normal)?;
            let k = c.input("k", [2, 2, 6, 15], InputFill::Normal)?;
            let v = c.input("v", [2, 10, 2, 15], InputFill::Normal)?;
            let mask = c.input_of("mask", Type::new(DType::Bool, [15, 2]), InputFill::Normal)?;
            let q = c.graph.transpose(q, &[0, 3, 2, 1])?;
            let k = c.graph.transpose(k, &[0, 1, 3, 2])?;
            let v = c.graph.transpose(v, &[0, 2, 3, 1])?;
            let mask = c.graph.transpose(mask, &[1, 0])?;
            let options = AttentionOptions::new(4, 2, AttentionLayout::Bhsd).keep(mask);
            let y = c.graph.attention(q, k, v, options)?;
            c.output(y)
        })
    };
    vec![
        packed("packed_few", 5),
        packed("packed_many", 19),
        turned("turned_few", 3),
        turned("turned_many", 35),
    ]
}

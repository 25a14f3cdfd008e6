//! Cases by size: many queries with every kind of mask, wide and odd heads, long keys, views.

use super::{BASE, Choose, Dims, HEADS_FIRST, bools, lens, random};
use crate::case::{Case, Fill};
use crate::dtype::DType;
use crate::ops::attention::{AttentionOptions, Layout};
use crate::types::{Shape, Type};

const MANY: Dims = Dims {
    sq: 21,
    sk: 40,
    ..BASE
};

pub(super) fn cases() -> Vec<Case> {
    let mut all = many_queries();
    all.extend(as_many_heads_as_tokens());
    all.extend(wide_heads());
    all.extend(long_keys());
    all.extend(views());
    all
}

/// As many heads as queries and keys, so that exchanged axes would not show in a shape.
fn as_many_heads_as_tokens() -> Vec<Case> {
    let square = Dims {
        sq: 8,
        sk: 8,
        q_heads: 8,
        kv_heads: 8,
        ..BASE
    };
    let grouped = Dims {
        kv_heads: 2,
        ..square
    };
    let first = |dims| Dims {
        layout: Layout::Bhsd,
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

fn many_queries() -> Vec<Case> {
    // Long: a table, one row a case.
    let heads_first = Dims {
        sq: 9,
        ..HEADS_FIRST
    };
    let many_causal = Dims {
        sq: 40,
        sk: 17,
        ..MANY
    };
    let tiles = Dims {
        b: 1,
        sq: 150,
        sk: 150,
        d: 24,
        dv: 40,
        ..BASE
    };
    let many_heads = Dims {
        b: 4,
        sq: 40,
        sk: 90,
        q_heads: 8,
        kv_heads: 8,
        ..BASE
    };
    let many_heads_odd = Dims {
        d: 7,
        dv: 5,
        ..many_heads
    };
    vec![
        random("many_keep_heads", MANY, |c, o| {
            Ok(o.keep(bools(c, &[2, 4, 21, 40])?))
        }),
        random("many_bias_softcap", MANY, |c, o| {
            let bias = c.input("bias", [2, 1, 21, 40], Fill::Normal)?;
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
            let bias = c.input("bias", [1, 1, 1, 40], Fill::Normal)?;
            Ok(o.bias(bias).kv_len(lens(c, &[2], &[40.0, 11.0])?))
        }),
        random("many_causal_softcap", many_causal, |_, o| {
            Ok(o.causal().scale(2.0).softcap(1.5))
        }),
        random("rows_of_several_tiles", tiles, |_, o| Ok(o.window(45))),
        random("rows_of_several_tiles_bias", tiles, |c, o| {
            let bias = c.input("bias", [1, 4, 150, 150], Fill::Normal)?;
            Ok(o.bias(bias))
        }),
        // Steps of keys whose scores the bias leaves as they are, and that it all but hides.
        random("rows_of_several_tiles_bias_on_last_keys", tiles, |c, o| {
            let bias = (0..150).map(|at| if at < 100 { 0.0 } else { -20.0 });
            let bias = Fill::Values(bias.collect());
            Ok(o.scale(0.3).bias(c.input("bias", [1, 1, 1, 150], bias)?))
        }),
        random("many_heads_causal", many_heads, |_, o| Ok(o.causal())),
        // Scores far above those of the keys before.
        random("many_heads_large_scores", many_heads, |_, o| {
            Ok(o.scale(4.0))
        }),
        random("many_heads_negative_scale", many_heads, |_, o| {
            Ok(o.causal().scale(-2.0))
        }),
        random("many_heads_odd", many_heads_odd, |_, o| Ok(o.causal())),
        // Steps of keys that the mask leaves as they are, some of which it hides, and that it hides.
        random("many_heads_keep_first_keys", many_heads, |c, o| {
            let seen = (0..4 * 90).map(|at| f64::from(at % 90 < [90, 70, 40, 0][at / 90]));
            let mask = Type::new(DType::Bool, [4, 90]);
            Ok(o.keep(c.input_of("mask", mask, Fill::Values(seen.collect()))?))
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
            Ok(o.keep(c.input_of("mask", mask, Fill::Values(seen.collect()))?))
        }),
    ]
}

/// 40 queries and keys, of which the values of the keys 30 and 35 are not finite. Where a query sees 30
/// and not 35, `first` is NaN: decomposed, infinities with a weight become NaN.
fn not_finite(name: &str, first: f64, choose: Choose) -> Case {
    Case::new(name, move |c| {
        let shape = [1, 40, 1, 8];
        let q = c.input("q", shape, Fill::Normal)?;
        let k = c.input("k", shape, Fill::Normal)?;
        let v = (0..40 * 8).map(|at| match (at / 8, at % 8) {
            (30, 2) => first,
            (30, 5) | (35, _) => f64::NAN,
            (key, column) => (key * 8 + column) as f64 / 64.0 - 2.0,
        });
        let v = c.input("v", shape, Fill::Values(v.collect()))?;
        let options = choose(c, AttentionOptions::new(1, 1, Layout::Bshd))?;
        let y = c.graph.attention(q, k, v, options)?;
        c.output(y)
    })
}

fn wide_heads() -> Vec<Case> {
    let odd = Dims {
        d: 33,
        dv: 71,
        ..MANY
    };
    let wide = Dims {
        b: 1,
        d: 320,
        dv: 576,
        ..MANY
    };
    let latent = Dims {
        sq: 1,
        d: 576,
        dv: 512,
        q_heads: 8,
        kv_heads: 1,
        ..wide
    };
    let of_320 = Dims {
        d: 320,
        dv: 320,
        ..wide
    };
    let of_576 = Dims {
        d: 576,
        dv: 576,
        layout: Layout::Bhsd,
        ..wide
    };
    let one_of_576 = Dims { sq: 1, ..of_576 };
    let widest = Dims {
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

fn long_keys() -> Vec<Case> {
    let long = Dims {
        sq: 2,
        sk: 700,
        d: 16,
        dv: 24,
        ..BASE
    };
    let odd = Dims { dv: 7, ..long };
    let of_128 = Dims {
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
        // Queries and keys of one executable, from one query to more than a tile.
        Case::new("symbolic_prefill_and_decode", |c| {
            let (s, n) = (c.sym("s", 3, 40), c.sym("n", 150, 300));
            let q: Shape = [1.into(), 4.into(), s, 8.into()].into();
            let kv: Shape = [1.into(), 2.into(), n, 8.into()].into();
            let q = c.input("q", q, Fill::Normal)?;
            let k = c.input("k", kv.clone(), Fill::Normal)?;
            let v = c.input("v", kv, Fill::Normal)?;
            let options = AttentionOptions::new(4, 2, Layout::Bhsd).causal();
            let y = c.graph.attention(q, k, v, options)?;
            c.output(y)
        }),
    ]
}

fn views() -> Vec<Case> {
    // Rows of queries, keys and values of 8 heads together.
    let packed = |name: &str, s: usize| {
        Case::new(name, move |c| {
            let x = c.input("qkv", [2, s, 8, 8], Fill::Normal)?;
            let q = c.graph.narrow(x, 2, 0, 4)?;
            let k = c.graph.narrow(x, 2, 4, 2)?;
            let v = c.graph.narrow(x, 2, 6, 2)?;
            let options = AttentionOptions::new(4, 2, Layout::Bshd).causal();
            let y = c.graph.attention(q, k, v, options)?;
            c.output(y)
        })
    };
    let turned = |name: &str, s: usize| {
        Case::new(name, move |c| {
            let q = c.input("q", [2, 6, s, 4], Fill::Normal)?;
            let k = c.input("k", [2, 2, 6, 15], Fill::Normal)?;
            let v = c.input("v", [2, 10, 2, 15], Fill::Normal)?;
            let mask = c.input_of("mask", Type::new(DType::Bool, [15, 2]), Fill::Normal)?;
            let q = c.graph.transpose(q, &[0, 3, 2, 1])?;
            let k = c.graph.transpose(k, &[0, 1, 3, 2])?;
            let v = c.graph.transpose(v, &[0, 2, 3, 1])?;
            let mask = c.graph.transpose(mask, &[1, 0])?;
            let options = AttentionOptions::new(4, 2, Layout::Bhsd).keep(mask);
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

//! Cases of few query rows over many keys, for which GPUs with cooperative matrices use split-KV.
//! Rows attend to a whole chunk, to a part of it, or to none of it, and softmax maxima differ
//! between chunks.

use super::long::nan_beyond_visible;
use super::{AttentionCaseDims, BASE, lens, random};
use crate::case::{InputFill, OpCase};
use crate::dtype::DType;
use crate::ops::attention::{AttentionLayout, AttentionOptions};
use crate::types::{Shape, Type};

const FEW_OF_MANY: AttentionCaseDims = AttentionCaseDims {
    sq: 24,
    sk: 700,
    d: 32,
    dv: 32,
    ..BASE
};

pub(super) fn cases() -> Vec<OpCase> {
    vec![
        // The sliding window covers keys of the second and third split-KV chunk.
        random("rows_24_window_of_700_keys", FEW_OF_MANY, |c, o| {
            Ok(o.window(300).kv_len(lens(c, &[2], &[699.0, 120.0])?))
        }),
        random("rows_24_bias_of_700_keys", FEW_OF_MANY, |c, o| {
            // The bias varies by key and row, so that rows have their maximum scores in different
            // chunks.
            let bias = |i: usize| (i * 7919 % 701) as f64 / 20.0 - 30.0;
            let bias = InputFill::Values((0..24 * 700).map(bias).collect());
            Ok(o.softcap(4.0).bias(c.input("bias", [1, 24, 700], bias)?))
        }),
        nan_beyond_visible(
            "rows_24_kv_len_behind",
            FEW_OF_MANY,
            [700.0, 129.0],
            |c, o| Ok(o.causal().kv_len(lens(c, &[2], &[700.0, 129.0])?)),
        ),
        OpCase::new("rows_and_keys_of_any_number", |c| {
            let (s, n) = (c.sym("s", 24, 300), c.sym("n", 700, 900));
            let q: Shape = [1.into(), s, 2.into(), 32.into()].into();
            let kv: Shape = [1.into(), n, 2.into(), 32.into()].into();
            let q = c.input("q", q, InputFill::Normal)?;
            let k = c.input("k", kv.clone(), InputFill::Normal)?;
            let v = c.input("v", kv, InputFill::Normal)?;
            let len = c.input_of(
                "kv_len",
                Type::new(DType::I32, [1]),
                InputFill::Values(vec![650.0]),
            )?;
            let options = AttentionOptions::new(2, 2, AttentionLayout::Bshd).causal();
            let y = c.graph.attention(q, k, v, options.kv_len(len))?;
            c.output(y)
        }),
    ]
}

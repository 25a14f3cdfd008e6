//! Cases of so few rows over so many keys that GPUs with matrices take the keys in parts: parts that rows see wholly, partly and not at
//! all, and centers that differ from part to part.

use super::long::behind;
use super::{BASE, Dims, lens, random};
use crate::case::{Case, Fill};
use crate::dtype::DType;
use crate::ops::attention::{AttentionOptions, Layout};
use crate::types::{Shape, Type};

const FEW_OF_MANY: Dims = Dims {
    sq: 24,
    sk: 700,
    d: 32,
    dv: 32,
    ..BASE
};

pub(super) fn cases() -> Vec<Case> {
    vec![
        // Sees keys of the second part and the third.
        random("rows_24_window_of_700_keys", FEW_OF_MANY, |c, o| {
            Ok(o.window(300).kv_len(lens(c, &[2], &[699.0, 120.0])?))
        }),
        random("rows_24_bias_of_700_keys", FEW_OF_MANY, |c, o| {
            // By key and row, so that the greatest score of a row is in any part.
            let bias = |i: usize| (i * 7919 % 701) as f64 / 20.0 - 30.0;
            let bias = Fill::Values((0..24 * 700).map(bias).collect());
            Ok(o.softcap(4.0).bias(c.input("bias", [1, 24, 700], bias)?))
        }),
        behind(
            "rows_24_kv_len_behind",
            FEW_OF_MANY,
            [700.0, 129.0],
            |c, o| Ok(o.causal().kv_len(lens(c, &[2], &[700.0, 129.0])?)),
        ),
        Case::new("rows_and_keys_of_any_number", |c| {
            let (s, n) = (c.sym("s", 24, 300), c.sym("n", 700, 900));
            let q: Shape = [1.into(), s, 2.into(), 32.into()].into();
            let kv: Shape = [1.into(), n, 2.into(), 32.into()].into();
            let q = c.input("q", q, Fill::Normal)?;
            let k = c.input("k", kv.clone(), Fill::Normal)?;
            let v = c.input("v", kv, Fill::Normal)?;
            let len = c.input_of(
                "kv_len",
                Type::new(DType::I32, [1]),
                Fill::Values(vec![650.0]),
            )?;
            let options = AttentionOptions::new(2, 2, Layout::Bshd).causal();
            let y = c.graph.attention(q, k, v, options.kv_len(len))?;
            c.output(y)
        }),
    ]
}

//! Device times of attention.

use tercet::ops::{AttentionLayout, AttentionOptions};
use tercet::{DType, Tensor, TensorType, Type, fill::InputFill};

use crate::kernels::{Measured, measure, stateful};
use crate::{Bench, Result};

/// The sizes of an attention: query heads, key heads, queries and keys.
struct Heads {
    what: &'static str,
    dtype: DType,
    batch: usize,
    heads: [usize; 2],
    seq: [usize; 2],
    dim: usize,
    causal: bool,
}

pub(crate) fn attention(b: &mut Bench) -> Result<()> {
    let of = |what, dtype, causal| Heads {
        what,
        dtype,
        batch: if b.quick { 1 } else { 8 },
        heads: if b.quick { [2, 2] } else { [16, 16] },
        seq: if b.quick { [64, 64] } else { [1024, 1024] },
        dim: 64,
        causal,
    };
    let keys = if b.quick { 256 } else { 4096 };
    let decode = |dtype| Heads {
        what: "decode attention",
        dtype,
        batch: 1,
        heads: [32, 8],
        seq: [1, keys],
        dim: 128,
        causal: true,
    };
    let prompt = |dtype, dim| Heads {
        what: "prompt",
        dtype,
        batch: 1,
        heads: if b.quick { [4, 1] } else { [32, 8] },
        seq: if b.quick { [64, 64] } else { [512, 512] },
        dim,
        causal: true,
    };
    let all = [
        of("attention", DType::F16, false),
        of("attention", DType::F32, false),
        of("causal attention", DType::F16, true),
        of("causal attention", DType::F32, true),
        Heads {
            dim: 128,
            ..of("attention", DType::F16, false)
        },
        prompt(DType::F16, 64),
        prompt(DType::F16, 128),
        prompt(DType::F32, 64),
        decode(DType::F16),
        decode(DType::F32),
    ];
    for case in all {
        one_attention(b, &case)?;
    }
    Ok(())
}

fn one_attention(b: &mut Bench, case: &Heads) -> Result<()> {
    let Heads {
        what,
        dtype,
        batch,
        heads: [q_heads, kv_heads],
        seq: [queries, keys],
        dim,
        causal,
    } = *case;
    let ty = |heads, seq| Type::new(dtype, [batch, heads, seq, dim]);
    let operands = [
        ("q", ty(q_heads, queries), InputFill::Normal),
        ("k", ty(kv_heads, keys), InputFill::Normal),
        ("v", ty(kv_heads, keys), InputFill::Normal),
    ];
    let (g, tensors) = stateful(&operands, |g, v| {
        let options = AttentionOptions::new(q_heads, kv_heads, AttentionLayout::Bhsd);
        let options = if causal { options.causal() } else { options };
        g.attention(v[0], v[1], v[2], options)
    })?;
    let heads = match q_heads == kv_heads {
        true => format!("h{q_heads}"),
        false => format!("h{kv_heads}x{}", q_heads / kv_heads),
    };
    let name = format!("{what} {dtype} b{batch} {heads} s{keys} d{dim}");
    let checked = measure(b, &g, &tensors).and_then(|mut m| {
        check_attention(&mut m, &tensors, case)?;
        Ok(m)
    });
    match checked {
        Ok(m) => {
            // Attention of a single query is memory-bound: its rate is bytes of keys and values.
            // Attention of many queries is compute-bound: its rate is FLOPs of the visible keys.
            let rate = if queries == 1 {
                let elements = 2 * batch * kv_heads * keys * dim;
                let bytes = (elements * dtype.size_bytes()) as f64;
                (bytes / m.seconds * 1e-9, "GB/s")
            } else {
                let pairs = (batch * q_heads * queries * keys) as f64;
                let seen = if causal { 0.5 * pairs } else { pairs };
                (4.0 * seen * dim as f64 / m.seconds * 1e-12, "TFLOP/s")
            };
            b.report.row(&name, m.seconds, Some(rate));
        }
        Err(e) => b.report.failed(&name, &e.to_string()),
    }
    Ok(())
}

/// The last entry along the first axis.
fn last_entry(t: &Tensor) -> Result<Vec<f64>> {
    let batch = t.shape()[0];
    let bytes = t.bytes();
    let ty = TensorType::new(t.dtype(), &t.shape()[1..]);
    let from = bytes.len() / batch * (batch - 1);
    Ok(Tensor::from_bytes(ty, &bytes[from..])?.to_f64s())
}

/// Compares some rows of the last batch entry with a softmax in F64.
fn check_attention(m: &mut Measured, tensors: &[(String, Tensor)], case: &Heads) -> Result<()> {
    let Heads {
        batch,
        heads: [q_heads, kv_heads],
        seq: [queries, keys],
        dim,
        ..
    } = *case;
    let got = m.exe.read_output_rows("y", batch - 1..batch)?.to_f64s();
    let [q, k, v] = [0, 1, 2].map(|at: usize| last_entry(&tensors[at].1));
    let (q, k, v) = (q?, k?, v?);
    let allowed = if case.dtype == DType::F32 { 1e-5 } else { 4e-3 };
    for (head, query) in [
        (0, 0),
        (q_heads / 2, queries / 2),
        (q_heads - 1, queries - 1),
    ] {
        let kv_first = head / (q_heads / kv_heads) * keys * dim;
        let own = (head * queries + query) * dim;
        let q = &q[own..][..dim];
        let seen = if case.causal {
            keys - queries + query + 1
        } else {
            keys
        };
        let dot = |key: usize| -> f64 {
            let row = &k[kv_first + key * dim..][..dim];
            q.iter().zip(row).map(|(a, b)| a * b).sum::<f64>() / (dim as f64).sqrt()
        };
        let scores: Vec<f64> = (0..seen).map(dot).collect();
        let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = scores.iter().map(|s| (s - top).exp()).collect();
        let total: f64 = weights.iter().sum();
        for d in 0..dim {
            let value = |key: usize| v[kv_first + key * dim + d];
            let want = (0..seen).map(|key| weights[key] * value(key)).sum::<f64>() / total;
            let is = got[own + d];
            // The comparison is false for NaN and infinities, too.
            let near = (is - want).abs() <= allowed * (1.0 + want.abs());
            if !near {
                let at = format!("[{}, {head}, {query}, {d}]", batch - 1);
                return Err(format!("attention {at}: expected {want}, found {is}").into());
            }
        }
    }
    Ok(())
}

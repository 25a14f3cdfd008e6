//! Device times of sequence scans and Fourier transforms, compared with the time to read and write
//! their tensors once.

use tercet::ops::FftNorm;
use tercet::{DType, Graph, OpError, Type, Value, fill::InputFill};

use crate::kernels::{measure, stateful};
use crate::{Bench, Result};

/// A measurement: name, operands, operator, and number of result elements.
struct Case {
    name: String,
    operands: Vec<(&'static str, Type, InputFill)>,
    build: fn(&mut Graph, &[Value]) -> std::result::Result<Value, OpError>,
    result: usize,
}

pub(crate) fn sequence(b: &mut Bench) -> Result<()> {
    let steps = if b.quick { 64 } else { 4096 };
    let sizes: &[usize] = if b.quick {
        &[64]
    } else {
        &[4096, 1000, 1009, 65536]
    };
    let mut cases = Vec::new();
    for dtype in [DType::F32, DType::F16] {
        cases.extend([1, 8].map(|batch| selective_scan(dtype, batch, steps)));
        cases.push(mamba2(dtype, steps));
        cases.push(delta_net(dtype, steps));
    }
    cases.extend(sizes.iter().map(|&n| fft(DType::F32, n)));
    cases.push(fft(DType::F16, sizes[0]));
    cases.push(rfft(sizes[0]));
    cases.extend([64, 512].map(|size| lstm(size, steps / 8)));
    for case in &cases {
        one(b, case)?;
    }
    Ok(())
}

fn one(b: &mut Bench, case: &Case) -> Result<()> {
    let (g, tensors) = stateful(&case.operands, case.build)?;
    let dtype = case.operands[0].1.dtype;
    let read: usize = tensors.iter().map(|(_, t)| t.bytes().len()).sum();
    let bytes = (read + case.result * dtype.size_bytes()) as f64;
    match measure(b, &g, &tensors) {
        Ok(m) => {
            let rate = bytes / m.seconds * 1e-9;
            b.report.row(&case.name, m.seconds, Some((rate, "GB/s")));
        }
        Err(e) => b.report.failed(&case.name, &e.to_string()),
    }
    Ok(())
}

fn selective_scan(dtype: DType, batch: usize, steps: usize) -> Case {
    let (channels, states) = (4096, 16);
    let ty = |shape: &[usize]| Type::new(dtype, shape);
    Case {
        name: format!("selective_scan {dtype} b{batch} s{steps} h{channels} n{states}"),
        operands: vec![
            ("x", ty(&[batch, steps, channels]), InputFill::Normal),
            (
                "delta",
                ty(&[batch, steps, channels]),
                InputFill::Uniform(0.0, 0.1),
            ),
            ("a", ty(&[channels, states]), InputFill::Uniform(-3.0, -0.1)),
            ("b", ty(&[batch, steps, states]), InputFill::Normal),
            ("c", ty(&[batch, steps, states]), InputFill::Normal),
        ],
        build: |g, v| g.selective_scan(v[0], v[1], v[2], v[3], v[4]),
        result: batch * steps * channels,
    }
}

fn mamba2(dtype: DType, steps: usize) -> Case {
    let (heads, per_head, states) = (64, 64, 128);
    let ty = |shape: &[usize]| Type::new(dtype, shape);
    Case {
        name: format!("mamba2 {dtype} b1 s{steps} h{heads} p{per_head} n{states}"),
        operands: vec![
            ("x", ty(&[1, steps, heads, per_head]), InputFill::Normal),
            ("dt", ty(&[1, steps, heads]), InputFill::Uniform(0.0, 0.1)),
            ("a", ty(&[heads]), InputFill::Uniform(-3.0, -0.1)),
            ("b", ty(&[1, steps, 1, states]), InputFill::Normal),
            ("c", ty(&[1, steps, 1, states]), InputFill::Normal),
        ],
        build: |g, v| g.mamba2(v[0], v[1], v[2], v[3], v[4]),
        result: steps * heads * per_head,
    }
}

fn delta_net(dtype: DType, steps: usize) -> Case {
    let (heads, size) = (32, 128);
    let ty = |shape: &[usize]| Type::new(dtype, shape);
    let key = || ty(&[1, steps, heads, size]);
    Case {
        name: format!("gated_delta_net {dtype} b1 s{steps} h{heads} d{size}"),
        operands: vec![
            ("q", key(), InputFill::Normal),
            ("k", key(), InputFill::Uniform(-0.15, 0.15)),
            ("v", key(), InputFill::Normal),
            ("g", ty(&[1, steps, heads]), InputFill::Uniform(-0.5, 0.0)),
            ("beta", ty(&[1, steps, heads]), InputFill::Uniform(0.0, 1.0)),
        ],
        build: |g, v| g.gated_delta_net([v[0], v[1], v[2], v[3], v[4]], None, false),
        result: steps * heads * size,
    }
}

/// A Fourier transform with enough rows for 16 million numbers.
fn fft(dtype: DType, n: usize) -> Case {
    let rows = ((1 << 24) / n).min(4096);
    Case {
        name: format!("fft {dtype} {rows}x{n}"),
        operands: vec![("x", Type::new(dtype, [rows, n, 2]), InputFill::Normal)],
        build: |g, v| g.fft(v[0], false, FftNorm::Backward),
        result: rows * n * 2,
    }
}

fn rfft(n: usize) -> Case {
    let rows = n.min(4096);
    Case {
        name: format!("rfft f32 {rows}x{n}"),
        operands: vec![("x", Type::new(DType::F32, [rows, n]), InputFill::Normal)],
        build: |g, v| g.rfft(v[0], FftNorm::Backward),
        result: rows * (n / 2 + 1) * 2,
    }
}

fn lstm(size: usize, steps: usize) -> Case {
    let ty = |shape: &[usize]| Type::new(DType::F32, shape);
    let states = || ty(&[1, 16, size]);
    Case {
        name: format!("lstm f32 b16 s{steps} h{size}"),
        operands: vec![
            ("x", ty(&[16, steps, size]), InputFill::Normal),
            ("h0", states(), InputFill::Normal),
            ("c0", states(), InputFill::Normal),
            (
                "w_x",
                ty(&[size, 4 * size]),
                InputFill::Uniform(-0.05, 0.05),
            ),
            (
                "w_h",
                ty(&[size, 4 * size]),
                InputFill::Uniform(-0.05, 0.05),
            ),
            ("bias", ty(&[2, 4 * size]), InputFill::Uniform(-0.05, 0.05)),
        ],
        build: |g, v| {
            let op = tercet::ops::Lstm {
                layers: 1,
                bidirectional: false,
            };
            g.add(op, v)
        },
        result: 16 * steps * size,
    }
}

//! Device times of convolutions from vision networks.

use tercet::ops::{PoolFn, Window};
use tercet::{DType, Tensor, Type, fill::InputFill};

use crate::kernels::{Measured, measure, stateful, with_params};
use crate::{Bench, Result};

/// The shapes of a convolution; the padding preserves the size at stride 1.
struct Case {
    name: &'static str,
    x: &'static [usize],
    w: &'static [usize],
    stride: usize,
    groups: usize,
}

const CASES: &[Case] = &[
    Case {
        name: "3x3 b32 64x56x56",
        x: &[32, 64, 56, 56],
        w: &[64, 64, 3, 3],
        stride: 1,
        groups: 1,
    },
    Case {
        name: "3x3 b1 64x56x56",
        x: &[1, 64, 56, 56],
        w: &[64, 64, 3, 3],
        stride: 1,
        groups: 1,
    },
    Case {
        name: "3x3 b32 512x7x7",
        x: &[32, 512, 7, 7],
        w: &[512, 512, 3, 3],
        stride: 1,
        groups: 1,
    },
    Case {
        name: "1x1 b32 64->256 56x56",
        x: &[32, 64, 56, 56],
        w: &[256, 64, 1, 1],
        stride: 1,
        groups: 1,
    },
    Case {
        name: "7x7 s2 b32 3->64 224x224",
        x: &[32, 3, 224, 224],
        w: &[64, 3, 7, 7],
        stride: 2,
        groups: 1,
    },
    Case {
        name: "depthwise 3x3 b32 32x112x112",
        x: &[32, 32, 112, 112],
        w: &[32, 1, 3, 3],
        stride: 1,
        groups: 32,
    },
    Case {
        name: "depthwise 3x3 s2 b32 64x112x112",
        x: &[32, 64, 112, 112],
        w: &[64, 1, 3, 3],
        stride: 2,
        groups: 64,
    },
    Case {
        name: "3x3x3 b2 32->64 16x56x56",
        x: &[2, 32, 16, 56, 56],
        w: &[64, 32, 3, 3, 3],
        stride: 1,
        groups: 1,
    },
];

fn windows(case: &Case) -> Window {
    let axes = case.x.len() - 2;
    let pads: Vec<usize> = case.w[2..].iter().map(|k| k / 2).collect();
    Window::new(axes)
        .with_stride(&vec![case.stride; axes])
        .with_pads(&pads, &pads)
}

pub(crate) fn conv(b: &mut Bench) -> Result<()> {
    for dtype in [DType::F16, DType::F32] {
        for case in CASES {
            if b.quick && case.x[0] != 1 {
                continue;
            }
            one(b, dtype, case)?;
        }
    }
    others(b)
}

fn one(b: &mut Bench, dtype: DType, case: &Case) -> Result<()> {
    let name = format!("conv {dtype} {}", case.name);
    let uniform = || InputFill::Uniform(-1.0, 1.0);
    // Weights are parameters, as in models.
    let x = ("x", Type::new(dtype, case.x), uniform());
    let w = ("w", Type::new(dtype, case.w), uniform());
    let bias = ("bias", Type::new(dtype, [case.w[0]]), uniform());
    let (g, tensors) = with_params(&[x], &[w, bias], |g, v| {
        g.conv(v[0], v[1], Some(v[2]), windows(case), case.groups)
    })?;
    let mut measured = match measure(b, &g, &tensors) {
        Ok(measured) => measured,
        Err(e) => {
            b.report.failed(&name, &e.to_string());
            return Ok(());
        }
    };
    let numel = g.ty(g.outputs()[0].value).shape.as_known();
    let numel: usize = numel.iter().flatten().product();
    if let Err(e) = check(&mut measured, case, &tensors, dtype) {
        b.report.failed(&name, &e.to_string());
        return Ok(());
    }
    let products: usize = case.w[1..].iter().product();
    let rate = 2.0 * (numel * products) as f64 / measured.seconds * 1e-12;
    b.report
        .row(&name, measured.seconds, Some((rate, "TFLOP/s")));
    Ok(())
}

/// Compares some windows of the last batch entry with sums in F64.
fn check(
    measured: &mut Measured,
    case: &Case,
    tensors: &[(String, Tensor)],
    dtype: DType,
) -> Result<()> {
    let last = case.x[0] - 1;
    let got = measured.exe.read_output_rows("y", last..last + 1)?;
    let (shape, got) = (got.shape()[2..].to_vec(), got.to_f64s());
    let of = |at: usize| tensors[at].1.to_f64s();
    let (x, w, bias) = (of(0), of(1), of(2));
    let (windows, spatial) = (windows(case), &case.x[2..]);
    let count: usize = shape.iter().product();
    let taps: usize = case.w[2..].iter().product();
    let plane: usize = spatial.iter().product();
    let allowed = if dtype == DType::F32 { 1e-5 } else { 4e-3 };
    for i in (0..got.len()).step_by((got.len() / 23).max(1)) {
        let (o, window) = (i / count, i % count);
        let first = o / (case.w[0] / case.groups) * case.w[1];
        let (mut want, mut scale) = (bias[o], bias[o] * bias[o]);
        for (c, t) in (0..case.w[1]).flat_map(|c| (0..taps).map(move |t| (c, t))) {
            let (mut rest, mut tap, mut source, mut stride) = (window, t, Some(0), 1);
            for axis in (0..shape.len()).rev() {
                let (out, k) = (rest % shape[axis], tap % case.w[2 + axis]);
                (rest, tap) = (rest / shape[axis], tap / case.w[2 + axis]);
                let at = windows.source(axis, out, k, spatial[axis]);
                source = source.zip(at).map(|(flat, at)| flat + at * stride);
                stride *= spatial[axis];
            }
            let Some(source) = source else { continue };
            let channel = last * case.x[1] + first + c;
            let term = x[channel * plane + source] * w[(o * case.w[1] + c) * taps + t];
            want += term;
            scale += term * term;
        }
        if (got[i] - want).abs() > allowed * (want.abs() + scale.sqrt()) {
            return Err(format!(
                "window {window} of channel {o} is {}, expected {want}",
                got[i]
            )
            .into());
        }
    }
    Ok(())
}

/// Operators that accompany convolutions: pools, resizes, transposed convolutions.
fn others(b: &mut Bench) -> Result<()> {
    let entries = if b.quick { 1 } else { 32 };
    for dtype in [DType::F16, DType::F32] {
        let x = || {
            (
                "x",
                Type::new(dtype, [entries, 64, 112, 112]),
                InputFill::Normal,
            )
        };
        let (g, tensors) = stateful(&[x()], |g, v| {
            let window = Window::new(2)
                .with_stride(&[2, 2])
                .with_pads(&[1, 1], &[1, 1]);
            g.pool(v[0], PoolFn::Max, &[3, 3], window)
        })?;
        let m = measure(b, &g, &tensors)?;
        b.report.row(
            &format!("max pool {dtype} 3x3 s2 64x112x112"),
            m.seconds,
            None,
        );
        let (g, tensors) = stateful(&[x()], |g, v| {
            let sizes = [entries, 64, 224, 224];
            g.resize(v[0], sizes, tercet::ops::ResizeMode::Linear)
        })?;
        let m = measure(b, &g, &tensors)?;
        b.report.row(
            &format!("resize {dtype} linear 2x 64x112x112"),
            m.seconds,
            None,
        );
        let operands = [
            (
                "x",
                Type::new(dtype, [entries, 128, 28, 28]),
                InputFill::Normal,
            ),
            ("w", Type::new(dtype, [128, 64, 4, 4]), InputFill::Normal),
        ];
        let (g, tensors) = stateful(&operands, |g, v| {
            let window = Window::new(2)
                .with_stride(&[2, 2])
                .with_pads(&[1, 1], &[1, 1]);
            g.conv_transpose(v[0], v[1], None, window, &[0, 0], 1)
        })?;
        let m = measure(b, &g, &tensors)?;
        let products = 2.0 * (entries * 128 * 28 * 28 * 64 * 16) as f64;
        let rate = (products / m.seconds * 1e-12, "TFLOP/s");
        b.report.row(
            &format!("conv transpose {dtype} 4x4 s2 128->64 28x28"),
            m.seconds,
            Some(rate),
        );
    }
    Ok(())
}

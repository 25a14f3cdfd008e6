//! Device times of real Fourier transforms, compared with the time to read and write them once.

use tercet::ops::FftNorm;
use tercet::{DType, Graph, OpError, Type, Value, fill::InputFill};

use crate::kernels::{measure, stateful};
use crate::{Bench, Result};

/// A measurement: name, operand shape, operator, and number of result elements.
struct Case {
    name: &'static str,
    x: Vec<usize>,
    build: fn(&mut Graph, &[Value]) -> std::result::Result<Value, OpError>,
    result: usize,
}

pub(crate) fn spectra(b: &mut Bench) -> Result<()> {
    let rows = if b.quick { 4 } else { 4096 };
    let signals = if b.quick { 1 } else { 32 };
    let frames = (160_000 - 400) / 160 + 1;
    let cases = [
        Case {
            name: "rfft of 4096",
            x: vec![rows, 4096],
            build: |g, v| g.rfft(v[0], FftNorm::Backward),
            result: rows * 2049 * 2,
        },
        Case {
            name: "irfft to 4096",
            x: vec![rows, 2049, 2],
            build: |g, v| g.irfft(v[0], 4096, FftNorm::Backward),
            result: rows * 4096,
        },
        Case {
            name: "rfft of 1000",
            x: vec![rows, 1000],
            build: |g, v| g.rfft(v[0], FftNorm::Backward),
            result: rows * 501 * 2,
        },
        Case {
            name: "stft of ten seconds, 400 by 160",
            x: vec![signals, 160_000],
            build: |g, v| {
                let window = g.scalar(DType::F32, 0.5)?;
                let window = g.expand(window, [400])?;
                g.stft(v[0], window, 400, 160)
            },
            result: signals * frames * 201 * 2,
        },
    ];
    for dtype in [DType::F32, DType::F16] {
        for case in cases
            .iter()
            .filter(|c| dtype == DType::F32 || !c.name.contains("stft"))
        {
            let x = [("x", Type::new(dtype, case.x.as_slice()), InputFill::Normal)];
            let (g, tensors) = stateful(&x, case.build)?;
            let m = measure(b, &g, &tensors)?;
            let read: usize = case.x.iter().product();
            let bytes = ((read + case.result) * dtype.size_bytes()) as f64;
            let name = format!("{} {dtype}, {} rows", case.name, case.x[0]);
            let rate = (bytes / m.seconds * 1e-9, "GB/s");
            b.report.row(&name, m.seconds, Some(rate));
        }
    }
    Ok(())
}

//! Device times of single operators.

use std::time::{Duration, Instant};

use tercet::ops::ReduceFn;
use tercet::scalar::UnaryFn;
use tercet::{
    CompileOptions, DType, Executable, Graph, OpError, OutputSelection, Scheme, Tensor, TensorType,
    Type, Value, fill::InputFill,
};

use crate::report::median;
use crate::{Bench, Result};

pub(crate) const RUNS: usize = 24;

/// The warm-up time before a measurement.
pub(crate) const WARM_UP: Duration = Duration::from_millis(400);

/// A graph whose operands are states, so that nothing is uploaded or prepared. Quantized weights
/// are parameters, as in models.
pub(crate) fn stateful(
    operands: &[(&str, Type, InputFill)],
    build: impl FnOnce(&mut Graph, &[Value]) -> std::result::Result<Value, OpError>,
) -> Result<(Graph, Vec<(String, Tensor)>)> {
    with_params(operands, &[], build)
}

/// As [`stateful`], with parameters after the states.
pub(crate) fn with_params(
    operands: &[(&str, Type, InputFill)],
    params: &[(&str, Type, InputFill)],
    build: impl FnOnce(&mut Graph, &[Value]) -> std::result::Result<Value, OpError>,
) -> Result<(Graph, Vec<(String, Tensor)>)> {
    let mut g = Graph::new();
    let mut values = Vec::new();
    let mut tensors = Vec::new();
    let states = operands.iter().map(|operand| (operand, false));
    let params = params.iter().map(|operand| (operand, true));
    for ((name, ty, fill), is_param) in states.chain(params) {
        let is_param = is_param || matches!(fill, InputFill::Blocks(_));
        values.push(match is_param {
            true => g.param(name, ty.clone())?,
            false => g.state(name, ty.clone())?,
        });
        let shape = ty.shape.as_known().ok_or("operands have known sizes")?;
        tensors.push((
            name.to_string(),
            pattern(&TensorType::new(ty.dtype, &shape), fill)?,
        ));
    }
    let y = build(&mut g, &values)?;
    g.output("y", y)?;
    Ok((g, tensors))
}

/// Random data. Above a million elements, a block with a prime number of elements repeats.
pub(crate) fn pattern(ty: &TensorType, fill: &InputFill) -> Result<Tensor> {
    tercet_tests::steps::pattern("bench", ty, fill)
}

pub(crate) struct Measured {
    pub(crate) seconds: f64,
    pub(crate) exe: Box<dyn Executable>,
}

/// The median device time of all steps of a run.
pub(crate) fn measure(b: &Bench, graph: &Graph, tensors: &[(String, Tensor)]) -> Result<Measured> {
    let mut exe = b.timed.compile(graph, &CompileOptions::new())?;
    let params = exe.signature().params.clone();
    for (name, tensor) in tensors {
        match params.iter().any(|p| p.name == *name) {
            true => exe.set_param(name, tensor.clone())?,
            false => exe.write_state(name, tensor)?,
        }
    }
    let mut outputs = Vec::new();
    let mut times = Vec::new();
    // An idle device lowers its clock, so keep it busy until the clock is up.
    let began = Instant::now();
    while times.len() < RUNS {
        exe.submit(&[], OutputSelection::Only(&[]))?;
        exe.wait(&mut outputs)?;
        let steps = exe.timings();
        let start = steps.iter().map(|s| s.start_ns).min().unwrap_or(0);
        let end = steps.iter().map(|s| s.start_ns + s.ns).max().unwrap_or(0);
        if began.elapsed() > WARM_UP {
            times.push((end - start) as f64 * 1e-9);
        }
    }
    if b.steps {
        for step in exe.timings() {
            println!("    {:9.2} us  {}", step.ns as f64 * 1e-3, step.kernel);
        }
    }
    Ok(Measured {
        seconds: median(times),
        exe,
    })
}

/// Compares some elements of a matmul with sums in F64.
fn check_product(
    m: &mut Measured,
    a: &[f64],
    b: &[f64],
    [rows, n, k]: [usize; 3],
    dtype: DType,
) -> Result<()> {
    let row = rows / 2;
    let got = m.exe.read_output_rows("y", row..row + 1)?.to_f64s();
    let allowed = if dtype == DType::F32 { 1e-5 } else { 8e-3 };
    for j in (0..n).step_by((n / 17).max(1)) {
        let terms = (0..k).map(|i| a[row * k + i] * b[i * n + j]);
        let want: f64 = terms.clone().sum();
        let scale: f64 = terms.map(|t| t * t).sum::<f64>().sqrt();
        if (got[j] - want).abs() > allowed * (want.abs() + scale) {
            return Err(format!("matmul [{row}, {j}] is {}, expected {want}", got[j]).into());
        }
    }
    Ok(())
}

pub(crate) fn gemm(b: &mut Bench) -> Result<()> {
    let all: &[usize] = &[1024, 2048, 4096, 8192];
    let sizes = if b.quick { &[256][..] } else { all };
    let uniform = || InputFill::Uniform(-1.0, 1.0);
    let mut shapes: Vec<[usize; 3]> = sizes.iter().map(|&n| [n, n, n]).collect();
    if !b.quick {
        shapes.extend([[4096, 3072, 768], [4096, 768, 768], [4096, 2304, 768]]);
        shapes.push([4096, 768, 3072]);
    }
    for dtype in [DType::F16, DType::BF16, DType::F32] {
        for &[m, n, k] in &shapes {
            let name = format!("gemm {dtype} {m}x{n}x{k}");
            let operands = [
                ("a", Type::new(dtype, [m, k]), uniform()),
                ("b", Type::new(dtype, [k, n]), uniform()),
            ];
            let (g, tensors) = stateful(&operands, |g, v| g.matmul(v[0], v[1]))?;
            match measure(b, &g, &tensors) {
                Ok(mut measured) => {
                    let (x, y) = (tensors[0].1.to_f64s(), tensors[1].1.to_f64s());
                    if let Err(e) = check_product(&mut measured, &x, &y, [m, n, k], dtype) {
                        b.report.failed(&name, &e.to_string());
                        continue;
                    }
                    let rate = 2.0 * (m * n * k) as f64 / measured.seconds * 1e-12;
                    b.report
                        .row(&name, measured.seconds, Some((rate, "TFLOP/s")));
                }
                Err(e) => b.report.failed(&name, &e.to_string()),
            }
        }
    }
    layers(b)
}

/// Matmuls of encoders: weights as parameters, with bias and activation.
fn layers(b: &mut Bench) -> Result<()> {
    let rows = if b.quick { 64 } else { 4096 };
    let layers = [
        (3072, 768, Some(UnaryFn::Gelu)),
        (768, 3072, None),
        (768, 768, None),
        (2304, 768, None),
    ];
    for (n, k, f) in layers {
        let (n, k) = if b.quick { (n / 48, k / 48) } else { (n, k) };
        let uniform = || InputFill::Uniform(-1.0, 1.0);
        let x = ("x", Type::new(DType::F16, [rows, k]), uniform());
        let w = ("w", Type::new(DType::F16, [k, n]), uniform());
        let bias = ("bias", Type::new(DType::F16, [n]), uniform());
        let (g, tensors) =
            with_params(&[x], &[w, bias], |g, v| g.linear(v[0], v[1], Some(v[2]), f))?;
        let of = f.map_or("", |f| f.name());
        let name = format!("layer f16 {rows}x{n}x{k}, bias {of}");
        let m = measure(b, &g, &tensors)?;
        let rate = 2.0 * (rows * n * k) as f64 / m.seconds * 1e-12;
        b.report.row(&name, m.seconds, Some((rate, "TFLOP/s")));
    }
    Ok(())
}

/// Skinny quantized GEMMs: two large matrices in each format, one of them with several rows, then
/// the matmuls of a decode step of a 1.1B model.
pub(crate) fn gemv(b: &mut Bench) -> Result<()> {
    let large = [
        Scheme::F16,
        Scheme::Q8_0,
        Scheme::Q4_0,
        Scheme::Q4K,
        Scheme::Q6K,
    ];
    if b.quick {
        return large.into_iter().try_for_each(|s| {
            [1, 3]
                .into_iter()
                .try_for_each(|m| gemv_of(b, s, DType::F32, [m, 256, 256]))
        });
    }
    for scheme in large {
        for shape in [
            [1, 4096, 4096],
            [1, 14336, 4096],
            [1, 4096, 14336],
            [2, 14336, 4096],
            [4, 14336, 4096],
            [8, 14336, 4096],
        ] {
            gemv_of(b, scheme, DType::F32, shape)?;
        }
        gemv_of(b, scheme, DType::F32, [8, 4096, 14336])?;
        gemv_of(b, scheme, DType::F16, [8, 14336, 4096])?;
    }
    for scheme in [Scheme::F16, Scheme::Q8_0, Scheme::Q4K] {
        for [n, k] in [
            [2048, 2048],
            [256, 2048],
            [5632, 2048],
            [2048, 5632],
            [32000, 2048],
        ] {
            gemv_of(b, scheme, DType::F32, [1, n, k])?;
        }
    }
    for scheme in [Scheme::Q8_0, Scheme::Q4_0, Scheme::Q4K, Scheme::Q6K] {
        gemv_of(b, scheme, DType::F16, [4096, 4096, 4096])?;
    }
    Ok(())
}

/// Rows of `dtype` times quantized weights.
fn gemv_of(b: &mut Bench, scheme: Scheme, dtype: DType, [m, n, k]: [usize; 3]) -> Result<()> {
    let stored = scheme.stored_len(k).ok_or("whole blocks")?;
    let weights = Type::new(scheme.storage(), [n, stored]);
    let operands = [
        ("x", Type::new(dtype, [m, k]), InputFill::Uniform(-1.0, 1.0)),
        ("w", weights, InputFill::Blocks(scheme)),
    ];
    let (g, tensors) = stateful(&operands, |g, v| g.dequant_matmul(v[0], v[1], scheme))?;
    let name = match m {
        1 => format!("gemv {} {n}x{k}", scheme.name()),
        256.. => format!("{dtype} {m}x{k} times {} of {n} columns", scheme.name()),
        _ => format!("gemv {} {n}x{k}, {m} rows {dtype}", scheme.name()),
    };
    let mut measured = match measure(b, &g, &tensors) {
        Ok(measured) => measured,
        Err(e) => {
            b.report.failed(&name, &e.to_string());
            return Ok(());
        }
    };
    if let Err(e) = check_weights(&mut measured, &tensors, scheme, [m, n, k]) {
        b.report.failed(&name, &e.to_string());
        return Ok(());
    }
    let bytes = tensors[1].1.bytes().len() as f64;
    let rate = match m {
        256.. => (2e-12 * (m * n * k) as f64 / measured.seconds, "TFLOP/s"),
        _ => (bytes / measured.seconds * 1e-9, "GB/s"),
    };
    b.report.row(&name, measured.seconds, Some(rate));
    Ok(())
}

/// Compares some elements of the last row with F64 sums over dequantized weights.
fn check_weights(
    measured: &mut Measured,
    tensors: &[(String, Tensor)],
    scheme: Scheme,
    [m, n, k]: [usize; 3],
) -> Result<()> {
    let (x, w) = (tensors[0].1.to_f64s(), tensors[1].1.bytes());
    let row_bytes = w.len() / n;
    let allowed = match tensors[0].1.dtype() {
        DType::F32 => 1e-5,
        _ => 2e-3,
    };
    let got = measured.exe.read_output_rows("y", m - 1..m)?.to_f64s();
    let mut weights = vec![0.0; k];
    for j in (0..n).step_by((n / 17).max(1)).chain([n - 1]) {
        scheme.dequantize(&w[j * row_bytes..][..row_bytes], &mut weights)?;
        let terms = weights.iter().zip(&x[(m - 1) * k..]);
        let terms = terms.map(|(w, x)| f64::from(*w) * x);
        let want: f64 = terms.clone().sum();
        let scale: f64 = terms.map(|t| t * t).sum::<f64>().sqrt();
        if (got[j] - want).abs() > allowed * (want.abs() + scale) {
            return Err(format!("column {j} is {}, expected {want}", got[j]).into());
        }
    }
    Ok(())
}

pub(crate) fn rows(b: &mut Bench) -> Result<()> {
    let [rows, cols] = if b.quick { [64, 256] } else { [8192, 4096] };
    let x = || ("x", Type::new(DType::F32, [rows, cols]), InputFill::Normal);
    let gain = |name| (name, Type::new(DType::F32, [cols]), InputFill::Normal);
    let bytes = (rows * cols * 4) as f64;
    type Case<'a> = (
        &'static str,
        Vec<(&'a str, Type, InputFill)>,
        fn(&mut Graph, &[Value]) -> std::result::Result<Value, OpError>,
        f64,
    );
    let cases: [Case<'_>; 7] = [
        ("softmax", vec![x()], |g, v| g.softmax(v[0], 1), 2.0),
        (
            "layer_norm",
            vec![x(), gain("g"), gain("h")],
            |g, v| g.layer_norm(v[0], v[1], Some(v[2]), 1, 1e-5),
            2.0,
        ),
        (
            "rms_norm",
            vec![x(), gain("g")],
            |g, v| g.rms_norm(v[0], v[1], None, 1e-5),
            2.0,
        ),
        ("gelu", vec![x()], |g, v| g.gelu(v[0]), 2.0),
        (
            "row sum",
            vec![x()],
            |g, v| g.reduce(ReduceFn::Sum, v[0], &[1], false),
            1.0,
        ),
        (
            "transpose",
            vec![x()],
            |g, v| g.transpose(v[0], &[1, 0]),
            2.0,
        ),
        ("cumsum", vec![x()], |g, v| g.cum_sum(v[0], 1), 2.0),
    ];
    for (name, operands, build, passes) in cases {
        let (g, tensors) = stateful(&operands, build)?;
        let name = format!("{name} f32 {rows}x{cols}");
        match measure(b, &g, &tensors) {
            Ok(m) => {
                let rate = passes * bytes / m.seconds * 1e-9;
                b.report.row(&name, m.seconds, Some((rate, "GB/s")));
            }
            Err(e) => b.report.failed(&name, &e.to_string()),
        }
    }
    Ok(())
}

/// Eight elementwise operators in one pass, and a copy of the same number of bytes.
pub(crate) fn chain(b: &mut Bench) -> Result<()> {
    let n = if b.quick { 1 << 16 } else { 64 << 20 };
    let x = || [("x", Type::new(DType::F32, [n]), InputFill::Normal)];
    let bytes = 8.0 * n as f64;
    let (g, tensors) = stateful(&x(), |g, v| {
        let mut y = v[0];
        for _ in 0..2 {
            y = g.mul(y, v[0])?;
            y = g.plus(y, v[0])?;
            y = g.relu(y)?;
            y = g.sub(y, v[0])?;
        }
        Ok(y)
    })?;
    let m = measure(b, &g, &tensors)?;
    let rate = bytes / m.seconds * 1e-9;
    b.report.row(
        &format!("chain of 8, {n} f32"),
        m.seconds,
        Some((rate, "GB/s")),
    );
    // A transpose without effect is a copy of the state.
    let (g, tensors) = stateful(&x(), |g, v| g.neg(v[0]))?;
    let m = measure(b, &g, &tensors)?;
    let rate = bytes / m.seconds * 1e-9;
    b.report
        .row(&format!("neg, {n} f32"), m.seconds, Some((rate, "GB/s")));
    Ok(())
}

/// An elementwise function of `inputs` operands with the same shape.
type MapCase = (
    &'static str,
    usize,
    fn(&mut Graph, &[Value]) -> std::result::Result<Value, OpError>,
);

const MAPS: [MapCase; 11] = [
    ("neg", 1, |g, v| g.neg(v[0])),
    ("exp", 1, |g, v| g.exp(v[0])),
    ("tanh", 1, |g, v| g.tanh(v[0])),
    ("sigmoid", 1, |g, v| g.sigmoid(v[0])),
    ("silu", 1, |g, v| g.silu(v[0])),
    ("gelu", 1, |g, v| g.gelu(v[0])),
    ("gelu_tanh", 1, |g, v| g.unary(UnaryFn::GeluTanh, v[0])),
    ("sqrt", 1, |g, v| g.sqrt(v[0])),
    ("add", 2, |g, v| g.plus(v[0], v[1])),
    ("div", 2, |g, v| g.div(v[0], v[1])),
    ("silu mul", 2, |g, v| {
        let gate = g.silu(v[0])?;
        g.mul(gate, v[1])
    }),
];

/// Elementwise functions on more data than the caches hold.
pub(crate) fn maps(b: &mut Bench) -> Result<()> {
    let n = if b.quick { 1 << 16 } else { 64 << 20 };
    for dtype in [DType::F32, DType::F16] {
        let x = |name| (name, Type::new(dtype, [n]), InputFill::Normal);
        for (name, inputs, build) in MAPS {
            let (g, tensors) = stateful(&[x("x"), x("y")][..inputs], build)?;
            let m = measure(b, &g, &tensors)?;
            let bytes = ((inputs + 1) * n * dtype.size_bytes()) as f64;
            let rate = bytes / m.seconds * 1e-9;
            b.report.row(
                &format!("{name}, {n} {dtype}"),
                m.seconds,
                Some((rate, "GB/s")),
            );
        }
    }
    Ok(())
}

/// Three hundred small dependent steps.
pub(crate) fn overhead(b: &mut Bench) -> Result<()> {
    const STEPS: usize = 300;
    let mut g = Graph::new();
    let mut x = g.input("x", Type::new(DType::F32, [1, 64]))?;
    for _ in 0..STEPS {
        x = g.softmax(x, 1)?;
    }
    g.output("y", x)?;
    let input = InputFill::Normal.tensor("x", TensorType::new(DType::F32, &[1, 64]));
    let mut exe = b.device.compile(&g, &CompileOptions::new())?;
    let (mut wall, mut host) = (Vec::new(), Vec::new());
    let mut outputs = Vec::new();
    let began = Instant::now();
    while began.elapsed() < WARM_UP || wall.len() < 50 {
        let start = Instant::now();
        exe.submit(&[("x", &input)], OutputSelection::All)?;
        host.push(start.elapsed().as_secs_f64());
        exe.wait(&mut outputs)?;
        wall.push(start.elapsed().as_secs_f64());
    }
    let wall = median(wall);
    let per_step = wall / STEPS as f64 * 1e6;
    b.report.row(
        "300 dependent dispatches, wall",
        wall,
        Some((per_step, "us/dispatch")),
    );
    b.report
        .row("300 dependent dispatches, host", median(host), None);
    Ok(())
}

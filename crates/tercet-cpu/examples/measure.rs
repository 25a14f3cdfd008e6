//! Quick benchmarks of the CPU executor: `cargo run --release -p tercet-cpu --example measure`.
//!
//! Measures eight chained elementwise operators over 4M floats, compared with a plain copy of the
//! same memory. Also measures a BERT-base layer at 128 tokens and the overhead of one small node.

use std::hint::black_box;
use std::time::{Duration, Instant};

use tercet_cpu::CpuBackend;
use tercet_ir::fill::InputFill;
use tercet_ir::ops::{AttentionLayout, AttentionOptions};
use tercet_ir::scalar::{BinaryFn, UnaryFn};
use tercet_ir::{Backend, CompileOptions, DType, Executable, Graph, Tensor, TensorType, Type};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn best(mut f: impl FnMut(), times: usize) -> Duration {
    let once = |f: &mut dyn FnMut()| {
        let start = Instant::now();
        f();
        start.elapsed()
    };
    (0..times).map(|_| once(&mut f)).min().unwrap_or_default()
}

fn f32s(shape: &[usize]) -> Type {
    Type::new(DType::F32, shape)
}

fn time(graph: &Graph, inputs: &[(&str, &Tensor)], times: usize) -> Result<Duration> {
    let mut exe: Box<dyn Executable> = CpuBackend::new().compile(graph, &CompileOptions::new())?;
    for port in exe.signature().params.clone() {
        let shape = port.ty.shape.as_known().unwrap_or_default();
        let ty = TensorType::new(port.ty.dtype, &shape);
        exe.set_param(
            &port.name,
            InputFill::Uniform(-0.1, 0.1).tensor(&port.name, ty),
        )?;
    }
    let mut outputs = Vec::new();
    exe.run_into(inputs, &mut outputs)?;
    let mut failed = None;
    let time = best(|| failed = exe.run_into(inputs, &mut outputs).err(), times);
    match failed {
        Some(e) => Err(e.into()),
        None => Ok(time),
    }
}

fn chain() -> Result<()> {
    let n = 4 << 20;
    let mut g = Graph::new();
    let x = g.input("x", f32s(&[n]))?;
    let scalar = |g: &mut Graph, v| g.scalar(DType::F32, v);
    let (scale, shift, top) = (
        scalar(&mut g, 1.5)?,
        scalar(&mut g, -0.25)?,
        scalar(&mut g, 3.0)?,
    );
    let mut y = g.mul(x, scale)?;
    y = g.plus(y, shift)?;
    y = g.relu(y)?;
    y = g.mul(y, x)?;
    y = g.sub(y, scale)?;
    y = g.abs(y)?;
    y = g.binary(BinaryFn::Min, y, top)?;
    y = g.neg(y)?;
    g.output("y", y)?;
    let x = Tensor::from_slice(&[n], &vec![0.5f32; n])?;
    let time = time(&g, &[("x", &x)], 20)?;
    let (from, mut to) = (vec![1f32; n], vec![0f32; n]);
    let copy = best(
        || {
            let (a, b) = to.split_at_mut(n / 2);
            rayon::join(
                || a.copy_from_slice(&from[..n / 2]),
                || b.copy_from_slice(&from[n / 2..]),
            );
            black_box(&to);
        },
        20,
    );
    let rate = |t: Duration| 8.0 * n as f64 / t.as_secs_f64() / 1e9;
    println!(
        "chain of 8, 4M f32: {:.1} GB/s; copy: {:.1} GB/s; chain takes {:.2} times the copy's time",
        rate(time),
        rate(copy),
        time.as_secs_f64() / copy.as_secs_f64()
    );
    Ok(())
}

fn layer() -> Result<()> {
    let (s, d, heads) = (128, 768, 12);
    let mut g = Graph::new();
    let x = g.input("x", f32s(&[1, s, d]))?;
    let project = |g: &mut Graph, name: &str, x, from, to, f| {
        let w = g.param(name, f32s(&[from, to]))?;
        let b = g.param(&format!("{name}_b"), f32s(&[to]))?;
        g.linear(x, w, Some(b), f)
    };
    let mut parts = Vec::new();
    for name in ["q", "k", "v"] {
        let p = project(&mut g, name, x, d, d, None)?;
        parts.push(g.reshape(p, [1, s, heads, d / heads])?);
    }
    let options = AttentionOptions::new(heads, heads, AttentionLayout::Bshd);
    let a = g.attention(parts[0], parts[1], parts[2], options)?;
    let a = g.reshape(a, [1, s, d])?;
    let a = project(&mut g, "o", a, d, d, None)?;
    let (gamma, beta) = (g.param("gamma", f32s(&[d]))?, g.param("beta", f32s(&[d]))?);
    let sum = g.plus(a, x)?;
    let h = g.layer_norm(sum, gamma, Some(beta), 2, 1e-12)?;
    let f = project(&mut g, "up", h, d, 4 * d, Some(UnaryFn::Gelu))?;
    let f = project(&mut g, "down", f, 4 * d, d, None)?;
    let sum = g.plus(f, h)?;
    let y = g.layer_norm(sum, gamma, Some(beta), 2, 1e-12)?;
    g.output("y", y)?;
    let x = InputFill::Normal.tensor("x", TensorType::new(DType::F32, &[1, s, d]));
    let time = time(&g, &[("x", &x)], 20)?;
    let flops = 2.0 * (s * d * d * 12 + 2 * s * s * d) as f64;
    println!(
        "BERT-base layer, 128 tokens: {time:.2?}, {:.0} GFLOP/s",
        flops / time.as_secs_f64() / 1e9
    );
    Ok(())
}

fn overhead() -> Result<()> {
    let nodes = 500;
    let mut g = Graph::new();
    let x = g.input("x", f32s(&[1, 8]))?;
    let gamma = g.param("gamma", f32s(&[8]))?;
    let mut y = x;
    for _ in 0..nodes {
        y = g.rms_norm(y, gamma, None, 1e-5)?;
    }
    g.output("y", y)?;
    let x = InputFill::Normal.tensor("x", TensorType::new(DType::F32, &[1, 8]));
    let time = time(&g, &[("x", &x)], 200)?;
    println!(
        "one node of 8 elements: {:.0} ns",
        time.as_secs_f64() * 1e9 / f64::from(nodes)
    );
    Ok(())
}

fn main() -> Result<()> {
    chain()?;
    layer()?;
    overhead()
}

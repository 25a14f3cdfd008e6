//! Benches of typical work on the CPU executor: a sentence encoder, a language model and fused
//! elementwise operators. `cargo xtask bench cpu` runs the benches and compares the results with
//! peers.
//!
//! Throughput is tokens in the groups `minilm`, `prefill` and `decode`. In the group `chain`,
//! throughput is bytes, each read and written once.

use std::hint::black_box;
use std::path::{Path, PathBuf};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use rayon::prelude::*;
use serde_json::Value;
use tercet::ops::Window;
use tercet::{CompileOptions, DType, Device, Graph, OpError, Tensor, Type};
use tercet_models::{DecoderOptions, EncoderOutput, ModelFiles};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Batch and sequence length of the encoder runs.
const SHAPES: [(usize, usize); 4] = [(1, 16), (1, 128), (8, 128), (32, 128)];
const CHAIN_LEN: usize = 4 << 20;

fn minilm(c: &mut Criterion) -> Result<()> {
    let Some(dir) = std::env::var_os("TERCET_MINILM_DIR").map(PathBuf::from) else {
        eprintln!("minilm: skipped, TERCET_MINILM_DIR is not set (run `cargo xtask bench cpu`)");
        return Ok(());
    };
    let bert = ModelFiles::open(&dir)?.encoder(&EncoderOutput::Hidden, DType::F32)?;
    let mut exe = bert.compile(&Device::cpu(), 32, 128)?;
    let mut group = c.benchmark_group("minilm");
    group.sample_size(20);
    for (batch, seq) in SHAPES {
        let n = batch * seq;
        let shape = [batch, seq];
        let ids: Vec<i32> = (0..n).map(|i| 1000 + (i * 7919 % 20000) as i32).collect();
        let ids = Tensor::from_slice(&shape, &ids)?;
        let type_ids = Tensor::from_slice(&shape, &vec![0i32; n])?;
        let mask = Tensor::from_bools(&shape, &vec![true; n])?;
        let mut outputs = Vec::new();
        group.throughput(Throughput::Elements(n as u64));
        group.bench_function(format!("{batch}x{seq}"), |b| {
            b.iter(|| {
                let inputs = [("ids", &ids), ("type_ids", &type_ids), ("mask", &mask)];
                exe.run_into(black_box(&inputs), &mut outputs)
                    .expect("the encoder runs");
            });
        });
    }
    group.finish();
    Ok(())
}

fn demo_model(c: &mut Criterion) -> Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/tiny-rust-llama");
    for (name, file) in [
        ("demo_q8_0", "tiny-rust-llama-q8_0.gguf"),
        ("demo_f16", "tiny-rust-llama-f16.gguf"),
    ] {
        let llama = ModelFiles::open(folder.join(file))?.decoder(DecoderOptions::new)?;
        let mut generator = llama.generator(&Device::cpu())?;
        let prompt: Vec<u32> = (0..256).map(|i| i * 31 % 2048).collect();

        let mut group = c.benchmark_group("prefill");
        group
            .sample_size(20)
            .throughput(Throughput::Elements(prompt.len() as u64));
        group.bench_function(name, |b| {
            b.iter(|| {
                generator.truncate(0);
                generator
                    .forward(black_box(&prompt))
                    .expect("the prompt runs")
                    .next
            });
        });
        group.finish();

        let mut group = c.benchmark_group("decode");
        group.throughput(Throughput::Elements(1));
        group.bench_function(name, |b| {
            b.iter(|| {
                // Keep the number of cached tokens between 256 and 384.
                if generator.position() >= 384 {
                    generator.truncate(256);
                }
                generator
                    .forward(black_box(&[17]))
                    .expect("the token runs")
                    .next
            });
        });
        group.finish();
    }
    Ok(())
}

/// A chain of eight cheap elementwise operators, which fusion turns into one pass over memory.
fn chain_graph() -> std::result::Result<Graph, OpError> {
    let mut g = Graph::new();
    let x = g.input("x", Type::new(DType::F32, [CHAIN_LEN]))?;
    let k: Vec<_> = [1.5, -0.25, 0.75, 3.0]
        .iter()
        .map(|&k| g.scalar(DType::F32, k))
        .collect::<std::result::Result<_, _>>()?;
    let mut y = g.mul(x, k[0])?;
    y = g.plus(y, k[1])?;
    y = g.relu(y)?;
    y = g.mul(y, k[2])?;
    y = g.sub(y, k[3])?;
    y = g.abs(y)?;
    y = g.min(y, k[3])?;
    y = g.neg(y)?;
    g.output("y", y)?;
    Ok(g)
}

fn chain(c: &mut Criterion) -> Result<()> {
    let mut exe = Device::cpu().compile(&chain_graph()?, &CompileOptions::new())?;
    let values: Vec<f32> = (0..CHAIN_LEN)
        .map(|i| (i % 1000) as f32 * 0.01 - 5.0)
        .collect();
    let x = Tensor::from_slice(&[CHAIN_LEN], &values)?;
    let mut outputs = Vec::new();
    let mut group = c.benchmark_group("chain");
    group.throughput(Throughput::Bytes(2 * 4 * CHAIN_LEN as u64));
    group.bench_function("8_ops_4m", |b| {
        b.iter(|| {
            exe.run_into(black_box(&[("x", &x)]), &mut outputs)
                .expect("the chain runs")
        });
    });
    let mut copy = vec![0f32; CHAIN_LEN];
    group.bench_function(BenchmarkId::new("8_ops_4m", "peer-copy"), |b| {
        b.iter(|| {
            let part = CHAIN_LEN.div_ceil(rayon::current_num_threads());
            let parts = copy.par_chunks_mut(part).zip(values.par_chunks(part));
            parts.for_each(|(to, from)| to.copy_from_slice(black_box(from)));
        });
    });
    group.finish();
    Ok(())
}

/// Convolutions of vision networks, also read by the peer (`xtask/peers/conv_ort.py`): shapes of x
/// and w, and a common stride. The padding is half the kernel size.
const CONVOLUTIONS: &str = include_str!("conv.json");

/// The sizes in a JSON field.
fn sizes(case: &Value, field: &str) -> Result<Vec<usize>> {
    let sizes = case[field].as_array().ok_or("the list of sizes")?;
    let sizes = sizes.iter().map(|n| n.as_u64().map(|n| n as usize));
    Ok(sizes.collect::<Option<_>>().ok_or("sizes are numbers")?)
}

/// Convolutions with bias; the weights are parameters.
fn conv(c: &mut Criterion) -> Result<()> {
    let mut group = c.benchmark_group("conv");
    group.sample_size(20);
    let cases: Vec<Value> = serde_json::from_str(CONVOLUTIONS)?;
    for case in &cases {
        let (x, w) = (sizes(case, "x")?, sizes(case, "w")?);
        let number = |field: &str| case[field].as_u64().map(|n| n as usize);
        let (stride, groups) = number("stride").zip(number("groups")).ok_or("numbers")?;
        let axes = x.len() - 2;
        let pads: Vec<usize> = w[2..].iter().map(|k| k / 2).collect();
        let window = Window::new(axes)
            .with_stride(&vec![stride; axes])
            .with_pads(&pads, &pads);
        let mut g = Graph::new();
        let input = g.input("x", Type::new(DType::F32, &x[..]))?;
        let weights = g.param("w", Type::new(DType::F32, &w[..]))?;
        let bias = g.param("bias", Type::new(DType::F32, [w[0]]))?;
        let y = g.conv(input, weights, Some(bias), window, groups)?;
        let results = g.ty(y).shape.as_known().ok_or("sizes are known")?;
        g.output("y", y)?;
        let mut exe = Device::cpu().compile(&g, &CompileOptions::new())?;
        let tensor = |shape: &[usize]| {
            let count: usize = shape.iter().product();
            let values: Vec<f32> = (0..count).map(|i| (i % 97) as f32 * 0.02 - 1.0).collect();
            Tensor::from_slice(shape, &values)
        };
        exe.set_param("w", tensor(&w)?)?;
        exe.set_param("bias", tensor(&w[..1])?)?;
        let x = tensor(&x)?;
        let products = results.iter().product::<usize>() * w[1..].iter().product::<usize>();
        let mut outputs = Vec::new();
        group.throughput(Throughput::Elements(2 * products as u64));
        group.bench_function(case["name"].as_str().ok_or("a name")?, |b| {
            b.iter(|| {
                exe.run_into(black_box(&[("x", &x)]), &mut outputs)
                    .expect("the convolution runs")
            });
        });
    }
    group.finish();
    Ok(())
}

fn all(c: &mut Criterion) {
    for bench in [minilm, demo_model, chain, conv] {
        bench(c).expect("the models and graphs of the benches are sound");
    }
}

criterion_group!(benches, all);
criterion_main!(benches);

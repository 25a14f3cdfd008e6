//! Device times of training operators: gradients of single operators, and the weight update.
//! `steps.rs` measures complete steps.

use std::time::Instant;

use tercet::ops::{AttentionLayout, AttentionOptions, Window};
use tercet::train::{AdamW, LEARNING_RATE, StepOptions, TrainStep, Trainable};
use tercet::{
    CompileOptions, DType, Graph, OpError, OutputSelection, Tensor, TensorType, Type, Value,
    fill::InputFill,
};

use crate::kernels::{Measured, RUNS, WARM_UP, measure};
use crate::report::median;
use crate::{Bench, Result};

/// Gradients of attention, which are also part of the group `training`.
pub(crate) fn training_attention(b: &mut Bench) -> Result<()> {
    for dtype in [DType::F16, DType::F32] {
        attention(b, dtype, false)?;
        attention(b, dtype, true)?;
    }
    Ok(())
}

pub(crate) fn training(b: &mut Bench) -> Result<()> {
    for dtype in [DType::F16, DType::F32] {
        rows(b, dtype)?;
        cross_entropy(b, dtype)?;
        embedding(b, dtype)?;
        convolution(b, dtype)?;
    }
    adamw(b)
}

/// A graph with the gradients of `build`'s result with respect to states of these types; the
/// cotangent is a state, too. The graph includes the forward pass if the gradients need it.
fn backward(
    b: &Bench,
    operands: &[(&str, Type, InputFill)],
    trained: usize,
    build: impl FnOnce(&mut Graph, &[Value]) -> std::result::Result<Value, OpError>,
) -> Result<Measured> {
    let mut g = Graph::new();
    let (mut values, mut tensors) = (Vec::new(), Vec::new());
    for (name, ty, fill) in operands {
        values.push(g.state(name, ty.clone())?);
        tensors.push((name.to_string(), data(ty, fill)?));
    }
    let y = build(&mut g, &values)?;
    let ty = g.ty(y).clone();
    let dy = g.state("dy", ty.clone())?;
    tensors.push(("dy".to_string(), data(&ty, &InputFill::Normal)?));
    let gradients = g.vjp(&[(y, dy)], &values[..trained])?;
    for (i, gradient) in gradients.into_iter().flatten().enumerate() {
        g.output(&format!("gradient {i}"), gradient)?;
    }
    measure(b, &g, &tensors)
}

fn data(ty: &Type, fill: &InputFill) -> Result<Tensor> {
    let shape = ty.shape.as_known().ok_or("operands have known sizes")?;
    crate::kernels::pattern(&TensorType::new(ty.dtype, &shape), fill)
}

fn report(b: &mut Bench, name: &str, measured: Result<Measured>, bytes: Option<usize>) {
    match measured {
        Ok(m) => {
            let rate = bytes.map(|n| (n as f64 / m.seconds * 1e-9, "GB/s"));
            b.report.row(name, m.seconds, rate);
        }
        Err(e) => b.report.failed(name, &e.to_string()),
    }
}

fn attention(b: &mut Bench, dtype: DType, causal: bool) -> Result<()> {
    let shape = if b.quick {
        [1, 2, 64, 64]
    } else {
        [8, 16, 1024, 64]
    };
    let heads = shape[1];
    let ty = || Type::new(dtype, shape);
    let operands = ["q", "k", "v"].map(|name| (name, ty(), InputFill::Normal));
    let measured = backward(b, &operands, 3, |g, v| {
        let options = AttentionOptions::new(heads, heads, AttentionLayout::Bhsd);
        let options = if causal { options.causal() } else { options };
        g.attention(v[0], v[1], v[2], options)
    });
    let what = if causal {
        "causal attention"
    } else {
        "attention"
    };
    report(
        b,
        &format!("{what} backward {dtype} {shape:?}"),
        measured,
        None,
    );
    Ok(())
}

/// Norms and softmax along rows.
fn rows(b: &mut Bench, dtype: DType) -> Result<()> {
    let [rows, len] = if b.quick { [64, 256] } else { [8192, 4096] };
    let x = ("x", Type::new(dtype, [rows, len]), InputFill::Normal);
    let gamma = (
        "gamma",
        Type::new(dtype, [len]),
        InputFill::Uniform(0.5, 1.5),
    );
    let beta = ("beta", Type::new(dtype, [len]), InputFill::Normal);
    // x and dy are read once, and dx is written once.
    let bytes = Some(3 * rows * len * dtype.size_bytes());
    let operands = [x.clone(), gamma.clone(), beta];
    let measured = backward(b, &operands, 3, |g, v| {
        g.layer_norm(v[0], v[1], Some(v[2]), 1, 1e-5)
    });
    report(
        b,
        &format!("layer norm backward {dtype} {rows}x{len}"),
        measured,
        bytes,
    );
    let operands = [x.clone(), gamma];
    let measured = backward(b, &operands, 2, |g, v| g.rms_norm(v[0], v[1], None, 1e-5));
    report(
        b,
        &format!("rms norm backward {dtype} {rows}x{len}"),
        measured,
        bytes,
    );
    let measured = backward(b, &[x], 1, |g, v| g.softmax(v[0], 1));
    report(
        b,
        &format!("softmax backward {dtype} {rows}x{len}"),
        measured,
        bytes,
    );
    Ok(())
}

/// The mean cross-entropy of rows of logits, and its gradient.
fn cross_entropy(b: &mut Bench, dtype: DType) -> Result<()> {
    let [rows, vocab] = if b.quick { [64, 500] } else { [4096, 32000] };
    let mut g = Graph::new();
    let logits = g.state("logits", Type::new(dtype, [rows, vocab]))?;
    let labels = g.state("labels", Type::new(DType::I32, [rows]))?;
    let loss = tercet_tests::steps::cross_entropy(&mut g, logits, labels, vocab)?;
    let gradients = g.gradients(loss, &[logits])?;
    g.output("loss", loss)?;
    g.output("gradient", gradients[0])?;
    let tensors = [
        (
            "logits".to_string(),
            data(g.ty(logits), &InputFill::Normal)?,
        ),
        (
            "labels".to_string(),
            data(g.ty(labels), &InputFill::Index(vocab))?,
        ),
    ];
    let measured = measure(b, &g, &tensors);
    let bytes = Some(3 * rows * vocab * dtype.size_bytes());
    report(
        b,
        &format!("cross-entropy forward and backward {dtype} {rows}x{vocab}"),
        measured,
        bytes,
    );
    Ok(())
}

fn embedding(b: &mut Bench, dtype: DType) -> Result<()> {
    let [rows, vocab, width] = if b.quick {
        [64, 100, 64]
    } else {
        [8192, 32000, 2048]
    };
    let operands = [
        ("table", Type::new(dtype, [vocab, width]), InputFill::Normal),
        (
            "ids",
            Type::new(DType::I32, [rows]),
            InputFill::Index(vocab),
        ),
    ];
    let measured = backward(b, &operands, 1, |g, v| g.gather(v[0], v[1], 0));
    let bytes = Some((rows + vocab) * width * dtype.size_bytes());
    report(
        b,
        &format!("embedding backward {dtype} {rows} of {vocab}x{width}"),
        measured,
        bytes,
    );
    Ok(())
}

fn convolution(b: &mut Bench, dtype: DType) -> Result<()> {
    let [batch, channels, side] = if b.quick { [1, 8, 16] } else { [32, 64, 56] };
    let operands = [
        (
            "x",
            Type::new(dtype, [batch, channels, side, side]),
            InputFill::Normal,
        ),
        (
            "w",
            Type::new(dtype, [channels, channels, 3, 3]),
            InputFill::Normal,
        ),
    ];
    let measured = backward(b, &operands, 2, |g, v| {
        g.conv(
            v[0],
            v[1],
            None,
            Window::new(2).with_pads(&[1, 1], &[1, 1]),
            1,
        )
    });
    report(
        b,
        &format!("conv 3x3 backward {dtype} {batch}x{channels}x{side}x{side}"),
        measured,
        None,
    );
    Ok(())
}

/// The weight update from gradients on the device: the time of the optimizer alone.
fn adamw(b: &mut Bench) -> Result<()> {
    let sizes: &[usize] = if b.quick {
        &[1000]
    } else {
        &[1 << 25, 1 << 25, 1 << 25, 1 << 25]
    };
    let mut g = Graph::new();
    let mut sum: Option<Value> = None;
    let (mut names, mut tensors) = (Vec::new(), Vec::new());
    for (i, &n) in sizes.iter().enumerate() {
        let ty = Type::new(DType::F32, [n]);
        let w = g.state(&format!("w{i}"), ty.clone())?;
        let d = g.state(&format!("d{i}"), ty.clone())?;
        // The gradient of this term with respect to `w` is `d`, which needs no computation.
        let product = g.mul(w, d)?;
        let part = g.reduce_sum(product, &[0], false)?;
        sum = Some(match sum {
            Some(sum) => g.plus(sum, part)?,
            None => part,
        });
        names.push(Trainable::new(format!("w{i}")));
        tensors.push((format!("d{i}"), data(&ty, &InputFill::Normal)?));
    }
    let loss = sum.ok_or("there are weights")?;
    let step = TrainStep::build(&g, loss, &names, &AdamW::default(), &StepOptions::default())?;
    let count: usize = sizes.iter().sum();
    let name = format!("AdamW f32 {count}");
    match longest_steps(b, step.graph(), &tensors, sizes.len()) {
        Ok(seconds) => {
            let rate = (28.0 * count as f64 / seconds * 1e-9, "GB/s");
            b.report.row(&name, seconds, Some(rate));
        }
        Err(e) => b.report.failed(&name, &e.to_string()),
    }
    Ok(())
}

/// The time of the updates in a training step. The updates, one per weight, are the `count` slowest
/// kernels of the step.
fn longest_steps(
    b: &Bench,
    graph: &Graph,
    tensors: &[(String, Tensor)],
    count: usize,
) -> Result<f64> {
    let mut exe = b.timed.compile(graph, &CompileOptions::new())?;
    for (name, tensor) in tensors {
        exe.write_state(name, tensor)?;
    }
    let (rate, mut outputs) = (Tensor::scalar(1e-3f32), Vec::new());
    let mut all = Vec::new();
    let began = Instant::now();
    while all.len() < RUNS {
        exe.submit(&[(LEARNING_RATE, &rate)], OutputSelection::Only(&[]))?;
        exe.wait(&mut outputs)?;
        let mut times: Vec<u64> = exe.timings().iter().map(|s| s.ns).collect();
        times.sort_unstable_by(|a, b| b.cmp(a));
        if began.elapsed() > WARM_UP {
            all.push(times.iter().take(count).sum::<u64>() as f64 * 1e-9);
        }
    }
    Ok(median(all))
}

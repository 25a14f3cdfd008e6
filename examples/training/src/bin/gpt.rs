//! Trains a small GPT from scratch on the bytes of one text, then generates text.

use tercet::ops::{AttentionLayout, AttentionOptions};
use tercet::train::EvalWeights;
use tercet::{CompileOptions, DType, Device, Dim, Graph, Tensor, Type, Value};
use training::{Curve, Failed, Model, cross_entropy, device, trainer};

/// Training text; every byte is a token.
const TEXT: &str = include_str!("../../../../LICENSE-APACHE");
const VOCAB: usize = 128;
const LEN: usize = 64;
const BATCH: usize = 16;
const WIDTH: usize = 64;
const HEADS: usize = 4;
const LAYERS: usize = 2;

/// Logits `[rows * LEN, VOCAB]` of `tokens [rows, LEN]`.
fn logits(m: &mut Model, tokens: Value, rows: Dim, dropout: f64) -> Result<Value, Failed> {
    let wte = m.weight("wte", &[VOCAB, WIDTH], 0.02)?;
    let wpe = m.weight("wpe", &[LEN, WIDTH], 0.02)?;
    let x = m.graph.gather(wte, tokens, 0)?;
    let x = m.graph.plus(x, wpe)?;
    let mut x = m.graph.dropout(x, dropout, 0)?;
    for layer in 0..LAYERS {
        let at = |part: &str| format!("h.{layer}.{part}");
        let h = norm(m, x, &at("norm_1"))?;
        let qkv = linear(m, h, &at("qkv"), WIDTH, 3 * WIDTH)?;
        let mut part = |i: usize| -> Result<Value, Failed> {
            let own = m.graph.narrow(qkv, 2, i * WIDTH, WIDTH)?;
            let heads = [
                rows.clone(),
                LEN.into(),
                HEADS.into(),
                (WIDTH / HEADS).into(),
            ];
            Ok(m.graph.reshape(own, heads)?)
        };
        let (q, k, v) = (part(0)?, part(1)?, part(2)?);
        let options = AttentionOptions::new(HEADS, HEADS, AttentionLayout::Bshd).causal();
        let y = m.graph.attention(q, k, v, options)?;
        let y = m
            .graph
            .reshape(y, [rows.clone(), LEN.into(), WIDTH.into()])?;
        let y = linear(m, y, &at("proj"), WIDTH, WIDTH)?;
        let y = m.graph.dropout(y, dropout, 0)?;
        x = m.graph.plus(x, y)?;
        let h = norm(m, x, &at("norm_2"))?;
        let h = linear(m, h, &at("up"), WIDTH, 4 * WIDTH)?;
        let h = m.graph.gelu(h)?;
        let y = linear(m, h, &at("down"), 4 * WIDTH, WIDTH)?;
        let y = m.graph.dropout(y, dropout, 0)?;
        x = m.graph.plus(x, y)?;
    }
    let x = norm(m, x, "norm_f")?;
    let table = m.graph.transpose(wte, &[1, 0])?;
    let y = m.graph.matmul(x, table)?;
    let all = rows.checked_mul(&LEN.into()).ok_or("too many rows")?;
    Ok(m.graph.reshape(y, [all, VOCAB.into()])?)
}

fn norm(m: &mut Model, x: Value, name: &str) -> Result<Value, Failed> {
    let gamma = m.filled(&format!("{name}.weight"), &[WIDTH], 1.0)?;
    let beta = m.filled(&format!("{name}.bias"), &[WIDTH], 0.0)?;
    Ok(m.graph.layer_norm(x, gamma, Some(beta), 2, 1e-5)?)
}

fn linear(m: &mut Model, x: Value, name: &str, inner: usize, out: usize) -> Result<Value, Failed> {
    let w = m.weight(&format!("{name}.weight"), &[inner, out], 0.05)?;
    let b = m.filled(&format!("{name}.bias"), &[out], 0.0)?;
    Ok(m.graph.linear(x, w, Some(b), None)?)
}

/// Rows of the text from positions that depend on the step.
fn batch(step: u64) -> Result<[Tensor; 2], Failed> {
    let text = TEXT.as_bytes();
    let places = tercet::random::PhiloxStream {
        seed: 1,
        stream: 0,
        step,
    };
    let (mut tokens, mut next) = (Vec::new(), Vec::new());
    for row in 0..BATCH as u64 {
        let at = places.unit(DType::F32, row) * (text.len() - LEN - 1) as f64;
        let part = &text[at as usize..][..=LEN];
        tokens.extend(part[..LEN].iter().map(|byte| i32::from(*byte)));
        next.extend(part[1..].iter().map(|byte| i32::from(*byte)));
    }
    let tokens = Tensor::from_slice(&[BATCH, LEN], &tokens)?;
    Ok([tokens, Tensor::from_slice(&[BATCH * LEN], &next)?])
}

/// Trains `steps` steps. Returns the loss curve and the generated continuation of a prompt.
fn run(device: &Device, steps: u64, written: usize) -> Result<(Curve, String), Failed> {
    let mut m = Model::default();
    let i32s = |shape: &[usize]| Type::new(DType::I32, shape);
    let tokens = m.graph.input("tokens", i32s(&[BATCH, LEN]))?;
    let next = m.graph.input("next", i32s(&[BATCH * LEN]))?;
    let y = logits(&mut m, tokens, BATCH.into(), 0.02)?;
    let [loss, _] = cross_entropy(&mut m.graph, y, next)?;
    let mut trainer = trainer(device, &m, loss, 5e-3, steps)?;
    let mut curve = Curve::default();
    for step in 0..steps {
        let [tokens, next] = batch(step)?;
        let report = trainer.step(&[("tokens", &tokens), ("next", &next)])?;
        curve.push(report.loss, steps);
    }

    // The same weights in a graph for a batch of one sequence, without dropout.
    let mut m = Model::default();
    let tokens = m.graph.input("tokens", i32s(&[1, LEN]))?;
    let y = logits(&mut m, tokens, 1.into(), 0.0)?;
    let greatest = m.graph.arg_max(y, 1, false)?;
    let mut g: Graph = m.graph;
    g.output("greatest", greatest)?;
    let mut evaluator = trainer.evaluator(&g, EvalWeights::Current, &CompileOptions::new())?;
    let mut text = b"Subject to the terms and conditions of ".to_vec();
    for _ in 0..written {
        let from = text.len().saturating_sub(LEN);
        let mut row: Vec<i32> = text[from..].iter().map(|byte| i32::from(*byte)).collect();
        let last = row.len() - 1;
        row.resize(LEN, 0);
        let row = Tensor::from_slice(&[1, LEN], &row)?;
        let found = trainer.evaluate(&mut evaluator, &[("tokens", &row)])?;
        text.push(found[0].as_slice::<i32>()?[last] as u8);
    }
    Ok((curve, String::from_utf8_lossy(&text).into_owned()))
}

fn main() -> Result<(), Failed> {
    let (_, text) = run(&device()?, 1200, 120)?;
    println!("\n{text}");
    Ok(())
}

#[test]
fn it_learns() {
    let (curve, text) = run(&Device::cpu(), 12, 2).unwrap();
    assert!(curve.last(2) < 0.95 * curve.first(), "{curve:?}");
    assert!(text.starts_with("Subject to"));
}

//! Models that are built directly as graphs.

use tercet::ops::{AttentionLayout, AttentionOptions, Gru, PadMode, Window};
use tercet::{BatchNorm, DType, Graph, OpError, Tensor, Type, Value};

use super::formula::{floats, indices, weight};
use super::{BoxError, CurveNet, f32s};

const VOCAB: usize = 29;
const ROWS: usize = 2;
const LEN: usize = 8;

/// A graph under construction, with the initial values of its states.
#[derive(Default)]
struct CurveGraphBuilder {
    graph: Graph,
    trained: Vec<(String, Tensor)>,
    states: Vec<(String, Tensor)>,
}

type CurveValueResult = Result<Value, OpError>;

impl CurveGraphBuilder {
    /// Adds a trained weight.
    fn weight(&mut self, name: &str, shape: &[usize]) -> CurveValueResult {
        self.trained.push((name.to_string(), weight(name, shape)));
        self.graph.state(name, Type::new(DType::F32, shape))
    }

    /// `x w + b` with `w [inner, out]`.
    fn linear(&mut self, x: Value, name: &str, inner: usize, out: usize) -> CurveValueResult {
        let w = self.weight(&format!("{name}.weight"), &[inner, out])?;
        let b = self.weight(&format!("{name}.bias"), &[out])?;
        self.graph.linear(x, w, Some(b), None)
    }

    fn layer_norm(&mut self, x: Value, name: &str, width: usize) -> CurveValueResult {
        let gamma = self.weight(&format!("{name}.weight"), &[width])?;
        let beta = self.weight(&format!("{name}.bias"), &[width])?;
        let axis = self.graph.ty(x).rank() - 1;
        self.graph.layer_norm(x, gamma, Some(beta), axis, 1e-5)
    }

    fn rms_norm(&mut self, x: Value, name: &str, width: usize) -> CurveValueResult {
        let gamma = self.weight(&format!("{name}.weight"), &[width])?;
        self.graph.rms_norm(x, gamma, None, 1e-5)
    }

    /// The tokens of each row without the last one, and without the first one.
    fn tokens(&mut self) -> Result<[Value; 2], OpError> {
        let g = &mut self.graph;
        let all = g.input("tokens", Type::new(DType::I32, [ROWS, LEN + 1]))?;
        Ok([g.narrow(all, 1, 0, LEN)?, g.narrow(all, 1, 1, LEN)?])
    }

    /// The mean cross-entropy of logits over the last axis.
    fn finish(
        mut self,
        logits: Value,
        labels: Value,
        inputs: fn(usize) -> Vec<(&'static str, Tensor)>,
    ) -> Result<CurveNet, BoxError> {
        let g = &mut self.graph;
        let axis = g.ty(logits).rank() - 1;
        let log = g.log_softmax(logits, axis)?;
        let labels = g.unsqueeze(labels, axis)?;
        let own = g.gather_elements(log, labels, axis)?;
        let axes: Vec<usize> = (0..=axis).collect();
        let mean = g.reduce_mean(own, &axes, false)?;
        let loss = g.neg(mean)?;
        Ok(CurveNet {
            graph: self.graph,
            loss,
            trained: self.trained,
            params: Vec::new(),
            states: self.states,
            inputs,
        })
    }
}

fn token_rows(step: usize) -> Vec<(&'static str, Tensor)> {
    let shape = [ROWS, LEN + 1];
    let tokens = indices(&format!("tokens.{step}"), VOCAB as u64, &shape);
    vec![("tokens", tokens)]
}

pub(super) fn gpt2() -> Result<CurveNet, BoxError> {
    const WIDTH: usize = 16;
    let mut d = CurveGraphBuilder::default();
    let [tokens, next] = d.tokens()?;
    let (wte, wpe) = (
        d.weight("wte", &[VOCAB, WIDTH])?,
        d.weight("wpe", &[LEN, WIDTH])?,
    );
    let x = d.graph.gather(wte, tokens, 0)?;
    let mut x = d.graph.plus(x, wpe)?;
    for layer in 0..2 {
        let at = |part: &str| format!("h.{layer}.{part}");
        let h = d.layer_norm(x, &at("norm_1"), WIDTH)?;
        let qkv = d.linear(h, &at("attn.c_attn"), WIDTH, 3 * WIDTH)?;
        let mut heads = [qkv; 3];
        for (i, part) in heads.iter_mut().enumerate() {
            let own = d.graph.narrow(qkv, 2, i * WIDTH, WIDTH)?;
            *part = d.graph.reshape(own, [ROWS, LEN, 4, WIDTH / 4])?;
        }
        let [q, k, v] = heads;
        let options = AttentionOptions::new(4, 4, AttentionLayout::Bshd).causal();
        let y = d.graph.attention(q, k, v, options)?;
        let y = d.graph.reshape(y, [ROWS, LEN, WIDTH])?;
        let y = d.linear(y, &at("attn.c_proj"), WIDTH, WIDTH)?;
        x = d.graph.plus(x, y)?;
        let h = d.layer_norm(x, &at("norm_2"), WIDTH)?;
        let h = d.linear(h, &at("mlp.c_fc"), WIDTH, 4 * WIDTH)?;
        let h = d.graph.gelu_tanh(h)?;
        let y = d.linear(h, &at("mlp.c_proj"), 4 * WIDTH, WIDTH)?;
        x = d.graph.plus(x, y)?;
    }
    let x = d.layer_norm(x, "norm_f", WIDTH)?;
    let table = d.graph.transpose(wte, &[1, 0])?;
    let logits = d.graph.matmul(x, table)?;
    d.finish(logits, next, token_rows)
}

/// A convolution without bias, followed by batch norm.
fn conv_norm(
    d: &mut CurveGraphBuilder,
    x: Value,
    conv: &str,
    norm: &str,
    [inner, kernel, stride]: [usize; 3],
) -> CurveValueResult {
    const OUT: usize = 8;
    let w = d.weight(&format!("{conv}.weight"), &[OUT, inner, kernel, kernel])?;
    let pad = [kernel / 2; 2];
    let window = Window::new(2).with_stride(&[stride; 2]);
    let y = d.graph.conv(x, w, None, window.with_pads(&pad, &pad), 1)?;
    let gamma = d.weight(&format!("{norm}.weight"), &[OUT])?;
    let beta = d.weight(&format!("{norm}.bias"), &[OUT])?;
    let mut running = [y; 2];
    for (state, (what, first)) in running
        .iter_mut()
        .zip([("running_mean", 0.0), ("running_var", 1.0)])
    {
        let name = format!("{norm}.{what}");
        *state = d.graph.state(&name, Type::new(DType::F32, [OUT]))?;
        d.states.push((name, f32s(&[OUT], &[first; OUT])));
    }
    let options = BatchNorm::default();
    d.graph.batch_norm(y, [gamma, beta], running, options)
}

pub(super) fn resnet_block() -> Result<CurveNet, BoxError> {
    let mut d = CurveGraphBuilder::default();
    let x = d.graph.input("x", Type::new(DType::F32, [4, 3, 6, 6]))?;
    let labels = d.graph.input("labels", Type::new(DType::I32, [4]))?;
    let h = conv_norm(&mut d, x, "conv1", "norm1", [3, 3, 2])?;
    let h = d.graph.relu(h)?;
    let h = conv_norm(&mut d, h, "conv2", "norm2", [8, 3, 1])?;
    let way = conv_norm(&mut d, x, "shortcut", "norm3", [3, 1, 2])?;
    let h = d.graph.plus(h, way)?;
    let h = d.graph.relu(h)?;
    let h = d.graph.reduce_mean(h, &[2, 3], false)?;
    let w = d.weight("fc.weight", &[3, 8])?;
    let b = d.weight("fc.bias", &[3])?;
    let w = d.graph.transpose(w, &[1, 0])?;
    let logits = d.graph.linear(h, w, Some(b), None)?;
    d.finish(logits, labels, |step| {
        let labels = indices(&format!("labels.{step}"), 3, &[4]);
        vec![
            ("x", floats(&format!("x.{step}"), &[4, 3, 6, 6])),
            ("labels", labels),
        ]
    })
}

pub(super) fn gru() -> Result<CurveNet, BoxError> {
    const WIDTH: usize = 12;
    let mut d = CurveGraphBuilder::default();
    let [tokens, next] = d.tokens()?;
    let table = d.weight("embedding", &[VOCAB, WIDTH])?;
    let x = d.graph.gather(table, tokens, 0)?;
    let first = d
        .graph
        .constant(f32s(&[1, ROWS, WIDTH], &[0.0; ROWS * WIDTH]))?;
    let w_x = d.weight("gru.w_x", &[WIDTH, 3 * WIDTH])?;
    let w_h = d.weight("gru.w_h", &[WIDTH, 3 * WIDTH])?;
    let bias = d.weight("gru.bias", &[2, 3 * WIDTH])?;
    let layer = Gru {
        layers: 1,
        bidirectional: false,
    };
    let y = d.graph.add(layer, &[x, first, w_x, w_h, bias])?;
    let logits = d.linear(y, "head", WIDTH, VOCAB)?;
    d.finish(logits, next, token_rows)
}

/// One Mamba-2 block (Dao and Gu, 2024), with a convolution before the scan and a gated norm after
/// it.
pub(super) fn mamba2() -> Result<CurveNet, BoxError> {
    const WIDTH: usize = 16;
    const HEADS: usize = 4;
    const STATE: usize = 4;
    const INNER: usize = 32;
    const MIXED: usize = INNER + 2 * STATE;
    let mut d = CurveGraphBuilder::default();
    let [tokens, next] = d.tokens()?;
    let table = d.weight("embedding", &[VOCAB, WIDTH])?;
    let u = d.graph.gather(table, tokens, 0)?;
    let h = d.rms_norm(u, "norm", WIDTH)?;
    let w = d.weight("in_proj", &[WIDTH, INNER + MIXED + HEADS])?;
    let all = d.graph.matmul(h, w)?;
    let z = d.graph.narrow(all, 2, 0, INNER)?;
    let xbc = d.graph.narrow(all, 2, INNER, MIXED)?;
    let dt = d.graph.narrow(all, 2, INNER + MIXED, HEADS)?;
    let xbc = d.graph.transpose(xbc, &[0, 2, 1])?;
    let (before, none) = ([0, 0, 2], [0; 3]);
    let xbc = d.graph.pad(xbc, &before, &none, PadMode::Constant, 0.0)?;
    let w = d.weight("conv.weight", &[MIXED, 1, 3])?;
    let bias = d.weight("conv.bias", &[MIXED])?;
    let xbc = d.graph.conv(xbc, w, Some(bias), Window::new(1), MIXED)?;
    let xbc = d.graph.transpose(xbc, &[0, 2, 1])?;
    let xbc = d.graph.silu(xbc)?;
    let x = d.graph.narrow(xbc, 2, 0, INNER)?;
    let x = d.graph.reshape(x, [ROWS, LEN, HEADS, INNER / HEADS])?;
    let mut of_state = |start| -> CurveValueResult {
        let part = d.graph.narrow(xbc, 2, start, STATE)?;
        d.graph.reshape(part, [ROWS, LEN, 1, STATE])
    };
    let (b, c) = (of_state(INNER)?, of_state(INNER + STATE)?);
    let bias = d.weight("dt_bias", &[HEADS])?;
    let dt = d.graph.plus(dt, bias)?;
    let dt = d.graph.softplus(dt)?;
    let a = d.weight("a_log", &[HEADS])?;
    let a = d.graph.exp(a)?;
    let a = d.graph.neg(a)?;
    let y = d.graph.mamba2(x, dt, a, b, c)?;
    let skip = d.weight("d", &[HEADS])?;
    let skip = d.graph.reshape(skip, [HEADS, 1])?;
    let skip = d.graph.mul(skip, x)?;
    let y = d.graph.plus(y, skip)?;
    let y = d.graph.reshape(y, [ROWS, LEN, INNER])?;
    let gate = d.graph.silu(z)?;
    let y = d.graph.mul(y, gate)?;
    let y = d.rms_norm(y, "gated_norm", INNER)?;
    let w = d.weight("out_proj", &[INNER, WIDTH])?;
    let y = d.graph.matmul(y, w)?;
    let x = d.graph.plus(u, y)?;
    let x = d.rms_norm(x, "norm_f", WIDTH)?;
    let table = d.graph.transpose(table, &[1, 0])?;
    let logits = d.graph.matmul(x, table)?;
    d.finish(logits, next, token_rows)
}

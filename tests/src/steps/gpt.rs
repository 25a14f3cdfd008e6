//! A GPT-2 decoder (Radford and others, 2019) without dropout and with tied embeddings.

use tercet::ops::{AttentionLayout, AttentionOptions, PadMode};
use tercet::{DType, Type, Value};

use super::draft::StepGraphBuilder;
use super::models::indices;
use super::{BoxError, StepNet, StepScale};

/// The sizes of a decoder.
struct GptSizes {
    layers: usize,
    heads: usize,
    width: usize,
    vocab: usize,
    rows: usize,
    len: usize,
}

/// Minimum sizes for tests.
const TINY: GptSizes = GptSizes {
    layers: 2,
    heads: 2,
    width: 32,
    vocab: 61,
    rows: 2,
    len: 16,
};

/// GPT-2 with 124 million parameters.
pub(super) fn gpt2(size: StepScale, dtype: DType) -> Result<StepNet, BoxError> {
    let whole = GptSizes {
        layers: 12,
        heads: 12,
        width: 768,
        vocab: 50257,
        rows: 8,
        len: 1024,
    };
    match size {
        StepScale::Whole => whole.net(dtype),
        StepScale::Small => TINY.net(dtype),
    }
}

/// A GPT with 3.4 million parameters.
pub(super) fn small(size: StepScale, dtype: DType) -> Result<StepNet, BoxError> {
    let whole = GptSizes {
        layers: 4,
        heads: 4,
        width: 256,
        vocab: 1024,
        rows: 8,
        len: 128,
    };
    match size {
        StepScale::Whole => whole.net(dtype),
        StepScale::Small => TINY.net(dtype),
    }
}

impl GptSizes {
    fn net(&self, dtype: DType) -> Result<StepNet, BoxError> {
        let GptSizes {
            layers,
            heads: _,
            width,
            vocab,
            rows,
            len,
        } = *self;
        let shape = [rows, len];
        let mut d = StepGraphBuilder::new(dtype);
        let tokens = d.graph.input("tokens", Type::new(DType::I32, shape))?;
        let labels = d
            .graph
            .input("labels", Type::new(DType::I32, [rows * len]))?;
        let wte = d.master("wte", &[vocab, width], 0.035)?;
        let wpe = d.master("wpe", &[len, width], 0.035)?;
        let x = d.graph.gather(wte, tokens, 0)?;
        let x = d.graph.plus(x, wpe)?;
        let mut x = d.own(x)?;
        for layer in 0..layers {
            x = self.attention(&mut d, layer, x)?;
            let at = |part: &str| format!("h.{layer}.{part}");
            let h = d.layer_norm(x, &at("norm_2"), width)?;
            let h = d.linear(h, &at("up"), [width, 4 * width])?;
            let h = d.graph.gelu_tanh(h)?;
            let y = d.linear(h, &at("down"), [4 * width, width])?;
            x = d.graph.plus(x, y)?;
        }
        let x = d.layer_norm(x, "norm_f", width)?;
        let x = d.graph.reshape(x, [rows * len, width])?;
        let table = d.own(wte)?;
        // Pad the rows of logits to complete vectors, as the trainer in `tercet-models` does.
        let beyond = vocab.next_multiple_of(64) - vocab;
        let table = match beyond {
            0 => table,
            _ => (d.graph).pad(table, &[0, 0], &[beyond, 0], PadMode::Constant, 0.0)?,
        };
        let table = d.graph.transpose(table, &[1, 0])?;
        let logits = d.graph.matmul(x, table)?;
        let batch = vec![
            ("tokens", indices("tokens", &shape, vocab)?),
            ("labels", indices("labels", &[rows * len], vocab)?),
        ];
        d.finish(logits, labels, vocab, batch, (rows * len, "tokens"))
    }

    fn attention(
        &self,
        d: &mut StepGraphBuilder,
        layer: usize,
        x: Value,
    ) -> Result<Value, BoxError> {
        let GptSizes {
            heads,
            width,
            rows,
            len,
            ..
        } = *self;
        let at = |part: &str| format!("h.{layer}.{part}");
        let h = d.layer_norm(x, &at("norm_1"), width)?;
        let qkv = d.linear(h, &at("qkv"), [width, 3 * width])?;
        let mut parts = [qkv; 3];
        for (i, part) in parts.iter_mut().enumerate() {
            let own = d.graph.narrow(qkv, 2, i * width, width)?;
            *part = d.graph.reshape(own, [rows, len, heads, width / heads])?;
        }
        let [q, k, v] = parts;
        let options = AttentionOptions::new(heads, heads, AttentionLayout::Bshd).causal();
        let y = d.graph.attention(q, k, v, options)?;
        let y = d.graph.reshape(y, [rows, len, width])?;
        let y = d.linear(y, &at("proj"), [width, width])?;
        Ok(d.graph.plus(x, y)?)
    }
}

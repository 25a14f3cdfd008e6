//! BERT encoders (Devlin et al., 2019) as sentence embedders: post-norm layers with learned
//! positions, then pooling and normalisation (Reimers and Gurevych, "Sentence-BERT", 2019).
//!
//! Inputs: `ids` I32 `[b, s]`, `type_ids` I32 `[b, s]`, `mask` Bool `[b, s]` (true for tokens, false
//! for padding). Output: `hidden` F32 `[b, s, hidden]` without pooling, `embedding` F32
//! `[b, hidden]` with it.

use tercet::ops::{AttentionOptions, Layout, ReduceFn};
use tercet::scalar::UnaryFn;
use tercet::{
    CompileOptions, DType, Device, Dim, Executable, Graph, OpError, Tensor, TensorType, Type, Value,
};

use super::tuned::Site;
use super::{Builder, Model, ModelError, Weights};
use crate::adapter::rows::Rows;
use crate::config::{BertActivation, BertConfig};
use crate::tokenizer::{Batch, Tokenizer};

/// What becomes of the hidden states of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pooling {
    /// They are the output.
    None,
    /// The mean over the tokens that the mask keeps, then divided by its L2 norm.
    MeanNormalized,
    /// That of the first token (the class token of BERT), divided by its L2 norm.
    ClsNormalized,
}

/// A BERT encoder: its graph, parameters and configuration.
#[derive(Debug)]
pub struct Bert {
    /// Graph and parameters.
    pub model: Model,
    /// The configuration it was built from.
    pub config: BertConfig,
}

/// Divisors are at least this, so that a text without tokens gives zeros rather than NaN.
const LEAST_COUNT: f64 = 1e-9;
const LEAST_NORM: f64 = 1e-12;

impl Bert {
    /// Builds the graph over the weights of a file, computed in `dtype`.
    ///
    /// # Errors
    /// [`ModelError`] when a weight is missing or of another shape or format.
    pub fn build(
        config: &BertConfig,
        weights: &Weights,
        pooling: Pooling,
        dtype: DType,
    ) -> Result<Bert, ModelError> {
        let mut b = Builder::new(weights, dtype);
        let shape = [Dim::sym("b"), Dim::sym("s")];
        let ids = b.graph.input("ids", Type::new(DType::I32, shape.clone()))?;
        let type_ids = b
            .graph
            .input("type_ids", Type::new(DType::I32, shape.clone()))?;
        let mask = b.graph.input("mask", Type::new(DType::Bool, shape))?;
        let texts = Texts {
            ids,
            type_ids,
            mask,
        };
        let x = encode(&mut b, config, &texts, false)?;
        match pooling {
            Pooling::None => b.graph.output("hidden", x)?,
            Pooling::MeanNormalized => {
                let pooled = mean_normalized(&mut b.graph, x, mask)?;
                b.graph.output("embedding", pooled)?;
            }
            Pooling::ClsNormalized => {
                let first = b.graph.narrow(x, 1, 0, 1)?;
                let first = b.graph.squeeze(first, 1)?;
                let pooled = normalized(&mut b.graph, first)?;
                b.graph.output("embedding", pooled)?;
            }
        }
        let model = b.finish().with_precision(dtype)?;
        Ok(Bert {
            model,
            config: config.clone(),
        })
    }

    /// Compiles the encoder for at most `batch` texts of at most `len` tokens at once.
    ///
    /// # Errors
    /// [`ModelError::Context`] when `len` exceeds the learned positions; [`ModelError::Compile`]
    /// and [`ModelError::Run`] of the device.
    pub fn compile(
        &self,
        device: &Device,
        batch: usize,
        len: usize,
    ) -> Result<Box<dyn Executable>, ModelError> {
        if len > self.config.max_positions {
            return Err(ModelError::Context {
                tokens: len,
                context: self.config.max_positions,
            });
        }
        let options = CompileOptions::new().bound("b", batch).bound("s", len);
        self.model.compile(device, &options)
    }
}

/// Texts in a graph, all `[rows, len]`: ids and type ids I32, and which of them are no padding.
pub(crate) struct Texts {
    pub(crate) ids: Value,
    pub(crate) type_ids: Value,
    pub(crate) mask: Value,
}

/// What the tensors of the encoder begin with: checkpoints of the bare encoder have no prefix, those with a head have
/// one.
pub(crate) fn prefix(weights: &Weights) -> &'static str {
    match weights.has("bert.embeddings.word_embeddings.weight") {
        true => "bert.",
        false => "",
    }
}

/// The projections of the layers, with outputs and inputs, by their names without a prefix.
pub(crate) fn projections(config: &BertConfig) -> impl Iterator<Item = (String, [usize; 2])> {
    let BertConfig { hidden, ffn, .. } = *config;
    let of_layer = [
        ("attention.self.query", [hidden, hidden]),
        ("attention.self.key", [hidden, hidden]),
        ("attention.self.value", [hidden, hidden]),
        ("attention.output.dense", [hidden, hidden]),
        ("intermediate.dense", [ffn, hidden]),
        ("output.dense", [hidden, ffn]),
    ];
    (0..config.layers).flat_map(move |layer| {
        of_layer.map(|(name, shape)| (format!("encoder.layer.{layer}.{name}"), shape))
    })
}

/// The hidden states `[rows, len, hidden]`. With `checkpoints` gradients keep only what enters the norm before a layer:
/// the layer's own products, made twice of one value, would be made one.
pub(crate) fn encode(
    b: &mut Builder<'_>,
    config: &BertConfig,
    texts: &Texts,
    checkpoints: bool,
) -> Result<Value, ModelError> {
    let prefix = prefix(b.weights);
    let name = format!("{prefix}embeddings.LayerNorm");
    let x = embeddings(b, config, prefix, texts.ids, texts.type_ids)?;
    let keep = |b: &mut Builder<'_>, x: Value| match checkpoints {
        true => b.graph.checkpoint(x),
        false => Ok(x),
    };
    let x = keep(b, x)?;
    let x = layer_norm(b, config, &name, x)?;
    let mut x = b.drop(x)?;
    for layer in 0..config.layers {
        let at = format!("{prefix}encoder.layer.{layer}");
        x = attention(b, config, &at, x, texts.mask)?;
        x = feed_forward(b, config, &at, x)?;
        x = keep(b, x)?;
        x = layer_norm(b, config, &format!("{at}.output.LayerNorm"), x)?;
    }
    Ok(x)
}

fn layer_norm(
    b: &mut Builder<'_>,
    config: &BertConfig,
    name: &str,
    x: Value,
) -> Result<Value, ModelError> {
    let gamma = b.vector(&format!("{name}.weight"), config.hidden)?;
    let beta = b.vector(&format!("{name}.bias"), config.hidden)?;
    let axis = b.graph.ty(x).rank() - 1;
    Ok(b.graph
        .layer_norm(x, gamma, Some(beta), axis, f64::from(config.layer_norm_eps))?)
}

fn linear(
    b: &mut Builder<'_>,
    name: &str,
    x: Value,
    shape: [usize; 2],
) -> Result<Value, ModelError> {
    let y = b.linear(
        x,
        &format!("{name}.weight"),
        Some(&format!("{name}.bias")),
        shape,
    )?;
    let site = Site {
        module: name.strip_prefix("bert.").unwrap_or(name),
        shape,
        rows: Rows::Plain,
        layer: true,
    };
    b.adapted(x, y, &site)
}

/// The first two axes of `x`.
fn rows_and_len(b: &Builder<'_>, x: Value) -> [Dim; 2] {
    let shape = &b.graph.ty(x).shape;
    [shape[0].clone(), shape[1].clone()]
}

/// The sum of the three embeddings, before its norm.
fn embeddings(
    b: &mut Builder<'_>,
    config: &BertConfig,
    prefix: &str,
    ids: Value,
    type_ids: Value,
) -> Result<Value, ModelError> {
    let hidden = config.hidden;
    let [_, len] = rows_and_len(b, ids);
    let name = |what: &str| format!("{prefix}embeddings.{what}.weight");
    let words = b.embedding(ids, &name("word_embeddings"), [config.vocab, hidden])?;
    let types = b.embedding(
        type_ids,
        &name("token_type_embeddings"),
        [config.token_types, hidden],
    )?;
    let table = b.dense(
        &name("position_embeddings"),
        &[config.max_positions, hidden],
    )?;
    let zeros = b.graph.constant(
        Tensor::from_slice(&[2], &[0i32, 0]).expect("invariant: two numbers make a vector of two"),
    )?;
    let positions = b.graph.dynamic_slice(table, zeros, [len, hidden.into()])?;
    let x = b.graph.plus(words, types)?;
    Ok(b.graph.plus(x, positions)?)
}

fn attention(
    b: &mut Builder<'_>,
    config: &BertConfig,
    at: &str,
    x: Value,
    mask: Value,
) -> Result<Value, ModelError> {
    let BertConfig { hidden, heads, .. } = *config;
    let [rows, len] = rows_and_len(b, x);
    let split = [
        rows.clone(),
        len.clone(),
        heads.into(),
        config.head_dim().into(),
    ];
    let mut heads_of = |what: &str| -> Result<Value, ModelError> {
        let y = linear(
            b,
            &format!("{at}.attention.self.{what}"),
            x,
            [hidden, hidden],
        )?;
        Ok(b.graph.reshape(y, split.clone())?)
    };
    let (q, k, v) = (heads_of("query")?, heads_of("key")?, heads_of("value")?);
    let attention = AttentionOptions::new(heads, heads, Layout::Bshd).keep(mask);
    let y = b.graph.attention(q, k, v, attention)?;
    let y = b.graph.reshape(y, [rows, len, hidden.into()])?;
    let y = linear(
        b,
        &format!("{at}.attention.output.dense"),
        y,
        [hidden, hidden],
    )?;
    let y = b.drop(y)?;
    let x = b.graph.plus(y, x)?;
    layer_norm(b, config, &format!("{at}.attention.output.LayerNorm"), x)
}

/// A layer's feed-forward network with the sum after it, before its norm.
fn feed_forward(
    b: &mut Builder<'_>,
    config: &BertConfig,
    at: &str,
    x: Value,
) -> Result<Value, ModelError> {
    let BertConfig { hidden, ffn, .. } = *config;
    let activation = match config.activation {
        BertActivation::Gelu => UnaryFn::Gelu,
        BertActivation::GeluTanh => UnaryFn::GeluTanh,
        BertActivation::Relu => UnaryFn::Relu,
        BertActivation::Silu => UnaryFn::Silu,
    };
    let h = linear(b, &format!("{at}.intermediate.dense"), x, [ffn, hidden])?;
    let h = b.graph.unary(activation, h)?;
    let y = linear(b, &format!("{at}.output.dense"), h, [hidden, ffn])?;
    let y = b.drop(y)?;
    Ok(b.graph.plus(y, x)?)
}

/// `x [b, s, hidden]`, `mask [b, s]` to the mean over the tokens of each text, `[b, hidden]`.
pub(crate) fn mean(g: &mut Graph, x: Value, mask: Value) -> Result<Value, OpError> {
    let weight = g.cast(mask, DType::F32)?;
    let weight = g.unsqueeze(weight, 2)?;
    let kept = g.mul(x, weight)?;
    let sum = g.reduce(ReduceFn::Sum, kept, &[1], false)?;
    let count = g.reduce(ReduceFn::Sum, weight, &[1], false)?;
    let least = g.scalar(DType::F32, LEAST_COUNT)?;
    let count = g.max(count, least)?;
    g.div(sum, count)
}

/// The unit vectors of [`mean`].
pub(crate) fn mean_normalized(g: &mut Graph, x: Value, mask: Value) -> Result<Value, OpError> {
    let mean = mean(g, x, mask)?;
    normalized(g, mean)
}

/// The rows of `x [b, hidden]`, each divided by its L2 norm.
fn normalized(g: &mut Graph, x: Value) -> Result<Value, OpError> {
    let squares = g.mul(x, x)?;
    let norm = g.reduce(ReduceFn::Sum, squares, &[1], true)?;
    let norm = g.sqrt(norm)?;
    let least = g.scalar(DType::F32, LEAST_NORM)?;
    let norm = g.max(norm, least)?;
    g.div(x, norm)
}

/// A compiled sentence encoder with its tokenizer: texts in, unit vectors out.
pub struct Embedder {
    exe: Box<dyn Executable>,
    tokenizer: Tokenizer,
    batch: usize,
    len: usize,
    hidden: usize,
    inputs: [Tensor; 3],
    outputs: Vec<Tensor>,
}

const INPUTS: [&str; 3] = ["ids", "type_ids", "mask"];

impl Embedder {
    /// Compiles `bert` (built with a [`Pooling`] other than `None`) for batches of `batch` texts, each
    /// cut at `len` tokens.
    ///
    /// # Errors
    /// As [`Bert::compile`]; [`ModelError::Unsupported`] when the graph does not pool.
    pub fn new(
        bert: &Bert,
        tokenizer: Tokenizer,
        device: &Device,
        batch: usize,
        len: usize,
    ) -> Result<Embedder, ModelError> {
        let exe = bert.compile(device, batch.max(1), len)?;
        if exe
            .signature()
            .outputs
            .first()
            .is_none_or(|o| o.name != "embedding")
        {
            return Err(ModelError::Unsupported(
                "the encoder was built without pooling; build it with the pooling of its folder"
                    .into(),
            ));
        }
        let empty = |dtype| {
            Tensor::zeros(TensorType::new(dtype, &[0, 0]))
                .expect("invariant: an empty tensor fits memory")
        };
        Ok(Embedder {
            exe,
            tokenizer,
            batch: batch.max(1),
            len,
            hidden: bert.config.hidden,
            inputs: [empty(DType::I32), empty(DType::I32), empty(DType::Bool)],
            outputs: Vec::new(),
        })
    }

    /// The number of elements of an embedding.
    pub fn width(&self) -> usize {
        self.hidden
    }

    /// The embeddings of these texts, in their order. Texts of similar length share a batch.
    /// `progress` is called with the number of texts done; false stops early with what is done.
    ///
    /// # Errors
    /// [`crate::Error`] of the tokenizer or the device.
    pub fn embed<T: AsRef<str>>(
        &mut self,
        texts: &[T],
        progress: &mut dyn FnMut(usize) -> bool,
    ) -> Result<Vec<Vec<f32>>, crate::Error> {
        // Padding costs time: sorting by length keeps it small.
        let mut order: Vec<usize> = (0..texts.len()).collect();
        order.sort_by_key(|&i| texts[i].as_ref().len());
        let mut embeddings = vec![Vec::new(); texts.len()];
        let mut done = 0;
        for part in order.chunks(self.batch) {
            let of_part: Vec<&str> = part.iter().map(|&i| texts[i].as_ref()).collect();
            let batch = self.tokenizer.encode_batch(&of_part, self.len)?;
            let width = self.hidden;
            let rows = self.run(&batch)?;
            for (&i, row) in part.iter().zip(rows.chunks_exact(width)) {
                embeddings[i] = row.to_vec();
            }
            done += part.len();
            if !progress(done) {
                break;
            }
        }
        Ok(embeddings)
    }

    /// The embeddings of a tokenised batch, `[rows, width]` row-major.
    ///
    /// # Errors
    /// [`ModelError::Run`] when the batch is larger than compiled for.
    pub fn run(&mut self, batch: &Batch) -> Result<&[f32], ModelError> {
        let shape = [batch.rows, batch.row_len];
        let [ids, type_ids, mask] = &mut self.inputs;
        for (tensor, values) in [(ids, &batch.ids), (type_ids, &batch.type_ids)] {
            tensor.reset_to(DType::I32, &shape).map_err(tensor_error)?;
            let slots = tensor.as_slice_mut::<i32>().map_err(tensor_error)?;
            slots
                .iter_mut()
                .zip(values)
                .for_each(|(x, &v)| *x = v as i32);
        }
        mask.reset_to(DType::Bool, &shape).map_err(tensor_error)?;
        mask.bytes_mut()
            .iter_mut()
            .zip(&batch.mask)
            .for_each(|(x, &v)| *x = u8::from(v));
        let inputs: [(&str, &Tensor); 3] = std::array::from_fn(|i| (INPUTS[i], &self.inputs[i]));
        self.exe.run_into(&inputs, &mut self.outputs)?;
        self.outputs[0].as_slice::<f32>().map_err(tensor_error)
    }
}

fn tensor_error(e: tercet::TensorError) -> ModelError {
    ModelError::Unsupported(format!("the batch or the output of the encoder: {e}"))
}

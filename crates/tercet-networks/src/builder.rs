//! Model builders: they assemble graphs with the public API of `tercet` from the weights of a file.
//!
//! A builder turns a configuration and [`Weights`] into a [`ModelGraph`]: a graph and its parameter
//! tensors. Parameters have the names of the file's tensors and are memory-mapped, not copied.
//! Quantized and half-precision weights stay in their stored format. The graph computes in F32
//! unless it is converted to another dtype.

pub(crate) mod batch;
mod compiled_decoder;
pub(crate) mod cross_attention;
mod decoder;
mod dummy_weights;
pub(crate) mod encoder;
pub(crate) mod engine;
pub(crate) mod generator;
mod multi_lora;
pub(crate) mod prefix_store;
pub(crate) mod sampling;
mod seq2seq;
pub(crate) mod speech;
pub(crate) mod token_sampler;
pub(crate) mod trainable;
pub mod training;
mod vision;
pub(crate) mod vision_language;
pub(crate) mod weight_transforms;
mod weights;

use tercet::ops::Op;
use tercet::{
    CompileError, CompileOptions, Device, Executable, Graph, OpError, RunError, Tensor, TensorError,
};
use tercet::{DType, Type, Value};

use crate::config::DecoderSpec;
use crate::image::ImageError;
use crate::low_rank::AdapterError;
pub use crate::weights::DummyWeights;
pub use batch::BatchGenerator;
pub use cross_attention::hand_over;
pub use decoder::{
    BatchDecoder, BatchOptions, CacheFormat, Decoder, DecoderOptions, MatmulPrecision, Sampling,
};
pub use encoder::{
    ClassScore, DenseModule, Embedder, Encoder, EncoderOutput, EncoderTextReader, EncoderTokens,
    Entity, PoolingMode, Scoring, SentenceModule, SentenceModules, TextClassifier, TokenLabel,
};
pub use engine::drafts::{Draft, DraftError, MAX_DRAFT_TOKENS};
pub use engine::sequence::{BatchEvent, BatchEventKind, FinishReason, Sequence, SequenceId};
pub use engine::speculation::DraftCounts;
pub use generator::{Generator, GeneratorStep};
pub use prefix_store::{PrefixStore, PrefixStoreOptions, PrefixStoreStats};
pub use sampling::{
    DRY_BREAKERS, DryBreakers, DryOptions, MirostatOptions, SamplerStep, SamplingOptions,
};
pub use seq2seq::{Seq2Seq, Seq2SeqOptions, SourceEncoder};
pub use speech::{MoonshineModel, SpeechModel};
use tercet_files::weight::WeightError;
use tercet_text::TokenizerError;
use tercet_text::constraint::ConstraintError;
pub use trainable::ScaledAdapter;
use trainable::{TrainableSet, WeightUse};
pub use vision::{ImageClassifier, ImageEmbedder, ImageLabels, VisionModel, VisionOutput};
pub use vision_language::{ImageEncoder, ImagePromptReader, VisionLanguageGraphs};
use weights::WeightMatrix;
pub use weights::Weights;

/// Error of building or running a model.
///
/// ```
/// use tercet_networks::{ModelError, SamplingOptions};
/// let options = SamplingOptions { logit_bias: vec![(7, 1.0)], ..SamplingOptions::default() };
/// let error = options.check(5).unwrap_err();
/// assert!(matches!(error, ModelError::Token { token: 7, vocab: 5 }));
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// The storage format of a weight is not supported.
    #[error(transparent)]
    Weight(#[from] WeightError),
    /// A weight is missing from the model file.
    #[error("the model has no tensor `{tensor}`")]
    MissingWeight {
        /// Name of the missing tensor.
        tensor: String,
    },
    /// The shape of a weight differs from the shape in the configuration.
    #[error("tensor `{tensor}` has the shape {found:?}; the configuration expects {expected:?}")]
    WeightShape {
        /// Name of the tensor.
        tensor: String,
        /// Shape according to the configuration.
        expected: Vec<usize>,
        /// Shape in the file.
        found: Vec<usize>,
    },
    /// The byte count of a weight does not match its dtype and shape.
    #[error("tensor `{tensor}`")]
    WeightBytes {
        /// Name of the tensor.
        tensor: String,
        /// Cause reported by the tensor constructor.
        #[source]
        source: TensorError,
    },
    /// The graph of the model fails type checking: the configuration and the weights contradict
    /// each other.
    #[error("the model's configuration and weights contradict each other")]
    Graph(#[from] OpError),
    /// The model cannot be compiled for the device.
    #[error("the model cannot be compiled for this device")]
    Compile(#[from] CompileError),
    /// A run failed on the device.
    #[error("the model could not be run")]
    Run(#[from] RunError),
    /// The sequence is longer than the context.
    #[error(
        "{tokens} tokens do not fit the context of {context}; raise the context or shorten the text"
    )]
    Context {
        /// Tokens of the whole sequence, including tokens that are already in the cache.
        tokens: usize,
        /// Context length that the model was compiled with, in tokens.
        context: usize,
    },
    /// The caches of a context do not fit the free memory of the device.
    #[error(
        "{} of {context} tokens: {} are needed, of which {} are weights, {} are free and {} are missing; \
         lower the context (`-c`), store the caches in fewer bits (`--cache-dtype f16` or `q8_0`), \
         or use a model of fewer bits",
        tercet_ir::counted(*slots, "sequence", "sequences"),
        gib(*needed),
        gib(*weights),
        gib(*free),
        gib(needed.saturating_sub(*free))
    )]
    ContextMemory {
        /// Tokens of a sequence.
        context: usize,
        /// Sequences in parallel.
        slots: usize,
        /// Bytes that the model needs.
        needed: u64,
        /// Bytes that the device has free.
        free: u64,
        /// Bytes of the weights.
        weights: u64,
    },
    /// The number of `<image>` placeholders in a prompt differs from the number of images.
    #[error(
        "the prompt has {places} times `<image>` for {pictures} pictures; expected one `<image>` per picture"
    )]
    Places {
        /// `<image>` placeholders in the prompt.
        places: usize,
        /// Images passed with the prompt.
        pictures: usize,
    },
    /// All slots are occupied by running sequences.
    #[error("all {slots} slots are occupied; cancel a sequence, or wait until one ends")]
    NoSlot {
        /// Number of slots.
        slots: usize,
    },
    /// A text is longer than the maximum input of an encoder.
    #[error(
        "text {text} has {tokens} tokens; the model accepts at most {most}: shorten it, or enable truncation \
         (`--truncate`, `truncate=True`)"
    )]
    TextTooLong {
        /// Index of the text in the batch, counted from 1.
        text: usize,
        /// Tokens of the text, including special tokens.
        tokens: usize,
        /// Maximum input length of the encoder, in tokens.
        most: usize,
    },
    /// A text has more bytes than the maximum input of an encoder can have, so it is not tokenized.
    #[error(
        "text {text} has {bytes} bytes, which are more than {most} tokens, the model's maximum: shorten it, or \
         enable truncation (`--truncate`, `truncate=True`)"
    )]
    TextTooManyBytes {
        /// Index of the text in the batch, counted from 1.
        text: usize,
        /// Bytes of the text.
        bytes: usize,
        /// Maximum input length of the encoder, in tokens.
        most: usize,
    },
    /// The tokenizer adds tokens to a truncated text beyond the maximum input of an encoder.
    #[error(
        "text {text} has {tokens} tokens after truncation to {most}: the tokenizer adds more special tokens than \
         it states; correct its post_processor"
    )]
    TooManyAddedTokens {
        /// Index of the text in the batch, counted from 1.
        text: usize,
        /// Tokens of the text, including special tokens.
        tokens: usize,
        /// Maximum input length of the encoder, in tokens.
        most: usize,
    },
    /// The RoPE tables do not fit into memory.
    #[error("the RoPE tables of the context do not fit into memory; lower the context")]
    RopeTables(#[source] TensorError),
    /// The token list is empty.
    #[error("no tokens; a model needs at least one")]
    NoTokens,
    /// A token id is outside the vocabulary.
    #[error("token {token} is outside the vocabulary of {vocab}")]
    Token {
        /// The invalid token id.
        token: u32,
        /// Number of tokens in the vocabulary.
        vocab: usize,
    },
    /// An adapter does not match the model.
    #[error(transparent)]
    Adapter(#[from] AdapterError),
    /// The constraint cannot be applied to the output, or the output can no longer satisfy it.
    #[error(transparent)]
    Constraint(#[from] ConstraintError),
    /// A text cannot be tokenized.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// An image is invalid or unsupported.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// A draft model or draft cannot be used.
    #[error(transparent)]
    Draft(#[from] DraftError),
    /// The configuration asks for a feature that the builder does not implement.
    #[error("{0}")]
    Unsupported(String),
}

/// A graph and its parameter tensors.
///
/// ```
/// # let dims = tercet_networks::DecoderDims {
/// #     hidden: 64, layers: 2, heads: 4, kv_heads: 2, head_dim: 16, ffn: 96, vocab: 300,
/// #     context: 128,
/// # };
/// # let spec = tercet_networks::DecoderSpec::llama(dims);
/// # let weights = tercet_networks::Weights::Dummy(tercet_networks::DummyWeights::dense());
/// use tercet_networks::{Decoder, DecoderOptions, ModelGraph};
/// let decoder = Decoder::build(&spec, &weights, DecoderOptions::new(&spec))?;
/// let model: &ModelGraph = &decoder.model;
/// let bytes: usize = model.params.iter().map(|(_, tensor)| tensor.bytes().len()).sum();
/// assert_eq!(model.param_bytes(), bytes);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct ModelGraph {
    /// The computation graph.
    pub graph: Graph,
    /// Name and tensor of each parameter.
    pub params: Vec<(String, Tensor)>,
}

impl ModelGraph {
    /// Total size of all parameters in bytes.
    pub fn param_bytes(&self) -> usize {
        self.params.iter().map(|(_, t)| t.bytes().len()).sum()
    }

    /// Compiles the graph for a device and sets its parameters.
    ///
    /// # Errors
    /// [`ModelError::Compile`] and [`ModelError::Run`] of the device.
    pub fn compile(
        &self,
        device: &Device,
        options: &CompileOptions,
    ) -> Result<Box<dyn Executable>, ModelError> {
        let mut exe = device.compile(&self.graph, options)?;
        for (name, tensor) in &self.params {
            exe.set_param(name, tensor.clone())?;
        }
        Ok(exe)
    }

    /// The same model computed in another float dtype. Inputs, outputs and parameters keep their
    /// dtypes.
    ///
    /// # Errors
    /// [`ModelError::Compile`] if `dtype` is not a float.
    pub fn with_precision(self, dtype: DType) -> Result<ModelGraph, ModelError> {
        if dtype == DType::F32 {
            return Ok(self);
        }
        let graph = tercet::passes::convert_precision(&self.graph, dtype)?;
        Ok(ModelGraph {
            graph,
            params: self.params,
        })
    }
}

/// Bytes in GiB with two decimals.
fn gib(bytes: u64) -> String {
    format!("{:.2} GiB", bytes as f64 / (1u64 << 30) as f64)
}

/// Returns `p` if it is a dropout probability in `[0, 1)`, otherwise an error.
fn check_dropout(p: f64) -> Result<f64, ModelError> {
    match (0.0..1.0).contains(&p) {
        true => Ok(p),
        false => Err(ModelError::Unsupported(format!(
            "dropout {p} is out of range; expected 0 or more and less than 1"
        ))),
    }
}

/// A graph under construction and the weights it reads.
pub(crate) struct ModelBuilder<'a> {
    graph: Graph,
    params: Vec<(String, Tensor)>,
    weights: &'a Weights,
    /// Dtype of the arithmetic; the finished graph is converted to it.
    dtype: DType,
    mode: WeightUse<'a>,
    tuned: TrainableSet,
    /// Dropout used in training graphs.
    dropout: Dropout,
    /// Last name components of the projections that are stored transposed, as `[inputs, outputs]`.
    transposed: &'static [&'static str],
}

/// Dropout parameters of a training graph.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Dropout {
    /// Dropout probability, in `[0, 1)`.
    p: f64,
    seed: u64,
}

impl<'a> ModelBuilder<'a> {
    fn new(weights: &'a Weights, dtype: DType) -> ModelBuilder<'a> {
        ModelBuilder {
            graph: Graph::new(),
            params: Vec::new(),
            weights,
            dtype,
            mode: WeightUse::Frozen,
            tuned: TrainableSet::default(),
            dropout: Dropout::default(),
            transposed: &[],
        }
    }

    /// Sets the transposed projections of this decoder family. Only Hugging Face files store
    /// matrices transposed.
    fn with_decoder_spec(self, spec: &DecoderSpec) -> ModelBuilder<'a> {
        let turned = match self.weights {
            Weights::Hf(_) => spec.family.get().transposed,
            Weights::Gguf(_) | Weights::Dummy(_) => &[],
        };
        ModelBuilder {
            transposed: turned,
            ..self
        }
    }

    /// True if the projection with this weight is stored transposed, as `[inputs, outputs]`.
    /// Quantized weights are not: quantizers transpose such matrices first.
    fn is_turned(&self, name: &str) -> bool {
        let module = name.strip_suffix(".weight").unwrap_or(name);
        let mut turned = self.transposed.iter();
        turned.any(|last| crate::low_rank::matches_module(module, last))
            && !self.weights.is_packed(name)
    }

    /// Sets the use of the weights: frozen, trained, or combined with adapters.
    fn in_mode(self, mode: WeightUse<'a>) -> ModelBuilder<'a> {
        ModelBuilder { mode, ..self }
    }

    /// Enables dropout of activations at the positions that the model family defines.
    fn with_dropout(self, p: f64, seed: u64) -> Result<ModelBuilder<'a>, ModelError> {
        let dropout = Dropout {
            p: check_dropout(p)?,
            seed,
        };
        Ok(ModelBuilder { dropout, ..self })
    }

    /// Applies dropout to `x`.
    fn drop(&mut self, x: Value) -> Result<Value, ModelError> {
        let Dropout { p, seed } = self.dropout;
        Ok(self.graph.dropout(x, p, seed)?)
    }

    fn finish(self) -> ModelGraph {
        ModelGraph {
            graph: self.graph,
            params: self.params,
        }
    }

    /// Graph parameter of this name; repeated calls return the same parameter.
    fn param(&mut self, name: &str, tensor: Tensor) -> Result<Value, ModelError> {
        if let Some(node) = self.graph.leaf(name) {
            debug_assert!(matches!(self.graph.node(node).op, Op::Param(_)));
            return Ok(Value { node, port: 0 });
        }
        let value = self.graph.param(name, Type::from(tensor.ty()))?;
        self.params.push((name.to_string(), tensor));
        Ok(value)
    }

    /// F32 vector of `len` elements, such as a norm gain or a bias.
    fn vector(&mut self, name: &str, len: usize) -> Result<Value, ModelError> {
        self.dense(name, &[len])
    }

    /// Weight decoded to F32 from any storage format. The weight is trainable if the builder trains
    /// all weights.
    fn dense(&mut self, name: &str, shape: &[usize]) -> Result<Value, ModelError> {
        let tensor = self.weights.dense_f32(name, shape)?;
        match self.mode {
            WeightUse::Full => self.trained_param(name, tensor),
            WeightUse::Frozen
            | WeightUse::Adapted(_)
            | WeightUse::MultiLora(_)
            | WeightUse::Lora(_) => self.param(name, tensor),
        }
    }

    /// `x W^T (+ b)` for a weight `[outputs, inputs]` in any storage format.
    fn linear(
        &mut self,
        x: Value,
        name: &str,
        bias: Option<&str>,
        shape: [usize; 2],
    ) -> Result<Value, ModelError> {
        let y = match self.mode {
            WeightUse::Full if self.is_turned(name) => {
                let [outputs, inputs] = shape;
                let w = self.dense(name, &[inputs, outputs])?;
                self.graph.matmul(x, w)?
            }
            WeightUse::Full => {
                let w = self.dense(name, &shape)?;
                let w = self.graph.transpose(w, &[1, 0])?;
                self.graph.matmul(x, w)?
            }
            WeightUse::Frozen
            | WeightUse::Adapted(_)
            | WeightUse::MultiLora(_)
            | WeightUse::Lora(_) => self.product(x, name, shape)?,
        };
        match bias {
            Some(bias) => {
                let b = self.vector(bias, shape[0])?;
                Ok(self.graph.plus(y, b)?)
            }
            None => Ok(y),
        }
    }

    /// `x W^T` for a weight `[heads, outputs, inputs]`; the results of all heads are concatenated
    /// along the last axis.
    fn by_head(
        &mut self,
        x: Value,
        name: &str,
        [heads, outputs, inputs]: [usize; 3],
    ) -> Result<Value, ModelError> {
        let all = heads * outputs;
        if let WeightUse::Full = self.mode {
            let w = self.dense(name, &[heads, outputs, inputs])?;
            let w = self.graph.reshape(w, [all, inputs])?;
            let w = self.graph.transpose(w, &[1, 0])?;
            return Ok(self.graph.matmul(x, w)?);
        }
        let names = [name.to_string()];
        let matrix = self.weights.experts(&names, [heads, outputs, inputs])?;
        let matrix = matrix.unstacked(name)?;
        let factor = self.weights.factor(name)?.unwrap_or(1.0);
        let y = self.multiplied(x, name, matrix)?;
        self.times(y, factor)
    }

    /// `x W^T` with the weight in its stored format.
    fn product(&mut self, x: Value, name: &str, shape: [usize; 2]) -> Result<Value, ModelError> {
        let factor = self.weights.factor(name)?.unwrap_or(1.0);
        let (before, after) = match self.dtype {
            DType::F16 => parts(factor),
            _ => (1.0, factor),
        };
        let x = self.times(x, before)?;
        let matrix = match self.is_turned(name) {
            true => self.weights.transposed_matrix(name, shape)?,
            false => self.weights.matrix(name, shape)?,
        };
        let y = self.multiplied(x, name, matrix)?;
        self.times(y, after)
    }

    /// A matrix in the format that the graph keeps it in. A training step reads every frozen matrix
    /// at least twice, so its floats are converted once, when they are loaded, and not in each step.
    fn stored_for_training(
        &self,
        name: &str,
        matrix: WeightMatrix,
    ) -> Result<WeightMatrix, ModelError> {
        match self.mode {
            WeightUse::Lora(_) => matrix.rounded_to(name, self.dtype),
            WeightUse::Frozen
            | WeightUse::Adapted(_)
            | WeightUse::MultiLora(_)
            | WeightUse::Full => Ok(matrix),
        }
    }

    /// `x W^T` for a matrix that is already loaded; `name` is the parameter's name.
    fn multiplied(
        &mut self,
        x: Value,
        name: &str,
        matrix: WeightMatrix,
    ) -> Result<Value, ModelError> {
        match self.stored_for_training(name, matrix)? {
            WeightMatrix::Dense(tensor) => {
                let w = self.param(name, tensor)?;
                let w = self.graph.transpose(w, &[1, 0])?;
                Ok(self.graph.matmul(x, w)?)
            }
            WeightMatrix::Packed(scheme, tensor) => {
                let w = self.param(name, tensor)?;
                Ok(self.graph.dequant_matmul(x, w, scheme)?)
            }
        }
    }

    /// F32 rows of an embedding table `[rows, width]` at `ids`.
    fn embedding(
        &mut self,
        ids: Value,
        name: &str,
        shape: [usize; 2],
    ) -> Result<Value, ModelError> {
        if let WeightUse::Full = self.mode {
            return self.trained_embedding(ids, name, shape);
        }
        let matrix = self.weights.matrix(name, shape)?;
        let rows = match self.stored_for_training(name, matrix)? {
            WeightMatrix::Dense(tensor) => {
                let table = self.param(name, tensor)?;
                self.graph.gather(table, ids, 0)?
            }
            WeightMatrix::Packed(scheme, tensor) => {
                let table = self.param(name, tensor)?;
                let packed = self.graph.gather(table, ids, 0)?;
                self.graph.dequantize(packed, scheme)?
            }
        };
        let factor = self.weights.factor(name)?.unwrap_or(1.0);
        self.times(rows, factor)
    }

    /// `x` multiplied by a constant.
    fn times(&mut self, x: Value, factor: f32) -> Result<Value, ModelError> {
        if factor == 1.0 {
            return Ok(x);
        }
        let factor = self.graph.scalar(DType::F32, f64::from(factor))?;
        Ok(self.graph.mul(x, factor)?)
    }
}

/// Splits a factor into a power of two near its square root and the remaining factor. The power of
/// two scales the matmul input, the other factor scales the result. With this split, both the
/// unscaled sums and a small input stay within the range of F16.
pub fn parts(factor: f32) -> (f32, f32) {
    let before = (factor.abs().log2() / 2.0).round().exp2();
    match before.is_normal() {
        true => (before, factor / before),
        false => (1.0, factor),
    }
}

//! Text encoders: the graph of any [`EncoderSpec`], for embedding, classification and reranking.
//!
//! Inputs: `ids` I32 `[b, s]`; `type_ids` I32 `[b, s]` if the model has segments; `mask` Bool `[b,
//! s]` (true for tokens, false for padding after them); `pooled` Bool `[b, s]` if pooling excludes
//! prompt tokens. Outputs, F32:
//!
//! | [`EncoderOutput`] | output |
//! |---|---|
//! | `Hidden` | `hidden [b, s, hidden]` |
//! | `Embedding` | `embedding [b, width]` |
//! | `Classes` | `logits [b, classes]` |
//! | `TokenClasses` | `logits [b, s, classes]` |

mod attention_masks;
mod classifier;
mod decoder;
pub(crate) mod embedder;
pub(crate) mod entities;
mod heads;
pub(crate) mod layer;
mod patches;
pub(crate) mod relative;
pub(crate) mod runner;
mod sentence;
mod text_reader;

use tercet::{CompileOptions, DType, Device, Dim, Executable, Type, Value};

use super::{MatmulPrecision, ModelBuilder, ModelError, ModelGraph, Weights};
use crate::config::EncoderSpec;
use crate::config::encoder::TokenTypes;
pub use classifier::{ClassScore, Scoring, TextClassifier, TokenLabel};
pub use embedder::Embedder;
pub use entities::Entity;
pub(crate) use layer::{EncoderTexts, encode};
pub(crate) use patches::{as_rows, encode_images};
pub(crate) use relative::causal_bias;
pub use runner::EncoderTokens;
pub(crate) use sentence::token;
pub use sentence::{DenseModule, PoolingMode, SentenceModule, SentenceModules};
pub(crate) use sentence::{mean, mean_normalized};
pub use text_reader::EncoderTextReader;

/// Output of an encoder graph, computed from the hidden states.
///
/// ```
/// use tercet_networks::{EncoderOutput, PoolingMode};
/// let EncoderOutput::Embedding(modules) = EncoderOutput::mean_normalized() else {
///     panic!("the output is not an embedding");
/// };
/// assert_eq!(modules.modes, [PoolingMode::Mean]);
/// ```
#[derive(Clone, Debug)]
pub enum EncoderOutput {
    /// The hidden states of all tokens.
    Hidden,
    /// One embedding vector per text.
    Embedding(SentenceModules),
    /// Logits of this number of classes per text.
    Classes(usize),
    /// Logits of this number of classes per token.
    TokenClasses(usize),
}

impl EncoderOutput {
    /// Embedding by mean pooling over the tokens, L2-normalized.
    pub fn mean_normalized() -> EncoderOutput {
        EncoderOutput::Embedding(SentenceModules::normalized(PoolingMode::Mean))
    }

    /// Embedding from the first token's state, L2-normalized.
    pub fn cls_normalized() -> EncoderOutput {
        EncoderOutput::Embedding(SentenceModules::normalized(PoolingMode::Cls))
    }
}

/// A text encoder: graph and parameters.
///
/// ```
/// # let dims = tercet_networks::EncoderDims {
/// #     hidden: 32, layers: 1, heads: 2, ffn: 64, vocab: 16, context: 32,
/// # };
/// # let spec = tercet_networks::EncoderSpec::bert(dims);
/// # let weights = tercet_networks::Weights::Dummy(tercet_networks::DummyWeights::dense());
/// use tercet::{DType, Device};
/// use tercet_networks::{Encoder, EncoderOutput};
/// let encoder = Encoder::build(&spec, &weights, &EncoderOutput::Hidden, DType::F32)?;
/// assert_eq!((encoder.context, encoder.width), (spec.context, spec.hidden));
/// let exe = encoder.compile(&Device::cpu(), 4, 16)?;
/// assert_eq!(exe.signature().outputs[0].name, "hidden");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Encoder {
    /// Graph and parameters.
    pub model: ModelGraph,
    /// Maximum tokens of a text.
    pub context: usize,
    /// Elements per row of the output.
    pub width: usize,
    /// Precision of matmul inputs in an F32 model; the default is full precision.
    pub matmul_precision: MatmulPrecision,
}

impl Encoder {
    /// Builds the graph from the weights of a file, with arithmetic in `dtype`.
    ///
    /// # Errors
    /// [`ModelError`] if a weight is missing or has an unexpected shape or format, or if the sizes
    /// of two consecutive modules differ.
    pub fn build(
        spec: &EncoderSpec,
        weights: &Weights,
        output: &EncoderOutput,
        dtype: DType,
    ) -> Result<Encoder, ModelError> {
        let mut b = ModelBuilder::new(weights, dtype);
        let shape = [Dim::sym("b"), Dim::sym("s")];
        let ids = b.graph.input("ids", Type::new(DType::I32, shape.clone()))?;
        let type_ids = match spec.token_types {
            TokenTypes::BySegment { .. } => {
                let ty = Type::new(DType::I32, shape.clone());
                Some(b.graph.input("type_ids", ty)?)
            }
            TokenTypes::None | TokenTypes::First { .. } => None,
        };
        let mask = b.graph.input("mask", Type::new(DType::Bool, shape))?;
        let texts = EncoderTexts {
            ids,
            type_ids,
            mask: Some(mask),
        };
        let x = encode(&mut b, spec, &texts, false)?;
        let width = match output {
            EncoderOutput::Hidden => {
                b.graph.output("hidden", x)?;
                spec.hidden
            }
            EncoderOutput::Embedding(modules) => {
                embedding(&mut b, modules, x, mask, spec.context)?;
                modules.width(spec.hidden)
            }
            EncoderOutput::Classes(classes) => {
                let logits = heads::text_logits(&mut b, spec, x, mask, *classes)?;
                b.graph.output("logits", logits)?;
                *classes
            }
            EncoderOutput::TokenClasses(classes) => {
                let logits = heads::token_logits(&mut b, spec, x, *classes)?;
                b.graph.output("logits", logits)?;
                *classes
            }
        };
        Ok(Encoder {
            model: b.finish().with_precision(dtype)?,
            context: spec.context,
            width,
            matmul_precision: MatmulPrecision::Full,
        })
    }

    /// Dtype to which the device rounds matmul inputs; `None` if it does not round.
    pub(super) fn matmul_dtype(&self, device: &Device) -> Option<DType> {
        self.matmul_precision.resolve(&self.model.graph, device)
    }

    /// Compiles the encoder for batches of at most `batch` texts with at most `len` tokens each.
    ///
    /// # Errors
    /// [`ModelError::Context`] if `len` exceeds the model's positions; [`ModelError::Compile`] and
    /// [`ModelError::Run`] of the device.
    pub fn compile(
        &self,
        device: &Device,
        batch: usize,
        len: usize,
    ) -> Result<Box<dyn Executable>, ModelError> {
        if len > self.context {
            return Err(ModelError::Context {
                tokens: len,
                context: self.context,
            });
        }
        let options = CompileOptions::new().bound("b", batch).bound("s", len);
        let options = options.with_matmul_precision(self.matmul_dtype(device));
        self.model.compile(device, &options)
    }
}

/// Adds the output `embedding`, computed from the hidden states.
fn embedding(
    b: &mut ModelBuilder<'_>,
    modules: &SentenceModules,
    x: Value,
    mask: Value,
    context: usize,
) -> Result<(), ModelError> {
    let pooled = match modules.include_prompt {
        true => mask,
        false => {
            let ty = b.graph.ty(mask).clone();
            b.graph.input("pooled", ty)?
        }
    };
    let y = modules.apply(b, x, [mask, pooled], context)?;
    Ok(b.graph.output("embedding", y)?)
}

//! Text encoders: the graph of any [`EncoderSpec`], as sentence embedders, classifiers and rerankers.
//!
//! Inputs: `ids` I32 `[b, s]`; `type_ids` I32 `[b, s]` where the model has segments; `mask` Bool `[b, s]` (true for tokens,
//! false for padding after them); `pooled` Bool `[b, s]` where a prompt's tokens take no part in pooling. Outputs, F32:
//!
//! | [`EncoderOutput`] | output |
//! |---|---|
//! | `Hidden` | `hidden [b, s, hidden]` |
//! | `Embedding` | `embedding [b, width]` |
//! | `Classes` | `logits [b, classes]` |
//! | `TokenClasses` | `logits [b, s, classes]` |

mod classifier;
mod decoder;
mod embedder;
mod heads;
pub(crate) mod layer;
mod patches;
mod relative;
mod runner;
mod seen;
mod sentence;
mod words;

use tercet::{CompileOptions, DType, Device, Dim, Executable, Type, Value};

use super::{Builder, Model, ModelError, Products, Weights};
use crate::config::EncoderSpec;
use crate::config::encoder::TokenTypes;
pub use classifier::{Classifier, Label, Scoring, TokenLabel};
pub use embedder::Embedder;
pub(crate) use layer::{Texts, encode};
pub(crate) use patches::{as_rows, encode_pictures};
pub(crate) use relative::causal_bias;
pub(crate) use sentence::token;
pub use sentence::{DenseModule, PoolingMode, SentenceModule, SentenceModules};
pub(crate) use sentence::{mean, mean_normalized};
pub use words::Entity;

/// What becomes of the hidden states of a text.
#[derive(Clone, Debug)]
pub enum EncoderOutput {
    /// They are the output.
    Hidden,
    /// A vector.
    Embedding(SentenceModules),
    /// Logits of so many classes of the text.
    Classes(usize),
    /// Logits of so many classes of each token.
    TokenClasses(usize),
}

impl EncoderOutput {
    /// The mean over the tokens, divided by its L2 norm.
    pub fn mean_normalized() -> EncoderOutput {
        EncoderOutput::Embedding(SentenceModules::normalized(PoolingMode::Mean))
    }

    /// The state of the first token, divided by its L2 norm.
    pub fn cls_normalized() -> EncoderOutput {
        EncoderOutput::Embedding(SentenceModules::normalized(PoolingMode::Cls))
    }
}

/// A text encoder: its graph and parameters.
#[derive(Clone, Debug)]
pub struct Encoder {
    /// Graph and parameters.
    pub model: Model,
    /// Tokens of the longest text.
    pub context: usize,
    /// Elements of a row of the output.
    pub width: usize,
    /// What rows of a model in F32 may be rounded to on their way into products; as they are, unless set.
    pub products: Products,
}

impl Encoder {
    /// Builds the graph over the weights of a file, computed in `dtype`.
    ///
    /// # Errors
    /// [`ModelError`] when a weight is missing or of another shape or format, or a module does not fit the one before.
    pub fn build(
        spec: &EncoderSpec,
        weights: &Weights,
        output: &EncoderOutput,
        dtype: DType,
    ) -> Result<Encoder, ModelError> {
        let mut b = Builder::new(weights, dtype);
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
        let texts = Texts {
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
            products: Products::Exact,
        })
    }

    /// What rows are rounded to on a device.
    pub(super) fn rounded_to(&self, device: &Device) -> Option<DType> {
        self.products.of(&self.model.graph, device)
    }

    /// Compiles the encoder for at most `batch` texts of at most `len` tokens at once.
    ///
    /// # Errors
    /// [`ModelError::Context`] when `len` exceeds the positions; [`ModelError::Compile`]
    /// and [`ModelError::Run`] of the device.
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
        let options = options.products_in(self.rounded_to(device));
        self.model.compile(device, &options)
    }
}

/// The vectors of hidden states as an output.
fn embedding(
    b: &mut Builder<'_>,
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

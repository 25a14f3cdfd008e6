//! Model builders: graphs on the public API of `tercet`, with the weights of a file.
//!
//! A builder turns a configuration and [`Weights`] into a [`Model`]: a graph whose parameters are
//! named after the file's tensors, and those tensors, mapped rather than read. Quantised and
//! half-precision weights stay as stored; the graph computes in F32 unless it is converted.

mod batch;
mod chosen;
pub(crate) mod cross;
mod decoder;
mod encoder;
mod generator;
mod made_up;
mod sampling;
pub(crate) mod speech;
mod stacked;
mod text_to_text;
pub mod training;
mod tuned;
mod vision;
mod vision_language;
mod weights;

use tercet::ops::Op;
use tercet::{
    CompileError, CompileOptions, Device, Executable, Graph, OpError, RunError, Tensor, TensorError,
};
use tercet::{DType, Type, Value};

use crate::adapter::AdapterError;
use crate::config::DecoderSpec;
use crate::constraint::ConstraintError;
use crate::weight::WeightError;
pub use batch::{BatchEvent, BatchGenerator, DraftedGenerator, Happened, Sequence, SequenceId};
pub use decoder::{
    BatchDecoder, BatchOptions, CacheFormat, Decoder, DecoderOptions, Products, Sampling,
};
pub use encoder::{
    Classifier, DenseModule, Embedder, Encoder, EncoderOutput, Entity, Label, PoolingMode, Scoring,
    SentenceModule, SentenceModules, TokenLabel,
};
pub use generator::{Draft, DraftCounts, DraftError, Generator, MOST_DRAFTED, Step};
pub use made_up::MadeUp;
pub use sampling::SamplingOptions;
pub(crate) use speech::moonshine::PIECE_SECONDS;
pub use speech::{Moonshine, Speech};
pub use text_to_text::{SourceReader, TextToText, TextToTextOptions};
pub use tuned::ScaledAdapter;
use tuned::{Mode, Tuned};
pub(crate) use tuned::{is_called, unknown_target};
pub(crate) use vision::no_texts;
pub use vision::{PictureClassifier, PictureEncoder, PictureLabels, VisionModel, VisionOutput};
pub use vision_language::{PictureReader, VisionLanguage};
use weights::Matrix;
pub use weights::Weights;

/// Why a model could not be built or run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// A weight is stored in a way that is not read.
    #[error(transparent)]
    Weight(#[from] WeightError),
    /// A weight is missing.
    #[error("the model has no tensor `{tensor}`")]
    MissingWeight {
        /// Its name.
        tensor: String,
    },
    /// A weight has another shape than the configuration says.
    #[error("tensor `{tensor}` is {found:?}; the configuration makes it {expected:?}")]
    WeightShape {
        /// Its name.
        tensor: String,
        /// The shape that the configuration gives.
        expected: Vec<usize>,
        /// The shape in the file.
        found: Vec<usize>,
    },
    /// The bytes of a weight do not make a tensor of its type.
    #[error("tensor `{tensor}`")]
    WeightBytes {
        /// Its name.
        tensor: String,
        /// What is wrong.
        #[source]
        source: TensorError,
    },
    /// The graph of the model is not well typed: configuration and weights contradict each other.
    #[error("the model's configuration and weights contradict each other")]
    Graph(#[from] OpError),
    /// The device cannot run the model.
    #[error("the model cannot be compiled for this device")]
    Compile(#[from] CompileError),
    /// A run failed.
    #[error("the model could not be run")]
    Run(#[from] RunError),
    /// The text does not fit the context.
    #[error("{tokens} tokens do not fit the context of {context}; raise it or shorten the text")]
    Context {
        /// Tokens in all, those before included.
        tokens: usize,
        /// The context the model was compiled with.
        context: usize,
    },
    /// Pictures have no places in a prompt, or places no pictures.
    #[error(
        "the prompt has {places} times `<image>` for {pictures} pictures; each picture takes the place of one"
    )]
    Places {
        /// Places in the prompt.
        places: usize,
        /// Pictures that were given.
        pictures: usize,
    },
    /// Every slot has a sequence.
    #[error("all {slots} slots are taken; cancel a sequence, or wait until one ends")]
    NoSlot {
        /// How many there are.
        slots: usize,
    },
    /// A text is longer than an encoder reads.
    #[error(
        "text {text} has {tokens} tokens, the model reads at most {most}: shorten it, or have texts cut \
         (`--truncate`, `truncate=True`)"
    )]
    TextTooLong {
        /// Its place among the texts, from 1 on.
        text: usize,
        /// Its tokens, special ones included.
        tokens: usize,
        /// Tokens of the longest text that is read.
        most: usize,
    },
    /// The tables of rotations do not fit memory.
    #[error("the rotations of all positions of the context; lower the context")]
    RopeTables(#[source] TensorError),
    /// Nothing to run on.
    #[error("no tokens were given; a model needs at least one")]
    NoTokens,
    /// A token is outside the vocabulary.
    #[error("token {token} is outside the vocabulary of {vocab}")]
    Token {
        /// The token.
        token: u32,
        /// The size of the vocabulary.
        vocab: usize,
    },
    /// An adapter that does not fit the model.
    #[error(transparent)]
    Adapter(#[from] AdapterError),
    /// A text cannot be constrained, or not any further.
    #[error(transparent)]
    Constraint(#[from] ConstraintError),
    /// A draft that cannot be used.
    #[error(transparent)]
    Draft(#[from] DraftError),
    /// A configuration that the builder does not implement.
    #[error("{0}")]
    Unsupported(String),
}

/// A graph and its parameters.
#[derive(Clone, Debug)]
pub struct Model {
    /// The graph.
    pub graph: Graph,
    /// The tensor of each parameter, by name.
    pub params: Vec<(String, Tensor)>,
}

impl Model {
    /// Bytes of all parameters.
    pub fn param_bytes(&self) -> usize {
        self.params.iter().map(|(_, t)| t.bytes().len()).sum()
    }

    /// Compiles the graph and sets its parameters.
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

    /// The model computed in another float dtype; inputs, outputs and parameters keep their types.
    ///
    /// # Errors
    /// [`ModelError::Compile`] when `dtype` is not a float.
    pub fn with_precision(self, dtype: DType) -> Result<Model, ModelError> {
        if dtype == DType::F32 {
            return Ok(self);
        }
        let graph = tercet::passes::convert_precision(&self.graph, dtype)?;
        Ok(Model {
            graph,
            params: self.params,
        })
    }
}

/// Refuses what is no probability of dropping.
fn check_dropout(p: f64) -> Result<f64, ModelError> {
    match (0.0..1.0).contains(&p) {
        true => Ok(p),
        false => Err(ModelError::Unsupported(format!(
            "a dropout of {p}; expected 0 or more and less than 1"
        ))),
    }
}

/// A graph under construction, with the weights it draws on.
struct Builder<'a> {
    graph: Graph,
    params: Vec<(String, Tensor)>,
    weights: &'a Weights,
    /// What the graph will be computed in.
    dtype: DType,
    mode: Mode<'a>,
    tuned: Tuned,
    /// What is dropped in training.
    dropout: Dropout,
    /// Last components of the names of projections that are stored as `[inputs, outputs]`.
    turned: &'static [&'static str],
}

/// Dropout of a training graph.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Dropout {
    /// The probability, 0 or more and less than 1.
    p: f64,
    seed: u64,
}

impl<'a> Builder<'a> {
    fn new(weights: &'a Weights, dtype: DType) -> Builder<'a> {
        Builder {
            graph: Graph::new(),
            params: Vec::new(),
            weights,
            dtype,
            mode: Mode::Frozen,
            tuned: Tuned::default(),
            dropout: Dropout::default(),
            turned: &[],
        }
    }

    /// With matrices as files of this decoder have them.
    fn of_decoder(self, spec: &DecoderSpec) -> Builder<'a> {
        let turned = match self.weights {
            Weights::Hf(_) => spec.family.get().turned,
            Weights::Gguf(_) | Weights::MadeUp(_) => &[],
        };
        Builder { turned, ..self }
    }

    /// Whether the projection with this weight is stored as `[inputs, outputs]`.
    fn is_turned(&self, name: &str) -> bool {
        let module = name.strip_suffix(".weight").unwrap_or(name);
        self.turned.iter().any(|last| is_called(module, last))
    }

    /// Weights are trained, or changed by adapters.
    fn in_mode(self, mode: Mode<'a>) -> Builder<'a> {
        Builder { mode, ..self }
    }

    /// Elements of activations are dropped, where the family says so.
    fn with_dropout(self, p: f64, seed: u64) -> Result<Builder<'a>, ModelError> {
        let dropout = Dropout {
            p: check_dropout(p)?,
            seed,
        };
        Ok(Builder { dropout, ..self })
    }

    /// `x` with elements dropped.
    fn drop(&mut self, x: Value) -> Result<Value, ModelError> {
        let Dropout { p, seed } = self.dropout;
        Ok(self.graph.dropout(x, p, seed)?)
    }

    fn finish(self) -> Model {
        Model {
            graph: self.graph,
            params: self.params,
        }
    }

    /// The parameter of this name, made once.
    fn param(&mut self, name: &str, tensor: Tensor) -> Result<Value, ModelError> {
        if let Some(node) = self.graph.leaf(name) {
            debug_assert!(matches!(self.graph.node(node).op, Op::Param(_)));
            return Ok(Value { node, port: 0 });
        }
        let value = self.graph.param(name, Type::from(tensor.ty()))?;
        self.params.push((name.to_string(), tensor));
        Ok(value)
    }

    /// A vector of `len` F32 numbers: a norm's gain or a bias.
    fn vector(&mut self, name: &str, len: usize) -> Result<Value, ModelError> {
        self.dense(name, &[len])
    }

    /// The F32 values of a weight of any storage, trained where all are.
    fn dense(&mut self, name: &str, shape: &[usize]) -> Result<Value, ModelError> {
        let tensor = self.weights.dense_f32(name, shape)?;
        match self.mode {
            Mode::Full => self.trained_param(name, tensor),
            Mode::Frozen | Mode::Adapted(_) | Mode::Chosen(_) | Mode::Lora(_) => {
                self.param(name, tensor)
            }
        }
    }

    /// `x W^T (+ b)` for a weight `[outputs, inputs]` of any storage.
    fn linear(
        &mut self,
        x: Value,
        name: &str,
        bias: Option<&str>,
        shape: [usize; 2],
    ) -> Result<Value, ModelError> {
        let y = match self.mode {
            Mode::Full if self.is_turned(name) => {
                let [outputs, inputs] = shape;
                let w = self.dense(name, &[inputs, outputs])?;
                self.graph.matmul(x, w)?
            }
            Mode::Full => {
                let w = self.dense(name, &shape)?;
                let w = self.graph.transpose(w, &[1, 0])?;
                self.graph.matmul(x, w)?
            }
            Mode::Frozen | Mode::Adapted(_) | Mode::Chosen(_) | Mode::Lora(_) => {
                self.product(x, name, shape)?
            }
        };
        match bias {
            Some(bias) => {
                let b = self.vector(bias, shape[0])?;
                Ok(self.graph.plus(y, b)?)
            }
            None => Ok(y),
        }
    }

    /// `x W^T` for a weight `[heads, outputs, inputs]`: those of all heads behind each other.
    fn by_head(
        &mut self,
        x: Value,
        name: &str,
        [heads, outputs, inputs]: [usize; 3],
    ) -> Result<Value, ModelError> {
        let all = heads * outputs;
        if let Mode::Full = self.mode {
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

    /// `x W^T` for a weight as it is stored.
    fn product(&mut self, x: Value, name: &str, shape: [usize; 2]) -> Result<Value, ModelError> {
        let factor = self.weights.factor(name)?.unwrap_or(1.0);
        let (before, after) = match self.dtype {
            DType::F16 => parts(factor),
            _ => (1.0, factor),
        };
        let x = self.times(x, before)?;
        let matrix = match self.is_turned(name) {
            true => self.weights.turned_matrix(name, shape)?,
            false => self.weights.matrix(name, shape)?,
        };
        let y = self.multiplied(x, name, matrix)?;
        self.times(y, after)
    }

    /// `x W^T` of a matrix of this name.
    fn multiplied(&mut self, x: Value, name: &str, matrix: Matrix) -> Result<Value, ModelError> {
        match matrix {
            Matrix::Dense(tensor) => {
                let w = self.param(name, tensor)?;
                let w = self.graph.transpose(w, &[1, 0])?;
                Ok(self.graph.matmul(x, w)?)
            }
            Matrix::Packed(scheme, tensor) => {
                let w = self.param(name, tensor)?;
                Ok(self.graph.dequant_matmul(x, w, scheme)?)
            }
        }
    }

    /// The F32 rows of an embedding `[rows, width]` at `ids`.
    fn embedding(
        &mut self,
        ids: Value,
        name: &str,
        shape: [usize; 2],
    ) -> Result<Value, ModelError> {
        if let Mode::Full = self.mode {
            return self.trained_embedding(ids, name, shape);
        }
        let rows = match self.weights.matrix(name, shape)? {
            Matrix::Dense(tensor) => {
                let table = self.param(name, tensor)?;
                self.graph.gather(table, ids, 0)?
            }
            Matrix::Packed(scheme, tensor) => {
                let table = self.param(name, tensor)?;
                let packed = self.graph.gather(table, ids, 0)?;
                self.graph.dequantize(packed, scheme)?
            }
        };
        let factor = self.weights.factor(name)?.unwrap_or(1.0);
        self.times(rows, factor)
    }

    /// `x` times a number.
    fn times(&mut self, x: Value, factor: f32) -> Result<Value, ModelError> {
        if factor == 1.0 {
            return Ok(x);
        }
        let factor = self.graph.scalar(DType::F32, f64::from(factor))?;
        Ok(self.graph.mul(x, factor)?)
    }
}

/// A factor as a power of two near its root and what is left: one for the left side of a product and one
/// for the result, so that sums before the factor stay inside F16, whose range they would leave, and a small
/// left side does, too.
fn parts(factor: f32) -> (f32, f32) {
    let before = (factor.abs().log2() / 2.0).round().exp2();
    match before.is_normal() {
        true => (before, factor / before),
        false => (1.0, factor),
    }
}

#[cfg(test)]
mod tests {
    use super::parts;

    #[test]
    fn factors_are_parted_without_rounding() {
        for factor in [1.0, 3e-4, 1.2e-5, -0.75, 6e4, 0.0, 1e-45, f32::MAX] {
            let (before, after) = parts(factor);
            assert_eq!(before * after, factor);
            assert_eq!(before.to_bits() & 0x7F_FFFF, 0, "{factor}: a power of two");
            let even = before.log2() - after.abs().log2();
            assert!(
                factor == 0.0 || even.abs() <= 1.0,
                "{factor}: {before} and {after}"
            );
        }
    }
}

//! Whole training steps of usual models, made up as they are needed: what the bench `gpu training` times, and, small, what the
//! suite `steps` trains.

mod draft;
mod gpt;
mod models;
mod resnet;

pub use draft::cross_entropy;
use tercet::train::{
    AdamW, LearningRateSchedule, LossScale, StepOptions, TrainError, TrainStep, Trainable, Trainer,
};
use tercet::{
    CompileOptions, DType, Device, Graph, Scheme, Tensor, TensorType, Value, case::InputFill,
};

/// Why a step could not be made.
pub type BoxError = Box<dyn std::error::Error>;

/// How large a step is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepScale {
    /// As it is measured.
    Whole,
    /// A few layers of a few numbers, to be trained by any executor within seconds.
    Small,
}

/// A model that is trained.
#[derive(Clone, Copy, Debug)]
pub enum StepModel {
    /// An encoder that tells two classes: 32 texts of 128 tokens.
    Bert,
    /// A decoder of 124 million parameters, all trained: 8 rows of 1024 tokens.
    Gpt2,
    /// Matrices of rank 16 beside all projections of a llama of 1.1 billion parameters in this storage: 4 rows of 512 tokens.
    LlamaLora(Scheme),
    /// 64 images of 224 x 224.
    ResNet50,
    /// A decoder of 3.4 million parameters, as processors train it: 8 rows of 128 tokens.
    SmallGpt,
}

/// A training step to be measured.
#[derive(Clone, Copy, Debug)]
pub struct MeasuredStep {
    /// Its name, by which the bench chooses it.
    pub name: &'static str,
    /// What is trained.
    pub model: StepModel,
    /// What it is computed in; weights that are trained, and their moments, are F32.
    pub dtype: DType,
}

/// All of them.
pub const STEPS: &[MeasuredStep] = &[
    step("bert_f32", StepModel::Bert, DType::F32),
    step("bert_f16", StepModel::Bert, DType::F16),
    step("bert_bf16", StepModel::Bert, DType::BF16),
    step("gpt2_f16", StepModel::Gpt2, DType::F16),
    step("gpt2_bf16", StepModel::Gpt2, DType::BF16),
    step("llama_f16", StepModel::LlamaLora(Scheme::F16), DType::F16),
    step(
        "llama_bf16",
        StepModel::LlamaLora(Scheme::BF16),
        DType::BF16,
    ),
    step("llama_q4k", StepModel::LlamaLora(Scheme::Q4K), DType::F16),
    step("resnet50_f16", StepModel::ResNet50, DType::F16),
    step("small_gpt_f32", StepModel::SmallGpt, DType::F32),
];

const fn step(name: &'static str, model: StepModel, dtype: DType) -> MeasuredStep {
    MeasuredStep { name, model, dtype }
}

/// A graph with a loss, and what it starts with.
struct StepNet {
    graph: Graph,
    loss: Value,
    params: Vec<(String, Tensor)>,
    trained: Vec<(String, Tensor)>,
    /// Other states that do not start as zeros.
    states: Vec<(String, Tensor)>,
    batch: Vec<(&'static str, Tensor)>,
    /// What a batch has of these.
    count: usize,
    unit: &'static str,
}

/// A step that is ready to be compiled.
pub struct BuiltStep {
    /// The step.
    pub step: TrainStep,
    /// The inputs of a batch.
    pub batch: Vec<(&'static str, Tensor)>,
    /// What a batch has of [`unit`].
    pub count: usize,
    /// Tokens or images.
    pub unit: &'static str,
    params: Vec<(String, Tensor)>,
    states: Vec<(String, Tensor)>,
}

impl std::fmt::Debug for BuiltStep {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut s = f.debug_struct("Made");
        let s = s.field("step", &self.step).field("count", &self.count);
        s.finish_non_exhaustive()
    }
}

impl MeasuredStep {
    /// Whether activations are computed again: where the step would take more memory than its peer otherwise.
    fn recomputes(&self) -> bool {
        matches!(self.model, StepModel::ResNet50 | StepModel::LlamaLora(_))
    }

    /// The step by AdamW, with a loss scale in F16.
    ///
    /// # Errors
    /// What the builders of models and steps refuse.
    pub fn make(&self, size: StepScale) -> Result<BuiltStep, BoxError> {
        let net = match self.model {
            StepModel::Bert => models::bert(size, self.dtype)?,
            StepModel::Gpt2 => gpt::gpt2(size, self.dtype)?,
            StepModel::LlamaLora(scheme) => models::llama_lora(size, self.dtype, scheme)?,
            StepModel::ResNet50 => resnet::resnet50(size, self.dtype)?,
            StepModel::SmallGpt => gpt::small(size, self.dtype)?,
        };
        let names = net.trained.iter().map(|(name, _)| Trainable::new(name));
        let names: Vec<Trainable> = names.collect();
        let options = StepOptions {
            loss_scale: (self.dtype == DType::F16).then(LossScale::default),
            recompute_activations: self.recomputes(),
            ..StepOptions::default()
        };
        let step = TrainStep::build(&net.graph, net.loss, &names, &AdamW::default(), &options)?;
        Ok(BuiltStep {
            step,
            batch: net.batch,
            count: net.count,
            unit: net.unit,
            params: net.params,
            states: [net.trained, net.states].concat(),
        })
    }
}

impl BuiltStep {
    /// A trainer on a device, with every weight set.
    ///
    /// # Errors
    /// Those of the trainer.
    pub fn trainer(&self, device: &Device, rate: f64) -> Result<Trainer, TrainError> {
        let schedule = LearningRateSchedule::constant(rate);
        let options = CompileOptions::new();
        let mut trainer = Trainer::new(device, self.step.clone(), schedule, &options)?;
        for (name, tensor) in &self.params {
            trainer.set_param(name, tensor.clone())?;
        }
        for (name, tensor) in &self.states {
            trainer.set_state(name, tensor)?;
        }
        Ok(trainer)
    }

    /// The inputs of a batch as steps take them.
    pub fn inputs(&self) -> Vec<(&str, &Tensor)> {
        let batch = self.batch.iter();
        batch.map(|(name, tensor)| (*name, tensor)).collect()
    }
}

/// Random data; beyond a million elements a prime number of them repeats.
///
/// # Errors
/// Blocks that do not make the tensor.
pub fn pattern(name: &str, ty: &TensorType, fill: &InputFill) -> Result<Tensor, BoxError> {
    const VALUE_PERIOD: usize = 999_983;
    if ty.numel() <= VALUE_PERIOD || matches!(fill, InputFill::Blocks(_)) && ty.numel() < 1 << 20 {
        return Ok(fill.tensor(name, ty.clone()));
    }
    let part = match fill {
        InputFill::Blocks(scheme) => scheme.block_bytes() * 4099,
        _ => VALUE_PERIOD,
    };
    let part = fill.tensor(name, TensorType::new(ty.dtype, &[part]));
    let bytes = part.bytes().iter().copied().cycle();
    let bytes: Vec<u8> = bytes.take(ty.size_bytes()).collect();
    Ok(Tensor::from_bytes(ty.clone(), &bytes)?)
}

//! Complete training steps of common models with random weights. The bench `gpu training` measures
//! the steps at full size, and the suite `steps` trains small versions.

mod draft;
mod gpt;
mod models;
mod resnet;

pub use draft::cross_entropy;
use tercet::train::{
    AdamW, LearningRateSchedule, LossScale, StepOptions, TrainError, TrainStep, Trainable, Trainer,
};
use tercet::{
    CompileOptions, DType, Device, Graph, Scheme, Tensor, TensorType, Value, fill::InputFill,
};

/// The error of building a step.
pub type BoxError = Box<dyn std::error::Error>;

/// The scale of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepScale {
    /// The measured size.
    Whole,
    /// Few and narrow layers, which any executor trains within seconds.
    Small,
}

/// A model that a training step trains.
#[derive(Clone, Copy, Debug)]
pub enum StepModel {
    /// A BERT classifier of two classes: 32 sequences of 128 tokens.
    Bert,
    /// A decoder of 124 million parameters, all trained: 8 rows of 1024 tokens.
    Gpt2,
    /// LoRA of rank 16 on all projections of a 1.1B llama in this storage format: 4 rows of 512
    /// tokens.
    LlamaLora(Scheme),
    /// ResNet-50: 64 images of 224 x 224.
    ResNet50,
    /// A decoder of 3.4 million parameters, suitable for training on a CPU: 8 rows of 128 tokens.
    SmallGpt,
}

/// A training step to be measured.
#[derive(Clone, Copy, Debug)]
pub struct MeasuredStep {
    /// The step's name in the bench.
    pub name: &'static str,
    /// The model to train.
    pub model: StepModel,
    /// The compute dtype; trained weights and their moments are F32.
    pub dtype: DType,
}

/// All measured steps.
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

/// A loss graph with its initial values.
struct StepNet {
    graph: Graph,
    loss: Value,
    params: Vec<(String, Tensor)>,
    trained: Vec<(String, Tensor)>,
    /// The initial values of other states that are not initialized to zeros.
    states: Vec<(String, Tensor)>,
    batch: Vec<(&'static str, Tensor)>,
    /// The number of units (tokens or images) in a batch.
    count: usize,
    unit: &'static str,
}

/// A step that is ready to compile.
pub struct BuiltStep {
    /// The training step.
    pub step: TrainStep,
    /// The inputs of a batch.
    pub batch: Vec<(&'static str, Tensor)>,
    /// The number of units in a batch.
    pub count: usize,
    /// The unit: tokens or images.
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
    /// True if the backward pass recomputes activations, so that the step does not use more memory
    /// than torch.
    fn recomputes(&self) -> bool {
        matches!(self.model, StepModel::ResNet50 | StepModel::LlamaLora(_))
    }

    /// Builds the step with AdamW, and with loss scaling in F16.
    ///
    /// # Errors
    /// Errors of the model and step builders.
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
    /// Creates a trainer on a device and initializes all weights.
    ///
    /// # Errors
    /// Errors of the trainer.
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

    /// The inputs of a batch in the form that steps expect.
    pub fn inputs(&self) -> Vec<(&str, &Tensor)> {
        let batch = self.batch.iter();
        batch.map(|(name, tensor)| (*name, tensor)).collect()
    }
}

/// Random data. Above a million elements, a block with a prime number of elements repeats.
///
/// # Errors
/// Errors of creating the tensor from the repeated block.
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

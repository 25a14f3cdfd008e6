//! Fine-tuning of language models, like `tercet finetune`, step by step.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use pyo3::exceptions::{PyFileNotFoundError, PyStopAsyncIteration, PyValueError};
use pyo3::prelude::*;
use tercet::train::{
    AdamW, EvalWeights, Evaluator, LearningRateSchedule, LossScale, StepError, StepOptions,
    TrainError, TrainStep, Trainable, Trainer,
};
use tercet::{CompileOptions, DType, Device, Tensor};
use tercet_models::dataset::{
    ChatTemplate, Corpus, CorpusOptions, DEFAULT_SHARE, PackedBatches, PackedCorpus, TokenBatch,
};
use tercet_models::save::{SaveOptions, save_model};
use tercet_models::training::{DecoderTrainingOptions, FineTuneMode, LoraOptions, TrainingGraph};
use tercet_models::{DecoderSpec, Error, ModelError, ModelFamily, ModelFiles};

use crate::curve::LossCurve;
use crate::sampling::drawn_seed;
use crate::stream::in_background;
use crate::{array, device, errors};

/// Fine-tuning of a language model: an iterator of the losses of its steps.
#[pyclass(name = "Trainer", module = "tercet", frozen)]
pub(crate) struct PyTrainer {
    inner: Mutex<TrainerState>,
    total: u64,
    seed: u64,
    notes: Vec<String>,
}

struct TrainerState {
    training: TrainingGraph,
    trainer: Trainer,
    batches: PackedBatches,
    batch: usize,
    held: Option<(PackedCorpus, Evaluator)>,
    /// Settings that a resumed checkpoint must match, named like the command's arguments.
    settings: BTreeMap<String, String>,
    files: ModelFiles,
    config: DecoderSpec,
    base: PathBuf,
    full: bool,
    /// Thinned out after many steps.
    losses: LossCurve,
}

/// Arguments of `train`.
struct TrainArgs {
    tuning: FineTuneMode,
    full: bool,
    steps: u64,
    batch: usize,
    seq: Option<usize>,
    rate: f64,
    warmup: u64,
    weight_decay: f64,
    clip: f64,
    held_out: f64,
    /// `None` for the fastest dtype of the device and the weights.
    dtype: Option<DType>,
    recompute: bool,
    seed: u64,
}

/// Errors of setting up a training run.
enum TrainSetupError {
    Model(Error),
    Train(TrainError),
    Step(StepError),
}

impl<E: Into<Error>> From<E> for TrainSetupError {
    fn from(e: E) -> TrainSetupError {
        TrainSetupError::Model(e.into())
    }
}

impl TrainSetupError {
    fn into_pyerr(self) -> PyErr {
        match self {
            TrainSetupError::Model(e) => errors::model(e),
            TrainSetupError::Train(e) => errors::train(e),
            TrainSetupError::Step(e) => errors::raise::<errors::TrainError>(&e),
        }
    }
}

fn prepare(
    path: &Path,
    data: &Path,
    device: &Device,
    wish: &TrainArgs,
) -> Result<(TrainerState, Vec<String>), TrainSetupError> {
    let files = ModelFiles::open(path)?;
    let family = files.family()?;
    if family != ModelFamily::Decoder {
        let reason = "only language models can be trained from Python; `tercet finetune` supports text encoders too";
        return Err(ModelError::Unsupported(reason.into()).into());
    }
    let config = files.decoder_spec()?;
    let seq = wish.seq.unwrap_or(config.context.min(256));
    let tokenizer = files.tokenizer()?;
    let template = ChatTemplate::from_model(&files, &tokenizer)?;
    let options = CorpusOptions {
        eos: config.eos.first().copied(),
        ..CorpusOptions::default()
    };
    let corpus = Corpus::read(data, &tokenizer, Some(&template), options)?;
    let notes = corpus.notes().to_vec();
    let tokens = corpus.documents().iter().flat_map(|d| d.tokens());
    let hash = hash(tokens.flat_map(|t| t.to_le_bytes()));
    let (train, held) = corpus.split(wish.held_out, wish.seed)?;
    let packed = PackedCorpus::new(train, seq, None)?;
    let held = held
        .map(|held| PackedCorpus::new(held, seq, None))
        .transpose()?;
    let weights = files.weights();
    let dtype = wish.dtype.unwrap_or_else(|| weights.training_dtype(device));
    let options = DecoderTrainingOptions {
        dtype,
        checkpoints: wish.recompute,
        ..DecoderTrainingOptions::new(wish.batch, seq, wish.tuning.clone())
    };
    let training = TrainingGraph::decoder(&config, &weights, &options)?;
    let trainer = trainer(device, &training, dtype, wish)?;
    let held = match held {
        None => None,
        Some(held) => {
            let evaluator = trainer.evaluator(
                &training.graph,
                EvalWeights::Current,
                &CompileOptions::new(),
            );
            Some((held, evaluator.map_err(TrainSetupError::Train)?))
        }
    };
    let settings = [
        ("batch", wish.batch.to_string()),
        ("seq", seq.to_string()),
        ("microbatches", "1".to_string()),
        ("seed", wish.seed.to_string()),
        ("held-out", wish.held_out.to_string()),
        ("data", format!("{hash:016x}")),
    ];
    let inner = TrainerState {
        batches: packed.batches(wish.batch, wish.seed)?,
        training,
        trainer,
        batch: wish.batch,
        held,
        settings: settings.map(|(k, v)| (k.to_string(), v)).into(),
        files,
        config,
        base: path.to_path_buf(),
        full: wish.full,
        losses: LossCurve::new(),
    };
    Ok((inner, notes))
}

fn trainer(
    device: &Device,
    training: &TrainingGraph,
    dtype: DType,
    wish: &TrainArgs,
) -> Result<Trainer, TrainSetupError> {
    let step = StepOptions {
        clip_norm: Some(wish.clip),
        loss_scale: (dtype == DType::F16).then(LossScale::default),
        ..StepOptions::default()
    };
    let names = training.trainables.iter();
    let names: Vec<Trainable> = names
        .map(|(name, _)| Trainable::new(name.clone()))
        .collect();
    let adamw = AdamW {
        weight_decay: wish.weight_decay,
        ..AdamW::default()
    };
    let step = TrainStep::build(&training.graph, training.loss, &names, &adamw, &step);
    let step = step.map_err(TrainSetupError::Step)?;
    let schedule = LearningRateSchedule::cosine(wish.rate, wish.warmup, wish.steps);
    let made = || -> Result<Trainer, TrainError> {
        let mut trainer = Trainer::new(device, step, schedule, &CompileOptions::new())?;
        for (name, tensor) in &training.params {
            trainer.set_param(name, tensor.clone())?;
        }
        for (name, tensor) in &training.trainables {
            trainer.set_state(name, tensor)?;
        }
        trainer.set_seed(wish.seed);
        Ok(trainer)
    };
    made().map_err(TrainSetupError::Train)
}

/// FNV-1a hash.
fn hash(bytes: impl Iterator<Item = u8>) -> u64 {
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    })
}

fn inputs(batch: TokenBatch) -> [(&'static str, Tensor); 4] {
    [
        ("tokens", batch.tokens),
        ("positions", batch.positions),
        ("segments", batch.segments),
        ("labels", batch.labels),
    ]
}

fn as_refs<'a>(inputs: &'a [(&'static str, Tensor)]) -> Vec<(&'a str, &'a Tensor)> {
    inputs
        .iter()
        .map(|(name, tensor)| (*name, tensor))
        .collect()
}

impl TrainerState {
    fn step(&mut self) -> Result<f32, TrainSetupError> {
        self.batches.seek(self.trainer.steps());
        let Some(batch) = self.batches.next() else {
            return Err(ModelError::Unsupported("the data contains no batch".into()).into());
        };
        let inputs = inputs(batch?);
        let report = self
            .trainer
            .step(&as_refs(&inputs))
            .map_err(TrainSetupError::Train)?;
        self.losses.push(self.trainer.steps(), report.loss);
        Ok(report.loss)
    }

    /// Returns the mean loss of the held-out tokens. `go_on` is called between batches; false
    /// cancels.
    fn evaluate(
        &mut self,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<Option<f64>, TrainSetupError> {
        let Some((held, evaluator)) = &mut self.held else {
            return Ok(None);
        };
        let (mut sum, mut count) = (0.0, 0.0);
        for batch in held.once(self.batch)? {
            let inputs = inputs(batch?);
            let results = self.trainer.evaluate(evaluator, &as_refs(&inputs));
            // The outputs of a training graph: the mean loss, the sum of losses and the number of
            // targets.
            let results = results.map_err(TrainSetupError::Train)?;
            let number = |at: usize| results.get(at).and_then(|t| t.to_f64s().first().copied());
            sum += number(1).unwrap_or(f64::NAN);
            count += number(2).unwrap_or(f64::NAN);
            if !go_on() {
                return Ok(None);
            }
        }
        Ok(Some(sum / count))
    }

    fn write(&self, out: &Path) -> Result<(), TrainSetupError> {
        let read = |name: &str| self.trainer.state(name).map_err(TrainSetupError::Train);
        if self.full {
            let weights = self.training.weights(read)?;
            save_model(&self.files, &weights, out, &SaveOptions::default())?;
            return Ok(());
        }
        let adapter = self.training.adapter(read)?;
        let adapter = adapter.with_base(self.base.display().to_string());
        match is_gguf(out) {
            true => adapter.write_gguf(out, &self.config)?,
            false => adapter.write_peft(out)?,
        }
        Ok(())
    }
}

fn is_gguf(path: &Path) -> bool {
    path.extension().is_some_and(|e| e == "gguf")
}

impl PyTrainer {
    /// Calls `f` without the GIL.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        f: impl FnOnce(&mut TrainerState) -> Result<T, TrainSetupError> + Send,
    ) -> PyResult<T> {
        py.detach(|| {
            let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
            f(&mut inner).map_err(TrainSetupError::into_pyerr)
        })
    }
}

#[pymethods]
impl PyTrainer {
    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<f32>> {
        py.check_signals()?;
        let total = self.total;
        self.with(py, |inner| match inner.trainer.steps() < total {
            true => inner.step().map(Some),
            false => Ok(None),
        })
    }

    /// Runs one step. Returns its loss before the update: the mean over tokens, as natural
    /// logarithm.
    fn step(&self, py: Python<'_>) -> PyResult<f32> {
        py.check_signals()?;
        self.with(py, TrainerState::step)
    }

    /// Returns the loss on the held-out data with the current weights; `None` if nothing is held
    /// out.
    fn evaluate(&self, py: Python<'_>) -> PyResult<Option<f64>> {
        let mut interrupt = None;
        let loss = self.with(py, |inner| {
            inner.evaluate(&mut || crate::encoder::should_continue(&mut interrupt))
        });
        match interrupt {
            Some(e) => Err(e),
            None => loss,
        }
    }

    /// Saves a checkpoint: weights, optimizer state and step count.
    fn save(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        self.with(py, |inner| {
            let saved = inner.trainer.save(&path, &inner.settings);
            saved.map(drop).map_err(TrainSetupError::Train)
        })
    }

    /// Restores a checkpoint with the same settings and data. Returns the number of finished steps.
    fn resume(&self, py: Python<'_>, path: PathBuf) -> PyResult<u64> {
        exists(&path)?;
        let differs = self.with(py, |inner| {
            let info = tercet::train::checkpoint_info(&path).map_err(TrainSetupError::Train)?;
            let differs = inner
                .settings
                .iter()
                .find(|(name, value)| info.user.get(*name) != Some(value));
            if let Some((name, value)) = differs {
                return Ok(Some((name.clone(), value.clone())));
            }
            inner
                .trainer
                .restore(&path)
                .map_err(TrainSetupError::Train)?;
            Ok(None)
        })?;
        match differs {
            Some((name, value)) => Err(PyValueError::new_err(format!(
                "{} is a checkpoint for another `{name}` than {value}; a resumed run must use the same",
                path.display()
            ))),
            None => self.steps(py),
        }
    }

    /// Writes the adapter, as a PEFT folder or a file ending in `.gguf`. If all weights are
    /// trained, writes the model.
    fn write(&self, py: Python<'_>, out: PathBuf) -> PyResult<()> {
        self.with(py, |inner| inner.write(&out))
    }

    /// Returns a trained weight by name, as float32.
    fn weight<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
        let tensor = self.with(py, |inner| {
            inner.trainer.state(name).map_err(TrainSetupError::Train)
        })?;
        array::to_numpy(py, tensor)
    }

    /// Names of the trained weights.
    #[getter]
    fn weights(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        self.with(py, |inner| {
            let all = inner.training.trainables.iter();
            Ok(all.map(|(name, _)| name.clone()).collect())
        })
    }

    /// Number of finished steps.
    #[getter]
    fn steps(&self, py: Python<'_>) -> PyResult<u64> {
        self.with(py, |inner| Ok(inner.trainer.steps()))
    }

    /// Total number of steps of the learning rate schedule.
    #[getter]
    fn total(&self) -> u64 {
        self.total
    }

    /// The seed of the weights, the data and dropout.
    #[getter]
    fn seed(&self) -> u64 {
        self.seed
    }

    fn __aiter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __anext__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        in_background(slf.as_any(), "_next_loss")
    }

    /// Returns the next loss in a thread of the event loop.
    fn _next_loss(&self, py: Python<'_>) -> PyResult<f32> {
        let loss = self.__next__(py)?;
        loss.ok_or_else(|| PyStopAsyncIteration::new_err(()))
    }

    /// Notes about the data.
    #[getter]
    fn notes(&self) -> Vec<String> {
        self.notes.clone()
    }

    /// The loss curve so far.
    fn _repr_html_(&self, py: Python<'_>) -> PyResult<String> {
        let total = self.total;
        self.with(py, |inner| Ok(inner.losses.html(total)))
    }

    fn __repr__(&self) -> String {
        format!("<tercet.Trainer of {} steps>", self.total)
    }
}

/// Checks that named numbers are within their ranges.
fn check(ranges: &[(&str, f64, f64, f64)]) -> PyResult<()> {
    for (name, value, from, to) in ranges {
        if !(from..=to).contains(&value) {
            return Err(PyValueError::new_err(format!(
                "{name} is {value}; expected a number from {from:e} to {to:e}"
            )));
        }
    }
    Ok(())
}

fn exists(path: &Path) -> PyResult<()> {
    match path.exists() {
        true => Ok(()),
        false => Err(PyFileNotFoundError::new_err(format!(
            "{}: no such file or folder",
            path.display()
        ))),
    }
}

/// Prepares the fine-tuning of a language model on a text file, or on `.jsonl` with `text` or chat
/// `messages` in each line. It trains a LoRA adapter of rank `lora`, or all weights if `full` is
/// true. The other arguments are those of `tercet finetune`. With `seed=None` a seed is drawn.
#[pyfunction]
#[pyo3(signature = (model, data, *, lora=16, alpha=None, full=false, steps=100, batch=4, seq=None, lr=None, warmup=None,
    weight_decay=0.01, clip=1.0, held_out=DEFAULT_SHARE, dtype="auto", recompute=false, seed=Some(0), device="auto"))]
#[expect(clippy::too_many_arguments, reason = "Python keyword arguments")]
pub(crate) fn train(
    py: Python<'_>,
    model: PathBuf,
    data: PathBuf,
    lora: usize,
    alpha: Option<f64>,
    full: bool,
    steps: u64,
    batch: usize,
    seq: Option<usize>,
    lr: Option<f64>,
    warmup: Option<u64>,
    weight_decay: f64,
    clip: f64,
    held_out: f64,
    dtype: &str,
    recompute: bool,
    seed: Option<i128>,
    device: &str,
) -> PyResult<PyTrainer> {
    let seed = drawn_seed(seed)?;
    let rate = lr.unwrap_or(if full { 5e-5 } else { 2e-4 });
    let alpha = alpha.unwrap_or(2.0 * lora as f64);
    check(&[
        ("lora", lora as f64, 1.0, 1e6),
        ("alpha", alpha, 1e-6, 1e6),
        ("steps", steps as f64, 1.0, 1e15),
        ("batch", batch as f64, 1.0, 1e9),
        ("seq", seq.unwrap_or(1) as f64, 1.0, 1e9),
        ("lr", rate, 0.0, 10.0),
        ("weight_decay", weight_decay, 0.0, 1.0),
        ("clip", clip, 1e-6, 1e6),
        ("held_out", held_out, 0.0, 0.9),
    ])?;
    let dtype = match dtype {
        "auto" => None,
        name => Some(array::dtype(name)?),
    };
    if let Some(dtype) = dtype
        && ![DType::F32, DType::F16, DType::BF16].contains(&dtype)
    {
        let message = format!("dtype is {dtype}; expected auto, f32, f16 or bf16 for training");
        return Err(PyValueError::new_err(message));
    }
    exists(&model)?;
    exists(&data)?;
    let tuning = match full {
        true => FineTuneMode::Full,
        false => FineTuneMode::Lora(LoraOptions {
            alpha,
            seed,
            ..LoraOptions::new(lora)
        }),
    };
    let wish = TrainArgs {
        tuning,
        full,
        steps,
        batch,
        seq,
        rate,
        warmup: warmup.unwrap_or(steps / 20),
        weight_decay,
        clip,
        held_out,
        dtype,
        recompute,
        seed,
    };
    let (inner, notes) = py.detach(|| {
        let device = device::open(device)?;
        prepare(&model, &data, &device, &wish).map_err(TrainSetupError::into_pyerr)
    })?;
    Ok(PyTrainer {
        inner: Mutex::new(inner),
        total: steps,
        seed,
        notes,
    })
}

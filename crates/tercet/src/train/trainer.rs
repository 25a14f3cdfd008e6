//! Runs training steps on a device.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use tercet_ir::backend::{OutputSelection, find_port};
use tercet_ir::random::RngState;
use tercet_ir::{CompileOptions, Executable, Graph, RunError, Tensor, Type, Value};

use super::diagnose::NonFiniteStep;
use super::error::TrainError;
use super::optim::Optimizer;
use super::params::Trainable;
use super::schedule::LearningRateSchedule;
use super::state::{InitialState, StateInfo};
use super::step::{
    GRADIENT_NORM, LEARNING_RATE, LOSS, LOSS_SCALE, SKIPPED, StepOptions, TrainStep,
};
use crate::Device;

/// Results of a step.
///
/// ```
/// # use tercet::train::{LearningRateSchedule, Sgd, StepOptions, TrainStep, Trainer};
/// # use tercet::{CompileOptions, DType, Device, Graph, Tensor, Type};
/// # let mut g = Graph::new();
/// # let w = g.state("w", Type::new(DType::F32, [2]))?;
/// # let square = g.mul(w, w)?;
/// # let loss = g.reduce_sum(square, &[0], false)?;
/// # let options = StepOptions::default();
/// # let step = TrainStep::build(&g, loss, &["w".into()], &Sgd::default(), &options)?;
/// # let schedule = LearningRateSchedule::constant(0.5);
/// # let mut trainer = Trainer::new(&Device::cpu(), step, schedule, &CompileOptions::new())?;
/// trainer.set_state("w", &Tensor::from_slice(&[2], &[1f32, 2.0])?)?;
/// let report = trainer.step(&[])?;
/// assert_eq!((report.step, report.loss, report.skipped), (1, 5.0, false));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepReport {
    /// Step number, from 1; skipped steps count.
    pub step: u64,
    /// Loss before the update; with several microbatches, their mean.
    pub loss: f32,
    /// Norm of all gradients together, before clipping.
    pub gradient_norm: f32,
    /// Learning rate of the step.
    pub learning_rate: f64,
    /// Loss scale, with [`StepOptions::loss_scale`](super::StepOptions::loss_scale).
    pub loss_scale: Option<f32>,
    /// Whether the step was skipped because gradients were not finite at this loss scale.
    pub skipped: bool,
}

/// Inputs of a step by name.
pub type StepInputs = Vec<(String, Tensor)>;

/// Called after each step of [`Trainer::fit`]. Closures of the same type are callbacks.
///
/// ```
/// # use tercet::train::{LearningRateSchedule, Sgd, StepOptions, TrainStep, Trainer};
/// # use tercet::{CompileOptions, DType, Device, Graph, Tensor, Type};
/// # let mut g = Graph::new();
/// # let w = g.state("w", Type::new(DType::F32, [2]))?;
/// # let square = g.mul(w, w)?;
/// # let loss = g.reduce_sum(square, &[0], false)?;
/// # let options = StepOptions::default();
/// # let step = TrainStep::build(&g, loss, &["w".into()], &Sgd::default(), &options)?;
/// # let schedule = LearningRateSchedule::constant(0.25);
/// # let mut trainer = Trainer::new(&Device::cpu(), step, schedule, &CompileOptions::new())?;
/// # trainer.set_state("w", &Tensor::from_slice(&[2], &[1f32, 2.0])?)?;
/// use std::convert::Infallible;
/// use std::ops::ControlFlow;
/// use tercet::train::{StepInputs, StepReport};
/// let mut losses = Vec::new();
/// let mut record = |_: &mut Trainer, report: &StepReport| {
///     losses.push(report.loss);
///     Ok(ControlFlow::Continue(()))
/// };
/// let batch = |_| Ok::<_, Infallible>(Some(StepInputs::new()));
/// trainer.fit(2, batch, &mut [&mut record])?;
/// assert_eq!(losses, [5.0, 1.25]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait TrainCallback {
    /// Examines the finished step, may read and save states, and returns whether to continue.
    ///
    /// # Errors
    /// Any error ends the training.
    fn after_step(
        &mut self,
        trainer: &mut Trainer,
        report: &StepReport,
    ) -> Result<ControlFlow<()>, TrainError>;
}

impl<F> TrainCallback for F
where
    F: FnMut(&mut Trainer, &StepReport) -> Result<ControlFlow<()>, TrainError>,
{
    fn after_step(
        &mut self,
        trainer: &mut Trainer,
        report: &StepReport,
    ) -> Result<ControlFlow<()>, TrainError> {
        self(trainer, report)
    }
}

/// Hash of a trainable's initial value, to detect changes.
type Fingerprint = u64;

/// Runs the steps of a [`TrainStep`] on a device. A trainer passes the learning rate, counts steps
/// and checks for non-finite results. States stay on the device. A step reads back its loss, the
/// gradient norm, and whether it was skipped.
///
/// ```
/// # use tercet::train::{Sgd, StepOptions, TrainStep};
/// # use tercet::{DType, Graph, Type};
/// # let mut g = Graph::new();
/// # let w = g.state("w", Type::new(DType::F32, [2]))?;
/// # let square = g.mul(w, w)?;
/// # let loss = g.reduce_sum(square, &[0], false)?;
/// # let step = TrainStep::build(&g, loss, &["w".into()], &Sgd::default(), &StepOptions::default())?;
/// use tercet::train::{LearningRateSchedule, Trainer};
/// use tercet::{CompileOptions, Device, Tensor};
/// // `step` minimizes the sum of the squares of the state `w`.
/// let schedule = LearningRateSchedule::constant(0.25);
/// let mut trainer = Trainer::new(&Device::cpu(), step, schedule, &CompileOptions::new())?;
/// trainer.set_state("w", &Tensor::from_slice(&[2], &[1f32, 2.0])?)?;
/// trainer.step(&[])?;
/// assert_eq!(trainer.state("w")?.as_slice::<f32>()?, [0.5, 1.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Trainer {
    device: Device,
    step: TrainStep,
    options: CompileOptions,
    schedule: LearningRateSchedule,
    exe: Box<dyn Executable>,
    params: BTreeMap<String, Tensor>,
    /// Trainables that were set, with the hash of their value.
    set: BTreeMap<String, Fingerprint>,
    /// Number of finished steps.
    done: u64,
    /// Counts changes of the states.
    pub(super) version: u64,
    /// Identifies this trainer.
    pub(super) identity: Arc<()>,
    /// Whether states come from two runs, after a failed restore.
    pub(super) has_mixed_states: bool,
}

impl Trainer {
    /// Compiles a step for a device. Before the first step, set all trainables and parameters; the
    /// other states start as [`InitialState`] specifies.
    ///
    /// # Errors
    /// [`TrainError::Compile`], which lists all unsupported nodes, or [`TrainError::Run`].
    pub fn new(
        device: &Device,
        step: TrainStep,
        schedule: LearningRateSchedule,
        options: &CompileOptions,
    ) -> Result<Trainer, TrainError> {
        let mut exe = device.compile(step.graph(), options)?;
        for StateInfo {
            name, ty, initial, ..
        } in step.states()
        {
            if let InitialState::Number(number) = initial {
                exe.write_state(name, &filled(ty, *number)?)?;
            }
        }
        Ok(Trainer {
            device: device.clone(),
            step,
            options: options.clone(),
            schedule,
            exe,
            params: BTreeMap::new(),
            set: BTreeMap::new(),
            done: 0,
            version: 0,
            identity: Arc::new(()),
            has_mixed_states: false,
        })
    }

    /// Builds and compiles a step that minimizes `loss` by training these states from their initial
    /// values, with a constant learning rate and default options. The graph has no symbols.
    ///
    /// # Errors
    /// [`TrainError::Build`]; the errors of [`Self::new`] and [`Self::set_state`].
    ///
    /// ```
    /// use tercet::train::{Sgd, Trainer};
    /// use tercet::{DType, Device, GraphBuilder, Tensor, Type};
    /// let b = GraphBuilder::new();
    /// let w = b.state("w", Type::new(DType::F32, [2]));
    /// let loss = w.square().mean().value()?;
    /// let (device, rule, graph) = (Device::cpu(), Sgd::default(), b.finish()?);
    /// let start = Tensor::from_slice(&[2], &[1f32, 2.0])?;
    /// let mut trainer = Trainer::minimize(&device, &graph, loss, &[("w", start)], &rule, 0.5)?;
    /// trainer.step(&[])?;
    /// assert_eq!(trainer.state("w")?.as_slice::<f32>()?, [0.5, 1.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn minimize(
        device: &Device,
        graph: &Graph,
        loss: Value,
        states: &[(&str, Tensor)],
        optimizer: &dyn Optimizer,
        learning_rate: f64,
    ) -> Result<Trainer, TrainError> {
        let trainables = states.iter().map(|(name, _)| Trainable::new(*name));
        let trainables: Vec<Trainable> = trainables.collect();
        let options = StepOptions::default();
        let step = TrainStep::build(graph, loss, &trainables, optimizer, &options)?;
        let schedule = LearningRateSchedule::constant(learning_rate);
        let mut trainer = Trainer::new(device, step, schedule, &CompileOptions::new())?;
        for (name, value) in states {
            trainer.set_state(name, value)?;
        }
        Ok(trainer)
    }

    /// The step that this trainer runs.
    pub fn step_graph(&self) -> &TrainStep {
        &self.step
    }

    /// The device of this trainer.
    pub fn device(&self) -> &Device {
        &self.device
    }

    pub(super) fn compile_options(&self) -> &CompileOptions {
        &self.options
    }

    /// The executable, for reading outputs, timings and states.
    pub fn executable(&self) -> &dyn Executable {
        &*self.exe
    }

    /// The executable, for operations that a trainer does not offer. Writing states through it
    /// changes the training.
    pub fn executable_mut(&mut self) -> &mut dyn Executable {
        self.version += 1;
        &mut *self.exe
    }

    /// Number of finished steps, skipped steps included.
    pub fn steps(&self) -> u64 {
        self.done
    }

    pub(super) fn set_steps(&mut self, steps: u64) {
        self.done = steps;
    }

    /// The learning rate schedule.
    pub fn schedule(&self) -> &LearningRateSchedule {
        &self.schedule
    }

    /// Changes the learning rate schedule, from the next step on.
    pub fn set_schedule(&mut self, schedule: LearningRateSchedule) {
        self.schedule = schedule;
    }

    /// The parameters that were set.
    pub(super) fn params(&self) -> &BTreeMap<String, Tensor> {
        &self.params
    }

    /// Sets a parameter of the graph, which is not trained.
    ///
    /// # Errors
    /// [`TrainError::Run`] if the parameter does not exist or its type differs.
    pub fn set_param(&mut self, name: &str, tensor: Tensor) -> Result<(), TrainError> {
        self.exe.set_param(name, tensor.clone())?;
        self.params.insert(name.to_string(), tensor);
        Ok(())
    }

    /// Sets a state. For a trainable this also sets its moving average.
    ///
    /// # Errors
    /// [`TrainError::Run`] if the state does not exist or its type differs.
    pub fn set_state(&mut self, name: &str, tensor: &Tensor) -> Result<(), TrainError> {
        self.exe.write_state(name, tensor)?;
        for state in self.step.states() {
            let copies = matches!(&state.initial, InitialState::CopyOf(of) if of == name);
            if copies {
                self.exe.write_state(&state.name, tensor)?;
            }
        }
        self.record_initial(name, tensor);
        self.version += 1;
        Ok(())
    }

    /// Records the initial value of a trainable.
    pub(super) fn record_initial(&mut self, name: &str, tensor: &Tensor) {
        if self.step.trainables().iter().any(|t| t.name == name) {
            self.set.insert(name.to_string(), fingerprint_of(tensor));
        }
    }

    /// Returns a copy of a state.
    ///
    /// # Errors
    /// [`TrainError::Run`] if the state does not exist.
    pub fn state(&self, name: &str) -> Result<Tensor, TrainError> {
        Ok(self.exe.read_state(name)?)
    }

    /// Seed and counter of the next step's random numbers.
    pub fn random(&self) -> RngState {
        self.exe.random()
    }

    /// Sets the seed of random numbers (dropout), from the next step on. Each step increments the
    /// counter by one.
    pub fn set_seed(&mut self, seed: u64) {
        let random = RngState {
            seed: Some(seed),
            ..self.exe.random()
        };
        self.exe.set_random(random);
    }

    pub(super) fn set_random(&mut self, random: RngState) {
        self.exe.set_random(random);
    }

    /// Runs one step. With several microbatches, inputs have a leading axis of microbatches.
    ///
    /// # Errors
    /// - [`TrainError::NotFinite`] if the loss is not finite, or gradients are not finite without a
    ///   loss scale or at its minimum. It names the first non-finite value.
    /// - [`TrainError::NotSet`] if trainables have no value.
    /// - [`TrainError::Run`] if an input is invalid.
    ///
    /// After such an error, states are unchanged, and the step can be repeated.
    pub fn step(&mut self, inputs: &[(&str, &Tensor)]) -> Result<StepReport, TrainError> {
        self.expect_ready()?;
        self.expect_no_rate(inputs)?;
        let learning_rate = self.schedule.rate(self.done);
        let rate = Tensor::scalar(learning_rate as f32);
        let random = self.exe.random();
        let mut given = inputs.to_vec();
        given.push((LEARNING_RATE, &rate));
        let mut wanted = vec![LOSS, GRADIENT_NORM, SKIPPED];
        if self.step.options().loss_scale.is_some() {
            wanted.push(LOSS_SCALE);
        }
        let mut results = Vec::new();
        self.exe.submit(&given, OutputSelection::Only(&wanted))?;
        self.exe.wait(&mut results)?;
        let number = |at: usize| results.get(at).and_then(first);
        let loss = number(0).unwrap_or(f32::NAN);
        let report = StepReport {
            step: self.done + 1,
            loss,
            gradient_norm: number(1).unwrap_or(f32::NAN),
            learning_rate,
            loss_scale: number(3),
            skipped: number(2).unwrap_or(1.0) != 0.0,
        };
        if report.skipped && !self.is_expected_skip(&report) {
            self.exe.set_random(random);
            let (microbatch, first) = self.diagnose(inputs, random);
            return Err(NonFiniteStep {
                step: report.step,
                loss,
                gradient_norm: report.gradient_norm,
                loss_scale: report.loss_scale,
                microbatch,
                first,
            }
            .into());
        }
        self.done += 1;
        self.version += 1;
        Ok(report)
    }

    /// Returns an error if the inputs contain a learning rate; the schedule provides it.
    fn expect_no_rate(&self, inputs: &[(&str, &Tensor)]) -> Result<(), RunError> {
        if inputs.iter().all(|(name, _)| *name != LEARNING_RATE) {
            return Ok(());
        }
        let ports = &self.exe.signature().inputs;
        let own = ports.iter().filter(|p| p.name != LEARNING_RATE);
        find_port(
            &own.cloned().collect::<Vec<_>>(),
            "input of a step",
            LEARNING_RATE,
        )
        .map(|_| ())
    }

    /// Whether a loss scale above its minimum explains that the step was skipped.
    fn is_expected_skip(&self, report: &StepReport) -> bool {
        let scale = self.step.options().loss_scale.as_ref();
        match (scale, report.loss_scale) {
            (Some(options), Some(scale)) => {
                report.loss.is_finite() && f64::from(scale) > options.min_scale
            }
            _ => false,
        }
    }

    fn expect_ready(&self) -> Result<(), TrainError> {
        if self.has_mixed_states {
            return Err(TrainError::InconsistentStates);
        }
        let trainables = self.step.trainables().iter().map(|t| t.name.as_str());
        let missing = trainables.filter(|name| !self.set.contains_key(*name));
        let names: Vec<String> = missing.map(str::to_string).collect();
        match names.is_empty() {
            true => Ok(()),
            false => Err(TrainError::NotSet { names }),
        }
    }

    /// An output of the last step, such as those of
    /// [`StepOptions::outputs`](super::StepOptions::outputs).
    ///
    /// # Errors
    /// [`TrainError::Run`] if the output does not exist, or no step has run yet.
    pub fn output(&mut self, name: &str) -> Result<Tensor, TrainError> {
        Ok(self.exe.output_on_device(name)?.read()?)
    }

    /// Runs steps until `steps` are finished in total, the batches end, or a callback returns
    /// false. Returns the last report. `batch` returns the inputs of a step by its number from 0,
    /// so a resumed run continues at the right position.
    ///
    /// # Errors
    /// Those of [`Trainer::step`], and errors of `batch` and the callbacks.
    pub fn fit<E>(
        &mut self,
        steps: u64,
        mut batch: impl FnMut(u64) -> Result<Option<StepInputs>, E>,
        callbacks: &mut [&mut dyn TrainCallback],
    ) -> Result<Option<StepReport>, TrainError>
    where
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let mut last = None;
        while self.done < steps {
            let step = self.done + 1;
            let inputs = batch(self.done).map_err(|e| TrainError::Batch {
                step,
                source: e.into(),
            })?;
            let Some(inputs) = inputs else {
                break;
            };
            let given: Vec<(&str, &Tensor)> = inputs.iter().map(|(n, t)| (&**n, t)).collect();
            let report = self.step(&given)?;
            last = Some(report);
            let mut stop = false;
            for callback in &mut *callbacks {
                stop |= callback.after_step(self, &report)?.is_break();
            }
            if stop {
                break;
            }
        }
        Ok(last)
    }

    /// Names of trainables whose bits equal their value when set or restored. After some steps
    /// these are the trainables that nothing trains. Reads every trainable from the device.
    ///
    /// # Errors
    /// [`TrainError::Run`] if the device fails.
    pub fn unchanged_trainables(&self) -> Result<Vec<String>, TrainError> {
        let mut unmoved = Vec::new();
        for t in self.step.trainables() {
            let now = self.exe.read_state(&t.name)?;
            if self
                .set
                .get(&t.name)
                .is_none_or(|then| *then == fingerprint_of(&now))
            {
                unmoved.push(t.name.clone());
            }
        }
        Ok(unmoved)
    }
}

impl std::fmt::Debug for Trainer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut s = f.debug_struct("Trainer");
        let s = s.field("device", &self.device).field("steps", &self.done);
        s.field("schedule", &self.schedule).finish_non_exhaustive()
    }
}

/// The first element of a tensor.
fn first(tensor: &Tensor) -> Option<f32> {
    match tensor.dtype().is_float() {
        true => tensor.as_slice::<f32>().ok()?.first().copied(),
        false => tensor.to_i64s().first().map(|i| *i as f32),
    }
}

/// A tensor with the same number in all elements.
fn filled(ty: &Type, number: f64) -> Result<Tensor, TrainError> {
    let ty = ty.eval(&tercet_ir::Bindings::new());
    let ty = ty.map_err(RunError::from)?;
    Ok(Tensor::from_f64s(ty.clone(), &vec![number; ty.numel()])?)
}

/// 64-bit hash of a tensor's bytes (FNV-1a over words).
fn fingerprint_of(tensor: &Tensor) -> Fingerprint {
    let mut print = 0xcbf2_9ce4_8422_2325_u64;
    for word in tensor.bytes().chunks(8) {
        let mut bytes = [0; 8];
        bytes[..word.len()].copy_from_slice(word);
        print = (print ^ u64::from_le_bytes(bytes)).wrapping_mul(0x0000_0100_0000_01b3);
        print ^= print >> 29;
    }
    print
}

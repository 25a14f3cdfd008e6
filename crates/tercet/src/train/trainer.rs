//! Runs training steps on a device.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use tercet_ir::backend::Wanted;
use tercet_ir::random::Random;
use tercet_ir::{CompileOptions, Executable, RunError, Tensor, Type};

use super::diagnose::NotFinite;
use super::error::TrainError;
use super::schedule::Schedule;
use super::state::{Initial, StateInfo};
use super::step::{GRADIENT_NORM, LEARNING_RATE, LOSS, LOSS_SCALE, SKIPPED, TrainStep};
use crate::Device;

/// What a step did.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepReport {
    /// Its number, from 1; steps that were skipped count.
    pub step: u64,
    /// The loss before the step; of several microbatches, their mean.
    pub loss: f32,
    /// The norm of all gradients together, before they are clipped.
    pub gradient_norm: f32,
    /// The learning rate.
    pub learning_rate: f64,
    /// The loss scale, with [`StepOptions::loss_scale`](super::StepOptions::loss_scale).
    pub loss_scale: Option<f32>,
    /// Whether gradients were not finite at this loss scale, and no weight changed.
    pub skipped: bool,
}

/// Inputs of a step by name.
pub type Batch = Vec<(String, Tensor)>;

/// Called after each step of [`Trainer::fit`]. Closures of the same type are callbacks.
pub trait Callback {
    /// Looks at the step that was done, may read and save states, and says whether to go on.
    ///
    /// # Errors
    /// Whatever ends the training as an error.
    fn after_step(
        &mut self,
        trainer: &mut Trainer,
        report: &StepReport,
    ) -> Result<ControlFlow<()>, TrainError>;
}

impl<F> Callback for F
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

/// What a trainable was when it was set, to tell whether it moved.
type Print = u64;

/// Runs the steps of a [`TrainStep`] on a device: feeds the learning rate, counts, checks. Its states stay on the device;
/// a step reads back its loss, the norm of the gradients, and whether it was skipped.
pub struct Trainer {
    device: Device,
    step: TrainStep,
    options: CompileOptions,
    schedule: Schedule,
    exe: Box<dyn Executable>,
    params: BTreeMap<String, Tensor>,
    /// The trainables that were set, and what they were.
    set: BTreeMap<String, Print>,
    /// The steps that were done.
    done: u64,
    /// Counts the times that states changed.
    pub(super) version: u64,
    /// Tells trainers apart.
    pub(super) identity: Arc<()>,
    /// Whether states are of two runs.
    pub(super) torn: bool,
}

impl Trainer {
    /// Compiles a step for a device. Trainables are to be set before the first step, parameters as well; the other states
    /// start as [`Initial`] says.
    ///
    /// # Errors
    /// [`TrainError::Compile`] that lists what the device cannot run, [`TrainError::Run`].
    pub fn new(
        device: &Device,
        step: TrainStep,
        schedule: Schedule,
        options: &CompileOptions,
    ) -> Result<Trainer, TrainError> {
        let mut exe = device.compile(step.graph(), options)?;
        for StateInfo {
            name, ty, initial, ..
        } in step.states()
        {
            if let Initial::Number(number) = initial {
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
            torn: false,
        })
    }

    /// The step that is run.
    pub fn step_graph(&self) -> &TrainStep {
        &self.step
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    pub(super) fn compile_options(&self) -> &CompileOptions {
        &self.options
    }

    /// The executable, to read outputs, times and states.
    pub fn executable(&self) -> &dyn Executable {
        &*self.exe
    }

    /// The executable, for what a trainer does not do. Who writes states through it changes what is trained.
    pub fn executable_mut(&mut self) -> &mut dyn Executable {
        self.version += 1;
        &mut *self.exe
    }

    /// The number of steps done, those that were skipped included.
    pub fn steps(&self) -> u64 {
        self.done
    }

    pub(super) fn set_steps(&mut self, steps: u64) {
        self.done = steps;
    }

    /// The learning rates.
    pub fn schedule(&self) -> &Schedule {
        &self.schedule
    }

    /// Changes the learning rates from the next step on.
    pub fn set_schedule(&mut self, schedule: Schedule) {
        self.schedule = schedule;
    }

    /// The parameters that were set.
    pub(super) fn params(&self) -> &BTreeMap<String, Tensor> {
        &self.params
    }

    /// Sets a parameter of the graph, which is not trained.
    ///
    /// # Errors
    /// [`TrainError::Run`] when there is no such parameter or its type differs.
    pub fn set_param(&mut self, name: &str, tensor: Tensor) -> Result<(), TrainError> {
        self.exe.set_param(name, tensor.clone())?;
        self.params.insert(name.to_string(), tensor);
        Ok(())
    }

    /// Sets a state: a trainable, and with it its average, or any other.
    ///
    /// # Errors
    /// [`TrainError::Run`] when there is no such state or its type differs.
    pub fn set_state(&mut self, name: &str, tensor: &Tensor) -> Result<(), TrainError> {
        self.exe.write_state(name, tensor)?;
        for state in self.step.states() {
            let copies = matches!(&state.initial, Initial::CopyOf(of) if of == name);
            if copies {
                self.exe.write_state(&state.name, tensor)?;
            }
        }
        self.note(name, tensor);
        self.version += 1;
        Ok(())
    }

    /// Notes what a trainable starts as.
    pub(super) fn note(&mut self, name: &str, tensor: &Tensor) {
        if self.step.trainables().iter().any(|t| t.name == name) {
            self.set.insert(name.to_string(), print_of(tensor));
        }
    }

    /// A copy of a state.
    ///
    /// # Errors
    /// [`TrainError::Run`] when there is no such state.
    pub fn state(&self, name: &str) -> Result<Tensor, TrainError> {
        Ok(self.exe.read_state(name)?)
    }

    /// The seed and counter of random numbers of the next step.
    pub fn random(&self) -> Random {
        self.exe.random()
    }

    /// Sets the seed of random numbers (dropout) from the next step on. The counter goes up by one with each step.
    pub fn set_seed(&mut self, seed: u64) {
        let random = Random {
            seed: Some(seed),
            ..self.exe.random()
        };
        self.exe.set_random(random);
    }

    pub(super) fn set_random(&mut self, random: Random) {
        self.exe.set_random(random);
    }

    /// Does one step on these inputs, which have an axis of microbatches in front if there are several.
    ///
    /// # Errors
    /// [`TrainError::NotFinite`] when the loss is not finite, or gradients are not and there is no loss scale above its
    /// least: it names the first value that is not. [`TrainError::NotSet`] for trainables without a value;
    /// [`TrainError::Run`] for inputs that are refused. States are then as before, and the step can be done again.
    pub fn step(&mut self, inputs: &[(&str, &Tensor)]) -> Result<StepReport, TrainError> {
        self.expect_ready()?;
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
        self.exe.submit(&given, Wanted::Only(&wanted))?;
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
        if report.skipped && !self.may_skip(&report) {
            self.exe.set_random(random);
            let (microbatch, first) = self.diagnose(inputs, random);
            return Err(NotFinite {
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

    /// Whether a step that was skipped is what a loss scale is for.
    fn may_skip(&self, report: &StepReport) -> bool {
        let scale = self.step.options().loss_scale.as_ref();
        match (scale, report.loss_scale) {
            (Some(options), Some(scale)) => {
                report.loss.is_finite() && f64::from(scale) > options.least
            }
            _ => false,
        }
    }

    fn expect_ready(&self) -> Result<(), TrainError> {
        if self.torn {
            return Err(TrainError::Torn);
        }
        let trainables = self.step.trainables().iter().map(|t| t.name.as_str());
        let missing = trainables.filter(|name| !self.set.contains_key(*name));
        let names: Vec<String> = missing.map(str::to_string).collect();
        match names.is_empty() {
            true => Ok(()),
            false => Err(TrainError::NotSet { names }),
        }
    }

    /// An output of the last step, such as those of [`StepOptions::outputs`](super::StepOptions::outputs).
    ///
    /// # Errors
    /// [`TrainError::Run`] when there is no such output or no step yet.
    pub fn output(&mut self, name: &str) -> Result<Tensor, TrainError> {
        Ok(self.exe.output_on_device(name)?.read()?)
    }

    /// Does steps until `steps` are done in all, the batches end, or a callback says so; returns the last report. `batch`
    /// gives the inputs of a step by its number from 0, so that a run that was resumed reads on where it stopped.
    ///
    /// # Errors
    /// As [`Trainer::step`]; what `batch` and the callbacks fail with.
    pub fn fit<E>(
        &mut self,
        steps: u64,
        mut batch: impl FnMut(u64) -> Result<Option<Batch>, E>,
        callbacks: &mut [&mut dyn Callback],
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

    /// The trainables that have the same bits as when they were set or restored: after some steps, those that nothing
    /// trains. Reads every trainable.
    ///
    /// # Errors
    /// [`TrainError::Run`] when the device fails.
    pub fn unmoved(&self) -> Result<Vec<String>, TrainError> {
        let mut unmoved = Vec::new();
        for t in self.step.trainables() {
            let now = self.exe.read_state(&t.name)?;
            if self
                .set
                .get(&t.name)
                .is_none_or(|then| *then == print_of(&now))
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

/// The first number of a tensor.
fn first(tensor: &Tensor) -> Option<f32> {
    match tensor.dtype().is_float() {
        true => tensor.as_slice::<f32>().ok()?.first().copied(),
        false => tensor.to_i64s().first().map(|i| *i as f32),
    }
}

/// A tensor of one number everywhere.
fn filled(ty: &Type, number: f64) -> Result<Tensor, TrainError> {
    let ty = ty.eval(&tercet_ir::Bindings::new());
    let ty = ty.map_err(RunError::from)?;
    Ok(Tensor::from_f64s(ty.clone(), &vec![number; ty.numel()])?)
}

/// 64 bits of a tensor's bytes (FNV-1a over words).
fn print_of(tensor: &Tensor) -> Print {
    let mut print = 0xcbf2_9ce4_8422_2325_u64;
    for word in tensor.bytes().chunks(8) {
        let mut bytes = [0; 8];
        bytes[..word.len()].copy_from_slice(word);
        print = (print ^ u64::from_le_bytes(bytes)).wrapping_mul(0x0000_0100_0000_01b3);
        print ^= print >> 29;
    }
    print
}

//! Autotuner: measures which kernel variant is fastest for a problem, on any device that implements
//! [`TunableBackend`].
//!
//! A [`TuneTask`] is a problem with its operands and some expected results, accumulated in f64. The
//! candidates of a task are the kernel variants of the lowering's table, or the tilings of a
//! variant that has several. Every candidate computes the same results from the same operands. A
//! candidate that fails or returns wrong results never wins. Times are device times, so the device
//! must support step timings.
//!
//! Next: `tune/task.rs` and `tune/scan.rs` for the problems.

mod scan;
pub(crate) mod task;
mod trial;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tercet_ir::backend::OutputSelection;
use tercet_ir::{
    CompileError, CompileOptions, DType, Executable, Graph, OpError, RunError, TensorError,
    one_line,
};

pub use self::scan::StateScan;
pub use self::task::TuneTask;
pub use self::trial::{
    VariantTrial, WGSL_ATTENTION_TRIAL, WGSL_MATRICES_TRIAL, try_variant, variant_trials,
};
use crate::caps::{DeviceCaps, WgslCoopType};
use crate::lowerings::gemm_coop::{CoopGemmTiling, type_of};
use crate::tuning::TuningTable;
use tercet_program::GpuProgram;
use tercet_program::VariantSelection;

/// A device on which kernel variants can be measured.
pub trait TunableBackend: Sync {
    /// Capabilities that planning for the device depends on.
    fn caps(&self) -> &DeviceCaps;

    /// Compiles a graph for the device with this autotuning table.
    ///
    /// # Errors
    /// The errors of [`Backend::compile`](tercet_ir::Backend::compile).
    fn compile_with(
        &self,
        graph: &Graph,
        tuning: TuningTable,
    ) -> Result<Box<dyn Executable>, CompileError>;
}

/// Result of measuring one candidate.
#[derive(Clone, Debug, PartialEq)]
pub enum CandidateOutcome {
    /// Median device time in seconds.
    Seconds(f64),
    /// Reason why the candidate cannot be used.
    Failed(String),
}

/// Results of all candidates for one problem.
#[derive(Clone, Debug)]
pub struct ProblemMeasurement {
    /// Name and result of each candidate, fastest first, failed ones last.
    pub candidates: Vec<(String, CandidateOutcome)>,
}

impl ProblemMeasurement {
    /// Name of the fastest correct candidate.
    pub fn best(&self) -> Option<&str> {
        match self.candidates.first() {
            Some((name, CandidateOutcome::Seconds(_))) => Some(name),
            Some((_, CandidateOutcome::Failed(_))) | None => None,
        }
    }
}

/// Error that prevents a candidate from being measured.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TuneFailure {
    #[error(transparent)]
    Compile(#[from] CompileError),
    #[error(transparent)]
    Run(#[from] RunError),
    #[error(transparent)]
    Tensor(#[from] TensorError),
    #[error(transparent)]
    Graph(#[from] OpError),
    #[error("{0}")]
    Other(String),
}

/// Plans a task with this autotuning table.
fn plan(caps: &DeviceCaps, graph: &Graph, tuning: TuningTable) -> Result<GpuProgram, CompileError> {
    crate::compile(graph, &CompileOptions::new(), &caps.clone().tuned(tuning))
}

/// The variant selected for the task's own operator. Later entries of the list are selections for
/// the kernels that this variant consists of.
fn own(program: &GpuProgram) -> Option<&VariantSelection> {
    program.variants.first()
}

/// Names of the candidates for a task on this device: all supported variants, or the profitable
/// tilings of a variant that has several. Empty if there is no choice.
pub fn candidates(caps: &DeviceCaps, task: &TuneTask) -> Vec<String> {
    let mut names = Vec::new();
    if let Some(problem) = &task.tilings {
        let all =
            type_of(problem.dtype).map(|ty| CoopGemmTiling::candidates_for(caps, ty, problem));
        names.extend(
            all.unwrap_or_default()
                .iter()
                .map(CoopGemmTiling::to_string),
        );
        let shapes = caps.coop_wgsl.iter().filter(|s| match s.ty {
            WgslCoopType::F16 => problem.dtype == DType::F16,
            WgslCoopType::F32 => problem.dtype == DType::F32,
        });
        let all = shapes.flat_map(|shape| CoopGemmTiling::wgsl_candidates(caps, *shape));
        names.extend(all.map(|tiling| tiling.to_string()));
    } else if let Ok(program) = plan(caps, &task.graph, TuningTable::default())
        && let Some(taken) = own(&program)
    {
        names.push(taken.variant.0.to_string());
        let others = taken.others.iter().filter(|(_, cost)| cost.is_ok());
        names.extend(others.map(|(name, _)| (*name).to_string()));
    }
    if names.len() < 2 {
        names.clear();
    }
    names
}

/// Compiles the pipelines of all candidates on several threads, so that measurements do not wait
/// for compilation.
pub fn prepare(device: &dyn TunableBackend, task: &TuneTask, names: &[String]) {
    const THREADS: usize = 8;
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some(name) = names.get(next.fetch_add(1, Ordering::Relaxed)) {
            // Errors are ignored here; measuring the candidate reports them.
            let _ = compile(device, task, name);
        }
    };
    let cores = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 1..cores.min(THREADS) {
            scope.spawn(work);
        }
        work();
    });
}

/// Runs a candidate repeatedly for a while, so that the device is busy. An idle device lowers its
/// clock rate while the host generates operands.
fn warm_up(device: &dyn TunableBackend, task: &TuneTask, name: &str) -> Result<(), TuneFailure> {
    const WHILE: Duration = Duration::from_millis(500);
    let mut exe = compile_with_operands(device, task, name)?;
    let mut outputs = Vec::new();
    let began = Instant::now();
    while began.elapsed() < WHILE {
        exe.submit(&[], OutputSelection::Only(&[]))?;
        exe.wait(&mut outputs)?;
    }
    Ok(())
}

/// Measures these candidates on one task.
pub fn measure(
    device: &dyn TunableBackend,
    task: &TuneTask,
    names: &[String],
) -> ProblemMeasurement {
    if let Some(name) = names.first() {
        // Errors are ignored here; the measurement reports them.
        let _ = warm_up(device, task, name);
    }
    let mut best = f64::INFINITY;
    let mut candidates = Vec::new();
    for name in names {
        let outcome = match time(device, task, name, best) {
            Ok(seconds) => {
                best = best.min(seconds);
                CandidateOutcome::Seconds(seconds)
            }
            Err(e) => CandidateOutcome::Failed(one_line(&e)),
        };
        candidates.push((name.clone(), outcome));
    }
    let key = |outcome: &CandidateOutcome| match outcome {
        CandidateOutcome::Seconds(s) => *s,
        CandidateOutcome::Failed(_) => f64::INFINITY,
    };
    candidates.sort_by(|a, b| key(&a.1).total_cmp(&key(&b.1)));
    ProblemMeasurement { candidates }
}

/// Compiles a task with one candidate.
fn compile(
    device: &dyn TunableBackend,
    task: &TuneTask,
    name: &str,
) -> Result<Box<dyn Executable>, TuneFailure> {
    let tuning = TuningTable::always(name);
    // If the candidate does not apply, planning selects another variant, which must not be measured
    // under this name.
    let program = plan(device.caps(), &task.graph, tuning.clone())?;
    let applies =
        own(&program).is_some_and(|t| t.variant.0 == name || t.detail.as_deref() == Some(name));
    match applies {
        true => Ok(device.compile_with(&task.graph, tuning)?),
        false => Err(TuneFailure::Other(
            "variant does not support this problem".to_string(),
        )),
    }
}

/// Compiles like [`compile`], then writes the tensors of the states and parameters of the task.
fn compile_with_operands(
    device: &dyn TunableBackend,
    task: &TuneTask,
    name: &str,
) -> Result<Box<dyn Executable>, TuneFailure> {
    let mut exe = compile(device, task, name)?;
    for (name, tensor) in &task.states {
        exe.write_state(name, tensor)?;
    }
    for (name, tensor) in &task.params {
        exe.set_param(name, tensor.clone())?;
    }
    Ok(exe)
}

/// Median time of a candidate, after a check of its results. A candidate much slower than `best` is
/// timed only once.
fn time(
    device: &dyn TunableBackend,
    task: &TuneTask,
    name: &str,
    best: f64,
) -> Result<f64, TuneFailure> {
    const MIN_MEASURED_TIME: Duration = Duration::from_millis(15);
    let mut exe = compile_with_operands(device, task, name)?;
    let mut outputs = Vec::new();
    let mut times = Vec::new();
    let mut began = Instant::now();
    for run in 0.. {
        exe.submit(&[], OutputSelection::Only(&[]))?;
        exe.wait(&mut outputs)?;
        let steps = exe.timings();
        let start = steps.iter().map(|s| s.start_ns).min();
        let end = steps.iter().map(|s| s.start_ns + s.ns).max();
        let (Some(start), Some(end)) = (start, end) else {
            return Err(TuneFailure::Other(
                "the device measures no times".to_string(),
            ));
        };
        let seconds = (end - start) as f64 * 1e-9;
        // The first run may have cold caches and a reduced clock rate.
        if run == 0 {
            began = Instant::now();
            if seconds < 3.0 * best {
                continue;
            }
        }
        times.push(seconds);
        let runs = times.len();
        if seconds > 3.0 * best || runs >= 25 || runs >= 3 && began.elapsed() > MIN_MEASURED_TIME {
            break;
        }
    }
    check(&mut *exe, task)?;
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

/// Compares results with the expected values, which were accumulated in f64.
fn check(exe: &mut dyn Executable, task: &TuneTask) -> Result<(), TuneFailure> {
    let allowed = match task.dtype {
        DType::F32 => 1e-3,
        DType::F16 => 2e-3,
        _ => 1e-2,
    };
    let mut rows: Vec<usize> = task.expected.iter().map(|w| w.row).collect();
    rows.dedup();
    for row in rows {
        let got = exe.read_output_rows("y", row..row + 1)?.to_f64s();
        for wanted in task.expected.iter().filter(|w| w.row == row) {
            let found = got[wanted.at];
            // The comparison is written so that NaN counts as wrong.
            let right =
                (found - wanted.value).abs() <= allowed * (wanted.value.abs() + wanted.scale);
            if !right {
                let what = format!(
                    "[{row}, {}] is {found} instead of {}",
                    wanted.at, wanted.value
                );
                return Err(TuneFailure::Other(what));
            }
        }
    }
    Ok(())
}

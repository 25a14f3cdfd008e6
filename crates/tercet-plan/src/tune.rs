//! Measures which variant of a kernel is best for which problem, on a device that anything plays programs on.
//!
//! A [`Task`] is a problem with its operands and some of its results, summed in f64. Its candidates are the rows of the
//! table that its family chooses from, and the tilings of a row that has several. Each candidate computes the same results
//! from the same operands; one that fails or is wrong is never the best. The times are of the device, so it has to measure
//! steps.
//!
//! Next: `tune/task.rs` and `tune/scan.rs` for the problems.

mod scan;
mod task;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tercet_ir::backend::Wanted;
use tercet_ir::{
    CompileError, CompileOptions, DType, Executable, Graph, OpError, RunError, TensorError,
    one_line,
};

pub use self::scan::StateScan;
pub use self::task::Task;
use crate::caps::Caps;
use crate::families::gemm_coop::{Tiling, type_of};
use crate::program::Program;
use crate::tuning::Tuning;
use crate::variant::Taken;

/// A device on which variants can be measured.
pub trait Tunable: Sync {
    /// What plans for it depend on.
    fn caps(&self) -> &Caps;

    /// Compiles a graph for it, where this table of measurements decides.
    ///
    /// # Errors
    /// As [`Backend::compile`](tercet_ir::Backend::compile).
    fn compile_with(
        &self,
        graph: &Graph,
        tuning: Tuning,
    ) -> Result<Box<dyn Executable>, CompileError>;
}

/// How one candidate did.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// The median time on the device.
    Seconds(f64),
    /// Why it cannot be used.
    Failed(String),
}

/// How all candidates did on one problem.
#[derive(Clone, Debug)]
pub struct Measured {
    /// Name and outcome of each candidate, the fastest first, failed ones last.
    pub candidates: Vec<(String, Outcome)>,
}

impl Measured {
    /// The name of the fastest candidate that was right.
    pub fn best(&self) -> Option<&str> {
        match self.candidates.first() {
            Some((name, Outcome::Seconds(_))) => Some(name),
            Some((_, Outcome::Failed(_))) | None => None,
        }
    }
}

/// Why a candidate was not measured.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
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

/// The program of a task where this table decides.
fn plan(caps: &Caps, graph: &Graph, tuning: Tuning) -> Result<Program, CompileError> {
    crate::compile(graph, &CompileOptions::new(), &caps.clone().tuned(tuning))
}

/// The variant of a task; those after it are of kernels that it is made of.
fn own(program: &Program) -> Option<&Taken> {
    program.variants.first()
}

/// The names of the candidates for a task on such a device: every variant that supports it, and every tiling that is worth
/// measuring of one that has several. None where there is nothing to choose.
pub fn candidates(caps: &Caps, task: &Task) -> Vec<String> {
    let mut names = Vec::new();
    if let Some(problem) = &task.tilings {
        let all = type_of(problem.dtype).map(|ty| Tiling::candidates_for(caps, ty, problem));
        names.extend(all.unwrap_or_default().iter().map(Tiling::to_string));
    } else if let Ok(program) = plan(caps, &task.graph, Tuning::default())
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

/// Makes the pipelines of candidates on several threads, so that measuring does not wait for each.
pub fn prepare(device: &dyn Tunable, task: &Task, names: &[String]) {
    const THREADS: usize = 8;
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some(name) = names.get(next.fetch_add(1, Ordering::Relaxed)) {
            // A candidate that cannot be made is reported when it is measured.
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

/// Keeps the device busy for a while: an idle one clocks down, and making operands takes a while.
fn warm_up(device: &dyn Tunable, task: &Task, name: &str) -> Result<(), Failure> {
    const WHILE: Duration = Duration::from_millis(500);
    let mut exe = ready(device, task, name)?;
    let mut outputs = Vec::new();
    let began = Instant::now();
    while began.elapsed() < WHILE {
        exe.submit(&[], Wanted::Only(&[]))?;
        exe.wait(&mut outputs)?;
    }
    Ok(())
}

/// Measures candidates by name on one task.
pub fn measure(device: &dyn Tunable, task: &Task, names: &[String]) -> Measured {
    if let Some(name) = names.first() {
        // What fails here fails again where it is reported.
        let _ = warm_up(device, task, name);
    }
    let mut best = f64::INFINITY;
    let mut candidates = Vec::new();
    for name in names {
        let outcome = match time(device, task, name, best) {
            Ok(seconds) => {
                best = best.min(seconds);
                Outcome::Seconds(seconds)
            }
            Err(e) => Outcome::Failed(one_line(&e)),
        };
        candidates.push((name.clone(), outcome));
    }
    let key = |outcome: &Outcome| match outcome {
        Outcome::Seconds(s) => *s,
        Outcome::Failed(_) => f64::INFINITY,
    };
    candidates.sort_by(|a, b| key(&a.1).total_cmp(&key(&b.1)));
    Measured { candidates }
}

/// A task by one candidate.
fn compile(device: &dyn Tunable, task: &Task, name: &str) -> Result<Box<dyn Executable>, Failure> {
    let tuning = Tuning::always(name);
    // Where it does not apply, another variant would be measured under its name.
    let program = plan(device.caps(), &task.graph, tuning.clone())?;
    let applies =
        own(&program).is_some_and(|t| t.variant.0 == name || t.detail.as_deref() == Some(name));
    match applies {
        true => Ok(device.compile_with(&task.graph, tuning)?),
        false => Err(Failure::Other("does not compute this problem".to_string())),
    }
}

/// The same with its operands.
fn ready(device: &dyn Tunable, task: &Task, name: &str) -> Result<Box<dyn Executable>, Failure> {
    let mut exe = compile(device, task, name)?;
    for (name, tensor) in &task.states {
        exe.write_state(name, tensor)?;
    }
    for (name, tensor) in &task.params {
        exe.set_param(name, tensor.clone())?;
    }
    Ok(exe)
}

/// The median time of a candidate that is right. One that is far behind `best` is run once.
fn time(device: &dyn Tunable, task: &Task, name: &str, best: f64) -> Result<f64, Failure> {
    const ENOUGH: Duration = Duration::from_millis(15);
    let mut exe = ready(device, task, name)?;
    let mut outputs = Vec::new();
    let mut times = Vec::new();
    let mut began = Instant::now();
    for run in 0.. {
        exe.submit(&[], Wanted::Only(&[]))?;
        exe.wait(&mut outputs)?;
        let steps = exe.timings();
        let start = steps.iter().map(|s| s.start_ns).min();
        let end = steps.iter().map(|s| s.start_ns + s.ns).max();
        let (Some(start), Some(end)) = (start, end) else {
            return Err(Failure::Other("the device measures no times".to_string()));
        };
        let seconds = (end - start) as f64 * 1e-9;
        // The first run finds caches cold and may find the device clocked down.
        if run == 0 {
            began = Instant::now();
            if seconds < 3.0 * best {
                continue;
            }
        }
        times.push(seconds);
        let runs = times.len();
        if seconds > 3.0 * best || runs >= 25 || runs >= 3 && began.elapsed() > ENOUGH {
            break;
        }
    }
    check(&mut *exe, task)?;
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

/// Compares results with sums in f64.
fn check(exe: &mut dyn Executable, task: &Task) -> Result<(), Failure> {
    let allowed = match task.dtype {
        DType::F32 => 1e-3,
        DType::F16 => 2e-3,
        _ => 1e-2,
    };
    let mut rows: Vec<usize> = task.wanted.iter().map(|w| w.row).collect();
    rows.dedup();
    for row in rows {
        let got = exe.read_output_rows("y", row..row + 1)?.to_f64s();
        for wanted in task.wanted.iter().filter(|w| w.row == row) {
            let found = got[wanted.at];
            // Written so that NaN is wrong, too.
            let right =
                (found - wanted.value).abs() <= allowed * (wanted.value.abs() + wanted.scale);
            if !right {
                let what = format!(
                    "[{row}, {}] is {found} instead of {}",
                    wanted.at, wanted.value
                );
                return Err(Failure::Other(what));
            }
        }
    }
    Ok(())
}

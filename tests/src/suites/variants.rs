//! Every kernel variant of every family, forced in cases of operators: `tercet-parity --variants`.
//!
//! A test is named `variants/attention=tiles/attention/causal_2x7/f16/vulkan`. The cases of a
//! variant are those of the operators whose plan on this device could take the variant. A device
//! may lack what a variant needs; [`VariantSummary`] lists these variants with the reason.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use libtest_mimic::Failed;
use serde::{Deserialize, Serialize};
use tercet_cases::cases;
use tercet_ir::accuracy::Accuracy;
use tercet_ir::{CompileOptions, DType, DeviceSwitches, OpKind, VariantFamily};
use tercet_plan::{DeviceCaps, GpuProgram, VariantSelection};

use super::parity::check;
use crate::harness::{TestOutcome, TestRecord};
use crate::report::TestNote;
use crate::{SuiteTest, TestExecutor};

/// The selection of every variant.
pub const ALL: &str = "all";

/// The most cases of a variant with one dtype.
const CASES: usize = 4;

/// The most cases that are planned to find one for a tiling.
const PLANNED_FOR_A_TILING: usize = 12;

/// The family of the tilings of matmuls on cooperative matrices.
const TILINGS: &str = "matmul";

/// The tests of the variants of an executor.
#[derive(Debug)]
pub struct VariantTests {
    /// A test for each case of each variant.
    pub tests: Vec<SuiteTest>,
    /// The selected variants, as `FAMILY=VARIANT`, without a test on this device; each with the
    /// reason.
    pub not_run: Vec<TestNote>,
}

/// The outcome of the variants of an executor.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VariantSummary {
    /// The tried variants, as `FAMILY=VARIANT`, each with its dtypes.
    pub tried: BTreeMap<String, BTreeSet<String>>,
    /// The variants with a failed test, as `FAMILY=VARIANT/DTYPE`.
    pub wrong: BTreeSet<String>,
    /// The variants without a test on this device, each with the reason.
    pub not_run: Vec<TestNote>,
}

impl VariantSummary {
    /// Sums up the outcomes of the tests of variants.
    pub fn new(records: &[TestRecord], not_run: Vec<TestNote>) -> VariantSummary {
        let mut summary = VariantSummary {
            not_run,
            ..VariantSummary::default()
        };
        for record in records {
            let parts: Vec<&str> = record.name.split('/').collect();
            let ["variants", variant, _, .., dtype, _] = parts[..] else {
                continue;
            };
            if matches!(record.outcome, TestOutcome::Ignored(_)) {
                continue;
            }
            let dtypes = summary.tried.entry(variant.to_string()).or_default();
            dtypes.insert(dtype.to_string());
            if matches!(record.outcome, TestOutcome::Failed(_)) {
                summary.wrong.insert(format!("{variant}/{dtype}"));
            }
        }
        summary
    }
}

/// Prints `12 variants tried (31 with dtypes), 0 wrong, 3 not run`.
impl std::fmt::Display for VariantSummary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (tried, wrong) = (self.tried.len(), self.wrong.len());
        let pairs: usize = self.tried.values().map(BTreeSet::len).sum();
        let not_run = self.not_run.len();
        write!(
            f,
            "{tried} variants tried ({pairs} with dtypes), {wrong} wrong, {not_run} not run"
        )
    }
}

/// The variants that no executor ran, each with the reason of the first executor that has it.
pub fn run_by_none<'a>(summaries: impl Iterator<Item = &'a VariantSummary>) -> Vec<&'a TestNote> {
    let summaries: Vec<&VariantSummary> = summaries.collect();
    let is_tried = |name: &str| summaries.iter().any(|s| s.tried.contains_key(name));
    let mut known = BTreeSet::new();
    let not_run = summaries.iter().flat_map(|s| &s.not_run);
    not_run
        .filter(|note| !is_tried(&note.name) && known.insert(note.name.as_str()))
        .collect()
}

/// A case of an operator with a dtype.
#[derive(Clone, Copy)]
struct VariantProblem {
    kind: OpKind,
    case: usize,
    dtype: DType,
}

impl VariantProblem {
    /// Every case of every operator with each of its dtypes.
    fn all() -> Vec<VariantProblem> {
        let mut all = Vec::new();
        for &kind in OpKind::ALL {
            for (case, given) in cases(kind).iter().enumerate() {
                let dtypes = kind.doc().dtypes.iter().filter(|d| given.runs_with(**d));
                all.extend(dtypes.map(|&dtype| VariantProblem { kind, case, dtype }));
            }
        }
        all
    }

    /// The program on a GPU; `None` if GPUs do not support the case.
    fn plan(self, caps: &DeviceCaps) -> Option<GpuProgram> {
        let case = cases(self.kind)[self.case].build(self.dtype).ok()?;
        let options = CompileOptions {
            bounds: case.bounds.clone(),
            ..CompileOptions::new()
        };
        tercet_plan::compile(&case.graph, &options, caps).ok()
    }

    fn name(self) -> String {
        let VariantProblem { kind, case, dtype } = self;
        format!("{}/{}/{dtype}", kind.doc().name, cases(kind)[case].name)
    }
}

/// A variant with the cases that it runs.
struct ForcedVariant {
    /// `FAMILY=VARIANT`, as for `--force`.
    name: String,
    problems: Vec<VariantProblem>,
}

/// The tests of the variants that `selection` names: [`ALL`], a family or `FAMILY=VARIANT`.
///
/// # Errors
/// A reason why the device could not be opened, or a selection that names none of its variants.
pub fn tests(executor: &'static TestExecutor, selection: &str) -> Result<VariantTests, String> {
    let families = executor.device()?.variant_families();
    let (family, variant) = match selection.split_once('=') {
        Some((family, variant)) => (family, Some(variant)),
        None => (selection, None),
    };
    let mut wanted = Vec::new();
    for of in &families {
        let is_family = family == ALL || family == of.name;
        let variants = of.variants.iter();
        let variants = variants.filter(|v| is_family && variant.is_none_or(|name| name == **v));
        wanted.extend(variants.map(|v| format!("{}={v}", of.name)));
    }
    if wanted.is_empty() {
        return Err(unknown(executor, selection, &families));
    }
    let (forced, not_run) = match (executor.caps)() {
        Some(caps) => on_gpu(&caps, &wanted),
        None => on_cpu(executor, &wanted),
    };
    let mut tests = Vec::new();
    for of in forced {
        for problem in of.problems {
            tests.push(test(executor, of.name.clone(), problem));
        }
    }
    Ok(VariantTests { tests, not_run })
}

fn unknown(executor: &TestExecutor, selection: &str, families: &[VariantFamily]) -> String {
    let all: Vec<String> = families
        .iter()
        .map(|f| format!("{} ({})", f.name, f.variants.join(", ")))
        .collect();
    format!(
        "{} has no kernel variants `{selection}`; there are: {ALL}; {}",
        executor.name,
        all.join("; ")
    )
}

/// One case of each operator and dtype for each instruction set of the CPU.
fn on_cpu(executor: &TestExecutor, wanted: &[String]) -> (Vec<ForcedVariant>, Vec<TestNote>) {
    let (mut forced, mut not_run) = (Vec::new(), Vec::new());
    for name in wanted {
        let opened = DeviceSwitches::parse("", name).map_err(|e| e.to_string());
        match opened.and_then(|switches| (executor.switched)(&switches)) {
            Err(text) => not_run.push(TestNote {
                name: name.clone(),
                text,
            }),
            Ok(_) => {
                let mut problems = VariantProblem::all();
                let mut seen = BTreeSet::new();
                problems.retain(|p| seen.insert((p.kind.doc().name, p.dtype.to_string())));
                forced.push(ForcedVariant {
                    name: name.clone(),
                    problems,
                });
            }
        }
    }
    (forced, not_run)
}

/// The cases that could take each variant, and the first unmet requirement of the others.
#[derive(Default)]
struct VariantCases {
    able: BTreeMap<String, Vec<usize>>,
    reasons: BTreeMap<String, String>,
}

impl VariantCases {
    /// Plans every case.
    fn new(caps: &DeviceCaps, problems: &[VariantProblem]) -> VariantCases {
        let next = AtomicUsize::new(0);
        let all = Mutex::new(VariantCases::default());
        let work = || {
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let Some(problem) = problems.get(at) else {
                    break;
                };
                let Some(program) = problem.plan(caps) else {
                    continue;
                };
                let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
                program.variants.iter().for_each(|v| all.add(at, v));
            }
        };
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(work);
            }
        });
        let mut all = all.into_inner().unwrap_or_else(PoisonError::into_inner);
        all.able.values_mut().for_each(|able| able.sort_unstable());
        all
    }

    fn add(&mut self, at: usize, selection: &VariantSelection) {
        let taken = std::iter::once((selection.variant.0, None));
        let others = selection.others.iter();
        let others = others.map(|(name, cost)| (*name, cost.as_ref().err()));
        for (variant, reason) in taken.chain(others) {
            let name = format!("{}={variant}", selection.family);
            match reason {
                None => {
                    let able = self.able.entry(name).or_default();
                    if able.last() != Some(&at) {
                        able.push(at);
                    }
                }
                Some(reason) => {
                    self.reasons
                        .entry(name)
                        .or_insert_with(|| reason.to_string());
                }
            }
        }
    }
}

fn on_gpu(caps: &DeviceCaps, wanted: &[String]) -> (Vec<ForcedVariant>, Vec<TestNote>) {
    let problems = VariantProblem::all();
    let found = VariantCases::new(caps, &problems);
    let (mut forced, mut not_run) = (Vec::new(), Vec::new());
    for name in wanted {
        let tiling = name.strip_prefix(&format!("{TILINGS}="));
        let of = match tiling {
            Some(tiling) => with_tiling(caps, &problems, &found, tiling),
            None => {
                let able = found.able.get(name).map_or(&[][..], Vec::as_slice);
                spread(able.iter().map(|at| problems[*at]))
            }
        };
        if of.is_empty() {
            let reason = found.reasons.get(name);
            not_run.push(TestNote {
                name: name.clone(),
                text: match reason {
                    Some(reason) => format!("needs {reason}"),
                    None => "no case has such a problem on this device".to_string(),
                },
            });
            continue;
        }
        forced.push(ForcedVariant {
            name: name.clone(),
            problems: of,
        });
    }
    (forced, not_run)
}

/// At most [`CASES`] cases of each dtype, of as many operators as possible.
fn spread(able: impl Iterator<Item = VariantProblem>) -> Vec<VariantProblem> {
    let mut by_dtype: BTreeMap<String, Vec<(usize, VariantProblem)>> = BTreeMap::new();
    let mut count: BTreeMap<(String, &str), usize> = BTreeMap::new();
    for problem in able {
        let dtype = problem.dtype.to_string();
        let earlier = count
            .entry((dtype.clone(), problem.kind.doc().name))
            .or_default();
        by_dtype.entry(dtype).or_default().push((*earlier, problem));
        *earlier += 1;
    }
    let chosen = by_dtype.into_values().flat_map(|mut all| {
        all.sort_by_key(|(earlier, _)| *earlier);
        all.truncate(CASES);
        all.into_iter().map(|(_, problem)| problem)
    });
    chosen.collect()
}

/// One case of each dtype that takes a tiling.
fn with_tiling(
    caps: &DeviceCaps,
    problems: &[VariantProblem],
    found: &VariantCases,
    tiling: &str,
) -> Vec<VariantProblem> {
    let force = format!("{TILINGS}={tiling}");
    let switches = DeviceSwitches::parse("", &force);
    let Some(caps) = switches.ok().and_then(|s| caps.clone().switched(&s).ok()) else {
        return Vec::new();
    };
    let mut planned: BTreeMap<String, usize> = BTreeMap::new();
    let mut chosen: BTreeMap<String, VariantProblem> = BTreeMap::new();
    let on_matrices = found.able.iter().filter(|(name, _)| {
        let variant = name.split_once('=').map(|(_, variant)| variant);
        matches!(variant, Some("matrices" | "pairs" | "wgsl_matrices"))
    });
    for at in on_matrices.flat_map(|(_, able)| able) {
        let problem = problems[*at];
        let dtype = problem.dtype.to_string();
        let planned = planned.entry(dtype.clone()).or_default();
        if chosen.contains_key(&dtype) || *planned >= PLANNED_FOR_A_TILING {
            continue;
        }
        *planned += 1;
        if problem.plan(&caps).is_some_and(|p| is_taken(&p, &force)) {
            chosen.insert(dtype, problem);
        }
    }
    chosen.into_values().collect()
}

/// True if a program has the variant `FAMILY=VARIANT` because it is forced, or uses the tiling.
fn is_taken(program: &GpuProgram, name: &str) -> bool {
    let Some((family, variant)) = name.split_once('=') else {
        return false;
    };
    let is_tiling = |detail: &str| match detail.strip_prefix(variant) {
        Some(rest) => rest.is_empty() || rest.starts_with([':', ' ', '+']),
        None => false,
    };
    program.variants.iter().any(|v| match family {
        TILINGS => v.detail.as_deref().is_some_and(is_tiling),
        _ => v.is_forced && v.family == family && v.variant.0 == variant,
    })
}

fn test(executor: &'static TestExecutor, force: String, problem: VariantProblem) -> SuiteTest {
    let name = format!("variants/{force}/{}", problem.name());
    SuiteTest::on(executor, name, move |_| {
        let switches = DeviceSwitches::parse("", &force).map_err(|e| e.to_string())?;
        let backend = (executor.switched)(&switches)?;
        if let Some(caps) = (executor.caps)() {
            let caps = caps.switched(&switches).map_err(|e| e.to_string())?;
            if !problem.plan(&caps).is_some_and(|p| is_taken(&p, &force)) {
                return Err(Failed::from(format!("{force} is not in the program")));
            }
        }
        let case = cases(problem.kind)[problem.case].build(problem.dtype);
        let case = &case.map_err(|e| e.to_string())?;
        let options = CompileOptions {
            bounds: case.bounds.clone(),
            ..CompileOptions::new()
        };
        check(&*backend, case, &case.graph, &options, Accuracy::Exact)
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn record(name: &str, outcome: TestOutcome) -> TestRecord {
        TestRecord {
            suite: "variants".to_string(),
            name: name.to_string(),
            outcome,
            took: Duration::ZERO,
        }
    }

    #[test]
    fn the_summary_counts_variants_and_names_wrong_ones() {
        let records = [
            record("variants/conv=rows/conv/a/f16/wgpu", TestOutcome::Passed),
            record("variants/conv=rows/conv/b/f16/wgpu", TestOutcome::Passed),
            record(
                "variants/conv=rows/conv/a/f32/wgpu",
                TestOutcome::Failed("1 is not 2".to_string()),
            ),
            record("variants/rows=row/mat_mul/a/f32/wgpu", TestOutcome::Passed),
            record("parity/conv/a/f32/wgpu", TestOutcome::Passed),
        ];
        let note = |name: &str| TestNote {
            name: name.to_string(),
            text: "needs matrices".to_string(),
        };
        let wgpu = VariantSummary::new(&records, vec![note("conv=matrices"), note("many=pairs")]);
        assert_eq!(
            wgpu.to_string(),
            "2 variants tried (3 with dtypes), 1 wrong, 2 not run"
        );
        assert!(wgpu.wrong.contains("conv=rows/f32"));
        let matrices = record(
            "variants/conv=matrices/conv/a/f16/vulkan",
            TestOutcome::Passed,
        );
        let vulkan = VariantSummary::new(&[matrices], vec![note("many=pairs")]);
        let none: Vec<&str> = run_by_none([&wgpu, &vulkan].into_iter())
            .iter()
            .map(|note| note.name.as_str())
            .collect();
        assert_eq!(none, ["many=pairs"]);
    }
}

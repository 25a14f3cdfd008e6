//! Every executor against the reference: each operator's cases, with each of its dtypes.
//!
//! A trial is named `softmax/odd_rows_7x33/f32/cpu`. Variants of it follow after the executor:
//! `without_passes` compiles with each pass left out in turn, and with none at all; `decomposed`
//! (composite operators) runs what the rules make of the graph when a target has core operators
//! only. A case with symbols runs at several sizes on one executable.
//!
//! The tolerance comes from the one table in `tercet_ir::accuracy`. An executor that this machine
//! lacks is reported as ignored, with the reason; named in `TERCET_REQUIRE` (a comma-separated
//! list), it fails.

use std::collections::BTreeMap;
use std::error::Error;

use libtest_mimic::{Arguments, Failed, Trial};
use tercet_cpu::{CpuBackend, ReferenceBackend};
use tercet_ir::accuracy::{Accuracy, tolerance};
use tercet_ir::case::{Case, CaseGraph};
use tercet_ir::legalize::legalize;
use tercet_ir::passes::PIPELINE;
use tercet_ir::{
    Backend, Bindings, CompileOptions, DType, Executable, Graph, Node, OpKind, RunError, Signature,
    Support, Target, Tensor, TensorType, Tier,
};

/// An executor and how to get it, or why this machine has none.
struct Executor {
    name: &'static str,
    open: fn() -> Result<Box<dyn Backend>, String>,
}

const EXECUTORS: &[Executor] = &[Executor {
    name: "cpu",
    open: || Ok(Box::new(CpuBackend::new())),
}];

/// How a trial runs its case.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Variant {
    Plain,
    WithoutPasses,
    Decomposed,
}

impl Variant {
    const ALL: [Variant; 3] = [Variant::Plain, Variant::WithoutPasses, Variant::Decomposed];

    fn suffix(self) -> &'static str {
        match self {
            Variant::Plain => "",
            Variant::WithoutPasses => "/without_passes",
            Variant::Decomposed => "/decomposed",
        }
    }

    fn applies(self, kind: OpKind) -> bool {
        match self {
            Variant::Plain | Variant::WithoutPasses => true,
            Variant::Decomposed => kind.doc().tier == Tier::Composite,
        }
    }
}

fn main() {
    let arguments = Arguments::from_args();
    let required = std::env::var("TERCET_REQUIRE").unwrap_or_default();
    let mut trials = Vec::new();
    for executor in EXECUTORS {
        let required = required.split(',').any(|name| name.trim() == executor.name);
        let reason = (executor.open)().err();
        trials.push(presence(executor, reason.clone(), required));
        for &kind in OpKind::ALL {
            for (at, case) in kind.cases().iter().enumerate() {
                let dtypes = kind.doc().dtypes.iter().filter(|d| case.runs_with(**d));
                for &dtype in dtypes {
                    for variant in Variant::ALL {
                        if variant.applies(kind) {
                            trials.push(
                                trial(executor, kind, at, case, dtype, variant)
                                    .with_ignored_flag(reason.is_some()),
                            );
                        }
                    }
                }
            }
        }
    }
    libtest_mimic::run(&arguments, trials).exit();
}

/// Says whether the executor is here. A missing one that is not required is ignored, and its name
/// carries the reason.
fn presence(executor: &Executor, reason: Option<String>, required: bool) -> Trial {
    let name = match &reason {
        Some(reason) => format!("executor/{} is missing: {reason}", executor.name),
        None => format!("executor/{}", executor.name),
    };
    let ignored = reason.is_some() && !required;
    Trial::test(name, move || match reason {
        Some(reason) => Err(reason.into()),
        None => Ok(()),
    })
    .with_ignored_flag(ignored)
}

fn trial(
    executor: &'static Executor,
    kind: OpKind,
    at: usize,
    case: &Case,
    dtype: DType,
    variant: Variant,
) -> Trial {
    let name = format!(
        "{}/{}/{dtype}/{}{}",
        kind.doc().name,
        case.name,
        executor.name,
        variant.suffix()
    );
    Trial::test(name, move || {
        let backend = (executor.open)()?;
        let case = &kind.cases()[at].build(dtype).map_err(text)?;
        let plain = CompileOptions {
            bounds: case.bounds.clone(),
            ..CompileOptions::new()
        };
        let all = PIPELINE.iter().map(|p| p.name.to_string());
        let none_left = CompileOptions {
            without_passes: all.collect(),
            ..plain.clone()
        };
        match variant {
            Variant::Plain => check(&*backend, case, &case.graph, &plain),
            Variant::WithoutPasses => {
                for pass in PIPELINE {
                    let options = plain.clone().without_pass(pass.name);
                    check(&*backend, case, &case.graph, &options)
                        .map_err(|e| in_context(&format!("without {}", pass.name), e))?;
                }
                check(&*backend, case, &case.graph, &none_left)
                    .map_err(|e| in_context("without any pass", e))
            }
            Variant::Decomposed => {
                let graph = legalize(&case.graph, &CoreOnly).map_err(text)?;
                check(&*backend, case, &graph, &none_left)
            }
        }
    })
}

/// A target with every core operator and no composite one.
struct CoreOnly;

impl Target for CoreOnly {
    fn name(&self) -> &'static str {
        "core operators"
    }

    fn supports(&self, _: &Graph, node: &Node) -> Support {
        match node.op.kind().doc().tier {
            Tier::Core => Support::Native,
            Tier::Composite => Support::Missing {
                reason: "composite".to_string(),
            },
        }
    }
}

/// Compiles `graph`, which means the same as the case's, and compares it with the reference, run
/// by run and size by size.
fn check(
    backend: &dyn Backend,
    case: &CaseGraph,
    graph: &Graph,
    options: &CompileOptions,
) -> Result<(), Failed> {
    let mut got = backend.compile(graph, options).map_err(text)?;
    let mut want = ReferenceBackend::new()
        .compile(&case.graph, options)
        .map_err(text)?;
    for exe in [&mut got, &mut want] {
        for port in exe.signature().params.clone() {
            exe.set_param(&port.name, case.tensors[&port.name].clone())
                .map_err(text)?;
        }
    }
    let class = accuracy_of(graph).max(accuracy_of(&case.graph));
    for sizes in size_sets(case) {
        let inputs = inputs(case, &sizes)?;
        for exe in [&mut got, &mut want] {
            exe.reset();
            for port in exe.signature().states.clone() {
                exe.write_state(&port.name, &case.tensors[&port.name])
                    .map_err(text)?;
            }
        }
        for run in 0..case.runs {
            check_run(&mut *got, &mut *want, &inputs, class, case)
                .map_err(|e| in_context(&format!("sizes {sizes:?}, run {run}"), e))?;
        }
    }
    Ok(())
}

fn check_run(
    got: &mut dyn Executable,
    want: &mut dyn Executable,
    inputs: &BTreeMap<String, Tensor>,
    class: Accuracy,
    case: &CaseGraph,
) -> Result<(), Failed> {
    let inputs: Vec<(&str, &Tensor)> = inputs.iter().map(|(n, t)| (n.as_str(), t)).collect();
    match (got.run(&inputs), want.run(&inputs)) {
        (Ok(got), Ok(want)) => {
            for (at, (got, want)) in got.iter().zip(&want).enumerate() {
                compare(got, want, class).map_err(|e| in_context(&format!("output {at}"), e))?;
            }
        }
        (Err(got), Err(want)) => same_fault(&got, &want)?,
        (Ok(_), Err(want)) => {
            return Err(format!("ran; the reference fails: {}", chain(&want)).into());
        }
        (Err(got), Ok(_)) => return Err(format!("failed: {}", chain(&got)).into()),
    }
    for port in case_states(case) {
        let (got, want) = (
            got.read_state(&port).map_err(text)?,
            want.read_state(&port).map_err(text)?,
        );
        compare(&got, &want, class).map_err(|e| in_context(&format!("state {port}"), e))?;
    }
    Ok(())
}

fn case_states(case: &CaseGraph) -> Vec<String> {
    let states = Signature::of(&case.graph).states;
    states.into_iter().map(|p| p.name).collect()
}

fn compare(got: &Tensor, want: &Tensor, class: Accuracy) -> Result<(), Failed> {
    if got.ty() != want.ty() {
        return Err(format!("{} instead of {}", got.ty(), want.ty()).into());
    }
    if !want.dtype().is_float() {
        return match got.to_i64s() == want.to_i64s() {
            true => Ok(()),
            false => Err(format!("{got:?} instead of {want:?}").into()),
        };
    }
    let (got_values, want_values) = (got.to_f64s(), want.to_f64s());
    let finite = want_values.iter().filter(|x| x.is_finite());
    let scale = finite.fold(f64::from(f32::MIN_POSITIVE), |m, x| m.max(x.abs()));
    let allowed = tolerance(class, want.dtype());
    for (i, (&g, &w)) in got_values.iter().zip(&want_values).enumerate() {
        let units = allowed.units(g, w, scale);
        // The units of a NaN are infinite, never NaN.
        if units > 1.0 {
            return Err(format!(
                "element {i} is {g:e} instead of {w:e}, {units:.1} tolerances off"
            )
            .into());
        }
    }
    Ok(())
}

/// Both must fail at the same operator for the same reason; node numbers are those of different
/// graphs where rules decomposed one.
fn same_fault(got: &RunError, want: &RunError) -> Result<(), Failed> {
    let cause = |e: &RunError| e.source().map(chain);
    let kind = std::mem::discriminant(got) == std::mem::discriminant(want);
    if kind && cause(got) == cause(want) {
        return Ok(());
    }
    Err(format!("failed with `{}` instead of `{}`", chain(got), chain(want)).into())
}

/// The loosest class among the operators of a graph.
fn accuracy_of(graph: &Graph) -> Accuracy {
    let classes = graph.nodes().map(|(_, n)| n.op.kind().doc().accuracy);
    classes.max().unwrap_or(Accuracy::Exact)
}

/// The sizes of the case, then all symbols at their bounds, at one, and the case's again: growing
/// and shrinking on one executable.
fn size_sets(case: &CaseGraph) -> Vec<Bindings> {
    let own = case.sizes.clone();
    if own.iter().next().is_none() {
        return vec![own];
    }
    let ones = own
        .iter()
        .fold(Bindings::new(), |b, (s, _)| b.with(s.name(), 1));
    vec![own.clone(), case.bounds.clone(), ones, own]
}

/// The inputs of the case for these sizes: its own data, repeated or cut.
fn inputs(case: &CaseGraph, sizes: &Bindings) -> Result<BTreeMap<String, Tensor>, Failed> {
    let mut inputs = BTreeMap::new();
    for port in Signature::of(&case.graph).inputs {
        let own = &case.tensors[&port.name];
        let shape = port.ty.shape.eval(sizes).map_err(text)?;
        let ty = TensorType::new(port.ty.dtype, &shape);
        let bytes = own.bytes().iter().copied();
        let fill: Vec<u8> = match own.numel() {
            0 => vec![0; ty.size_bytes()],
            _ => bytes.cycle().take(ty.size_bytes()).collect(),
        };
        inputs.insert(port.name, Tensor::from_bytes(ty, &fill).map_err(text)?);
    }
    Ok(inputs)
}

fn in_context(context: &str, e: Failed) -> Failed {
    format!("{context}: {}", e.message().unwrap_or("failed")).into()
}

fn text(e: impl Error) -> Failed {
    chain(&e).into()
}

fn chain(e: &dyn Error) -> String {
    let mut text = e.to_string();
    let mut source = e.source();
    while let Some(e) = source {
        text += &format!(": {e}");
        source = e.source();
    }
    text
}

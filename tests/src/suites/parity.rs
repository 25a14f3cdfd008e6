//! Tests of every executor against the reference: each operator's cases, with each of its dtypes.
//!
//! A test is named `parity/softmax/odd_rows_7x33/f32/cpu`. Variants have a suffix after the
//! executor. `without_passes` compiles without each single pass and without all passes, whenever
//! the resulting graph differs (on GPUs only for a few dtypes). `decomposed` lowers composite
//! operators to core operators by the decomposition rules. A case with symbols runs at several
//! sizes on one executable.
//!
//! The tolerances come from the table in `tercet_ir::accuracy`. A missing executor is reported as
//! ignored, with the reason. If `TERCET_REQUIRE` (a comma-separated list) names the executor, its
//! absence is a failure.

use std::collections::BTreeMap;

use libtest_mimic::Failed;
use tercet_cases::{CaseGraph, OpCase, cases};
use tercet_cpu::ReferenceBackend;
use tercet_ir::accuracy::{Accuracy, furthest};
use tercet_ir::legalize::legalize;
use tercet_ir::ops::{Op, ReduceFn};
use tercet_ir::passes::{PIPELINE, optimize};
use tercet_ir::{
    Backend, Bindings, CompileError, CompileOptions, DType, Executable, Graph, Node, NodeId,
    OpKind, RunError, Signature, Support, Target, Tensor, TensorType, Tier, one_line,
};

use crate::{SuiteTest, TestExecutor, executors};

/// The dtypes with `without_passes` tests on GPUs; the CPU is fast enough for all.
const PASSES_OF: [DType; 3] = [DType::F32, DType::F16, DType::I32];

/// The minimum accuracy class; a test uses the class of its operators.
const EXACT: Accuracy = Accuracy::Exact;

/// The variant of a test.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ParityVariant {
    Plain,
    WithoutPasses,
    Decomposed,
}

impl ParityVariant {
    const ALL: [ParityVariant; 3] = [
        ParityVariant::Plain,
        ParityVariant::WithoutPasses,
        ParityVariant::Decomposed,
    ];

    fn suffix(self) -> &'static str {
        match self {
            ParityVariant::Plain => "",
            ParityVariant::WithoutPasses => "/without_passes",
            ParityVariant::Decomposed => "/decomposed",
        }
    }

    fn applies(self, kind: OpKind, dtype: DType, executor: &TestExecutor) -> bool {
        match self {
            ParityVariant::Plain => true,
            ParityVariant::WithoutPasses => executor.name == "cpu" || PASSES_OF.contains(&dtype),
            ParityVariant::Decomposed => kind.doc().tier == Tier::Composite,
        }
    }
}

/// The tests of this suite.
pub(super) fn tests() -> Vec<SuiteTest> {
    let mut tests = Vec::new();
    for executor in executors() {
        for &kind in OpKind::ALL {
            for (at, case) in cases(kind).iter().enumerate() {
                let dtypes = kind.doc().dtypes.iter().filter(|d| case.runs_with(**d));
                for &dtype in dtypes {
                    let variants = ParityVariant::ALL.into_iter();
                    let variants = variants.filter(|v| v.applies(kind, dtype, executor));
                    tests.extend(variants.map(|v| test(executor, kind, at, case, dtype, v)));
                }
            }
        }
    }
    tests
}

fn test(
    executor: &'static TestExecutor,
    kind: OpKind,
    at: usize,
    case: &OpCase,
    dtype: DType,
    variant: ParityVariant,
) -> SuiteTest {
    let name = format!("parity/{}/{}/{dtype}", kind.doc().name, case.name);
    SuiteTest::variant_on(executor, name, variant.suffix(), move |device| {
        let backend = device.backend();
        let case = &cases(kind)[at].build(dtype).map_err(text)?;
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
            ParityVariant::Plain => check(backend, case, &case.graph, &plain, EXACT),
            ParityVariant::WithoutPasses => {
                let mut known = vec![optimize(&case.graph, &plain).map_err(text)?];
                let one = PIPELINE.iter().map(|pass| {
                    let options = plain.clone().without_pass(pass.name);
                    (format!("without {}", pass.name), options)
                });
                for (context, options) in one.chain([("without any pass".to_string(), none_left)]) {
                    let optimized = optimize(&case.graph, &options).map_err(text)?;
                    if !known.contains(&optimized) {
                        check(backend, case, &case.graph, &options, EXACT)
                            .map_err(|e| in_context(&context, e))?;
                        known.push(optimized);
                    }
                }
                Ok(())
            }
            ParityVariant::Decomposed => {
                let graph = legalize(&case.graph, &CoreOnly).map_err(text)?;
                check(backend, case, &graph, &none_left, EXACT)
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

/// Compiles `graph`, which is equivalent to the case's graph, and compares it with the reference
/// for each run and size. The tolerance is that of the least accurate operator, and at least
/// `at_least`.
pub(super) fn check(
    backend: &dyn Backend,
    case: &CaseGraph,
    graph: &Graph,
    options: &CompileOptions,
    at_least: Accuracy,
) -> Result<(), Failed> {
    let mut got = match backend.compile(graph, options) {
        Ok(got) => got,
        Err(e) if is_beyond_gpus(backend, graph, &e) => return Ok(()),
        Err(e) => return Err(text(e)),
    };
    let mut want = ReferenceBackend::new()
        .compile(&case.graph, options)
        .map_err(text)?;
    for exe in [&mut got, &mut want] {
        for port in exe.signature().params.clone() {
            exe.set_param(&port.name, case.tensors[&port.name].clone())
                .map_err(text)?;
        }
    }
    let class = accuracy_of(graph)
        .max(accuracy_of(&case.graph))
        .max(at_least);
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
            check_run(
                &mut *got,
                &mut *want,
                &inputs,
                class,
                case,
                backend.name() != "cpu",
            )
            .map_err(|e| in_context(&format!("sizes {sizes:?}, run {run}"), e))?;
        }
    }
    Ok(())
}

/// True for the compile errors that GPUs may return: F64 nodes, and constants outside the
/// I32 range.
pub(super) fn is_beyond_gpus(backend: &dyn Backend, graph: &Graph, e: &CompileError) -> bool {
    let wide = |id: NodeId| {
        let node = graph.node(id);
        let inputs = node.inputs.iter().map(|v| graph.ty(*v));
        let mut types = inputs.chain(&node.outputs);
        types.any(|ty| ty.dtype == DType::F64)
    };
    match e {
        _ if backend.name() == "cpu" => false,
        CompileError::Unsupported { nodes, .. } => {
            let narrow = graph.nodes().all(|(id, _)| !wide(id));
            let is_float = |reason: &str| !narrow && reason.contains("GPUs compute in f32");
            let mut nodes = nodes.iter();
            nodes.all(|n| is_float(&n.reason))
        }
        CompileError::Narrow { value, .. } => i32::try_from(*value).is_err(),
        _ => false,
    }
}

/// True if the executor correctly rejected an I64 input that contains a number outside the I32
/// range.
fn is_too_wide(e: &RunError, inputs: &[(&str, &Tensor)]) -> bool {
    let RunError::Narrow { name, value, .. } = e else {
        return false;
    };
    let input = inputs.iter().find(|(n, _)| n == name);
    i32::try_from(*value).is_err() && input.is_some_and(|(_, t)| t.to_i64s().contains(value))
}

fn check_run(
    got: &mut dyn Executable,
    want: &mut dyn Executable,
    inputs: &BTreeMap<String, Tensor>,
    class: Accuracy,
    case: &CaseGraph,
    on_gpu: bool,
) -> Result<(), Failed> {
    let inputs: Vec<(&str, &Tensor)> = inputs.iter().map(|(n, t)| (n.as_str(), t)).collect();
    match (got.run(&inputs), want.run(&inputs)) {
        (Ok(got), Ok(want)) => {
            for (at, (got, want)) in got.iter().zip(&want).enumerate() {
                if on_gpu && is_wide(want) {
                    match has_unchecked_sums(&case.graph) {
                        true => continue,
                        false => return Err("ran, although an i64 result leaves i32".into()),
                    }
                }
                compare(got, want, class).map_err(|e| in_context(&format!("output {at}"), e))?;
            }
        }
        (Err(got), _) if is_too_wide(&got, &inputs) => return Ok(()),
        (Err(got), Ok(_)) if on_gpu && is_overflow(&got) => return Ok(()),
        (Err(got), Err(want)) => same_fault(&got, &want)?,
        (Ok(_), Err(want)) => {
            return Err(format!("ran; the reference fails: {}", one_line(&want)).into());
        }
        (Err(got), Ok(_)) => return Err(format!("failed: {}", one_line(&got)).into()),
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

/// True for the error of an I64 result outside the I32 range.
fn is_overflow(e: &RunError) -> bool {
    let cause = std::error::Error::source(e).map(one_line);
    cause.is_some_and(|text| text.contains("i64 result does not fit i32"))
}

/// True if the graph has I64 values whose overflow GPUs do not check: sums of products, scatter
/// updates, identities of scans and of empty reductions, and conversions of floats.
fn has_unchecked_sums(graph: &Graph) -> bool {
    graph.nodes().any(|(_, node)| {
        let is_wide = node.outputs.iter().any(|ty| ty.dtype == DType::I64);
        let from_floats = node.inputs.iter().any(|v| graph.ty(*v).dtype.is_float());
        let is_identity = match &node.op {
            Op::CumSum(o) => o.exclusive,
            Op::Reduce(o) => matches!(o.f, ReduceFn::Max | ReduceFn::Min),
            _ => false,
        };
        if is_wide && (from_floats || is_identity) {
            return true;
        }
        let kind = node.op.kind();
        is_wide
            && matches!(
                kind,
                OpKind::MatMul
                    | OpKind::DotGeneral
                    | OpKind::Conv
                    | OpKind::Pool
                    | OpKind::ScatterElements
                    | OpKind::ScatterNd
                    | OpKind::ScatterAdd
                    | OpKind::If
                    | OpKind::While
                    | OpKind::Scan
                    | OpKind::Custom
            )
    })
}

/// True for an I64 result outside the I32 range.
fn is_wide(want: &Tensor) -> bool {
    let beyond = |n: &i64| i32::try_from(*n).is_err();
    want.dtype() == DType::I64 && want.to_i64s().iter().any(beyond)
}

fn case_states(case: &CaseGraph) -> Vec<String> {
    let states = Signature::of(&case.graph).states;
    states.into_iter().map(|p| p.name).collect()
}

fn compare(got: &Tensor, want: &Tensor, class: Accuracy) -> Result<(), Failed> {
    if got.ty() != want.ty() {
        return Err(format!("found {}, expected {}", got.ty(), want.ty()).into());
    }
    match furthest(class, got, want) {
        Some(f) if f.units > 1.0 => Err(f.to_string().into()),
        Some(_) | None => Ok(()),
    }
}

/// Checks that the executor and the reference fail at the same operator for the same reason.
/// Numbers of nodes may differ, because rules decompose the graph of the executor.
fn same_fault(got: &RunError, want: &RunError) -> Result<(), Failed> {
    let cause = |e: &RunError| std::error::Error::source(e).map(one_line);
    let kind = std::mem::discriminant(got) == std::mem::discriminant(want);
    if kind && cause(got) == cause(want) {
        return Ok(());
    }
    Err(format!(
        "failed with `{}`, expected `{}`",
        one_line(got),
        one_line(want)
    )
    .into())
}

/// The least accurate class of the accuracy table among the operators of a graph and its subgraphs.
fn accuracy_of(graph: &Graph) -> Accuracy {
    let classes = graph.nodes().flat_map(|(_, n)| {
        let inside = n.op.subgraphs().into_iter();
        let inside = inside.map(|(_, block)| accuracy_of(block.graph()));
        inside.chain([n.op.kind().doc().accuracy])
    });
    classes.max().unwrap_or(Accuracy::Exact)
}

/// The sizes to test on one executable, growing and shrinking: those of the case, all symbols at
/// their bounds, all at one (if the inputs permit), and those of the case again.
fn size_sets(case: &CaseGraph) -> Vec<Bindings> {
    let own = case.sizes.clone();
    if own.iter().next().is_none() {
        return vec![own];
    }
    let ones = own
        .iter()
        .fold(Bindings::new(), |b, (s, _)| b.with(s.name(), 1));
    let inputs = Signature::of(&case.graph).inputs;
    let mut sets = vec![own.clone(), case.bounds.clone()];
    if inputs.iter().all(|port| port.ty.shape.eval(&ones).is_ok()) {
        sets.push(ones);
    }
    sets.push(own);
    sets
}

/// The inputs of the case for these sizes: its own data, repeated or truncated.
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

fn text(e: impl std::error::Error) -> Failed {
    one_line(&e).into()
}

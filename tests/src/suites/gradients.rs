//! Tests of gradients on every executor: the gradient graphs of each operator's cases, compared
//! with the reference.
//!
//! A test is named `gradients/softmax/odd_rows_7x33/f32/vulkan`; all but the first cases of an
//! operator have the suffix `/more`. The graph of a test returns the results, and the gradients of
//! all float inputs and parameters of the case for cotangents that are inputs.
//! `tercet-ir/src/grad/tests` shows that these graphs compute derivatives; here executors must
//! agree.

use libtest_mimic::Failed;
use tercet_cases::{CaseGraph, cases};
use tercet_ir::accuracy::Accuracy;
use tercet_ir::fill::InputFill;
use tercet_ir::{
    CompileOptions, DType, GradError, Graph, Node, NodeId, Op, OpKind, Tensor, Value, one_line,
};

use super::parity::check;
use crate::{SuiteTest, TestExecutor, executors};

/// Maximum size of a differentiated case. Larger cases test kernel shapes, which parity covers.
const MAX_ELEMENTS: usize = 1 << 16;

/// The dtypes of differentiated cases.
const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

/// Data above this magnitude is meant to overflow, and the overflow of a sum depends on its order.
const LARGEST: f64 = 1e3;

/// Cases (or whole operators) that are not tested because rounding dominates their gradients, with
/// the reason.
const EXCLUDED: &[(&str, &str)] = &[
    ("attention/bias_broadcast_keys", ZERO),
    ("attention/pinned_none", ZERO),
    ("attention/pinned_causal_last_query", ZERO),
    ("attention_grad/queries_of_large_scores", LARGE),
    ("attention_grad/keys_of_large_scores", LARGE),
    ("attention/softcap_before_the_mask", ZERO),
    ("attention/nan_bias_gives_nan", ZERO),
    // A normalized row of two numbers is always -1 and 1, so its gradient is zero.
    ("layer_norm/nan_stays_in_its_row", ZERO),
    ("attention/spread_within_rows", SPREAD),
    ("mat_mul/codes_one_row", ONE_SCALE),
    ("mat_mul/codes_few_rows", ONE_SCALE),
];
/// Reason for cases whose exact gradient is zero, for example that of a term which is equal for all
/// keys of a softmax.
const ZERO: &str = "an exactly zero gradient contains only rounding errors";

const LARGE: &str =
    "the rounding error of large scores exceeds the tolerance of second derivatives";

const SPREAD: &str = "scores of elements with different magnitudes cancel, and their rounding errors change the weights";

/// Reason for gradients that sum over many weights, for example that of a scale shared by all
/// weights.
const ONE_SCALE: &str = "the gradient is a sum over all weights with cancellation";

/// Cases that are not tested in F16 and BF16, with the reason.
const EXCLUDED_NARROW: &[(&str, &str)] = &[
    ("transformer_layer", CHAIN),
    ("dequant_mat_mul/f16_sum_and_norm", CHAIN),
    ("dequant_mat_mul/q4_k_norm_and_gate", CHAIN),
];

/// Cases that are not tested in F16, with the reason. The gradient of attention uses `delta = dy .
/// y` with a rounded `y`.
const EXCLUDED_F16: &[(&str, &str)] = &[
    ("attention_block/gptj_in_part_per_token", CHAIN),
    ("attention_block/symbolic_rows_rotated", ONE_KEY),
    ("attention/symbolic_prefill_and_decode", ONE_KEY),
];
const ONE_KEY: &str = "gradients of queries with one visible key contain only rounding errors";
const CHAIN: &str =
    "a long chain of rounded values, some of which an executor may keep in a wider type";

/// Name prefix of operators with a lower required accuracy. The gradients of these operators depend
/// on pixel coordinates, and have rounding errors of the magnitude of these coordinates.
const SEEN: &str = "gaussian_splat";

/// The number of F32 cases per operator that always run. The other cases have the suffix `/more`,
/// because they take minutes on a software driver.
const FIRST: usize = 2;

/// The tests of this suite.
pub(super) fn tests() -> Vec<SuiteTest> {
    let mut tests = Vec::new();
    for executor in executors() {
        for &kind in OpKind::ALL {
            for at in 0..cases(kind).len() {
                let dtypes = DTYPES.into_iter();
                tests.extend(dtypes.filter_map(|dtype| test(executor, kind, at, dtype)));
            }
        }
    }
    tests
}

/// The test of one case; `None` if it lacks that dtype or is excluded.
fn test(
    executor: &'static TestExecutor,
    kind: OpKind,
    at: usize,
    dtype: DType,
) -> Option<SuiteTest> {
    let (doc, case) = (kind.doc(), &cases(kind)[at]);
    let short = format!("{}/{}", doc.name, case.name);
    let is_in = |list: &[(&str, &str)]| {
        let mut names = list.iter();
        names.any(|(name, _)| [&*short, doc.name].contains(name))
    };
    let is_narrow = dtype != DType::F32;
    let runs = doc.dtypes.contains(&dtype) && case.runs_with(dtype);
    if !runs
        || is_in(EXCLUDED)
        || (is_narrow && is_in(EXCLUDED_NARROW))
        || (dtype == DType::F16 && is_in(EXCLUDED_F16))
    {
        return None;
    }
    let name = format!("gradients/{short}/{dtype}");
    let more = match at < FIRST && !is_narrow {
        true => "",
        false => "/more",
    };
    Some(SuiteTest::variant_on(executor, name, more, move |device| {
        let case = cases(kind)[at].build(dtype).map_err(|e| one_line(&e))?;
        let Some(case) = differentiated(case)? else {
            return Ok(());
        };
        let options = CompileOptions {
            bounds: case.bounds.clone(),
            ..CompileOptions::new()
        };
        let class = match doc.name.starts_with(SEEN) {
            true => Accuracy::Rendering,
            false => Accuracy::Contraction,
        };
        check(device.backend(), &case, &case.graph, &options, class)
    }))
}

/// The case with gradients as outputs, cotangents as inputs, and data that does not overflow.
/// `None` if the case has no gradient, is expected to fail, or is too large.
fn differentiated(case: CaseGraph) -> Result<Option<CaseGraph>, Failed> {
    let counts = case.graph.nodes().flat_map(|(_, node)| &node.outputs);
    let counts = counts.map(|ty| Some(ty.eval(&case.bounds).ok()?.numel()));
    let elements: Option<usize> = counts.sum();
    if case.expected_fault.is_some() || elements.is_none_or(|n| n > MAX_ELEMENTS) {
        return Ok(None);
    }
    let mut case = CaseGraph {
        expected: Vec::new(),
        ..case
    };
    let wanted: Vec<Value> = case.graph.nodes().filter_map(float_leaf).collect();
    let mut pairs: Vec<(Value, Value)> = Vec::new();
    for (at, value) in results(&case.graph).into_iter().enumerate() {
        let ty = case.graph.ty(value).clone();
        let name = format!("cotangent of result {at}");
        let cotangent = case.input_of(&name, ty, InputFill::Normal);
        pairs.push((value, cotangent.map_err(|e| one_line(&e))?));
    }
    let gradients = match case.graph.vjp(&pairs, &wanted) {
        Ok(gradients) => gradients,
        // The tests of the gradient builder check the reason.
        Err(GradError::Severed { .. }) => return Ok(None),
        Err(e) => return Err(one_line(&e).into()),
    };
    for (at, gradient) in gradients.into_iter().enumerate() {
        if let Some(gradient) = gradient {
            let name = format!("gradient {at}");
            case.graph
                .output(&name, gradient)
                .map_err(|e| one_line(&e))?;
        }
    }
    for (name, tensor) in &mut case.tensors {
        if tensor.dtype().is_float() && overflows(tensor) {
            *tensor = InputFill::Normal.tensor(name, tensor.ty().clone());
        }
    }
    Ok(Some(case))
}

fn overflows(tensor: &Tensor) -> bool {
    let values = tensor.to_f64s();
    values
        .iter()
        .any(|x| x.is_nan() || (x.is_finite() && x.abs() > LARGEST) || *x == f64::INFINITY)
}

fn float_leaf((node, n): (NodeId, &Node)) -> Option<Value> {
    let is_leaf = matches!(n.op, Op::Input(_) | Op::Param(_) | Op::State(_));
    let value = Value { node, port: 0 };
    (is_leaf && n.outputs[0].dtype.is_float()).then_some(value)
}

/// The distinct float values that the graph outputs.
fn results(graph: &Graph) -> Vec<Value> {
    let mut results: Vec<Value> = graph.results().collect();
    results.retain(|v| graph.ty(*v).dtype.is_float());
    results.sort_unstable();
    results.dedup();
    results
}

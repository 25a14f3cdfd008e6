//! The values that an optimized program writes to memory.
//!
//! Whether a program writes a value shows without knowledge of the executor: an additional output for
//! the value leaves the kernels of the program as they are.

use std::collections::BTreeMap;
#[cfg(feature = "cpu")]
use std::collections::BTreeSet;

#[cfg(feature = "cpu")]
use tercet_ir::NodeId;
use tercet_ir::{Backend, CompileError, CompileOptions, Graph, RetainValues, Value};

/// The kernels of a program, without copies, which outputs may need.
#[derive(PartialEq)]
struct ProgramKernels {
    /// The number of calls by operator and kernel.
    calls: BTreeMap<(&'static str, String), usize>,
    /// The number of results in memory. A fused kernel with an additional result is another kernel,
    /// even if it has the same name.
    written: usize,
}

fn kernels(
    graph: &Graph,
    backend: &dyn Backend,
    options: &CompileOptions,
) -> Result<ProgramKernels, CompileError> {
    let plan = backend.explain(graph, options)?;
    let kernels = plan.kernels.into_iter().filter(|k| k.kernel != "copy");
    Ok(ProgramKernels {
        calls: kernels.map(|k| ((k.op, k.kernel), k.calls)).collect(),
        written: plan.written,
    })
}

/// True if outputs for these values leave the kernels of the program as they are.
///
/// # Errors
/// The errors of [`Backend::explain`] for the graph itself.
pub(crate) fn keeps_kernels(
    graph: &Graph,
    backend: &dyn Backend,
    options: &CompileOptions,
    values: &[Value],
) -> Result<bool, CompileError> {
    let plain = kernels(graph, backend, options)?;
    Ok(has_kernels(graph, backend, options, values, &plain))
}

fn has_kernels(
    graph: &Graph,
    backend: &dyn Backend,
    options: &CompileOptions,
    values: &[Value],
    plain: &ProgramKernels,
) -> bool {
    let open = RetainValues::Values(values.to_vec()).add_outputs(graph);
    open.is_ok_and(|(open, _)| kernels(&open, backend, options).is_ok_and(|own| own == *plain))
}

/// The values that the optimized program writes to memory, in node order: its outputs, and all values
/// whose output leaves its kernels as they are.
///
/// # Errors
/// The errors of [`Backend::explain`].
pub(crate) fn materialized(
    graph: &Graph,
    backend: &dyn Backend,
    options: &CompileOptions,
) -> Result<Vec<Value>, CompileError> {
    let plain = kernels(graph, backend, options)?;
    let (_, all) = RetainValues::All.add_outputs(graph)?;
    let is_output = |value| graph.outputs().iter().any(|o| o.value == value);
    let all = all.into_iter().map(|kept| kept.value);
    let found = all.filter(|&value| {
        is_output(value) || has_kernels(graph, backend, options, &[value], &plain)
    });
    Ok(found.collect())
}

/// The nodes that a program fuses into the step that computes `value`: its node, and those before it
/// whose results are not in `materialized`. In node order.
#[cfg(feature = "cpu")]
pub(crate) fn fused_nodes(graph: &Graph, value: Value, materialized: &[Value]) -> Vec<NodeId> {
    let mut found = BTreeSet::from([value.node]);
    let mut open = vec![value.node];
    while let Some(node) = open.pop() {
        for input in &graph.node(node).inputs {
            let is_inside = !materialized.contains(input) && !graph.node(input.node).op.is_leaf();
            if is_inside && found.insert(input.node) {
                open.push(input.node);
            }
        }
    }
    found.into_iter().collect()
}

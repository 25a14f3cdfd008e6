//! Comparison of a device with the reference: every node, in units of the tolerance table.

use std::fmt;

use tercet_ir::accuracy::{Accuracy, WorstElement, furthest};
use tercet_ir::{Graph, NodeId, RetainValues, Tensor, Value};

use crate::Device;
use crate::bound_graph::{BoundGraph, EvaluateError};
use crate::optimized::fused_nodes;

/// Difference of one value from the reference.
///
/// ```
/// use tercet::{DType, Device, Graph, Tensor, Type, verify};
/// let mut g = Graph::new();
/// let x = g.input("x", Type::new(DType::F32, [2]))?;
/// let y = g.exp(x)?;
/// g.output("y", y)?;
/// let x = Tensor::from_slice(&[2], &[0f32, 1.0])?;
/// let verification = verify(&g, &[("x", &x)], &Device::cpu())?;
/// let worst = verification.worst().unwrap();
/// assert!(worst.value == y && worst.error_in_tolerances <= 1.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct NodeDivergence {
    /// The compared value.
    pub value: Value,
    /// Operator name of the value's node.
    pub op: &'static str,
    /// Maximum difference, in tolerances of the accuracy class and dtype. Values up to 1 are
    /// correct.
    pub error_in_tolerances: f64,
    /// Position of the element with the maximum difference, in row-major order.
    pub element: usize,
    /// Result of the device at this element.
    pub actual: f64,
    /// Result of the reference at this element.
    pub expected: f64,
    /// The nodes that the optimized program fuses into the step of this value, with the names of
    /// their operators; empty for [`verify`].
    pub fused: Vec<(NodeId, &'static str)>,
}

/// Prints `%7 (tanh)`, and the nodes of a fused step: `%7 (tanh), fused from %5 (mat_mul), %6 (add)`.
impl fmt::Display for NodeDivergence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.value, self.op)?;
        let others = self.fused.iter().filter(|(id, _)| *id != self.value.node);
        for (at, (id, op)) in others.enumerate() {
            let separator = if at == 0 { ", fused from" } else { "," };
            write!(f, "{separator} {id} ({op})")?;
        }
        Ok(())
    }
}

/// Result of a verification.
///
/// ```
/// use tercet::{DType, Device, Graph, Tensor, Type, verify};
/// let mut g = Graph::new();
/// let x = g.input("x", Type::new(DType::F32, [2]))?;
/// let y = g.exp(x)?;
/// g.output("y", y)?;
/// let x = Tensor::from_slice(&[2], &[0f32, 1.0])?;
/// let verification = verify(&g, &[("x", &x)], &Device::cpu())?;
/// assert_eq!(verification.first_divergence(), None);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Verification {
    /// Name of the executor.
    pub device: &'static str,
    /// All compared values, in order of execution.
    pub nodes: Vec<NodeDivergence>,
}

impl Verification {
    /// The first value that differs by more than its tolerance. Later differences may only follow
    /// from it.
    pub fn first_divergence(&self) -> Option<&NodeDivergence> {
        self.nodes.iter().find(|n| n.error_in_tolerances > 1.0)
    }

    /// The value with the largest error.
    pub fn worst(&self) -> Option<&NodeDivergence> {
        self.nodes
            .iter()
            .max_by(|a, b| a.error_in_tolerances.total_cmp(&b.error_in_tolerances))
    }
}

impl fmt::Display for Verification {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for n in &self.nodes {
            let mark = if n.error_in_tolerances > 1.0 {
                "  <-- error"
            } else {
                ""
            };
            writeln!(
                f,
                "{:>8} {:<24} {:>10.3}{mark}",
                n.value.to_string(),
                n.op,
                n.error_in_tolerances
            )?;
        }
        match self.first_divergence() {
            None => write!(f, "{} agrees with the reference", self.device),
            Some(n) => write!(
                f,
                "{} differs from the reference at {n}: element {} is {:e}, expected {:e}, {:.1} times \
                 the tolerance",
                self.device, n.element, n.actual, n.expected, n.error_in_tolerances
            ),
        }
    }
}

/// Runs a graph on a device and on the reference, and compares every value.
///
/// `tensors` contains inputs, parameters and nonzero states by name. The graph is compiled without
/// passes and with every value as an output, so nodes keep their numbers. The accuracy class of a
/// value is the loosest one among the nodes it depends on, because rounding errors accumulate.
///
/// # Errors
/// [`EvaluateError`] if a tensor is missing, or if a device cannot compile or run the graph.
pub fn verify(
    graph: &Graph,
    tensors: &[(&str, &Tensor)],
    device: &Device,
) -> Result<Verification, EvaluateError> {
    let run = BoundGraph::new(graph, tensors)?;
    let (_, kept) = RetainValues::All
        .add_outputs(graph)
        .map_err(EvaluateError::Graph)?;
    let values: Vec<Value> = kept.into_iter().map(|k| k.value).collect();
    let reference = tercet_cpu::ReferenceBackend::new();
    let got = run.values(device.backend(), &values)?;
    let want = run.values(&reference, &values)?;
    let classes = classes(graph);
    let nodes = values
        .iter()
        .zip(got.iter().zip(&want))
        .map(|(v, (got, want))| {
            let class = classes[v.node.index()];
            compare(graph, *v, class, got, want)
        });
    Ok(Verification {
        device: device.name(),
        nodes: nodes.collect(),
    })
}

/// Compares the values that the optimized program of a graph writes to memory: all passes run and
/// kernels are fused as in a normal run. Each value names the nodes of its fused step.
///
/// `tensors` are those of [`verify`].
///
/// # Errors
/// Those of [`verify`].
///
/// ```
/// use tercet::{DType, Device, Graph, NodeId, Tensor, Type, verify_optimized};
/// let mut g = Graph::new();
/// let x = g.input("x", Type::new(DType::F32, [2]))?;
/// let e = g.exp(x)?;
/// let y = g.tanh(e)?;
/// g.output("y", y)?;
/// let x = Tensor::from_slice(&[2], &[0f32, 1.0])?;
/// let verification = verify_optimized(&g, &[("x", &x)], &Device::cpu())?;
/// assert_eq!(verification.nodes[0].fused, [(NodeId(1), "unary"), (NodeId(2), "unary")]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn verify_optimized(
    graph: &Graph,
    tensors: &[(&str, &Tensor)],
    device: &Device,
) -> Result<Verification, EvaluateError> {
    let run = BoundGraph::new(graph, tensors)?;
    let values = run.materialized(device.backend())?;
    let got = run.optimized_values(device.backend(), &values)?;
    let want = run.values(&tercet_cpu::ReferenceBackend::new(), &values)?;
    let classes = classes(graph);
    let named = |id: NodeId| (id, graph.node(id).op.kind().doc().name);
    let nodes = values.iter().zip(got.iter().zip(&want));
    let nodes = nodes.map(|(&value, (got, want))| {
        let fused = fused_nodes(graph, value, &values).into_iter();
        NodeDivergence {
            fused: fused.map(named).collect(),
            ..compare(graph, value, classes[value.node.index()], got, want)
        }
    });
    Ok(Verification {
        device: device.name(),
        nodes: nodes.collect(),
    })
}

/// For each node, the loosest accuracy class of itself and all its dependencies.
fn classes(graph: &Graph) -> Vec<Accuracy> {
    let mut classes: Vec<Accuracy> = Vec::with_capacity(graph.len());
    for (_, node) in graph.nodes() {
        let own = node.op.kind().doc().accuracy;
        let before = node.inputs.iter().map(|v| classes[v.node.index()]);
        classes.push(before.fold(own, Accuracy::max));
    }
    classes
}

fn compare(
    graph: &Graph,
    value: Value,
    class: Accuracy,
    got: &Tensor,
    want: &Tensor,
) -> NodeDivergence {
    let WorstElement {
        element,
        got,
        expected: want,
        units,
    } = furthest(class, got, want).unwrap_or(WorstElement {
        element: 0,
        got: 0.0,
        expected: 0.0,
        units: 0.0,
    });
    NodeDivergence {
        value,
        op: graph.node(value.node).op.kind().doc().name,
        error_in_tolerances: units,
        element,
        actual: got,
        expected: want,
        fused: Vec::new(),
    }
}

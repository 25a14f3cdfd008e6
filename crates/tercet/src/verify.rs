//! Where a device leaves the reference: every node compared, in the units of the tolerance table.

use std::fmt;

use tercet_ir::accuracy::{Accuracy, Furthest, furthest};
use tercet_ir::{
    Backend, Bindings, CompileError, CompileOptions, Graph, Op, OpError, RunError, Signature,
    Tensor, Value,
};

use crate::Device;

/// Why a verification could not be made.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    /// A tensor of a leaf is missing.
    #[error("`{name}` was not given; verification needs every input and parameter")]
    Missing {
        /// The leaf.
        name: String,
    },
    /// The graph with every value as a result could not be built.
    #[error("cannot look into the graph")]
    Graph(#[from] OpError),
    /// One of the two could not be compiled.
    #[error("{device} cannot compile the graph")]
    Compile {
        /// The executor.
        device: &'static str,
        /// Why.
        #[source]
        source: CompileError,
    },
    /// One of the two failed where the other did not.
    #[error("{device} fails on these inputs")]
    Run {
        /// The executor.
        device: &'static str,
        /// Why.
        #[source]
        source: RunError,
    },
}

/// How far one value is from the reference.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeError {
    /// The value.
    pub value: Value,
    /// Its operator.
    pub op: &'static str,
    /// The largest difference in tolerances of its accuracy class and dtype: at most 1 is right.
    pub units: f64,
    /// The element, by its place in row-major order.
    pub element: usize,
    /// What the device computed there.
    pub got: f64,
    /// What the reference computed there.
    pub want: f64,
}

/// The outcome of a verification.
#[derive(Clone, Debug, PartialEq)]
pub struct Verification {
    /// The executor.
    pub device: &'static str,
    /// Every value that was compared, in order of execution.
    pub nodes: Vec<NodeError>,
}

impl Verification {
    /// The first value that is off by more than its tolerance; later ones may only follow from it.
    pub fn first_divergence(&self) -> Option<&NodeError> {
        self.nodes.iter().find(|n| n.units > 1.0)
    }

    /// The value that is furthest off.
    pub fn worst(&self) -> Option<&NodeError> {
        self.nodes.iter().max_by(|a, b| a.units.total_cmp(&b.units))
    }
}

impl fmt::Display for Verification {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for n in &self.nodes {
            let mark = if n.units > 1.0 { "  <-- off" } else { "" };
            writeln!(
                f,
                "{:>8} {:<24} {:>10.3}{mark}",
                n.value.to_string(),
                n.op,
                n.units
            )?;
        }
        match self.first_divergence() {
            None => write!(f, "{} agrees with the reference", self.device),
            Some(n) => write!(
                f,
                "{} leaves the reference at {} ({}): element {} is {:e} instead of {:e}, {:.1} \
                 tolerances off",
                self.device, n.value, n.op, n.element, n.got, n.want, n.units
            ),
        }
    }
}

/// Runs a graph on a device and on the reference and compares every value.
///
/// `tensors` holds inputs, parameters and, where they should not be zeros, states by name. The graph
/// is compiled without passes and with every value as a result, so that nodes keep their numbers.
/// The accuracy class of a value is the loosest on its way: rounding adds up.
///
/// # Errors
/// [`VerifyError`].
pub fn verify(
    graph: &Graph,
    tensors: &[(&str, &Tensor)],
    device: &Device,
) -> Result<Verification, VerifyError> {
    let (open, values) = opened(graph)?;
    let signature = Signature::of(&open);
    let inputs: Result<Vec<(&str, &Tensor)>, VerifyError> = (signature.inputs.iter())
        .map(|port| find(tensors, &port.name))
        .collect();
    let inputs = inputs?;
    let mut sizes = Bindings::new();
    let failed = |device| move |source| VerifyError::Run { device, source };
    (signature.bind(&inputs, &Bindings::new(), &mut sizes)).map_err(failed("reference"))?;
    let options = CompileOptions {
        bounds: sizes,
        without_passes: tercet_ir::passes::PIPELINE
            .iter()
            .map(|p| p.name.to_string())
            .collect(),
    };
    let reference = tercet_cpu::ReferenceBackend::new();
    let got = results(device.backend(), &open, &options, tensors, &inputs)?;
    let want = results(&reference, &open, &options, tensors, &inputs)?;
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

fn find<'a>(
    tensors: &[(&'a str, &'a Tensor)],
    name: &str,
) -> Result<(&'a str, &'a Tensor), VerifyError> {
    let found = tensors.iter().find(|(n, _)| *n == name).copied();
    found.ok_or_else(|| VerifyError::Missing {
        name: name.to_string(),
    })
}

/// The graph with every computed value as a result, and those values.
fn opened(graph: &Graph) -> Result<(Graph, Vec<Value>), VerifyError> {
    let mut open = Graph::new();
    let mut values = Vec::new();
    for (node, n) in graph.nodes() {
        open.add(n.op.clone(), &n.inputs)?;
        let leaf = matches!(
            n.op,
            Op::Input(_) | Op::Param(_) | Op::Const(_) | Op::State(_)
        );
        let ports = 0..n.outputs.len() as u8;
        values.extend(ports.filter(|_| !leaf).map(|port| Value { node, port }));
    }
    for v in &values {
        open.output(&v.to_string(), *v)?;
    }
    for a in graph.assigns() {
        open.assign(a.state, a.value)?;
    }
    Ok((open, values))
}

fn results(
    backend: &dyn Backend,
    graph: &Graph,
    options: &CompileOptions,
    tensors: &[(&str, &Tensor)],
    inputs: &[(&str, &Tensor)],
) -> Result<Vec<Tensor>, VerifyError> {
    let device = backend.name();
    let mut exe = (backend.compile(graph, options))
        .map_err(|source| VerifyError::Compile { device, source })?;
    let failed = |source| VerifyError::Run { device, source };
    for port in exe.signature().params.clone() {
        let (name, tensor) = find(tensors, &port.name)?;
        exe.set_param(name, tensor.clone()).map_err(failed)?;
    }
    for port in exe.signature().states.clone() {
        if let Ok((name, tensor)) = find(tensors, &port.name) {
            exe.write_state(name, tensor).map_err(failed)?;
        }
    }
    exe.run(inputs).map_err(failed)
}

/// For each node the loosest accuracy class among it and all it depends on.
fn classes(graph: &Graph) -> Vec<Accuracy> {
    let mut classes: Vec<Accuracy> = Vec::with_capacity(graph.len());
    for (_, node) in graph.nodes() {
        let own = node.op.kind().doc().accuracy;
        let before = node.inputs.iter().map(|v| classes[v.node.index()]);
        classes.push(before.fold(own, Accuracy::max));
    }
    classes
}

fn compare(graph: &Graph, value: Value, class: Accuracy, got: &Tensor, want: &Tensor) -> NodeError {
    let Furthest {
        element,
        got,
        want,
        units,
    } = furthest(class, got, want).unwrap_or(Furthest {
        element: 0,
        got: 0.0,
        want: 0.0,
        units: 0.0,
    });
    NodeError {
        value,
        op: graph.node(value.node).op.kind().doc().name,
        units,
        element,
        got,
        want,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tercet_ir::{DType, NodeId, Type};

    #[test]
    fn agreement_is_reported_node_by_node() {
        let mut g = Graph::new();
        let x = g.input("x", Type::new(DType::F32, [2, 3])).unwrap();
        let e = g.exp(x).unwrap();
        let y = g.softmax(e, 1).unwrap();
        g.output("y", y).unwrap();
        let x = Tensor::from_slice(&[2, 3], &[0f32, 1.0, 2.0, 3.0, -4.0, 5.0]).unwrap();
        let v = verify(&g, &[("x", &x)], &Device::cpu()).unwrap();
        assert_eq!(v.nodes.len(), 2);
        assert_eq!(v.nodes[0].value.node, NodeId(1));
        assert_eq!(v.first_divergence(), None);
        assert!(v.to_string().ends_with("cpu agrees with the reference"));
    }

    #[test]
    fn missing_tensors_are_named() {
        let mut g = Graph::new();
        let x = g.input("x", Type::new(DType::F32, [1])).unwrap();
        g.output("x", x).unwrap();
        let e = verify(&g, &[], &Device::cpu()).unwrap_err();
        assert!(e.to_string().contains("`x`"));
    }
}

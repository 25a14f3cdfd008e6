//! Where a device leaves the reference: every node compared, in the units of the tolerance table.

use std::fmt;

use tercet_ir::accuracy::{Accuracy, Furthest, furthest};
use tercet_ir::{Graph, Keep, Tensor, Value};

use crate::Device;
use crate::once::{Once, VerifyError};

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
    let run = Once::new(graph, tensors)?;
    let (_, kept) = Keep::All.of(graph).map_err(VerifyError::Graph)?;
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

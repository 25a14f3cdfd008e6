//! Adds the legalized decomposition of one node to a graph.

use crate::backend::{Support, Target};
use crate::error::one_line;
use crate::graph::{Graph, Node, Value};
use crate::legalize::legalize;
use crate::ops::{Op, OpKind};

use super::NoGradient;

/// A target that supports every operator except one.
struct TargetWithoutOp(OpKind);

impl Target for TargetWithoutOp {
    fn name(&self) -> &'static str {
        "differentiation"
    }

    fn supports(&self, _: &Graph, node: &Node) -> Support {
        match node.op.kind() == self.0 {
            true => Support::Missing {
                reason: "the operator is differentiated through its decomposition".to_string(),
            },
            false => Support::Native,
        }
    }
}

/// Appends the decomposition of an operator with these operands and returns its results.
pub(super) fn decompose(
    graph: &mut Graph,
    op: &Op,
    operands: &[Value],
) -> Result<Vec<Value>, NoGradient> {
    let mut alone = Graph::new();
    let mut inputs = Vec::with_capacity(operands.len());
    for (i, v) in operands.iter().enumerate() {
        inputs.push(alone.input(&i.to_string(), graph.ty(*v).clone())?);
    }
    let y = alone.add(op.clone(), &inputs)?;
    for port in 0..alone.node(y.node).outputs.len() as u8 {
        alone.output(&port.to_string(), y.port(port))?;
    }
    let parts = legalize(&alone, &TargetWithoutOp(op.kind())).map_err(|e| {
        let reason = one_line(&e).replace('\n', "");
        NoGradient::because(format!("no decomposition for these types: {reason}"))
    })?;
    inline(graph, &parts, operands).map_err(NoGradient::from)
}

/// Appends the nodes of a graph, with its inputs replaced by values, and returns its outputs.
pub(super) fn inline(
    graph: &mut Graph,
    block: &Graph,
    arguments: &[Value],
) -> Result<Vec<Value>, crate::OpError> {
    let mut arguments = arguments.iter();
    let mut map: Vec<Value> = Vec::with_capacity(block.len());
    for (_, node) in block.nodes() {
        let argument = match &node.op {
            Op::Input(_) => arguments.next().copied(),
            _ => None,
        };
        let value = match argument {
            Some(value) => value,
            None => {
                let inputs: Vec<Value> = node.inputs.iter().map(|v| placed(&map, *v)).collect();
                graph.add(node.op.clone(), &inputs)?
            }
        };
        map.push(value);
    }
    let outputs = block.outputs().iter();
    Ok(outputs.map(|o| placed(&map, o.value)).collect())
}

/// Maps a value of the inlined graph to the value that replaces it. An input's replacement may be
/// any port of a node, although an input has only one.
fn placed(map: &[Value], v: Value) -> Value {
    let first = map[v.node.index()];
    match v.port {
        0 => first,
        port => first.port(port),
    }
}

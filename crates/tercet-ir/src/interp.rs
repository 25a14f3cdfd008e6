//! The reference interpreter: evaluates a graph node by node through each operator's `eval`.

use std::collections::BTreeMap;

use tercet_tensor::{Bindings, DType, Tensor, TensorError, TensorType, checked_bytes};

use crate::backend::{Port, Signature};
use crate::error::RunError;
use crate::graph::{Graph, NodeId, Value};
use crate::op::EvalCtx;
use crate::ops::Op;

/// The values of one evaluation.
///
/// ```
/// use std::collections::BTreeMap;
/// use tercet_ir::{EvalCtx, Evaluation, Graph, Tensor, evaluate};
/// let mut g = Graph::new();
/// let x = g.constant(Tensor::from_slice(&[2], &[-1f32, 2.0])?)?;
/// let y = g.abs(x)?;
/// let done: Evaluation = evaluate(&g, &EvalCtx::default(), &BTreeMap::new())?;
/// assert_eq!(done.get(y).as_slice::<f32>()?, [1.0, 2.0]);
/// assert_eq!(done.values.len(), g.len());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Evaluation {
    /// The results of every node, by node and port.
    pub values: Vec<Vec<Tensor>>,
}

impl Evaluation {
    /// The tensor of a value.
    pub fn get(&self, v: Value) -> &Tensor {
        &self.values[v.node.index()][v.port as usize]
    }
}

/// Evaluates every node. `leaves` holds inputs, parameters and states by name; missing states are
/// zeros.
///
/// # Errors
/// [`RunError`] that names the missing leaf, the symbol or the node.
pub fn evaluate(
    graph: &Graph,
    ctx: &EvalCtx,
    leaves: &BTreeMap<String, Tensor>,
) -> Result<Evaluation, RunError> {
    let signature = Signature::of(graph);
    let inputs: Vec<(&str, &Tensor)> = signature
        .inputs
        .iter()
        .filter_map(|p| leaves.get(&p.name).map(|t| (p.name.as_str(), t)))
        .collect();
    let mut sizes = Bindings::new();
    signature.bind(&inputs, &Bindings::new(), &mut sizes)?;
    let mut done = Evaluation::default();
    for (id, node) in graph.nodes() {
        let results: Result<Vec<TensorType>, _> =
            node.outputs.iter().map(|ty| ty.eval(&sizes)).collect();
        let results = results?;
        let leaf = |what, name: &String| {
            let port = Port {
                name: name.clone(),
                ty: node.outputs[0].clone(),
            };
            match leaves.get(name) {
                Some(t) if what == "input" => Ok(t.clone()),
                Some(t) => port.check(what, t).map(|()| t.clone()),
                None if what == "state" => {
                    Tensor::zeros(results[0].clone()).map_err(|e| fail(graph, id, e.into()))
                }
                None => Err(RunError::Missing {
                    what,
                    name: name.clone(),
                    ty: port.ty,
                }),
            }
        };
        let values = match &node.op {
            Op::Input(o) => vec![leaf("input", &o.name)?],
            Op::Param(o) => vec![leaf("param", &o.name)?],
            Op::State(o) => vec![leaf("state", &o.name)?],
            op => {
                let operands: Vec<&Tensor> = node.inputs.iter().map(|v| done.get(*v)).collect();
                op.eval(ctx, &operands, &results)
                    .map_err(|e| fail(graph, id, e))?
            }
        };
        debug_assert!(
            values.iter().map(Tensor::ty).eq(&results),
            "{id} {:?}",
            node.op
        );
        done.values.push(values);
    }
    Ok(done)
}

/// Minimum memory of the reference interpreter per element: most operators compute with 16-byte
/// numbers.
const EVAL_BYTES: usize = 16;
/// Allocations up to this size are assumed to succeed.
const ALWAYS_THERE_BYTES: usize = 64 << 20;

/// Checks that memory suffices before an evaluation begins: allocates about as much memory as it
/// needs, and frees it.
///
/// # Errors
/// [`TensorError`] for the largest of operands and results.
pub(crate) fn check_room(operands: &[&Tensor], results: &[TensorType]) -> Result<(), TensorError> {
    let types = || operands.iter().map(|t| t.ty()).chain(results);
    let mut count = 0usize;
    for ty in results {
        checked_bytes(ty)?;
        count = count.saturating_add(ty.numel());
    }
    let read = operands.iter().map(|t| t.numel()).max().unwrap_or(0);
    let bytes = count.saturating_add(read).saturating_mul(EVAL_BYTES);
    if bytes <= ALWAYS_THERE_BYTES || Vec::<u8>::new().try_reserve_exact(bytes).is_ok() {
        return Ok(());
    }
    let largest = types().max_by_key(|ty| ty.numel());
    Err(TensorError::OutOfMemory {
        ty: largest.cloned().unwrap_or(TensorType::new(DType::U8, &[])),
        bytes: bytes as u64,
    })
}

fn fail(graph: &Graph, node: NodeId, source: crate::EvalError) -> RunError {
    RunError::Node {
        node,
        op: graph.node(node).op.kind().doc().name,
        source,
    }
}

//! From the graph that a builder made, in F32 with all weights as parameters, to the graph of a training step: its
//! arithmetic in another dtype, and trained weights as F32 states.

use tercet::ops::{Op, State};
use tercet::{DType, Graph, NodeId, Tensor, Type, Value};

use super::super::tuned::{Mode, Tuned};
use super::super::{Builder, ModelError};

/// A graph with states, before its loss.
pub(super) struct Forward {
    pub(super) graph: Graph,
    /// The values that were asked for.
    pub(super) heads: Vec<Value>,
    pub(super) params: Vec<(String, Tensor)>,
    pub(super) trainables: Vec<(String, Tensor)>,
    pub(super) tuned: super::Tuned,
}

/// The graph of a builder with these values as its results, computed in the builder's dtype. The results keep their
/// types.
pub(super) fn with_states(mut b: Builder<'_>, heads: &[Value]) -> Result<Forward, ModelError> {
    b.check_tuned()?;
    let ids: Vec<Value> = b.tuned.late.iter().map(|late| late.ids).collect();
    for (i, value) in heads.iter().chain(&ids).enumerate() {
        b.graph.output(&format!("{i}"), *value)?;
    }
    let narrow = match b.dtype {
        DType::F32 => b.graph,
        dtype => tercet::passes::convert_precision(&b.graph, dtype)?,
    };
    let values: Vec<Value> = narrow.outputs().iter().map(|o| o.value).collect();
    let (of_heads, of_ids) = values.split_at(heads.len());
    let (params, trainables): (Vec<_>, Vec<_>) = b
        .params
        .into_iter()
        .partition(|(name, _)| !b.tuned.trained.contains(name));
    let (graph, places) = rebuilt(&narrow, &b.tuned, of_ids, &trainables)?;
    let heads = of_heads.iter().map(|v| placed(&places, *v)).collect();
    let tuned = match b.mode {
        Mode::Frozen | Mode::Adapted(_) | Mode::Full => super::Tuned::Full,
        Mode::Lora(options) => super::Tuned::Lora {
            sites: b.tuned.sites,
            alpha: options.alpha,
        },
    };
    Ok(Forward {
        graph,
        heads,
        params,
        trainables,
        tuned,
    })
}

fn placed(places: &[NodeId], v: Value) -> Value {
    Value {
        node: places[v.node.index()],
        ..v
    }
}

/// The graph with trained parameters as states, and rows of tables read where an input stands for them.
fn rebuilt(
    graph: &Graph,
    tuned: &Tuned,
    ids: &[Value],
    trainables: &[(String, Tensor)],
) -> Result<(Graph, Vec<NodeId>), ModelError> {
    let mut new = Graph::new();
    let mut places: Vec<NodeId> = Vec::with_capacity(graph.len());
    for (_, node) in graph.nodes() {
        let value = match &node.op {
            Op::Param(p) if tuned.trained.contains(&p.name) => state(&mut new, &p.name, &p.ty)?,
            Op::Input(input) => match tuned.late.iter().position(|l| l.input == input.name) {
                Some(at) => {
                    let name = &tuned.late[at].table;
                    let table = trainables.iter().find(|(n, _)| n == name);
                    let (_, tensor) = table.ok_or_else(|| ModelError::MissingWeight {
                        tensor: name.clone(),
                    })?;
                    let table = state(&mut new, name, &Type::from(tensor.ty()))?;
                    new.gather(table, placed(&places, ids[at]), 0)?
                }
                None => new.add(node.op.clone(), &[])?,
            },
            op => {
                let inputs: Vec<Value> = node.inputs.iter().map(|v| placed(&places, *v)).collect();
                new.add(op.clone(), &inputs)?
            }
        };
        places.push(value.node);
    }
    Ok((new, places))
}

/// The state of this name, made once.
fn state(graph: &mut Graph, name: &str, ty: &Type) -> Result<Value, ModelError> {
    if let Some(node) = graph.leaf(name) {
        debug_assert!(matches!(graph.node(node).op, Op::State(_)));
        return Ok(Value { node, port: 0 });
    }
    let (name, ty) = (name.to_string(), ty.clone());
    Ok(graph.add(State { name, ty }, &[])?)
}

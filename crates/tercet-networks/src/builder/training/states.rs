//! Conversion of a builder's graph to a training graph. The builder's graph is F32 with all weights
//! as parameters. The training graph may use another arithmetic dtype and has its trained weights
//! as F32 states.

use tercet::ops::{Op, State};
use tercet::{DType, Graph, NodeId, Tensor, Type, Value};

use super::super::trainable::{TrainableSet, WeightUse};
use super::super::{ModelBuilder, ModelError};

/// A graph whose trained weights are states.
pub(super) struct StatefulGraph {
    pub(super) graph: Graph,
    pub(super) params: Vec<(String, Tensor)>,
    pub(super) trainables: Vec<(String, Tensor)>,
    pub(super) tuned: super::TrainedStateKind,
}

/// Callback that builds the F32 head of a result, such as its loss, immediately after the result.
/// Backward therefore finishes one result and its head before it starts the previous one.
pub(super) type HeadBuilder<'a> = dyn FnMut(&mut Graph, Value) -> Result<(), ModelError> + 'a;

/// Converts a builder's graph to the builder's dtype and calls `of_head` for each of the values
/// `heads`.
pub(super) fn with_states(
    mut b: ModelBuilder<'_>,
    heads: &[Value],
    of_head: &mut HeadBuilder<'_>,
) -> Result<StatefulGraph, ModelError> {
    b.check_tuned()?;
    let ids: Vec<Value> = b
        .tuned
        .deferred_lookups
        .iter()
        .map(|late| late.ids)
        .collect();
    for (i, value) in heads.iter().chain(&ids).enumerate() {
        b.graph.output(&format!("{i}"), *value)?;
    }
    let narrow = match b.dtype {
        DType::F32 => b.graph,
        dtype => tercet::passes::convert_precision(&b.graph, dtype)?,
    };
    let values: Vec<Value> = narrow.outputs().iter().map(|o| o.value).collect();
    let (of_heads, of_ids) = values.split_at(heads.len());
    let of_heads: Vec<Value> = of_heads.iter().map(|v| before_cast(&narrow, *v)).collect();
    let (params, trainables): (Vec<_>, Vec<_>) = b
        .params
        .into_iter()
        .partition(|(name, _)| !b.tuned.trained.contains(name));
    let old = SourceGraph {
        graph: &narrow,
        tuned: &b.tuned,
        ids: of_ids,
        heads: &of_heads,
        trainables: &trainables,
    };
    let graph = old.rebuilt(of_head)?;
    let tuned = match b.mode {
        WeightUse::Frozen | WeightUse::Adapted(_) | WeightUse::MultiLora(_) | WeightUse::Full => {
            super::TrainedStateKind::Full
        }
        WeightUse::Lora(options) => super::TrainedStateKind::Lora {
            sites: b.tuned.sites,
            alpha: options.alpha,
        },
    };
    Ok(StatefulGraph {
        graph,
        params,
        trainables,
        tuned,
    })
}

/// A result before the cast at the end of the graph.
fn before_cast(graph: &Graph, v: Value) -> Value {
    let node = graph.node(v.node);
    match node.op {
        Op::Cast(_) => node.inputs[0],
        _ => v,
    }
}

fn placed(places: &[NodeId], v: Value) -> Value {
    Value {
        node: places[v.node.index()],
        ..v
    }
}

/// The source graph, in the arithmetic dtype.
struct SourceGraph<'a> {
    graph: &'a Graph,
    tuned: &'a TrainableSet,
    /// Token ids of each deferred embedding lookup.
    ids: &'a [Value],
    heads: &'a [Value],
    trainables: &'a [(String, Tensor)],
}

impl SourceGraph<'_> {
    /// Rebuilds the graph: trained parameters become states, deferred lookups are inserted for
    /// their input placeholders, and heads are added to the results.
    fn rebuilt(&self, of_head: &mut HeadBuilder<'_>) -> Result<Graph, ModelError> {
        let mut new = Graph::new();
        let mut places: Vec<NodeId> = Vec::with_capacity(self.graph.len());
        for (id, node) in self.graph.nodes() {
            let value = match &node.op {
                Op::Param(p) if self.tuned.trained.contains(&p.name) => {
                    state(&mut new, &p.name, &p.ty)?
                }
                Op::Input(input) => {
                    let late = self
                        .tuned
                        .deferred_lookups
                        .iter()
                        .position(|l| l.input == input.name);
                    match late {
                        Some(at) => self.rows_of_table(&mut new, &places, at)?,
                        None => new.add(node.op.clone(), &[])?,
                    }
                }
                op => {
                    let inputs = node.inputs.iter();
                    let inputs: Vec<Value> = inputs.map(|v| placed(&places, *v)).collect();
                    new.add(op.clone(), &inputs)?
                }
            };
            places.push(value.node);
            for head in self.heads.iter().filter(|head| head.node == id) {
                let head = placed(&places, *head);
                let wide = match new.ty(head).dtype {
                    DType::F32 => head,
                    _ => new.cast(head, DType::F32)?,
                };
                of_head(&mut new, wide)?;
            }
        }
        Ok(new)
    }

    fn rows_of_table(
        &self,
        new: &mut Graph,
        places: &[NodeId],
        at: usize,
    ) -> Result<Value, ModelError> {
        let name = &self.tuned.deferred_lookups[at].table;
        let table = self.trainables.iter().find(|(n, _)| n == name);
        let (_, tensor) = table.ok_or_else(|| ModelError::MissingWeight {
            tensor: name.clone(),
        })?;
        let table = state(new, name, &Type::from(tensor.ty()))?;
        Ok(new.gather(table, placed(places, self.ids[at]), 0)?)
    }
}

/// State of this name; repeated calls return the same state.
fn state(graph: &mut Graph, name: &str, ty: &Type) -> Result<Value, ModelError> {
    if let Some(node) = graph.leaf(name) {
        debug_assert!(matches!(graph.node(node).op, Op::State(_)));
        return Ok(Value { node, port: 0 });
    }
    let (name, ty) = (name.to_string(), ty.clone());
    Ok(graph.add(State { name, ty }, &[])?)
}

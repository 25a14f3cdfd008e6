//! From the graph that a builder made, in F32 with all weights as parameters, to the graph of a training step: its
//! arithmetic in another dtype, and trained weights as F32 states.

use tercet::ops::{Op, State};
use tercet::{DType, Graph, NodeId, Tensor, Type, Value};

use super::super::tuned::{Mode, Tuned};
use super::super::{Builder, ModelError};

/// A graph with states.
pub(super) struct Forward {
    pub(super) graph: Graph,
    pub(super) params: Vec<(String, Tensor)>,
    pub(super) trainables: Vec<(String, Tensor)>,
    pub(super) tuned: super::Tuned,
}

/// What is built of a result, in F32, as soon as it is there: so that gradients are through with one result and what was
/// built of it before they come to the one before.
pub(super) type OfHead<'a> = dyn FnMut(&mut Graph, Value) -> Result<(), ModelError> + 'a;

/// The graph of a builder, computed in the builder's dtype, with what `of_head` builds of each of these values.
pub(super) fn with_states(
    mut b: Builder<'_>,
    heads: &[Value],
    of_head: &mut OfHead<'_>,
) -> Result<Forward, ModelError> {
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
    let of_heads: Vec<Value> = of_heads.iter().map(|v| before_cast(&narrow, *v)).collect();
    let (params, trainables): (Vec<_>, Vec<_>) = b
        .params
        .into_iter()
        .partition(|(name, _)| !b.tuned.trained.contains(name));
    let old = Old {
        graph: &narrow,
        tuned: &b.tuned,
        ids: of_ids,
        heads: &of_heads,
        trainables: &trainables,
    };
    let graph = old.rebuilt(of_head)?;
    let tuned = match b.mode {
        Mode::Frozen | Mode::Adapted(_) | Mode::Chosen(_) | Mode::Full => super::Tuned::Full,
        Mode::Lora(options) => super::Tuned::Lora {
            sites: b.tuned.sites,
            alpha: options.alpha,
        },
    };
    Ok(Forward {
        graph,
        params,
        trainables,
        tuned,
    })
}

/// What a result was before it was cast at the end of the graph.
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

/// The graph before, in the dtype of its arithmetic.
struct Old<'a> {
    graph: &'a Graph,
    tuned: &'a Tuned,
    /// Where the rows of tables are read, for each of the inputs that stand for them.
    ids: &'a [Value],
    heads: &'a [Value],
    trainables: &'a [(String, Tensor)],
}

impl Old<'_> {
    /// The graph with trained parameters as states, rows of tables read where an input stands for them, and what is
    /// built of results.
    fn rebuilt(&self, of_head: &mut OfHead<'_>) -> Result<Graph, ModelError> {
        let mut new = Graph::new();
        let mut places: Vec<NodeId> = Vec::with_capacity(self.graph.len());
        for (id, node) in self.graph.nodes() {
            let value = match &node.op {
                Op::Param(p) if self.tuned.trained.contains(&p.name) => {
                    state(&mut new, &p.name, &p.ty)?
                }
                Op::Input(input) => {
                    let late = self.tuned.late.iter().position(|l| l.input == input.name);
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
        let name = &self.tuned.late[at].table;
        let table = self.trainables.iter().find(|(n, _)| n == name);
        let (_, tensor) = table.ok_or_else(|| ModelError::MissingWeight {
            tensor: name.clone(),
        })?;
        let table = state(new, name, &Type::from(tensor.ty()))?;
        Ok(new.gather(table, placed(places, self.ids[at]), 0)?)
    }
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

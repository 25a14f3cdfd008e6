//! What gradients read of the way forward, where it has checkpoints: the checkpoint, and computed again from it what
//! depends on it up to the next one. Uniform random numbers, and what is made of them and constants alone, such as what
//! dropout drops, are drawn again in any case, and on request elementwise values are computed again (`cheap.rs`).
//!
//! Numbers that are drawn again have an axis of 1 in front, since equal nodes would be merged: numbers depend on an element's
//! place in row-major order, not on the shape. What is computed again reads checkpoints through checkpoints of their own, which keep it from being merged with what
//! was computed first. It is appended where gradients first need it, and so in the order in which they go back.

use std::collections::{BTreeSet, HashMap};

use super::cheap::is_marked;
use crate::dim::Dim;
use crate::error::OpError;
use crate::graph::{Graph, NodeId, Value};
use crate::ops::{Checkpoint, Op, OpKind, RngUniform};
use crate::types::{MAX_RANK, Shape};

/// The nodes of the way forward, and those that stand for them in gradients.
#[derive(Debug)]
pub(super) struct Recompute {
    /// For each node whether it is a checkpoint or depends on one.
    depends: Vec<bool>,
    /// For each node whether it is random numbers, or made of such and constants alone.
    drawn: Vec<bool>,
    /// For each node whether it is elementwise and computed again from what is kept.
    cheap: Vec<bool>,
    /// Marks of what those are computed from.
    marks: HashMap<Value, Value>,
    again: HashMap<NodeId, NodeId>,
}

impl Recompute {
    /// Of the nodes from `from` on: those before it are there already. `cheap` nodes are computed again.
    pub(super) fn of(graph: &Graph, from: usize, cheap: Vec<bool>) -> Recompute {
        let (mut depends, mut drawn) = (vec![false; from], vec![false; from]);
        for (_, node) in graph.nodes().skip(from) {
            let own = node.op.kind() == OpKind::Checkpoint;
            depends.push(own || node.inputs.iter().any(|v| depends[v.node.index()]));
            let is_drawn = |v: &Value| drawn[v.node.index()];
            let is_const = |v: &Value| graph.node(v.node).op.kind() == OpKind::Const;
            drawn.push(match &node.op {
                Op::RngUniform(op) => op.shape.rank() < MAX_RANK,
                _ if own => false,
                _ => {
                    let mut inputs = node.inputs.iter();
                    node.inputs.iter().any(is_drawn) && inputs.all(|v| is_drawn(v) || is_const(v))
                }
            });
        }
        Recompute {
            depends,
            drawn,
            cheap,
            marks: HashMap::new(),
            again: HashMap::new(),
        }
    }

    /// Whether gradients have a node of their own for this one. What was appended since is there already.
    fn is_again(&self, id: NodeId) -> bool {
        let of = |list: &[bool]| list.get(id.index()).copied().unwrap_or(false);
        of(&self.depends) || of(&self.drawn) || of(&self.cheap)
    }

    fn placed(&self, v: Value) -> Value {
        let node = self.again.get(&v.node).copied().unwrap_or(v.node);
        Value { node, ..v }
    }

    /// What is kept, for what is computed again from it.
    fn marked(&mut self, graph: &mut Graph, v: Value) -> Result<Value, OpError> {
        if self.cheap.is_empty() || !is_marked(graph, v) {
            return Ok(v);
        }
        if let Some(mark) = self.marks.get(&v) {
            return Ok(*mark);
        }
        let node = graph.add(Checkpoint {}, &[v])?;
        let mark = Value {
            node: node.node,
            port: 0,
        };
        self.marks.insert(v, mark);
        Ok(mark)
    }

    /// The value that gradients read for one of the way forward.
    pub(super) fn value(&mut self, graph: &mut Graph, v: Value) -> Result<Value, OpError> {
        let mut needed = BTreeSet::new();
        let mut open = vec![v.node];
        while let Some(id) = open.pop() {
            if !self.is_again(id) || self.again.contains_key(&id) || !needed.insert(id) {
                continue;
            }
            let node = graph.node(id);
            if node.op.kind() != OpKind::Checkpoint {
                open.extend(node.inputs.iter().map(|v| v.node));
            }
        }
        for id in needed {
            let node = graph.node(id);
            let new = match &node.op {
                Op::Checkpoint(_) => graph.add(Checkpoint {}, &[Value { node: id, port: 0 }])?,
                Op::RngUniform(op) if self.drawn[id.index()] => {
                    let op = op.clone();
                    drawn_again(graph, op)?
                }
                op => {
                    let (op, inputs) = (op.clone(), node.inputs.clone());
                    let mut placed = Vec::with_capacity(inputs.len());
                    for input in inputs {
                        placed.push(match self.is_again(input.node) {
                            true => self.placed(input),
                            false => self.marked(graph, input)?,
                        });
                    }
                    graph.add(op, &placed)?
                }
            };
            self.again.insert(id, new.node);
        }
        Ok(self.placed(v))
    }
}

/// The same numbers, by a node that is not equal to the first.
fn drawn_again(graph: &mut Graph, op: RngUniform) -> Result<Value, OpError> {
    let own = op.shape.clone();
    let shape = Shape::new([&[Dim::Known(1)], &own[..]].concat());
    let wide = graph.add(RngUniform { shape, ..op }, &[])?;
    graph.reshape(wide, own)
}

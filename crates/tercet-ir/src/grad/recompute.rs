//! Recomputation of forward values. Gradients read checkpoints, and recompute from each checkpoint
//! the values that depend on it, up to the next checkpoint. Uniform random numbers, and values
//! computed only from them and constants (such as a dropout mask), are always drawn again. On
//! request, elementwise values are recomputed too (`remat.rs`).
//!
//! `cse` would merge equal nodes, so recomputed nodes must differ from the original ones. Random
//! numbers that are drawn again have an additional leading axis of size 1; the numbers depend on an
//! element's row-major index, not on the shape. Other recomputed nodes read checkpoints through
//! additional checkpoint nodes. Nodes are appended when gradients first need them, so in the order
//! of the reverse pass.

use std::collections::{BTreeSet, HashMap};

use tercet_tensor::{Dim, MAX_RANK, Shape};

use super::remat::is_marked;
use crate::error::OpError;
use crate::graph::{Graph, NodeId, Value};
use crate::ops::{Checkpoint, Op, OpKind, RngUniform};

/// The forward nodes and their recomputed copies.
#[derive(Debug)]
pub(super) struct RecomputedNodes {
    /// For each node, whether it is a checkpoint or depends on one.
    depends: Vec<bool>,
    /// For each node, whether it draws random numbers or is computed only from them and constants.
    drawn: Vec<bool>,
    /// For each node, whether it is elementwise and recomputed from saved values.
    cheap: Vec<bool>,
    /// The checkpoints inserted before values that recomputed nodes read.
    marks: HashMap<Value, Value>,
    recomputed: HashMap<NodeId, NodeId>,
}

impl RecomputedNodes {
    /// Analyzes the nodes from `from` on; earlier nodes are never recomputed. `cheap` nodes are
    /// recomputed.
    pub(super) fn new(graph: &Graph, from: usize, cheap: Vec<bool>) -> RecomputedNodes {
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
        RecomputedNodes {
            depends,
            drawn,
            cheap,
            marks: HashMap::new(),
            recomputed: HashMap::new(),
        }
    }

    /// Whether gradients recompute this node. Nodes that were appended later are never recomputed.
    fn is_again(&self, id: NodeId) -> bool {
        let of = |list: &[bool]| list.get(id.index()).copied().unwrap_or(false);
        of(&self.depends) || of(&self.drawn) || of(&self.cheap)
    }

    fn placed(&self, v: Value) -> Value {
        let node = self.recomputed.get(&v.node).copied().unwrap_or(v.node);
        Value { node, ..v }
    }

    /// A saved value, read through a checkpoint by recomputed nodes.
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

    /// The value that gradients read in place of a forward value.
    pub(super) fn value(&mut self, graph: &mut Graph, v: Value) -> Result<Value, OpError> {
        let mut needed = BTreeSet::new();
        let mut open = vec![v.node];
        while let Some(id) = open.pop() {
            if !self.is_again(id) || self.recomputed.contains_key(&id) || !needed.insert(id) {
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
            self.recomputed.insert(id, new.node);
        }
        Ok(self.placed(v))
    }
}

/// Draws the same numbers with a node that is not equal to the original one.
fn drawn_again(graph: &mut Graph, op: RngUniform) -> Result<Value, OpError> {
    let own = op.shape.clone();
    let shape = Shape::new([&[Dim::Known(1)], &own[..]].concat());
    let wide = graph.add(RngUniform { shape, ..op }, &[])?;
    graph.reshape(wide, own)
}

//! What gradients read of the way forward, where it has checkpoints: the checkpoint, and computed again from it what
//! depends on it up to the next one.
//!
//! What is computed again reads checkpoints through checkpoints of their own, which keep it from being merged with what
//! was computed first. It is appended where gradients first need it, and so in the order in which they go back.

use std::collections::{BTreeSet, HashMap};

use crate::error::OpError;
use crate::graph::{Graph, NodeId, Value};
use crate::ops::{Checkpoint, OpKind};

/// The nodes of the way forward, and those that stand for them in gradients.
#[derive(Debug)]
pub(super) struct Recompute {
    /// For each node whether it is a checkpoint or depends on one.
    depends: Vec<bool>,
    again: HashMap<NodeId, NodeId>,
}

impl Recompute {
    /// Of the nodes from `from` on: those before it are there already.
    pub(super) fn of(graph: &Graph, from: usize) -> Recompute {
        let mut depends = vec![false; from];
        for (_, node) in graph.nodes().skip(from) {
            let own = node.op.kind() == OpKind::Checkpoint;
            depends.push(own || node.inputs.iter().any(|v| depends[v.node.index()]));
        }
        Recompute {
            depends,
            again: HashMap::new(),
        }
    }

    fn depends(&self, id: NodeId) -> bool {
        self.depends.get(id.index()).copied().unwrap_or(false)
    }

    fn placed(&self, v: Value) -> Value {
        let node = self.again.get(&v.node).copied().unwrap_or(v.node);
        Value { node, ..v }
    }

    /// The value that gradients read for one of the way forward.
    pub(super) fn value(&mut self, graph: &mut Graph, v: Value) -> Result<Value, OpError> {
        let mut needed = BTreeSet::new();
        let mut open = vec![v.node];
        while let Some(id) = open.pop() {
            if !self.depends(id) || self.again.contains_key(&id) || !needed.insert(id) {
                continue;
            }
            let node = graph.node(id);
            if node.op.kind() != OpKind::Checkpoint {
                open.extend(node.inputs.iter().map(|v| v.node));
            }
        }
        for id in needed {
            let node = graph.node(id);
            let new = if node.op.kind() == OpKind::Checkpoint {
                graph.add(Checkpoint {}, &[Value { node: id, port: 0 }])?
            } else {
                let inputs: Vec<Value> = node.inputs.iter().map(|v| self.placed(*v)).collect();
                graph.add(node.op.clone(), &inputs)?
            };
            self.again.insert(id, new.node);
        }
        Ok(self.placed(v))
    }
}

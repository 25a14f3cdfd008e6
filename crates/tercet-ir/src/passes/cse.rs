//! Common subexpression elimination: merges nodes with the same operator, attributes and operands.
//!
//! If gradients also need an attention's log-sum-exp, the attention is computed once, by the
//! operator that returns both.
//!
//! Random operators have their seed and stream as attributes. Equal nodes therefore draw equal
//! numbers and may be merged. Reads of a state give its old value throughout a run.

use std::collections::HashMap;

use super::rewrite::rebuild;
use crate::error::CompileError;
use crate::graph::{Graph, Value};
use crate::ops::{Attention, Op};

/// Merges equal nodes.
pub(super) fn merge_equal(graph: &Graph) -> Result<Graph, CompileError> {
    let mut first: HashMap<(&Op, Vec<Value>), Value> = HashMap::new();
    let kept = with_lse(graph);
    rebuild(graph, |rw, id, node| {
        let with_lse = match &node.op {
            Op::Attention(op) => kept.get(&(op.clone(), &node.inputs[..])).copied(),
            _ => None,
        };
        let op = with_lse.unwrap_or(&node.op);
        let key = (op, rw.values(&node.inputs));
        let own = Value { node: id, port: 0 };
        if let Some(&earlier) = first.get(&key) {
            for port in 0..node.outputs.len() as u8 {
                rw.bind(own.port(port), earlier.port(port));
            }
            return Ok(());
        }
        match with_lse {
            Some(op) => {
                let y = rw.add(op.clone(), &key.1)?;
                rw.bind(own, y);
            }
            None => rw.copy(id)?,
        }
        if !node.outputs.is_empty() {
            first.insert(key, rw.value(own));
        }
        Ok(())
    })
}

/// The attentions that also return their log-sum-exp, keyed by the equivalent plain attention and
/// its operands.
fn with_lse(graph: &Graph) -> HashMap<(Attention, &[Value]), &Op> {
    let kept = graph.nodes().filter_map(|(_, node)| match &node.op {
        Op::AttentionWithLse(op) => Some(((op.attention(), &node.inputs[..]), &node.op)),
        _ => None,
    });
    kept.collect()
}

//! Common subexpressions: nodes with the same operator, attributes and operands.
//!
//! Random operators carry their seed and stream as attributes, so that equal nodes draw equal
//! numbers and may be merged; reads of a state give its old value throughout a run.

use std::collections::HashMap;

use super::rewrite::rebuild;
use crate::error::CompileError;
use crate::graph::{Graph, Value};
use crate::ops::Op;

/// Computes equal nodes once.
pub(super) fn merge_equal(graph: &Graph) -> Result<Graph, CompileError> {
    let mut first: HashMap<(&Op, Vec<Value>), Value> = HashMap::new();
    rebuild(graph, |rw, id, node| {
        let key = (&node.op, rw.values(&node.inputs));
        let own = Value { node: id, port: 0 };
        if let Some(&earlier) = first.get(&key) {
            for port in 0..node.outputs.len() as u8 {
                rw.bind(own.port(port), earlier.port(port));
            }
            return Ok(());
        }
        rw.copy(id)?;
        if !node.outputs.is_empty() {
            first.insert(key, rw.value(own));
        }
        Ok(())
    })
}

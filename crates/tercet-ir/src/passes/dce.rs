//! Dead code elimination: removes nodes that no output or assignment depends on, and captures that
//! are never read.

use super::rewrite::{live_nodes, rebuild};
use super::subgraphs::drop_idle_captures;
use crate::error::CompileError;
use crate::graph::Graph;

/// Removes dead nodes. Named leaves remain, because they are the graph's signature.
pub(super) fn drop_dead(graph: &Graph) -> Result<Graph, CompileError> {
    let graph = &drop_idle_captures(graph)?;
    let live = live_nodes(graph);
    rebuild(graph, |rw, id, _| match live[id.index()] {
        true => rw.copy(id),
        false => Ok(()),
    })
}

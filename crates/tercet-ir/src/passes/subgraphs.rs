//! Nested graphs: applies passes to them, inlines them in place of their node, and removes unused
//! captures.

use std::borrow::Cow;
use std::collections::HashSet;

use super::rewrite::{Rewriter, ValueUses, rebuild};
use crate::error::CompileError;
use crate::graph::{Graph, Node, Value};
use crate::ops::{If, Op, OpKind, Scan, While};
use crate::subgraph::SubGraph;

/// The graph with `f` applied to the nested graphs of its nodes; `None` if it has none. Node ids do
/// not change.
///
/// # Errors
/// The errors of `f`; [`CompileError::Rewrite`] when a node rejects its new graphs.
pub(super) fn map_subgraphs(
    graph: &Graph,
    f: &mut dyn FnMut(&Graph) -> Result<Graph, CompileError>,
) -> Result<Option<Graph>, CompileError> {
    if graph.nodes().all(|(_, n)| n.op.subgraphs().is_empty()) {
        return Ok(None);
    }
    let mut new = Graph::new();
    let fail = |node| move |source| CompileError::Rewrite { node, source };
    for (id, node) in graph.nodes() {
        let mut blocks = Vec::new();
        for (_, block) in node.op.subgraphs() {
            blocks.push(f(block.graph())?.into());
        }
        // Nodes are copied one to one, so ids and ports do not change.
        new.add_for(Some(graph.origin(id)));
        new.add(node.op.with_subgraphs(blocks), &node.inputs)
            .map_err(fail(id))?;
    }
    new.add_for(None);
    for o in graph.outputs() {
        new.output(&o.name, o.value).map_err(fail(o.value.node))?;
    }
    for a in graph.assigns() {
        new.assign(a.state, a.value).map_err(fail(a.value.node))?;
    }
    Ok(Some(new))
}

/// Adds the nodes of a nested graph with these arguments and returns its results; `name` is the
/// attribute that holds the graph.
fn inline(
    rw: &mut Rewriter<'_>,
    name: &'static str,
    block: &Graph,
    arguments: &[Value],
) -> Result<Vec<Value>, CompileError> {
    let mut arguments = arguments.iter().copied();
    let mut map: Vec<Vec<Value>> = Vec::with_capacity(block.len());
    let of = |map: &[Vec<Value>], v: &Value| map[v.node.index()][v.port as usize];
    for (id, node) in block.nodes() {
        let argument = match &node.op {
            Op::Input(_) => arguments.next(),
            _ => None,
        };
        if let Some(argument) = argument {
            map.push(vec![argument]);
            continue;
        }
        let inputs: Vec<Value> = node.inputs.iter().map(|v| of(&map, v)).collect();
        let first = rw.add_inner(name, block.origin(id), node.op.clone(), &inputs)?;
        let ports = 0..node.outputs.len() as u8;
        map.push(ports.map(|p| first.port(p)).collect());
    }
    let results = block.outputs().iter();
    Ok(results.map(|o| of(&map, &o.value)).collect())
}

/// The node without the captures that the nested graphs never read, and its remaining operands;
/// `None` if all are read.
fn without_idle_captures(node: &Node) -> Option<(Op, Vec<Value>)> {
    let blocks: Vec<&SubGraph> = node.op.subgraphs().into_iter().map(|(_, b)| b).collect();
    let captures = captures(node)?;
    let arguments = blocks.first()?.arguments().count();
    let count = node.inputs.len() - captures;
    let first = arguments - count;
    let reads: Vec<Vec<bool>> = blocks.iter().map(|b| reads(b.graph())).collect();
    // A symbol gets its size from an argument, so the only argument of a symbol must remain.
    let mut kept: Vec<bool> = (0..arguments)
        .map(|i| i < first || reads.iter().any(|r| r[i]))
        .collect();
    for i in first..arguments {
        let lost = |b: &SubGraph| loses_symbol(b, &kept, i);
        kept[i] = kept[i] || blocks.iter().any(|b| lost(b));
    }
    if kept.iter().all(|k| *k) {
        return None;
    }
    let blocks: Option<Vec<SubGraph>> = blocks.iter().map(|b| without(b.graph(), &kept)).collect();
    let inputs = node.inputs.iter().enumerate();
    let inputs = inputs.filter(|(i, _)| i.checked_sub(captures).is_none_or(|c| kept[first + c]));
    let inputs = inputs.map(|(_, v)| *v).collect();
    Some((node.op.with_subgraphs(blocks?), inputs))
}

/// The index of the first capture among the operands of a node with nested graphs.
fn captures(node: &Node) -> Option<usize> {
    match &node.op {
        Op::If(If { .. }) => Some(1),
        Op::While(While { body, .. }) => Some(body.graph().outputs().len()),
        Op::Scan(Scan {
            carried, scanned, ..
        }) => Some(carried + scanned),
        _ => None,
    }
}

/// For each argument, whether the graph reads it.
fn reads(block: &Graph) -> Vec<bool> {
    let uses = ValueUses::new(block);
    let inputs = block.nodes().filter(|(_, n)| n.op.kind() == OpKind::Input);
    let read = inputs.map(|(node, _)| {
        let readers = uses.readers_of(Value { node, port: 0 });
        readers.result || !readers.nodes.is_empty()
    });
    read.collect()
}

/// True if removing argument `at` would leave one of its symbols without an argument.
fn loses_symbol(block: &SubGraph, kept: &[bool], at: usize) -> bool {
    let arguments: Vec<_> = block.arguments().collect();
    let mut there = HashSet::new();
    for (ty, _) in arguments.iter().zip(kept).filter(|(_, k)| **k) {
        there.extend(ty.shape.iter().filter_map(|d| d.as_symbol().cloned()));
    }
    let mut lost = false;
    arguments[at].for_each_symbol(|s| lost |= !there.contains(s));
    lost
}

/// The graph without some of its unused inputs.
fn without(block: &Graph, kept: &[bool]) -> Option<SubGraph> {
    let mut kept = kept.iter();
    let mut new = Graph::new();
    let mut map: Vec<Option<Value>> = Vec::with_capacity(block.len());
    for (id, node) in block.nodes() {
        if matches!(node.op, Op::Input(_)) && kept.next() == Some(&false) {
            map.push(None);
            continue;
        }
        let inputs: Option<Vec<Value>> = (node.inputs.iter())
            .map(|v| Some(map[v.node.index()]?.port(v.port)))
            .collect();
        new.add_for(Some(block.origin(id)));
        // Dead nodes may read a removed input.
        map.push(inputs.and_then(|inputs| new.add(node.op.clone(), &inputs).ok()));
    }
    new.add_for(None);
    for o in block.outputs() {
        let value = map[o.value.node.index()]?.port(o.value.port);
        new.output(&o.name, value).ok()?;
    }
    Some(new.into())
}

/// Removes the captures that a node's nested graphs never read.
pub(super) fn drop_idle_captures(graph: &Graph) -> Result<Cow<'_, Graph>, CompileError> {
    let mut nodes = graph.nodes();
    if nodes.all(|(_, n)| without_idle_captures(n).is_none()) {
        return Ok(Cow::Borrowed(graph));
    }
    let dropped = rebuild(graph, |rw, id, node| {
        let Some((op, inputs)) = without_idle_captures(node) else {
            return rw.copy(id);
        };
        let inputs = rw.values(&inputs);
        let first = rw.add(op, &inputs)?;
        for port in 0..node.outputs.len() as u8 {
            rw.bind(Value { node: id, port }, first.port(port));
        }
        Ok(())
    });
    dropped.map(Cow::Owned)
}

/// Replaces each `If` with a constant predicate by the taken branch.
pub(super) fn take_branches(graph: Graph) -> Result<Graph, CompileError> {
    let is_if = |n: &Node| n.op.kind() == OpKind::If;
    if !graph.nodes().any(|(_, n)| is_if(n)) {
        return Ok(graph);
    }
    rebuild(&graph, |rw, id, node| {
        let Op::If(branches) = &node.op else {
            return rw.copy(id);
        };
        let operands = rw.values(&node.inputs);
        let Op::Const(predicate) = &rw.new_graph().node(operands[0].node).op else {
            return rw.copy(id);
        };
        let taken = branches.selected_branch(&predicate.tensor);
        let name = node
            .op
            .subgraphs()
            .into_iter()
            .find(|(_, b)| std::ptr::eq(*b, taken));
        let name = name.map_or("", |(name, _)| name);
        let results = inline(rw, name, taken.graph(), &operands[1..])?;
        for (port, new) in results.into_iter().enumerate() {
            let port = port as u8;
            rw.bind(Value { node: id, port }, new);
        }
        Ok(())
    })
}

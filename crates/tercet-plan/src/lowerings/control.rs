//! Lowering of `If`, `While` and `Scan`: nested graphs become stages of the same program.
//!
//! Each value that a loop carries between iterations has a slot, into which its new value is copied
//! after each iteration. Both branches of an `If` copy their results into the same slots. A scan
//! becomes a loop with a known iteration count that also carries step counters. The body of a scan
//! reads the current slices of the input sequences by `DynamicSlice`, and writes the current slices
//! of the result sequences in place.

use std::collections::HashMap;

use tercet_ir::layout::in_place_carried;
use tercet_ir::ops::{Op, Scan, While};
use tercet_ir::{CompileError, Graph, Node, NodeId, OpKind, Value};

use super::control_scan::{LoopBody, scan_to_loop};
use super::{Lowering, always, copy};
use crate::emit::{LoweringCtx, NestedGraph, SlotView};
use crate::walk::{InPlaceUpdate, InPlaceUpdates};
use tercet_program::ControlFlowGraph;
use tercet_program::SlotId;

/// Lowering of `If`, `While` and `Scan`.
pub(crate) static CONTROLS: Lowering = Lowering {
    name: "control",
    ops: &[OpKind::If, OpKind::While, OpKind::Scan],
    kernels: &[],
    supports: always,
    lower,
};

fn lower(e: &mut LoweringCtx<'_>, node: &Node) -> Result<(), CompileError> {
    let given: Vec<SlotView> = node.inputs.iter().map(|v| e.view(*v)).collect();
    match &node.op {
        Op::While(op) => repeat(e, op, &given),
        Op::Scan(op) => scan(e, op, node, &given),
        op => branch(e, op, node, &given),
    }
}

fn branch(
    e: &mut LoweringCtx<'_>,
    op: &Op,
    node: &Node,
    given: &[SlotView],
) -> Result<(), CompileError> {
    let pred = e.predicate()?;
    copy::emit(e, &given[0], &pred)?;
    let mut results = Vec::with_capacity(node.outputs.len());
    for port in 0..node.outputs.len() {
        results.push(e.result(port)?);
    }
    let mut lists = Vec::new();
    for (at, (name, block)) in op.subgraphs().into_iter().enumerate() {
        let block = NestedGraph {
            name,
            graph: block.graph(),
            origins: e.facts.origins.inside(e.cursor.at, at),
            arguments: &given[1..],
            in_place: InPlaceUpdates::new(),
        };
        lists.push(e.inside(block, |e, own| {
            let mut pairs = own.iter().zip(&results);
            pairs.try_for_each(|(from, to)| copy::emit(e, from, to))
        })?);
    }
    let otherwise = lists.pop().unwrap_or_default();
    let then = lists.pop().unwrap_or_default();
    e.follow(ControlFlowGraph::If {
        pred: pred.slot,
        then,
        else_flow: otherwise,
    });
    Ok(())
}

/// Allocates slots for the loop-carried values and copies the initial values into them.
fn carried_slots(
    e: &mut LoweringCtx<'_>,
    first: &[SlotView],
) -> Result<Vec<SlotView>, CompileError> {
    first.iter().map(|view| e.copied(view)).collect()
}

/// Finds the values of a loop body that are written directly into the slots of carried values.
fn in_place(graph: &Graph, carried: &[SlotView]) -> InPlaceUpdates {
    let inputs = graph.nodes().filter(|(_, n)| n.op.kind() == OpKind::Input);
    let slots: HashMap<NodeId, SlotId> = inputs
        .map(|(id, _)| id)
        .zip(carried.iter().map(|view| view.slot))
        .collect();
    let updates = in_place_carried(graph, carried.len()).into_iter();
    let updates = updates.filter_map(|(value, leaf)| {
        let slot = *slots.get(&leaf)?;
        Some((value, InPlaceUpdate { leaf, slot }))
    });
    updates.collect()
}

/// Copies the results of an iteration into the slots of the carried values. A result that is in the
/// slot of another carried value is first copied to a temporary slot, because an iteration may
/// permute the values.
fn carry(
    e: &mut LoweringCtx<'_>,
    results: &[SlotView],
    carried: &[SlotView],
) -> Result<(), CompileError> {
    let mut moves = Vec::new();
    for (from, to) in results.iter().zip(carried) {
        if from == to {
            continue;
        }
        let is_carried = carried.iter().any(|c| c.slot == from.slot);
        let from = match is_carried {
            true => e.copied(from)?,
            false => from.clone(),
        };
        moves.push((from, to));
    }
    let mut moves = moves.into_iter();
    moves.try_for_each(|(from, to)| copy::emit(e, &from, to))
}

fn repeat(e: &mut LoweringCtx<'_>, op: &While, given: &[SlotView]) -> Result<(), CompileError> {
    let (first, captures) = given.split_at(op.carried());
    let carried = carried_slots(e, first)?;
    let arguments = [&carried, captures].concat();
    let pred = e.predicate()?;
    let cond = NestedGraph {
        name: "cond",
        graph: op.cond.graph(),
        origins: e.facts.origins.inside(e.cursor.at, 0),
        arguments: &arguments,
        in_place: InPlaceUpdates::new(),
    };
    let cond = e.inside(cond, |e, own| copy::emit(e, &own[0], &pred))?;
    let body = NestedGraph {
        name: "body",
        graph: op.body.graph(),
        origins: e.facts.origins.inside(e.cursor.at, 1),
        arguments: &arguments,
        in_place: in_place(op.body.graph(), &carried),
    };
    let body = e.inside(body, |e, own| carry(e, own, &carried))?;
    let site = e.site();
    e.follow(ControlFlowGraph::While {
        cond,
        pred: pred.slot,
        body,
        max_iter: op.max_iter,
        site,
    });
    for (port, view) in carried.into_iter().enumerate() {
        e.forward(port, view);
    }
    Ok(())
}

/// Lowers a scan over sequences of length 0: the final carried values are the initial ones, and
/// result sequences are empty.
fn no_steps(
    e: &mut LoweringCtx<'_>,
    first: &[SlotView],
    results: usize,
) -> Result<(), CompileError> {
    for (port, view) in first.iter().enumerate() {
        let own = e.copied(view)?;
        e.forward(port, own);
    }
    (first.len()..results).try_for_each(|port| e.result(port).map(drop))
}

fn scan(
    e: &mut LoweringCtx<'_>,
    op: &Scan,
    node: &Node,
    given: &[SlotView],
) -> Result<(), CompileError> {
    let (first, rest) = given.split_at(op.carried);
    let steps = rest[0].layout.shape()[0].clone();
    if steps.known() == Some(0) {
        return no_steps(e, first, node.outputs.len());
    }
    let graph = e.graph;
    let types = |values: &[Value]| values.iter().map(|v| graph.ty(*v).clone()).collect();
    let LoopBody {
        graph,
        numbers,
        counters,
        updates,
    } = scan_to_loop(
        op,
        types(&node.inputs),
        &node.outputs[op.carried..],
        e.cursor.at,
    )?;
    let counted = counters.len();
    let mut begin = Vec::with_capacity(counted + first.len());
    for counter in counters {
        begin.push(e.constant(counter)?);
    }
    begin.extend_from_slice(first);
    let carried = carried_slots(e, &begin)?;
    let mut made = Vec::new();
    for port in op.carried..node.outputs.len() {
        made.push(e.result(port)?);
    }
    let arguments = [&carried, made.as_slice(), rest].concat();
    let mut homes = in_place(&graph, &carried);
    homes.extend(updates.into_iter().zip(&made).map(|(node, view)| {
        let (leaf, slot) = (graph.node(node).inputs[0].node, view.slot);
        (Value { node, port: 0 }, InPlaceUpdate { leaf, slot })
    }));
    let body = NestedGraph {
        name: "body",
        graph: &graph,
        origins: e.facts.origins.inside(e.cursor.at, 0).renumbered(&numbers),
        arguments: &arguments,
        in_place: homes,
    };
    let body = e.inside(body, |e, own| carry(e, &own[..carried.len()], &carried))?;
    let count = e.num(&steps);
    e.follow(ControlFlowGraph::Repeat { count, body });
    for (port, view) in carried.into_iter().skip(counted).enumerate() {
        e.forward(port, view);
    }
    Ok(())
}

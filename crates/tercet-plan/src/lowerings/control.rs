//! `If`, `While`, `Scan`: the graphs inside become stages of the same program.
//!
//! What a loop carries lies in slots of its own, which the results of an iteration are copied to at its end.
//! A branch's results are copied to where both branches leave them. A scan is a loop whose count is known
//! and that carries the number of the step: its body reads each step's part of the sequences by
//! `DynamicSlice`, and writes its parts of the results where they belong.

use std::collections::HashMap;

use tercet_ir::layout::in_place_carried;
use tercet_ir::ops::{Op, Scan, While};
use tercet_ir::{CompileError, Graph, Node, NodeId, OpKind, Value};

use super::control_scan::{Looped, looped};
use super::{Family, always, copy};
use crate::emit::{Block, Emit, View};
use crate::flow::Flow;
use crate::program::SlotId;
use crate::walk::{Update, Updates};

/// `If`, `While` and `Scan`.
pub(crate) static CONTROLS: Family = Family {
    name: "control",
    ops: &[OpKind::If, OpKind::While, OpKind::Scan],
    kernels: &[],
    supports: always,
    lower,
};

fn lower(e: &mut Emit<'_>, node: &Node) -> Result<(), CompileError> {
    let given: Vec<View> = node.inputs.iter().map(|v| e.view(*v)).collect();
    match &node.op {
        Op::While(op) => repeat(e, op, &given),
        Op::Scan(op) => scan(e, op, node, &given),
        op => branch(e, op, node, &given),
    }
}

fn branch(e: &mut Emit<'_>, op: &Op, node: &Node, given: &[View]) -> Result<(), CompileError> {
    let pred = e.predicate()?;
    copy::emit(e, &given[0], &pred)?;
    let mut results = Vec::with_capacity(node.outputs.len());
    for port in 0..node.outputs.len() {
        results.push(e.result(port)?);
    }
    let mut lists = Vec::new();
    for (at, (name, block)) in op.subgraphs().into_iter().enumerate() {
        let block = Block {
            name,
            graph: block.graph(),
            origins: e.facts.origins.inside(e.cursor.at, at),
            arguments: &given[1..],
            in_place: Updates::new(),
        };
        lists.push(e.inside(block, |e, own| {
            let mut pairs = own.iter().zip(&results);
            pairs.try_for_each(|(from, to)| copy::emit(e, from, to))
        })?);
    }
    let otherwise = lists.pop().unwrap_or_default();
    let then = lists.pop().unwrap_or_default();
    e.follow(Flow::If {
        pred: pred.slot,
        then,
        otherwise,
    });
    Ok(())
}

/// Slots for the values carried, with what they begin as.
fn carried_slots(e: &mut Emit<'_>, first: &[View]) -> Result<Vec<View>, CompileError> {
    first.iter().map(|view| e.copied(view)).collect()
}

/// The values of a body that are written where what is carried lies.
fn in_place(graph: &Graph, carried: &[View]) -> Updates {
    let inputs = graph.nodes().filter(|(_, n)| n.op.kind() == OpKind::Input);
    let slots: HashMap<NodeId, SlotId> = inputs
        .map(|(id, _)| id)
        .zip(carried.iter().map(|view| view.slot))
        .collect();
    let updates = in_place_carried(graph, carried.len()).into_iter();
    let updates = updates.filter_map(|(value, leaf)| {
        let slot = *slots.get(&leaf)?;
        Some((value, Update { leaf, slot }))
    });
    updates.collect()
}

/// Copies the results of an iteration to where the next one reads them. What lies in a carried slot is
/// copied apart before any of them is written: values may change places.
fn carry(e: &mut Emit<'_>, results: &[View], carried: &[View]) -> Result<(), CompileError> {
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

fn repeat(e: &mut Emit<'_>, op: &While, given: &[View]) -> Result<(), CompileError> {
    let (first, captures) = given.split_at(op.carried());
    let carried = carried_slots(e, first)?;
    let arguments = [&carried, captures].concat();
    let pred = e.predicate()?;
    let cond = Block {
        name: "cond",
        graph: op.cond.graph(),
        origins: e.facts.origins.inside(e.cursor.at, 0),
        arguments: &arguments,
        in_place: Updates::new(),
    };
    let cond = e.inside(cond, |e, own| copy::emit(e, &own[0], &pred))?;
    let body = Block {
        name: "body",
        graph: op.body.graph(),
        origins: e.facts.origins.inside(e.cursor.at, 1),
        arguments: &arguments,
        in_place: in_place(op.body.graph(), &carried),
    };
    let body = e.inside(body, |e, own| carry(e, own, &carried))?;
    let site = e.site();
    e.follow(Flow::While {
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

/// Sequences without steps: what is carried stays, and there is nothing else.
fn no_steps(e: &mut Emit<'_>, first: &[View], results: usize) -> Result<(), CompileError> {
    for (port, view) in first.iter().enumerate() {
        let own = e.copied(view)?;
        e.forward(port, own);
    }
    (first.len()..results).try_for_each(|port| e.result(port).map(drop))
}

fn scan(e: &mut Emit<'_>, op: &Scan, node: &Node, given: &[View]) -> Result<(), CompileError> {
    let (first, rest) = given.split_at(op.carried);
    let steps = rest[0].layout.shape()[0].clone();
    if steps.known() == Some(0) {
        return no_steps(e, first, node.outputs.len());
    }
    let graph = e.graph;
    let types = |values: &[Value]| values.iter().map(|v| graph.ty(*v).clone()).collect();
    let Looped {
        graph,
        numbers,
        counters,
        updates,
    } = looped(
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
        (Value { node, port: 0 }, Update { leaf, slot })
    }));
    let body = Block {
        name: "body",
        graph: &graph,
        origins: e.facts.origins.inside(e.cursor.at, 0).renumbered(&numbers),
        arguments: &arguments,
        in_place: homes,
    };
    let body = e.inside(body, |e, own| carry(e, &own[..carried.len()], &carried))?;
    let count = e.num(&steps);
    e.follow(Flow::Repeat { count, body });
    for (port, view) in carried.into_iter().skip(counted).enumerate() {
        e.forward(port, view);
    }
    Ok(())
}

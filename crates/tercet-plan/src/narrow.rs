//! I64 support on devices without 64-bit integers: graphs are narrowed to I32, and
//! `tercet-program` checks data on upload.
//!
//! Indices and counts are I64 in many model files, but small in practice. A value that does not fit
//! into I32 is a typed error that names the value. Arithmetic on narrowed values is I32 arithmetic;
//! `narrow/overflow.rs` adds checks of results outside the I32 range.

mod overflow;

use std::collections::HashMap;

use tercet_ir::ops::{Cast, Const, Input, Map, MapStep, OneHot, Op, Param, State};
use tercet_ir::scalar::ScalarOp;
use tercet_ir::{CompileError, DType, Graph, Node, NodeId, Tensor, Value};
use tercet_program::device_dtype;

pub use overflow::is_overflow_check;

/// The graph with I64 replaced by I32, with checks of results that may be outside the I32 range.
///
/// # Errors
/// [`CompileError::Narrow`] if a constant does not fit into I32; [`CompileError::Rewrite`] if an
/// operator does not support I32.
pub fn narrow_i64(graph: &Graph) -> Result<Graph, CompileError> {
    if !is_wide(graph) {
        return Ok(graph.clone());
    }
    let mut new = Graph::new();
    let mut nodes: HashMap<NodeId, NodeId> = HashMap::new();
    let mut ranges = overflow::IntRanges::default();
    let moved = |nodes: &HashMap<NodeId, NodeId>, v: Value| Value {
        node: nodes.get(&v.node).copied().unwrap_or(v.node),
        ..v
    };
    for (id, node) in graph.nodes() {
        let origin = graph.origin(id);
        let at = origin.node;
        check_numbers(at, node)?;
        let op = narrow_op(at, &node.op)?;
        let inputs: Vec<Value> = node.inputs.iter().map(|v| moved(&nodes, *v)).collect();
        new.add_for(Some(origin));
        let fail = |source| CompileError::Rewrite { node: at, source };
        let result = new.add(op, &inputs).map_err(fail)?;
        nodes.insert(id, result.node);
        let source = Value { node: id, port: 0 };
        if !node.outputs.is_empty() && ranges.may_overflow(graph, node, source) {
            overflow::add_check(&mut new, graph, node, &inputs, result).map_err(fail)?;
        }
    }
    let fail = |v: Value| {
        move |source| CompileError::Rewrite {
            node: v.node,
            source,
        }
    };
    new.add_for(None);
    for o in graph.outputs() {
        let value = moved(&nodes, o.value);
        new.output(&o.name, value).map_err(fail(o.value))?;
    }
    for a in graph.assigns() {
        let (state, value) = (moved(&nodes, a.state), moved(&nodes, a.value));
        new.assign(state, value).map_err(fail(a.value))?;
    }
    Ok(new)
}

/// True if the graph or a nested graph has an I64 value.
fn is_wide(graph: &Graph) -> bool {
    graph.nodes().any(|(_, n)| {
        let blocks = n.op.subgraphs();
        n.outputs.iter().any(|t| t.dtype == DType::I64)
            || blocks.iter().any(|(_, block)| is_wide(block.graph()))
    })
}

/// Checks that the numbers in the attributes of I64 operators fit into I32.
fn check_numbers(id: NodeId, node: &Node) -> Result<(), CompileError> {
    let fits = |value: f64| (f64::from(i32::MIN)..=f64::from(i32::MAX)).contains(&value);
    let is_wide = node.outputs.iter().any(|ty| ty.dtype == DType::I64);
    let numbers: Vec<f64> = match &node.op {
        Op::Pad(pad) if is_wide => vec![pad.value.0],
        // A clamp bound outside the I32 range changes no I32 value, unless no I32 value satisfies
        // the bound.
        Op::Clamp(clamp) if is_wide => clamp_beyond(clamp.lo.0, clamp.hi.0),
        Op::Map(map) => {
            let numbers = map.body.iter().flat_map(|step| match &step.op {
                ScalarOp::Const(DType::I64, value) => vec![value.0],
                _ => Vec::new(),
            });
            numbers.collect()
        }
        _ => Vec::new(),
    };
    match numbers.into_iter().find(|&v| !fits(v)) {
        Some(value) => Err(CompileError::Narrow {
            node: id,
            value: value as i64,
        }),
        None => Ok(()),
    }
}

/// Returns the clamp bound that no I32 value satisfies, or nothing if there is none.
fn clamp_beyond(lo: f64, hi: f64) -> Vec<f64> {
    match (lo > f64::from(i32::MAX), hi < f64::from(i32::MIN)) {
        (true, _) => vec![lo],
        (false, true) => vec![hi],
        (false, false) => Vec::new(),
    }
}

/// A step of a map with I64 replaced by I32.
fn narrow_step(step: &MapStep) -> MapStep {
    let mut step = step.clone();
    if let ScalarOp::Const(d, _) | ScalarOp::Cast(d) = &mut step.op {
        *d = device_dtype(*d);
    }
    step
}

fn narrow_op(id: NodeId, op: &Op) -> Result<Op, CompileError> {
    let narrow = |ty: &tercet_ir::Type| ty.with_dtype(device_dtype(ty.dtype));
    let blocks = op.subgraphs();
    if !blocks.is_empty() {
        let mut narrowed = Vec::with_capacity(blocks.len());
        for (_, block) in blocks {
            narrowed.push(narrow_i64(block.graph())?.into());
        }
        return Ok(op.with_subgraphs(narrowed));
    }
    Ok(match op {
        Op::Input(o) => Op::Input(Input {
            ty: narrow(&o.ty),
            ..o.clone()
        }),
        Op::Param(o) => Op::Param(Param {
            ty: narrow(&o.ty),
            ..o.clone()
        }),
        Op::State(o) => Op::State(State {
            ty: narrow(&o.ty),
            ..o.clone()
        }),
        Op::Const(o) if o.tensor.dtype() == DType::I64 => {
            let values = o.tensor.to_i64s();
            if let Some(&value) = values.iter().find(|&&v| i32::try_from(v).is_err()) {
                return Err(CompileError::Narrow { node: id, value });
            }
            let narrow: Vec<i32> = values.iter().map(|&v| v as i32).collect();
            let tensor = Tensor::from_slice(o.tensor.shape(), &narrow);
            let tensor = tensor.map_err(|_| CompileError::OutOfMemory {
                what: "a constant",
                bytes: 4 * narrow.len() as u64,
            })?;
            Op::Const(Const { tensor })
        }
        Op::Cast(o) => Op::Cast(Cast {
            to: device_dtype(o.to),
        }),
        Op::OneHot(o) => Op::OneHot(OneHot {
            to: device_dtype(o.to),
            ..o.clone()
        }),
        Op::Map(m) => {
            let mut m: Map = m.clone();
            m.body = m.body.iter().map(narrow_step).collect();
            Op::Map(m)
        }
        op => op.clone(),
    })
}

//! Gradient accumulation: several microbatches in one run.
//!
//! The graph of one microbatch becomes the body of a `Scan` over microbatches, which carries
//! gradient sums in F32. One run is still one step: weights and moments are read and written once,
//! and only the activations of one microbatch are live. The alternative is one run per microbatch
//! with conditional updates. That alternative would read and write all weights and moments in each
//! run (28 bytes per weight for AdamW), and checkpoints could contain half a step.
//!
//! Random numbers must differ between microbatches, but a scan body draws the same numbers in every
//! iteration. Random tensors are therefore drawn before the scan, for all microbatches at once, and
//! scanned. The tensors equal the draws of one large batch with the same leading axis, and they use
//! memory for all microbatches. States that the graph assigns, such as running statistics, are
//! carried from microbatch to microbatch.
//!
//! A node has at most [`MAX_RESULTS`] results. If a graph has more trainables, the smallest
//! gradients share one flat sum.

use std::collections::{HashMap, HashSet};

use tercet_ir::ops::{RngNormal, RngUniform};
use tercet_ir::{DType, Dim, Graph, Node, NodeId, Op, OpError, OpKind, Tensor, Type, Value};

use super::error::StepError;

/// Maximum number of results of a node: ports are 8-bit numbers.
const MAX_RESULTS: usize = 255;

/// The graph of one microbatch with its gradients.
pub(super) struct MicrobatchParts<'a> {
    pub(super) graph: &'a Graph,
    /// Gradients, in the order of the trainables.
    pub(super) gradients: &'a [Value],
    /// Scalars to sum: the loss times its weight, and the weight if there is one.
    pub(super) sums: &'a [Value],
    /// Assigned states, with their values after a microbatch.
    pub(super) assigns: &'a [(Value, Value)],
    /// Values to return for every microbatch.
    pub(super) retained: &'a [Value],
}

/// The graph of all microbatches.
pub(super) struct AccumulatedGraph {
    pub(super) graph: Graph,
    /// Gradient sums, in the order of the trainables.
    pub(super) gradients: Vec<Value>,
    pub(super) sums: Vec<Value>,
    pub(super) assigns: Vec<(Value, Value)>,
    /// Returned values, with a leading axis of microbatches.
    pub(super) retained: Vec<Value>,
    /// Leaves, keyed by their node in the microbatch graph.
    leaves: HashMap<NodeId, Value>,
}

impl AccumulatedGraph {
    /// The leaf that corresponds to a leaf of the microbatch graph.
    pub(super) fn leaf(&self, one: Value) -> Value {
        self.leaves.get(&one.node).copied().unwrap_or(one)
    }
}

/// A scan operand that replaces nodes of the microbatch graph.
struct ScanArgument {
    /// The value outside the scan.
    outer: Value,
    /// The replaced nodes: one, or several that draw the same random numbers.
    nodes: Vec<NodeId>,
    /// Type inside the scan body.
    ty: Type,
}

/// Builds a graph that sums the gradients of `microbatches` microbatches. The inputs of this graph
/// get a leading axis of microbatches.
///
/// # Errors
/// - [`StepError::Random`] if the random numbers of a node cannot differ between microbatches.
/// - [`StepError::Node`] if an input already has the maximum rank.
pub(super) fn accumulate(
    one: &MicrobatchParts<'_>,
    microbatches: usize,
) -> Result<AccumulatedGraph, StepError> {
    let live = live_nodes(one);
    for (id, node) in one.graph.nodes() {
        if live.contains(&id) && is_hidden_random(&node.op) {
            let op = node.op.kind().doc().name;
            return Err(StepError::Random { node: id, op });
        }
    }
    let mut graph = Graph::new();
    let others = one.sums.len() + one.assigns.len() + one.retained.len();
    let room = MAX_RESULTS.checked_sub(others).filter(|room| *room > 0);
    let packs = packs(one, room.ok_or(StepError::Carried { found: others })?);
    let mut operands = operands(&mut graph, one, &live, microbatches)?;
    if operands.scanned.is_empty() {
        let turns: Vec<i32> = vec![0; microbatches];
        operands.scanned.push(ScanArgument {
            outer: graph.constant(tensor(&turns)?)?,
            nodes: Vec::new(),
            ty: Type::new(DType::I32, [0usize; 0]),
        });
    }
    let mut carried = Vec::new();
    for ty in pack_types(one, &packs) {
        let zero = graph.scalar(DType::F32, 0.0)?;
        carried.push(graph.expand(zero, ty.shape)?);
    }
    for _ in one.sums {
        carried.push(graph.scalar(DType::F32, 0.0)?);
    }
    carried.extend(operands.carried.iter().map(|a| a.outer));
    let body = body(one, &live, &packs, &operands)?;
    let outer = |list: &[ScanArgument]| list.iter().map(|a| a.outer).collect::<Vec<_>>();
    let (scanned, captures) = (outer(&operands.scanned), outer(&operands.captures));
    let first = graph.scan_over(&carried, &scanned, &captures, body)?;
    let mut ports = (0u8..).map(|port| first.port(port));
    let mut take = |n: usize| ports.by_ref().take(n).collect::<Vec<Value>>();
    let (totals, sums) = (take(packs.len()), take(one.sums.len()));
    let (after, kept) = (take(one.assigns.len()), take(one.retained.len()));
    let gradients = unpacked(&mut graph, one, &packs, &totals)?;
    let before = operands.carried.iter().map(|a| a.outer);
    Ok(AccumulatedGraph {
        graph,
        gradients,
        sums,
        assigns: before.zip(after).collect(),
        retained: kept,
        leaves: operands.leaves,
    })
}

fn tensor(numbers: &[i32]) -> Result<Tensor, OpError> {
    Tensor::from_slice(&[numbers.len()], numbers).map_err(|e| OpError {
        op: "const",
        operands: Vec::new(),
        source: tercet_ir::TypeError::Other(e.to_string()),
    })
}

/// Nodes that the results depend on, and every input, because inputs bind symbols.
fn live_nodes(one: &MicrobatchParts<'_>) -> HashSet<NodeId> {
    let assigned = one.assigns.iter().map(|(_, value)| value);
    let roots = (one.gradients.iter().chain(one.sums).chain(one.retained)).chain(assigned);
    let mut live: HashSet<NodeId> = roots.map(|v| v.node).collect();
    for (id, node) in one.graph.nodes().rev() {
        if node.op.kind() == OpKind::Input {
            live.insert(id);
        }
        if live.contains(&id) {
            live.extend(node.inputs.iter().map(|v| v.node));
        }
    }
    live
}

/// Whether a node draws random numbers internally, and not as a separate tensor.
fn is_hidden_random(op: &Op) -> bool {
    fn draws(op: &Op) -> bool {
        let own = matches!(op, Op::RngUniform(_) | Op::RngNormal(_) | Op::Sample(_));
        own || inside(op)
    }
    fn inside(op: &Op) -> bool {
        let blocks = op.subgraphs();
        let mut nodes = blocks.iter().flat_map(|(_, block)| block.graph().nodes());
        nodes.any(|(_, node)| draws(&node.op))
    }
    matches!(op, Op::Sample(_)) || inside(op)
}

/// Scan operands by role (without the sums), and all leaves of the microbatch graph.
struct ScanOperands {
    /// Assigned states, in the order of the assignments.
    carried: Vec<ScanArgument>,
    scanned: Vec<ScanArgument>,
    captures: Vec<ScanArgument>,
    leaves: HashMap<NodeId, Value>,
}

/// Adds leaves and random tensors to the graph of all microbatches.
fn operands(
    graph: &mut Graph,
    one: &MicrobatchParts<'_>,
    live: &HashSet<NodeId>,
    microbatches: usize,
) -> Result<ScanOperands, OpError> {
    let (mut scanned, mut captures): (Vec<ScanArgument>, Vec<ScanArgument>) =
        (Vec::new(), Vec::new());
    let mut leaves = HashMap::new();
    let mut drawn: HashMap<Op, usize> = HashMap::new();
    let all = |ty: &Type| {
        let dims = [Dim::Known(microbatches)].into_iter();
        ty.with_shape(dims.chain(ty.shape.iter().cloned()).collect::<Vec<_>>())
    };
    let is_carried = |id| one.assigns.iter().any(|(state, _)| state.node == id);
    for (id, node) in one.graph.nodes() {
        let Node { op, outputs, .. } = node;
        let ty = outputs[0].clone();
        let wide = all(&ty).shape;
        let (outer, list) = match op {
            Op::Input(o) => (graph.input(&o.name, all(&ty))?, &mut scanned),
            Op::Param(o) => (graph.param(&o.name, ty.clone())?, &mut captures),
            Op::State(o) => (graph.state(&o.name, ty.clone())?, &mut captures),
            Op::RngUniform(_) | Op::RngNormal(_) if live.contains(&id) => {
                let first = drawn.get(op).or_else(|| drawn.get(&first_draw(op)?));
                if let Some(&at) = first {
                    scanned[at].nodes.push(id);
                    continue;
                }
                drawn.insert(op.clone(), scanned.len());
                (drawn_for_all(graph, op, wide)?, &mut scanned)
            }
            _ => continue,
        };
        if op.is_leaf() {
            leaves.insert(id, outer);
        }
        if live.contains(&id) && !is_carried(id) {
            list.push(ScanArgument {
                outer,
                nodes: vec![id],
                ty,
            });
        }
    }
    let carried = one.assigns.iter().map(|(state, _)| ScanArgument {
        outer: leaves[&state.node],
        nodes: vec![state.node],
        ty: one.graph.ty(*state).clone(),
    });
    Ok(ScanOperands {
        carried: carried.collect(),
        scanned,
        captures,
        leaves,
    })
}

/// The first node that drew the same numbers. Recomputed random tensors in the backward graph have
/// a leading axis of size 1.
fn first_draw(op: &Op) -> Option<Op> {
    let Op::RngUniform(op) = op else { return None };
    let (first, others) = op.shape.split_first()?;
    first.is_one().then(|| {
        let shape = tercet_ir::Shape::new(others);
        Op::from(RngUniform {
            shape,
            ..op.clone()
        })
    })
}

/// A random tensor for all microbatches.
fn drawn_for_all(graph: &mut Graph, op: &Op, shape: tercet_ir::Shape) -> Result<Value, OpError> {
    match op.clone() {
        Op::RngUniform(op) => graph.add(RngUniform { shape, ..op }, &[]),
        Op::RngNormal(op) => graph.add(RngNormal { shape, ..op }, &[]),
        other => graph.add(other, &[]),
    }
}

/// Builds the scan body.
fn body(
    one: &MicrobatchParts<'_>,
    live: &HashSet<NodeId>,
    packs: &[Vec<usize>],
    operands: &ScanOperands,
) -> Result<Graph, OpError> {
    let mut body = Graph::new();
    let mut map: HashMap<NodeId, Value> = HashMap::new();
    let mut totals = Vec::new();
    let scalar = Type::new(DType::F32, [0usize; 0]);
    let sums = one.sums.iter().map(|_| scalar.clone());
    for ty in pack_types(one, packs).into_iter().chain(sums) {
        totals.push(body.input(&format!("x{}", body.len()), ty)?);
    }
    let ScanOperands {
        carried,
        scanned,
        captures,
        ..
    } = operands;
    for argument in carried.iter().chain(scanned).chain(captures) {
        let name = format!("x{}", body.len());
        let value = body.input(&name, argument.ty.clone())?;
        for node in &argument.nodes {
            let own = one.graph.ty(Value {
                node: *node,
                port: 0,
            });
            let shaped = match *own == argument.ty {
                true => value,
                false => body.reshape(value, own.shape.clone())?,
            };
            map.insert(*node, shaped);
        }
    }
    for (id, node) in one.graph.nodes() {
        if live.contains(&id) && !map.contains_key(&id) {
            let inputs: Vec<Value> = node.inputs.iter().map(|v| mapped_value(&map, *v)).collect();
            map.insert(id, body.add(node.op.clone(), &inputs)?);
        }
    }
    let mut results = Vec::new();
    for (pack, total) in packs.iter().zip(&totals) {
        let parts: Vec<Value> = pack
            .iter()
            .map(|&i| mapped_value(&map, one.gradients[i]))
            .collect();
        let added = match parts[..] {
            [part] => part,
            _ => concat_parts(&mut body, &parts)?,
        };
        results.push(body.plus(*total, added)?);
    }
    for (sum, total) in one.sums.iter().zip(&totals[packs.len()..]) {
        results.push(body.plus(*total, mapped_value(&map, *sum))?);
    }
    results.extend(
        one.assigns
            .iter()
            .map(|(_, value)| mapped_value(&map, *value)),
    );
    results.extend(one.retained.iter().map(|value| mapped_value(&map, *value)));
    for (i, value) in results.into_iter().enumerate() {
        body.output(&format!("y{i}"), value)?;
    }
    Ok(body)
}

/// The copy of a value in the scan body. Nodes that became arguments have only one result.
fn mapped_value(map: &HashMap<NodeId, Value>, v: Value) -> Value {
    let first = map[&v.node];
    match v.port {
        0 => first,
        port => first.port(port),
    }
}

fn concat_parts(graph: &mut Graph, parts: &[Value]) -> Result<Value, OpError> {
    let mut flat = Vec::with_capacity(parts.len());
    for part in parts {
        let n = size(graph.ty(*part));
        flat.push(graph.reshape(*part, [n])?);
    }
    graph.concat(&flat, 0)
}

/// Number of elements of a trainable; its sizes are known.
fn size(ty: &Type) -> usize {
    ty.shape.as_known().map_or(0, |s| s.iter().product())
}

/// Groups of trainables that share a sum.
fn packs(one: &MicrobatchParts<'_>, most: usize) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..one.gradients.len()).collect();
    let Some(shared) = order.len().checked_sub(most).filter(|n| *n > 0) else {
        return order.into_iter().map(|i| vec![i]).collect();
    };
    order.sort_by_key(|&i| size(one.graph.ty(one.gradients[i])));
    let alone = order.split_off(shared + 1);
    let alone = alone.into_iter().map(|i| vec![i]);
    [order].into_iter().chain(alone).collect()
}

fn pack_types(one: &MicrobatchParts<'_>, packs: &[Vec<usize>]) -> Vec<Type> {
    let ty = |i: usize| one.graph.ty(one.gradients[i]);
    let types = packs.iter().map(|pack| match pack[..] {
        [i] => ty(i).clone(),
        _ => Type::new(
            DType::F32,
            [pack.iter().map(|i| size(ty(*i))).sum::<usize>()],
        ),
    });
    types.collect()
}

/// Splits the sums by trainable.
fn unpacked(
    graph: &mut Graph,
    one: &MicrobatchParts<'_>,
    packs: &[Vec<usize>],
    totals: &[Value],
) -> Result<Vec<Value>, OpError> {
    let mut sums = totals
        .first()
        .map_or(Vec::new(), |first| vec![*first; one.gradients.len()]);
    for (pack, total) in packs.iter().zip(totals) {
        let mut start = 0;
        for &i in pack {
            let ty = one.graph.ty(one.gradients[i]);
            sums[i] = *total;
            if pack.len() > 1 {
                let flat = graph.narrow(*total, 0, start, size(ty))?;
                sums[i] = graph.reshape(flat, ty.shape.clone())?;
                start += size(ty);
            }
        }
    }
    Ok(sums)
}

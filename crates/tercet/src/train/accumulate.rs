//! Gradients of several microbatches in one run.
//!
//! The graph of one microbatch becomes the body of a `Scan` over microbatches that carries sums of gradients in F32: one
//! run stays one step, weights and moments are read and written once, and activations of one microbatch are live at a
//! time. States with a choice whether to update, the other way, would cost a pass over weights and moments for each
//! microbatch (28 bytes a weight for AdamW), and leave a step half done between runs, in checkpoints too.
//!
//! What is random must differ between microbatches, but a body draws the same numbers at every turn: random tensors are
//! drawn before the scan, for all microbatches at once, and scanned. So they are those that one large batch, of the same
//! leading axis, would have drawn, and cost memory for all microbatches. States that the graph assigns itself, such as
//! running statistics, are carried from microbatch to microbatch.
//!
//! A node has at most [`MOST_RESULTS`] results: where there are more trainables, the smallest share one flat sum.

use std::collections::{HashMap, HashSet};

use tercet_ir::ops::{RngNormal, RngUniform};
use tercet_ir::{DType, Dim, Graph, Node, NodeId, Op, OpError, OpKind, Tensor, Type, Value};

use super::error::StepError;

/// The results that a node can have: they are counted by 8 bits.
const MOST_RESULTS: usize = 255;

/// The graph of one microbatch with its gradients.
pub(super) struct One<'a> {
    pub(super) graph: &'a Graph,
    /// By trainable.
    pub(super) gradients: &'a [Value],
    /// Scalars to add up: the loss times its weight, and the weight if there is one.
    pub(super) sums: &'a [Value],
    /// States and what they hold after a microbatch.
    pub(super) assigns: &'a [(Value, Value)],
    /// Values of which every microbatch's is kept.
    pub(super) kept: &'a [Value],
}

/// The graph of all microbatches.
pub(super) struct All {
    pub(super) graph: Graph,
    /// Sums, by trainable.
    pub(super) gradients: Vec<Value>,
    pub(super) sums: Vec<Value>,
    pub(super) assigns: Vec<(Value, Value)>,
    /// With an axis of microbatches in front.
    pub(super) kept: Vec<Value>,
    /// Leaves by their node in the graph of one.
    leaves: HashMap<NodeId, Value>,
}

impl All {
    /// The leaf that stands for one of the graph of one microbatch.
    pub(super) fn leaf(&self, one: Value) -> Value {
        self.leaves.get(&one.node).copied().unwrap_or(one)
    }
}

/// The operand of a scan that stands for a value of the graph of one.
struct Argument {
    /// The value outside.
    outer: Value,
    /// The node that it stands for, of all that draw the same numbers.
    nodes: Vec<NodeId>,
    /// The type inside.
    ty: Type,
}

/// A graph that adds up the gradients of `microbatches` of another, whose inputs get an axis of microbatches in front.
///
/// # Errors
/// [`StepError::Random`] for a node whose random numbers could not differ; [`StepError::Node`] for an input of the
/// largest rank.
pub(super) fn accumulate(one: &One<'_>, microbatches: usize) -> Result<All, StepError> {
    let live = live(one);
    for (id, node) in one.graph.nodes() {
        if live.contains(&id) && is_hidden_random(&node.op) {
            let op = node.op.kind().doc().name;
            return Err(StepError::Random { node: id, op });
        }
    }
    let mut graph = Graph::new();
    let others = one.sums.len() + one.assigns.len() + one.kept.len();
    let room = MOST_RESULTS.checked_sub(others).filter(|room| *room > 0);
    let packs = packs(one, room.ok_or(StepError::Carried { found: others })?);
    let mut operands = operands(&mut graph, one, &live, microbatches)?;
    if operands.scanned.is_empty() {
        let turns: Vec<i32> = vec![0; microbatches];
        operands.scanned.push(Argument {
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
    let outer = |list: &[Argument]| list.iter().map(|a| a.outer).collect::<Vec<_>>();
    let (scanned, captures) = (outer(&operands.scanned), outer(&operands.captures));
    let first = graph.scan_over(&carried, &scanned, &captures, body)?;
    let mut ports = (0u8..).map(|port| first.port(port));
    let mut take = |n: usize| ports.by_ref().take(n).collect::<Vec<Value>>();
    let (totals, sums) = (take(packs.len()), take(one.sums.len()));
    let (after, kept) = (take(one.assigns.len()), take(one.kept.len()));
    let gradients = unpacked(&mut graph, one, &packs, &totals)?;
    let before = operands.carried.iter().map(|a| a.outer);
    Ok(All {
        graph,
        gradients,
        sums,
        assigns: before.zip(after).collect(),
        kept,
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

/// The nodes that something asked for depends on, and every input, which holds symbols.
fn live(one: &One<'_>) -> HashSet<NodeId> {
    let assigned = one.assigns.iter().map(|(_, value)| value);
    let roots = (one.gradients.iter().chain(one.sums).chain(one.kept)).chain(assigned);
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

/// Whether a node draws random numbers other than as a tensor of their own.
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

/// The operands of the scan by their kind, without the sums, and all leaves of the graph of one.
struct Operands {
    /// States that are assigned, in the order of the assignments.
    carried: Vec<Argument>,
    scanned: Vec<Argument>,
    captures: Vec<Argument>,
    leaves: HashMap<NodeId, Value>,
}

/// Adds the leaves to the graph of all, and the random tensors.
fn operands(
    graph: &mut Graph,
    one: &One<'_>,
    live: &HashSet<NodeId>,
    microbatches: usize,
) -> Result<Operands, OpError> {
    let (mut scanned, mut captures): (Vec<Argument>, Vec<Argument>) = (Vec::new(), Vec::new());
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
            list.push(Argument {
                outer,
                nodes: vec![id],
                ty,
            });
        }
    }
    let carried = one.assigns.iter().map(|(state, _)| Argument {
        outer: leaves[&state.node],
        nodes: vec![state.node],
        ty: one.graph.ty(*state).clone(),
    });
    Ok(Operands {
        carried: carried.collect(),
        scanned,
        captures,
        leaves,
    })
}

/// What gradients draw again has an axis of 1 in front: the node that drew the same numbers first.
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

/// One turn of the scan.
fn body(
    one: &One<'_>,
    live: &HashSet<NodeId>,
    packs: &[Vec<usize>],
    operands: &Operands,
) -> Result<Graph, OpError> {
    let mut body = Graph::new();
    let mut map: HashMap<NodeId, Value> = HashMap::new();
    let mut totals = Vec::new();
    let scalar = Type::new(DType::F32, [0usize; 0]);
    let sums = one.sums.iter().map(|_| scalar.clone());
    for ty in pack_types(one, packs).into_iter().chain(sums) {
        totals.push(body.input(&format!("x{}", body.len()), ty)?);
    }
    let Operands {
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
            let inputs: Vec<Value> = node.inputs.iter().map(|v| placed(&map, *v)).collect();
            map.insert(id, body.add(node.op.clone(), &inputs)?);
        }
    }
    let mut results = Vec::new();
    for (pack, total) in packs.iter().zip(&totals) {
        let parts: Vec<Value> = pack
            .iter()
            .map(|&i| placed(&map, one.gradients[i]))
            .collect();
        let added = match parts[..] {
            [part] => part,
            _ => joined(&mut body, &parts)?,
        };
        results.push(body.plus(*total, added)?);
    }
    for (sum, total) in one.sums.iter().zip(&totals[packs.len()..]) {
        results.push(body.plus(*total, placed(&map, *sum))?);
    }
    results.extend(one.assigns.iter().map(|(_, value)| placed(&map, *value)));
    results.extend(one.kept.iter().map(|value| placed(&map, *value)));
    for (i, value) in results.into_iter().enumerate() {
        body.output(&format!("y{i}"), value)?;
    }
    Ok(body)
}

/// A value where its node was copied to. A node whose first result became an argument has no others.
fn placed(map: &HashMap<NodeId, Value>, v: Value) -> Value {
    let first = map[&v.node];
    match v.port {
        0 => first,
        port => first.port(port),
    }
}

fn joined(graph: &mut Graph, parts: &[Value]) -> Result<Value, OpError> {
    let mut flat = Vec::with_capacity(parts.len());
    for part in parts {
        let n = size(graph.ty(*part));
        flat.push(graph.reshape(*part, [n])?);
    }
    graph.concat(&flat, 0)
}

/// The number of elements of a trainable, whose sizes are known.
fn size(ty: &Type) -> usize {
    ty.shape.as_known().map_or(0, |s| s.iter().product())
}

/// Which trainables share a sum.
fn packs(one: &One<'_>, most: usize) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..one.gradients.len()).collect();
    let Some(shared) = order.len().checked_sub(most).filter(|n| *n > 0) else {
        return order.into_iter().map(|i| vec![i]).collect();
    };
    order.sort_by_key(|&i| size(one.graph.ty(one.gradients[i])));
    let alone = order.split_off(shared + 1);
    let alone = alone.into_iter().map(|i| vec![i]);
    [order].into_iter().chain(alone).collect()
}

fn pack_types(one: &One<'_>, packs: &[Vec<usize>]) -> Vec<Type> {
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

/// The sums by trainable.
fn unpacked(
    graph: &mut Graph,
    one: &One<'_>,
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

//! Rewrites the body of a scan to a loop body that also carries counters of the current step.

use std::collections::HashMap;

use tercet_ir::ops::{Const, DynamicSlice, DynamicUpdateSlice, Input, Op, Reshape, Scan, Slice};
use tercet_ir::scalar::BinaryFn;
use tercet_ir::{
    CompileError, DType, Dim, Graph, MAX_RANK, NodeId, OpError, Shape, Tensor, Type, Value,
};

/// A loop body that performs one step of a scan.
pub(crate) struct LoopBody {
    /// The loop body. The loop body; its arguments are the step counters, carried values, result
    /// sequences, input sequences and captured values of outer graphs. The loop body returns the
    /// step counters and carried values for the next step, then the result sequences.
    pub(crate) graph: Graph,
    /// By node of the scan's original body: the id of the node in `graph`.
    pub(crate) numbers: Vec<NodeId>,
    /// Initial values of the step counters: the start indices of the first step's slices. Negative
    /// start indices count from the end of an axis.
    pub(crate) counters: Vec<Tensor>,
    /// Nodes of `graph` that write the current slices of the result sequences.
    pub(crate) updates: Vec<NodeId>,
}

/// Start indices of a slice of a sequence: `first` along the first of `MAX_RANK` axes, 0 along all
/// others.
fn starts(first: i32) -> Tensor {
    let mut starts = [0; MAX_RANK];
    starts[0] = first;
    Tensor::from_slice(&[MAX_RANK], &starts)
        .unwrap_or_else(|e| unreachable!("invariant: one start per axis: {e}"))
}

/// Rewrites the body of a scan to a loop body; `operands` and `made` are the types of the scan's
/// operands and of its result sequences. Errors name the node `at`.
///
/// # Errors
/// [`CompileError::Rewrite`] if a slice exceeds the I32 range.
pub(crate) fn scan_to_loop(
    scan: &Scan,
    operands: Vec<Type>,
    made: &[Type],
    at: NodeId,
) -> Result<LoopBody, CompileError> {
    build(scan, &operands, made).map_err(|source| CompileError::Rewrite { node: at, source })
}

fn build(scan: &Scan, operands: &[Type], made: &[Type]) -> Result<LoopBody, OpError> {
    let mut g = Graph::new();
    let mut counters = LoopCounters::new(scan, &mut g)?;
    let inputs = |g: &mut Graph, name: &str, types: &[Type]| {
        let list = types.iter().enumerate();
        let list = list.map(|(i, ty)| g.input(&format!("{name}{i}"), ty.clone()));
        list.collect::<Result<Vec<Value>, OpError>>()
    };
    let (carried, rest) = operands.split_at(scan.carried);
    let (scanned, captures) = rest.split_at(scan.scanned);
    let mut arguments = inputs(&mut g, "carried", carried)?;
    let results = inputs(&mut g, "made", made)?;
    let sequences = inputs(&mut g, "scanned", scanned)?;
    let captures = inputs(&mut g, "capture", captures)?;
    for ((sequence, ty), back) in sequences.iter().zip(scanned).zip(&scan.reverse) {
        let at = counters.starts(&mut g, *back, ty.rank())?;
        let sizes = window(ty);
        let part = g.add(
            DynamicSlice {
                sizes: sizes.clone(),
            },
            &[*sequence, at],
        )?;
        arguments.push(reshape(&mut g, part, &sizes[1..])?);
    }
    arguments.extend(captures);
    let (given, numbers) = inline(&mut g, scan.body.graph(), &arguments)?;
    let (carried, parts) = given.split_at(scan.carried);
    counters.step(&mut g)?;
    for (i, value) in carried.iter().enumerate() {
        g.output(&format!("carried{i}"), *value)?;
    }
    let mut updates = Vec::new();
    let places = parts
        .iter()
        .zip(&results)
        .zip(made)
        .zip(&scan.reverse_results);
    for (i, (((part, sequence), ty), back)) in places.enumerate() {
        let at = counters.starts(&mut g, *back, ty.rank())?;
        let row = reshape(&mut g, *part, &window(ty))?;
        let update = g.add(DynamicUpdateSlice {}, &[*sequence, row, at])?;
        g.output(&format!("made{i}"), update)?;
        updates.push(update.node);
    }
    Ok(LoopBody {
        graph: g,
        numbers,
        counters: counters.list.iter().map(|c| starts(c.first())).collect(),
        updates,
    })
}

/// Shape of the slice of a sequence for one step; its first axis has size 1.
fn window(sequence: &Type) -> Shape {
    let rest = sequence.shape.iter().skip(1).cloned();
    [Dim::Known(1)].into_iter().chain(rest).collect()
}

/// A step counter of the loop: the start indices of the current step's slices in one direction.
struct LoopCounter {
    back: bool,
    value: Value,
    /// Cached start indices for sequences of smaller rank, by their number of axes.
    starts: HashMap<usize, Value>,
}

impl LoopCounter {
    fn first(&self) -> i32 {
        if self.back { -1 } else { 0 }
    }
}

/// The step counters of a loop: one for each direction, forward or backward, in which the scan
/// reads or writes sequences.
struct LoopCounters {
    list: Vec<LoopCounter>,
}

impl LoopCounters {
    fn new(scan: &Scan, g: &mut Graph) -> Result<LoopCounters, OpError> {
        let mut list = Vec::new();
        for back in [false, true] {
            let mut walked = scan.reverse.iter().chain(&scan.reverse_results);
            if walked.any(|b| *b == back) {
                let ty = Type::new(DType::I32, [MAX_RANK]);
                let value = g.input(if back { "back" } else { "step" }, ty)?;
                let starts = HashMap::new();
                list.push(LoopCounter {
                    back,
                    value,
                    starts,
                });
            }
        }
        Ok(LoopCounters { list })
    }

    /// Start indices of the current step's slice of a sequence with `rank` axes.
    fn starts(&mut self, g: &mut Graph, back: bool, rank: usize) -> Result<Value, OpError> {
        let counter = self.list.iter_mut().find(|c| c.back == back);
        let counter =
            counter.unwrap_or_else(|| unreachable!("invariant: each direction has a counter"));
        if let Some(known) = counter.starts.get(&rank) {
            return Ok(*known);
        }
        let slice = Slice {
            starts: vec![0],
            ends: vec![rank as i64],
            steps: vec![1],
        };
        let starts = g.add(slice, &[counter.value])?;
        counter.starts.insert(rank, starts);
        Ok(starts)
    }

    /// Adds the step counters for the next step to the results of the loop body.
    fn step(&self, g: &mut Graph) -> Result<(), OpError> {
        for counter in &self.list {
            let by = starts(if counter.back { -1 } else { 1 });
            let by = g.add(Const { tensor: by }, &[])?;
            let next = g.binary(BinaryFn::Add, counter.value, by)?;
            g.output(if counter.back { "back" } else { "step" }, next)?;
        }
        Ok(())
    }
}

fn reshape(g: &mut Graph, x: Value, shape: &[Dim]) -> Result<Value, OpError> {
    let shape = Shape::new(shape.to_vec());
    g.add(Reshape { shape }, &[x])
}

/// Copies the nodes of a scan body into `g` with these arguments. Returns the results of the body
/// and, for each of its nodes, the id in `g`.
fn inline(
    g: &mut Graph,
    body: &Graph,
    arguments: &[Value],
) -> Result<(Vec<Value>, Vec<NodeId>), OpError> {
    let mut arguments = arguments.iter().copied();
    let mut map: Vec<Value> = Vec::with_capacity(body.len());
    for (_, node) in body.nodes() {
        let argument = match &node.op {
            Op::Input(Input { .. }) => arguments.next(),
            _ => None,
        };
        let inputs: Vec<Value> = (node.inputs.iter())
            .map(|v| map[v.node.index()].port(v.port))
            .collect();
        map.push(match argument {
            Some(argument) => argument,
            None => g.add(node.op.clone(), &inputs)?,
        });
    }
    let results = body.outputs().iter();
    let results = results.map(|o| map[o.value.node.index()].port(o.value.port));
    Ok((results.collect(), map.iter().map(|v| v.node).collect()))
}

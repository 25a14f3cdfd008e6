//! Gradients of control flow. The gradient of an `If` is an `If`. The gradient of a scan is a scan
//! in the opposite direction, which recomputes each step from the state before it. An additional
//! forward scan saves the state before each step.

use tercet_tensor::Type;

use crate::grad::build::accumulate_dtype;
use crate::grad::decompose::inline;
use crate::grad::reverse::{active, reverse_pass};
use crate::grad::{GradError, NoGradient, Vjp, VjpResult};
use crate::graph::{Graph, Value};
use crate::ops::{If, Scan};
use crate::subgraph::SubGraph;

/// Why loops of unknown length have no gradient.
pub(crate) const WHILE: &str =
    "the number of states to save is known only after the run; use `scan` instead";

/// A block's arguments and results in the graph of its gradient.
struct GradSubgraph {
    graph: Graph,
    arguments: Vec<Value>,
    results: Vec<Value>,
}

impl GradSubgraph {
    /// Copies the nodes of a nested graph into a new graph whose inputs have the types of its
    /// arguments.
    fn new(block: &SubGraph) -> Result<GradSubgraph, NoGradient> {
        let mut graph = Graph::new();
        let mut arguments = Vec::new();
        for (i, ty) in block.arguments().enumerate() {
            arguments.push(graph.input(&format!("x{i}"), ty.clone())?);
        }
        let results = inline(&mut graph, block.graph(), &arguments)?;
        Ok(GradSubgraph {
            graph,
            arguments,
            results,
        })
    }

    /// The cotangents of some arguments from those of some results; missing ones are zeros.
    fn pulled(
        &mut self,
        name: &str,
        seeds: &[(Value, Value)],
        wanted: &[usize],
    ) -> Result<Vec<Value>, NoGradient> {
        let wanted: Vec<Value> = wanted.iter().map(|&i| self.arguments[i]).collect();
        let pulled =
            reverse_pass(&mut self.graph, 0, seeds, &wanted, Vec::new()).map_err(|e| match e {
                GradError::Rule { source, .. } => NoGradient::InvalidNode(source),
                e => NoGradient::because(crate::one_line(&e)),
            })?;
        if !pulled.breaks.is_empty() {
            let nodes: Vec<String> = pulled.breaks.iter().map(ToString::to_string).collect();
            let reason = format!("in `{name}`, {}", nodes.join("; "));
            return Err(NoGradient::because(reason));
        }
        let mut cotangents = Vec::with_capacity(wanted.len());
        for (v, cotangent) in wanted.iter().zip(pulled.cotangents) {
            cotangents.push(match cotangent {
                Some(cotangent) => cotangent,
                None => self.graph.zeros_like(*v)?,
            });
        }
        Ok(cotangents)
    }

    fn input(&mut self, name: &str, ty: Type) -> Result<Value, crate::OpError> {
        let at = self.graph.len();
        self.graph.input(&format!("{name}{at}"), ty)
    }

    fn finish(mut self, outputs: &[Value]) -> Result<SubGraph, crate::OpError> {
        for (i, v) in outputs.iter().enumerate() {
            self.graph.output(&format!("y{i}"), *v)?;
        }
        Ok(self.graph.into())
    }
}

pub(crate) fn branch(op: &If, v: &mut Vjp<'_>) -> VjpResult {
    let operands = v.operands();
    let wanted: Vec<usize> = (1..operands.len())
        .filter(|i| v.needs_cotangent(*i))
        .collect();
    let results = op.then.results();
    let ports: Vec<u8> = (0..results.len() as u8).filter(|p| v.has(*p)).collect();
    let mut captures = operands;
    for &port in &ports {
        let dy = v.dy(port)?;
        captures.push(dy);
    }
    let arguments: Vec<usize> = wanted.iter().map(|i| i - 1).collect();
    let one = |block: &SubGraph, name: &str| -> Result<SubGraph, NoGradient> {
        let mut inner = GradSubgraph::new(block)?;
        let mut seeds = Vec::with_capacity(ports.len());
        for &port in &ports {
            let own = inner.results[usize::from(port)];
            let ty = inner.graph.ty(own).clone();
            seeds.push((own, inner.input("dy", ty)?));
        }
        let cotangents = inner.pulled(name, &seeds, &arguments)?;
        Ok(inner.finish(&cotangents)?)
    };
    let back = If {
        then: one(&op.then, "then")?,
        otherwise: one(&op.otherwise, "else")?,
    };
    let first = v.add(back, &captures)?;
    for (port, &operand) in (0..).zip(&wanted) {
        v.accumulate(operand, first.port(port))?;
    }
    Ok(())
}

/// For each argument of a scan's body, whether it depends on a requested value. Carried values
/// propagate the dependence to each other.
fn changing(op: &Scan, v: &Vjp<'_>) -> Result<Vec<bool>, NoGradient> {
    let block = GradSubgraph::new(&op.body)?;
    let mut changes: Vec<bool> = (0..v.count()).map(|i| v.needs_cotangent(i)).collect();
    loop {
        let from: Vec<Value> = (block.arguments.iter().zip(&changes))
            .filter_map(|(v, changes)| changes.then_some(*v))
            .collect();
        let active = active(&block.graph, 0, &from);
        let mut more = false;
        for (changes, result) in changes[..op.carried].iter_mut().zip(&block.results) {
            if active.contains(result) && !*changes {
                (*changes, more) = (true, true);
            }
        }
        if !more {
            return Ok(changes);
        }
    }
}

/// The value of each carried state before each step, as sequences.
fn states(op: &Scan, v: &mut Vjp<'_>) -> Result<Vec<Value>, NoGradient> {
    if op.carried == 0 {
        return Ok(Vec::new());
    }
    let block = GradSubgraph::new(&op.body)?;
    let before = block.arguments[..op.carried].to_vec();
    let outputs = [&block.results[..op.carried], &before].concat();
    let kept = Scan {
        body: block.finish(&outputs)?,
        reverse_results: vec![false; op.carried],
        ..op.clone()
    };
    let operands = v.operands();
    let first = v.add(kept, &operands)?;
    let ports = op.carried as u8..2 * op.carried as u8;
    Ok(ports.map(|port| first.port(port)).collect())
}

/// Indices of the arguments of a scan's body that need cotangents (carried values, sequence
/// elements, captures), and of the result sequences that have cotangents.
struct ScanGradOperands {
    carried: Vec<usize>,
    scanned: Vec<usize>,
    captures: Vec<usize>,
    results: Vec<usize>,
}

impl ScanGradOperands {
    fn new(op: &Scan, v: &Vjp<'_>) -> Result<ScanGradOperands, NoGradient> {
        let changes = changing(op, v)?;
        let among = |range: std::ops::Range<usize>| range.filter(|i| changes[*i]).collect();
        let first = op.carried + op.scanned;
        let has = |i: &usize| v.has((op.carried + i) as u8);
        Ok(ScanGradOperands {
            carried: among(0..op.carried),
            scanned: among(op.carried..first),
            captures: among(first..v.count()),
            results: (0..op.reverse_results.len()).filter(has).collect(),
        })
    }

    /// The arguments that need cotangents, in the order in which the backward scan returns these
    /// cotangents.
    fn wanted(&self) -> Vec<usize> {
        [&self.carried[..], &self.captures, &self.scanned].concat()
    }
}

pub(crate) fn scan(op: &Scan, v: &mut Vjp<'_>) -> VjpResult {
    if op.carried > usize::from(u8::MAX / 2) {
        return Err(NoGradient::because(
            "the scan has more than 127 carried values",
        ));
    }
    let parts = ScanGradOperands::new(op, v)?;
    let reversed = Scan {
        body: body_backwards(op, &parts)?,
        carried: parts.carried.len() + parts.captures.len(),
        scanned: op.carried + op.scanned + parts.results.len(),
        reverse: (0..op.carried)
            .map(|_| true)
            .chain(op.reverse.iter().map(|r| !r))
            .chain(parts.results.iter().map(|&i| !op.reverse_results[i]))
            .collect(),
        reverse_results: parts
            .scanned
            .iter()
            .map(|&i| !op.reverse[i - op.carried])
            .collect(),
    };
    let operands = operands_backwards(op, &parts, v)?;
    let first = v.add(reversed, &operands)?;
    let own = v.operands();
    for (port, operand) in (0..).zip(parts.wanted()) {
        let dx = v.in_dtype_of(first.port(port), own[operand])?;
        v.accumulate(operand, dx)?;
    }
    Ok(())
}

/// The body of the backward scan. The backward scan carries the cotangents of carried values and
/// running sums for captures. The backward scan reads the saved states, the sequences of the
/// forward scan and the cotangents of result sequences. The backward scan has the captures of the
/// forward scan.
fn body_backwards(op: &Scan, parts: &ScanGradOperands) -> Result<SubGraph, NoGradient> {
    let first = op.carried + op.scanned;
    let mut inner = GradSubgraph::new(&op.body)?;
    let mut seeds = Vec::new();
    for &i in &parts.carried {
        let own = inner.results[i];
        let ty = inner.graph.ty(own).clone();
        seeds.push((own, inner.input("d", ty)?));
    }
    let mut sums = Vec::new();
    for &i in &parts.captures {
        let ty = inner.graph.ty(inner.arguments[i]);
        let ty = ty.with_dtype(accumulate_dtype(ty.dtype));
        sums.push(inner.input("sum", ty)?);
    }
    for &i in &parts.results {
        let own = inner.results[op.carried + i];
        let ty = inner.graph.ty(own).clone();
        seeds.push((own, inner.input("dy", ty)?));
    }
    let mut outputs = inner.pulled("body", &seeds, &parts.wanted())?;
    for (sum, output) in sums.iter().zip(&mut outputs[parts.carried.len()..]) {
        let more = inner.graph.widen(*output)?;
        *output = inner.graph.plus(*sum, more)?;
    }
    let seeds: Vec<Value> = seeds.into_iter().map(|(_, d)| d).collect();
    let (of_carried, of_results) = seeds.split_at(parts.carried.len());
    let own = &inner.arguments;
    let inputs = [of_carried, &sums, &own[..first], of_results, &own[first..]].concat();
    reordered(&inner.graph, &inputs, &outputs)
}

/// The operands of the backward scan with body [`body_backwards`].
fn operands_backwards(
    op: &Scan,
    parts: &ScanGradOperands,
    v: &mut Vjp<'_>,
) -> Result<Vec<Value>, NoGradient> {
    let (own, first) = (v.operands(), op.carried + op.scanned);
    let mut operands = Vec::new();
    for &i in &parts.carried {
        operands.push(v.dy(i as u8)?);
    }
    for &i in &parts.captures {
        let ty = v.ty(own[i]);
        let ty = ty.with_dtype(accumulate_dtype(ty.dtype));
        operands.push(v.filled(&ty, 0.0)?);
    }
    operands.extend(states(op, v)?);
    operands.extend(&own[op.carried..first]);
    for &i in &parts.results {
        operands.push(v.dy((op.carried + i) as u8)?);
    }
    operands.extend(&own[first..]);
    Ok(operands)
}

/// Converts a graph to a nested graph with the arguments `inputs`, in this order, and the results
/// `outputs`.
fn reordered(graph: &Graph, inputs: &[Value], outputs: &[Value]) -> Result<SubGraph, NoGradient> {
    let mut block = Graph::new();
    let mut map: Vec<Option<Value>> = vec![None; graph.len()];
    for (i, input) in inputs.iter().enumerate() {
        map[input.node.index()] = Some(block.input(&format!("x{i}"), graph.ty(*input).clone())?);
    }
    let placed = |map: &[Option<Value>], v: &Value| {
        let first = map[v.node.index()].expect("invariant: every input is in the order");
        first.port(v.port)
    };
    for (id, node) in graph.nodes() {
        if map[id.index()].is_none() {
            let inputs: Vec<Value> = node.inputs.iter().map(|v| placed(&map, v)).collect();
            map[id.index()] = Some(block.add(node.op.clone(), &inputs)?);
        }
    }
    for (i, v) in outputs.iter().enumerate() {
        block.output(&format!("y{i}"), placed(&map, v))?;
    }
    Ok(block.into())
}

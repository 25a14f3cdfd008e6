//! Control flow. A branch is differentiated into a branch, a scan into a scan from the other end that computes each
//! step again from the state before it, which a scan of its own keeps.

use crate::grad::build::wide;
use crate::grad::decompose::inline;
use crate::grad::reverse::{active, pull};
use crate::grad::{GradError, NoGradient, Ruled, Vjp};
use crate::graph::{Graph, Value};
use crate::ops::{If, Scan};
use crate::subgraph::SubGraph;
use crate::types::Type;

/// Why loops of unknown length have no gradient.
pub(crate) const WHILE: &str =
    "how many states it would have to keep is known only when it has run; use `scan`";

/// A block's own operands and results in the graph of its gradient.
struct Block {
    graph: Graph,
    arguments: Vec<Value>,
    results: Vec<Value>,
}

impl Block {
    /// The nodes of a block, as a graph with arguments of these types.
    fn of(block: &SubGraph) -> Result<Block, NoGradient> {
        let mut graph = Graph::new();
        let mut arguments = Vec::new();
        for (i, ty) in block.arguments().enumerate() {
            arguments.push(graph.input(&format!("x{i}"), ty.clone())?);
        }
        let results = inline(&mut graph, block.graph(), &arguments)?;
        Ok(Block {
            graph,
            arguments,
            results,
        })
    }

    /// The cotangents of some arguments from those of some results, zeros where there are none.
    fn pulled(
        &mut self,
        name: &str,
        seeds: &[(Value, Value)],
        wanted: &[usize],
    ) -> Result<Vec<Value>, NoGradient> {
        let wanted: Vec<Value> = wanted.iter().map(|&i| self.arguments[i]).collect();
        let pulled = pull(&mut self.graph, 0, seeds, &wanted, Vec::new()).map_err(|e| match e {
            GradError::Rule { source, .. } => NoGradient::Refused(source),
            e => NoGradient::because(crate::one_line(&e)),
        })?;
        if !pulled.severed.is_empty() {
            let nodes: Vec<String> = pulled.severed.iter().map(ToString::to_string).collect();
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

pub(crate) fn branch(op: &If, v: &mut Vjp<'_>) -> Ruled {
    let operands = v.operands();
    let wanted: Vec<usize> = (1..operands.len()).filter(|i| v.wants(*i)).collect();
    let results = op.then.results();
    let ports: Vec<u8> = (0..results.len() as u8).filter(|p| v.has(*p)).collect();
    let mut captures = operands;
    for &port in &ports {
        let dy = v.dy(port)?;
        captures.push(dy);
    }
    let arguments: Vec<usize> = wanted.iter().map(|i| i - 1).collect();
    let one = |block: &SubGraph, name: &str| -> Result<SubGraph, NoGradient> {
        let mut inner = Block::of(block)?;
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
        v.give(operand, first.port(port))?;
    }
    Ok(())
}

/// Which arguments of a scan's body change with what is wanted: values carried pass it on to each other.
fn changing(op: &Scan, v: &Vjp<'_>) -> Result<Vec<bool>, NoGradient> {
    let block = Block::of(&op.body)?;
    let mut changes: Vec<bool> = (0..v.count()).map(|i| v.wants(i)).collect();
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

/// What each value carried was before each step, as sequences.
fn states(op: &Scan, v: &mut Vjp<'_>) -> Result<Vec<Value>, NoGradient> {
    if op.carried == 0 {
        return Ok(Vec::new());
    }
    let block = Block::of(&op.body)?;
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

/// The arguments of a scan's body that have cotangents, by what they are, and the result sequences that do.
struct Parts {
    carried: Vec<usize>,
    scanned: Vec<usize>,
    captures: Vec<usize>,
    results: Vec<usize>,
}

impl Parts {
    fn of(op: &Scan, v: &Vjp<'_>) -> Result<Parts, NoGradient> {
        let changes = changing(op, v)?;
        let among = |range: std::ops::Range<usize>| range.filter(|i| changes[*i]).collect();
        let first = op.carried + op.scanned;
        let has = |i: &usize| v.has((op.carried + i) as u8);
        Ok(Parts {
            carried: among(0..op.carried),
            scanned: among(op.carried..first),
            captures: among(first..v.count()),
            results: (0..op.reverse_results.len()).filter(has).collect(),
        })
    }

    /// In the order of the results of the scan backwards.
    fn wanted(&self) -> Vec<usize> {
        [&self.carried[..], &self.captures, &self.scanned].concat()
    }
}

pub(crate) fn scan(op: &Scan, v: &mut Vjp<'_>) -> Ruled {
    if op.carried > usize::from(u8::MAX / 2) {
        return Err(NoGradient::because("it carries more than 127 values"));
    }
    let parts = Parts::of(op, v)?;
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
        v.give(operand, dx)?;
    }
    Ok(())
}

/// One step backwards. It takes the cotangents of values carried and the sums for captures; the states, the parts of
/// sequences and the cotangents of those of results; the captures.
fn body_backwards(op: &Scan, parts: &Parts) -> Result<SubGraph, NoGradient> {
    let first = op.carried + op.scanned;
    let mut inner = Block::of(&op.body)?;
    let mut seeds = Vec::new();
    for &i in &parts.carried {
        let own = inner.results[i];
        let ty = inner.graph.ty(own).clone();
        seeds.push((own, inner.input("d", ty)?));
    }
    let mut sums = Vec::new();
    for &i in &parts.captures {
        let ty = inner.graph.ty(inner.arguments[i]);
        let ty = ty.with_dtype(wide(ty.dtype));
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

/// What the steps of [`body_backwards`] are given.
fn operands_backwards(op: &Scan, parts: &Parts, v: &mut Vjp<'_>) -> Result<Vec<Value>, NoGradient> {
    let (own, first) = (v.operands(), op.carried + op.scanned);
    let mut operands = Vec::new();
    for &i in &parts.carried {
        operands.push(v.dy(i as u8)?);
    }
    for &i in &parts.captures {
        let ty = v.ty(own[i]);
        let ty = ty.with_dtype(wide(ty.dtype));
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

/// A graph with its inputs in this order, as a block of these results.
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

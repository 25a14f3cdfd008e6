//! Exports the scans of recurrent layers as ONNX `Scan`: a graph of one step, over the tokens.
//!
//! Each operator becomes a graph with a [`Scan`](tercet_ir::ops::Scan), which is legalized and
//! written like any other. The arithmetic is F32, or F64 for F64, because states accumulate many
//! small steps.

use tercet_ir::legalize::legalize;
use tercet_ir::ops::{GatedDeltaNet, Mamba2, ReduceFn, SelectiveScan};
use tercet_ir::{DType, Dim, Graph, OpError, Shape, Value, one_line};

use super::OnnxTarget;
use super::node::ExportNode;
use super::writer::{ExportNodeError, ExportNodeResult};

/// A new graph whose inputs have the types of the operands of a state-space scan.
struct ScanGraph {
    graph: Graph,
    /// The operands in the dtype of the arithmetic.
    operands: Vec<Value>,
    dtype: DType,
    /// The dtype of the results.
    narrow: DType,
}

/// The body of one step: its inputs are the carried state, the step's element of each sequence,
/// and the captures. It returns the next state and the result.
type Step<'a> = dyn Fn(&mut Graph, &[Value]) -> Result<[Value; 2], OpError> + 'a;

impl ScanGraph {
    /// Declares the operands of a node.
    fn new(at: &ExportNode<'_>) -> Result<ScanGraph, OpError> {
        let narrow = at.ty(0).dtype;
        let dtype = match narrow {
            DType::F64 => DType::F64,
            _ => DType::F32,
        };
        let mut graph = Graph::new();
        let mut operands = Vec::new();
        for operand in 0..at.operands() {
            let ty = at.ty(operand);
            let x = graph.input(&format!("x{operand}"), ty.clone())?;
            operands.push(if ty.dtype == dtype {
                x
            } else {
                graph.cast(x, dtype)?
            });
        }
        Ok(ScanGraph {
            graph,
            operands,
            dtype,
            narrow,
        })
    }

    /// Scans the operands `sequences` along their second axis, from the state operand or zeros of
    /// `shape`, and outputs the results, then the final state.
    fn scan(
        mut self,
        sequences: &[usize],
        captures: &[usize],
        shape: Shape,
        step: &Step<'_>,
    ) -> Result<Graph, OpError> {
        let g = &mut self.graph;
        let state = match self.operands.get(5) {
            Some(state) => *state,
            None => {
                let zero = g.scalar(self.dtype, 0.0)?;
                g.expand(zero, shape)?
            }
        };
        let mut scanned = Vec::new();
        for operand in sequences {
            let x = self.operands[*operand];
            scanned.push(steps_first(g, x)?);
        }
        let captured: Vec<Value> = captures.iter().map(|i| self.operands[*i]).collect();
        let mut body = Graph::new();
        let mut arguments = vec![body.input("state", g.ty(state).clone())?];
        for (i, x) in scanned.iter().enumerate() {
            let ty = g.ty(*x);
            let part: Shape = ty.shape.iter().skip(1).cloned().collect();
            arguments.push(body.input(&format!("x{i}"), ty.with_shape(part))?);
        }
        for (i, x) in captured.iter().enumerate() {
            arguments.push(body.input(&format!("c{i}"), g.ty(*x).clone())?);
        }
        let [next, y] = step(&mut body, &arguments)?;
        body.output("state", next)?;
        body.output("y", y)?;
        let last = g.scan_over(&[state], &scanned, &captured, body)?;
        let y = steps_first(g, last.port(1))?;
        let y = g.cast(y, self.narrow)?;
        g.output("y", y)?;
        g.output("state", last)?;
        Ok(self.graph)
    }
}

/// Exchanges the first two axes.
pub fn steps_first(g: &mut Graph, x: Value) -> Result<Value, OpError> {
    let mut perm: Vec<usize> = (0..g.ty(x).rank()).collect();
    perm.swap(0, 1);
    g.transpose(x, &perm)
}

/// Writes the graph and returns the names of the node's results.
fn write(at: &mut ExportNode<'_>, made: Result<Graph, OpError>, carry: bool) -> ExportNodeResult {
    let graph = made.map_err(|e| ExportNodeError::NoForm(one_line(&e)))?;
    let graph = legalize(&graph, &OnnxTarget).map_err(|e| ExportNodeError::NoForm(one_line(&e)))?;
    let names = at.names.clone();
    let mut results = at.w.inlined(&graph, &names)?;
    match carry {
        true if at.result(1).dtype != graph.ty(graph.outputs()[1].value).dtype => {
            let to = super::proto::code(at.result(1).dtype);
            results[1] = at.w.cast(&results[1].clone(), to);
        }
        true => {}
        false => results.truncate(1),
    }
    Ok(results)
}

/// Appends axes of size 1 until the rank is `rank`.
pub fn with_rank(g: &mut Graph, mut x: Value, rank: usize) -> Result<Value, OpError> {
    while g.ty(x).rank() < rank {
        let axis = g.ty(x).rank();
        x = g.unsqueeze(x, axis)?;
    }
    Ok(x)
}

/// The scan of Mamba: `h = exp(delta a) h + delta b x`, `y = c h`.
pub(super) fn selective_scan(at: &mut ExportNode<'_>, o: &SelectiveScan) -> ExportNodeResult {
    let [batch, channels] = [0, 2].map(|axis| at.ty(0).shape[axis].clone());
    let shape: Shape = [batch, channels, Dim::Known(o.n)].into_iter().collect();
    let step = |g: &mut Graph, x: &[Value]| {
        let [h, x, delta, b, c, a] = [0, 1, 2, 3, 4, 5].map(|i| x[i]);
        let wide = with_rank(g, delta, 3)?;
        let exponent = g.mul(wide, a)?;
        let decay = g.exp(exponent)?;
        let kept = g.mul(decay, h)?;
        let added = g.mul(delta, x)?;
        let added = with_rank(g, added, 3)?;
        let b = g.unsqueeze(b, 1)?;
        let added = g.mul(added, b)?;
        let next = g.plus(kept, added)?;
        let c = g.unsqueeze(c, 1)?;
        let read = g.mul(next, c)?;
        Ok([next, g.reduce(ReduceFn::Sum, read, &[2], false)?])
    };
    let made = ScanGraph::new(at).and_then(|graph| graph.scan(&[0, 1, 3, 4], &[2], shape, &step));
    write(at, made, o.carry)
}

/// The scan of Mamba-2: `S = exp(dt a) S + (dt x) outer b`, `y = S c`.
pub(super) fn mamba2(at: &mut ExportNode<'_>, o: &Mamba2) -> ExportNodeResult {
    let (x, b) = (&at.ty(0).shape, &at.ty(3).shape);
    let [batch, heads, per_head, states] = [&x[0], &x[2], &x[3], &b[3]].map(Clone::clone);
    let shape: Shape = [batch.clone(), heads.clone(), per_head, states.clone()]
        .into_iter()
        .collect();
    // One row of `b` or `c` for each head.
    let of_heads = |g: &mut Graph, x: Value| -> Result<Value, OpError> {
        let groups = g.ty(x).shape[1].clone();
        let share = match (heads.known(), groups.known()) {
            (Some(heads), Some(groups)) if groups > 0 => heads / groups,
            _ => 1,
        };
        let x = g.unsqueeze(x, 2)?;
        let wide: Shape = [batch.clone(), groups, Dim::Known(share), states.clone()]
            .into_iter()
            .collect();
        let x = g.expand(x, wide)?;
        let all: Shape = [batch.clone(), heads.clone(), Dim::Known(1), states.clone()]
            .into_iter()
            .collect();
        g.reshape(x, all)
    };
    let step = |g: &mut Graph, x: &[Value]| {
        let [state, x, dt, b, c, a] = [0, 1, 2, 3, 4, 5].map(|i| x[i]);
        let exponent = g.mul(dt, a)?;
        let decay = g.exp(exponent)?;
        let decay = with_rank(g, decay, 4)?;
        let kept = g.mul(decay, state)?;
        let dt = with_rank(g, dt, 3)?;
        let added = g.mul(dt, x)?;
        let added = with_rank(g, added, 4)?;
        let b = of_heads(g, b)?;
        let added = g.mul(added, b)?;
        let next = g.plus(kept, added)?;
        let c = of_heads(g, c)?;
        let read = g.mul(next, c)?;
        Ok([next, g.reduce(ReduceFn::Sum, read, &[3], false)?])
    };
    let made = ScanGraph::new(at).and_then(|graph| graph.scan(&[0, 1, 3, 4], &[2], shape, &step));
    write(at, made, o.carry)
}

/// The gated delta rule: `S *= exp(g)`, `d = beta (v - S^T k)`, `S += k outer d`, `o = S^T q / sqrt(N)`.
pub(super) fn gated_delta_net(at: &mut ExportNode<'_>, o: &GatedDeltaNet) -> ExportNodeResult {
    let (q, v) = (&at.ty(0).shape, &at.ty(2).shape);
    let [batch, heads, states, columns] = [&q[0], &q[2], &q[3], &v[3]].map(Clone::clone);
    let scale = states.known().map_or(1.0, |n| (n.max(1) as f64).powf(-0.5));
    let shape: Shape = [batch, heads, states, columns].into_iter().collect();
    let step = move |g: &mut Graph, x: &[Value]| {
        let [state, q, k, v, gate, beta] = [0, 1, 2, 3, 4, 5].map(|i| x[i]);
        let decay = g.exp(gate)?;
        let decay = with_rank(g, decay, 4)?;
        let kept = g.mul(decay, state)?;
        let [q, k] = [with_rank(g, q, 4)?, with_rank(g, k, 4)?];
        let seen = g.mul(kept, k)?;
        let seen = g.reduce(ReduceFn::Sum, seen, &[2], false)?;
        let error = g.sub(v, seen)?;
        let beta = with_rank(g, beta, 3)?;
        let error = g.mul(beta, error)?;
        let error = g.unsqueeze(error, 2)?;
        let added = g.mul(k, error)?;
        let next = g.plus(kept, added)?;
        let read = g.mul(next, q)?;
        let read = g.reduce(ReduceFn::Sum, read, &[2], false)?;
        let scale = g.scalar(g.ty(read).dtype, scale)?;
        Ok([next, g.mul(read, scale)?])
    };
    let made = ScanGraph::new(at).and_then(|graph| graph.scan(&[0, 1, 2, 3, 4], &[], shape, &step));
    write(at, made, o.carry)
}

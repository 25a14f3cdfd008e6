//! Parameters above the binding limit, read in parts: a kernel binds a range of their buffer.
//!
//! An embedding table or the output head of a large vocabulary is often the only tensor above the 128 MiB that a
//! browser binds. [`split`] rewrites what reads such a parameter by rows: gathered rows are chosen among those gathered from
//! each part, and a product with its rows as columns (`x W^T`, packed or not) is the products with the parts, side by
//! side. The parts are slices of the parameter along its first axis; the planner gives each a slot of its own within the
//! buffer ([`Parts`]), which begins where bindings may. What reads it otherwise leaves it whole, and it is refused as before.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use tercet_ir::ops::{Gather, Op, Slice};
use tercet_ir::{CompileError, DType, Dim, Graph, Node, NodeId, OpError, Shape, Signature, Value};

use crate::caps::Caps;

/// Rows of packed blocks may lie in planes, at multiples of so many bytes.
const PLANE_ALIGN: u64 = 16;

/// The graph with parameters above the limit in parts, where all that reads them can; `None` if there are none.
///
/// # Errors
/// [`CompileError::Rewrite`] when an operator refuses a part, which none does.
pub(crate) fn split(graph: &Graph, caps: &Caps) -> Result<Option<Graph>, CompileError> {
    let large = large(graph, caps);
    if large.is_empty() {
        return Ok(None);
    }
    let mut new = Rewrite {
        old: graph,
        graph: Graph::new(),
        values: Vec::with_capacity(graph.len()),
        parts: HashMap::new(),
    };
    for (id, node) in graph.nodes() {
        let origin = graph.origin(id);
        let at = origin.node;
        new.graph.add_for(Some(origin));
        let done = new.node(id, node, &large);
        let values = done.map_err(|source| CompileError::Rewrite { node: at, source })?;
        new.values.push(values);
    }
    new.graph.add_for(None);
    let failed = |v: Value| {
        move |source| CompileError::Rewrite {
            node: v.node,
            source,
        }
    };
    for o in graph.outputs() {
        let value = new.value(o.value);
        (new.graph.output(&o.name, value)).map_err(failed(o.value))?;
    }
    for a in graph.assigns() {
        let (state, value) = (new.value(a.state), new.value(a.value));
        (new.graph.assign(state, value)).map_err(failed(a.value))?;
    }
    Ok(Some(new.graph))
}

/// The parameters to split, by node, with the rows of their parts.
fn large(graph: &Graph, caps: &Caps) -> HashMap<NodeId, Vec<Range<usize>>> {
    let over = graph.nodes().filter_map(|(id, node)| {
        let Op::Param(_) = &node.op else {
            return None;
        };
        Some((id, parts_of(node, caps)?))
    });
    let mut large: HashMap<NodeId, Vec<Range<usize>>> = over.collect();
    if large.is_empty() {
        return large;
    }
    let mut refused: HashSet<NodeId> = graph.results().map(|v| v.node).collect();
    for (_, node) in graph.nodes() {
        for (at, v) in node.inputs.iter().enumerate() {
            if large.contains_key(&v.node) && !reads_parts(graph, node, at) {
                refused.insert(v.node);
            }
            // A transpose that something else than products reads needs the whole.
            let of = graph.node(v.node);
            let is_transposed = matches!(of.op, Op::Transpose(_));
            if is_transposed && !is_right_factor(node, at) {
                refused.extend(of.inputs.iter().map(|v| v.node));
            }
        }
    }
    for v in graph.results() {
        refused.extend(
            graph
                .node(v.node)
                .inputs
                .iter()
                .map(|v| v.node)
                .filter(|_| matches!(graph.node(v.node).op, Op::Transpose(_))),
        );
    }
    large.retain(|id, _| !refused.contains(id));
    large
}

/// True if a product reads this operand as its right factor.
fn is_right_factor(node: &Node, at: usize) -> bool {
    at == 1 && matches!(node.op, Op::MatMul(_) | Op::Linear(_))
}

/// True if a node can read this operand, a parameter, in parts: it gathers rows, multiplies by packed rows, or is a
/// transpose.
fn reads_parts(graph: &Graph, node: &Node, at: usize) -> bool {
    let rank = graph.ty(node.inputs[at]).rank();
    match &node.op {
        Op::Gather(o) => at == 0 && o.axis == 0 && graph.ty(node.inputs[1]).dtype == DType::I32,
        Op::Transpose(o) => rank == 2 && o.perm == [1, 0],
        Op::DequantMatMul(_) => at == 1 && rank == 2,
        _ => false,
    }
}

/// The rows of each part of a parameter above the limit; `None` below it, or where no row fits.
fn parts_of(node: &Node, caps: &Caps) -> Option<Vec<Range<usize>>> {
    let ty = node.outputs.first()?;
    let sizes = ty.shape.as_known()?;
    let (&rows, rest) = sizes.split_first()?;
    let elements = rest.iter().try_fold(1usize, |n, d| n.checked_mul(*d))?;
    let row = (elements as u64).checked_mul(ty.dtype.size_bytes() as u64)?;
    let stride = match ty.dtype {
        DType::U8 => row.next_multiple_of(PLANE_ALIGN),
        _ => row,
    };
    let limit = caps.max_binding_bytes;
    if row == 0 || stride.checked_mul(rows as u64)? <= limit {
        return None;
    }
    // Both in the order of the file and in planes parts begin where bindings may.
    let align = u64::from(caps.storage_align_bytes);
    let step =
        [row, stride].map(|bytes| align >> bytes.trailing_zeros().min(align.trailing_zeros()));
    let step = step[0].max(step[1]);
    let most = limit / stride / step * step;
    let most = usize::try_from(most).ok().filter(|n| *n > 0)?;
    let starts = (0..rows).step_by(most);
    Some(starts.map(|a| a..(a + most).min(rows)).collect())
}

struct Rewrite<'g> {
    old: &'g Graph,
    graph: Graph,
    /// The new results of the old nodes; none for a transpose in parts.
    values: Vec<Vec<Value>>,
    /// The parts of an old parameter, with their first rows.
    parts: HashMap<NodeId, Vec<(Range<usize>, Value)>>,
}

impl Rewrite<'_> {
    fn value(&self, old: Value) -> Value {
        self.values[old.node.index()][usize::from(old.port)]
    }

    fn node(
        &mut self,
        id: NodeId,
        node: &Node,
        large: &HashMap<NodeId, Vec<Range<usize>>>,
    ) -> Result<Vec<Value>, OpError> {
        let split = node.inputs.iter().enumerate().find_map(|(at, v)| {
            let of = self.old.node(v.node);
            let under = match (&of.op, of.inputs.first()) {
                (Op::Transpose(_), Some(param)) => param.node,
                _ => v.node,
            };
            let known = self.parts.contains_key(&under);
            (known && (v.node == under || is_right_factor(node, at))).then_some(under)
        });
        if let Some(param) = split {
            let parts = self.parts[&param].clone();
            return match &node.op {
                Op::Transpose(_) => Ok(Vec::new()),
                Op::Gather(_) => Ok(vec![self.gather(node, &parts)?]),
                _ => Ok(vec![self.product(node, &parts)?]),
            };
        }
        let inputs: Vec<Value> = node.inputs.iter().map(|v| self.value(*v)).collect();
        let first = self.graph.add(node.op.clone(), &inputs)?;
        if let Some(ranges) = large.get(&id) {
            let mut parts = Vec::with_capacity(ranges.len());
            for rows in ranges {
                let (from, to) = (rows.start as i64, rows.end as i64);
                let part = self.graph.slice_axis(first, 0, from, to, 1)?;
                parts.push((rows.clone(), part));
            }
            self.parts.insert(id, parts);
        }
        Ok((0..node.outputs.len() as u8)
            .map(|p| first.port(p))
            .collect())
    }

    /// Rows of a table in parts: those of each part, of which each index takes its own.
    fn gather(&mut self, node: &Node, parts: &[(Range<usize>, Value)]) -> Result<Value, OpError> {
        let old = self.old.ty(node.inputs[0]);
        let rows = parts.last().map_or(0, |(rows, _)| rows.end);
        let idx = self.value(node.inputs[1]);
        let g = &mut self.graph;
        // An index out of range is found against all rows; parts are read where they have some.
        let zero = g.scalar(DType::I32, 0.0)?;
        let one = g.reshape(zero, [1usize])?;
        let zeros = g.expand(one, [rows])?;
        let checked = g.add(Gather { axis: 0 }, &[zeros, idx])?;
        let all = g.scalar(DType::I32, rows as f64)?;
        let (is_back, back) = (g.lt(idx, zero)?, g.plus(idx, all)?);
        let at = g.where_(is_back, back, idx)?;
        let at = g.plus(at, checked)?;
        let mut choice: Vec<Dim> = g.ty(idx).shape.iter().cloned().collect();
        choice.extend((1..old.rank()).map(|_| Dim::Known(1)));
        let choice = Shape::from(choice);
        let mut taken: Option<Value> = None;
        for (rows, part) in parts {
            let first = g.scalar(DType::I32, rows.start as f64)?;
            let local = g.sub(at, first)?;
            let local = g.clamp(local, 0.0, (rows.len() - 1) as f64)?;
            let here = g.gather(*part, local, 0)?;
            taken = Some(match taken {
                None => here,
                Some(before) => {
                    let is_here = g.ge(at, first)?;
                    let is_here = g.reshape(is_here, choice.clone())?;
                    g.where_(is_here, here, before)?
                }
            });
        }
        Ok(taken.unwrap_or_else(|| unreachable!("invariant: a split parameter has parts")))
    }

    /// Columns of a product: those of each part, side by side.
    fn product(&mut self, node: &Node, parts: &[(Range<usize>, Value)]) -> Result<Value, OpError> {
        let x = self.value(node.inputs[0]);
        let bias = node.inputs.get(2).map(|v| self.value(*v));
        let g = &mut self.graph;
        let mut columns = Vec::with_capacity(parts.len());
        for (rows, part) in parts {
            let mut inputs = vec![x];
            inputs.push(match &node.op {
                Op::DequantMatMul(_) => *part,
                _ => g.transpose(*part, &[1, 0])?,
            });
            if let Some(bias) = bias {
                let (from, to) = (rows.start as i64, rows.end as i64);
                inputs.push(g.slice_axis(bias, 0, from, to, 1)?);
            }
            columns.push(g.add(node.op.clone(), &inputs)?);
        }
        let axis = node.outputs[0].rank() - 1;
        g.concat(&columns, axis)
    }
}

/// The parameters, by their places in the signature, that no kernel reads but through slices of rows below the limit.
#[derive(Clone, Debug, Default)]
pub(crate) struct Parts(HashSet<u32>);

impl Parts {
    /// Those of a legal graph.
    pub(crate) fn of(graph: &Graph, signature: &Signature, caps: &Caps) -> Parts {
        let mut found = HashSet::new();
        for (id, node) in graph.nodes() {
            let Op::Param(param) = &node.op else {
                continue;
            };
            let place = signature.params.iter().position(|p| p.name == param.name);
            let (Some(place), Some(_)) = (place, parts_of(node, caps)) else {
                continue;
            };
            let reads_it = |n: &Node| n.inputs.iter().any(|v| v.node == id);
            let mut readers = graph.nodes().filter(|(_, n)| reads_it(n));
            let is_result = graph.results().any(|v| v.node == id);
            if !is_result && readers.all(|(_, n)| rows_of(graph, n).is_some()) {
                found.insert(place as u32);
            }
        }
        Parts(found)
    }

    pub(crate) fn contains(&self, param: u32) -> bool {
        self.0.contains(&param)
    }
}

/// The first row that a slice of whole rows, one after the other, takes.
pub(crate) fn rows_of(graph: &Graph, node: &Node) -> Option<usize> {
    let Op::Slice(Slice {
        starts,
        ends,
        steps,
    }) = &node.op
    else {
        return None;
    };
    let (from, to) = (graph.ty(*node.inputs.first()?), &node.outputs[0]);
    let is_whole = |(a, b): (&Dim, &Dim)| a == b;
    let rest = from.shape.iter().skip(1).zip(to.shape.iter().skip(1));
    let first = usize::try_from(*starts.first()?).ok()?;
    let ordered = steps.iter().all(|s| *s == 1) && ends.first()? > starts.first()?;
    (ordered && rest.into_iter().all(is_whole)).then_some(first)
}

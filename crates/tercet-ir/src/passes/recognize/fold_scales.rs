//! Numbers that rows are multiplied by before or behind a product become factors of its weights, where those are converted
//! in any case.
//!
//! The sigmoid that stands for GELU in CLIP, `x sigmoid(1.702 x)`, is SiLU between two such numbers, which kept it out of the
//! product before it. Weights that are parameters of F32 and multiplied in fewer bits take a factor before they are rounded, so
//! that they are as exact as before, and it is computed once. Weights that are read as they are stay so: a factor would
//! be a copy of them.

use std::collections::{HashMap, HashSet};

use super::super::pack_qkv;
use super::super::rewrite::{Rewriter, Uses, live_nodes, rebuild};
use super::Seen;
use crate::dtype::DType;
use crate::error::CompileError;
use crate::graph::{Graph, NodeId, Value};
use crate::ops::{Binary, Cast, Const, Linear, Op, Transpose};
use crate::scalar::{BinaryFn, UnaryFn};
use crate::tensor::Tensor;

/// Factors up to this, or its inverse, leave weights and results within the range of narrow numbers.
const MOST: f64 = 4.0;

/// A parameter that is converted, and turned where it is a matrix.
struct Converted {
    leaf: Value,
    to: DType,
    is_turned: bool,
}

/// A product whose weights take the factors around it.
struct Scaled {
    product: NodeId,
    x: Value,
    weight: Converted,
    bias: Option<Converted>,
    activation: Option<UnaryFn>,
    /// Before and behind the product.
    factors: [f64; 2],
    /// What it stands for.
    last: NodeId,
    inner: Vec<NodeId>,
}

/// Gives factors to weights.
pub(in super::super) fn factors(graph: &Graph) -> Result<Graph, CompileError> {
    let live = live_nodes(graph);
    let seen = Seen {
        graph,
        uses: Uses::of(graph),
    };
    let packable: HashSet<NodeId> = pack_qkv::groups(graph).into_iter().flatten().collect();
    let products = graph.nodes().map(|(id, _)| id);
    // A number between two products goes to the first.
    let mut found: HashMap<NodeId, Scaled> = HashMap::new();
    for id in products.filter(|id| live[id.index()] && !packable.contains(id)) {
        if let Some(scaled) = scaled(&seen, id, |before| found.contains_key(&before)) {
            found.insert(scaled.last, scaled);
        }
    }
    if found.is_empty() {
        return Ok(graph.clone());
    }
    let inner: HashSet<NodeId> = found.values().flat_map(|s| s.inner.clone()).collect();
    rebuild(graph, |rw, id, _| {
        if let Some(scaled) = found.get(&id) {
            rw.stand_for(scaled.product);
            let new = scaled.product(rw)?;
            rw.bind(Value { node: id, port: 0 }, new);
            return Ok(());
        }
        match inner.contains(&id) || !live[id.index()] {
            true => Ok(()),
            false => rw.copy(id),
        }
    })
}

/// A number beside a value that it leaves its type, if it is within bounds.
fn factor(seen: &Seen<'_>, v: Value) -> Option<(Value, f64)> {
    let found = seen.with_number(v, BinaryFn::Mul)?;
    (1.0 / MOST..=MOST)
        .contains(&found.1.abs())
        .then_some(found)
}

/// The parameter of F32 that a value is, in fewer bits.
fn converted(graph: &Graph, mut v: Value) -> Option<Converted> {
    let mut is_turned = false;
    let mut node = graph.node(v.node);
    if let (Op::Transpose(t), &[x]) = (&node.op, node.inputs.as_slice())
        && t.perm == [1, 0]
    {
        (is_turned, v) = (true, x);
        node = graph.node(v.node);
    }
    let (Op::Cast(cast), &[leaf]) = (&node.op, node.inputs.as_slice()) else {
        return None;
    };
    let is_wide = graph.ty(leaf).dtype == DType::F32 && matches!(cast.to, DType::F16 | DType::BF16);
    let is_param = matches!(graph.node(leaf.node).op, Op::Param(_));
    (is_wide && is_param).then_some(Converted {
        leaf,
        to: cast.to,
        is_turned,
    })
}

/// A product with factors around it, but for numbers before it that are `taken`.
fn scaled(seen: &Seen<'_>, id: NodeId, taken: impl Fn(NodeId) -> bool) -> Option<Scaled> {
    let graph = seen.graph;
    let node = graph.node(id);
    let (&[x, w, ref bias @ ..], activation) = (
        node.inputs.as_slice(),
        match &node.op {
            Op::MatMul(_) => None,
            Op::Linear(l) => l.activation,
            _ => return None,
        },
    ) else {
        return None;
    };
    if graph.ty(w).rank() != 2 || graph.ty(x).rank() < 2 {
        return None;
    }
    let weight = converted(graph, w)?;
    let mut found = Scaled {
        product: id,
        x,
        weight,
        bias: match bias {
            [b, ..] => Some(converted(graph, *b)?),
            [] => None,
        },
        activation,
        factors: [1.0; 2],
        last: id,
        inner: Vec::new(),
    };
    if let Some((own, by)) = factor(seen, x)
        && seen.uses.of_value(x).only() == Some(id)
        && !taken(x.node)
    {
        (found.x, found.factors[0]) = (own, by);
        found.inner.push(x.node);
    }
    if activation.is_none() {
        found.take_behind(seen);
    }
    (found.factors != [1.0; 2]).then_some(found)
}

impl Scaled {
    /// Takes a factor behind the product, or behind the sum with a bias.
    fn take_behind(&mut self, seen: &Seen<'_>) {
        let reader = |node| seen.uses.of_value(Value { node, port: 0 }).only();
        let mut last = self.last;
        let mut bias = None;
        if self.bias.is_none()
            && let Some(sum) = reader(last)
            && let Some([l, r]) = seen.binary(Value { node: sum, port: 0 }, BinaryFn::Add)
        {
            let other = if l.node == last { r } else { l };
            let is_vector = seen.graph.ty(other).rank() == 1;
            let Some(found) = converted(seen.graph, other).filter(|_| is_vector) else {
                return;
            };
            (bias, last) = (Some(found), sum);
        }
        let Some(next) = reader(last) else {
            return;
        };
        let Some((of, by)) = factor(
            seen,
            Value {
                node: next,
                port: 0,
            },
        ) else {
            return;
        };
        if of.node == last {
            self.inner.push(self.last);
            if last != self.last {
                self.inner.push(last);
            }
            self.bias = self.bias.take().or(bias);
            (self.factors[1], self.last) = (by, next);
        }
    }

    fn product(&self, rw: &mut Rewriter<'_>) -> Result<Value, CompileError> {
        let [before, behind] = self.factors;
        let mut inputs = vec![rw.value(self.x)];
        inputs.push(times(rw, &self.weight, before * behind)?);
        if let Some(bias) = &self.bias {
            inputs.push(times(rw, bias, behind)?);
        }
        let activation = self.activation;
        rw.add(Linear { activation }, &inputs)
    }
}

/// A parameter times a number, converted.
fn times(rw: &mut Rewriter<'_>, of: &Converted, by: f64) -> Result<Value, CompileError> {
    let mut v = rw.leaf(of.leaf)?;
    if by != 1.0 {
        let tensor = Tensor::scalar(by as f32);
        let by = rw.add(Const { tensor }, &[])?;
        v = rw.add(Binary { f: BinaryFn::Mul }, &[v, by])?;
    }
    v = rw.add(Cast { to: of.to }, &[v])?;
    match of.is_turned {
        true => rw.add(Transpose { perm: vec![1, 0] }, &[v]),
        false => Ok(v),
    }
}

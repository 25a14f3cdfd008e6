//! Folds scalar multiplications before or after a matmul into its weights, if the weights are
//! converted anyway.
//!
//! CLIP approximates GELU by `x sigmoid(1.702 x)`, which is SiLU between two scalar
//! multiplications. Without this pass, the two multiplications prevent the fusion of the SiLU into
//! the preceding matmul. F32 parameters that are converted to a narrower type are scaled before
//! they are rounded. The accuracy of these weights is therefore unchanged, and the scaling is
//! computed once. Weights that are not converted remain unchanged, because scaling them would need
//! a copy.

use std::collections::{HashMap, HashSet};

use tercet_tensor::{DType, Tensor};

use super::super::pack_qkv;
use super::super::rewrite::{Rewriter, ValueUses, live_nodes, rebuild};
use super::MatchContext;
use crate::error::CompileError;
use crate::graph::{Graph, NodeId, Value};
use crate::ops::{Binary, Cast, Const, Linear, Op, Transpose};
use crate::scalar::{BinaryFn, UnaryFn};

/// Factors up to this value, or its inverse, keep weights and results within the range of narrow
/// floats.
const MAX_FOLDED_SCALE: f64 = 4.0;

/// A parameter that is converted, and transposed if it is a matrix.
struct ConvertedParam {
    leaf: Value,
    to: DType,
    is_transposed: bool,
}

/// A matmul whose weights absorb the factors around it.
struct ScaledMatMul {
    product: NodeId,
    x: Value,
    weight: ConvertedParam,
    bias: Option<ConvertedParam>,
    activation: Option<UnaryFn>,
    /// The factors before and after the matmul.
    factors: [f64; 2],
    /// The node whose value the scaled matmul replaces.
    last: NodeId,
    inner: Vec<NodeId>,
}

/// Folds factors into weights.
pub(in super::super) fn factors(graph: &Graph) -> Result<Graph, CompileError> {
    let live = live_nodes(graph);
    let seen = MatchContext {
        graph,
        uses: ValueUses::new(graph),
    };
    let packable: HashSet<NodeId> = pack_qkv::groups(graph).into_iter().flatten().collect();
    let products = graph.nodes().map(|(id, _)| id);
    // A factor between two matmuls is folded into the first one.
    let mut found: HashMap<NodeId, ScaledMatMul> = HashMap::new();
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
            rw.set_origin(scaled.product);
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

/// A multiplication of a value by a scalar within bounds that does not change the value's type.
fn factor(seen: &MatchContext<'_>, v: Value) -> Option<(Value, f64)> {
    let found = seen.with_number(v, BinaryFn::Mul)?;
    (1.0 / MAX_FOLDED_SCALE..=MAX_FOLDED_SCALE)
        .contains(&found.1.abs())
        .then_some(found)
}

/// The F32 parameter behind a value that is its conversion to a narrower type.
fn converted(graph: &Graph, mut v: Value) -> Option<ConvertedParam> {
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
    (is_wide && is_param).then_some(ConvertedParam {
        leaf,
        to: cast.to,
        is_transposed: is_turned,
    })
}

/// A matmul with factors around it. Factors before the matmul that are already `taken` by another
/// matmul are excluded.
fn scaled(
    seen: &MatchContext<'_>,
    id: NodeId,
    taken: impl Fn(NodeId) -> bool,
) -> Option<ScaledMatMul> {
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
    let mut found = ScaledMatMul {
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
        && seen.uses.readers_of(x).only() == Some(id)
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

impl ScaledMatMul {
    /// Absorbs a factor after the matmul, or after the sum with a bias.
    fn take_behind(&mut self, seen: &MatchContext<'_>) {
        let reader = |node| seen.uses.readers_of(Value { node, port: 0 }).only();
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

/// A parameter times a number, converted to the narrower type.
fn times(rw: &mut Rewriter<'_>, of: &ConvertedParam, by: f64) -> Result<Value, CompileError> {
    let mut v = rw.leaf(of.leaf)?;
    if by != 1.0 {
        let tensor = Tensor::scalar(by as f32);
        let by = rw.add(Const { tensor }, &[])?;
        v = rw.add(Binary { f: BinaryFn::Mul }, &[v, by])?;
    }
    v = rw.add(Cast { to: of.to }, &[v])?;
    match of.is_transposed {
        true => rw.add(Transpose { perm: vec![1, 0] }, &[v]),
        false => Ok(v),
    }
}

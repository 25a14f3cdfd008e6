//! Recognizes operators that exporters decompose into several nodes, and replaces the nodes by the
//! operator.
//!
//! - `softmax(scale q k^T + mask) v` becomes `Attention` ([`attention`]). For a query whose mask is
//!   `-inf` at every key, the result is then zeros instead of NaN.
//! - `x / sqrt(mean(x^2) + eps) * gamma` becomes `RmsNorm` ([`norm`]).
//! - `x sigmoid(x)` becomes `silu`, `x (1 + erf(x / sqrt(2))) / 2` becomes `gelu`, `min(max(x, 0),
//!   6)` becomes `relu6` ([`activation`]).
//! - Dequantize, convolve, quantize becomes `QuantizedConv` ([`qdq`], a separate pass together
//!   with the next).
//! - Matmuls with dequantized weights become `DequantMatMul` ([`qdq_weights`]).
//! - Scalar factors around matmuls with converted weights are folded into the weights ([`factors`],
//!   a separate pass).
//!
//! The rewrites remove intermediate roundings, so results differ slightly from the decomposed
//! graph.

mod activation;
mod attention;
mod fold_scales;
mod norm;
mod qdq;
mod qdq_weights;

pub(super) use self::fold_scales::factors;
use super::rewrite::{ValueUses, live_nodes, rebuild};
use crate::error::CompileError;
use crate::graph::{Graph, Node, Value};
use crate::ops::Op;
use crate::passes::fuse_elementwise::splat_value;
use crate::scalar::{BinaryFn, UnaryFn};

/// Replaces groups of nodes by operators. `dce` later removes the unused nodes.
pub(super) fn recognize(graph: &Graph) -> Result<Graph, CompileError> {
    let live = live_nodes(graph);
    let seen = MatchContext {
        graph,
        uses: ValueUses::new(graph),
    };
    rebuild(graph, |rw, id, node| {
        if live[id.index()]
            && let Some(new) = attention::recognize(&seen, rw, node)?
                .or(norm::recognize(&seen, rw, node)?)
                .or(activation::recognize(&seen, rw, node)?)
        {
            rw.bind(Value { node: id, port: 0 }, new);
            return Ok(());
        }
        rw.copy(id)
    })
}

/// Replaces dequantize, compute, quantize sequences by int8 operators.
pub(super) fn recognize_codes(graph: &Graph) -> Result<Graph, CompileError> {
    let live = live_nodes(graph);
    let seen = MatchContext {
        graph,
        uses: ValueUses::new(graph),
    };
    rebuild(graph, |rw, id, node| {
        if live[id.index()]
            && let Some(new) =
                qdq::recognize(&seen, rw, node)?.or(qdq_weights::recognize(&seen, rw, node)?)
        {
            rw.bind(Value { node: id, port: 0 }, new);
            return Ok(());
        }
        rw.copy(id)
    })
}

/// The graph and the readers of its values, as used by pattern matching.
struct MatchContext<'g> {
    graph: &'g Graph,
    uses: ValueUses,
}

impl<'g> MatchContext<'g> {
    fn node(&self, v: Value) -> &'g Node {
        self.graph.node(v.node)
    }

    /// Whether exactly one node reads a value.
    fn read_once(&self, v: Value) -> bool {
        self.uses.readers_of(v).only().is_some()
    }

    /// The operands of a binary function.
    fn binary(&self, v: Value, f: BinaryFn) -> Option<[Value; 2]> {
        let node = self.node(v);
        match (&node.op, node.inputs.as_slice()) {
            (Op::Binary(b), &[x, y]) if b.f == f => Some([x, y]),
            (_, _) => None,
        }
    }

    /// The operand of a unary function.
    fn unary(&self, v: Value, f: UnaryFn) -> Option<Value> {
        let node = self.node(v);
        match (&node.op, node.inputs.as_slice()) {
            (Op::Unary(u), &[x]) if u.f == f => Some(x),
            (_, _) => None,
        }
    }

    /// The common value of a constant's elements, looking through operators that only change its
    /// shape or dtype.
    fn splat(&self, mut v: Value) -> Option<f64> {
        loop {
            let node = self.node(v);
            v = match (&node.op, node.inputs.as_slice()) {
                (Op::Const(c), _) => return splat_value(&c.tensor),
                (Op::Expand(_) | Op::Reshape(_) | Op::Transpose(_) | Op::Cast(_), &[x]) => x,
                (_, _) => return None,
            };
        }
    }

    /// The value and scalar operands of a binary `f`, in either order. The scalar must not change
    /// the value's type.
    fn with_number(&self, v: Value, f: BinaryFn) -> Option<(Value, f64)> {
        let [x, y] = self.binary(v, f)?;
        let same = |own: Value| self.graph.ty(own) == self.graph.ty(v);
        match (self.splat(x), self.splat(y)) {
            (_, Some(n)) if same(x) => Some((x, n)),
            (Some(n), _) if same(y) => Some((y, n)),
            (_, _) => None,
        }
    }

    /// The operand and factor of `v = x * factor` or `x / divisor`; otherwise `v` itself and 1.
    fn scaled(&self, v: Value) -> (Value, f64) {
        if let Some((x, n)) = self.with_number(v, BinaryFn::Mul) {
            return (x, n);
        }
        match self.binary(v, BinaryFn::Div) {
            Some([x, by]) if self.graph.ty(x) == self.graph.ty(v) => match self.splat(by) {
                Some(n) => (x, 1.0 / n),
                None => (v, 1.0),
            },
            Some(_) | None => (v, 1.0),
        }
    }
}

/// The second of two operands, given the first.
fn other(pair: [Value; 2], one: Value) -> Option<Value> {
    match pair {
        [a, b] if a == one => Some(b),
        [a, b] if b == one => Some(a),
        [_, _] => None,
    }
}

/// Both orders of two operands.
fn orders([a, b]: [Value; 2]) -> [[Value; 2]; 2] {
    [[a, b], [b, a]]
}

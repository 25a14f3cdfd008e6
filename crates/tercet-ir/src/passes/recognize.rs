//! Operators that a graph has written out, as exporters do: the parts become the operator.
//!
//! - `softmax(scale q k^T + mask) v` -> `Attention` ([`attention`]). A query whose mask is `-inf` at every key gives zeros
//!   then, where the parts give NaN.
//! - `x / sqrt(mean(x^2) + eps) * gamma` -> `RmsNorm` ([`norm`]).
//! - `x sigmoid(x)` -> `silu`, `x (1 + erf(x / sqrt(2))) / 2` -> `gelu`, `min(max(x, 0), 6)` -> `relu6`
//!   ([`activation`]).
//! - What dequantises codes, convolves, and quantises again -> `QuantizedConv` ([`codes`], a pass of its own, with the next).
//! - Products with dequantised weights -> `DequantMatMul` ([`code_weights`]).
//! - Numbers around products whose weights are converted -> factors of the weights ([`factors`], a pass of its own).
//!
//! Results differ from the parts by the roundings that are saved.

mod activation;
mod attention;
mod code_weights;
mod codes;
mod factors;
mod norm;

pub(super) use self::factors::factors;
use super::rewrite::{Uses, live_nodes, rebuild};
use crate::error::CompileError;
use crate::graph::{Graph, Node, Value};
use crate::ops::Op;
use crate::passes::fuse_elementwise::splat_value;
use crate::scalar::{BinaryFn, UnaryFn};

/// Puts operators in place of their parts; parts that nothing reads any more are left to `dce`.
pub(super) fn recognize(graph: &Graph) -> Result<Graph, CompileError> {
    let live = live_nodes(graph);
    let seen = Seen {
        graph,
        uses: Uses::of(graph),
    };
    rebuild(graph, |rw, id, node| {
        if live[id.index()]
            && let Some(new) = attention::of(&seen, rw, node)?
                .or(norm::of(&seen, rw, node)?)
                .or(activation::of(&seen, rw, node)?)
        {
            rw.bind(Value { node: id, port: 0 }, new);
            return Ok(());
        }
        rw.copy(id)
    })
}

/// Puts operators of codes of 8 bits in place of what dequantises them, computes, and quantises again.
pub(super) fn recognize_codes(graph: &Graph) -> Result<Graph, CompileError> {
    let live = live_nodes(graph);
    let seen = Seen {
        graph,
        uses: Uses::of(graph),
    };
    rebuild(graph, |rw, id, node| {
        if live[id.index()]
            && let Some(new) = codes::of(&seen, rw, node)?.or(code_weights::of(&seen, rw, node)?)
        {
            rw.bind(Value { node: id, port: 0 }, new);
            return Ok(());
        }
        rw.copy(id)
    })
}

/// The graph as patterns see it.
struct Seen<'g> {
    graph: &'g Graph,
    uses: Uses,
}

impl<'g> Seen<'g> {
    fn node(&self, v: Value) -> &'g Node {
        self.graph.node(v.node)
    }

    /// Whether one node alone reads a value.
    fn read_once(&self, v: Value) -> bool {
        self.uses.of_value(v).only().is_some()
    }

    /// The operands of a function of two.
    fn binary(&self, v: Value, f: BinaryFn) -> Option<[Value; 2]> {
        let node = self.node(v);
        match (&node.op, node.inputs.as_slice()) {
            (Op::Binary(b), &[x, y]) if b.f == f => Some([x, y]),
            (_, _) => None,
        }
    }

    /// The operand of a function of one.
    fn unary(&self, v: Value, f: UnaryFn) -> Option<Value> {
        let node = self.node(v);
        match (&node.op, node.inputs.as_slice()) {
            (Op::Unary(u), &[x]) if u.f == f => Some(x),
            (_, _) => None,
        }
    }

    /// The one value of a constant, through operators that only change its shape or dtype.
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

    /// A value that does not lose its type to a number beside it, and the number: of `f`, whose operands may come in
    /// either order.
    fn with_number(&self, v: Value, f: BinaryFn) -> Option<(Value, f64)> {
        let [x, y] = self.binary(v, f)?;
        let same = |own: Value| self.graph.ty(own) == self.graph.ty(v);
        match (self.splat(x), self.splat(y)) {
            (_, Some(n)) if same(x) => Some((x, n)),
            (Some(n), _) if same(y) => Some((y, n)),
            (_, _) => None,
        }
    }

    /// `v = x * factor`, or `x / divisor`: the operand and the factor; the value itself and 1 where it is neither.
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

/// The other one of two operands.
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

//! Gradients of recurrences: each is differentiated through a [`Scan`] with the same steps.

use tercet_tensor::{DType, Dim, Shape, Type};

use crate::error::OpError;
use crate::grad::{NoGradient, Vjp, VjpResult};
use crate::graph::{Graph, Value};
use crate::ops::{GatedDeltaNet, Mamba2, Op, Recurrence, RecurrentCell, Scan, SelectiveScan};

type RecurrentGradResult = Result<Value, OpError>;

/// A scan under construction: the body and the operands.
struct GradScanBuilder {
    body: Graph,
    carried: Vec<Value>,
    scanned: Vec<Value>,
    captures: Vec<Value>,
}

impl GradScanBuilder {
    fn new() -> GradScanBuilder {
        GradScanBuilder {
            body: Graph::new(),
            carried: Vec::new(),
            scanned: Vec::new(),
            captures: Vec::new(),
        }
    }

    fn argument(&mut self, ty: Type) -> RecurrentGradResult {
        let name = format!("x{}", self.body.len());
        self.body.input(&name, ty)
    }

    fn carry(&mut self, g: &mut Graph, start: Value) -> RecurrentGradResult {
        let start = g.widen(start)?;
        self.carried.push(start);
        self.argument(g.ty(start).clone())
    }

    /// The element of a sequence `[B, S, ..]` at each step.
    fn sequence(&mut self, g: &mut Graph, x: Value) -> RecurrentGradResult {
        let x = g.widen(x)?;
        let x = g.move_axis(x, 1, 0)?;
        self.scanned.push(x);
        let ty = g.ty(x);
        let part: Shape = ty.shape.iter().skip(1).cloned().collect();
        self.argument(ty.with_shape(part))
    }

    fn capture(&mut self, g: &mut Graph, x: Value) -> RecurrentGradResult {
        let x = g.widen(x)?;
        self.captures.push(x);
        self.argument(g.ty(x).clone())
    }

    /// The final carried values, and the results of the steps as `[B, S, ..]`.
    fn run(
        mut self,
        g: &mut Graph,
        next: &[Value],
        y: Value,
        reverse: bool,
    ) -> Result<(Vec<Value>, Value), OpError> {
        let arguments = self
            .body
            .nodes()
            .filter(|(_, n)| matches!(n.op, Op::Input(_)));
        let types: Vec<Type> = arguments.map(|(_, n)| n.outputs[0].clone()).collect();
        for symbol in g.with_symbols(&types)? {
            self.capture(g, symbol)?;
        }
        for (i, v) in next.iter().chain([&y]).enumerate() {
            self.body.output(&format!("y{i}"), *v)?;
        }
        let scan = Scan {
            body: self.body.into(),
            carried: self.carried.len(),
            scanned: self.scanned.len(),
            reverse: vec![reverse; self.scanned.len()],
            reverse_results: vec![reverse],
        };
        let operands = [self.carried, self.scanned, self.captures].concat();
        let first = g.add(scan, &operands)?;
        let last: Vec<Value> = (0..next.len() as u8).map(|p| first.port(p)).collect();
        let y = g.move_axis(first.port(next.len() as u8), 0, 1)?;
        Ok((last, y))
    }
}

/// Inserts axes of size 1 before these axes of `x`.
fn with_ones(g: &mut Graph, x: Value, before: &[usize]) -> RecurrentGradResult {
    let mut shape = g.shape(x).into_dims();
    for &axis in before.iter().rev() {
        shape.insert(axis, Dim::Known(1));
    }
    g.reshape(x, Shape::from(shape))
}

pub(crate) fn recurrence(op: &Recurrence, v: &mut Vjp<'_>) -> VjpResult {
    v.through(|g, operands| {
        let dtype = g.dtype(operands[0]);
        let size = g.shape(operands[1])[0].known();
        let size = size.ok_or_else(|| NoGradient::because("its state has a symbolic size"))?;
        let mut steps = GradScanBuilder::new();
        let mut states = Vec::new();
        for state in &operands[3..] {
            states.push(steps.carry(g, *state)?);
        }
        let x = steps.sequence(g, operands[0])?;
        let w = steps.capture(g, operands[1])?;
        let bias = steps.capture(g, operands[2])?;
        let b = &mut steps.body;
        let product = b.matmul(states[0], w)?;
        let h = b.plus(product, bias)?;
        let next = cell(b, op.cell, size, x, h, &states)?;
        let (last, y) = steps.run(g, &next, next[0], op.reverse)?;
        let mut results = vec![g.in_dtype(y, dtype)?];
        for state in last {
            results.push(g.in_dtype(state, dtype)?);
        }
        Ok(results)
    })
}

/// The next states, from the gates' contributions of the input and of the state.
fn cell(
    b: &mut Graph,
    cell: RecurrentCell,
    size: usize,
    x: Value,
    h: Value,
    states: &[Value],
) -> Result<Vec<Value>, OpError> {
    let part = |b: &mut Graph, v: Value, i: usize| {
        b.slice_axis(v, 1, (i * size) as i64, ((i + 1) * size) as i64, 1)
    };
    Ok(match cell {
        RecurrentCell::Lstm => {
            let sum = b.plus(x, h)?;
            let [i, f, c, o] = [0, 1, 2, 3].map(|i| part(b, sum, i));
            let (i, f, o) = (b.sigmoid(i?)?, b.sigmoid(f?)?, b.sigmoid(o?)?);
            let c = b.tanh(c?)?;
            let new = b.mul(i, c)?;
            let next = b.fma(f, states[1], new)?;
            let seen = b.tanh(next)?;
            vec![b.mul(o, seen)?, next]
        }
        RecurrentCell::Gru => {
            let [xr, xz, xn] = [0, 1, 2].map(|i| part(b, x, i));
            let [hr, hz, hn] = [0, 1, 2].map(|i| part(b, h, i));
            let r = b.plus(xr?, hr?)?;
            let r = b.sigmoid(r)?;
            let n = b.fma(r, hn?, xn?)?;
            let n = b.tanh(n)?;
            let z = b.plus(xz?, hz?)?;
            let z = b.sigmoid(z)?;
            let change = b.sub(states[0], n)?;
            vec![b.fma(z, change, n)?]
        }
        RecurrentCell::Tanh => {
            let sum = b.plus(x, h)?;
            vec![b.tanh(sum)?]
        }
        RecurrentCell::Relu => {
            let sum = b.plus(x, h)?;
            vec![b.relu(sum)?]
        }
    })
}

/// The initial states of a scan from its operands, or zeros.
fn first_states(
    g: &mut Graph,
    operands: &[Value],
    dtype: DType,
    shape: &[Dim],
) -> RecurrentGradResult {
    match operands.get(5) {
        Some(state) => Ok(*state),
        None => g.filled(
            &Type::new(dtype, shape.iter().cloned().collect::<Shape>()),
            0.0,
        ),
    }
}

pub(crate) fn selective_scan(op: &SelectiveScan, v: &mut Vjp<'_>) -> VjpResult {
    v.through(|g, operands| {
        let ty = g.ty(operands[0]).clone();
        let states = g.shape(operands[2])[1].clone();
        let start = [ty.shape[0].clone(), ty.shape[2].clone(), states];
        let start = first_states(g, operands, ty.dtype, &start)?;
        let mut steps = GradScanBuilder::new();
        let h = steps.carry(g, start)?;
        let [x, dt] = [
            steps.sequence(g, operands[0])?,
            steps.sequence(g, operands[1])?,
        ];
        let [b, c] = [
            steps.sequence(g, operands[3])?,
            steps.sequence(g, operands[4])?,
        ];
        let a = steps.capture(g, operands[2])?;
        let s = &mut steps.body;
        let moved = s.mul(dt, x)?;
        let dt = with_ones(s, dt, &[2])?;
        let rate = s.mul(dt, a)?;
        let decay = s.exp(rate)?;
        let (moved, b) = (with_ones(s, moved, &[2])?, with_ones(s, b, &[1])?);
        let new = s.mul(moved, b)?;
        let next = s.fma(decay, h, new)?;
        let c = with_ones(s, c, &[1])?;
        let seen = s.mul(next, c)?;
        let y = s.reduce_sum(seen, &[2], false)?;
        let (last, y) = steps.run(g, &[next], y, false)?;
        let mut results = vec![g.in_dtype(y, ty.dtype)?];
        if op.carry {
            results.push(last[0]);
        }
        Ok(results)
    })
}

pub(crate) fn mamba2(op: &Mamba2, v: &mut Vjp<'_>) -> VjpResult {
    v.through(|g, operands| {
        let ty = g.ty(operands[0]).clone();
        let (of_x, of_b) = (ty.shape.clone(), g.shape(operands[3]));
        let (heads, groups, states) = (of_x[2].clone(), of_b[2].clone(), of_b[3].clone());
        let each = heads.div_exact(&groups);
        let each = each.ok_or_else(|| NoGradient::because("its groups do not divide its heads"))?;
        let start = [
            of_x[0].clone(),
            heads.clone(),
            of_x[3].clone(),
            states.clone(),
        ];
        let start = first_states(g, operands, ty.dtype, &start)?;
        let mut steps = GradScanBuilder::new();
        let h = steps.carry(g, start)?;
        let [x, dt] = [
            steps.sequence(g, operands[0])?,
            steps.sequence(g, operands[1])?,
        ];
        let [b, c] = [
            steps.sequence(g, operands[3])?,
            steps.sequence(g, operands[4])?,
        ];
        let a = steps.capture(g, operands[2])?;
        let s = &mut steps.body;
        // Each group is repeated for its heads: [B, H, 1, N].
        let of_heads = |s: &mut Graph, v: Value| -> RecurrentGradResult {
            let v = with_ones(s, v, &[2])?;
            let full = [
                of_x[0].clone(),
                groups.clone(),
                each.clone(),
                states.clone(),
            ];
            let v = s.broadcast_to_shape(v, full)?;
            let one = Dim::Known(1);
            s.reshape(v, [of_x[0].clone(), heads.clone(), one, states.clone()])
        };
        let (b, c) = (of_heads(s, b)?, of_heads(s, c)?);
        let rate = s.mul(dt, a)?;
        let decay = s.exp(rate)?;
        let decay = with_ones(s, decay, &[2, 2])?;
        let dt = with_ones(s, dt, &[2])?;
        let moved = s.mul(dt, x)?;
        let moved = with_ones(s, moved, &[3])?;
        let new = s.mul(moved, b)?;
        let next = s.fma(decay, h, new)?;
        let seen = s.mul(next, c)?;
        let y = s.reduce_sum(seen, &[3], false)?;
        let (last, y) = steps.run(g, &[next], y, false)?;
        let mut results = vec![g.in_dtype(y, ty.dtype)?];
        if op.carry {
            results.push(last[0]);
        }
        Ok(results)
    })
}

pub(crate) fn gated_delta_net(op: &GatedDeltaNet, v: &mut Vjp<'_>) -> VjpResult {
    v.through(|g, operands| {
        let dtype = g.dtype(operands[0]);
        let (of_q, of_v) = (g.shape(operands[0]), g.shape(operands[2]));
        let start = match operands.get(5) {
            Some(state) => *state,
            None => {
                let of_state = [&of_q[..1], &of_q[2..], &of_v[3..]].concat();
                g.filled(&Type::new(dtype, of_state), 0.0)?
            }
        };
        let mut steps = GradScanBuilder::new();
        let state = steps.carry(g, start)?;
        let mut parts = Vec::new();
        for x in &operands[..5] {
            parts.push(steps.sequence(g, *x)?);
        }
        let s = &mut steps.body;
        let decay = s.exp(parts[3])?;
        let decay = with_ones(s, decay, &[2, 2])?;
        let state = s.mul(state, decay)?;
        let q = with_ones(s, parts[0], &[2])?;
        let k = with_ones(s, parts[1], &[2])?;
        let value = with_ones(s, parts[2], &[2])?;
        let beta = with_ones(s, parts[4], &[2, 2])?;
        let known = s.matmul(k, state)?;
        let rest = s.sub(value, known)?;
        let change = s.mul(beta, rest)?;
        let column = s.swapped(k)?;
        let outer = s.mul(column, change)?;
        let next = s.plus(state, outer)?;
        let o = s.matmul(q, next)?;
        let n = of_q[3].known().unwrap_or(1).max(1);
        let o = s.times(o, 1.0 / (n as f64).sqrt())?;
        let o = s.reduce_sum(o, &[2], false)?;
        let (last, o) = steps.run(g, &[next], o, false)?;
        let mut results = vec![g.in_dtype(o, dtype)?];
        if op.carry {
            results.push(g.in_dtype(last[0], dtype)?);
        }
        Ok(results)
    })
}

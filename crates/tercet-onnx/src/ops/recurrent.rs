//! Recurrent layers.
//!
//! Three layer types become `recurrence` operators: LSTM without peepholes, RNN with tanh or relu,
//! and GRU with the reset gate applied after the matmul. LSTM with peepholes and GRU with the reset
//! gate before the matmul become scans with a decomposed step.

use tercet_ir::ops::{Recurrence, RecurrentCell, Scan};
use tercet_ir::{Dim, Graph, OpError, SubGraph, Type, Value};

use super::{OpsetEntry, op};
use crate::call::{ImportNode, NodeOutputs};
use crate::error::NodeErrorKind;
use crate::val::ImportedValue;

pub(crate) const TABLE: &[OpsetEntry] =
    &[op("LSTM", 7, lstm), op("GRU", 7, gru), op("RNN", 7, rnn)];

/// The operands of a layer, for all directions.
struct RecurrentLayerOperands {
    /// The input sequences, `[B, S, I]`.
    x: Value,
    dirs: usize,
    hidden: usize,
    batch: Dim,
    /// Whether the batch is the first axis of inputs and outputs.
    batch_first: bool,
    /// Whether each direction runs from the end.
    reverse: Vec<bool>,
    gates: usize,
}

/// One direction of a layer.
struct RecurrentDirection {
    /// The input weights of all gates, `[I, G H]`.
    w: Value,
    /// The recurrent weights of all gates, `[H, G H]`.
    r: Value,
    /// The biases of input and state, each `[G H]`.
    bias: [Value; 2],
    /// The initial hidden state, `[B, H]`.
    h0: Value,
    c0: Option<Value>,
}

impl RecurrentLayerOperands {
    fn new(
        k: &mut ImportNode<'_, '_>,
        gates: usize,
    ) -> Result<RecurrentLayerOperands, NodeErrorKind> {
        let (x, r) = (k.x(0)?, k.x(2)?);
        let batch_first = k.attrs.flag("layout", false)?;
        let reverse = match k.attrs.string("direction", "forward")?.as_str() {
            "forward" => vec![false],
            "reverse" => vec![true],
            "bidirectional" => vec![false, true],
            other => {
                return Err(NodeErrorKind::attribute(
                    "direction",
                    format!("`{other}` is not supported"),
                ));
            }
        };
        if k.attrs.has("clip") {
            return Err(NodeErrorKind::attribute("clip", "is not supported"));
        }
        if k.rank(x) != 3 {
            return Err(NodeErrorKind::operand(0, "must have three axes"));
        }
        let x = if batch_first {
            x
        } else {
            k.g().transpose(x, &[1, 0, 2])?
        };
        let hidden = k.size(r, 2)?;
        if k.attrs
            .int_opt("hidden_size")?
            .is_some_and(|n| n != hidden as i64)
        {
            return Err(NodeErrorKind::attribute(
                "hidden_size",
                "does not match the weights",
            ));
        }
        let steps = k.dims(x)[1].clone();
        if k.has(4) {
            let full = |n: &i64| steps.known() == usize::try_from(*n).ok();
            if !k.ints(4)?.iter().all(full) {
                return Err(NodeErrorKind::operand(
                    4,
                    "sequences with different lengths are not supported",
                ));
            }
        }
        let dirs = reverse.len();
        let batch = k.dims(x)[0].clone();
        Ok(RecurrentLayerOperands {
            x,
            dirs,
            hidden,
            batch,
            batch_first,
            reverse,
            gates,
        })
    }

    /// The slice of an operand for one direction, without the first axis.
    fn part(
        &self,
        k: &mut ImportNode<'_, '_>,
        x: Value,
        dir: usize,
    ) -> Result<Value, NodeErrorKind> {
        let y = k.g().narrow(x, 0, dir, 1)?;
        Ok(k.g().squeeze(y, 0)?)
    }

    /// The initial state: the operand, or zeros.
    fn state(
        &self,
        k: &mut ImportNode<'_, '_>,
        operand: usize,
        dir: usize,
    ) -> Result<Value, NodeErrorKind> {
        match k.opt(operand)? {
            Some(x) => {
                let x = if self.batch_first {
                    k.g().transpose(x, &[1, 0, 2])?
                } else {
                    x
                };
                self.part(k, x, dir)
            }
            None => {
                let zero = k.like(self.x, 0.0)?;
                Ok(k.g()
                    .expand(zero, [self.batch.clone(), Dim::Known(self.hidden)])?)
            }
        }
    }

    /// Reorders the gates along an axis.
    fn ordered(
        &self,
        k: &mut ImportNode<'_, '_>,
        x: Value,
        order: &[usize],
    ) -> Result<Value, NodeErrorKind> {
        let mut parts = Vec::with_capacity(order.len());
        for gate in order {
            parts.push(k.g().narrow(x, 0, gate * self.hidden, self.hidden)?);
        }
        Ok(k.g().concat(&parts, 0)?)
    }

    fn direction(
        &self,
        k: &mut ImportNode<'_, '_>,
        dir: usize,
        order: &[usize],
        cell: bool,
    ) -> Result<RecurrentDirection, NodeErrorKind> {
        let (w, r) = (k.x(1)?, k.x(2)?);
        let mut turned = [w, r];
        for v in &mut turned {
            let part = self.part(k, *v, dir)?;
            let part = self.ordered(k, part, order)?;
            *v = k.g().transpose(part, &[1, 0])?;
        }
        let width = self.gates * self.hidden;
        let bias = match k.opt(3)? {
            Some(b) => {
                let b = self.part(k, b, dir)?;
                let (of_input, of_state) = (
                    k.g().narrow(b, 0, 0, width)?,
                    k.g().narrow(b, 0, width, width)?,
                );
                [
                    self.ordered(k, of_input, order)?,
                    self.ordered(k, of_state, order)?,
                ]
            }
            None => {
                let zero = k.like(self.x, 0.0)?;
                [k.g().expand(zero, [width])?; 2]
            }
        };
        let h0 = self.state(k, 5, dir)?;
        let c0 = if cell {
            Some(self.state(k, 6, dir)?)
        } else {
            None
        };
        let [w, r] = turned;
        Ok(RecurrentDirection { w, r, bias, h0, c0 })
    }

    /// The input projection of the gates, `[B, S, G H]`.
    fn input_projection(
        &self,
        k: &mut ImportNode<'_, '_>,
        d: &RecurrentDirection,
    ) -> Result<Value, NodeErrorKind> {
        let product = k.g().matmul(self.x, d.w)?;
        Ok(k.g().plus(product, d.bias[0])?)
    }

    /// Combines the results of all directions, `[B, S, H]` and the last states, in the layout of
    /// the standard.
    fn results(&self, k: &mut ImportNode<'_, '_>, parts: Vec<Vec<Value>>) -> NodeOutputs {
        let mut joined = Vec::new();
        for i in 0..parts.first().map_or(0, Vec::len) {
            let mut list = Vec::with_capacity(self.dirs);
            for part in &parts {
                // States of each step become `[S, 1, B, H]`, last states `[1, B, H]`.
                let perm: &[usize] = if i == 0 { &[1, 0, 2] } else { &[0, 1] };
                let value = k.g().transpose(part[i], perm)?;
                list.push(k.g().unsqueeze(value, perm.len() - 2)?);
            }
            let axis = if i == 0 { 1 } else { 0 };
            let mut y = k.g().concat(&list, axis)?;
            if self.batch_first {
                y = k
                    .g()
                    .transpose(y, if i == 0 { &[2, 0, 1, 3] } else { &[1, 0, 2] })?;
            }
            joined.push(ImportedValue::Graph(y));
        }
        Ok(joined)
    }

    /// Imports a direction as a `recurrence` operator.
    fn native(
        &self,
        k: &mut ImportNode<'_, '_>,
        d: &RecurrentDirection,
        cell: RecurrentCell,
        dir: usize,
    ) -> Result<Vec<Value>, NodeErrorKind> {
        let gates = self.input_projection(k, d)?;
        let operands: Vec<Value> = [gates, d.r, d.bias[1], d.h0]
            .into_iter()
            .chain(d.c0)
            .collect();
        let first = k.g().add(
            Recurrence {
                cell,
                reverse: self.reverse[dir],
            },
            &operands,
        )?;
        Ok((0..if d.c0.is_some() { 3 } else { 2 })
            .map(|i| first.port(i))
            .collect())
    }

    /// Imports a direction as a scan. The step receives the carried states, the input projection
    /// and the captures.
    fn scanned(
        &self,
        k: &mut ImportNode<'_, '_>,
        d: &RecurrentDirection,
        captures: &[Value],
        dir: usize,
        step: RecurrentStepFn,
    ) -> Result<Vec<Value>, NodeErrorKind> {
        let gates = self.input_projection(k, d)?;
        let gates = k.g().transpose(gates, &[1, 0, 2])?;
        let carried: Vec<Value> = [d.h0].into_iter().chain(d.c0).collect();
        let dims: Vec<Dim> = k.dims(gates).into_iter().skip(1).collect();
        let part = Type::new(k.dtype(gates), dims);
        let mut body = Graph::new();
        let mut arguments = Vec::new();
        let types = carried
            .iter()
            .map(|v| k.ty(*v))
            .chain([part])
            .chain(captures.iter().map(|v| k.ty(*v)));
        for (i, ty) in types.collect::<Vec<_>>().into_iter().enumerate() {
            arguments.push(body.input(&format!("argument{i}"), ty)?);
        }
        let states = step(&mut body, &arguments, self.hidden)?;
        for (i, v) in states.iter().chain(states.first()).enumerate() {
            body.output(&format!("result{i}"), *v)?;
        }
        let count = carried.len();
        let op = Scan {
            body: SubGraph::new(body),
            carried: count,
            scanned: 1,
            reverse: vec![self.reverse[dir]],
            reverse_results: vec![self.reverse[dir]],
        };
        let operands = [carried, vec![gates], captures.to_vec()].concat();
        let first = k.g().add(op, &operands)?;
        let all = k.g().transpose(first.port(count as u8), &[1, 0, 2])?;
        let mut results = vec![all];
        results.extend((0..count as u8).map(|i| first.port(i)));
        Ok(results)
    }
}

/// Computes the next states from the arguments of the step graph and the state size.
type RecurrentStepFn = fn(&mut Graph, &[Value], usize) -> Result<Vec<Value>, OpError>;

/// Checks that the activations are the known ones, repeated for each direction.
fn activations(k: &ImportNode<'_, '_>, known: &[&str], dirs: usize) -> Result<(), NodeErrorKind> {
    let Some(list) = k.attrs.strings_opt("activations")? else {
        return Ok(());
    };
    let same = list.len() == known.len() * dirs
        && list
            .iter()
            .enumerate()
            .all(|(i, name)| name.eq_ignore_ascii_case(known[i % known.len()]));
    match same {
        true => Ok(()),
        false => Err(NodeErrorKind::attribute(
            "activations",
            format!("{list:?} is not supported, expected {known:?}"),
        )),
    }
}

fn lstm(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let layer = RecurrentLayerOperands::new(k, 4)?;
    activations(k, &["Sigmoid", "Tanh", "Tanh"], layer.dirs)?;
    if k.attrs.flag("input_forget", false)? {
        return Err(NodeErrorKind::attribute("input_forget", "is not supported"));
    }
    let mut parts = Vec::new();
    for dir in 0..layer.dirs {
        // ONNX orders the gates i, o, f, c.
        let d = layer.direction(k, dir, &[0, 2, 3, 1], true)?;
        parts.push(match k.opt(7)? {
            None => layer.native(k, &d, RecurrentCell::Lstm, dir)?,
            Some(p) => {
                let p = layer.part(k, p, dir)?;
                layer.scanned(k, &d, &[d.r, d.bias[1], p], dir, lstm_step)?
            }
        });
    }
    layer.results(k, parts)
}

/// An LSTM step with peepholes: gates i, f, g, o; peepholes of i, o, f.
fn lstm_step(g: &mut Graph, arguments: &[Value], n: usize) -> Result<Vec<Value>, OpError> {
    let [h, c, x, r, bias, p] = *arguments else {
        unreachable!("invariant: the caller gives six")
    };
    let product = g.matmul(h, r)?;
    let sum = g.plus(product, x)?;
    let sum = g.plus(sum, bias)?;
    let gate = |g: &mut Graph, i: usize| g.narrow(sum, 1, i * n, n);
    let peep = |g: &mut Graph, i: usize, gate: Value, c: Value| {
        let p = g.narrow(p, 0, i * n, n)?;
        let part = g.mul(p, c)?;
        let all = g.plus(gate, part)?;
        g.sigmoid(all)
    };
    let (i, f, new, o) = (gate(g, 0)?, gate(g, 1)?, gate(g, 2)?, gate(g, 3)?);
    let (i, f, new) = (peep(g, 0, i, c)?, peep(g, 2, f, c)?, g.tanh(new)?);
    let (kept, added) = (g.mul(f, c)?, g.mul(i, new)?);
    let c = g.plus(kept, added)?;
    let o = peep(g, 1, o, c)?;
    let bounded = g.tanh(c)?;
    Ok(vec![g.mul(o, bounded)?, c])
}

fn gru(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let layer = RecurrentLayerOperands::new(k, 3)?;
    activations(k, &["Sigmoid", "Tanh"], layer.dirs)?;
    let after = k.attrs.flag("linear_before_reset", false)?;
    let mut parts = Vec::new();
    for dir in 0..layer.dirs {
        // ONNX orders the gates z, r, h.
        let d = layer.direction(k, dir, &[1, 0, 2], false)?;
        parts.push(match after {
            true => layer.native(k, &d, RecurrentCell::Gru, dir)?,
            false => layer.scanned(k, &d, &[d.r, d.bias[1]], dir, gru_step)?,
        });
    }
    layer.results(k, parts)
}

/// A GRU step with the reset gate before the matmul: gates r, z, n.
fn gru_step(g: &mut Graph, arguments: &[Value], n: usize) -> Result<Vec<Value>, OpError> {
    let [h, x, r, bias] = *arguments else {
        unreachable!("invariant: the caller gives four")
    };
    let x = g.plus(x, bias)?;
    let (r_gates, r_new) = (g.narrow(r, 1, 0, 2 * n)?, g.narrow(r, 1, 2 * n, n)?);
    let (x_gates, x_new) = (g.narrow(x, 1, 0, 2 * n)?, g.narrow(x, 1, 2 * n, n)?);
    let product = g.matmul(h, r_gates)?;
    let sum = g.plus(product, x_gates)?;
    let gates = g.sigmoid(sum)?;
    let (reset, z) = (g.narrow(gates, 1, 0, n)?, g.narrow(gates, 1, n, n)?);
    let part = g.mul(reset, h)?;
    let product = g.matmul(part, r_new)?;
    let sum = g.plus(product, x_new)?;
    let new = g.tanh(sum)?;
    // (1 - z) n + z h = n + z (h - n)
    let difference = g.sub(h, new)?;
    let moved = g.mul(z, difference)?;
    Ok(vec![g.plus(new, moved)?])
}

fn rnn(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let layer = RecurrentLayerOperands::new(k, 1)?;
    let cell = match activations(k, &["Relu"], layer.dirs) {
        Ok(()) if k.attrs.has("activations") => RecurrentCell::Relu,
        _ => {
            activations(k, &["Tanh"], layer.dirs)?;
            RecurrentCell::Tanh
        }
    };
    let mut parts = Vec::new();
    for dir in 0..layer.dirs {
        let d = layer.direction(k, dir, &[0], false)?;
        parts.push(layer.native(k, &d, cell, dir)?);
    }
    layer.results(k, parts)
}

//! Recurrent layers.
//!
//! Three layer types become `recurrence` operators: LSTM without peepholes, RNN with tanh or relu,
//! and GRU with the reset gate applied after the matmul. Layers with peepholes, other activation
//! functions, clipped gates or a reset gate before the matmul become scans with a decomposed step.
//!
//! Sequences may have different lengths: beyond its length, a sequence keeps its state and gives
//! zeros. A reverse layer starts at the last element of each sequence.

mod steps;

use tercet_ir::ops::{Recurrence, RecurrentCell, Scan};
use tercet_ir::scalar::CompareFn;
use tercet_ir::{DType, Dim, Graph, OpError, SubGraph, Tensor, TensorType, Type, Value};

use self::steps::{GateActivation, QuantizedRecurrence, RecurrentStep, through_codes};
use super::shape::reshaped;
use super::{OpsetEntry, op};
use crate::call::{ImportNode, NodeOutputs};
use crate::error::NodeErrorKind;
use crate::val::ImportedValue;

pub(crate) const TABLE: &[OpsetEntry] =
    &[op("LSTM", 7, lstm), op("GRU", 7, gru), op("RNN", 7, rnn)];

/// A pre-activation value of a gate for which the sigmoid is exactly 1, and exactly 0 for the
/// negative value. F16 represents it.
const SATURATED: f64 = 30_000.0;

/// The operands of a layer, for all directions.
struct RecurrentLayerOperands {
    /// The input sequences, `[B, S, I]`.
    x: Value,
    /// The weights, `[directions, G H, I]` and `[directions, G H, H]`.
    weights: [Value; 2],
    /// Whether states are quantized to 8 bits before each matmul.
    quantized: bool,
    /// The weights of inputs and states of each direction, if they are known integers.
    integers: Vec<[QuantizedRecurrence; 2]>,
    /// The lengths of the sequences if they differ.
    lens: Option<SequenceLengths>,
    dirs: usize,
    hidden: usize,
    batch: Dim,
    /// Whether the batch is the first axis of inputs and outputs.
    batch_first: bool,
    /// Whether each direction runs from the end.
    reverse: Vec<bool>,
    gates: usize,
}

/// The lengths of sequences.
#[derive(Clone, Copy)]
struct SequenceLengths {
    /// The lengths, I64 `[B, 1, 1]`.
    lens: Value,
    /// The steps, I64 `[1, S, 1]`.
    steps: Value,
    /// Whether a step is inside its sequence, `[B, S, 1]`.
    inside: Value,
}

impl SequenceLengths {
    fn new(
        k: &mut ImportNode<'_, '_>,
        batch: &Dim,
        steps: &Dim,
    ) -> Result<SequenceLengths, NodeErrorKind> {
        let lens = k.x(4)?;
        let lens = crate::emulated_dtypes::cast_to(k.g(), lens, DType::I64)?;
        let lens = reshaped(k.g(), lens, &[batch.clone(), Dim::Known(1), Dim::Known(1)])?;
        let at = super::attention::positions(k, steps)?;
        let steps = reshaped(k.g(), at, &[Dim::Known(1), steps.clone(), Dim::Known(1)])?;
        let inside = k.g().compare(CompareFn::Lt, steps, lens)?;
        Ok(SequenceLengths {
            lens,
            steps,
            inside,
        })
    }

    /// Reverses each sequence of `x [B, S, N]` within its length.
    fn reversed(&self, k: &mut ImportNode<'_, '_>, x: Value) -> Result<Value, NodeErrorKind> {
        let dims = k.dims(x);
        let g = k.g();
        let one = g.scalar(DType::I64, 1.0)?;
        let last = g.sub(self.lens, one)?;
        let mirrored = g.sub(last, self.steps)?;
        let places = g.where_(self.inside, mirrored, self.steps)?;
        let places = g.expand(places, dims)?;
        Ok(g.gather_elements(x, places, 1)?)
    }

    /// Zeros beyond the lengths of `y [B, S, N]`.
    fn cut(&self, k: &mut ImportNode<'_, '_>, y: Value) -> Result<Value, NodeErrorKind> {
        let zero = k.like(y, 0.0)?;
        Ok(k.g().where_(self.inside, y, zero)?)
    }

    /// The last element of each sequence, `[B, N]`, or its initial state if it is empty.
    fn last(
        &self,
        k: &mut ImportNode<'_, '_>,
        y: Value,
        first: Value,
    ) -> Result<Value, NodeErrorKind> {
        let mut dims = k.dims(y);
        dims[1] = Dim::Known(1);
        let g = k.g();
        let (one, zero) = (g.scalar(DType::I64, 1.0)?, g.scalar(DType::I64, 0.0)?);
        let at = g.sub(self.lens, one)?;
        let at = g.max(at, zero)?;
        let at = g.expand(at, dims)?;
        let last = g.gather_elements(y, at, 1)?;
        let last = g.squeeze(last, 1)?;
        let lens = g.squeeze(self.lens, 1)?;
        let some = g.compare(CompareFn::Gt, lens, zero)?;
        Ok(g.where_(some, last, first)?)
    }
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
        let weights = [k.x(1)?, k.x(2)?];
        RecurrentLayerOperands::with_weights(k, gates, weights, false)
    }

    /// As [`RecurrentLayerOperands::new`], with weights in the layout of the standard.
    fn with_weights(
        k: &mut ImportNode<'_, '_>,
        gates: usize,
        weights: [Value; 2],
        quantized: bool,
    ) -> Result<RecurrentLayerOperands, NodeErrorKind> {
        let x = k.x(0)?;
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
        if k.rank(x) != 3 {
            return Err(NodeErrorKind::operand(0, "must have three axes"));
        }
        let x = if batch_first {
            x
        } else {
            k.g().transpose(x, &[1, 0, 2])?
        };
        let hidden = k.size(weights[1], 2)?;
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
        let dirs = reverse.len();
        let batch = k.dims(x)[0].clone();
        let full = |n: &i64| steps.known().is_some() && steps.known() == usize::try_from(*n).ok();
        let lens = match k.val(4) {
            ImportedValue::Absent => None,
            ImportedValue::ConstTensor(lens) if lens.tensor.to_i64s().iter().all(full) => None,
            _ => Some(SequenceLengths::new(k, &batch, &steps)?),
        };
        Ok(RecurrentLayerOperands {
            x,
            weights,
            quantized,
            integers: Vec::new(),
            lens,
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
        let mut turned = self.weights;
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
        dir: usize,
    ) -> Result<Value, NodeErrorKind> {
        if let Some([matrix, _]) = self.integers.get(dir) {
            let weights = k.c.place_tensor(&matrix.weights, Some("weights"))?;
            let product = matrix.product(k.g(), self.x, weights)?;
            return Ok(k.g().plus(product, d.bias[0])?);
        }
        let x = match self.quantized {
            true => through_codes(k.g(), self.x)?,
            false => self.x,
        };
        let product = k.g().matmul(x, d.w)?;
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
        let mut gates = self.input_projection(k, d, dir)?;
        let mut reverse = self.reverse[dir];
        let turned = reverse && self.lens.is_some();
        if let Some(lens) = &self.lens {
            if turned {
                gates = lens.reversed(k, gates)?;
                reverse = false;
            }
            let kept = self.kept(k, cell)?;
            gates = k.g().where_(lens.inside, gates, kept)?;
        }
        let operands: Vec<Value> = [gates, d.r, d.bias[1], d.h0]
            .into_iter()
            .chain(d.c0)
            .collect();
        let first = k.g().add(Recurrence { cell, reverse }, &operands)?;
        let count = if d.c0.is_some() { 3 } else { 2 };
        let mut results: Vec<Value> = (0..count).map(|i| first.port(i)).collect();
        if let Some(lens) = &self.lens {
            let y = lens.cut(k, results[0])?;
            results[1] = lens.last(k, y, d.h0)?;
            results[0] = match turned {
                true => lens.reversed(k, y)?,
                false => y,
            };
        }
        Ok(results)
    }

    /// The gates `[G H]` of a step that keeps the cell state: input gate 0 and forget gate 1.
    fn kept(
        &self,
        k: &mut ImportNode<'_, '_>,
        cell: RecurrentCell,
    ) -> Result<Value, NodeErrorKind> {
        let of_gate: &[f64] = match cell {
            RecurrentCell::Lstm => &[-SATURATED, SATURATED, 0.0, 0.0],
            RecurrentCell::Gru => &[0.0, SATURATED, 0.0],
            RecurrentCell::Tanh | RecurrentCell::Relu => &[0.0],
        };
        let mut parts = Vec::with_capacity(of_gate.len());
        for gate in of_gate {
            let value = k.like(self.x, *gate)?;
            parts.push(k.g().expand(value, [self.hidden])?);
        }
        Ok(k.g().concat(&parts, 0)?)
    }

    /// How a decomposed step of a direction computes.
    fn step(
        &self,
        k: &ImportNode<'_, '_>,
        activations: Vec<GateActivation>,
        dir: usize,
    ) -> Result<RecurrentStep, NodeErrorKind> {
        let clip = k.attrs.float_opt("clip")?;
        let clip = clip.filter(|bound| *bound > 0.0 && bound.is_finite());
        Ok(RecurrentStep {
            hidden: self.hidden,
            activations,
            clip,
            coupled: k.attrs.has("input_forget") && k.attrs.flag("input_forget", false)?,
            quantized: self.quantized,
            integers: self.integers.get(dir).map(|[_, state]| state.clone()),
        })
    }

    /// Imports a direction as a scan. The step receives the carried states, the input projection
    /// and the captures.
    fn scanned(
        &self,
        k: &mut ImportNode<'_, '_>,
        d: &RecurrentDirection,
        captures: &[Value],
        dir: usize,
        step: impl FnOnce(&mut Graph, &[Value]) -> Result<Vec<Value>, OpError>,
    ) -> Result<Vec<Value>, NodeErrorKind> {
        let gates = self.input_projection(k, d, dir)?;
        let gates = k.g().transpose(gates, &[1, 0, 2])?;
        let carried: Vec<Value> = [d.h0].into_iter().chain(d.c0).collect();
        let dims: Vec<Dim> = k.dims(gates).into_iter().skip(1).collect();
        let part = Type::new(k.dtype(gates), dims);
        let mut body = Graph::new();
        let mut arguments = Vec::new();
        let count = carried.len();
        let types = carried
            .iter()
            .map(|v| k.ty(*v))
            .chain([part])
            .chain(captures.iter().map(|v| k.ty(*v)));
        for (i, ty) in types.collect::<Vec<_>>().into_iter().enumerate() {
            // The second sequence of the scan is a flag: whether the step is inside the batch
            // entry's sequence.
            if i == count + 1 && self.lens.is_some() {
                let ty = Type::new(DType::Bool, [self.batch.clone(), Dim::Known(1)]);
                body.input("inside", ty)?;
            }
            arguments.push(body.input(&format!("argument{i}"), ty)?);
        }
        let mut states = step(&mut body, &arguments)?;
        let mut y = states[0];
        let mut sequences = vec![gates];
        if let Some(lens) = &self.lens {
            sequences.push(k.g().transpose(lens.inside, &[1, 0, 2])?);
            let inside = body.leaf("inside").map(|node| Value { node, port: 0 });
            let inside = inside.ok_or_else(|| NodeErrorKind::unsupported("no captures"))?;
            let zero = body.scalar(body.ty(y).dtype, 0.0)?;
            y = body.where_(inside, y, zero)?;
            for (new, old) in states.iter_mut().zip(&arguments) {
                *new = body.where_(inside, *new, *old)?;
            }
        }
        for (i, v) in states.iter().chain([&y]).enumerate() {
            body.output(&format!("result{i}"), *v)?;
        }
        let op = Scan {
            body: SubGraph::new(body),
            carried: count,
            scanned: sequences.len(),
            reverse: vec![self.reverse[dir]; sequences.len()],
            reverse_results: vec![self.reverse[dir]],
        };
        let operands = [carried, sequences, captures.to_vec()].concat();
        let first = k.g().add(op, &operands)?;
        let all = k.g().transpose(first.port(count as u8), &[1, 0, 2])?;
        let mut results = vec![all];
        results.extend((0..count as u8).map(|i| first.port(i)));
        Ok(results)
    }
}

fn lstm(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let layer = RecurrentLayerOperands::new(k, 4)?;
    lstm_layer(k, &layer)
}

fn lstm_layer(k: &mut ImportNode<'_, '_>, layer: &RecurrentLayerOperands) -> NodeOutputs {
    let usual = ["Sigmoid", "Tanh", "Tanh"];
    let activations = GateActivation::read(k, &usual, layer.dirs)?;
    let mut parts = Vec::new();
    for (dir, own) in activations.into_iter().enumerate() {
        // ONNX orders the gates i, o, f, c.
        let d = layer.direction(k, dir, &[0, 2, 3, 1], true)?;
        let native = GateActivation::are(&own, &usual);
        let step = layer.step(k, own, dir)?;
        let native = native && step.clip.is_none() && !step.coupled && !step.quantized;
        let peepholes = k.opt(7)?;
        parts.push(match peepholes {
            None if native => layer.native(k, &d, RecurrentCell::Lstm, dir)?,
            _ => {
                let mut captures = vec![d.r, d.bias[1]];
                if let Some(p) = peepholes {
                    captures.push(layer.part(k, p, dir)?);
                }
                layer.scanned(k, &d, &captures, dir, |g, own| step.lstm(g, own))?
            }
        });
    }
    layer.results(k, parts)
}

/// `DynamicQuantizeLSTM` of ONNX Runtime: 8-bit weights `[directions, I, 4 H]` and `[directions, H,
/// 4 H]`; inputs and states are quantized dynamically before each matmul.
pub(super) fn dynamic_quantize_lstm(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let mut weights = [k.x(1)?, k.x(2)?];
    for (i, w) in weights.iter_mut().enumerate() {
        let (scale, zero) = (k.x(8 + 2 * i)?, k.opt(9 + 2 * i)?);
        let dims = k.dims(*w);
        if dims.len() != 3 {
            return Err(NodeErrorKind::operand(1 + i, "must have three axes"));
        }
        // One number per direction, or one per direction and column.
        let spread = |k: &mut ImportNode<'_, '_>, v: Value| match k.rank(v) {
            2 => Ok(k.g().unsqueeze(v, 1)?),
            1 => reshaped(k.g(), v, &[dims[0].clone(), Dim::Known(1), Dim::Known(1)]),
            _ => Err(NodeErrorKind::operand(
                8 + 2 * i,
                "must have one or two axes",
            )),
        };
        let mut wide = k.g().cast(*w, DType::F32)?;
        if let Some(zero) = zero {
            let zero = spread(k, zero)?;
            let zero = k.g().cast(zero, DType::F32)?;
            wide = k.g().sub(wide, zero)?;
        }
        let scale = spread(k, scale)?;
        let wide = k.g().mul(wide, scale)?;
        *w = k.g().transpose(wide, &[0, 2, 1])?;
    }
    let mut layer = RecurrentLayerOperands::with_weights(k, 4, weights, true)?;
    if k.dtype(layer.x) == DType::F32 {
        layer.integers = integer_weights(k, &layer)?;
    }
    lstm_layer(k, &layer)
}

/// The weights of `DynamicQuantizeLSTM` minus their zero points, with the gates in the order i, f, g, o; an empty list
/// unless all of them are known.
fn integer_weights(
    k: &ImportNode<'_, '_>,
    layer: &RecurrentLayerOperands,
) -> Result<Vec<[QuantizedRecurrence; 2]>, NodeErrorKind> {
    let known = |operand: usize| match k.val(operand) {
        ImportedValue::ConstTensor(known) => Some(&known.tensor),
        _ => None,
    };
    let (hidden, columns) = (layer.hidden, 4 * layer.hidden);
    if hidden == 0 {
        return Ok(Vec::new());
    }
    // The place in the file of a column.
    let from = |column: usize| [0, 2, 3, 1][column / hidden] * hidden + column % hidden;
    let matrix = |dir: usize, nth: usize| -> Result<Option<QuantizedRecurrence>, NodeErrorKind> {
        let (Some(weights), Some(scale)) = (known(1 + nth), known(8 + 2 * nth)) else {
            return Ok(None);
        };
        let zero = known(9 + 2 * nth);
        let &[dirs, rows, wide] = weights.shape() else {
            return Ok(None);
        };
        if (zero.is_none() && k.has(9 + 2 * nth)) || dirs != layer.dirs || wide != columns {
            return Ok(None);
        }
        // One number per direction, or one per direction and column.
        let of_column = |list: &[f64], column: usize| {
            let per = list.len() / dirs;
            list.get(dir * per + if per == columns { from(column) } else { 0 })
                .copied()
        };
        let (scale, values) = (scale.to_f64s(), weights.to_i64s());
        let zero = zero.map(Tensor::to_f64s);
        let scales: Option<Vec<f32>> = (0..columns)
            .map(|column| Some(of_column(&scale, column)? as f32))
            .collect();
        let zeros: Option<Vec<i64>> = (0..columns)
            .map(|column| match &zero {
                Some(list) => Some(of_column(list, column)? as i64),
                None => Some(0),
            })
            .collect();
        let (Some(scales), Some(zeros)) = (scales, zeros) else {
            return Ok(None);
        };
        let own = values.chunks(columns).skip(dir * rows).take(rows);
        let own = own.flat_map(|row| (0..columns).map(|c| row[from(c)] - zeros[c]));
        let own: Vec<i64> = own.collect();
        Ok(Some(QuantizedRecurrence {
            weights: Tensor::from_i64s(TensorType::new(DType::I32, &[rows, columns]), &own)?,
            scale: Tensor::from_slice(&[columns], &scales)?,
        }))
    };
    let mut all = Vec::with_capacity(layer.dirs);
    for dir in 0..layer.dirs {
        let (Some(input), Some(state)) = (matrix(dir, 0)?, matrix(dir, 1)?) else {
            return Ok(Vec::new());
        };
        all.push([input, state]);
    }
    Ok(all)
}

fn gru(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let layer = RecurrentLayerOperands::new(k, 3)?;
    let usual = ["Sigmoid", "Tanh"];
    let activations = GateActivation::read(k, &usual, layer.dirs)?;
    let after = k.attrs.flag("linear_before_reset", false)?;
    let mut parts = Vec::new();
    for (dir, own) in activations.into_iter().enumerate() {
        // ONNX orders the gates z, r, h.
        let d = layer.direction(k, dir, &[1, 0, 2], false)?;
        let native = GateActivation::are(&own, &usual);
        let step = layer.step(k, own, dir)?;
        let captures = [d.r, d.bias[1]];
        parts.push(match after {
            true if native && step.clip.is_none() => {
                layer.native(k, &d, RecurrentCell::Gru, dir)?
            }
            true => layer.scanned(k, &d, &captures, dir, |g, own| step.gru_after(g, own))?,
            false => layer.scanned(k, &d, &captures, dir, |g, own| step.gru_before(g, own))?,
        });
    }
    layer.results(k, parts)
}

fn rnn(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let layer = RecurrentLayerOperands::new(k, 1)?;
    let activations = GateActivation::read(k, &["Tanh"], layer.dirs)?;
    let mut parts = Vec::new();
    for (dir, own) in activations.into_iter().enumerate() {
        let d = layer.direction(k, dir, &[0], false)?;
        let cell = match own.as_slice() {
            own if GateActivation::are(own, &["Tanh"]) => Some(RecurrentCell::Tanh),
            own if GateActivation::are(own, &["Relu"]) => Some(RecurrentCell::Relu),
            _ => None,
        };
        let step = layer.step(k, own, dir)?;
        parts.push(match cell.filter(|_| step.clip.is_none()) {
            Some(cell) => layer.native(k, &d, cell, dir)?,
            None => {
                let captures = [d.r, d.bias[1]];
                layer.scanned(k, &d, &captures, dir, |g, own| step.rnn(g, own))?
            }
        });
    }
    layer.results(k, parts)
}

//! Decompositions of norms over channels-first values into layer norm and an elementwise map with
//! per-channel weights.

use tercet_tensor::{DType, Dim};

use super::util::{ValueResult, accumulate_dtype};
use super::{LegalizeRule, RuleResult};
use crate::attr::FloatAttr;
use crate::graph::Value;
use crate::legalize::LegalizeBuilder;
use crate::ops::{AxisMap, IndexMap, LayerNorm, Map, MapArg, MapStep, Op, OpKind};
use crate::scalar::{BinaryFn, ScalarOp, UnaryFn};

pub(super) const RULES: &[LegalizeRule] = &[
    LegalizeRule {
        name: "group_norm_as_layer_norm_of_groups",
        on: OpKind::GroupNorm,
        apply: group_norm,
    },
    LegalizeRule {
        name: "layer_norm_2d_as_layer_norm_of_last_axis",
        on: OpKind::LayerNorm2d,
        apply: layer_norm_2d,
    },
    LegalizeRule {
        name: "batch_norm_inference_as_map",
        on: OpKind::BatchNormInference,
        apply: batch_norm_inference,
    },
];

/// A map over `x [N, C, ..]` and per-channel weights, under construction.
struct ChannelMapBuilder {
    inputs: Vec<Value>,
    body: Vec<MapStep>,
    to: DType,
}

impl ChannelMapBuilder {
    /// A map whose steps compute in `dtype` or wider.
    fn new(dtype: DType) -> ChannelMapBuilder {
        ChannelMapBuilder {
            inputs: Vec::new(),
            body: Vec::new(),
            to: accumulate_dtype(dtype),
        }
    }

    fn step(&mut self, op: ScalarOp, args: impl Into<Vec<MapArg>>) -> MapArg {
        self.body.push(MapStep::new(op, args));
        MapArg::Step(self.body.len() - 1)
    }

    fn binary(&mut self, f: BinaryFn, a: MapArg, b: MapArg) -> MapArg {
        self.step(ScalarOp::Binary(f), [a, b])
    }

    /// Adds an operand and returns its widened element. `x` must be added first, then the weights.
    fn input(&mut self, value: Value) -> MapArg {
        self.inputs.push(value);
        let arg = MapArg::Input(self.inputs.len() - 1);
        self.step(ScalarOp::Cast(self.to), [arg])
    }

    fn finish(mut self, b: &mut LegalizeBuilder<'_>, y: MapArg, dtype: DType) -> ValueResult {
        self.step(ScalarOp::Cast(dtype), [y]);
        let shape = b.shape(self.inputs[0]);
        let by_channel = IndexMap {
            axes: vec![AxisMap::axis(1)],
        };
        let mut inputs = vec![IndexMap::identity(shape.rank())];
        inputs.resize(self.inputs.len(), by_channel);
        let results = vec![self.body.len() - 1];
        let map = Map {
            shape,
            inputs,
            body: self.body,
            results,
        };
        b.add(map, &self.inputs)
    }
}

/// Layer norm of the groups as rows, in F32 or wider, followed by the channel weights.
fn group_norm(b: &mut LegalizeBuilder<'_>, op: &Op, inputs: &[Value]) -> RuleResult {
    let (Op::GroupNorm(o), &[x, gamma, ref beta @ ..]) = (op, inputs) else {
        return Ok(None);
    };
    let (dtype, shape) = (b.dtype(x), b.shape(x));
    let Some(each) = shape[1].known().map(|c| Dim::Known(c / o.groups)) else {
        return Ok(None);
    };
    let mut dims = shape[2..].iter();
    let Some(len) = dims.try_fold(each, |n, d| n.checked_mul(d)) else {
        return Ok(None);
    };
    let x = b.widen(x)?;
    let rows = vec![shape[0].clone(), Dim::Known(o.groups), len.clone()];
    let x = b.reshape(x, rows)?;
    let one = b.scalar(b.dtype(x), 1.0)?;
    let ones = b.expand(one, vec![len])?;
    let y = b.add(
        LayerNorm {
            axis: 2,
            eps: o.eps,
        },
        &[x, ones],
    )?;
    let y = b.reshape(y, shape)?;
    let mut map = ChannelMapBuilder::new(dtype);
    let (y, gamma) = (map.input(y), map.input(gamma));
    let mut y = map.binary(BinaryFn::Mul, y, gamma);
    if let Some(&beta) = beta.first() {
        let beta = map.input(beta);
        y = map.binary(BinaryFn::Add, y, beta);
    }
    Ok(Some(vec![map.finish(b, y, dtype)?]))
}

fn layer_norm_2d(b: &mut LegalizeBuilder<'_>, op: &Op, inputs: &[Value]) -> RuleResult {
    let (Op::LayerNorm2d(o), &[x, ref weights @ ..]) = (op, inputs) else {
        return Ok(None);
    };
    let x = b.transpose(x, &[0, 2, 3, 1])?;
    let operands: Vec<Value> = [&[x], weights].concat();
    let norm = LayerNorm {
        axis: 3,
        eps: o.eps,
    };
    let y = b.add(norm, &operands)?;
    Ok(Some(vec![b.transpose(y, &[0, 3, 1, 2])?]))
}

fn batch_norm_inference(b: &mut LegalizeBuilder<'_>, op: &Op, inputs: &[Value]) -> RuleResult {
    let (Op::BatchNormInference(o), &[x, gamma, beta, mean, variance]) = (op, inputs) else {
        return Ok(None);
    };
    let dtype = b.dtype(x);
    let mut map = ChannelMapBuilder::new(dtype);
    let (x, mean) = (map.input(x), map.input(mean));
    let centred = map.binary(BinaryFn::Sub, x, mean);
    let variance = map.input(variance);
    let eps = map.step(
        ScalarOp::Const(accumulate_dtype(dtype), FloatAttr(o.eps.0)),
        [],
    );
    let sum = map.binary(BinaryFn::Add, variance, eps);
    let scale = map.step(ScalarOp::Unary(UnaryFn::Rsqrt), [sum]);
    let y = map.binary(BinaryFn::Mul, centred, scale);
    let gamma = map.input(gamma);
    let y = map.binary(BinaryFn::Mul, y, gamma);
    let beta = map.input(beta);
    let y = map.binary(BinaryFn::Add, y, beta);
    Ok(Some(vec![map.finish(b, y, dtype)?]))
}

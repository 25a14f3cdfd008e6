//! Normalization operators.

use tercet_ir::ops::{Pool, PoolFn, ReduceFn, Window};
use tercet_ir::{DType, Dim, Op, Tensor, Value};

use super::shape::{product, reshaped};
use super::{OpsetEntry, op};
use crate::call::{ImportNode, NodeOutputs, axes, one};
use crate::error::NodeErrorKind;
use crate::val::ImportedValue;

pub(crate) const TABLE: &[OpsetEntry] = &[
    op("BatchNormalization", 7, batch_norm),
    op("InstanceNormalization", 6, instance_norm),
    op("LayerNormalization", 17, layer_norm),
    op("GroupNormalization", 18, group_norm),
    op("RMSNormalization", 23, rms_norm),
    op("LRN", 1, local_response),
    op("LpNormalization", 1, lp_norm),
    op("MeanVarianceNormalization", 9, mean_variance),
];

/// Reshapes a per-channel vector to `[C, 1, ..]`, which broadcasts against `[N, C, ..]`.
fn per_channel(k: &mut ImportNode<'_, '_>, x: Value, rank: usize) -> Result<Value, NodeErrorKind> {
    let mut dims = k.dims(x);
    dims.resize(rank.saturating_sub(1).max(1), Dim::Known(1));
    reshaped(k.g(), x, &dims)
}

/// `(x - mean) / sqrt(variance + eps) * gamma + beta`
fn normalized(
    k: &mut ImportNode<'_, '_>,
    x: Value,
    mean: Value,
    variance: Value,
    eps: f64,
) -> Result<Value, NodeErrorKind> {
    let eps = k.like(variance, eps)?;
    let g = k.g();
    let centred = g.sub(x, mean)?;
    let wide = g.plus(variance, eps)?;
    let inverse = g.rsqrt(wide)?;
    Ok(g.mul(centred, inverse)?)
}

pub(super) fn batch_norm(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let (x, gamma, beta, mean, variance) = (k.x(0)?, k.x(1)?, k.x(2)?, k.x(3)?, k.x(4)?);
    let (eps, momentum) = (
        k.attrs.float("epsilon", 1e-5)?,
        k.attrs.float("momentum", 0.9)?,
    );
    if !k.attrs.flag("spatial", true)? {
        return Err(NodeErrorKind::attribute("spatial", "0 is not supported"));
    }
    let one_dtype = [gamma, beta, mean, variance]
        .iter()
        .all(|v| k.dtype(*v) == k.dtype(x));
    if !k.attrs.flag("training_mode", false)? {
        if one_dtype {
            if let Some(y) = known_batch_norm(k, x, eps)? {
                return one(y);
            }
            return one(k
                .g()
                .batch_norm_inference(x, [gamma, beta, mean, variance], eps)?);
        }
        return Err(NodeErrorKind::unsupported(
            "operands must have the same dtype",
        ));
    }
    let rank = k.rank(x);
    let list: Vec<usize> = (0..rank).filter(|a| *a != 1).collect();
    let own_mean = k.g().reduce(ReduceFn::Mean, x, &list, true)?;
    let centred = k.g().sub(x, own_mean)?;
    let square = k.g().mul(centred, centred)?;
    let own_variance = k.g().reduce(ReduceFn::Mean, square, &list, true)?;
    let y = normalized(k, x, own_mean, own_variance, eps)?;
    let (gamma, beta) = (per_channel(k, gamma, rank)?, per_channel(k, beta, rank)?);
    let y = k.g().mul(y, gamma)?;
    let y = k.g().plus(y, beta)?;
    let mut results = vec![ImportedValue::Graph(y)];
    for (old, new) in [(mean, own_mean), (variance, own_variance)] {
        let (keep, take) = (k.like(old, momentum)?, k.like(old, 1.0 - momentum)?);
        let dims = k.dims(old);
        let new = reshaped(k.g(), new, &dims)?;
        let (old, new) = (k.g().mul(old, keep)?, k.g().mul(new, take)?);
        results.push(k.g().plus(old, new)?.into());
    }
    Ok(results)
}

/// Batch normalization of F32 with constant parameters: `(x - mean) scale + beta`, whose scale per channel is computed
/// at import.
fn known_batch_norm(
    k: &mut ImportNode<'_, '_>,
    x: Value,
    eps: f64,
) -> Result<Option<Value>, NodeErrorKind> {
    let list = |operand: usize| match k.val(operand) {
        ImportedValue::ConstTensor(known) => Some(known.tensor.to_f64s()),
        _ => None,
    };
    let (Some(gamma), Some(beta), Some(mean), Some(variance)) =
        (list(1), list(2), list(3), list(4))
    else {
        return Ok(None);
    };
    let rank = k.rank(x);
    let same = [&beta, &mean, &variance]
        .iter()
        .all(|list| list.len() == gamma.len());
    let channels = k.dims(x).get(1).and_then(Dim::known);
    if k.dtype(x) != DType::F32 || !same || channels != Some(gamma.len()) {
        return Ok(None);
    }
    let scale = gamma.iter().zip(&variance);
    let scale: Vec<f64> = scale
        .map(|(gamma, variance)| gamma / (variance + eps).sqrt())
        .collect();
    let parameters = ChannelScale { mean, scale, beta };
    if let Some(y) = parameters.folded_into_conv(k, x)? {
        return Ok(Some(y));
    }
    let ChannelScale { mean, scale, beta } = parameters;
    let mut shape = vec![gamma.len()];
    shape.resize(rank - 1, 1);
    let constant = |k: &mut ImportNode<'_, '_>, list: &[f64]| -> Result<Value, NodeErrorKind> {
        let list: Vec<f32> = list.iter().map(|x| *x as f32).collect();
        Ok(k.g().constant(Tensor::from_slice(&shape, &list)?)?)
    };
    let mean = constant(k, &mean)?;
    let scale = constant(k, &scale)?;
    let beta = constant(k, &beta)?;
    let g = k.g();
    let centred = g.sub(x, mean)?;
    let scaled = g.mul(centred, scale)?;
    Ok(Some(g.plus(scaled, beta)?))
}

/// `(x - mean) scale + beta` per channel.
struct ChannelScale {
    mean: Vec<f64>,
    scale: Vec<f64>,
    beta: Vec<f64>,
}

impl ChannelScale {
    /// The result of a convolution with constant weights, if this is the only use of `x`: the scale is part of new
    /// weights, and the rest is a bias.
    fn folded_into_conv(
        &self,
        k: &mut ImportNode<'_, '_>,
        x: Value,
    ) -> Result<Option<Value>, NodeErrorKind> {
        let node = k.c.graph().node(x.node);
        let (Op::Conv(conv), [input, weight, bias @ ..]) = (&node.op, node.inputs.as_slice())
        else {
            return Ok(None);
        };
        let name = k.node.input.first().map_or("", String::as_str);
        if conv.activation.is_some() || !k.c.is_used_once(name) {
            return Ok(None);
        }
        let (conv, input) = (conv.clone(), *input);
        let old = match bias {
            [] => Some(vec![0.0; self.scale.len()]),
            [bias, ..] => k.c.known_tensor(*bias).map(Tensor::to_f64s),
        };
        let (Some(old), Some(weights)) = (old, k.c.known_tensor(*weight)) else {
            return Ok(None);
        };
        let channels = self.scale.len();
        if weights.shape().first() != Some(&channels) || old.len() != channels {
            return Ok(None);
        }
        let Ok(values) = weights.as_slice::<f32>() else {
            return Ok(None);
        };
        let own = values
            .chunks((values.len() / channels.max(1)).max(1))
            .zip(&self.scale);
        let scaled =
            own.flat_map(|(own, scale)| own.iter().map(move |w| (f64::from(*w) * scale) as f32));
        let scaled: Vec<f32> = scaled.collect();
        let weights = Tensor::from_slice(weights.shape(), &scaled)?;
        let parts = old
            .iter()
            .zip(&self.mean)
            .zip(self.scale.iter().zip(&self.beta));
        let bias: Vec<f32> = parts
            .map(|((old, mean), (scale, beta))| ((old - mean) * scale + beta) as f32)
            .collect();
        let bias = Tensor::from_slice(&[channels], &bias)?;
        let weights =
            k.c.place_tensor(&weights, Some(&format!("{name}#weights")))?;
        let bias = k.c.place_tensor(&bias, Some(&format!("{name}#bias")))?;
        Ok(Some(k.g().add(conv, &[input, weights, bias])?))
    }
}

fn instance_norm(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let (x, gamma, beta) = (k.x(0)?, k.x(1)?, k.x(2)?);
    let eps = k.attrs.float("epsilon", 1e-5)?;
    let channels = k.size(x, 1)?;
    one(k.g().group_norm(x, gamma, Some(beta), channels, eps)?)
}

fn group_norm(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let (x, mut gamma, mut beta) = (k.x(0)?, k.x(1)?, k.x(2)?);
    let eps = k.attrs.float("epsilon", 1e-5)?;
    k.attrs.ignore(&["stash_type"]);
    let groups = k.attrs.int("num_groups", 0)?;
    let channels = k.size(x, 1)?;
    let groups = usize::try_from(groups)
        .ok()
        .filter(|g| *g > 0 && channels % g == 0);
    let groups = groups
        .ok_or_else(|| NodeErrorKind::attribute("num_groups", "does not divide the channels"))?;
    if k.opset < 21 {
        // A value per group, repeated over its channels.
        for v in [&mut gamma, &mut beta] {
            let column = reshaped(k.g(), *v, &[Dim::Known(groups), Dim::Known(1)])?;
            let wide = k.g().expand(column, [groups, channels / groups])?;
            *v = reshaped(k.g(), wide, &[Dim::Known(channels)])?;
        }
    }
    one(k.g().group_norm(x, gamma, Some(beta), groups, eps)?)
}

/// The dtype of the statistics: `stash_type`, at least F32.
fn stash(k: &ImportNode<'_, '_>, x: Value) -> Result<DType, NodeErrorKind> {
    let asked = crate::elem::dtype(k.attrs.int("stash_type", 1)?)
        .map_err(|e| NodeErrorKind::attribute("stash_type", e))?;
    let own = k.dtype(x);
    Ok(match own {
        DType::F64 => own,
        _ => asked,
    })
}

fn to(k: &mut ImportNode<'_, '_>, x: Value, dtype: DType) -> Result<Value, NodeErrorKind> {
    match k.dtype(x) == dtype {
        true => Ok(x),
        false => Ok(k.g().cast(x, dtype)?),
    }
}

fn layer_norm(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let (x, gamma, beta) = (k.x(0)?, k.x(1)?, k.opt(2)?);
    let (at, eps) = (k.axis(-1, k.rank(x))?, k.attrs.float("epsilon", 1e-5)?);
    let wide = stash(k, x)?;
    let dims = k.dims(x);
    let same = |v: Value| k.dims(v) == dims[at..] && k.dtype(v) == k.dtype(x);
    if same(gamma) && beta.is_none_or(same) && !k.is_requested(1) && !k.is_requested(2) {
        return one(k.g().layer_norm(x, gamma, beta, at, eps)?);
    }
    let own = k.dtype(x);
    let list: Vec<usize> = (at..dims.len()).collect();
    let x = to(k, x, wide)?;
    let mean = k.g().reduce(ReduceFn::Mean, x, &list, true)?;
    let centred = k.g().sub(x, mean)?;
    let square = k.g().mul(centred, centred)?;
    let variance = k.g().reduce(ReduceFn::Mean, square, &list, true)?;
    let eps = k.like(variance, eps)?;
    let widened = k.g().plus(variance, eps)?;
    let inverse = k.g().rsqrt(widened)?;
    let y = k.g().mul(centred, inverse)?;
    let y = to(k, y, own)?;
    let mut y = k.g().mul(y, gamma)?;
    if let Some(beta) = beta {
        y = k.g().plus(y, beta)?;
    }
    Ok(vec![y.into(), mean.into(), inverse.into()])
}

fn rms_norm(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let (x, gamma) = (k.x(0)?, k.x(1)?);
    let (at, eps) = (k.axis(-1, k.rank(x))?, k.attrs.float("epsilon", 1e-5)?);
    let (wide, own) = (stash(k, x)?, k.dtype(x));
    let dims = k.dims(x);
    if at + 1 == dims.len() && k.dims(gamma) == dims[at..] && k.dtype(gamma) == own {
        return one(k.g().rms_norm(x, gamma, None, eps)?);
    }
    let list: Vec<usize> = (at..dims.len()).collect();
    let x = to(k, x, wide)?;
    let square = k.g().mul(x, x)?;
    let mean = k.g().reduce(ReduceFn::Mean, square, &list, true)?;
    let eps = k.like(mean, eps)?;
    let widened = k.g().plus(mean, eps)?;
    let inverse = k.g().rsqrt(widened)?;
    let y = k.g().mul(x, inverse)?;
    let dtype = k.dtype(gamma);
    let y = to(k, y, dtype)?;
    one(k.g().mul(y, gamma)?)
}

/// `x / (bias + alpha / size * s)^beta`, where `s` is the sum of squares over neighboring channels.
fn local_response(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let x = k.x(0)?;
    let (alpha, beta, bias) = (
        k.attrs.float("alpha", 1e-4)?,
        k.attrs.float("beta", 0.75)?,
        k.attrs.float("bias", 1.0)?,
    );
    let size = usize::try_from(k.attrs.int("size", 0)?)
        .ok()
        .filter(|s| *s > 0);
    let size = size.ok_or_else(|| NodeErrorKind::attribute("size", "must be positive"))?;
    let dims = k.dims(x);
    if dims.len() < 2 {
        return Err(NodeErrorKind::operand(0, "must have channels"));
    }
    let flat = [
        dims[0].clone(),
        Dim::Known(1),
        dims[1].clone(),
        product(&dims[2..])?,
    ];
    let square = k.g().mul(x, x)?;
    let rows = reshaped(k.g(), square, &flat)?;
    let window = Window::new(2).with_pads(&[(size - 1) / 2, 0], &[size / 2, 0]);
    let sums = k
        .g()
        .add(Pool::new(PoolFn::Sum, &[size, 1], window), &[rows])?;
    let sums = reshaped(k.g(), sums, &dims)?;
    let (factor, bias, beta) = (
        k.like(x, alpha / size as f64)?,
        k.like(x, bias)?,
        k.like(x, beta)?,
    );
    let g = k.g();
    let scaled = g.mul(sums, factor)?;
    let base = g.plus(scaled, bias)?;
    let divisor = g.pow(base, beta)?;
    one(g.div(x, divisor)?)
}

fn lp_norm(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let x = k.x(0)?;
    let at = k.axis(-1, k.rank(x))?;
    let norm = match k.attrs.int("p", 2)? {
        1 => {
            let size = k.g().abs(x)?;
            k.g().reduce(ReduceFn::Sum, size, &[at], true)?
        }
        2 => super::reduce::norm_2(k, x, &[at], true)?,
        p => {
            return Err(NodeErrorKind::attribute(
                "p",
                format!("{p} is neither 1 nor 2"),
            ));
        }
    };
    // Rows with norm 0 stay zero.
    let none = super::reduce::equals(k, norm, 0.0)?;
    let one_ = k.like(norm, 1.0)?;
    let divisor = k.g().where_(none, one_, norm)?;
    one(k.g().div(x, divisor)?)
}

fn mean_variance(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let x = k.x(0)?;
    let list = axes(k.attrs.ints_opt("axes")?.unwrap_or(&[0, 2, 3]), k.rank(x))?;
    let small = k.like(x, 1e-9)?;
    let g = k.g();
    let mean = g.reduce(ReduceFn::Mean, x, &list, true)?;
    let centred = g.sub(x, mean)?;
    let square = g.mul(centred, centred)?;
    let variance = g.reduce(ReduceFn::Mean, square, &list, true)?;
    let deviation = g.sqrt(variance)?;
    let divisor = g.plus(deviation, small)?;
    one(g.div(centred, divisor)?)
}

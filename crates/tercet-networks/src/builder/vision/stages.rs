//! Convolutional vision models: ResNet and ConvNeXt stages.

use tercet::Value;
use tercet::ops::{PoolFn, ReduceFn, Window};

use super::super::decoder::layer::activate;
use super::super::encoder::as_rows;
use super::super::{ModelBuilder, ModelError};
use crate::config::{FfnActivation, ResidualLayer, StagesKind, StagesSpec, VisionFamily};

/// Epsilon of all ResNet batch norms.
const BATCH_EPS: f64 = 1e-5;
/// Epsilon of the ConvNeXt norms, except the last one.
const LAYER_EPS: f64 = 1e-6;

/// A convolutional model and its tensor name prefix.
struct StagesBuilder<'a> {
    spec: &'a StagesSpec,
    prefix: &'static str,
}

/// Feature vectors `[rows, width]` of images `[rows, 3, height, width]`.
pub(super) fn vectors(
    b: &mut ModelBuilder<'_>,
    (family, spec): (VisionFamily, &StagesSpec),
    pixels: Value,
    size: [usize; 2],
) -> Result<Value, ModelError> {
    let least = spec.min_side();
    if size.iter().any(|side| *side < least) {
        return Err(ModelError::Unsupported(format!(
            "images of {size:?} pixels are too small; this model expects at least {least} by {least}"
        )));
    }
    let prefix = spec.prefix(family.prefix(), b.weights);
    let of = StagesBuilder { spec, prefix };
    match spec.kind {
        StagesKind::Residual { stem, layer, .. } => {
            let x = of.unit(b, "embedder.embedder", pixels, ([stem, 3, 7], 2))?;
            let mut x = activate(b, spec.activation, x)?;
            let window = Window::new(2)
                .with_stride(&[2, 2])
                .with_pads(&[1, 1], &[1, 1]);
            x = b.graph.pool(x, PoolFn::Max, &[3, 3], window)?;
            let mut channels = stem;
            for stage in 0..spec.channels.len() {
                for at in 0..spec.depths[stage] {
                    x = of.residual(b, (stage, at), layer, (x, channels))?;
                    channels = spec.channels[stage];
                }
            }
            Ok(b.graph.reduce(ReduceFn::Mean, x, &[2, 3], false)?)
        }
        StagesKind::ConvNext { patch, layer_scale } => {
            let first = spec.channels[0];
            let name = "embeddings.patch_embeddings";
            let mut x = of.conv(b, name, pixels, ([first, 3, patch], [patch, 0, 1]))?;
            x = of.norm_of_places(b, "embeddings.layernorm", x, first)?;
            for stage in 0..spec.channels.len() {
                let channels = spec.channels[stage];
                if stage > 0 {
                    let before = spec.channels[stage - 1];
                    let name = format!("encoder.stages.{stage}.downsampling_layer");
                    x = of.norm_of_places(b, &format!("{name}.0"), x, before)?;
                    let shape = [channels, before, 2];
                    x = of.conv(b, &format!("{name}.1"), x, (shape, [2, 0, 1]))?;
                }
                for at in 0..spec.depths[stage] {
                    let name = format!("encoder.stages.{stage}.layers.{at}");
                    x = of.mixed(b, &name, (x, channels), layer_scale)?;
                }
            }
            let x = b.graph.reduce(ReduceFn::Mean, x, &[2, 3], false)?;
            of.layer_norm(b, "layernorm", x, (spec.width(), f64::from(spec.eps)))
        }
    }
}

impl StagesBuilder<'_> {
    fn named(&self, name: &str, suffix: &str) -> String {
        format!("{}{name}.{suffix}", self.prefix)
    }

    /// Convolution with a bias. The parameters are `[outputs, inputs per group, kernel size]` and
    /// `[stride, padding, groups]`.
    fn conv(
        &self,
        b: &mut ModelBuilder<'_>,
        name: &str,
        x: Value,
        ([outputs, inputs, taps], [stride, pad, groups]): ([usize; 3], [usize; 3]),
    ) -> Result<Value, ModelError> {
        let weight = b.dense(&self.named(name, "weight"), &[outputs, inputs, taps, taps])?;
        let bias = b.vector(&self.named(name, "bias"), outputs)?;
        let window = window(stride, pad);
        Ok(b.graph.conv(x, weight, Some(bias), window, groups)?)
    }

    /// Convolution followed by batch norm.
    fn unit(
        &self,
        b: &mut ModelBuilder<'_>,
        name: &str,
        x: Value,
        ([outputs, inputs, taps], stride): ([usize; 3], usize),
    ) -> Result<Value, ModelError> {
        let weight = self.named(name, "convolution.weight");
        let weight = b.dense(&weight, &[outputs, inputs, taps, taps])?;
        let x = b.graph.conv(x, weight, None, window(stride, taps / 2), 1)?;
        let mut of = |part| b.vector(&self.named(name, &format!("normalization.{part}")), outputs);
        let weights = [
            of("weight")?,
            of("bias")?,
            of("running_mean")?,
            of("running_var")?,
        ];
        Ok(b.graph.batch_norm_inference(x, weights, BATCH_EPS)?)
    }

    /// A ResNet layer; `before` is the number of input channels of `x`.
    fn residual(
        &self,
        b: &mut ModelBuilder<'_>,
        (stage, at): (usize, usize),
        layer: ResidualLayer,
        (x, before): (Value, usize),
    ) -> Result<Value, ModelError> {
        let channels = self.spec.channels[stage];
        let (stride, shortcut) = match at {
            0 => self.spec.first_of(stage),
            _ => (1, false),
        };
        let name = format!("encoder.stages.{stage}.layers.{at}");
        // Shape and stride of each convolution.
        let units = match layer {
            ResidualLayer::Basic => {
                vec![
                    ([channels, before, 3], stride),
                    ([channels, channels, 3], 1),
                ]
            }
            ResidualLayer::Bottleneck { shrinks_first } => {
                let inner = channels / 4;
                let [first, second] = match shrinks_first {
                    true => [stride, 1],
                    false => [1, stride],
                };
                vec![
                    ([inner, before, 1], first),
                    ([inner, inner, 3], second),
                    ([channels, inner, 1], 1),
                ]
            }
        };
        let mut y = x;
        let last = units.len() - 1;
        for (i, unit) in units.into_iter().enumerate() {
            y = self.unit(b, &format!("{name}.layer.{i}"), y, unit)?;
            if i < last {
                // Always ReLU: the reference applies the configured activation only after the
                // residual sum.
                y = activate(b, FfnActivation::Relu, y)?;
            }
        }
        let x = match shortcut {
            true => {
                let shape = ([channels, before, 1], stride);
                self.unit(b, &format!("{name}.shortcut"), x, shape)?
            }
            false => x,
        };
        let sum = b.graph.plus(y, x)?;
        activate(b, self.spec.activation, sum)
    }

    /// A ConvNeXt layer.
    fn mixed(
        &self,
        b: &mut ModelBuilder<'_>,
        name: &str,
        (x, channels): (Value, usize),
        layer_scale: bool,
    ) -> Result<Value, ModelError> {
        let shape = b.graph.ty(x).shape.clone();
        let y = self.conv(
            b,
            &format!("{name}.dwconv"),
            x,
            ([channels, 1, 7], [1, 3, channels]),
        )?;
        let y = as_rows(b, y)?;
        let y = self.layer_norm(b, &format!("{name}.layernorm"), y, (channels, LAYER_EPS))?;
        let linear = |b: &mut ModelBuilder<'_>, x, part: &str, shape| {
            let of = |suffix| self.named(&format!("{name}.{part}"), suffix);
            b.linear(x, &of("weight"), Some(&of("bias")), shape)
        };
        let y = linear(b, y, "pwconv1", [4 * channels, channels])?;
        let y = activate(b, self.spec.activation, y)?;
        let mut y = linear(b, y, "pwconv2", [channels, 4 * channels])?;
        if layer_scale {
            let scale = b.vector(&self.named(name, "layer_scale_parameter"), channels)?;
            y = b.graph.mul(y, scale)?;
        }
        let y = b.graph.transpose(y, &[0, 2, 1])?;
        let y = b.graph.reshape(y, shape.to_vec())?;
        Ok(b.graph.plus(x, y)?)
    }

    /// Layer norm over the last axis.
    fn layer_norm(
        &self,
        b: &mut ModelBuilder<'_>,
        name: &str,
        x: Value,
        (len, eps): (usize, f64),
    ) -> Result<Value, ModelError> {
        let gain = b.vector(&self.named(name, "weight"), len)?;
        let bias = b.vector(&self.named(name, "bias"), len)?;
        let axis = b.graph.ty(x).rank() - 1;
        Ok(b.graph.layer_norm(x, gain, Some(bias), axis, eps)?)
    }

    /// Layer norm over the channels of each position.
    fn norm_of_places(
        &self,
        b: &mut ModelBuilder<'_>,
        name: &str,
        x: Value,
        channels: usize,
    ) -> Result<Value, ModelError> {
        let gain = b.vector(&self.named(name, "weight"), channels)?;
        let bias = b.vector(&self.named(name, "bias"), channels)?;
        Ok(b.graph.layer_norm_2d(x, gain, Some(bias), LAYER_EPS)?)
    }
}

fn window(stride: usize, pad: usize) -> Window {
    let pads = [pad, pad];
    Window::new(2)
        .with_stride(&[stride, stride])
        .with_pads(&pads, &pads)
}

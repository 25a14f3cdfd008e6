//! Image input of encoders (ViT): patch embeddings instead of token embeddings.

use tercet::ops::Window;
use tercet::{Dim, Tensor, Value};

use super::super::weights::bytes_error;
use super::super::{ModelBuilder, ModelError};
use super::layer::EncoderContext;
use crate::config::encoder::{EncoderNames, EncoderPart, EncoderSpec, PatchSpec};

/// Hidden states `[rows, len, hidden]` of images `pixels [rows, 3, height, width]`. The class token
/// comes first, if there is one, then the patches in row-major order.
pub(crate) fn encode_images(
    b: &mut ModelBuilder<'_>,
    spec: &EncoderSpec,
    pixels: Value,
    size: [usize; 2],
) -> Result<Value, ModelError> {
    let Some(patches) = &spec.patches else {
        return Err(ModelError::Unsupported(
            "a text encoder does not accept images".to_string(),
        ));
    };
    if size != patches.image && !patches.interpolated {
        let [height, width] = size;
        let own = patches.image;
        return Err(ModelError::Unsupported(format!(
            "preprocessor_config.json produces pictures {height} pixels high and {width} wide; the model expects {} by {} \
             (image_size of config.json); positions are interpolated for DINOv2 only",
            own[0], own[1]
        )));
    }
    let names = EncoderNames::new(spec, b.weights);
    let of = EncoderContext { spec, names };
    let mut x = of.patches(b, patches, pixels)?;
    let table = of.rows(b, EncoderPart::PatchPositions)?;
    let table = match size == patches.image {
        true => table,
        false => interpolated(&table, patches, size)?,
    };
    let name = of.names.tensor(EncoderPart::PatchPositions, 0, "");
    let table = b.param(&name, table)?;
    x = b.graph.plus(x, table)?;
    if spec.embedding_norm {
        x = of.norm(b, EncoderPart::EmbeddingNorm, 0, x)?;
    }
    of.patch_layers(b, x)
}

impl EncoderContext<'_> {
    /// Class token and patch embeddings, without position embeddings.
    fn patches(
        &self,
        b: &mut ModelBuilder<'_>,
        patches: &PatchSpec,
        pixels: Value,
    ) -> Result<Value, ModelError> {
        let hidden = self.spec.hidden;
        let [height, width] = patches.patch;
        let name = |suffix| self.names.tensor(EncoderPart::PatchProjection, 0, suffix);
        let weight = b.dense(&name("weight"), &[hidden, patches.channels, height, width])?;
        let bias = match patches.bias {
            true => Some(b.vector(&name("bias"), hidden)?),
            false => None,
        };
        let window = Window::new(2).with_stride(&patches.patch);
        let x = b.graph.conv(pixels, weight, bias, window, 1)?;
        let x = as_rows(b, x)?;
        if !patches.class_token {
            return Ok(x);
        }
        let token = self.rows(b, EncoderPart::ClassToken)?;
        let token = b.param(&self.names.tensor(EncoderPart::ClassToken, 0, ""), token)?;
        let token = b.graph.unsqueeze(token, 0)?;
        let rows = b.graph.ty(x).shape[0].clone();
        let token = b
            .graph
            .expand(token, [rows, Dim::Known(1), hidden.into()])?;
        Ok(b.graph.concat(&[token, x], 1)?)
    }

    /// A parameter that the reference implementation stores with or without leading axes of length
    /// 1.
    fn rows(&self, b: &mut ModelBuilder<'_>, part: EncoderPart) -> Result<Tensor, ModelError> {
        let name = self.names.tensor(part, 0, "");
        b.weights.rows_f32(&name, part.shape(self.spec))
    }
}

/// Reshapes `[rows, channels, height, width]` to `[rows, height * width, channels]`.
pub(crate) fn as_rows(b: &mut ModelBuilder<'_>, x: Value) -> Result<Value, ModelError> {
    let shape = &b.graph.ty(x).shape;
    let side = |axis: usize| {
        let side = shape[axis].known();
        side.expect("invariant: the sides of pictures are known")
    };
    let places = Dim::Known(side(2) * side(3));
    let flat = [shape[0].clone(), shape[1].clone(), places];
    let x = b.graph.reshape(x, flat)?;
    Ok(b.graph.transpose(x, &[0, 2, 1])?)
}

/// Position embeddings resampled to another image size by bicubic interpolation (Keys 1981, a =
/// -0.75) with edge replication. The class token's embedding stays.
fn interpolated(
    table: &Tensor,
    patches: &PatchSpec,
    size: [usize; 2],
) -> Result<Tensor, ModelError> {
    let from = patches.grid(patches.image);
    let to = patches.grid(size);
    if to.contains(&0) {
        return Err(ModelError::Unsupported(format!(
            "images of {size:?} pixels are smaller than a patch of {:?}",
            patches.patch
        )));
    }
    let width = table.shape()[1];
    let values = table.to_f64s();
    let class = usize::from(patches.class_token) * width;
    let [rows, columns] = [0, 1].map(|axis| taps(from[axis], to[axis]));
    let mut found: Vec<f32> = values[..class].iter().map(|x| *x as f32).collect();
    for (row, column) in rows
        .iter()
        .flat_map(|r| columns.iter().map(move |c| (r, c)))
    {
        for element in 0..width {
            let at = |y: usize, x: usize| values[class + (y * from[1] + x) * width + element];
            let line = |y: usize| column.iter().map(|(x, w)| w * at(y, *x)).sum::<f64>();
            let sum: f64 = row.iter().map(|(y, w)| w * line(*y)).sum();
            found.push(sum as f32);
        }
    }
    let shape = [found.len() / width, width];
    let found = Tensor::from_slice(&shape, &found);
    found.map_err(|e| bytes_error("interpolated positions", e))
}

/// The four source indices and weights for each of the `to` output positions.
fn taps(from: usize, to: usize) -> Vec<[(usize, f64); 4]> {
    const A: f64 = -0.75;
    let near = |t: f64| ((A + 2.0) * t - (A + 3.0)) * t * t + 1.0;
    let far = |t: f64| ((A * t - 5.0 * A) * t + 8.0 * A) * t - 4.0 * A;
    let step = from as f64 / to as f64;
    let last = from.saturating_sub(1) as i64;
    (0..to)
        .map(|i| {
            let place = (i as f64 + 0.5) * step - 0.5;
            let (first, t) = (place.floor(), place - place.floor());
            let weights = [far(t + 1.0), near(t), near(1.0 - t), far(2.0 - t)];
            let mut tap = -2;
            weights.map(|weight| {
                tap += 1;
                (((first as i64) + tap).clamp(0, last) as usize, weight)
            })
        })
        .collect()
}

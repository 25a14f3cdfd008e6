//! Pictures as an encoder reads them: patches in the place of tokens.

use tercet::ops::Window;
use tercet::{Dim, Tensor, Value};

use super::super::weights::bytes_error;
use super::super::{Builder, ModelError};
use super::layer::Model;
use crate::config::encoder::{EncoderNames, EncoderPart, EncoderSpec, PatchSpec};

/// The states `[rows, len, hidden]` of pictures `pixels [rows, 3, height, width]` of this height and width: of the class
/// token, if there is one, and of the patches row by row.
pub(crate) fn encode_pictures(
    b: &mut Builder<'_>,
    spec: &EncoderSpec,
    pixels: Value,
    size: [usize; 2],
) -> Result<Value, ModelError> {
    let Some(patches) = &spec.patches else {
        return Err(ModelError::Unsupported(
            "an encoder of texts reads no pictures".to_string(),
        ));
    };
    if size != patches.image && !patches.interpolated {
        let [height, width] = size;
        let own = patches.image;
        return Err(ModelError::Unsupported(format!(
            "preprocessor_config.json makes pictures {height} pixels high and {width} wide, the model reads {} by {} \
             (image_size of config.json); positions are interpolated for DINOv2 only",
            own[0], own[1]
        )));
    }
    let names = EncoderNames::of(spec, b.weights);
    let of = Model { spec, names };
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

impl Model<'_> {
    /// The class token and the patches, without their positions.
    fn patches(
        &self,
        b: &mut Builder<'_>,
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

    /// A part that the reference has as a parameter with leading axes of 1, or without.
    fn rows(&self, b: &mut Builder<'_>, part: EncoderPart) -> Result<Tensor, ModelError> {
        let name = self.names.tensor(part, 0, "");
        b.weights.rows_f32(&name, part.shape(self.spec))
    }
}

/// `[rows, channels, height, width]` as `[rows, height * width, channels]`.
pub(crate) fn as_rows(b: &mut Builder<'_>, x: Value) -> Result<Value, ModelError> {
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

/// The rows of the patches for another size of pictures, bicubic (Keys, 1981, with -0.75), edges repeated; the class
/// token's stays.
fn interpolated(
    table: &Tensor,
    patches: &PatchSpec,
    size: [usize; 2],
) -> Result<Tensor, ModelError> {
    let from = patches.grid(patches.image);
    let to = patches.grid(size);
    if to.contains(&0) {
        return Err(ModelError::Unsupported(format!(
            "pictures of {size:?} pixels have no patch of {:?}",
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

/// The four places and weights that each of `to` places between `from` is made of.
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

//! `RoiAlign`: resamples image regions to a fixed size.

use tercet_ir::ops::ReduceFn;
use tercet_ir::scalar::{BinaryFn, CompareFn};
use tercet_ir::{DType, Dim, Tensor, TensorType, Value};

use super::grid::{sampled, taps};
use super::shape::reshaped;
use super::{OpsetEntry, op};
use crate::call::{ImportNode, NodeOutputs, one};
use crate::error::NodeErrorKind;

pub(crate) const TABLE: &[OpsetEntry] = &[op("RoiAlign", 10, roi_align)];

/// The parameters shared by both axes.
struct RoiParams {
    scale: f64,
    half_pixel: bool,
    /// The samples per cell along each axis.
    samples: usize,
}

fn roi_params(k: &ImportNode<'_, '_>) -> Result<RoiParams, NodeErrorKind> {
    let default = if k.opset >= 16 {
        "half_pixel"
    } else {
        "output_half_pixel"
    };
    let half_pixel = match k
        .attrs
        .string("coordinate_transformation_mode", default)?
        .as_str()
    {
        "half_pixel" => true,
        "output_half_pixel" => false,
        other => {
            let reason = format!("`{other}` is not supported");
            return Err(NodeErrorKind::attribute(
                "coordinate_transformation_mode",
                reason,
            ));
        }
    };
    if k.attrs.string("mode", "avg")? != "avg" {
        return Err(NodeErrorKind::attribute("mode", "only avg is supported"));
    }
    let samples = k.attrs.int("sampling_ratio", 0)?;
    let samples = usize::try_from(samples)
        .ok()
        .filter(|n| (1..=256).contains(n));
    let samples = samples.ok_or_else(|| {
        let reason =
            "must be from 1 to 256; a sample count that depends on the region size is not supported";
        NodeErrorKind::attribute("sampling_ratio", reason)
    })?;
    Ok(RoiParams {
        scale: k.attrs.float("spatial_scale", 1.0)?,
        half_pixel,
        samples,
    })
}

/// The mean of interpolated samples per cell, with `samples` along each axis.
fn roi_align(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let (x, rois, batch) = (k.x(0)?, k.x(1)?, k.x(2)?);
    let how = roi_params(k)?;
    if k.rank(x) != 4 || k.rank(rois) != 2 || k.rank(batch) != 1 {
        return Err(NodeErrorKind::unsupported(
            "operands must be images, regions of four numbers, and batch indices",
        ));
    }
    let size = |name: &str| {
        let n = usize::try_from(k.attrs.int(name, 1)?).ok();
        let n = n.filter(|n| (1..=1 << 12).contains(n));
        n.ok_or_else(|| NodeErrorKind::attribute(name, "must be from 1 to 4096"))
    };
    let out = [size("output_height")?, size("output_width")?];
    let image = [k.size(x, 2)?, k.size(x, 3)?];
    let regions = k.dims(rois)[0].clone();
    let mut lines = Vec::with_capacity(2);
    for a in 0..2 {
        lines.push(line(k, rois, &how, (a, image[a], out[a]))?);
    }
    // Combine all sample rows with all sample columns.
    let counts = [out[0] * how.samples, out[1] * how.samples];
    let all = counts[0].saturating_mul(counts[1]);
    let flat = [regions.clone(), Dim::Known(all)];
    let mut crossed = Vec::with_capacity(2);
    let mut inside: Option<Value> = None;
    for (a, (place, valid)) in lines.into_iter().enumerate() {
        let spread = |k: &mut ImportNode<'_, '_>, v: Value| -> Result<Value, NodeErrorKind> {
            let v = k.g().unsqueeze(v, 2 - a)?;
            let wide = [
                regions.clone(),
                Dim::Known(counts[0]),
                Dim::Known(counts[1]),
            ];
            let v = k.g().expand(v, wide)?;
            reshaped(k.g(), v, &flat)
        };
        let place = spread(k, place)?;
        let valid = spread(k, valid)?;
        crossed.push(taps(k, place, true)?);
        inside = Some(match inside {
            Some(other) => k.g().binary(BinaryFn::And, other, valid)?,
            None => valid,
        });
    }
    let batch = k.g().cast(batch, DType::I64)?;
    let own = k.g().gather(x, batch, 0)?;
    let channels = k.dims(x)[1].clone();
    let picture = [
        regions.clone(),
        channels.clone(),
        Dim::Known(image[0] * image[1]),
    ];
    let own = reshaped(k.g(), own, &picture)?;
    let wide = [regions.clone(), channels.clone(), Dim::Known(all)];
    let mut y = sampled(k, own, &crossed, &image, &wide)?;
    if let Some(inside) = inside {
        let (inside, zero) = (k.g().unsqueeze(inside, 1)?, k.like(y, 0.0)?);
        y = k.g().where_(inside, y, zero)?;
    }
    let cells = [
        regions,
        channels,
        Dim::Known(out[0]),
        Dim::Known(how.samples),
        Dim::Known(out[1]),
        Dim::Known(how.samples),
    ];
    let y = reshaped(k.g(), y, &cells)?;
    one(k.g().reduce(ReduceFn::Mean, y, &[3, 5], false)?)
}

/// The sample positions along an axis of each region, `[R, samples]`, clamped to the image, and
/// whether each is valid.
fn line(
    k: &mut ImportNode<'_, '_>,
    rois: Value,
    how: &RoiParams,
    (a, size, cells): (usize, usize, usize),
) -> Result<(Value, Value), NodeErrorKind> {
    // A region is stored as x and y of its start, then of its end.
    let (start, end) = (
        k.g().narrow(rois, 1, 1 - a, 1)?,
        k.g().narrow(rois, 1, 3 - a, 1)?,
    );
    let (scale, half) = (k.like(rois, how.scale)?, k.like(rois, 0.5)?);
    let (mut start, mut end) = (k.g().mul(start, scale)?, k.g().mul(end, scale)?);
    if how.half_pixel {
        (start, end) = (k.g().sub(start, half)?, k.g().sub(end, half)?);
    }
    let mut length = k.g().sub(end, start)?;
    if !how.half_pixel {
        let least = k.like(rois, 1.0)?;
        length = k.g().max(length, least)?;
    }
    let count = cells * how.samples;
    if !k.c.spend(count) {
        return Err(NodeErrorKind::unsupported("there are too many samples"));
    }
    let parts: Vec<f64> = (0..count)
        .map(|i| (i as f64 + 0.5) / count as f64)
        .collect();
    let parts = Tensor::from_f64s(TensorType::new(k.dtype(rois), &[1, count]), &parts)?;
    let parts = k.g().constant(parts)?;
    let along = k.g().mul(length, parts)?;
    let place = k.g().plus(start, along)?;
    let (least, most) = (k.like(place, -1.0)?, k.like(place, size as f64)?);
    let (above, below) = (
        k.g().compare(CompareFn::Ge, place, least)?,
        k.g().compare(CompareFn::Le, place, most)?,
    );
    let valid = k.g().binary(BinaryFn::And, above, below)?;
    let place = k.g().clamp(place, 0.0, size.max(1) as f64 - 1.0)?;
    Ok((place, valid))
}

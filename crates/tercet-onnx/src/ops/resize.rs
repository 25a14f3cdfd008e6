//! Resizing.

use tercet_ir::attr::FloatAttr;
use tercet_ir::ops::{Coordinates, MAX_RESIZED_LEN, NearestRounding, Resize, ResizeMode};
use tercet_ir::{DType, Dim, Tensor, Value};

use super::resize_weights::{ResizeAxis, ResizeCoordinates, ResizeFilter, ResizeKernel, resized};
use super::{OpsetEntry, op};
use crate::call::{ImportNode, NodeOutputs, axes, one};
use crate::error::NodeErrorKind;
use crate::val::{ImportedValue, ShapeElem};

pub(crate) const TABLE: &[OpsetEntry] = &[
    op("Resize", 10, resize_10).until(10),
    op("Resize", 11, resize),
    op("Upsample", 7, upsample),
];

fn mode(k: &ImportNode<'_, '_>) -> Result<ResizeMode, NodeErrorKind> {
    match k.attrs.string("mode", "nearest")?.as_str() {
        "nearest" => Ok(ResizeMode::Nearest),
        "linear" | "bilinear" => Ok(ResizeMode::Linear),
        "cubic" => Ok(ResizeMode::Cubic),
        other => Err(NodeErrorKind::attribute(
            "mode",
            format!("`{other}` is not supported"),
        )),
    }
}

/// Resizes by these scales. Sizes and nearest positions are computed in F32, as in ONNX Runtime and
/// PyTorch.
fn scaled(k: &mut ImportNode<'_, '_>, x: Value, scales: &[f64], how: Resize) -> NodeOutputs {
    let rank = k.rank(x);
    if scales.len() != rank {
        return Err(NodeErrorKind::unsupported(format!(
            "{} scales for {rank} axes",
            scales.len()
        )));
    }
    let unchanged =
        |(d, s): (&Dim, &f64)| *s == 1.0 || d.known().is_some_and(|n| Resize::f32_size(n, *s) == n);
    // ONNX Runtime copies an operand whose sizes stay the same, with any scales.
    if k.dims(x).iter().zip(scales).all(unchanged) {
        return one(x);
    }
    let mut scales = scales.to_vec();
    let x = match how.mode {
        ResizeMode::Nearest => gathered(k, x, &mut scales, &how)?,
        ResizeMode::Linear | ResizeMode::Cubic => x,
    };
    let size = |(d, s): (&Dim, &f64)| match (d.known(), *s) {
        (_, 1.0) => Ok(d.clone()),
        (Some(n), s) => Ok(Dim::Known(Resize::f32_size(n, s))),
        (None, s) => Err(NodeErrorKind::unsupported(format!(
            "an axis of size {d} cannot be resized by {s}; fix its symbol"
        ))),
    };
    let dims = k.dims(x);
    let sizes: Result<Vec<Dim>, NodeErrorKind> = dims.iter().zip(&scales).map(size).collect();
    let how = Resize {
        sizes: sizes?.into(),
        scales: scales.into_iter().map(FloatAttr).collect(),
        ..how
    };
    one(placed(k, x, how)?)
}

/// Resizes the axes whose nearest elements differ between positions in F32 and exact ones, and sets
/// their scales to 1. The graph's resize operator has exact positions.
fn gathered(
    k: &mut ImportNode<'_, '_>,
    x: Value,
    scales: &mut [f64],
    how: &Resize,
) -> Result<Value, NodeErrorKind> {
    let mut x = x;
    for (at, scale) in scales.iter_mut().enumerate() {
        let Some(from) = k.dims(x)[at].known().filter(|n| *n > 0) else {
            continue;
        };
        // The operator reports scales outside its range.
        if *scale == 1.0 || !(1e-6..=1e6).contains(scale) {
            continue;
        }
        let to = Resize::f32_size(from, *scale);
        if from > MAX_RESIZED_LEN || to > MAX_RESIZED_LEN || !k.c.spend(to) {
            return Err(NodeErrorKind::unsupported(format!(
                "axis {at} is too large to resize from {from} to {to}"
            )));
        }
        let axis = ResizeAxis {
            from,
            to,
            scale: *scale,
            places: table_coordinates(how.coordinates),
            is_scaled: true,
        };
        let exact = Resize {
            scales: vec![FloatAttr(*scale)],
            ..how.clone()
        };
        let exact = exact.taps(0, from, to).indices;
        let index = axis.nearest_elements(how.rounding);
        if index.iter().copied().eq(exact.into_iter().map(i64::from)) {
            continue;
        }
        let index = k.g().constant(Tensor::from_slice(&[to], &index)?)?;
        x = k.g().gather(x, index, at)?;
        *scale = 1.0;
    }
    Ok(x)
}

fn table_coordinates(coordinates: Coordinates) -> ResizeCoordinates {
    match coordinates {
        Coordinates::HalfPixel => ResizeCoordinates::HalfPixel,
        Coordinates::HalfPixelSymmetric => ResizeCoordinates::HalfPixelSymmetric,
        Coordinates::PytorchHalfPixel => ResizeCoordinates::PytorchHalfPixel,
        Coordinates::AlignCorners => ResizeCoordinates::AlignCorners,
        Coordinates::Asymmetric => ResizeCoordinates::Asymmetric,
    }
}

/// Adds the graph's resize operator. Interpolated integers are computed in F32 and truncated, as in
/// ONNX Runtime.
fn placed(k: &mut ImportNode<'_, '_>, x: Value, how: Resize) -> Result<Value, NodeErrorKind> {
    let dtype = k.dtype(x);
    if how.mode == ResizeMode::Nearest || dtype.is_float() {
        return Ok(k.g().add(how, &[x])?);
    }
    let wide = k.g().cast(x, DType::F32)?;
    let y = k.g().add(how, &[wide])?;
    Ok(k.g().cast(y, dtype)?)
}

/// Resizes as before opset 11: positions are `o / s`. Nearest elements are rounded down along axes
/// that grow, and up along axes that shrink.
fn scaled_old(k: &mut ImportNode<'_, '_>, x: Value, scales: &[f64], how: Resize) -> NodeOutputs {
    let shrinks = scales.iter().any(|s| *s < 1.0);
    if how.mode != ResizeMode::Nearest || !shrinks {
        return scaled(k, x, scales, how);
    }
    let part = |keep: fn(f64) -> bool| -> Vec<f64> {
        scales
            .iter()
            .map(|s| if keep(*s) { *s } else { 1.0 })
            .collect()
    };
    let (less, more) = (part(|s| s < 1.0), part(|s| s > 1.0));
    let up = Resize {
        rounding: NearestRounding::Ceil,
        ..how.clone()
    };
    let y = scaled(k, x, &less, up)?;
    match (more.iter().all(|s| *s == 1.0), y.as_slice()) {
        (false, [ImportedValue::Graph(y)]) => scaled(k, *y, &more, how),
        _ => Ok(y),
    }
}

/// Options before opset 11.
fn old(k: &ImportNode<'_, '_>) -> Result<Resize, NodeErrorKind> {
    let mut how = Resize::to_sizes(Vec::<Dim>::new(), mode(k)?);
    how.coordinates = Coordinates::Asymmetric;
    how.rounding = NearestRounding::Floor;
    Ok(how)
}

fn resize_10(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let (x, how) = (k.x(0)?, old(k)?);
    let scales = k.const_operand(1)?.to_f64s();
    scaled_old(k, x, &scales, how)
}

fn upsample(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let (x, how) = (k.x(0)?, old(k)?);
    let scales = match k.opset >= 9 {
        true => k.const_operand(1)?.to_f64s(),
        false => {
            let list = k
                .attrs
                .floats_opt("scales")?
                .ok_or_else(|| NodeErrorKind::attribute("scales", "is required"))?;
            list.iter().map(|s| f64::from(*s)).collect()
        }
    };
    scaled_old(k, x, &scales, how)
}

fn coordinates(k: &ImportNode<'_, '_>) -> Result<Coordinates, NodeErrorKind> {
    match k
        .attrs
        .string("coordinate_transformation_mode", "half_pixel")?
        .as_str()
    {
        "half_pixel" => Ok(Coordinates::HalfPixel),
        "half_pixel_symmetric" => Ok(Coordinates::HalfPixelSymmetric),
        "pytorch_half_pixel" => Ok(Coordinates::PytorchHalfPixel),
        "align_corners" => Ok(Coordinates::AlignCorners),
        "asymmetric" => Ok(Coordinates::Asymmetric),
        other => {
            let reason = format!("`{other}` is not supported");
            Err(NodeErrorKind::attribute(
                "coordinate_transformation_mode",
                reason,
            ))
        }
    }
}

fn rounding(k: &ImportNode<'_, '_>) -> Result<NearestRounding, NodeErrorKind> {
    match k
        .attrs
        .string("nearest_mode", "round_prefer_floor")?
        .as_str()
    {
        "round_prefer_floor" => Ok(NearestRounding::RoundPreferFloor),
        "round_prefer_ceil" => Ok(NearestRounding::RoundPreferCeil),
        "floor" => Ok(NearestRounding::Floor),
        "ceil" => Ok(NearestRounding::Ceil),
        other => Err(NodeErrorKind::attribute(
            "nearest_mode",
            format!("`{other}` is not supported"),
        )),
    }
}

/// The resize options from the attributes.
fn resize_op(k: &ImportNode<'_, '_>) -> Result<Resize, NodeErrorKind> {
    let mut how = Resize::to_sizes(Vec::<Dim>::new(), mode(k)?);
    how.coordinates = coordinates(k)?;
    how.rounding = rounding(k)?;
    how.cubic_a = FloatAttr(k.attrs.float("cubic_coeff_a", -0.75)?);
    how.exclude_outside = k.attrs.flag("exclude_outside", false)?;
    // `extrapolation_value` applies only to positions outside a region, and this variant has no
    // region.
    k.attrs.ignore(&["extrapolation_value"]);
    Ok(how)
}

/// The reasons to use weight tables instead of the graph's resize operator.
struct ResizeFallback {
    antialias: bool,
    region: bool,
    /// A size was rounded up to preserve the aspect ratio.
    rounded_up: bool,
    /// Positions are `(o + 1/2) / s`, which opsets 11 and 12 have for nearest elements.
    centres: bool,
}

impl ResizeFallback {
    fn is_needed(&self) -> bool {
        self.antialias || self.region || self.rounded_up || self.centres
    }
}

fn resize(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let x = k.x(0)?;
    let dims = k.dims(x);
    let along = match k.attrs.ints_opt("axes")? {
        Some(list) => axes(list, dims.len())?,
        None => (0..dims.len()).collect(),
    };
    let antialias = k.attrs.flag("antialias", false)?;
    let policy = k.attrs.string("keep_aspect_ratio_policy", "stretch")?;
    let places = k
        .attrs
        .string("coordinate_transformation_mode", "half_pixel")?;
    let mut extra = ResizeFallback {
        antialias: false,
        region: places == "tf_crop_and_resize",
        rounded_up: false,
        centres: places == "tf_half_pixel_for_nn",
    };
    let empty = |k: &ImportNode<'_, '_>, i: usize| {
        !k.has(i) || matches!(k.val(i), ImportedValue::ConstTensor(t) if t.tensor.numel() == 0)
    };
    if !empty(k, 2) {
        let given = k.const_operand(2)?.to_f64s();
        if given.len() != along.len() {
            return Err(NodeErrorKind::operand(
                2,
                format!("{} scales for {} axes", given.len(), along.len()),
            ));
        }
        let mut scales = vec![1.0; dims.len()];
        along.iter().zip(given).for_each(|(a, s)| scales[*a] = s);
        extra.antialias = antialias && scales.iter().any(|s| *s < 1.0);
        if extra.is_needed() {
            return weighted(k, x, &along, None, &scales, &extra);
        }
        let how = resize_op(k)?;
        return scaled(k, x, &scales, how);
    }
    let given = k.nums(3)?;
    if given.len() != along.len() {
        return Err(NodeErrorKind::operand(
            3,
            format!("{} sizes for {} axes", given.len(), along.len()),
        ));
    }
    let mut sizes = dims.clone();
    let mut scales = vec![1.0; dims.len()];
    let kept = policy != "stretch";
    if kept {
        let ratio = kept_ratio(k, x, &along, &given, &policy)?;
        for a in &along {
            let n = k.size(x, *a)? as f64 * ratio;
            sizes[*a] = Dim::Known((n + 0.5).floor() as usize);
            scales[*a] = ratio;
            // For a size that was rounded up, the quotient of the sizes differs from the scale.
            extra.rounded_up |= Dim::Known(n.floor() as usize) != sizes[*a];
        }
    } else {
        for (a, n) in along.iter().zip(&given) {
            sizes[*a] = n
                .dim()
                .ok_or_else(|| NodeErrorKind::operand(3, "has negative sizes"))?;
        }
    }
    extra.antialias = antialias && along.iter().any(|a| !sizes[*a].is_at_least(&dims[*a]));
    if extra.is_needed() {
        return weighted(k, x, &along, Some((&sizes, kept)), &scales, &extra);
    }
    let scales = match kept {
        true => scales.into_iter().map(FloatAttr).collect(),
        false => Vec::new(),
    };
    let how = Resize {
        sizes: sizes.into(),
        scales,
        ..resize_op(k)?
    };
    one(placed(k, x, how)?)
}

/// Resizes with weight tables. The scales are the given ones, or the quotients of the sizes.
fn weighted(
    k: &mut ImportNode<'_, '_>,
    x: Value,
    along: &[usize],
    sizes: Option<(&[Dim], bool)>,
    scales: &[f64],
    extra: &ResizeFallback,
) -> NodeOutputs {
    let filter = match mode(k)? {
        ResizeMode::Nearest => ResizeFilter::Nearest(rounding(k)?),
        ResizeMode::Linear => ResizeFilter::Linear,
        ResizeMode::Cubic => ResizeFilter::Cubic(k.attrs.float("cubic_coeff_a", -0.75)?),
    };
    // Each of these attributes applies to one interpolation mode only.
    k.attrs.ignore(&["cubic_coeff_a", "nearest_mode"]);
    let kernel = ResizeKernel {
        filter,
        antialias: extra.antialias,
        exclude_outside: k.attrs.flag("exclude_outside", false)?,
        outside: k.attrs.float("extrapolation_value", 0.0)?,
    };
    let places = match (extra.region, extra.centres) {
        (true, _) => Vec::new(),
        (_, true) => vec![ResizeCoordinates::Centres; along.len()],
        (false, false) => vec![table_coordinates(coordinates(k)?); along.len()],
    };
    let places = match extra.region {
        false => places,
        true => {
            let region = k.const_operand(1)?.to_f64s();
            if region.len() != 2 * along.len() {
                let reason = format!("{} numbers for {} axes", region.len(), along.len());
                return Err(NodeErrorKind::operand(1, reason));
            }
            let (starts, ends) = region.split_at(along.len());
            starts
                .iter()
                .zip(ends)
                .map(|(s, e)| ResizeCoordinates::Region(*s, *e))
                .collect()
        }
    };
    let mut list = Vec::new();
    for (at, places) in along.iter().zip(places) {
        let from = k.size(x, *at)?;
        let (to, scale) = match sizes {
            Some((sizes, kept)) => {
                let to = sizes[*at].known();
                let to = to.ok_or_else(|| NodeErrorKind::operand(3, "is symbolic"))?;
                let quotient = to as f64 / from as f64;
                (to, if kept { scales[*at] } else { quotient })
            }
            None => (Resize::f32_size(from, scales[*at]), scales[*at]),
        };
        let axis = ResizeAxis {
            from,
            to,
            scale,
            places,
            is_scaled: sizes.is_none(),
        };
        let untouched = from == to && scale == 1.0;
        let whole = matches!(places, ResizeCoordinates::Region(s, e) if (s, e) == (0.0, 1.0));
        if !(untouched && (!extra.region || whole)) {
            list.push((*at, axis));
        }
    }
    // ONNX Runtime copies an operand whose sizes stay the same.
    if !extra.region && sizes.is_none() && list.iter().all(|(_, axis)| axis.from == axis.to) {
        return one(x);
    }
    one(resized(k, x, &list, &kernel)?)
}

/// The common scale of all axes that preserves the aspect ratio. With `not_larger` no size exceeds
/// the requested one; with `not_smaller` every size reaches it.
fn kept_ratio(
    k: &ImportNode<'_, '_>,
    x: Value,
    along: &[usize],
    given: &[ShapeElem],
    policy: &str,
) -> Result<f64, NodeErrorKind> {
    let mut ratios = Vec::with_capacity(along.len());
    for (a, n) in along.iter().zip(given) {
        let n = n
            .int()
            .ok_or_else(|| NodeErrorKind::operand(3, "is symbolic"))?;
        ratios.push(n as f64 / k.size(x, *a)? as f64);
    }
    match policy {
        "not_larger" => Ok(ratios.into_iter().fold(f64::INFINITY, f64::min)),
        "not_smaller" => Ok(ratios.into_iter().fold(0.0, f64::max)),
        other => Err(NodeErrorKind::attribute(
            "keep_aspect_ratio_policy",
            format!("`{other}` is not supported"),
        )),
    }
}

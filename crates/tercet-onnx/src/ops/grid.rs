//! Sampling at coordinates from a tensor.

use tercet_ir::scalar::{BinaryFn, CompareFn};
use tercet_ir::{DType, Dim, Tensor, TensorType, Value};

use super::attention::positions;
use super::shape::{product, reshaped};
use super::{OpsetEntry, op};
use crate::call::{ImportNode, NodeOutputs, axis, one};
use crate::error::NodeErrorKind;

pub(crate) const TABLE: &[OpsetEntry] = &[
    op("GridSample", 16, grid_sample),
    op("AffineGrid", 20, affine_grid),
    op("TensorScatter", 24, tensor_scatter),
];

/// The value of samples outside of the operand.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum GridPadding {
    Zeros,
    Border,
    Reflection,
}

/// An element that contributes to a sample, along one axis.
#[derive(Clone, Copy)]
pub(super) struct GridTap {
    /// The element's index as an integral float, F32 or wider.
    pub(super) at: Value,
    /// Its weight; `None` means 1.
    pub(super) weight: Option<Value>,
}

/// Converts coordinates from -1 to 1 to positions along an axis of `n` elements.
fn place(
    k: &mut ImportNode<'_, '_>,
    x: Value,
    n: usize,
    corners: bool,
) -> Result<Value, NodeErrorKind> {
    let (one_, half) = (k.like(x, 1.0)?, k.like(x, 0.5)?);
    let span = k.like(x, if corners { n as f64 - 1.0 } else { n as f64 })?;
    let g = k.g();
    let from_zero = g.plus(x, one_)?;
    let scaled = g.mul(from_zero, span)?;
    let y = g.mul(scaled, half)?;
    Ok(if corners { y } else { g.sub(y, half)? })
}

/// Maps positions outside of an axis to positions inside it.
fn inside(
    k: &mut ImportNode<'_, '_>,
    x: Value,
    n: usize,
    corners: bool,
    outside: GridPadding,
) -> Result<Value, NodeErrorKind> {
    let last = n as f64 - 1.0;
    match outside {
        GridPadding::Zeros => Ok(x),
        GridPadding::Border => Ok(k.g().clamp(x, 0.0, last)?),
        GridPadding::Reflection => {
            let (low, span) = if corners {
                (0.0, last)
            } else {
                (-0.5, n as f64)
            };
            if span == 0.0 {
                return k.like(x, 0.0);
            }
            // A triangle wave: `span - |(|x - low| mod 2 span) - span|`.
            let (low, twice, span) = (k.like(x, low)?, k.like(x, 2.0 * span)?, k.like(x, span)?);
            let g = k.g();
            let shifted = g.sub(x, low)?;
            let size = g.abs(shifted)?;
            let rest = g.binary(BinaryFn::Rem, size, twice)?;
            let distance = g.sub(rest, span)?;
            let distance = g.abs(distance)?;
            let inner = g.sub(span, distance)?;
            let y = g.plus(inner, low)?;
            Ok(g.clamp(y, 0.0, last)?)
        }
    }
}

/// The interpolation between elements.
#[derive(Clone, Copy, PartialEq, Eq)]
enum GridSampleMode {
    Nearest,
    Linear,
    Cubic,
}

/// The four taps of the cubic convolution kernel with a = -0.75 (Keys, 1981). Each tap is mapped
/// into the axis separately.
fn cubic(
    k: &mut ImportNode<'_, '_>,
    x: Value,
    (n, corners, outside): (usize, bool, GridPadding),
) -> Result<Vec<GridTap>, NodeErrorKind> {
    const A: f64 = -0.75;
    let low = k.g().floor(x)?;
    let part = k.g().sub(x, low)?;
    let mut list = Vec::with_capacity(4);
    for step in [-1.0, 0.0, 1.0, 2.0] {
        let step_ = k.like(x, step)?;
        let at = k.g().plus(low, step_)?;
        let distance = k.g().sub(part, step_)?;
        let distance = k.g().abs(distance)?;
        let near = step == 0.0 || step == 1.0;
        // Evaluates the two kernel pieces, for distances below and above 1, by Horner's rule.
        let factors = match near {
            true => [A + 2.0, -(A + 3.0), 0.0, 1.0],
            false => [A, -5.0 * A, 8.0 * A, -4.0 * A],
        };
        let mut weight = k.like(x, factors[0])?;
        for factor in &factors[1..] {
            let factor = k.like(x, *factor)?;
            weight = k.g().mul(weight, distance)?;
            weight = k.g().plus(weight, factor)?;
        }
        let at = inside(k, at, n, corners, outside)?;
        let at = k.g().round(at)?;
        let weight = Some(weight);
        list.push(GridTap { at, weight });
    }
    Ok(list)
}

/// The taps along an axis for a position.
pub(super) fn taps(
    k: &mut ImportNode<'_, '_>,
    x: Value,
    linear: bool,
) -> Result<Vec<GridTap>, NodeErrorKind> {
    if !linear {
        let at = k.g().round(x)?;
        return Ok(vec![GridTap { at, weight: None }]);
    }
    let one_ = k.like(x, 1.0)?;
    let g = k.g();
    let low = g.floor(x)?;
    let (high, more) = (g.plus(low, one_)?, g.sub(x, low)?);
    let less = g.sub(one_, more)?;
    Ok(vec![
        GridTap {
            at: low,
            weight: Some(less),
        },
        GridTap {
            at: high,
            weight: Some(more),
        },
    ])
}

fn grid_sample(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let (x, grid) = (k.x(0)?, k.x(1)?);
    let corners = k.attrs.flag("align_corners", false)?;
    let mode = match k.attrs.string("mode", "linear")?.as_str() {
        "linear" | "bilinear" => GridSampleMode::Linear,
        "nearest" => GridSampleMode::Nearest,
        "cubic" | "bicubic" => GridSampleMode::Cubic,
        other => {
            return Err(NodeErrorKind::attribute(
                "mode",
                format!("`{other}` is not supported"),
            ));
        }
    };
    let outside = match k.attrs.string("padding_mode", "zeros")?.as_str() {
        "zeros" => GridPadding::Zeros,
        "border" => GridPadding::Border,
        "reflection" => GridPadding::Reflection,
        other => {
            return Err(NodeErrorKind::attribute(
                "padding_mode",
                format!("`{other}` is not supported"),
            ));
        }
    };
    let (dims, places) = (k.dims(x), k.dims(grid));
    let axes = dims.len().saturating_sub(2);
    if !(1..=3).contains(&axes) || places.len() != axes + 2 {
        return Err(NodeErrorKind::operand(
            1,
            format!("{} is not a valid grid for {}", k.ty(grid), k.ty(x)),
        ));
    }
    let count = product(&places[1..=axes])?;
    let mut all: Vec<Vec<GridTap>> = Vec::new();
    for a in 0..axes {
        // The last coordinate belongs to the first spatial axis.
        let own = k.g().narrow(grid, axes + 1, axes - 1 - a, 1)?;
        let own = reshaped(k.g(), own, &[places[0].clone(), count.clone()])?;
        let n = k.size(x, 2 + a)?;
        let own = place(k, own, n, corners)?;
        if mode == GridSampleMode::Cubic {
            all.push(cubic(k, own, (n, corners, outside))?);
            continue;
        }
        let own = inside(k, own, n, corners, outside)?;
        all.push(taps(k, own, mode == GridSampleMode::Linear)?);
    }
    let flat = [dims[0].clone(), dims[1].clone(), product(&dims[2..])?];
    let x_flat = reshaped(k.g(), x, &flat)?;
    let sizes: Result<Vec<usize>, NodeErrorKind> = (0..axes).map(|a| k.size(x, 2 + a)).collect();
    let wide = [dims[0].clone(), dims[1].clone(), count];
    let y = sampled(k, x_flat, &all, &sizes?, &wide)?;
    let result = [&dims[..2], &places[1..=axes]].concat();
    one(reshaped(k.g(), y, &result)?)
}

/// The number of channels from which the channels of an element are gathered together.
const MIN_CHANNELS_TOGETHER: usize = 8;

/// The weighted sum over all combinations of one tap per axis.
///
/// With several channels, they are the last axis: an index then serves all channels, which are adjacent in memory.
pub(super) fn sampled(
    k: &mut ImportNode<'_, '_>,
    x: Value,
    taps: &[Vec<GridTap>],
    sizes: &[usize],
    wide: &[Dim],
) -> Result<Value, NodeErrorKind> {
    let combinations: usize = taps.iter().map(Vec::len).product();
    let mut total: Option<Value> = None;
    let together = wide[1].known().is_some_and(|n| n >= MIN_CHANNELS_TOGETHER);
    let (x, across) = match together {
        true => (k.g().transpose(x, &[0, 2, 1])?, 2),
        false => (x, 1),
    };
    for which in 0..combinations {
        let (mut rest, mut idx, mut share, mut seen) = (which, None, None, None);
        for (own, n) in taps.iter().zip(sizes) {
            let tap = own[rest % own.len()];
            rest /= own.len();
            let (low, last) = (k.like(tap.at, 0.0)?, k.like(tap.at, *n as f64 - 1.0)?);
            let g = k.g();
            let (above, below) = (
                g.compare(CompareFn::Ge, tap.at, low)?,
                g.compare(CompareFn::Le, tap.at, last)?,
            );
            let valid = g.binary(BinaryFn::And, above, below)?;
            seen = Some(match seen {
                Some(seen) => g.binary(BinaryFn::And, seen, valid)?,
                None => valid,
            });
            if let Some(own) = tap.weight {
                share = Some(match share {
                    Some(share) => g.mul(share, own)?,
                    None => own,
                });
            }
            let at = g.clamp(tap.at, 0.0, *n as f64 - 1.0)?;
            let at = g.cast(at, DType::I64)?;
            let size = g.scalar(DType::I64, *n as f64)?;
            idx = Some(match idx {
                Some(idx) => {
                    let rows = g.mul(idx, size)?;
                    g.plus(rows, at)?
                }
                None => at,
            });
        }
        let (Some(idx), Some(seen)) = (idx, seen) else {
            break;
        };
        let zero = k.like(x, 0.0)?;
        let g = k.g();
        let (idx, seen) = (g.unsqueeze(idx, across)?, g.unsqueeze(seen, across)?);
        let mut part = match together {
            true => g.gather_nd(x, idx, 1)?,
            false => {
                let idx = g.expand(idx, wide.to_vec())?;
                g.gather_elements(x, idx, 2)?
            }
        };
        if let Some(share) = share {
            let share = g.unsqueeze(share, across)?;
            part = g.mul(part, share)?;
        }
        // Exclude outside elements by selection, because the product with 0 would be NaN for
        // infinities.
        let part = g.where_(seen, part, zero)?;
        total = Some(match total {
            Some(total) => g.plus(total, part)?,
            None => part,
        });
    }
    let total = total
        .ok_or_else(|| NodeErrorKind::unsupported("the input has no spatial axes to sample"))?;
    match together {
        true => Ok(k.g().transpose(total, &[0, 2, 1])?),
        false => Ok(total),
    }
}

/// The coordinates from -1 to 1 of every pixel, transformed by a matrix.
fn affine_grid(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let theta = k.x(0)?;
    let sizes = crate::call::unsigned("size", &k.ints(1)?)?;
    let corners = k.attrs.flag("align_corners", false)?;
    let spatial = sizes.get(2..).unwrap_or(&[]);
    let axes = spatial.len();
    let count = spatial
        .iter()
        .try_fold(1usize, |n, s| n.checked_mul(*s))
        .filter(|n| *n <= 1 << 22);
    let count = count.filter(|n| (2..=3).contains(&axes) && k.c.spend(n * (axes + 1)));
    let count =
        count.ok_or_else(|| NodeErrorKind::operand(1, format!("{sizes:?} is not supported")))?;
    let mut values = Vec::with_capacity(count * (axes + 1));
    let mut index = vec![0; axes];
    for _ in 0..count {
        for a in (0..axes).rev() {
            let (i, n) = (index[a] as f64, spatial[a] as f64);
            values.push(match corners {
                true => 2.0 * i / (n - 1.0) - 1.0,
                false => (2.0 * i + 1.0) / n - 1.0,
            });
        }
        values.push(1.0);
        tercet_ir::next_index(&mut index, spatial);
    }
    let dtype = k.dtype(theta);
    let base = Tensor::from_f64s(TensorType::new(dtype, &[count, axes + 1]), &values)?;
    let base = k.g().constant(base)?;
    let turned = k.g().transpose(theta, &[0, 2, 1])?;
    let y = k.g().matmul(base, turned)?;
    let mut dims = vec![k.dims(theta)[0].clone()];
    dims.extend(spatial.iter().map(|n| Dim::Known(*n)));
    dims.push(Dim::Known(axes));
    one(reshaped(k.g(), y, &dims)?)
}

/// Writes new rows into a cache, from a separate index for each batch entry.
fn tensor_scatter(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let (cache, update, starts) = (k.x(0)?, k.x(1)?, k.opt(2)?);
    let rank = k.rank(cache);
    let at = axis(k.attrs.int("axis", -2)?, rank)?;
    if at == 0 {
        return Err(NodeErrorKind::attribute(
            "axis",
            "must not be the batch axis",
        ));
    }
    let circular = match k.attrs.string("mode", "linear")?.as_str() {
        "linear" => false,
        "circular" => true,
        other => {
            return Err(NodeErrorKind::attribute(
                "mode",
                format!("`{other}` is not supported"),
            ));
        }
    };
    let dims = k.dims(update);
    let length = k.size(cache, at)?;
    let mut line = vec![Dim::Known(1); rank];
    line[at] = dims[at].clone();
    let rows = positions(k, &dims[at])?;
    let mut idx = reshaped(k.g(), rows, &line)?;
    if let Some(starts) = starts {
        let mut column = vec![Dim::Known(1); rank];
        column[0] = dims[0].clone();
        let starts = k.g().cast(starts, DType::I64)?;
        let starts = reshaped(k.g(), starts, &column)?;
        idx = k.g().plus(idx, starts)?;
    }
    if circular {
        let length = k.c.scalar(DType::I64, length as f64)?;
        idx = k.g().binary(BinaryFn::Rem, idx, length)?;
    }
    let idx = k.g().expand(idx, dims)?;
    one(k.g().scatter_elements(
        cache,
        idx,
        update,
        at,
        tercet_ir::ops::ScatterReduce::Replace,
    )?)
}

//! The indices of max pooling, and unpooling.

use tercet_ir::ops::{ScatterReduce, Window};
use tercet_ir::{DType, Dim, Tensor, Value, next_index};

use super::attention::positions;
use super::conv::list;
use super::shape::{product, reshaped};
use super::{OpsetEntry, op};
use crate::call::{ImportNode, NodeOutputs, one};
use crate::error::NodeErrorKind;

pub(crate) const TABLE: &[OpsetEntry] = &[op("MaxUnpool", 9, max_unpool)];

/// The indices of the elements in each pooling window. Padding is replaced by the first valid
/// element.
fn windows(
    image: &[usize],
    kernel: &[usize],
    out: &[usize],
    window: &Window,
) -> Option<Vec<Vec<usize>>> {
    let mut index = vec![0; out.len()];
    let mut all = Vec::new();
    for _ in 0..out.iter().product() {
        let mut own = Vec::new();
        let mut tap = vec![0; kernel.len()];
        for _ in 0..kernel.iter().product() {
            let place = (0..image.len()).try_fold(0, |at, a| {
                let padded = index[a] * window.stride[a] + tap[a] * window.dilation[a];
                let i = padded
                    .checked_sub(window.pad_before[a])
                    .filter(|i| *i < image[a])?;
                Some(at * image[a] + i)
            });
            own.push(place);
            next_index(&mut tap, kernel);
        }
        let first = own.iter().find_map(|p| *p)?;
        all.push(own.into_iter().map(|p| p.unwrap_or(first)).collect());
        next_index(&mut index, out);
    }
    Some(all)
}

/// The index that ONNX reports for an element; the first axis is contiguous if `columns`.
fn numbered(place: usize, image: &[usize], columns: bool) -> usize {
    if !columns {
        return place;
    }
    let (mut rest, mut index) = (place, vec![0; image.len()]);
    for a in (0..image.len()).rev() {
        index[a] = rest % image[a];
        rest /= image[a];
    }
    (0..image.len())
        .rev()
        .fold(0, |at, a| at * image[a] + index[a])
}

/// The index in `x` of each result `y` of a max pool.
pub(super) fn max_pool_indices(
    k: &mut ImportNode<'_, '_>,
    x: Value,
    y: Value,
    (kernel, window): (&[usize], &Window),
) -> Result<Value, NodeErrorKind> {
    let columns = k.attrs.flag("storage_order", false)?;
    let (axes, dims) = (kernel.len(), k.dims(x));
    let sizes =
        |v| -> Result<Vec<usize>, NodeErrorKind> { (0..axes).map(|a| k.size(v, 2 + a)).collect() };
    let (image, out) = (sizes(x)?, sizes(y)?);
    let (places, taps): (usize, usize) = (out.iter().product(), kernel.iter().product());
    let count = places.saturating_mul(taps);
    if count > 1 << 22 || !k.c.spend(2 * count) {
        return Err(NodeErrorKind::unsupported("the pool has too many indices"));
    }
    let all = windows(&image, kernel, &out, window);
    let all = all
        .ok_or_else(|| NodeErrorKind::unsupported("a window of the pool contains only padding"))?;
    let all: Vec<usize> = all.into_iter().flatten().collect();
    let number = |p: &usize| numbered(*p, &image, columns) as i64;
    let sources: Vec<i64> = all.iter().map(|p| *p as i64).collect();
    let numbers: Vec<i64> = all.iter().map(number).collect();
    let starts: Vec<i64> = (0..places).map(|p| (p * taps) as i64).collect();
    let pixels: usize = image.iter().product();
    let (batch, channels) = (dims[0].clone(), dims[1].clone());
    let flat = [batch.clone(), channels.clone(), Dim::Known(pixels)];
    let flat = reshaped(k.g(), x, &flat)?;
    let g = k.g();
    let sources = g.constant(Tensor::from_slice(&[count], &sources)?)?;
    let numbers = g.constant(Tensor::from_slice(&[count], &numbers)?)?;
    let starts = g.constant(Tensor::from_slice(&[places], &starts)?)?;
    let under = g.gather(flat, sources, 2)?;
    let under = reshaped(
        g,
        under,
        &[
            batch.clone(),
            channels.clone(),
            Dim::Known(places),
            Dim::Known(taps),
        ],
    )?;
    let which = g.arg_max(under, 3, false)?;
    let which = g.cast(which, DType::I64)?;
    let which = g.plus(which, starts)?;
    let within = g.gather(numbers, which, 0)?;
    // The offset of each image: the elements of the previous ones.
    let picture = positions(k, &product(&[batch.clone(), channels.clone()])?)?;
    let picture = reshaped(k.g(), picture, &[batch, channels, Dim::Known(1)])?;
    let size = k.c.scalar(DType::I64, pixels as f64)?;
    let before = k.g().mul(picture, size)?;
    let index = k.g().plus(within, before)?;
    let dims = k.dims(y);
    reshaped(k.g(), index, &dims)
}

/// Scatters elements to their indices in a larger zero tensor. If the requested size is larger
/// still, pads with zeros at the end.
fn max_unpool(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let (x, index) = (k.x(0)?, k.x(1)?);
    let axes = k.rank(x).checked_sub(2).filter(|n| *n > 0);
    let axes = axes.ok_or_else(|| NodeErrorKind::operand(0, "has no spatial axes"))?;
    if k.dims(x) != k.dims(index) {
        return Err(NodeErrorKind::operand(
            1,
            "must have the shape of operand 0",
        ));
    }
    let (kernel, strides) = (
        list(k, "kernel_shape", axes, 0)?,
        list(k, "strides", axes, 1)?,
    );
    let pads = list(k, "pads", 2 * axes, 0)?;
    let mut dims = k.dims(x);
    for a in 0..axes {
        let full = (k.size(x, 2 + a)?.max(1) - 1) * strides[a] + kernel[a];
        let size = full.checked_sub(pads[a] + pads[axes + a]);
        let size =
            size.ok_or_else(|| NodeErrorKind::attribute("pads", "are larger than the result"))?;
        dims[2 + a] = Dim::Known(size);
    }
    let (all, count) = (product(&dims)?, product(&k.dims(x))?);
    let zero = k.like(x, 0.0)?;
    let g = k.g();
    let empty = g.expand(zero, [all])?;
    let (updates, index) = (
        reshaped(g, x, std::slice::from_ref(&count))?,
        reshaped(g, index, &[count])?,
    );
    let y = g.scatter_elements(empty, index, updates, 0, ScatterReduce::Replace)?;
    let y = reshaped(g, y, &dims)?;
    if !k.has(2) {
        return one(y);
    }
    let wanted = crate::call::unsigned("output_shape", &k.ints(2)?)?;
    let own = k.known_dims(y)?;
    let fits = wanted.len() == own.len() && wanted.iter().zip(&own).all(|(w, o)| w >= o);
    if !fits
        || !k
            .c
            .spend(wanted.iter().fold(1usize, |n, w| n.saturating_mul(*w)))
    {
        let reason = format!("{wanted:?} is smaller than the unpooled shape {own:?}");
        return Err(NodeErrorKind::operand(2, reason));
    }
    let after: Vec<usize> = wanted.iter().zip(&own).map(|(w, o)| w - o).collect();
    let before = vec![0; own.len()];
    one(k
        .g()
        .pad(y, &before, &after, tercet_ir::ops::PadMode::Constant, 0.0)?)
}

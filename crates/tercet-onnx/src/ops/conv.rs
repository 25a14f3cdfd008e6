//! Convolutions and pools.

use tercet_ir::ops::{Pool, PoolFn, ReduceFn, Window};
use tercet_ir::{DType, Value};

use super::{OpsetEntry, op};
use crate::call::{ImportNode, NodeOutputs, one, unsigned};
use crate::error::NodeErrorKind;

pub(crate) const TABLE: &[OpsetEntry] = &[
    op("Conv", 1, conv),
    op("ConvTranspose", 1, conv_transpose),
    op("ConvInteger", 10, conv_integer),
    op("MaxPool", 1, max_pool),
    op("AveragePool", 1, average_pool),
    op("LpPool", 2, lp_pool),
    op("GlobalMaxPool", 1, |k| global(k, ReduceFn::Max)),
    op("GlobalAveragePool", 1, |k| global(k, ReduceFn::Mean)),
    op("GlobalLpPool", 2, global_lp),
];

/// The sizes in an attribute, one per spatial axis.
pub(super) fn list(
    k: &ImportNode<'_, '_>,
    name: &str,
    axes: usize,
    default: usize,
) -> Result<Vec<usize>, NodeErrorKind> {
    let sizes = match k.attrs.ints_opt(name)? {
        Some(list) => unsigned(name, list)?,
        None => vec![default; axes],
    };
    if sizes.iter().any(|n| *n > 1 << 24) {
        return Err(NodeErrorKind::attribute(
            name,
            format!("{sizes:?} are above 2^24"),
        ));
    }
    match sizes.len() == axes {
        true => Ok(sizes),
        false => Err(NodeErrorKind::attribute(
            name,
            format!("{} values for {axes} spatial axes", sizes.len()),
        )),
    }
}

/// The number of spatial axes of an operand.
fn spatial(k: &ImportNode<'_, '_>, x: Value) -> Result<usize, NodeErrorKind> {
    match k.rank(x) {
        rank @ 3..=5 => Ok(rank - 2),
        rank => Err(NodeErrorKind::operand(
            0,
            format!("has rank {rank}; one to three spatial axes are supported"),
        )),
    }
}

/// The window of a kernel: strides, dilations and pads, explicit or from `auto_pad`.
pub(super) fn window(
    k: &ImportNode<'_, '_>,
    x: Value,
    kernel: &[usize],
) -> Result<Window, NodeErrorKind> {
    let n = kernel.len();
    let mut w = Window::new(n);
    w.stride = list(k, "strides", n, 1)?;
    w.dilation = list(k, "dilations", n, 1)?;
    let pads = list(k, "pads", 2 * n, 0)?;
    match k.attrs.string("auto_pad", "NOTSET")?.as_str() {
        "NOTSET" => {
            w.pad_before = pads[..n].to_vec();
            w.pad_after = pads[n..].to_vec();
        }
        "VALID" => {}
        same @ ("SAME_UPPER" | "SAME_LOWER") => {
            for (a, taps) in kernel.iter().enumerate() {
                let reach = (taps.max(&1) - 1) * w.dilation[a] + 1;
                let total = match w.stride[a] {
                    1 => reach - 1,
                    stride => {
                        let size = k.size(x, 2 + a)?;
                        let last = size.div_ceil(stride.max(1)).max(1) - 1;
                        (last * stride + reach).saturating_sub(size)
                    }
                };
                let less = total / 2;
                let (before, after) = if same == "SAME_UPPER" {
                    (less, total - less)
                } else {
                    (total - less, less)
                };
                (w.pad_before[a], w.pad_after[a]) = (before, after);
            }
        }
        other => {
            return Err(NodeErrorKind::attribute(
                "auto_pad",
                format!("`{other}` is not supported"),
            ));
        }
    }
    Ok(w)
}

/// The kernel sizes of weights `[O, C, ..]`, checked against the optional attribute.
pub(super) fn kernel_of(k: &ImportNode<'_, '_>, w: Value) -> Result<Vec<usize>, NodeErrorKind> {
    let own: Vec<usize> = k.known_dims(w)?.into_iter().skip(2).collect();
    match k.attrs.ints_opt("kernel_shape")? {
        Some(list) if unsigned("kernel_shape", list)? != own => Err(NodeErrorKind::attribute(
            "kernel_shape",
            format!("is {list:?}, but the weights have {own:?}"),
        )),
        _ => Ok(own),
    }
}

pub(super) fn groups(k: &ImportNode<'_, '_>) -> Result<usize, NodeErrorKind> {
    let groups = usize::try_from(k.attrs.int("group", 1)?)
        .ok()
        .filter(|g| *g > 0);
    groups.ok_or_else(|| NodeErrorKind::attribute("group", "must be positive"))
}

fn conv(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let (x, w, bias) = (k.x(0)?, k.x(1)?, k.opt(2)?);
    one(convolved(k, x, w, bias)?)
}

/// The operands minus their zero points, as I32.
pub(crate) fn shifted(
    k: &mut ImportNode<'_, '_>,
    x: usize,
    zero: usize,
    along: Option<usize>,
) -> Result<Value, NodeErrorKind> {
    let (x, zero) = (k.x(x)?, k.opt(zero)?);
    let rank = k.rank(x);
    let wide = k.g().cast(x, DType::I32)?;
    let Some(zero) = zero else { return Ok(wide) };
    let zero = k.g().cast(zero, DType::I32)?;
    let zero = match (k.rank(zero), along) {
        (1, Some(at)) if !k.dims(zero)[0].is_one() => {
            let mut dims = k.dims(zero);
            dims.resize(rank - at, tercet_ir::Dim::Known(1));
            super::shape::reshaped(k.g(), zero, &dims)?
        }
        _ => zero,
    };
    Ok(k.g().sub(wide, zero)?)
}

fn conv_integer(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let (x, w) = (shifted(k, 0, 2, None)?, shifted(k, 1, 3, Some(0))?);
    one(convolved(k, x, w, None)?)
}

/// A convolution of prepared operands with the node's attributes.
pub(super) fn convolved(
    k: &mut ImportNode<'_, '_>,
    x: Value,
    w: Value,
    bias: Option<Value>,
) -> Result<Value, NodeErrorKind> {
    let (window, groups) = conv_windows(k, x, w)?;
    Ok(k.g().conv(x, w, bias, window, groups)?)
}

/// The windows and groups of the node's attributes.
pub(super) fn conv_windows(
    k: &mut ImportNode<'_, '_>,
    x: Value,
    w: Value,
) -> Result<(Window, usize), NodeErrorKind> {
    spatial(k, x)?;
    let kernel = kernel_of(k, w)?;
    Ok((window(k, x, &kernel)?, groups(k)?))
}

fn conv_transpose(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let (x, w, bias) = (k.x(0)?, k.x(1)?, k.opt(2)?);
    let n = spatial(k, x)?;
    let (kernel, groups) = (kernel_of(k, w)?, groups(k)?);
    let (stride, dilation) = (list(k, "strides", n, 1)?, list(k, "dilations", n, 1)?);
    let mut more = list(k, "output_padding", n, 0)?;
    let pads = list(k, "pads", 2 * n, 0)?;
    let auto = k.attrs.string("auto_pad", "NOTSET")?;
    let (mut before, mut after) = (pads[..n].to_vec(), pads[n..].to_vec());
    let wanted: Option<Vec<usize>> = match (k.attrs.ints_opt("output_shape")?, auto.as_str()) {
        (Some(list), _) => {
            Some(unsigned("output_shape", list)?.split_off(list.len().saturating_sub(n)))
        }
        (None, "SAME_UPPER" | "SAME_LOWER") => {
            let sizes: Result<Vec<usize>, NodeErrorKind> =
                (0..n).map(|a| Ok(k.size(x, 2 + a)? * stride[a])).collect();
            Some(sizes?)
        }
        (None, "VALID") => {
            (before, after) = (vec![0; n], vec![0; n]);
            None
        }
        (None, "NOTSET") => None,
        (None, other) => {
            return Err(NodeErrorKind::attribute(
                "auto_pad",
                format!("`{other}` is not supported"),
            ));
        }
    };
    if let Some(wanted) = wanted.filter(|w| w.len() == n) {
        for a in 0..n {
            let full = stride[a] * (k.size(x, 2 + a)?.max(1) - 1)
                + (kernel[a].max(1) - 1) * dilation[a]
                + 1
                + more[a];
            let total = full.saturating_sub(wanted[a]);
            more[a] += wanted[a].saturating_sub(full);
            let less = total / 2;
            (before[a], after[a]) = match auto.as_str() {
                "SAME_UPPER" => (less, total - less),
                _ => (total - less, less),
            };
        }
    }
    let window = Window {
        stride,
        pad_before: before,
        pad_after: after,
        dilation,
    };
    one(k.g().conv_transpose(x, w, bias, window, &more, groups)?)
}

/// A pool with the kernel and window of the node's attributes.
fn pooled(
    k: &mut ImportNode<'_, '_>,
    x: Value,
    f: PoolFn,
    with_pads: bool,
) -> Result<Value, NodeErrorKind> {
    let (kernel, window) = windows(k, x)?;
    pooled_by(k, x, f, with_pads, (&kernel, window))
}

/// The kernel sizes and window of a pool.
fn windows(k: &ImportNode<'_, '_>, x: Value) -> Result<(Vec<usize>, Window), NodeErrorKind> {
    let n = spatial(k, x)?;
    let kernel = list(k, "kernel_shape", n, 0)?;
    if kernel.contains(&0) {
        return Err(NodeErrorKind::attribute("kernel_shape", "is required"));
    }
    let window = window(k, x, &kernel)?;
    Ok((kernel, window))
}

fn pooled_by(
    k: &mut ImportNode<'_, '_>,
    x: Value,
    f: PoolFn,
    with_pads: bool,
    (kernel, window): (&[usize], Window),
) -> Result<Value, NodeErrorKind> {
    let mut pool = Pool::new(f, kernel, window);
    if k.attrs.flag("ceil_mode", false)? {
        pool = pool.with_ceil();
    }
    if with_pads {
        pool = pool.counting_pad();
    }
    Ok(k.g().add(pool, &[x])?)
}

fn max_pool(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let x = k.x(0)?;
    let (kernel, window) = windows(k, x)?;
    let y = pooled_by(k, x, PoolFn::Max, false, (&kernel, window.clone()))?;
    if !k.is_requested(1) {
        // `storage_order` affects only the indices of max pooling.
        k.attrs.ignore(&["storage_order"]);
        return one(y);
    }
    let index = super::pool_indices::max_pool_indices(k, x, y, (&kernel, &window))?;
    Ok(vec![y.into(), index.into()])
}

fn average_pool(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let x = k.x(0)?;
    one(averages(k, x)?)
}

/// Window means, with the node's attributes.
pub(super) fn averages(k: &mut ImportNode<'_, '_>, x: Value) -> Result<Value, NodeErrorKind> {
    let with_pads = k.attrs.flag("count_include_pad", false)?;
    pooled(k, x, PoolFn::Mean, with_pads)
}

/// The mean over all spatial axes.
pub(super) fn global_mean(k: &mut ImportNode<'_, '_>, x: Value) -> Result<Value, NodeErrorKind> {
    spatial_reduce(k, x, ReduceFn::Mean)
}

/// The p-norm of windows: `|x|^p`, summed by `sum`, to the power of `1 / p`.
fn powers(
    k: &mut ImportNode<'_, '_>,
    sum: fn(&mut ImportNode<'_, '_>, Value) -> Result<Value, NodeErrorKind>,
) -> NodeOutputs {
    let (x, p) = (k.x(0)?, k.attrs.int("p", 2)? as f64);
    let (power, root) = (k.like(x, p)?, k.like(x, 1.0 / p)?);
    let size = k.g().abs(x)?;
    let raised = k.g().pow(size, power)?;
    let total = sum(k, raised)?;
    one(k.g().pow(total, root)?)
}

fn lp_pool(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    powers(k, |k, x| pooled(k, x, PoolFn::Sum, false))
}

fn spatial_reduce(
    k: &mut ImportNode<'_, '_>,
    x: Value,
    f: ReduceFn,
) -> Result<Value, NodeErrorKind> {
    let list: Vec<usize> = (2..k.rank(x)).collect();
    Ok(k.g().reduce(f, x, &list, true)?)
}

fn global(k: &mut ImportNode<'_, '_>, f: ReduceFn) -> NodeOutputs {
    let x = k.x(0)?;
    one(spatial_reduce(k, x, f)?)
}

fn global_lp(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    powers(k, |k, x| spatial_reduce(k, x, ReduceFn::Sum))
}

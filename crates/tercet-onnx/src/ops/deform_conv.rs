//! Deformable convolutions: an operand shifts the taps (Dai et al., 2017; with a mask Zhu et al.,
//! 2019).

use tercet_ir::ops::Window;
use tercet_ir::{Dim, Tensor, TensorType, Value};

use super::conv::{groups, kernel_of, list};
use super::grid::{sampled, taps};
use super::shape::reshaped;
use super::{OpsetEntry, op};
use crate::call::{ImportNode, NodeOutputs, one};
use crate::error::NodeErrorKind;

pub(crate) const TABLE: &[OpsetEntry] = &[op("DeformConv", 19, deform_conv)];

/// The sizes of a 2-D deformable convolution.
struct DeformConvSizes {
    image: [usize; 2],
    kernel: [usize; 2],
    out: [usize; 2],
    window: Window,
    /// The number of channel groups that share offsets.
    offset_groups: usize,
}

impl DeformConvSizes {
    fn new(k: &ImportNode<'_, '_>, x: Value, w: Value) -> Result<DeformConvSizes, NodeErrorKind> {
        if k.rank(x) != 4 {
            return Err(NodeErrorKind::operand(0, "must have two spatial axes"));
        }
        let kernel = kernel_of(k, w)?;
        let [kh, kw] = kernel[..] else {
            return Err(NodeErrorKind::operand(1, "must have two spatial axes"));
        };
        let mut window = Window::new(2);
        window.stride = list(k, "strides", 2, 1)?;
        window.dilation = list(k, "dilations", 2, 1)?;
        let pads = list(k, "pads", 4, 0)?;
        window.pad_before = pads[..2].to_vec();
        window.pad_after = pads[2..].to_vec();
        let image = [k.size(x, 2)?, k.size(x, 3)?];
        let mut out = [0; 2];
        for (a, n) in [kh, kw].into_iter().enumerate() {
            let reach = (n.max(1) - 1) * window.dilation[a] + 1;
            let room = (image[a] + pads[a] + pads[a + 2]).checked_sub(reach);
            let room =
                room.ok_or_else(|| NodeErrorKind::operand(1, "is larger than the operand"))?;
            out[a] = room / window.stride[a].max(1) + 1;
        }
        let moved_groups = usize::try_from(k.attrs.int("offset_group", 1)?).unwrap_or(0);
        if moved_groups == 0 || k.size(x, 1)? % moved_groups != 0 {
            let reason = "must divide the channels";
            return Err(NodeErrorKind::attribute("offset_group", reason));
        }
        Ok(DeformConvSizes {
            image,
            kernel: [kh, kw],
            out,
            window,
            offset_groups: moved_groups,
        })
    }

    fn taps(&self) -> usize {
        self.kernel[0] * self.kernel[1]
    }

    fn places(&self) -> usize {
        self.out[0] * self.out[1]
    }

    /// The coordinates of the unshifted taps along an axis: `[taps, places]`.
    fn still(&self, a: usize) -> Vec<f64> {
        let mut values = Vec::with_capacity(self.taps() * self.places());
        for tap in 0..self.taps() {
            for place in 0..self.places() {
                let (t, p) = match a {
                    0 => (tap / self.kernel[1], place / self.out[1]),
                    _ => (tap % self.kernel[1], place % self.out[1]),
                };
                let at = p * self.window.stride[a] + t * self.window.dilation[a];
                values.push(at as f64 - self.window.pad_before[a] as f64);
            }
        }
        values
    }
}

fn deform_conv(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let (x, w, offset, bias) = (k.x(0)?, k.x(1)?, k.x(2)?, k.opt(3)?);
    let sizes = DeformConvSizes::new(k, x, w)?;
    let (n_taps, places, moved) = (sizes.taps(), sizes.places(), sizes.offset_groups);
    let count = n_taps.saturating_mul(places);
    if count > 1 << 22 || !k.c.spend(2 * count) {
        return Err(NodeErrorKind::unsupported(
            "there are too many sample positions",
        ));
    }
    let batch = k.dims(x)[0].clone();
    let channels = k.size(x, 1)?;
    let own = [
        batch.clone(),
        Dim::Known(moved * n_taps * 2),
        Dim::Known(sizes.out[0]),
        Dim::Known(sizes.out[1]),
    ];
    if k.dims(offset) != own {
        return Err(NodeErrorKind::operand(
            2,
            format!("{} is not a valid offset for {n_taps} taps", k.ty(offset)),
        ));
    }
    let by = |parts: &[usize]| {
        let parts = parts.iter().map(|n| Dim::Known(*n));
        [batch.clone()]
            .into_iter()
            .chain(parts)
            .collect::<Vec<Dim>>()
    };
    let offset = reshaped(k.g(), offset, &by(&[moved, n_taps, 2, places]))?;
    let mask = match k.opt(4)? {
        Some(mask) => Some(reshaped(k.g(), mask, &by(&[moved, 1, count]))?),
        None => None,
    };
    let flat = reshaped(k.g(), x, &by(&[channels, sizes.image[0] * sizes.image[1]]))?;
    let each = channels / moved;
    let mut columns = Vec::with_capacity(moved);
    for group in 0..moved {
        let mut all = Vec::with_capacity(2);
        for a in 0..2 {
            let still =
                Tensor::from_f64s(TensorType::new(k.dtype(offset), &[count]), &sizes.still(a))?;
            let still = k.g().constant(still)?;
            let own = k.g().narrow(offset, 1, group, 1)?;
            let own = k.g().narrow(own, 3, a, 1)?;
            let own = reshaped(k.g(), own, &by(&[count]))?;
            let place = k.g().plus(own, still)?;
            all.push(taps(k, place, true)?);
        }
        let part = k.g().narrow(flat, 1, group * each, each)?;
        let mut column = sampled(k, part, &all, &sizes.image, &by(&[each, count]))?;
        if let Some(mask) = mask {
            let own = k.g().narrow(mask, 1, group, 1)?;
            let own = reshaped(k.g(), own, &by(&[1, count]))?;
            column = k.g().mul(column, own)?;
        }
        columns.push(column);
    }
    let columns = k.g().concat(&columns, 1)?;
    let y = products(k, columns, w, (channels, n_taps, places))?;
    let outputs = k.size(w, 0)?;
    let y = reshaped(k.g(), y, &by(&[outputs, sizes.out[0], sizes.out[1]]))?;
    let Some(bias) = bias else { return one(y) };
    let bias = reshaped(
        k.g(),
        bias,
        &[Dim::Known(outputs), Dim::Known(1), Dim::Known(1)],
    )?;
    one(k.g().plus(y, bias)?)
}

/// Multiplies weights `[O, C, ..]` with the sampled values `[N, C, taps places]`, group by group:
/// `[N, O, places]`.
fn products(
    k: &mut ImportNode<'_, '_>,
    columns: Value,
    w: Value,
    (channels, n_taps, places): (usize, usize, usize),
) -> Result<Value, NodeErrorKind> {
    let (groups, outputs) = (groups(k)?, k.size(w, 0)?);
    if channels % groups != 0 || outputs % groups != 0 || k.size(w, 1)? != channels / groups {
        return Err(NodeErrorKind::attribute(
            "group",
            "does not divide the channels",
        ));
    }
    let (each, rows) = (channels / groups * n_taps, outputs / groups);
    let batch = k.dims(columns)[0].clone();
    let columns = reshaped(
        k.g(),
        columns,
        &[batch, Dim::Known(groups * each), Dim::Known(places)],
    )?;
    let w = reshaped(k.g(), w, &[Dim::Known(outputs), Dim::Known(each)])?;
    let mut parts = Vec::with_capacity(groups);
    for group in 0..groups {
        let own = k.g().narrow(w, 0, group * rows, rows)?;
        let under = k.g().narrow(columns, 1, group * each, each)?;
        parts.push(k.g().matmul(own, under)?);
    }
    Ok(k.g().concat(&parts, 1)?)
}

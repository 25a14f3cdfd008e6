//! Resizing with a weight table per axis. The tables cover the cases that the graph's resize
//! operator does not support: antialiasing, regions, and sizes rounded up to preserve the aspect
//! ratio.

use tercet_ir::{DType, Dim, Tensor, TensorType, Value};

use super::shape::reshaped;
use crate::call::ImportNode;
use crate::error::NodeErrorKind;

/// The interpolation filter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum ResizeFilter {
    /// The element at the rounded position.
    Nearest(tercet_ir::ops::NearestRounding),
    Linear,
    /// Cubic convolution with this parameter.
    Cubic(f64),
}

/// The mapping from output positions to input positions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum ResizeCoordinates {
    HalfPixel,
    HalfPixelSymmetric,
    PytorchHalfPixel,
    AlignCorners,
    Asymmetric,
    /// `(o + 1/2) / s`
    Centres,
    /// A region from start to end, as fractions of the axis.
    Region(f64, f64),
}

/// The resize parameters of an axis.
#[derive(Clone, Copy, Debug)]
pub(super) struct ResizeAxis {
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) scale: f64,
    pub(super) places: ResizeCoordinates,
}

/// The parameters shared by all axes.
#[derive(Clone, Copy, Debug)]
pub(super) struct ResizeKernel {
    pub(super) filter: ResizeFilter,
    pub(super) antialias: bool,
    pub(super) exclude_outside: bool,
    /// The value of outputs outside the operand.
    pub(super) outside: f64,
}

impl ResizeAxis {
    /// The input position of output `o`.
    fn place(&self, o: usize) -> f64 {
        let (o, n, m) = (o as f64, self.from as f64, self.to as f64);
        let half_pixel = (o + 0.5) / self.scale - 0.5;
        match self.places {
            ResizeCoordinates::HalfPixel => half_pixel,
            ResizeCoordinates::PytorchHalfPixel if self.to == 1 => -0.5,
            ResizeCoordinates::PytorchHalfPixel => half_pixel,
            ResizeCoordinates::HalfPixelSymmetric => {
                n / 2.0 * (1.0 - m / (self.scale * n)) + half_pixel
            }
            ResizeCoordinates::AlignCorners if self.to == 1 => 0.0,
            ResizeCoordinates::AlignCorners => o * (n - 1.0) / (m - 1.0),
            ResizeCoordinates::Asymmetric => o / self.scale,
            // Compute in F32 as ONNX Runtime does, because positions such as 1.5 / 0.6 are ties in
            // F32.
            ResizeCoordinates::Centres => f64::from((o as f32 + 0.5) / self.scale as f32),
            ResizeCoordinates::Region(start, end) if self.to == 1 => {
                (start + end) * (n - 1.0) / 2.0
            }
            ResizeCoordinates::Region(start, end) => {
                start * (n - 1.0) + o * (end - start) * (n - 1.0) / (m - 1.0)
            }
        }
    }

    /// Whether output `o` of a region is outside the operand.
    fn is_outside(&self, o: usize) -> bool {
        let x = self.place(o);
        matches!(self.places, ResizeCoordinates::Region(..))
            && !(0.0..=self.from as f64 - 1.0).contains(&x)
    }
}

impl ResizeKernel {
    /// The weights of all input elements for output `o`.
    fn row(&self, axis: &ResizeAxis, o: usize) -> Vec<f64> {
        let last = axis.from as i64 - 1;
        let x = axis.place(o);
        let mut row = vec![0.0; axis.from];
        let mut add = |i: i64, weight: f64| {
            if let Some(own) = row.get_mut(i.clamp(0, last) as usize) {
                *own += weight;
            }
        };
        if let ResizeFilter::Nearest(rounding) = self.filter {
            add(nearest(x, rounding), 1.0);
            return row;
        }
        // The element before the position; a position exactly on an element counts as after its
        // predecessor.
        let base = x.ceil() - 1.0;
        let stretch = if self.antialias {
            axis.scale.min(1.0)
        } else {
            1.0
        };
        let reach = match self.filter {
            ResizeFilter::Cubic(_) => 2.0,
            ResizeFilter::Linear | ResizeFilter::Nearest(_) => 1.0,
        };
        let start = (-reach / stretch).floor() as i64 + 1;
        let mut taps: Vec<(i64, f64)> = (start..2 - start)
            .map(|i| {
                let at = base + i as f64;
                (at as i64, self.weight((at - x) * stretch))
            })
            .collect();
        if self.exclude_outside {
            taps.retain(|(i, _)| (0..=last).contains(i));
        }
        let total: f64 = taps.iter().map(|(_, w)| w).sum();
        taps.into_iter().for_each(|(i, w)| add(i, w / total));
        row
    }

    /// The weight of an element at a distance.
    fn weight(&self, distance: f64) -> f64 {
        let d = distance.abs();
        match self.filter {
            ResizeFilter::Cubic(a) if d <= 1.0 => ((a + 2.0) * d - (a + 3.0)) * d * d + 1.0,
            ResizeFilter::Cubic(a) if d < 2.0 => ((a * d - 5.0 * a) * d + 8.0 * a) * d - 4.0 * a,
            ResizeFilter::Cubic(_) => 0.0,
            ResizeFilter::Linear | ResizeFilter::Nearest(_) => (1.0 - d).max(0.0),
        }
    }
}

fn nearest(x: f64, rounding: tercet_ir::ops::NearestRounding) -> i64 {
    use tercet_ir::ops::NearestRounding;
    let rounded = match rounding {
        NearestRounding::RoundPreferFloor => (x - 0.5).ceil(),
        NearestRounding::RoundPreferCeil => (x + 0.5).floor(),
        NearestRounding::Floor => x.floor(),
        NearestRounding::Ceil => x.ceil(),
    };
    rounded as i64
}

/// Resizes along the axes, one after the other.
pub(super) fn resized(
    k: &mut ImportNode<'_, '_>,
    x: Value,
    axes: &[(usize, ResizeAxis)],
    kernel: &ResizeKernel,
) -> Result<Value, NodeErrorKind> {
    let dtype = k.dtype(x);
    let interpolated = !matches!(kernel.filter, ResizeFilter::Nearest(_));
    let integers = interpolated && !dtype.is_float();
    let mut y = match integers {
        true => k.g().cast(x, DType::F32)?,
        false => x,
    };
    // ONNX Runtime starts at the last axis, which matters if integers are rounded between axes.
    for (at, axis) in axes.iter().rev() {
        let size = axis.from.saturating_mul(axis.to);
        let sizes = 1..=1 << 20;
        if !sizes.contains(&axis.from) || !sizes.contains(&axis.to) || !k.c.spend(size) {
            return Err(NodeErrorKind::unsupported(format!(
                "axis {at} is too large to resize from {} to {}",
                axis.from, axis.to
            )));
        }
        y = along(k, y, *at, axis, kernel)?;
        if let (true, Some((least, greatest))) = (integers, dtype.int_range()) {
            if kernel.antialias {
                let half = k.like(y, 0.5)?;
                let moved = k.g().plus(y, half)?;
                y = k.g().unary(tercet_ir::scalar::UnaryFn::Floor, moved)?;
            }
            y = k.g().clamp(y, least as f64, greatest as f64)?;
        }
    }
    if integers {
        y = k.g().cast(y, dtype)?;
    }
    for (at, axis) in axes {
        let outside: Vec<bool> = (0..axis.to).map(|o| axis.is_outside(o)).collect();
        if outside.contains(&true) {
            let mut dims = vec![Dim::Known(1); k.rank(y)];
            dims[*at] = Dim::Known(axis.to);
            let mask = k.g().constant(Tensor::from_bools(&[axis.to], &outside)?)?;
            let mask = reshaped(k.g(), mask, &dims)?;
            let value = k.like(y, kernel.outside)?;
            y = k.g().where_(mask, value, y)?;
        }
    }
    Ok(y)
}

fn along(
    k: &mut ImportNode<'_, '_>,
    x: Value,
    at: usize,
    axis: &ResizeAxis,
    kernel: &ResizeKernel,
) -> Result<Value, NodeErrorKind> {
    if let ResizeFilter::Nearest(rounding) = kernel.filter {
        let last = axis.from as i64 - 1;
        let index = (0..axis.to).map(|o| nearest(axis.place(o), rounding).clamp(0, last));
        let index: Vec<i64> = index.collect();
        let index = k.g().constant(Tensor::from_slice(&[axis.to], &index)?)?;
        return Ok(k.g().gather(x, index, at)?);
    }
    let dtype = k.dtype(x);
    let rows: Vec<f64> = (0..axis.to).flat_map(|o| kernel.row(axis, o)).collect();
    let inner = match dtype {
        DType::F64 => DType::F64,
        _ => DType::F32,
    };
    let weights = Tensor::from_f64s(TensorType::new(inner, &[axis.to, axis.from]), &rows)?;
    let weights = k.g().constant(weights)?;
    let mut order: Vec<usize> = (0..k.rank(x)).collect();
    order.swap(at, k.rank(x) - 1);
    let y = crate::emulated_dtypes::cast_to(k.g(), x, inner)?;
    let y = k.g().transpose(y, &order)?;
    let turned = k.g().transpose(weights, &[1, 0])?;
    let dims = k.dims(y);
    let (last, outer) = dims
        .split_last()
        .map(|(l, o)| (l.clone(), o.to_vec()))
        .unwrap_or((Dim::Known(1), Vec::new()));
    let rows = super::shape::product(&outer)?;
    let y = reshaped(k.g(), y, &[rows, last])?;
    let y = k.g().matmul(y, turned)?;
    let mut wide = outer;
    wide.push(Dim::Known(axis.to));
    let y = reshaped(k.g(), y, &wide)?;
    let y = k.g().transpose(y, &order)?;
    crate::emulated_dtypes::cast_to(k.g(), y, dtype)
}

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
    /// Whether the operator has the scale as an operand, instead of the size.
    pub(super) is_scaled: bool,
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
        let (index, o, n, m) = (o, o as f64, self.from as f64, self.to as f64);
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
            ResizeCoordinates::Centres => f64::from(self.place_f32(index)),
            ResizeCoordinates::Region(start, end) if self.to == 1 => {
                (start + end) * (n - 1.0) / 2.0
            }
            ResizeCoordinates::Region(start, end) => {
                start * (n - 1.0) + o * (end - start) * (n - 1.0) / (m - 1.0)
            }
        }
    }

    /// The input position of output `o` in F32, with the operations of ONNX Runtime. Positions such
    /// as `17 / 1.7` are integers, and `1.5 / 0.6` is a tie, only in F32.
    fn place_f32(&self, o: usize) -> f32 {
        let (o, n, m) = (o as f32, self.from as f32, self.to as f32);
        let scale = self.scale as f32;
        let centre = (o + 0.5) / scale;
        match self.places {
            ResizeCoordinates::HalfPixel => centre - 0.5,
            ResizeCoordinates::PytorchHalfPixel if self.to == 1 => 0.0,
            ResizeCoordinates::PytorchHalfPixel => centre - 0.5,
            ResizeCoordinates::HalfPixelSymmetric => {
                let offset = n / 2.0 * (1.0 - m / (scale * n));
                let centre = (f64::from(o) + 0.5) / f64::from(scale);
                (f64::from(offset) + centre - 0.5) as f32
            }
            ResizeCoordinates::AlignCorners if self.to == 1 => 0.0,
            ResizeCoordinates::AlignCorners => o * (n - 1.0) / (m - 1.0),
            ResizeCoordinates::Asymmetric => o / scale,
            ResizeCoordinates::Centres => centre,
            ResizeCoordinates::Region(start, end) => {
                let (start, end) = (start as f32, end as f32);
                match self.to {
                    1 => 0.5 * (start + end) * (n - 1.0),
                    _ => start * (n - 1.0) + o * (end - start) * (n - 1.0) / (m - 1.0),
                }
            }
        }
    }

    /// The input element of each output for nearest elements. With scales, PyTorch and ONNX Runtime
    /// compute positions in F32.
    pub(super) fn nearest_elements(&self, rounding: tercet_ir::ops::NearestRounding) -> Vec<i64> {
        let last = self.from as i64 - 1;
        let place = |o: usize| match self.is_scaled {
            true => near_tie(f64::from(self.place_f32(o)), rounding),
            false => self.place(o),
        };
        let element = |o: usize| nearest(place(o), rounding).clamp(0, last);
        (0..self.to).map(element).collect()
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

/// The position as a tie if it is close to one, for roundings to the nearest index: ONNX Runtime has
/// a tolerance for the errors of F32.
fn near_tie(x: f64, rounding: tercet_ir::ops::NearestRounding) -> f64 {
    use tercet_ir::ops::NearestRounding;
    const TOLERANCE: f64 = 1e-6;
    let tie = x.floor() + 0.5;
    match rounding {
        NearestRounding::Floor | NearestRounding::Ceil => x,
        NearestRounding::RoundPreferFloor | NearestRounding::RoundPreferCeil => {
            if (x - tie).abs() < TOLERANCE { tie } else { x }
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
        let index = axis.nearest_elements(rounding);
        let index = k.g().constant(Tensor::from_slice(&[axis.to], &index)?)?;
        return Ok(k.g().gather(x, index, at)?);
    }
    let dtype = k.dtype(x);
    let rows: Vec<f64> = (0..axis.to).flat_map(|o| kernel.row(axis, o)).collect();
    let inner = match dtype {
        DType::F64 => DType::F64,
        _ => DType::F32,
    };
    if let Some(taps) = SparseResizeWeights::new(&rows, axis) {
        let y = crate::emulated_dtypes::cast_to(k.g(), x, inner)?;
        // Rows of the axis before the last are copied as a whole.
        let y = match at.checked_sub(1).filter(|_| at + 1 == k.rank(x)) {
            Some(before) => {
                let mut order: Vec<usize> = (0..k.rank(x)).collect();
                order.swap(before, at);
                let y = k.g().transpose(y, &order)?;
                let y = taps.sum(k, y, before, inner)?;
                k.g().transpose(y, &order)?
            }
            None => taps.sum(k, y, at, inner)?,
        };
        return crate::emulated_dtypes::cast_to(k.g(), y, dtype);
    }
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

/// The few elements that each output of an axis depends on: tap by tap, their indices and weights.
struct SparseResizeWeights(Vec<(Vec<i64>, Vec<f64>)>);

impl SparseResizeWeights {
    /// The taps of a table of weights, or `None` if a product with the table is cheaper.
    fn new(rows: &[f64], axis: &ResizeAxis) -> Option<SparseResizeWeights> {
        /// Elements of the axis per tap from which gathering is cheaper.
        const SPARSITY: usize = 16;
        let found = |row: &[f64]| -> Vec<(i64, f64)> {
            let set = row.iter().enumerate().filter(|(_, w)| **w != 0.0);
            set.map(|(i, w)| (i as i64, *w)).collect()
        };
        let all: Vec<Vec<(i64, f64)>> = rows.chunks(axis.from).map(found).collect();
        let most = all.iter().map(Vec::len).max().filter(|n| *n > 0)?;
        if most * SPARSITY > axis.from {
            return None;
        }
        // An output with fewer taps repeats its last one with weight 0.
        let tap = |at: usize| -> (Vec<i64>, Vec<f64>) {
            let own = all.iter().map(|taps| match (taps.get(at), taps.last()) {
                (Some(tap), _) => *tap,
                (None, Some((i, _))) => (*i, 0.0),
                (None, None) => (0, 0.0),
            });
            own.unzip()
        };
        Some(SparseResizeWeights((0..most).map(tap).collect()))
    }

    /// The weighted sum of the elements along an axis.
    fn sum(
        &self,
        k: &mut ImportNode<'_, '_>,
        x: Value,
        at: usize,
        dtype: DType,
    ) -> Result<Value, NodeErrorKind> {
        let mut shape = vec![1; k.rank(x) - at];
        let mut sum = None;
        for (index, weights) in &self.0 {
            shape[0] = weights.len();
            let g = k.g();
            let index = g.constant(Tensor::from_slice(&[index.len()], index)?)?;
            let weights =
                g.constant(Tensor::from_f64s(TensorType::new(dtype, &shape), weights)?)?;
            let part = g.gather(x, index, at)?;
            let part = g.mul(part, weights)?;
            sum = Some(match sum {
                Some(sum) => g.plus(sum, part)?,
                None => part,
            });
        }
        sum.ok_or_else(|| NodeErrorKind::unsupported("an axis of no elements"))
    }
}

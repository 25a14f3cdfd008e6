//! Windows of convolutions and pooling: their positions on the spatial axes of an operand.
//!
//! Tap `t` of the window of result `o` reads element `o stride + t dilation - pad_before` of its
//! axis; an index outside the axis is padding. The spatial axes are the last one to three axes of
//! `[N, C, ..]`.

use crate::dim::Dim;
use crate::error::TypeError;
use crate::ops::util::overflow;
use crate::types::Type;

/// The movement of windows along the spatial axes, with one number for each axis.
///
/// ```
/// use tercet_ir::{DType, Graph, Type, ops::Window};
/// let mut g = Graph::new();
/// let x = g.input("x", Type::new(DType::F32, [1, 3, 8, 8]))?;
/// let w = g.param("w", Type::new(DType::F32, [16, 3, 3, 3]))?;
/// let window = Window::new(2).with_stride(&[2, 2]).with_pads(&[1, 1], &[1, 1]);
/// let y = g.conv(x, w, None, window, 1)?;
/// assert_eq!(g.ty(y).to_string(), "f32[1, 16, 4, 4]");
/// # Ok::<(), tercet_ir::OpError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Window {
    /// Distance between neighbouring windows.
    pub stride: Vec<usize>,
    /// Padding before the first element.
    pub pad_before: Vec<usize>,
    /// Padding after the last element.
    pub pad_after: Vec<usize>,
    /// Distance between neighbouring taps of a window.
    pub dilation: Vec<usize>,
}

/// Maximum stride, padding and dilation, so that positions fit 32 bits.
const MAX_WINDOW_PARAM: usize = 1 << 24;

impl Window {
    /// Windows at every element, without padding or dilation.
    pub fn new(axes: usize) -> Window {
        Window {
            stride: vec![1; axes],
            pad_before: vec![0; axes],
            pad_after: vec![0; axes],
            dilation: vec![1; axes],
        }
    }

    /// Sets the distance between windows and returns the windows, for chaining.
    pub fn with_stride(mut self, stride: &[usize]) -> Window {
        self.stride = stride.to_vec();
        self
    }

    /// Sets the padding before and after each axis and returns the windows, for chaining.
    pub fn with_pads(mut self, before: &[usize], after: &[usize]) -> Window {
        (self.pad_before, self.pad_after) = (before.to_vec(), after.to_vec());
        self
    }

    /// Sets the distance between taps and returns the windows, for chaining.
    pub fn with_dilation(mut self, dilation: &[usize]) -> Window {
        self.dilation = dilation.to_vec();
        self
    }

    /// The index that a tap of a window reads along an axis, of `n` elements; `None` for padding.
    pub fn source(&self, axis: usize, out: usize, tap: usize, n: usize) -> Option<usize> {
        let at = out * self.stride[axis] + tap * self.dilation[axis];
        at.checked_sub(self.pad_before[axis]).filter(|at| *at < n)
    }

    /// The same windows on three axes. Missing leading axes have one window without padding.
    pub fn on_three_axes(&self) -> Window {
        let of = |list: &[usize], neutral| {
            let missing = 3usize.saturating_sub(list.len());
            let mut all = vec![neutral; missing];
            all.extend(list);
            all
        };
        Window {
            stride: of(&self.stride, 1),
            pad_before: of(&self.pad_before, 0),
            pad_after: of(&self.pad_after, 0),
            dilation: of(&self.dilation, 1),
        }
    }

    /// True if windows of a single tap read each element exactly once, in order: stride 1 and no
    /// padding.
    pub fn is_identity(&self) -> bool {
        let pads = self.pad_before.iter().chain(&self.pad_after);
        self.stride.iter().all(|s| *s == 1) && pads.into_iter().all(|p| *p == 0)
    }

    /// Checks the lengths of the lists and the ranges of their numbers.
    pub(crate) fn check(&self, axes: usize) -> Result<(), TypeError> {
        let lists = [
            ("stride", &self.stride, 1),
            ("pad_before", &self.pad_before, 0),
            ("pad_after", &self.pad_after, 0),
            ("dilation", &self.dilation, 1),
        ];
        lists
            .into_iter()
            .try_for_each(|(name, list, least)| check_list(name, list, axes, least))
    }

    /// The number of windows of `kernel` taps on an axis of `n` elements. `ceil` permits an
    /// additional last window that ends beyond the padding after the axis. That window must begin
    /// inside the operand or the padding before it.
    pub(crate) fn count(
        &self,
        axis: usize,
        n: &Dim,
        kernel: usize,
        ceil: bool,
    ) -> Result<Dim, TypeError> {
        let (stride, before) = (self.stride[axis], self.pad_before[axis]);
        let too_small = || {
            TypeError::Other(format!(
                "a window of {kernel} with dilation {} does not fit spatial axis {axis} of size {n} \
                 with {before} before and {} after",
                self.dilation[axis], self.pad_after[axis]
            ))
        };
        let reach = (kernel - 1)
            .checked_mul(self.dilation[axis])
            .and_then(|n| n.checked_add(1));
        let pads = Dim::Known(before + self.pad_after[axis]);
        let padded = n.checked_add(&pads).ok_or_else(too_small)?;
        let free = reach.and_then(|reach| padded.checked_sub(&Dim::Known(reach)));
        let free = free.ok_or_else(too_small)?;
        let steps = match ceil {
            true => free.checked_add(&Dim::Known(stride - 1)),
            false => Some(free),
        };
        let steps = steps.and_then(|steps| steps.div_floor(stride));
        let steps = steps.ok_or_else(|| {
            TypeError::Other(format!(
                "spatial axis {axis} of size {n} does not tell how many windows of stride {stride} it \
                 has; make its symbol a multiple of the stride"
            ))
        })?;
        if ceil && !self.begins_inside(axis, n, &steps) {
            return Ok(steps);
        }
        steps.checked_add(&Dim::Known(1)).ok_or_else(too_small)
    }

    /// True if window `at` begins before the end of the operand.
    fn begins_inside(&self, axis: usize, n: &Dim, at: &Dim) -> bool {
        let end = n.checked_add(&Dim::Known(self.pad_before[axis]));
        let begin = at.checked_mul(&Dim::Known(self.stride[axis]));
        match (end, begin) {
            (Some(end), Some(begin)) => end
                .checked_sub(&begin)
                .is_some_and(|rest| rest.is_at_least(&Dim::Known(1))),
            _ => false,
        }
    }
}

/// Checks that a list has one number, at least `least`, for each axis.
pub(crate) fn check_list(
    name: &'static str,
    list: &[usize],
    axes: usize,
    least: usize,
) -> Result<(), TypeError> {
    let bad = |reason| Err(TypeError::Attr { name, reason });
    if list.len() != axes {
        return bad(format!("{} values for {axes} spatial axes", list.len()));
    }
    match list
        .iter()
        .find(|n| !(least..=MAX_WINDOW_PARAM).contains(n))
    {
        Some(n) => bad(format!("{n} is not between {least} and {MAX_WINDOW_PARAM}")),
        None => Ok(()),
    }
}

/// The number of spatial axes of an operand `[N, C, ..]`.
pub(crate) fn spatial_axes(operand: &'static str, ty: &Type) -> Result<usize, TypeError> {
    match ty.rank() {
        rank @ 3..=5 => Ok(rank - 2),
        _ => Err(TypeError::Rank {
            operand,
            found: ty.clone(),
            expected: "rank 3 to 5: batch, channels and one to three spatial axes".to_string(),
        }),
    }
}

/// The known kernel sizes of weights, each at least 1.
pub(crate) fn kernel_sizes(w: &Type) -> Result<Vec<usize>, TypeError> {
    let sizes = w.shape[2..].iter().map(|d| match d.known() {
        Some(n) if (1..=MAX_WINDOW_PARAM).contains(&n) => Ok(n),
        _ => Err(TypeError::Other(format!(
            "the kernel sizes of w {w} must be known and between 1 and {MAX_WINDOW_PARAM}"
        ))),
    });
    sizes.collect()
}

/// The result type of windows on `x`: `[first, second, windows..]`.
pub(crate) fn windowed(
    x: &Type,
    channels: Dim,
    window: &Window,
    kernel: &[usize],
    ceil: bool,
) -> Result<Type, TypeError> {
    let mut dims = vec![x.shape[0].clone(), channels];
    for (axis, &taps) in kernel.iter().enumerate() {
        dims.push(window.count(axis, &x.shape[2 + axis], taps, ceil)?);
    }
    let ty = x.with_shape(dims);
    match ty.shape.numel() {
        Some(_) => Ok(ty),
        None => Err(overflow(&ty)),
    }
}

/// Sizes on three axes; missing leading axes have size 1.
pub(crate) fn three(sizes: &[usize]) -> [usize; 3] {
    let mut all = [1; 3];
    for (to, from) in all.iter_mut().rev().zip(sizes.iter().rev()) {
        *to = *from;
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_counted_as_pooling_counts_them() {
        let count = |n: usize, k, stride, before, after, ceil| {
            let w = Window::new(1)
                .with_stride(&[stride])
                .with_pads(&[before], &[after]);
            w.count(0, &Dim::Known(n), k, ceil)
                .ok()
                .and_then(|d| d.known())
        };
        assert_eq!(count(7, 3, 2, 0, 0, false), Some(3));
        assert_eq!(count(8, 3, 2, 0, 0, false), Some(3));
        assert_eq!(count(8, 3, 2, 0, 0, true), Some(4));
        // A fourth window would begin in the padding after the operand.
        assert_eq!(count(4, 1, 2, 0, 1, true), Some(2));
        assert_eq!(count(2, 3, 1, 0, 0, false), None);
        assert_eq!(count(2, 3, 1, 1, 0, false), Some(1));
    }

    #[test]
    fn symbols_that_are_multiples_of_the_stride_stay_symbols() {
        let s = Dim::sym("s");
        let even = s.checked_mul(&Dim::Known(2)).unwrap();
        let w = Window::new(1).with_stride(&[2]).with_pads(&[1], &[1]);
        assert_eq!(w.count(0, &even, 3, false), Ok(s.clone()));
        assert!(w.count(0, &s, 3, false).is_err());
        let same = Window::new(1).with_pads(&[1], &[1]);
        assert_eq!(same.count(0, &s, 3, false), Ok(s));
    }
}

//! Windows of convolutions and pooling: their positions on the spatial axes of an operand.
//!
//! Tap `t` of the window of result `o` reads element `o stride + t dilation - pad_before` of its
//! axis; an index outside the axis is padding. The spatial axes are the last one to three axes of
//! `[N, C, ..]`.

use tercet_tensor::{Dim, Type};

use crate::error::TypeError;
use crate::ops::util::overflow;

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
    /// Public for the tests, as [`internals`](crate::internals).
    ///
    /// # Errors
    /// [`TypeError`] if no window fits.
    #[doc(hidden)]
    pub fn count(&self, axis: usize, n: &Dim, kernel: usize, ceil: bool) -> Result<Dim, TypeError> {
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
        let reach = reach.ok_or_else(too_small)?;
        let padded = n.checked_add(&Dim::Known(before + self.pad_after[axis]));
        let fits = padded.and_then(|padded| padded.checked_sub(&Dim::Known(reach)));
        fits.ok_or_else(too_small)?;
        let all = before + self.covered_pad(axis, reach, ceil) + stride;
        n.checked_add(&Dim::Known(all))
            .and_then(|all| all.checked_sub(&Dim::Known(reach)))
            .and_then(|all| all.div_floor(stride))
            .ok_or_else(too_small)
    }

    /// Padding after an axis for which the number of windows of this reach inside the padding equals
    /// [`Window::count`].
    pub(crate) fn covered_pad(&self, axis: usize, reach: usize, ceil: bool) -> usize {
        let (stride, after) = (self.stride[axis], self.pad_after[axis]);
        match reach.checked_sub(after) {
            _ if !ceil => after,
            // The additional window would begin in the padding after the operand.
            None | Some(0) => after - 1,
            // The last window is the last one that begins before the end of the operand.
            Some(late) if late <= stride => reach - 1,
            Some(_) => after + stride - 1,
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

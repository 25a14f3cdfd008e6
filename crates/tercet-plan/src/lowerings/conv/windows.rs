//! Parameters of convolution and pooling windows for kernels: always three spatial axes; missing
//! axes have size 1.

use tercet_ir::Dim;
use tercet_ir::ops::Window;

use crate::emit::{LoweringCtx, SlotView};
use tercet_program::SymInt;

crate::params! {
    /// Parameter block of `conv/windows.wgsl`.
    pub struct WindowParams {
        batch: U32,
        groups: U32,
        m: U32,
        k: U32,
        channels: U32,
        windows: U32,
        x_offset: U32,
        x_batch: U32,
        x_channel: U32,
        x_deep: U32,
        x_row: U32,
        x_col: U32,
        size_d: U32,
        size_h: U32,
        size_w: U32,
        out_d: U32,
        out_h: U32,
        out_w: U32,
        stride_d: U32,
        stride_h: U32,
        stride_w: U32,
        dilation_d: U32,
        dilation_h: U32,
        dilation_w: U32,
        pad_d: U32,
        pad_h: U32,
        pad_w: U32,
        end_d: U32,
        end_h: U32,
        end_w: U32,
        bias_offset: U32,
        bias_row: U32,
        bias_stride: U32,
        zero: U32,
    }
}

/// Sizes, strides, dilation and padding of convolution or pooling windows on the spatial axes of an
/// operand.
pub(in crate::lowerings) struct GpuConvWindows {
    /// Number of spatial axes.
    axes: usize,
    pub(in crate::lowerings) kernel: [usize; 3],
    pub(in crate::lowerings) stride: [usize; 3],
    pub(in crate::lowerings) dilation: [usize; 3],
    pad: [usize; 3],
    pad_after: [usize; 3],
    unpadded: bool,
    /// Number of windows along each spatial axis, and total number of windows per batch entry.
    out: [Dim; 3],
    pub(in crate::lowerings) count: Dim,
}

/// The value of a dimension that the operator requires to be known at compile time.
pub(in crate::lowerings) fn known(dim: &Dim) -> usize {
    let n = dim.known();
    n.unwrap_or_else(|| unreachable!("invariant: kernel sizes are known"))
}

/// Product of dimensions. If the product overflows, the result is a number larger than any possible
/// slot.
pub(in crate::lowerings) fn product(dims: &[Dim]) -> Dim {
    crate::lowerings::rows::product(dims)
}

fn three<T: Clone>(list: &[T], missing: T) -> [T; 3] {
    let mut all = [missing.clone(), missing.clone(), missing];
    all[3 - list.len()..].clone_from_slice(list);
    all
}

impl GpuConvWindows {
    /// Creates windows with `kernel` taps and `out` windows along each spatial axis.
    pub(in crate::lowerings) fn new(
        window: &Window,
        kernel: &[usize],
        out: Vec<Dim>,
    ) -> GpuConvWindows {
        let unpadded = window.is_identity();
        GpuConvWindows {
            axes: kernel.len(),
            kernel: three(kernel, 1),
            stride: three(&window.stride, 1),
            dilation: three(&window.dilation, 1),
            pad: three(&window.pad_before, 0),
            pad_after: three(&window.pad_after, 0),
            unpadded,
            count: product(&out),
            out: three(&out, Dim::Known(1)),
        }
    }

    /// True if each window consists of a single element and each element has a window.
    pub(in crate::lowerings) fn are_elements(&self) -> bool {
        self.unpadded && self.kernel == [1; 3]
    }

    /// Number of taps along each spatial axis of the operand, without the added axes of size 1.
    pub(in crate::lowerings) fn taps(&self) -> Vec<usize> {
        self.kernel[3 - self.axes..].to_vec()
    }

    /// Values of the shader constants `AXES`, `KD`, `KH` and `KW`.
    pub(in crate::lowerings) fn consts(&self) -> [u32; 4] {
        let [d, h, w] = self.kernel.map(|n| n as u32);
        [self.axes as u32, d, h, w]
    }

    /// Parameter block for windows on an operand `x` of shape `[N, C, ..]`. Fields that only
    /// convolutions use are set to 0 or 1.
    pub(in crate::lowerings) fn params(
        &self,
        e: &mut LoweringCtx<'_>,
        x: &SlotView,
    ) -> WindowParams {
        let shape = x.layout.shape().to_vec();
        let strides = e.strides(x);
        let sizes = e.sizes(&shape[2..]);
        let [size_d, size_h, size_w] = three(&sizes, SymInt::ONE);
        let [x_deep, x_row, x_col] = three(&strides[2..], SymInt::ZERO);
        let out = self.out.clone();
        let [out_d, out_h, out_w] = out.map(|n| e.num(&n));
        let of = |list: [usize; 3]| list.map(|n| SymInt::Const(n as i64));
        let [stride_d, stride_h, stride_w] = of(self.stride);
        let [dilation_d, dilation_h, dilation_w] = of(self.dilation);
        let [pad_d, pad_h, pad_w] = of(self.pad);
        let mut end = |n: SymInt, after: usize| e.tape().add(n, SymInt::Const(after as i64));
        let end_d = end(size_d, self.pad_after[0]);
        let end_h = end(size_h, self.pad_after[1]);
        let end_w = end(size_w, self.pad_after[2]);
        WindowParams {
            batch: e.num(&shape[0]),
            groups: SymInt::ONE,
            m: SymInt::ONE,
            k: SymInt::ONE,
            channels: e.num(&shape[1]),
            windows: e.num(&self.count),
            x_offset: e.offset(x),
            x_batch: strides[0],
            x_channel: strides[1],
            x_deep,
            x_row,
            x_col,
            size_d,
            size_h,
            size_w,
            out_d,
            out_h,
            out_w,
            stride_d,
            stride_h,
            stride_w,
            dilation_d,
            dilation_h,
            dilation_w,
            pad_d,
            pad_h,
            pad_w,
            end_d,
            end_h,
            end_w,
            bias_offset: SymInt::ZERO,
            bias_row: SymInt::ZERO,
            bias_stride: SymInt::ZERO,
            zero: SymInt::ZERO,
        }
    }
}

/// Adds checks that a window fits each padded spatial axis of symbolic size in each run. `x` is the
/// shape of the operand.
pub(super) fn check_windows_fit(e: &mut LoweringCtx<'_>, op: &Window, kernel: &[usize], x: &[Dim]) {
    for (axis, size) in x[2..].iter().enumerate() {
        let (taps, dilation) = (kernel[axis], op.dilation[axis]);
        let (before, after) = (op.pad_before[axis], op.pad_after[axis]);
        let reach = (taps - 1) * dilation + 1;
        let least = reach.saturating_sub(before + after);
        let size = e.num(size);
        let reason = format!(
            "a window of {taps} with dilation {dilation} does not fit spatial axis {axis} of size \
             {{more}} with {before} before and {after} after"
        );
        e.check_less_equal(SymInt::Const(least as i64), size, reason);
    }
}

//! The numbers of windows, as kernels take them: on three spatial axes, those missing of size 1.

use tercet_ir::Dim;
use tercet_ir::ops::Window;

use crate::emit::{Emit, View};
use crate::num::Num;

crate::params! {
    /// The block of `conv/windows.wgsl`.
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

/// Windows on the spatial axes of an operand.
pub(in crate::families) struct Windows {
    /// The spatial axes that there are.
    axes: usize,
    pub(in crate::families) kernel: [usize; 3],
    pub(in crate::families) stride: [usize; 3],
    pub(in crate::families) dilation: [usize; 3],
    pad: [usize; 3],
    pad_after: [usize; 3],
    unpadded: bool,
    /// Windows along each axis, and all of a batch entry.
    out: [Dim; 3],
    pub(in crate::families) count: Dim,
}

/// A size that the operator requires to be known.
pub(in crate::families) fn known(dim: &Dim) -> usize {
    let n = dim.known();
    n.unwrap_or_else(|| unreachable!("invariant: kernel sizes are known"))
}

/// The product of dimensions; where that overflows no slot could hold it.
pub(in crate::families) fn product(dims: &[Dim]) -> Dim {
    crate::families::rows::product(dims)
}

fn three<T: Clone>(list: &[T], missing: T) -> [T; 3] {
    let mut all = [missing.clone(), missing.clone(), missing];
    all[3 - list.len()..].clone_from_slice(list);
    all
}

impl Windows {
    /// Windows of so many taps, `out` of them along each axis.
    pub(in crate::families) fn of(window: &Window, kernel: &[usize], out: Vec<Dim>) -> Windows {
        let unpadded = window.is_identity();
        Windows {
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

    /// True if each window is one element, and each element a window.
    pub(in crate::families) fn are_elements(&self) -> bool {
        self.unpadded && self.kernel == [1; 3]
    }

    /// The taps along each axis that there is.
    pub(in crate::families) fn taps(&self) -> Vec<usize> {
        self.kernel[3 - self.axes..].to_vec()
    }

    /// The constants AXES, KD, KH, KW.
    pub(in crate::families) fn consts(&self) -> [u32; 4] {
        let [d, h, w] = self.kernel.map(|n| n as u32);
        [self.axes as u32, d, h, w]
    }

    /// The block of windows on `x [N, C, ..]`; what only convolutions have is 0 or 1.
    pub(in crate::families) fn params(&self, e: &mut Emit<'_>, x: &View) -> WindowParams {
        let shape = x.layout.shape().to_vec();
        let strides = e.strides(x);
        let sizes = e.sizes(&shape[2..]);
        let [size_d, size_h, size_w] = three(&sizes, Num::ONE);
        let [x_deep, x_row, x_col] = three(&strides[2..], Num::ZERO);
        let out = self.out.clone();
        let [out_d, out_h, out_w] = out.map(|n| e.num(&n));
        let of = |list: [usize; 3]| list.map(|n| Num::Const(n as i64));
        let [stride_d, stride_h, stride_w] = of(self.stride);
        let [dilation_d, dilation_h, dilation_w] = of(self.dilation);
        let [pad_d, pad_h, pad_w] = of(self.pad);
        let mut end = |n: Num, after: usize| e.tape().add(n, Num::Const(after as i64));
        let end_d = end(size_d, self.pad_after[0]);
        let end_h = end(size_h, self.pad_after[1]);
        let end_w = end(size_w, self.pad_after[2]);
        WindowParams {
            batch: e.num(&shape[0]),
            groups: Num::ONE,
            m: Num::ONE,
            k: Num::ONE,
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
            bias_offset: Num::ZERO,
            bias_row: Num::ZERO,
            bias_stride: Num::ZERO,
            zero: Num::ZERO,
        }
    }
}

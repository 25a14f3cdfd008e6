//! Convolution windows as the columns of a matrix (im2col).

use tercet_tensor::accuracy::Accuracy;
use tercet_tensor::{DType, Dim, Tensor, TensorType, Type};

use crate::attrs;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::{Gradient, rules};
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::util::{exactly, for_each_index, overflow};
use crate::ops::window::{Window, check_list, spatial_axes, three, windowed};

attrs! {
    /// The elements of each window, one column per window.
    ///
    /// ```
    /// use tercet_ir::{DType, Graph, Type, ops::Window};
    /// let mut g = Graph::new();
    /// let x = g.input("x", Type::new(DType::F32, [1, 3, 8, 8]))?;
    /// let columns = g.im2_col(x, &[2, 2], Window::new(2).with_stride(&[2, 2]))?;
    /// // 3 channels of 4 taps, and 4 x 4 windows.
    /// assert_eq!(g.ty(columns).to_string(), "f32[1, 12, 16]");
    /// # Ok::<(), tercet_ir::OpError>(())
    /// ```
    pub struct Im2Col {
        /// Number of taps of a window along each spatial axis.
        pub kernel: Vec<usize>,
        /// Distance between neighbouring windows.
        pub stride: Vec<usize>,
        /// Zeros before each spatial axis.
        pub pad_before: Vec<usize>,
        /// Zeros after each spatial axis.
        pub pad_after: Vec<usize>,
        /// Distance between neighbouring taps.
        pub dilation: Vec<usize>,
    }
}

impl Im2Col {
    /// The operator for these windows.
    pub fn new(kernel: Vec<usize>, window: Window) -> Im2Col {
        let Window {
            stride,
            pad_before,
            pad_after,
            dilation,
        } = window;
        Im2Col {
            kernel,
            stride,
            pad_before,
            pad_after,
            dilation,
        }
    }

    /// The windows of the operator.
    pub fn window(&self) -> Window {
        Window {
            stride: self.stride.clone(),
            pad_before: self.pad_before.clone(),
            pad_after: self.pad_after.clone(),
            dilation: self.dilation.clone(),
        }
    }

    /// The number of windows along each spatial axis of an operand of this type.
    ///
    /// # Errors
    /// [`TypeError`] as [`OpSpec::infer`].
    pub fn windows(&self, x: &Type) -> Result<Vec<Dim>, TypeError> {
        let channels = x.shape[1].clone();
        let ty = windowed(x, channels, &self.window(), &self.kernel, false)?;
        Ok(ty.shape[2..].to_vec())
    }
}

impl OpSpec for Im2Col {
    const DOC: OpDoc = OpDoc {
        name: "im2_col",
        text: "The elements of each convolution window of `x [N, C, ..]` as a column: `[N, C taps, \
               windows]`, rows by channel and then tap, zeros for padding.",
        operands: &["x"],
        dtypes: DType::ALL,
        accuracy: Accuracy::Exact,
        tier: Tier::Core,
    };

    const GRADIENT: Gradient<Self> = Gradient::Rule(rules::conv::im2_col);

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        let [x] = exactly(operands)?;
        let axes = spatial_axes("x", x)?;
        check_list("kernel", &self.kernel, axes, 1)?;
        self.window().check(axes)?;
        let taps = self
            .kernel
            .iter()
            .try_fold(1usize, |n, k| n.checked_mul(*k));
        let rows = taps.and_then(|taps| x.shape[1].checked_mul(&Dim::Known(taps)));
        let windows = self.windows(x)?;
        let columns = windows
            .iter()
            .try_fold(Dim::Known(1), |n, d| n.checked_mul(d));
        let (Some(rows), Some(columns)) = (rows, columns) else {
            return Err(overflow(x));
        };
        Ok(vec![x.with_shape([x.shape[0].clone(), rows, columns])])
    }

    fn eval(
        &self,
        _: &EvalCtx,
        operands: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        let x = operands[0];
        let window = self.window().on_three_axes();
        let (sizes, kernel) = (three(&x.shape()[2..]), three(&self.kernel));
        let windows = self
            .windows(&Type::from(x.ty()))
            .map_err(|e| EvalError::Data(e.to_string()))?;
        let windows: Vec<usize> = windows.iter().filter_map(Dim::known).collect();
        let windows = three(&windows);
        let size = x.dtype().size_bytes();
        let mut y = Tensor::zeros(results[0].clone())?;
        let planes = x.shape()[0] * x.shape()[1];
        let plane = sizes.iter().product::<usize>();
        let from = x.bytes();
        let mut to = y.bytes_mut().chunks_exact_mut(size);
        let [k0, k1, k2] = kernel;
        let [w0, w1, w2] = windows;
        for_each_index(&[planes, k0, k1, k2, w0, w1, w2], |index| {
            let source = (0..3).try_fold(index[0], |flat, axis| {
                let n = sizes[axis];
                let at = window.source(axis, index[4 + axis], index[1 + axis], n)?;
                Some(flat * n + at)
            });
            debug_assert!(source.is_none_or(|at| at < planes * plane));
            if let (Some(slot), Some(at)) = (to.next(), source) {
                slot.copy_from_slice(&from[at * size..][..size]);
            }
        });
        Ok(vec![y])
    }
}

impl Graph {
    /// The windows of `x [N, C, ..]`, of any dtype and one to three spatial axes, as columns: `[N,
    /// C taps, windows]`. Padding is zeros.
    ///
    /// # Errors
    /// [`OpError`] when a list does not have one value for each spatial axis or no window fits.
    pub fn im2_col(
        &mut self,
        x: Value,
        kernel: &[usize],
        window: Window,
    ) -> Result<Value, OpError> {
        self.add(Im2Col::new(kernel.to_vec(), window), &[x])
    }
}

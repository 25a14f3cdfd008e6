//! The gradient of a convolution with respect to its weights.

use crate::accuracy::Accuracy;
use crate::attrs;
use crate::case::{InputFill, OpCase, RejectCase};
use crate::dim::Dim;
use crate::dtype::DType;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::{Gradient, rules};
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::conv::per_group;
use crate::ops::util::{
    counted, exactly, expect_dtype, expect_same_dtype, for_each_index, from_scalars, reject,
    scalars,
};
use crate::ops::window::{Window, check_list, spatial_axes, three, windowed};
use crate::scalar::Scalar;
use crate::tensor::Tensor;
use crate::types::{TensorType, Type};

attrs! {
    /// `dw[o, c, t] = sum_{n, p} dy[n, o, p] x[n, first(o) + c, p stride + t dilation - pad]`. The
    /// operator multiplies the same pairs as [`Conv`](super::Conv), but sums over the batch and the
    /// windows instead of channels and taps.
    ///
    /// ```
    /// use tercet_ir::{DType, Graph, Type, ops::{ConvWeightGrad, Window}};
    /// let mut g = Graph::new();
    /// let x = g.input("x", Type::new(DType::F32, [2, 8, 6, 6]))?;
    /// let dy = g.input("dy", Type::new(DType::F32, [2, 4, 4, 4]))?;
    /// let dw = g.add(ConvWeightGrad::new(vec![3, 3], Window::new(2), 1), &[x, dy])?;
    /// assert_eq!(g.ty(dw).to_string(), "f32[4, 8, 3, 3]");
    /// # Ok::<(), tercet_ir::OpError>(())
    /// ```
    pub struct ConvWeightGrad {
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
        /// Number of channel groups of both operands.
        pub groups: usize,
    }
}

impl ConvWeightGrad {
    /// The operator for these windows.
    pub fn new(kernel: Vec<usize>, window: Window, groups: usize) -> ConvWeightGrad {
        let Window {
            stride,
            pad_before,
            pad_after,
            dilation,
        } = window;
        ConvWeightGrad {
            kernel,
            stride,
            pad_before,
            pad_after,
            dilation,
            groups,
        }
    }

    /// The windows of the convolution.
    pub fn window(&self) -> Window {
        Window {
            stride: self.stride.clone(),
            pad_before: self.pad_before.clone(),
            pad_after: self.pad_after.clone(),
            dilation: self.dilation.clone(),
        }
    }
}

impl OpSpec for ConvWeightGrad {
    const DOC: OpDoc = OpDoc {
        name: "conv_weight_grad",
        text: "The cotangent of the weights of `conv`, `[O, C / groups, kernel..]`, from `x [N, C, \
               ..]` and the cotangent `dy [N, O, windows..]` of its result. It sums over the batch \
               and all windows.",
        operands: &["x", "dy"],
        dtypes: DType::FLOATS,
        accuracy: Accuracy::Contraction,
        tier: Tier::Composite,
    };

    const GRADIENT: Gradient<Self> = Gradient::Rule(rules::conv::conv_weight_grad);

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        let [x, dy] = exactly(operands)?;
        expect_dtype("x", x, DType::FLOATS)?;
        expect_same_dtype("dy", dy, x)?;
        let axes = spatial_axes("x", x)?;
        check_list("kernel", &self.kernel, axes, 1)?;
        self.window().check(axes)?;
        let own = per_group(&x.shape[1], self.groups)?;
        let channels = dy.shape.get(1).cloned().unwrap_or(Dim::Known(0));
        let wanted = windowed(x, channels.clone(), &self.window(), &self.kernel, false)?;
        if *dy != wanted {
            let reason = format!("dy is {dy}; accepted: {wanted} with any number of channels");
            return Err(TypeError::Other(reason));
        }
        per_group(&channels, self.groups)?;
        let taps = self.kernel.iter().map(|k| Dim::Known(*k));
        let shape: Vec<Dim> = [channels, own].into_iter().chain(taps).collect();
        Ok(vec![x.with_shape(shape)])
    }

    fn eval(
        &self,
        _: &EvalCtx,
        operands: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        let (x, dy) = (operands[0], operands[1]);
        let window = self.window().on_three_axes();
        let (sizes, kernel) = (three(&x.shape()[2..]), three(&self.kernel));
        let [p0, p1, p2] = three(&dy.shape()[2..]);
        let (channels, all) = (x.shape()[1], dy.shape()[1]);
        let own = results[0].shape[1];
        let of_group = (all / self.groups).max(1);
        let (xs, dys) = (scalars(x), scalars(dy));
        let mut dw = Vec::with_capacity(results[0].numel());
        let [k0, k1, k2] = kernel;
        for_each_index(&[all, own, k0, k1, k2], |at| {
            let mut sum = 0.0;
            for_each_index(&[x.shape()[0], p0, p1, p2], |from| {
                let first = from[0] * channels + at[0] / of_group * own + at[1];
                let source = (0..3).try_fold(first, |flat, axis| {
                    let n = sizes[axis];
                    Some(flat * n + window.source(axis, from[1 + axis], at[2 + axis], n)?)
                });
                let Some(source) = source else { return };
                let place = (from[0] * all + at[0]) * p0 + from[1];
                let place = (place * p1 + from[2]) * p2 + from[3];
                sum += xs[source].as_f64() * dys[place].as_f64();
            });
            dw.push(Scalar::F(sum));
        });
        Ok(vec![from_scalars(results[0].clone(), &dw)?])
    }

    fn cases() -> Vec<OpCase> {
        cases()
    }

    fn rejects() -> Vec<RejectCase> {
        fn build(
            g: &mut Graph,
            x: &[usize],
            dy: &[usize],
            kernel: &[usize],
            groups: usize,
        ) -> Result<Value, OpError> {
            let x = g.input("x", Type::new(DType::F32, x))?;
            let dy = g.input("dy", Type::new(DType::F32, dy))?;
            let window = Window::new(kernel.len());
            g.add(
                ConvWeightGrad::new(kernel.to_vec(), window, groups),
                &[x, dy],
            )
        }
        vec![
            reject("rank", "expected rank 3 to 5", |g| {
                build(g, &[2, 3], &[2, 3], &[1], 1)
            }),
            reject("rank_of_dy", "dy is", |g| {
                build(g, &[1, 3, 4], &[1], &[1], 1)
            }),
            reject("windows", "accepted: f32[1, 2, 3]", |g| {
                build(g, &[1, 3, 4], &[1, 2, 4], &[2], 1)
            }),
            reject("batch", "accepted: f32[1, 2, 3]", |g| {
                build(g, &[1, 3, 4], &[2, 2, 3], &[2], 1)
            }),
            reject("groups_of_x", "2 does not divide 3 channels", |g| {
                build(g, &[1, 3, 4], &[1, 2, 3], &[2], 2)
            }),
            reject("groups_of_dy", "2 does not divide 3 channels", |g| {
                build(g, &[1, 4, 4], &[1, 3, 3], &[2], 2)
            }),
            reject("no_groups", "0 does not divide", |g| {
                build(g, &[1, 4, 4], &[1, 3, 3], &[2], 0)
            }),
            reject("kernel_axes", "1 values for 2 spatial axes", |g| {
                build(g, &[1, 1, 3, 3], &[1, 1, 3, 3], &[1], 1)
            }),
            reject("no_taps", "0 is not between 1", |g| {
                build(g, &[1, 1, 3], &[1, 1, 3], &[0], 1)
            }),
            reject("too_small", "does not fit spatial axis 0", |g| {
                build(g, &[1, 1, 3], &[1, 1, 1], &[4], 1)
            }),
        ]
    }
}

/// A case given by the shapes of `x` and of the weights; the shape of `dy` follows.
fn case(
    name: &'static str,
    x: &'static [usize],
    w: &'static [usize],
    groups: usize,
    window: fn(Window) -> Window,
) -> OpCase {
    OpCase::new(name, move |c| {
        let dtype = c.dtype;
        let window = window(Window::new(x.len() - 2));
        let ty = Type::new(dtype, x);
        let dy = windowed(&ty, Dim::Known(w[0]), &window, &w[2..], false);
        let dy = dy.unwrap_or_else(|e| unreachable!("invariant: a case's windows fit: {e}"));
        let x = c.input("x", x, InputFill::Normal)?;
        let dy = c.input("dy", dy.shape, InputFill::Normal)?;
        let op = ConvWeightGrad::new(w[2..].to_vec(), window, groups);
        let y = c.graph.add(op, &[x, dy])?;
        c.output(y)
    })
}

/// 3x3 windows whose result has the size of the operand.
fn same(w: Window) -> Window {
    w.with_pads(&[1, 1], &[1, 1])
}

fn cases() -> Vec<OpCase> {
    shaped().into_iter().chain(others()).collect()
}

fn shaped() -> Vec<OpCase> {
    vec![
        case("line_2x3x19", &[2, 3, 19], &[5, 3, 4], 1, |w| {
            w.with_stride(&[2]).with_pads(&[3], &[1])
        }),
        case("plane_3x3", &[2, 5, 9, 7], &[6, 5, 3, 3], 1, same),
        // Full and partial tiles along channels and windows; several batch entries in one step.
        case("tiles_and_rest", &[3, 9, 13, 11], &[70, 9, 3, 3], 1, same),
        case("whole_words", &[2, 16, 8, 16], &[24, 16, 3, 3], 1, same),
        case("stride_2", &[2, 18, 9, 12], &[20, 18, 3, 3], 1, |w| {
            same(w).with_stride(&[2, 2])
        }),
        case("first_layer", &[2, 3, 21, 18], &[16, 3, 7, 7], 1, |w| {
            w.with_stride(&[2, 2]).with_pads(&[3, 3], &[3, 3])
        }),
        case("asymmetric", &[1, 4, 8, 9], &[3, 4, 2, 3], 1, |w| {
            w.with_stride(&[3, 1])
                .with_pads(&[2, 0], &[0, 3])
                .with_dilation(&[1, 2])
        }),
        case("dilated", &[1, 16, 11, 12], &[17, 16, 3, 3], 1, |w| {
            w.with_dilation(&[3, 2]).with_pads(&[2, 1], &[2, 1])
        }),
        case("block_3d", &[2, 3, 5, 6, 7], &[4, 3, 2, 3, 3], 1, |w| {
            w.with_stride(&[1, 2, 1]).with_pads(&[1, 0, 1], &[0, 1, 1])
        }),
        case("pointwise", &[3, 20, 7, 7], &[18, 20, 1, 1], 1, |w| w),
        case(
            "pointwise_words",
            &[3, 40, 8, 16],
            &[72, 40, 1, 1],
            1,
            |w| w,
        ),
        case(
            "pointwise_stride_2",
            &[2, 16, 7, 8],
            &[17, 16, 1, 1],
            1,
            |w| w.with_stride(&[2, 2]),
        ),
        case("groups", &[2, 6, 7, 5], &[9, 2, 3, 3], 3, same),
        case("groups_of_16", &[2, 32, 5, 6], &[48, 16, 3, 3], 2, same),
        case(
            "pointwise_groups",
            &[2, 32, 4, 6],
            &[32, 16, 1, 1],
            2,
            |w| w,
        ),
        case("depthwise", &[2, 7, 9, 10], &[7, 1, 3, 3], 7, same),
        // The number of windows is so large that kernels split the sum over them.
        case("long", &[4, 16, 24, 20], &[16, 16, 3, 3], 1, same),
        case("one_window", &[3, 4, 5, 6], &[7, 4, 5, 6], 1, |w| w),
        case("padding_only", &[1, 2, 1, 1], &[3, 2, 2, 2], 1, |w| {
            w.with_stride(&[3, 3]).with_pads(&[4, 3], &[4, 3])
        }),
        case("no_batch", &[0, 3, 4, 4], &[2, 3, 3, 3], 1, |w| w),
        case("no_channels", &[2, 0, 4], &[3, 0, 2], 1, |w| w),
        case("no_results", &[2, 3, 4], &[0, 3, 2], 1, |w| w),
    ]
}

fn others() -> Vec<OpCase> {
    let mut all = Vec::new();
    all.push(OpCase::new("written", |c| {
        let x = c.input("x", [1, 1, 4], counted(&[1, 1, 4]))?;
        let dy = c.input(
            "dy",
            [1, 1, 4],
            InputFill::Values(vec![1.0, 2.0, 0.0, -1.0]),
        )?;
        let window = Window::new(1).with_pads(&[1], &[1]);
        let y = c
            .graph
            .add(ConvWeightGrad::new(vec![3], window, 1), &[x, dy])?;
        c.output_expect(y, &[-2.0, -1.0, 5.0])
    }));
    all.push(OpCase::new("symbolic", |c| {
        let (b, s) = (c.sym("b", 2, 3), c.sym("s", 5, 9));
        let x = c.input(
            "x",
            [b.clone(), 16.into(), s.clone(), 8.into()],
            InputFill::Normal,
        )?;
        let dy = c.input("dy", [b, 17.into(), s, 4.into()], InputFill::Normal)?;
        let window = same(Window::new(2)).with_stride(&[1, 2]);
        let op = ConvWeightGrad::new(vec![3, 3], window, 1);
        let y = c.graph.add(op, &[x, dy])?;
        c.output(y)
    }));
    // Operands that are not row-major.
    for (name, kernel) in [("channels_last", 3), ("channels_last_pointwise", 1)] {
        all.push(OpCase::new(name, move |c| {
            let x = c.input("x", [2, 8, 6, 17], InputFill::Normal)?;
            let x = c.graph.narrow(x, 3, 1, 16)?;
            let x = c.graph.transpose(x, &[0, 3, 1, 2])?;
            let sides = [9 - kernel, 7 - kernel];
            let dy = c.input("dy", [2, sides[0], sides[1], 18], InputFill::Normal)?;
            let dy = c.graph.transpose(dy, &[0, 3, 1, 2])?;
            let op = ConvWeightGrad::new(vec![kernel, kernel], Window::new(2), 1);
            let y = c.graph.add(op, &[x, dy])?;
            c.output(y)
        }));
    }
    all
}

//! Pooling.

use crate::accuracy::Accuracy;
use crate::case::{InputFill, OpCase, RejectCase};
use crate::dim::Dim;
use crate::dtype::DType;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::{Gradient, rules};
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::reduce::ReduceFn;
use crate::ops::util::{
    counted, exactly, expect_dtype, for_each_index, from_scalars, reject, scalars,
};
use crate::ops::window::{Window, check_list, spatial_axes, three, windowed};
use crate::scalar::Scalar;
use crate::tensor::Tensor;
use crate::types::{TensorType, Type};
use crate::{attrs, spelled};

spelled! {
    /// The function of the elements of a window.
    ///
    /// ```
    /// use tercet_ir::ops::{PoolFn, Window};
    /// use tercet_ir::{DType, Graph, Type};
    /// let mut g = Graph::new();
    /// let x = g.input("x", Type::new(DType::F32, [1, 3, 8, 8]))?;
    /// let y = g.pool(x, PoolFn::Max, &[2, 2], Window::new(2).with_stride(&[2, 2]))?;
    /// assert_eq!(g.ty(y).to_string(), "f32[1, 3, 4, 4]");
    /// # Ok::<(), tercet_ir::OpError>(())
    /// ```
    pub enum PoolFn {
        /// The maximum; NaN if any element is NaN; for an empty window `-inf` or the minimum
        /// integer.
        Max "max",
        /// The sum divided by the number of elements; NaN for an empty window.
        Mean "mean",
        /// The sum; integers wrap; 0 for an empty window.
        Sum "sum",
        /// The minimum; NaN if any element is NaN; for an empty window `inf` or the maximum
        /// integer.
        Min "min",
    }
}

impl PoolFn {
    /// The reduction of the elements of a window.
    pub fn reduction(self) -> ReduceFn {
        match self {
            PoolFn::Max => ReduceFn::Max,
            PoolFn::Mean => ReduceFn::Mean,
            PoolFn::Sum => ReduceFn::Sum,
            PoolFn::Min => ReduceFn::Min,
        }
    }
}

attrs! {
    /// A function of the elements that each window covers; padding is excluded.
    ///
    /// ```
    /// # use std::collections::BTreeMap;
    /// use tercet_ir::{EvalCtx, Graph, Tensor, evaluate, ops::{PoolFn, Window}};
    /// let mut g = Graph::new();
    /// let x = g.constant(Tensor::from_slice(&[1, 1, 4], &[1f32, 5.0, 2.0, 4.0])?)?;
    /// let y = g.pool(x, PoolFn::Mean, &[2], Window::new(1).with_stride(&[2]))?;
    /// let done = evaluate(&g, &EvalCtx::default(), &BTreeMap::new())?;
    /// assert_eq!(done.get(y).as_slice::<f32>()?, [3.0, 3.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub struct Pool {
        /// The pooling function.
        pub f: PoolFn,
        /// Number of taps of a window along each spatial axis.
        pub kernel: Vec<usize>,
        /// Distance between neighbouring windows.
        pub stride: Vec<usize>,
        /// Padding before each spatial axis.
        pub pad_before: Vec<usize>,
        /// Padding after each spatial axis.
        pub pad_after: Vec<usize>,
        /// Distance between neighbouring taps.
        pub dilation: Vec<usize>,
        /// Whether a last window may extend beyond the padding after an axis. That window must
        /// begin inside the operand or the padding before it.
        pub ceil: bool,
        /// Whether a mean counts taps on padding; taps beyond the padding never count.
        pub count_include_pad: bool,
    }
}

impl Pool {
    /// The operator for windows with these numbers of taps.
    pub fn new(f: PoolFn, kernel: &[usize], window: Window) -> Pool {
        let Window {
            stride,
            pad_before,
            pad_after,
            dilation,
        } = window;
        Pool {
            f,
            kernel: kernel.to_vec(),
            stride,
            pad_before,
            pad_after,
            dilation,
            ceil: false,
            count_include_pad: false,
        }
    }

    /// Permits a last window that extends beyond the padding.
    pub fn with_ceil(mut self) -> Pool {
        self.ceil = true;
        self
    }

    /// Makes a mean count taps on padding.
    pub fn counting_pad(mut self) -> Pool {
        self.count_include_pad = true;
        self
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
}

impl OpSpec for Pool {
    const DOC: OpDoc = OpDoc {
        name: "pool",
        text: "Max, mean, sum or min of `x [N, C, ..]` over the elements of each window, in one to \
               three dimensions. Max and min propagate NaN, integers wrap. A mean divides by the \
               number of covered elements; with `count_include_pad`, taps on padding count too.",
        operands: &["x"],
        dtypes: DType::NUMBERS,
        accuracy: Accuracy::Reduction,
        tier: Tier::Core,
    };

    const GRADIENT: Gradient<Self> = Gradient::Rule(rules::pool::pool);

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        let [x] = exactly(operands)?;
        let accepted = match self.f {
            PoolFn::Mean => DType::FLOATS,
            PoolFn::Max | PoolFn::Sum | PoolFn::Min => DType::NUMBERS,
        };
        expect_dtype("x", x, accepted)?;
        let axes = spatial_axes("x", x)?;
        check_list("kernel", &self.kernel, axes, 1)?;
        let window = self.window();
        window.check(axes)?;
        if self.count_include_pad && self.f != PoolFn::Mean {
            let reason = format!("{} does not use a count; expected false", self.f.name());
            return Err(TypeError::Attr {
                name: "count_include_pad",
                reason,
            });
        }
        let channels = x.shape[1].clone();
        Ok(vec![windowed(
            x,
            channels,
            &window,
            &self.kernel,
            self.ceil,
        )?])
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
        let [p0, p1, p2] = three(&results[0].shape[2..]);
        let d = results[0].dtype;
        let f = self.f.reduction();
        let xs = scalars(x);
        let mut y = Vec::with_capacity(results[0].numel());
        for_each_index(&[x.shape()[0] * x.shape()[1], p0, p1, p2], |at| {
            let (mut all, mut count) = (f.identity(d), 0usize);
            for_each_index(&kernel, |tap| {
                let source = (0..3).try_fold(at[0], |flat, axis| {
                    let n = sizes[axis];
                    Some(flat * n + window.source(axis, at[1 + axis], tap[axis], n)?)
                });
                let on_pad = (0..3).all(|axis| {
                    let end = sizes[axis] + window.pad_before[axis] + window.pad_after[axis];
                    at[1 + axis] * window.stride[axis] + tap[axis] * window.dilation[axis] < end
                });
                count += usize::from(source.is_some() || (self.count_include_pad && on_pad));
                if let Some(source) = source {
                    all = f.combine(d, all, xs[source]);
                }
            });
            y.push(match self.f {
                PoolFn::Mean => Scalar::F(all.as_f64() / count as f64),
                PoolFn::Max | PoolFn::Sum | PoolFn::Min => all,
            });
        });
        Ok(vec![from_scalars(results[0].clone(), &y)?])
    }

    fn cases() -> Vec<OpCase> {
        cases()
    }

    fn rejects() -> Vec<RejectCase> {
        fn build(g: &mut Graph, dtype: DType, x: &[usize], pool: Pool) -> Result<Value, OpError> {
            let x = g.input("x", Type::new(dtype, x))?;
            g.add(pool, &[x])
        }
        vec![
            reject("rank", "expected rank 3 to 5", |g| {
                let pool = Pool::new(PoolFn::Max, &[1], Window::new(1));
                build(g, DType::F32, &[2, 3], pool)
            }),
            reject("kernel_axes", "1 values for 2 spatial axes", |g| {
                let pool = Pool::new(PoolFn::Max, &[1], Window::new(2));
                build(g, DType::F32, &[1, 1, 3, 3], pool)
            }),
            reject("mean_of_integers", "accepted: f32", |g| {
                let pool = Pool::new(PoolFn::Mean, &[1], Window::new(1));
                build(g, DType::I32, &[1, 1, 3], pool)
            }),
            reject("too_small", "does not fit spatial axis 0", |g| {
                let pool = Pool::new(PoolFn::Max, &[4], Window::new(1));
                build(g, DType::F32, &[1, 1, 3], pool)
            }),
            reject("nothing_to_count", "max does not use a count", |g| {
                let pool = Pool::new(PoolFn::Max, &[2], Window::new(1)).counting_pad();
                build(g, DType::F32, &[1, 1, 3], pool)
            }),
            reject("no_dilation", "0 is not between 1", |g| {
                let window = Window::new(1).with_dilation(&[0]);
                build(
                    g,
                    DType::F32,
                    &[1, 1, 3],
                    Pool::new(PoolFn::Sum, &[2], window),
                )
            }),
            reject("symbol", "multiple of the stride", |g| {
                let x = Type::new(DType::F32, [Dim::Known(1), Dim::Known(1), Dim::sym("s")]);
                let x = g.input("x", x)?;
                g.pool(x, PoolFn::Max, &[2], Window::new(1).with_stride(&[2]))
            }),
        ]
    }
}

fn accepted(f: PoolFn) -> &'static [DType] {
    match f {
        PoolFn::Mean => DType::FLOATS,
        PoolFn::Max | PoolFn::Sum | PoolFn::Min => DType::NUMBERS,
    }
}

fn cases() -> Vec<OpCase> {
    type Sizes = &'static [usize];
    type Shift = fn(Window) -> Window;
    type Change = fn(Pool) -> Pool;
    let shapes: [(&str, Sizes, Sizes, Shift, Change); 8] = [
        (
            "line_2x3x19",
            &[2, 3, 19],
            &[4],
            |w| w.with_stride(&[3]),
            |p| p,
        ),
        (
            "plane_2x5x9x7",
            &[2, 5, 9, 7],
            &[3, 2],
            |w| w.with_stride(&[2, 1]).with_pads(&[1, 0], &[1, 1]),
            |p| p,
        ),
        (
            "even_rows",
            &[1, 3, 8, 12],
            &[2, 2],
            |w| w.with_stride(&[2, 2]),
            |p| p,
        ),
        (
            "ceil",
            &[1, 2, 8, 10],
            &[3, 3],
            |w| w.with_stride(&[2, 3]).with_pads(&[0, 1], &[0, 1]),
            Pool::with_ceil,
        ),
        (
            "dilated",
            &[1, 2, 11, 9],
            &[3, 2],
            |w| w.with_dilation(&[2, 3]).with_pads(&[2, 1], &[1, 0]),
            |p| p,
        ),
        (
            "block",
            &[1, 2, 5, 6, 7],
            &[2, 3, 2],
            |w| w.with_stride(&[1, 2, 2]).with_pads(&[1, 1, 0], &[0, 1, 1]),
            Pool::with_ceil,
        ),
        ("all", &[2, 3, 7, 7], &[7, 7], |w| w, |p| p),
        ("no_batch", &[0, 3, 5], &[2], |w| w, |p| p),
    ];
    let mut all = Vec::new();
    for &f in PoolFn::ALL {
        for (name, x, kernel, window, change) in shapes {
            let pool = change(Pool::new(f, kernel, window(Window::new(kernel.len()))));
            let own = pool.clone();
            all.push(
                OpCase::new(format!("{}_{name}", f.name()), move |c| {
                    let x = c.input("x", x, InputFill::Normal)?;
                    let y = c.graph.add(own.clone(), &[x])?;
                    c.output(y)
                })
                .only(accepted(f)),
            );
            if f == PoolFn::Mean {
                let pool = pool.counting_pad();
                all.push(
                    OpCase::new(format!("mean_{name}_counting_pad"), move |c| {
                        let x = c.input("x", x, InputFill::Normal)?;
                        let y = c.graph.add(pool.clone(), &[x])?;
                        c.output(y)
                    })
                    .only(DType::FLOATS),
                );
            }
        }
        all.extend(more_cases(f));
    }
    all.extend(fixed_value_cases());
    all
}

fn more_cases(f: PoolFn) -> Vec<OpCase> {
    let name = |what: &str| format!("{}_{what}", f.name());
    vec![
        OpCase::new(name("symbolic"), move |c| {
            let (b, s) = (c.sym("b", 2, 3), c.sym("s", 5, 9));
            let wide = s.checked_mul(&Dim::Known(2)).expect("small");
            let x = c.input("x", [b, 3.into(), s, wide], InputFill::Normal)?;
            let window = Window::new(2)
                .with_stride(&[1, 2])
                .with_pads(&[1, 1], &[1, 0]);
            let y = c.graph.pool(x, f, &[3, 3], window)?;
            c.output(y)
        })
        .only(accepted(f)),
        OpCase::new(name("channels_last"), move |c| {
            let x = c.input("x", [2, 6, 5, 4], InputFill::Normal)?;
            let x = c.graph.transpose(x, &[0, 3, 1, 2])?;
            let y = c.graph.pool(x, f, &[2, 3], Window::new(2))?;
            c.output(y)
        })
        .only(accepted(f)),
        OpCase::new(name("special"), move |c| {
            let x = c.input("x", [1, 1, 4, 11], InputFill::Special)?;
            let y = c.graph.pool(x, f, &[1, 2], Window::new(2))?;
            c.output(y)
        })
        .only(match f {
            PoolFn::Max | PoolFn::Min => DType::NUMBERS,
            // Integer sums that exceed the dtype depend on their order.
            PoolFn::Mean | PoolFn::Sum => DType::INTS,
        }),
        OpCase::new(name("of_nothing"), move |c| {
            let x = c.input("x", [1, 1, 1], InputFill::Normal)?;
            let window = Window::new(1).with_stride(&[2]).with_pads(&[2], &[2]);
            let y = c.graph.pool(x, f, &[1], window)?;
            c.output(y)
        })
        .only(accepted(f)),
    ]
    .into_iter()
    .filter(|case| accepted(f).iter().any(|d| case.runs_with(*d)))
    .collect()
}

fn fixed_value_cases() -> Vec<OpCase> {
    let line = |name: &str, n: usize, pool: Pool, y: &'static [f64]| {
        let only = accepted(pool.f);
        OpCase::new(name, move |c| {
            let x = c.input("x", [1, 1, n], counted(&[n]))?;
            let out = c.graph.add(pool.clone(), &[x])?;
            c.output_expect(out, y)
        })
        .only(only)
    };
    let pads = || Window::new(1).with_stride(&[2]).with_pads(&[1], &[1]);
    vec![
        line(
            "written_max",
            5,
            Pool::new(PoolFn::Max, &[3], pads()),
            &[1.0, 3.0, 4.0],
        ),
        line(
            "written_mean",
            5,
            Pool::new(PoolFn::Mean, &[3], pads()),
            &[0.5, 2.0, 3.5],
        ),
        // One tap of the last window is on an element and one on the padding; the two taps beyond
        // it do not count.
        line(
            "written_mean_counting_pad_ceil",
            6,
            Pool::new(
                PoolFn::Mean,
                &[4],
                Window::new(1).with_stride(&[3]).with_pads(&[1], &[1]),
            )
            .with_ceil()
            .counting_pad(),
            &[0.75, 3.5, 2.5],
        ),
        line(
            "written_ceil_begins_inside",
            4,
            Pool::new(
                PoolFn::Sum,
                &[1],
                Window::new(1).with_stride(&[2]).with_pads(&[0], &[1]),
            )
            .with_ceil(),
            &[0.0, 2.0],
        ),
        OpCase::new("max_keeps_nan", |c| {
            let x = InputFill::Values(vec![1.0, f64::NAN, 2.0, 3.0]);
            let x = c.input("x", [1, 1, 4], x)?;
            let y = c.graph.pool(x, PoolFn::Max, &[2], Window::new(1))?;
            c.output_expect(y, &[f64::NAN, f64::NAN, 3.0])
        })
        .only(DType::FLOATS),
    ]
}

impl Graph {
    /// Pooling of `x [N, C, ..]` over windows of `kernel` taps, in one to three dimensions. Means
    /// need floats and count elements only; for other options, add a [`Pool`].
    ///
    /// # Errors
    /// [`OpError`] when the dtype is not supported, a list does not have one value for each spatial
    /// axis, or no window fits.
    pub fn pool(
        &mut self,
        x: Value,
        f: PoolFn,
        kernel: &[usize],
        window: Window,
    ) -> Result<Value, OpError> {
        self.add(Pool::new(f, kernel, window), &[x])
    }
}

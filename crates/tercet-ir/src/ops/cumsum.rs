//! Running sums, products, maxima and minima along one axis.

use tercet_tensor::accuracy::Accuracy;
use tercet_tensor::{DType, Tensor, TensorType, Type};

use crate::error::{EvalError, OpError, TypeError};
use crate::grad::{Gradient, rules};
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::reduce::ReduceFn;
use crate::ops::util::{AxisView, exactly, expect_axis, expect_dtype, from_scalars, scalars};
use crate::{attrs, spelled};

spelled! {
    /// The function of a running reduction.
    ///
    /// ```
    /// use tercet_ir::ops::{CumSum, ReduceFn, ScanFn};
    /// use tercet_ir::{DType, Graph, Type};
    /// let mut g = Graph::new();
    /// let x = g.input("x", Type::new(DType::F32, [2, 5]))?;
    /// let running = CumSum { axis: 1, f: ScanFn::Max, exclusive: false, reverse: false };
    /// let y = g.scan(x, running)?;
    /// assert_eq!(g.ty(y), g.ty(x));
    /// assert_eq!(ScanFn::Max.reduction(), ReduceFn::Max);
    /// # Ok::<(), tercet_ir::OpError>(())
    /// ```
    pub enum ScanFn {
        /// The running sum.
        Sum "sum",
        /// The running product.
        Prod "prod",
        /// The running maximum; NaN from the first NaN on.
        Max "max",
        /// The running minimum; NaN from the first NaN on.
        Min "min",
    }
}

impl ScanFn {
    /// The reduction with the same function.
    pub const fn reduction(self) -> ReduceFn {
        match self {
            ScanFn::Sum => ReduceFn::Sum,
            ScanFn::Prod => ReduceFn::Prod,
            ScanFn::Max => ReduceFn::Max,
            ScanFn::Min => ReduceFn::Min,
        }
    }
}

attrs! {
    /// Running reduction: `y[i] = f(x[0], .., x[i])` along one axis. The running value is wide (as
    /// if in `f64`), and each element is rounded once; integers wrap.
    ///
    /// ```
    /// # use std::collections::BTreeMap;
    /// use tercet_ir::{EvalCtx, Graph, Tensor, evaluate, ops::{CumSum, ScanFn}};
    /// let mut g = Graph::new();
    /// let x = g.constant(Tensor::from_slice(&[3], &[1f32, 2.0, 3.0])?)?;
    /// let inclusive = g.cum_sum(x, 0)?;
    /// let op = CumSum { axis: 0, f: ScanFn::Sum, exclusive: true, reverse: false };
    /// let exclusive = g.scan(x, op)?;
    /// let done = evaluate(&g, &EvalCtx::default(), &BTreeMap::new())?;
    /// assert_eq!(done.get(inclusive).as_slice::<f32>()?, [1.0, 3.0, 6.0]);
    /// assert_eq!(done.get(exclusive).as_slice::<f32>()?, [0.0, 1.0, 3.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub struct CumSum {
        /// The axis of the running reduction.
        pub axis: usize,
        /// The combining function.
        pub f: ScanFn,
        /// Excludes element `i` itself if true: the first result is then the identity of the
        /// function.
        pub exclusive: bool,
        /// Runs from the end to the beginning if true.
        pub reverse: bool,
    }
}

impl OpSpec for CumSum {
    const DOC: OpDoc = OpDoc {
        name: "cum_sum",
        text: "Running sum, product, maximum or minimum along an axis. `exclusive` excludes the \
               element itself; `reverse` starts at the end.",
        operands: &["x"],
        dtypes: DType::NUMBERS,
        accuracy: Accuracy::Reduction,
        tier: Tier::Core,
    };

    const GRADIENT: Gradient<Self> = Gradient::Rule(rules::reduce::cum_sum);

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        let [x] = exactly(operands)?;
        expect_dtype("x", x, DType::NUMBERS)?;
        expect_axis(self.axis, x.rank())?;
        Ok(vec![x.clone()])
    }

    fn eval(
        &self,
        _: &EvalCtx,
        operands: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        let (x, d, f) = (scalars(operands[0]), results[0].dtype, self.f.reduction());
        let mut y = x.clone();
        let view = AxisView::new(operands[0].shape(), self.axis);
        view.for_each_line(|start| {
            let mut line: Vec<usize> = view.line(start).collect();
            if self.reverse {
                line.reverse();
            }
            let mut so_far = f.identity(d);
            for i in line {
                let with = f.combine(d, so_far, x[i]);
                y[i] = if self.exclusive { so_far } else { with };
                so_far = with;
            }
        });
        Ok(vec![from_scalars(results[0].clone(), &y)?])
    }
}

impl Graph {
    /// Running sums of numbers along `axis`, each including its element; the dtype does not change.
    ///
    /// # Errors
    /// [`OpError`] when `x` is `Bool` or `axis` is out of range.
    pub fn cum_sum(&mut self, x: Value, axis: usize) -> Result<Value, OpError> {
        let scan = CumSum {
            axis,
            f: ScanFn::Sum,
            exclusive: false,
            reverse: false,
        };
        self.scan(x, scan)
    }

    /// The running reduction `scan` of numbers; the dtype does not change. Integers wrap.
    ///
    /// # Errors
    /// [`OpError`] when `x` is `Bool` or the axis is out of range.
    pub fn scan(&mut self, x: Value, scan: CumSum) -> Result<Value, OpError> {
        self.add(scan, &[x])
    }
}

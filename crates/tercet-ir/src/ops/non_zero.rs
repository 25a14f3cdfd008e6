//! Coordinates of nonzero elements.

use crate::accuracy::Accuracy;
use crate::attrs;
use crate::case::{InputFill, OpCase, RejectCase};
use crate::dim::Dim;
use crate::dtype::DType;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::Gradient;
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::util::{exactly, overflow, reject, scalars};
use crate::tensor::Tensor;
use crate::types::{TensorType, Type, row_major_strides};

attrs! {
    /// The coordinates of the elements that are not 0, in row-major order (NumPy `argwhere`), and
    /// their number. A NaN is not 0.
    ///
    /// The number depends on the data, but the shape of the result does not. There is a row for
    /// each element, and rows after the last coordinates are 0, which are valid indices for
    /// `GatherNd`. `count` is the number of valid rows.
    ///
    /// ```
    /// # use std::collections::BTreeMap;
    /// use tercet_ir::{EvalCtx, Graph, Tensor, evaluate};
    /// let mut g = Graph::new();
    /// let x = g.constant(Tensor::from_slice(&[3], &[0f32, 5.0, 7.0])?)?;
    /// let places = g.non_zero(x)?;
    /// let done = evaluate(&g, &EvalCtx::default(), &BTreeMap::new())?;
    /// assert_eq!(done.get(places).as_slice::<i32>()?, [1, 2, 0]);
    /// assert_eq!(done.get(places.port(1)).as_slice::<i32>()?, [2]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub struct NonZero {}
}

/// The number of elements as a dimension; an error if it exceeds `I32`.
pub(crate) fn max_count(x: &Type) -> Result<Dim, TypeError> {
    let most = x.shape.numel().ok_or_else(|| overflow(x))?;
    match most.known() {
        Some(n) if n > i32::MAX as usize => Err(overflow(x)),
        Some(_) | None => Ok(most),
    }
}

/// Checks that the element count of a run fits `I32`.
pub(crate) fn expect_countable(n: usize) -> Result<(), EvalError> {
    if n <= i32::MAX as usize {
        return Ok(());
    }
    let reason = format!("the element count {n} exceeds i32");
    Err(EvalError::Data(reason))
}

impl OpSpec for NonZero {
    const DOC: OpDoc = OpDoc {
        name: "non_zero",
        text: "The `i32` coordinates of the elements that are not 0, one row each in row-major \
               order, and their number (`i32[]`). There is one row per element; rows after the \
               last coordinates are 0.",
        operands: &["x"],
        dtypes: DType::ALL,
        accuracy: Accuracy::Exact,
        tier: Tier::Host,
    };

    const GRADIENT: Gradient<Self> = Gradient::Zero("coordinates and counts are integers");

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        let [x] = exactly(operands)?;
        let rows = Type::new(DType::I32, [max_count(x)?, Dim::Known(x.rank())]);
        Ok(vec![rows, Type::new(DType::I32, [0usize; 0])])
    }

    fn eval(
        &self,
        _: &EvalCtx,
        operands: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        let x = operands[0];
        expect_countable(x.numel())?;
        let strides = row_major_strides(x.shape());
        let mut coordinates = Vec::with_capacity(results[0].numel());
        let mut count = 0;
        for (i, element) in scalars(x).into_iter().enumerate() {
            if element.as_f64() != 0.0 {
                let places = strides.iter().zip(x.shape());
                coordinates.extend(places.map(|(&s, &n)| (i / s % n) as i64));
                count += 1;
            }
        }
        coordinates.resize(results[0].numel(), 0);
        Ok(vec![
            Tensor::from_i64s(results[0].clone(), &coordinates)?,
            Tensor::from_i64s(results[1].clone(), &[count])?,
        ])
    }

    fn cases() -> Vec<OpCase> {
        let found = |name: &str, shape: &'static [usize], fill: InputFill| {
            OpCase::new(name, move |c| {
                let x = c.input("x", shape, fill.clone())?;
                let y = c.graph.non_zero(x)?;
                c.output(y)?;
                c.output(y.port(1))
            })
        };
        vec![
            found("odd_7x33", &[7, 33], InputFill::Uniform(-1.4, 1.4)),
            found("special", &[3, 21], InputFill::Special),
            found("none", &[5, 3], InputFill::Uniform(0.0, 0.0)),
            found("rank_0", &[], InputFill::Values(vec![1.0])),
            found("rank_0_of_zero", &[], InputFill::Values(vec![0.0])),
            found("rank_1", &[13], InputFill::Normal),
            found("rank_4", &[2, 3, 1, 5], InputFill::Normal),
            found("rank_6", &[2, 1, 3, 1, 2, 2], InputFill::Normal),
            found("empty", &[0, 3], InputFill::Normal),
            OpCase::new("pinned", |c| {
                let x = InputFill::Values(vec![0.0, 2.0, 0.0, 3.0, 0.0, 1.0]);
                let x = c.input("x", [2, 3], x)?;
                let y = c.graph.non_zero(x)?;
                let (rows, rest) = ([0.0, 1.0, 1.0, 0.0, 1.0, 2.0], [0.0; 6]);
                c.output_expect(y, &[rows, rest].concat())?;
                c.output_expect(y.port(1), &[3.0])
            }),
            OpCase::new("elements_by_their_coordinates", |c| {
                let x = c.input("x", [5, 4], InputFill::Normal)?;
                let at = c.graph.non_zero(x)?;
                let y = c.graph.gather_nd(x, at, 0)?;
                c.output(y)
            }),
            OpCase::new("symbolic", |c| {
                let s = c.sym("s", 5, 9);
                let x = c.input("x", [s, 3.into()], InputFill::Normal)?;
                let y = c.graph.non_zero(x)?;
                c.output(y)?;
                c.output(y.port(1))
            }),
        ]
    }

    fn rejects() -> Vec<RejectCase> {
        vec![reject("two_operands", "expected 1 operands, got 2", |g| {
            let x = g.input("x", Type::new(DType::F32, [3]))?;
            g.add(NonZero {}, &[x, x])
        })]
    }
}

impl Graph {
    /// The coordinates of the elements of `x`, of any dtype, that are not 0. The first result is
    /// `I32` with a row for each element of `x`; the first rows hold coordinates. The second result
    /// is their number. CPU only.
    ///
    /// # Errors
    /// [`OpError`] when the element count of `x` exceeds `I32`.
    pub fn non_zero(&mut self, x: Value) -> Result<Value, OpError> {
        self.add(NonZero {}, &[x])
    }
}

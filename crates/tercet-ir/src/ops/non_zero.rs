//! Coordinates of nonzero elements.

use tercet_tensor::accuracy::Accuracy;
use tercet_tensor::{DType, Dim, Tensor, TensorType, Type, row_major_strides};

use crate::attrs;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::Gradient;
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::util::{exactly, overflow, scalars};

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
        tier: Tier::Composite,
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
}

impl Graph {
    /// The coordinates of the elements of `x`, of any dtype, that are not 0. The first result is
    /// `I32` with a row for each element of `x`; the first rows hold coordinates. The second result
    /// is their number.
    ///
    /// # Errors
    /// [`OpError`] when the element count of `x` exceeds `I32`.
    pub fn non_zero(&mut self, x: Value) -> Result<Value, OpError> {
        self.add(NonZero {}, &[x])
    }
}

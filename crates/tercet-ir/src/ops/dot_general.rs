//! A contraction over any axes.

use tercet_tensor::accuracy::Accuracy;
use tercet_tensor::{DType, Tensor, TensorType, Type};

use crate::attrs;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::Gradient;
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::contract::{Contraction, offsets};
use crate::ops::util::{
    exactly, expect_axis, expect_dtype, expect_equal, expect_same_dtype, from_scalars,
};

attrs! {
    /// A contraction over paired axes: batch axes remain, contracted axes are summed. The result
    /// has the batch axes in the order of the attributes, then the left operand's other axes, then
    /// the right's.
    ///
    /// ```
    /// use tercet_ir::{DType, Graph, Type, ops::DotGeneral};
    /// let mut g = Graph::new();
    /// let a = g.input("a", Type::new(DType::F32, [8, 2, 3]))?;
    /// let b = g.input("b", Type::new(DType::F32, [3, 8, 5]))?;
    /// let axes = DotGeneral {
    ///     lhs_contract: vec![2],
    ///     rhs_contract: vec![0],
    ///     lhs_batch: vec![0],
    ///     rhs_batch: vec![1],
    /// };
    /// let y = g.dot_general(a, b, axes)?;
    /// assert_eq!(g.ty(y).to_string(), "f32[8, 2, 5]");
    /// # Ok::<(), tercet_ir::OpError>(())
    /// ```
    pub struct DotGeneral {
        /// Contracted axes of the left operand.
        pub lhs_contract: Vec<usize>,
        /// Contracted axes of the right operand, in the same order.
        pub rhs_contract: Vec<usize>,
        /// Batch axes of the left operand.
        pub lhs_batch: Vec<usize>,
        /// Batch axes of the right operand, in the same order.
        pub rhs_batch: Vec<usize>,
    }
}

/// The axes of an operand that are neither batch nor contracted.
fn free(rank: usize, contract: &[usize], batch: &[usize]) -> Vec<usize> {
    (0..rank)
        .filter(|a| !contract.contains(a) && !batch.contains(a))
        .collect()
}

/// Checks that axes are in range and that no axis occurs twice in the two lists.
fn check_side(
    name: &'static str,
    rank: usize,
    contract: &[usize],
    batch: &[usize],
) -> Result<(), TypeError> {
    let mut seen = vec![false; rank];
    for &axis in contract.iter().chain(batch) {
        expect_axis(axis, rank)?;
        if std::mem::replace(&mut seen[axis], true) {
            return Err(TypeError::Attr {
                name,
                reason: format!(
                    "axis {axis} is repeated; an axis may be contracted or batch, once"
                ),
            });
        }
    }
    Ok(())
}

fn check_pairs(
    what: &'static str,
    lhs: (&Type, &[usize]),
    rhs: (&Type, &[usize]),
) -> Result<(), TypeError> {
    if lhs.1.len() != rhs.1.len() {
        let reason = format!(
            "{} axes on the left but {} on the right; they are paired one by one",
            lhs.1.len(),
            rhs.1.len()
        );
        return Err(TypeError::Attr { name: what, reason });
    }
    lhs.1
        .iter()
        .zip(rhs.1)
        .try_for_each(|(&l, &r)| expect_equal(what, &lhs.0.shape[l], &rhs.0.shape[r]))
}

impl OpSpec for DotGeneral {
    const DOC: OpDoc = OpDoc {
        name: "dot_general",
        text: "A contraction over paired axes. The result has the batch axes, then the other axes \
               of the left, then of the right operand. Integers wrap.",
        operands: &["lhs", "rhs"],
        dtypes: DType::NUMBERS,
        accuracy: Accuracy::Contraction,
        tier: Tier::Composite,
    };

    const GRADIENT: Gradient<Self> = Gradient::Decompose;

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        let [l, r] = exactly(operands)?;
        expect_dtype("lhs", l, DType::NUMBERS)?;
        expect_same_dtype("rhs", r, l)?;
        check_side(
            "lhs_contract",
            l.rank(),
            &self.lhs_contract,
            &self.lhs_batch,
        )?;
        check_side(
            "rhs_contract",
            r.rank(),
            &self.rhs_contract,
            &self.rhs_batch,
        )?;
        let pair = |what, la, ra| check_pairs(what, (l, la), (r, ra));
        pair("contract", &self.lhs_contract[..], &self.rhs_contract[..])?;
        pair("batch", &self.lhs_batch[..], &self.rhs_batch[..])?;
        let left = free(l.rank(), &self.lhs_contract, &self.lhs_batch);
        let right = free(r.rank(), &self.rhs_contract, &self.rhs_batch);
        let dims: Vec<_> = self
            .lhs_batch
            .iter()
            .chain(&left)
            .map(|&a| l.shape[a].clone())
            .chain(right.iter().map(|&a| r.shape[a].clone()))
            .collect();
        Ok(vec![l.with_shape(dims)])
    }

    fn eval(
        &self,
        _: &EvalCtx,
        operands: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        let (l, r) = (operands[0], operands[1]);
        let pairs = |la: &[usize], ra: &[usize]| {
            offsets(l.shape(), la)
                .into_iter()
                .zip(offsets(r.shape(), ra))
                .collect()
        };
        let left = free(l.shape().len(), &self.lhs_contract, &self.lhs_batch);
        let right = free(r.shape().len(), &self.rhs_contract, &self.rhs_batch);
        let contraction = Contraction {
            batch: pairs(&self.lhs_batch, &self.rhs_batch),
            left: offsets(l.shape(), &left),
            right: offsets(r.shape(), &right),
            summed: pairs(&self.lhs_contract, &self.rhs_contract),
        };
        let y = contraction.eval(l, r);
        Ok(vec![from_scalars(results[0].clone(), &y)?])
    }
}

impl Graph {
    /// Contracts `lhs` with `rhs` along the paired axes of `axes`. The result's axes are the batch
    /// axes in their order, then the other axes of `lhs`, then those of `rhs`. Integers wrap.
    ///
    /// # Errors
    /// [`OpError`] when axes are out of range, repeated or unpaired. [`OpError`] also when paired
    /// dimensions are not provably equal, or when the dtypes differ or are `Bool`.
    pub fn dot_general(
        &mut self,
        lhs: Value,
        rhs: Value,
        axes: DotGeneral,
    ) -> Result<Value, OpError> {
        self.add(axes, &[lhs, rhs])
    }
}

//! Matmul of each row with the quantized matrix that an index selects: a mixture of experts with
//! quantized weights.

use tercet_tensor::accuracy::Accuracy;
use tercet_tensor::quant::Scheme;
use tercet_tensor::{DType, Tensor, TensorType, Type};

use crate::attrs;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::{Gradient, rules};
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::dequant::{row_len, values};
use crate::ops::util::{
    INDEX_DTYPES, exactly, expect_dtype, expect_equal, expect_rank, resolve_index,
};

attrs! {
    /// `y[m, n] = sum_k x[m, k] w[expert[m], n, k]` with `w` quantized in rows of `K`. Negative
    /// indices count from the end.
    ///
    /// ```
    /// use tercet_ir::{DType, Graph, Scheme, Type};
    /// let mut g = Graph::new();
    /// let x = g.input("x", Type::new(DType::F32, [5, 64]))?;
    /// let expert = g.input("expert", Type::new(DType::I32, [5]))?;
    /// // The matrices of 8 experts, with 32 rows of two blocks.
    /// let row_bytes = 2 * Scheme::Q4_0.block_bytes();
    /// let w = g.param("w", Type::new(DType::U8, [8, 32, row_bytes]))?;
    /// let y = g.dequant_grouped_matmul(x, w, expert, Scheme::Q4_0)?;
    /// assert_eq!(g.ty(y).to_string(), "f32[5, 32]");
    /// # Ok::<(), tercet_ir::OpError>(())
    /// ```
    pub struct DequantGroupedMatMul {
        /// The block format of the weights.
        pub scheme: Scheme,
    }
}

impl OpSpec for DequantGroupedMatMul {
    const DOC: OpDoc = OpDoc {
        name: "dequant_grouped_mat_mul",
        text: "Each row of `x [M, K]` times the quantized matrix of `w [E, N, row_bytes]` that its \
               index selects: `sum_k x[m, k] w[expert[m], n, k]`. Negative indices count from the \
               end. A run with an out-of-range index fails.",
        operands: &["x", "w", "expert"],
        dtypes: DType::FLOATS,
        accuracy: Accuracy::Contraction,
        tier: Tier::Composite,
    };

    const GRADIENT: Gradient<Self> = Gradient::Rule(rules::matmul::dequant_grouped);

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        let [x, w, expert] = exactly(operands)?;
        expect_dtype("x", x, DType::FLOATS)?;
        expect_dtype("expert", expert, INDEX_DTYPES)?;
        expect_rank("x", x, 2)?;
        let k = row_len(self.scheme, w)?;
        expect_rank("w", w, 3)?;
        expect_rank("expert", expert, 1)?;
        expect_equal("numbers of rows and indices", &x.shape[0], &expert.shape[0])?;
        expect_equal("the inner dimensions", &x.shape[1], &k)?;
        Ok(vec![x.with_shape([x.shape[0].clone(), w.shape[1].clone()])])
    }

    fn eval(
        &self,
        _: &EvalCtx,
        operands: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        let (x, w) = (operands[0].to_f64s(), values(self.scheme, operands[1])?);
        let k = operands[0].shape()[1];
        let [experts, n, _] = operands[1].shape()[..] else {
            unreachable!("invariant: w has three axes")
        };
        let mut y = vec![0.0; results[0].numel()];
        for (m, index) in operands[2].to_i64s().into_iter().enumerate() {
            let first = resolve_index(index, experts)? * n * k;
            for j in 0..n {
                let row = &w[first + j * k..][..k];
                let terms = x[m * k..][..k].iter().zip(row);
                y[m * n + j] = terms.map(|(x, w)| x * f64::from(*w)).sum();
            }
        }
        Ok(vec![Tensor::from_f64s(results[0].clone(), &y)?])
    }
}

impl Graph {
    /// Multiplies each row of floats `x [M, K]` by the quantized matrix of `w [E, N, row_bytes]`
    /// that its index in `expert [M]` (`I32` or `I64`) selects. The result `[M, N]` has the dtype
    /// of `x` and is rounded once.
    ///
    /// # Errors
    /// [`OpError`] when sizes do not match, or when `w` has another dtype than [`Scheme::storage`]
    /// or rows that are not whole blocks of known size. A run fails if an index is outside `-E..E`.
    pub fn dequant_grouped_matmul(
        &mut self,
        x: Value,
        w: Value,
        expert: Value,
        scheme: Scheme,
    ) -> Result<Value, OpError> {
        self.add(DequantGroupedMatMul { scheme }, &[x, w, expert])
    }
}

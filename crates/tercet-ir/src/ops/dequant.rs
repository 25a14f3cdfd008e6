//! Block-quantized weights: dequantization, and matmuls with them.

use tercet_tensor::accuracy::Accuracy;
use tercet_tensor::quant::Scheme;
use tercet_tensor::{DType, Dim, Tensor, TensorType, Type};

use crate::attrs;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::{Gradient, rules};
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::contract::Contraction;
use crate::ops::util::{
    exactly, expect_dtype, expect_equal, expect_rank, expect_rank_at_least, from_scalars,
};

attrs! {
    /// The F32 values of quantized weights, bitwise equal to [`Scheme::dequantize`].
    ///
    /// ```
    /// # use std::collections::BTreeMap;
    /// use tercet_ir::{EvalCtx, Graph, Scheme, Tensor, evaluate};
    /// let mut g = Graph::new();
    /// let blocks = Scheme::Q8_0.quantize(&[0.5; 32])?;
    /// let w = g.constant(Tensor::from_slice(&[1, blocks.len()], &blocks)?)?;
    /// let y = g.dequantize(w, Scheme::Q8_0)?;
    /// assert_eq!(g.ty(y).to_string(), "f32[1, 32]");
    /// let done = evaluate(&g, &EvalCtx::default(), &BTreeMap::new())?;
    /// assert!(done.get(y).to_f64s().iter().all(|x| (x - 0.5).abs() < 1e-3));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub struct Dequantize {
        /// The block format.
        pub scheme: Scheme,
    }
}

attrs! {
    /// `y[.., n] = sum_k x[.., k] w[n, k]` with `w` quantized in rows of `K`, as GGUF stores it.
    ///
    /// ```
    /// use tercet_ir::{DType, Graph, Scheme, Type};
    /// let mut g = Graph::new();
    /// let x = g.input("x", Type::new(DType::F16, [5, 64]))?;
    /// // 32 rows of two blocks.
    /// let row_bytes = 2 * Scheme::Q4_0.block_bytes();
    /// let w = g.param("w", Type::new(DType::U8, [32, row_bytes]))?;
    /// let y = g.dequant_matmul(x, w, Scheme::Q4_0)?;
    /// assert_eq!(g.ty(y).to_string(), "f16[5, 32]");
    /// # Ok::<(), tercet_ir::OpError>(())
    /// ```
    pub struct DequantMatMul {
        /// The block format of the weights.
        pub scheme: Scheme,
    }
}

/// The number of weights in each row of a stored tensor.
pub(super) fn row_len(scheme: Scheme, w: &Type) -> Result<Dim, TypeError> {
    expect_dtype("w", w, &[scheme.storage()])?;
    expect_rank_at_least("w", w, 1)?;
    let stored = &w.shape[w.rank() - 1];
    if scheme.storage().is_float() {
        return Ok(stored.clone());
    }
    let reason = match stored {
        Dim::Known(bytes) => match scheme.row_len(*bytes) {
            Some(k) => return Ok(Dim::Known(k)),
            None => format!(
                "rows of {bytes} bytes are not whole {} blocks of {} bytes",
                scheme.name(),
                scheme.block_bytes()
            ),
        },
        Dim::Sym(_) => format!("rows of {stored} bytes must have a known size to be whole blocks"),
    };
    Err(TypeError::Attr {
        name: "scheme",
        reason,
    })
}

pub(super) fn values(scheme: Scheme, w: &Tensor) -> Result<Vec<f32>, EvalError> {
    let blocks = w.bytes().len() / scheme.block_bytes();
    let mut out = vec![0.0; blocks * scheme.block_len()];
    scheme
        .dequantize(w.bytes(), &mut out)
        .map_err(|e| EvalError::Data(e.to_string()))?;
    Ok(out)
}

impl OpSpec for Dequantize {
    const DOC: OpDoc = OpDoc {
        name: "dequantize",
        text: "The F32 values `[.., K]` of quantized weights in blocks `[.., row_bytes]`.",
        operands: &["w"],
        dtypes: &[DType::F32],
        accuracy: Accuracy::Exact,
        tier: Tier::Core,
    };

    const GRADIENT: Gradient<Self> = Gradient::Rule(rules::matmul::dequantize);

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        let [w] = exactly(operands)?;
        let k = row_len(self.scheme, w)?;
        let mut ty = w.with_dtype(DType::F32);
        let last = w.rank() - 1;
        ty.shape.dims_mut()[last] = k;
        Ok(vec![ty])
    }

    fn eval(
        &self,
        _: &EvalCtx,
        operands: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        let y = values(self.scheme, operands[0])?;
        Ok(vec![Tensor::from_slice(&results[0].shape, &y)?])
    }
}

impl OpSpec for DequantMatMul {
    const DOC: OpDoc = OpDoc {
        name: "dequant_mat_mul",
        text: "Matmul with quantized weights: `sum_k x[.., k] w[n, k]` with the values of `w [N, \
               row_bytes]`.",
        operands: &["x", "w"],
        dtypes: DType::FLOATS,
        accuracy: Accuracy::Contraction,
        tier: Tier::Composite,
    };

    const GRADIENT: Gradient<Self> = Gradient::Rule(rules::matmul::dequant);

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        let [x, w] = exactly(operands)?;
        expect_dtype("x", x, DType::FLOATS)?;
        expect_rank_at_least("x", x, 1)?;
        let k = row_len(self.scheme, w)?;
        expect_rank("w", w, 2)?;
        expect_equal("the inner dimensions", &x.shape[x.rank() - 1], &k)?;
        let mut dims = x.shape[..x.rank() - 1].to_vec();
        dims.push(w.shape[0].clone());
        Ok(vec![x.with_shape(dims)])
    }

    fn eval(
        &self,
        _: &EvalCtx,
        operands: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        let (x, w) = (operands[0], operands[1]);
        let lead = &x.shape()[..x.shape().len() - 1];
        let (k, n) = (x.shape()[lead.len()], w.shape()[0]);
        let w: Vec<f64> = values(self.scheme, w)?.into_iter().map(f64::from).collect();
        let y =
            Contraction::matrix(lead.iter().product(), k, n, (1, k)).eval_floats(&x.to_f64s(), &w);
        Ok(vec![from_scalars(results[0].clone(), &y)?])
    }
}

impl Graph {
    /// The F32 values `[.., K]` of quantized weights `w`: `U8 [.., row_bytes]` in whole blocks, or
    /// for float schemes the `F16` or `BF16` tensor itself.
    ///
    /// # Errors
    /// [`OpError`] when `w` is a scalar or has another dtype than [`Scheme::storage`], or its rows
    /// are not whole blocks of known size.
    pub fn dequantize(&mut self, w: Value, scheme: Scheme) -> Result<Value, OpError> {
        self.add(Dequantize { scheme }, &[w])
    }

    /// The matmul `x w^T` of floats `x [.., K]` and quantized weights `w [N, row_bytes]` (rows of
    /// `K` weights, as GGUF stores them). The result `[.., N]` has the dtype of `x` and is rounded
    /// once.
    ///
    /// # Errors
    /// [`OpError`] when `x` is not a float or has another `K`. [`OpError`] also when `w` is not of
    /// rank 2 or has another dtype than [`Scheme::storage`], or its rows are not whole blocks of
    /// known size.
    pub fn dequant_matmul(&mut self, x: Value, w: Value, scheme: Scheme) -> Result<Value, OpError> {
        self.add(DequantMatMul { scheme }, &[x, w])
    }
}

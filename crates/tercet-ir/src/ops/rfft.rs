//! Fourier transforms of real signals, and their inverses.

use tercet_tensor::accuracy::Accuracy;
use tercet_tensor::{DType, Dim, Tensor, TensorType, Type};

use crate::attrs;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::{Gradient, rules};
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::fft::{
    FftNorm, check_length, check_run, dft, expect_pairs, length_of, pairs, roots,
};
use crate::ops::util::{exactly, expect_dtype, expect_equal, expect_rank_at_least, overflow};

attrs! {
    /// The first `n / 2 + 1` bins of the Fourier transform of real `[.., n]`, as pairs; the other
    /// bins are their conjugates.
    ///
    /// ```
    /// use tercet_ir::{DType, Graph, Type, ops::FftNorm};
    /// let mut g = Graph::new();
    /// let x = g.input("x", Type::new(DType::F32, [3, 16]))?;
    /// let y = g.rfft(x, FftNorm::Backward)?;
    /// assert_eq!(g.ty(y).to_string(), "f32[3, 9, 2]");
    /// # Ok::<(), tercet_ir::OpError>(())
    /// ```
    pub struct RFft {
        /// The normalization.
        pub norm: FftNorm,
    }
}

attrs! {
    /// The real `[.., n]` whose [`RFft`] is the pairs `[.., n / 2 + 1, 2]`. Imaginary parts that
    /// the transform of a real signal cannot have are ignored: those of the first bin and, for even
    /// `n`, of the last bin.
    ///
    /// ```
    /// use tercet_ir::{DType, Graph, Type, ops::FftNorm};
    /// let mut g = Graph::new();
    /// let x = g.input("x", Type::new(DType::F32, [3, 9, 2]))?;
    /// let y = g.irfft(x, 16, FftNorm::Backward)?;
    /// assert_eq!(g.ty(y).to_string(), "f32[3, 16]");
    /// assert!(g.irfft(x, 20, FftNorm::Backward).is_err());
    /// # Ok::<(), tercet_ir::OpError>(())
    /// ```
    pub struct IRFft {
        /// The length of the result.
        pub n: usize,
        /// The normalization.
        pub norm: FftNorm,
    }
}

impl OpSpec for RFft {
    const DOC: OpDoc = OpDoc {
        name: "rfft",
        text: "The first `n / 2 + 1` complex pairs of the Fourier transform of real `[.., n]`.",
        operands: &["x"],
        dtypes: DType::FLOATS,
        accuracy: Accuracy::Contraction,
        tier: Tier::Composite,
    };

    const GRADIENT: Gradient<Self> = Gradient::Rule(rules::spectral::rfft);

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        let [x] = exactly(operands)?;
        expect_dtype("x", x, DType::FLOATS)?;
        expect_rank_at_least("x", x, 1)?;
        let n = &x.shape[x.rank() - 1];
        check_length("x", n)?;
        let bins = n.div_floor(2).and_then(|n| n.checked_add(&Dim::Known(1)));
        let bins = bins.ok_or_else(|| overflow(x))?;
        let mut dims = x.shape.clone().into_dims();
        dims.pop();
        dims.extend([bins, Dim::Known(2)]);
        Ok(vec![x.with_shape(dims)])
    }

    fn eval(
        &self,
        _: &EvalCtx,
        operands: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        let n = *operands[0].shape().last().unwrap_or(&1);
        check_run(n)?;
        let scale = self.norm.scale(false, n);
        let roots = roots(n, false);
        let mut y = Vec::with_capacity(results[0].numel());
        for row in operands[0].to_f64s().chunks_exact(n) {
            let row: Vec<[f64; 2]> = row.iter().map(|x| [*x, 0.0]).collect();
            let done = dft(&row, &roots);
            y.extend(done[..=n / 2].iter().flatten().map(|v| v * scale));
        }
        Ok(vec![Tensor::from_f64s(results[0].clone(), &y)?])
    }
}

impl OpSpec for IRFft {
    const DOC: OpDoc = OpDoc {
        name: "irfft",
        text: "The real `[.., n]` whose Fourier transform begins with the complex pairs \
               `[.., n / 2 + 1, 2]`.",
        operands: &["x"],
        dtypes: DType::FLOATS,
        accuracy: Accuracy::Contraction,
        tier: Tier::Composite,
    };

    const GRADIENT: Gradient<Self> = Gradient::Rule(rules::spectral::irfft);

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        let [x] = exactly(operands)?;
        expect_pairs("x", x)?;
        let n = length_of("the result", &Dim::Known(self.n))?;
        let mut dims = x.shape.clone().into_dims();
        dims.pop();
        let bins = dims.pop().unwrap_or(Dim::Known(0));
        expect_equal("the bins of x and n / 2 + 1", &bins, &Dim::Known(n / 2 + 1))?;
        dims.push(Dim::Known(n));
        Ok(vec![x.with_shape(dims)])
    }

    fn eval(
        &self,
        _: &EvalCtx,
        operands: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        let n = self.n;
        let scale = self.norm.scale(true, n);
        let roots = roots(n, true);
        let mut y = Vec::with_capacity(results[0].numel());
        for row in operands[0].to_f64s().chunks_exact(2 * (n / 2 + 1)) {
            let half = pairs(row);
            let number = |k: usize| match k {
                0 => [half[0][0], 0.0],
                k if 2 * k == n => [half[k][0], 0.0],
                k if 2 * k > n => [half[n - k][0], -half[n - k][1]],
                k => half[k],
            };
            let whole: Vec<[f64; 2]> = (0..n).map(number).collect();
            y.extend(dft(&whole, &roots).iter().map(|[re, _]| re * scale));
        }
        Ok(vec![Tensor::from_f64s(results[0].clone(), &y)?])
    }
}

impl Graph {
    /// The first `n / 2 + 1` pairs of the Fourier transform of real `[.., n]`.
    ///
    /// # Errors
    /// [`OpError`] when `x` is not a float of rank 1 or more, or `n` is 0.
    pub fn rfft(&mut self, x: Value, norm: FftNorm) -> Result<Value, OpError> {
        self.add(RFft { norm }, &[x])
    }

    /// The real `[.., n]` whose transform begins with the pairs `[.., n / 2 + 1, 2]`.
    ///
    /// # Errors
    /// [`OpError`] when `x` has another number of pairs, or `n` is 0.
    pub fn irfft(&mut self, x: Value, n: usize, norm: FftNorm) -> Result<Value, OpError> {
        self.add(IRFft { n, norm }, &[x])
    }
}

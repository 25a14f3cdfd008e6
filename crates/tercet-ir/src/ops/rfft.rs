//! Fourier transforms of real signals, and their inverses.

use crate::accuracy::Accuracy;
use crate::attrs;
use crate::case::{InputFill, OpCase, RejectCase};
use crate::dim::Dim;
use crate::dtype::DType;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::{Gradient, rules};
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::fft::{FftNorm, dft, expect_pairs, length_of, pairs, roots};
use crate::ops::util::{exactly, expect_dtype, expect_equal, expect_rank_at_least, reject};
use crate::tensor::Tensor;
use crate::types::{TensorType, Type};

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
        let n = length_of("x", &x.shape[x.rank() - 1])?;
        let mut dims = x.shape.clone().into_dims();
        dims.pop();
        dims.extend([Dim::Known(n / 2 + 1), Dim::Known(2)]);
        Ok(vec![x.with_shape(dims)])
    }

    fn eval(
        &self,
        _: &EvalCtx,
        operands: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        let n = *operands[0].shape().last().unwrap_or(&1);
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

    fn cases() -> Vec<OpCase> {
        let shaped = |name: String, shape: Vec<usize>, norm: FftNorm| {
            OpCase::new(name, move |c| {
                let x = c.input("x", shape.as_slice(), InputFill::Normal)?;
                let y = c.graph.rfft(x, norm)?;
                c.output(y)
            })
        };
        let lengths = [1, 2, 3, 4, 5, 9, 12, 13, 22, 27, 64, 100];
        let lengths = lengths.map(|n| shaped(format!("length_{n}"), vec![4, n], FftNorm::Backward));
        let norms = FftNorm::ALL
            .iter()
            .map(|n| shaped(format!("norm_{}", n.name()), vec![3, 10], *n));
        let mut cases: Vec<OpCase> = lengths.into_iter().chain(norms).collect();
        cases.extend([
            shaped("length_1000".into(), vec![2, 1000], FftNorm::Backward).only(&[DType::F32]),
            shaped("length_8192".into(), vec![2, 8192], FftNorm::Backward).only(&[DType::F32]),
            shaped("no_batch".into(), vec![18], FftNorm::Backward),
            shaped("rank_5".into(), vec![2, 3, 1, 2, 6], FftNorm::Backward),
            shaped("no_rows".into(), vec![0, 6], FftNorm::Backward),
            OpCase::new("written", |c| {
                let x = c.input("x", [4], InputFill::Values(vec![1., 2., 3., 4.]))?;
                let y = c.graph.rfft(x, FftNorm::Backward)?;
                c.output_expect(y, &[10., 0., -2., 2., -2., 0.])
            }),
            OpCase::new("of_columns", |c| {
                let x = c.input("x", [8, 3], InputFill::Normal)?;
                let x = c.graph.transpose(x, &[1, 0])?;
                let y = c.graph.rfft(x, FftNorm::Backward)?;
                c.output(y)
            }),
            OpCase::new("symbolic_rows", |c| {
                let s = c.sym("s", 4, 6);
                let x = c.input("x", [s, 20.into()], InputFill::Normal)?;
                let y = c.graph.rfft(x, FftNorm::Ortho)?;
                c.output(y)
            }),
        ]);
        cases
    }

    fn rejects() -> Vec<RejectCase> {
        vec![
            reject("symbolic_length", "must be a known size", |g| {
                let x = g.input("x", Type::new(DType::F32, [Dim::sym("n")]))?;
                g.rfft(x, FftNorm::Backward)
            }),
            reject("no_elements", "at least 1", |g| {
                let x = g.input("x", Type::new(DType::F32, [2, 0]))?;
                g.rfft(x, FftNorm::Backward)
            }),
            reject("rank", "expected rank 1 or more", |g| {
                let x = g.input("x", Type::new(DType::F32, [] as [usize; 0]))?;
                g.rfft(x, FftNorm::Backward)
            }),
        ]
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

    fn cases() -> Vec<OpCase> {
        let shaped = |name: String, n: usize, batch: Vec<usize>, norm: FftNorm| {
            OpCase::new(name, move |c| {
                let shape = [&batch[..], &[n / 2 + 1, 2]].concat();
                let x = c.input("x", shape.as_slice(), InputFill::Normal)?;
                let y = c.graph.irfft(x, n, norm)?;
                c.output(y)
            })
        };
        let lengths = [1, 2, 3, 4, 5, 9, 12, 13, 22, 27, 64, 100];
        let lengths = lengths.map(|n| shaped(format!("length_{n}"), n, vec![4], FftNorm::Backward));
        let norms = FftNorm::ALL
            .iter()
            .map(|norm| shaped(format!("norm_{}", norm.name()), 10, vec![3], *norm));
        let mut cases: Vec<OpCase> = lengths.into_iter().chain(norms).collect();
        cases.extend([
            shaped("length_1000".into(), 1000, vec![2], FftNorm::Backward).only(&[DType::F32]),
            shaped("no_batch".into(), 18, vec![], FftNorm::Backward),
            shaped("rank_5".into(), 6, vec![2, 3, 1], FftNorm::Backward),
            shaped("no_rows".into(), 6, vec![0], FftNorm::Backward),
            OpCase::new("written", |c| {
                // The imaginary parts 7 and 9 are ignored.
                let x = InputFill::Values(vec![10., 7., -2., 2., -2., 9.]);
                let x = c.input("x", [3, 2], x)?;
                let y = c.graph.irfft(x, 4, FftNorm::Backward)?;
                c.output_expect(y, &[1., 2., 3., 4.])
            }),
            OpCase::new("back_again", |c| {
                let x = c.input("x", [3, 30], InputFill::Normal)?;
                let y = c.graph.rfft(x, FftNorm::Backward)?;
                let z = c.graph.irfft(y, 30, FftNorm::Backward)?;
                c.output(z)
            }),
            OpCase::new("symbolic_rows", |c| {
                let s = c.sym("s", 4, 6);
                let x = c.input("x", [s, 11.into(), 2.into()], InputFill::Normal)?;
                let y = c.graph.irfft(x, 20, FftNorm::Ortho)?;
                c.output(y)
            }),
        ]);
        cases
    }

    fn rejects() -> Vec<RejectCase> {
        vec![
            reject("bins", "the bins of x and n / 2 + 1: 5 and 4 differ", |g| {
                let x = g.input("x", Type::new(DType::F32, [5, 2]))?;
                g.irfft(x, 6, FftNorm::Backward)
            }),
            reject("no_elements", "at least 1", |g| {
                let x = g.input("x", Type::new(DType::F32, [1, 2]))?;
                g.irfft(x, 0, FftNorm::Backward)
            }),
            reject("no_pairs", "pairs of x: 3 and 2 differ", |g| {
                let x = g.input("x", Type::new(DType::F32, [4, 3]))?;
                g.irfft(x, 6, FftNorm::Backward)
            }),
        ]
    }
}

impl Graph {
    /// The first `n / 2 + 1` pairs of the Fourier transform of real `[.., n]`.
    ///
    /// # Errors
    /// [`OpError`] when `x` is not a float of rank 1 or more, or `n` is 0 or not known.
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

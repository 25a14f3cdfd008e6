//! The discrete Fourier transform of complex numbers, and helpers of the other transforms.

use tercet_tensor::accuracy::Accuracy;
use tercet_tensor::{DType, Dim, Tensor, TensorType, Type};

use crate::error::{EvalError, OpError, TypeError};
use crate::grad::{Gradient, rules};
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::util::{exactly, expect_dtype, expect_equal, expect_rank_at_least};
use crate::{attrs, spelled};

spelled! {
    /// Which of a transform and its inverse is scaled by `1 / n`.
    ///
    /// ```
    /// use tercet_ir::ops::FftNorm;
    /// let (forward, inverse) = (false, true);
    /// assert_eq!(FftNorm::Backward.scale(forward, 16), 1.0);
    /// assert_eq!(FftNorm::Backward.scale(inverse, 16), 1.0 / 16.0);
    /// assert_eq!(FftNorm::Ortho.scale(forward, 16), 0.25);
    /// ```
    pub enum FftNorm {
        /// The inverse transform is scaled by `1 / n`.
        Backward "backward",
        /// The transform and its inverse are both scaled by `1 / sqrt(n)`.
        Ortho "ortho",
        /// The forward transform is scaled by `1 / n`.
        Forward "forward",
    }
}

impl FftNorm {
    /// The scale factor of a transform of length `n`.
    pub fn scale(self, inverse: bool, n: usize) -> f64 {
        match (self, inverse) {
            (FftNorm::Backward, false) | (FftNorm::Forward, true) => 1.0,
            (FftNorm::Ortho, _) => 1.0 / (n as f64).sqrt(),
            (FftNorm::Backward, true) | (FftNorm::Forward, false) => 1.0 / n as f64,
        }
    }
}

attrs! {
    /// The Fourier transform `X[k] = scale * sum_j x[j] e^(-2 pi i j k / n)`, with `+` in the
    /// exponent if `inverse`. The transform runs along the second to last axis; the last axis holds
    /// pairs (real, imaginary). Any length of at least 1.
    ///
    /// ```
    /// # use std::collections::BTreeMap;
    /// use tercet_ir::{EvalCtx, Graph, Tensor, evaluate, ops::FftNorm};
    /// let mut g = Graph::new();
    /// // The complex numbers 1 and 3.
    /// let x = g.constant(Tensor::from_slice(&[2, 2], &[1f32, 0.0, 3.0, 0.0])?)?;
    /// let y = g.fft(x, false, FftNorm::Backward)?;
    /// let done = evaluate(&g, &EvalCtx::default(), &BTreeMap::new())?;
    /// let y = done.get(y).to_f64s();
    /// let expected = [4.0, 0.0, -2.0, 0.0];
    /// assert!(y.iter().zip(expected).all(|(y, e)| (y - e).abs() < 1e-6));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub struct Fft {
        /// Uses a positive exponent if true.
        pub inverse: bool,
        /// The normalization.
        pub norm: FftNorm,
    }
}

impl OpSpec for Fft {
    const DOC: OpDoc = OpDoc {
        name: "fft",
        text: "The discrete Fourier transform of complex pairs `[.., n, 2]` along the second to \
               last axis: `X[k] = scale sum_j x[j] e^(-+2 pi i j k / n)`, any `n`, which may be \
               a symbol.",
        operands: &["x"],
        dtypes: DType::FLOATS,
        accuracy: Accuracy::Contraction,
        tier: Tier::Core,
    };

    const GRADIENT: Gradient<Self> = Gradient::Rule(rules::spectral::fft);

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        let [x] = exactly(operands)?;
        expect_pairs("x", x)?;
        check_length("x", &x.shape[x.rank() - 2])?;
        Ok(vec![x.clone()])
    }

    fn eval(
        &self,
        _: &EvalCtx,
        operands: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        let shape = operands[0].shape();
        let n = shape[shape.len() - 2];
        check_run(n)?;
        let scale = self.norm.scale(self.inverse, n);
        let mut y = operands[0].to_f64s();
        let roots = roots(n, self.inverse);
        for row in y.chunks_exact_mut(2 * n) {
            let done = dft(&pairs(row), &roots);
            for (to, from) in row.chunks_exact_mut(2).zip(done) {
                to.copy_from_slice(&from.map(|v| v * scale));
            }
        }
        Ok(vec![Tensor::from_f64s(results[0].clone(), &y)?])
    }
}

/// Checks that the operand is a float tensor of pairs along its last axis.
pub(crate) fn expect_pairs(operand: &'static str, x: &Type) -> Result<(), TypeError> {
    expect_dtype(operand, x, DType::FLOATS)?;
    expect_rank_at_least(operand, x, 2)?;
    let last = &x.shape[x.rank() - 1];
    expect_equal(&format!("pairs of {operand}"), last, &Dim::Known(2))
}

/// The maximum length of a transform: the roots of unity that executors store then need at most 1
/// GiB.
pub const MAX_LENGTH: usize = 1 << 26;

/// Checks the length of a transform in one run.
///
/// ```
/// assert!(tercet_ir::ops::check_fft_length(12).is_ok());
/// assert!(tercet_ir::ops::check_fft_length(0).is_err());
/// ```
///
/// # Errors
/// [`EvalError::Data`] when the length is 0 or above 2^26.
pub fn check_run(n: usize) -> Result<(), EvalError> {
    let checked = check_length("x", &Dim::Known(n));
    checked.map_err(|e| EvalError::Data(crate::error::one_line(&e)))
}

/// Checks the length of a transform; a symbolic length is checked in each run.
pub(crate) fn check_length(operand: &'static str, dim: &Dim) -> Result<(), TypeError> {
    match dim {
        Dim::Known(_) => length_of(operand, dim).map(|_| ()),
        Dim::Sym(_) => Ok(()),
    }
}

/// The known length of a transform.
pub(crate) fn length_of(operand: &'static str, dim: &Dim) -> Result<usize, TypeError> {
    match dim.known() {
        Some(0) => Err(TypeError::Other(format!(
            "the length of {operand} is 0; expected at least 1"
        ))),
        Some(n) if n > MAX_LENGTH => Err(TypeError::Other(format!(
            "the length of {operand} is {n}; transforms have at most {MAX_LENGTH} elements"
        ))),
        Some(n) => Ok(n),
        None => Err(TypeError::Other(format!(
            "the length of {operand} must be a known size, not {dim}"
        ))),
    }
}

/// `e^(-2 pi i k / n)`: exact at multiples of a quarter turn, and within one rounding elsewhere.
pub fn root(k: usize, n: usize) -> [f64; 2] {
    let k = k % n;
    let (quarter, rest) = (4 * k / n, 4 * k % n);
    let (sin, cos) = match rest {
        0 => (0.0, 1.0),
        _ => (rest as f64 / n as f64 * std::f64::consts::FRAC_PI_2).sin_cos(),
    };
    match quarter {
        0 => [cos, -sin],
        1 => [-sin, -cos],
        2 => [-cos, sin],
        _ => [sin, cos],
    }
}

/// The `n`-th roots of unity in the order that a transform, or its inverse, uses them.
pub(crate) fn roots(n: usize, inverse: bool) -> Vec<[f64; 2]> {
    let sign = if inverse { -1.0 } else { 1.0 };
    let root = |k| {
        let [re, im] = root(k, n);
        [re, sign * im]
    };
    (0..n).map(root).collect()
}

/// Groups numbers into pairs.
pub(crate) fn pairs(x: &[f64]) -> Vec<[f64; 2]> {
    x.chunks_exact(2).map(|p| [p[0], p[1]]).collect()
}

/// The product of two complex numbers.
pub(crate) fn times(a: [f64; 2], b: [f64; 2]) -> [f64; 2] {
    [a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]]
}

/// The transform `sum_j x[j] roots[j k]` for each `k`. The transform is split by the smallest prime
/// factor of its length until the length is prime (Cooley and Tukey, 1965).
pub(crate) fn dft(x: &[[f64; 2]], roots: &[[f64; 2]]) -> Vec<[f64; 2]> {
    let n = x.len();
    let step = roots.len() / n.max(1);
    let least = (2..)
        .take_while(|p| p * p <= n)
        .find(|p| n.is_multiple_of(*p));
    let prime = least.unwrap_or(n);
    let sum = |k: usize, terms: &dyn Fn(usize) -> [f64; 2]| {
        (0..prime).fold([0.0; 2], |[re, im], j| {
            let t = times(terms(j), roots[j * k % n * step]);
            [re + t[0], im + t[1]]
        })
    };
    if prime == n {
        return (0..n).map(|k| sum(k, &|j| x[j])).collect();
    }
    let len = n / prime;
    let parts: Vec<_> = (0..prime)
        .map(|r| {
            let every: Vec<_> = x[r..].iter().step_by(prime).copied().collect();
            dft(&every, roots)
        })
        .collect();
    (0..n).map(|k| sum(k, &|r| parts[r][k % len])).collect()
}

impl Graph {
    /// The discrete Fourier transform of complex pairs `[.., n, 2]` along the axis of length `n`,
    /// or its inverse if `inverse`. The type does not change.
    ///
    /// # Errors
    /// [`OpError`] when `x` is not a float tensor of pairs, or `n` is 0.
    pub fn fft(&mut self, x: Value, inverse: bool, norm: FftNorm) -> Result<Value, OpError> {
        self.add(Fft { inverse, norm }, &[x])
    }
}

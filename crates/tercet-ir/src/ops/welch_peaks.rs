//! The strongest frequencies of averaged spectra.

use tercet_tensor::accuracy::Accuracy;
use tercet_tensor::{DType, Dim, Tensor, TensorType, Type};

use crate::attrs;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::Gradient;
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::fft::{expect_pairs, length_of};
use crate::ops::util::{exactly, expect_rank_at_least, extreme_order};
use crate::scalar::Scalar;

attrs! {
    /// The `k` largest bins of power spectra averaged by Welch's method (1967). Spectra `[.., rows,
    /// n, 2]` from `Fft` become powers `|X|^2` of the bins `0..=n / 2`. Bins that stand for two
    /// conjugate bins count twice: all except 0 and, for even `n`, `n / 2`. Each group of
    /// `segments` consecutive rows is averaged. The results are the largest bins of `[.., rows /
    /// segments, n / 2 + 1]` as `I32`, and their powers. Ties go to the lower bin; NaN is the
    /// largest.
    ///
    /// ```
    /// use tercet_ir::{DType, Graph, Type};
    /// let mut g = Graph::new();
    /// let spectra = g.input("spectra", Type::new(DType::F32, [8, 256, 2]))?;
    /// let bins = g.welch_peaks(spectra, 3, 4)?;
    /// assert_eq!(g.ty(bins).to_string(), "i32[2, 3]");
    /// assert_eq!(g.ty(bins.port(1)).to_string(), "f32[2, 3]");
    /// # Ok::<(), tercet_ir::OpError>(())
    /// ```
    pub struct WelchPeaks {
        /// Number of bins, at most `n / 2 + 1`.
        pub k: usize,
        /// Number of rows that are averaged.
        pub segments: usize,
    }
}

/// The factor of a bin's power: 2 if it stands for two conjugate bins, else 1.
pub(crate) fn weight(bin: usize, n: usize) -> f64 {
    match bin == 0 || 2 * bin == n {
        true => 1.0,
        false => 2.0,
    }
}

impl OpSpec for WelchPeaks {
    const DOC: OpDoc = OpDoc {
        name: "welch_peaks",
        text: "The `k` largest bins, as `i32`, of the one-sided power spectra of `[.., rows, n, \
               2]`, averaged over each group of `segments` rows, and their powers.",
        operands: &["spectra"],
        dtypes: DType::FLOATS,
        accuracy: Accuracy::Contraction,
        tier: Tier::Composite,
    };

    const GRADIENT: Gradient<Self> = Gradient::Decompose;

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        let [x] = exactly(operands)?;
        expect_pairs("spectra", x)?;
        expect_rank_at_least("spectra", x, 3)?;
        let rank = x.rank();
        let bins = length_of("spectra", &x.shape[rank - 2])? / 2 + 1;
        let bad = |name, reason| Err(TypeError::Attr { name, reason });
        if self.k > bins {
            return bad(
                "k",
                format!("{} exceeds the number of bins, {bins}", self.k),
            );
        }
        let rows = &x.shape[rank - 3];
        let groups = match self.segments {
            0 => None,
            n => rows.div_exact(&Dim::Known(n)),
        };
        let Some(groups) = groups else {
            let reason = format!("{rows} rows are not a multiple of {}", self.segments);
            return bad("segments", reason);
        };
        let mut dims = x.shape.clone().into_dims();
        dims.truncate(rank - 3);
        dims.extend([groups, Dim::Known(self.k)]);
        let powers = x.with_shape(dims);
        Ok(vec![powers.with_dtype(DType::I32), powers])
    }

    fn eval(
        &self,
        _: &EvalCtx,
        operands: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        let shape = operands[0].shape();
        let n = shape[shape.len() - 2];
        let (mut bins, mut powers) = (Vec::new(), Vec::new());
        for rows in operands[0].to_f64s().chunks_exact(2 * n * self.segments) {
            let power = |bin: usize| {
                let every = rows.chunks_exact(2 * n).map(|row| &row[2 * bin..][..2]);
                let sum: f64 = every.map(|x| x[0] * x[0] + x[1] * x[1]).sum();
                weight(bin, n) * sum / self.segments as f64
            };
            let all: Vec<f64> = (0..=n / 2).map(power).collect();
            let mut order: Vec<usize> = (0..all.len()).collect();
            order.sort_by(|&a, &b| extreme_order(Scalar::F(all[a]), Scalar::F(all[b]), true));
            order.truncate(self.k);
            bins.extend(order.iter().map(|&bin| bin as i64));
            powers.extend(order.iter().map(|&bin| all[bin]));
        }
        Ok(vec![
            Tensor::from_i64s(results[0].clone(), &bins)?,
            Tensor::from_f64s(results[1].clone(), &powers)?,
        ])
    }
}

impl Graph {
    /// The `k` strongest bins of spectra `[.., rows, n, 2]`, averaged over each group of `segments`
    /// rows: bins `I32[.., rows / segments, k]` (the returned value) and their powers (port 1).
    ///
    /// # Errors
    /// [`OpError`] when `spectra` are not float pairs of rank 3 or more with a known length.
    /// [`OpError`] also when there are fewer than `k` bins, or the number of rows is not a multiple
    /// of `segments`.
    pub fn welch_peaks(
        &mut self,
        spectra: Value,
        k: usize,
        segments: usize,
    ) -> Result<Value, OpError> {
        self.add(WelchPeaks { k, segments }, &[spectra])
    }
}

//! Log-mel features of power spectra.

use tercet_tensor::accuracy::Accuracy;
use tercet_tensor::{DType, Tensor, TensorType, Type};

use crate::attrs;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::Gradient;
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::util::{
    exactly, expect_dtype, expect_equal, expect_rank, expect_rank_at_least, expect_same_dtype,
};

/// Minimum power, applied before the logarithm.
pub(crate) const MIN_POWER: f64 = 1e-10;
/// Maximum distance of a logarithm below the maximum of its frame.
pub(crate) const RANGE: f64 = 8.0;

attrs! {
    /// Log-mel features of speech recognizers (Radford et al., 2022), frame by frame. `x =
    /// log10(max(spectrum filters, 1e-10))` is clamped to at least the frame's maximum minus 8, and
    /// the result is `(x + 4) / 4`. NaN stays NaN.
    ///
    /// ```
    /// use tercet_ir::{DType, Graph, Type};
    /// let mut g = Graph::new();
    /// let spectrum = g.input("spectrum", Type::new(DType::F32, [98, 201]))?;
    /// let filters = g.param("filters", Type::new(DType::F32, [201, 80]))?;
    /// let y = g.log_mel(spectrum, filters)?;
    /// assert_eq!(g.ty(y).to_string(), "f32[98, 80]");
    /// # Ok::<(), tercet_ir::OpError>(())
    /// ```
    pub struct LogMel {}
}

impl OpSpec for LogMel {
    const DOC: OpDoc = OpDoc {
        name: "log_mel",
        text: "Log-mel features of power spectra `[.., bins]` with filters `[bins, mels]`: `x = \
               log10(max(spectrum filters, 1e-10))`, clamped to at least the frame's maximum minus \
               8, then `(x + 4) / 4`.",
        operands: &["spectrum", "filters"],
        dtypes: DType::FLOATS,
        accuracy: Accuracy::Contraction,
        tier: Tier::Composite,
    };

    const GRADIENT: Gradient<Self> = Gradient::Decompose;

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        let [x, filters] = exactly(operands)?;
        expect_dtype("spectrum", x, DType::FLOATS)?;
        expect_rank_at_least("spectrum", x, 1)?;
        expect_same_dtype("filters", filters, x)?;
        expect_rank("filters", filters, 2)?;
        let bins = &x.shape[x.rank() - 1];
        expect_equal(
            "bins of the spectrum and of filters",
            bins,
            &filters.shape[0],
        )?;
        let mut y = x.clone();
        y.shape.dims_mut()[x.rank() - 1] = filters.shape[1].clone();
        Ok(vec![y])
    }

    fn eval(
        &self,
        _: &EvalCtx,
        operands: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        let (x, filters) = (operands[0].to_f64s(), operands[1].to_f64s());
        let &[bins, mels] = operands[1].shape() else {
            unreachable!("invariant: inference checked the rank")
        };
        let greater = |a: f64, b: f64| match a.is_nan() || a > b {
            true => a,
            false => b,
        };
        let frames = results[0].numel() / mels.max(1);
        let mut y = Vec::with_capacity(results[0].numel());
        for frame in 0..frames {
            let row = &x[frame * bins..][..bins];
            let log = |mel: usize| {
                let terms = row.iter().enumerate();
                let sum: f64 = terms.map(|(i, x)| x * filters[i * mels + mel]).sum();
                greater(sum, MIN_POWER).log10()
            };
            let logs: Vec<f64> = (0..mels).map(log).collect();
            let top = logs.iter().fold(f64::NEG_INFINITY, |m, &v| greater(v, m));
            let floored = logs.iter().map(|&v| greater(v, top - RANGE));
            y.extend(floored.map(|v| match top.is_nan() {
                true => f64::NAN,
                false => (v + 4.0) / 4.0,
            }));
        }
        Ok(vec![Tensor::from_f64s(results[0].clone(), &y)?])
    }
}

impl Graph {
    /// Log-mel features `[.., mels]` of power spectra `[.., bins]`, with filters `[bins, mels]`.
    ///
    /// # Errors
    /// [`OpError`] when the operands are not floats of one dtype, or the numbers of bins differ.
    pub fn log_mel(&mut self, spectrum: Value, filters: Value) -> Result<Value, OpError> {
        self.add(LogMel {}, &[spectrum, filters])
    }
}

//! Log-mel features of power spectra.

use crate::accuracy::Accuracy;
use crate::attrs;
use crate::case::{InputFill, OpCase, RejectCase};
use crate::dtype::DType;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::Gradient;
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::util::{
    exactly, expect_dtype, expect_equal, expect_rank, expect_rank_at_least, expect_same_dtype,
    reject,
};
use crate::tensor::Tensor;
use crate::types::{TensorType, Type};

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

    fn cases() -> Vec<OpCase> {
        let shaped = |name: &str, shape: &'static [usize], mels: usize| {
            OpCase::new(name, move |c| {
                let x = c.input("x", shape, InputFill::Uniform(0.0, 2.0))?;
                let bins = shape.last().copied().unwrap_or(0);
                let filters = c.input("filters", [bins, mels], InputFill::Uniform(0.0, 0.5))?;
                let y = c.graph.log_mel(x, filters)?;
                c.output(y)
            })
        };
        vec![
            shaped("odd_7x33", &[7, 33], 5),
            shaped("no_batch", &[20], 8),
            shaped("rank_4", &[2, 1, 3, 17], 6),
            shaped("speech", &[3, 201], 80),
            shaped("no_frames", &[0, 12], 4),
            shaped("no_bins", &[3, 0], 4),
            shaped("no_mels", &[3, 9], 0),
            OpCase::new("floors", |c| {
                // Frames with powers 1e6 and 1, with silence, and with a range of 16 powers of ten.
                let x = vec![1e6, 1.0, 0.0, 0.0, 1e4, 1e-12];
                let x = c.input("x", [3, 2], InputFill::Values(x))?;
                let filters =
                    c.input("filters", [2, 2], InputFill::Values(vec![1., 0., 0., 1.]))?;
                let y = c.graph.log_mel(x, filters)?;
                c.output_expect(y, &[2.5, 1.0, -1.5, -1.5, 2.0, 0.0])
            })
            .only(&[DType::F64]),
            OpCase::new("silence", |c| {
                let x = c.input("x", [2, 3], InputFill::Values(vec![0., 0., 0., 1., 0., 4.]))?;
                let filters = c.input(
                    "filters",
                    [3, 2],
                    InputFill::Values(vec![1., 0., 0., 1., 0., 0.]),
                )?;
                let y = c.graph.log_mel(x, filters)?;
                c.output(y)
            }),
            OpCase::new("of_not_a_number", |c| {
                let x = vec![1.0, f64::NAN, 1.0, 2.0];
                let x = c.input("x", [2, 2], InputFill::Values(x))?;
                let filters =
                    c.input("filters", [2, 2], InputFill::Values(vec![1., 1., 1., 1.]))?;
                let y = c.graph.log_mel(x, filters)?;
                c.output(y)
            }),
            OpCase::new("symbolic_frames", |c| {
                let s = c.sym("s", 4, 7);
                let x = c.input("x", [2.into(), s, 10.into()], InputFill::Uniform(0.0, 2.0))?;
                let filters = c.input("filters", [10, 3], InputFill::Uniform(0.0, 0.5))?;
                let y = c.graph.log_mel(x, filters)?;
                c.output(y)
            }),
        ]
    }

    fn rejects() -> Vec<RejectCase> {
        vec![
            reject("bins", "of filters: 9 and 8 differ", |g| {
                let x = g.input("x", Type::new(DType::F32, [4, 9]))?;
                let filters = g.input("filters", Type::new(DType::F32, [8, 3]))?;
                g.log_mel(x, filters)
            }),
            reject("filters_of_another_dtype", "operand filters is f16", |g| {
                let x = g.input("x", Type::new(DType::F32, [4, 8]))?;
                let filters = g.input("filters", Type::new(DType::F16, [8, 3]))?;
                g.log_mel(x, filters)
            }),
        ]
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

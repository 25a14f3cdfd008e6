//! Batch normalization in training.

use tercet_tensor::{DType, Dim, Shape, Type};

use crate::error::{OpError, TypeError};
use crate::graph::{Graph, Value};
use crate::ops::util::expect_rank_at_least;

const OP: &str = "batch_norm";

/// Options of batch normalization (Ioffe, Szegedy, "Batch normalization", 2015).
///
/// ```
/// use tercet_ir::{BatchNorm, DType, Graph, Type};
/// let mut g = Graph::new();
/// let channels = || Type::new(DType::F32, [3]);
/// let x = g.input("x", Type::new(DType::F32, [8, 3, 4, 4]))?;
/// let weights = [g.param("gamma", channels())?, g.param("beta", channels())?];
/// let running = [g.state("mean", channels())?, g.state("variance", channels())?];
/// let options = BatchNorm { momentum: 0.01, ..BatchNorm::default() };
/// let y = g.batch_norm(x, weights, running, options)?;
/// assert_eq!(g.ty(y), g.ty(x));
/// assert_eq!(g.assigns().len(), 2);
/// # Ok::<(), tercet_ir::OpError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BatchNorm {
    /// Constant added to the variances before the square root.
    pub eps: f64,
    /// Weight of the batch statistics in the update of the running statistics, 0 to 1.
    pub momentum: f64,
}

impl Default for BatchNorm {
    /// `eps` 1e-5 and `momentum` 0.1.
    fn default() -> BatchNorm {
        BatchNorm {
            eps: 1e-5,
            momentum: 0.1,
        }
    }
}

/// A normalized batch and its statistics for each channel, `[C]`, F32 (F64 for F64).
///
/// ```
/// use tercet_ir::{BatchStatistics, DType, Graph, Type};
/// let mut g = Graph::new();
/// let x = g.input("x", Type::new(DType::F16, [8, 3]))?;
/// let gamma = g.param("gamma", Type::new(DType::F16, [3]))?;
/// let beta = g.param("beta", Type::new(DType::F16, [3]))?;
/// let BatchStatistics { y, mean, .. } = g.batch_statistics_norm(x, gamma, beta, 1e-5)?;
/// assert_eq!(g.ty(y), g.ty(x));
/// assert_eq!(g.ty(mean).to_string(), "f32[3]");
/// # Ok::<(), tercet_ir::OpError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchStatistics {
    /// The normalized `x`, with the same type as `x`.
    pub y: Value,
    /// The mean of each channel.
    pub mean: Value,
    /// The unbiased variance of each channel: sums of squares divided by `n - 1`, at least 1.
    pub variance: Value,
}

impl Graph {
    /// Batch normalization `(x - mean) / sqrt(variance + eps) * gamma + beta` of a float `x [N, C,
    /// ..]`. Mean and biased variance are computed over all elements of a channel. `gamma` and
    /// `beta` are `[C]`, of the dtype of `x` or of the accumulation dtype F32 (F64 for F64).
    /// Gradients pass through the statistics.
    ///
    /// # Errors
    /// [`OpError`] for other types and for `eps <= 0`. [`OpError`] also when known sizes give a
    /// channel fewer than two elements, because their variance is undefined.
    pub fn batch_statistics_norm(
        &mut self,
        x: Value,
        gamma: Value,
        beta: Value,
        eps: f64,
    ) -> Result<BatchStatistics, OpError> {
        let narrow = self.check_batch(x, [gamma, beta], eps)?;
        let wide = match narrow {
            DType::F64 => DType::F64,
            _ => DType::F32,
        };
        let dims = self.ty(x).shape.to_vec();
        let over: Vec<usize> = (0..dims.len()).filter(|axis| *axis != 1).collect();
        let channels = dims[1].clone();
        let along: Vec<Dim> = (0..dims.len())
            .map(|axis| match axis {
                1 => channels.clone(),
                _ => Dim::Known(1),
            })
            .collect();
        let x = self.as_dtype(x, wide)?;
        let mean = self.reduce_mean(x, &over, true)?;
        let centred = self.sub(x, mean)?;
        let square = self.mul(centred, centred)?;
        let biased = self.reduce_mean(square, &over, true)?;
        let least = self.scalar(wide, eps)?;
        let above = self.plus(biased, least)?;
        let inverse = self.rsqrt(above)?;
        let [gamma, beta] = [gamma, beta].map(|v| -> Result<Value, OpError> {
            let v = self.as_dtype(v, wide)?;
            self.reshape(v, Shape::new(along.clone()))
        });
        let y = self.mul(centred, inverse)?;
        let y = self.mul(y, gamma?)?;
        let y = self.plus(y, beta?)?;
        let y = self.as_dtype(y, narrow)?;
        let correction = self.correction(wide, over.iter().map(|axis| dims[*axis].clone()))?;
        let unbiased = self.mul(biased, correction)?;
        Ok(BatchStatistics {
            y,
            mean: self.reshape(mean, [channels.clone()])?,
            variance: self.reshape(unbiased, [channels])?,
        })
    }

    /// [`Self::batch_statistics_norm`] with running statistics. Each run replaces the states `mean`
    /// and `variance`, `[C]`, F32 (F64 for F64), by `(1 - momentum) state + momentum statistic`,
    /// with the unbiased variance. [`Graph::batch_norm_inference`] normalizes with the running
    /// statistics afterwards. States start as zeros, so the caller must set `variance` to ones.
    ///
    /// In a training step with microbatches, each microbatch has separate statistics and updates
    /// the running ones in order. A failed run and a skipped training step leave the running
    /// statistics unchanged.
    ///
    /// # Errors
    /// As [`Self::batch_statistics_norm`]; [`OpError`] for a momentum outside 0 to 1, and for a
    /// value that is not a state of that type or is already assigned.
    pub fn batch_norm(
        &mut self,
        x: Value,
        [gamma, beta]: [Value; 2],
        [mean, variance]: [Value; 2],
        options: BatchNorm,
    ) -> Result<Value, OpError> {
        let BatchNorm { eps, momentum } = options;
        if !(0.0..=1.0).contains(&momentum) {
            let reason = format!("{momentum}; expected a number from 0 to 1");
            let name = "momentum";
            return Err(refused(self, &[x], TypeError::Attr { name, reason }));
        }
        let of_batch = self.batch_statistics_norm(x, gamma, beta, eps)?;
        for (state, statistic) in [(mean, of_batch.mean), (variance, of_batch.variance)] {
            let (own, given) = (self.get_type(statistic), self.get_type(state));
            if own != given {
                let reason = "running statistics must be states of the type of statistics, [C]";
                let source = TypeError::Other(reason.to_string());
                return Err(refused(self, &[state, statistic], source));
            }
            let dtype = self.ty(statistic).dtype;
            let stays = self.scalar(dtype, 1.0 - momentum)?;
            let joins = self.scalar(dtype, momentum)?;
            let old = self.mul(state, stays)?;
            let new = self.mul(statistic, joins)?;
            let new = self.plus(old, new)?;
            self.assign(state, new)?;
        }
        Ok(of_batch.y)
    }

    /// The dtype of `x`, after validation of the operands and `eps`.
    fn check_batch(&self, x: Value, weights: [Value; 2], eps: f64) -> Result<DType, OpError> {
        let operands = [&[x][..], &weights].concat();
        let fail = |source| refused(self, &operands, source);
        let other = |reason: String| fail(TypeError::Other(reason));
        let types = operands.iter().map(|v| self.get_type(*v));
        let types: Option<Vec<&Type>> = types.collect();
        let Some([x, gamma, beta]) = types.as_deref() else {
            return Err(other("an operand is not in this graph".to_string()));
        };
        expect_rank_at_least("x", x, 2).map_err(fail)?;
        if !x.dtype.is_float() {
            return Err(other(format!("x is {}; expected a float", x.dtype)));
        }
        for (name, ty) in [("gamma", gamma), ("beta", beta)] {
            let is_wide = ty.dtype == DType::F32 && x.dtype != DType::F64;
            if ty.shape[..] != x.shape[1..2] || !(ty.dtype == x.dtype || is_wide) {
                let channels = &x.shape[1];
                return Err(other(format!(
                    "{name} is {ty}; expected [{channels}], of {} or f32",
                    x.dtype
                )));
            }
        }
        if !(eps.is_finite() && eps > 0.0) {
            let reason = format!("{eps}; expected a finite number above 0");
            return Err(fail(TypeError::Attr {
                name: "eps",
                reason,
            }));
        }
        let others = x.shape.iter().enumerate().filter(|(axis, _)| *axis != 1);
        let elements: Option<usize> = others.map(|(_, dim)| dim.known()).product();
        if elements.is_some_and(|n| n < 2) {
            let reason = format!(
                "{x} has fewer than two elements per channel, so the variance is undefined"
            );
            return Err(other(reason));
        }
        Ok(x.dtype)
    }

    /// Bessel's correction `n / (n - 1)` for the number of elements; `n - 1` is at least 1.
    fn correction(
        &mut self,
        dtype: DType,
        dims: impl Iterator<Item = Dim>,
    ) -> Result<Value, OpError> {
        let dims: Vec<Dim> = dims.collect();
        let known: Option<usize> = dims.iter().map(Dim::known).product();
        if let Some(n) = known {
            return self.scalar(dtype, n as f64 / (n.max(2) - 1) as f64);
        }
        let one = self.scalar(dtype, 1.0)?;
        let axes: Vec<usize> = (0..dims.len()).collect();
        let ones = self.expand(one, dims)?;
        let n = self.reduce_sum(ones, &axes, false)?;
        let less = self.sub(n, one)?;
        let less = self.max(less, one)?;
        self.div(n, less)
    }

    fn as_dtype(&mut self, x: Value, dtype: DType) -> Result<Value, OpError> {
        match self.ty(x).dtype == dtype {
            true => Ok(x),
            false => self.cast(x, dtype),
        }
    }
}

fn refused(graph: &Graph, operands: &[Value], source: TypeError) -> OpError {
    let types = operands.iter().filter_map(|v| graph.get_type(*v));
    OpError {
        op: OP,
        operands: types.cloned().collect(),
        source,
    }
}

//! Batch normalisation in training.

use crate::dim::Dim;
use crate::dtype::DType;
use crate::error::{OpError, TypeError};
use crate::graph::{Graph, Value};
use crate::ops::util::expect_rank_at_least;
use crate::types::{Shape, Type};

const OP: &str = "batch_norm";

/// Choices of batch normalisation (Ioffe, Szegedy, "Batch normalization", 2015).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BatchNorm {
    /// Added to variances.
    pub eps: f64,
    /// The part that a batch's statistics have in the running ones, 0 to 1.
    pub momentum: f64,
}

impl Default for BatchNorm {
    /// 1e-5 and a tenth.
    fn default() -> BatchNorm {
        BatchNorm {
            eps: 1e-5,
            momentum: 0.1,
        }
    }
}

/// A batch that was normalised, and its statistics for each channel, `[C]`, F32 (F64 for F64).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchStatistics {
    /// `x` normalised, of its type.
    pub y: Value,
    /// The means.
    pub mean: Value,
    /// The variances as estimates of what the batch was drawn from: sums of squares over `n - 1`, at least 1.
    pub variance: Value,
}

impl Graph {
    /// `(x - mean) / sqrt(variance + eps) * gamma + beta` of `x [N, C, ..]`, a float, where mean and biased variance are those
    /// of all elements of a channel; `gamma` and `beta` are `[C]`, of the dtype of `x` or the wider one that sums are made
    /// in, F32 (F64 for F64). Gradients go through the statistics.
    ///
    /// # Errors
    /// [`OpError`] for other types, an `eps` that is not above 0, and sizes that are known and leave a channel fewer than
    /// two elements, of which there is no variance.
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

    /// [`Self::batch_statistics_norm`], and running statistics: each run replaces the states `mean` and `variance`, `[C]`, F32
    /// (F64 for F64), by `(1 - momentum) state + momentum statistic`, the variance by that which is divided by `n - 1`. With
    /// them [`Graph::batch_norm_inference`] normalises afterwards. States begin as zeros: set `variance` to ones.
    ///
    /// In microbatches of a training step each one has its own statistics, and running ones see them in order. A run that
    /// fails, and a training step that is skipped, leave them as they were.
    ///
    /// # Errors
    /// As [`Self::batch_statistics_norm`]; [`OpError`] for a momentum outside 0 to 1, and for what is no state of that type or
    /// is assigned already.
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

    /// The dtype of `x`, if operands and `eps` are what they must be.
    fn check_batch(&self, x: Value, weights: [Value; 2], eps: f64) -> Result<DType, OpError> {
        let operands = [&[x][..], &weights].concat();
        let fail = |source| refused(self, &operands, source);
        let other = |reason: String| fail(TypeError::Other(reason));
        let types = operands.iter().map(|v| self.get_type(*v));
        let types: Option<Vec<&Type>> = types.collect();
        let Some([x, gamma, beta]) = types.as_deref() else {
            return Err(other("an operand is not of this graph".to_string()));
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
            let reason = format!("{x} has fewer than two elements of a channel, so no variance");
            return Err(other(reason));
        }
        Ok(x.dtype)
    }

    /// `n / (n - 1)` for so many elements, where `n - 1` counts as 1 if it is 0.
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

//! Sentence embeddings: pooling of hidden states and the modules after it (Reimers and Gurevych,
//! "Sentence-BERT", 2019).

use tercet::ops::ReduceFn;
use tercet::{DType, Graph, OpError, Value};

use super::super::decoder::layer::activate;
use super::super::{ModelBuilder, ModelError};
use super::layer::counted;
pub use crate::config::outputs::{DenseModule, PoolingMode, SentenceModule, SentenceModules};

/// Lower bound of divisors, so that a text without tokens yields zeros instead of NaN.
const MIN_TOKEN_COUNT: f64 = 1e-9;
const MIN_NORM: f64 = 1e-12;

impl SentenceModules {
    /// Embeddings `[rows, width]` of hidden states `x [rows, len, hidden]`; `pooled [rows, len]`
    /// marks the tokens to pool.
    pub(super) fn apply(
        &self,
        b: &mut ModelBuilder<'_>,
        x: Value,
        [mask, pooled]: [Value; 2],
        context: usize,
    ) -> Result<Value, ModelError> {
        let unsupported = |reason: String| Err(ModelError::Unsupported(reason));
        let mut parts = Vec::new();
        for mode in &self.modes {
            parts.push(pool(b, *mode, x, [mask, pooled], context)?);
        }
        let mut y = match parts[..] {
            [] => return unsupported("no pooling mode is set; expected at least one".to_string()),
            [one] => one,
            _ => b.graph.concat(&parts, 1)?,
        };
        for module in &self.then {
            y = match module {
                SentenceModule::Dense(dense) => dense.apply(b, y)?,
                SentenceModule::Normalize => normalized(&mut b.graph, y)?,
                SentenceModule::Truncate(dims) => {
                    // As in the reference implementation, a longer length has no effect.
                    let width = b.graph.ty(y).shape[1].known().unwrap_or(*dims);
                    b.graph.narrow(y, 1, 0, width.min(*dims))?
                }
            };
        }
        let width = b.graph.ty(y).shape[1].known();
        match (self.dims, width) {
            (None, _) => Ok(y),
            (Some(dims), Some(width)) if (1..=width).contains(&dims) => {
                let y = b.graph.narrow(y, 1, 0, dims)?;
                Ok(normalized(&mut b.graph, y)?)
            }
            (Some(dims), width) => {
                let width = width.unwrap_or_default();
                unsupported(format!(
                    "{dims} dimensions requested, but the model's embeddings have {width}"
                ))
            }
        }
    }
}

impl DenseModule {
    fn apply(&self, b: &mut ModelBuilder<'_>, x: Value) -> Result<Value, ModelError> {
        let &[outputs, inputs] = self.weight.shape() else {
            return Err(ModelError::WeightShape {
                tensor: format!("{}.weight", self.name),
                expected: vec![0, 0],
                found: self.weight.shape().to_vec(),
            });
        };
        if b.graph.ty(x).shape[1].known() != Some(inputs) {
            return Err(ModelError::Unsupported(format!(
                "module `{}` expects vectors of {inputs} elements; the previous module returns {}",
                self.name,
                b.graph.ty(x).shape[1]
            )));
        }
        let w = b.param(&format!("{}.weight", self.name), self.weight.clone())?;
        let w = b.graph.transpose(w, &[1, 0])?;
        let mut y = b.graph.matmul(x, w)?;
        if let Some(bias) = &self.bias {
            let name = format!("{}.bias", self.name);
            if bias.shape() != [outputs] {
                return Err(ModelError::WeightShape {
                    tensor: name,
                    expected: vec![outputs],
                    found: bias.shape().to_vec(),
                });
            }
            let bias = b.param(&name, bias.clone())?;
            y = b.graph.plus(y, bias)?;
        }
        match self.activation {
            Some(f) => activate(b, f, y),
            None => Ok(y),
        }
    }
}

fn pool(
    b: &mut ModelBuilder<'_>,
    mode: PoolingMode,
    x: Value,
    [mask, pooled]: [Value; 2],
    context: usize,
) -> Result<Value, ModelError> {
    match mode {
        PoolingMode::Mean => Ok(mean(&mut b.graph, x, pooled)?),
        PoolingMode::Cls if mask == pooled => {
            let first = b.graph.narrow(x, 1, 0, 1)?;
            Ok(b.graph.squeeze(first, 1)?)
        }
        PoolingMode::Cls => {
            // The number of excluded prompt tokens is the difference of the two masks' counts.
            let [all, own] = [mask, pooled].map(|mask| count(&mut b.graph, mask));
            let left_out = b.graph.sub(all?, own?)?;
            token(b, x, left_out, context)
        }
        PoolingMode::LastToken => {
            let all = count(&mut b.graph, mask)?;
            let one = b.graph.scalar(DType::I32, 1.0)?;
            let last = b.graph.sub(all, one)?;
            token(b, x, last, context)
        }
        PoolingMode::Max => {
            let g = &mut b.graph;
            let mask = g.unsqueeze(pooled, 2)?;
            let least = g.scalar(DType::F32, f64::NEG_INFINITY)?;
            let kept = g.where_(mask, x, least)?;
            Ok(g.reduce(ReduceFn::Max, kept, &[1], false)?)
        }
        PoolingMode::MeanSqrtLen => {
            let g = &mut b.graph;
            let weight = g.cast(pooled, DType::F32)?;
            let weight = g.unsqueeze(weight, 2)?;
            let [sum, count] = weighted(g, x, weight)?;
            let root = g.sqrt(count)?;
            Ok(g.div(sum, root)?)
        }
        PoolingMode::WeightedMean => {
            let len = b.graph.ty(pooled).shape[1].clone();
            let places = counted(b, context, &len)?;
            let g = &mut b.graph;
            let one = g.scalar(DType::I32, 1.0)?;
            let places = g.plus(places, one)?;
            let places = g.cast(places, DType::F32)?;
            let weight = g.cast(pooled, DType::F32)?;
            let weight = g.mul(weight, places)?;
            let weight = g.unsqueeze(weight, 2)?;
            let [sum, count] = weighted(g, x, weight)?;
            Ok(g.div(sum, count)?)
        }
    }
}

/// Number of true elements per row, I32 `[rows, 1]`.
fn count(g: &mut Graph, mask: Value) -> Result<Value, OpError> {
    let ones = g.cast(mask, DType::I32)?;
    g.reduce(ReduceFn::Sum, ones, &[1], true)
}

/// States of the tokens at index `place`, I32 `[rows, 1]`; zeros for an index out of range.
pub(crate) fn token(
    b: &mut ModelBuilder<'_>,
    x: Value,
    place: Value,
    context: usize,
) -> Result<Value, ModelError> {
    let len = b.graph.ty(x).shape[1].clone();
    let places = counted(b, context, &len)?;
    let g = &mut b.graph;
    let last = g.reduce(ReduceFn::Max, places, &[0], true)?;
    let zero = g.scalar(DType::I32, 0.0)?;
    let above = g.max(place, zero)?;
    let near = g.min(above, last)?;
    let own = g.gather_nd(x, near, 1)?;
    let is_there = g.equal(near, place)?;
    let none = g.scalar(DType::F32, 0.0)?;
    Ok(g.where_(is_there, own, none)?)
}

/// Weighted sum over the tokens, and the sum of weights, bounded away from 0.
fn weighted(g: &mut Graph, x: Value, weight: Value) -> Result<[Value; 2], OpError> {
    let kept = g.mul(x, weight)?;
    let sum = g.reduce(ReduceFn::Sum, kept, &[1], false)?;
    let count = g.reduce(ReduceFn::Sum, weight, &[1], false)?;
    let least = g.scalar(DType::F32, MIN_TOKEN_COUNT)?;
    Ok([sum, g.max(count, least)?])
}

/// Mean over the tokens of each text, `[b, hidden]`, from `x [b, s, hidden]` and `mask [b, s]`.
pub(crate) fn mean(g: &mut Graph, x: Value, mask: Value) -> Result<Value, OpError> {
    let weight = g.cast(mask, DType::F32)?;
    let weight = g.unsqueeze(weight, 2)?;
    let [sum, count] = weighted(g, x, weight)?;
    g.div(sum, count)
}

/// L2-normalized [`mean`].
pub(crate) fn mean_normalized(g: &mut Graph, x: Value, mask: Value) -> Result<Value, OpError> {
    let mean = mean(g, x, mask)?;
    normalized(g, mean)
}

/// L2-normalized rows of `x [b, hidden]`.
fn normalized(g: &mut Graph, x: Value) -> Result<Value, OpError> {
    let squares = g.mul(x, x)?;
    let norm = g.reduce(ReduceFn::Sum, squares, &[1], true)?;
    let norm = g.sqrt(norm)?;
    let least = g.scalar(DType::F32, MIN_NORM)?;
    let norm = g.max(norm, least)?;
    g.div(x, norm)
}

//! Sampling of token ids from logits.

use std::cmp::Ordering;

use tercet_tensor::accuracy::Accuracy;
use tercet_tensor::{DType, Dim, Tensor, TensorType, Type};

use crate::attr::FloatAttr;
use crate::attrs;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::Gradient;
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::util::{exactly, expect_dtype, expect_rank_at_least};

attrs! {
    /// One sampled index per row of logits, or with temperature 0 the index of the maximum.
    ///
    /// A row's logits are sorted in descending order, ties by the lower index. The first `top_k`
    /// logits remain. The weight of a logit is `exp((logit - greatest) / temperature)`, where
    /// `greatest` is the maximum of the row. Then the shortest prefix whose weight reaches `top_p`
    /// of the total remains, at least one logit. The row draws one number `u` in `[0, 1)`, element
    /// `row` of its random stream with 24 bits. The result is the first index at which the running
    /// weight exceeds `u` times the remaining total.
    ///
    /// A NaN counts as `-inf`. `-inf` is never drawn if the row has another logit; a row of only
    /// `-inf` gives 0. If a row has logits `+inf`, only these are drawn, with equal probability.
    ///
    /// ```
    /// # use std::collections::BTreeMap;
    /// use tercet_ir::{EvalCtx, Graph, Tensor, evaluate, ops::SampleOptions};
    /// let mut g = Graph::new();
    /// let logits = g.constant(Tensor::from_slice(&[2, 3], &[1f32, 9.0, 2.0, 8.0, 3.0, 1.0])?)?;
    /// let tokens = g.sample(logits, SampleOptions::greedy(), 42)?;
    /// let done = evaluate(&g, &EvalCtx::default(), &BTreeMap::new())?;
    /// assert_eq!(done.get(tokens).as_slice::<i32>()?, [1, 0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub struct Sample {
        /// Number of largest logits to draw from; 0 for all.
        pub top_k: usize,
        /// The cumulative probability that the sampled set must reach, 0 to 1; 1 for all.
        pub top_p: FloatAttr,
        /// Divides the logits; 0 selects the maximum.
        pub temperature: FloatAttr,
        /// The seed, used as key of the generator.
        pub seed: u64,
        /// The stream, which differs between the random operators of a graph.
        pub stream: u32,
    }
}

/// Options of [`Graph::sample`].
///
/// ```
/// use tercet_ir::{DType, Graph, Type, ops::SampleOptions};
/// let mut g = Graph::new();
/// let logits = g.input("logits", Type::new(DType::F32, [4, 1000]))?;
/// let options = SampleOptions { top_k: 40, temperature: 0.8, ..SampleOptions::default() };
/// let tokens = g.sample(logits, options, 42)?;
/// assert_eq!(g.ty(tokens).to_string(), "i32[4]");
/// # Ok::<(), tercet_ir::OpError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SampleOptions {
    /// Number of largest logits to draw from; 0 for all.
    pub top_k: usize,
    /// The cumulative probability that the sampled set must reach, 0 to 1; 1 for all.
    pub top_p: f64,
    /// Divides the logits; 0 selects the maximum.
    pub temperature: f64,
}

/// Samples from the unmodified distribution.
impl Default for SampleOptions {
    fn default() -> SampleOptions {
        SampleOptions {
            top_k: 0,
            top_p: 1.0,
            temperature: 1.0,
        }
    }
}

impl SampleOptions {
    /// Greedy decoding: selects the largest logit.
    pub fn greedy() -> SampleOptions {
        SampleOptions {
            temperature: 0.0,
            ..SampleOptions::default()
        }
    }
}

impl Sample {
    /// The index drawn from one row by `unit` in `[0, 1)`; `None` for a row without logits.
    pub fn sample_index(&self, logits: &[f64], unit: f64) -> Option<usize> {
        let logit = |i: usize| match logits[i].is_nan() {
            true => f64::NEG_INFINITY,
            false => logits[i],
        };
        let first = |best: usize, i: usize| if logit(i) > logit(best) { i } else { best };
        let greatest = (0..logits.len()).reduce(first)?;
        let max = logit(greatest);
        if self.temperature.0 == 0.0 || max == f64::NEG_INFINITY {
            return Some(greatest);
        }
        let mut order: Vec<usize> = (0..logits.len()).collect();
        // A stable sort keeps ties in index order; the keys contain no NaN.
        order.sort_by(|&a, &b| logit(b).partial_cmp(&logit(a)).unwrap_or(Ordering::Equal));
        if self.top_k > 0 {
            order.truncate(self.top_k);
        }
        let weight = |i: usize| match logit(i) == max {
            true => 1.0, // infinity minus infinity is NaN
            false => ((logit(i) - max) / self.temperature.0).exp(),
        };
        // Stores the running sums, so that the comparison below uses exactly these numbers.
        let mut running: Vec<f64> = order.iter().map(|&i| weight(i)).collect();
        for i in 1..running.len() {
            running[i] += running[i - 1];
        }
        let total = running.last()?;
        let needed = self.top_p.0 * total;
        let kept = running
            .iter()
            .position(|&r| r >= needed)
            .map_or(order.len(), |i| i + 1);
        let threshold = unit * running[kept - 1];
        let drawn = running[..kept].iter().position(|&r| r > threshold);
        Some(order[drawn.unwrap_or(kept - 1)])
    }
}

impl OpSpec for Sample {
    const DOC: OpDoc = OpDoc {
        name: "sample",
        text: "One sampled index per row of logits: among the `top_k` largest, and of those the \
               shortest prefix whose probability reaches `top_p`. With `temperature` 0, the \
               largest.",
        operands: &["logits"],
        dtypes: DType::FLOATS,
        accuracy: Accuracy::Exact,
        tier: Tier::Core,
    };

    const GRADIENT: Gradient<Self> = Gradient::Zero("a sampled index is an integer");

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        let [logits] = exactly(operands)?;
        expect_dtype("logits", logits, DType::FLOATS)?;
        expect_rank_at_least("logits", logits, 1)?;
        let (rows, vocab) = logits.shape.split_at(logits.rank() - 1);
        if let [Dim::Known(n)] = vocab
            && !(1..=i32::MAX as usize).contains(n)
        {
            let reason = format!(
                "the last axis of logits is {n}; accepted: 1 to {}",
                i32::MAX
            );
            return Err(TypeError::Other(reason));
        }
        if !(0.0..=1.0).contains(&self.top_p.0) {
            let reason = format!("{:?} is out of range; expected 0 to 1", self.top_p);
            return Err(TypeError::Attr {
                name: "top_p",
                reason,
            });
        }
        if !(self.temperature.0.is_finite() && self.temperature.0 >= 0.0) {
            let reason = format!(
                "{:?} is invalid; expected a finite number >= 0",
                self.temperature
            );
            return Err(TypeError::Attr {
                name: "temperature",
                reason,
            });
        }
        Ok(vec![Type::new(DType::I32, rows.to_vec())])
    }

    fn eval(
        &self,
        ctx: &EvalCtx,
        operands: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        let stream = ctx.random.stream(self.seed, self.stream);
        let logits = operands[0].to_f64s();
        let rows = results[0].numel();
        let vocab = logits.len().checked_div(rows).unwrap_or(0);
        let mut drawn = Vec::with_capacity(rows);
        for row in 0..rows {
            let unit = stream.unit(DType::F32, row as u64);
            let index = self.sample_index(&logits[row * vocab..][..vocab], unit);
            let none = || EvalError::Data("a row without logits cannot be sampled".into());
            drawn.push(index.ok_or_else(none)? as i64);
        }
        Ok(vec![Tensor::from_i64s(results[0].clone(), &drawn)?])
    }
}

impl Graph {
    /// Samples an index from each row of `logits [.., V]`, a float: `I32 [..]`. The samples differ
    /// from run to run; the same seed gives the same samples for the same graph.
    ///
    /// # Errors
    /// [`OpError`] when `logits` is not a float or its last axis is missing or empty. [`OpError`]
    /// also when `top_p` is outside 0 to 1, or the temperature is negative or not finite.
    pub fn sample(
        &mut self,
        logits: Value,
        options: SampleOptions,
        seed: u64,
    ) -> Result<Value, OpError> {
        let op = Sample {
            top_k: options.top_k,
            top_p: FloatAttr(options.top_p),
            temperature: FloatAttr(options.temperature),
            seed,
            stream: self.next_stream(),
        };
        self.add(op, &[logits])
    }
}

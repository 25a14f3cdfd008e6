//! Sampling of token ids from logits.

use std::cmp::Ordering;

use crate::accuracy::Accuracy;
use crate::attr::FloatAttr;
use crate::attrs;
use crate::case::{InputFill, OpCase, RejectCase};
use crate::dim::Dim;
use crate::dtype::DType;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::Gradient;
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::util::{exactly, expect_dtype, expect_rank_at_least};
use crate::tensor::Tensor;
use crate::types::{TensorType, Type};

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

    fn cases() -> Vec<OpCase> {
        // Long: this function is a table of test cases, one per row.
        const LOGITS: [f64; 7] = [0.5, -1.0, 2.0, 1.5, 0.5, -3.0, 1.0];
        const INF: f64 = f64::INFINITY;
        const NAN: f64 = f64::NAN;
        // Six rows of the same logits in the third run.
        let pinned = |name: &str, top_k, top_p: f64, temperature: f64, want: [f64; 6]| {
            OpCase::new(name, move |c| {
                let logits = c.input("logits", [2, 3, 7], InputFill::Values(LOGITS.repeat(6)))?;
                let op = Sample {
                    top_k,
                    top_p: FloatAttr(top_p),
                    temperature: FloatAttr(temperature),
                    seed: 42,
                    stream: 5,
                };
                let y = c.graph.add(op, &[logits])?;
                c.runs = 3;
                c.output_expect(y, &want)
            })
        };
        let row = |name: &str, logits: &'static [f64], options: SampleOptions, want: f64| {
            OpCase::new(name, move |c| {
                let x = c.input("logits", [logits.len()], InputFill::Values(logits.to_vec()))?;
                let y = c.graph.sample(x, options, 1)?;
                c.output_expect(y, &[want])
            })
        };
        let any = SampleOptions::default();
        let greedy = SampleOptions::greedy();
        let one = SampleOptions { top_k: 1, ..any };
        let none = SampleOptions { top_p: 0.0, ..any };
        vec![
            pinned(
                "pinned_whole_distribution",
                0,
                1.0,
                1.0,
                [2., 5., 3., 4., 0., 3.],
            ),
            pinned("pinned_top_k", 3, 1.0, 1.0, [2., 6., 3., 6., 6., 3.]),
            pinned("pinned_top_p", 0, 0.7, 1.0, [2., 6., 3., 6., 6., 3.]),
            pinned("pinned_both_colder", 4, 0.9, 0.5, [2., 6., 2., 6., 3., 2.]),
            pinned("pinned_hotter", 0, 1.0, 5.0, [3., 5., 0., 5., 1., 0.]),
            pinned("pinned_greedy", 0, 1.0, 0.0, [2.0; 6]),
            pinned(
                "top_k_beyond_the_row",
                99,
                1.0,
                1.0,
                [2., 5., 3., 4., 0., 3.],
            ),
            row(
                "greedy_ties_go_to_the_lower_index",
                &[1.0, 3.0, 3.0],
                greedy,
                1.0,
            ),
            row(
                "top_k_ties_go_to_the_lower_index",
                &[1.0, 3.0, 3.0],
                one,
                1.0,
            ),
            row("signed_zeros_tie", &[-0.0, 0.0], greedy, 0.0),
            row("top_p_zero_keeps_one", &[1.0, 2.0, 4.0], none, 2.0),
            row("nan_is_never_greatest", &[NAN, 1.0, NAN, 2.0], greedy, 3.0),
            row("nan_is_never_drawn", &[NAN, -50.0, NAN], any, 1.0),
            row("only_nan_gives_zero", &[NAN, NAN], any, 0.0),
            row("only_masked_gives_zero", &[-INF, -INF], any, 0.0),
            row("only_nan_greedy_gives_zero", &[NAN, -INF], greedy, 0.0),
            row("infinity_is_drawn", &[1.0, INF, 60000.0], any, 1.0),
            row("one_logit", &[-INF], any, 0.0),
            row(
                "greedy_whatever_else_is_asked",
                &[1.0, 3.0, 3.0],
                SampleOptions {
                    top_k: 2,
                    top_p: 0.1,
                    ..greedy
                },
                1.0,
            ),
            // The first of three tokens reaches a quarter of the weight.
            row(
                "top_p_ties_go_to_the_lower_index",
                &[-INF, 5.0, 5.0, 5.0],
                SampleOptions { top_p: 0.25, ..any },
                1.0,
            ),
            every_option("every_option_greedy", 0.0),
            every_option("every_option_colder", 0.5),
            every_option("every_option_hotter", 3.0),
            OpCase::new("no_rows", |c| {
                let x = c.input("logits", [0, 3], InputFill::Normal)?;
                let y = c.graph.sample(x, SampleOptions::default(), 1)?;
                c.output_expect(y, &[])
            }),
            OpCase::new("row_without_logits", |c| {
                let v = c.sym("v", 0, 4);
                let x = c.input("logits", [2.into(), v], InputFill::Normal)?;
                let y = c.graph.sample(x, SampleOptions::default(), 1)?;
                c.expect_fault("a row without logits cannot be sampled");
                c.output(y)
            }),
            OpCase::new("symbolic_rows_of_a_whole_vocabulary", |c| {
                let s = c.sym("s", 2, 3);
                let x = c.input("logits", [s, 1300.into()], InputFill::Normal)?;
                let options = SampleOptions {
                    top_p: 0.9,
                    temperature: 0.25,
                    ..SampleOptions::default()
                };
                let y = c.graph.sample(x, options, 9)?;
                let any = c.graph.sample(x, SampleOptions::default(), 10)?;
                let greedy = c.graph.sample(x, SampleOptions::greedy(), 11)?;
                c.runs = 2;
                c.output(y)?;
                c.output(any)?;
                c.output(greedy)
            }),
            OpCase::new("symbolic_rows_long", |c| {
                let s = c.sym("s", 3, 8);
                let x = c.input("logits", [s, 1000.into()], InputFill::Normal)?;
                let options = SampleOptions {
                    top_k: 40,
                    top_p: 0.95,
                    temperature: 0.8,
                };
                let y = c.graph.sample(x, options, 9)?;
                c.runs = 3;
                c.output(y)
            }),
        ]
    }

    fn rejects() -> Vec<RejectCase> {
        fn try_options(g: &mut Graph, top_p: f64, temperature: f64) -> Result<Value, OpError> {
            let x = g.input("x", Type::new(DType::F32, [4]))?;
            let options = SampleOptions {
                top_k: 0,
                top_p,
                temperature,
            };
            g.sample(x, options, 1)
        }
        vec![
            RejectCase {
                name: "top_p",
                message: "attribute `top_p`: 1.5",
                build: |g| try_options(g, 1.5, 1.0),
            },
            RejectCase {
                name: "nan_top_p",
                message: "attribute `top_p`",
                build: |g| try_options(g, f64::NAN, 1.0),
            },
            RejectCase {
                name: "negative_temperature",
                message: "attribute `temperature`",
                build: |g| try_options(g, 1.0, -1.0),
            },
            RejectCase {
                name: "no_logits",
                message: "the last axis of logits is 0",
                build: |g| {
                    let x = g.input("x", Type::new(DType::F32, [4, 0]))?;
                    g.sample(x, SampleOptions::default(), 1)
                },
            },
            RejectCase {
                name: "integers",
                message: "operand logits is i32",
                build: |g| {
                    let x = g.input("x", Type::new(DType::I32, [4]))?;
                    g.sample(x, SampleOptions::default(), 1)
                },
            },
        ]
    }
}

/// Rows with ties, masked logits and a dominant one, with every `top_k` (all, one, within ties,
/// beyond the row) and every `top_p` (none, a boundary among ties, all).
fn every_option(name: &str, temperature: f64) -> OpCase {
    const INF: f64 = f64::INFINITY;
    const ROWS: [[f64; 8]; 4] = [
        [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0],
        [2.0, -INF, 2.0, 0.5, -INF, 2.0, 0.5, 2.0],
        [-INF, -INF, -INF, 0.25, -INF, -INF, -INF, -INF],
        [0.0, 9.0, 0.0, -1.0, 0.0, -2.0, 0.0, 9.0],
    ];
    OpCase::new(name, move |c| {
        let logits = InputFill::Values(ROWS.concat().repeat(3));
        let logits = c.input("logits", [12, 8], logits)?;
        for top_k in [0, 1, 3, 99] {
            for top_p in [0.0, 0.5, 0.9, 1.0] {
                let options = SampleOptions {
                    top_k,
                    top_p,
                    temperature,
                };
                let y = c.graph.sample(logits, options, 3)?;
                c.output(y)?;
            }
        }
        c.runs = 2;
        Ok(())
    })
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

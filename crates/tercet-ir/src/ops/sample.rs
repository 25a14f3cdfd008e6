//! Drawing token ids from logits.

use std::cmp::Ordering;

use crate::accuracy::Accuracy;
use crate::attr::Real;
use crate::attrs;
use crate::case::{Case, Fill, Reject};
use crate::dim::Dim;
use crate::dtype::DType;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::Gradient;
use crate::graph::{Graph, Value};
use crate::op::{Doc, EvalCtx, OpSpec, Tier};
use crate::ops::util::{exactly, expect_dtype, expect_rank_at_least};
use crate::tensor::Tensor;
use crate::types::{TensorType, Type};

attrs! {
    /// One index per row of logits, drawn at random or, with a temperature of 0, the greatest.
    ///
    /// A row's logits are ordered from the greatest to the least, ties by the lower index. The first
    /// `top_k` stay. Their weights are `exp((logit - greatest) / temperature)`; the shortest prefix
    /// whose weight reaches `top_p` of the total stays, at least one. The row draws one number `u`
    /// in `[0, 1)`, element `row` of its random stream with 24 bits, and the result is the first
    /// index at which the running weight exceeds `u` times the total of what stayed.
    ///
    /// A NaN counts as `-inf`, which is never drawn while the row has another logit; a row of
    /// nothing else gives 0. Where a row has `+inf`, only those are drawn, each as likely.
    pub struct Sample {
        /// How many of the greatest logits may be drawn; 0 for all.
        pub top_k: usize,
        /// The probability that the drawn set must reach, 0 to 1; 1 for all.
        pub top_p: Real,
        /// Divides the logits; 0 takes the greatest.
        pub temperature: Real,
        /// The key of the generator.
        pub seed: u64,
        /// Tells the random operators of a graph apart.
        pub stream: u32,
    }
}

/// How [`Graph::sample`] draws.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SampleOptions {
    /// How many of the greatest logits may be drawn; 0 for all.
    pub top_k: usize,
    /// The probability that the drawn set must reach, 0 to 1; 1 for all.
    pub top_p: f64,
    /// Divides the logits; 0 takes the greatest.
    pub temperature: f64,
}

/// Draws from the distribution as it is.
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
    /// Takes the greatest logit.
    pub fn greedy() -> SampleOptions {
        SampleOptions {
            temperature: 0.0,
            ..SampleOptions::default()
        }
    }
}

impl Sample {
    /// The index drawn from one row by `unit` in `[0, 1)`; `None` for a row without logits.
    pub fn choose(&self, logits: &[f64], unit: f64) -> Option<usize> {
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
        // A stable sort keeps ties in the order of the indices; there is no NaN among the keys.
        order.sort_by(|&a, &b| logit(b).partial_cmp(&logit(a)).unwrap_or(Ordering::Equal));
        if self.top_k > 0 {
            order.truncate(self.top_k);
        }
        let weight = |i: usize| match logit(i) == max {
            true => 1.0, // infinity less itself is NaN
            false => ((logit(i) - max) / self.temperature.0).exp(),
        };
        // Running sums, so that the comparison below sees the very numbers of this one.
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
    const DOC: Doc = Doc {
        name: "sample",
        text: "One index per row of logits, drawn among the `top_k` greatest and of those the fewest that reach the probability `top_p`; the greatest where `temperature` is 0.",
        operands: &["logits"],
        dtypes: DType::FLOATS,
        accuracy: Accuracy::Exact,
        tier: Tier::Core,
    };

    const GRADIENT: Gradient<Self> = Gradient::Zero("a drawn index is an integer");

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
            let reason = format!("{:?} is not a probability, 0 to 1", self.top_p);
            return Err(TypeError::Attr {
                name: "top_p",
                reason,
            });
        }
        if !(self.temperature.0.is_finite() && self.temperature.0 >= 0.0) {
            let reason = format!(
                "{:?} is not a finite number of at least zero",
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
            let index = self.choose(&logits[row * vocab..][..vocab], unit);
            let none = || EvalError::Data("a row without logits cannot be sampled".into());
            drawn.push(index.ok_or_else(none)? as i64);
        }
        Ok(vec![Tensor::from_i64s(results[0].clone(), &drawn)?])
    }

    fn cases() -> Vec<Case> {
        // Long: a table, one row a case.
        const LOGITS: [f64; 7] = [0.5, -1.0, 2.0, 1.5, 0.5, -3.0, 1.0];
        const INF: f64 = f64::INFINITY;
        const NAN: f64 = f64::NAN;
        // Six rows of the same logits in the third run.
        let pinned = |name: &str, top_k, top_p: f64, temperature: f64, want: [f64; 6]| {
            Case::new(name, move |c| {
                let logits = c.input("logits", [2, 3, 7], Fill::Values(LOGITS.repeat(6)))?;
                let op = Sample {
                    top_k,
                    top_p: Real(top_p),
                    temperature: Real(temperature),
                    seed: 42,
                    stream: 5,
                };
                let y = c.graph.add(op, &[logits])?;
                c.runs = 3;
                c.output_expect(y, &want)
            })
        };
        let row = |name: &str, logits: &'static [f64], options: SampleOptions, want: f64| {
            Case::new(name, move |c| {
                let x = c.input("logits", [logits.len()], Fill::Values(logits.to_vec()))?;
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
            // A quarter of the weight is reached by the first of three.
            row(
                "top_p_ties_go_to_the_lower_index",
                &[-INF, 5.0, 5.0, 5.0],
                SampleOptions { top_p: 0.25, ..any },
                1.0,
            ),
            every_option("every_option_greedy", 0.0),
            every_option("every_option_colder", 0.5),
            every_option("every_option_hotter", 3.0),
            Case::new("no_rows", |c| {
                let x = c.input("logits", [0, 3], Fill::Normal)?;
                let y = c.graph.sample(x, SampleOptions::default(), 1)?;
                c.output_expect(y, &[])
            }),
            Case::new("row_without_logits", |c| {
                let v = c.sym("v", 0, 4);
                let x = c.input("logits", [2.into(), v], Fill::Normal)?;
                let y = c.graph.sample(x, SampleOptions::default(), 1)?;
                c.expect_fault("a row without logits cannot be sampled");
                c.output(y)
            }),
            Case::new("symbolic_rows_of_a_whole_vocabulary", |c| {
                let s = c.sym("s", 2, 3);
                let x = c.input("logits", [s, 1300.into()], Fill::Normal)?;
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
            Case::new("symbolic_rows_long", |c| {
                let s = c.sym("s", 3, 8);
                let x = c.input("logits", [s, 1000.into()], Fill::Normal)?;
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

    fn rejects() -> Vec<Reject> {
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
            Reject {
                name: "top_p",
                message: "attribute `top_p`: 1.5",
                build: |g| try_options(g, 1.5, 1.0),
            },
            Reject {
                name: "nan_top_p",
                message: "attribute `top_p`",
                build: |g| try_options(g, f64::NAN, 1.0),
            },
            Reject {
                name: "negative_temperature",
                message: "attribute `temperature`",
                build: |g| try_options(g, 1.0, -1.0),
            },
            Reject {
                name: "no_logits",
                message: "the last axis of logits is 0",
                build: |g| {
                    let x = g.input("x", Type::new(DType::F32, [4, 0]))?;
                    g.sample(x, SampleOptions::default(), 1)
                },
            },
            Reject {
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

/// Rows with ties, masked logits and one that towers, by every `top_k` (none, one, within ties, beyond the
/// row) with every `top_p` (none, a border among ties, all).
fn every_option(name: &str, temperature: f64) -> Case {
    const INF: f64 = f64::INFINITY;
    const ROWS: [[f64; 8]; 4] = [
        [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0],
        [2.0, -INF, 2.0, 0.5, -INF, 2.0, 0.5, 2.0],
        [-INF, -INF, -INF, 0.25, -INF, -INF, -INF, -INF],
        [0.0, 9.0, 0.0, -1.0, 0.0, -2.0, 0.0, 9.0],
    ];
    Case::new(name, move |c| {
        let logits = Fill::Values(ROWS.concat().repeat(3));
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
    /// Draws an index from each row of `logits [.., V]`, a float: `I32 [..]`. The draws differ from
    /// run to run; the same seed gives the same draws for the same graph.
    ///
    /// # Errors
    /// [`OpError`] when `logits` is not a float or has no axis or an empty last one, `top_p` is
    /// outside 0 to 1, or the temperature is negative or not finite.
    pub fn sample(
        &mut self,
        logits: Value,
        options: SampleOptions,
        seed: u64,
    ) -> Result<Value, OpError> {
        let op = Sample {
            top_k: options.top_k,
            top_p: Real(options.top_p),
            temperature: Real(options.temperature),
            seed,
            stream: self.next_stream(),
        };
        self.add(op, &[logits])
    }
}

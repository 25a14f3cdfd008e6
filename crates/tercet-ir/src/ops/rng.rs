//! Random tensors. [`random`](crate::random) defines the formulas from random words to numbers.

use crate::accuracy::Accuracy;
use crate::attr::FloatAttr;
use crate::attrs;
use crate::case::{OpCase, RejectCase};
use crate::dtype::DType;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::Gradient;
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::util::exactly;
use crate::random::UniformRange;
use crate::tensor::Tensor;
use crate::types::{Shape, TensorType, Type};

attrs! {
    /// Uniform random numbers in `[lo, hi)`, different in each run. The bits are those of
    /// [`UniformRange`] on every executor.
    ///
    /// ```
    /// # use std::collections::BTreeMap;
    /// use tercet_ir::{DType, EvalCtx, Graph, evaluate};
    /// let mut g = Graph::new();
    /// let x = g.rng_uniform([100usize], DType::F32, -1.0, 1.0, 42)?;
    /// let done = evaluate(&g, &EvalCtx::default(), &BTreeMap::new())?;
    /// assert!(done.get(x).to_f64s().iter().all(|x| (-1.0..1.0).contains(x)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub struct RngUniform {
        /// The shape of the result.
        pub shape: Shape,
        /// The float dtype of the result.
        pub dtype: DType,
        /// The lower bound, inclusive.
        pub lo: FloatAttr,
        /// The upper bound, exclusive.
        pub hi: FloatAttr,
        /// The seed, used as key of the generator.
        pub seed: u64,
        /// The stream, which differs between the random operators of a graph.
        pub stream: u32,
    }
}

attrs! {
    /// Normal random numbers `mean + std * z`, different in each run, with `z` from
    /// [`PhiloxStream::normal`](crate::random::PhiloxStream::normal). Executors use the same random
    /// words, but may round logarithm, sine and cosine differently.
    ///
    /// ```
    /// # use std::collections::BTreeMap;
    /// use tercet_ir::{DType, EvalCtx, Graph, evaluate};
    /// let mut g = Graph::new();
    /// let x = g.rng_normal([1000usize], DType::F32, 5.0, 0.1, 42)?;
    /// let done = evaluate(&g, &EvalCtx::default(), &BTreeMap::new())?;
    /// let mean = done.get(x).to_f64s().iter().sum::<f64>() / 1000.0;
    /// assert!((mean - 5.0).abs() < 0.05);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub struct RngNormal {
        /// The shape of the result.
        pub shape: Shape,
        /// The float dtype of the result.
        pub dtype: DType,
        /// The mean of the distribution.
        pub mean: FloatAttr,
        /// The standard deviation.
        pub std: FloatAttr,
        /// The seed, used as key of the generator.
        pub seed: u64,
        /// The stream, which differs between the random operators of a graph.
        pub stream: u32,
    }
}

fn infer_random(dtype: DType, shape: &Shape, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
    let [] = exactly(operands)?;
    if dtype.is_float() {
        return Ok(vec![Type::new(dtype, shape.clone())]);
    }
    let reason = format!("{dtype} is not a float; cast the result instead");
    Err(TypeError::Attr {
        name: "dtype",
        reason,
    })
}

fn generate(result: &TensorType, f: impl Fn(u64) -> f64) -> Result<Vec<Tensor>, EvalError> {
    let values: Vec<f64> = (0..result.numel() as u64).map(f).collect();
    Ok(vec![Tensor::from_f64s(result.clone(), &values)?])
}

impl RngUniform {
    fn range(&self) -> Option<UniformRange> {
        UniformRange::new(self.dtype, self.lo.0, self.hi.0)
    }
}

impl OpSpec for RngUniform {
    const DOC: OpDoc = OpDoc {
        name: "rng_uniform",
        text: "Uniform random numbers in `[lo, hi)`, different in each run.",
        operands: &[],
        dtypes: DType::FLOATS,
        accuracy: Accuracy::Exact,
        tier: Tier::Core,
    };

    const GRADIENT: Gradient<Self> = Gradient::Zero("random numbers have no operands");

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        let types = infer_random(self.dtype, &self.shape, operands)?;
        if self.range().is_some() {
            return Ok(types);
        }
        let (lo, hi, dtype) = (self.lo, self.hi, self.dtype);
        let reason = format!(
            "{hi:?} must be above lo = {lo:?} after rounding to {dtype}, and hi - lo finite"
        );
        Err(TypeError::Attr { name: "hi", reason })
    }

    fn eval(
        &self,
        ctx: &EvalCtx,
        _: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        let range = self.range().expect("invariant: infer checked the range");
        let stream = ctx.random.stream(self.seed, self.stream);
        generate(&results[0], |i| range.value(stream.unit(self.dtype, i)))
    }

    fn cases() -> Vec<OpCase> {
        let fixed = |name: &str, shape: &'static [usize], lo: f64, hi: f64| {
            OpCase::new(name, move |c| {
                let y = c.graph.rng_uniform(shape, c.dtype, lo, hi, 11)?;
                c.output(y)
            })
        };
        let op = |dtype, n: usize, (lo, hi): (f64, f64), seed, stream| RngUniform {
            shape: [n].into(),
            dtype,
            lo: FloatAttr(lo),
            hi: FloatAttr(hi),
            seed,
            stream,
        };
        vec![
            fixed("odd_3x7", &[3, 7], 0.0, 1.0),
            fixed("ends_at_zero", &[1001], -1.0, 0.0),
            fixed("narrow_range", &[257], 1.0, 1.03125),
            fixed("scalar", &[], -1.0, 1.0),
            fixed("empty", &[2, 0], 0.0, 1.0),
            OpCase::new("pinned_third_run", move |c| {
                let y = c.graph.add(op(c.dtype, 6, (-2.0, 3.0), 7, 3), &[])?;
                c.runs = 3;
                let want = [
                    -1.8849918842315674,
                    -1.737246036529541,
                    -0.797583818435669,
                    -0.5074126720428467,
                    -1.8109352588653564,
                    -1.7311820983886719,
                ];
                c.output_expect(y, &want)
            })
            .only(&[DType::F32, DType::F16, DType::BF16]),
            OpCase::new("pinned_all_words_of_the_counter", move |c| {
                let seed = 0x1234_5678_9abc_def0;
                let y = c
                    .graph
                    .add(op(c.dtype, 5, (0.0, 1.0), seed, u32::MAX), &[])?;
                let want = [
                    0.6253355741500854,
                    0.6079283952713013,
                    0.1443026065826416,
                    0.09002971649169922,
                    0.9416980147361755,
                ];
                c.output_expect(y, &want)
            })
            .only(&[DType::F32]),
            // The published random words for a counter and key of zeros are 6627e8d5 e169c58d
            // bc57ac4c 9b00dbd8; here are their high 24 bits.
            OpCase::new("pinned_known_words", move |c| {
                let y = c.graph.add(op(c.dtype, 4, (0.0, 1.0), 0, 0), &[])?;
                let words = [0x0066_27e8, 0x00e1_69c5, 0x00bc_57ac, 0x009b_00db];
                c.output_expect(y, &words.map(|w| f64::from(w) / f64::from(1 << 24)))
            })
            .only(&[DType::F32]),
            OpCase::new("pinned_f64", move |c| {
                let y = c.graph.add(op(c.dtype, 3, (0.0, 1.0), 7, 3), &[])?;
                c.runs = 3;
                let want = [
                    0.023001663166226538,
                    0.2404832291180541,
                    0.03781298851914783,
                ];
                c.output_expect(y, &want)
            })
            .only(&[DType::F64]),
            OpCase::new("two_nodes_differ_symbolic", |c| {
                let s = c.sym("s", 5, 9);
                let x = c.input("x", [s.clone()], crate::case::InputFill::Normal)?;
                let a = c.graph.rng_uniform([s.clone()], c.dtype, 0.0, 1.0, 1)?;
                let b = c.graph.rng_uniform([s], c.dtype, 0.0, 1.0, 1)?;
                c.runs = 3;
                c.output(x)?;
                c.output(a)?;
                c.output(b)
            }),
        ]
    }

    fn rejects() -> Vec<RejectCase> {
        vec![
            RejectCase {
                name: "integers",
                message: "i32 is not a float",
                build: |g| g.rng_uniform([2], DType::I32, 0.0, 8.0, 1),
            },
            RejectCase {
                name: "empty_range",
                message: "attribute `hi`",
                build: |g| g.rng_uniform([2], DType::F32, 1.0, 1.0, 1),
            },
            RejectCase {
                name: "empty_after_rounding",
                message: "after rounding to f16",
                build: |g| g.rng_uniform([2], DType::F16, 1.0, 1.0001, 1),
            },
            RejectCase {
                name: "infinite_range",
                message: "attribute `hi`",
                build: |g| g.rng_uniform([2], DType::F32, 0.0, f64::INFINITY, 1),
            },
        ]
    }
}

impl OpSpec for RngNormal {
    const DOC: OpDoc = OpDoc {
        name: "rng_normal",
        text: "Normal random numbers with this mean and standard deviation, different in each run.",
        operands: &[],
        dtypes: DType::FLOATS,
        accuracy: Accuracy::Reduction,
        tier: Tier::Core,
    };

    const GRADIENT: Gradient<Self> = Gradient::Zero("random numbers have no operands");

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        let types = infer_random(self.dtype, &self.shape, operands)?;
        let bad = |name, x: FloatAttr| {
            let reason =
                format!("{x:?} is invalid; expected a finite number, not negative for std");
            Err(TypeError::Attr { name, reason })
        };
        if !self.mean.0.is_finite() {
            return bad("mean", self.mean);
        }
        if !(self.std.0.is_finite() && self.std.0 >= 0.0) {
            return bad("std", self.std);
        }
        Ok(types)
    }

    fn eval(
        &self,
        ctx: &EvalCtx,
        _: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        let stream = ctx.random.stream(self.seed, self.stream);
        let (mean, std) = (self.mean.0, self.std.0);
        generate(&results[0], |i| mean + std * stream.normal(self.dtype, i))
    }

    fn cases() -> Vec<OpCase> {
        let fixed = |name: &str, shape: &'static [usize], mean: f64, std: f64| {
            OpCase::new(name, move |c| {
                let y = c.graph.rng_normal(shape, c.dtype, mean, std, 11)?;
                c.runs = 3;
                c.output(y)
            })
        };
        let op = |dtype, n: usize, mean: f64, std: f64| RngNormal {
            shape: [n].into(),
            dtype,
            mean: FloatAttr(mean),
            std: FloatAttr(std),
            seed: 7,
            stream: 3,
        };
        vec![
            fixed("odd_3x7", &[3, 7], 0.0, 1.0),
            fixed("many", &[4099], 0.5, 3.0),
            fixed("empty", &[0, 3], 0.0, 1.0),
            OpCase::new("no_deviation", |c| {
                let y = c.graph.rng_normal([3], c.dtype, -1.5, 0.0, 2)?;
                c.output_expect(y, &[-1.5; 3])
            }),
            OpCase::new("pinned_third_run", move |c| {
                let y = c.graph.add(op(c.dtype, 6, 1.0, 2.0), &[])?;
                c.runs = 3;
                let want = [
                    6.196662425994873,
                    2.7810683250427246,
                    -0.013441993854939938,
                    4.220834255218506,
                    5.829385757446289,
                    2.6964221000671387,
                ];
                c.output_expect(y, &want)
            })
            .only(&[DType::F32]),
            OpCase::new("pinned_f64", move |c| {
                let y = c.graph.add(op(c.dtype, 3, 0.0, 1.0), &[])?;
                c.runs = 3;
                let want = [0.16414299462439305, 2.7417940450552223, -0.8802661226242645];
                c.output_expect(y, &want)
            })
            .only(&[DType::F64]),
        ]
    }

    fn rejects() -> Vec<RejectCase> {
        vec![
            RejectCase {
                name: "negative_std",
                message: "attribute `std`: -1.0",
                build: |g| g.rng_normal([2], DType::F32, 0.0, -1.0, 1),
            },
            RejectCase {
                name: "nan_mean",
                message: "attribute `mean`",
                build: |g| g.rng_normal([2], DType::F32, f64::NAN, 1.0, 1),
            },
            RejectCase {
                name: "bools",
                message: "bool is not a float",
                build: |g| g.rng_normal([2], DType::Bool, 0.0, 1.0, 1),
            },
        ]
    }
}

impl Graph {
    /// The stream of the next random operator: its node index, which later passes preserve.
    pub(crate) fn next_stream(&self) -> u32 {
        // A graph has fewer than 2^32 nodes.
        self.len() as u32
    }

    /// Uniform random numbers in `[lo, hi)` of a float dtype, different in each run; the same seed
    /// gives the same numbers for the same graph.
    ///
    /// # Errors
    /// [`OpError`] when `dtype` is not a float, or `lo < hi` does not hold in it.
    pub fn rng_uniform(
        &mut self,
        shape: impl Into<Shape>,
        dtype: DType,
        lo: f64,
        hi: f64,
        seed: u64,
    ) -> Result<Value, OpError> {
        let op = RngUniform {
            shape: shape.into(),
            dtype,
            lo: FloatAttr(lo),
            hi: FloatAttr(hi),
            seed,
            stream: self.next_stream(),
        };
        self.add(op, &[])
    }

    /// Normal random numbers of a float dtype, different in each run; the same seed gives the same
    /// numbers for the same graph.
    ///
    /// # Errors
    /// [`OpError`] when `dtype` is not a float, `mean` is not finite, or `std` is negative or not
    /// finite.
    pub fn rng_normal(
        &mut self,
        shape: impl Into<Shape>,
        dtype: DType,
        mean: f64,
        std: f64,
        seed: u64,
    ) -> Result<Value, OpError> {
        let op = RngNormal {
            shape: shape.into(),
            dtype,
            mean: FloatAttr(mean),
            std: FloatAttr(std),
            seed,
            stream: self.next_stream(),
        };
        self.add(op, &[])
    }
}

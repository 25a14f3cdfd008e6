//! Random tensors. [`random`](crate::random) defines the formulas from random words to numbers.

use tercet_tensor::accuracy::Accuracy;
use tercet_tensor::random::UniformRange;
use tercet_tensor::{DType, Shape, Tensor, TensorType, Type};

use crate::attr::FloatAttr;
use crate::attrs;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::Gradient;
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::util::exactly;

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
    /// [`PhiloxStream::normal`](tercet_tensor::random::PhiloxStream::normal). Executors use the same random
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

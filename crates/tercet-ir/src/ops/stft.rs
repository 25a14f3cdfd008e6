//! Short-time Fourier transform.

use crate::accuracy::Accuracy;
use crate::attrs;
use crate::case::{InputFill, OpCase, RejectCase};
use crate::dim::Dim;
use crate::dtype::DType;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::Gradient;
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::fft::{dft, length_of, roots};
use crate::ops::util::{
    exactly, expect_dtype, expect_equal, expect_rank, expect_rank_at_least, expect_same_dtype,
    overflow, reject,
};
use crate::tensor::Tensor;
use crate::types::{TensorType, Type};

attrs! {
    /// Short-time Fourier transform of a signal: frames of `n` elements are multiplied by the
    /// window and transformed. The first frame begins with the signal, and each next frame `hop`
    /// elements later; there are `(t - n) / hop + 1` frames, rounded down. For centred frames, pad
    /// the signal first.
    ///
    /// ```
    /// use tercet_ir::{DType, Graph, Type};
    /// let mut g = Graph::new();
    /// let x = g.input("x", Type::new(DType::F32, [16000]))?;
    /// let window = g.input("window", Type::new(DType::F32, [400]))?;
    /// let y = g.stft(x, window, 400, 160)?;
    /// assert_eq!(g.ty(y).to_string(), "f32[98, 201, 2]");
    /// # Ok::<(), tercet_ir::OpError>(())
    /// ```
    pub struct Stft {
        /// The length of a frame.
        pub n: usize,
        /// The distance between the starts of neighbouring frames.
        pub hop: usize,
    }
}

impl OpSpec for Stft {
    const DOC: OpDoc = OpDoc {
        name: "stft",
        text: "Short-time Fourier transform `[.., frames, n / 2 + 1, 2]`: real transforms of \
               frames of `n` elements, `hop` apart, multiplied by a window.",
        operands: &["x", "window"],
        dtypes: DType::FLOATS,
        accuracy: Accuracy::Contraction,
        tier: Tier::Composite,
    };

    const GRADIENT: Gradient<Self> = Gradient::Decompose;

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        let [x, window] = exactly(operands)?;
        expect_dtype("x", x, DType::FLOATS)?;
        expect_rank_at_least("x", x, 1)?;
        expect_same_dtype("window", window, x)?;
        expect_rank("window", window, 1)?;
        expect_equal("window and n", &window.shape[0], &Dim::Known(self.n))?;
        let bad = |name, reason| Err(TypeError::Attr { name, reason });
        if self.n == 0 {
            return bad("n", "0 elements; expected at least 1".to_string());
        }
        length_of("a frame", &Dim::Known(self.n))?;
        if self.hop == 0 {
            return bad("hop", "0 elements; expected at least 1".to_string());
        }
        let mut dims = x.shape.clone().into_dims();
        let len = dims.pop().unwrap_or(Dim::Known(0));
        let Some(beyond) = len.checked_sub(&Dim::Known(self.n)) else {
            return bad("n", format!("{} exceeds the signal length {len}", self.n));
        };
        let steps = match beyond {
            Dim::Known(n) => Some(Dim::Known(n / self.hop)),
            Dim::Sym(_) => beyond.div_exact(&Dim::Known(self.hop)),
        };
        let Some(steps) = steps else {
            let reason =
                format!("the {beyond} elements after the first frame are not a multiple of it");
            return bad("hop", reason);
        };
        let frames = steps.checked_add(&Dim::Known(1));
        dims.push(frames.ok_or_else(|| overflow(x))?);
        dims.extend([Dim::Known(self.n / 2 + 1), Dim::Known(2)]);
        Ok(vec![x.with_shape(dims)])
    }

    fn eval(
        &self,
        _: &EvalCtx,
        operands: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        let (x, window) = (operands[0].to_f64s(), operands[1].to_f64s());
        let len = *operands[0].shape().last().unwrap_or(&0);
        let frames = results[0].shape[results[0].shape.len() - 3];
        let roots = roots(self.n, false);
        let mut y = Vec::with_capacity(results[0].numel());
        for signal in x.chunks_exact(len.max(1)) {
            for frame in 0..frames {
                let part = signal[frame * self.hop..][..self.n].iter().zip(&window);
                let part: Vec<[f64; 2]> = part.map(|(x, w)| [x * w, 0.0]).collect();
                y.extend(dft(&part, &roots)[..=self.n / 2].iter().flatten());
            }
        }
        Ok(vec![Tensor::from_f64s(results[0].clone(), &y)?])
    }

    fn cases() -> Vec<OpCase> {
        let shaped = |name: &str, shape: &'static [usize], n: usize, hop: usize| {
            OpCase::new(name, move |c| {
                let x = c.input("x", shape, InputFill::Normal)?;
                let window = c.input("window", [n], InputFill::Uniform(0.0, 1.0))?;
                let y = c.graph.stft(x, window, n, hop)?;
                c.output(y)
            })
        };
        vec![
            shaped("overlapping", &[2, 61], 16, 5),
            shaped("side_by_side", &[3, 40], 10, 10),
            shaped("with_gaps", &[2, 50], 9, 13),
            shaped("every_element", &[20], 8, 1),
            shaped("one_frame", &[2, 2, 12], 12, 4),
            shaped("frames_of_one", &[2, 5], 1, 2),
            shaped("frames_of_a_prime", &[1, 60], 13, 6),
            shaped("no_signals", &[0, 30], 8, 4),
            shaped("speech", &[1, 1200], 400, 160).only(&[DType::F32]),
            OpCase::new("of_columns", |c| {
                let x = c.input("x", [45, 2], InputFill::Normal)?;
                let x = c.graph.transpose(x, &[1, 0])?;
                let window = c.input("window", [8], InputFill::Uniform(0.0, 1.0))?;
                let y = c.graph.stft(x, window, 8, 3)?;
                c.output(y)
            }),
            OpCase::new("symbolic_length", |c| {
                let s = c.sym("s", 4, 7);
                let len = (s.checked_mul(&Dim::Known(6))).and_then(|n| n.checked_add(&14.into()));
                let len = len.unwrap_or(Dim::Known(14));
                let x = c.input("x", [s, len], InputFill::Normal)?;
                let window = c.input("window", [14], InputFill::Uniform(0.0, 1.0))?;
                let y = c.graph.stft(x, window, 14, 6)?;
                c.output(y)
            }),
        ]
    }

    fn rejects() -> Vec<RejectCase> {
        fn build(g: &mut Graph, len: Dim, window: usize, hop: usize) -> Result<Value, OpError> {
            let x = g.input("x", Type::new(DType::F32, [len]))?;
            let window = g.input("window", Type::new(DType::F32, [window]))?;
            g.stft(x, window, 8, hop)
        }
        vec![
            reject("short", "8 exceeds the signal length 7", |g| {
                build(g, 7.into(), 8, 2)
            }),
            reject("window", "window and n: 9 and 8 differ", |g| {
                build(g, 20.into(), 9, 2)
            }),
            reject("no_hop", "attribute `hop`: 0", |g| {
                build(g, 20.into(), 8, 0)
            }),
            reject("part_of_a_hop", "not a multiple", |g| {
                build(g, Dim::sym("s"), 8, 3)
            }),
        ]
    }
}

impl Graph {
    /// The real Fourier transforms `[.., frames, n / 2 + 1, 2]` of the frames of signals `[.., t]`,
    /// each multiplied by `window [n]`.
    ///
    /// # Errors
    /// [`OpError`] when the signal is shorter than `n`, the window does not have length `n`, or `n`
    /// or `hop` is 0. [`OpError`] also when a symbolic length does not give a whole number of
    /// frames.
    pub fn stft(
        &mut self,
        x: Value,
        window: Value,
        n: usize,
        hop: usize,
    ) -> Result<Value, OpError> {
        self.add(Stft { n, hop }, &[x, window])
    }
}

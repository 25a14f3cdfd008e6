//! Short-time Fourier transform.

use tercet_tensor::accuracy::Accuracy;
use tercet_tensor::{DType, Dim, Tensor, TensorType, Type};

use crate::attrs;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::Gradient;
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::fft::{dft, length_of, roots};
use crate::ops::util::{
    exactly, expect_dtype, expect_equal, expect_rank, expect_rank_at_least, expect_same_dtype,
    overflow,
};

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
        let frames = beyond
            .div_floor(self.hop)
            .and_then(|steps| steps.checked_add(&Dim::Known(1)));
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
}

impl Graph {
    /// The real Fourier transforms `[.., frames, n / 2 + 1, 2]` of the frames of signals `[.., t]`,
    /// each multiplied by `window [n]`.
    ///
    /// # Errors
    /// [`OpError`] when the signal is shorter than `n`, the window does not have length `n`, or `n`
    /// or `hop` is 0.
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

//! Rotary position embedding.

use tercet_tensor::accuracy::Accuracy;
use tercet_tensor::{DType, Tensor, TensorType, Type};

use crate::attrs;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::{Gradient, rules};
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::attention::AttentionLayout;
use crate::ops::util::{exactly, expect_dtype, expect_equal, expect_rank, for_each_index};

crate::spelled! {
    /// Which elements of a head [`Rope`] rotates as a pair.
    ///
    /// ```
    /// use tercet_ir::ops::RopeStyle;
    /// let n_rot = 64;
    /// assert_eq!(RopeStyle::NeoX.pair(1, n_rot), (1, 33));
    /// assert_eq!(RopeStyle::GptJ.pair(1, n_rot), (2, 3));
    /// ```
    pub enum RopeStyle {
        /// Elements `i` and `i + n_rot/2`.
        NeoX "neox",
        /// Elements `2 i` and `2 i + 1`.
        GptJ "gptj",
    }
}

impl RopeStyle {
    /// The two elements of pair `i` of `n_rot / 2`.
    pub const fn pair(self, i: usize, n_rot: usize) -> (usize, usize) {
        match self {
            RopeStyle::NeoX => (i, i + n_rot / 2),
            RopeStyle::GptJ => (2 * i, 2 * i + 1),
        }
    }
}

attrs! {
    /// Rotates pairs of the first `n_rot` elements of each head by position-dependent angles (Su et
    /// al., "RoFormer", 2021): `(a, b)` becomes `(a cos - b sin, a sin + b cos)`. The other
    /// elements of the head are unchanged.
    ///
    /// ```
    /// use tercet_ir::{DType, Graph, Type, ops::{AttentionLayout, RopeStyle}};
    /// let mut g = Graph::new();
    /// let x = g.input("x", Type::new(DType::F32, [1, 5, 8, 64]))?;
    /// let cos = g.input("cos", Type::new(DType::F32, [5, 32]))?;
    /// let sin = g.input("sin", Type::new(DType::F32, [5, 32]))?;
    /// let y = g.rope(x, cos, sin, RopeStyle::NeoX, 64, AttentionLayout::Bshd)?;
    /// assert_eq!(g.ty(y), g.ty(x));
    /// # Ok::<(), tercet_ir::OpError>(())
    /// ```
    pub struct Rope {
        /// Which elements form a pair.
        pub style: RopeStyle,
        /// Number of rotated elements of a head; even.
        pub n_rot: usize,
        /// The order of the axes of `x`.
        pub layout: AttentionLayout,
    }
}

impl OpSpec for Rope {
    const DOC: OpDoc = OpDoc {
        name: "rope",
        text: "Rotates pairs `(a, b)` of the first `n_rot` elements of each head to `(a cos - b sin, a sin + b cos)`.",
        operands: &["x", "cos", "sin"],
        dtypes: DType::FLOATS,
        accuracy: Accuracy::Contraction,
        tier: Tier::Composite,
    };

    const GRADIENT: Gradient<Self> = Gradient::Rule(rules::rope::rope);

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        let [x, cos, sin] = exactly(operands)?;
        expect_dtype("x", x, DType::FLOATS)?;
        expect_rank("x", x, 4)?;
        let head_dim = x.shape[3].known().ok_or_else(|| {
            TypeError::Other("the head dim of x must be a known size".to_string())
        })?;
        if !self.n_rot.is_multiple_of(2) || self.n_rot > head_dim {
            let reason = format!(
                "{} is not an even number up to the head dim {head_dim}",
                self.n_rot
            );
            return Err(TypeError::Attr {
                name: "n_rot",
                reason,
            });
        }
        for (name, table) in [("cos", cos), ("sin", sin)] {
            expect_dtype(name, table, &[x.dtype, DType::F32])?;
            let dims = match table.shape.as_ref() {
                [s, n] => [None, Some(s), Some(n)],
                [b, s, n] => [Some(b), Some(s), Some(n)],
                _ => {
                    return Err(TypeError::Rank {
                        operand: name,
                        found: table.clone(),
                        expected: "[S, n_rot/2] or [B, S, n_rot/2]".into(),
                    });
                }
            };
            let of_x = [
                &x.shape[0],
                &x.shape[self.layout.seq_axis()],
                &(self.n_rot / 2).into(),
            ];
            let what = ["the batch", "the sequence of x", "n_rot/2"];
            for ((own, want), what) in dims.into_iter().zip(of_x).zip(what) {
                if let Some(own) = own {
                    expect_equal(&format!("{name} and {what}"), own, want)?;
                }
            }
        }
        Ok(vec![x.clone()])
    }

    fn eval(
        &self,
        _: &EvalCtx,
        operands: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        let x = operands[0];
        let (batch, seq) = (x.shape()[0], x.shape()[self.layout.seq_axis()]);
        let heads = x.shape()[self.layout.head_axis()];
        let [sb, sh, ss] = self.layout.strides(x.shape());
        let half = self.n_rot / 2;
        // The row of a table for a batch entry and position.
        let row = |t: &Tensor, b: usize, s: usize| match t.shape().len() {
            2 => s * half,
            _ => (b * seq + s) * half,
        };
        let (cos, sin) = (operands[1].to_f64s(), operands[2].to_f64s());
        let mut y = x.to_f64s();
        for_each_index(&[batch, heads, seq], |index| {
            let [b, h, s] = [index[0], index[1], index[2]];
            let head = b * sb + h * sh + s * ss;
            for i in 0..half {
                let (cos, sin) = (
                    cos[row(operands[1], b, s) + i],
                    sin[row(operands[2], b, s) + i],
                );
                let (ia, ib) = self.style.pair(i, self.n_rot);
                let (p, q) = (y[head + ia], y[head + ib]);
                y[head + ia] = p * cos - q * sin;
                y[head + ib] = p * sin + q * cos;
            }
        });
        Ok(vec![Tensor::from_f64s(results[0].clone(), &y)?])
    }
}

impl Graph {
    /// Rotates the first `n_rot` elements of each head of `x`, `[B,S,H,D]` or `[B,H,S,D]` depending
    /// on the layout. The tables are `[S, n_rot/2]` or `[B, S, n_rot/2]` of the dtype of `x` or
    /// F32. The result has the shape of `x`.
    ///
    /// # Errors
    /// [`OpError`] when `x` is not a float of rank 4 with a known head dim, or a table has another
    /// shape. [`OpError`] also when `n_rot` is odd or greater than the head dim.
    pub fn rope(
        &mut self,
        x: Value,
        cos: Value,
        sin: Value,
        style: RopeStyle,
        n_rot: usize,
        layout: AttentionLayout,
    ) -> Result<Value, OpError> {
        let op = Rope {
            style,
            n_rot,
            layout,
        };
        self.add(op, &[x, cos, sin])
    }
}

//! Rotary position embedding.

use crate::accuracy::Accuracy;
use crate::attrs;
use crate::case::{InputFill, OpCase, RejectCase};
use crate::dtype::DType;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::{Gradient, rules};
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::attention::AttentionLayout;
use crate::ops::util::{exactly, expect_dtype, expect_equal, expect_rank, for_each_index};
use crate::tensor::Tensor;
use crate::types::{TensorType, Type};

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

    fn cases() -> Vec<OpCase> {
        // Long: this function is a table of test cases, one per row.
        use AttentionLayout::{Bhsd, Bshd};
        use RopeStyle::{GptJ, NeoX};
        let shaped = |name: &str,
                      style: RopeStyle,
                      layout: AttentionLayout,
                      [b, s, h, d]: [usize; 4],
                      n_rot: usize,
                      per_token: bool| {
            OpCase::new(name, move |c| {
                let shape = match layout {
                    Bshd => [b, s, h, d],
                    Bhsd => [b, h, s, d],
                };
                let x = c.input("x", shape, InputFill::Normal)?;
                let table = match per_token {
                    true => vec![b.into(), s.into(), (n_rot / 2).into()],
                    false => vec![s.into(), (n_rot / 2).into()],
                };
                let cos = c.input("cos", table.clone(), InputFill::Uniform(-1.0, 1.0))?;
                let sin = c.input("sin", table, InputFill::Uniform(-1.0, 1.0))?;
                let y = c.graph.rope(x, cos, sin, style, n_rot, layout)?;
                c.output(y)
            })
        };
        let pinned = |name: &str, style: RopeStyle, want: [f64; 10]| {
            OpCase::new(name, move |c| {
                let x = InputFill::Values(vec![1., 2., 3., 4., 9., 5., 6., 7., 8., 9.]);
                let x = c.input("x", [1, 2, 1, 5], x)?;
                let cos = c.input("cos", [2, 2], InputFill::Values(vec![0.0, 1.0, 0.5, -1.0]))?;
                let sin = c.input("sin", [2, 2], InputFill::Values(vec![1.0, 0.0, 2.0, 0.25]))?;
                let y = c.graph.rope(x, cos, sin, style, 4, Bshd)?;
                c.output_expect(y, &want)
            })
        };
        // Writes the result into a state, as a decoder does with its KV cache.
        let cached =
            |name: &str, style: RopeStyle, layout: AttentionLayout, d: usize, starts: [f64; 4]| {
                OpCase::new(name, move |c| {
                    let s = c.sym("s", 2, 3);
                    let (x, cache) = match layout {
                        Bshd => ([2.into(), s.clone(), 3.into(), d.into()], [2, 7, 3, d]),
                        Bhsd => ([2.into(), 3.into(), s.clone(), d.into()], [2, 3, 7, d]),
                    };
                    let x = c.input("x", x, InputFill::Normal)?;
                    let table = [s, (d / 2).into()];
                    let cos = c.input("cos", table.clone(), InputFill::Uniform(-1.0, 1.0))?;
                    let sin = c.input("sin", table, InputFill::Uniform(-1.0, 1.0))?;
                    let at = Type::new(DType::I32, [4]);
                    let at = c.input_of("at", at, InputFill::Values(starts.to_vec()))?;
                    let y = c.graph.rope(x, cos, sin, style, d / 2 * 2, layout)?;
                    let cache =
                        c.state_of("cache", Type::new(c.dtype, cache), InputFill::Normal)?;
                    let all = c.graph.dynamic_update_slice(cache, y, at)?;
                    c.graph.assign(cache, all)?;
                    c.runs = 2;
                    c.output(all)
                })
            };
        // A decoder's processing of the queries, keys and values of new tokens.
        let appended = |name: &str, style: RopeStyle, d: usize, n_rot: usize| {
            OpCase::new(name, move |c| {
                let s = c.sym("s", 2, 3);
                let x = c.input(
                    "x",
                    [2.into(), s.clone(), 8.into(), d.into()],
                    InputFill::Normal,
                )?;
                let table = [s, (n_rot / 2).into()];
                let cos = c.input("cos", table.clone(), InputFill::Uniform(-1.0, 1.0))?;
                let sin = c.input("sin", table, InputFill::Uniform(-1.0, 1.0))?;
                let at = Type::new(DType::I32, [4]);
                let at = c.input_of("at", at, InputFill::Values(vec![0.0, 3.0, 0.0, 0.0]))?;
                let q = c.graph.narrow(x, 2, 0, 4)?;
                let k = c.graph.narrow(x, 2, 4, 2)?;
                let v = c.graph.narrow(x, 2, 6, 2)?;
                let q = c.graph.rope(q, cos, sin, style, n_rot, Bshd)?;
                let k = c.graph.rope(k, cos, sin, style, n_rot, Bshd)?;
                for (name, new) in [("keys", k), ("values", v)] {
                    let cache = Type::new(c.dtype, [2, 7, 2, d]);
                    let cache = c.state_of(name, cache, InputFill::Normal)?;
                    let all = c.graph.dynamic_update_slice(cache, new, at)?;
                    c.graph.assign(cache, all)?;
                    c.output(all)?;
                }
                c.runs = 2;
                c.output(q)
            })
        };
        vec![
            appended("appended_to_caches", NeoX, 8, 8),
            appended("appended_to_caches_in_part", GptJ, 10, 6),
            cached("into_a_cache", NeoX, Bshd, 8, [0.0, 3.0, 0.0, 0.0]),
            cached("into_a_cache_by_head", GptJ, Bhsd, 6, [0.0, 0.0, 4.0, 0.0]),
            cached(
                "into_a_cache_beyond_its_end",
                NeoX,
                Bshd,
                4,
                [1.0, 9.0, -2.0, 0.0],
            ),
            cached(
                "into_a_cache_of_odd_heads",
                NeoX,
                Bshd,
                5,
                [0.0, 1.0, 0.0, 0.0],
            ),
            shaped("neox_bshd", NeoX, Bshd, [2, 5, 3, 8], 8, false),
            shaped("neox_bhsd", NeoX, Bhsd, [2, 5, 3, 8], 8, false),
            shaped("gptj_bshd", GptJ, Bshd, [2, 5, 3, 8], 8, false),
            shaped("gptj_bhsd", GptJ, Bhsd, [2, 5, 3, 8], 8, false),
            shaped("neox_tail_per_token", NeoX, Bshd, [3, 4, 2, 11], 6, true),
            shaped("gptj_tail_per_token", GptJ, Bhsd, [3, 4, 2, 11], 6, true),
            shaped("head_of_64", NeoX, Bshd, [1, 17, 4, 64], 64, false),
            shaped("no_rotation", NeoX, Bshd, [2, 3, 2, 5], 0, false),
            shaped("no_positions", GptJ, Bshd, [2, 0, 2, 4], 4, true),
            // Pairs (1, 3), (2, 4) and (5, 7), (6, 8).
            pinned(
                "pinned_neox",
                NeoX,
                [-3., 2., 1., 4., 9., -11.5, -8., 13.5, -6.5, 9.],
            ),
            // Pairs (1, 2), (3, 4) and (5, 6), (7, 8).
            pinned(
                "pinned_gptj",
                GptJ,
                [-2., 1., 3., 4., 9., -9.5, 13., -9., -6.25, 9.],
            ),
            OpCase::new("f32_tables_symbolic", |c| {
                let s = c.sym("s", 5, 9);
                let x = [2.into(), s.clone(), 2.into(), 6.into()];
                let x = c.input("x", x, InputFill::Normal)?;
                let table = Type::new(DType::F32, [s, 3.into()]);
                let cos = c.input_of("cos", table.clone(), InputFill::Uniform(-1.0, 1.0))?;
                let sin = c.input_of("sin", table, InputFill::Uniform(-1.0, 1.0))?;
                let y = c.graph.rope(x, cos, sin, NeoX, 6, Bshd)?;
                c.output(y)
            }),
        ]
    }

    fn rejects() -> Vec<RejectCase> {
        fn try_rope(g: &mut Graph, n_rot: usize, table: &[usize]) -> Result<Value, OpError> {
            let x = g.input("x", Type::new(DType::F32, [2, 3, 4, 8]))?;
            let t = g.input("t", Type::new(DType::F32, table))?;
            g.rope(x, t, t, RopeStyle::NeoX, n_rot, AttentionLayout::Bshd)
        }
        vec![
            RejectCase {
                name: "odd",
                message: "attribute `n_rot`: 5",
                build: |g| try_rope(g, 5, &[3, 2]),
            },
            RejectCase {
                name: "beyond_the_head",
                message: "up to the head dim 8",
                build: |g| try_rope(g, 10, &[3, 5]),
            },
            RejectCase {
                name: "table_width",
                message: "cos and n_rot/2: 3 and 4 differ",
                build: |g| try_rope(g, 8, &[3, 3]),
            },
            RejectCase {
                name: "table_of_another_sequence",
                message: "cos and the sequence of x: 4 and 3 differ",
                build: |g| try_rope(g, 8, &[4, 4]),
            },
            RejectCase {
                name: "table_of_another_batch",
                message: "cos and the batch: 1 and 2 differ",
                build: |g| try_rope(g, 8, &[1, 3, 4]),
            },
            RejectCase {
                name: "table_rank",
                message: "expected [S, n_rot/2]",
                build: |g| try_rope(g, 8, &[4]),
            },
        ]
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

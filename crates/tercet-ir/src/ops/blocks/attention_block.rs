//! A self-attention block, from the QKV projection to the output projection.

use tercet_tensor::accuracy::Accuracy;
use tercet_tensor::{DType, Dim, Shape, Tensor, TensorType, Type};

use super::{
    AttentionBlockOptions, ComposedOp, ComposedOperands, LinearWeights, OpComposer, dense, eval,
    expect_count, expect_line, expect_matrix, first, heads, infer, reshape,
};
use crate::attr::FloatAttr;
use crate::attrs;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::Gradient;
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::attention::{Attention, AttentionLayout, MaskKind};
use crate::ops::rope::{Rope, RopeStyle};
use crate::ops::util::{expect_dtype, expect_rank};

attrs! {
    /// Self-attention of rows `x [B, S, E]` (Vaswani and others 2017). `x w_qkv + b_qkv` is split
    /// into heads of queries, keys and values. Queries and keys are rotated, and the result is
    /// `attention(q, k, v) w_out + b_out`.
    ///
    /// `w_qkv` has the columns of all query heads, then of all key heads, then of all value heads,
    /// each `D` wide. A rotation applies to the first elements of each head, twice the column count
    /// of its tables. Every intermediate result is rounded to the dtype of `x`.
    ///
    /// ```
    /// use tercet_ir::ops::{AttentionBlockOptions, LinearWeights};
    /// use tercet_ir::{DType, Graph, Op, Type};
    /// let mut g = Graph::new();
    /// let x = g.input("x", Type::new(DType::F32, [1, 5, 64]))?;
    /// let qkv = g.param("qkv", Type::new(DType::F32, [64, 192]))?;
    /// let out = g.param("out", Type::new(DType::F32, [64, 64]))?;
    /// let [qkv, out] = [qkv, out].map(LinearWeights::without_bias);
    /// let y = g.attention_block(x, qkv, out, AttentionBlockOptions::new(4, 4))?;
    /// let Op::AttentionBlock(op) = &g.node(y.node).op else { panic!("`y` is a block") };
    /// assert_eq!((op.q_heads, op.qkv_bias), (4, false));
    /// # Ok::<(), tercet_ir::OpError>(())
    /// ```
    pub struct AttentionBlock {
        /// Number of query heads; a multiple of `kv_heads`.
        pub q_heads: usize,
        /// Number of key and value heads.
        pub kv_heads: usize,
        /// Which tokens a token attends to. `keep` and `bias` need an additional operand.
        pub mask: MaskKind,
        /// Factor of the scores; `1 / sqrt(head dim)` if absent.
        pub scale: Option<FloatAttr>,
        /// Caps the scores as `softcap * tanh(s / softcap)` if present.
        pub softcap: Option<FloatAttr>,
        /// Which elements of a head are rotated as a pair, with two additional operands; no
        /// rotation if absent.
        pub rope: Option<RopeStyle>,
        /// True for an additional operand, the bias of queries, keys and values.
        pub qkv_bias: bool,
        /// True for an additional operand, the bias of the result.
        pub out_bias: bool,
    }
}

/// The operands of a block by name.
struct AttentionBlockOperands<'a, P> {
    x: &'a P,
    w_qkv: &'a P,
    w_out: &'a P,
    b_qkv: Option<&'a P>,
    b_out: Option<&'a P>,
    tables: Option<[&'a P; 2]>,
    mask: Option<&'a P>,
}

impl AttentionBlock {
    fn attention(&self) -> Attention {
        Attention {
            q_heads: self.q_heads,
            kv_heads: self.kv_heads,
            layout: AttentionLayout::Bshd,
            mask: self.mask,
            scale: self.scale,
            softcap: self.softcap,
            kv_len: false,
        }
    }

    fn parts<'a, P>(&self, operands: &'a [P]) -> AttentionBlockOperands<'a, P> {
        let mut rest = ComposedOperands::new(operands);
        AttentionBlockOperands {
            x: rest.take(),
            w_qkv: rest.take(),
            w_out: rest.take(),
            b_qkv: rest.take_if(self.qkv_bias),
            b_out: rest.take_if(self.out_bias),
            tables: self.rope.map(|_| [rest.take(), rest.take()]),
            mask: rest.take_if(self.attention().has_mask_operand()),
        }
    }

    /// The number of operands after the two weights.
    pub(super) fn more_operands(&self) -> usize {
        let has_mask = self.attention().has_mask_operand();
        let flags = [self.qkv_bias, self.out_bias, has_mask];
        flags.into_iter().map(usize::from).sum::<usize>() + 2 * usize::from(self.rope.is_some())
    }

    /// The total number of heads of queries, keys and values; `None` on overflow.
    fn all_heads(&self) -> Option<usize> {
        self.kv_heads.checked_mul(2)?.checked_add(self.q_heads)
    }

    /// The width of a head, computed from the column count of the first weight.
    fn head_dim(&self, w_qkv: &Shape) -> Option<usize> {
        let columns = w_qkv.get(1)?.known()?;
        let heads = self.all_heads()?;
        columns.is_multiple_of(heads).then(|| columns / heads)
    }
}

impl ComposedOp for AttentionBlock {
    fn check(&self, operands: &[Type]) -> Result<(), TypeError> {
        self.attention().check_attrs()?;
        expect_count(3 + self.more_operands(), operands)?;
        let parts = self.parts(operands);
        let x = parts.x;
        expect_dtype("x", x, DType::FLOATS)?;
        expect_rank("x", x, 3)?;
        expect_matrix("w_qkv", parts.w_qkv, x, ("the last axis of x", &x.shape[2]))?;
        let columns = &parts.w_qkv.shape[1];
        let Some(head_dim) = self.head_dim(&parts.w_qkv.shape) else {
            let (q, kv) = (self.q_heads, self.kv_heads);
            let reason = format!(
                "w_qkv has {columns} columns; expected a known multiple of {q} + 2 * {kv} heads"
            );
            return Err(TypeError::Other(reason));
        };
        let wide = self.q_heads.saturating_mul(head_dim).into();
        let of_heads = ("the width of all query heads", &wide);
        expect_matrix("w_out", parts.w_out, x, of_heads)?;
        if let Some(bias) = parts.b_qkv {
            expect_line("b_qkv", bias, x, ("the columns of w_qkv", columns))?;
        }
        if let Some(bias) = parts.b_out {
            let columns = &parts.w_out.shape[1];
            expect_line("b_out", bias, x, ("the columns of w_out", columns))?;
        }
        if let Some([cos, _]) = parts.tables
            && half_rotated(&cos.shape).is_none()
        {
            let reason =
                "the last axis of cos must have a known size, half of the rotated elements";
            return Err(TypeError::Other(reason.into()));
        }
        Ok(())
    }

    fn compose<C: OpComposer>(&self, c: &mut C, operands: &[C::Part]) -> Result<C::Part, C::Error> {
        const CHECKED: &str = "invariant: inference checked the sizes";
        let parts = self.parts(operands);
        let all = self.all_heads().expect(CHECKED);
        let head_dim = self.head_dim(&c.dims(parts.w_qkv)).expect(CHECKED);
        let rows = c.dims(parts.x);
        let shaped = |rest: &[usize]| -> Vec<Dim> {
            let rest = rest.iter().map(|n| Dim::Known(*n));
            rows[..2].iter().cloned().chain(rest).collect()
        };
        let qkv = dense(c, None, [parts.x, parts.w_qkv], parts.b_qkv)?;
        let qkv = reshape(c, &qkv, shaped(&[all, head_dim]))?;
        let (q_heads, kv_heads) = (self.q_heads, self.kv_heads);
        let mut q = heads(c, &qkv, [0, q_heads])?;
        let mut k = heads(c, &qkv, [q_heads, kv_heads])?;
        let v = heads(c, &qkv, [q_heads + kv_heads, kv_heads])?;
        if let (Some(style), Some([cos, sin])) = (self.rope, parts.tables) {
            let rope = Rope {
                style,
                n_rot: half_rotated(&c.dims(cos)).expect(CHECKED) * 2,
                layout: AttentionLayout::Bshd,
            };
            let turn =
                |c: &mut C, x: C::Part| first(c, rope.clone(), &[x, cos.clone(), sin.clone()]);
            q = turn(c, q)?;
            k = turn(c, k)?;
        }
        let operands: Vec<C::Part> = [q, k, v].into_iter().chain(parts.mask.cloned()).collect();
        let y = first(c, self.attention(), &operands)?;
        let y = reshape(c, &y, shaped(&[q_heads * head_dim]))?;
        dense(c, None, [&y, parts.w_out], parts.b_out)
    }
}

/// Twice the column count of a table of angles; `None` on overflow.
fn half_rotated(table: &Shape) -> Option<usize> {
    let half = table.last()?.known()?;
    half.checked_mul(2).map(|_| half)
}

impl OpSpec for AttentionBlock {
    const DOC: OpDoc = OpDoc {
        name: "attention_block",
        text: "Self-attention of rows `x [B, S, E]`: `attention(rope(q), rope(k), v) w_out + \
               b_out` with `q k v = x w_qkv + b_qkv`.",
        operands: &[
            "x", "w_qkv", "w_out", "b_qkv?", "b_out?", "cos?", "sin?", "mask?",
        ],
        dtypes: DType::FLOATS,
        accuracy: Accuracy::Contraction,
        tier: Tier::Composite,
    };

    const GRADIENT: Gradient<Self> = Gradient::Decompose;

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        infer(self, operands)
    }

    fn eval(
        &self,
        ctx: &EvalCtx,
        operands: &[&Tensor],
        _: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        eval(self, ctx, operands)
    }
}

impl Graph {
    /// Self-attention of rows `x [B, S, E]`, floats. `qkv` is `[E, (q_heads + 2 kv_heads) D]`,
    /// `out` is `[q_heads D, N]`, and the result is `[B, S, N]`. See [`AttentionBlock`] for the
    /// definition.
    ///
    /// # Errors
    /// [`OpError`] when types, heads, tables or the mask do not match, or scale or softcap are not
    /// finite. [`OpError`] also when the width of `qkv` is symbolic or not a multiple of the heads.
    pub fn attention_block(
        &mut self,
        x: Value,
        qkv: LinearWeights,
        out: LinearWeights,
        options: AttentionBlockOptions,
    ) -> Result<Value, OpError> {
        let (mask, operand) = options.mask.split();
        let op = AttentionBlock {
            q_heads: options.q_heads,
            kv_heads: options.kv_heads,
            mask,
            scale: options.scale.map(FloatAttr),
            softcap: options.softcap.map(FloatAttr),
            rope: options.rope.map(|r| r.style),
            qkv_bias: qkv.bias.is_some(),
            out_bias: out.bias.is_some(),
        };
        let tables = options.rope.into_iter().flat_map(|r| [r.cos, r.sin]);
        let operands = [x, qkv.weight, out.weight].into_iter();
        let operands = operands.chain(qkv.bias).chain(out.bias);
        let operands: Vec<Value> = operands.chain(tables).chain(operand).collect();
        self.add(op, &operands)
    }
}

//! Lowering of attention: `softmax(mask(softcap(scale q k^T))) v` without materializing the scores.
//!
//! All attention kernels read strided views; kernels with vector loads require that rows consist of
//! whole vectors. The query heads that share a KV head are processed together: each pair of query
//! and query head is one row. There are kernels for many and for few queries. If the number of
//! queries is known only at run time, a shape switch selects between both.
//!
//! Kernels for many queries: in `attention`, each tile of query rows iterates over all visible
//! keys; `attention_large` uses larger tiles. `attention_coop` and `attention_convert` run F16 on
//! cooperative matrices. `attention_lanes` computes F16 attention on mma-style fragments, if the
//! device's fragment layout is known. F32 attention runs on split-F16 (`attention_split`,
//! `attention_halves`); `attention_rest` computes the KV heads whose values are outside the
//! split-F16 range. `attention_coop` in WGSL runs on cooperative matrices of devices that take no
//! SPIR-V. If there are few tiles, the keys are split over workgroups, and
//! `attention_join` combines their results.
//!
//! Kernels for few queries: `attention_decode` splits the keys over workgroups, and
//! `attention_combine` combines their results. `attention_one` computes attention for a single
//! query, `attention_pieces` does so on cooperative matrices. `attention_token` processes one new
//! token: its RoPE, its cache update and its attention in one kernel.
//!
//! Invariant: no two workgroups write the same 32-bit word of the result. F16 and BF16 result rows
//! of odd length are therefore computed in F32, then packed by `attention_pack`.

pub(crate) mod backward;
pub(crate) mod backward_portable;
pub(crate) mod backward_split_f16;
pub(crate) mod coop;
pub(crate) mod flash_decoding;
mod fused_decode;
mod kernels;
mod pairs;
mod single_query;
mod split_kv;
mod variants;
pub(super) use variants::families as variant_families;
pub(crate) mod wgsl_matrices;
mod widened;

use tercet_ir::layout::LayoutTerm;
use tercet_ir::ops::{Attention, MaskKind};
use tercet_ir::{CompileError, DType, Dim, Node, NodeId, Op, OpKind};

use super::{Lowering, always, rope::append::RopeAppend};
use crate::emit::{LoweringCtx, SlotView};
use tercet_program::SymInt;
use tercet_program::{CheckKind, SlotId, TypedKernel};

use super::code;
use kernels::{
    AttentionCombineParams, AttentionKernels, AttentionPackParams, AttentionParams,
    AttentionSingleCombineParams, AttentionSplitParams, COMBINE, DECODE_WIDE, GATHER, JOIN,
    LSE_VEC2, LSE_VEC4, LSE_WORDS, ONE, PACK, REST, SPLIT, VEC2, VEC4, WORDS,
};

/// Lowering of `Attention`.
pub(crate) static FAMILY: Lowering = Lowering {
    name: "attention",
    ops: &[OpKind::Attention],
    kernels: &[
        &WORDS.tiles.def,
        &WORDS.large.def,
        &WORDS.decode.def,
        &VEC4.tiles.def,
        &VEC4.large.def,
        &VEC4.decode.def,
        &VEC2.tiles.def,
        &VEC2.large.def,
        &VEC2.decode.def,
        &DECODE_WIDE.def,
        &ONE.def,
        &fused_decode::TOKEN.def,
        &fused_decode::CHAINED.def,
        &COMBINE.def,
        &GATHER.def,
        &PACK.def,
        &kernels::WIDEN.def,
        &flash_decoding::F16.def,
        &coop::mma::LANES_F16.def,
        &coop::F16.def,
        &coop::CONVERT_F16.def,
        &coop::PAIRS.def,
        &coop::CONVERT_PAIRS.def,
        &split_kv::F16.def,
        &split_kv::CONVERT_F16.def,
        &split_kv::PAIRS.def,
        &split_kv::CONVERT_PAIRS.def,
        &wgsl_matrices::HALVES_OF_16.def,
        &wgsl_matrices::HALVES_OF_8.def,
        &wgsl_matrices::FLOATS_OF_8.def,
        &JOIN.def,
        &SPLIT.def,
        &REST.def,
    ],
    supports: always,
    lower,
};

/// The operands, sizes and parameters of the attention node that is being lowered, as all attention
/// kernels need them.
struct AttentionProblem<'g> {
    op: &'g Attention,
    /// Slots of queries, keys, values, mask and KV lengths.
    slots: [SlotId; 5],
    dtype: DType,
    /// Dtype to which the result is rounded.
    result_dtype: DType,
    batch: &'g Dim,
    queries: &'g Dim,
    keys: &'g Dim,
    head_dim: usize,
    value_dim: usize,
    /// Vector length in elements (1, 4 or 8) with which kernels can read queries, keys and values:
    /// rows consist of whole, aligned vectors.
    vector_width: usize,
    /// True if portable kernels may read vectors of queries, keys and values. False if the mask
    /// shares a slot with one of them, because devices may require one type for all bindings of a
    /// slot.
    has_vectors: bool,
    /// Parameters common to all attention kernels; each kernel fills in the fields from `tiles` to
    /// `groups`.
    block: AttentionParams,
}

impl AttentionProblem<'_> {
    /// Number of query heads per KV head.
    fn group(&self) -> usize {
        self.op.q_heads / self.op.kv_heads
    }

    /// The portable kernels with the widest vector loads of queries, keys and values that the
    /// layout allows.
    fn kernels(&self) -> &'static AttentionKernels {
        match (self.vector_width, self.dtype) {
            (1, _) => &WORDS,
            (_, _) if !self.has_vectors => &WORDS,
            (_, DType::F32) => &VEC4,
            (_, _) => &VEC2,
        }
    }

    /// The kernel that also stores the log-sum-exp, with the widest vector loads as in
    /// [`AttentionProblem::kernels`].
    fn lse_kernel(&self) -> &'static TypedKernel<AttentionParams> {
        match (self.vector_width, self.dtype) {
            (1, _) => &LSE_WORDS,
            (_, _) if !self.has_vectors => &LSE_WORDS,
            (_, DType::F32) => &LSE_VEC4,
            (_, _) => &LSE_VEC2,
        }
    }

    /// Values of the specialization constants that come first in every attention kernel; `out` is
    /// the dtype of the result.
    fn consts(&self, out: DType) -> Vec<u32> {
        let mask = match self.op.mask {
            MaskKind::None | MaskKind::Causal | MaskKind::Window(_) => 0,
            MaskKind::Keep => 1,
            MaskKind::Bias => 2,
        };
        let capped = u32::from(self.op.softcap.is_some());
        vec![code(self.dtype), code(out), mask, capped]
    }
}

fn lower(e: &mut LoweringCtx<'_>, _: &Node) -> Result<(), CompileError> {
    lower_after(e, e.cursor.at, None)
}

/// Lowers an attention node, preceded by the RoPE and cache update `before` if it is present. The
/// current node is the attention, or a cast of its result to F32.
pub(crate) fn lower_after(
    e: &mut LoweringCtx<'_>,
    attention: NodeId,
    before: Option<RopeAppend>,
) -> Result<(), CompileError> {
    let graph = e.graph;
    let node = graph.node(attention);
    let Op::Attention(op) = &node.op else {
        unreachable!("invariant: this lowering has one operator")
    };
    let [q, k, v] = [0, 1, 2].map(|i| e.view(node.inputs[i]));
    let rest = MaskOperands::new(e, op, node, 3)?;
    // 16-bit result rows of odd length share 32-bit words with their neighbors.
    let known = |view: &SlotView| view.layout.shape()[3].known().unwrap_or(0);
    let shares_words = node.outputs[0].dtype != DType::F32 && known(&v) % 2 == 1;
    let result = match e.facts.transposed_attention.contains(&attention) && !shares_words {
        true => turned_result(e)?,
        false => e.result(0)?,
    };
    let y = match shares_words {
        true => e.temp(DType::F32, result.layout.shape())?,
        false => result.clone(),
    };
    let problem = AttentionProblem {
        result_dtype: match shares_words {
            true => DType::F32,
            false => node.outputs[0].dtype,
        },
        ..problem(e, op, [&q, &k, &v, &y], &rest)?
    };
    variants::emit(e, &problem, &y, before)?;
    if shares_words {
        let shape = result.layout.shape();
        let numel = e.numel(shape);
        let words = e.words(result.dtype, shape);
        let grid = e.grid_of(words, 256);
        let consts = [code(result.dtype)];
        let args = [y.slot, result.slot];
        e.dispatch(&PACK, &consts, &args, &AttentionPackParams { numel }, grid);
    }
    Ok(())
}

/// Allocates the result of an attention in the memory order `[batch, position, head, element]`.
fn turned_result(e: &mut LoweringCtx<'_>) -> Result<SlotView, CompileError> {
    const TURN: [usize; 4] = [0, 2, 1, 3];
    let graph = e.graph;
    let ty = &graph.node(e.cursor.at).outputs[0];
    let shape = TURN.map(|axis| ty.shape[axis].clone());
    let dense = e.temp(ty.dtype, &shape)?;
    let result = SlotView {
        layout: dense.layout.transpose(&TURN),
        ..dense
    };
    e.forward(0, result.clone());
    Ok(result)
}

/// Optional operands of an attention: a mask or bias, and KV lengths.
struct MaskOperands {
    mask: Option<SlotView>,
    lens: Option<SlotView>,
}

impl MaskOperands {
    /// Views of the node's mask and KV lengths, which start at operand index `from`. Lengths are
    /// checked.
    fn new(
        e: &mut LoweringCtx<'_>,
        op: &Attention,
        node: &Node,
        from: usize,
    ) -> Result<MaskOperands, CompileError> {
        let mask = op.has_mask_operand().then(|| e.view(node.inputs[from]));
        let lens = match op.kv_len {
            true => node.inputs.last().map(|v| e.view(*v)),
            false => None,
        };
        if let Some(lens) = &lens {
            let keys = &e.graph.ty(node.inputs[1]).shape[op.layout.seq_axis()];
            e.check_data(lens, CheckKind::KvLen, keys)?;
        }
        Ok(MaskOperands { mask, lens })
    }

    /// Slots of the mask and of the KV lengths; dummy slots if they are absent.
    fn slots(&self, e: &mut LoweringCtx<'_>) -> Result<[SlotId; 2], CompileError> {
        let mut optional = |view: &Option<SlotView>| match view {
            Some(view) => Ok(view.slot),
            None => e.placeholder_slot(),
        };
        Ok([optional(&self.mask)?, optional(&self.lens)?])
    }
}

/// Collects what the kernels need for an attention with these views of queries, keys, values and
/// result.
fn problem<'g>(
    e: &mut LoweringCtx<'_>,
    op: &'g Attention,
    [q, k, v, y]: [&'g SlotView; 4],
    rest: &MaskOperands,
) -> Result<AttentionProblem<'g>, CompileError> {
    let known = |view: &SlotView| view.layout.shape()[3].known().unwrap_or(0);
    let [mask_slot, lens_slot] = rest.slots(e)?;
    let seq = op.layout.seq_axis();
    Ok(AttentionProblem {
        op,
        slots: [q.slot, k.slot, v.slot, mask_slot, lens_slot],
        dtype: q.dtype,
        result_dtype: y.dtype,
        batch: &q.layout.shape()[0],
        queries: &q.layout.shape()[seq],
        keys: &k.layout.shape()[seq],
        head_dim: known(q),
        value_dim: known(v),
        vector_width: vector_width(e, [q, k, v])?,
        has_vectors: ![q.slot, k.slot, v.slot].contains(&mask_slot),
        block: block(e, op, [q, k, v, y], rest.mask.as_ref(), rest.lens.as_ref()),
    })
}

/// The largest vector length (8, 4 or 1 elements) such that the rows of all views consist of whole
/// vectors.
fn vector_width(e: &LoweringCtx<'_>, views: [&SlotView; 3]) -> Result<usize, CompileError> {
    for view in views {
        for dim in view.layout.shape() {
            // Kernels never read an empty operand, and its slot may be too small to be bound as
            // vectors.
            if e.bound(dim)? == 0 {
                return Ok(1);
            }
        }
    }
    let all = |n| views.into_iter().all(|view| has_contiguous_rows(view, n));
    Ok([8, 4].into_iter().find(|n| all(*n)).unwrap_or(1))
}

/// True if each row of the view consists of contiguous, aligned vectors of `n` elements; `n` is a
/// power of two.
fn has_contiguous_rows(view: &SlotView, n: usize) -> bool {
    let is_multiple = |t: &LayoutTerm| t.power_of_two() >= n as u64;
    let shape = view.layout.shape();
    let (last, others) = view.layout.strides().split_last().expect("rank 4");
    let is_unit = last.factor() == 1 && *last.dim() == Dim::Known(1);
    is_unit
        && shape[3].known().is_some_and(|size| size.is_multiple_of(n))
        && others
            .iter()
            .zip(shape)
            .all(|(t, size)| size.is_one() || is_multiple(t))
        && view.layout.offset().iter().all(is_multiple)
}

/// Strides of a view of queries, keys, values or results, in the order batch, head, position,
/// element.
fn strides(e: &mut LoweringCtx<'_>, op: &Attention, view: &SlotView) -> [SymInt; 4] {
    let s = e.strides(view);
    let (head, seq) = (op.layout.head_axis(), op.layout.seq_axis());
    [s[0], s[head], s[seq], s[3]]
}

/// Strides of a mask, in the order batch, head, query, key; 0 for axes along which the mask is
/// broadcast.
fn mask_strides(e: &mut LoweringCtx<'_>, mask: &SlotView) -> [SymInt; 4] {
    let shape = mask.layout.shape();
    let axes: &[usize] = match shape.len() {
        2 => &[0, 3],
        3 => &[0, 2, 3],
        _ => &[0, 1, 2, 3],
    };
    let own = e.strides(mask);
    let mut strides = [SymInt::ZERO; 4];
    for (axis, &to) in axes.iter().enumerate() {
        if !shape[axis].is_one() {
            strides[to] = own[axis];
        }
    }
    strides
}

/// Whether visibility is causal (each query sees keys up to its position), and the window length in
/// keys.
fn visible_keys(mask: MaskKind) -> (bool, usize) {
    // Window length for attention without a window: longer than every sequence.
    const UNBOUNDED: usize = 1 << 30;
    match mask {
        MaskKind::Causal => (true, UNBOUNDED),
        MaskKind::Window(w) => (true, w.min(UNBOUNDED)),
        MaskKind::None | MaskKind::Keep | MaskKind::Bias => (false, UNBOUNDED),
    }
}

/// The fields of the parameter block that do not depend on the selected attention kernel.
fn block(
    e: &mut LoweringCtx<'_>,
    op: &Attention,
    [q, k, v, y]: [&SlotView; 4],
    mask: Option<&SlotView>,
    lens: Option<&SlotView>,
) -> AttentionParams {
    let [q_batch, q_head, q_seq, q_dim] = strides(e, op, q);
    let [k_batch, k_head, k_seq, k_dim] = strides(e, op, k);
    let [v_batch, v_head, v_seq, v_dim] = strides(e, op, v);
    let [y_batch, y_head, y_seq, _] = strides(e, op, y);
    let [mask_batch, mask_head, mask_query, mask_key] = match mask {
        Some(mask) => mask_strides(e, mask),
        None => [SymInt::ZERO; 4],
    };
    let lens_stride = lens.and_then(|l| e.strides(l).first().copied());
    let seq = op.layout.seq_axis();
    let q_shape = q.layout.shape();
    let head_dim = q_shape[3].known().unwrap_or(0);
    let (causal, window) = visible_keys(op.mask);
    AttentionParams {
        q_offset: e.offset(q),
        q_batch,
        q_head,
        q_seq,
        q_dim,
        k_offset: e.offset(k),
        k_batch,
        k_head,
        k_seq,
        k_dim,
        v_offset: e.offset(v),
        v_batch,
        v_head,
        v_seq,
        v_dim,
        mask_offset: mask.map_or(SymInt::ZERO, |m| e.offset(m)),
        mask_batch,
        mask_head,
        mask_query,
        mask_key,
        y_batch,
        y_head,
        y_seq,
        lens_offset: lens.map_or(SymInt::ZERO, |l| e.offset(l)),
        lens_stride: lens_stride.unwrap_or(SymInt::ZERO),
        has_lens: lens.is_some().into(),
        causal: causal.into(),
        window: SymInt::Const(window as i64),
        queries: e.num(&q_shape[seq]),
        keys: e.num(&k.layout.shape()[seq]),
        batch: e.num(&q_shape[0]),
        kv_heads: SymInt::Const(op.kv_heads as i64),
        group: SymInt::Const((op.q_heads / op.kv_heads) as i64),
        head_dim: SymInt::Const(head_dim as i64),
        value_dim: e.num(&v.layout.shape()[3]),
        tiles: SymInt::ZERO,
        slices: SymInt::ZERO,
        splits: SymInt::ONE,
        split_keys: SymInt::ZERO,
        groups: SymInt::ZERO,
        scale: op.scale_for(head_dim) as f32,
        softcap: op.softcap.map_or(1.0, |c| c.0 as f32),
    }
}

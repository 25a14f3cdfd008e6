//! Lowering of attention for training without cooperative matrices, in portable F32 tiles: forward
//! with log-sum-exp, and backward. No kernel stores a score matrix.
//!
//! The backward shader is `shaders/portable/attention_grad.wgsl`. One dispatch computes the
//! gradient of the queries; one each computes those of the keys and of the values.

use tercet_ir::ops::AttentionGradOf;
use tercet_ir::{CompileError, DType, Dim, Graph, Node, Op, OpKind, Support};

use super::backward::GradTiling;
use super::kernels::{
    GRAD_KNOWN, GRAD_VEC2, GRAD_VEC4, GRAD_WORDS, LSE_VEC2, LSE_VEC4, LSE_WORDS, PACK,
    TiledAttentionGradParams,
};
use super::variants::{self, QueryTileSet};
use super::{AttentionPackParams, AttentionProblem, MaskOperands, problem, strides};
use crate::caps::DeviceCaps;
use crate::emit::{CopyOrder, LoweringCtx, SlotView};
use crate::lowerings::{Lowering, code, missing};
use tercet_program::{SlotId, SymInt, TypedKernel};

/// Lowering of `AttentionWithLse` and `AttentionGrad` without cooperative matrices.
pub(crate) static FAMILY: Lowering = Lowering {
    name: "attention_training_tiles",
    ops: &[OpKind::AttentionWithLse, OpKind::AttentionGrad],
    kernels: &[
        &LSE_WORDS.def,
        &LSE_VEC4.def,
        &LSE_VEC2.def,
        &GRAD_KNOWN.def,
        &GRAD_WORDS.def,
        &GRAD_VEC4.def,
        &GRAD_VEC2.def,
    ],
    supports,
    lower,
};

/// Lines of the result per workgroup; equals `LINES` of the shader.
const LINES: u32 = 64;

/// A result of the backward pass; the values are those of `OF` in the shader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GradPass {
    Queries = 0,
    Keys = 1,
    Values = 2,
}

fn supports(graph: &Graph, node: &Node, caps: &DeviceCaps) -> Support {
    let types = [0, 1, 2].map(|at| graph.ty(node.inputs[at]));
    let is_empty = |dim: &Dim| dim.known() == Some(0);
    if types.iter().flat_map(|ty| &ty.shape[..]).any(is_empty) {
        return missing("an operand of attention is empty");
    }
    let [head_dim, value_dim] = [0, 2].map(|at: usize| types[at].shape[3].known());
    let (Some(head_dim), Some(value_dim)) = (head_dim, value_dim) else {
        return missing("head sizes are unknown");
    };
    if GradTiling::minimal(caps, [head_dim, value_dim]).is_some() {
        return missing("with cooperative matrices, products with the score matrix are faster");
    }
    Support::Native
}

fn lower(e: &mut LoweringCtx<'_>, node: &Node) -> Result<(), CompileError> {
    match &node.op {
        Op::AttentionWithLse(op) => {
            let op = op.attention();
            let [q, k, v] = [0, 1, 2].map(|at| e.view(node.inputs[at]));
            let rest = MaskOperands::new(e, &op, node, 3)?;
            let (y, lse) = (e.result(0)?, e.result(1)?);
            let whole = whole_words(e, &y)?;
            let p = problem(e, &op, [&q, &k, &v, &whole], &rest)?;
            let queries = e.bound(p.queries)?;
            variants::emit_query_tiles(e, &p, &whole, queries, QueryTileSet::WithLse(lse.slot))?;
            pack(e, &whole, &y);
            Ok(())
        }
        Op::AttentionGrad(op) => match op.of {
            AttentionGradOf::Queries => lower_grad(e, node, &[GradPass::Queries]),
            AttentionGradOf::Keys => lower_grad(e, node, &[GradPass::Keys, GradPass::Values]),
        },
        _ => unreachable!("invariant: a lowering receives only its own operators"),
    }
}

/// The slot that kernels write: the result, or an F32 temporary if 16-bit rows of odd length share
/// words.
fn whole_words(e: &mut LoweringCtx<'_>, result: &SlotView) -> Result<SlotView, CompileError> {
    let columns = result.layout.shape()[3].known().unwrap_or(0);
    match result.dtype != DType::F32 && columns % 2 == 1 {
        true => e.temp(DType::F32, result.layout.shape()),
        false => Ok(result.clone()),
    }
}

/// Rounds and packs an F32 temporary of [`whole_words`]; does nothing for the result itself.
fn pack(e: &mut LoweringCtx<'_>, from: &SlotView, result: &SlotView) {
    if from.slot == result.slot {
        return;
    }
    let shape = result.layout.shape();
    let numel = e.numel(shape);
    let words = e.words(result.dtype, shape);
    let grid = e.grid_of(words, 256);
    let args = [from.slot, result.slot];
    let consts = [code(result.dtype)];
    e.dispatch(&PACK, &consts, &args, &AttentionPackParams { numel }, grid);
}

/// The backward kernel with the widest loads that the operands allow. `others` are the slots that
/// the kernel reads as words.
fn kernel_for(
    e: &LoweringCtx<'_>,
    p: &AttentionProblem<'_>,
    dy: &SlotView,
    others: &[SlotId],
) -> Result<&'static TypedKernel<TiledAttentionGradParams>, CompileError> {
    let [q, k, v, ..] = p.slots;
    let is_apart = [q, k, v, dy.slot].iter().all(|s| !others.contains(s));
    let has_vectors = p.vector_width > 1 && super::vector_width(e, [dy, dy, dy])? > 1;
    Ok(match (is_apart && has_vectors, p.dtype) {
        (false, _) => &GRAD_WORDS,
        (true, DType::F32) => &GRAD_VEC4,
        (true, _) => &GRAD_VEC2,
    })
}

fn lower_grad(
    e: &mut LoweringCtx<'_>,
    node: &Node,
    passes: &[GradPass],
) -> Result<(), CompileError> {
    let Op::AttentionGrad(op) = &node.op else {
        unreachable!("invariant: the lowering receives only this operator")
    };
    let op = op.attention();
    let [q, k, v, dy] = [0, 1, 2, 3].map(|at| e.view(node.inputs[at]));
    let (lse, delta) = (e.view(node.inputs[4]), e.view(node.inputs[5]));
    let known = known(e, &lse, &delta)?;
    let rest = MaskOperands::new(e, &op, node, 6)?;
    let p = problem(e, &op, [&q, &k, &v, &dy], &rest)?;
    let [.., mask, lens] = p.slots;
    let kernel = kernel_for(e, &p, &dy, &[mask, lens])?;
    for (at, &pass) in passes.iter().enumerate() {
        let result = e.result(at)?;
        let y = whole_words(e, &result)?;
        let (lines, columns) = match pass {
            GradPass::Queries => (variants::rows(e, &p), p.head_dim),
            GradPass::Keys => (p.block.keys, p.head_dim),
            GradPass::Values => (p.block.keys, p.value_dim),
        };
        let own_columns = if columns <= 64 { 1 } else { 2 };
        let tiles = e.tape().ceil_div(lines, LINES);
        let slices = SymInt::Const(columns.div_ceil(64 * own_columns) as i64);
        let groups = variants::groups(e, &p, &[tiles, slices]);
        let block = params(e, &p, &dy, &y, [tiles, slices, groups]);
        let consts = p.consts(y.dtype);
        let consts = [&consts[..], &[pass as u32, own_columns as u32]].concat();
        let args = [
            q.slot, k.slot, v.slot, mask, lens, y.slot, dy.slot, known.slot,
        ];
        let grid = e.flat_grid(groups);
        e.dispatch(kernel, &consts, &args, &block, grid);
        pack(e, &y, &result);
    }
    Ok(())
}

/// The pairs of log-sum-exp and `delta`, which both backward nodes of an attention share.
fn known(
    e: &mut LoweringCtx<'_>,
    lse: &SlotView,
    delta: &SlotView,
) -> Result<SlotView, CompileError> {
    let (lse, delta) = (e.dense(lse)?, e.dense(delta)?);
    e.once(&lse, CopyOrder::Paired { with: delta.slot }, |e| {
        let shape = lse.layout.shape().to_vec();
        let pairs: Vec<Dim> = shape.iter().cloned().chain([Dim::Known(2)]).collect();
        let to = e.temp(DType::F32, &pairs)?;
        let numel = e.numel(&shape);
        let grid = e.grid_of(numel, 256);
        let args = [lse.slot, delta.slot, to.slot];
        e.dispatch(
            &GRAD_KNOWN,
            &[],
            &args,
            &AttentionPackParams { numel },
            grid,
        );
        Ok(to)
    })
}

fn params(
    e: &mut LoweringCtx<'_>,
    p: &AttentionProblem<'_>,
    dy: &SlotView,
    y: &SlotView,
    [tiles, slices, groups]: [SymInt; 3],
) -> TiledAttentionGradParams {
    let b = p.block.clone();
    let [dy_batch, dy_head, dy_seq, dy_dim] = strides(e, p.op, dy);
    let [y_batch, y_head, y_seq, _] = strides(e, p.op, y);
    TiledAttentionGradParams {
        q_offset: b.q_offset,
        q_batch: b.q_batch,
        q_head: b.q_head,
        q_seq: b.q_seq,
        q_dim: b.q_dim,
        k_offset: b.k_offset,
        k_batch: b.k_batch,
        k_head: b.k_head,
        k_seq: b.k_seq,
        k_dim: b.k_dim,
        v_offset: b.v_offset,
        v_batch: b.v_batch,
        v_head: b.v_head,
        v_seq: b.v_seq,
        v_dim: b.v_dim,
        dy_offset: e.offset(dy),
        dy_batch,
        dy_head,
        dy_seq,
        dy_dim,
        mask_offset: b.mask_offset,
        mask_batch: b.mask_batch,
        mask_head: b.mask_head,
        mask_query: b.mask_query,
        mask_key: b.mask_key,
        y_batch,
        y_head,
        y_seq,
        lens_offset: b.lens_offset,
        lens_stride: b.lens_stride,
        has_lens: b.has_lens,
        causal: b.causal,
        window: b.window,
        queries: b.queries,
        keys: b.keys,
        batch: b.batch,
        kv_heads: b.kv_heads,
        group: b.group,
        head_dim: b.head_dim,
        value_dim: b.value_dim,
        tiles,
        slices,
        groups,
        scale: b.scale,
        softcap: b.softcap,
    }
}

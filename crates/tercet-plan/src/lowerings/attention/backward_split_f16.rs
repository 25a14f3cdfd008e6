//! Lowering of F32 attention for training on split-F16 cooperative matrices: forward with
//! log-sum-exp, and backward. BF16 operands are converted to F32 first.
//!
//! The backward shader is `shaders/vulkan/include/attention_grad_pairs.glsl`. KV heads that
//! split-F16 cannot represent with F32 accuracy run on F32 fallback kernels
//! (`attention_grad_rest.glsl`, `attention_lse_rest.glsl`), as in inference (ADR 0010).

use tercet_ir::ops::{Attention, AttentionGradOf, MaskKind};
use tercet_ir::{CompileError, DType, Dim, Graph, Node, Op, OpKind, Support};

use self::kernels::{
    CONVERT_KEYS, CONVERT_QUERIES, KEYS, QUERIES, REST_KEYS, REST_LSE, REST_QUERIES,
    SCALED_CONVERT_KEYS, SCALED_CONVERT_QUERIES, SCALED_KEYS, SCALED_QUERIES,
};
use super::backward::{AttentionGradParams, GradTiling, params};
use super::coop::{self, AttentionTiling, MmaPrecision};
use super::pairs::{self, SplitF16Rows};
use super::widened::{self, UpcastPolicy};
use super::{AttentionProblem, MaskOperands, has_contiguous_rows, problem, variants};
use crate::caps::DeviceCaps;
use crate::emit::{CopyOrder, LoweringCtx, SlotView};
use crate::lowerings::{Lowering, copy, missing};
use tercet_program::SlotId;
use tercet_program::SymInt;
use tercet_program::TypedKernel;

/// Lowering of `AttentionWithLse` and `AttentionGrad` in F32 and BF16.
pub(crate) static FAMILY: Lowering = Lowering {
    name: "attention_training_pairs",
    ops: &[OpKind::AttentionWithLse, OpKind::AttentionGrad],
    kernels: &[
        &coop::LSE_PAIRS.def,
        &coop::CONVERT_LSE_PAIRS.def,
        &coop::LSE_SCALED.def,
        &coop::CONVERT_LSE_SCALED.def,
        &QUERIES.def,
        &KEYS.def,
        &CONVERT_QUERIES.def,
        &CONVERT_KEYS.def,
        &SCALED_QUERIES.def,
        &SCALED_KEYS.def,
        &SCALED_CONVERT_QUERIES.def,
        &SCALED_CONVERT_KEYS.def,
        &REST_QUERIES.def,
        &REST_KEYS.def,
        &REST_LSE.def,
    ],
    supports,
    lower,
};

/// Number of elements per vector load of the split-F16 backward kernels.
const LOAD: usize = 4;
/// Rows per workgroup of the F32 fallback kernels; a workgroup has `REST_LINES * REST_LINES`
/// threads. The value equals `LINES` of the shader.
const REST_LINES: u32 = 16;

/// Number of workgroups per KV head of the F32 fallback kernels; a few suffice, because few heads
/// need the fallback.
const REST_GROUPS: i64 = 8;

/// Sizes of an attention node, which must all be known at compile time.
struct AttentionGradSizes {
    batch: usize,
    kv_heads: usize,
    /// Query rows per KV head: the number of queries times the number of query heads per KV head.
    rows: usize,
    keys: usize,
    /// Head size of queries and head size of values.
    dims: [usize; 2],
}

impl AttentionGradSizes {
    fn new(graph: &Graph, node: &Node, op: &Attention) -> Option<AttentionGradSizes> {
        let [q, k, v] = [0, 1, 2].map(|at| &graph.ty(node.inputs[at]).shape);
        let seq = op.layout.seq_axis();
        let group = op.q_heads / op.kv_heads;
        Some(AttentionGradSizes {
            batch: q[0].known()?,
            kv_heads: op.kv_heads,
            rows: q[seq].known()?.checked_mul(group)?,
            keys: k[seq].known()?,
            dims: [q[3].known()?, v[3].known()?],
        })
    }

    /// Size in bytes of the largest operand after it is split into F16 pairs, if its rows have
    /// `columns` columns.
    fn max_bytes(&self, columns: u32, factors: MmaPrecision) -> u64 {
        let lines = self.rows.max(self.keys).div_ceil(pairs::CHUNK);
        let heads = self.batch.saturating_mul(self.kv_heads);
        let words = lines.saturating_mul(pairs::chunk_len(columns as usize, factors));
        words.saturating_mul(heads).saturating_mul(4) as u64
    }
}

fn supports(graph: &Graph, node: &Node, caps: &DeviceCaps) -> Support {
    let op = match &node.op {
        Op::AttentionWithLse(op) => op.attention(),
        Op::AttentionGrad(op) => op.attention(),
        _ => unreachable!("invariant: a lowering receives only its own operators"),
    };
    if !matches!(graph.ty(node.inputs[0]).dtype, DType::F32 | DType::BF16) {
        return missing("split-F16 attention requires F32 or BF16 operands");
    }
    if op.mask == MaskKind::Bias {
        return missing(
            "split-F16 attention does not support an additive bias mask, which may exceed its accuracy",
        );
    }
    let Some(sizes) = AttentionGradSizes::new(graph, node, &op) else {
        return missing("split-F16 attention requires known sizes");
    };
    let [head_dim, value_dim] = sizes.dims;
    let is_whole = |dim: usize| dim > 0 && dim.is_multiple_of(LOAD);
    if sizes.batch == 0 || !is_whole(head_dim) || !is_whole(value_dim) {
        return missing("head sizes are not multiples of 4, or an operand is empty");
    }
    if sizes.rows.saturating_mul(sizes.keys) < caps.device.rates.attention.min_split_f16_work {
        return missing("with so few scores, separate matmuls are faster");
    }
    let heads = sizes.batch.saturating_mul(sizes.kv_heads);
    let factors = factors_of(graph.ty(node.inputs[0]).dtype);
    let forward = AttentionTiling::choose(caps, sizes.dims, sizes.rows, heads, factors);
    let backward = PairTiling::choose(caps, sizes.dims, factors);
    let (Some(forward), Some(backward)) = (forward, backward) else {
        return missing(
            "requires F16 cooperative matrices, and registers and shared memory for split-F16 heads of this size",
        );
    };
    let columns = forward.dims().into_iter().chain(backward.tiling.dims).max();
    if columns.is_none_or(|n| sizes.max_bytes(n, factors) > caps.max_binding_bytes) {
        return missing("the split form of an operand exceeds the binding limit");
    }
    Support::Native
}

/// Precision in which operands of this dtype are multiplied. BF16 values need only one scaled F16
/// number instead of two.
fn factors_of(dtype: DType) -> MmaPrecision {
    match dtype {
        DType::BF16 => MmaPrecision::Scaled,
        _ => MmaPrecision::SplitF16,
    }
}

fn lower(e: &mut LoweringCtx<'_>, node: &Node) -> Result<(), CompileError> {
    match &node.op {
        Op::AttentionWithLse(op) => lower_with_lse(e, node, &op.attention()),
        Op::AttentionGrad(op) => lower_grad(e, node, op.of, &op.attention()),
        _ => unreachable!("invariant: a lowering receives only its own operators"),
    }
}

/// Views of the node's first `N` operands, converted to F32, whose rows consist of whole vectors.
/// An operand is copied if its layout does not allow vector loads, or if it shares a slot with the
/// mask, which is bound with another type.
fn vectors<const N: usize>(
    e: &mut LoweringCtx<'_>,
    node: &Node,
    mask: Option<&SlotView>,
    how: UpcastPolicy,
) -> Result<[SlotView; N], CompileError> {
    let mut views = Vec::with_capacity(N);
    for at in 0..N {
        let view = e.view(node.inputs[at]);
        let is_apart = mask.is_none_or(|mask| mask.slot != view.slot);
        views.push(match is_apart && has_contiguous_rows(&view, LOAD) {
            _ if view.dtype == DType::BF16 => widened::widen(e, &view, how)?,
            true => view,
            false => e.in_order(&view, CopyOrder::Dense, |e, to| copy::emit(e, &view, to))?,
        });
    }
    let Ok(views) = views.try_into() else {
        unreachable!("invariant: the number of views matches the request")
    };
    Ok(views)
}

fn lower_with_lse(
    e: &mut LoweringCtx<'_>,
    node: &Node,
    op: &Attention,
) -> Result<(), CompileError> {
    let rest = MaskOperands::new(e, op, node, 3)?;
    let [q, k, v] = vectors(e, node, rest.mask.as_ref(), UpcastPolicy::PerNode)?;
    let (result, lse) = (e.result(0)?, e.result(1)?);
    let y = widened::result(e, &result)?;
    let p = problem(e, op, [&q, &k, &v, &y], &rest)?;
    let queries = e.bound(p.queries)?;
    let factors = factors_of(result.dtype);
    let Some(tiling) = coop::tiling_of(e, &p, factors, queries)? else {
        unreachable!("invariant: the lowering supports the node")
    };
    let left = pairs::emit(e, &p, &y, Some(lse.slot), queries, &tiling)?;
    let absent = e.placeholder_slot()?;
    let args = [q.slot, k.slot, v.slot, q.slot, absent, absent];
    emit_fallback(e, &p, &y, &REST_LSE, &args, [&lse, &lse], left);
    widened::round(e, &y, &result);
    Ok(())
}

fn lower_grad(
    e: &mut LoweringCtx<'_>,
    node: &Node,
    of: AttentionGradOf,
    op: &Attention,
) -> Result<(), CompileError> {
    let rest = MaskOperands::new(e, op, node, 6)?;
    let [q, k, v, dy] = vectors(e, node, rest.mask.as_ref(), UpcastPolicy::Shared)?;
    let (lse, delta) = (e.view(node.inputs[4]), e.view(node.inputs[5]));
    let (lse, delta) = (e.dense(&lse)?, e.dense(&delta)?);
    let p = problem(e, op, [&q, &k, &v, &dy], &rest)?;
    let factors = factors_of(e.view(node.inputs[0]).dtype);
    let Some(tiling) = PairTiling::choose(e.caps, [p.head_dim, p.value_dim], factors) else {
        unreachable!("invariant: the lowering supports the node")
    };
    let split = split(e, &p, [&q, &k, &v, &dy], &tiling)?;
    let first = e.result(0)?;
    let given = match of {
        AttentionGradOf::Queries => vec![first],
        AttentionGradOf::Keys => vec![first, e.result(1)?],
    };
    let results = given.iter().map(|view| widened::result(e, view));
    let results = results.collect::<Result<Vec<SlotView>, _>>()?;
    let ends = [&results[0], results.last().unwrap_or(&results[0])];
    let lines = match of {
        AttentionGradOf::Queries => variants::rows(e, &p),
        AttentionGradOf::Keys => p.block.keys,
    };
    let tiles = e.tape().ceil_div(lines, tiling.tiling.lines());
    let groups = variants::groups(e, &p, &[tiles]);
    let block = params(e, &p, &dy, ends, [tiles, groups]);
    let left = e.temp(DType::U32, &[p.batch.clone(), Dim::Known(op.kv_heads)])?;
    let mut args = split.to_vec();
    args.extend([lse.slot, delta.slot, p.slots[3], p.slots[4]]);
    args.extend(results.iter().map(|view| view.slot));
    args.push(left.slot);
    let kernel = kernels::kernel_for(of, factors, tiling.tiling.converts);
    let grid = e.flat_grid(groups);
    e.dispatch(kernel, &tiling.consts(&p), &args, &block, grid);
    let kernel = match of {
        AttentionGradOf::Queries => &REST_QUERIES,
        AttentionGradOf::Keys => &REST_KEYS,
    };
    let args = [q.slot, k.slot, v.slot, dy.slot, lse.slot, delta.slot];
    emit_fallback(e, &p, &dy, kernel, &args, ends, left.slot);
    for (from, to) in results.iter().zip(&given) {
        widened::round(e, from, to);
    }
    Ok(())
}

/// Emits an F32 fallback kernel for the KV heads that split-F16 cannot represent accurately.
fn emit_fallback(
    e: &mut LoweringCtx<'_>,
    p: &AttentionProblem<'_>,
    dy: &SlotView,
    kernel: &'static TypedKernel<AttentionGradParams>,
    operands: &[SlotId; 6],
    [first, second]: [&SlotView; 2],
    left: SlotId,
) {
    let tiles = SymInt::Const(REST_GROUPS);
    let groups = variants::groups(e, p, &[tiles]);
    let has_strides = first.layout.shape().len() == 4;
    let ends = if has_strides {
        [first, second]
    } else {
        [dy, dy]
    };
    let block = params(e, p, dy, ends, [tiles, groups]);
    let mut args = operands.to_vec();
    args.extend([p.slots[3], p.slots[4], first.slot]);
    if second.slot != first.slot {
        args.push(second.slot);
    }
    args.push(left);
    let [head, value] = [p.head_dim, p.value_dim].map(|dim| dim as u32);
    let consts = [
        REST_LINES * REST_LINES,
        e.caps.subgroup.unwrap_or(REST_LINES),
        REST_LINES,
        REST_LINES,
        REST_LINES,
        REST_LINES,
        REST_LINES,
        head,
        value,
        u32::from(p.op.mask == MaskKind::Keep),
        u32::from(p.op.softcap.is_some()),
    ];
    let grid = e.flat_grid(groups);
    e.dispatch(kernel, &consts, &args, &block, grid);
}

/// Splits queries, keys, values and `dy` into F16 pairs. The backward kernel for query gradients
/// and that for key and value gradients share the F16 pairs.
fn split(
    e: &mut LoweringCtx<'_>,
    p: &AttentionProblem<'_>,
    [q, k, v, dy]: [&SlotView; 4],
    tiling: &PairTiling,
) -> Result<[SlotId; 4], CompileError> {
    let b = p.block.clone();
    let [head_columns, value_columns] = tiling.tiling.dims;
    let queries = SplitF16Rows {
        strides: [b.q_offset, b.q_batch, b.q_head, b.q_seq],
        count: variants::rows(e, p),
        bound: e.bound(p.queries)?.saturating_mul(p.group()),
        group: b.group,
        dim: b.head_dim,
        columns: head_columns,
        has_lens: false,
        sign: 1.0,
        factors: tiling.factors,
    };
    let keys = SplitF16Rows {
        strides: [b.k_offset, b.k_batch, b.k_head, b.k_seq],
        count: b.keys,
        bound: e.bound(p.keys)?,
        group: SymInt::ONE,
        has_lens: p.op.kv_len,
        ..queries
    };
    let values = SplitF16Rows {
        strides: [b.v_offset, b.v_batch, b.v_head, b.v_seq],
        dim: b.value_dim,
        columns: value_columns,
        ..keys
    };
    let cotangents = SplitF16Rows {
        strides: [e.offset(dy), b.y_batch, b.y_head, b.y_seq],
        dim: b.value_dim,
        columns: value_columns,
        ..queries
    };
    let mut once = |view: &SlotView, rows: &SplitF16Rows, group: usize| {
        let order = CopyOrder::SplitF16 {
            group,
            columns: rows.columns,
            lens: rows.has_lens.then_some(p.slots[4]),
        };
        let pairs = e.once(view, order, |e| pairs::split(e, p, view.slot, rows))?;
        Ok::<_, CompileError>(pairs.slot)
    };
    Ok([
        once(q, &queries, p.group())?,
        once(k, &keys, 1)?,
        once(v, &values, 1)?,
        once(dy, &cotangents, p.group())?,
    ])
}

/// Tiling of the attention backward pass whose operands are split into F16 pairs or converted to
/// scaled F16.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PairTiling {
    /// The tiling of the kernels.
    pub tiling: GradTiling,
    factors: MmaPrecision,
}

impl PairTiling {
    /// Selects the tiling of the split-F16 backward pass for these head sizes. `None` if the device
    /// lacks F16 cooperative matrices, or has too few registers or too little shared memory.
    pub fn choose(
        caps: &DeviceCaps,
        dims: [usize; 2],
        factors: MmaPrecision,
    ) -> Option<PairTiling> {
        let least = GradTiling::minimal(caps, dims)?;
        let of = |[subgroups, step]: [u32; 2]| PairTiling {
            tiling: GradTiling {
                subgroups,
                step,
                ..least
            },
            factors,
        };
        let room = caps.device.max_fragment_registers(least.subgroup);
        let chunk = pairs::CHUNK as u32;
        let fits = |tiling: &PairTiling| {
            let t = &tiling.tiling;
            // A tile must not contain only some of the rows that share a scale factor.
            chunk.is_multiple_of(t.step)
                && chunk.is_multiple_of(t.fragment[0])
                && t.step.is_multiple_of(least.step)
                && tiling.fragment_registers() <= room + room / 4
                && tiling.shared_bytes() <= caps.workgroup_bytes
                && t.threads() <= caps.max_workgroup
                && t.step <= t.threads()
        };
        let has_rest = REST_LINES * REST_LINES <= caps.max_workgroup
            && rest_shared_bytes(least.dims) <= caps.workgroup_bytes;
        let tilings = [[8, 32], [4, 32], [4, 16], [2, 16]].map(of);
        tilings.into_iter().find(|t| has_rest && fits(t))
    }

    /// 32-bit registers per thread that fragments occupy: two operands as F16 pairs, gradient sums,
    /// and one fragment each of scores and of intermediate values.
    fn fragment_registers(&self) -> u32 {
        let t = &self.tiling;
        let pieces = self.factors.pieces();
        let dims = t.dims[0] + t.dims[1];
        let columns = dims + pieces * dims / 2 + (4 + pieces) * t.fragment[1];
        t.fragment[0] * columns / t.subgroup
    }

    fn consts(&self, p: &AttentionProblem<'_>) -> [u32; 11] {
        let t = &self.tiling;
        let [fm, fn_, fk] = t.fragment;
        [
            t.threads(),
            t.subgroup,
            fm,
            fn_,
            fk,
            t.lines(),
            t.step,
            t.dims[0],
            t.dims[1],
            u32::from(p.op.mask == MaskKind::Keep),
            u32::from(p.op.softcap.is_some()),
        ]
    }

    /// Shared memory per workgroup in bytes, for the backward kernel (queries or keys) that needs
    /// more; computed as in the shader.
    pub fn shared_bytes(&self) -> u32 {
        let t = &self.tiling;
        let pieces = self.factors.pieces();
        let [fm, fn_, fk] = t.fragment;
        let [h_stride, v_stride] = t.dims.map(|d| pieces * d / 8 + 1);
        let stages = 2 * t.step * (h_stride + v_stride);
        let factors = match t.converts {
            true => 0,
            false => 2 * t.lines() * (pieces * fk.max(fn_) / 8 + 1),
        };
        let most = t.dims[0].max(t.dims[1]) / fn_;
        let together = if (4..=8).contains(&most) { 4 } else { most };
        let results = t.subgroups * fm * (together * fn_ / 4 + 1);
        let rows = t.lines().max(2 * t.step);
        let words = (stages + factors).max(results) + rows;
        16 * (words + rows) + 4 * fm.max(fn_) + 32
    }
}

/// Shared memory of the F32 fallback kernels in bytes: rows of queries, keys, values and `dy`,
/// softmax weights, and gradients of the scores.
fn rest_shared_bytes(dims: [u32; 2]) -> u32 {
    let lines = 2 * REST_LINES * (dims[0] + dims[1] + 2);
    4 * (lines + 2 * REST_LINES * (REST_LINES + 1))
}

mod kernels;

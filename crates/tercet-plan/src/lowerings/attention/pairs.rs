//! F32 attention on F16 cooperative matrices with F32 accuracy (split-F16): each F32 number is the
//! sum of two F16 numbers.
//!
//! `attention_split.wgsl` splits queries, keys and values; `attention_halves.glsl` multiplies the
//! F16 numbers. For a KV head with a large value range, split-F16 would be less accurate than F32.
//! `attention_rest`, an F32 fallback kernel, computes such KV heads, and those with non-finite
//! values, from the original operands.

use tercet_ir::{CompileError, DType, Dim};

use super::coop::{self, AttentionTiling, MmaPrecision};
use super::variants::QueryTileSet;
use super::{AttentionProblem, AttentionSplitParams, SPLIT, split_kv, variants};
use crate::emit::{LoweringCtx, SlotView};
use tercet_program::SlotId;
use tercet_program::SymInt;

/// Number of rows in a chunk, which share a scale factor; the same number as in the shaders.
pub(super) const CHUNK: usize = 32;
/// Size in 32-bit words of the memory for the scale factor of a chunk; the same number as in the
/// shaders.
const SCALE_LEN: usize = 32;
/// Elements read per load.
const LOAD: usize = 4;

/// True if an F32 attention of up to `queries` queries runs on split-F16, assuming suitable
/// cooperative matrices.
pub(super) fn supports(
    e: &LoweringCtx<'_>,
    p: &AttentionProblem<'_>,
    queries: usize,
) -> Result<bool, CompileError> {
    let rows = queries.saturating_mul(p.group());
    let least = e.caps.device.rates.attention.min_split_f16_work;
    Ok(p.has_vectors
        && p.vector_width >= LOAD
        && p.head_dim > 0
        && rows.saturating_mul(e.bound(p.keys)?) >= least)
}

/// True if every operand fits into one binding after it is split into F16 pairs.
pub(super) fn fit(
    e: &LoweringCtx<'_>,
    p: &AttentionProblem<'_>,
    queries: usize,
    tiling: &AttentionTiling,
) -> Result<bool, CompileError> {
    let heads = e.bound(p.batch)?.saturating_mul(p.op.kv_heads);
    let [head_columns, value_columns] = tiling.dims().map(|n| n as usize);
    let keys = e.bound(p.keys)?;
    let operands = [
        (queries.saturating_mul(p.group()), head_columns),
        (keys, head_columns.max(value_columns)),
    ];
    Ok(operands.into_iter().all(|(rows, columns)| {
        let words = rows
            .div_ceil(CHUNK)
            .saturating_mul(chunk_len(columns, tiling.factors()));
        let bytes = words.saturating_mul(heads).saturating_mul(4);
        bytes as u64 <= e.caps.max_binding_bytes
    }))
}

/// Size in 32-bit words of a chunk of split rows, with its scale factor.
pub(super) fn chunk_len(columns: usize, factors: MmaPrecision) -> usize {
    CHUNK * columns * factors.pieces() as usize / 2 + SCALE_LEN
}

/// Rows of queries, keys or values to be split into F16 pairs.
pub(super) struct SplitF16Rows {
    /// Offset of the view, and its strides of batch, head and position.
    pub(super) strides: [SymInt; 4],
    /// Number of rows in a run, and the maximum number of rows.
    pub(super) count: SymInt,
    pub(super) bound: usize,
    pub(super) group: SymInt,
    pub(super) dim: SymInt,
    /// Number of columns of each of the two F16 matrices, rounded up to whole fragments.
    pub(super) columns: u32,
    /// True if a KV-length operand gives the number of valid rows.
    pub(super) has_lens: bool,
    pub(super) sign: f32,
    pub(super) factors: MmaPrecision,
}

/// Emits the split into F16 pairs, the attention and the F32 fallback. Returns the slot of the
/// fallback flags of the KV heads. The log-sum-exp is written to `lse`, except for KV heads that
/// use the fallback.
pub(super) fn emit(
    e: &mut LoweringCtx<'_>,
    p: &AttentionProblem<'_>,
    y: &SlotView,
    lse: Option<SlotId>,
    queries: usize,
    tiling: &AttentionTiling,
) -> Result<SlotId, CompileError> {
    let b = p.block.clone();
    let [q, k, v, _, _] = p.slots;
    let [head_columns, value_columns] = tiling.dims();
    let queries = SplitF16Rows {
        strides: [b.q_offset, b.q_batch, b.q_head, b.q_seq],
        count: variants::rows(e, p),
        bound: queries.saturating_mul(p.group()),
        group: b.group,
        dim: b.head_dim,
        columns: head_columns,
        has_lens: false,
        // A negative `scale` reverses the order of the scores, so its sign is applied to the
        // queries.
        sign: b.scale.signum(),
        factors: tiling.factors(),
    };
    let keys = SplitF16Rows {
        strides: [b.k_offset, b.k_batch, b.k_head, b.k_seq],
        count: b.keys,
        bound: e.bound(p.keys)?,
        group: SymInt::ONE,
        has_lens: p.op.kv_len,
        sign: 1.0,
        ..queries
    };
    let values = SplitF16Rows {
        strides: [b.v_offset, b.v_batch, b.v_head, b.v_seq],
        dim: b.value_dim,
        columns: value_columns,
        ..keys
    };
    let q = split(e, p, q, &queries)?.slot;
    let k = split(e, p, k, &keys)?.slot;
    let v = split(e, p, v, &values)?.slot;
    let rest = e.temp(DType::U32, &[p.batch.clone(), Dim::Known(p.op.kv_heads)])?;
    match lse {
        Some(lse) => coop::dispatch(e, p, [q, k, v], (y.slot, &[rest.slot, lse]), tiling),
        None => split_kv::dispatch(e, p, [q, k, v], (y, &[rest.slot]), tiling)?,
    }
    let queries = queries.bound.div_ceil(p.group());
    variants::emit_query_tiles(e, p, y, queries, QueryTileSet::Fallback(rest.slot))?;
    Ok(rest.slot)
}

/// Splits the rows of an operand into F16 pairs.
pub(super) fn split(
    e: &mut LoweringCtx<'_>,
    p: &AttentionProblem<'_>,
    operand: SlotId,
    of: &SplitF16Rows,
) -> Result<SlotView, CompileError> {
    let chunks = e.tape().ceil_div(of.count, CHUNK as u32);
    let groups = variants::groups(e, p, &[chunks]);
    let [offset, of_batch, of_head, of_seq] = of.strides;
    let params = AttentionSplitParams {
        offset,
        of_batch,
        of_head,
        of_seq,
        rows: of.count,
        group: of.group,
        heads: p.block.kv_heads,
        dim: of.dim,
        chunks,
        lens_offset: p.block.lens_offset,
        lens_stride: p.block.lens_stride,
        has_lens: of.has_lens.into(),
        groups,
        sign: of.sign,
    };
    let shape = [
        p.batch.clone(),
        Dim::Known(p.op.kv_heads),
        Dim::Known(of.bound.div_ceil(CHUNK)),
        Dim::Known(chunk_len(of.columns as usize, of.factors)),
    ];
    let pairs = e.temp(DType::U32, &shape)?;
    let grid = e.flat_grid(groups);
    let args = [operand, p.slots[4], pairs.slot];
    e.dispatch(
        &SPLIT,
        &[of.columns, of.factors.pieces()],
        &args,
        &params,
        grid,
    );
    Ok(pairs)
}

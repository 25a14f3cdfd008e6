//! F32 attention on cooperative matrices of F16, as exact as sums of F32: each number is the sum of two of F16.
//!
//! `attention_split.wgsl` makes the pairs of queries, keys and values, `attention_halves.glsl` multiplies them. Where
//! the numbers of a key head differ so much that pairs would lose more than F32 does, or are not finite, it leaves that
//! head to `attention_rest`, the kernel on F32 that reads the operands themselves.

use tercet_ir::{CompileError, DType, Dim};

use super::coop::{self, AttentionTiling, Factors};
use super::variants::Tiles;
use super::{AttentionProblem, SPLIT, SplitParams, parts, variants};
use crate::emit::{Emit, View};
use crate::num::Num;
use crate::program::SlotId;

/// Rows with one scale. As in the shaders.
pub(super) const CHUNK: usize = 32;
/// The 32-bit words that a chunk's scale takes. As in the shaders.
const SCALE_LEN: usize = 32;
/// Elements that are read at a time.
const LOAD: usize = 4;

/// True if an F32 attention of up to `queries` queries runs on pairs, given the matrices.
pub(super) fn takes(
    e: &Emit<'_>,
    p: &AttentionProblem<'_>,
    queries: usize,
) -> Result<bool, CompileError> {
    let rows = queries.saturating_mul(p.group());
    let least = e.caps.device.rates.attention.pairs;
    Ok(p.has_vectors
        && p.together >= LOAD
        && p.head_dim > 0
        && rows.saturating_mul(e.bound(p.keys)?) >= least)
}

/// True if the pairs of every operand lie in one binding.
pub(super) fn fit(
    e: &Emit<'_>,
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

/// The 32-bit words of a chunk.
pub(super) fn chunk_len(columns: usize, factors: Factors) -> usize {
    CHUNK * columns * factors.pieces() as usize / 2 + SCALE_LEN
}

/// Rows of queries, keys or values: where they begin, and how many they are.
pub(super) struct PairRows {
    /// The offset, and the strides of batch, head and position.
    pub(super) strides: [Num; 4],
    /// In a run, and at most.
    pub(super) count: Num,
    pub(super) bound: usize,
    pub(super) group: Num,
    pub(super) dim: Num,
    /// Of each half, in whole fragments.
    pub(super) columns: u32,
    /// A run may say how many count.
    pub(super) has_lens: bool,
    pub(super) sign: f32,
    pub(super) factors: Factors,
}

/// Emits the pairs, the products, and what is left; the key heads that are left. The logarithms of sums go to `lse`, but for those heads.
pub(super) fn emit(
    e: &mut Emit<'_>,
    p: &AttentionProblem<'_>,
    y: &View,
    lse: Option<SlotId>,
    queries: usize,
    tiling: &AttentionTiling,
) -> Result<SlotId, CompileError> {
    let b = p.block.clone();
    let [q, k, v, _, _] = p.slots;
    let [head_columns, value_columns] = tiling.dims();
    let queries = PairRows {
        strides: [b.q_offset, b.q_batch, b.q_head, b.q_seq],
        count: variants::rows(e, p),
        bound: queries.saturating_mul(p.group()),
        group: b.group,
        dim: b.head_dim,
        columns: head_columns,
        has_lens: false,
        // Greater products are greater scores.
        sign: b.scale.signum(),
        factors: tiling.factors(),
    };
    let keys = PairRows {
        strides: [b.k_offset, b.k_batch, b.k_head, b.k_seq],
        count: b.keys,
        bound: e.bound(p.keys)?,
        group: Num::ONE,
        has_lens: p.op.kv_len,
        sign: 1.0,
        ..queries
    };
    let values = PairRows {
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
        None => parts::dispatch(e, p, [q, k, v], (y, &[rest.slot]), tiling)?,
    }
    let queries = queries.bound.div_ceil(p.group());
    variants::many(e, p, y, queries, Tiles::Rest(rest.slot))?;
    Ok(rest.slot)
}

/// The pairs of an operand's rows.
pub(super) fn split(
    e: &mut Emit<'_>,
    p: &AttentionProblem<'_>,
    operand: SlotId,
    of: &PairRows,
) -> Result<View, CompileError> {
    let chunks = e.tape().ceil_div(of.count, CHUNK as u32);
    let groups = variants::groups(e, p, &[chunks]);
    let [offset, of_batch, of_head, of_seq] = of.strides;
    let params = SplitParams {
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

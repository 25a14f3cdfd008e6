//! Kernel variants of attention: their selection, their parameters and their dispatch grids.

use tercet_ir::{CompileError, DType, Dim, VariantFamily};

use super::coop::AttentionTiling;
use super::{
    AttentionCombineParams, AttentionParams, AttentionProblem, COMBINE, DECODE_WIDE, REST, coop,
    flash_decoding, fused_decode, pairs, single_query, split_kv, wgsl_matrices,
};
use crate::emit::{LoweringCtx, SlotView};
use crate::lowerings::rope::append::RopeAppend;
use crate::lowerings::{code, dequant};
use crate::tuning::TuningKey;
use crate::variant::{self, KernelVariant, VariantRejection, needs};
use tercet_program::SlotId;
use tercet_program::SymInt;

/// Maximum number of query rows per KV head for the portable split-KV kernels (`attention_decode`).
/// With more rows, the kernels with tiles of query rows are faster, because they reuse loaded keys.
const MAX_SPLIT_KV_ROWS: usize = 16;
/// Maximum number of four-element query vectors that a workgroup keeps in shared memory.
const QUERY_VECTORS: usize = 256;
/// Minimum number of keys per workgroup if the number of compute units is unknown.
const MIN_KEYS_PER_WORKGROUP: usize = 128;
/// Number of keys per loop step of the kernels for few query rows.
const STEP_KEYS: usize = 64;
/// Maximum head size of queries and values for `attention_decode_wide`.
const WIDE_DIM: usize = 128;
/// Shared memory in bytes that `attention_large` needs.
const LARGE_BYTES: u32 = 20 << 10;
/// Minimum number of workgroups for which tiles of 128 query rows are used.
const MIN_WORKGROUPS_FOR_TILE128: usize = 32;

/// Emits the kernels for few or for many queries, or a shape switch between both. If `before` (RoPE
/// and cache update) is present, it is emitted first or fused into the attention.
///
/// If `y` is F32 and the operands are not, the result is rounded to their dtype first.
pub(super) fn emit(
    e: &mut LoweringCtx<'_>,
    p: &AttentionProblem<'_>,
    y: &SlotView,
    before: Option<RopeAppend>,
) -> Result<(), CompileError> {
    let (before, token) = match before {
        Some(append) if fused_decode::supports(e, p, &append)? => (None, Some(append)),
        before => (before, None),
    };
    before.into_iter().for_each(|append| append.emit(e));
    if p.value_dim == 0 {
        return Ok(());
    }
    let bound = e.bound(p.queries)?;
    let limit = match p.head_dim.div_ceil(4) <= QUERY_VECTORS {
        true => (MAX_SPLIT_KV_ROWS / p.group()).max(1),
        false => 0,
    };
    // A single query always uses the kernels for few query rows.
    let bounds: &[u32] = match limit {
        0 => &[],
        1 => &[1],
        limit => &[1, limit as u32],
    };
    let rounded = match y.dtype {
        dtype if dtype == p.result_dtype => y.clone(),
        _ => SlotView {
            layout: y.layout.clone(),
            ..e.temp(p.result_dtype, y.layout.shape())?
        },
    };
    e.switch_on_size(p.queries, bounds, |e, arm| {
        let most = bounds.get(arm).map(|most| bound.min(*most as usize));
        if let Some(append) = &token {
            if most.is_some_and(|most| most <= 1) {
                return fused_decode::emit(e, p, y, append);
            }
            append.emit(e);
        }
        let queries = most.unwrap_or(bound);
        let asked = BoundedAttention {
            problem: p,
            y: &rounded,
            queries,
        };
        let heads = e.bound(p.batch)?.saturating_mul(p.op.kv_heads);
        let sizes = [heads, p.group(), queries, e.bound(p.keys)?, p.head_dim];
        let measured = e
            .caps
            .device
            .tuning
            .find(|| TuningKey::attention(p.dtype, sizes));
        match most {
            Some(_) => variant::run(e, FEW, &few_query_variants(), measured, &asked)?,
            None => variant::run(e, MANY, &many_query_variants(), measured, &asked)?,
        }
        if rounded.slot != y.slot {
            dequant::widen_floats(e, &rounded, y);
        }
        Ok(())
    })
}

/// An attention that is being lowered for runs with at most `queries` queries.
struct BoundedAttention<'p> {
    problem: &'p AttentionProblem<'p>,
    y: &'p SlotView,
    queries: usize,
}

impl BoundedAttention<'_> {
    fn heads(&self, e: &LoweringCtx<'_>) -> Result<f64, CompileError> {
        Ok(e.bound(self.problem.batch)? as f64 * self.problem.op.kv_heads as f64)
    }

    /// Estimated time in seconds of a kernel that takes `times` as long as reading keys and values
    /// once.
    fn kv_read_seconds(&self, e: &LoweringCtx<'_>, times: f64) -> Result<f64, CompileError> {
        let p = self.problem;
        let dims = (p.head_dim + p.value_dim) as f64;
        let keys = self.heads(e)? * e.bound(p.keys)? as f64;
        let bytes = keys * dims * p.dtype.size_bytes() as f64;
        let rates = e.caps.device.rates;
        Ok(rates.dispatch_s + bytes / rates.bytes_per_s * times)
    }

    /// Estimated time in seconds of a kernel that takes `times` as long as the two matmuls of the
    /// attention at `per_s` multiply-adds per second and compute unit.
    fn seconds_of_products(
        &self,
        e: &LoweringCtx<'_>,
        [per_s, times]: [f64; 2],
    ) -> Result<f64, CompileError> {
        let p = self.problem;
        let scores = (self.queries * p.group()) as f64 * e.bound(p.keys)? as f64;
        let products = self.heads(e)? * scores * (p.head_dim + p.value_dim) as f64;
        let units = e.caps.units() as f64;
        Ok(e.caps.device.rates.dispatch_s + products * times / (per_s * units))
    }

    fn coop_tiling(&self, e: &LoweringCtx<'_>) -> Result<AttentionTiling, VariantRejection> {
        let tiling = coop::tiling(e, self.problem, self.y, self.queries)?;
        let what = "F16 cooperative matrices, enough registers and shared memory, head sizes in whole vectors";
        tiling.ok_or(VariantRejection::Needs(what.into()))
    }
}

/// Family of the variants for a single query and for few queries.
const FEW: &str = "attention_few";
/// Family of the variants for many queries.
const MANY: &str = "attention";

/// The families of attention with the names of their variants.
pub(in crate::lowerings) fn families() -> [VariantFamily; 2] {
    [
        variant::family(FEW, &[&few_query_variants()]),
        variant::family(MANY, &[&many_query_variants()]),
    ]
}

/// Kernel variants for a single query and for few queries.
fn few_query_variants<'p>() -> [KernelVariant<BoundedAttention<'p>>; 3] {
    [
        KernelVariant {
            name: "pieces",
            supports: |e, a| {
                needs(a.queries == 1, "one query")?;
                let cut = flash_decoding::cut(e, a.problem, a.y)?;
                let what =
                    "F16 cooperative matrices, many keys, no mask operand, head size 32, 64 or 128";
                needs(cut.is_some(), what)
            },
            cost: |e, a| a.kv_read_seconds(e, e.caps.device.rates.attention.single_query[0]),
            emit: |e, a| match flash_decoding::cut(e, a.problem, a.y)? {
                Some(cut) => flash_decoding::emit(e, a.problem, a.y, &cut),
                None => unreachable!("invariant: the variant supports it"),
            },
        },
        KernelVariant {
            name: "one",
            supports: |_, a| {
                needs(a.queries == 1, "one query")?;
                needs(
                    single_query::supports(a.problem),
                    "no mask operand, head sizes up to 128 in whole vectors",
                )
            },
            cost: |e, a| a.kv_read_seconds(e, e.caps.device.rates.attention.single_query[1]),
            emit: |e, a| single_query::emit(e, a.problem, a.y),
        },
        KernelVariant {
            name: "ranges",
            supports: |_, _| Ok(()),
            cost: |e, a| a.kv_read_seconds(e, e.caps.device.rates.attention.single_query[2]),
            emit: |e, a| emit_split_kv(e, a.problem, a.y, a.queries),
        },
    ]
}

/// Kernel variant for many queries with few keys, on mma-style fragments.
fn mma_variants<'p>() -> KernelVariant<BoundedAttention<'p>> {
    KernelVariant {
        name: "lanes",
        supports: |e, a| {
            let tiling = coop::mma::tiling(e, a.problem, a.y, a.queries)?;
            let what =
                "few keys, F16 heads of size 64, no mask operand, and the mma fragment layout";
            needs(tiling.is_some(), what)
        },
        cost: |e, a| {
            let rates = e.caps.device.rates;
            a.seconds_of_products(e, [rates.matrices.per_s, rates.attention.many_queries[4]])
        },
        emit: |e, a| match coop::mma::tiling(e, a.problem, a.y, a.queries)? {
            Some(tiling) => {
                coop::mma::emit(e, a.problem, a.y, &tiling);
                Ok(())
            }
            None => unreachable!("invariant: the variant supports it"),
        },
    }
}

/// Kernel variant for many queries on cooperative matrices in WGSL.
fn wgsl_variant<'p>() -> KernelVariant<BoundedAttention<'p>> {
    KernelVariant {
        name: wgsl_matrices::WGSL_MATRICES,
        supports: |e, a| {
            let tiling = wgsl_matrices::tiling(e, a.problem, a.queries)?;
            let what = "cooperative matrices in WGSL of the operands' type, enough shared memory, head sizes in whole vectors";
            needs(tiling.is_some(), what)
        },
        cost: |e, a| {
            let rates = e.caps.device.rates;
            a.seconds_of_products(e, [rates.matrices.per_s, rates.attention.many_queries[5]])
        },
        emit: |e, a| match wgsl_matrices::tiling(e, a.problem, a.queries)? {
            Some(tiling) => {
                wgsl_matrices::emit(e, a.problem, a.y, &tiling);
                Ok(())
            }
            None => unreachable!("invariant: the variant supports it"),
        },
    }
}

/// Variants for many queries.
fn many_query_variants<'p>() -> [KernelVariant<BoundedAttention<'p>>; 6] {
    [
        mma_variants(),
        KernelVariant {
            name: "matrices",
            supports: |e, a| {
                needs(a.problem.dtype != DType::F32, "16-bit floats")?;
                a.coop_tiling(e).map(drop)
            },
            cost: |e, a| {
                let rates = e.caps.device.rates;
                a.seconds_of_products(e, [rates.matrices.per_s, rates.attention.many_queries[0]])
            },
            emit: |e, a| match coop::tiling(e, a.problem, a.y, a.queries)? {
                Some(tiling) => {
                    let [q, k, v, ..] = a.problem.slots;
                    split_kv::dispatch(e, a.problem, [q, k, v], (a.y, &[]), &tiling)
                }
                None => unreachable!("invariant: the variant supports it"),
            },
        },
        KernelVariant {
            name: "pairs",
            supports: |e, a| {
                needs(a.problem.dtype == DType::F32, "F32")?;
                a.coop_tiling(e).map(drop)
            },
            cost: |e, a| {
                let rates = e.caps.device.rates;
                a.seconds_of_products(e, [rates.matrices.per_s, rates.attention.many_queries[1]])
            },
            emit: |e, a| match coop::tiling(e, a.problem, a.y, a.queries)? {
                Some(tiling) => pairs::emit(e, a.problem, a.y, None, a.queries, &tiling).map(drop),
                None => unreachable!("invariant: the variant supports it"),
            },
        },
        wgsl_variant(),
        KernelVariant {
            name: "tiles_large",
            supports: |e, a| {
                let rows = a.queries.saturating_mul(a.problem.group());
                let is_large = uses_tile128(e, a.problem, rows)?;
                needs(
                    is_large,
                    "more tiles of 128 rows than compute units, value head size up to 64",
                )
            },
            cost: |e, a| {
                let rates = e.caps.device.rates;
                a.seconds_of_products(e, [rates.tiles.per_s, rates.attention.many_queries[2]])
            },
            emit: |e, a| emit_query_tiles(e, a.problem, a.y, a.queries, QueryTileSet::Tile128),
        },
        KernelVariant {
            name: "tiles",
            supports: |_, _| Ok(()),
            cost: |e, a| {
                let rates = e.caps.device.rates;
                a.seconds_of_products(e, [rates.tiles.per_s, rates.attention.many_queries[3]])
            },
            emit: |e, a| emit_query_tiles(e, a.problem, a.y, a.queries, QueryTileSet::All),
        },
    ]
}

/// The tiles of query rows that a dispatch of the tiled F32 kernels processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QueryTileSet {
    /// All query rows, in tiles of 128 rows (`attention_large`).
    Tile128,
    /// All query rows, in small tiles (`attention`).
    All,
    /// All query rows, in small tiles, with the log-sum-exp of each row stored in this slot.
    WithLse(SlotId),
    /// Only the query rows of the KV heads that are flagged in this slot (F32 fallback).
    Fallback(SlotId),
}

/// Number of query rows per KV head, as a symbolic integer.
pub(super) fn rows(e: &mut LoweringCtx<'_>, p: &AttentionProblem<'_>) -> SymInt {
    e.tape().mul(p.block.queries, p.block.group)
}

/// Number of workgroups: the product of batch entries, KV heads and all `factors`.
pub(super) fn groups(
    e: &mut LoweringCtx<'_>,
    p: &AttentionProblem<'_>,
    factors: &[SymInt],
) -> SymInt {
    let tape = e.tape();
    let heads = tape.mul(p.block.batch, p.block.kv_heads);
    factors.iter().fold(heads, |n, f| tape.mul(n, *f))
}

/// Whether to use tiles of 128 query rows: they reuse loaded keys and values more, but need more
/// shared memory and may give too few workgroups.
fn uses_tile128(
    e: &LoweringCtx<'_>,
    p: &AttentionProblem<'_>,
    rows: usize,
) -> Result<bool, CompileError> {
    let heads = e.bound(p.batch)?.saturating_mul(p.op.kv_heads);
    let groups = rows.div_ceil(128).saturating_mul(heads);
    let enough = groups
        >= e.caps
            .device
            .units
            .map_or(0, |n| n as usize)
            .max(MIN_WORKGROUPS_FOR_TILE128);
    Ok(enough && e.caps.workgroup_bytes >= LARGE_BYTES && rows > 32 && p.value_dim <= 64)
}

/// Emits the attention kernel that processes tiles of query rows.
pub(super) fn emit_query_tiles(
    e: &mut LoweringCtx<'_>,
    p: &AttentionProblem<'_>,
    y: &SlotView,
    queries: usize,
    which: QueryTileSet,
) -> Result<(), CompileError> {
    let max_rows = queries.saturating_mul(p.group());
    let is_large = which == QueryTileSet::Tile128;
    let own_columns: usize = match p.value_dim {
        0..=64 => 1,
        65..=128 => 2,
        _ => 4,
    };
    let own_rows: u32 = match max_rows {
        _ if is_large => 8,
        0..=16 => 1,
        17..=32 => 2,
        _ => 4,
    };
    let rows = rows(e, p);
    let tiles = e.tape().ceil_div(rows, 16 * own_rows);
    let slices = SymInt::Const(p.value_dim.div_ceil(64 * own_columns) as i64);
    let groups = groups(e, p, &[tiles, slices]);
    let params = AttentionParams {
        tiles,
        slices,
        groups,
        ..p.block.clone()
    };
    let mut consts = p.consts(y.dtype);
    if !is_large {
        consts.extend([own_rows, own_columns as u32]);
    }
    let (kernel, rest) = match which {
        QueryTileSet::Tile128 => (&p.kernels().large, None),
        QueryTileSet::All => (&p.kernels().tiles, None),
        QueryTileSet::WithLse(slot) => (p.lse_kernel(), Some(slot)),
        QueryTileSet::Fallback(slot) => (&REST, Some(slot)),
    };
    let [q, k, v, mask, lens] = p.slots;
    let grid = e.flat_grid(groups);
    let mut args = vec![q, k, v, mask, lens, y.slot];
    args.extend(rest);
    e.dispatch(kernel, &consts, &args, &params, grid);
    Ok(())
}

/// True if `attention_decode_wide` processes few query rows, instead of `attention_decode`.
fn uses_wide_decode(p: &AttentionProblem<'_>) -> bool {
    let dims = [p.head_dim, p.value_dim];
    p.has_vectors
        && p.vector_width == 8
        && p.dtype != DType::F32
        && dims.into_iter().all(|d| (1..=WIDE_DIM).contains(&d))
}

/// Configuration of the portable split-KV kernels for few query rows.
struct KvSplit {
    /// Query rows per workgroup.
    rows: usize,
    /// Number of threads that share a row of values, and number of columns that each of them
    /// computes.
    columns: usize,
    own_columns: usize,
    /// Number of keys per workgroup, and number of key ranges for the maximum number of keys.
    split_keys: usize,
    splits: usize,
}

impl KvSplit {
    fn new(
        e: &LoweringCtx<'_>,
        p: &AttentionProblem<'_>,
        queries: usize,
    ) -> Result<KvSplit, CompileError> {
        let rows = queries.saturating_mul(p.group()).max(1);
        let held = QUERY_VECTORS / p.head_dim.div_ceil(4).max(1);
        let own_rows = rows
            .next_power_of_two()
            .min(1 << held.max(1).ilog2())
            .min(8);
        let (own_columns, most) = if uses_wide_decode(p) {
            (8, 16)
        } else {
            (4, 256)
        };
        let columns = p.value_dim.div_ceil(own_columns).next_power_of_two();
        let keys = e.bound(p.keys)?;
        let others = e.bound(p.batch)?.max(1) * p.op.kv_heads * rows.div_ceil(own_rows);
        let (enough, least) = match e.caps.device.units {
            Some(known) => (2 * known as usize, STEP_KEYS),
            None => (8 * e.caps.device.max_units(), MIN_KEYS_PER_WORKGROUP),
        };
        let wanted = enough.div_ceil(others).min(256);
        let split_keys = keys.div_ceil(wanted).next_multiple_of(STEP_KEYS).max(least);
        Ok(KvSplit {
            rows: own_rows,
            columns: columns.clamp(4, most),
            own_columns,
            split_keys,
            splits: keys.div_ceil(split_keys).max(1),
        })
    }
}

/// Emits the kernel that processes key ranges, and the combining kernel if there are several
/// ranges.
fn emit_split_kv(
    e: &mut LoweringCtx<'_>,
    p: &AttentionProblem<'_>,
    y: &SlotView,
    queries: usize,
) -> Result<(), CompileError> {
    let cut = KvSplit::new(e, p, queries)?;
    let is_split = cut.splits > 1;
    let rows = rows(e, p);
    let tiles = e.tape().ceil_div(rows, cut.rows as u32);
    let slices = SymInt::Const(p.value_dim.div_ceil(cut.own_columns * cut.columns) as i64);
    let splits = match is_split {
        true => e.tape().ceil_div(p.block.keys, cut.split_keys as u32),
        false => SymInt::ONE,
    };
    let groups = groups(e, p, &[tiles, slices, splits]);
    let params = AttentionParams {
        tiles,
        slices,
        splits,
        split_keys: SymInt::Const(cut.split_keys as i64),
        groups,
        ..p.block.clone()
    };
    let grid = e.flat_grid(groups);
    // Partial results of each key range and query row: weighted sums of values (`to`), and the
    // largest score with the sum of softmax weights (`stats`).
    let (to, stats) = match is_split {
        true => {
            let known = |n: usize| Dim::Known(n);
            let heads = known(p.op.q_heads);
            let shape = |last| {
                [
                    p.batch.clone(),
                    heads.clone(),
                    known(queries),
                    known(cut.splits),
                    last,
                ]
            };
            let sums = e.temp(DType::F32, &shape(known(p.value_dim)))?;
            (sums, e.temp(DType::U32, &shape(known(2)))?)
        }
        // A dummy slot for the softmax statistics; nothing is written to it.
        false => (y.clone(), e.temp(DType::U32, &[])?),
    };
    let mut consts = p.consts(to.dtype);
    consts.extend([cut.rows as u32, cut.columns as u32, u32::from(is_split)]);
    let [q, k, v, mask, lens] = p.slots;
    let args = [q, k, v, mask, lens, to.slot, stats.slot];
    let kernel = match uses_wide_decode(p) {
        true => {
            // Four threads share a key, and each reads 8 of its elements per step.
            consts.push(p.head_dim.div_ceil(32) as u32);
            &DECODE_WIDE
        }
        false => &p.kernels().decode,
    };
    e.dispatch(kernel, &consts, &args, &params, grid);
    if is_split {
        combine(e, p, [&to, &stats, y], &params);
    }
    Ok(())
}

fn combine(
    e: &mut LoweringCtx<'_>,
    p: &AttentionProblem<'_>,
    [sums, stats, y]: [&SlotView; 3],
    of: &AttentionParams,
) {
    let lanes = 4 / y.dtype.size_bytes();
    let blocks = SymInt::Const(p.value_dim.div_ceil(64 * lanes) as i64);
    let rows = rows(e, p);
    let groups = groups(e, p, &[rows, blocks]);
    let params = AttentionCombineParams {
        y_batch: of.y_batch,
        y_head: of.y_head,
        y_seq: of.y_seq,
        lens_offset: of.lens_offset,
        lens_stride: of.lens_stride,
        has_lens: of.has_lens,
        causal: of.causal,
        window: of.window,
        queries: of.queries,
        keys: of.keys,
        kv_heads: of.kv_heads,
        group: of.group,
        value_dim: of.value_dim,
        splits: of.splits,
        split_keys: of.split_keys,
        blocks,
        groups,
    };
    let grid = e.flat_grid(groups);
    let args = [sums.slot, stats.slot, p.slots[4], y.slot];
    e.dispatch(&COMBINE, &[code(y.dtype)], &args, &params, grid);
}

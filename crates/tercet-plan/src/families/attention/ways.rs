//! Which kernels an attention runs on, and their grids.

use tercet_ir::{CompileError, DType, Dim};

use super::{AttentionParams, COMBINE, CombineParams, DECODE, Problem, TILES, coop};
use crate::emit::{Emit, View};
use crate::families::code;
use crate::num::Num;

/// Rows of a key head up to which the keys are split: beyond, tiles of rows read them less often.
const FEW_ROWS: usize = 16;
/// Vectors of four elements that the queries of a workgroup take in shared memory.
const QUERY_VECTORS: usize = 256;
/// The least keys of a workgroup.
const LEAST_KEYS: usize = 128;
/// The keys of one step of `attention_decode`.
const STEP_KEYS: usize = 64;
/// Workgroups that keep the largest devices busy.
const ENOUGH_GROUPS: usize = 2048;

/// Emits the way, or both where the number of queries decides.
pub(super) fn emit(e: &mut Emit<'_>, p: &Problem<'_>, y: &View) -> Result<(), CompileError> {
    if p.value_dim == 0 {
        return Ok(());
    }
    let bound = e.bound(p.queries)?;
    let limit = match p.head_dim.div_ceil(4) <= QUERY_VECTORS {
        true => (FEW_ROWS / p.group()).max(1),
        false => 0,
    };
    let bounds: &[u32] = match limit {
        0 => &[],
        limit => &[limit as u32],
    };
    e.choose(p.queries, bounds, |e, arm| match (arm, limit) {
        (0, 1..) => few(e, p, y, bound.min(limit)),
        _ => {
            match coop::tiling(e, p, y, bound)? {
                Some(tiling) => coop::dispatch(e, p, y, &tiling),
                None => many(e, p, y, bound),
            }
            Ok(())
        }
    })
}

/// The rows of a key head in each run.
pub(super) fn rows(e: &mut Emit<'_>, p: &Problem<'_>) -> Num {
    e.tape().mul(p.block.queries, p.block.group)
}

/// Workgroups for each batch entry and key head, times `factors`.
pub(super) fn groups(e: &mut Emit<'_>, p: &Problem<'_>, factors: &[Num]) -> Num {
    let tape = e.tape();
    let heads = tape.mul(p.block.batch, p.block.kv_heads);
    factors.iter().fold(heads, |n, f| tape.mul(n, *f))
}

/// Tiles of rows.
fn many(e: &mut Emit<'_>, p: &Problem<'_>, y: &View, queries: usize) {
    let own_rows = match queries.saturating_mul(p.group()) {
        0..=16 => 1,
        17..=32 => 2,
        _ => 4,
    };
    let own_columns: usize = match p.value_dim {
        0..=64 => 1,
        65..=128 => 2,
        _ => 4,
    };
    let rows = rows(e, p);
    let tiles = e.tape().ceil_div(rows, 16 * own_rows);
    let slices = Num::Const(p.value_dim.div_ceil(64 * own_columns) as i64);
    let groups = groups(e, p, &[tiles, slices]);
    let params = AttentionParams {
        tiles,
        slices,
        groups,
        ..p.block.clone()
    };
    let mut consts = p.consts(y.dtype);
    consts.extend([own_rows, own_columns as u32]);
    let [q, k, v, mask, lens] = p.slots;
    let grid = e.flat_grid(groups);
    let args = [q, k, v, mask, lens, y.slot];
    e.dispatch(&TILES, &consts, &args, &params, grid);
}

/// How few rows are cut.
struct Cut {
    /// Rows of a workgroup.
    rows: usize,
    /// Invocations that share a value.
    columns: usize,
    /// Keys of a workgroup, and how many such ranges there are at the bounds.
    split_keys: usize,
    splits: usize,
}

impl Cut {
    fn of(e: &Emit<'_>, p: &Problem<'_>, queries: usize) -> Result<Cut, CompileError> {
        let rows = queries.saturating_mul(p.group()).max(1);
        let held = QUERY_VECTORS / p.head_dim.div_ceil(4).max(1);
        let own_rows = rows
            .next_power_of_two()
            .min(1 << held.max(1).ilog2())
            .min(8);
        let columns = p.value_dim.div_ceil(4).next_power_of_two().clamp(4, 256);
        let keys = e.bound(p.keys)?;
        let others = e.bound(p.batch)?.max(1) * p.op.kv_heads * rows.div_ceil(own_rows);
        let wanted = ENOUGH_GROUPS.div_ceil(others).min(256);
        let least = keys.div_ceil(wanted).next_multiple_of(STEP_KEYS);
        let split_keys = least.max(LEAST_KEYS);
        Ok(Cut {
            rows: own_rows,
            columns,
            split_keys,
            splits: keys.div_ceil(split_keys).max(1),
        })
    }
}

/// Ranges of keys, and what puts them together.
fn few(e: &mut Emit<'_>, p: &Problem<'_>, y: &View, queries: usize) -> Result<(), CompileError> {
    let cut = Cut::of(e, p, queries)?;
    let is_split = cut.splits > 1;
    let rows = rows(e, p);
    let tiles = e.tape().ceil_div(rows, cut.rows as u32);
    let slices = Num::Const(p.value_dim.div_ceil(4 * cut.columns) as i64);
    let splits = match is_split {
        true => e.tape().ceil_div(p.block.keys, cut.split_keys as u32),
        false => Num::ONE,
    };
    let groups = groups(e, p, &[tiles, slices, splits]);
    let params = AttentionParams {
        tiles,
        slices,
        splits,
        split_keys: Num::Const(cut.split_keys as i64),
        groups,
        ..p.block.clone()
    };
    let grid = e.flat_grid(groups);
    // Each range's sums, greatest score and weights, by row.
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
        // Nothing is written there.
        false => (y.clone(), e.temp(DType::U32, &[])?),
    };
    let mut consts = p.consts(to.dtype);
    consts.extend([cut.rows as u32, cut.columns as u32, u32::from(is_split)]);
    let [q, k, v, mask, lens] = p.slots;
    let args = [q, k, v, mask, lens, to.slot, stats.slot];
    e.dispatch(&DECODE, &consts, &args, &params, grid);
    if is_split {
        combine(e, p, [&to, &stats, y], &params);
    }
    Ok(())
}

fn combine(e: &mut Emit<'_>, p: &Problem<'_>, [sums, stats, y]: [&View; 3], of: &AttentionParams) {
    let lanes = 4 / y.dtype.size_bytes();
    let blocks = Num::Const(p.value_dim.div_ceil(64 * lanes) as i64);
    let rows = rows(e, p);
    let groups = groups(e, p, &[rows, blocks]);
    let params = CombineParams {
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

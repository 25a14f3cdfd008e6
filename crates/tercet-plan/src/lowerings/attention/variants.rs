//! Which kernels an attention runs on, and their grids.

use tercet_ir::{CompileError, DType, Dim};

use super::coop::AttentionTiling;
use super::{
    AttentionParams, AttentionProblem, COMBINE, CombineParams, DECODE_WIDE, REST, coop,
    flash_decoding, one, pairs, parts, token,
};
use crate::emit::{Emit, View};
use crate::families::code;
use crate::families::rope::append::Append;
use crate::num::Num;
use crate::program::SlotId;
use crate::tuning::Key;
use crate::variant::{self, Refusal, Variant, needs};

/// Rows of a key head up to which the keys are split: beyond, tiles of rows read them less often.
const FEW_ROWS: usize = 16;
/// Vectors of four elements that the queries of a workgroup take in shared memory.
const QUERY_VECTORS: usize = 256;
/// The least keys of a workgroup where it is not known how many keep the device busy.
const LEAST_KEYS: usize = 128;
/// The keys of one step of the kernels of few rows.
const STEP_KEYS: usize = 64;
/// The most elements of a query and of a value that `attention_decode_wide` takes.
const WIDE_DIM: usize = 128;
/// Shared memory of `attention_large`.
const LARGE_BYTES: u32 = 20 << 10;
/// The least workgroups of so many rows.
const MANY_GROUPS: usize = 32;

/// Emits the way, or both where the number of queries decides. Where `before` is what turns queries, keys and values
/// for it, that is emitted, too, or done by the way.
pub(super) fn emit(
    e: &mut Emit<'_>,
    p: &AttentionProblem<'_>,
    y: &View,
    before: Option<Append>,
) -> Result<(), CompileError> {
    let (before, token) = match before {
        Some(append) if token::takes(e, p, &append)? => (None, Some(append)),
        before => (before, None),
    };
    before.into_iter().for_each(|append| append.emit(e));
    if p.value_dim == 0 {
        return Ok(());
    }
    let bound = e.bound(p.queries)?;
    let limit = match p.head_dim.div_ceil(4) <= QUERY_VECTORS {
        true => (FEW_ROWS / p.group()).max(1),
        false => 0,
    };
    // One query is worth kernels of as many rows as it has.
    let bounds: &[u32] = match limit {
        0 => &[],
        1 => &[1],
        limit => &[1, limit as u32],
    };
    e.choose(p.queries, bounds, |e, arm| {
        let most = bounds.get(arm).map(|most| bound.min(*most as usize));
        if let Some(append) = &token {
            if most.is_some_and(|most| most <= 1) {
                return token::emit(e, p, y, append);
            }
            append.emit(e);
        }
        let queries = most.unwrap_or(bound);
        let asked = Asked {
            problem: p,
            y,
            queries,
        };
        let heads = e.bound(p.batch)?.saturating_mul(p.op.kv_heads);
        let sizes = [heads, p.group(), queries, e.bound(p.keys)?, p.head_dim];
        let measured = e.caps.device.tuning.find(|| Key::attention(p.dtype, sizes));
        match most {
            Some(_) => variant::run(e, &of_few(), measured, &asked),
            None => variant::run(e, &of_many(), measured, &asked),
        }
    })
}

/// An attention of so many queries at most.
struct Asked<'p> {
    problem: &'p AttentionProblem<'p>,
    y: &'p View,
    queries: usize,
}

impl Asked<'_> {
    fn heads(&self, e: &Emit<'_>) -> Result<f64, CompileError> {
        Ok(e.bound(self.problem.batch)? as f64 * self.problem.op.kv_heads as f64)
    }

    /// What reading keys and values once takes, this many times as long.
    fn seconds_of_reading(&self, e: &Emit<'_>, times: f64) -> Result<f64, CompileError> {
        let p = self.problem;
        let dims = (p.head_dim + p.value_dim) as f64;
        let keys = self.heads(e)? * e.bound(p.keys)? as f64;
        let bytes = keys * dims * p.dtype.size_bytes() as f64;
        let rates = e.caps.device.rates;
        Ok(rates.dispatch_s + bytes / rates.bytes_per_s * times)
    }

    /// What its products take at this rate of a unit, this many times as long.
    fn seconds_of_products(
        &self,
        e: &Emit<'_>,
        [per_s, times]: [f64; 2],
    ) -> Result<f64, CompileError> {
        let p = self.problem;
        let scores = (self.queries * p.group()) as f64 * e.bound(p.keys)? as f64;
        let products = self.heads(e)? * scores * (p.head_dim + p.value_dim) as f64;
        let units = e.caps.units() as f64;
        Ok(e.caps.device.rates.dispatch_s + products * times / (per_s * units))
    }

    fn on_matrices(&self, e: &Emit<'_>) -> Result<AttentionTiling, Refusal> {
        let tiling = coop::tiling(e, self.problem, self.y, self.queries)?;
        let what = "cooperative matrices of F16, room for them, whole vectors of heads";
        tiling.ok_or(Refusal::Needs(what.into()))
    }
}

/// The variants of one query or few.
fn of_few<'p>() -> [Variant<Asked<'p>>; 3] {
    [
        Variant {
            name: "pieces",
            supports: |e, a| {
                needs(a.queries == 1, "one query")?;
                let cut = flash_decoding::cut(e, a.problem, a.y)?;
                let what =
                    "cooperative matrices of F16, many keys, no mask, heads of 32, 64 or 128";
                needs(cut.is_some(), what)
            },
            cost: |e, a| a.seconds_of_reading(e, e.caps.device.rates.attention.one_query[0]),
            emit: |e, a| match flash_decoding::cut(e, a.problem, a.y)? {
                Some(cut) => flash_decoding::emit(e, a.problem, a.y, &cut),
                None => unreachable!("invariant: the variant supports it"),
            },
        },
        Variant {
            name: "one",
            supports: |_, a| {
                needs(a.queries == 1, "one query")?;
                needs(
                    one::takes(a.problem),
                    "no mask and whole vectors of heads of up to 128",
                )
            },
            cost: |e, a| a.seconds_of_reading(e, e.caps.device.rates.attention.one_query[1]),
            emit: |e, a| one::emit(e, a.problem, a.y),
        },
        Variant {
            name: "ranges",
            supports: |_, _| Ok(()),
            cost: |e, a| a.seconds_of_reading(e, e.caps.device.rates.attention.one_query[2]),
            emit: |e, a| few(e, a.problem, a.y, a.queries),
        },
    ]
}

/// Few keys of many queries, on matrices that invocations fill.
fn of_lanes<'p>() -> Variant<Asked<'p>> {
    Variant {
        name: "lanes",
        supports: |e, a| {
            let tiling = coop::lanes::tiling(e, a.problem, a.y, a.queries)?;
            let what = "few keys, F16 heads of 64, no mask of values, known places in matrices";
            needs(tiling.is_some(), what)
        },
        cost: |e, a| {
            let rates = e.caps.device.rates;
            a.seconds_of_products(e, [rates.matrices.per_s, rates.attention.many_queries[4]])
        },
        emit: |e, a| match coop::lanes::tiling(e, a.problem, a.y, a.queries)? {
            Some(tiling) => {
                coop::lanes::emit(e, a.problem, a.y, &tiling);
                Ok(())
            }
            None => unreachable!("invariant: the variant supports it"),
        },
    }
}

/// The variants of many queries.
fn of_many<'p>() -> [Variant<Asked<'p>>; 5] {
    [
        of_lanes(),
        Variant {
            name: "matrices",
            supports: |e, a| {
                needs(a.problem.dtype != DType::F32, "16-bit floats")?;
                a.on_matrices(e).map(drop)
            },
            cost: |e, a| {
                let rates = e.caps.device.rates;
                a.seconds_of_products(e, [rates.matrices.per_s, rates.attention.many_queries[0]])
            },
            emit: |e, a| match coop::tiling(e, a.problem, a.y, a.queries)? {
                Some(tiling) => {
                    let [q, k, v, ..] = a.problem.slots;
                    parts::dispatch(e, a.problem, [q, k, v], (a.y, &[]), &tiling)
                }
                None => unreachable!("invariant: the variant supports it"),
            },
        },
        Variant {
            name: "pairs",
            supports: |e, a| {
                needs(a.problem.dtype == DType::F32, "F32")?;
                a.on_matrices(e).map(drop)
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
        Variant {
            name: "tiles_large",
            supports: |e, a| {
                let rows = a.queries.saturating_mul(a.problem.group());
                let is_large = is_large(e, a.problem, rows)?;
                needs(
                    is_large,
                    "more tiles of 128 rows than units, values of up to 64",
                )
            },
            cost: |e, a| {
                let rates = e.caps.device.rates;
                a.seconds_of_products(e, [rates.tiles.per_s, rates.attention.many_queries[2]])
            },
            emit: |e, a| many(e, a.problem, a.y, a.queries, Tiles::Large),
        },
        Variant {
            name: "tiles",
            supports: |_, _| Ok(()),
            cost: |e, a| {
                let rates = e.caps.device.rates;
                a.seconds_of_products(e, [rates.tiles.per_s, rates.attention.many_queries[3]])
            },
            emit: |e, a| many(e, a.problem, a.y, a.queries, Tiles::All),
        },
    ]
}

/// Which tiles of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tiles {
    /// All of them, 128 rows each.
    Large,
    /// All of them.
    All,
    /// Those of the key heads that this slot names.
    Rest(SlotId),
}

/// The rows of a key head in each run.
pub(super) fn rows(e: &mut Emit<'_>, p: &AttentionProblem<'_>) -> Num {
    e.tape().mul(p.block.queries, p.block.group)
}

/// Workgroups for each batch entry and key head, times `factors`.
pub(super) fn groups(e: &mut Emit<'_>, p: &AttentionProblem<'_>, factors: &[Num]) -> Num {
    let tape = e.tape();
    let heads = tape.mul(p.block.batch, p.block.kv_heads);
    factors.iter().fold(heads, |n, f| tape.mul(n, *f))
}

/// Whether so many rows make enough workgroups of 128: each reads keys and values less often and uses them
/// more often, but takes more shared memory.
fn is_large(e: &Emit<'_>, p: &AttentionProblem<'_>, rows: usize) -> Result<bool, CompileError> {
    let heads = e.bound(p.batch)?.saturating_mul(p.op.kv_heads);
    let groups = rows.div_ceil(128).saturating_mul(heads);
    let enough = groups
        >= e.caps
            .device
            .units
            .map_or(0, |n| n as usize)
            .max(MANY_GROUPS);
    Ok(enough && e.caps.workgroup_bytes >= LARGE_BYTES && rows > 32 && p.value_dim <= 64)
}

/// Tiles of rows.
pub(super) fn many(
    e: &mut Emit<'_>,
    p: &AttentionProblem<'_>,
    y: &View,
    queries: usize,
    which: Tiles,
) -> Result<(), CompileError> {
    let most_rows = queries.saturating_mul(p.group());
    let is_large = which == Tiles::Large;
    let own_columns: usize = match p.value_dim {
        0..=64 => 1,
        65..=128 => 2,
        _ => 4,
    };
    let own_rows: u32 = match most_rows {
        _ if is_large => 8,
        0..=16 => 1,
        17..=32 => 2,
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
    if !is_large {
        consts.extend([own_rows, own_columns as u32]);
    }
    let (kernel, rest) = match which {
        Tiles::Large => (&p.kernels().large, None),
        Tiles::All => (&p.kernels().tiles, None),
        Tiles::Rest(slot) => (&REST, Some(slot)),
    };
    let [q, k, v, mask, lens] = p.slots;
    let grid = e.flat_grid(groups);
    let mut args = vec![q, k, v, mask, lens, y.slot];
    args.extend(rest);
    e.dispatch(kernel, &consts, &args, &params, grid);
    Ok(())
}

/// True if few rows run on `attention_decode_wide`.
fn is_wide(p: &AttentionProblem<'_>) -> bool {
    let dims = [p.head_dim, p.value_dim];
    p.has_vectors
        && p.together == 8
        && p.dtype != DType::F32
        && dims.into_iter().all(|d| (1..=WIDE_DIM).contains(&d))
}

/// How few rows are cut.
struct Cut {
    /// Rows of a workgroup.
    rows: usize,
    /// Invocations that share a value, and columns of each.
    columns: usize,
    own_columns: usize,
    /// Keys of a workgroup, and how many such ranges there are at the bounds.
    split_keys: usize,
    splits: usize,
}

impl Cut {
    fn of(e: &Emit<'_>, p: &AttentionProblem<'_>, queries: usize) -> Result<Cut, CompileError> {
        let rows = queries.saturating_mul(p.group()).max(1);
        let held = QUERY_VECTORS / p.head_dim.div_ceil(4).max(1);
        let own_rows = rows
            .next_power_of_two()
            .min(1 << held.max(1).ilog2())
            .min(8);
        let (own_columns, most) = if is_wide(p) { (8, 16) } else { (4, 256) };
        let columns = p.value_dim.div_ceil(own_columns).next_power_of_two();
        let keys = e.bound(p.keys)?;
        let others = e.bound(p.batch)?.max(1) * p.op.kv_heads * rows.div_ceil(own_rows);
        let (enough, least) = match e.caps.device.units {
            Some(known) => (2 * known as usize, STEP_KEYS),
            None => (8 * e.caps.device.units_at_most(), LEAST_KEYS),
        };
        let wanted = enough.div_ceil(others).min(256);
        let split_keys = keys.div_ceil(wanted).next_multiple_of(STEP_KEYS).max(least);
        Ok(Cut {
            rows: own_rows,
            columns: columns.clamp(4, most),
            own_columns,
            split_keys,
            splits: keys.div_ceil(split_keys).max(1),
        })
    }
}

/// Ranges of keys, and what puts them together.
fn few(
    e: &mut Emit<'_>,
    p: &AttentionProblem<'_>,
    y: &View,
    queries: usize,
) -> Result<(), CompileError> {
    let cut = Cut::of(e, p, queries)?;
    let is_split = cut.splits > 1;
    let rows = rows(e, p);
    let tiles = e.tape().ceil_div(rows, cut.rows as u32);
    let slices = Num::Const(p.value_dim.div_ceil(cut.own_columns * cut.columns) as i64);
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
    let kernel = match is_wide(p) {
        true => {
            // 8 elements for each of 4 invocations.
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
    e: &mut Emit<'_>,
    p: &AttentionProblem<'_>,
    [sums, stats, y]: [&View; 3],
    of: &AttentionParams,
) {
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

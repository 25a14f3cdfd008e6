//! Products of few rows: which kernel, its constants and its grid.
//!
//! Weights along k are read 16 bytes at a time where they are aligned, packed ones in pieces of 16 bytes
//! of quants. Rows wait in shared memory in the order in which they are taken; one row times packed weights
//! waits in registers (`held.rs`).

use tercet_ir::{CompileError, DType};

use super::columns::Columns;
use super::few::Few;
use super::held::Held;
use super::kernels::{
    ACROSS_ACTIVATED, ACROSS_PLAIN, ALONG_ACTIVATED, ALONG_PLAIN, CODED_ACTIVATED, CODED_PLAIN,
    DOTS_ACTIVATED, DOTS_PLAIN, HELD_ACTIVATED, HELD_PLAIN, PACKED_QUADS_ACTIVATED,
    PACKED_QUADS_PLAIN, PACKED_WORDS_ACTIVATED, PACKED_WORDS_PLAIN, ROW_ACTIVATED, ROW_PLAIN,
    WIDE_ACTIVATED, WIDE_PLAIN,
};
use super::portable::{Given, Pair, Takes};
use super::product::Product;
use crate::emit::Emit;
use crate::families::code;
use crate::families::dequant::{Blocks, piece_consts};
use crate::families::tiles::units_of;
use crate::num::Num;

/// Invocations of a workgroup.
pub(super) const WORKGROUP: u32 = 256;
/// Shared memory that is used where there is more than the least a device has: three workgroups of this
/// size fit on a unit of most devices.
pub(super) const SHARED_BYTES: u32 = 32 << 10;
const LEAST_SHARED_BYTES: u32 = 16 << 10;

static ALONG: Pair = Pair {
    plain: &ALONG_PLAIN,
    activated: &ALONG_ACTIVATED,
};
static ACROSS: Pair = Pair {
    plain: &ACROSS_PLAIN,
    activated: &ACROSS_ACTIVATED,
};
static WIDE: Pair = Pair {
    plain: &WIDE_PLAIN,
    activated: &WIDE_ACTIVATED,
};
static ROW: Pair = Pair {
    plain: &ROW_PLAIN,
    activated: &ROW_ACTIVATED,
};
static PACKED_WORDS: Pair = Pair {
    plain: &PACKED_WORDS_PLAIN,
    activated: &PACKED_WORDS_ACTIVATED,
};
static CODED: Pair = Pair {
    plain: &CODED_PLAIN,
    activated: &CODED_ACTIVATED,
};
static PACKED_QUADS: Pair = Pair {
    plain: &PACKED_QUADS_PLAIN,
    activated: &PACKED_QUADS_ACTIVATED,
};

static HELD: Pair = Pair {
    plain: &HELD_PLAIN,
    activated: &HELD_ACTIVATED,
};
static DOTS: Pair = Pair {
    plain: &DOTS_PLAIN,
    activated: &DOTS_ACTIVATED,
};

/// What the kernels of rows in shared memory do by the way: norms of one row.
fn takes(p: &Product, rows: u32) -> Takes {
    Takes {
        norm: rows == 1 && p.k.known().is_some_and(|k| k > 0),
        gate: true,
    }
}

/// What [`floats`] does by the way.
pub(super) fn floats_take(e: &Emit<'_>, p: &Product, rows: u32) -> Result<Takes, CompileError> {
    Ok(match reads_quads(e, p)? {
        true => takes(p, rows_of(e, p, rows)?),
        false => Takes::NOTHING,
    })
}

/// What [`packed`] does by the way.
pub(super) fn packed_take(p: &Product, rows: u32) -> Takes {
    takes(p, rows)
}

/// GATED, NORMED.
fn taken(p: &Product) -> [u32; 2] {
    [p.gate.is_some(), p.norm.is_some()].map(u32::from)
}

/// The vectors of four of a piece of 16 bytes.
fn quads_of(dtype: DType) -> u32 {
    if dtype == DType::F32 { 1 } else { 2 }
}

/// The rows of a product of floats, of which a run has up to `rows` (1 or 8).
pub(super) fn floats(
    e: &mut Emit<'_>,
    p: &Product,
    given: &Given,
    rows: u32,
) -> Result<(), CompileError> {
    if let Some(few) = Few::floats(e, p, rows)? {
        few.dispatch(e, p, given);
        return Ok(());
    }
    let rows = rows_of(e, p, rows)?;
    let b_type = code(p.b.dtype);
    if rows == 1 && reads_quads(e, p)? && row_is_quads(p) {
        let columns = Columns::of(e, p, 4 * quads_of(p.b.dtype))?;
        let mut own = vec![b_type];
        own.extend(columns.consts());
        own.extend(taken(p));
        let all = e.num(&p.columns());
        let groups = e.tape().ceil_div(all, columns.results(p));
        let [x, y, _] = e.flat_grid(groups);
        given.dispatch_rows(e, ROW.pick(p.function()), &own, [x, y, given.batches]);
    } else if reads_quads(e, p)? {
        let teams = Teams::of(e, p, [rows, teams_of(rows)], [quads_of(p.b.dtype), 0], 2)?;
        let kernel = WIDE.pick(p.function());
        let mut own = vec![b_type, rows, teams.units, teams.per, teams.steps];
        own.extend(taken(p));
        let grid = grid(e, p, given, teams.results(p));
        given.dispatch_rows(e, kernel, &own, grid);
    } else if p.b.summed.unit {
        let words = u32::from(p.b.has_words(p.b.summed, p.b.own));
        let kernel = ALONG.pick(p.activation);
        let grid = grid(e, p, given, 8);
        given.dispatch(e, kernel, &[b_type, rows, words], grid);
    } else {
        let per = 1 + u32::from(p.b.has_words(p.b.own, p.b.summed));
        let kernel = ACROSS.pick(p.activation);
        let grid = grid(e, p, given, 16 * per);
        given.dispatch(e, kernel, &[b_type, rows, per], grid);
    }
    Ok(())
}

/// True if the row can be bound as quads of words, whole wherever pieces of the weights are.
fn row_is_quads(p: &Product) -> bool {
    let len = 16 / p.a.dtype.size_bytes() as u64;
    let whole = p.k.known().is_some_and(|k| (k as u64).is_multiple_of(len));
    whole && p.a.summed.unit && p.a.is_multiple(len, p.a.own)
}

/// The rows that the kernel has sums for.
fn rows_of(e: &Emit<'_>, p: &Product, rows: u32) -> Result<u32, CompileError> {
    let few = rows > 1 && e.bound(&p.m)? <= 4;
    Ok(if few { 4 } else { rows })
}

/// True if the weights can be bound as quads of words, and columns are such quads.
fn reads_quads(e: &Emit<'_>, p: &Product) -> Result<bool, CompileError> {
    let len = 4 * quads_of(p.b.dtype) as usize;
    let whole = p.k.known().is_some_and(|k| k >= len && k % len == 0);
    let aligned = p.b.summed.unit && p.b.is_multiple(len as u64, p.b.own);
    Ok(whole && aligned && p.is_apart() && e.bound(&p.n)? > 0)
}

/// As [`floats`], for weights in packed blocks.
pub(super) fn packed(
    e: &mut Emit<'_>,
    p: &Product,
    given: &Given,
    blocks: &Blocks,
    rows: u32,
) -> Result<(), CompileError> {
    if let Some(few) = Few::packed(e, p, blocks, rows)? {
        few.dispatch(e, p, given);
        return Ok(());
    }
    let rows = rows_of(e, p, rows)?;
    let [groups, second] = piece_consts(blocks.scheme);
    let extra = u32::from(rows == 1 && blocks.has_min());
    // More teams share what is read of the rows; there must be columns for all units all the same. The
    // results of a team and all rows are at most those of a workgroup.
    let many = e.bound(&p.columns())? >= 64 * units_of(e.caps);
    let units = match rows {
        1 if many => 16,
        4 if many => 32,
        _ => teams_of(rows),
    };
    let teams = Teams::of(e, p, [rows, units], [4 * groups, extra], 1)?;
    let some = e.bound(&p.k)? > 0 && e.bound(&p.n)? > 0;
    let whole = blocks.is_aligned() && p.b.is_multiple(16, p.b.own);
    let quads = some && whole && p.is_apart() && !given.is_coded();
    if rows == 1
        && quads
        && row_is_quads(p)
        && let Some(held) = Held::of(e, p, groups)?
    {
        let mut own = blocks.consts().to_vec();
        own.extend([groups, second]);
        own.extend(held.consts());
        own.extend(taken(p));
        let columns = e.num(&p.columns());
        let groups = e.tape().ceil_div(columns, held.results(p));
        let grid = e.flat_grid(groups);
        let way = match held.takes_dots() {
            true => &DOTS,
            false => &HELD,
        };
        given.dispatch_rows(e, way.pick(p.function()), &own, grid);
        return Ok(());
    }
    let kernels = match (given.is_coded(), quads) {
        (true, _) => &CODED,
        (false, true) => &PACKED_QUADS,
        (false, false) => &PACKED_WORDS,
    };
    let mut own = blocks.consts().to_vec();
    if !given.is_coded() {
        own.extend([groups, second]);
    }
    own.extend([rows, teams.units, teams.per, teams.steps]);
    own.extend(taken(p));
    let grid = grid(e, p, given, teams.results(p));
    given.dispatch_rows(e, kernels.pick(p.function()), &own, grid);
    Ok(())
}

/// Teams of a workgroup for so many rows.
fn teams_of(rows: u32) -> u32 {
    if rows == 8 { 16 } else { 8 }
}

/// How the invocations of a workgroup share its columns.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Teams {
    /// Teams, each of `per` columns at a time.
    units: u32,
    per: u32,
    /// Pieces of k for each invocation whose elements of the rows fit in shared memory.
    steps: u32,
}

impl Teams {
    /// The results of a workgroup in a row.
    fn results(self, p: &Product) -> u32 {
        self.units * self.per / (1 + u32::from(p.gate.is_some()))
    }

    /// For so many rows, at most `units` teams, and pieces of `quads` vectors, of which an invocation takes
    /// `unroll` at a time. Shared memory has `extra` more vectors of each.
    fn of(
        e: &Emit<'_>,
        p: &Product,
        [rows, units]: [u32; 2],
        [quads, extra]: [u32; 2],
        unroll: u32,
    ) -> Result<Teams, CompileError> {
        let n = e.bound(&p.columns())?;
        let pieces = e.bound(&p.k)?.div_ceil(4 * quads as usize);
        let device = units_of(e.caps);
        // The sums of one row lie beside the tile, those of several take its place.
        let (bytes, sums) = match rows {
            1 => (e.caps.workgroup_bytes.min(SHARED_BYTES), WORKGROUP),
            _ => (LEAST_SHARED_BYTES, 0),
        };
        let steps = |units: u32| {
            let slices = WORKGROUP / units;
            let step = match rows {
                1 => (quads + extra) * (slices + 1),
                _ => rows * (quads + extra) * slices,
            };
            let wanted = pieces.div_ceil(slices as usize) as u32;
            let fit = (bytes / 16 - sums) / step / unroll * unroll;
            fit.min(wanted.next_multiple_of(unroll))
        };
        // Larger teams where columns are too few for all units and long enough for more invocations.
        let mut units = units;
        while rows == 1
            && units > 2
            && 2 * n < device * units as usize
            && pieces * units as usize > WORKGROUP as usize
            && steps(units / 2) > 0
        {
            units /= 2;
        }
        Ok(Teams {
            units,
            // Two columns share what is read of the rows, where that leaves work for all units.
            per: 1 + u32::from(p.gate.is_some() || n >= 24 * device),
            steps: steps(units).max(unroll),
        })
    }
}

/// The grid of a kernel that gives each workgroup so many results at a time. Of many more groups than run
/// side by side, some take several turns instead, so that what they hold of the rows serves all.
fn grid(e: &mut Emit<'_>, p: &Product, given: &Given, results: u32) -> [Num; 3] {
    let most = match e.caps.compute_units {
        0 => 2048,
        units => units.saturating_mul(8),
    };
    let columns = e.num(&p.columns());
    let groups = e.tape().ceil_div(columns, results);
    let groups = e.tape().min(groups, most);
    let [x, y, _] = e.flat_grid(groups);
    [x, y, given.batches]
}

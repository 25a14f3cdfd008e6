//! Variants of products of one to eight rows of floats.

use tercet_ir::CompileError;

use super::{
    FewRows, Teams, WORKGROUP, few_rows, grid, quads_of, reads_quads, row_is_quads, rows_of, taken,
    teams_of,
};
use crate::emit::Emit;
use crate::families::code;
use crate::families::matmul::gemv_floats::Columns;
use crate::families::matmul::kernels::strips::{STRIPS_ACTIVATED, STRIPS_PLAIN};
use crate::families::matmul::kernels::{
    ACROSS_ACTIVATED, ACROSS_PLAIN, ALONG_ACTIVATED, ALONG_PLAIN, KEYED_WIDE, ROW_ACTIVATED,
    ROW_PLAIN, WIDE_ACTIVATED, WIDE_PLAIN,
};
use crate::families::matmul::portable::{Given, Pair};
use crate::families::matmul::product::Product;
use crate::variant::{self, Variant, needs};

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

static STRIPS: Pair = Pair {
    plain: &STRIPS_PLAIN,
    activated: &STRIPS_ACTIVATED,
};

/// The most rows of weights that an invocation asks for at a time.
const MOST_DEPTH: usize = 12;
/// The most and the least neighbouring invocations of a row of weights; the latter read 32 bytes, of which memory gives no less.
const LANES: [u32; 2] = [16, 2];

/// LANES and DEPTH of `gemv_strips.wgsl`, and the columns of a workgroup.
pub(in crate::families::matmul) fn strips(
    e: &Emit<'_>,
    p: &Product,
) -> Result<[u32; 3], CompileError> {
    let piece = 4 * quads_of(p.b.dtype);
    let columns = e.bound(&p.n)?;
    let [mut lanes, least] = LANES;
    while lanes > least && columns < (lanes * piece) as usize * e.caps.units() {
        lanes /= 2;
    }
    let slices = (WORKGROUP / lanes) as usize;
    let own = e.bound(&p.k)?.div_ceil(slices).max(1);
    let depth = own.div_ceil(own.div_ceil(MOST_DEPTH));
    Ok([lanes, depth as u32, lanes * piece])
}

/// True if the weights can be bound as quads of words, and what lies along n of every row are such quads.
pub(in crate::families::matmul) fn has_strips(
    e: &Emit<'_>,
    p: &Product,
) -> Result<bool, CompileError> {
    let len = 4 * quads_of(p.b.dtype) as usize;
    let whole = p.n.known().is_some_and(|n| n >= len && n % len == 0);
    let aligned = p.b.own.unit && p.b.is_multiple(len as u64, p.b.summed);
    Ok(whole && aligned && p.is_apart() && e.bound(&p.k)? > 0)
}

/// The variants of products of floats.
fn of_floats<'p>() -> [Variant<FewRows<'p>>; 5] {
    let [row, wide, along] = along_k();
    let [strips, across] = along_columns();
    [row, wide, along, strips, across]
}

/// Those that read weights whose k lies together.
fn along_k<'p>() -> [Variant<FewRows<'p>>; 3] {
    [
        Variant {
            name: "row",
            supports: |e, r| {
                needs(rows_of(e, r.product, r.most)? == 1, "one row")?;
                needs(
                    reads_quads(e, r.product)?,
                    "whole vectors of weights along k",
                )?;
                needs(row_is_quads(r.product), "whole vectors of the row")
            },
            cost: |e, r| r.seconds(e, r.times(e, |rates| rates.row)),
            emit: |e, r| {
                let p = r.product;
                let columns = Columns::of(e, p, 4 * quads_of(p.b.dtype))?;
                let mut own = vec![code(p.b.dtype)];
                own.extend(columns.consts());
                own.extend(taken(p));
                let all = e.num(&p.columns());
                let groups = e.tape().ceil_div(all, columns.results(p));
                let [x, y, _] = e.flat_grid(groups);
                let grid = [x, y, r.given.batches];
                r.given.dispatch_rows(e, ROW.pick(p.function()), &own, grid);
                Ok(())
            },
        },
        Variant {
            name: "rows_wide",
            supports: |e, r| {
                needs(
                    reads_quads(e, r.product)?,
                    "whole vectors of weights along k",
                )
            },
            cost: |e, r| r.seconds(e, r.times(e, |rates| rates.wide)),
            emit: |e, r| {
                let p = r.product;
                let rows = rows_of(e, p, r.most)?;
                let teams = Teams::of(e, p, [rows, teams_of(rows)], [quads_of(p.b.dtype), 0], 2)?;
                let kernel = WIDE.pick(p.function());
                let mut own = vec![code(p.b.dtype), rows, teams.units, teams.per, teams.steps];
                own.extend(taken(p));
                let grid = grid(e, r, teams.results(p));
                r.given.dispatch_rows(e, kernel, &own, grid);
                Ok(())
            },
        },
        Variant {
            name: "rows_along",
            supports: |_, r| {
                needs(r.product.b.summed.unit, "weights whose k lies together")?;
                needs(r.is_alone(), "no norm and no gate")
            },
            cost: |e, r| r.seconds(e, r.times(e, |rates| rates.along)),
            emit: |e, r| {
                let p = r.product;
                let words = u32::from(p.b.has_words(p.b.summed, p.b.own));
                let own = [code(p.b.dtype), rows_of(e, p, r.most)?, words];
                let grid = grid(e, r, 8);
                r.given.dispatch(e, ALONG.pick(p.activation), &own, grid);
                Ok(())
            },
        },
    ]
}

/// Those that read weights along columns, or any.
fn along_columns<'p>() -> [Variant<FewRows<'p>>; 2] {
    [
        Variant {
            name: "row_strips",
            supports: |e, r| {
                needs(rows_of(e, r.product, r.most)? == 1, "one row")?;
                needs(r.is_alone(), "no norm and no gate")?;
                needs(
                    has_strips(e, r.product)?,
                    "whole vectors of weights along n",
                )
            },
            cost: |e, r| r.seconds(e, r.times(e, |rates| rates.strips)),
            emit: |e, r| {
                let p = r.product;
                let [lanes, depth, columns] = strips(e, p)?;
                let own = [code(p.b.dtype), lanes, depth];
                let all = e.num(&p.n);
                let groups = e.tape().ceil_div(all, columns);
                let [x, y, _] = e.flat_grid(groups);
                let grid = [x, y, r.given.batches];
                r.given.dispatch(e, STRIPS.pick(p.activation), &own, grid);
                Ok(())
            },
        },
        Variant {
            name: "rows_across",
            supports: |_, r| needs(r.is_alone(), "no norm and no gate"),
            cost: |e, r| r.seconds(e, r.times(e, |rates| rates.across)),
            emit: |e, r| {
                let p = r.product;
                let per = 1 + u32::from(p.b.has_words(p.b.own, p.b.summed));
                let own = [code(p.b.dtype), rows_of(e, p, r.most)?, per];
                let grid = grid(e, r, 16 * per);
                r.given.dispatch(e, ACROSS.pick(p.activation), &own, grid);
                Ok(())
            },
        },
    ]
}

/// Whether [`keyed`] takes these weights.
pub(in crate::families::matmul) fn takes_keyed(
    e: &Emit<'_>,
    product: &Product,
) -> Result<bool, CompileError> {
    reads_quads(e, product)
}

/// Rows with matrices of their own, each by itself, where [`takes_keyed`] says so.
pub(in crate::families::matmul) fn keyed(
    e: &mut Emit<'_>,
    p: &Product,
    given: &Given,
) -> Result<(), CompileError> {
    let rows = FewRows {
        product: p,
        given,
        blocks: None,
        most: 1,
        in_blocks: false,
    };
    let teams = Teams::of(e, p, [1, teams_of(1)], [quads_of(p.b.dtype), 0], 2)?;
    let mut own = vec![code(p.b.dtype), 1, teams.units, teams.per, teams.steps];
    own.extend(taken(p));
    let grid = grid(e, &rows, teams.results(p));
    given.dispatch_rows(e, &KEYED_WIDE, &own, grid);
    Ok(())
}

/// The rows of a product of floats, of which a run has up to `most` (1 or 8).
pub(in crate::families::matmul) fn floats(
    e: &mut Emit<'_>,
    product: &Product,
    given: &Given,
    most: u32,
) -> Result<(), CompileError> {
    let rows = FewRows {
        product,
        given,
        blocks: None,
        most,
        in_blocks: false,
    };
    let table: Vec<Variant<FewRows<'_>>> = few_rows().into_iter().chain(of_floats()).collect();
    let measured = rows.measured(e)?;
    variant::run(e, &table, measured, &rows)
}

//! Variants of products of one to eight rows of floats.

use tercet_ir::CompileError;

use super::{
    FewRows, Teams, few_rows, grid, quads_of, reads_quads, row_is_quads, rows_of, taken, teams_of,
};
use crate::emit::Emit;
use crate::families::code;
use crate::families::matmul::gemv_floats::Columns;
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

/// The variants of products of floats.
fn of_floats<'p>() -> [Variant<FewRows<'p>>; 4] {
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

//! Variants of products of one to eight rows with packed weights: pieces of 16 bytes of quants at a time where they are
//! aligned, rows in shared memory or, one row, in registers (`gemv_packed.rs`).

use tercet_ir::{CompileError, Scheme};

use super::{FewRows, Teams, few_rows, grid, row_is_quads, rows_of, taken, teams_of};
use crate::caps::FEW_ROWS;
use crate::emit::Emit;
use crate::families::dequant::{Blocks, piece_consts};
use crate::families::matmul::gemv_packed::Held;
use crate::families::matmul::kernels::{
    CODED_ACTIVATED, CODED_PLAIN, DOTS_ACTIVATED, DOTS_ACTIVATED_CHAINED, DOTS_PLAIN,
    DOTS_PLAIN_CHAINED, HELD_ACTIVATED, HELD_ACTIVATED_CHAINED, HELD_PLAIN, HELD_PLAIN_CHAINED,
    KEYED_CODED, KEYED_QUADS, KEYED_WORDS, PACKED_QUADS_ACTIVATED, PACKED_QUADS_PLAIN,
    PACKED_WORDS_ACTIVATED, PACKED_WORDS_PLAIN,
};
use crate::families::matmul::portable::{Given, Pair};
use crate::families::matmul::product::Product;
use crate::variant::{self, Refusal, Variant, needs};

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
static HELD_CHAINED: Pair = Pair {
    plain: &HELD_PLAIN_CHAINED,
    activated: &HELD_ACTIVATED_CHAINED,
};
static DOTS_CHAINED: Pair = Pair {
    plain: &DOTS_PLAIN_CHAINED,
    activated: &DOTS_ACTIVATED_CHAINED,
};

/// Rows that packed weights are multiplied with from shared memory.
struct Shared {
    rows: u32,
    teams: Teams,
    pieces: [u32; 2],
}

impl Shared {
    fn of(e: &Emit<'_>, r: &FewRows<'_>, blocks: &Blocks) -> Result<Shared, CompileError> {
        let p = r.product;
        let rows = rows_of(e, p, r.most)?;
        let pieces = piece_consts(blocks.scheme);
        let extra = u32::from(rows == 1 && blocks.has_min());
        // More teams share what is read of the rows; there must be columns for all units all the same. The
        // results of a team and all rows are at most those of a workgroup.
        let many = e.bound(&p.columns())? >= 64 * e.caps.units();
        let units = match rows {
            1 if many => 16,
            4 if many => 32,
            _ => teams_of(rows),
        };
        let teams = Teams::of(e, p, [rows, units], [4 * pieces[0], extra], 1)?;
        Ok(Shared {
            rows,
            teams,
            pieces,
        })
    }

    fn emit(e: &mut Emit<'_>, r: &FewRows<'_>, kernels: &Pair) -> Result<(), CompileError> {
        let (p, blocks) = (r.product, r.packed());
        let Shared {
            rows,
            teams,
            pieces,
        } = Shared::of(e, r, blocks)?;
        let mut own = blocks.consts().to_vec();
        if !r.given.is_coded() {
            own.extend(pieces);
        }
        own.extend([rows, teams.units, teams.per, teams.steps]);
        own.extend(taken(p));
        let grid = grid(e, r, teams.results(p));
        r.given
            .dispatch_rows(e, kernels.pick(p.function()), &own, grid);
        Ok(())
    }
}

impl FewRows<'_> {
    fn packed(&self) -> &Blocks {
        let blocks = self.blocks;
        blocks.unwrap_or_else(|| unreachable!("invariant: weights of this table are packed"))
    }

    /// Whether pieces of the weights can be bound as vectors.
    fn has_quads(&self, e: &Emit<'_>) -> Result<(), Refusal> {
        let (p, blocks) = (self.product, self.packed());
        let some = e.bound(&p.k)? > 0 && e.bound(&p.n)? > 0;
        let whole = blocks.is_aligned() && p.b.is_multiple(16, p.b.own);
        needs(!self.given.is_coded(), "weights without a codebook")?;
        needs(
            some && whole && p.is_apart(),
            "whole vectors of weights along k",
        )
    }

    fn held(&self, e: &Emit<'_>, as_: HeldAs) -> Result<Held, Refusal> {
        let p = self.product;
        needs(rows_of(e, p, self.most)? == 1, "one row")?;
        self.has_quads(e)?;
        needs(row_is_quads(p), "whole vectors of the row")?;
        let scheme = self.packed().scheme;
        let [groups, _] = piece_consts(scheme);
        let narrow = matches!(scheme, Scheme::Q4_0 | Scheme::Q4_1 | Scheme::Q4K);
        let held = match as_ {
            HeldAs::Integers => Held::integers(e, p, groups, narrow)?,
            HeldAs::Floats => Held::floats(e, p)?,
        };
        let what = match as_ {
            HeldAs::Integers => {
                "integer dots, weights of 4 to 6 bits and shared memory for the row"
            }
            HeldAs::Floats => "a row of known size that fits the shared memory",
        };
        held.ok_or(Refusal::Needs(what.into()))
    }

    fn emit_held(
        &self,
        e: &mut Emit<'_>,
        as_: HeldAs,
        kernels: [&Pair; 2],
    ) -> Result<(), CompileError> {
        let (p, blocks) = (self.product, self.packed());
        let held = match self.held(e, as_) {
            Ok(held) => held,
            Err(Refusal::Error(error)) => return Err(error),
            Err(Refusal::Needs(_)) => unreachable!("invariant: the variant supports it"),
        };
        let mut own = blocks.consts().to_vec();
        own.extend(piece_consts(blocks.scheme));
        own.extend(held.consts());
        own.extend(taken(p));
        let columns = e.num(&p.columns());
        let groups = e.tape().ceil_div(columns, held.results(p));
        let grid = e.flat_grid(groups);
        self.given
            .dispatch_held(e, kernels.map(|k| k.pick(p.function())), &own, grid);
        Ok(())
    }
}

/// What a row in registers is held as.
#[derive(Clone, Copy)]
enum HeldAs {
    Integers,
    Floats,
}

/// The variants of products with packed weights.
fn of_blocks<'p>() -> [Variant<FewRows<'p>>; 5] {
    [
        Variant {
            name: "row_held_dots",
            supports: |e, r| r.held(e, HeldAs::Integers).map(drop),
            // Making integers of the row takes a microsecond, which teams with several columns make up for.
            cost: |e, r| {
                let worth = match r.held(e, HeldAs::Integers) {
                    Ok(held) => held.teams_have_several() || e.caps.device.units.is_none(),
                    Err(_) => false,
                };
                let rates = &e.caps.device.rates.rows;
                let times = if worth {
                    rates.held_dots
                } else {
                    rates.held_floats * rates.few_columns
                };
                r.seconds(e, times)
            },
            emit: |e, r| r.emit_held(e, HeldAs::Integers, [&DOTS, &DOTS_CHAINED]),
        },
        Variant {
            name: "row_held",
            supports: |e, r| r.held(e, HeldAs::Floats).map(drop),
            cost: |e, r| r.seconds(e, e.caps.device.rates.rows.held_floats),
            emit: |e, r| r.emit_held(e, HeldAs::Floats, [&HELD, &HELD_CHAINED]),
        },
        Variant {
            name: "rows_quads",
            supports: |e, r| r.has_quads(e),
            cost: |e, r| r.seconds(e, r.times(e, |rates| rates.wide)),
            emit: |e, r| Shared::emit(e, r, &PACKED_QUADS),
        },
        Variant {
            name: "rows_words",
            supports: |_, r| needs(!r.given.is_coded(), "weights without a codebook"),
            cost: |e, r| r.seconds(e, r.times(e, |rates| rates.along)),
            emit: |e, r| Shared::emit(e, r, &PACKED_WORDS),
        },
        Variant {
            name: "rows_coded",
            supports: |_, r| needs(r.given.is_coded(), "weights with a codebook"),
            cost: |e, r| r.seconds(e, r.times(e, |rates| rates.across)),
            emit: |e, r| Shared::emit(e, r, &CODED),
        },
    ]
}

/// Rows with packed matrices of their own, each by itself.
pub(in crate::families::matmul) fn keyed(
    e: &mut Emit<'_>,
    product: &Product,
    given: &Given,
    blocks: &Blocks,
) -> Result<(), CompileError> {
    let rows = FewRows {
        product,
        given,
        blocks: Some(blocks),
        most: 1,
        in_blocks: false,
    };
    let kernel = match rows.has_quads(e) {
        Ok(()) => &KEYED_QUADS,
        Err(Refusal::Error(error)) => return Err(error),
        Err(Refusal::Needs(_)) if given.is_coded() => &KEYED_CODED,
        Err(Refusal::Needs(_)) => &KEYED_WORDS,
    };
    Shared::emit(
        e,
        &rows,
        &Pair {
            plain: kernel,
            activated: kernel,
        },
    )
}

/// The rows of a product with packed weights, of which a run has up to `most`: 1, 8, or several blocks of 8.
pub(in crate::families::matmul) fn packed(
    e: &mut Emit<'_>,
    product: &Product,
    given: &Given,
    blocks: &Blocks,
    most: u32,
) -> Result<(), CompileError> {
    let rows = FewRows {
        product,
        given,
        blocks: Some(blocks),
        most: most.min(FEW_ROWS as u32),
        in_blocks: most > FEW_ROWS as u32,
    };
    let mut table: Vec<Variant<FewRows<'_>>> = of_blocks().into();
    if !rows.in_blocks {
        table.splice(0..0, few_rows());
    }
    let measured = rows.measured(e)?;
    variant::run(e, &table, measured, &rows)
}

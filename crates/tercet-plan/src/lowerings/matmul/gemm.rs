//! Products of many rows: tiles on cooperative matrices, in vectors, or element by element.

use tercet_ir::CompileError;

use super::coop::Coop;
use super::gemm_decoded::{self, Half};
use super::gemm_vectors;
use super::kernels::{GEMM_ACTIVATED, GEMM_CODED, GEMM_PACKED, GEMM_PLAIN};
use super::narrowed::{self, Rounding};
use super::pairs::Pairs;
use super::portable::{self, Given, Pair};
use super::product::Product;
use crate::device::Device;
use crate::emit::{Emit, View};
use crate::families::code;
use crate::families::dequant::Blocks;
use crate::families::tiles::Size;
use crate::tuning::Key;
use crate::variant::{self, Variant, needs};

static GEMM: Pair = Pair {
    plain: &GEMM_PLAIN,
    activated: &GEMM_ACTIVATED,
};

/// The invocations of a side of a workgroup, and whether each has 8 x 8 results instead of 4 x 4.
#[derive(Clone, Copy)]
pub(super) struct Tile {
    side: u32,
    wide: bool,
}

impl Tile {
    pub(super) fn len(self) -> u32 {
        self.side * 4 * (1 + u32::from(self.wide))
    }

    pub(super) fn size(self, device: &Device) -> Size {
        let [wide, large, small] = device.rates.tiles.plain;
        Size {
            rows: self.len(),
            columns: self.len(),
            invocations: self.side * self.side,
            rate: match (self.wide, self.side) {
                (true, _) => wide,
                (false, 16) => large,
                (false, _) => small,
            },
        }
    }

    /// The largest that still gives work to the whole device.
    fn of(e: &Emit<'_>, p: &Product) -> Result<Tile, CompileError> {
        const SIZES: [Tile; 3] = [
            Tile {
                side: 16,
                wide: true,
            },
            Tile {
                side: 16,
                wide: false,
            },
            Tile {
                side: 8,
                wide: false,
            },
        ];
        let (m, n) = (e.bound(&p.m)?, e.bound(&p.n)?);
        let mut batch = 1usize;
        for dim in &p.batch {
            batch = batch.saturating_mul(e.bound(dim)?);
        }
        let units = e.caps.units();
        let fits = |t: &Tile| {
            let len = t.len() as usize;
            let tiles = m.div_ceil(len).saturating_mul(n.div_ceil(len));
            m.min(n) > len / 2 && tiles.saturating_mul(batch) >= units
        };
        Ok(SIZES.into_iter().find(fits).unwrap_or(SIZES[2]))
    }
}

/// True if a product of floats of many rows is taken as pairs of F16, whatever rows of its left operand lie along.
pub(super) fn are_pairs(e: &mut Emit<'_>, p: &Product, sums: &View) -> Result<bool, CompileError> {
    let Some(pairs) = Pairs::of(e, p, sums)? else {
        return Ok(false);
    };
    Ok(pairs.seconds < gemm_vectors::seconds(e, p)?)
}

/// Emits the tiles of a product of floats.
pub(super) fn floats(
    e: &mut Emit<'_>,
    p: &Product,
    given: &Given,
    sums: &View,
) -> Result<(), CompileError> {
    if let Some(to) = narrowed::dtype_of(e, p)
        && to == p.b.dtype
    {
        let rounding = Rounding::of(e, p, to)?;
        let product = &rounding.product;
        // The other kernels take what is added to be of the dtype of the rows.
        if Coop::of(e, product, sums)?.is_some() {
            rounding.emit(e);
            let problem = Many {
                product,
                given: &portable::given(e, product, sums)?,
                sums,
                tile: Tile::of(e, product)?,
            };
            return variant::run(e, &of_many(), Some(MATRICES), &problem);
        }
    }
    let problem = Many {
        product: p,
        given,
        sums,
        tile: Tile::of(e, p)?,
    };
    let mut rows = e.bound(&p.m)?;
    for dim in &p.batch {
        rows = rows.saturating_mul(e.bound(dim)?);
    }
    let sizes = [rows, e.bound(&p.n)?, e.bound(&p.k)?];
    let tuning = &e.caps.device.tuning;
    let table = of_many();
    let named = tuning.find(|| Key::many(p.a.dtype, p.weights_of(None), sizes));
    let named = named.filter(|name| table.iter().any(|v| v.name == *name));
    // Tilings of matrices are measured for themselves.
    let measured = match (named, Coop::of(e, p, sums)?) {
        (None, Some(coop)) if coop.is_measured(e) => Some(MATRICES),
        (named, _) => named,
    };
    variant::run(e, &table, measured, &problem)
}

/// The variant of cooperative matrices.
const MATRICES: &str = "matrices";

/// A product of many rows of floats.
struct Many<'p> {
    product: &'p Product,
    given: &'p Given,
    sums: &'p View,
    /// That of kernels without vectors.
    tile: Tile,
}

/// The variants of products of many rows of floats.
fn of_many<'p>() -> [Variant<Many<'p>>; 4] {
    [
        Variant {
            name: MATRICES,
            supports: |e, m| {
                let coop = Coop::of(e, m.product, m.sums)?;
                let what = "cooperative matrices of 16-bit floats, rows that lie together, up to two axes of batches";
                needs(coop.is_some(), what)
            },
            cost: |e, m| Ok(Coop::of(e, m.product, m.sums)?.map_or(0.0, |coop| coop.seconds(e))),
            emit: |e, m| match Coop::of(e, m.product, m.sums)? {
                Some(coop) => {
                    e.took_as(coop.name());
                    coop.dispatch(e, m.given, m.product)
                }
                None => unreachable!("invariant: the variant supports it"),
            },
        },
        Variant {
            name: "pairs",
            supports: |e, m| {
                let pairs = Pairs::of(e, m.product, m.sums)?;
                let what = "F32 on both sides, cooperative matrices of F16, rows or columns that lie together, up to one axis of batches";
                needs(pairs.is_some(), what)
            },
            cost: |e, m| Ok(Pairs::of(e, m.product, m.sums)?.map_or(0.0, |pairs| pairs.seconds)),
            emit: |e, m| match Pairs::of(e, m.product, m.sums)? {
                Some(pairs) => {
                    e.took_as(pairs.name());
                    pairs.dispatch(e, m.given, m.product)
                }
                None => unreachable!("invariant: the variant supports it"),
            },
        },
        Variant {
            name: "quads",
            supports: |_, m| {
                let takes = gemm_vectors::takes(m.product, m.sums);
                needs(
                    takes,
                    "rows of whole vectors on both sides, of one type or F32 and 16 bits",
                )
            },
            cost: |e, m| gemm_vectors::seconds(e, m.product),
            emit: |e, m| gemm_vectors::floats(e, m.product, m.given, m.sums),
        },
        Variant {
            name: "tiles",
            supports: |e, m| {
                let splits =
                    gemm_vectors::takes(m.product, m.sums) && gemm_vectors::splits(e, m.product)?;
                needs(
                    !splits,
                    "more tiles than units, or rows without whole vectors",
                )
            },
            cost: |e, m| gemm_vectors::seconds_of(e, m.product, m.tile),
            emit: |e, m| {
                let (p, tile) = (m.product, m.tile);
                let own = [
                    code(p.b.dtype),
                    tile.side,
                    u32::from(tile.wide),
                    u32::from(p.a.own.unit),
                    u32::from(p.b.own.unit),
                ];
                m.given.tiles(e, GEMM.pick(p.activation), &own, tile);
                Ok(())
            },
        },
    ]
}

/// Tiles of packed weights; on matrices where that is possible and rows are many, which `are_many` says of all runs.
pub(super) fn packed(
    e: &mut Emit<'_>,
    p: &Product,
    given: &Given,
    blocks: &Blocks,
    sums: &View,
    are_many: bool,
) -> Result<(), CompileError> {
    let Some(half) = Half::of(e, p, blocks, sums)? else {
        return packed_in_place(e, p, given, blocks, sums);
    };
    let fits = half.fits(e, blocks);
    let least = [gemm_decoded::least_rows(e)];
    let bounds = if are_many { &least[..0] } else { &least };
    e.choose(&p.m, bounds, |e, arm| {
        e.choose_by(fits, &[0], |e, is_fit| {
            match (arm == bounds.len(), is_fit) {
                (true, 1) => half.dispatch(e, blocks, sums),
                _ => packed_in_place(e, p, given, blocks, sums),
            }
        })
    })
}

/// Tiles of packed weights, decoded as they are read.
fn packed_in_place(
    e: &mut Emit<'_>,
    p: &Product,
    given: &Given,
    blocks: &Blocks,
    sums: &View,
) -> Result<(), CompileError> {
    if gemm_vectors::packed(e, p, given, blocks, sums)? {
        return Ok(());
    }
    // An invocation decodes as many weights as the tile has for each: 64 x 16 for 64.
    let tile = Tile {
        side: 8,
        wide: true,
    };
    let own = [tile.side, 1, u32::from(p.a.own.unit)];
    let own: Vec<u32> = blocks.consts().into_iter().chain(own).collect();
    let kernel = match given.is_coded() {
        true => &GEMM_CODED,
        false => &GEMM_PACKED,
    };
    given.tiles(e, kernel, &own, tile);
    Ok(())
}

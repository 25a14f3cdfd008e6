//! Products of few rows: what their variants share.
//!
//! Weights along k are read 16 bytes at a time where they are aligned, packed ones in pieces of 16 bytes
//! of quants. Rows wait in shared memory in the order in which they are taken; one row times packed weights
//! waits in registers (`gemv_packed.rs`).
//!
//! Next: `gemv/floats.rs` and `gemv/blocks.rs` for the tables of variants.

mod blocks;
mod floats;

use tercet_ir::{CompileError, DType};

pub(super) use self::blocks::{keyed as packed_keyed, packed};
pub(super) use self::floats::{
    floats, has_strips, keyed as floats_keyed, strips, takes_keyed as floats_take_keyed,
};
use super::portable::{Given, Takes};
use super::product::Product;
use super::skinny::{Few, Placed};
use crate::device::rates::RowRates;
use crate::emit::Emit;
use crate::families::dequant::Blocks;
use crate::num::Num;
use crate::tuning::Key;
use crate::variant::{Refusal, Variant, needs};

/// Invocations of a workgroup.
pub(super) const WORKGROUP: u32 = 256;
/// Shared memory for several rows: what every device has.
const LEAST_SHARED_BYTES: u32 = 16 << 10;

/// What the kernels of rows in shared memory do by the way: norms of one row.
fn takes(p: &Product, rows: u32) -> Takes {
    Takes {
        norm: rows == 1 && p.k.known().is_some_and(|k| k > 0),
        gate: true,
        ..Takes::NOTHING
    }
}

/// What variants of floats do by the way.
pub(super) fn floats_take(e: &Emit<'_>, p: &Product, rows: u32) -> Result<Takes, CompileError> {
    Ok(match reads_quads(e, p)? {
        true => takes(p, rows_of(e, p, rows)?),
        false => Takes::NOTHING,
    })
}

/// What variants of packed weights do by the way.
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

/// A product of which a run has up to `most` (1 or 8) rows, or blocks of so many.
struct FewRows<'p> {
    product: &'p Product,
    given: &'p Given,
    /// Weights in packed blocks; floats where there are none.
    blocks: Option<&'p Blocks>,
    most: u32,
    in_blocks: bool,
}

impl FewRows<'_> {
    /// What reading the weights once takes, this many times as long.
    fn seconds(&self, e: &Emit<'_>, times: f64) -> Result<f64, CompileError> {
        let p = self.product;
        let (n, k) = (e.bound(&p.n)? as f64, e.bound(&p.k)? as f64);
        let bytes = match self.blocks {
            Some(blocks) => blocks.scheme.block_bytes() as f64 / blocks.scheme.block_len() as f64,
            None => p.b.dtype.size_bytes() as f64,
        };
        let mut products = 1.0;
        for dim in &p.batch {
            products *= e.bound(dim)? as f64;
        }
        let rates = e.caps.device.rates;
        Ok(rates.dispatch_s + products * n * k * bytes / rates.bytes_per_s * times)
    }

    /// What of the table of rates counts for these weights.
    fn times(&self, e: &Emit<'_>, of: fn(&RowRates) -> [f64; 2]) -> f64 {
        of(&e.caps.device.rates.rows)[usize::from(self.blocks.is_some())]
    }

    /// The variant that a table of measurements names.
    fn measured<'e>(&self, e: &Emit<'e>) -> Result<Option<&'e str>, CompileError> {
        let p = self.product;
        let rows = e.bound(&p.m)?.min(self.most as usize);
        let sizes = [rows, e.bound(&p.n)?, e.bound(&p.k)?];
        let weights = p.weights_of(self.blocks.map(|blocks| blocks.scheme));
        Ok(e.caps
            .device
            .tuning
            .find(|| Key::rows(p.a.dtype, weights, sizes)))
    }

    /// True if nothing but the product is to be done.
    fn is_alone(&self) -> bool {
        self.product.norm.is_none() && self.product.gate.is_none()
    }

    fn few(&self, e: &Emit<'_>) -> Result<Option<Few>, CompileError> {
        match self.blocks {
            Some(blocks) => Few::packed(e, self.product, blocks, self.most),
            None => Few::floats(e, self.product, self.most),
        }
    }

    fn few_with(&self, e: &Emit<'_>, is_streamed: bool) -> Result<Placed, Refusal> {
        let few = self.few(e)?;
        needs(
            few.is_some(),
            "2 to 8 rows times whole rows of weights, and matrices that invocations fill",
        )?;
        let few = few.and_then(|few| few.with_rows(e.caps, is_streamed));
        few.ok_or(Refusal::Needs("more shared memory or registers".into()))
    }

    fn emit_few(&self, e: &mut Emit<'_>, is_streamed: bool) -> Result<(), CompileError> {
        let few = self.few(e)?;
        let few = few.and_then(|few| few.with_rows(e.caps, is_streamed));
        let few = few.unwrap_or_else(|| unreachable!("invariant: the variant supports it"));
        few.dispatch(e, self.product, self.given);
        Ok(())
    }
}

/// The variants on matrices that invocations fill.
fn few_rows<'p>() -> [Variant<FewRows<'p>>; 2] {
    [
        Variant {
            name: "few_rows_streamed",
            supports: |e, r| r.few_with(e, true).map(drop),
            cost: |e, r| {
                let few = r.few(e)?;
                let is_short = few.is_some_and(|few| few.has_few_tiles(e.caps));
                let slower = if is_short {
                    e.caps.device.rates.rows.few_tiles
                } else {
                    1.0
                };
                r.seconds(e, slower * r.times(e, |rates| rates.streamed))
            },
            emit: |e, r| r.emit_few(e, true),
        },
        Variant {
            name: "few_rows_held",
            supports: |e, r| r.few_with(e, false).map(drop),
            cost: |e, r| r.seconds(e, r.times(e, |rates| rates.held)),
            emit: |e, r| r.emit_few(e, false),
        },
    ]
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
        let device = e.caps.units();
        // The sums of one row lie beside the tile, those of several take its place.
        let (bytes, sums) = match rows {
            1 => (e.caps.device.several_bytes, WORKGROUP),
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
fn grid(e: &mut Emit<'_>, r: &FewRows<'_>, results: u32) -> [Num; 3] {
    let most = 8 * e.caps.device.units_at_most() as u32;
    let columns = e.num(&r.product.columns());
    let groups = e.tape().ceil_div(columns, results);
    let mut groups = e.tape().min(groups, most);
    if r.in_blocks {
        let blocks = e.tape().ceil_div(r.given.params.m, r.most);
        groups = e.tape().mul(groups, blocks);
    }
    let [x, y, _] = e.flat_grid(groups);
    [x, y, r.given.batches]
}

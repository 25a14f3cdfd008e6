//! Tiled products of operands whose rows are whole quads: 4 elements at a time from memory.

use tercet_ir::scalar::UnaryFn;
use tercet_ir::{CompileError, DType, Dim};

use super::coop::{self, Columns};
use super::gemm::Tile;
use super::kernels::{
    ProductParams, QUADS_16, QUADS_16_ACTIVATED, QUADS_CODED_16, QUADS_CODED_F32, QUADS_F32,
    QUADS_F32_ACTIVATED, QUADS_MIXED, QUADS_PACKED_16, QUADS_PACKED_F32,
};
use super::portable::{Given, Pair};
use super::product::Product;
use crate::device::rates::TileRate;
use crate::emit::{Emit, View};
use crate::families::code;
use crate::families::dequant::Blocks;
use crate::families::tiles::{Size, TileProblem, Tiles, Waits, full_unit};
use crate::kernel::Kernel;
use crate::num::Num;

/// Elements of a quad.
const QUAD: u64 = 4;

static F32: Pair = Pair {
    plain: &QUADS_F32,
    activated: &QUADS_F32_ACTIVATED,
};
static HALF: Pair = Pair {
    plain: &QUADS_16,
    activated: &QUADS_16_ACTIVATED,
};

fn problem<'a>(e: &Emit<'a>, p: &Product) -> Result<TileProblem<'a>, CompileError> {
    let mut products = 1usize;
    for dim in &p.batch {
        products = products.saturating_mul(e.bound(dim)?);
    }
    Ok(TileProblem {
        rows: e.bound(&p.m)?,
        columns: e.bound(&p.n)?,
        k: e.bound(&p.k)?,
        products,
        device: &e.caps.device,
        full_unit: full_unit(&e.caps.device, Waits::ForRows),
        // Sums of parts are of F32 activations only: others would be rounded once more.
        most_bytes: match p.a.dtype {
            DType::F32 => e.caps.max_binding_bytes / 2,
            _ => 0,
        },
    })
}

fn best(problem: &TileProblem<'_>, rates: &[TileRate; 4]) -> Tiles {
    let best = problem.best(&rates.each_ref().map(Size::of_quads));
    best.unwrap_or_else(|| unreachable!("invariant: there are sizes"))
}

/// Dispatches tiles with the constants of a kernel after TM, TN and PARTS, and what adds their parts.
fn emit(
    e: &mut Emit<'_>,
    p: &Product,
    given: &Given,
    kernel: &Kernel<ProductParams>,
    own: &[u32],
    tiles: Tiles,
) -> Result<(), CompileError> {
    let [tm, tn] = tiles.size.sides();
    let own: Vec<u32> = [tm, tn, tiles.parts]
        .into_iter()
        .chain(own.iter().copied())
        .collect();
    let grid = given.tile_grid(e, tiles.size.tile());
    if tiles.parts == 1 {
        given.dispatch(e, kernel, &own, grid);
        return Ok(());
    }
    let sums = coop::parts(e, p, tiles.parts, p.n.clone())?;
    let [x, y, batches] = grid;
    let depth = e.tape().mul(batches, Num::Const(i64::from(tiles.parts)));
    let limit = e.caps.max_grid;
    let depth = e.tape().min(depth, limit);
    given.sums(sums).dispatch(e, kernel, &own, [x, y, depth]);
    coop::add_parts(e, given, p, tiles.parts, sums, &Columns::all(given));
    Ok(())
}

fn whole(dim: &Dim) -> bool {
    dim.known().is_some_and(|n| (n as u64).is_multiple_of(QUAD))
}

/// True if rows of the left operand and of the result are whole quads of one type.
fn rows_are_quads(p: &Product, y: &View) -> bool {
    let rows = p.a.summed.unit && p.a.is_multiple(QUAD, p.a.own) && whole(&p.k);
    rows && whole(&p.n) && y.dtype == p.a.dtype
}

fn kernel_of(p: &Product, activation: Option<UnaryFn>) -> Option<&'static Kernel<ProductParams>> {
    let half = |dtype| matches!(dtype, DType::F16 | DType::BF16);
    match (p.a.dtype, p.b.dtype) {
        (DType::F32, DType::F32) => Some(F32.pick(activation)),
        (a, b) if half(a) && half(b) => Some(HALF.pick(activation)),
        (DType::F32, b) if half(b) && activation.is_none() => Some(&QUADS_MIXED),
        _ => None,
    }
}

/// True if a product of floats is taken: into rows of `y` of the type of the left operand.
pub(super) fn takes(p: &Product, y: &View) -> bool {
    let [across, along] = lies(p);
    kernel_of(p, p.activation).is_some()
        && rows_are_quads(p, y)
        && (across || along)
        && p.is_apart()
}

/// Whether vectors of the right operand lie across k, and along it.
fn lies(p: &Product) -> [bool; 2] {
    [
        p.b.own.unit && p.b.is_multiple(QUAD, p.b.summed),
        p.b.summed.unit && p.b.is_multiple(QUAD, p.b.own),
    ]
}

/// True if a product of floats is summed in parts of `k`.
pub(super) fn splits(e: &Emit<'_>, p: &Product) -> Result<bool, CompileError> {
    let rates = &e.caps.device.rates.tiles;
    Ok(best(&problem(e, p)?, &rates.floats).parts > 1)
}

/// The same without parts, on units that are busy however few tiles they have: the rates of tiles without vectors are
/// estimates that know nothing of how busy a unit is.
fn busy<'a>(e: &Emit<'a>, p: &Product) -> Result<TileProblem<'a>, CompileError> {
    Ok(TileProblem {
        full_unit: 1.0,
        most_bytes: 0,
        ..problem(e, p)?
    })
}

/// About how many seconds a product of floats takes.
pub(super) fn seconds(e: &Emit<'_>, p: &Product) -> Result<f64, CompileError> {
    let rates = &e.caps.device.rates.tiles;
    Ok(best(&problem(e, p)?, &rates.floats).time / rates.per_s)
}

/// The same with tiles without vectors, which leave units idle as others do.
pub(super) fn seconds_of(e: &Emit<'_>, p: &Product, tile: Tile) -> Result<f64, CompileError> {
    let device = &e.caps.device;
    let busy = busy(e, p)?;
    let times = busy.time(tile.size(device), 1) / best(&busy, &device.rates.tiles.floats).time;
    Ok(times * seconds(e, p)?)
}

/// Emits a product of floats that is taken.
pub(super) fn floats(
    e: &mut Emit<'_>,
    p: &Product,
    given: &Given,
    y: &View,
) -> Result<(), CompileError> {
    debug_assert!(takes(p, y), "invariant: only what is taken is emitted");
    let tiles = best(&problem(e, p)?, &e.caps.device.rates.tiles.floats);
    // What adds parts knows all functions of a sum; tiles of parts need none.
    let plain = kernel_of(p, None).filter(|_| tiles.parts > 1);
    let kernel = plain.or_else(|| kernel_of(p, p.activation));
    let kernel = kernel.unwrap_or_else(|| unreachable!("invariant: there is a kernel for it"));
    let [_, along] = lies(p);
    let mut own = vec![u32::from(!along)];
    if p.b.dtype != DType::F32 {
        own.push(code(p.b.dtype));
    }
    emit(e, p, given, kernel, &own, tiles)
}

/// Emits a product with weights in packed blocks in this way where it applies.
pub(super) fn packed(
    e: &mut Emit<'_>,
    p: &Product,
    given: &Given,
    blocks: &Blocks,
    y: &View,
) -> Result<bool, CompileError> {
    if !rows_are_quads(p, y) || !p.is_apart() {
        return Ok(false);
    }
    let kernel = match (p.a.dtype, given.is_coded()) {
        (DType::F32, false) => &QUADS_PACKED_F32,
        (_, false) => &QUADS_PACKED_16,
        (DType::F32, true) => &QUADS_CODED_F32,
        (_, true) => &QUADS_CODED_16,
    };
    let tiles = best(&problem(e, p)?, &e.caps.device.rates.tiles.blocks);
    emit(e, p, given, kernel, &blocks.consts(), tiles)?;
    Ok(true)
}

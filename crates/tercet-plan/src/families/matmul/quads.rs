//! Tiled products of operands whose rows are whole quads: 4 elements at a time from memory.

use tercet_ir::scalar::UnaryFn;
use tercet_ir::{CompileError, DType, Dim};

use super::coop;
use super::kernels::{
    ProductParams, QUADS_16, QUADS_16_ACTIVATED, QUADS_CODED_16, QUADS_CODED_F32, QUADS_F32,
    QUADS_F32_ACTIVATED, QUADS_MIXED, QUADS_PACKED_16, QUADS_PACKED_F32,
};
use super::portable::{Given, Pair, Tile};
use super::product::Product;
use crate::emit::{Emit, View};
use crate::families::code;
use crate::families::dequant::Blocks;
use crate::families::tiles::{Problem, Size, Tiles, units_of};
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

/// Measured for F32 on a GPU of 132 units (35.9, 40.1, 35 and 44.2 TFLOP/s at 4096^3).
const OF_FLOATS: [Size; 4] = [
    Size::of_quads([16, 16], 0.81),
    Size::of_quads([8, 16], 0.91),
    Size::of_quads([16, 8], 0.8),
    Size::of_quads([8, 8], 1.0),
];
/// Packed weights are decoded by each tile of their columns, so that larger tiles should pay; an estimate.
const OF_BLOCKS: [Size; 4] = [
    Size::of_quads([16, 16], 1.0),
    Size::of_quads([8, 16], 0.95),
    Size::of_quads([16, 8], 0.95),
    Size::of_quads([8, 8], 0.85),
];
/// Invocations that keep a unit busy: 128 reach 0.79 of it (1024^3 in 67 us).
const FULL_UNIT: f64 = 160.0;

fn problem(e: &Emit<'_>, p: &Product) -> Result<Problem, CompileError> {
    let mut products = 1usize;
    for dim in &p.batch {
        products = products.saturating_mul(e.bound(dim)?);
    }
    Ok(Problem {
        rows: e.bound(&p.m)?,
        columns: e.bound(&p.n)?,
        k: e.bound(&p.k)?,
        products,
        units: units_of(e.caps),
        full_unit: FULL_UNIT,
        // Sums of parts are of F32 activations only: others would be rounded once more.
        most_bytes: match p.a.dtype {
            DType::F32 => e.caps.max_binding_bytes / 2,
            _ => 0,
        },
    })
}

fn best(problem: &Problem, sizes: &[Size]) -> Tiles {
    let best = problem.best(sizes);
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
    let sums = coop::parts(e, p, tiles.parts)?;
    let [x, y, batches] = grid;
    let depth = e.tape().mul(batches, Num::Const(i64::from(tiles.parts)));
    let limit = e.caps.max_grid;
    let depth = e.tape().min(depth, limit);
    given.sums(sums).dispatch(e, kernel, &own, [x, y, depth]);
    coop::add_parts(e, given, p, tiles.parts, sums);
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

/// Emits a product of floats in this way where it applies, and beats `other`.
pub(super) fn floats(
    e: &mut Emit<'_>,
    p: &Product,
    given: &Given,
    y: &View,
    other: Tile,
) -> Result<bool, CompileError> {
    let across = p.b.own.unit && p.b.is_multiple(QUAD, p.b.summed);
    let along = p.b.summed.unit && p.b.is_multiple(QUAD, p.b.own);
    let Some(kernel) = kernel_of(p, p.activation) else {
        return Ok(false);
    };
    if !rows_are_quads(p, y) || !(across || along) || !p.is_apart() {
        return Ok(false);
    }
    let problem = problem(e, p)?;
    let tiles = best(&problem, &OF_FLOATS);
    // The rates of other tiles are estimates that know nothing of how busy a unit is.
    let busy = Problem {
        full_unit: 1.0,
        most_bytes: 0,
        ..problem
    };
    let is_slower = busy.time(other.size(), 1) < best(&busy, &OF_FLOATS).time;
    if tiles.parts == 1 && is_slower {
        return Ok(false);
    }
    // What adds parts knows all functions of a sum; tiles of parts need none.
    let kernel = match tiles.parts {
        1 => kernel,
        _ => kernel_of(p, None).unwrap_or(kernel),
    };
    let mut own = vec![u32::from(!along)];
    if p.b.dtype != DType::F32 {
        own.push(code(p.b.dtype));
    }
    emit(e, p, given, kernel, &own, tiles)?;
    Ok(true)
}

/// As [`floats`], for weights in packed blocks.
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
    let tiles = best(&problem(e, p)?, &OF_BLOCKS);
    emit(e, p, given, kernel, &blocks.consts(), tiles)?;
    Ok(true)
}

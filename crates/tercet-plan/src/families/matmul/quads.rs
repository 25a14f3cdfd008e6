//! Tiled products of operands whose rows are whole quads: 4 elements at a time from memory.

use tercet_ir::scalar::UnaryFn;
use tercet_ir::{CompileError, DType, Dim};

use super::kernels::{
    ProductParams, QUADS_16, QUADS_16_ACTIVATED, QUADS_CODED_16, QUADS_CODED_F32, QUADS_F32,
    QUADS_F32_ACTIVATED, QUADS_MIXED, QUADS_PACKED_16, QUADS_PACKED_F32,
};
use super::portable::{Given, Pair, Tile};
use super::product::Product;
use crate::emit::{Emit, View};
use crate::families::code;
use crate::families::dequant::Blocks;
use crate::kernel::Kernel;

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

/// Invocations along m and n; each has 8 x 8 results.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Quads {
    rows: u32,
    columns: u32,
    /// How fast it is beside the fastest, per result.
    rate: Rate,
}

/// Measured for F32 on a GPU of 132 units (35.9, 40.1, 35 and 44.2 TFLOP/s at 4096^3). Packed weights are
/// decoded by each tile of their columns, so that larger tiles should pay; an estimate.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Rate {
    floats: f64,
    packed: f64,
}

const SIZES: [Quads; 4] = [
    Quads {
        rows: 16,
        columns: 16,
        rate: Rate {
            floats: 0.81,
            packed: 1.0,
        },
    },
    Quads {
        rows: 8,
        columns: 16,
        rate: Rate {
            floats: 0.91,
            packed: 0.95,
        },
    },
    Quads {
        rows: 16,
        columns: 8,
        rate: Rate {
            floats: 0.8,
            packed: 0.95,
        },
    },
    Quads {
        rows: 8,
        columns: 8,
        rate: Rate {
            floats: 1.0,
            packed: 0.85,
        },
    },
];

impl Quads {
    fn tile(self) -> [u32; 2] {
        [8 * self.rows, 8 * self.columns]
    }
}

/// The results of the busiest unit, where a kernel has tiles of so many rows and columns.
fn load(e: &Emit<'_>, p: &Product, tile: [u32; 2]) -> Result<f64, CompileError> {
    let units = match e.caps.compute_units {
        0 => 16,
        units => units as usize,
    };
    let [rows, columns] = tile.map(|n| n as usize);
    let mut tiles = e.bound(&p.m)?.div_ceil(rows);
    tiles = tiles.saturating_mul(e.bound(&p.n)?.div_ceil(columns));
    for dim in &p.batch {
        tiles = tiles.saturating_mul(e.bound(dim)?);
    }
    Ok(tiles.div_ceil(units) as f64 * (rows * columns) as f64)
}

fn best(e: &Emit<'_>, p: &Product, rate: fn(Rate) -> f64) -> Result<(Quads, f64), CompileError> {
    let mut found = (SIZES[0], f64::INFINITY);
    for size in SIZES {
        let time = load(e, p, size.tile())? / rate(size.rate);
        if time < found.1 {
            found = (size, time);
        }
    }
    Ok(found)
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
    let (size, time) = best(e, p, |rate| rate.floats)?;
    if load(e, p, [other.len(); 2])? / other.rate() < time {
        return Ok(false);
    }
    let mut own = vec![size.rows, size.columns, u32::from(!along)];
    if p.b.dtype != DType::F32 {
        own.push(code(p.b.dtype));
    }
    let grid = given.tile_grid(e, size.tile());
    given.dispatch(e, kernel, &own, grid);
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
    let (size, _) = best(e, p, |rate| rate.packed)?;
    let mut own = vec![size.rows, size.columns];
    own.extend(blocks.consts());
    let grid = given.tile_grid(e, size.tile());
    given.dispatch(e, kernel, &own, grid);
    Ok(true)
}

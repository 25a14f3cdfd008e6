//! Convolutions as tiles of a product that gathers windows while it multiplies, in WGSL: which tiles, and in how
//! many parts `k` is summed.

use tercet_ir::{CompileError, DType, Dim};

use super::kernels::{GEMM, Weights};
use super::{Epilogue, Given};
use crate::emit::{Emit, View};
use crate::num::Num;

/// Invocations along channels and windows, and parts of `k`.
#[derive(Clone, Copy)]
pub(super) struct Tiles {
    size: [u32; 2],
    pub(super) parts: u32,
}

/// Sizes, and how fast they are beside each other.
const SIZES: [([u32; 2], f64); 4] = [
    ([16, 16], 1.0),
    ([8, 16], 0.95),
    ([16, 8], 0.95),
    ([8, 8], 0.85),
];
/// Parts of `k` that are tried.
const PARTS: [u32; 9] = [1, 2, 3, 4, 6, 8, 9, 12, 16];
/// What a step takes of `k`, and how many steps a part has at least.
const STEP: usize = 16;
const LEAST_STEPS: usize = 3;

/// What a tile costs beside its loop, as so much of `k`.
const START: usize = 48;
/// Invocations that keep a unit busy.
const FULL_UNIT: f64 = 256.0;
/// What another dispatch costs, and each partial sum divided by the units, in products of a busy unit.
const ANOTHER_DISPATCH: f64 = 4e5;
const PER_SUM: f64 = 60.0;

/// For devices that do not say how many workgroups run side by side.
const TYPICAL_UNITS: usize = 16;

/// The sizes of a product at the symbols' bounds.
struct Problem {
    m: usize,
    columns: usize,
    k: usize,
    groups: usize,
    units: usize,
}

impl Problem {
    /// What the busiest unit has to do, in products at the rate of the first of [`SIZES`].
    fn time(&self, size: [u32; 2], rate: f64, parts: u32) -> f64 {
        let [rows, columns] = size.map(|n| 8 * n as usize);
        let tiles = self.m.div_ceil(rows);
        let tiles = tiles.saturating_mul(self.columns.div_ceil(columns));
        let tiles = tiles.saturating_mul(self.groups * parts as usize);
        let of_unit = tiles.div_ceil(self.units) as f64;
        let invocations = of_unit * f64::from(size[0] * size[1]);
        let rate = rate * (invocations / FULL_UNIT).min(1.0);
        let steps = self.k.div_ceil(STEP).div_ceil(parts as usize);
        let work = of_unit * (rows * columns) as f64 * (steps * STEP + START) as f64;
        let sums = match parts {
            1 => 0.0,
            _ => {
                let sums = (parts as usize * self.m * self.groups) as f64 * self.columns as f64;
                ANOTHER_DISPATCH + sums / self.units as f64 * PER_SUM
            }
        };
        work / rate + sums
    }
}

impl Tiles {
    /// Those with which the busiest unit has least to do.
    pub(super) fn of(e: &Emit<'_>, c: &Given<'_>) -> Result<Tiles, CompileError> {
        let entries = e.bound(&c.x.layout.shape()[0])?;
        let problem = Problem {
            m: e.bound(&c.m)?,
            columns: entries.saturating_mul(e.bound(&c.windows.count)?),
            k: e.bound(&c.k)?,
            groups: c.op.groups,
            units: match e.caps.compute_units {
                0 => TYPICAL_UNITS,
                units => units as usize,
            },
        };
        let steps = problem.k.div_ceil(STEP);
        let most = c.most_parts(e)?;
        let able = |n: &u32| *n == 1 || (*n <= most && steps >= LEAST_STEPS * *n as usize);
        let mut best = (
            f64::INFINITY,
            Tiles {
                size: SIZES[0].0,
                parts: 1,
            },
        );
        for (size, rate) in SIZES {
            for parts in PARTS.into_iter().filter(able) {
                let time = problem.time(size, rate, parts);
                if time < best.0 {
                    best = (time, Tiles { size, parts });
                }
            }
        }
        Ok(best.1)
    }

    /// Dispatches them, into a result or into sums of parts.
    pub(super) fn emit(self, e: &mut Emit<'_>, c: &Given<'_>, y: &View, epilogue: Epilogue) {
        let params = c.params(e, &epilogue);
        let apart = c.w.slot != c.x.slot && c.w.slot != epilogue.bias;
        // No weights fill no quad, which a binding must.
        let some = c.k != Dim::Known(0);
        let quads = apart && some && c.k.twos() >= 2;
        let weights = match (quads, c.w.dtype) {
            (false, _) => Weights::Words,
            (true, DType::F32) => Weights::Quads,
            (true, _) => Weights::HalfQuads,
        };
        let [tm, tn] = self.size;
        let limit = e.caps.max_grid;
        let tape = e.tape();
        let down = tape.ceil_div(params.m, 8 * tm);
        let columns = tape.mul(params.batch, params.windows);
        let across = tape.ceil_div(columns, 8 * tn);
        let tiles = tape.mul(down, across);
        let products = tape.mul(params.groups, Num::Const(i64::from(self.parts)));
        let products = tape.min(products, limit);
        let [gx, gy, _] = e.flat_grid(tiles);
        let mut consts = c.consts(&epilogue, y);
        consts.extend([tm, tn, self.parts]);
        let args = [c.x.slot, c.w.slot, epilogue.bias, y.slot];
        let kernel = GEMM.pick(weights, epilogue.activation());
        e.dispatch(kernel, &consts, &args, &params, [gx, gy, products]);
    }
}

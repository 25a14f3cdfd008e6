//! Tile selection for the matmuls of `quad_tiles.wgsl`: tile size and split-K. The model estimates
//! the load of the busiest compute unit at the symbols' bounds.

use crate::device::DeviceModel;
use crate::device::cost_model::{TileRate, TileRates};

/// Candidate split-K factors.
const PARTS: [u32; 9] = [1, 2, 3, 4, 6, 8, 9, 12, 16];
/// Elements of `k` per step, and the minimum number of steps per split-K part.
const STEP: usize = 16;
const MIN_STEPS: usize = 3;
/// Maximum length of one accumulation chain if split-K is possible. Rounding errors of longer
/// chains exceed the F32 tolerance.
const LONGEST: usize = 8192;

/// Size of the result tile that a workgroup computes, and its rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WorkgroupTile {
    pub(super) rows: u32,
    pub(super) columns: u32,
    pub(super) invocations: u32,
    /// Relative multiply-add rate of a saturated compute unit with this tile size.
    pub(super) rate: f64,
}

impl WorkgroupTile {
    /// The tile of a workgroup with these sides in threads; each thread computes 8 x 8 results.
    pub fn from_rate(measured: &TileRate) -> WorkgroupTile {
        let TileRate {
            sides: [down, across],
            rate,
        } = *measured;
        WorkgroupTile {
            rows: 8 * down,
            columns: 8 * across,
            invocations: down * across,
            rate,
        }
    }

    pub(super) fn tile(self) -> [u32; 2] {
        [self.rows, self.columns]
    }

    /// Values of the constants `TM` and `TN`: number of threads along m and along n.
    pub(super) fn sides(self) -> [u32; 2] {
        self.tile().map(|n| n / 8)
    }
}

/// A tile size, the split-K factor, and the resulting load of the busiest compute unit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TileChoice {
    /// Size of a tile.
    pub size: WorkgroupTile,
    /// Split-K factor.
    pub parts: u32,
    pub(super) time: f64,
}

/// Kinds of operand loads, which differ in latency.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LatencyClass {
    /// Loads from contiguous rows of matmul operands.
    Rows,
    /// Gathered loads of convolution windows, with longer latency.
    Windows,
}

/// Input of the tile size selection: sizes of a matmul, and the device to run it on.
#[derive(Clone, Copy, Debug)]
pub struct TileProblem<'a> {
    /// Rows of the result.
    pub rows: usize,
    /// Columns of the result.
    pub columns: usize,
    /// Length of the reduction axis.
    pub k: usize,
    /// Number of matmuls of this size (batch).
    pub products: usize,
    /// Performance model of the device.
    pub device: &'a DeviceModel,
    /// Number of threads that saturates a compute unit.
    pub saturating_threads: f64,
    /// Maximum total size of split-K partial sums in bytes.
    pub max_bytes: u64,
}

/// Number of threads that saturates a compute unit of a device.
pub(super) fn saturating_threads(device: &DeviceModel, waits: LatencyClass) -> f64 {
    let [rows, windows] = device.rates.tiles.saturating_threads;
    let of_lane = match waits {
        LatencyClass::Rows => rows,
        LatencyClass::Windows => windows,
    };
    of_lane * f64::from(device.unit_lanes)
}

impl TileProblem<'_> {
    fn rates(&self) -> &TileRates {
        &self.device.rates.tiles
    }

    /// Load of the busiest compute unit: its time in units of one multiply-add at rate 1.
    pub(super) fn time(&self, size: WorkgroupTile, parts: u32) -> f64 {
        let tiles = self.rows.div_ceil(size.rows as usize);
        let tiles = tiles.saturating_mul(self.columns.div_ceil(size.columns as usize));
        let tiles = tiles.saturating_mul(self.products.saturating_mul(parts as usize));
        let units = self.device.units_or_typical();
        let of_unit = tiles.div_ceil(units) as f64;
        let invocations = of_unit * f64::from(size.invocations);
        let rate = size.rate * (invocations / self.saturating_threads).min(1.0);
        let steps = self.k.div_ceil(STEP).div_ceil(parts as usize);
        let results = f64::from(size.rows) * f64::from(size.columns);
        let work = of_unit * results * (steps * STEP + self.rates().start) as f64;
        let sums = match parts {
            1 => 0.0,
            _ => {
                let sums = f64::from(parts) * self.results();
                self.rates().dispatch + sums / units as f64 * self.rates().per_sum
            }
        };
        work / rate + sums
    }

    fn results(&self) -> f64 {
        self.rows as f64 * self.columns as f64 * self.products as f64
    }

    /// The tile size and split-K factor with the smallest load of the busiest compute unit;
    /// accumulation chains longer than `LONGEST` are excluded.
    pub fn best(&self, sizes: &[WorkgroupTile]) -> Option<TileChoice> {
        self.best_with_parts(sizes, &PARTS)
    }

    /// Like [`TileProblem::best`], but only with these split-K factors.
    pub(super) fn best_with_parts(
        &self,
        sizes: &[WorkgroupTile],
        parts: &[u32],
    ) -> Option<TileChoice> {
        let steps = self.k.div_ceil(STEP);
        let fits = |parts: u32| f64::from(parts) * 4.0 * self.results() <= self.max_bytes as f64;
        let able =
            |parts: &u32| *parts == 1 || (steps >= MIN_STEPS * *parts as usize && fits(*parts));
        let able = parts.iter().copied().filter(able);
        let least = self.k.div_ceil(LONGEST).min(able.clone().max()? as usize);
        let able = able.filter(|parts| *parts as usize >= least);
        let all = sizes.iter().flat_map(|&size| {
            able.clone().map(move |parts| TileChoice {
                size,
                parts,
                time: self.time(size, parts),
            })
        });
        all.min_by(|a, b| a.time.total_cmp(&b.time))
    }
}

//! Tiles of the products of `quad_tiles.wgsl`: which size, and in how many parts `k` is summed. A model of a
//! device's busiest unit, at the symbols' bounds.

use crate::device::Device;
use crate::device::rates::{TileRate, TileRates};

/// Parts of `k` that are tried.
const PARTS: [u32; 9] = [1, 2, 3, 4, 6, 8, 9, 12, 16];
/// What a step takes of `k`, and how many steps a part has at least.
const STEP: usize = 16;
const LEAST_STEPS: usize = 3;
/// Products that one chain sums, where parts are possible: the roundings of longer chains leave the tolerance of F32.
const LONGEST: usize = 8192;

/// A workgroup's tile.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Size {
    pub(super) rows: u32,
    pub(super) columns: u32,
    pub(super) invocations: u32,
    /// How fast it is beside others, per product of a busy unit.
    pub(super) rate: f64,
}

impl Size {
    /// Of invocations that have 8 x 8 results each.
    pub(super) fn of_quads(measured: &TileRate) -> Size {
        let TileRate {
            sides: [down, across],
            rate,
        } = *measured;
        Size {
            rows: 8 * down,
            columns: 8 * across,
            invocations: down * across,
            rate,
        }
    }

    pub(super) fn tile(self) -> [u32; 2] {
        [self.rows, self.columns]
    }

    /// TM, TN: the invocations along rows and columns.
    pub(super) fn sides(self) -> [u32; 2] {
        self.tile().map(|n| n / 8)
    }
}

/// A size, the number of parts of `k`, and what the busiest unit has to do then.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Tiles {
    pub(super) size: Size,
    pub(super) parts: u32,
    pub(super) time: f64,
}

/// Work that tiles differ in: how long it waits for memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waits {
    /// As rows of operands do.
    ForRows,
    /// As windows do, which are gathered.
    ForWindows,
}

/// The sizes of a product, and the device that it is for.
#[derive(Clone, Copy, Debug)]
pub(super) struct TileProblem<'a> {
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) k: usize,
    /// Products of these sizes.
    pub(super) products: usize,
    pub(super) device: &'a Device,
    /// Invocations that keep a unit busy.
    pub(super) full_unit: f64,
    /// The most bytes that sums of parts may take.
    pub(super) most_bytes: u64,
}

/// Invocations that keep a unit of a device busy.
pub(super) fn full_unit(device: &Device, waits: Waits) -> f64 {
    let [rows, windows] = device.rates.tiles.busy;
    let of_lane = match waits {
        Waits::ForRows => rows,
        Waits::ForWindows => windows,
    };
    of_lane * f64::from(device.unit_lanes)
}

impl TileProblem<'_> {
    fn rates(&self) -> &TileRates {
        &self.device.rates.tiles
    }

    /// What the busiest unit has to do, in products at a rate of 1.
    pub(super) fn time(&self, size: Size, parts: u32) -> f64 {
        let tiles = self.rows.div_ceil(size.rows as usize);
        let tiles = tiles.saturating_mul(self.columns.div_ceil(size.columns as usize));
        let tiles = tiles.saturating_mul(self.products.saturating_mul(parts as usize));
        let units = self.device.units_or_typical();
        let of_unit = tiles.div_ceil(units) as f64;
        let invocations = of_unit * f64::from(size.invocations);
        let rate = size.rate * (invocations / self.full_unit).min(1.0);
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

    /// The size and the parts with which the busiest unit has least to do, but for parts that are too long.
    pub(super) fn best(&self, sizes: &[Size]) -> Option<Tiles> {
        self.best_in(sizes, &PARTS)
    }

    /// As [`TileProblem::best`], of these numbers of parts.
    pub(super) fn best_in(&self, sizes: &[Size], parts: &[u32]) -> Option<Tiles> {
        let steps = self.k.div_ceil(STEP);
        let fits = |parts: u32| f64::from(parts) * 4.0 * self.results() <= self.most_bytes as f64;
        let able =
            |parts: &u32| *parts == 1 || (steps >= LEAST_STEPS * *parts as usize && fits(*parts));
        let able = parts.iter().copied().filter(able);
        let least = self.k.div_ceil(LONGEST).min(able.clone().max()? as usize);
        let able = able.filter(|parts| *parts as usize >= least);
        let all = sizes.iter().flat_map(|&size| {
            able.clone().map(move |parts| Tiles {
                size,
                parts,
                time: self.time(size, parts),
            })
        });
        all.min_by(|a, b| a.time.total_cmp(&b.time))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::caps::Caps;

    fn sizes() -> [Size; 2] {
        [([16, 16], 1.0), ([8, 8], 0.85)]
            .map(|(sides, rate)| Size::of_quads(&TileRate { sides, rate }))
    }

    fn of(rows: usize, columns: usize, k: usize) -> Tiles {
        let device = Caps::h200().device;
        let problem = TileProblem {
            rows,
            columns,
            k,
            products: 1,
            device: &device,
            full_unit: 256.0,
            most_bytes: 1 << 30,
        };
        problem.best(&sizes()).unwrap()
    }

    #[test]
    fn few_tiles_are_summed_in_parts() {
        let few = of(128, 768, 3072);
        assert!(few.parts > 1, "{few:?}");
        let many = of(4096, 4096, 4096);
        assert_eq!((many.parts, many.size), (1, sizes()[0]));
        let short = of(128, 768, 64);
        assert_eq!(short.parts, 1);
    }

    #[test]
    fn long_chains_are_summed_in_parts() {
        assert_eq!(of(4096, 4096, 8192).parts, 1);
        assert_eq!(of(4096, 4096, 14336).parts, 2);
        let many = of(4096, 4096, 1 << 20);
        assert_eq!(many.parts, 16, "the most there are");
    }

    #[test]
    fn sums_of_parts_fit_where_they_may_lie() {
        let device = Caps::h200().device;
        let problem = TileProblem {
            rows: 128,
            columns: 768,
            k: 3072,
            products: 1,
            device: &device,
            full_unit: 256.0,
            most_bytes: 2 * 4 * 128 * 768,
        };
        assert_eq!(problem.best(&sizes()).unwrap().parts, 2);
        let nowhere = TileProblem {
            k: 1 << 16,
            most_bytes: 0,
            ..problem
        };
        assert_eq!(nowhere.best(&sizes()).unwrap().parts, 1);
    }
}

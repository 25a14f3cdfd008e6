//! How a product on cooperative matrices is divided, and which division a device and a size get.
//!
//! [`Tiling::candidates`] are all that a device can run. [`Tiling::choose`] takes what the device's
//! [`Tuning`](crate::Tuning) says of the nearest size that was measured, else the least [`Tiling::cost`].

use std::fmt;

use crate::caps::{Caps, CoopBlock, CoopShape, CoopType};
use crate::tuning::Problem;

/// Whose matrices a kernel multiplies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// Each subgroup multiplies fragments that the kernel staged.
    Subgroup,
    /// The workgroup multiplies tiles; the driver stages and divides them.
    Workgroup,
}

/// How a product is divided over workgroups, subgroups and fragments. Sizes are `m n k`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tiling {
    /// Whose matrices are multiplied.
    pub scope: Scope,
    /// Invocations of a subgroup.
    pub subgroup: u32,
    /// The device's matrices; for a workgroup's, what its tile is a multiple of.
    pub fragment: [u32; 3],
    /// A workgroup's part of the result, and how much of `k` it stages.
    pub tile: [u32; 3],
    /// A subgroup's part of the tile.
    pub part: [u32; 2],
    /// Buffers of a staged step: 1 or 2.
    pub stages: u32,
    /// Fragments are loaded while those before multiply; needs two stages.
    pub ahead: bool,
    /// Rows of tiles that run near each other in time.
    pub band: u32,
}

/// For devices that do not say how many workgroups run side by side.
const TYPICAL_UNITS: usize = 32;

/// Rows of tiles of a band, where nothing else was measured.
const BAND: u32 = 8;

/// A division in units of fragments: subgroups of a tile, fragments of a subgroup, fragments of `k`.
struct Division {
    subgroups: [u32; 2],
    part: [u32; 2],
    depth: u32,
    stages: u32,
    ahead: bool,
    band: u32,
    rate: Rate,
}

/// How fast a unit of the device is with workgroups of a tiling, in parts of what the first of
/// [`DIVISIONS`] reaches; measured on a GPU of 132 units by `tercet tune`.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Rate {
    /// With one workgroup.
    alone: f64,
    /// With as many as it takes.
    full: f64,
}

const fn one(subgroups: [u32; 2], part: [u32; 2], depth: u32, rate: [f64; 2]) -> Division {
    Division {
        subgroups,
        part,
        depth,
        stages: 1,
        ahead: false,
        band: BAND,
        rate: Rate {
            alone: rate[0],
            full: rate[1],
        },
    }
}

const fn two(subgroups: [u32; 2], part: [u32; 2], depth: u32, rate: [f64; 2]) -> Division {
    Division {
        stages: 2,
        ..one(subgroups, part, depth, rate)
    }
}

const fn ahead(subgroups: [u32; 2], part: [u32; 2], depth: u32, rate: [f64; 2]) -> Division {
    Division {
        ahead: true,
        ..two(subgroups, part, depth, rate)
    }
}

/// Of equal cost the first is taken. The comments are for fragments of 16 x 16 x 16.
const DIVISIONS: &[Division] = &[
    one([2, 2], [4, 4], 2, [0.64, 1.0]), // 128 x 128 x 32
    ahead([2, 2], [4, 4], 2, [0.59, 0.61]),
    two([2, 2], [4, 4], 2, [0.67, 0.63]),
    one([2, 2], [4, 4], 4, [0.62, 0.72]), // 128 x 128 x 64
    Division {
        band: 4,
        ..one([2, 2], [4, 4], 2, [0.64, 1.0])
    },
    Division {
        band: 16,
        ..one([2, 2], [4, 4], 2, [0.64, 1.0])
    },
    one([4, 2], [4, 4], 2, [0.89, 0.92]), // 256 x 128 x 32
    two([4, 2], [4, 4], 1, [0.84, 0.64]),
    one([2, 4], [4, 4], 2, [0.88, 0.91]), // 128 x 256 x 32
    two([2, 4], [4, 4], 1, [0.89, 0.7]),
    one([2, 4], [4, 2], 2, [0.6, 0.57]), // 128 x 128 x 32 of 64 x 32
    ahead([2, 4], [4, 2], 2, [0.73, 0.73]),
    one([4, 2], [2, 4], 2, [0.61, 0.56]),
    ahead([4, 2], [2, 4], 2, [0.76, 0.71]),
    one([4, 4], [4, 2], 2, [0.83, 0.72]), // 256 x 128 x 32 of 64 x 32
    one([2, 2], [4, 6], 2, [0.45, 0.38]), // 128 x 192 x 32 of 64 x 96
    one([2, 4], [4, 3], 2, [0.59, 0.57]), // 128 x 192 x 32 of 64 x 48
    ahead([2, 4], [4, 3], 2, [0.59, 0.57]),
    one([2, 2], [2, 4], 2, [0.41, 0.71]), // 64 x 128 x 32
    ahead([2, 2], [2, 4], 2, [0.42, 0.54]),
    one([2, 2], [4, 2], 2, [0.38, 0.67]), // 128 x 64 x 32
    ahead([2, 2], [4, 2], 2, [0.41, 0.51]),
    one([2, 2], [2, 2], 2, [0.27, 0.52]), // 64 x 64 x 32
    ahead([2, 2], [2, 2], 2, [0.29, 0.55]),
    ahead([2, 2], [2, 2], 4, [0.3, 0.45]),
];

/// Tiles and invocations of kernels of a workgroup's matrices.
const BLOCKS: &[([u32; 3], u32)] = &[
    ([128, 256, 64], 256),
    ([256, 128, 64], 256),
    ([128, 256, 32], 256),
    ([256, 128, 32], 256),
    ([128, 128, 64], 256),
    ([128, 128, 64], 128),
    ([128, 128, 32], 128),
    ([64, 128, 64], 128),
    ([128, 64, 64], 128),
    ([64, 64, 64], 128),
];

impl Tiling {
    /// The tiling for a product; none where the device has no cooperative matrices of this type, or
    /// not the shared memory. A workgroup's matrices, which need `aligned` operands, are chosen only
    /// where they were measured to be best.
    pub fn choose(caps: &Caps, ty: CoopType, problem: &Problem, aligned: bool) -> Option<Tiling> {
        let all = Tiling::candidates(caps, ty);
        let able = |t: &&Tiling| aligned || t.scope == Scope::Subgroup;
        let measured = caps.tuning.find(problem).and_then(|name| {
            let same = |t: &&Tiling| t.to_string() == name;
            all.iter().filter(able).find(same)
        });
        if let Some(best) = measured {
            return Some(*best);
        }
        let units = match caps.compute_units {
            0 => TYPICAL_UNITS,
            known => known as usize,
        };
        let modelled = Tiling::divided(caps, ty).into_iter();
        let costs = modelled.map(|(t, rate)| (t, t.cost(rate, problem, units)));
        let least = costs.min_by(|(_, s), (_, t)| s.total_cmp(t));
        least.map(|(t, _)| t)
    }

    /// Every tiling that the device can run.
    pub fn candidates(caps: &Caps, ty: CoopType) -> Vec<Tiling> {
        let Some(subgroup) = caps.subgroup.filter(|_| caps.spirv) else {
            return Vec::new();
        };
        let divided = Tiling::divided(caps, ty).into_iter().map(|(t, _)| t);
        let blocks = caps.coop_blocks.iter().filter(|b| b.ty == ty);
        let blocks = blocks.flat_map(|b| Tiling::of_blocks(*b, subgroup));
        let mut all: Vec<Tiling> = Vec::new();
        for t in divided.chain(blocks.filter(|t| t.fits(caps))) {
            // Two devices' limits may allow the same tile by different ways.
            if !all.contains(&t) {
                all.push(t);
            }
        }
        all
    }

    /// Every tiling of subgroups that the device can run.
    fn divided(caps: &Caps, ty: CoopType) -> Vec<(Tiling, Rate)> {
        let Some(subgroup) = caps.subgroup.filter(|_| caps.spirv) else {
            return Vec::new();
        };
        let shapes = caps.coop.iter().filter(|s| s.ty == ty);
        // The largest matrix does the most work per load.
        let shape = shapes
            .filter(|s| s.k % 8 == 0 && s.n % 4 == 0)
            .max_by_key(|s| s.m * s.n * s.k);
        let Some(shape) = shape else {
            return Vec::new();
        };
        let all = DIVISIONS.iter();
        let all = all.map(|d| (Tiling::of_fragments(*shape, subgroup, d), d.rate));
        all.filter(|(t, _)| t.fits(caps)).collect()
    }

    fn of_fragments(shape: CoopShape, subgroup: u32, d: &Division) -> Tiling {
        let part = [d.part[0] * shape.m, d.part[1] * shape.n];
        let tile = [
            d.subgroups[0] * part[0],
            d.subgroups[1] * part[1],
            d.depth * shape.k,
        ];
        Tiling {
            scope: Scope::Subgroup,
            subgroup,
            fragment: [shape.m, shape.n, shape.k],
            tile,
            part,
            stages: d.stages,
            ahead: d.ahead,
            band: d.band,
        }
    }

    fn of_blocks(block: CoopBlock, subgroup: u32) -> impl Iterator<Item = Tiling> {
        let fragment = [block.m, block.n, block.k];
        let able = move |tile: [u32; 3], threads| {
            let whole = (0..3).all(|axis| tile[axis].is_multiple_of(fragment[axis]));
            whole && threads == block.threads
        };
        let all = BLOCKS.iter().filter(move |(t, threads)| able(*t, *threads));
        all.map(move |&(tile, threads)| Tiling {
            scope: Scope::Workgroup,
            subgroup,
            fragment,
            tile,
            // Rows of the tile, so that the number of invocations follows.
            part: [tile[0] * subgroup / threads, tile[1]],
            stages: 1,
            ahead: false,
            band: BAND,
        })
    }

    fn fits(&self, caps: &Caps) -> bool {
        let threads = self.threads();
        if threads > caps.max_workgroup {
            return false;
        }
        let [_, bn, bk] = self.tile;
        match self.scope {
            Scope::Subgroup => {
                let shared = self.shared_bytes(false).max(self.shared_bytes(true));
                let lines = bn.is_multiple_of(8) && threads >= bn / 8 && threads >= bk / 8;
                let strips = self.part[1].is_multiple_of(8) && self.subgroup >= self.part[1] / 8;
                let pairs = !self.ahead || bk.is_multiple_of(2 * self.fragment[2]);
                shared <= caps.workgroup_bytes && lines && strips && pairs
            }
            Scope::Workgroup => true,
        }
    }

    /// Workgroups of an `m x n` result.
    pub fn groups(&self, m: usize, n: usize) -> usize {
        let rows = m.div_ceil(self.tile[0] as usize);
        rows.saturating_mul(n.div_ceil(self.tile[1] as usize))
    }

    /// Invocations of a workgroup.
    pub fn threads(&self) -> u32 {
        self.subgroup * (self.tile[0] / self.part[0]) * (self.tile[1] / self.part[1])
    }

    /// Shared memory of a workgroup: staged steps, later fragments of sums. As in the shader.
    pub fn shared_bytes(&self, b_transposed: bool) -> u32 {
        let [bm, bn, bk] = self.tile;
        let (b_lines, b_cols) = if b_transposed { (bn, bk) } else { (bk, bn) };
        let stage = bm * (bk / 8 + 1) + b_lines * (b_cols / 8 + 1);
        let sums = self.threads() / self.subgroup * self.fragment[0] * (self.part[1] / 4 + 1);
        16 * (self.stages * stage).max(sums)
    }

    /// What a product takes: the tiles of the busiest unit of the device, and how fast it is with so
    /// many of them.
    fn cost(&self, rate: Rate, problem: &Problem, units: usize) -> f64 {
        let [bm, bn, _] = self.tile.map(f64::from);
        let tiles = self.groups(problem.m, problem.n).div_ceil(units) as f64;
        tiles * bm * bn / (tiles * rate.alone).min(rate.full)
    }
}

/// A name that tells it from the other candidates of a device, such as `128x128x32/64x64:ahead`.
impl fmt::Display for Tiling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [bm, bn, bk] = self.tile;
        write!(f, "{bm}x{bn}x{bk}")?;
        match self.scope {
            Scope::Subgroup => write!(f, "/{}x{}", self.part[0], self.part[1])?,
            Scope::Workgroup => write!(f, "/block{}", self.threads())?,
        }
        match (self.ahead, self.stages) {
            (true, _) => write!(f, ":ahead")?,
            (false, 1) => {}
            (false, stages) => write!(f, ":{stages}")?,
        }
        match self.band {
            BAND => Ok(()),
            band => write!(f, ":band{band}"),
        }
    }
}

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
}

const fn one(subgroups: [u32; 2], part: [u32; 2], depth: u32) -> Division {
    Division {
        subgroups,
        part,
        depth,
        stages: 1,
        ahead: false,
        band: BAND,
    }
}

const fn two(subgroups: [u32; 2], part: [u32; 2], depth: u32) -> Division {
    Division {
        stages: 2,
        ..one(subgroups, part, depth)
    }
}

const fn ahead(subgroups: [u32; 2], part: [u32; 2], depth: u32) -> Division {
    Division {
        ahead: true,
        ..two(subgroups, part, depth)
    }
}

/// Of equal cost the first is taken. The comments are for fragments of 16 x 16 x 16.
const DIVISIONS: &[Division] = &[
    one([2, 2], [4, 4], 2), // 128 x 128 x 32
    ahead([2, 2], [4, 4], 2),
    two([2, 2], [4, 4], 2),
    one([2, 2], [4, 4], 4), // 128 x 128 x 64
    Division {
        band: 4,
        ..one([2, 2], [4, 4], 2)
    },
    Division {
        band: 16,
        ..one([2, 2], [4, 4], 2)
    },
    one([4, 2], [4, 4], 2), // 256 x 128 x 32
    two([4, 2], [4, 4], 1),
    one([2, 4], [4, 4], 2), // 128 x 256 x 32
    two([2, 4], [4, 4], 1),
    one([2, 4], [4, 2], 2), // 128 x 128 x 32 of 64 x 32
    ahead([2, 4], [4, 2], 2),
    one([4, 2], [2, 4], 2),
    ahead([4, 2], [2, 4], 2),
    one([4, 4], [4, 2], 2), // 256 x 128 x 32 of 64 x 32
    one([2, 2], [4, 6], 2), // 128 x 192 x 32 of 64 x 96
    one([2, 4], [4, 3], 2), // 128 x 192 x 32 of 64 x 48
    ahead([2, 4], [4, 3], 2),
    one([2, 2], [2, 4], 2), // 64 x 128 x 32
    ahead([2, 2], [2, 4], 2),
    one([2, 2], [4, 2], 2), // 128 x 64 x 32
    ahead([2, 2], [4, 2], 2),
    one([2, 2], [2, 2], 2), // 64 x 64 x 32
    ahead([2, 2], [2, 2], 2),
    ahead([2, 2], [2, 2], 4),
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
        let modelled = all.into_iter().filter(|t| t.scope == Scope::Subgroup);
        modelled.min_by(|s, t| s.cost(problem, units).total_cmp(&t.cost(problem, units)))
    }

    /// Every tiling that the device can run.
    pub fn candidates(caps: &Caps, ty: CoopType) -> Vec<Tiling> {
        let Some(subgroup) = caps.subgroup.filter(|_| caps.spirv) else {
            return Vec::new();
        };
        let shapes = caps.coop.iter().filter(|s| s.ty == ty);
        // The largest matrix does the most work per load.
        let shape = shapes
            .filter(|s| s.k % 8 == 0 && s.n % 4 == 0)
            .max_by_key(|s| s.m * s.n * s.k);
        let divided = shape.into_iter().flat_map(|shape| {
            let divisions = DIVISIONS.iter();
            divisions.map(move |d| Tiling::of_fragments(*shape, subgroup, d))
        });
        let blocks = caps.coop_blocks.iter().filter(|b| b.ty == ty);
        let blocks = blocks.flat_map(|b| Tiling::of_blocks(*b, subgroup));
        let mut all: Vec<Tiling> = Vec::new();
        for t in divided.chain(blocks).filter(|t| t.fits(caps)) {
            // Two devices' limits may allow the same tile by different ways.
            if !all.contains(&t) {
                all.push(t);
            }
        }
        all
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
                let lines = bn % 8 == 0 && threads >= bn / 8 && threads >= bk / 8;
                let strips = self.part[1] % 8 == 0 && self.subgroup >= self.part[1] / 8;
                let pairs = !self.ahead || bk % (2 * self.fragment[2]) == 0;
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

    /// What a product takes, in multiplications of one unit of the device: the waves of tiles, and
    /// for each tile what multiplies, what goes through shared memory and what is read from the
    /// cache. The weights are those of a GPU that multiplies 1300 pairs, and moves 128 bytes of
    /// shared memory and 24 of its cache, per cycle and unit.
    fn cost(&self, problem: &Problem, units: usize) -> f64 {
        const SHARED: f64 = 20.0;
        const CACHE: f64 = 106.0;
        // Filling the first step and storing the sums cost as much as so many of k.
        const ENDS: f64 = 96.0;
        let [bm, bn, _] = self.tile.map(f64::from);
        let [wm, wn] = self.part.map(f64::from);
        let subgroups = f64::from(self.threads() / self.subgroup);
        let moved = SHARED * (subgroups * (wm + wn) + bm + bn) + CACHE * (bm + bn);
        let waves = self.groups(problem.m, problem.n).div_ceil(units);
        waves as f64 * (problem.k as f64 + ENDS) * (bm * bn + moved)
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

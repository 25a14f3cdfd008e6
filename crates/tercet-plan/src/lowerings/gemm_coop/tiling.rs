//! How a product on cooperative matrices is divided: tilings, their sizes and names.
//!
//! [`Tiling::candidates`] are all that a device can run; `choose.rs` says which one a device and a size get.

use std::fmt;

use crate::caps::{Caps, CoopBlock, CoopShape, CoopType};
use crate::device::rates::{Division, Rate};
use crate::num::{Num, Tape};
use crate::tuning::GemmProblem;

/// Whose matrices a kernel multiplies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// Each subgroup multiplies fragments that the kernel staged.
    Subgroup,
    /// The workgroup multiplies tiles; the driver stages and divides them.
    Workgroup,
    /// Each subgroup multiplies fragments that it fills itself, from weights that were laid out.
    Laid,
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
    /// Buffers of a staged step: 1, or 2 for aligned operands.
    pub stages: u32,
    /// Rows of tiles that run near each other in time.
    pub band: u32,
    /// Parts of `k` that are summed by workgroups of their own; where there are several, another kernel
    /// adds them.
    pub splits: u32,
    /// Parts of `k` that subgroups of a workgroup sum side by side and add before they store; of weights that were laid out.
    pub slices: u32,
}

/// Columns at the end of a result whose tiles have `k` in parts, where whole ones would leave units without work: the last
/// turn of a device is rarely full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tail {
    /// Columns of tiles.
    pub columns: u32,
    /// Parts of `k`.
    pub splits: u32,
}

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

/// The subgroups of fragments that are filled by hand, and what `k` is a multiple of there.
const LANES: u32 = 32;
const LAID_STEP: usize = 64;

/// Parts of `k` that are tried for subgroups side by side, and the steps that each has at least.
const SLICES: &[u32] = &[1, 2, 4, 8];
const SLICE_STEPS: usize = 2;

/// Rows of tiles of a band, where nothing else was measured.
const BAND: u32 = 8;

/// Parts of `k` that are tried.
pub(super) const SPLITS: &[u32] = &[1, 2, 3, 4, 6, 8];

impl Tiling {
    /// Every tiling that the device can run, with `k` in one part.
    pub fn candidates(caps: &Caps, ty: CoopType) -> Vec<Tiling> {
        let Some(subgroup) = caps.subgroup.filter(|_| caps.spirv) else {
            return Vec::new();
        };
        let divided = Tiling::divided(caps, ty, caps.device.rates.matrices.divisions)
            .into_iter()
            .map(|(t, _)| t);
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
    pub(super) fn divided(
        caps: &Caps,
        ty: CoopType,
        divisions: &[Division],
    ) -> Vec<(Tiling, Rate)> {
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
        Tiling::of_rows(caps, *shape, subgroup, divisions)
    }

    /// The divisions of a table that fit, as fast as the device can run them.
    fn of_rows(
        caps: &Caps,
        shape: CoopShape,
        subgroup: u32,
        table: &[Division],
    ) -> Vec<(Tiling, Rate)> {
        let fragment = [shape.m, shape.n, shape.k];
        let all = caps.device.divisions(fragment, subgroup, table).into_iter();
        let all = all.map(|d| {
            let t = Tiling::of_fragments(shape, subgroup, &d);
            let shared = t.shared_bytes(false).max(t.shared_bytes(true));
            (t, d.rate.with_room_for(caps.device.together(shared)))
        });
        all.filter(|(t, _)| t.fits(caps)).collect()
    }

    /// Every tiling of pairs of F16 (`gemm_pairs_f32.comp`) that the device can run: tiles of whole blocks of 64, two numbers
    /// staged for each element.
    pub(super) fn of_pairs(caps: &Caps) -> Vec<(Tiling, Rate)> {
        const BLOCK: u32 = 64;
        let Some(subgroup) = caps.subgroup.filter(|_| caps.spirv) else {
            return Vec::new();
        };
        let shapes = caps.coop.iter().filter(|s| s.ty == CoopType::F16);
        let shapes = shapes.filter(|s| [s.m, s.n, s.k].iter().all(|n| [8, 16].contains(n)));
        let Some(shape) = shapes.max_by_key(|s| s.m * s.n * s.k) else {
            return Vec::new();
        };
        let fragment = [shape.m, shape.n, shape.k];
        let table = caps.device.rates.matrices.pairs;
        let all = caps.device.divisions(fragment, subgroup, table).into_iter();
        let all = all.map(|d| {
            let t = Tiling::of_fragments(*shape, subgroup, &d);
            (
                t,
                d.rate
                    .with_room_for(caps.device.together(t.bytes_of_pairs())),
            )
        });
        let fits = |t: &Tiling| {
            let [bm, bn, bk] = t.tile;
            let whole = [bm, bn].iter().all(|n| n.is_multiple_of(BLOCK));
            let parts = t.part.iter().all(|n| BLOCK.is_multiple_of(*n));
            let strips = t.part[1].is_multiple_of(8) && t.subgroup >= t.part[1] / 8;
            let steps = bk.is_multiple_of(16) && BLOCK.is_multiple_of(bk);
            let room =
                t.threads() <= caps.max_workgroup && t.bytes_of_pairs() <= caps.workgroup_bytes;
            whole && parts && strips && steps && room
        };
        all.filter(|(t, _)| fits(t)).collect()
    }

    /// Shared memory of a workgroup that multiplies pairs, however they lie: as in the shader.
    fn bytes_of_pairs(&self) -> u32 {
        let [bm, bn, bk] = self.tile;
        let lines = |n: u32| (n * (bk / 4 + 1)).max(bk * (n / 4 + 1));
        let sums = self.threads() / self.subgroup * self.fragment[0] * (self.part[1] / 4 + 2);
        16 * (lines(bm) + lines(bn)).max(sums) + 16
    }

    /// Every tiling of fragments that subgroups fill from this product's right side once it is laid out; see
    /// `gemm_laid_f16.comp` for what it takes.
    pub(super) fn laid(caps: &Caps, ty: CoopType, problem: &GemmProblem) -> Vec<(Tiling, Rate)> {
        let shape = CoopShape {
            ty,
            m: 8,
            n: 16,
            k: 16,
            narrow_sums: false,
        };
        let lanes = caps.coop_lanes && caps.subgroup == Some(LANES) && ty == CoopType::F16;
        let whole = problem.n.is_multiple_of(64) && problem.k.is_multiple_of(LAID_STEP);
        // Subgroups read both sides again and again from a cache that all units share, which has room for other things: all
        // of the weights, and rows of a band of tiles and the next, which are done with then.
        let tiles = caps.device.rates.matrices.laid.iter();
        let tallest = tiles.map(|d| d.subgroups[0] * d.part[0]).max();
        let rows = problem.m.min((2 * BAND * tallest.unwrap_or(0)) as usize);
        let elements = rows.saturating_add(problem.n).saturating_mul(problem.k);
        let most = caps.device.cache_bytes / 3 * 2 / ty.size_bytes();
        if !lanes || !whole || problem.k == 0 || elements as u64 > most {
            return Vec::new();
        }
        let all = Tiling::of_rows(caps, shape, LANES, caps.device.rates.matrices.laid);
        let rates = &caps.device.rates.matrices;
        let steps = problem.k / LAID_STEP;
        let sliced = |t: Tiling, rate: Rate| {
            let is_part = t.part == [t.tile[0], t.tile[1]];
            let most = (rates.most_sliced * caps.units()) / t.groups(problem.m, problem.n).max(1);
            let slices = SLICES.iter().copied().filter(move |n| {
                let n = *n as usize;
                let whole = steps.is_multiple_of(n) && steps >= SLICE_STEPS * n;
                n == 1 || (is_part && whole && n <= most)
            });
            slices.map(move |slices| {
                let laid = Tiling {
                    scope: Scope::Laid,
                    slices,
                    ..t
                };
                (laid, if slices > 1 { rates.sliced } else { rate })
            })
        };
        let all = all.into_iter().flat_map(|(t, rate)| sliced(t, rate));
        let fits = |t: &Tiling| {
            t.threads() <= caps.max_workgroup && t.slice_bytes() <= caps.workgroup_bytes
        };
        all.filter(|(t, _)| fits(t)).collect()
    }

    /// Shared memory for the sums of slices of `k`.
    fn slice_bytes(&self) -> u32 {
        4 * (self.slices - 1) * self.part[0] * self.part[1]
    }

    /// The tilings of a product whose right side can be laid out on this device.
    pub fn laid_candidates(caps: &Caps, ty: CoopType, problem: &GemmProblem) -> Vec<Tiling> {
        let all = Tiling::laid(caps, ty, problem).into_iter();
        all.map(|(t, _)| t).collect()
    }

    fn of_fragments(shape: CoopShape, subgroup: u32, d: &Division) -> Tiling {
        Tiling {
            scope: Scope::Subgroup,
            subgroup,
            fragment: [shape.m, shape.n, shape.k],
            tile: [
                d.subgroups[0] * d.part[0],
                d.subgroups[1] * d.part[1],
                d.depth,
            ],
            part: d.part,
            stages: d.stages,
            band: BAND,
            splits: 1,
            slices: 1,
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
            band: BAND,
            splits: 1,
            slices: 1,
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
                shared <= caps.workgroup_bytes && lines && strips
            }
            Scope::Workgroup | Scope::Laid => true,
        }
    }

    /// Workgroups of an `m x n` result.
    pub fn groups(&self, m: usize, n: usize) -> usize {
        let rows = m.div_ceil(self.tile[0] as usize);
        rows.saturating_mul(n.div_ceil(self.tile[1] as usize))
    }

    /// Workgroups that the device runs side by side, of those that go through all tiles and have all registers between
    /// them; none where it does not say how many units it has, or tiles are small.
    pub(crate) fn groups_at_once(&self, caps: &Caps) -> Option<u32> {
        let registers = caps.device.registers_of(self.subgroup) + 1;
        let of_unit = caps.device.unit_invocations(registers) / self.threads();
        let all = caps.device.units? * of_unit.max(1);
        (self.part[0] >= 32).then_some(all)
    }

    /// Invocations of a workgroup.
    pub fn threads(&self) -> u32 {
        self.subgroup * (self.tile[0] / self.part[0]) * (self.tile[1] / self.part[1]) * self.slices
    }

    /// Shared memory of a workgroup: staged steps, later fragments of sums. As in the shader.
    pub fn shared_bytes(&self, b_transposed: bool) -> u32 {
        let [bm, bn, bk] = self.tile;
        let (b_lines, b_cols) = if b_transposed { (bn, bk) } else { (bk, bn) };
        let stage = bm * (bk / 8 + 1) + b_lines * (b_cols / 8 + 1);
        let sums = self.threads() / self.subgroup * self.fragment[0] * (self.part[1] / 4 + 2);
        16 * (self.stages * stage).max(sums)
    }

    /// The same with so many parts of `k`.
    pub(crate) fn split(self, splits: u32) -> Tiling {
        Tiling { splits, ..self }
    }

    /// What adds the parts does four columns at a time; a workgroup's matrices have no parts.
    pub(super) fn can_split(&self, problem: &GemmProblem) -> bool {
        problem.n.is_multiple_of(4) && self.scope == Scope::Subgroup
    }

    /// This with each number of parts that a product may have.
    pub(super) fn splits_of(self, problem: &GemmProblem) -> impl Iterator<Item = Tiling> {
        let parts = match self.can_split(problem) {
            true => SPLITS,
            false => &SPLITS[..1],
        };
        self.parts_of(problem, parts)
    }

    /// This with each of these numbers of parts that leaves every part several steps.
    pub(super) fn parts_of(
        self,
        problem: &GemmProblem,
        parts: &'static [u32],
    ) -> impl Iterator<Item = Tiling> {
        const STEPS: usize = 3;
        let steps = problem.k / self.tile[2] as usize;
        let all = parts.iter().copied();
        let all = all.filter(move |n| *n == 1 || steps >= STEPS * *n as usize);
        all.map(move |n| self.split(n))
    }

    /// The candidates that are worth measuring for a product: those that leave units of the device
    /// without work also with `k` in parts.
    pub fn candidates_for(caps: &Caps, ty: CoopType, problem: &GemmProblem) -> Vec<Tiling> {
        let units = caps.units();
        let worth = |t: &Tiling| {
            t.splits == 1 || t.groups(problem.m, problem.n) * t.splits as usize <= 3 * units
        };
        let all = Tiling::candidates(caps, ty).into_iter();
        all.flat_map(|t| t.splits_of(problem))
            .filter(worth)
            .collect()
    }

    /// How much of `k` a part sums, all but the last.
    pub fn split_k(&self, tape: &mut Tape, k: Num) -> Num {
        if self.splits == 1 {
            return k;
        }
        let steps = tape.ceil_div(k, self.splits * self.tile[2]);
        tape.mul(steps, Num::Const(i64::from(self.tile[2])))
    }
}

/// A name that tells it from the other candidates of a device, such as `64x64x64/32x32:2:split4`: two stages,
/// four parts of `k`.
impl fmt::Display for Tiling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [bm, bn, bk] = self.tile;
        write!(f, "{bm}x{bn}x{bk}")?;
        match self.scope {
            Scope::Subgroup => write!(f, "/{}x{}", self.part[0], self.part[1])?,
            Scope::Workgroup => write!(f, "/block{}", self.threads())?,
            Scope::Laid => write!(f, "/laid{}", self.part[0])?,
        }
        if self.slices > 1 {
            write!(f, ":slices{}", self.slices)?;
        }
        if self.stages > 1 {
            write!(f, ":{}", self.stages)?;
        }
        match self.splits {
            1 => Ok(()),
            splits => write!(f, ":split{splits}"),
        }
    }
}

//! Tilings of a GEMM on cooperative matrices: their sizes, their names, and which of them a device
//! can run.
//!
//! [`CoopGemmTiling::candidates`] returns all tilings that a device can run; `choose.rs` selects
//! one of them per device and GEMM size.

use std::fmt;

use crate::caps::{CoopBlock, CoopShape, CoopType, DeviceCaps};
use crate::device::cost_model::{TileConfig, TileThroughput};
use crate::tuning::GemmProblem;
use tercet_program::{ExprArena, SymInt};

/// Which threads share a cooperative matrix in a GEMM kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CoopScope {
    /// Subgroup scope: each subgroup multiplies fragments staged through shared memory.
    Subgroup,
    /// Workgroup scope: the workgroup multiplies whole tiles; the GPU driver stages them and
    /// divides them over the subgroups.
    Workgroup,
    /// Mma-style: each subgroup loads the registers of its fragments directly from prepacked
    /// weights.
    Prepacked,
    /// Subgroup scope in WGSL: square fragments staged through shared memory.
    Wgsl,
}

/// Tiling of a GEMM: its division over workgroups, subgroups and matrix fragments. Sizes are in the
/// order `m n k`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CoopGemmTiling {
    /// Which threads share each cooperative matrix.
    pub scope: CoopScope,
    /// Threads per subgroup.
    pub subgroup: u32,
    /// Subgroup scope: a cooperative-matrix shape that the device supports. Workgroup scope: the
    /// granularity of tile sizes.
    pub fragment: [u32; 3],
    /// Tile of a workgroup: the rows and columns of the result that it computes, and the length of
    /// a k step.
    pub tile: [u32; 3],
    /// Tile of a subgroup: the rows and columns of the result that it computes.
    pub subgroup_tile: [u32; 2],
    /// Number of shared-memory buffers for staged k steps: 1, or 2 (double buffering), which
    /// requires aligned operands.
    pub stages: u32,
    /// Number of tile rows per band. Workgroups compute the tiles of a band at about the same time,
    /// so that they share cached operands.
    pub band: u32,
    /// Split-K factor: number of parts of `k` that separate workgroups accumulate. If the factor is
    /// above 1, another kernel adds their partial sums.
    pub splits: u32,
    /// Number of parts of `k` that subgroups of the same workgroup accumulate in parallel; the
    /// workgroup adds them before the store. More than 1 only for prepacked weights.
    pub slices: u32,
}

/// Split-K tail: the last tile columns of a result use split-K. The additional workgroups occupy
/// compute units that the last wave would leave idle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TailSplitK {
    /// Number of tile columns in the tail.
    pub columns: u32,
    /// Split-K factor of the tile columns in the tail.
    pub splits: u32,
}

/// Candidate tiles `m n k` and threads per workgroup of workgroup-scope kernels.
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

/// Subgroup size that mma-style fragments require (`LANES`), and the number of which `k` must be a
/// multiple for prepacked weights (`LAID_STEP`).
const LANES: u32 = 32;
const LAID_STEP: usize = 64;

/// Candidate numbers of slices of `k` within a workgroup (`SLICES`), and the minimum number of k
/// steps per slice (`SLICE_STEPS`).
const SLICES: &[u32] = &[1, 2, 4, 8];
const SLICE_STEPS: usize = 2;

/// Default number of tile rows per band ([`CoopGemmTiling::band`]).
const BAND: u32 = 8;

/// Candidate split-K factors.
pub(super) const SPLITS: &[u32] = &[1, 2, 3, 4, 6, 8];

impl CoopGemmTiling {
    /// All tilings without split-K that the device can run for operands that are not prepacked.
    pub fn candidates(caps: &DeviceCaps, ty: CoopType) -> Vec<CoopGemmTiling> {
        let Some(subgroup) = caps.subgroup.filter(|_| caps.spirv) else {
            return Vec::new();
        };
        let divided = CoopGemmTiling::divided(caps, ty, caps.device.rates.matrices.divisions)
            .into_iter()
            .map(|(t, _)| t);
        let blocks = caps.coop_blocks.iter().filter(|b| b.ty == ty);
        let blocks = blocks.flat_map(|b| CoopGemmTiling::from_blocks(*b, subgroup));
        let mut all: Vec<CoopGemmTiling> = Vec::new();
        for t in divided.chain(blocks.filter(|t| t.is_supported(caps))) {
            // Two table entries may become the same tiling after adaptation to the device.
            if !all.contains(&t) {
                all.push(t);
            }
        }
        all
    }

    /// All subgroup-scope tilings of the table `divisions` that the device can run, with their
    /// rates.
    pub(super) fn divided(
        caps: &DeviceCaps,
        ty: CoopType,
        divisions: &[TileConfig],
    ) -> Vec<(CoopGemmTiling, TileThroughput)> {
        let Some(subgroup) = caps.subgroup.filter(|_| caps.spirv) else {
            return Vec::new();
        };
        let shapes = caps.coop.iter().filter(|s| s.ty == ty);
        // Select the largest cooperative-matrix shape, because it performs the most multiply-adds
        // per loaded element.
        let shape = shapes
            .filter(|s| s.k % 8 == 0 && s.n % 4 == 0)
            .max_by_key(|s| s.m * s.n * s.k);
        let Some(shape) = shape else {
            return Vec::new();
        };
        CoopGemmTiling::from_table(caps, *shape, subgroup, divisions)
    }

    /// The tiling of a grouped GEMM. `None` if the device lacks cooperative matrices of this type, or
    /// shared memory.
    pub(in crate::lowerings) fn choose_grouped(
        caps: &DeviceCaps,
        ty: CoopType,
    ) -> Option<CoopGemmTiling> {
        let all = CoopGemmTiling::divided(caps, ty, caps.device.rates.matrices.grouped);
        all.first().map(|(tiling, _)| *tiling)
    }

    /// The tilings of a table that the device can run; their rates are limited by the number of
    /// workgroups that fit on a compute unit.
    fn from_table(
        caps: &DeviceCaps,
        shape: CoopShape,
        subgroup: u32,
        table: &[TileConfig],
    ) -> Vec<(CoopGemmTiling, TileThroughput)> {
        let fragment = [shape.m, shape.n, shape.k];
        let all = caps.device.divisions(fragment, subgroup, table).into_iter();
        let all = all.map(|d| {
            let t = CoopGemmTiling::from_fragments(shape, subgroup, &d);
            let shared = t.shared_bytes(false).max(t.shared_bytes(true));
            (
                t,
                d.rate.limited_to(caps.device.resident_workgroups(shared)),
            )
        });
        all.filter(|(t, _)| t.is_supported(caps)).collect()
    }

    /// All tilings of split-F16 GEMMs (`gemm_pairs_f32.comp`) that the device can run. Tile sizes
    /// are multiples of 64, and each staged element consists of two F16 numbers.
    pub(super) fn for_split_f16(caps: &DeviceCaps) -> Vec<(CoopGemmTiling, TileThroughput)> {
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
        let table = caps.device.rates.matrices.split_f16;
        let all = caps.device.divisions(fragment, subgroup, table).into_iter();
        let all = all.map(|d| {
            let t = CoopGemmTiling::from_fragments(*shape, subgroup, &d);
            (
                t,
                d.rate
                    .limited_to(caps.device.resident_workgroups(t.bytes_of_pairs())),
            )
        });
        let fits = |t: &CoopGemmTiling| {
            let [bm, bn, bk] = t.tile;
            let whole = [bm, bn].iter().all(|n| n.is_multiple_of(BLOCK));
            let parts = t.subgroup_tile.iter().all(|n| BLOCK.is_multiple_of(*n));
            let strips =
                t.subgroup_tile[1].is_multiple_of(8) && t.subgroup >= t.subgroup_tile[1] / 8;
            let steps = bk.is_multiple_of(16) && BLOCK.is_multiple_of(bk);
            let room =
                t.threads() <= caps.max_workgroup && t.bytes_of_pairs() <= caps.workgroup_bytes;
            whole && parts && strips && steps && room
        };
        all.filter(|(t, _)| fits(t)).collect()
    }

    /// Shared memory per workgroup in bytes of a split-F16 GEMM with this tiling, whether operands
    /// are transposed or not; computed as in the shader.
    fn bytes_of_pairs(&self) -> u32 {
        let [bm, bn, bk] = self.tile;
        let lines = |n: u32| (n * (bk / 4 + 1)).max(bk * (n / 4 + 1));
        let sums =
            self.threads() / self.subgroup * self.fragment[0] * (self.subgroup_tile[1] / 4 + 2);
        16 * (lines(bm) + lines(bn)).max(sums) + 16
    }

    /// All mma-style tilings that the device can run for this GEMM after its right operand is
    /// prepacked. `gemm_laid_f16.comp` lists the requirements.
    pub(super) fn prepacked_tilings(
        caps: &DeviceCaps,
        ty: CoopType,
        problem: &GemmProblem,
    ) -> Vec<(CoopGemmTiling, TileThroughput)> {
        let shape = CoopShape {
            ty,
            m: 8,
            n: 16,
            k: 16,
            narrow_accumulators: false,
        };
        let lanes =
            caps.coop_fragment_layout && caps.subgroup == Some(LANES) && ty == CoopType::F16;
        let whole = problem.n.is_multiple_of(64) && problem.k.is_multiple_of(LAID_STEP);
        // The subgroups of all workgroups read both operands repeatedly from the cache that all
        // compute units share. This cache must be large enough for all weights, plus the activation
        // rows of two bands of tiles.
        let tiles = caps.device.rates.matrices.prepacked.iter();
        let tallest = tiles.map(|d| d.subgroups[0] * d.subgroup_tile[0]).max();
        let rows = problem.m.min((2 * BAND * tallest.unwrap_or(0)) as usize);
        let elements = rows.saturating_add(problem.n).saturating_mul(problem.k);
        let most = caps.device.cache_bytes / 3 * 2 / ty.size_bytes();
        if !lanes || !whole || problem.k == 0 || elements as u64 > most {
            return Vec::new();
        }
        let all =
            CoopGemmTiling::from_table(caps, shape, LANES, caps.device.rates.matrices.prepacked);
        let rates = &caps.device.rates.matrices;
        let steps = problem.k / LAID_STEP;
        let sliced = |t: CoopGemmTiling, rate: TileThroughput| {
            let is_part = t.subgroup_tile == [t.tile[0], t.tile[1]];
            let most = (rates.max_sliced * caps.units()) / t.groups(problem.m, problem.n).max(1);
            let slices = SLICES.iter().copied().filter(move |n| {
                let n = *n as usize;
                let whole = steps.is_multiple_of(n) && steps >= SLICE_STEPS * n;
                n == 1 || (is_part && whole && n <= most)
            });
            slices.map(move |slices| {
                let laid = CoopGemmTiling {
                    scope: CoopScope::Prepacked,
                    slices,
                    ..t
                };
                (laid, if slices > 1 { rates.sliced } else { rate })
            })
        };
        let all = all.into_iter().flat_map(|(t, rate)| sliced(t, rate));
        let fits = |t: &CoopGemmTiling| {
            t.threads() <= caps.max_workgroup && t.slice_bytes() <= caps.workgroup_bytes
        };
        all.filter(|(t, _)| fits(t)).collect()
    }

    /// Shared memory in bytes through which a workgroup adds the sums of its slices of `k`.
    fn slice_bytes(&self) -> u32 {
        4 * (self.slices - 1) * self.subgroup_tile[0] * self.subgroup_tile[1]
    }

    /// All tilings that the device can run for this GEMM with a prepacked right operand.
    pub fn prepacked_candidates(
        caps: &DeviceCaps,
        ty: CoopType,
        problem: &GemmProblem,
    ) -> Vec<CoopGemmTiling> {
        let all = CoopGemmTiling::prepacked_tilings(caps, ty, problem).into_iter();
        all.map(|(t, _)| t).collect()
    }

    fn from_fragments(shape: CoopShape, subgroup: u32, d: &TileConfig) -> CoopGemmTiling {
        CoopGemmTiling {
            scope: CoopScope::Subgroup,
            subgroup,
            fragment: [shape.m, shape.n, shape.k],
            tile: [
                d.subgroups[0] * d.subgroup_tile[0],
                d.subgroups[1] * d.subgroup_tile[1],
                d.depth,
            ],
            subgroup_tile: d.subgroup_tile,
            stages: d.stages,
            band: BAND,
            splits: 1,
            slices: 1,
        }
    }

    fn from_blocks(block: CoopBlock, subgroup: u32) -> impl Iterator<Item = CoopGemmTiling> {
        let fragment = [block.m, block.n, block.k];
        let able = move |tile: [u32; 3], threads| {
            let whole = (0..3).all(|axis| tile[axis].is_multiple_of(fragment[axis]));
            whole && threads == block.threads
        };
        let all = BLOCKS.iter().filter(move |(t, threads)| able(*t, *threads));
        all.map(move |&(tile, threads)| CoopGemmTiling {
            scope: CoopScope::Workgroup,
            subgroup,
            fragment,
            tile,
            // The number of rows of the subgroup tile follows from the required number of threads
            // per workgroup.
            subgroup_tile: [tile[0] * subgroup / threads, tile[1]],
            stages: 1,
            band: BAND,
            splits: 1,
            slices: 1,
        })
    }

    fn is_supported(&self, caps: &DeviceCaps) -> bool {
        let threads = self.threads();
        if threads > caps.max_workgroup {
            return false;
        }
        let [_, bn, bk] = self.tile;
        match self.scope {
            CoopScope::Subgroup => {
                let shared = self.shared_bytes(false).max(self.shared_bytes(true));
                let lines = bn.is_multiple_of(8) && threads >= bn / 8 && threads >= bk / 8;
                let strips = self.subgroup_tile[1].is_multiple_of(8)
                    && self.subgroup >= self.subgroup_tile[1] / 8;
                shared <= caps.workgroup_bytes && lines && strips
            }
            CoopScope::Workgroup | CoopScope::Prepacked | CoopScope::Wgsl => true,
        }
    }

    /// Number of workgroups for an `m x n` result without split-K.
    pub fn groups(&self, m: usize, n: usize) -> usize {
        let rows = m.div_ceil(self.tile[0] as usize);
        rows.saturating_mul(n.div_ceil(self.tile[1] as usize))
    }

    /// Number of persistent workgroups that the device runs concurrently, if each thread uses the
    /// maximum number of registers. `None` if the number of compute units is unknown, or if
    /// subgroup tiles are too small for persistent workgroups.
    #[doc(hidden)]
    pub fn groups_at_once(&self, caps: &DeviceCaps) -> Option<u32> {
        let registers = caps.device.registers_of(self.subgroup) + 1;
        let of_unit = caps.device.unit_invocations(registers) / self.threads();
        let all = caps.device.units? * of_unit.max(1);
        (self.subgroup_tile[0] >= 32).then_some(all)
    }

    /// Threads per workgroup.
    pub fn threads(&self) -> u32 {
        self.subgroup
            * (self.tile[0] / self.subgroup_tile[0])
            * (self.tile[1] / self.subgroup_tile[1])
            * self.slices
    }

    /// Shared memory per workgroup in bytes: buffers for staged k steps, which the store reuses for
    /// result fragments. The number is computed as in the shader.
    pub fn shared_bytes(&self, b_transposed: bool) -> u32 {
        let [bm, bn, bk] = self.tile;
        let (b_lines, b_cols) = if b_transposed { (bn, bk) } else { (bk, bn) };
        let stage = bm * (bk / 8 + 1) + b_lines * (b_cols / 8 + 1);
        let sums =
            self.threads() / self.subgroup * self.fragment[0] * (self.subgroup_tile[1] / 4 + 2);
        16 * (self.stages * stage).max(sums)
    }

    /// Returns this tiling with the split-K factor `splits`.
    pub(crate) fn split(self, splits: u32) -> CoopGemmTiling {
        CoopGemmTiling { splits, ..self }
    }

    /// Whether this tiling supports split-K for a GEMM. The kernel that adds partial sums processes
    /// four columns at once, and workgroup-scope kernels have no split-K.
    pub(super) fn can_split(&self, problem: &GemmProblem) -> bool {
        problem.n.is_multiple_of(4) && matches!(self.scope, CoopScope::Subgroup | CoopScope::Wgsl)
    }

    /// Returns this tiling with each candidate split-K factor that the GEMM supports.
    pub(super) fn splits_of(self, problem: &GemmProblem) -> impl Iterator<Item = CoopGemmTiling> {
        let parts = match self.can_split(problem) {
            true => SPLITS,
            false => &SPLITS[..1],
        };
        self.parts_of(problem, parts)
    }

    /// Returns this tiling with each of these split-K factors for which every part has several k
    /// steps.
    pub(super) fn parts_of(
        self,
        problem: &GemmProblem,
        parts: &'static [u32],
    ) -> impl Iterator<Item = CoopGemmTiling> {
        const STEPS: usize = 3;
        let steps = problem.k / self.tile[2] as usize;
        let all = parts.iter().copied();
        let all = all.filter(move |n| *n == 1 || steps >= STEPS * *n as usize);
        all.map(move |n| self.split(n))
    }

    /// Tilings that autotuning should measure for a GEMM. Tilings that leave compute units idle are
    /// included with split-K, too.
    pub fn candidates_for(
        caps: &DeviceCaps,
        ty: CoopType,
        problem: &GemmProblem,
    ) -> Vec<CoopGemmTiling> {
        let units = caps.units();
        let worth = |t: &CoopGemmTiling| {
            t.splits == 1 || t.groups(problem.m, problem.n) * t.splits as usize <= 3 * units
        };
        let all = CoopGemmTiling::candidates(caps, ty).into_iter();
        all.flat_map(|t| t.splits_of(problem))
            .filter(worth)
            .collect()
    }

    /// Number of `k` elements per split-K part; the last part may be shorter.
    pub fn split_k(&self, tape: &mut ExprArena, k: SymInt) -> SymInt {
        if self.splits == 1 {
            return k;
        }
        let steps = tape.ceil_div(k, self.splits * self.tile[2]);
        tape.mul(steps, SymInt::Const(i64::from(self.tile[2])))
    }
}

/// Prints a name that is unique among the candidates of a device, such as `64x64x64/32x32:2:split4`
/// for two stages and split-K factor 4.
impl fmt::Display for CoopGemmTiling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [bm, bn, bk] = self.tile;
        write!(f, "{bm}x{bn}x{bk}")?;
        match self.scope {
            CoopScope::Subgroup => {
                write!(f, "/{}x{}", self.subgroup_tile[0], self.subgroup_tile[1])?
            }
            CoopScope::Wgsl => write!(
                f,
                "/wgsl{}x{}",
                self.subgroup_tile[0], self.subgroup_tile[1]
            )?,
            CoopScope::Workgroup => write!(f, "/block{}", self.threads())?,
            CoopScope::Prepacked => write!(f, "/laid{}", self.subgroup_tile[0])?,
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

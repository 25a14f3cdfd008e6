//! How a product on cooperative matrices is divided, and which division a device and a size get.
//!
//! [`Tiling::candidates`] are all that a device can run. [`Tiling::choose`] takes what the device's
//! [`Tuning`](crate::Tuning) says of the nearest size that was measured, else the least [`Tiling::cost`].

use std::fmt;

use super::divisions::{BLOCKS, DIVISIONS, Division, LAID, Rate, WINDOW_DIVISIONS};
use crate::caps::{Caps, CoopBlock, CoopShape, CoopType};
use crate::num::{Num, Tape};
use crate::tuning::Problem;

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
}

/// Products whose right side is gathered from windows.
pub(crate) struct Gathering {
    /// How many there are of one size.
    pub(crate) products: usize,
    /// What steps of `k` lie within where they can: the channels of a tap. Only then are long ones worth it.
    pub(crate) channels: Option<usize>,
    /// The most parts of `k` whose sums there is room for.
    pub(crate) most_parts: u32,
}

/// The subgroups of fragments that are filled by hand, and what `k` is a multiple of there.
const LANES: u32 = 32;
const LAID_STEP: usize = 64;

/// Elements of both sides up to which their rates hold: subgroups read them again and again from a shared cache.
const LAID_MOST: usize = 16 << 20;

/// For devices that do not say how many workgroups run side by side.
const TYPICAL_UNITS: usize = 32;

/// Rows of tiles of a band, where nothing else was measured.
const BAND: u32 = 8;

/// Parts of `k` that are tried.
const SPLITS: &[u32] = &[1, 2, 3, 4, 6, 8];

/// The same for windows.
const WINDOW_SPLITS: &[u32] = &[1, 2, 3, 4, 5, 6, 8, 12];

impl Tiling {
    /// The tiling for a product; none where the device has no cooperative matrices of this type, or
    /// not the shared memory. Two stages and a workgroup's matrices need `aligned` operands; the latter are
    /// chosen only where they were measured to be best.
    pub fn choose(caps: &Caps, ty: CoopType, problem: &Problem, aligned: bool) -> Option<Tiling> {
        Tiling::measured(caps, ty, problem, aligned)
            .or_else(|| Some(Tiling::modelled(caps, ty, problem, aligned)?.0))
    }

    /// As [`Tiling::choose`], where the right side is constant and may be laid out first. What was measured otherwise
    /// is of operands as they lie.
    pub fn choose_laid(
        caps: &Caps,
        ty: CoopType,
        problem: &Problem,
        aligned: bool,
    ) -> Option<Tiling> {
        let units = units_of(caps);
        let laid = Tiling::laid(caps, ty, problem);
        let name = caps.tuning.find(problem).unwrap_or_default();
        if let Some((named, _)) = laid.iter().find(|(t, _)| t.to_string() == name) {
            return Some(*named);
        }
        let costs = laid
            .into_iter()
            .map(|(t, rate)| (t, t.cost(rate, problem, 1, units)));
        let least = costs.min_by(|(_, s), (_, t)| s.total_cmp(t));
        let other = Tiling::modelled(caps, ty, problem, aligned);
        match (least, other) {
            (Some((t, cost)), Some((_, than))) if cost < than => Some(t),
            (_, _) => Tiling::choose(caps, ty, problem, aligned),
        }
    }

    fn measured(caps: &Caps, ty: CoopType, problem: &Problem, aligned: bool) -> Option<Tiling> {
        let all = Tiling::candidates(caps, ty);
        let able = |t: &&Tiling| aligned || (t.scope == Scope::Subgroup && t.stages == 1);
        let name = caps.tuning.find(problem)?;
        let (name, splits) = match name.split_once(":split") {
            Some((name, splits)) => (name, splits.parse().ok()?),
            None => (name, 1),
        };
        let splits = SPLITS.contains(&splits).then_some(splits)?;
        let same = |t: &&Tiling| t.to_string() == name;
        let found = all.iter().filter(able).find(same)?;
        let splits_of = found.can_split(problem) || splits == 1;
        splits_of.then(|| found.split(splits))
    }

    /// The tiling that costs least, and what it costs.
    fn modelled(
        caps: &Caps,
        ty: CoopType,
        problem: &Problem,
        aligned: bool,
    ) -> Option<(Tiling, f64)> {
        let units = units_of(caps);
        let modelled = Tiling::divided(caps, ty, DIVISIONS).into_iter();
        // Two stages lose where rows of both sides are short pieces of k.
        let staged = aligned && !problem.b_transposed;
        let modelled = modelled.filter(|(t, _)| staged || t.stages == 1);
        let costs = modelled.flat_map(|(t, rate)| {
            let all = t.splits_of(problem);
            all.map(move |t| (t, t.cost(rate, problem, 1, units)))
        });
        costs.min_by(|(_, s), (_, t)| s.total_cmp(t))
    }

    /// The tiling of subgroups for so many products of one size, with `k` in one part: tiles do not reach
    /// from one product into the next.
    pub fn choose_for_batches(
        caps: &Caps,
        ty: CoopType,
        problem: &Problem,
        batches: usize,
    ) -> Option<Tiling> {
        let units = units_of(caps);
        let modelled = Tiling::divided(caps, ty, DIVISIONS).into_iter();
        let modelled = modelled.filter(|(t, _)| t.stages == 1);
        let costs = modelled.map(|(t, rate)| (t, t.cost(rate, problem, batches, units)));
        let least = costs.min_by(|(_, s), (_, t)| s.total_cmp(t));
        least.map(|(t, _)| t)
    }

    /// The tiling of subgroups for products whose right side is gathered from windows.
    pub(crate) fn choose_for_windows(
        caps: &Caps,
        ty: CoopType,
        problem: &Problem,
        gathering: &Gathering,
    ) -> Option<Tiling> {
        let units = units_of(caps);
        let modelled = Tiling::divided(caps, ty, WINDOW_DIVISIONS).into_iter();
        let able = |t: &Tiling| {
            let [_, _, bk] = t.tile;
            let channels = gathering.channels;
            let whole = channels.is_some_and(|n| n.is_multiple_of(bk as usize));
            // Beside staged tiles there is a table of taps.
            let fits = t.shared_bytes(true) + TAPS_BYTES <= caps.workgroup_bytes;
            fits && (whole || bk <= 2 * t.fragment[2])
        };
        let costs = modelled.filter(|(t, _)| able(t)).flat_map(|(t, rate)| {
            let all = t.parts_of(problem, WINDOW_SPLITS);
            let all = all.filter(|t| t.splits == 1 || t.splits <= gathering.most_parts);
            all.map(move |t| (t, t.window_cost(rate, problem, gathering.products, units)))
        });
        let least = costs.min_by(|(_, s), (_, t)| s.total_cmp(t));
        least.map(|(t, _)| t)
    }

    /// Every tiling that the device can run, with `k` in one part.
    pub fn candidates(caps: &Caps, ty: CoopType) -> Vec<Tiling> {
        let Some(subgroup) = caps.subgroup.filter(|_| caps.spirv) else {
            return Vec::new();
        };
        let divided = Tiling::divided(caps, ty, DIVISIONS)
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
    fn divided(caps: &Caps, ty: CoopType, divisions: &[Division]) -> Vec<(Tiling, Rate)> {
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
        let all = divisions.iter();
        let all = all.map(|d| (Tiling::of_fragments(*shape, subgroup, d), d.rate));
        all.filter(|(t, _)| t.fits(caps)).collect()
    }

    /// Every tiling of fragments that subgroups fill from this product's right side once it is laid out; see
    /// `gemm_laid_f16.comp` for what it takes.
    fn laid(caps: &Caps, ty: CoopType, problem: &Problem) -> Vec<(Tiling, Rate)> {
        let shape = CoopShape {
            ty,
            m: 8,
            n: 16,
            k: 16,
            narrow_sums: false,
        };
        let lanes = caps.coop_lanes && caps.subgroup == Some(LANES) && ty == CoopType::F16;
        let whole = problem.n.is_multiple_of(64) && problem.k.is_multiple_of(LAID_STEP);
        let elements = problem
            .m
            .saturating_add(problem.n)
            .saturating_mul(problem.k);
        if !lanes || !whole || problem.k == 0 || elements > LAID_MOST {
            return Vec::new();
        }
        let all = LAID.iter();
        let all = all.map(|d| {
            (
                Tiling {
                    scope: Scope::Laid,
                    ..Tiling::of_fragments(shape, LANES, d)
                },
                d.rate,
            )
        });
        all.filter(|(t, _)| t.fits(caps)).collect()
    }

    /// The tilings of a product whose right side can be laid out on this device.
    pub fn laid_candidates(caps: &Caps, ty: CoopType, problem: &Problem) -> Vec<Tiling> {
        let all = Tiling::laid(caps, ty, problem).into_iter();
        all.map(|(t, _)| t).collect()
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
            band: BAND,
            splits: 1,
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
        // With 255 registers each.
        const OF_UNIT: u32 = 256;
        let all = caps.compute_units * (OF_UNIT / self.threads()).max(1);
        (all > 0 && self.part[0] >= 32).then_some(all)
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
        let sums = self.threads() / self.subgroup * self.fragment[0] * (self.part[1] / 4 + 2);
        16 * (self.stages * stage).max(sums)
    }

    /// The same with so many parts of `k`.
    fn split(self, splits: u32) -> Tiling {
        Tiling { splits, ..self }
    }

    /// What adds the parts does four columns at a time; a workgroup's matrices have no parts.
    fn can_split(&self, problem: &Problem) -> bool {
        problem.n.is_multiple_of(4) && self.scope == Scope::Subgroup
    }

    /// This with each number of parts that a product may have.
    fn splits_of(self, problem: &Problem) -> impl Iterator<Item = Tiling> {
        let parts = match self.can_split(problem) {
            true => SPLITS,
            false => &SPLITS[..1],
        };
        self.parts_of(problem, parts)
    }

    /// This with each of these numbers of parts that leaves every part several steps.
    fn parts_of(self, problem: &Problem, parts: &'static [u32]) -> impl Iterator<Item = Tiling> {
        const STEPS: usize = 3;
        let steps = problem.k / self.tile[2] as usize;
        let all = parts.iter().copied();
        let all = all.filter(move |n| *n == 1 || steps >= STEPS * *n as usize);
        all.map(move |n| self.split(n))
    }

    /// The candidates that are worth measuring for a product: those that leave units of the device
    /// without work also with `k` in parts.
    pub fn candidates_for(caps: &Caps, ty: CoopType, problem: &Problem) -> Vec<Tiling> {
        let units = units_of(caps);
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

    /// What a product takes: the tiles of the busiest unit of the device, as many at a time as it takes, and how
    /// fast it is with them. In products of numbers at the rate of the first of [`DIVISIONS`].
    fn cost(&self, rate: Rate, problem: &Problem, batches: usize, units: usize) -> f64 {
        let start = if self.splits == 1 {
            START
        } else {
            START_OF_PARTS
        };
        let together = (rate.full / rate.alone).ceil().max(1.0) as usize;
        let groups = self.groups_of_unit(problem, batches, units);
        // Those of one turn have nobody before or after them.
        let last = if groups == together {
            groups
        } else {
            groups % together
        };
        let whole = (groups - last) as f64 / rate.full + rate.time(last);
        whole * self.products_of_group(problem, start) + self.cost_of_parts(problem, batches, units)
    }

    /// The same for windows, whose rates were measured where tiles do not end together.
    fn window_cost(&self, rate: Rate, problem: &Problem, batches: usize, units: usize) -> f64 {
        let groups = self.groups_of_unit(problem, batches, units);
        let tiles = rate.time(groups) * self.products_of_group(problem, START_OF_PARTS);
        tiles + self.cost_of_parts(problem, batches, units)
    }

    fn groups_of_unit(&self, problem: &Problem, batches: usize, units: usize) -> usize {
        let groups = self.groups(problem.m, problem.n);
        let groups = groups.saturating_mul(self.splits as usize);
        groups.saturating_mul(batches).div_ceil(units)
    }

    /// Products of a workgroup, with so much of `k` for its begin and end.
    fn products_of_group(&self, problem: &Problem, start: f64) -> f64 {
        let [bm, bn, bk] = self.tile;
        let bk = bk as usize;
        let k = problem.k.div_ceil(self.splits as usize * bk) * bk;
        f64::from(bm * bn) * (k as f64 + start)
    }

    /// What adding up parts of `k` costs.
    fn cost_of_parts(&self, problem: &Problem, batches: usize, units: usize) -> f64 {
        match self.splits as usize {
            1 => 0.0,
            splits => {
                let sums = (splits * problem.m * problem.n * batches) as f64;
                ANOTHER_DISPATCH + sums / units as f64 * PER_SUM
            }
        }
    }
}

/// What [`Tiling::cost`] counts for the begin and the end of a tile, as so much of `k`.
const START: f64 = 90.0;

/// The same where sums of parts of `k` are stored in F32, and for windows.
const START_OF_PARTS: f64 = 220.0;

/// What it counts for a dispatch that waits for the one before.
const ANOTHER_DISPATCH: f64 = 3.4e6;

/// What it counts for a partial sum, written and read, divided by the units.
const PER_SUM: f64 = 500.0;

/// The bytes of `tap_steps` in `windows.glsl`.
const TAPS_BYTES: u32 = 256;

fn units_of(caps: &Caps) -> usize {
    caps.units_or(TYPICAL_UNITS)
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
        if self.stages > 1 {
            write!(f, ":{}", self.stages)?;
        }
        match self.splits {
            1 => Ok(()),
            splits => write!(f, ":split{splits}"),
        }
    }
}

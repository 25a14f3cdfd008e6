//! Selects the tiling of a GEMM on cooperative matrices: the tiling that the device's
//! [`TuningTable`](crate::TuningTable) contains for the nearest measured size, otherwise the
//! fastest tiling according to the cost model.

use super::tiling::{CoopGemmTiling, CoopScope, SPLITS, TailSplitK};
use crate::caps::{CoopType, DeviceCaps};
use crate::device::DeviceModel;
use crate::device::cost_model::TileThroughput;
use crate::tuning::GemmProblem;

/// Properties of an implicit GEMM, whose right operand is gathered from convolution windows, that
/// limit its tiling.
pub struct ImplicitGemm {
    /// Number of GEMMs of the same size in the batch.
    pub products: usize,
    /// Number of channels per tap, if weights are ordered so that the channels of a tap are
    /// adjacent along `k`. Long `k` steps are only profitable if each step stays within one tap.
    pub channels: Option<usize>,
    /// Maximum split-K factor for which the partial sums fit into a slot.
    pub max_parts: u32,
}

/// Separator between the name of a tiling and its split-K tail ([`TailSplitK`]) in autotuning
/// entries.
pub(in crate::lowerings) const TAIL: &str = ":tail";

/// Candidate split-K factors for implicit GEMMs of convolutions.
const WINDOW_SPLITS: &[u32] = &[1, 2, 3, 4, 5, 6, 8, 12];

/// Candidate split-K factors for convolution weight gradients, which have a long `k` and few
/// results.
const WEIGHT_SPLITS: &[u32] = &[1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256];

/// Shared memory in bytes that `weights.glsl` uses per column of a tile.
const COLUMN_BYTES: u32 = 8;

/// Shared memory in bytes of the array `tap_steps` in `windows.glsl`.
const TAPS_BYTES: u32 = 256;

impl CoopGemmTiling {
    /// Selects the tiling for a GEMM. `None` if the device lacks cooperative matrices of this type,
    /// or shared memory. Tilings with two stages or workgroup-scope matrices require `aligned`
    /// operands. Workgroup-scope matrices are selected only if the autotuning table names them.
    pub fn choose(
        caps: &DeviceCaps,
        ty: CoopType,
        problem: &GemmProblem,
        aligned: bool,
    ) -> Option<CoopGemmTiling> {
        CoopGemmTiling::from_tuning_table(caps, ty, problem, aligned)
            .or_else(|| Some(CoopGemmTiling::modelled(caps, ty, problem, aligned)?.0))
    }

    /// Like [`CoopGemmTiling::choose`], for a constant right operand that may be prepacked.
    /// Autotuning entries that name a tiling without prepacking do not exclude prepacking.
    pub fn choose_prepacked(
        caps: &DeviceCaps,
        ty: CoopType,
        problem: &GemmProblem,
        aligned: bool,
    ) -> Option<CoopGemmTiling> {
        let work = CoopGemmWork::new(&caps.device, problem, 1);
        let laid = CoopGemmTiling::prepacked_tilings(caps, ty, problem);
        let name = caps
            .device
            .named_tiling(|| problem.key())
            .unwrap_or_default();
        if let Some((named, _)) = laid.iter().find(|(t, _)| t.to_string() == name) {
            return Some(*named);
        }
        let costs = laid.into_iter().map(|(t, rate)| (t, work.cost(&t, rate)));
        let least = costs.min_by(|(_, s), (_, t)| s.total_cmp(t));
        let other = CoopGemmTiling::modelled(caps, ty, problem, aligned);
        match (least, other) {
            (Some((t, cost)), Some((_, than))) if cost < than => Some(t),
            (_, _) => CoopGemmTiling::choose(caps, ty, problem, aligned),
        }
    }

    fn from_tuning_table(
        caps: &DeviceCaps,
        ty: CoopType,
        problem: &GemmProblem,
        aligned: bool,
    ) -> Option<CoopGemmTiling> {
        let all = CoopGemmTiling::candidates(caps, ty);
        let able =
            |t: &&CoopGemmTiling| aligned || (t.scope == CoopScope::Subgroup && t.stages == 1);
        let name = caps.device.named_tiling(|| problem.key())?;
        let (name, _) = name.split_once(TAIL).unwrap_or((name, ""));
        let (name, splits) = match name.split_once(":split") {
            Some((name, splits)) => (name, splits.parse().ok()?),
            None => (name, 1),
        };
        let splits = SPLITS.contains(&splits).then_some(splits)?;
        let same = |t: &&CoopGemmTiling| t.to_string() == name;
        let found = all.iter().filter(able).find(same)?;
        let splits_of = found.can_split(problem) || splits == 1;
        splits_of.then(|| found.split(splits))
    }

    /// The fastest tiling according to the cost model, with its cost.
    fn modelled(
        caps: &DeviceCaps,
        ty: CoopType,
        problem: &GemmProblem,
        aligned: bool,
    ) -> Option<(CoopGemmTiling, f64)> {
        let work = CoopGemmWork::new(&caps.device, problem, 1);
        let modelled =
            CoopGemmTiling::divided(caps, ty, caps.device.rates.matrices.divisions).into_iter();
        // Double buffering (two stages) is slower if both operands are contiguous along k, because
        // a staged row then is only a short slice of k.
        let staged = aligned && !problem.b_transposed;
        let modelled = modelled.filter(|(t, _)| staged || t.stages == 1);
        let costs = modelled.flat_map(|(t, rate)| {
            let all = t.splits_of(problem);
            all.map(move |t| {
                let whole = work.cost(&t, rate);
                let tail = work.tail(&t, rate).map(|(_, cost)| cost);
                (t, tail.map_or(whole, |cost| cost.min(whole)))
            })
        });
        costs.min_by(|(_, s), (_, t)| s.total_cmp(t))
    }

    /// The last tile columns for which this tiling should use split-K, if any. The autotuning table
    /// may specify them, as in `128x128x32/64x64:tail26x2` (26 columns, factor 2). Otherwise the
    /// cost model decides whether a split-K tail saves time.
    pub fn tail(
        &self,
        caps: &DeviceCaps,
        ty: CoopType,
        problem: &GemmProblem,
    ) -> Option<TailSplitK> {
        let name = caps.device.named_tiling(|| problem.key());
        if let Some((_, sizes)) = name.and_then(|name| name.split_once(TAIL)) {
            let (columns, splits) = sizes.split_once('x')?;
            let tail = TailSplitK {
                columns: columns.parse().ok()?,
                splits: splits.parse().ok()?,
            };
            let across = problem.n.div_ceil(self.tile[1] as usize);
            let fits = SPLITS[1..].contains(&tail.splits) && self.can_split(problem);
            let some = (1..across).contains(&(tail.columns as usize)) && self.splits == 1;
            return (fits && some).then_some(tail);
        }
        let all = CoopGemmTiling::divided(caps, ty, caps.device.rates.matrices.divisions);
        let (_, rate) = all.into_iter().find(|(t, _)| t == self)?;
        let work = CoopGemmWork::new(&caps.device, problem, 1);
        let (tail, cost) = work.tail(self, rate)?;
        (cost < work.cost(self, rate)).then_some(tail)
    }

    /// Estimated time in seconds of `batches` GEMMs of the size `problem` with this tiling. A
    /// tiling without a measured rate gets the rate of the first tiling in the cost model.
    pub(crate) fn seconds(
        &self,
        caps: &DeviceCaps,
        ty: CoopType,
        problem: &GemmProblem,
        batches: usize,
    ) -> f64 {
        let rates = &caps.device.rates.matrices;
        let all = match self.scope {
            CoopScope::Prepacked => CoopGemmTiling::prepacked_tilings(caps, ty, problem),
            CoopScope::Subgroup | CoopScope::Workgroup | CoopScope::Wgsl => {
                CoopGemmTiling::divided(caps, ty, rates.divisions)
            }
        };
        let known = all.iter().find(|(t, _)| t.split(self.splits) == *self);
        let rate = known.map_or(rates.divisions[0].rate, |(_, rate)| *rate);
        let work = CoopGemmWork::new(&caps.device, problem, batches);
        let whole = work.cost(self, rate);
        let tail = work.tail(self, rate).filter(|_| batches == 1);
        tail.map_or(whole, |(_, cost)| cost.min(whole)) / rates.per_s
    }

    /// Like [`CoopGemmTiling::seconds`], for implicit GEMMs on convolution windows.
    pub(crate) fn seconds_for_windows(
        &self,
        caps: &DeviceCaps,
        ty: CoopType,
        problem: &GemmProblem,
        products: usize,
    ) -> f64 {
        let rates = &caps.device.rates.matrices;
        let all = CoopGemmTiling::divided(caps, ty, rates.windows);
        let known = all.iter().find(|(t, _)| t.split(self.splits) == *self);
        let rate = known.map_or(rates.windows[0].rate, |(_, rate)| *rate);
        CoopGemmWork::new(&caps.device, problem, products).window_cost(self, rate) / rates.per_s
    }

    /// The fastest subgroup-scope tiling without split-K for `batches` GEMMs of one size. A tile
    /// never covers parts of several GEMMs.
    pub fn choose_for_batches(
        caps: &DeviceCaps,
        ty: CoopType,
        problem: &GemmProblem,
        batches: usize,
    ) -> Option<CoopGemmTiling> {
        let work = CoopGemmWork::new(&caps.device, problem, batches);
        let modelled =
            CoopGemmTiling::divided(caps, ty, caps.device.rates.matrices.divisions).into_iter();
        let modelled = modelled.filter(|(t, _)| t.stages == 1);
        let costs = modelled.map(|(t, rate)| (t, work.cost(&t, rate)));
        let least = costs.min_by(|(_, s), (_, t)| s.total_cmp(t));
        least.map(|(t, _)| t)
    }

    /// The fastest subgroup-scope tiling for GEMMs on split-F16, with the estimated time of
    /// `batches` GEMMs in seconds.
    pub(crate) fn choose_for_split_f16(
        caps: &DeviceCaps,
        problem: &GemmProblem,
        batches: usize,
    ) -> Option<(CoopGemmTiling, f64)> {
        let work = CoopGemmWork::new(&caps.device, problem, batches);
        let rates = &caps.device.rates.matrices;
        let all = CoopGemmTiling::for_split_f16(caps).into_iter();
        let costs = all.flat_map(|(t, rate)| {
            let all = t.splits_of(problem);
            all.map(move |t| (t, work.cost(&t, rate) / rates.per_s))
        });
        costs.min_by(|(_, s), (_, t)| s.total_cmp(t))
    }

    /// The fastest subgroup-scope tiling for implicit GEMMs on convolution windows.
    #[doc(hidden)]
    pub fn choose_for_windows(
        caps: &DeviceCaps,
        ty: CoopType,
        problem: &GemmProblem,
        gathering: &ImplicitGemm,
    ) -> Option<CoopGemmTiling> {
        let work = CoopGemmWork::new(&caps.device, problem, gathering.products);
        let modelled =
            CoopGemmTiling::divided(caps, ty, caps.device.rates.matrices.windows).into_iter();
        let able = |t: &CoopGemmTiling| {
            let [_, _, bk] = t.tile;
            let channels = gathering.channels;
            let whole = channels.is_some_and(|n| n.is_multiple_of(bk as usize));
            // The kernel needs shared memory for staged tiles and for the table of taps.
            let fits = t.shared_bytes(true) + TAPS_BYTES <= caps.workgroup_bytes;
            fits && (whole || bk <= 2 * t.fragment[2])
        };
        let costs = modelled.filter(|(t, _)| able(t)).flat_map(|(t, rate)| {
            let all = t.parts_of(problem, WINDOW_SPLITS);
            let all = all.filter(|t| t.splits == 1 || t.splits <= gathering.max_parts);
            all.map(move |t| (t, work.window_cost(&t, rate)))
        });
        let least = costs.min_by(|(_, s), (_, t)| s.total_cmp(t));
        least.map(|(t, _)| t)
    }

    /// The fastest subgroup-scope tiling for convolution weight gradients, with its estimated time
    /// in seconds. If `gathers`, the kernel gathers windows; otherwise the rows of both operands
    /// are contiguous along `k`.
    pub(crate) fn choose_for_weight_grad(
        caps: &DeviceCaps,
        ty: CoopType,
        problem: &GemmProblem,
        gathers: bool,
        gathering: &ImplicitGemm,
    ) -> Option<(CoopGemmTiling, f64)> {
        let work = CoopGemmWork::new(&caps.device, problem, gathering.products);
        let rates = &caps.device.rates.matrices;
        let divisions = match gathers {
            true => rates.windows,
            false => rates.divisions,
        };
        let modelled = CoopGemmTiling::divided(caps, ty, divisions).into_iter();
        let able = |t: &CoopGemmTiling| {
            let [_, bn, bk] = t.tile;
            let fits = t.shared_bytes(!gathers) + COLUMN_BYTES * bn <= caps.workgroup_bytes;
            let has_lines = !gathers || t.threads().is_multiple_of(bk);
            t.stages == 1 && bk <= 4 * t.fragment[2] && fits && has_lines
        };
        let costs = modelled.filter(|(t, _)| able(t)).flat_map(|(t, rate)| {
            let all = t.parts_of(problem, WEIGHT_SPLITS);
            let all = all.filter(|t| t.splits == 1 || t.splits <= gathering.max_parts);
            all.map(move |t| (t, work.window_cost(&t, rate) / rates.per_s))
        });
        costs.min_by(|(_, s), (_, t)| s.total_cmp(t))
    }
}

/// A batch of GEMMs on a device, whose cost the cost model estimates.
#[derive(Clone, Copy)]
pub(super) struct CoopGemmWork<'a> {
    device: &'a DeviceModel,
    problem: &'a GemmProblem,
    batches: usize,
    units: usize,
}

impl<'a> CoopGemmWork<'a> {
    pub(super) fn new(
        device: &'a DeviceModel,
        problem: &'a GemmProblem,
        batches: usize,
    ) -> CoopGemmWork<'a> {
        CoopGemmWork {
            device,
            problem,
            batches,
            units: device.units_or_typical(),
        }
    }

    /// Cost of the GEMMs with a tiling, as the number of multiply-adds that one compute unit at
    /// rate 1 performs in that time. The busiest compute unit determines the cost: its tiles run
    /// concurrently up to full occupancy, further tiles in later waves.
    pub(super) fn cost(&self, t: &CoopGemmTiling, rate: TileThroughput) -> f64 {
        let rates = &self.device.rates.matrices;
        let start = match t.splits {
            1 => rates.start,
            _ => rates.start_of_parts,
        };
        let together = rate.resident_workgroups();
        let groups = self.workgroups_per_unit(t);
        if t.slices > 1 {
            return rate.time(groups) * self.products_of_group(t, start);
        }
        // If there is only one wave of tiles, it cannot overlap with another wave.
        let last = if groups == together {
            groups
        } else {
            groups % together
        };
        let whole = (groups - last) as f64 / rate.full + rate.time(last);
        whole * self.products_of_group(t, start) + self.cost_of_parts(t)
    }

    /// The fastest split-K tail for a tiling, with the total cost: tile columns that fill whole
    /// waves run without split-K, the remaining tile columns with split-K.
    fn tail(&self, t: &CoopGemmTiling, rate: TileThroughput) -> Option<(TailSplitK, f64)> {
        let rates = &self.device.rates.matrices;
        if t.splits != 1 || !t.can_split(self.problem) {
            return None;
        }
        let down = self.problem.m.div_ceil(t.tile[0] as usize);
        let across = self.problem.n.div_ceil(t.tile[1] as usize);
        let turn = self.units * rate.resident_workgroups();
        let turns = down.saturating_mul(across) / turn;
        let cost = |columns: usize, parts: CoopGemmTiling| {
            let whole = (down * (across - columns)).div_ceil(self.units) as f64 / rate.full;
            let whole = whole * self.products_of_group(t, rates.start);
            let tail = GemmProblem {
                n: columns * t.tile[1] as usize,
                ..*self.problem
            };
            let tail = CoopGemmWork {
                problem: &tail,
                ..*self
            };
            whole + tail.cost(&parts, rate)
        };
        let all = [turns, turns.saturating_sub(1)].into_iter().flat_map(|n| {
            let columns = across.saturating_sub(n * turn / down.max(1));
            let columns = Some(columns).filter(|c| n > 0 && (1..across).contains(c));
            columns.into_iter().flat_map(|c| {
                let parts = t.parts_of(self.problem, &SPLITS[1..]);
                parts.map(move |t| (c, t))
            })
        });
        let all = all.map(|(columns, parts)| (columns, parts, cost(columns, parts)));
        let least = all.min_by(|(.., s), (.., t)| s.total_cmp(t));
        least.map(|(columns, parts, cost)| {
            let tail = TailSplitK {
                columns: columns as u32,
                splits: parts.splits,
            };
            (tail, cost)
        })
    }

    /// Like [`CoopGemmWork::cost`], for implicit GEMMs. Overlap between waves is not modeled,
    /// because the measured rates of implicit GEMM tiles already include it.
    fn window_cost(&self, t: &CoopGemmTiling, rate: TileThroughput) -> f64 {
        let start = self.device.rates.matrices.start_of_parts;
        let tiles = rate.time(self.workgroups_per_unit(t)) * self.products_of_group(t, start);
        tiles + self.cost_of_parts(t)
    }

    fn workgroups_per_unit(&self, t: &CoopGemmTiling) -> usize {
        let groups = t.groups(self.problem.m, self.problem.n);
        // Each slice of k runs in its own subgroups, so the cost model counts slices like
        // workgroups.
        let groups = groups.saturating_mul((t.splits * t.slices) as usize);
        groups.saturating_mul(self.batches).div_ceil(self.units)
    }

    /// Number of multiply-adds of one workgroup; `start` additional `k` elements represent its
    /// start-up cost.
    fn products_of_group(&self, t: &CoopGemmTiling, start: f64) -> f64 {
        let [bm, bn, bk] = t.tile;
        let bk = bk as usize;
        let k = self.problem.k.div_ceil((t.splits * t.slices) as usize * bk) * bk;
        f64::from(bm * bn) * (k as f64 + start)
    }

    /// Cost of the separate kernel that adds split-K partial sums; 0 without split-K.
    fn cost_of_parts(&self, t: &CoopGemmTiling) -> f64 {
        let rates = &self.device.rates.matrices;
        match t.splits as usize {
            1 => 0.0,
            splits => {
                let sums = (splits * self.problem.m * self.problem.n * self.batches) as f64;
                rates.dispatch + sums / self.units as f64 * rates.per_sum
            }
        }
    }
}

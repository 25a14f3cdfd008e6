//! Which tiling a product on cooperative matrices gets: what the device's [`Tuning`](crate::Tuning) says of the nearest
//! size that was measured, else what takes least time by the rates of the device's description.

use super::tiling::{SPLITS, Scope, Tail, Tiling};
use crate::caps::{Caps, CoopType};
use crate::device::Device;
use crate::device::rates::Rate;
use crate::tuning::GemmProblem;

/// Products whose right side is gathered from windows.
pub(crate) struct Gathering {
    /// How many there are of one size.
    pub(crate) products: usize,
    /// What steps of `k` lie within where they can: the channels of a tap. Only then are long ones worth it.
    pub(crate) channels: Option<usize>,
    /// The most parts of `k` whose sums there is room for.
    pub(crate) most_parts: u32,
}

/// What stands before a [`Tail`] in the name of a tiling.
pub(in crate::families) const TAIL: &str = ":tail";

/// Parts of `k` that are tried for windows.
const WINDOW_SPLITS: &[u32] = &[1, 2, 3, 4, 5, 6, 8, 12];

/// Parts of `k` that are tried for gradients of weights, whose `k` is long and whose results are few.
const WEIGHT_SPLITS: &[u32] = &[1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256];

/// The bytes of a column in `weights.glsl`.
const COLUMN_BYTES: u32 = 8;

/// The bytes of `tap_steps` in `windows.glsl`.
const TAPS_BYTES: u32 = 256;

impl Tiling {
    /// The tiling for a product; none where the device has no cooperative matrices of this type, or
    /// not the shared memory. Two stages and a workgroup's matrices need `aligned` operands; the latter are
    /// chosen only where they were measured to be best.
    pub fn choose(
        caps: &Caps,
        ty: CoopType,
        problem: &GemmProblem,
        aligned: bool,
    ) -> Option<Tiling> {
        Tiling::measured(caps, ty, problem, aligned)
            .or_else(|| Some(Tiling::modelled(caps, ty, problem, aligned)?.0))
    }

    /// As [`Tiling::choose`], where the right side is constant and may be laid out first. What was measured otherwise
    /// is of operands as they lie.
    pub fn choose_laid(
        caps: &Caps,
        ty: CoopType,
        problem: &GemmProblem,
        aligned: bool,
    ) -> Option<Tiling> {
        let work = Work::of(&caps.device, problem, 1);
        let laid = Tiling::laid(caps, ty, problem);
        let name = caps
            .device
            .tuning
            .find(|| problem.key())
            .unwrap_or_default();
        if let Some((named, _)) = laid.iter().find(|(t, _)| t.to_string() == name) {
            return Some(*named);
        }
        let costs = laid.into_iter().map(|(t, rate)| (t, work.cost(&t, rate)));
        let least = costs.min_by(|(_, s), (_, t)| s.total_cmp(t));
        let other = Tiling::modelled(caps, ty, problem, aligned);
        match (least, other) {
            (Some((t, cost)), Some((_, than))) if cost < than => Some(t),
            (_, _) => Tiling::choose(caps, ty, problem, aligned),
        }
    }

    fn measured(caps: &Caps, ty: CoopType, problem: &GemmProblem, aligned: bool) -> Option<Tiling> {
        let all = Tiling::candidates(caps, ty);
        let able = |t: &&Tiling| aligned || (t.scope == Scope::Subgroup && t.stages == 1);
        let name = caps.device.tuning.find(|| problem.key())?;
        let (name, _) = name.split_once(TAIL).unwrap_or((name, ""));
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
        problem: &GemmProblem,
        aligned: bool,
    ) -> Option<(Tiling, f64)> {
        let work = Work::of(&caps.device, problem, 1);
        let modelled = Tiling::divided(caps, ty, caps.device.rates.matrices.divisions).into_iter();
        // Two stages lose where rows of both sides are short pieces of k.
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

    /// The columns that this tiling's kernel should leave to parts of `k`: as the device's tuning says, such as
    /// `128x128x32/64x64:tail26x2`, else where that gains time by the rates of its description.
    pub fn tail(&self, caps: &Caps, ty: CoopType, problem: &GemmProblem) -> Option<Tail> {
        let name = caps.device.tuning.find(|| problem.key());
        if let Some((_, sizes)) = name.and_then(|name| name.split_once(TAIL)) {
            let (columns, splits) = sizes.split_once('x')?;
            let tail = Tail {
                columns: columns.parse().ok()?,
                splits: splits.parse().ok()?,
            };
            let across = problem.n.div_ceil(self.tile[1] as usize);
            let fits = SPLITS[1..].contains(&tail.splits) && self.can_split(problem);
            let some = (1..across).contains(&(tail.columns as usize)) && self.splits == 1;
            return (fits && some).then_some(tail);
        }
        let all = Tiling::divided(caps, ty, caps.device.rates.matrices.divisions);
        let (_, rate) = all.into_iter().find(|(t, _)| t == self)?;
        let work = Work::of(&caps.device, problem, 1);
        let (tail, cost) = work.tail(self, rate)?;
        (cost < work.cost(self, rate)).then_some(tail)
    }

    /// About how many seconds so many products take with this tiling; as with the first of the table where there is no
    /// rate.
    pub(crate) fn seconds(
        &self,
        caps: &Caps,
        ty: CoopType,
        problem: &GemmProblem,
        batches: usize,
    ) -> f64 {
        let rates = &caps.device.rates.matrices;
        let all = match self.scope {
            Scope::Laid => Tiling::laid(caps, ty, problem),
            Scope::Subgroup | Scope::Workgroup => Tiling::divided(caps, ty, rates.divisions),
        };
        let known = all.iter().find(|(t, _)| t.split(self.splits) == *self);
        let rate = known.map_or(rates.divisions[0].rate, |(_, rate)| *rate);
        let work = Work::of(&caps.device, problem, batches);
        let whole = work.cost(self, rate);
        let tail = work.tail(self, rate).filter(|_| batches == 1);
        tail.map_or(whole, |(_, cost)| cost.min(whole)) / rates.per_s
    }

    /// The same for products whose right side is gathered from windows.
    pub(crate) fn seconds_for_windows(
        &self,
        caps: &Caps,
        ty: CoopType,
        problem: &GemmProblem,
        products: usize,
    ) -> f64 {
        let rates = &caps.device.rates.matrices;
        let all = Tiling::divided(caps, ty, rates.windows);
        let known = all.iter().find(|(t, _)| t.split(self.splits) == *self);
        let rate = known.map_or(rates.windows[0].rate, |(_, rate)| *rate);
        Work::of(&caps.device, problem, products).window_cost(self, rate) / rates.per_s
    }

    /// The tiling of subgroups for so many products of one size, with `k` in one part: tiles do not reach
    /// from one product into the next.
    pub fn choose_for_batches(
        caps: &Caps,
        ty: CoopType,
        problem: &GemmProblem,
        batches: usize,
    ) -> Option<Tiling> {
        let work = Work::of(&caps.device, problem, batches);
        let modelled = Tiling::divided(caps, ty, caps.device.rates.matrices.divisions).into_iter();
        let modelled = modelled.filter(|(t, _)| t.stages == 1);
        let costs = modelled.map(|(t, rate)| (t, work.cost(&t, rate)));
        let least = costs.min_by(|(_, s), (_, t)| s.total_cmp(t));
        least.map(|(t, _)| t)
    }

    /// The tiling of subgroups for products of F32 as pairs of F16, and about how many seconds so many of one size take.
    pub(crate) fn choose_for_pairs(
        caps: &Caps,
        problem: &GemmProblem,
        batches: usize,
    ) -> Option<(Tiling, f64)> {
        let work = Work::of(&caps.device, problem, batches);
        let rates = &caps.device.rates.matrices;
        let all = Tiling::of_pairs(caps).into_iter();
        let costs = all.flat_map(|(t, rate)| {
            let all = t.splits_of(problem);
            all.map(move |t| (t, work.cost(&t, rate) / rates.per_s))
        });
        costs.min_by(|(_, s), (_, t)| s.total_cmp(t))
    }

    /// The tiling of subgroups for products whose right side is gathered from windows.
    pub(crate) fn choose_for_windows(
        caps: &Caps,
        ty: CoopType,
        problem: &GemmProblem,
        gathering: &Gathering,
    ) -> Option<Tiling> {
        let work = Work::of(&caps.device, problem, gathering.products);
        let modelled = Tiling::divided(caps, ty, caps.device.rates.matrices.windows).into_iter();
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
            all.map(move |t| (t, work.window_cost(&t, rate)))
        });
        let least = costs.min_by(|(_, s), (_, t)| s.total_cmp(t));
        least.map(|(t, _)| t)
    }

    /// The tiling of subgroups for gradients of weights: `gathers` says whether windows are gathered, else both sides are
    /// rows of `k`.
    pub(crate) fn choose_for_weights(
        caps: &Caps,
        ty: CoopType,
        problem: &GemmProblem,
        gathers: bool,
        gathering: &Gathering,
    ) -> Option<(Tiling, f64)> {
        let work = Work::of(&caps.device, problem, gathering.products);
        let rates = &caps.device.rates.matrices;
        let divisions = match gathers {
            true => rates.windows,
            false => rates.divisions,
        };
        let modelled = Tiling::divided(caps, ty, divisions).into_iter();
        let able = |t: &Tiling| {
            let [_, bn, bk] = t.tile;
            let fits = t.shared_bytes(!gathers) + COLUMN_BYTES * bn <= caps.workgroup_bytes;
            let has_lines = !gathers || t.threads().is_multiple_of(bk);
            t.stages == 1 && bk <= 4 * t.fragment[2] && fits && has_lines
        };
        let costs = modelled.filter(|(t, _)| able(t)).flat_map(|(t, rate)| {
            let all = t.parts_of(problem, WEIGHT_SPLITS);
            let all = all.filter(|t| t.splits == 1 || t.splits <= gathering.most_parts);
            all.map(move |t| (t, work.window_cost(&t, rate) / rates.per_s))
        });
        costs.min_by(|(_, s), (_, t)| s.total_cmp(t))
    }
}

/// What there is to do, on which device.
#[derive(Clone, Copy)]
struct Work<'a> {
    device: &'a Device,
    problem: &'a GemmProblem,
    batches: usize,
    units: usize,
}

impl<'a> Work<'a> {
    fn of(device: &'a Device, problem: &'a GemmProblem, batches: usize) -> Work<'a> {
        Work {
            device,
            problem,
            batches,
            units: device.units_or_typical(),
        }
    }

    /// What a product takes: the tiles of the busiest unit of the device, as many at a time as it takes, and how
    /// fast it is with them. In products of numbers at the rate of the first of the table.
    fn cost(&self, t: &Tiling, rate: Rate) -> f64 {
        let rates = &self.device.rates.matrices;
        let start = match t.splits {
            1 => rates.start,
            _ => rates.start_of_parts,
        };
        let together = rate.together();
        let groups = self.groups_of_unit(t);
        if t.slices > 1 {
            return rate.time(groups) * self.products_of_group(t, start);
        }
        // Those of one turn have nobody before or after them.
        let last = if groups == together {
            groups
        } else {
            groups % together
        };
        let whole = (groups - last) as f64 / rate.full + rate.time(last);
        whole * self.products_of_group(t, start) + self.cost_of_parts(t)
    }

    /// The tail with which a tiling of whole tiles costs least, and what it costs: as many columns of tiles as whole turns
    /// of the device hold, the others in parts.
    fn tail(&self, t: &Tiling, rate: Rate) -> Option<(Tail, f64)> {
        let rates = &self.device.rates.matrices;
        if t.splits != 1 || !t.can_split(self.problem) {
            return None;
        }
        let down = self.problem.m.div_ceil(t.tile[0] as usize);
        let across = self.problem.n.div_ceil(t.tile[1] as usize);
        let turn = self.units * rate.together();
        let turns = down.saturating_mul(across) / turn;
        let cost = |columns: usize, parts: Tiling| {
            let whole = (down * (across - columns)).div_ceil(self.units) as f64 / rate.full;
            let whole = whole * self.products_of_group(t, rates.start);
            let tail = GemmProblem {
                n: columns * t.tile[1] as usize,
                ..*self.problem
            };
            let tail = Work {
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
            let tail = Tail {
                columns: columns as u32,
                splits: parts.splits,
            };
            (tail, cost)
        })
    }

    /// The same for windows, whose rates were measured where tiles do not end together.
    fn window_cost(&self, t: &Tiling, rate: Rate) -> f64 {
        let start = self.device.rates.matrices.start_of_parts;
        let tiles = rate.time(self.groups_of_unit(t)) * self.products_of_group(t, start);
        tiles + self.cost_of_parts(t)
    }

    fn groups_of_unit(&self, t: &Tiling) -> usize {
        let groups = t.groups(self.problem.m, self.problem.n);
        // Slices count as groups, since each of them is a subgroup of its own.
        let groups = groups.saturating_mul((t.splits * t.slices) as usize);
        groups.saturating_mul(self.batches).div_ceil(self.units)
    }

    /// Products of a workgroup, with so much of `k` for its begin and end.
    fn products_of_group(&self, t: &Tiling, start: f64) -> f64 {
        let [bm, bn, bk] = t.tile;
        let bk = bk as usize;
        let k = self.problem.k.div_ceil((t.splits * t.slices) as usize * bk) * bk;
        f64::from(bm * bn) * (k as f64 + start)
    }

    /// What adding up parts of `k` costs.
    fn cost_of_parts(&self, t: &Tiling) -> f64 {
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

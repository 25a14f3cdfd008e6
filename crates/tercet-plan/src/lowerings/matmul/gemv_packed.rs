//! One row times packed weights, with the row in registers: how a workgroup shares its columns.

use tercet_ir::{CompileError, DType};

use super::gemv::WORKGROUP;
use super::product::Product;
use crate::caps::Caps;
use crate::emit::Emit;

/// The most invocations of a column where there are several rounds: sums wait beside the row then.
const MOST_SLICES: u32 = 128;
/// The most teams: each has squares beside the sums of columns.
const MOST_TEAMS: u32 = 64;

/// What a workgroup takes of a device.
#[derive(Clone, Copy)]
struct WorkgroupUse {
    /// Weights that an invocation takes of a column.
    take: usize,
    /// Bytes of its part of the row in shared memory, on its way to registers.
    part_bytes: u32,
    /// The invocations of a workgroup.
    threads: u32,
    /// Workgroups of a unit where that leaves each of them enough columns, and else.
    groups: [usize; 2],
    /// The most shared memory.
    bytes: fn(&Caps) -> u32,
    /// Columns of a team that are under way where it has many.
    depth: u32,
    /// Digits of an element as an integer.
    digits: u32,
}

/// With the row as floats, and as integers.
const FLOATS: WorkgroupUse = WorkgroupUse {
    take: 32,
    part_bytes: 16 * 8,
    threads: WORKGROUP,
    groups: [4, 2],
    bytes: |caps| caps.device.several_bytes,
    depth: 2,
    digits: 3,
};
const DOTS: WorkgroupUse = WorkgroupUse {
    take: 64,
    part_bytes: 16 * 13,
    threads: 2 * WORKGROUP,
    groups: [1, 1],
    // It has a unit for itself.
    bytes: |caps| caps.workgroup_bytes,
    depth: 1,
    digits: 3,
};
/// Rows that may be rounded to 16 bits. The digit that is left out makes room in registers for a second column of weights of
/// 4 bits (ADR 0048).
const TWO_DIGITS: WorkgroupUse = WorkgroupUse {
    part_bytes: 16 * 9,
    digits: 2,
    ..DOTS
};
/// Columns of a workgroup that are worth fetching the row.
const ENOUGH_COLUMNS: usize = 16;
/// Columns of a team that make up for the code that keeps two of them under way.
const DEEP_COLUMNS: u32 = 8;

/// The constants of `gemv_held.wgsl`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Held {
    /// Invocations that share a column.
    slices: u32,
    /// Such teams in a workgroup.
    teams: u32,
    /// Columns of a workgroup.
    columns: u32,
    /// How often a team takes its part of each column.
    rounds: u32,
    /// How often a workgroup takes `columns`.
    batches: u32,
    /// Columns of a team that are under way.
    depth: u32,
    /// Digits of an element as an integer.
    digits: u32,
}

impl Held {
    /// The row as integers, for weights with this many `groups` in a piece, `narrow` where all bits of a code lie together: they take fewer instructions for a weight of up
    /// to 6 bits, and a microsecond to make. Weights of 8 bits come no faster than floats take them. `None` where `k` is
    /// not known or too little shared memory is there.
    pub(super) fn integers(
        e: &Emit<'_>,
        p: &Product,
        groups: u32,
        narrow: bool,
    ) -> Result<Option<Held>, CompileError> {
        let has_dots = e.caps.packed_dots && e.caps.max_workgroup >= DOTS.threads;
        let has_matrices = |to| e.caps.products().contains(&to);
        let may_round = e.facts.products.is_some_and(has_matrices) && p.a.dtype == DType::F32;
        let share = match may_round {
            true => WorkgroupUse {
                depth: 1 + u32::from(narrow),
                ..TWO_DIGITS
            },
            false => DOTS,
        };
        match has_dots && groups == 2 {
            true => Held::with(e, p, share),
            false => Ok(None),
        }
    }

    /// The row as floats. `None` as for integers.
    pub(super) fn floats(e: &Emit<'_>, p: &Product) -> Result<Option<Held>, CompileError> {
        Held::with(e, p, FLOATS)
    }

    /// True if teams take several columns one after the other.
    pub(super) fn teams_have_several(self) -> bool {
        self.batches * self.columns > self.teams
    }

    /// The same with such workgroups, the row as floats.
    fn with(e: &Emit<'_>, p: &Product, share: WorkgroupUse) -> Result<Option<Held>, CompileError> {
        let bytes = (share.bytes)(e.caps).saturating_sub(16);
        let is_whole = |k: &usize| k.is_multiple_of(share.take) && *k > 0;
        let Some(k) = p.k.known().filter(is_whole) else {
            return Ok(None);
        };
        let takes = (k / share.take) as u32;
        // One part more keeps the writes of neighbours apart.
        let most = |bytes: u32| ((bytes / share.part_bytes).max(1) - 1) / 8 * 8;
        let (rounds, slices) = match takes <= most(bytes).min(WORKGROUP) {
            true => (1, takes.next_multiple_of(4)),
            false => {
                let rounds = takes.div_ceil(most(bytes / 2).clamp(8, MOST_SLICES));
                // Rounds begin with blocks, of which the longest are 8 parts.
                (rounds, takes.div_ceil(rounds).next_multiple_of(8))
            }
        };
        let teams = (share.threads / slices).clamp(1, MOST_TEAMS);
        // Sums take the place of the row where it is not needed again.
        let left = match rounds {
            1 => bytes,
            _ => bytes.saturating_sub((slices + 1) * share.part_bytes),
        };
        let squares = if p.norm.is_some() { teams } else { 0 };
        let fit = (left / share_bytes(slices)).saturating_sub(squares);
        let n = e.bound(&p.n)?;
        let [many, few] = share
            .groups
            .map(|groups| n.div_ceil(e.caps.units() * groups));
        let wanted = if many >= ENOUGH_COLUMNS { many } else { few };
        let wanted = u32::try_from(wanted).unwrap_or(u32::MAX / 2);
        // Whole pairs of a gate and whole words of results.
        let whole = 2 + 2 * u32::from(p.gate.is_some());
        let step_of = |depth: u32| {
            let mut steps = (1..=whole).map(|i| i * teams * depth);
            steps.find(|step| step % whole == 0).unwrap_or(whole)
        };
        let most_of = |step: u32| (fit / step * step).min(slices * teams / step * step);
        let is_deep = rounds == 1 && wanted >= teams * DEEP_COLUMNS;
        let fits = most_of(step_of(share.depth)) > 0;
        let depth = if is_deep && fits { share.depth } else { 1 };
        let step = step_of(depth);
        let most = most_of(step);
        if most == 0 {
            return Ok(None);
        }
        let batches = match rounds {
            1 => wanted.div_ceil(most),
            _ => 1,
        };
        let columns = wanted.div_ceil(batches).next_multiple_of(step).min(most);
        Ok(Some(Held {
            slices,
            teams,
            columns,
            rounds,
            batches,
            depth,
            digits: share.digits,
        }))
    }

    /// The results of a workgroup.
    pub(super) fn results(self, p: &Product) -> u32 {
        self.batches * self.columns / (1 + u32::from(p.gate.is_some()))
    }

    /// SLICES, TEAMS, COLUMNS, ROUNDS, BATCHES, DEPTH, DIGITS.
    pub(super) fn consts(self) -> [u32; 7] {
        let Held {
            slices,
            teams,
            columns,
            rounds,
            batches,
            depth,
            digits,
        } = self;
        [slices, teams, columns, rounds, batches, depth, digits]
    }
}

/// Shared memory for the sums of a column.
fn share_bytes(slices: u32) -> u32 {
    16 * ((slices / 4).max(8) + 1)
}

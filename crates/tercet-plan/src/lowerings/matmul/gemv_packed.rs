//! GEMV with quantized weights and the activation row in registers: assignment of threads to
//! columns.

use tercet_ir::{CompileError, DType};

use super::gemv::WORKGROUP;
use super::product::MatMulProblem;
use crate::caps::DeviceCaps;
use crate::emit::LoweringCtx;

/// Maximum threads per column if the row is processed in several rounds. Shared memory then holds
/// partial sums beside the activation row.
const MAX_SLICES: u32 = 128;
/// Maximum thread groups per workgroup. With a fused norm, each group also stores a sum of squares
/// beside the sums of its columns.
const MAX_THREAD_GROUPS: u32 = 64;

/// Work and resources of a workgroup.
#[derive(Clone, Copy)]
struct WorkgroupUse {
    /// Number of weights of a column that each thread multiplies per round.
    take: usize,
    /// Bytes of shared memory for a thread's part of the activation row, from where it is loaded
    /// into registers.
    part_bytes: u32,
    /// Threads per workgroup.
    threads: u32,
    /// Workgroups per compute unit: the first number if each workgroup then gets enough columns,
    /// otherwise the second.
    groups: [usize; 2],
    /// Maximum bytes of shared memory per workgroup.
    bytes: fn(&DeviceCaps) -> u32,
    /// Columns whose weights a thread group loads ahead, if the group has many columns.
    depth: u32,
    /// Number of int8 limbs per activation element.
    digits: u32,
}

/// Configurations with the activation row as floats (`FLOATS`) and as int8 limbs (`DOTS`).
const FLOATS: WorkgroupUse = WorkgroupUse {
    take: 32,
    part_bytes: 16 * 8,
    threads: WORKGROUP,
    groups: [4, 2],
    bytes: |caps| caps.device.multi_occupancy_shared_bytes,
    depth: 2,
    digits: 3,
};
const DOTS: WorkgroupUse = WorkgroupUse {
    take: 64,
    part_bytes: 16 * 13,
    threads: 2 * WORKGROUP,
    groups: [1, 1],
    // Only one workgroup runs on a compute unit, so it may use all the shared memory.
    bytes: |caps| caps.workgroup_bytes,
    depth: 1,
    digits: 3,
};
/// Configuration for activation rows that may be rounded to 16 bits. With one int8 limb less per
/// element, the registers suffice to load a second column of 4-bit weights ahead.
const TWO_DIGITS: WorkgroupUse = WorkgroupUse {
    part_bytes: 16 * 9,
    digits: 2,
    ..DOTS
};
/// Minimum number of columns per workgroup that amortizes loading the activation row.
const MIN_COLUMNS_FOR_ROW_FETCH: usize = 16;
/// Minimum columns per thread group for which loading the weights of two columns ahead pays off.
const DEEP_COLUMNS: u32 = 8;

/// Constants of `gemv_held.wgsl`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct RegisterGemv {
    /// Number of threads that compute a column together.
    slices: u32,
    /// Thread groups per workgroup.
    teams: u32,
    /// Columns per workgroup.
    columns: u32,
    /// Number of rounds in which a thread group processes a column; each round covers a part of k.
    rounds: u32,
    /// Number of batches of `columns` columns that a workgroup processes.
    batches: u32,
    /// Number of columns whose weights a thread group loads ahead.
    depth: u32,
    /// Number of int8 limbs per activation element.
    digits: u32,
}

impl RegisterGemv {
    /// The configuration with the activation row as int8 limbs, for weights with `groups` groups
    /// per piece. `narrow` tells whether all bits of a quantized value are stored together. For
    /// weights of up to 6 bits, int8 limbs take fewer instructions per weight than floats, but
    /// converting the row takes about 1 us. For 8-bit weights, int8 limbs are not faster than
    /// floats. `None` if `k` is unknown or shared memory is too small.
    pub(super) fn integers(
        e: &LoweringCtx<'_>,
        p: &MatMulProblem,
        groups: u32,
        narrow: bool,
    ) -> Result<Option<RegisterGemv>, CompileError> {
        let has_dots = e.caps.packed_dots && e.caps.max_workgroup >= DOTS.threads;
        let has_matrices = |to| e.caps.coop_matmul_dtypes().contains(&to);
        let may_round =
            e.facts.reduced_matmul_dtype.is_some_and(has_matrices) && p.a.dtype == DType::F32;
        let share = match may_round {
            true => WorkgroupUse {
                depth: 1 + u32::from(narrow),
                ..TWO_DIGITS
            },
            false => DOTS,
        };
        match has_dots && groups == 2 {
            true => RegisterGemv::with(e, p, share),
            false => Ok(None),
        }
    }

    /// The configuration with the activation row as floats. `None` if `k` is unknown or shared
    /// memory is too small.
    pub(super) fn floats(
        e: &LoweringCtx<'_>,
        p: &MatMulProblem,
    ) -> Result<Option<RegisterGemv>, CompileError> {
        RegisterGemv::with(e, p, FLOATS)
    }

    /// True if each thread group processes several columns, one after the other.
    pub(super) fn teams_have_several(self) -> bool {
        self.batches * self.columns > self.teams
    }

    /// The configuration for this matmul, if a workgroup takes these resources.
    fn with(
        e: &LoweringCtx<'_>,
        p: &MatMulProblem,
        share: WorkgroupUse,
    ) -> Result<Option<RegisterGemv>, CompileError> {
        let bytes = (share.bytes)(e.caps).saturating_sub(16);
        let is_whole = |k: &usize| k.is_multiple_of(share.take) && *k > 0;
        let Some(k) = p.k.known().filter(is_whole) else {
            return Ok(None);
        };
        let takes = (k / share.take) as u32;
        // Shared memory has room for one more thread's part of the row than necessary: this padding
        // avoids bank conflicts between adjacent writes.
        let most = |bytes: u32| ((bytes / share.part_bytes).max(1) - 1) / 8 * 8;
        let (rounds, slices) = match takes <= most(bytes).min(WORKGROUP) {
            true => (1, takes.next_multiple_of(4)),
            false => {
                let rounds = takes.div_ceil(most(bytes / 2).clamp(8, MAX_SLICES));
                // Each round starts at a boundary of quantized blocks; the longest blocks span the
                // parts of 8 threads.
                (rounds, takes.div_ceil(rounds).next_multiple_of(8))
            }
        };
        let teams = (share.threads / slices).clamp(1, MAX_THREAD_GROUPS);
        // Partial sums reuse the shared memory of the activation row if it is read in a single
        // round.
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
        let wanted = if many >= MIN_COLUMNS_FOR_ROW_FETCH {
            many
        } else {
            few
        };
        let wanted = u32::try_from(wanted).unwrap_or(u32::MAX / 2);
        // A workgroup computes an even number of results, so that 16-bit results fill whole words;
        // a gate needs two columns per result.
        let whole = 2 + 2 * u32::from(p.gate.is_some());
        let step_of = |depth: u32| {
            let mut steps = (1..=whole).map(|i| i * teams * depth);
            steps.find(|step| step % whole == 0).unwrap_or(whole)
        };
        let max_of = |step: u32| (fit / step * step).min(slices * teams / step * step);
        let is_deep = rounds == 1 && wanted >= teams * DEEP_COLUMNS;
        let fits = max_of(step_of(share.depth)) > 0;
        let depth = if is_deep && fits { share.depth } else { 1 };
        let step = step_of(depth);
        let most = max_of(step);
        if most == 0 {
            return Ok(None);
        }
        let batches = match rounds {
            1 => wanted.div_ceil(most),
            _ => 1,
        };
        let columns = wanted.div_ceil(batches).next_multiple_of(step).min(most);
        Ok(Some(RegisterGemv {
            slices,
            teams,
            columns,
            rounds,
            batches,
            depth,
            digits: share.digits,
        }))
    }

    /// Results per workgroup.
    pub(super) fn results(self, p: &MatMulProblem) -> u32 {
        self.batches * self.columns / (1 + u32::from(p.gate.is_some()))
    }

    /// Values of the constants `SLICES`, `TEAMS`, `COLUMNS`, `ROUNDS`, `BATCHES`, `DEPTH` and
    /// `DIGITS`.
    pub(super) fn consts(self) -> [u32; 7] {
        let RegisterGemv {
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

/// Bytes of shared memory for the partial sums of one column.
fn share_bytes(slices: u32) -> u32 {
    16 * ((slices / 4).max(8) + 1)
}

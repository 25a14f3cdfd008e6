//! One row times columns of floats, with the row in registers: how a workgroup shares its columns.

use tercet_ir::CompileError;

use super::gemv::WORKGROUP;
use super::product::Product;
use crate::emit::Emit;

/// The least invocations of a column: sums are joined by eight vectors of four.
const LEAST_SLICES: u32 = 32;
/// The most pieces of the row that an invocation holds.
const MOST_PIECES: usize = 8;
/// Columns that each unit has where there are many.
const MANY_COLUMNS: usize = 40;
/// Columns whose pieces an invocation asks for at a time, and the most pieces of them; workgroups of a unit: where
/// there are few columns, and where there are many. Workgroups that come back for more columns wait for each.
const FEW: (u32, u32, usize) = (4, 12, 4);
const MANY: (u32, u32, usize) = (8, 16, 16);

/// The constants of `gemv_floats.wgsl`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Columns {
    /// Invocations that share a column.
    slices: u32,
    /// Pieces of a column that each takes.
    pieces: u32,
    /// Columns that it takes at a time.
    together: u32,
    /// Columns of a workgroup.
    columns: u32,
    /// How often a team takes its part of each column.
    rounds: u32,
}

impl Columns {
    /// For pieces of `len` elements, of which `k`, which is known, has some.
    pub(super) fn of(e: &Emit<'_>, p: &Product, len: u32) -> Result<Columns, CompileError> {
        let (n, units) = (e.bound(&p.n)?, e.caps.units());
        let (mut together, asked_for, groups) = match n >= MANY_COLUMNS * units {
            true => MANY,
            false => FEW,
        };
        let all = (e.bound(&p.k)? / len as usize).max(1);
        let slices = all.next_power_of_two().min(WORKGROUP as usize) as u32;
        let slices = slices.max(LEAST_SLICES);
        let own = all.div_ceil(slices as usize);
        let pieces = own.min(MOST_PIECES) as u32;
        let rounds = own.div_ceil(pieces as usize) as u32;
        while together > 1 && together * pieces > asked_for {
            together /= 2;
        }
        // Whole pairs of a gate and whole words of results.
        let whole = 2 + 2 * u32::from(p.gate.is_some());
        let turn = WORKGROUP / slices * together;
        let step = turn.max(whole);
        let bytes = e.caps.device.several_bytes;
        let row_bytes = 16 * (slices / 4 + 1);
        let fit = (bytes / row_bytes).saturating_sub(2);
        let wanted = u32::try_from(n.div_ceil(groups * units)).unwrap_or(u32::MAX / 2);
        let columns = wanted
            .next_multiple_of(step)
            .min(fit / step * step)
            .max(step);
        Ok(Columns {
            slices,
            pieces,
            together,
            columns,
            rounds,
        })
    }

    /// The results of a workgroup.
    pub(super) fn results(self, p: &Product) -> u32 {
        self.columns / (1 + u32::from(p.gate.is_some()))
    }

    /// SLICES, PIECES, TOGETHER, COLUMNS, ROUNDS.
    pub(super) fn consts(self) -> [u32; 5] {
        let Columns {
            slices,
            pieces,
            together,
            columns,
            rounds,
        } = self;
        [slices, pieces, together, columns, rounds]
    }
}

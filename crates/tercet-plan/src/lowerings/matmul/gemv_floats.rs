//! GEMV with float weights and the activation row in registers: assignment of threads to columns.

use tercet_ir::CompileError;

use super::gemv::WORKGROUP;
use super::product::MatMulProblem;
use crate::emit::LoweringCtx;

/// Minimum number of threads per column, because the kernel adds their sums as eight vectors of
/// four.
const MIN_SLICES: u32 = 32;
/// Maximum number of pieces of the activation row that a thread holds in registers.
const MAX_PIECES: usize = 8;
/// Number of columns per compute unit from which on `WIDE_CONFIG` is used.
const MIN_COLUMNS_PER_UNIT_FOR_WIDE: usize = 40;
/// Parameters for few and for many columns: columns loaded at once, maximum pieces in flight,
/// workgroups per unit. A workgroup that processes several batches of columns waits for the weight
/// loads of each batch.
const NARROW_CONFIG: (u32, u32, usize) = (4, 12, 4);
const WIDE_CONFIG: (u32, u32, usize) = (8, 16, 16);

/// Constants of `gemv_floats.wgsl`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct FloatGemvConsts {
    /// Number of threads that compute a column together.
    slices: u32,
    /// Number of a column's pieces that each thread multiplies.
    pieces: u32,
    /// Number of columns that a thread processes at once.
    together: u32,
    /// Columns per workgroup.
    columns: u32,
    /// Number of consecutive batches of `together` columns that a thread group computes.
    rounds: u32,
}

impl FloatGemvConsts {
    /// The assignment of threads to columns, for weight pieces of `len` elements; `k` is known and
    /// a multiple of `len`.
    pub(super) fn new(
        e: &LoweringCtx<'_>,
        p: &MatMulProblem,
        len: u32,
    ) -> Result<FloatGemvConsts, CompileError> {
        let (n, units) = (e.bound(&p.n)?, e.caps.units());
        let (mut together, asked_for, groups) = match n >= MIN_COLUMNS_PER_UNIT_FOR_WIDE * units {
            true => WIDE_CONFIG,
            false => NARROW_CONFIG,
        };
        let all = (e.bound(&p.k)? / len as usize).max(1);
        let slices = all.next_power_of_two().min(WORKGROUP as usize) as u32;
        let slices = slices.max(MIN_SLICES);
        let own = all.div_ceil(slices as usize);
        let pieces = own.min(MAX_PIECES) as u32;
        let rounds = own.div_ceil(pieces as usize) as u32;
        while together > 1 && together * pieces > asked_for {
            together /= 2;
        }
        // A workgroup computes an even number of results, so that 16-bit results fill whole words;
        // a gate needs two columns per result.
        let whole = 2 + 2 * u32::from(p.gate.is_some());
        let turn = WORKGROUP / slices * together;
        let step = turn.max(whole);
        let bytes = e.caps.device.multi_occupancy_shared_bytes;
        let row_bytes = 16 * (slices / 4 + 1);
        let fit = (bytes / row_bytes).saturating_sub(2);
        let wanted = u32::try_from(n.div_ceil(groups * units)).unwrap_or(u32::MAX / 2);
        let columns = wanted
            .next_multiple_of(step)
            .min(fit / step * step)
            .max(step);
        Ok(FloatGemvConsts {
            slices,
            pieces,
            together,
            columns,
            rounds,
        })
    }

    /// Results per workgroup.
    pub(super) fn results(self, p: &MatMulProblem) -> u32 {
        self.columns / (1 + u32::from(p.gate.is_some()))
    }

    /// Values of the constants `SLICES`, `PIECES`, `TOGETHER`, `COLUMNS` and `ROUNDS`.
    pub(super) fn consts(self) -> [u32; 5] {
        let FloatGemvConsts {
            slices,
            pieces,
            together,
            columns,
            rounds,
        } = self;
        [slices, pieces, together, columns, rounds]
    }
}

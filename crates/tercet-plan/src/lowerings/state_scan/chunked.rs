//! `Mamba2` and `GatedDeltaNet` of 16 bits in chunks of 64 steps, on cooperative matrices.
//!
//! A first kernel makes what the rows of a chunk make of each other, for all chunks at once; a second one takes
//! the states through the chunks, one workgroup for 32 channels of a head. The headers of
//! `shaders/vulkan/include/chunk_rows.glsl` and `chunk_walk.glsl` have the formulas.
//!
//! For 64 heads of 64 channels with 128 states, 4096 steps: a chunk takes 64 x 64 x 128 products for its rows, once
//! for heads that share them, and 64 x (64 + 2 x 128) x 64 for values and states of each head, 5.4 G in all, which
//! matrices of F16 do in some 20 us; squares of chunks are 34 MB, written once and read twice. What remains is latency: 128 workgroups go through 64 chunks
//! of about two microseconds each.

use tercet_ir::{CompileError, DType, Dim};

use super::super::gemm_coop::module;
use super::{Dense, Scan};
use crate::caps::{Caps, CoopType};
use crate::emit::Emit;
use crate::kernel::{Access, Kernel};
use crate::num::Num;
use crate::program::SlotId;

crate::params! {
    /// The block of `chunk_rows.glsl`.
    pub struct ChunkRowsParams {
        steps: U32,
        chunks: U32,
        heads: U32,
        groups: U32,
        each: U32,
        count: U32,
    }
    /// The block of `chunk_walk.glsl`.
    pub struct ChunkWalkParams {
        steps: U32,
        chunks: U32,
        heads: U32,
        groups: U32,
        columns: U32,
        tiles: U32,
        count: U32,
        scale: F32,
    }
}

/// Two rows, what decays; mixes, inverses, factors.
const ROWS_ARGS: &[Access] = &[
    Access::Read,
    Access::Read,
    Access::Read,
    Access::Read,
    Access::Write,
    Access::Write,
    Access::Write,
];

/// Two rows, values, results; mixes, inverses, factors; the first state and the last.
const WALK_ARGS: &[Access] = &[
    Access::Read,
    Access::Read,
    Access::Read,
    Access::Write,
    Access::Read,
    Access::Read,
    Access::Read,
    Access::Read,
    Access::Write,
];

const ROWS_CONSTS: &[&str] = &["THREADS", "SUBGROUP", "STATES", "DELTA"];

const WALK_CONSTS: &[&str] = &[
    "THREADS", "SUBGROUP", "STATES", "DELTA", "COLUMNS", "PARTS", "INITIAL", "CARRY",
];

pub(super) static ROWS_F16: Kernel<ChunkRowsParams> = Kernel::spirv(
    "chunk_rows_f16",
    module!("chunk_rows_f16.spv"),
    ROWS_ARGS,
    ROWS_CONSTS,
);

pub(super) static ROWS_BF16: Kernel<ChunkRowsParams> = Kernel::spirv(
    "chunk_rows_bf16",
    module!("chunk_rows_bf16.spv"),
    ROWS_ARGS,
    ROWS_CONSTS,
);

pub(super) static WALK_F16: Kernel<ChunkWalkParams> = Kernel::spirv(
    "chunk_walk_f16",
    module!("chunk_walk_f16.spv"),
    WALK_ARGS,
    WALK_CONSTS,
);

pub(super) static WALK_BF16: Kernel<ChunkWalkParams> = Kernel::spirv(
    "chunk_walk_bf16",
    module!("chunk_walk_bf16.spv"),
    WALK_ARGS,
    WALK_CONSTS,
);

/// Steps of a chunk.
const CHUNK: usize = 64;
/// Up to so many steps states are taken step by step.
pub(super) const FEW_STEPS: u32 = 2 * CHUNK as u32 - 1;
/// Rows, columns and depth of a matrix.
const FRAGMENT: usize = 16;
/// The most states of a channel: rows of more do not fit the shared memory beside the states.
const MOST_STATES: usize = 128;
/// Blocks of rows of a chunk, each with its subgroup.
const BLOCKS: u32 = 4;
/// Floats that the first kernel says of a chunk.
const FACTORS: usize = 2 * CHUNK + 4;

/// How a scan is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ChunkTiling {
    ty: CoopType,
    subgroup: u32,
    states: usize,
    /// Columns of a workgroup, and parts of them that different subgroups have.
    columns: usize,
    parts: u32,
}

impl ChunkTiling {
    /// None where the device has no such matrices, or the states or channels do not fit them.
    pub(super) fn choose(
        caps: &Caps,
        dtype: DType,
        states: usize,
        columns: usize,
    ) -> Option<ChunkTiling> {
        let ty = match dtype {
            DType::F16 if caps.natives.halves => CoopType::F16,
            DType::BF16 => CoopType::BF16,
            _ => return None,
        };
        let size = FRAGMENT as u32;
        let fits = |s: &crate::caps::CoopShape| {
            s.ty == ty && [s.m, s.n, s.k] == [size; 3] && (s.narrow_sums || ty == CoopType::BF16)
        };
        let has_matrices = caps.spirv && caps.coop.iter().any(fits);
        let whole = |n: usize| n > 0 && n.is_multiple_of(FRAGMENT);
        if !has_matrices || !whole(states) || states > MOST_STATES || !whole(columns) {
            return None;
        }
        // Sums that cannot be narrowed take shared memory.
        let together = match ty {
            CoopType::F16 if columns.is_multiple_of(2 * FRAGMENT) => 2,
            CoopType::F16 | CoopType::BF16 => 1,
        };
        let tiling = ChunkTiling {
            ty,
            subgroup: caps.subgroup?,
            states,
            columns: together * FRAGMENT,
            parts: together as u32,
        };
        let fits = tiling.shared_bytes() <= caps.workgroup_bytes as usize
            && tiling.threads() <= caps.max_workgroup;
        fits.then_some(tiling)
    }

    /// Invocations of a workgroup of the second kernel.
    fn threads(&self) -> u32 {
        self.subgroup * BLOCKS * self.parts
    }

    /// Shared memory of a workgroup: at least that of either kernel. The first takes no more than this of few states.
    fn shared_bytes(&self) -> usize {
        let subgroups = (BLOCKS * self.parts) as usize;
        let [row, stride, square] = [self.states, self.columns, CHUNK].map(|n| n / 8 + 1);
        let floats = 2 * CHUNK + 3 * BLOCKS as usize;
        let squares = 16 * 2 * CHUNK * (CHUNK / 4 + 1).max(row) + 4 * floats;
        let slabs = match self.ty {
            CoopType::F16 => 0,
            CoopType::BF16 => subgroups * FRAGMENT * 5,
        };
        let words = CHUNK * (row + square + 2 * stride) + self.states * stride + slabs;
        squares.max(16 * words + 2 * CHUNK * 4 + subgroups * 4)
    }
}

/// What the first kernel makes for the second.
struct Made {
    mixes: SlotId,
    inverses: SlotId,
    factors: SlotId,
}

/// The tiling of a scan; none where the device or the sizes are not for it.
pub(super) fn tiling(e: &Emit<'_>, scan: &Scan<'_>) -> Result<Option<ChunkTiling>, CompileError> {
    let sizes = scan.sizes;
    let squares = squares(e, scan)?.saturating_mul(CHUNK * CHUNK * 2);
    if squares as u64 > e.caps.max_binding_bytes {
        return Ok(None);
    }
    let dtype = scan.rows[0].dtype;
    Ok(ChunkTiling::choose(
        e.caps,
        dtype,
        sizes.states,
        sizes.per_head,
    ))
}

/// The most chunks of all heads.
fn squares(e: &Emit<'_>, scan: &Scan<'_>) -> Result<usize, CompileError> {
    let [batch, steps] = scan.batch_and_steps();
    let chunks = e.bound(steps)?.div_ceil(CHUNK);
    Ok(e.bound(batch)?
        .saturating_mul(scan.sizes.heads)
        .saturating_mul(chunks))
}

/// Runs both kernels; the sequence has more than [`FEW_STEPS`].
pub(super) fn dispatch(
    e: &mut Emit<'_>,
    scan: &Scan<'_>,
    tiling: &ChunkTiling,
) -> Result<(), CompileError> {
    let squares = squares(e, scan)?;
    let square = |n: usize| [Dim::Known(squares), Dim::Known(n)];
    let dtype = scan.rows[0].dtype;
    let mixes = e.temp(dtype, &square(CHUNK * CHUNK))?.slot;
    let inverses = match scan.is_delta {
        true => e.temp(dtype, &square(CHUNK * CHUNK))?.slot,
        false => e.temp(dtype, &[1.into()])?.slot,
    };
    let factors = e.temp(DType::F32, &square(FACTORS))?.slot;
    let made = Made {
        mixes,
        inverses,
        factors,
    };
    let [batch, steps] = scan.batch_and_steps();
    let (batch, steps) = (e.num(batch), e.num(steps));
    let chunks = e.tape().ceil_div(steps, CHUNK as u32);
    let each = heads_of_workgroup(e, scan, squares);
    let given = scan.dense(e)?;
    let kernels = Chunks {
        scan,
        tiling,
        given: &given,
        made: &made,
        sizes: [batch, steps, chunks],
    };
    kernels.multiply_rows(e, each);
    kernels.walk(e)
}

/// Heads that a workgroup of the first kernel makes the squares of, as long as there are workgroups for all units.
fn heads_of_workgroup(e: &Emit<'_>, scan: &Scan<'_>, squares: usize) -> usize {
    let units = e.caps.units();
    let together = scan.sizes.heads / scan.sizes.groups.max(1);
    let fits = |each: &usize| together.is_multiple_of(*each) && squares / each >= 4 * units;
    [16, 8, 4, 2].into_iter().find(fits).unwrap_or(1)
}

fn known(n: usize) -> Num {
    Num::Const(n as i64)
}

/// A scan in chunks under way.
struct Chunks<'v> {
    scan: &'v Scan<'v>,
    tiling: &'v ChunkTiling,
    given: &'v Dense,
    made: &'v Made,
    /// The batch, steps and chunks of a sequence.
    sizes: [Num; 3],
}

impl Chunks<'_> {
    fn multiply_rows(&self, e: &mut Emit<'_>, each: usize) {
        let (sizes, tiling) = (self.scan.sizes, self.tiling);
        let [batch, steps, chunks] = self.sizes;
        let bundles = e.tape().mul(batch, known(sizes.heads / each));
        let count = e.tape().mul(bundles, chunks);
        let params = ChunkRowsParams {
            steps,
            chunks,
            heads: known(sizes.heads),
            groups: known(sizes.groups),
            each: known(each),
            count,
        };
        let [enter, leave] = &self.given.rows;
        let [gates, others] = self.given.gates;
        let args = [
            enter.slot,
            leave.slot,
            gates,
            others,
            self.made.mixes,
            self.made.inverses,
            self.made.factors,
        ];
        let consts = [
            BLOCKS * tiling.subgroup,
            tiling.subgroup,
            tiling.states as u32,
            self.scan.is_delta.into(),
        ];
        let kernel = match tiling.ty {
            CoopType::F16 => &ROWS_F16,
            CoopType::BF16 => &ROWS_BF16,
        };
        let grid = e.flat_grid(count);
        e.dispatch(kernel, &consts, &args, &params, grid);
    }

    fn walk(&self, e: &mut Emit<'_>) -> Result<(), CompileError> {
        let (scan, tiling) = (self.scan, self.tiling);
        let (sizes, states) = (scan.sizes, scan.states);
        let [batch, steps, chunks] = self.sizes;
        let tiles = sizes.per_head / tiling.columns;
        let count = e.tape().mul(batch, known(sizes.heads * tiles));
        let params = ChunkWalkParams {
            steps,
            chunks,
            heads: known(sizes.heads),
            groups: known(sizes.groups),
            columns: known(sizes.per_head),
            tiles: known(tiles),
            count,
            scale: scan.scale(),
        };
        let [enter, leave] = &self.given.rows;
        let last = states.make(e)?;
        let args = [
            enter.slot,
            leave.slot,
            self.given.values,
            scan.results,
            self.made.mixes,
            self.made.inverses,
            self.made.factors,
            states.initial.unwrap_or(self.given.values),
            last.slot,
        ];
        let [initial, carry] = states.consts();
        let consts = [
            tiling.threads(),
            tiling.subgroup,
            tiling.states as u32,
            scan.is_delta.into(),
            tiling.columns as u32,
            tiling.parts,
            initial,
            carry,
        ];
        let kernel = match tiling.ty {
            CoopType::F16 => &WALK_F16,
            CoopType::BF16 => &WALK_BF16,
        };
        let grid = e.flat_grid(count);
        e.dispatch(kernel, &consts, &args, &params, grid);
        states.finish(e, last);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::gemm_coop;

    #[test]
    fn the_modules_declare_the_blocks_the_arguments_and_the_constants() {
        for def in [&ROWS_F16.def, &ROWS_BF16.def, &WALK_F16.def, &WALK_BF16.def] {
            gemm_coop::tests::agrees(def);
        }
    }

    #[test]
    fn what_does_not_fit_matrices_goes_step_by_step() {
        let h200 = Caps::h200();
        let of = |dtype, states, columns| ChunkTiling::choose(&h200, dtype, states, columns);
        for dtype in [DType::F16, DType::BF16] {
            for (states, columns) in [(16, 16), (48, 80), (128, 64), (128, 128)] {
                let t = of(dtype, states, columns).unwrap();
                assert!(columns.is_multiple_of(t.columns), "{t:?}");
                assert!(
                    t.columns.is_multiple_of(FRAGMENT * t.parts as usize),
                    "{t:?}"
                );
                assert!(t.shared_bytes() <= h200.workgroup_bytes as usize, "{t:?}");
            }
            for (states, columns) in [(0, 16), (16, 0), (20, 64), (64, 40), (144, 64)] {
                assert_eq!(of(dtype, states, columns), None);
            }
        }
        assert_eq!(of(DType::F32, 128, 64), None);
        assert_eq!(
            ChunkTiling::choose(&Caps::browser(), DType::F16, 128, 64),
            None
        );
        let mut careful = Caps::h200();
        careful.natives.halves = false;
        assert_eq!(ChunkTiling::choose(&careful, DType::F16, 128, 64), None);
    }
}

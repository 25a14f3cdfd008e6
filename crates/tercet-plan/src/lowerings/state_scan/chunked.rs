//! Chunked scan: `Mamba2` and `GatedDeltaNet` in 16 bits, in chunks of 64 steps on cooperative
//! matrices.
//!
//! A first kernel multiplies the operand rows of each chunk with one another, for all chunks in
//! parallel. A second kernel carries the states through the chunks, with one workgroup per 32
//! channels of a head. The headers of `shaders/vulkan/include/chunk_rows.glsl` and
//! `chunk_walk.glsl` have the formulas.
//!
//! Example: 64 heads of 64 channels with 128 states, 4096 steps. For the products of its operand
//! rows, a chunk takes 64 x 64 x 128 multiply-adds, once per group of heads that share the rows.
//! For values and states, each head takes 64 x (64 + 2 x 128) x 64 multiply-adds per chunk. The
//! total of 5.4 G multiply-adds takes about 20 us on F16 matrices. The chunk matrices are 34 MB,
//! written once and read twice. The remaining cost is latency: 128 workgroups pass through 64
//! chunks of about 2 us each.

use tercet_ir::{CompileError, DType, Dim};

use super::super::gemm_coop::module;
use super::{DenseScanOperands, HeadScan};
use crate::caps::{CoopType, DeviceCaps};
use crate::emit::LoweringCtx;
use tercet_program::SlotId;
use tercet_program::SymInt;
use tercet_program::{ArgAccess, TypedKernel};

crate::params! {
    /// Parameter block of `chunk_rows.glsl`.
    pub struct SsdIntraChunkParams {
        steps: U32,
        chunks: U32,
        heads: U32,
        groups: U32,
        each: U32,
        count: U32,
    }
    /// Parameter block of `chunk_walk.glsl`.
    pub struct SsdStatePassingParams {
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

/// Arguments of the first kernel: two operand rows and decays; then the results: mixing matrices,
/// inverses, factors.
const ROWS_ARGS: &[ArgAccess] = &[
    ArgAccess::Read,
    ArgAccess::Read,
    ArgAccess::Read,
    ArgAccess::Read,
    ArgAccess::Write,
    ArgAccess::Write,
    ArgAccess::Write,
];

/// Arguments of the second kernel: two operand rows, values, results; mixing matrices, inverses,
/// factors; initial and final states.
const WALK_ARGS: &[ArgAccess] = &[
    ArgAccess::Read,
    ArgAccess::Read,
    ArgAccess::Read,
    ArgAccess::Write,
    ArgAccess::Read,
    ArgAccess::Read,
    ArgAccess::Read,
    ArgAccess::Read,
    ArgAccess::Write,
];

const ROWS_CONSTS: &[&str] = &["THREADS", "SUBGROUP", "STATES", "DELTA"];

const WALK_CONSTS: &[&str] = &[
    "THREADS", "SUBGROUP", "STATES", "DELTA", "COLUMNS", "PARTS", "INITIAL", "CARRY",
];

pub(super) static ROWS_F16: TypedKernel<SsdIntraChunkParams> = TypedKernel::spirv(
    "chunk_rows_f16",
    module!("chunk_rows_f16.spv"),
    ROWS_ARGS,
    ROWS_CONSTS,
);

pub(super) static ROWS_BF16: TypedKernel<SsdIntraChunkParams> = TypedKernel::spirv(
    "chunk_rows_bf16",
    module!("chunk_rows_bf16.spv"),
    ROWS_ARGS,
    ROWS_CONSTS,
);

pub(super) static WALK_F16: TypedKernel<SsdStatePassingParams> = TypedKernel::spirv(
    "chunk_walk_f16",
    module!("chunk_walk_f16.spv"),
    WALK_ARGS,
    WALK_CONSTS,
);

pub(super) static WALK_BF16: TypedKernel<SsdStatePassingParams> = TypedKernel::spirv(
    "chunk_walk_bf16",
    module!("chunk_walk_bf16.spv"),
    WALK_ARGS,
    WALK_CONSTS,
);

/// Steps per chunk.
const CHUNK: usize = 64;
/// Maximum sequence length that is scanned step by step instead of in chunks.
pub(super) const MAX_SEQUENTIAL_STEPS: u32 = 2 * CHUNK as u32 - 1;
/// Number of rows, of columns and of elements along k of a cooperative matrix.
pub const FRAGMENT: usize = 16;
/// Maximum number of states per channel; with more, the operand rows do not fit into shared memory
/// beside the states.
const MAX_CHUNK_STATES: usize = 128;
/// Number of 16-step blocks per chunk; one subgroup processes each block.
const BLOCKS: u32 = 4;
/// Number of F32 factors (decays and weights of steps) per chunk that the first kernel passes to
/// the second.
const FACTORS: usize = 2 * CHUNK + 4;

/// How a chunked scan is divided among workgroups and subgroups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkTiling {
    ty: CoopType,
    subgroup: u32,
    states: usize,
    /// Columns (channels) per workgroup.
    pub columns: usize,
    /// Number of parts into which subgroups divide these columns.
    pub parts: u32,
}

impl ChunkTiling {
    /// Selects the tiling for these sizes. `None` if the device lacks cooperative matrices of this
    /// dtype, or if the kernels do not support these numbers of states and channels.
    pub fn choose(
        caps: &DeviceCaps,
        dtype: DType,
        states: usize,
        columns: usize,
    ) -> Option<ChunkTiling> {
        let ty = match dtype {
            DType::F16 if caps.natives.f16_conversions => CoopType::F16,
            DType::BF16 => CoopType::BF16,
            _ => return None,
        };
        let size = FRAGMENT as u32;
        let fits = |s: &crate::caps::CoopShape| {
            s.ty == ty
                && [s.m, s.n, s.k] == [size; 3]
                && (s.narrow_accumulators || ty == CoopType::BF16)
        };
        let has_matrices = caps.spirv && caps.coop.iter().any(fits);
        let whole = |n: usize| n > 0 && n.is_multiple_of(FRAGMENT);
        if !has_matrices || !whole(states) || states > MAX_CHUNK_STATES || !whole(columns) {
            return None;
        }
        // Accumulators that cannot be converted to 16 bits in registers (BF16) go through shared
        // memory.
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

    /// Threads per workgroup of the second kernel.
    fn threads(&self) -> u32 {
        self.subgroup * BLOCKS * self.parts
    }

    /// Shared memory per workgroup in bytes: the larger of both kernels.
    pub fn shared_bytes(&self) -> usize {
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

/// Buffers that the first kernel writes and the second kernel reads.
struct ChunkIntermediates {
    mixes: SlotId,
    inverses: SlotId,
    factors: SlotId,
}

/// The tiling of a scan; `None` if the device or the sizes are not supported.
pub(super) fn tiling(
    e: &LoweringCtx<'_>,
    scan: &HeadScan<'_>,
) -> Result<Option<ChunkTiling>, CompileError> {
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

/// Maximum total number of chunks of all batch entries and heads.
fn squares(e: &LoweringCtx<'_>, scan: &HeadScan<'_>) -> Result<usize, CompileError> {
    let [batch, steps] = scan.batch_and_steps();
    let chunks = e.bound(steps)?.div_ceil(CHUNK);
    Ok(e.bound(batch)?
        .saturating_mul(scan.sizes.heads)
        .saturating_mul(chunks))
}

/// Dispatches both kernels, for sequences longer than [`MAX_SEQUENTIAL_STEPS`].
pub(super) fn dispatch(
    e: &mut LoweringCtx<'_>,
    scan: &HeadScan<'_>,
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
    let made = ChunkIntermediates {
        mixes,
        inverses,
        factors,
    };
    let [batch, steps] = scan.batch_and_steps();
    let (batch, steps) = (e.num(batch), e.num(steps));
    let chunks = e.tape().ceil_div(steps, CHUNK as u32);
    let each = heads_of_workgroup(e, scan, squares);
    let given = scan.dense(e)?;
    let kernels = ChunkedScan {
        scan,
        tiling,
        operands: &given,
        intermediates: &made,
        sizes: [batch, steps, chunks],
    };
    kernels.multiply_rows(e, each);
    kernels.emit_state_passing(e)
}

/// Heads per workgroup of the first kernel; limited so that enough workgroups remain for all
/// compute units.
fn heads_of_workgroup(e: &LoweringCtx<'_>, scan: &HeadScan<'_>, squares: usize) -> usize {
    let units = e.caps.units();
    let together = scan.sizes.heads / scan.sizes.groups.max(1);
    let fits = |each: &usize| together.is_multiple_of(*each) && squares / each >= 4 * units;
    [16, 8, 4, 2].into_iter().find(fits).unwrap_or(1)
}

fn known(n: usize) -> SymInt {
    SymInt::Const(n as i64)
}

/// A chunked scan whose kernels are being emitted.
struct ChunkedScan<'v> {
    scan: &'v HeadScan<'v>,
    tiling: &'v ChunkTiling,
    operands: &'v DenseScanOperands,
    intermediates: &'v ChunkIntermediates,
    /// Batch size, steps, and chunks per sequence.
    sizes: [SymInt; 3],
}

impl ChunkedScan<'_> {
    fn multiply_rows(&self, e: &mut LoweringCtx<'_>, each: usize) {
        let (sizes, tiling) = (self.scan.sizes, self.tiling);
        let [batch, steps, chunks] = self.sizes;
        let bundles = e.tape().mul(batch, known(sizes.heads / each));
        let count = e.tape().mul(bundles, chunks);
        let params = SsdIntraChunkParams {
            steps,
            chunks,
            heads: known(sizes.heads),
            groups: known(sizes.groups),
            each: known(each),
            count,
        };
        let [enter, leave] = &self.operands.rows;
        let [gates, others] = self.operands.gates;
        let args = [
            enter.slot,
            leave.slot,
            gates,
            others,
            self.intermediates.mixes,
            self.intermediates.inverses,
            self.intermediates.factors,
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

    fn emit_state_passing(&self, e: &mut LoweringCtx<'_>) -> Result<(), CompileError> {
        let (scan, tiling) = (self.scan, self.tiling);
        let (sizes, states) = (scan.sizes, scan.states);
        let [batch, steps, chunks] = self.sizes;
        let tiles = sizes.per_head / tiling.columns;
        let count = e.tape().mul(batch, known(sizes.heads * tiles));
        let params = SsdStatePassingParams {
            steps,
            chunks,
            heads: known(sizes.heads),
            groups: known(sizes.groups),
            columns: known(sizes.per_head),
            tiles: known(tiles),
            count,
            scale: scan.scale(),
        };
        let [enter, leave] = &self.operands.rows;
        let last = states.allocate(e)?;
        let args = [
            enter.slot,
            leave.slot,
            self.operands.values,
            scan.results,
            self.intermediates.mixes,
            self.intermediates.inverses,
            self.intermediates.factors,
            states.initial.unwrap_or(self.operands.values),
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

//! Skinny GEMM (two to eight rows) with many columns and rows staged through shared memory. This
//! file contains the kernels of `shaders/vulkan/include/few_rows_streamed.glsl` and the work split
//! of a workgroup.

use super::skinny::{ARGS, SLICE, SUBGROUP, SkinnyGemmParams, TILE, few_rows, max_subgroups};
use crate::caps::DeviceCaps;
use crate::lowerings::gemm_coop::module;
use tercet_program::TypedKernel;

pub(super) static KERNEL: TypedKernel<SkinnyGemmParams> =
    few_rows!("few_rows_streamed_f16", "PARTS", "CHUNK");

/// Steps per slice.
const STEPS: u32 = 8;
/// Registers per thread.
pub const REGISTERS: u32 = 128;
/// Number of threads that copy activation rows to shared memory.
const WRITERS: u32 = 512;
/// Maximum number of column tiles per workgroup; their partial sums must fit into the shared memory
/// of one pipeline stage.
const MAX_TILES: usize = 16;
/// Shared memory of a pipeline stage: 16-byte vectors per k step and F16 number of an element
/// (`STEP_ROW`), and additional words per part of k (`PART_UNITS`).
pub const STEP_ROW: u32 = 36;
const PART_UNITS: u32 = 8;

/// How a kernel streams activation rows through shared memory, and how it splits columns and k.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SharedMemPipeline {
    /// Subgroups per workgroup.
    pub subgroups: u32,
    /// Tiles per workgroup.
    pub tiles: u32,
    /// Split-K factor within the workgroup; one subgroup processes each pair of a tile and a part
    /// of k.
    pub parts: u32,
    /// Number of slices in each part of k.
    pub rounds: u32,
    /// Number of k steps per chunk; activation rows are copied to shared memory chunk by chunk.
    chunk: u32,
    /// True if the parts cover k exactly, without a partial slice at the end.
    is_whole: bool,
}

impl SharedMemPipeline {
    /// The pipeline for `rows` activation rows. `None` if the rows should be held in registers instead.
    pub fn new(caps: &DeviceCaps, [n, k]: [usize; 2], rows: u32) -> Option<SharedMemPipeline> {
        let most = max_subgroups(caps, REGISTERS).min(caps.max_workgroup / SUBGROUP);
        let slices = k.div_ceil(SLICE);
        let tiles = n.div_ceil(TILE as usize).div_ceil(caps.units());
        if most * SUBGROUP < WRITERS {
            return None;
        }
        // Spread the tiles of a compute unit evenly over its consecutive workgroups, with at most
        // `MAX_TILES` tiles each.
        let tiles = tiles.div_ceil(tiles.div_ceil(MAX_TILES)) as u32;
        // Four threads copy the elements of one row and k step, 8 elements each.
        let chunk = |parts: u32| (WRITERS / (4 * rows * parts)).min(STEPS);
        let allows =
            |parts: &u32| parts * tiles <= most && chunk(*parts) >= 1 && *parts as usize <= slices;
        let parts = [8, 4, 2, 1].into_iter().find(allows)?;
        let rounds = slices.div_ceil(parts as usize);
        let writers = (rows * parts * chunk(parts) * 4).div_ceil(SUBGROUP);
        let stream = SharedMemPipeline {
            subgroups: (tiles * parts).max(writers),
            tiles,
            parts,
            rounds: rounds as u32,
            chunk: chunk(parts),
            is_whole: parts as usize * rounds * SLICE == k,
        };
        let numbers = rows / 4;
        (stream.shared_bytes(numbers) <= caps.workgroup_bytes).then_some(stream)
    }

    /// True if a compute unit has too few tiles to amortize staging the rows through shared memory,
    /// and k is long enough to keep the register-resident variant busy.
    pub(super) fn has_few_tiles(caps: &DeviceCaps, [n, k]: [usize; 2]) -> bool {
        let rates = &caps.device.rates.rows;
        let tiles = n.div_ceil(TILE as usize).div_ceil(caps.units());
        tiles < rates.streamed_tiles && k.div_ceil(SLICE) > rates.streamed_slices
    }

    /// Maximum shared memory per workgroup in bytes, with `numbers` F16 numbers per element. As in
    /// the shader, each part of k has two pipeline stages.
    pub fn shared_bytes(&self, numbers: u32) -> u32 {
        let step = 16 * STEP_ROW * numbers;
        2 * self.parts * (self.chunk * step + 4 * PART_UNITS)
    }

    /// Values of the first four kernel constants (`THREADS` to `ROUNDS`), and of `WHOLE`.
    pub(super) fn consts(self) -> ([u32; 4], bool) {
        let threads = self.subgroups * SUBGROUP;
        (
            [threads, self.tiles, self.parts, self.rounds],
            self.is_whole,
        )
    }

    /// Value of the kernel constant `CHUNK`: the number of k steps per chunk.
    pub fn chunk(self) -> u32 {
        self.chunk
    }
}

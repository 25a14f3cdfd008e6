//! Two to eight rows times many columns, rows through shared memory: the kernels of
//! `shaders/vulkan/include/few_rows_streamed.glsl`, and how a workgroup of them shares its columns.

use super::skinny::{ARGS, FewRowsParams, SLICE, SUBGROUP, TILE, few_rows, most_subgroups};
use crate::caps::Caps;
use crate::families::gemm_coop::module;
use crate::kernel::Kernel;

few_rows!("few_rows_streamed", "PARTS", "CHUNK");

/// Steps of a slice.
const STEPS: u32 = 8;
/// Registers of an invocation, by the words that are under way.
pub(super) const FAT: u32 = 128;
pub(super) const SLIM: u32 = 72;
/// Invocations that bring rows to shared memory.
const WRITERS: u32 = 512;
/// The most tiles of a workgroup: their sums take the place of a stage.
const MOST_TILES: usize = 16;
/// Vectors of 16 bytes of a step and number, and units of a part; a format may have 64 sums of rows beside them.
const STEP_ROW: u32 = 36;
const PART_UNITS: u32 = 8;
const MINIMA_BYTES: u32 = 4 * 64;

/// How columns and k are shared.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Stream {
    subgroups: u32,
    /// Tiles of a workgroup.
    tiles: u32,
    /// Parts of k, each with a subgroup for every tile.
    parts: u32,
    /// Slices of a part.
    rounds: u32,
    /// Steps of a slice whose rows are in shared memory at once.
    chunk: u32,
    /// The parts are all of k, no more.
    is_whole: bool,
}

impl Stream {
    /// For so many `rows`, with at least so many steps in a chunk and this many registers; `None` where rows are better
    /// held.
    pub(super) fn of(
        caps: &Caps,
        [n, k]: [usize; 2],
        rows: u32,
        [least_chunk, registers]: [u32; 2],
    ) -> Option<Stream> {
        let most = most_subgroups(caps, registers).min(caps.max_workgroup / SUBGROUP);
        let slices = k.div_ceil(SLICE);
        let tiles = n.div_ceil(TILE as usize).div_ceil(caps.units());
        if most * SUBGROUP < WRITERS {
            return None;
        }
        // A tile for each subgroup at most, as many in each workgroup that a unit has one after the other.
        let tiles = tiles.div_ceil(tiles.div_ceil(MOST_TILES)) as u32;
        // A row's 8 elements of each step have 4 invocations.
        let chunk = |parts: u32| (WRITERS / (4 * rows * parts)).min(STEPS);
        let allows = |parts: &u32| {
            parts * tiles <= most && chunk(*parts) >= least_chunk && *parts as usize <= slices
        };
        let parts = [8, 4, 2, 1].into_iter().find(allows)?;
        let rounds = slices.div_ceil(parts as usize);
        let writers = (rows * parts * chunk(parts) * 4).div_ceil(SUBGROUP);
        let stream = Stream {
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

    /// True if a unit has too few tiles to make up for rows that every workgroup brings through shared memory, where
    /// held rows do not leave most of a workgroup without work.
    pub(super) fn has_few_tiles(caps: &Caps, [n, k]: [usize; 2]) -> bool {
        let rates = &caps.device.rates.rows;
        let tiles = n.div_ceil(TILE as usize).div_ceil(caps.units());
        tiles < rates.streamed_tiles && k.div_ceil(SLICE) > rates.streamed_slices
    }

    /// Shared memory of a workgroup at most, with so many numbers for each element: two stages of each part. As in the
    /// shader.
    fn shared_bytes(&self, numbers: u32) -> u32 {
        let step = 16 * STEP_ROW * numbers;
        2 * self.parts * (self.chunk * step + 4 * PART_UNITS + MINIMA_BYTES)
    }

    /// From THREADS to ROUNDS, and WHOLE.
    pub(super) fn consts(self) -> ([u32; 4], bool) {
        let threads = self.subgroups * SUBGROUP;
        (
            [threads, self.tiles, self.parts, self.rounds],
            self.is_whole,
        )
    }

    /// CHUNK.
    pub(super) fn chunk(self) -> u32 {
        self.chunk
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sums of a workgroup take the place of rows, and rows of two chunks fit.
    #[test]
    fn what_is_shared_fits() {
        let caps = Caps::h200();
        for rows in [4, 8] {
            for n in [16, 5_000, 8_192, 14_336, 32_000, 151_936] {
                for k in [256, 1_000, 1_024, 4_096, 14_336] {
                    for limits in [[1, FAT], [1, SLIM], [4, FAT]] {
                        let Some(stream) = Stream::of(&caps, [n, k], rows, limits) else {
                            continue;
                        };
                        let shared = stream.shared_bytes(rows / 4);
                        assert!(shared <= caps.workgroup_bytes, "{stream:?}");
                        let stages = 2 * stream.parts * stream.chunk * STEP_ROW;
                        let shares = stream.tiles * stream.parts * SUBGROUP;
                        assert!(shares <= stages, "{stream:?}");
                        let most = most_subgroups(&caps, limits[1]);
                        assert!(stream.subgroups <= most, "{stream:?}");
                        let covered = (stream.parts * stream.rounds) as usize * SLICE;
                        assert!(covered >= k, "{stream:?}");
                    }
                }
            }
        }
    }
}

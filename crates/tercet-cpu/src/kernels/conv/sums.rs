//! Sums of windows by channels, `[windows][channels]`: how tiles make them, and their way into y.

use super::super::gemm::Epilogue;
use super::super::parallel::SharedMut;
use super::super::simd::Simd;
use super::slab::{Block, Blocks, transpose};
use super::tile::{self, MOST_ROWS, Tile};
use super::{Call, Windows};

/// Steps of a sum that a tile makes at a time: many, as sums are read and written in between, while the weights of
/// a panel stay near when windows pass by.
const STEPS: usize = 384;

/// Sums of a window at any level.
pub(super) const MOST_SUMS: usize = 48;

/// A panel of channels: what tiles need beside their windows.
pub(super) struct Panel<'a> {
    /// Channels of x that are summed; 1 where each has its own lane.
    pub(super) channels: usize,
    /// `[channels][taps][nr]`.
    pub(super) weights: &'a [f32],
    /// Floats of a step: as many sums has a window.
    pub(super) nr: usize,
    /// Floats of an element in the slab: 1, or the lanes.
    pub(super) lanes: usize,
    /// The kernel for a number of windows.
    pub(super) tile: tile::Pick,
    /// Vectors of a window.
    pub(super) vectors: usize,
    /// Where sums begin: the bias of each channel.
    pub(super) start: [f32; MOST_SUMS],
}

/// The sums of all windows of a block.
///
/// # Safety
/// Needs the instructions of `S`; the slab is that of the block.
#[inline(always)]
pub(super) unsafe fn compute<S: Simd>(
    w: &Windows,
    blocks: &Blocks,
    block: &Block,
    panel: &Panel<'_>,
    slab: &[f32],
    sums: &mut [f32],
) {
    let &Panel { nr, lanes, .. } = panel;
    let (taps, windows) = (w.taps(), block.windows());
    assert!(windows * nr <= sums.len());
    assert!(panel.channels * blocks.plane() * lanes <= slab.len());
    let tiles = windows.div_ceil(S::TILE_ROWS);
    let [below, right] = blocks.steps(w).map(|step| step * lanes);
    let below = below.wrapping_sub(block.cols * right);
    // Several channels with all their taps, or some taps of one channel.
    let tap_step = taps.div_ceil(taps.div_ceil(STEPS));
    let parts = panel.channels.div_ceil((STEPS / taps).max(1));
    let channels = panel.channels.div_ceil(parts);
    let mut offsets = [0; STEPS];
    for first in (0..panel.channels).step_by(channels) {
        for tap in (0..taps).step_by(tap_step) {
            let offsets = &mut offsets[..tap_step.min(taps - tap)];
            for (i, offset) in offsets.iter_mut().enumerate() {
                *offset = (first * blocks.plane() + blocks.tap(w, w.tap(tap + i))) * lanes;
            }
            // Written field by field: a copy of the addresses would wait for their stores.
            let mut tile = Tile {
                rows: [slab.as_ptr(); MOST_ROWS],
                taps: offsets,
                channels: channels.min(panel.channels - first),
                plane: blocks.plane() * lanes,
                weights: panel.weights[(first * taps + tap) * nr..].as_ptr(),
                sums: sums.as_mut_ptr(),
                start: panel.start.as_ptr(),
                add: first + tap > 0,
            };
            let (mut next, mut col) = (slab.as_ptr(), 0);
            for i in 0..tiles {
                let begin = i * windows / tiles;
                let count = (i + 1) * windows / tiles - begin;
                for at in &mut tile.rows[..count] {
                    *at = next;
                    next = next.wrapping_add(right);
                    col += 1;
                    if col == block.cols {
                        next = next.wrapping_add(below);
                        col = 0;
                    }
                }
                (panel.tile)(S::LEVEL, count, panel.vectors)(&tile);
                tile.sums = tile.sums.add(count * nr);
            }
        }
    }
}

/// Channels of y that sums are for.
pub(super) struct Channels {
    /// The first, counted over all entries.
    pub(super) first: usize,
    /// From one to the next.
    pub(super) step: usize,
    pub(super) count: usize,
}

/// Applies the function, and writes the sums of a block to y.
///
/// # Safety
/// Needs the instructions of `S`; no other task has these channels of this block.
#[inline(always)]
pub(super) unsafe fn finish<S: Simd>(
    call: &Call<'_>,
    block: &Block,
    channels: &Channels,
    nr: usize,
    sums: &mut [f32],
    y: SharedMut<f32>,
) {
    let w = &call.shape.windows;
    let windows = block.windows();
    let sums = &mut sums[..windows * nr];
    let epilogue = Epilogue {
        activation: call.activation,
        ..Epilogue::NONE
    };
    epilogue.apply::<S>(sums, 0, 0);
    if call.last {
        let all = call.shape.groups * call.shape.m;
        let (entry, first) = (channels.first / all, channels.first % all);
        let start = (entry * w.count() + block.start(w)) * all + first;
        for (i, from) in sums.chunks_exact(nr).enumerate() {
            y.slice(start + i * all, channels.count)
                .copy_from_slice(&from[..channels.count]);
        }
        return;
    }
    let start = channels.first * w.count() + block.start(w);
    let (to, step) = (y.ptr().add(start), channels.step * w.count());
    transpose::<S>(sums, nr, [windows, channels.count], to, step);
}

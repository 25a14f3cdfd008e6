//! Sums `[windows][channels]` of a block: computed by tiles, then transposed into y.

use super::super::gemm::GemmEpilogue;
use super::super::parallel::SharedMut;
use super::super::simd::Simd;
use super::slab::{ConvWindowBlock, ConvWindowBlocks, transpose};
use super::tile::{self, ConvTile, MAX_ROWS};
use super::{ConvCall, ConvWindowAxes};

/// Steps of a sum that a tile computes in one call. The number is large because sums are loaded and
/// stored between calls, but limited so that the panel's weights stay in cache for all windows.
const STEPS: usize = 384;

/// Maximum sums per window at any SIMD level.
pub(super) const MAX_ACCUMULATORS: usize = 48;

/// A panel of output channels: all operands of a tile except the addresses of its windows.
pub(super) struct ConvChannelPanel<'a> {
    /// Number of channels of x to sum; 1 if each channel has its own lane.
    pub(super) channels: usize,
    /// Weights as `[channels][taps][nr]`.
    pub(super) weights: &'a [f32],
    /// Panel width: floats of weights per tap and channel of x, and sums per window.
    pub(super) nr: usize,
    /// Floats of an element in the slab: 1, or the number of lanes.
    pub(super) lanes: usize,
    /// Selects the micro-kernel for a number of windows.
    pub(super) tile: tile::SelectMicroKernel,
    /// Vectors per window.
    pub(super) vectors: usize,
    /// Initial values of the sums: the bias of each channel.
    pub(super) start: [f32; MAX_ACCUMULATORS],
}

/// Computes the sums of all windows of a block.
///
/// # Safety
/// Requires the instructions of `S`; the slab is that of the block.
#[inline(always)]
pub(super) unsafe fn compute<S: Simd>(
    w: &ConvWindowAxes,
    blocks: &ConvWindowBlocks,
    block: &ConvWindowBlock,
    panel: &ConvChannelPanel<'_>,
    slab: &[f32],
    sums: &mut [f32],
) {
    let &ConvChannelPanel { nr, lanes, .. } = panel;
    let (taps, windows) = (w.taps(), block.windows());
    assert!(windows * nr <= sums.len());
    assert!(panel.channels * blocks.plane() * lanes <= slab.len());
    let tiles = windows.div_ceil(S::TILE_ROWS);
    let [below, right] = blocks.steps(w).map(|step| step * lanes);
    let below = below.wrapping_sub(block.cols * right);
    // A tile covers several channels with all their taps, or some taps of one channel.
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
            // Written field by field: copying the whole struct would stall on the preceding stores
            // of the addresses.
            let mut tile = ConvTile {
                rows: [slab.as_ptr(); MAX_ROWS],
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

/// Channels of y of a set of sums.
pub(super) struct ConvOutputChannels {
    /// First channel, counted over all batch entries.
    pub(super) first: usize,
    /// Distance between consecutive channels.
    pub(super) step: usize,
    pub(super) count: usize,
}

/// Applies the activation, and writes the sums of a block to y.
///
/// # Safety
/// Requires the instructions of `S`; no other task has these channels of this block.
#[inline(always)]
pub(super) unsafe fn finish<S: Simd>(
    call: &ConvCall<'_>,
    block: &ConvWindowBlock,
    channels: &ConvOutputChannels,
    nr: usize,
    sums: &mut [f32],
    y: SharedMut<f32>,
) {
    let w = &call.shape.windows;
    let windows = block.windows();
    let sums = &mut sums[..windows * nr];
    let epilogue = GemmEpilogue {
        activation: call.activation,
        ..GemmEpilogue::NONE
    };
    epilogue.apply::<S>(sums, 0, 0);
    if call.is_nhwc {
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

//! Sources of GEMM columns: gathers rows of a panel.

use super::super::super::conv::ConvWindowAxes;
use super::super::super::simd::SimdLevel;
use super::super::{has_avx2, pair};
use super::NR;

/// Copies the elements that a single tap reads for consecutive windows.
pub(super) fn elements(w: &ConvWindowAxes, plane: &[u8], first: usize, to: &mut [u8]) {
    let (mut window, mut rest) = (first, to);
    while !rest.is_empty() {
        let (row, col) = (window / w.out[2], window % w.out[2]);
        let count = rest.len().min(w.out[2] - col);
        let (own, more) = rest.split_at_mut(count);
        let from = &plane[row * w.stride[1] * w.sizes[2] + col * w.stride[2]..];
        match w.stride[2] {
            2 => {
                let last = count - 1;
                let pairs = own[..last].iter_mut().zip(from.chunks_exact(2));
                pairs.for_each(|(y, x)| *y = x[0]);
                own[last] = from[2 * last];
            }
            stride => {
                let elements = own.iter_mut().zip(from.iter().step_by(stride));
                elements.for_each(|(y, x)| *y = *x);
            }
        }
        (window, rest) = (window + count, more);
    }
}

/// A run of windows in a panel whose elements are contiguous in the source.
#[derive(Clone, Copy)]
pub(super) struct Int8WindowRun {
    pub(super) from: usize,
    /// Index of the first window within the panel.
    pub(super) to: usize,
}

/// Source of the rows of a panel.
pub(super) struct Int8PanelSource<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) runs: &'a [Int8WindowRun],
    /// Readable elements of the last run, at least its number of windows.
    pub(super) last: usize,
}

impl Int8PanelSource<'_> {
    /// Gathers the bytes at an offset, run by run. Each run is copied with a fixed length; the next
    /// run overwrites the surplus.
    #[inline(always)]
    pub(super) fn gather(&self, offset: usize, to: &mut [u8]) {
        if let [run] = self.runs {
            let from = &self.bytes[offset + run.from..];
            match self.last {
                NR => to[..NR].copy_from_slice(&from[..NR]),
                last => to[..last].copy_from_slice(&from[..last]),
            }
            return;
        }
        for run in self.runs {
            let from = &self.bytes[offset + run.from..][..NR];
            to[run.to..][..NR].copy_from_slice(from);
        }
    }
}

/// Interleaves rows of bytes in fours into words of signed bytes.
#[cfg(target_arch = "aarch64")]
pub(super) fn interleave_bytes(stage: &[u8], flip: u8, panel: &mut [i32]) {
    use std::arch::aarch64::*;
    assert!(stage.len() >= 4 * panel.len());
    for (rows, out) in stage.chunks_exact(4 * NR).zip(panel.chunks_exact_mut(NR)) {
        // SAFETY: four rows of 16 bytes become 16 words.
        unsafe {
            let by = vdupq_n_u8(flip ^ 0x80);
            let row = |i: usize| veorq_u8(vld1q_u8(rows.as_ptr().add(i * NR)), by);
            let words = uint8x16x4_t(row(0), row(1), row(2), row(3));
            vst4q_u8(out.as_mut_ptr().cast(), words);
        }
    }
}

/// Interleaves rows of bytes in pairs into words.
pub(super) fn interleave(level: SimdLevel, stage: &[u8], flip: u8, zero: i16, panel: &mut [i32]) {
    assert!(stage.len() >= 2 * panel.len());
    if has_avx2(level) {
        // SAFETY: the level has AVX2, and each word has two rows of bytes.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            super::avx2::interleave(stage, flip, zero, panel);
        }
        return;
    }
    let value = |x: u8| i16::from(x ^ flip) - zero;
    for (rows, out) in stage.chunks_exact(2 * NR).zip(panel.chunks_exact_mut(NR)) {
        let (low, high) = rows.split_at(NR);
        for ((out, low), high) in out.iter_mut().zip(low).zip(high) {
            *out = pair(value(*low), value(*high));
        }
    }
}

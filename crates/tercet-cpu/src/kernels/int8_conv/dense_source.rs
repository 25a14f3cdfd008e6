//! Where columns of products come from.

use super::super::super::conv::Windows;
use super::super::super::simd::SimdLevel;
use super::super::{has_avx2, pair};
use super::NR;

/// What some windows of one tap read, in their order.
pub(super) fn elements(w: &Windows, plane: &[u8], first: usize, to: &mut [u8]) {
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

/// Where the windows of a panel lie one after the other.
#[derive(Clone, Copy)]
pub(super) struct Run {
    pub(super) from: usize,
    /// The first window, within the panel.
    pub(super) to: usize,
}

/// What rows of a panel are gathered from.
pub(super) struct Source<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) runs: &'a [Run],
    /// Elements that may be read of the last run, at least as many as it has windows.
    pub(super) last: usize,
}

impl Source<'_> {
    /// Writes the bytes at an offset, run by run: each whole, what comes after it over what it has too much.
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

/// Rows of bytes, two by two, as words of pairs.
pub(super) fn interleave(level: SimdLevel, stage: &[u8], flip: u8, zero: i16, panel: &mut [i32]) {
    assert!(stage.len() >= 2 * panel.len());
    if has_avx2(level) {
        // SAFETY: the level has AVX2, and there are two rows of bytes for each of words.
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

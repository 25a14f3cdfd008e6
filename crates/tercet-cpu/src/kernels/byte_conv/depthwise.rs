//! Convolution of bytes where each channel of y reads one channel of x.
//!
//! A task has some rows of windows of a channel of x: a slab of them as 16 bits less the zero point, then 16 windows at a time, taps
//! two by two.

use super::super::parallel::{self, SharedMut, Threads};
use super::super::simd::SimdLevel;
use super::slab::{SLACK, Slab};
use super::{ByteCall, ConvShape, MOST_TAPS, TASKS, finish, has_avx2};

/// Windows that are computed together.
const NR: usize = 16;
/// Elements of a slab, about.
const AREA: usize = 16 << 10;

/// Rows of windows of a task at most.
fn most_rows(shape: &ConvShape) -> usize {
    let w = &shape.windows;
    let row = Slab::new(w, 0, 1).row() * w.stride[1];
    (AREA / row.max(1)).clamp(1, w.out[1].max(1))
}

fn slab_len(shape: &ConvShape, rows: usize) -> usize {
    Slab::new(&shape.windows, 0, rows).channel() + SLACK
}

/// Words of scratch memory of a thread.
pub(super) fn part_len(shape: &ConvShape) -> usize {
    slab_len(shape, most_rows(shape))
        .div_ceil(2)
        .next_multiple_of(16)
}

pub(super) fn run(
    level: SimdLevel,
    threads: Threads,
    call: &ByteCall<'_>,
    weights: &[i32],
    y: &mut [u8],
    scratch: &mut [i32],
) {
    let shape = call.shape;
    let planes = shape.batch * shape.groups;
    let height = shape.windows.out[1];
    // Rows are cut further where there are few channels.
    let cuts = (TASKS * threads.count()).div_ceil(planes).min(height);
    let rows = most_rows(shape).min(height.div_ceil(cuts));
    let blocks = height.div_ceil(rows);
    let job = Job {
        level,
        call,
        weights,
        y: SharedMut::new(y),
    };
    let tasks = planes * blocks;
    parallel::for_each_with_scratch(threads, tasks, scratch, part_len(shape), |task, part| {
        let first = task % blocks * rows;
        let end = height.min(first + rows);
        job.run(task / blocks, first, end, bytemuck::cast_slice_mut(part));
    });
}

struct Job<'a> {
    level: SimdLevel,
    call: &'a ByteCall<'a>,
    weights: &'a [i32],
    y: SharedMut<u8>,
}

impl Job<'_> {
    /// The rows `first..end` of windows of a channel of x.
    fn run(&self, plane: usize, first: usize, end: usize, slab: &mut [i16]) {
        let (shape, codes) = (self.call.shape, self.call.codes);
        let w = &shape.windows;
        let lies = Slab::new(w, first, end);
        let x = &self.call.x[plane * w.plane()..][..w.plane()];
        lies.fill(w, x, 0, slab, |x| codes.value(x));
        let slab = &slab[..lies.channel() + SLACK];
        let (taps, pairs) = (w.taps(), w.taps().div_ceil(2));
        let mut offsets = [0; MOST_TAPS + 1];
        for (t, offset) in offsets[..taps].iter_mut().enumerate() {
            *offset = lies.tap(w, t / w.kernel[2], t % w.kernel[2]);
        }
        let [_, height, width] = w.out;
        for j in 0..shape.m {
            let channel = plane % shape.groups * shape.m + j;
            let finish = finish::Channel::new(&self.call.finish, channel);
            let weights = &self.weights[channel * pairs..][..pairs];
            let own = (plane * shape.m + j) * height;
            for row in first..end {
                // SAFETY: a task has these rows of these channels of y to itself.
                let y = unsafe { self.y.slice((own + row) * width, width) };
                let from = &slab[lies.window_row(w, row)..];
                self.row(from, &offsets, weights, &finish, y);
            }
        }
    }

    /// The windows of a row, `taps` of which begin at the offsets.
    fn row(
        &self,
        from: &[i16],
        offsets: &[usize; MOST_TAPS + 1],
        weights: &[i32],
        finish: &finish::Channel,
        y: &mut [u8],
    ) {
        let last = offsets[..2 * weights.len()].iter().max().copied();
        let reach = last.unwrap_or(0) + y.len().next_multiple_of(NR);
        assert!(from.len() >= reach, "a slab without slack");
        if has_avx2(self.level) {
            // SAFETY: the level has AVX2, and the slab goes on as far as vectors read.
            #[cfg(target_arch = "x86_64")]
            unsafe {
                avx2::row(from, offsets, weights, finish, y);
            }
            return;
        }
        for (i, y) in y.iter_mut().enumerate() {
            let mut sum = 0i32;
            for (taps, weight) in offsets.chunks(2).zip(weights) {
                let at = |tap: usize| i32::from(from[taps[tap] + i]);
                let both = at(0) * i32::from(*weight as i16) + at(1) * (weight >> 16);
                sum = sum.wrapping_add(both);
            }
            *y = finish.byte(sum);
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::{
        _mm_storeu_si128, _mm256_add_epi32, _mm256_loadu_si256, _mm256_madd_epi16,
        _mm256_set1_epi32, _mm256_setzero_si256, _mm256_unpackhi_epi16, _mm256_unpacklo_epi16,
    };

    use super::super::finish::{Channel, avx2::Vectors};
    use super::{MOST_TAPS, NR};

    /// # Safety
    /// The machine has AVX2; `from` goes on behind the last tap of the last 16 windows that begin in `y`.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn row(
        from: &[i16],
        offsets: &[usize; MOST_TAPS + 1],
        weights: &[i32],
        finish: &Channel,
        y: &mut [u8],
    ) {
        let vectors = Vectors::new(finish);
        for (i, y) in y.chunks_mut(NR).enumerate() {
            let from = from.as_ptr().add(i * NR);
            let (mut low, mut high) = (_mm256_setzero_si256(), _mm256_setzero_si256());
            for (taps, weight) in offsets.chunks_exact(2).zip(weights) {
                let a = _mm256_loadu_si256(from.add(taps[0]).cast());
                let b = _mm256_loadu_si256(from.add(taps[1]).cast());
                let weight = _mm256_set1_epi32(*weight);
                let products = _mm256_madd_epi16(_mm256_unpacklo_epi16(a, b), weight);
                low = _mm256_add_epi32(low, products);
                let products = _mm256_madd_epi16(_mm256_unpackhi_epi16(a, b), weight);
                high = _mm256_add_epi32(high, products);
            }
            let bytes = vectors.bytes(low, high);
            match <&mut [u8; NR]>::try_from(&mut *y) {
                Ok(y) => _mm_storeu_si128(y.as_mut_ptr().cast(), bytes),
                Err(_) => {
                    let mut all = [0u8; NR];
                    _mm_storeu_si128(all.as_mut_ptr().cast(), bytes);
                    y.copy_from_slice(&all[..y.len()]);
                }
            }
        }
    }
}

//! Int8 depthwise convolution: each channel of y reads one channel of x.
//!
//! A task computes some rows of windows of a channel of x. The rows of x that these windows read
//! are written to a slab as 16-bit values minus the zero point. Then the task computes 16 windows
//! at once, two taps per step.

use std::ops::Range;

use super::super::parallel::{self, KernelThreads, SharedMut};
use super::super::simd::SimdLevel;
#[cfg(target_arch = "x86_64")]
use super::depthwise_stride2;
use super::slab::{Int8Slab, SLACK};
use super::{ConvShape, Int8ConvArgs, MAX_TAPS, TASKS, has_avx2, requantize};

/// Windows that are computed together.
const NR: usize = 16;
/// Approximate elements of a slab.
const AREA: usize = 16 << 10;

/// Minimum windows per task; tasks with small channels process several channels.
const MIN_TASK_WINDOWS: usize = 2048;

/// Maximum window rows per task.
fn max_rows(shape: &ConvShape) -> usize {
    let w = &shape.windows;
    let row = Int8Slab::new(w, 0, 1).row() * w.stride[1];
    (AREA / row.max(1)).clamp(1, w.out[1].max(1))
}

fn slab_len(shape: &ConvShape, rows: usize) -> usize {
    Int8Slab::new(&shape.windows, 0, rows).channel() + SLACK
}

/// Scratch words per thread.
pub(super) fn part_len(shape: &ConvShape) -> usize {
    slab_len(shape, max_rows(shape))
        .div_ceil(2)
        .next_multiple_of(16)
}

pub(super) fn run(
    level: SimdLevel,
    threads: KernelThreads,
    call: &Int8ConvArgs<'_>,
    weights: &[i32],
    y: &mut [u8],
    scratch: &mut [i32],
) {
    let shape = call.shape;
    let planes = shape.batch * shape.groups;
    let height = shape.windows.out[1];
    // If there are too few channels for all tasks, the window rows of a channel are split between
    // tasks.
    let cuts = (TASKS * threads.count()).div_ceil(planes).min(height);
    let rows = max_rows(shape).min(height.div_ceil(cuts));
    let blocks = height.div_ceil(rows);
    // Small channels are grouped, because the scheduling cost of a task is as high as its work.
    let together = match blocks {
        1 => (MIN_TASK_WINDOWS / shape.windows.count().max(1))
            .clamp(1, planes.div_ceil(TASKS * threads.count())),
        _ => 1,
    };
    let job = Int8DepthwiseTaskArgs {
        level,
        call,
        weights,
        y: SharedMut::new(y),
    };
    let tasks = planes.div_ceil(together) * blocks;
    parallel::for_each_with_scratch(threads, tasks, scratch, part_len(shape), |task, part| {
        let first = task % blocks * rows;
        let end = height.min(first + rows);
        let own = task / blocks * together;
        let own = own..planes.min(own + together);
        job.run(own, first, end, bytemuck::cast_slice_mut(part));
    });
}

struct Int8DepthwiseTaskArgs<'a> {
    level: SimdLevel,
    call: &'a Int8ConvArgs<'a>,
    weights: &'a [i32],
    y: SharedMut<u8>,
}

impl Int8DepthwiseTaskArgs<'_> {
    /// Computes the window rows `first..end` of some channels of x.
    fn run(&self, planes: Range<usize>, first: usize, end: usize, slab: &mut [i16]) {
        let (shape, codes) = (self.call.shape, self.call.codes);
        let w = &shape.windows;
        let [_, height, width] = w.out;
        let rows_of = |plane: usize, j: usize| {
            let own = (plane * shape.m + j) * height + first;
            // SAFETY: each task writes only these rows of these channels of y.
            unsafe { self.y.slice(own * width, (end - first) * width) }
        };
        #[cfg(target_arch = "x86_64")]
        if has_avx2(self.level) && depthwise_stride2::supports(shape, self.call.weights) {
            let slab = bytemuck::cast_slice_mut(slab);
            // SAFETY: the level has AVX2.
            return unsafe {
                depthwise_stride2::run(self.call, planes, [first, end], self.weights, slab, rows_of)
            };
        }
        let lies = Int8Slab::new(w, first, end);
        let slab = &mut slab[..lies.channel() + SLACK];
        let (taps, pairs) = (w.taps(), w.taps().div_ceil(2));
        let mut offsets = [0; MAX_TAPS + 1];
        for (t, offset) in offsets[..taps].iter_mut().enumerate() {
            *offset = lies.tap(w, t / w.kernel[2], t % w.kernel[2]);
        }
        for plane in planes {
            let x = &self.call.x[plane * w.plane()..];
            match has_avx2(self.level) && lies.is_narrow() {
                #[cfg(target_arch = "x86_64")]
                // SAFETY: the level has AVX2.
                true => unsafe { lies.fill_words(w, x, codes, slab) },
                _ => lies.fill(w, &x[..w.plane()], 0, slab, |x| codes.value(x)),
            }
            let rows = Int8DepthwiseRows {
                slab,
                begin: lies.window_row(w, first),
                step: w.stride[1] * lies.row(),
                offsets: &offsets,
                width,
            };
            for j in 0..shape.m {
                let channel = plane % shape.groups * shape.m + j;
                let finish = requantize::RequantizeChannel::new(&self.call.finish, channel);
                let weights = &self.weights[channel * pairs..][..pairs];
                rows.compute(self.level, weights, &finish, rows_of(plane, j));
            }
        }
    }
}

/// Operands for computing some rows of windows of a channel.
struct Int8DepthwiseRows<'a> {
    slab: &'a [i16],
    /// Offset of the first row of windows in the slab.
    begin: usize,
    /// Distance between rows of windows.
    step: usize,
    /// Offset of each tap from the start of its window.
    offsets: &'a [usize; MAX_TAPS + 1],
    /// Windows per row.
    width: usize,
}

impl Int8DepthwiseRows<'_> {
    /// Computes the windows; their rows are contiguous in `y`.
    fn compute(
        &self,
        level: SimdLevel,
        weights: &[i32],
        finish: &requantize::RequantizeChannel,
        y: &mut [u8],
    ) {
        let &Int8DepthwiseRows {
            slab,
            begin,
            step,
            offsets,
            width,
        } = self;
        let rows = y.len() / width;
        let furthest = offsets[..2 * weights.len()].iter().max().copied();
        let reach = furthest.unwrap_or(0) + width.next_multiple_of(NR);
        let last = begin + rows.saturating_sub(1) * step;
        assert!(
            slab.len() >= last + reach,
            "the slab is too short for vector reads"
        );
        if has_avx2(level) {
            // SAFETY: the level has AVX2, and the slab has slack for vector reads.
            #[cfg(target_arch = "x86_64")]
            unsafe {
                match (weights.len(), width <= NR / 2) {
                    // Specialized for 3 x 3 and 5 x 5 windows.
                    (5, false) => avx2::rows::<5, false>(self, weights, finish, y),
                    (5, true) => avx2::rows::<5, true>(self, weights, finish, y),
                    (13, false) => avx2::rows::<13, false>(self, weights, finish, y),
                    (13, true) => avx2::rows::<13, true>(self, weights, finish, y),
                    _ => avx2::rows::<0, false>(self, weights, finish, y),
                }
            }
            return;
        }
        #[cfg(target_arch = "aarch64")]
        if level.kind == super::super::simd::SimdLevelKind::Neon {
            // SAFETY: the slab has slack for vector reads.
            return unsafe { self.neon_rows(weights, finish, y) };
        }
        for (i, y) in y.iter_mut().enumerate() {
            let from = &slab[begin + i / width * step + i % width..];
            let mut sum = 0i32;
            for (taps, weight) in offsets.chunks(2).zip(weights) {
                let at = |tap: usize| i32::from(from[taps[tap]]);
                let both = at(0) * i32::from(*weight as i16) + at(1) * (weight >> 16);
                sum = sum.wrapping_add(both);
            }
            *y = finish.byte(sum);
        }
    }
}

#[cfg(target_arch = "aarch64")]
impl Int8DepthwiseRows<'_> {
    /// Computes 16 windows at once.
    ///
    /// # Safety
    /// The slab extends past the last tap of the last 16 windows of a row.
    unsafe fn neon_rows(
        &self,
        weights: &[i32],
        finish: &requantize::RequantizeChannel,
        y: &mut [u8],
    ) {
        use std::arch::aarch64::*;
        for (row, y) in y.chunks_mut(self.width).enumerate() {
            let from = self.slab.as_ptr().add(self.begin + row * self.step);
            for (i, y) in y.chunks_mut(NR).enumerate() {
                let from = from.add(i * NR);
                let mut acc = [vdupq_n_s32(0); 4];
                for (taps, weight) in self.offsets.chunks_exact(2).zip(weights) {
                    for (tap, weight) in
                        [(taps[0], *weight as i16), (taps[1], (weight >> 16) as i16)]
                    {
                        let (a, b) = (vld1q_s16(from.add(tap)), vld1q_s16(from.add(tap + 8)));
                        let by = vdupq_n_s16(weight);
                        acc[0] = vmlal_s16(acc[0], vget_low_s16(a), vget_low_s16(by));
                        acc[1] = vmlal_high_s16(acc[1], a, by);
                        acc[2] = vmlal_s16(acc[2], vget_low_s16(b), vget_low_s16(by));
                        acc[3] = vmlal_high_s16(acc[3], b, by);
                    }
                }
                let mut sums = [0i32; NR];
                for (v, acc) in acc.into_iter().enumerate() {
                    vst1q_s32(sums.as_mut_ptr().add(4 * v), acc);
                }
                let bytes = sums.map(|sum| finish.byte(sum));
                y.copy_from_slice(&bytes[..y.len()]);
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) mod avx2 {
    use std::arch::x86_64::{
        __m128i, __m256i, _mm_loadu_si128, _mm_storel_epi64, _mm_storeu_si128, _mm_unpackhi_epi64,
        _mm256_add_epi32, _mm256_loadu_si256, _mm256_madd_epi16, _mm256_set_m128i,
        _mm256_set1_epi32, _mm256_setzero_si256, _mm256_unpackhi_epi16, _mm256_unpacklo_epi16,
    };

    use super::super::requantize::{RequantizeChannel, avx2::RequantizeVectors};
    use super::{Int8DepthwiseRows, NR};

    /// Loads 16 elements of a row, or 8 elements each of two rows.
    #[inline(always)]
    unsafe fn elements<const TWO: bool>([from, below]: [*const i16; 2], at: usize) -> __m256i {
        if TWO {
            return _mm256_set_m128i(
                _mm_loadu_si128(below.add(at).cast()),
                _mm_loadu_si128(from.add(at).cast()),
            );
        }
        _mm256_loadu_si256(from.add(at).cast())
    }

    /// Adds the products of two taps to the sums of 16 windows. If `TWO`, these are 8 windows of
    /// each of two rows.
    #[inline(always)]
    unsafe fn add<const TWO: bool>(
        sums: &mut [__m256i; 2],
        from: [*const i16; 2],
        taps: &[usize],
        weight: __m256i,
    ) {
        let a = elements::<TWO>(from, taps[0]);
        let b = elements::<TWO>(from, taps[1]);
        let products = _mm256_madd_epi16(_mm256_unpacklo_epi16(a, b), weight);
        sums[0] = _mm256_add_epi32(sums[0], products);
        let products = _mm256_madd_epi16(_mm256_unpackhi_epi16(a, b), weight);
        sums[1] = _mm256_add_epi32(sums[1], products);
    }

    /// Computes rows with `P` pairs of taps; 0 means that the number of weights decides. If `TWO`,
    /// 8 windows of each of two rows are computed at once.
    ///
    /// # Safety
    /// The machine has AVX2. The slab extends past the last tap of the last 16 windows of a row.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn rows<const P: usize, const TWO: bool>(
        of: &Int8DepthwiseRows<'_>,
        weights: &[i32],
        finish: &RequantizeChannel,
        y: &mut [u8],
    ) {
        let vectors = RequantizeVectors::new(finish);
        let mut own = [_mm256_setzero_si256(); P];
        for (own, weight) in own.iter_mut().zip(weights) {
            *own = _mm256_set1_epi32(*weight);
        }
        let rows = y.len() / of.width;
        for row in (0..rows).step_by(if TWO { 2 } else { 1 }) {
            let second = (row + 1).min(rows - 1);
            for col in (0..of.width).step_by(NR) {
                let from = of.slab.as_ptr().add(of.begin + row * of.step + col);
                let from = [from, from.add((second - row) * of.step)];
                let mut sums = [_mm256_setzero_si256(); 2];
                if P > 0 {
                    for (i, weight) in own.iter().enumerate() {
                        let taps = &of.offsets[2 * i..2 * i + 2];
                        add::<TWO>(&mut sums, from, taps, *weight);
                    }
                } else {
                    for (taps, weight) in of.offsets.chunks_exact(2).zip(weights) {
                        add::<TWO>(&mut sums, from, taps, _mm256_set1_epi32(*weight));
                    }
                }
                let bytes = vectors.bytes(sums[0], sums[1]);
                store::<TWO>(bytes, row * of.width + col, of.width, col, y);
            }
        }
    }

    /// Stores the windows of a row from column `col` on at offset `at` of `y`. If `TWO`, also
    /// stores 8 windows of the next row, if there is one.
    #[inline(always)]
    pub(in super::super) unsafe fn store<const TWO: bool>(
        bytes: __m128i,
        at: usize,
        width: usize,
        col: usize,
        y: &mut [u8],
    ) {
        // A vector store may write past the end of its row; storing the next row overwrites these
        // bytes.
        if TWO && at + width + NR / 2 <= y.len() {
            let y = y.as_mut_ptr().add(at);
            _mm_storel_epi64(y.cast(), bytes);
            _mm_storel_epi64(y.add(width).cast(), _mm_unpackhi_epi64(bytes, bytes));
        } else if !TWO && at + NR <= y.len() {
            _mm_storeu_si128(y.as_mut_ptr().add(at).cast(), bytes);
        } else {
            let mut all = [0u8; NR];
            _mm_storeu_si128(all.as_mut_ptr().cast(), bytes);
            let count = (width - col).min(NR);
            y[at..at + count].copy_from_slice(&all[..count]);
            if TWO && at + width < y.len() {
                y[at + width..][..count].copy_from_slice(&all[NR / 2..][..count]);
            }
        }
    }
}

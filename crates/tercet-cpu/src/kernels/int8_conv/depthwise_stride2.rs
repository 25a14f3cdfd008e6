//! Int8 depthwise convolution with stride 2, for 3 x 3 and 5 x 5 windows, with AVX2.
//!
//! For 16 windows, two adjacent taps read 32 contiguous bytes, one pair of bytes per window. So a
//! slab contains the rows of x with padding as unsigned bytes. Products of pairs are computed as in
//! [`super::maddubs`]. The last tap of a row has no partner; its product with an unsigned byte fits
//! in 16 bits.

use std::ops::Range;

use super::{ConvShape, Int8ConvArgs, Int8Encoding, requantize};

/// Bytes after the last row of a slab that vector loads may read.
const SLACK: usize = 64;

/// True if this algorithm supports the windows (with AVX2); independent of the sizes of x.
pub(super) fn supports(shape: &ConvShape, weights: Int8Encoding) -> bool {
    let w = &shape.windows;
    let kernel = matches!(w.kernel, [1, 3, 3] | [1, 5, 5]);
    // A weight without a partner must fit in a signed byte.
    let bytes = weights.zero == if weights.signed { 0 } else { 128 };
    kernel && w.stride[2] == 2 && w.dilation[2] == 1 && bytes
}

/// Pairs of taps per row; the last pair has a single tap.
fn pairs(shape: &ConvShape) -> usize {
    shape.windows.kernel[2].div_ceil(2)
}

/// Words of packed weights per channel.
fn words(shape: &ConvShape) -> usize {
    shape.windows.kernel[1] * pairs(shape) + 2
}

/// Words of packed weights.
pub(super) fn packed_len(shape: &ConvShape) -> usize {
    shape.groups * shape.m * words(shape)
}

/// Packs weights `[groups m, taps]`. For every pair of taps, a channel has a word of two magnitudes
/// and the bits to flip; a tap without a partner has its weight. The sum of all weights of the
/// channel follows, then the initial value of its sums if the zero point of x is 0.
pub(super) fn pack(shape: &ConvShape, codes: Int8Encoding, w: &[u8], out: &mut [i32]) {
    let (taps, row, words) = (shape.windows.taps(), shape.windows.kernel[2], words(shape));
    let channels = w.chunks_exact(taps).zip(out.chunks_exact_mut(words));
    for (w, out) in channels.take(shape.groups * shape.m) {
        let (mut sum, mut begin, mut at) = (0i32, 0i32, 0);
        for w in w.chunks_exact(row) {
            for w in w.chunks(2) {
                let value = |i: usize| w.get(i).map_or(0, |w| codes.value(*w));
                let values = [value(0), value(1)];
                sum += i32::from(values[0]) + i32::from(values[1]);
                out[at] = match w.len() {
                    1 => super::pair(i16::from_le_bytes([values[0] as u8, 0]), 0),
                    _ => {
                        let mut both = [0u8; 4];
                        for (i, w) in values.into_iter().enumerate() {
                            both[i] = w.unsigned_abs() as u8;
                            // The kernel converts unsigned bytes to signed ones.
                            both[2 + i] = if w < 0 { 0x7f } else { 0x80 };
                            begin += 128 * i32::from(w) - i32::from(w.min(0));
                        }
                        i32::from_le_bytes(both)
                    }
                };
                at += 1;
            }
        }
        out[at..].copy_from_slice(&[sum, begin]);
    }
}

/// Computes the window rows `first..end` of some channels of x, into rows of channels of y.
///
/// # Safety
/// The machine has AVX2.
///
/// # Panics
/// If the slab has less room than its rows take.
pub(super) unsafe fn run<'a>(
    call: &Int8ConvArgs<'_>,
    planes: Range<usize>,
    [first, end]: [usize; 2],
    weights: &[i32],
    slab: &mut [u8],
    y: impl Fn(usize, usize) -> &'a mut [u8],
) {
    let (shape, w) = (call.shape, &call.shape.windows);
    let count = (end - first - 1) * w.stride[1] + (w.kernel[1] - 1) * w.dilation[1] + 1;
    let row = 2 * (w.out[2] - 1 + pairs(shape));
    let slab = &mut slab[..count * row + SLACK];
    let codes = call.codes;
    let bytes = (codes.flip(), codes.flipped_zero() as u8);
    let words = words(shape);
    let rows = match (w.kernel[2], w.out[2] <= 8) {
        (3, false) => avx2::rows::<3, 2, false>,
        (3, true) => avx2::rows::<3, 2, true>,
        (_, false) => avx2::rows::<5, 3, false>,
        (_, true) => avx2::rows::<5, 3, true>,
    };
    for plane in planes {
        let lines = avx2::Stride2Lines {
            x: &call.x[plane * w.plane()..],
            sizes: [w.sizes[1], w.sizes[2]],
            pad: [w.pad[1], w.pad[2]],
            first: first * w.stride[1],
            row,
            count,
        };
        lines.write(bytes, slab);
        for j in 0..shape.m {
            let channel = plane % shape.groups * shape.m + j;
            let (own, ends) = weights[channel * words..][..words].split_at(words - 2);
            let zero = i32::from(codes.flipped_zero());
            let of = avx2::Stride2Rows {
                slab,
                tap: w.dilation[1] * row,
                step: w.stride[1] * row,
                width: w.out[2],
                weights: own,
                begin: ends[1].wrapping_sub(zero.wrapping_mul(ends[0])),
            };
            let finish = requantize::RequantizeChannel::new(&call.finish, channel);
            rows(&of, &finish, y(plane, j));
        }
    }
}

mod avx2 {
    use std::arch::x86_64::{
        __m256i, _mm_loadu_si128, _mm256_add_epi32, _mm256_loadu_si256, _mm256_madd_epi16,
        _mm256_maddubs_epi16, _mm256_set_m128i, _mm256_set1_epi8, _mm256_set1_epi16,
        _mm256_set1_epi32, _mm256_setzero_si256, _mm256_storeu_si256, _mm256_unpackhi_epi16,
        _mm256_unpacklo_epi16, _mm256_xor_si256,
    };

    use super::super::depthwise::avx2::store;
    use super::super::requantize::{RequantizeChannel, avx2::RequantizeVectors};
    use super::SLACK;

    /// Rows of one channel of x that are copied to a slab.
    pub(super) struct Stride2Lines<'a> {
        /// A channel of x; other data may follow it.
        pub(super) x: &'a [u8],
        /// Height and width of x, and the padding before.
        pub(super) sizes: [usize; 2],
        pub(super) pad: [usize; 2],
        /// First row (in padded coordinates), bytes per row, and number of rows.
        pub(super) first: usize,
        pub(super) row: usize,
        pub(super) count: usize,
    }

    impl Stride2Lines<'_> {
        /// Writes the rows, flipping the bits `flip` of each byte; the padding is `zero`.
        ///
        /// # Safety
        /// The machine has AVX2.
        ///
        /// # Panics
        /// If `slab` has less room than the rows and [`SLACK`] bytes need.
        #[target_feature(enable = "avx2")]
        pub(super) unsafe fn write(&self, (flip, zero): (u8, u8), slab: &mut [u8]) {
            assert!(slab.len() >= self.count * self.row + SLACK);
            let flip = _mm256_set1_epi8(flip as i8);
            let zeros = _mm256_set1_epi8(zero as i8);
            let width = self.sizes[1];
            // Surplus bytes are overwritten by the next row.
            for i in 0..self.count {
                let to = slab.as_mut_ptr().add(i * self.row);
                let row = (self.first + i).checked_sub(self.pad[0]);
                let row = row.filter(|row| *row < self.sizes[0]);
                let before = match row {
                    Some(_) => self.pad[1].min(self.row),
                    None => self.row,
                };
                for at in (0..before).step_by(32) {
                    _mm256_storeu_si256(to.add(at).cast(), zeros);
                }
                let Some(row) = row else { continue };
                let count = width.min(self.row - before);
                let from = &self.x[row * width..];
                for at in (0..count).step_by(32) {
                    let bytes = _mm256_xor_si256(thirty_two(from, at), flip);
                    _mm256_storeu_si256(to.add(before + at).cast(), bytes);
                }
                for at in (before + count..self.row).step_by(32) {
                    _mm256_storeu_si256(to.add(at).cast(), zeros);
                }
            }
        }
    }

    /// Loads 32 bytes; zeros past the end.
    #[inline(always)]
    unsafe fn thirty_two(from: &[u8], at: usize) -> __m256i {
        if let Some(bytes) = from.get(at..at + 32) {
            return _mm256_loadu_si256(bytes.as_ptr().cast());
        }
        let mut bytes = [0u8; 32];
        let rest = from.get(at..).unwrap_or_default();
        bytes[..rest.len()].copy_from_slice(rest);
        _mm256_loadu_si256(bytes.as_ptr().cast())
    }

    /// Operands for computing some rows of windows of a channel.
    pub(super) struct Stride2Rows<'a> {
        pub(super) slab: &'a [u8],
        /// Distances in the slab between adjacent rows of taps (`tap`) and adjacent rows of windows
        /// (`step`).
        pub(super) tap: usize,
        pub(super) step: usize,
        /// Windows per row.
        pub(super) width: usize,
        pub(super) weights: &'a [i32],
        /// Initial value of the sums.
        pub(super) begin: i32,
    }

    /// Computes `K x K` windows with `P` pairs of taps per row: 16 windows of one row at once, or 8
    /// windows of each of two rows if `TWO`.
    ///
    /// # Safety
    /// The machine has AVX2.
    ///
    /// # Panics
    /// If the slab ends before the last byte that is read.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn rows<const K: usize, const P: usize, const TWO: bool>(
        of: &Stride2Rows<'_>,
        finish: &RequantizeChannel,
        y: &mut [u8],
    ) {
        let rows = y.len() / of.width;
        let reach = (rows.max(1) - 1) * of.step + (K - 1) * of.tap + 2 * (P - 1);
        let last = (of.width - 1) / 16 * 32 + 32;
        assert!(of.weights.len() == K * P && of.slab.len() >= reach + last);
        let vectors = RequantizeVectors::new(finish);
        let ones = _mm256_set1_epi16(1);
        let mut own = [[_mm256_setzero_si256(); P]; K];
        let mut turned = own;
        for i in 0..K * P {
            own[i / P][i % P] = _mm256_set1_epi16(of.weights[i] as i16);
            turned[i / P][i % P] = _mm256_set1_epi16((of.weights[i] >> 16) as i16);
        }
        for row in (0..rows).step_by(if TWO { 2 } else { 1 }) {
            let second = (row + 1).min(rows - 1);
            for col in (0..of.width).step_by(16) {
                let from = of.slab.as_ptr().add(row * of.step + 2 * col);
                let below = of.slab.as_ptr().add(second * of.step + 2 * col);
                let product = |i: usize| {
                    let (ky, p) = (i / P, i % P);
                    if ky == K {
                        return _mm256_setzero_si256();
                    }
                    let at = ky * of.tap + 2 * p;
                    let x = match TWO {
                        true => _mm256_set_m128i(
                            _mm_loadu_si128(below.add(at).cast()),
                            _mm_loadu_si128(from.add(at).cast()),
                        ),
                        false => _mm256_loadu_si256(from.add(at).cast()),
                    };
                    match 2 * p + 1 < K {
                        true => {
                            _mm256_maddubs_epi16(own[ky][p], _mm256_xor_si256(x, turned[ky][p]))
                        }
                        false => _mm256_maddubs_epi16(x, own[ky][p]),
                    }
                };
                let mut sums = [_mm256_set1_epi32(of.begin); 2];
                for i in (0..K * P).step_by(2) {
                    let (a, b) = (product(i), product(i + 1));
                    let low = _mm256_madd_epi16(_mm256_unpacklo_epi16(a, b), ones);
                    let high = _mm256_madd_epi16(_mm256_unpackhi_epi16(a, b), ones);
                    sums = [
                        _mm256_add_epi32(sums[0], low),
                        _mm256_add_epi32(sums[1], high),
                    ];
                }
                let bytes = vectors.bytes(sums[0], sums[1]);
                store::<TWO>(bytes, row * of.width + col, of.width, col, y);
            }
        }
    }
}

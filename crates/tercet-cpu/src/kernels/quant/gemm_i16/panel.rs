//! 16 rows of W as 16-bit integers.

use std::arch::x86_64::*;
use std::ops::Range;

use tercet_ir::Scheme;

use super::super::super::simd::{Avx2, Simd};
use super::super::codes::{WeightGroupSink, each_block, visit};
use super::super::decode::{four_halves, scale16};
use super::super::repack_x8::QuantRowReader;
use super::super::{AHEAD, K_CHUNK, QuantView};
use super::tile::NR;

/// Weights per vector of bytes.
const GROUP: usize = 32;
/// Words (pairs of values) per row of a panel.
const WORDS: usize = K_CHUNK / 2;
/// Maximum scales or offsets per row: one per 16 weights.
const SCALES: usize = K_CHUNK / 16;

/// How many weights share a scale or an offset in the 16-bit form of a scheme.
#[derive(Clone, Copy)]
pub(super) struct I16CodeFormat {
    /// Weights per scale: 16, 32 or 64.
    pub(super) group: usize,
    /// Weights per offset, 16 or 32; 0 without offsets.
    pub(super) offset_of: usize,
}

impl I16CodeFormat {
    pub(super) fn for_scheme(scheme: Scheme) -> Self {
        let kind = |group, offset_of| Self { group, offset_of };
        match scheme {
            // The 16-bit weight is the 4-bit value times its 6-bit scale. A sum of 64 products with
            // 16-bit activations stays below 2^31.
            Scheme::Q4K => kind(64, 32),
            Scheme::Q5K | Scheme::Q4_1 | Scheme::Q5_1 => kind(32, 32),
            Scheme::Int4Asym => kind(32, 32),
            Scheme::Q2K => kind(16, 16),
            Scheme::Q3K | Scheme::Q6K => kind(16, 0),
            _ => kind(32, 0),
        }
    }
}

/// A panel: 16 rows of W and a range of k.
pub(super) struct I16WeightPanel<'a> {
    /// Weights `[k / 2, 16]`: a word has two adjacent weights of a row. Words are stored as the
    /// bits of floats, because the transpose moves floats.
    words: &'a mut [f32],
    /// The weights before the transpose, row by row, [`WORDS`] words each.
    rows: &'a mut [f32],
    /// Scales as `[k / group, 16]`.
    scales: &'a mut [f32],
    /// Offsets as `[k / offset_of, 16]`, if the scheme has offsets.
    offsets: &'a mut [f32],
    /// Weights per row.
    len: usize,
    kind: I16CodeFormat,
}

/// Pointers to the weights, scales and offsets that a tile reads.
#[derive(Clone, Copy)]
pub(super) struct I16PanelTile {
    pub(super) words: *const i32,
    pub(super) scales: *const f32,
    pub(super) offsets: *const f32,
    /// Weights per row.
    pub(super) len: usize,
    pub(super) kind: I16CodeFormat,
}

impl<'a> I16WeightPanel<'a> {
    /// Scratch floats of a panel.
    pub(super) const LEN: usize = 2 * (WORDS + SCALES) * NR;

    /// An empty panel in the first [`Self::LEN`] floats.
    pub(super) fn new(scratch: &'a mut [f32]) -> Self {
        let (words, rest) = scratch.split_at_mut(WORDS * NR);
        let (rows, rest) = rest.split_at_mut(WORDS * NR);
        let (scales, rest) = rest.split_at_mut(SCALES * NR);
        Self {
            words,
            rows,
            scales,
            offsets: &mut rest[..SCALES * NR],
            len: 0,
            kind: I16CodeFormat::for_scheme(Scheme::Q8_0),
        }
    }

    pub(super) fn parts(&self) -> I16PanelTile {
        I16PanelTile {
            words: self.words.as_ptr().cast(),
            scales: self.scales.as_ptr(),
            offsets: self.offsets.as_ptr(),
            len: self.len,
            kind: self.kind,
        }
    }

    /// Fills the panel with the weights `ks` of the rows `rows` of W. If there are fewer than 16
    /// rows, the others become zeros.
    ///
    /// # Safety
    /// The machine has AVX2, FMA and F16C; `w` was checked; `ks` are whole blocks, at most
    /// [`K_CHUNK`] weights.
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) unsafe fn fill(&mut self, w: &QuantView<'_>, rows: Range<usize>, ks: Range<usize>) {
        self.len = ks.len();
        self.kind = I16CodeFormat::for_scheme(w.scheme);
        let mut reader = QuantRowReader::new(w);
        if rows.len() < NR {
            self.rows[rows.len() * WORDS..].fill(0.0);
            self.scales.fill(0.0);
            self.offsets.fill(0.0);
        }
        for (i, row) in rows.enumerate() {
            let bytes = reader.row(row, &ks);
            let mut to = I16PanelColumn {
                codes: self.rows.as_mut_ptr().add(i * WORDS).cast(),
                scales: self.scales.as_mut_ptr().add(i),
                offsets: self.offsets.as_mut_ptr().add(i),
                kind: self.kind,
            };
            match w.scheme {
                Scheme::Q8_0 => each_block!(to, bytes, 32, 34, q8_0),
                Scheme::Int8 => each_block!(to, bytes, 128, 136, int8),
                Scheme::Int8Asym => each_block!(to, bytes, 128, 140, int8_asym),
                scheme => visit(&mut to, scheme, bytes),
            }
        }
        for word in (0..self.len / 2).step_by(8) {
            for half in 0..2 {
                let from = self.rows.as_ptr().add(8 * half * WORDS + word);
                let to = self.words.as_mut_ptr().add(word * NR + 8 * half);
                Avx2::transpose8(from, WORDS, to, NR);
            }
        }
    }
}

/// Destination of one row of W: contiguous 16-bit weights, and scales and offsets with a stride of
/// [`NR`].
struct I16PanelColumn {
    codes: *mut i16,
    scales: *mut f32,
    offsets: *mut f32,
    kind: I16CodeFormat,
}

impl I16PanelColumn {
    /// # Safety
    /// Same as [`WeightGroupSink`].
    #[inline(always)]
    unsafe fn put(&mut self, g: usize, codes: __m256i) {
        let to = self.codes.add(GROUP * g);
        let [low, high] = wide(codes);
        _mm256_storeu_si256(to.cast(), low);
        _mm256_storeu_si256(to.add(16).cast(), high);
    }

    /// # Safety
    /// Same as [`WeightGroupSink`]; `b` is valid for the block.
    #[inline(always)]
    unsafe fn q8_0(&mut self, b: *const u8) {
        self.put(0, _mm256_loadu_si256(b.add(2).cast()));
        *self.scales = Avx2::halves(b).0;
    }

    /// # Safety
    /// Same as [`Self::q8_0`].
    #[inline(always)]
    unsafe fn int8(&mut self, b: *const u8) {
        for (g, d) in four_halves::<Avx2>(b).into_iter().enumerate() {
            self.put(g, _mm256_loadu_si256(b.add(8 + 32 * g).cast()));
            *self.scales.add(g * NR) = d;
        }
    }

    /// Stores weights `d (q - z)`: the 16-bit integer is `q - z`, the scale is `d`.
    ///
    /// # Safety
    /// Same as [`Self::q8_0`].
    #[inline(always)]
    unsafe fn int8_asym(&mut self, b: *const u8) {
        let zeros = &*b.add(8).cast::<[u8; 4]>();
        for (g, d) in four_halves::<Avx2>(b).into_iter().enumerate() {
            let zero = _mm256_set1_epi16(i16::from(zeros[g]));
            for half in 0..2 {
                let q = _mm_loadu_si128(b.add(12 + 32 * g + 16 * half).cast());
                let codes = _mm256_sub_epi16(_mm256_cvtepu8_epi16(q), zero);
                _mm256_storeu_si256(self.codes.add(GROUP * g + 16 * half).cast(), codes);
            }
            *self.scales.add(g * NR) = d;
        }
    }
}

/// Widens bytes to 16 bits.
///
/// # Safety
/// Requires AVX2.
#[inline(always)]
unsafe fn wide(codes: __m256i) -> [__m256i; 2] {
    [
        _mm256_cvtepi8_epi16(_mm256_castsi256_si128(codes)),
        _mm256_cvtepi8_epi16(_mm256_extracti128_si256::<1>(codes)),
    ]
}

/// Subtracts the center of the quantized values.
///
/// # Safety
/// Requires AVX2.
#[inline(always)]
unsafe fn less<const CENTER: i32>(codes: __m256i) -> __m256i {
    match CENTER {
        0 => codes,
        _ => _mm256_sub_epi8(codes, _mm256_set1_epi8(1 << CENTER)),
    }
}

impl WeightGroupSink for I16PanelColumn {
    #[inline(always)]
    unsafe fn group<const CENTER: i32>(&mut self, g: usize, codes: __m256i, d: f32) {
        self.put(g, less::<CENTER>(codes));
        *self.scales.add(g * NR) = d;
    }

    #[inline(always)]
    unsafe fn offset(&mut self, g: usize, m: f32) {
        *self.offsets.add(g * NR) = m;
    }

    #[inline(always)]
    unsafe fn by_32(&mut self, codes: [__m256i; 8], s: u64, d: f32, offsets: &[f32; 8]) {
        if self.kind.group == 64 {
            for (g, s) in s.to_le_bytes().into_iter().enumerate() {
                let s = _mm256_set1_epi16(i16::from(s));
                let to = self.codes.add(GROUP * g);
                let [low, high] = wide(codes[g]);
                _mm256_storeu_si256(to.cast(), _mm256_mullo_epi16(low, s));
                _mm256_storeu_si256(to.add(16).cast(), _mm256_mullo_epi16(high, s));
            }
            for g in 0..4 {
                *self.scales.add(g * NR) = d;
            }
        } else {
            let scales = Avx2::scale8(s.to_le_bytes().map(|s| s as i8), d);
            for g in 0..8 {
                self.put(g, codes[g]);
                *self.scales.add(g * NR) = scales[g];
            }
        }
        for (g, offset) in offsets.iter().enumerate() {
            *self.offsets.add(g * NR) = *offset;
        }
    }

    #[inline(always)]
    unsafe fn by_16<const CENTER: i32>(&mut self, codes: [__m256i; 8], s: &[i8; 16], d: f32) {
        let scales = scale16::<Avx2>(s, d);
        for g in 0..8 {
            self.put(g, less::<CENTER>(codes[g]));
            *self.scales.add(2 * g * NR) = scales[2 * g];
            *self.scales.add((2 * g + 1) * NR) = scales[2 * g + 1];
        }
    }

    #[inline(always)]
    unsafe fn offsets_16(&mut self, offsets: &[f32; 16]) {
        for (i, offset) in offsets.iter().enumerate() {
            *self.offsets.add(i * NR) = *offset;
        }
    }

    #[inline(always)]
    unsafe fn advance(&mut self, len: usize) {
        let offsets = len.checked_div(self.kind.offset_of).unwrap_or(0);
        self.codes = self.codes.wrapping_add(len);
        self.scales = self.scales.wrapping_add(len / self.kind.group * NR);
        self.offsets = self.offsets.wrapping_add(offsets * NR);
    }
}

//! Weights of 16 rows of W as integers of 16 bits.

use std::arch::x86_64::*;
use std::ops::Range;

use tercet_ir::Scheme;

use super::super::super::simd::{Avx2, Simd};
use super::super::codes::{Groups, each_block, visit};
use super::super::decode::{four_halves, scale16};
use super::super::strips::Reader;
use super::super::{AHEAD, K_CHUNK, QuantView};
use super::tile::NR;

/// Weights of a vector of codes.
const GROUP: usize = 32;
/// Words of two codes in a row of a panel.
const WORDS: usize = K_CHUNK / 2;
/// Scales or offsets of a row at most: of 16 weights.
const SCALES: usize = K_CHUNK / 16;

/// How weights of a scheme become integers.
#[derive(Clone, Copy)]
pub(super) struct Kind {
    /// Weights that have one scale: 16, 32 or 64.
    pub(super) group: usize,
    /// Weights that have one offset, 16 or 32; 0 where there are none.
    pub(super) offset_of: usize,
}

impl Kind {
    pub(super) fn of(scheme: Scheme) -> Self {
        let kind = |group, offset_of| Self { group, offset_of };
        match scheme {
            // Codes of four bits times scales of six are integers, too: 64 of them with 16 digits stay below 2^31.
            Scheme::Q4K => kind(64, 32),
            Scheme::Q5K | Scheme::Q4_1 | Scheme::Q5_1 => kind(32, 32),
            Scheme::Int4Asym => kind(32, 32),
            Scheme::Q2K => kind(16, 16),
            Scheme::Q3K | Scheme::Q6K => kind(16, 0),
            _ => kind(32, 0),
        }
    }
}

/// 16 rows of W, some of k.
pub(super) struct Panel<'a> {
    /// Codes `[k / 2, 16]`, two in a word: as bits of floats, which transposing moves.
    words: &'a mut [f32],
    /// Codes row by row, [`WORDS`] each.
    rows: &'a mut [f32],
    /// `[k / group, 16]`.
    scales: &'a mut [f32],
    /// `[k / offset_of, 16]`, if the scheme has any.
    offsets: &'a mut [f32],
    /// Weights in a row.
    len: usize,
    kind: Kind,
}

/// What a tile reads of a panel.
#[derive(Clone, Copy)]
pub(super) struct Parts {
    pub(super) words: *const i32,
    pub(super) scales: *const f32,
    pub(super) offsets: *const f32,
    /// Weights of a row.
    pub(super) len: usize,
    pub(super) kind: Kind,
}

impl<'a> Panel<'a> {
    /// Floats that it takes.
    pub(super) const LEN: usize = 2 * (WORDS + SCALES) * NR;

    /// An empty one in the first [`Self::LEN`] floats.
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
            kind: Kind::of(Scheme::Q8_0),
        }
    }

    pub(super) fn parts(&self) -> Parts {
        Parts {
            words: self.words.as_ptr().cast(),
            scales: self.scales.as_ptr(),
            offsets: self.offsets.as_ptr(),
            len: self.len,
            kind: self.kind,
        }
    }

    /// The weights `ks` of the rows `rows` of W, at most 16; those that are missing are 0.
    ///
    /// # Safety
    /// The machine has AVX2, FMA and F16C; `w` was checked; `ks` are whole blocks, at most [`K_CHUNK`] weights.
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) unsafe fn fill(&mut self, w: &QuantView<'_>, rows: Range<usize>, ks: Range<usize>) {
        self.len = ks.len();
        self.kind = Kind::of(w.scheme);
        let mut reader = Reader::new(w);
        if rows.len() < NR {
            self.rows[rows.len() * WORDS..].fill(0.0);
            self.scales.fill(0.0);
            self.offsets.fill(0.0);
        }
        for (i, row) in rows.enumerate() {
            let bytes = reader.row(row, &ks);
            let mut to = Column {
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

/// Where a row of W goes: codes one after the other, its scales and offsets [`NR`] apart.
struct Column {
    codes: *mut i16,
    scales: *mut f32,
    offsets: *mut f32,
    kind: Kind,
}

impl Column {
    /// # Safety
    /// As [`Groups`].
    #[inline(always)]
    unsafe fn put(&mut self, g: usize, codes: __m256i) {
        let to = self.codes.add(GROUP * g);
        let [low, high] = wide(codes);
        _mm256_storeu_si256(to.cast(), low);
        _mm256_storeu_si256(to.add(16).cast(), high);
    }

    /// # Safety
    /// As [`Groups`]; `b` is valid for the block.
    #[inline(always)]
    unsafe fn q8_0(&mut self, b: *const u8) {
        self.put(0, _mm256_loadu_si256(b.add(2).cast()));
        *self.scales = Avx2::halves(b).0;
    }

    /// # Safety
    /// As [`Self::q8_0`].
    #[inline(always)]
    unsafe fn int8(&mut self, b: *const u8) {
        for (g, d) in four_halves::<Avx2>(b).into_iter().enumerate() {
            self.put(g, _mm256_loadu_si256(b.add(8 + 32 * g).cast()));
            *self.scales.add(g * NR) = d;
        }
    }

    /// `d (q - z)`, of which the difference is an integer of 16 bits.
    ///
    /// # Safety
    /// As [`Self::q8_0`].
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

/// Codes in 16 bits.
///
/// # Safety
/// Needs AVX2.
#[inline(always)]
unsafe fn wide(codes: __m256i) -> [__m256i; 2] {
    [
        _mm256_cvtepi8_epi16(_mm256_castsi256_si128(codes)),
        _mm256_cvtepi8_epi16(_mm256_extracti128_si256::<1>(codes)),
    ]
}

/// Codes less their centre.
///
/// # Safety
/// Needs AVX2.
#[inline(always)]
unsafe fn less<const CENTER: i32>(codes: __m256i) -> __m256i {
    match CENTER {
        0 => codes,
        _ => _mm256_sub_epi8(codes, _mm256_set1_epi8(1 << CENTER)),
    }
}

impl Groups for Column {
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

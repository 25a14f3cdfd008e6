//! Quantized weights repacked to structure of arrays (SoA).
//!
//! Quantized blocks have odd sizes (17, 34, 210 bytes), so the data of one thread is rarely 16-byte
//! aligned. A parameter that only dequantizing kernels read is therefore stored field by field.
//! Each row holds first the low bits of all its blocks, then their high bits, their packed scales
//! and their F16 scales. The bytes do not change and stay within their row, so rows can still be
//! sliced, gathered and concatenated. Rows start at multiples of 16 bytes.
//!
//! [`fields`] alone defines the position of each field in both orders.

use std::thread;

use tercet_ir::layout::{AxisSlice, SymLayout};
use tercet_ir::{Dim, Scheme};

/// Alignment of rows in the structure-of-arrays layout, in bytes.
const ALIGN: usize = 16;

/// Maximum weight magnitude for F16: half of the largest F16, because a block minimum may be added
/// to it. The lower limit keeps the largest weight well above the subnormal numbers.
const MAX_F16_WEIGHT: f64 = 32752.0;
const MIN_F16_WEIGHT: f64 = 1.0 / 4096.0;

/// Bytes repacked and uploaded per write.
const CHUNK_BYTES: usize = 8 << 20;
/// Maximum number of repacking threads; beyond this, memory bandwidth is the limit.
const MAX_THREADS: usize = 8;
/// Minimum bytes per repacking thread. Starting a thread takes as long as repacking 100 KiB.
const THREAD_BYTES: usize = 512 << 10;

/// A field of a block: its offset in file order and its length in bytes. The length is 0 if the
/// scheme lacks the field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct BlockField {
    at: usize,
    len: usize,
}

/// Fields of a block in SoA order: low bits, high bits, packed scales, F16 scales. The F16 scales
/// of Q4_K and Q5_K precede their packed scales and count as part of them, as do zero points and
/// scales that are not F16. Sign bits count as high or low bits.
const fn fields(scheme: Scheme) -> [BlockField; 4] {
    const fn field(at: usize, len: usize) -> BlockField {
        BlockField { at, len }
    }
    const NONE: BlockField = field(0, 0);
    match scheme {
        Scheme::F16 | Scheme::BF16 => [NONE; 4],
        Scheme::Q4_0 => [field(2, 16), NONE, NONE, field(0, 2)],
        Scheme::Q4_1 => [field(4, 16), NONE, NONE, field(0, 4)],
        Scheme::Q5_0 => [field(6, 16), field(2, 4), NONE, field(0, 2)],
        Scheme::Q5_1 => [field(8, 16), field(4, 4), NONE, field(0, 4)],
        Scheme::Q8_0 => [field(2, 32), NONE, NONE, field(0, 2)],
        Scheme::Q2K => [field(16, 64), NONE, field(0, 16), field(80, 4)],
        Scheme::Q3K => [field(32, 64), field(0, 32), field(96, 12), field(108, 2)],
        Scheme::Q4K => [field(16, 128), NONE, field(0, 16), NONE],
        Scheme::Q5K => [field(48, 128), field(16, 32), field(0, 16), NONE],
        Scheme::Q6K => [field(0, 128), field(128, 64), field(192, 16), field(208, 2)],
        Scheme::Iq2Xxs => [field(2, 64), NONE, NONE, field(0, 2)],
        Scheme::Iq2Xs => [field(2, 64), NONE, field(66, 8), field(0, 2)],
        Scheme::Iq2S => [field(2, 64), field(66, 8), field(74, 8), field(0, 2)],
        Scheme::Iq3Xxs => [field(2, 64), field(66, 32), NONE, field(0, 2)],
        Scheme::Iq3S => [field(2, 64), field(66, 40), field(106, 4), field(0, 2)],
        Scheme::Iq1S => [field(2, 32), field(34, 16), NONE, field(0, 2)],
        Scheme::Iq1M => [field(0, 32), field(32, 16), field(48, 8), NONE],
        Scheme::Iq4Nl => [field(2, 16), NONE, NONE, field(0, 2)],
        Scheme::Iq4Xs => [field(8, 128), NONE, field(2, 6), field(0, 2)],
        Scheme::Tq1_0 => [field(0, 48), field(48, 4), NONE, field(52, 2)],
        Scheme::Tq2_0 => [field(0, 64), NONE, NONE, field(64, 2)],
        Scheme::Mxfp4 => [field(1, 16), NONE, field(0, 1), NONE],
        Scheme::Nvfp4 => [field(4, 32), NONE, field(0, 4), NONE],
        Scheme::Fp8E4m3 | Scheme::Fp8E5m2 => [field(4, 128), NONE, field(0, 4), NONE],
        Scheme::Int8 => [field(8, 128), NONE, NONE, field(0, 8)],
        Scheme::Int8Asym => [field(12, 128), NONE, field(8, 4), field(0, 8)],
        Scheme::Int4 => [field(8, 64), NONE, NONE, field(0, 8)],
        Scheme::Int4Asym => [field(12, 64), NONE, field(8, 4), field(0, 8)],
    }
}

/// First byte and block stride of each field, in the format that kernels take: the stride is
/// shifted left by 16 bits. In the SoA layout, kernels multiply the first byte by the number of
/// blocks in the row.
pub fn places(scheme: Scheme, in_planes: bool) -> [u32; 4] {
    let mut before = 0;
    fields(scheme).map(|field| {
        let (first, step) = match in_planes {
            true => (before, field.len),
            false => (field.at, scheme.block_bytes()),
        };
        before += field.len;
        (first | step << 16) as u32
    })
}

/// Structure-of-arrays layout of quantized rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SoaLayout {
    /// Quantization format of the blocks.
    pub scheme: Scheme,
    /// Bytes of a row, without padding.
    pub row_bytes: usize,
}

impl SoaLayout {
    /// Distance between the starts of consecutive rows, in bytes.
    pub fn stride_bytes(&self) -> usize {
        self.row_bytes.next_multiple_of(ALIGN)
    }

    /// Shape of the whole stored tensor, including row padding.
    pub fn stored(&self, shape: &[Dim]) -> Vec<Dim> {
        let mut stored = shape.to_vec();
        if let Some(last) = stored.last_mut() {
            *last = Dim::Known(self.stride_bytes());
        }
        stored
    }

    /// Layout of the rows within the stored tensor; `None` if a stride overflows.
    pub fn layout(&self, shape: &[Dim]) -> Option<SymLayout> {
        let all = SymLayout::dense(&self.stored(shape))?;
        let whole = AxisSlice {
            start: Dim::Known(0),
            step: 1,
        };
        all.slice(&vec![whole; shape.len()], shape)
    }

    /// Repacks a tensor from file order to SoA. Calls `write` for several rows at once, with the
    /// offset of their first byte. Reuses `scratch`.
    ///
    /// # Errors
    /// Those of `write`.
    pub fn repack<E>(
        &self,
        file: &[u8],
        scratch: &mut Vec<u8>,
        mut write: impl FnMut(u64, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let stride = self.stride_bytes();
        let rows = (CHUNK_BYTES / stride).max(1);
        for (at, part) in file.chunks(rows * self.row_bytes).enumerate() {
            scratch.clear();
            scratch.resize(part.len() / self.row_bytes * stride, 0);
            self.split_all(part, scratch);
            write((at * rows * stride) as u64, scratch)?;
        }
        Ok(())
    }

    /// True if F16 represents these weights with nearly full precision: none is too large, and the
    /// largest are not tiny.
    pub fn fits_f16(&self, file: &[u8]) -> bool {
        let greatest = self.scheme.greatest_scale(file);
        let most = greatest * self.scheme.greatest_code();
        (MIN_F16_WEIGHT..=MAX_F16_WEIGHT).contains(&most) || greatest == 0.0
    }

    /// Repacks whole rows, on several threads if there are many. For a memory-mapped file, this is
    /// the pass that reads the file.
    fn split_all(&self, file: &[u8], out: &mut [u8]) {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let threads = cores.min(MAX_THREADS).min(file.len() / THREAD_BYTES).max(1);
        let rows = (file.len() / self.row_bytes).div_ceil(threads).max(1);
        let parts = file.chunks(rows * self.row_bytes);
        let split = |(part, to): (&[u8], &mut [u8])| {
            let to = to.chunks_exact_mut(self.stride_bytes());
            for (row, out) in part.chunks_exact(self.row_bytes).zip(to) {
                self.split(row, out);
            }
        };
        let mut pairs = parts.zip(out.chunks_mut(rows * self.stride_bytes()));
        let Some(first) = pairs.next() else { return };
        thread::scope(|scope| {
            for pair in pairs {
                scope.spawn(move || split(pair));
            }
            split(first);
        });
    }

    /// Repacks one row.
    fn split(&self, row: &[u8], out: &mut [u8]) {
        let size = self.scheme.block_bytes();
        let blocks = self.row_bytes / size;
        let mut first = 0;
        for BlockField { at, len } in fields(self.scheme) {
            if len == 0 {
                continue;
            }
            let plane = out[first..first + len * blocks].chunks_exact_mut(len);
            for (block, to) in row.chunks_exact(size).zip(plane) {
                to.copy_from_slice(&block[at..at + len]);
            }
            first += len * blocks;
        }
    }
}

#[cfg(test)]
mod tests {
    use tercet_ir::DType;

    use super::*;

    #[test]
    fn fields_are_the_whole_block_and_planes_hold_every_byte() {
        let packed = Scheme::ALL.iter().filter(|s| s.storage() == DType::U8);
        for &scheme in packed {
            let size = scheme.block_bytes();
            let mut seen = vec![0; size];
            for BlockField { at, len } in fields(scheme) {
                seen[at..at + len].iter_mut().for_each(|n| *n += 1);
            }
            assert_eq!(seen, vec![1; size], "{}", scheme.name());
            let planes = SoaLayout {
                scheme,
                row_bytes: 3 * size,
            };
            let file: Vec<u8> = (0..6 * size).map(|i| (i * 7 + i / 256) as u8).collect();
            let mut all = Vec::new();
            let done: Result<(), ()> = planes.repack(&file, &mut Vec::new(), |at, bytes| {
                assert_eq!(at as usize, all.len());
                all.extend_from_slice(bytes);
                Ok(())
            });
            assert_eq!(done, Ok(()));
            assert_eq!(all.len(), 2 * planes.stride_bytes());
            let places = places(scheme, true);
            for (block, byte) in (0..6).flat_map(|b| (0..size).map(move |i| (b, i))) {
                let within = |f: &BlockField| (f.at..f.at + f.len).contains(&byte);
                let which = fields(scheme).iter().position(within).expect("a field");
                let (first, step) = (places[which] & 0xffff, places[which] >> 16);
                let row = block / 3 * planes.stride_bytes();
                let at = row + first as usize * 3 + step as usize * (block % 3) + byte
                    - fields(scheme)[which].at;
                assert_eq!(all[at], file[block * size + byte], "{}", scheme.name());
            }
        }
    }

    #[test]
    fn threads_put_rows_where_one_puts_them() {
        let scheme = Scheme::Q4K;
        let row_bytes = 9 * scheme.block_bytes();
        let planes = SoaLayout { scheme, row_bytes };
        // More than the minimum work per thread, and a row count that no number of threads divides.
        let rows = 7 * THREAD_BYTES / row_bytes + 5;
        let file: Vec<u8> = (0..rows * row_bytes)
            .map(|i| (i * 7 + i / 256) as u8)
            .collect();
        let mut one = vec![0; rows * planes.stride_bytes()];
        let to = one.chunks_exact_mut(planes.stride_bytes());
        for (row, out) in file.chunks_exact(row_bytes).zip(to) {
            planes.split(row, out);
        }
        let mut all = vec![0; one.len()];
        planes.split_all(&file, &mut all);
        assert!(all == one);
    }
}

//! Counter-based random numbers: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as
//! 1, 2, 3", SC 2011). The bits are the same on every executor.
//!
//! A [`PhiloxStream`] gives the random words of one operator in one run. The formulas that convert
//! words to numbers are also here, so that all executors share or replicate them:
//!
//! - *unit*, 24 bits (`F32 F16 BF16` and sampling): element `4 i + j` takes word `j` of block `i`;
//!   `u = (word >> 8) * 2^-24`, exact in F32, in `[0, 1)`.
//! - *unit*, 53 bits (`F64`): element `2 i + j` takes words `2 j` (high) and `2 j + 1` (low) of
//!   block `i`; `u = ((high << 32 | low) >> 11) * 2^-53`.
//! - *uniform* in `[lo, hi)`: [`UniformRange`].
//! - *normal*: Box and Muller (1958) on pairs of elements, `u1` from the first word of the pair and
//!   `u2` from the second (for F64 from the first and second two): `r = sqrt(-2 ln(u1 + 2^-24))`
//!   (`2^-53` for F64), `t = 2 pi u2`; the even element is `r cos(t)`, the odd one `r sin(t)`.

use half::{bf16, f16};

use crate::dtype::DType;

const M0: u32 = 0xD251_1F53;
const M1: u32 = 0xCD9E_8D57;
const W0: u32 = 0x9E37_79B9;
const W1: u32 = 0xBB67_AE85;

/// Four random words for a counter and a key.
///
/// Operators use `key = [seed low, seed high]` and
/// `counter = [element / 4, stream, step low, step high]`; element `4 i + j` takes word `j`.
pub const fn philox4x32(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    let mut round = 0;
    while round < 10 {
        let p0 = M0 as u64 * counter[0] as u64;
        let p1 = M1 as u64 * counter[2] as u64;
        counter = [
            (p1 >> 32) as u32 ^ counter[1] ^ key[0],
            p1 as u32,
            (p0 >> 32) as u32 ^ counter[3] ^ key[1],
            p0 as u32,
        ];
        key = [key[0].wrapping_add(W0), key[1].wrapping_add(W1)];
        round += 1;
    }
    counter
}

/// The random seed and counter of an executable:
/// `Executable::set_random`.
///
/// ```
/// use tercet_tensor::random::RngState;
/// let mut random = RngState { seed: Some(7), counter: 0 };
/// let first = random.stream(1, 0);
/// random.count();
/// let second = random.stream(1, 0);
/// assert_eq!((first.seed, first.step), (7, 0));
/// assert_ne!(first.block(0), second.block(0));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RngState {
    /// Replaces the seed of every random operator of the graph; `None` leaves their seeds
    /// unchanged.
    pub seed: Option<u64>,
    /// The step number of the next run: the number of completed runs, unless the caller set it.
    pub counter: u64,
}

impl RngState {
    /// Increments the counter after a completed run.
    pub fn count(&mut self) {
        self.counter = self.counter.wrapping_add(1);
    }

    /// The random words of an operator with this seed and stream in the next run.
    pub fn stream(self, seed: u64, stream: u32) -> PhiloxStream {
        PhiloxStream {
            seed: self.seed.unwrap_or(seed),
            stream,
            step: self.counter,
        }
    }
}

/// The random words of one operator in one run.
///
/// ```
/// use tercet_tensor::{DType, random::PhiloxStream};
/// let stream = PhiloxStream { seed: 42, stream: 0, step: 0 };
/// let units = stream.units(DType::F32, 1);
/// assert!(units.iter().all(|u| (0.0..1.0).contains(u)));
/// assert_eq!(units[2], stream.unit(DType::F32, 6));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PhiloxStream {
    /// The seed, used as the Philox key.
    pub seed: u64,
    /// The stream number, which differs between the operators of a graph.
    pub stream: u32,
    /// The step number of the run: the number of completed runs, or a counter value that the caller
    /// set.
    pub step: u64,
}

impl PhiloxStream {
    /// The four random words of a block. Blocks repeat with a period of 2^32.
    pub const fn block(self, index: u64) -> [u32; 4] {
        let counter = [
            index as u32,
            self.stream,
            self.step as u32,
            (self.step >> 32) as u32,
        ];
        philox4x32(counter, [self.seed as u32, (self.seed >> 32) as u32])
    }

    /// The uniform number in `[0, 1)` of an element: 53 bits for `F64`, 24 bits for every other
    /// dtype.
    pub fn unit(self, dtype: DType, element: u64) -> f64 {
        if dtype == DType::F64 {
            let w = self.block(element / 2);
            let j = (element % 2) as usize * 2;
            return unit53(w[j], w[j + 1]);
        }
        unit24(self.block(element / 4)[(element % 4) as usize])
    }

    /// The uniform numbers in `[0, 1)` of elements `4 group` to `4 group + 3`:
    /// [`PhiloxStream::unit`] of each.
    pub fn units(self, dtype: DType, group: u64) -> [f64; 4] {
        if dtype != DType::F64 {
            return self.block(group).map(unit24);
        }
        let (a, b) = (self.block(2 * group), self.block(2 * group + 1));
        [(a[0], a[1]), (a[2], a[3]), (b[0], b[1]), (b[2], b[3])].map(|(h, l)| unit53(h, l))
    }

    /// The standard normal numbers of elements `4 group` to `4 group + 3`: [`PhiloxStream::normal`]
    /// of each.
    pub fn normals(self, dtype: DType, group: u64) -> [f64; 4] {
        let u = self.units(dtype, group);
        let least = if dtype == DType::F64 { UNIT53 } else { UNIT24 };
        let (a, b) = (
            normal_pair(u[0] + least, u[1]),
            normal_pair(u[2] + least, u[3]),
        );
        [a.0, a.1, b.0, b.1]
    }

    /// The standard normal number of an element, before rounding to `dtype`: 53 bits for `F64`, 24
    /// bits for every other dtype.
    pub fn normal(self, dtype: DType, element: u64) -> f64 {
        let (u1, u2) = if dtype == DType::F64 {
            let w = self.block(element / 2);
            (unit53(w[0], w[1]) + UNIT53, unit53(w[2], w[3]))
        } else {
            let w = self.block(element / 4);
            let j = (element % 4 / 2) as usize * 2;
            (unit24(w[j]) + UNIT24, unit24(w[j + 1]))
        };
        let (even, odd) = normal_pair(u1, u2);
        if element.is_multiple_of(2) { even } else { odd }
    }
}

/// Two independent standard normal numbers from `u1` in `(0, 1]` and `u2` in `[0, 1)`.
fn normal_pair(u1: f64, u2: f64) -> (f64, f64) {
    // `libm` gives the same bits on every platform; the standard library does not guarantee that.
    let radius = (-2.0 * libm::log(u1)).sqrt();
    let (sin, cos) = libm::sincos(std::f64::consts::TAU * u2);
    (radius * cos, radius * sin)
}

const UNIT24: f64 = 1.0 / (1u64 << 24) as f64;
const UNIT53: f64 = 1.0 / (1u64 << 53) as f64;

fn unit24(word: u32) -> f64 {
    f64::from(word >> 8) * UNIT24
}

fn unit53(high: u32, low: u32) -> f64 {
    ((u64::from(high) << 32 | u64::from(low)) >> 11) as f64 * UNIT53
}

/// The uniform distribution over `[lo, hi)` in a float dtype.
///
/// `lo` and `hi` are rounded to the dtype, and `span = hi - lo` to F32 (exact in F64 for `F64`). `y
/// = lo + span * u`: the product and the sum are each rounded to F32 (F64 for `F64`), without a
/// fused multiply-add. The result is rounded to the dtype. If that gives `hi`, it is replaced by
/// the largest number below `hi`.
///
/// ```
/// use tercet_tensor::{DType, random::UniformRange};
/// let range = UniformRange::new(DType::F32, -1.0, 3.0).expect("the bounds ascend");
/// assert_eq!(range.value(0.25), 0.0);
/// assert_eq!(UniformRange::new(DType::F32, 1.0, 1.0), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct UniformRange {
    /// The dtype of the numbers.
    pub dtype: DType,
    /// The lower bound (inclusive), rounded to the dtype.
    pub lo: f64,
    /// `hi - lo`, rounded to F32 for every dtype but `F64`.
    pub span: f64,
    /// The largest number of the dtype below `hi`.
    pub last: f64,
}

impl UniformRange {
    /// The distribution; `None` unless `lo < hi` in the dtype with a finite span.
    pub fn new(dtype: DType, lo: f64, hi: f64) -> Option<UniformRange> {
        let (lo, hi) = (dtype.round_f64(lo), dtype.round_f64(hi));
        let span = match dtype {
            DType::F64 => hi - lo,
            _ => f64::from((hi - lo) as f32),
        };
        let last = below(dtype, hi)?;
        (lo < hi && span.is_finite()).then_some(UniformRange {
            dtype,
            lo,
            span,
            last,
        })
    }

    /// Maps `unit` in `[0, 1)` to a number of the distribution.
    pub fn value(&self, unit: f64) -> f64 {
        let y = match self.dtype {
            DType::F64 => self.lo + self.span * unit,
            dtype => {
                let y = self.lo as f32 + self.span as f32 * unit as f32;
                dtype.round_f64(f64::from(y))
            }
        };
        y.min(self.last)
    }
}

/// The largest number of a float dtype below `x`, a finite number of that dtype.
fn below(dtype: DType, x: f64) -> Option<f64> {
    // The bit patterns of floats increase with their magnitude.
    let half_bits = |bits: u16| match (x > 0.0, x == 0.0) {
        (true, _) => bits - 1,
        (false, true) => 0x8001,
        (false, false) => bits + 1,
    };
    if !x.is_finite() {
        return None;
    }
    match dtype {
        DType::F64 => Some(x.next_down()),
        DType::F32 => Some(f64::from((x as f32).next_down())),
        DType::F16 => Some(f16::from_bits(half_bits(f16::from_f64(x).to_bits())).to_f64()),
        DType::BF16 => Some(bf16::from_bits(half_bits(bf16::from_f64(x).to_bits())).to_f64()),
        DType::I32 | DType::U32 | DType::I64 | DType::I16 | DType::I8 | DType::U8 | DType::Bool => {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uniform_stays_below_its_end() {
        for &dtype in DType::FLOATS {
            for (lo, hi) in [(0.0, 1.0), (-1.0, 0.0), (-3.0, -2.0), (1000.0, 1001.0)] {
                if let Some(range) = UniformRange::new(dtype, lo, hi) {
                    let top = range.value(1.0 - UNIT53).max(range.value(1.0 - UNIT24));
                    assert!(top < dtype.round_f64(hi), "{dtype} {lo} {hi}: {top}");
                    assert_eq!(range.value(0.0), dtype.round_f64(lo));
                }
            }
        }
        assert_eq!(UniformRange::new(DType::F16, 1.0, 1.0001), None);
        assert_eq!(UniformRange::new(DType::F32, -3e38, 3e38), None);
        assert_eq!(UniformRange::new(DType::F32, 0.0, f64::NAN), None);
    }

    #[test]
    fn groups_are_their_elements() {
        let stream = PhiloxStream {
            seed: 0x1234_5678_9abc,
            stream: 7,
            step: 3,
        };
        for &dtype in DType::FLOATS {
            for group in [0, 1, 77] {
                let each = [0, 1, 2, 3].map(|j| 4 * group + j);
                assert_eq!(
                    stream.units(dtype, group),
                    each.map(|i| stream.unit(dtype, i))
                );
                assert_eq!(
                    stream.normals(dtype, group),
                    each.map(|i| stream.normal(dtype, i))
                );
            }
        }
    }

    /// The known-answer tests of the Random123 library.
    #[test]
    fn known_answers() {
        assert_eq!(
            philox4x32([0; 4], [0; 2]),
            [0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8]
        );
        assert_eq!(
            philox4x32([u32::MAX; 4], [u32::MAX; 2]),
            [0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd]
        );
    }
}

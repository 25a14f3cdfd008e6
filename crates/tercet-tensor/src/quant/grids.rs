//! The codebooks of the IQ formats. Each row contains magnitudes, or -1, 0 and 1, and blocks store
//! row indices.
//!
//! Codebooks are constants of the format, the same for every model file: lattice points selected by
//! the frequency of nearby weights. Each file of `grids/` contains the rows as little-endian `u16`,
//! in ascending order. Element `i` of a row of 8 is the 2 bits from bit `2 i` on; in a row of 4,
//! the 3 bits from bit `3 i` on. These bits are the index of the element's level.

use super::Scheme;

/// The levels of a row of 8, indexed by 2 bits.
const THREE: [i8; 3] = [8, 25, 43];
const SIGNS: [i8; 3] = [-1, 0, 1];
/// The levels of a row of 4, indexed by 3 bits.
const EVEN: [i8; 8] = [4, 12, 20, 28, 36, 44, 52, 62];
const ODD: [i8; 8] = [1, 3, 5, 7, 9, 11, 13, 15];

const fn rows<const N: usize, const W: usize>(packed: &[u8], levels: &[i8]) -> [[i8; W]; N] {
    assert!(packed.len() == 2 * N && (W == 8 || W == 4));
    let bits = if W == 8 { 2 } else { 3 };
    let mut rows = [[0; W]; N];
    let mut at = 0;
    while at < N {
        let row = packed[2 * at] as usize | (packed[2 * at + 1] as usize) << 8;
        let mut i = 0;
        while i < W {
            rows[at][i] = levels[row >> (bits * i) & ((1 << bits) - 1)];
            i += 1;
        }
        at += 1;
    }
    rows
}

const IQ2_XXS_ROWS: &[u8] = include_bytes!("grids/iq2_xxs.bin");
const IQ2_XS_ROWS: &[u8] = include_bytes!("grids/iq2_xs.bin");
const IQ2_S_ROWS: &[u8] = include_bytes!("grids/iq2_s.bin");
const IQ3_XXS_ROWS: &[u8] = include_bytes!("grids/iq3_xxs.bin");
const IQ3_S_ROWS: &[u8] = include_bytes!("grids/iq3_s.bin");
const IQ1_ROWS: &[u8] = include_bytes!("grids/iq1_s.bin");

pub(super) static IQ2_XXS: [[i8; 8]; 256] = rows(IQ2_XXS_ROWS, &THREE);
pub(super) static IQ2_XS: [[i8; 8]; 512] = rows(IQ2_XS_ROWS, &THREE);
pub(super) static IQ2_S: [[i8; 8]; 1024] = rows(IQ2_S_ROWS, &THREE);
pub(super) static IQ3_XXS: [[i8; 4]; 256] = rows(IQ3_XXS_ROWS, &EVEN);
pub(super) static IQ3_S: [[i8; 4]; 512] = rows(IQ3_S_ROWS, &ODD);
pub(super) static IQ1: [[i8; 8]; 2048] = rows(IQ1_ROWS, &SIGNS);

/// The 16 levels of `IQ4_NL` and `IQ4_XS`, per unit of the scale.
pub const fn iq4_levels() -> [i8; 16] {
    [
        -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
    ]
}

/// A codebook in the form that executors store.
///
/// ```
/// use tercet_tensor::{Scheme, quant::QuantCodebook};
/// let codebook = QuantCodebook::for_scheme(Scheme::Iq3S).expect("the scheme has a codebook");
/// assert_eq!(codebook.rows.len(), 512 * size_of::<u16>());
/// assert_eq!(codebook.words().len(), 256);
/// assert_eq!(QuantCodebook::for_scheme(Scheme::Q4K), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuantCodebook {
    /// Rows of 8 elements of 2 bits, or of 4 elements of 3 bits, as little-endian `u16`.
    pub rows: &'static [u8],
}

impl QuantCodebook {
    /// The codebook of a scheme; `None` if the scheme uses none.
    pub const fn for_scheme(scheme: Scheme) -> Option<QuantCodebook> {
        let rows = match scheme {
            Scheme::Iq2Xxs => IQ2_XXS_ROWS,
            Scheme::Iq2Xs => IQ2_XS_ROWS,
            Scheme::Iq2S => IQ2_S_ROWS,
            Scheme::Iq3Xxs => IQ3_XXS_ROWS,
            Scheme::Iq3S => IQ3_S_ROWS,
            Scheme::Iq1S | Scheme::Iq1M => IQ1_ROWS,
            Scheme::F16
            | Scheme::BF16
            | Scheme::Q4_0
            | Scheme::Q4_1
            | Scheme::Q5_0
            | Scheme::Q5_1
            | Scheme::Q8_0
            | Scheme::Q2K
            | Scheme::Q3K
            | Scheme::Q4K
            | Scheme::Q5K
            | Scheme::Q6K
            | Scheme::Iq4Nl
            | Scheme::Iq4Xs
            | Scheme::Tq1_0
            | Scheme::Tq2_0
            | Scheme::Mxfp4
            | Scheme::Nvfp4
            | Scheme::Fp8E4m3
            | Scheme::Fp8E5m2
            | Scheme::Int8
            | Scheme::Int8Asym
            | Scheme::Int4
            | Scheme::Int4Asym => return None,
        };
        Some(QuantCodebook { rows })
    }

    /// Two rows in each word, the first in the low half.
    pub fn words(self) -> Vec<u32> {
        let (words, _) = self.rows.as_chunks::<4>();
        words.iter().map(|w| u32::from_le_bytes(*w)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_rise_and_those_of_two_bits_are_even() {
        for &scheme in Scheme::ALL {
            let Some(grid) = QuantCodebook::for_scheme(scheme) else {
                continue;
            };
            let (rows, _) = grid.rows.as_chunks::<2>();
            let rows: Vec<u16> = rows.iter().map(|b| u16::from_le_bytes(*b)).collect();
            assert!(rows.is_sorted_by(|a, b| a < b), "{scheme:?}");
            if matches!(scheme, Scheme::Iq2Xxs | Scheme::Iq2Xs | Scheme::Iq2S) {
                // The sum of a row's level indices is even.
                let odd = |r: u16| (r & 0x5555).count_ones() % 2 == 1;
                assert!(!rows.iter().any(|r| odd(*r)), "{scheme:?}");
            }
        }
    }
}

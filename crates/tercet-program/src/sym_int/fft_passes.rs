//! Passes of Fourier transforms whose length is known only at run time.
//!
//! A program has a fixed number of passes, enough for every length up to a bound. A length with
//! fewer factors uses the last passes; the others are inactive.

/// A number that depends on the passes of a length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FftPassValue {
    /// The radix of pass `pass`; 0 if the pass is inactive.
    Radix {
        /// Index of the pass.
        pass: u32,
    },
    /// The product of the radices of the active passes before pass `pass`.
    Before {
        /// Index of the pass.
        pass: u32,
    },
    /// The index of the first active pass.
    First,
    /// The greatest radix.
    Greatest,
}

/// Number of passes that suffice for each length up to `bound`. All radices except one are at least
/// 3.
pub fn fft_pass_count(bound: usize) -> u32 {
    let (mut passes, mut product) = (1, 3usize);
    while product <= bound {
        (passes, product) = (passes + 1, product.saturating_mul(3));
    }
    passes
}

/// The radices of a length: all factors 4, then the other prime factors, ascending. The
/// only radix of length 1 is 1.
fn radices(n: u64) -> Vec<u64> {
    let twos = n.trailing_zeros();
    let mut radices = vec![4; (twos / 2) as usize];
    radices.extend((twos % 2 == 1).then_some(2));
    let (mut rest, mut p) = (n >> twos, 3);
    while p * p <= rest {
        match rest.is_multiple_of(p) {
            true => {
                radices.push(p);
                rest /= p;
            }
            false => p += 2,
        }
    }
    radices.extend((rest > 1 || radices.is_empty()).then_some(rest));
    radices
}

/// The value for a transform of length `n` with this number of passes; 0 if `n` is not positive.
pub(super) fn value(n: i64, passes: u32, what: FftPassValue) -> i64 {
    let Some(n) = u64::try_from(n).ok().filter(|n| *n > 0) else {
        return 0;
    };
    let radices = radices(n);
    let first = (passes as usize).saturating_sub(radices.len());
    let own = |pass: u32| (pass as usize).checked_sub(first);
    let value = match what {
        FftPassValue::Radix { pass } => own(pass).and_then(|at| radices.get(at)).copied(),
        FftPassValue::Before { pass } => {
            let before = own(pass).unwrap_or(0).min(radices.len());
            Some(radices[..before].iter().product())
        }
        FftPassValue::First => Some(first as u64),
        FftPassValue::Greatest => radices.iter().max().copied(),
    };
    value.map_or(0, |value| value as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn active_passes_multiply_to_the_length() {
        for bound in [1, 2, 8, 9, 100, 4096] {
            let passes = fft_pass_count(bound);
            for n in 1..=bound as i64 {
                let get = |what| value(n, passes, what);
                let first = get(FftPassValue::First) as u32;
                let mut product = 1;
                for pass in 0..passes {
                    let radix = get(FftPassValue::Radix { pass });
                    assert_eq!(radix > 0, pass >= first, "{n}");
                    assert_eq!(get(FftPassValue::Before { pass }), product, "{n}");
                    product *= radix.max(1);
                }
                assert_eq!(product, n);
            }
        }
        assert_eq!(value(0, 3, FftPassValue::Greatest), 0);
        assert_eq!(value(2 * 7 * 13, 9, FftPassValue::Greatest), 13);
    }
}

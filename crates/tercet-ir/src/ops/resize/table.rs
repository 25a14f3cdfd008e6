//! The source elements of interpolated results along one axis.
//!
//! Positions are exact fractions of integers, because every float scale is a fraction. Rounding
//! therefore never decides which elements are read.

use tercet_tensor::Dim;

use super::{Coordinates, NearestRounding, Resize, ResizeMode};

/// A fraction with a positive denominator.
///
/// ```
/// use tercet_ir::internals::Quotient;
/// assert_eq!(Quotient { over: -7, under: 2 }.floor(), -4);
/// ```
#[derive(Clone, Copy)]
pub struct Quotient {
    /// The numerator.
    pub over: i128,
    /// The denominator.
    pub under: i128,
}

impl Quotient {
    /// The largest integer that is not greater.
    pub fn floor(self) -> i128 {
        self.over.div_euclid(self.under)
    }

    fn ceil(self) -> i128 {
        -(-self.over).div_euclid(self.under)
    }

    /// `self + halves / 2`
    fn plus_halves(self, halves: i128) -> Quotient {
        Quotient {
            over: 2 * self.over + halves * self.under,
            under: 2 * self.under,
        }
    }
}

/// A positive float as an exact fraction.
pub fn exact(scale: f64) -> Quotient {
    let bits = scale.to_bits();
    let (exponent, digits) = ((bits >> 52) as i32, bits & ((1 << 52) - 1) | 1 << 52);
    let zeros = digits.trailing_zeros();
    let (digits, power) = (i128::from(digits >> zeros), exponent - 1075 + zeros as i32);
    match power {
        0.. => Quotient {
            over: digits << power,
            under: 1,
        },
        _ => Quotient {
            over: digits,
            under: 1 << -power,
        },
    }
}

/// `floor(n scale)`; `None` if it does not fit `usize`. The scale is between 1e-6 and 1e6.
pub fn scaled(n: usize, scale: f64) -> Option<usize> {
    if !(1e-6..=1e6).contains(&scale) {
        return None;
    }
    let s = exact(scale);
    let product = i128::try_from(n).ok()?.checked_mul(s.over)?;
    usize::try_from(product.div_euclid(s.under)).ok()
}

/// As [`scaled`], for a size that may be symbolic. `None` also if the scale of a symbolic size has
/// too many digits.
pub fn scaled_dim(n: &Dim, scale: f64) -> Option<Dim> {
    if let Some(n) = n.known() {
        return scaled(n, scale).map(Dim::Known);
    }
    if !(1e-6..=1e6).contains(&scale) {
        return None;
    }
    let s = exact(scale);
    let over = n.checked_mul(&Dim::Known(usize::try_from(s.over).ok()?))?;
    over.div_floor(usize::try_from(s.under).ok()?)
}

/// The source position `(a o + b + n' n + m' m) / c` of result `o`, on an axis of `n` elements and
/// `m` results, as a function of these sizes.
///
/// ```
/// use tercet_ir::ops::{Resize, ResizeMode, ResizePositions};
/// let positions = Resize::to_sizes([1usize], ResizeMode::Linear).positions(0);
/// // Without scales, the quotient of the sizes is the scale: (2 n o + n - m) / (2 m)
/// assert_eq!(positions, ResizePositions::OfSizes { halves: true });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResizePositions {
    /// `(2 n o + n - m) / (2 m)` if `halves`, else `o n / m`.
    OfSizes {
        /// Whether positions are those of centres.
        halves: bool,
    },
    /// `o (n - 1) / (m - 1)`; 0 if there is one result.
    AlignCorners,
    /// `(step o + first + of_n n + of_m m) / under`
    Scaled {
        /// The factor of the result's index.
        step: i128,
        /// The constant.
        first: i128,
        /// The factor of the size of the axis.
        of_n: i128,
        /// The factor of the number of results.
        of_m: i128,
        /// The divisor, at least 1.
        under: i128,
    },
}

impl ResizePositions {
    pub(super) fn new(c: Coordinates, scale: Option<f64>) -> ResizePositions {
        let (c, s) = match (c, scale) {
            (Coordinates::AlignCorners, _) => return ResizePositions::AlignCorners,
            (c, None) => {
                let halves = c != Coordinates::Asymmetric;
                return ResizePositions::OfSizes { halves };
            }
            (c, Some(s)) => (c, exact(s)),
        };
        let zero = ResizePositions::Scaled {
            step: s.under,
            first: 0,
            of_n: 0,
            of_m: 0,
            under: s.over,
        };
        match c {
            Coordinates::Asymmetric | Coordinates::AlignCorners => zero,
            Coordinates::HalfPixel | Coordinates::PytorchHalfPixel => ResizePositions::Scaled {
                step: 2 * s.under,
                first: s.under - s.over,
                of_n: 0,
                of_m: 0,
                under: 2 * s.over,
            },
            Coordinates::HalfPixelSymmetric => ResizePositions::Scaled {
                step: 2 * s.under,
                first: s.under - s.over,
                of_n: s.over,
                of_m: -s.under,
                under: 2 * s.over,
            },
        }
    }
}

/// The source position of result `o` of `m`, on an axis of `n` elements.
pub fn place(c: Coordinates, scale: Option<f64>, [o, n, m]: [i128; 3]) -> Quotient {
    let s = match scale {
        Some(s) => exact(s),
        None => Quotient { over: m, under: n },
    };
    let quotient = |over, under| Quotient { over, under };
    let half = quotient((2 * o + 1) * s.under - s.over, 2 * s.over);
    match c {
        Coordinates::PytorchHalfPixel if m == 1 => quotient(0, 1),
        Coordinates::HalfPixel | Coordinates::PytorchHalfPixel => half,
        Coordinates::HalfPixelSymmetric => {
            quotient((n - 1) * s.over + (2 * o + 1 - m) * s.under, 2 * s.over)
        }
        Coordinates::AlignCorners if m == 1 => quotient(0, 1),
        Coordinates::AlignCorners => quotient(o * (n - 1), m - 1),
        Coordinates::Asymmetric => quotient(o * s.under, s.over),
    }
}

/// The integer that a position rounds to.
pub fn nearest(rounding: NearestRounding, x: Quotient) -> i128 {
    match rounding {
        NearestRounding::RoundPreferFloor => x.plus_halves(-1).ceil(),
        NearestRounding::RoundPreferCeil => x.plus_halves(1).floor(),
        NearestRounding::Floor => x.floor(),
        NearestRounding::Ceil => x.ceil(),
    }
}

/// The weights of four neighbours for a position at distance `f` after the second one (Keys 1981).
pub fn cubic(a: f64, f: f64) -> [f64; 4] {
    let far = |d: f64| ((a * d - 5.0 * a) * d + 8.0 * a) * d - 4.0 * a;
    let near = |d: f64| ((a + 2.0) * d - (a + 3.0)) * d * d + 1.0;
    [far(f + 1.0), near(f), near(1.0 - f), far(2.0 - f)]
}

/// The source elements of each result along an axis, with their weights.
///
/// ```
/// use tercet_ir::ops::{Resize, ResizeMode, ResizeTaps};
/// let taps: ResizeTaps = Resize::to_sizes([4usize], ResizeMode::Linear).taps(0, 2, 4);
/// assert_eq!(taps.count, 2);
/// // The position of result 1 is 0.25.
/// assert_eq!((taps.index(1, 0), taps.weight(1, 0)), (0, 0.75));
/// assert_eq!((taps.index(1, 1), taps.weight(1, 1)), (1, 0.25));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct ResizeTaps {
    /// Number of source elements per result.
    pub count: usize,
    /// The element indices, all inside the axis, result by result.
    pub indices: Vec<u32>,
    /// The weights of the elements.
    pub weights: Vec<f64>,
}

impl ResizeTaps {
    pub(super) fn new(op: &Resize, scale: Option<f64>, n: usize, m: usize) -> ResizeTaps {
        let count = match op.mode {
            ResizeMode::Nearest => 1,
            ResizeMode::Linear => 2,
            ResizeMode::Cubic => 4,
        };
        let mut taps = ResizeTaps {
            count,
            indices: Vec::with_capacity(m * count),
            weights: Vec::with_capacity(m * count),
        };
        for o in 0..m {
            let x = place(op.coordinates, scale, [o as i128, n as i128, m as i128]);
            let (first, mut weights) = match op.mode {
                ResizeMode::Nearest => (nearest(op.rounding, x), vec![1.0]),
                ResizeMode::Linear => {
                    let f = rest(x);
                    (x.floor(), vec![1.0 - f, f])
                }
                ResizeMode::Cubic => (x.floor() - 1, cubic(op.cubic_a.0, rest(x)).to_vec()),
            };
            let at = (0..count).map(|t| first + t as i128);
            if op.exclude_outside && op.mode != ResizeMode::Nearest {
                for (w, at) in weights.iter_mut().zip(at.clone()) {
                    if !(0..n as i128).contains(&at) {
                        *w = 0.0;
                    }
                }
                let sum: f64 = weights.iter().sum();
                weights.iter_mut().for_each(|w| *w /= sum);
            }
            let inside = at.map(|at| at.clamp(0, n as i128 - 1) as u32);
            taps.indices.extend(inside);
            taps.weights.extend(weights);
        }
        taps
    }

    /// The index of element `tap` of a result.
    pub fn index(&self, result: usize, tap: usize) -> usize {
        self.indices[result * self.count + tap] as usize
    }

    /// The weight of element `tap` of a result.
    pub fn weight(&self, result: usize, tap: usize) -> f64 {
        self.weights[result * self.count + tap]
    }
}

/// The fractional part of a position, 0 to 1.
pub fn rest(x: Quotient) -> f64 {
    (x.over - x.floor() * x.under) as f64 / x.under as f64
}

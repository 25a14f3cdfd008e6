//! Quotients of dimensions, rounded down: the canonical form, values and bounds.
//!
//! The numerator of a quotient has no term that is a multiple of the divisor. Its constant is
//! between 0 and the divisor. No number divides the divisor and all other coefficients.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use super::{Bindings, Dim, Monomial, Polynomial, Symbol};

/// One factor of a term of a dimension.
///
/// ```
/// use tercet_tensor::{Dim, DimFactor};
/// let half = Dim::sym("s").div_floor(2).expect("2 is not 0");
/// let terms = half.sum();
/// assert!(matches!(terms[0].0[..], [DimFactor::Quotient(_)]));
/// assert_eq!(terms[0].1, 1);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DimFactor {
    /// A symbol.
    Symbol(Symbol),
    /// A quotient, rounded down.
    Quotient(Arc<DimQuotient>),
}

/// An expression over symbols divided by a positive number, and rounded down.
///
/// ```
/// use tercet_tensor::{Dim, DimFactor};
/// let half = Dim::sym("s").div_floor(2).expect("2 is not 0");
/// let DimFactor::Quotient(quotient) = &half.sum()[0].0[0] else { unreachable!() };
/// assert_eq!((quotient.numerator(), quotient.divisor()), (Dim::sym("s"), 2));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DimQuotient {
    numerator: Arc<Polynomial>,
    divisor: i64,
}

/// Why an expression has no value: the symbol without a value, or `None` on overflow.
type NoValue = Option<Symbol>;

impl DimQuotient {
    /// The expression that is divided.
    pub fn numerator(&self) -> Dim {
        Dim::Sym(self.numerator.clone())
    }

    /// The positive divisor.
    pub fn divisor(&self) -> i64 {
        self.divisor
    }
}

/// The greatest depth of quotients within quotients. Deeper quotients occur only in text written by
/// hand: quotients of quotients merge into one.
const MAX_DEPTH: usize = 64;

/// A sum divided by a positive number and rounded down; `None` on overflow, for too deep quotients,
/// and for a negative constant.
pub(super) fn divided(mut terms: BTreeMap<Monomial, i64>, divisor: i64) -> Option<Dim> {
    if divisor <= 0 {
        return None;
    }
    terms.retain(|_, c| *c != 0);
    let mut whole = BTreeMap::new();
    let mut rest = BTreeMap::new();
    for (m, c) in terms {
        // The remainder of the constant is never negative; that of another term keeps its sign, so
        // that upper bounds stay tight.
        let (quotient, remainder) = match m.is_empty() {
            true => (c.div_euclid(divisor), c.rem_euclid(divisor)),
            false => (c / divisor, c % divisor),
        };
        if remainder != 0 {
            rest.insert(m.clone(), remainder);
        }
        whole.insert(m, quotient);
    }
    if rest.keys().any(|m| !m.is_empty()) {
        let (factor, beyond) = quotient_of(rest, divisor)?;
        add(&mut whole, vec![factor], 1)?;
        add(&mut whole, Vec::new(), beyond)?;
    }
    Dim::from_terms(whole)
}

fn add(terms: &mut BTreeMap<Monomial, i64>, m: Monomial, c: i64) -> Option<()> {
    let slot = terms.entry(m).or_insert(0);
    *slot = slot.checked_add(c)?;
    Some(())
}

/// The factor for a remaining sum, and a constant that leaves the quotient.
fn quotient_of(mut rest: BTreeMap<Monomial, i64>, mut divisor: i64) -> Option<(DimFactor, i64)> {
    let mut beyond = 0;
    loop {
        let constant = rest.remove([].as_slice()).unwrap_or(0);
        let common = rest.values().fold(divisor, |a, b| gcd(a, *b));
        rest.values_mut().for_each(|c| *c /= common);
        divisor /= common;
        let constant = constant.div_euclid(common);
        // floor((floor(a/n) + c) / m) = floor((a + c n) / (n m))
        let inner = match rest.iter().next() {
            Some((m, 1)) if rest.len() == 1 => match m.as_slice() {
                [DimFactor::Quotient(inner)] => Some(inner.clone()),
                _ => None,
            },
            _ => None,
        };
        let (from, by) = match inner {
            None => (constant, divisor),
            Some(inner) => {
                rest = inner.numerator.0.iter().cloned().collect();
                let own = rest.remove([].as_slice()).unwrap_or(0);
                let added = constant.checked_mul(inner.divisor)?;
                divisor = divisor.checked_mul(inner.divisor)?;
                let sum = own.checked_add(added)?;
                beyond += sum.div_euclid(divisor);
                rest.insert(Vec::new(), sum.rem_euclid(divisor));
                continue;
            }
        };
        if from != 0 {
            rest.insert(Vec::new(), from);
        }
        let numerator = Polynomial(rest.into_iter().collect());
        if numerator.depth() >= MAX_DEPTH {
            return None;
        }
        let quotient = DimQuotient {
            numerator: Arc::new(numerator),
            divisor: by,
        };
        return Some((DimFactor::Quotient(Arc::new(quotient)), beyond));
    }
}

fn gcd(a: i64, b: i64) -> i64 {
    let (mut a, mut b) = (a.unsigned_abs(), b.unsigned_abs());
    while b != 0 {
        (a, b) = (b, a % b);
    }
    // The divisor is positive, so the result is at most the divisor.
    a as i64
}

impl DimFactor {
    /// The value of the factor. A quotient of a negative number is negative.
    pub(super) fn value(&self, values: &Bindings) -> Result<i128, NoValue> {
        match self {
            DimFactor::Symbol(s) => {
                let value = values.get(s).ok_or_else(|| Some(s.clone()))?;
                Ok(value as i128)
            }
            DimFactor::Quotient(q) => {
                let numerator = q.numerator.value(values)?;
                Ok(numerator.div_euclid(i128::from(q.divisor)))
            }
        }
    }

    fn depth(&self) -> usize {
        match self {
            DimFactor::Symbol(_) => 0,
            DimFactor::Quotient(q) => 1 + q.numerator.depth(),
        }
    }

    /// True if the factor is provably at least 0 for all values of the symbols.
    fn is_nonnegative(&self) -> bool {
        match self {
            DimFactor::Symbol(_) => true,
            DimFactor::Quotient(q) => q.numerator.is_nonnegative(),
        }
    }

    fn proves_nonnegative(&self, steps: &mut u32) -> bool {
        match self {
            DimFactor::Symbol(_) => true,
            DimFactor::Quotient(q) => q.numerator.proves_nonnegative(steps),
        }
    }

    /// The least and the greatest value, when each symbol is between zero and its bound.
    fn range(&self, bounds: &Bindings) -> Result<(i128, i128), NoValue> {
        match self {
            DimFactor::Symbol(_) => Ok((0, self.value(bounds)?)),
            DimFactor::Quotient(q) => {
                let divisor = i128::from(q.divisor);
                let least = match q.numerator.is_nonnegative() {
                    true => 0,
                    false => q.numerator.least(bounds)?.div_euclid(divisor),
                };
                Ok((least, q.numerator.greatest(bounds)?.div_euclid(divisor)))
            }
        }
    }
}

impl Polynomial {
    /// Calls `f` with each symbol, also with those inside quotients.
    pub(super) fn for_each_symbol<'a>(&'a self, f: &mut dyn FnMut(&'a Symbol)) {
        for factor in self.0.iter().flat_map(|(m, _)| m) {
            match factor {
                DimFactor::Symbol(s) => f(s),
                DimFactor::Quotient(q) => q.numerator.for_each_symbol(f),
            }
        }
    }

    fn depth(&self) -> usize {
        let factors = self.0.iter().flat_map(|(m, _)| m);
        factors.map(DimFactor::depth).max().unwrap_or(0)
    }

    /// The value, which may be negative.
    pub(super) fn value(&self, values: &Bindings) -> Result<i128, NoValue> {
        let mut sum = 0i128;
        for (m, c) in &self.0 {
            let mut term = i128::from(*c);
            for factor in m {
                term = term.checked_mul(factor.value(values)?).ok_or(None)?;
            }
            sum = sum.checked_add(term).ok_or(None)?;
        }
        Ok(sum)
    }

    /// The terms with these sizes in place of symbols; `None` on overflow.
    pub(super) fn with_sizes(&self, sizes: &Bindings) -> Option<BTreeMap<Monomial, i64>> {
        let mut terms = BTreeMap::new();
        for (m, c) in &self.0 {
            let mut products = BTreeMap::from([(Vec::new(), *c)]);
            for factor in m {
                products = times(&products, &factor.with_sizes(sizes)?)?;
            }
            for (m, c) in products {
                add(&mut terms, m, c)?;
            }
        }
        Some(terms)
    }

    /// True if the value is provably at least 0 for all values of the symbols.
    pub(super) fn is_nonnegative(&self) -> bool {
        /// Maximum number of steps of a proof.
        const MAX_STEPS: u32 = 256;
        let mut steps = MAX_STEPS;
        self.proves_nonnegative(&mut steps)
    }

    /// As [`Polynomial::is_nonnegative`], in at most this number of steps. A quotient is at most
    /// its numerator over the divisor, and less than 1 below it; the proof replaces quotients by
    /// these bounds.
    fn proves_nonnegative(&self, steps: &mut u32) -> bool {
        let mut terms: BTreeMap<Monomial, i64> = self.0.iter().cloned().collect();
        while *steps > 0 {
            *steps -= 1;
            let is_open = |m: &Monomial, c: i64, steps: &mut u32| {
                c < 0 || !m.iter().all(|f| f.proves_nonnegative(steps))
            };
            let open = terms.iter().find_map(|(m, c)| match m.as_slice() {
                [DimFactor::Quotient(q)] => {
                    is_open(m, *c, steps).then(|| (m.clone(), *c, q.clone()))
                }
                _ => None,
            });
            // A positive quotient may outweigh a negative term.
            let open = open.or_else(|| match terms.iter().any(|(m, c)| is_open(m, *c, steps)) {
                true => terms.iter().find_map(|(m, c)| match m.as_slice() {
                    [DimFactor::Quotient(q)] => Some((m.clone(), *c, q.clone())),
                    _ => None,
                }),
                false => None,
            });
            let Some((m, c, q)) = open else {
                return terms.iter().all(|(m, c)| !is_open(m, *c, steps));
            };
            terms.remove(&m);
            match scale_add(&terms, &q, c) {
                Some(scaled) => terms = scaled,
                None => return false,
            }
        }
        false
    }

    /// The least value, when each symbol is between zero and its bound.
    fn least(&self, bounds: &Bindings) -> Result<i128, NoValue> {
        self.extreme(bounds, false)
    }

    /// The greatest value, when each symbol is between zero and its bound. The result may exceed
    /// the greatest value that is reached.
    pub(super) fn greatest(&self, bounds: &Bindings) -> Result<i128, NoValue> {
        self.extreme(bounds, true)
    }

    fn extreme(&self, bounds: &Bindings, greatest: bool) -> Result<i128, NoValue> {
        let mut sum = 0i128;
        for (m, c) in &self.0 {
            let upwards = (*c > 0) == greatest;
            // A product of factors that can be 0 is at least 0, so no bound is necessary.
            let starts_at_zero = m.iter().any(|f| matches!(f, DimFactor::Symbol(_)))
                && m.iter().all(DimFactor::is_nonnegative);
            if !upwards && starts_at_zero {
                continue;
            }
            let (mut least, mut most) = (1i128, 1i128);
            for factor in m {
                let (low, high) = factor.range(bounds)?;
                let ends = [(least, low), (least, high), (most, low), (most, high)];
                let mut products = [0i128; 4];
                for (to, (a, b)) in products.iter_mut().zip(ends) {
                    *to = a.checked_mul(b).ok_or(None)?;
                }
                least = products.into_iter().fold(i128::MAX, i128::min);
                most = products.into_iter().fold(i128::MIN, i128::max);
            }
            let end = if upwards { most } else { least };
            let term = end.checked_mul(i128::from(*c)).ok_or(None)?;
            sum = sum.checked_add(term).ok_or(None)?;
        }
        Ok(sum)
    }
}

impl DimFactor {
    fn with_sizes(&self, sizes: &Bindings) -> Option<BTreeMap<Monomial, i64>> {
        match self {
            DimFactor::Symbol(s) => match sizes.get(s) {
                Some(n) => Some(BTreeMap::from([(Vec::new(), i64::try_from(n).ok()?)])),
                None => Some(BTreeMap::from([(vec![self.clone()], 1)])),
            },
            DimFactor::Quotient(q) => {
                let numerator = q.numerator.with_sizes(sizes)?;
                let symbolic = numerator.iter().any(|(m, c)| !m.is_empty() && *c != 0);
                match symbolic {
                    true => divided(numerator, q.divisor)?.terms(),
                    false => {
                        let constant = numerator.get([].as_slice()).copied().unwrap_or(0);
                        let quotient = constant.div_euclid(q.divisor);
                        Some(BTreeMap::from([(Vec::new(), quotient)]))
                    }
                }
            }
        }
    }
}

/// The product of two sums; `None` on overflow.
fn times(
    left: &BTreeMap<Monomial, i64>,
    right: &BTreeMap<Monomial, i64>,
) -> Option<BTreeMap<Monomial, i64>> {
    let mut product = BTreeMap::new();
    for (ma, ca) in left {
        for (mb, cb) in right {
            let mut m = [ma.as_slice(), mb].concat();
            m.sort();
            add(&mut product, m, ca.checked_mul(*cb)?)?;
        }
    }
    Some(product)
}

/// A lower bound of `divisor (terms + c quotient)`, in which the numerator replaces the quotient.
fn scale_add(
    terms: &BTreeMap<Monomial, i64>,
    q: &DimQuotient,
    c: i64,
) -> Option<BTreeMap<Monomial, i64>> {
    let mut scaled = BTreeMap::new();
    for (m, factor) in terms {
        scaled.insert(m.clone(), factor.checked_mul(q.divisor)?);
    }
    for (m, factor) in &q.numerator.0 {
        add(&mut scaled, m.clone(), factor.checked_mul(c)?)?;
    }
    if c > 0 {
        add(&mut scaled, Vec::new(), -c.checked_mul(q.divisor - 1)?)?;
    }
    scaled.retain(|_, c| *c != 0);
    Some(scaled)
}

impl fmt::Display for Polynomial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Symbols come first and the constant last, as people write expressions: `2*s+1`.
        let constant = self.0.iter().filter(|(m, _)| m.is_empty());
        let terms = self.0.iter().filter(|(m, _)| !m.is_empty());
        for (i, (m, c)) in terms.chain(constant).enumerate() {
            let sign = match (*c < 0, i) {
                (true, _) => "-",
                (false, 0) => "",
                (false, _) => "+",
            };
            f.write_str(sign)?;
            let magnitude = c.unsigned_abs();
            if m.is_empty() || magnitude != 1 {
                write!(f, "{magnitude}")?;
            }
            for (j, factor) in m.iter().enumerate() {
                let star = if j > 0 || magnitude != 1 { "*" } else { "" };
                write!(f, "{star}{factor}")?;
            }
        }
        Ok(())
    }
}

/// A symbol's name, or a quotient as `((s+1)/2)`.
impl fmt::Display for DimFactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DimFactor::Symbol(s) => write!(f, "{s}"),
            DimFactor::Quotient(q) => match q.numerator.0.len() {
                1 => write!(f, "({}/{})", q.numerator, q.divisor),
                _ => write!(f, "(({})/{})", q.numerator, q.divisor),
            },
        }
    }
}

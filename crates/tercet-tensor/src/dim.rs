//! Dimensions: known sizes and polynomials over named symbols.
//!
//! A symbol is a size that may differ in each run (batch size, sequence length). The upper bound of
//! a symbol is a compile option. Sums, differences, products and quotients of dimensions have one
//! canonical form, so equal expressions compare equal: `(s + 1) * 2 == 2*s + 2`. Quotients are
//! rounded down: `(s/2)`. Two different symbols are never assumed to be equal.

mod quotient;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

pub use quotient::{DimFactor, DimQuotient};

/// A named size. Symbols with the same name are the same symbol.
///
/// ```
/// use tercet_tensor::{Dim, Symbol};
/// let batch = Symbol::new("batch");
/// assert_eq!(Dim::sym("batch").as_symbol(), Some(&batch));
/// assert_eq!(batch.name(), "batch");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Symbol(Arc<str>);

impl Symbol {
    /// The symbol with this name.
    pub fn new(name: &str) -> Symbol {
        Symbol(name.into())
    }

    /// The symbol's name.
    pub fn name(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Symbol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Values or upper bounds of symbols.
///
/// Sorted by name. The storage is a vector, which keeps its memory when cleared. Binding the sizes
/// of the next run therefore allocates nothing.
///
/// ```
/// use tercet_tensor::{Bindings, DType, Dim, Symbol, Type};
/// let sizes = Bindings::new().with("batch", 2).with("tokens", 7);
/// assert_eq!(sizes.get(&Symbol::new("tokens")), Some(7));
/// let ty = Type::new(DType::I32, [Dim::sym("batch"), Dim::sym("tokens")]);
/// assert_eq!(ty.eval(&sizes)?.to_string(), "i32[2, 7]");
/// # Ok::<(), tercet_tensor::DimError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bindings(Vec<(Symbol, usize)>);

impl Bindings {
    /// Empty bindings.
    pub fn new() -> Bindings {
        Bindings::default()
    }

    /// Adds or replaces a value and returns the bindings, for chaining.
    pub fn with(mut self, name: &str, value: usize) -> Bindings {
        self.set(&Symbol::new(name), value);
        self
    }

    /// Adds or replaces the value of a symbol.
    pub fn set(&mut self, symbol: &Symbol, value: usize) {
        match self.0.binary_search_by(|(s, _)| s.cmp(symbol)) {
            Ok(at) => self.0[at].1 = value,
            Err(at) => self.0.insert(at, (symbol.clone(), value)),
        }
    }

    /// The value of a symbol, if bound.
    pub fn get(&self, symbol: &Symbol) -> Option<usize> {
        let at = self.0.binary_search_by(|(s, _)| s.cmp(symbol)).ok()?;
        Some(self.0[at].1)
    }

    /// All symbols and values, in the order of the names.
    pub fn iter(&self) -> impl Iterator<Item = (&Symbol, usize)> {
        self.0.iter().map(|(s, v)| (s, *v))
    }

    /// Removes every value.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

/// Why a dimension has no valid value.
///
/// ```
/// use tercet_tensor::{Bindings, Dim, DimError};
/// let rest = Dim::sym("s").checked_sub(&Dim::Known(4)).expect("the difference is not constant");
/// assert!(matches!(rest.eval(&Bindings::new()), Err(DimError::Unbound { .. })));
/// let error = rest.eval(&Bindings::new().with("s", 3)).unwrap_err();
/// assert!(matches!(error, DimError::Negative { value: -1, .. }));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DimError {
    /// A symbol of the expression has no value.
    #[error("symbol `{symbol}` has no value; bind it through an input or a compile option")]
    Unbound {
        /// The symbol without a value.
        symbol: Symbol,
    },
    /// No value of the symbols gives the expression this size.
    #[error("axis {axis} of `{name}` has size {size}, which `{dim}` cannot be: {reason}")]
    NoSolution {
        /// Name of the input.
        name: String,
        /// The axis of the input.
        axis: usize,
        /// Size of the axis.
        size: usize,
        /// The expression that the graph declares for the axis.
        dim: Dim,
        /// Why the expression cannot have this size.
        reason: String,
    },
    /// The expression is negative for the given values.
    #[error("dimension `{dim}` is negative ({value}) for these sizes")]
    Negative {
        /// The negative expression.
        dim: Dim,
        /// Value of the expression.
        value: i128,
    },
    /// A shape has more elements than `usize` arithmetic supports.
    #[error("shape {shape} has more than 2^{log2} elements for these sizes")]
    TooMany {
        /// The shape that is too large, as text.
        shape: String,
        /// Base-2 logarithm of the maximum element count.
        log2: u32,
    },
    /// The expression exceeds the address space.
    #[error("dimension `{dim}` overflows for these sizes")]
    Overflow {
        /// The expression that overflows.
        dim: Dim,
    },
}

/// A product of symbols and quotients, sorted; empty for the constant term.
type Monomial = Vec<DimFactor>;

/// A polynomial with integer coefficients over symbols and quotients. The polynomial is never
/// constant, its terms are sorted, and it has no zero coefficients.
///
/// ```
/// use tercet_tensor::Dim;
/// let s = Dim::sym("s");
/// let a = s.checked_add(&Dim::Known(1)).and_then(|d| d.checked_mul(&Dim::Known(2)));
/// let b = s.checked_mul(&Dim::Known(2)).and_then(|d| d.checked_add(&Dim::Known(2)));
/// assert!(matches!(a, Some(Dim::Sym(_))));
/// assert_eq!(a, b);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Polynomial(Vec<(Monomial, i64)>);

/// A sum of products under construction. Adding a term costs time proportional to the
/// term, not to the sum.
///
/// ```
/// use tercet_tensor::{DimFactor, PolynomialBuilder, Symbol};
/// let mut sum = PolynomialBuilder::default();
/// sum.add(vec![DimFactor::Symbol(Symbol::new("s"))], 2).unwrap();
/// sum.add(vec![], 1).unwrap();
/// assert_eq!(sum.finish().unwrap().to_string(), "2*s+1");
/// ```
#[derive(Clone, Debug, Default)]
pub struct PolynomialBuilder(BTreeMap<Monomial, i64>);

impl PolynomialBuilder {
    /// Adds `times` times the product of these factors; `None` on overflow.
    pub fn add(&mut self, mut factors: Vec<DimFactor>, times: i64) -> Option<()> {
        factors.sort();
        let slot = self.0.entry(factors).or_insert(0);
        *slot = slot.checked_add(times)?;
        Some(())
    }

    /// The finished dimension; `None` if it is a negative constant.
    pub fn finish(self) -> Option<Dim> {
        Dim::from_terms(self.0)
    }

    /// The terms of the sum.
    pub fn into_terms(self) -> Vec<(Vec<DimFactor>, i64)> {
        self.0.into_iter().collect()
    }

    /// The finished sum divided by a positive number and rounded down; `None` on overflow, or if
    /// the result is a negative constant.
    pub fn finish_quotient(self, divisor: i64) -> Option<Dim> {
        quotient::divided(self.0, divisor)
    }
}

/// Maximum number of terms that multiplying two sums may produce.
const MAX_PRODUCT_TERMS: usize = 1 << 17;

/// One dimension of a shape.
///
/// ```
/// use tercet_tensor::{Bindings, Dim};
/// let s = Dim::sym("s");
/// let twice = s.clone().checked_mul(&Dim::Known(2)).unwrap();
/// assert_eq!(twice.to_string(), "2*s");
/// assert_eq!(twice.eval(&Bindings::new().with("s", 5)), Ok(10));
/// let third = s.div_floor(3).unwrap();
/// assert_eq!(third.to_string(), "(s/3)");
/// assert_eq!(third.eval(&Bindings::new().with("s", 5)), Ok(1));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Dim {
    /// A size fixed when the graph is built.
    Known(usize),
    /// A symbol or an expression over symbols.
    Sym(Arc<Polynomial>),
}

impl Dim {
    /// The dimension that is one symbol with this name.
    pub fn sym(name: &str) -> Dim {
        let symbol = DimFactor::Symbol(Symbol::new(name));
        Dim::Sym(Arc::new(Polynomial(vec![(vec![symbol], 1)])))
    }

    /// The size, if it is known.
    pub fn known(&self) -> Option<usize> {
        match self {
            Dim::Known(n) => Some(*n),
            Dim::Sym(_) => None,
        }
    }

    /// The symbol, if the dimension is exactly one symbol.
    pub fn as_symbol(&self) -> Option<&Symbol> {
        match self {
            Dim::Known(_) => None,
            Dim::Sym(p) => match p.0.as_slice() {
                [(m, 1)] => match m.as_slice() {
                    [DimFactor::Symbol(s)] => Some(s),
                    [] | [DimFactor::Quotient(_)] | [_, _, ..] => None,
                },
                [] | [_] | [_, _, ..] => None,
            },
        }
    }

    /// True for the known size 1, the size that broadcasts.
    pub fn is_one(&self) -> bool {
        *self == Dim::Known(1)
    }

    /// The largest `k <= 16` for which 2^k divides the dimension for all values of its symbols. For
    /// `4*s + 6` the result is 1.
    pub fn twos(&self) -> u32 {
        const MAX_TWOS: u32 = 16;
        match self {
            Dim::Known(n) => n.trailing_zeros().min(MAX_TWOS),
            Dim::Sym(p) => {
                let terms = p.0.iter().map(|(_, factor)| factor.trailing_zeros());
                terms.fold(MAX_TWOS, u32::min)
            }
        }
    }

    /// Calls `f` with each symbol of the expression, also with those inside quotients.
    pub fn for_each_symbol<'a>(&'a self, mut f: impl FnMut(&'a Symbol)) {
        if let Dim::Sym(p) = self {
            p.for_each_symbol(&mut f);
        }
    }

    /// The dimension as a sum: each term is a product of symbols and quotients (empty for the
    /// constant) and its coefficient. Empty if the size does not fit `i64`.
    pub fn sum(&self) -> Vec<(Vec<DimFactor>, i64)> {
        self.terms().into_iter().flatten().collect()
    }

    /// The terms of the sum; `None` for a constant that does not fit `i64`.
    fn terms(&self) -> Option<BTreeMap<Monomial, i64>> {
        Some(match self {
            Dim::Known(0) => BTreeMap::new(),
            Dim::Known(n) => BTreeMap::from([(Vec::new(), i64::try_from(*n).ok()?)]),
            Dim::Sym(p) => p.0.iter().cloned().collect(),
        })
    }

    /// The canonical dimension of a sum of terms; `None` if it is a negative constant.
    fn from_terms(mut terms: BTreeMap<Monomial, i64>) -> Option<Dim> {
        terms.retain(|_, c| *c != 0);
        match terms.len() {
            0 => Some(Dim::Known(0)),
            1 if terms.contains_key([].as_slice()) => {
                usize::try_from(terms[[].as_slice()]).ok().map(Dim::Known)
            }
            _ => Some(Dim::Sym(Arc::new(Polynomial(terms.into_iter().collect())))),
        }
    }

    /// `self + other`; `None` on overflow.
    pub fn checked_add(&self, other: &Dim) -> Option<Dim> {
        self.add_scaled(other, 1)
    }

    /// `self - other`; `None` on overflow or if the result is a negative constant. If a symbolic
    /// result is negative for some sizes, [`Dim::eval`] returns an error for those sizes.
    pub fn checked_sub(&self, other: &Dim) -> Option<Dim> {
        self.add_scaled(other, -1)
    }

    fn add_scaled(&self, other: &Dim, sign: i64) -> Option<Dim> {
        if let (Dim::Known(a), Dim::Known(b)) = (self, other) {
            let (a, b) = (i64::try_from(*a).ok()?, i64::try_from(*b).ok()?);
            let sum = a.checked_add(b.checked_mul(sign)?)?;
            return usize::try_from(sum).ok().map(Dim::Known);
        }
        let mut terms = self.terms()?;
        for (m, c) in other.terms()? {
            let slot = terms.entry(m).or_insert(0);
            *slot = slot.checked_add(c.checked_mul(sign)?)?;
        }
        Dim::from_terms(terms)
    }

    /// `self * other`; `None` on overflow, or if the product of two sums would have more than 2^17
    /// terms.
    pub fn checked_mul(&self, other: &Dim) -> Option<Dim> {
        if let (Dim::Known(a), Dim::Known(b)) = (self, other) {
            let (a, b) = (i64::try_from(*a).ok()?, i64::try_from(*b).ok()?);
            return usize::try_from(a.checked_mul(b)?).ok().map(Dim::Known);
        }
        let mut terms = BTreeMap::new();
        let (left, right) = (self.terms()?, other.terms()?);
        let (fewer, more) = (left.len().min(right.len()), left.len().max(right.len()));
        if fewer > 1 && fewer.saturating_mul(more) > MAX_PRODUCT_TERMS {
            return None;
        }
        for (ma, ca) in left {
            for (mb, cb) in &right {
                let mut m = ma.clone();
                m.extend(mb.iter().cloned());
                m.sort();
                let slot = terms.entry(m).or_insert(0i64);
                *slot = slot.checked_add(ca.checked_mul(*cb)?)?;
            }
        }
        Dim::from_terms(terms)
    }

    /// `self / other`, if the quotient is exact for every size. `other` must be a known size, a
    /// product of symbols, or `self` itself; otherwise `None`.
    pub fn div_exact(&self, other: &Dim) -> Option<Dim> {
        if let (Dim::Known(a), Dim::Known(b)) = (self, other) {
            return (*b != 0 && a % b == 0).then(|| Dim::Known(a / b));
        }
        if self == other {
            return Some(Dim::Known(1));
        }
        let divisor = other.terms()?;
        let (dm, dc) = (divisor.len() == 1).then(|| divisor.into_iter().next())??;
        let mut terms = BTreeMap::new();
        for (mut m, c) in self.terms()? {
            for s in &dm {
                let at = m.iter().position(|x| x == s)?;
                m.remove(at);
            }
            if c % dc != 0 {
                return None;
            }
            terms.insert(m, c / dc);
        }
        Dim::from_terms(terms)
    }

    /// `self / by` rounded down. Terms that are multiples of `by` leave the quotient: `6*s - 1`
    /// divided by 2 is `3*s - 1`, and `2*s + t` divided by 2 is `s+(t/2)`. `None` if `by`
    /// is 0 or does not fit `i64`, on overflow, and for a negative constant.
    pub fn div_floor(&self, by: usize) -> Option<Dim> {
        let divisor = i64::try_from(by).ok().filter(|n| *n > 0)?;
        quotient::divided(self.terms()?, divisor)
    }

    /// True if `self >= other` provably holds for all values of the symbols.
    pub fn is_at_least(&self, other: &Dim) -> bool {
        match self.checked_sub(other) {
            Some(Dim::Known(_)) => true,
            Some(Dim::Sym(p)) => p.is_nonnegative(),
            None => false,
        }
    }

    /// The dimension with these sizes in place of symbols; symbols without a size remain.
    ///
    /// ```
    /// use tercet_tensor::{Bindings, Dim};
    /// let half = Dim::sym("s").checked_mul(&Dim::sym("t")).and_then(|n| n.div_floor(2)).unwrap();
    /// let fixed = half.with_sizes(&Bindings::new().with("s", 3))?;
    /// assert_eq!(fixed.to_string(), "t+(t/2)");
    /// assert_eq!(half.with_sizes(&Bindings::new().with("s", 3).with("t", 5))?, Dim::Known(7));
    /// # Ok::<(), tercet_tensor::DimError>(())
    /// ```
    ///
    /// # Errors
    /// [`DimError`] when the result is a negative number or too large.
    pub fn with_sizes(&self, sizes: &Bindings) -> Result<Dim, DimError> {
        let Dim::Sym(p) = self else {
            return Ok(self.clone());
        };
        let terms = p
            .with_sizes(sizes)
            .ok_or_else(|| DimError::Overflow { dim: self.clone() })?;
        let value = terms.get([].as_slice()).copied().unwrap_or(0);
        Dim::from_terms(terms).ok_or_else(|| DimError::Negative {
            dim: self.clone(),
            value: value.into(),
        })
    }

    /// The size for the given values of the symbols.
    ///
    /// # Errors
    /// [`DimError`] when a symbol is unbound or the value is negative or too large.
    pub fn eval(&self, values: &Bindings) -> Result<usize, DimError> {
        let p = match self {
            Dim::Known(n) => return Ok(*n),
            Dim::Sym(p) => p,
        };
        let overflow = || DimError::Overflow { dim: self.clone() };
        let sum = p.value(values).map_err(|e| match e {
            Some(symbol) => DimError::Unbound { symbol },
            None => overflow(),
        })?;
        if sum < 0 {
            return Err(DimError::Negative {
                dim: self.clone(),
                value: sum,
            });
        }
        if sum > isize::MAX as i128 {
            return Err(overflow());
        }
        Ok(sum as usize)
    }

    /// Solves the dimension for its one symbol that `values` lacks. The expression must be a
    /// multiple of that symbol plus known terms. Returns the symbol with its value, or the reason
    /// why there is no solution. A quotient does not determine its symbols.
    pub fn solve(
        &self,
        size: usize,
        values: &Bindings,
    ) -> Option<(&Symbol, Result<usize, String>)> {
        let Dim::Sym(p) = self else {
            return None;
        };
        let (mut unknown, mut factor, mut rest) = (None, 0i128, size as i128);
        for (factors, c) in &p.0 {
            let mut term = i128::from(*c);
            let mut missing = None;
            for factor in factors {
                match (factor.value(values), factor) {
                    (Ok(value), _) => term = term.checked_mul(value)?,
                    (Err(_), DimFactor::Symbol(symbol)) if missing.is_none() => {
                        missing = Some(symbol)
                    }
                    (Err(_), _) => return None,
                }
            }
            match (missing, unknown) {
                (None, _) => rest = rest.checked_sub(term)?,
                (Some(symbol), Some(known)) if symbol != known => return None,
                (Some(symbol), _) => (unknown, factor) = (Some(symbol), factor.checked_add(term)?),
            }
        }
        let (symbol, factor) = (unknown?, Some(factor).filter(|f| *f != 0)?);
        let solved = match rest % factor {
            0 => usize::try_from(rest / factor).map_err(|_| {
                let value = rest / factor;
                format!("`{symbol}` would be {value}")
            }),
            _ => Err(match rest == size as i128 {
                true => format!("{size} is not a multiple of {factor}"),
                false => {
                    format!(
                        "{size} minus the known terms is {rest}, which is not a multiple of {factor}"
                    )
                }
            }),
        };
        Some((symbol, solved))
    }

    /// The maximum size when each symbol is between zero and its bound.
    ///
    /// # Errors
    /// [`DimError`] when a symbol has no bound or the value is too large.
    pub fn upper_bound(&self, bounds: &Bindings) -> Result<usize, DimError> {
        match self {
            Dim::Known(n) => Ok(*n),
            Dim::Sym(p) => {
                let overflow = || DimError::Overflow { dim: self.clone() };
                let most = p.greatest(bounds).map_err(|e| match e {
                    Some(symbol) => DimError::Unbound { symbol },
                    None => overflow(),
                })?;
                // A negative constant does not lower the bound.
                let constant = p.0.iter().find(|(m, _)| m.is_empty());
                let most = most - constant.map_or(0, |(_, c)| i128::from(*c).min(0));
                match isize::try_from(most.max(0)) {
                    Ok(most) => Ok(most as usize),
                    Err(_) => Err(overflow()),
                }
            }
        }
    }
}

impl From<usize> for Dim {
    fn from(n: usize) -> Dim {
        Dim::Known(n)
    }
}

impl From<&str> for Dim {
    fn from(symbol: &str) -> Dim {
        Dim::sym(symbol)
    }
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Dim::Known(n) => write!(f, "{n}"),
            Dim::Sym(p) => write!(f, "{p}"),
        }
    }
}

#[cfg(test)]
mod tests;

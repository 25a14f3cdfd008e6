//! Numbers of a program that follow from the sizes of a run.
//!
//! Every word of a parameter block and every grid is a [`Num`]: a constant, or an expression on the
//! [`Tape`], whose leaves are dimensions and the count of runs. Evaluating the tape is one pass over
//! a flat list, so that new sizes cost microseconds; nothing is lowered again.

use std::collections::{BTreeSet, HashMap};
use std::fmt;

use tercet_ir::random::Random;
use tercet_ir::{Bindings, Dim, DimError};

/// The place of an expression on the tape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ExprId(pub u32);

/// A whole number: known when planning, or computed for the sizes of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Num {
    /// Known.
    Const(i64),
    /// The value of an expression.
    Expr(ExprId),
}

impl Num {
    /// Zero.
    pub const ZERO: Num = Num::Const(0);
    /// One.
    pub const ONE: Num = Num::Const(1);

    /// The number, if it is known.
    pub fn known(self) -> Option<i64> {
        match self {
            Num::Const(n) => Some(n),
            Num::Expr(_) => None,
        }
    }
}

impl From<u32> for Num {
    fn from(n: u32) -> Num {
        Num::Const(i64::from(n))
    }
}

impl From<i32> for Num {
    fn from(n: i32) -> Num {
        Num::Const(i64::from(n))
    }
}

impl From<bool> for Num {
    fn from(b: bool) -> Num {
        Num::Const(i64::from(b))
    }
}

/// An operation of the tape. Its operands stand before it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Expr {
    /// The value of a dimension.
    Dim(Dim),
    /// The low or high 32 bits of the number of completed runs.
    Step {
        /// The high half.
        high: bool,
    },
    /// The low or high 32 bits of the seed of a random operator: that of the executable if one was set, else its own.
    Seed {
        /// Its own.
        own: u64,
        /// The high half.
        high: bool,
    },
    /// 1 where the weights of the parameter at this place of the signature keep their values in F16,
    /// else 0.
    FitsHalf(u32),
    /// `a + b`
    Add(Num, Num),
    /// `a - b`
    Sub(Num, Num),
    /// `a b`
    Mul(Num, Num),
    /// `a / b` rounded up; 0 where `b` is 0.
    CeilDiv(Num, Num),
    /// `a / b` rounded down; 0 where `b` is 0.
    Div(Num, Num),
    /// The lesser.
    Min(Num, Num),
    /// The greater.
    Max(Num, Num),
    /// 1 where `a <= b`, else 0.
    AtMost(Num, Num),
}

/// The expressions of a program, each once, operands before their users.
#[derive(Clone, Debug, Default)]
pub struct Tape {
    exprs: Vec<Expr>,
    known: HashMap<Expr, ExprId>,
    /// Dimensions that only graphs inside nodes have: a run that does not come to them may have sizes for
    /// which there are none.
    inside: BTreeSet<ExprId>,
}

impl PartialEq for Tape {
    fn eq(&self, other: &Tape) -> bool {
        self.exprs == other.exprs && self.inside == other.inside
    }
}

impl Tape {
    /// The number of expressions.
    pub fn len(&self) -> usize {
        self.exprs.len()
    }

    /// True without expressions.
    pub fn is_empty(&self) -> bool {
        self.exprs.is_empty()
    }

    /// True if some number depends on where the executable stands in its random numbers.
    pub fn draws(&self) -> bool {
        let is_drawn = |e: &Expr| matches!(e, Expr::Step { .. } | Expr::Seed { .. });
        self.exprs.iter().any(is_drawn)
    }

    fn push(&mut self, e: Expr) -> Num {
        if let Some(&id) = self.known.get(&e) {
            return Num::Expr(id);
        }
        let id = ExprId(self.exprs.len() as u32);
        self.exprs.push(e.clone());
        self.known.insert(e, id);
        Num::Expr(id)
    }

    /// The value of a dimension, which every run has.
    pub fn dim(&mut self, dim: &Dim) -> Num {
        let n = self.dim_inside(dim);
        if let Num::Expr(id) = n {
            self.inside.remove(&id);
        }
        n
    }

    /// The value of a dimension of a graph inside a node; 0 in runs for whose sizes it is not possible.
    pub fn dim_inside(&mut self, dim: &Dim) -> Num {
        if let Some(n) = dim.known() {
            return Num::Const(n as i64);
        }
        let before = self.exprs.len();
        let n = self.push(Expr::Dim(dim.clone()));
        if self.exprs.len() > before {
            self.inside.insert(ExprId(before as u32));
        }
        n
    }

    /// The low and the high word of the number of completed runs.
    pub fn step(&mut self) -> [Num; 2] {
        [false, true].map(|high| self.push(Expr::Step { high }))
    }

    /// The low and the high word of the seed of a random operator, whose own is `own`.
    pub fn seed(&mut self, own: u64) -> [Num; 2] {
        [false, true].map(|high| self.push(Expr::Seed { own, high }))
    }

    /// 1 where the weights of the parameter at this place of the signature keep their values in F16,
    /// else 0.
    pub fn fits_half(&mut self, param: u32) -> Num {
        self.push(Expr::FitsHalf(param))
    }

    /// `a + b`
    pub fn add(&mut self, a: Num, b: Num) -> Num {
        match (a, b) {
            (Num::ZERO, x) | (x, Num::ZERO) => x,
            _ => self.binary(a, b, Expr::Add),
        }
    }

    /// `a - b`
    pub fn sub(&mut self, a: Num, b: Num) -> Num {
        match b {
            Num::ZERO => a,
            _ => self.binary(a, b, Expr::Sub),
        }
    }

    /// `a b`
    pub fn mul(&mut self, a: Num, b: Num) -> Num {
        match (a, b) {
            (Num::ZERO, _) | (_, Num::ZERO) => Num::ZERO,
            (Num::ONE, x) | (x, Num::ONE) => x,
            _ => self.binary(a, b, Expr::Mul),
        }
    }

    /// `a / b` rounded up; 0 where `b` is 0.
    pub fn ceil_div(&mut self, a: Num, b: impl Into<Num>) -> Num {
        match b.into() {
            Num::ONE => a,
            b => self.binary(a, b, Expr::CeilDiv),
        }
    }

    /// `a / b` rounded down; 0 where `b` is 0.
    pub fn div(&mut self, a: Num, b: impl Into<Num>) -> Num {
        match b.into() {
            Num::ONE => a,
            b => self.binary(a, b, Expr::Div),
        }
    }

    /// The lesser.
    pub fn min(&mut self, a: Num, b: impl Into<Num>) -> Num {
        self.binary(a, b.into(), Expr::Min)
    }

    /// The greater.
    pub fn max(&mut self, a: Num, b: impl Into<Num>) -> Num {
        self.binary(a, b.into(), Expr::Max)
    }

    /// 1 where `a <= b`, else 0: a factor that turns a grid on or off.
    pub fn at_most(&mut self, a: Num, b: impl Into<Num>) -> Num {
        self.binary(a, b.into(), Expr::AtMost)
    }

    /// True if the number is a multiple of this one whatever the sizes of a run.
    pub fn is_multiple(&self, n: Num, of: u32) -> bool {
        of.is_power_of_two() && self.twos(n) >= of.trailing_zeros()
    }

    /// A power of two that divides the number at all sizes, at most 2^16.
    fn twos(&self, n: Num) -> u32 {
        const MOST: u32 = 16;
        let id = match n {
            Num::Const(n) => return n.trailing_zeros().min(MOST),
            Num::Expr(id) => id,
        };
        match self.exprs[id.0 as usize] {
            Expr::Add(a, b) | Expr::Sub(a, b) | Expr::Min(a, b) | Expr::Max(a, b) => {
                self.twos(a).min(self.twos(b))
            }
            Expr::Mul(a, b) => (self.twos(a) + self.twos(b)).min(MOST),
            Expr::Dim(ref dim) => dim.twos(),
            Expr::Step { .. }
            | Expr::Seed { .. }
            | Expr::FitsHalf(_)
            | Expr::CeilDiv(..)
            | Expr::Div(..)
            | Expr::AtMost(..) => 0,
        }
    }

    fn binary(&mut self, a: Num, b: Num, make: fn(Num, Num) -> Expr) -> Num {
        let e = make(a, b);
        match (a, b) {
            (Num::Const(_), Num::Const(_)) => Num::Const(apply(&e, |n| get(n, &[])).unwrap_or(0)),
            _ => self.push(e),
        }
    }

    /// Computes every expression into `values`, reusing it. `unfit` are the parameters whose weights do
    /// not keep their values in F16.
    ///
    /// # Errors
    /// [`DimError`] when a dimension that every run has is not possible for these sizes.
    pub fn eval(
        &self,
        sizes: &Bindings,
        random: Random,
        unfit: &[u32],
        values: &mut Vec<i64>,
    ) -> Result<(), DimError> {
        values.clear();
        for e in &self.exprs {
            let value = match e {
                Expr::Dim(d) => match d.eval(sizes) {
                    Ok(n) => n as i64,
                    Err(_) if self.inside.contains(&ExprId(values.len() as u32)) => 0,
                    Err(e) => return Err(e),
                },
                Expr::Step { high } => word(random.counter, *high),
                Expr::Seed { own, high } => word(random.seed.unwrap_or(*own), *high),
                Expr::FitsHalf(param) => i64::from(!unfit.contains(param)),
                Expr::Add(..)
                | Expr::Sub(..)
                | Expr::Mul(..)
                | Expr::CeilDiv(..)
                | Expr::Div(..)
                | Expr::Min(..)
                | Expr::Max(..)
                | Expr::AtMost(..) => apply(e, |n| get(n, values)).unwrap_or(0),
            };
            values.push(value);
        }
        Ok(())
    }

    /// The expressions in order, for printing.
    pub fn exprs(&self) -> &[Expr] {
        &self.exprs
    }
}

/// The low or the high word.
fn word(n: u64, high: bool) -> i64 {
    i64::from(if high { (n >> 32) as u32 } else { n as u32 })
}

/// The value of a number, given those of the tape.
pub(crate) fn get(n: Num, values: &[i64]) -> i64 {
    match n {
        Num::Const(n) => n,
        Num::Expr(id) => values[id.0 as usize],
    }
}

/// The arithmetic; `None` for leaves. Overflow saturates: numbers are checked where they are used.
fn apply(e: &Expr, get: impl Fn(Num) -> i64) -> Option<i64> {
    Some(match *e {
        Expr::Dim(_) | Expr::Step { .. } | Expr::Seed { .. } | Expr::FitsHalf(_) => return None,
        Expr::Add(a, b) => get(a).saturating_add(get(b)),
        Expr::Sub(a, b) => get(a).saturating_sub(get(b)),
        Expr::Mul(a, b) => get(a).saturating_mul(get(b)),
        Expr::CeilDiv(a, b) => match (get(a), get(b)) {
            (_, 0) => 0,
            (a, b) => a.div_euclid(b) + i64::from(a.rem_euclid(b) != 0),
        },
        Expr::Div(a, b) => match (get(a), get(b)) {
            (_, 0) => 0,
            (a, b) => a.div_euclid(b),
        },
        Expr::Min(a, b) => get(a).min(get(b)),
        Expr::Max(a, b) => get(a).max(get(b)),
        Expr::AtMost(a, b) => i64::from(get(a) <= get(b)),
    })
}

/// Prints a number with its expression written out.
pub struct Shown<'a>(pub Num, pub &'a Tape);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = match self.0 {
            Num::Const(n) => return write!(f, "{n}"),
            Num::Expr(id) => id,
        };
        let s = |n: Num| Shown(n, self.1);
        match &self.1.exprs[id.0 as usize] {
            Expr::Dim(d) => write!(f, "{d}"),
            Expr::Step { high: false } => write!(f, "runs"),
            Expr::Step { high: true } => write!(f, "runs>>32"),
            Expr::Seed { own, high } => write!(f, "{}", word(*own, *high)),
            Expr::FitsHalf(param) => write!(f, "param{param} fits f16"),
            Expr::Add(a, b) => write!(f, "({}+{})", s(*a), s(*b)),
            Expr::Sub(a, b) => write!(f, "({}-{})", s(*a), s(*b)),
            Expr::Mul(a, b) => write!(f, "({}*{})", s(*a), s(*b)),
            Expr::CeilDiv(a, b) => write!(f, "ceil({}/{})", s(*a), s(*b)),
            Expr::Div(a, b) => write!(f, "floor({}/{})", s(*a), s(*b)),
            Expr::Min(a, b) => write!(f, "min({},{})", s(*a), s(*b)),
            Expr::Max(a, b) => write!(f, "max({},{})", s(*a), s(*b)),
            Expr::AtMost(a, b) => write!(f, "({}<={})", s(*a), s(*b)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants_fold_and_expressions_are_shared() {
        let mut t = Tape::default();
        assert_eq!(t.ceil_div(Num::Const(7), 2u32), Num::Const(4));
        let s = t.dim(&Dim::sym("s"));
        let a = t.ceil_div(s, 64u32);
        let b = t.ceil_div(s, 64u32);
        assert_eq!(a, b);
        assert_eq!(t.mul(a, Num::ONE), a);
        let on = t.at_most(s, 8u32);
        let mut values = Vec::new();
        t.eval(
            &Bindings::new().with("s", 65),
            Random::default(),
            &[],
            &mut values,
        )
        .unwrap();
        assert_eq!((get(a, &values), get(on, &values)), (2, 0));
        assert_eq!(Shown(a, &t).to_string(), "ceil(s/64)");
        let words = t.mul(s, Num::Const(24));
        let apart = t.add(words, Num::Const(4));
        assert!(t.is_multiple(words, 8) && !t.is_multiple(words, 16));
        assert!(t.is_multiple(apart, 4) && !t.is_multiple(apart, 8));
        assert!(!t.is_multiple(s, 2) && t.is_multiple(Num::ZERO, 16));
    }

    #[test]
    fn impossible_sizes_inside_nodes_are_zero() {
        let less = Dim::sym("s").checked_sub(&Dim::Known(4)).unwrap();
        let mut t = Tape::default();
        let n = t.dim_inside(&less);
        let (sizes, mut values) = (Bindings::new().with("s", 3), Vec::new());
        t.eval(&sizes, Random::default(), &[], &mut values).unwrap();
        assert_eq!(get(n, &values), 0);
        assert_eq!(t.dim(&less), n);
        assert!(t.eval(&sizes, Random::default(), &[], &mut values).is_err());
    }
}

//! Symbolic integers: values of a program that depend on the sizes of a run.
//!
//! Every word of a parameter block and every grid size is a [`SymInt`]: a constant, or an expression
//! in the [`ExprArena`]. The leaves of expressions are dimensions and the run counter. Evaluation is one
//! pass over a flat list, so new sizes cost microseconds and lower nothing again.

mod fft_passes;

use std::collections::{BTreeSet, HashMap};
use std::fmt;

use tercet_ir::random::RngState;
use tercet_ir::{Bindings, Dim, DimError};

pub use fft_passes::FftPassValue;
pub use fft_passes::fft_pass_count;

/// Index of an expression in the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ExprNodeId(pub u32);

/// A symbolic integer: known at compile time, or computed from the sizes of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SymInt {
    /// A number known at compile time.
    Const(i64),
    /// The value of an expression of the arena.
    ExprNode(ExprNodeId),
}

impl SymInt {
    /// The constant 0.
    pub const ZERO: SymInt = SymInt::Const(0);
    /// The constant 1.
    pub const ONE: SymInt = SymInt::Const(1);

    /// The value, if it is known at compile time.
    pub fn known(self) -> Option<i64> {
        match self {
            SymInt::Const(n) => Some(n),
            SymInt::ExprNode(_) => None,
        }
    }
}

impl From<u32> for SymInt {
    fn from(n: u32) -> SymInt {
        SymInt::Const(i64::from(n))
    }
}

impl From<i32> for SymInt {
    fn from(n: i32) -> SymInt {
        SymInt::Const(i64::from(n))
    }
}

impl From<bool> for SymInt {
    fn from(b: bool) -> SymInt {
        SymInt::Const(i64::from(b))
    }
}

/// An operation of the expression arena. The operands of an operation precede it in the arena.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ExprNode {
    /// Value of a dimension.
    Dim(Dim),
    /// One 32-bit half of the number of completed runs.
    Step {
        /// Selects the high half.
        high: bool,
    },
    /// One 32-bit half of a random seed: the seed set on the executable, otherwise the operator's
    /// default seed.
    Seed {
        /// Default seed of the operator.
        own: u64,
        /// Selects the high half.
        high: bool,
    },
    /// 1 if F16 can represent the weights of the parameter at this index of the signature
    /// accurately, else 0.
    FitsF16(u32),
    /// `a + b`
    Add(SymInt, SymInt),
    /// `a - b`
    Sub(SymInt, SymInt),
    /// `a b`
    Mul(SymInt, SymInt),
    /// `a / b` rounded up; 0 if `b` is 0.
    CeilDiv(SymInt, SymInt),
    /// `a / b` rounded down; 0 if `b` is 0.
    Div(SymInt, SymInt),
    /// The smaller of two values.
    Min(SymInt, SymInt),
    /// The larger of two values.
    Max(SymInt, SymInt),
    /// 1 if `a <= b`, else 0.
    AtMost(SymInt, SymInt),
    /// A number that depends on the passes of a Fourier transform of symbolic length.
    FftPass {
        /// Length of the transform.
        n: SymInt,
        /// Number of passes of the program.
        passes: u32,
        /// The number.
        value: FftPassValue,
    },
}

/// Arena of hash-consed size expressions; operands precede their users.
#[derive(Clone, Debug, Default)]
pub struct ExprArena {
    exprs: Vec<ExprNode>,
    interned: HashMap<ExprNode, ExprNodeId>,
    /// Dimensions that occur only in nested graphs. These dimensions may be invalid in runs that do
    /// not reach the nested graphs.
    nested_dims: BTreeSet<ExprNodeId>,
}

impl PartialEq for ExprArena {
    fn eq(&self, other: &ExprArena) -> bool {
        self.exprs == other.exprs && self.nested_dims == other.nested_dims
    }
}

impl ExprArena {
    /// Number of expressions.
    pub fn len(&self) -> usize {
        self.exprs.len()
    }

    /// True if there are no expressions.
    pub fn is_empty(&self) -> bool {
        self.exprs.is_empty()
    }

    /// True if some expression depends on the random state of the executable.
    pub fn draws(&self) -> bool {
        let is_drawn = |e: &ExprNode| matches!(e, ExprNode::Step { .. } | ExprNode::Seed { .. });
        self.exprs.iter().any(is_drawn)
    }

    fn push(&mut self, e: ExprNode) -> SymInt {
        if let Some(&id) = self.interned.get(&e) {
            return SymInt::ExprNode(id);
        }
        let id = ExprNodeId(self.exprs.len() as u32);
        self.exprs.push(e.clone());
        self.interned.insert(e, id);
        SymInt::ExprNode(id)
    }

    /// Value of a dimension that must be valid in every run.
    pub fn dim(&mut self, dim: &Dim) -> SymInt {
        let n = self.dim_inside(dim);
        if let SymInt::ExprNode(id) = n {
            self.nested_dims.remove(&id);
        }
        n
    }

    /// Value of a dimension of a nested graph. The value is 0 in runs for which the dimension is
    /// invalid.
    pub fn dim_inside(&mut self, dim: &Dim) -> SymInt {
        if let Some(n) = dim.known() {
            return SymInt::Const(n as i64);
        }
        let before = self.exprs.len();
        let n = self.push(ExprNode::Dim(dim.clone()));
        if self.exprs.len() > before {
            self.nested_dims.insert(ExprNodeId(before as u32));
        }
        n
    }

    /// Low and high word of the number of completed runs.
    pub fn step(&mut self) -> [SymInt; 2] {
        [false, true].map(|high| self.push(ExprNode::Step { high }))
    }

    /// Low and high word of the seed of a random operator; `own` is its default seed.
    pub fn seed(&mut self, own: u64) -> [SymInt; 2] {
        [false, true].map(|high| self.push(ExprNode::Seed { own, high }))
    }

    /// 1 if F16 can represent the weights of the parameter at this index of the signature
    /// accurately, else 0.
    pub fn fits_f16(&mut self, param: u32) -> SymInt {
        self.push(ExprNode::FitsF16(param))
    }

    /// `a + b`
    pub fn add(&mut self, a: SymInt, b: SymInt) -> SymInt {
        match (a, b) {
            (SymInt::ZERO, x) | (x, SymInt::ZERO) => x,
            _ => self.binary(a, b, ExprNode::Add),
        }
    }

    /// `a - b`
    pub fn sub(&mut self, a: SymInt, b: SymInt) -> SymInt {
        match b {
            SymInt::ZERO => a,
            _ => self.binary(a, b, ExprNode::Sub),
        }
    }

    /// `a b`
    pub fn mul(&mut self, a: SymInt, b: SymInt) -> SymInt {
        match (a, b) {
            (SymInt::ZERO, _) | (_, SymInt::ZERO) => SymInt::ZERO,
            (SymInt::ONE, x) | (x, SymInt::ONE) => x,
            _ => self.binary(a, b, ExprNode::Mul),
        }
    }

    /// `a / b` rounded up; 0 if `b` is 0.
    pub fn ceil_div(&mut self, a: SymInt, b: impl Into<SymInt>) -> SymInt {
        match b.into() {
            SymInt::ONE => a,
            b => self.binary(a, b, ExprNode::CeilDiv),
        }
    }

    /// `a / b` rounded down; 0 if `b` is 0.
    pub fn div(&mut self, a: SymInt, b: impl Into<SymInt>) -> SymInt {
        match b.into() {
            SymInt::ONE => a,
            b => self.binary(a, b, ExprNode::Div),
        }
    }

    /// The smaller of two values.
    pub fn min(&mut self, a: SymInt, b: impl Into<SymInt>) -> SymInt {
        self.binary(a, b.into(), ExprNode::Min)
    }

    /// The larger of two values.
    pub fn max(&mut self, a: SymInt, b: impl Into<SymInt>) -> SymInt {
        self.binary(a, b.into(), ExprNode::Max)
    }

    /// 1 if `a <= b`, else 0. As a factor of a grid size, this number enables or disables a
    /// dispatch.
    pub fn less_equal(&mut self, a: SymInt, b: impl Into<SymInt>) -> SymInt {
        self.binary(a, b.into(), ExprNode::AtMost)
    }

    /// A number that depends on the passes of a Fourier transform of length `n`, in a program with
    /// this number of passes.
    pub fn fft_pass(&mut self, n: SymInt, passes: u32, value: FftPassValue) -> SymInt {
        let e = ExprNode::FftPass { n, passes, value };
        match n {
            SymInt::Const(_) => SymInt::Const(apply(&e, |n| sym_value(n, &[])).unwrap_or(0)),
            SymInt::ExprNode(_) => self.push(e),
        }
    }

    /// True if `n` is a multiple of `of` for all sizes of a run.
    pub fn is_multiple(&self, n: SymInt, of: u32) -> bool {
        of.is_power_of_two() && self.power_of_two_divisor(n) >= of.trailing_zeros()
    }

    /// A power of two (at most 2^16) that divides the value for all sizes.
    fn power_of_two_divisor(&self, n: SymInt) -> u32 {
        const MAX_LOG2: u32 = 16;
        let id = match n {
            SymInt::Const(n) => return n.trailing_zeros().min(MAX_LOG2),
            SymInt::ExprNode(id) => id,
        };
        match self.exprs[id.0 as usize] {
            ExprNode::Add(a, b)
            | ExprNode::Sub(a, b)
            | ExprNode::Min(a, b)
            | ExprNode::Max(a, b) => self
                .power_of_two_divisor(a)
                .min(self.power_of_two_divisor(b)),
            ExprNode::Mul(a, b) => {
                (self.power_of_two_divisor(a) + self.power_of_two_divisor(b)).min(MAX_LOG2)
            }
            ExprNode::Dim(ref dim) => dim.twos(),
            ExprNode::Step { .. }
            | ExprNode::Seed { .. }
            | ExprNode::FitsF16(_)
            | ExprNode::CeilDiv(..)
            | ExprNode::Div(..)
            | ExprNode::FftPass { .. }
            | ExprNode::AtMost(..) => 0,
        }
    }

    fn binary(&mut self, a: SymInt, b: SymInt, make: fn(SymInt, SymInt) -> ExprNode) -> SymInt {
        let e = make(a, b);
        match (a, b) {
            (SymInt::Const(_), SymInt::Const(_)) => {
                SymInt::Const(apply(&e, |n| sym_value(n, &[])).unwrap_or(0))
            }
            _ => self.push(e),
        }
    }

    /// Evaluates every expression into `values`, reusing its memory. `unfit` lists the parameters
    /// whose weights F16 cannot represent accurately.
    ///
    /// # Errors
    /// [`DimError`] if a dimension that must be valid in every run is invalid for these sizes.
    pub fn eval(
        &self,
        sizes: &Bindings,
        random: RngState,
        unfit: &[u32],
        values: &mut Vec<i64>,
    ) -> Result<(), DimError> {
        values.clear();
        for e in &self.exprs {
            let value = match e {
                ExprNode::Dim(d) => match d.eval(sizes) {
                    Ok(n) => n as i64,
                    Err(_) if self.nested_dims.contains(&ExprNodeId(values.len() as u32)) => 0,
                    Err(e) => return Err(e),
                },
                ExprNode::Step { high } => word(random.counter, *high),
                ExprNode::Seed { own, high } => word(random.seed.unwrap_or(*own), *high),
                ExprNode::FitsF16(param) => i64::from(!unfit.contains(param)),
                ExprNode::Add(..)
                | ExprNode::Sub(..)
                | ExprNode::Mul(..)
                | ExprNode::CeilDiv(..)
                | ExprNode::Div(..)
                | ExprNode::Min(..)
                | ExprNode::Max(..)
                | ExprNode::FftPass { .. }
                | ExprNode::AtMost(..) => apply(e, |n| sym_value(n, values)).unwrap_or(0),
            };
            values.push(value);
        }
        Ok(())
    }

    /// All expressions in evaluation order, for printing.
    pub fn exprs(&self) -> &[ExprNode] {
        &self.exprs
    }
}

/// The low or high 32-bit word of `n`.
fn word(n: u64, high: bool) -> i64 {
    i64::from(if high { (n >> 32) as u32 } else { n as u32 })
}

/// Value of a symbolic integer, given the evaluated arena.
pub fn sym_value(n: SymInt, values: &[i64]) -> i64 {
    match n {
        SymInt::Const(n) => n,
        SymInt::ExprNode(id) => values[id.0 as usize],
    }
}

/// Evaluates one arithmetic operation; `None` for leaves. Overflow saturates; the users of a value
/// check its range.
fn apply(e: &ExprNode, get: impl Fn(SymInt) -> i64) -> Option<i64> {
    Some(match *e {
        ExprNode::Dim(_) | ExprNode::Step { .. } | ExprNode::Seed { .. } | ExprNode::FitsF16(_) => {
            return None;
        }
        ExprNode::Add(a, b) => get(a).saturating_add(get(b)),
        ExprNode::Sub(a, b) => get(a).saturating_sub(get(b)),
        ExprNode::Mul(a, b) => get(a).saturating_mul(get(b)),
        ExprNode::CeilDiv(a, b) => match (get(a), get(b)) {
            (_, 0) => 0,
            (a, b) => a.div_euclid(b) + i64::from(a.rem_euclid(b) != 0),
        },
        ExprNode::Div(a, b) => match (get(a), get(b)) {
            (_, 0) => 0,
            (a, b) => a.div_euclid(b),
        },
        ExprNode::Min(a, b) => get(a).min(get(b)),
        ExprNode::Max(a, b) => get(a).max(get(b)),
        ExprNode::AtMost(a, b) => i64::from(get(a) <= get(b)),
        ExprNode::FftPass { n, passes, value } => fft_passes::value(get(n), passes, value),
    })
}

/// `Display` adapter that prints a symbolic integer with its expression expanded.
pub struct DisplayExpr<'a>(pub SymInt, pub &'a ExprArena);

impl fmt::Display for DisplayExpr<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = match self.0 {
            SymInt::Const(n) => return write!(f, "{n}"),
            SymInt::ExprNode(id) => id,
        };
        let s = |n: SymInt| DisplayExpr(n, self.1);
        match &self.1.exprs[id.0 as usize] {
            ExprNode::Dim(d) => write!(f, "{d}"),
            ExprNode::Step { high: false } => write!(f, "runs"),
            ExprNode::Step { high: true } => write!(f, "runs>>32"),
            ExprNode::Seed { own, high } => write!(f, "{}", word(*own, *high)),
            ExprNode::FitsF16(param) => write!(f, "param{param} fits f16"),
            ExprNode::Add(a, b) => write!(f, "({}+{})", s(*a), s(*b)),
            ExprNode::Sub(a, b) => write!(f, "({}-{})", s(*a), s(*b)),
            ExprNode::Mul(a, b) => write!(f, "({}*{})", s(*a), s(*b)),
            ExprNode::CeilDiv(a, b) => write!(f, "ceil({}/{})", s(*a), s(*b)),
            ExprNode::Div(a, b) => write!(f, "floor({}/{})", s(*a), s(*b)),
            ExprNode::Min(a, b) => write!(f, "min({},{})", s(*a), s(*b)),
            ExprNode::Max(a, b) => write!(f, "max({},{})", s(*a), s(*b)),
            ExprNode::AtMost(a, b) => write!(f, "({}<={})", s(*a), s(*b)),
            ExprNode::FftPass { n, value, .. } => match value {
                FftPassValue::Radix { pass } => write!(f, "radix{pass}({})", s(*n)),
                FftPassValue::Before { pass } => write!(f, "before{pass}({})", s(*n)),
                FftPassValue::First => write!(f, "first_pass({})", s(*n)),
                FftPassValue::Greatest => write!(f, "greatest_radix({})", s(*n)),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants_fold_and_expressions_are_shared() {
        let mut t = ExprArena::default();
        assert_eq!(t.ceil_div(SymInt::Const(7), 2u32), SymInt::Const(4));
        let s = t.dim(&Dim::sym("s"));
        let a = t.ceil_div(s, 64u32);
        let b = t.ceil_div(s, 64u32);
        assert_eq!(a, b);
        assert_eq!(t.mul(a, SymInt::ONE), a);
        let on = t.less_equal(s, 8u32);
        let mut values = Vec::new();
        t.eval(
            &Bindings::new().with("s", 65),
            RngState::default(),
            &[],
            &mut values,
        )
        .unwrap();
        assert_eq!((sym_value(a, &values), sym_value(on, &values)), (2, 0));
        assert_eq!(DisplayExpr(a, &t).to_string(), "ceil(s/64)");
        let words = t.mul(s, SymInt::Const(24));
        let apart = t.add(words, SymInt::Const(4));
        assert!(t.is_multiple(words, 8) && !t.is_multiple(words, 16));
        assert!(t.is_multiple(apart, 4) && !t.is_multiple(apart, 8));
        assert!(!t.is_multiple(s, 2) && t.is_multiple(SymInt::ZERO, 16));
    }

    #[test]
    fn impossible_sizes_inside_nodes_are_zero() {
        let less = Dim::sym("s").checked_sub(&Dim::Known(4)).unwrap();
        let mut t = ExprArena::default();
        let n = t.dim_inside(&less);
        let (sizes, mut values) = (Bindings::new().with("s", 3), Vec::new());
        t.eval(&sizes, RngState::default(), &[], &mut values)
            .unwrap();
        assert_eq!(sym_value(n, &values), 0);
        assert_eq!(t.dim(&less), n);
        assert!(
            t.eval(&sizes, RngState::default(), &[], &mut values)
                .is_err()
        );
    }
}

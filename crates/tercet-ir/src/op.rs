//! Operators: each is declared once, through [`OpSpec`], in its own file under `ops/`.
//!
//! [`define_ops!`](crate::define_ops) lists the modules and makes the closed [`Op`](crate::Op) enum,
//! [`OpKind::ALL`](crate::OpKind::ALL) and the dispatch. An operator without one of its pieces does
//! not compile. The reference meaning of an operator is its `eval`: plain loops, `f64` accumulation,
//! one rounding at the end.

use std::fmt::Debug;
use std::hash::Hash;

use crate::accuracy::Accuracy;
use crate::attr::Attrs;
use crate::case::{Case, Reject};
use crate::dtype::DType;
use crate::error::{EvalError, TypeError};
use crate::grad::Gradient;
use crate::random::Random;
use crate::tensor::Tensor;
use crate::types::{TensorType, Type};

/// Whether every target must have a kernel for an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    /// Every executor has a kernel.
    Core,
    /// A rule decomposes it into core operators; a fused kernel is an optimisation.
    Composite,
    /// Only the CPU has it: how much of the result is used depends on data.
    Host,
}

/// What the documentation, the tests and the support table say about an operator.
#[derive(Clone, Copy, Debug)]
pub struct Doc {
    /// The name, also the spelling in the text form.
    pub name: &'static str,
    /// The meaning in a sentence or a formula.
    pub text: &'static str,
    /// The names of the operands, `?` after optional ones.
    pub operands: &'static [&'static str],
    /// The dtypes that its cases are run with.
    pub dtypes: &'static [DType],
    /// How far an executor may be from the reference.
    pub accuracy: Accuracy,
    /// Core or composite.
    pub tier: Tier,
}

/// What evaluation may depend on besides operands and attributes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EvalCtx {
    /// Where the executable stands in its random numbers.
    pub random: Random,
}

impl EvalCtx {
    /// The context of a run after this many completed ones.
    pub fn after(runs: u64) -> EvalCtx {
        let random = Random {
            counter: runs,
            ..Random::default()
        };
        EvalCtx { random }
    }
}

/// Everything the system knows about one operator. No method has a default body.
pub trait OpSpec: Attrs + Clone + Debug + Eq + Hash + Into<crate::Op> + 'static {
    /// Name, meaning, dtypes, accuracy class and tier.
    const DOC: Doc;

    /// How it is differentiated, or why it is not.
    const GRADIENT: Gradient<Self>;

    /// The types of the results.
    ///
    /// # Errors
    /// [`TypeError`] when the operands or attributes are not accepted.
    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError>;

    /// The reference evaluation. Operands and `results` agree with [`OpSpec::infer`].
    ///
    /// # Errors
    /// [`EvalError`] when the data is not accepted, for example an index out of range.
    fn eval(
        &self,
        ctx: &EvalCtx,
        operands: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError>;

    /// The inputs that every executor is tested on, odd sizes and edge shapes included.
    fn cases() -> Vec<Case>;

    /// Graphs that must be refused when they are built.
    fn rejects() -> Vec<Reject>;
}

/// Makes [`Op`](crate::Op), [`OpKind`](crate::OpKind) and their dispatch from one list of
/// `module::Struct`, each with the `#[cfg]` that it is there under, if any.
#[macro_export]
macro_rules! define_ops {
    ($($(#[$cfg:meta])* $module:ident::$Op:ident),* $(,)?) => {
        $($(#[$cfg])* pub use $module::$Op;)*

        /// An operator with its attributes.
        #[derive(Clone, Debug, PartialEq, Eq, Hash)]
        pub enum Op { $($(#[$cfg])* #[doc = concat!("See [`", stringify!($Op), "`].")] $Op($Op)),* }

        /// The kind of an operator, without attributes.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum OpKind { $($(#[$cfg])* #[doc = concat!("See [`", stringify!($Op), "`].")] $Op),* }

        impl OpKind {
            /// Every kind, in declaration order.
            pub const ALL: &'static [OpKind] = &[$($(#[$cfg])* OpKind::$Op),*];
            /// Name, meaning, dtypes, accuracy class and tier.
            pub fn doc(self) -> Doc { match self { $($(#[$cfg])* Self::$Op => <$Op as OpSpec>::DOC),* } }
            /// The names of the attributes.
            pub fn attr_names(self) -> &'static [&'static str] { match self { $($(#[$cfg])* Self::$Op => <$Op as Attrs>::NAMES),* } }
            /// Names of the attributes and what each takes, in words.
            pub fn attr_kinds(self) -> Vec<(&'static str, String)> { match self { $($(#[$cfg])* Self::$Op => <$Op as Attrs>::kinds()),* } }
            /// The inputs that every executor is tested on.
            pub fn cases(self) -> Vec<Case> { match self { $($(#[$cfg])* Self::$Op => <$Op as OpSpec>::cases()),* } }
            /// Graphs that must be refused.
            pub fn rejects(self) -> Vec<Reject> { match self { $($(#[$cfg])* Self::$Op => <$Op as OpSpec>::rejects()),* } }
            /// How it is differentiated, or why it is not.
            pub fn gradient(self) -> GradientKind { match self { $($(#[$cfg])* Self::$Op => <$Op as OpSpec>::GRADIENT.kind()),* } }
            /// The operator of this kind with attributes from the text form.
            ///
            /// # Errors
            /// [`AttrError`] for a missing, unknown or unreadable attribute.
            pub fn parse(self, given: &[(String, Literal)]) -> Result<Op, AttrError> {
                match self { $($(#[$cfg])* Self::$Op => <$Op as Attrs>::from_literals(given).map(Op::$Op)),* }
            }
        }

        impl Op {
            /// The kind.
            pub fn kind(&self) -> OpKind { match self { $($(#[$cfg])* Self::$Op(_) => OpKind::$Op),* } }
            /// Names and values of the attributes.
            pub fn attrs(&self) -> Vec<(&'static str, Literal)> { match self { $($(#[$cfg])* Self::$Op(o) => o.to_literals()),* } }
            /// The types of the results.
            ///
            /// # Errors
            /// [`TypeError`] when the operands or attributes are not accepted.
            pub fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> { match self { $($(#[$cfg])* Self::$Op(o) => o.infer(operands)),* } }
            /// The reference evaluation.
            ///
            /// # Errors
            /// [`EvalError`] when the data is not accepted.
            pub fn eval(&self, ctx: &EvalCtx, operands: &[&Tensor], results: &[TensorType]) -> Result<Vec<Tensor>, EvalError> {
                check_room(operands, results)?;
                match self { $($(#[$cfg])* Self::$Op(o) => o.eval(ctx, operands, results)),* }
            }
            /// Gives the cotangents of the operands from those of the results.
            ///
            /// # Errors
            /// [`NoGradient`](crate::grad::NoGradient) with the reason.
            pub(crate) fn vjp(&self, v: &mut Vjp<'_>) -> Ruled { match self { $($(#[$cfg])* Self::$Op(o) => <$Op as OpSpec>::GRADIENT.apply(o, v)),* } }
        }

        $($(#[$cfg])* impl From<$Op> for Op { fn from(op: $Op) -> Op { Op::$Op(op) } })*
    };
}

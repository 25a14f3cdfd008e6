//! Operators: each is declared once, through [`OpSpec`], in a separate file under `ops/`.
//!
//! [`define_ops!`](crate::define_ops) lists the modules and generates the closed [`Op`](crate::Op)
//! enum, [`OpKind::ALL`](crate::OpKind::ALL) and the dispatch. An incomplete operator declaration
//! does not compile. An operator's `eval` is its reference meaning: plain loops, `f64`
//! accumulation, one rounding at the end.

use std::fmt::Debug;
use std::hash::Hash;

use tercet_tensor::accuracy::Accuracy;
use tercet_tensor::random::RngState;
use tercet_tensor::{DType, Tensor, TensorType, Type};

use crate::attr::Attrs;
use crate::error::{EvalError, TypeError};
use crate::grad::Gradient;

/// Whether every target must have a kernel for an operator.
///
/// ```
/// use tercet_ir::{OpKind, Tier};
/// assert_eq!(OpKind::MatMul.doc().tier, Tier::Core);
/// assert_eq!(OpKind::Rope.doc().tier, Tier::Composite);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    /// Every executor has a kernel.
    Core,
    /// A rule decomposes the operator into core operators; a fused kernel is an optimization.
    Composite,
}

/// Documentation and test metadata of an operator, also used by the support table.
///
/// ```
/// use tercet_ir::{DType, OpKind, Tier};
/// let doc = OpKind::Rope.doc();
/// assert_eq!((doc.name, doc.tier), ("rope", Tier::Composite));
/// assert_eq!(doc.operands, ["x", "cos", "sin"]);
/// assert_eq!(doc.dtypes, DType::FLOATS);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct OpDoc {
    /// The operator's name, which is also its name in the text form.
    pub name: &'static str,
    /// The operator's meaning in a sentence or a formula.
    pub text: &'static str,
    /// The names of the operands, with `?` after optional ones.
    pub operands: &'static [&'static str],
    /// The dtypes that its cases run with.
    pub dtypes: &'static [DType],
    /// The accuracy class, which sets the tolerance against the reference.
    pub accuracy: Accuracy,
    /// The support tier: core or composite.
    pub tier: Tier,
}

/// Inputs of an evaluation besides operands and attributes.
///
/// ```
/// use std::collections::BTreeMap;
/// use tercet_ir::{DType, EvalCtx, Graph, evaluate};
/// let mut g = Graph::new();
/// let x = g.rng_uniform([8usize], DType::F32, 0.0, 1.0, 42)?;
/// let run = |ctx: EvalCtx| evaluate(&g, &ctx, &BTreeMap::new()).map(|e| e.get(x).to_f64s());
/// let first = run(EvalCtx::default())?;
/// assert_eq!(first, run(EvalCtx::after(0))?);
/// assert_ne!(first, run(EvalCtx::after(1))?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EvalCtx {
    /// The random seed and counter of the run.
    pub random: RngState,
}

impl EvalCtx {
    /// The context of the run that follows this number of completed ones.
    pub fn after(runs: u64) -> EvalCtx {
        let random = RngState {
            counter: runs,
            ..RngState::default()
        };
        EvalCtx { random }
    }
}

/// The complete declaration of one operator. No method has a default body.
///
/// ```
/// use tercet_ir::{DType, OpSpec, Type, ops::MatMul};
/// assert_eq!(MatMul::DOC.name, "mat_mul");
/// let (a, b) = (Type::new(DType::F32, [2, 3]), Type::new(DType::F32, [3, 4]));
/// assert_eq!(MatMul {}.infer(&[&a, &b])?, [Type::new(DType::F32, [2, 4])]);
/// # Ok::<(), tercet_ir::TypeError>(())
/// ```
pub trait OpSpec: Attrs + Clone + Debug + Eq + Hash + Into<crate::Op> + 'static {
    /// The operator's name, meaning, dtypes, accuracy class and tier.
    const DOC: OpDoc;

    /// The gradient rule, or the reason why there is none.
    const GRADIENT: Gradient<Self>;

    /// Infers the types of the results.
    ///
    /// # Errors
    /// [`TypeError`] when the operands or attributes are invalid.
    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError>;

    /// The reference evaluation. Operands and `results` agree with [`OpSpec::infer`].
    ///
    /// # Errors
    /// [`EvalError`] when the data is invalid, for example an index out of range.
    fn eval(
        &self,
        ctx: &EvalCtx,
        operands: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError>;
}

/// Generates [`Op`](crate::Op), [`OpKind`](crate::OpKind) and their dispatch from one list of
/// `module::Struct`. An entry may have a `#[cfg]` attribute, which then applies to the operator.
#[macro_export]
macro_rules! define_ops {
    ($($(#[$cfg:meta])* $module:ident::$Op:ident),* $(,)?) => {
        $($(#[$cfg])* pub use $module::$Op;)*

        /// An operator with its attributes.
        ///
        /// ```
        /// use tercet_ir::{DType, Graph, Op, OpKind, Type, ops::Softmax};
        /// let op = Op::from(Softmax { axis: 1 });
        /// assert_eq!(op.kind(), OpKind::Softmax);
        /// assert_eq!(op.attrs()[0].0, "axis");
        /// let mut g = Graph::new();
        /// let x = g.input("x", Type::new(DType::F32, [2, 3]))?;
        /// let y = g.add(op, &[x])?;
        /// assert_eq!(g.ty(y), g.ty(x));
        /// # Ok::<(), tercet_ir::OpError>(())
        /// ```
        #[derive(Clone, Debug, PartialEq, Eq, Hash)]
        pub enum Op { $($(#[$cfg])* #[doc = concat!("See [`", stringify!($Op), "`].")] $Op($Op)),* }

        /// The kind of an operator, without attributes.
        ///
        /// ```
        /// use tercet_ir::OpKind;
        /// let kind = OpKind::ALL.iter().find(|kind| kind.doc().name == "softmax");
        /// assert_eq!(kind, Some(&OpKind::Softmax));
        /// assert_eq!(OpKind::Softmax.attr_names(), ["axis"]);
        /// ```
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum OpKind { $($(#[$cfg])* #[doc = concat!("See [`", stringify!($Op), "`].")] $Op),* }

        impl OpKind {
            /// Every kind, in declaration order.
            pub const ALL: &'static [OpKind] = &[$($(#[$cfg])* OpKind::$Op),*];
            /// The operator's name, meaning, dtypes, accuracy class and tier.
            pub fn doc(self) -> OpDoc { match self { $($(#[$cfg])* Self::$Op => <$Op as OpSpec>::DOC),* } }
            /// The names of the operator's attributes.
            pub fn attr_names(self) -> &'static [&'static str] { match self { $($(#[$cfg])* Self::$Op => <$Op as Attrs>::NAMES),* } }
            /// The names of the attributes and a description of each value.
            pub fn attr_kinds(self) -> Vec<(&'static str, String)> { match self { $($(#[$cfg])* Self::$Op => <$Op as Attrs>::kinds()),* } }
            /// How the operator is differentiated, or why it is not.
            pub fn gradient(self) -> GradientKind { match self { $($(#[$cfg])* Self::$Op => <$Op as OpSpec>::GRADIENT.kind()),* } }
            /// Builds the operator of this kind from text form attributes.
            ///
            /// # Errors
            /// [`AttrError`] for a missing, unknown or unreadable attribute.
            pub fn parse(self, given: &[(String, AttrLiteral)]) -> Result<Op, AttrError> {
                match self { $($(#[$cfg])* Self::$Op => <$Op as Attrs>::from_literals(given).map(Op::$Op)),* }
            }
        }

        impl Op {
            /// The operator's kind.
            pub fn kind(&self) -> OpKind { match self { $($(#[$cfg])* Self::$Op(_) => OpKind::$Op),* } }
            /// Names and values of the operator's attributes.
            pub fn attrs(&self) -> Vec<(&'static str, AttrLiteral)> { match self { $($(#[$cfg])* Self::$Op(o) => o.to_literals()),* } }
            /// Replaces symbols in the attributes by sizes.
            ///
            /// # Errors
            /// [`TypeError`] when a dimension is negative or too large for these sizes.
            pub fn set_sizes(&mut self, sizes: &$crate::Bindings) -> Result<(), TypeError> { match self { $($(#[$cfg])* Self::$Op(o) => o.set_sizes(sizes)),* } }
            /// Infers the types of the results.
            ///
            /// # Errors
            /// [`TypeError`] when the operands or attributes are invalid.
            pub fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> { match self { $($(#[$cfg])* Self::$Op(o) => o.infer(operands)),* } }
            /// The reference evaluation.
            ///
            /// # Errors
            /// [`EvalError`] when the data is invalid.
            pub fn eval(&self, ctx: &EvalCtx, operands: &[&Tensor], results: &[TensorType]) -> Result<Vec<Tensor>, EvalError> {
                check_room(operands, results)?;
                match self { $($(#[$cfg])* Self::$Op(o) => o.eval(ctx, operands, results)),* }
            }
            /// Computes the cotangents of the operands from those of the results (vector-Jacobian
            /// product).
            ///
            /// # Errors
            /// [`NoGradient`](crate::grad::NoGradient) with the reason.
            pub(crate) fn vjp(&self, v: &mut Vjp<'_>) -> VjpResult { match self { $($(#[$cfg])* Self::$Op(o) => <$Op as OpSpec>::GRADIENT.apply(o, v)),* } }
        }

        $($(#[$cfg])* impl From<$Op> for Op { fn from(op: $Op) -> Op { Op::$Op(op) } })*
    };
}

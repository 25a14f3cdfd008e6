//! Operators from outside: a user's type inference, evaluation and, if there is, WGSL.
//!
//! A [`CustomOp`] goes into a graph by [`Graph::custom`](crate::Graph::custom) and is carried by its node; there
//! is no table to enter it in. Only the text form, which has name and attributes, needs one: [`CustomOps`]. The CPU
//! executors call [`CustomOp::eval`]; GPUs run [`CustomOp::kernels`], which are checked when the graph is
//! compiled and run with checks of every access, or refuse the node.
//!
//! Two operators are the same to passes and comparisons if name and attributes are: everything that changes a
//! result must be an attribute. `moe.group_limited_gate` and `knn.pairwise` ([`GroupLimitedGate`], [`PairwiseKnn`])
//! come through this door, too.

mod gate;
mod knn;
mod registry;

use std::fmt;

use crate::attr::Literal;
use crate::dim::Dim;
use crate::error::{EvalError, TypeError};
use crate::grad::{Ruled, Vjp};
use crate::tensor::Tensor;
use crate::types::{TensorType, Type};

pub use gate::GroupLimitedGate;
pub use knn::PairwiseKnn;
pub use registry::CustomOps;
pub(crate) use registry::{attrs_kind, spelled_attrs};

/// A user's operator with its attributes. All functions depend on the attributes and their arguments only:
/// passes call them again, drop nodes and compute equal ones once.
pub trait CustomOp: fmt::Debug + Send + Sync {
    /// The name, `library.operator`.
    fn name(&self) -> &str;

    /// Names and values of the attributes; what [`attrs!`](crate::attrs) derives as
    /// [`Attrs::to_literals`](crate::attr::Attrs::to_literals).
    fn attrs(&self) -> Vec<(&'static str, Literal)>;

    /// The types of the results, at least one, of any dtypes. Sizes may be symbols or sums of products of them: those
    /// of results are computed from those of operands.
    ///
    /// # Errors
    /// [`TypeError`] when the operands or attributes are not accepted.
    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError>;

    /// The results for these operands, of the types in `results`. It is the meaning that kernels are compared
    /// with.
    ///
    /// # Errors
    /// [`EvalError`] when the data is not accepted; the run ends with it on the CPU. A kernel on a GPU cannot
    /// end a run: it has to give something.
    fn eval(&self, operands: &[&Tensor], results: &[TensorType]) -> Result<Vec<Tensor>, EvalError>;

    /// Kernels that give the results on a GPU, each result written by one of them; `None` where there is no
    /// WGSL for these types, so that GPUs refuse the node.
    fn kernels(&self, operands: &[&Type], results: &[Type]) -> Option<Vec<WgslKernel>>;

    /// Gives the cotangents of the operands from those of the results, by nodes that it adds: other operators, this
    /// one, or one that is its gradient. [`Vjp::through`] does it through the same in other words.
    ///
    /// # Errors
    /// [`NoGradient`](crate::grad::NoGradient) with the reason where there is none.
    fn gradient(&self, v: &mut Vjp<'_>) -> Ruled;
}

/// A kernel of a [`CustomOp`].
///
/// Its bindings are in group 0. Binding 0 is `var<uniform>`, a struct of `params` in their order, and is absent
/// without any. Then come all operands as `var<storage, read>` and the results in `writes` as
/// `var<storage, read_write>`, from binding 1. Each is an `array` of `u32`, `i32` or `f32` (of results also of
/// atomics): a tensor as words, dense and row-major, two elements of 16 bits or four of 8 in a word, the lower
/// one in the low bits. An array may be longer than its tensor. What lies in a result before is anything.
///
/// An access outside of an array goes to some place inside; a kernel that does not end loses the device.
#[derive(Clone, Debug, PartialEq)]
pub struct WgslKernel {
    /// A whole WGSL module, without extensions and overrides.
    pub source: String,
    /// The name of its entry point.
    pub entry: String,
    /// The size of a workgroup, as the entry point has it.
    pub workgroup: [u32; 3],
    /// The results that it writes, in the order of their bindings.
    pub writes: Vec<usize>,
    /// The fields of the block at binding 0.
    pub params: Vec<WgslParam>,
    /// How many invocations there are.
    pub grid: WgslGrid,
}

/// A word of the block of a [`WgslKernel`].
#[derive(Clone, Debug, PartialEq)]
pub enum WgslParam {
    /// `u32`: a number, or a size that is computed for each run.
    U32(Dim),
    /// `i32`
    I32(i32),
    /// `f32`
    F32(f32),
}

/// The invocations of a [`WgslKernel`], at least: workgroups are whole.
#[derive(Clone, Debug, PartialEq)]
pub enum WgslGrid {
    /// So many along each axis. A device that has fewer workgroups along an axis refuses the node.
    Axes([Dim; 3]),
    /// So many in a line, of any length: what is too long for one axis goes on along the second, so that
    /// the number of a workgroup is `workgroup_id.y * num_workgroups.x + workgroup_id.x`. Workgroups beyond
    /// the line must do nothing.
    Line(Dim),
}

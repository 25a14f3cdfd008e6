//! Custom operators: a user's type inference, evaluation and, optionally, WGSL kernels.
//!
//! [`Graph::custom`](crate::Graph::custom) adds a [`CustomOp`] to a graph, and its node holds the
//! operator; no registration is needed. Only parsing the text form, which contains an operator's
//! name and attributes, needs a registry: [`CustomOps`]. The CPU executors call [`CustomOp::eval`].
//! GPUs run [`CustomOp::kernels`] with bounds checks on every access. The kernels are validated
//! when the graph is compiled; without kernels, a GPU reports the node as unsupported.
//!
//! Passes and comparisons treat two operators as equal if name and attributes are equal. Everything
//! that changes a result must therefore be an attribute. `moe.group_limited_gate` and
//! `knn.pairwise` ([`GroupLimitedGate`], [`PairwiseKnn`]) are built with the same interface.

mod gate;
mod knn;
mod registry;

use std::fmt;

use tercet_tensor::{Dim, Tensor, TensorType, Type};

use crate::attr::AttrLiteral;
use crate::error::{EvalError, TypeError};
use crate::grad::{NoGradient, Vjp, VjpResult};

pub use gate::GroupLimitedGate;
pub use knn::PairwiseKnn;
pub use registry::CustomOps;
pub(crate) use registry::{attrs_kind, spelled_attrs};

/// A user's operator with its attributes. All functions must depend only on the attributes and
/// their arguments: passes may call them repeatedly, drop nodes and merge equal ones.
///
/// ```
/// # use tercet_ir::{DType, EvalError, Graph, TensorType, TypeError, attr::AttrLiteral};
/// use tercet_ir::{Tensor, Type, custom::CustomOp};
///
/// /// Doubles an F32 tensor.
/// #[derive(Debug)]
/// struct Double;
///
/// impl CustomOp for Double {
///     fn name(&self) -> &str {
///         "example.double"
///     }
///     fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
///         Ok(vec![operands[0].clone()])
///     }
///     fn eval(&self, operands: &[&Tensor], _: &[TensorType]) -> Result<Vec<Tensor>, EvalError> {
///         let doubled: Vec<f32> = operands[0].as_slice::<f32>()?.iter().map(|x| 2.0 * x).collect();
///         Ok(vec![Tensor::from_slice(operands[0].shape(), &doubled)?])
///     }
///     fn attrs(&self) -> Vec<(&'static str, AttrLiteral)> {
///         Vec::new()
///     }
/// }
/// let mut g = Graph::new();
/// let x = g.input("x", Type::new(DType::F32, [2]))?;
/// let y = g.custom(Double, &[x])?;
/// assert_eq!(g.ty(y), g.ty(x));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait CustomOp: fmt::Debug + Send + Sync {
    /// Name of the operator: `library.operator`.
    fn name(&self) -> &str;

    /// Names and values of the attributes. [`attrs!`](crate::attrs) derives these pairs as
    /// [`Attrs::to_literals`](crate::attr::Attrs::to_literals).
    fn attrs(&self) -> Vec<(&'static str, AttrLiteral)>;

    /// Infers the types of the results: at least one result, of any dtypes. Sizes may be symbols or
    /// sums of products of symbols; sizes of results are computed from those of operands.
    ///
    /// # Errors
    /// [`TypeError`] when the operands or attributes are invalid.
    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError>;

    /// Computes the results for these operands, with the types in `results`. Kernels are compared
    /// with this reference.
    ///
    /// # Errors
    /// [`EvalError`] when the data is invalid. On the CPU the run then fails with this error. A GPU
    /// kernel cannot make a run fail and must write some result.
    fn eval(&self, operands: &[&Tensor], results: &[TensorType]) -> Result<Vec<Tensor>, EvalError>;

    /// GPU kernels that compute the results; each result is written by one of them. `None` if there
    /// is no WGSL for these types, which is the default; GPUs then report the node as unsupported.
    fn kernels(&self, _operands: &[&Type], _results: &[Type]) -> Option<Vec<WgslKernel>> {
        None
    }

    /// Computes the cotangents of the operands from those of the results, by adding nodes: other
    /// operators, this one, or an operator that is its gradient. [`Vjp::through`] differentiates an
    /// equivalent decomposition instead. By default, the operator is not differentiable.
    ///
    /// # Errors
    /// [`NoGradient`] with the reason when the operator is not differentiable.
    fn gradient(&self, _v: &mut Vjp<'_>) -> VjpResult {
        Err(NoGradient::because(
            "the custom operator defines no gradient",
        ))
    }
}

/// A WGSL kernel of a [`CustomOp`].
///
/// All bindings are in group 0. Binding 0 is `var<uniform>`, a struct of the `params` in order;
/// without params it is absent. Bindings from 1 on are all operands as `var<storage, read>`, then
/// the results in `writes` as `var<storage, read_write>`.
///
/// Each operand or result is an `array` of `u32`, `i32` or `f32` (for results also of atomics). The
/// array contains a dense row-major tensor as words. A word packs two 16-bit or four 8-bit
/// elements, the lower index in the low bits. An array may be longer than its tensor. The initial
/// contents of a result are undefined.
///
/// An out-of-bounds access is redirected to some element inside the array. A kernel that does not
/// terminate loses the device.
///
/// ```
/// use tercet_ir::Dim;
/// use tercet_ir::custom::{WgslGrid, WgslKernel, WgslParam};
/// let source = "
///     struct Params { n: u32 }
///     @group(0) @binding(0) var<uniform> params: Params;
///     @group(0) @binding(1) var<storage, read> x: array<f32>;
///     @group(0) @binding(2) var<storage, read_write> y: array<f32>;
///     @compute @workgroup_size(64) fn double(
///         @builtin(workgroup_id) group: vec3<u32>,
///         @builtin(num_workgroups) groups: vec3<u32>,
///         @builtin(local_invocation_index) local: u32,
///     ) {
///         let i = (group.y * groups.x + group.x) * 64u + local;
///         if i < params.n { y[i] = 2.0 * x[i]; }
///     }";
/// let n = Dim::sym("n");
/// let kernel = WgslKernel {
///     source: source.to_string(),
///     entry: "double".to_string(),
///     workgroup: [64, 1, 1],
///     writes: vec![0],
///     params: vec![WgslParam::U32(n.clone())],
///     grid: WgslGrid::Line(n),
/// };
/// assert!(kernel.source.contains(&kernel.entry));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct WgslKernel {
    /// A complete WGSL module, without extensions and overrides.
    pub source: String,
    /// Name of the entry point.
    pub entry: String,
    /// Workgroup size declared by the entry point.
    pub workgroup: [u32; 3],
    /// Indices of the results that the kernel writes, in the order of their bindings.
    pub writes: Vec<usize>,
    /// The fields of the uniform block at binding 0.
    pub params: Vec<WgslParam>,
    /// The number of threads.
    pub grid: WgslGrid,
}

/// A 32-bit word of the uniform block of a [`WgslKernel`].
///
/// ```
/// use tercet_ir::{Dim, custom::WgslParam};
/// let rows = Dim::sym("rows");
/// // struct Params { rows: u32, axis: i32, eps: f32 }
/// let params = [WgslParam::U32(rows.clone()), WgslParam::I32(-1), WgslParam::F32(1e-5)];
/// assert_eq!(params[0], WgslParam::U32(rows));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub enum WgslParam {
    /// A `u32`: a constant, or a size that is computed for each run.
    U32(Dim),
    /// An `i32` constant.
    I32(i32),
    /// An `f32` constant.
    F32(f32),
}

/// The minimum number of threads (invocations) of a [`WgslKernel`], rounded up to whole workgroups.
///
/// ```
/// use tercet_ir::{Dim, custom::WgslGrid};
/// let (rows, columns) = (Dim::sym("rows"), Dim::Known(64));
/// let line = WgslGrid::Line(rows.checked_mul(&columns).expect("the product does not overflow"));
/// let axes = WgslGrid::Axes([columns, rows, Dim::Known(1)]);
/// assert_ne!(line, axes);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub enum WgslGrid {
    /// Threads along each axis. A device that supports fewer workgroups along an axis rejects the
    /// node.
    Axes([Dim; 3]),
    /// A one-dimensional grid of any number of threads. If there are too many workgroups for one
    /// axis of a dispatch, they continue along the second: the workgroup index is `workgroup_id.y *
    /// num_workgroups.x + workgroup_id.x`. Workgroups beyond the requested number of threads must
    /// do nothing.
    Line(Dim),
}

//! Errors of building, compiling and running graphs. Each error names the location; its cause is in
//! `source`.

use std::error::Error;
use std::fmt;

use tercet_tensor::{DType, Dim, DimError, Miscompiled, Symbol, TensorError, TensorType, Type};

use crate::backend::SwitchError;
use crate::graph::NodeId;
use crate::non_finite::NonFinite;

/// An error and its chain of causes in one line, joined by colons.
pub fn one_line(e: &dyn Error) -> String {
    let mut text = e.to_string();
    let mut source = e.source();
    while let Some(cause) = source {
        text += &format!(": {cause}");
        source = cause.source();
    }
    text
}

/// A count with its noun: `1 token`, `2 tokens`.
pub fn counted(n: usize, one: &str, many: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { many })
}

/// Why an operator rejects its operands or attributes.
///
/// ```
/// use tercet_ir::{DType, Graph, Type, TypeError};
/// let mut g = Graph::new();
/// let a = g.input("a", Type::new(DType::F32, [2, 3]))?;
/// let b = g.input("b", Type::new(DType::F32, [4, 5]))?;
/// let error = g.matmul(a, b).unwrap_err();
/// assert!(matches!(error.source, TypeError::Mismatch { .. }));
/// # Ok::<(), tercet_ir::OpError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TypeError {
    /// The number of operands is wrong.
    #[error("expected {expected} operands, got {given}")]
    Arity {
        /// The valid operand counts, for example `1` or `2 or 3`.
        expected: String,
        /// The number of operands that were passed.
        given: usize,
    },
    /// The operator does not support an operand's dtype.
    #[error("operand {operand} is {found}; accepted: {accepted}")]
    DType {
        /// Name of the operand.
        operand: &'static str,
        /// The operand's dtype.
        found: DType,
        /// The supported dtypes.
        accepted: String,
    },
    /// The operator does not support an operand's rank.
    #[error("operand {operand} has type {found}; expected {expected}")]
    Rank {
        /// Name of the operand.
        operand: &'static str,
        /// The operand's type.
        found: Type,
        /// The expected rank, for example `rank 2 or more`.
        expected: String,
    },
    /// An axis is out of range for the rank.
    #[error("axis {axis} is out of range for rank {rank}")]
    Axis {
        /// The axis that is out of range.
        axis: usize,
        /// The rank of the operand.
        rank: usize,
    },
    /// Two dimensions must be equal, but differ or are not provably equal.
    #[error("{what}: {left} and {right} differ{}", DimEqualityHint(.left, .right))]
    Mismatch {
        /// A description of the two dimensions.
        what: String,
        /// The first dimension.
        left: Dim,
        /// The second dimension.
        right: Dim,
    },
    /// Two shapes do not broadcast.
    #[error("shapes {left} and {right} do not broadcast")]
    Broadcast {
        /// Type of the first operand.
        left: Type,
        /// Type of the second operand.
        right: Type,
    },
    /// An attribute has an invalid value.
    #[error("attribute `{name}`: {reason}")]
    Attr {
        /// Name of the attribute.
        name: &'static str,
        /// Why the value is invalid, and which values are valid.
        reason: String,
    },
    /// The result would have more than [`crate::MAX_RANK`] axes.
    #[error("result {ty} has {} axes; expected at most {}", .ty.rank(), crate::MAX_RANK)]
    TooManyAxes {
        /// Type of the result.
        ty: Type,
    },
    /// The result's byte size or element count exceeds the address space.
    #[error("{ty} is too large: expected at most {} bytes", isize::MAX)]
    TooLarge {
        /// Type of the result.
        ty: Type,
    },
    /// Any other reason to reject the operands.
    #[error("{0}")]
    Other(String),
}

/// The hint for dimensions that may be equal but are not provably equal.
struct DimEqualityHint<'a>(&'a Dim, &'a Dim);
impl fmt::Display for DimEqualityHint<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0, self.1) {
            (Dim::Known(_), Dim::Known(_)) => Ok(()),
            (Dim::Sym(_), _) | (_, Dim::Sym(_)) => {
                f.write_str("; use one symbol for sizes that are always equal")
            }
        }
    }
}

/// Adding an operator to a graph failed.
///
/// ```
/// use tercet_ir::{DType, Graph, Type, one_line};
/// let mut g = Graph::new();
/// let x = g.input("x", Type::new(DType::F32, [2, 3]))?;
/// let error = g.softmax(x, 2).unwrap_err();
/// assert_eq!(one_line(&error), "softmax(f32[2, 3]): axis 2 is out of range for rank 2");
/// # Ok::<(), tercet_ir::OpError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{op}{}", DisplayOperandTypes(.operands))]
pub struct OpError {
    /// Name of the operator.
    pub op: &'static str,
    /// The types of the operands.
    pub operands: Vec<Type>,
    /// Why the operator was rejected.
    #[source]
    pub source: TypeError,
}

struct DisplayOperandTypes<'a>(&'a [Type]);
impl fmt::Display for DisplayOperandTypes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list: Vec<String> = self.0.iter().map(Type::to_string).collect();
        write!(f, "({})", list.join(", "))
    }
}

/// Why the evaluation of one operator failed on its data.
///
/// ```
/// use std::collections::BTreeMap;
/// use tercet_ir::{DType, EvalCtx, EvalError, Graph, RunError, Tensor, evaluate};
/// let mut g = Graph::new();
/// let data = g.constant(Tensor::from_slice(&[2], &[1f32, 2.0])?)?;
/// let index = g.constant(Tensor::from_slice(&[1], &[5i32])?)?;
/// g.gather(data, index, 0)?;
/// let error = evaluate(&g, &EvalCtx::default(), &BTreeMap::new()).unwrap_err();
/// let expected = EvalError::Index { index: 5, len: 2 };
/// assert!(matches!(error, RunError::Node { source, .. } if source == expected));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EvalError {
    /// An index is out of range for its axis.
    #[error("index {index} is out of range for axis of {len}; accepted: -{len} to {len} exclusive")]
    Index {
        /// The index that is out of range.
        index: i64,
        /// Size of the axis.
        len: usize,
    },
    /// An invalid size, for example a slice whose end precedes its start for these symbols.
    #[error(transparent)]
    Dim(#[from] DimError),
    /// Creating a tensor failed.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// A node of a nested graph failed.
    #[error("in `{graph}`, {node} ({op})")]
    Within {
        /// The attribute that holds the nested graph.
        graph: &'static str,
        /// The failed node, in the numbering of the nested graph.
        node: NodeId,
        /// Operator of the failed node.
        op: &'static str,
        /// Why the node failed.
        #[source]
        source: Box<EvalError>,
    },
    /// A loop exceeded its iteration limit.
    #[error("the loop condition is still true after max_iter = {max_iter} iterations")]
    MaxIter {
        /// Maximum number of iterations.
        max_iter: u64,
    },
    /// The operator does not support the data of an operand.
    #[error("{0}")]
    Data(String),
}

/// One node that a target cannot run.
///
/// ```
/// use tercet_ir::{DType, NodeId, Type, UnsupportedNode};
/// let unsupported = UnsupportedNode {
///     node: NodeId(3),
///     op: "fft",
///     results: vec![Type::new(DType::F64, [8, 2])],
///     reason: "no kernel for f64".to_string(),
///     remedy: "cast its operands to f32".to_string(),
/// };
/// let text = "%3 fft -> f64[8, 2]: no kernel for f64; cast its operands to f32";
/// assert_eq!(unsupported.to_string(), text);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnsupportedNode {
    /// Id of the node.
    pub node: NodeId,
    /// Operator of the node.
    pub op: &'static str,
    /// The types of the node's results.
    pub results: Vec<Type>,
    /// Why the target does not support the node.
    pub reason: String,
    /// The suggested remedy.
    pub remedy: String,
}

impl fmt::Display for UnsupportedNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let results: Vec<String> = self.results.iter().map(Type::to_string).collect();
        let UnsupportedNode {
            node,
            op,
            reason,
            remedy,
            ..
        } = self;
        write!(
            f,
            "{node} {op} -> {}: {reason}; {remedy}",
            results.join(", ")
        )
    }
}

struct DisplayUnsupportedNodes<'a>(&'a [UnsupportedNode]);
impl fmt::Display for DisplayUnsupportedNodes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|n| write!(f, "\n  {n}"))
    }
}

/// Why compiling a graph failed.
///
/// ```
/// use tercet_ir::backend::check_interface;
/// use tercet_ir::{Bindings, CompileError, DType, Dim, Graph, Symbol, Type};
/// let mut g = Graph::new();
/// let x = g.input("x", Type::new(DType::F32, [Dim::sym("rows")]))?;
/// g.output("y", x)?;
/// let error = check_interface(&g, &Bindings::new()).unwrap_err();
/// assert_eq!(error, CompileError::Unbounded { symbol: Symbol::new("rows") });
/// assert_eq!(check_interface(&g, &Bindings::new().with("rows", 64)), Ok(()));
/// # Ok::<(), tercet_ir::OpError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompileError {
    /// The target cannot run some nodes; all of them are listed.
    #[error("{target} cannot run {} of the graph's nodes:{}", .nodes.len(), DisplayUnsupportedNodes(.nodes))]
    Unsupported {
        /// Name of the executor.
        target: &'static str,
        /// Every unsupported node.
        nodes: Vec<UnsupportedNode>,
    },
    /// A symbol has no upper bound.
    #[error("symbol `{symbol}` has no upper bound; give a bound for `{symbol}` when compiling")]
    Unbounded {
        /// The symbol without an upper bound.
        symbol: Symbol,
    },
    /// The graph has neither outputs nor state assignments.
    #[error("the graph has neither outputs nor state assignments")]
    NoOutputs,
    /// A pass or rule built an invalid node.
    #[error("while rewriting {node}")]
    Rewrite {
        /// The node that was rewritten.
        node: NodeId,
        /// Why the new node is invalid.
        #[source]
        source: OpError,
    },
    /// The pipeline has no pass with the name of a pass to skip.
    #[error("no pass named `{name}`; the pipeline has: {known}")]
    UnknownPass {
        /// The unknown pass name.
        name: String,
        /// The names of the passes.
        known: String,
    },
    /// The graph cannot be computed in this dtype.
    #[error("cannot compute in {dtype}; accepted: f32, f16, bf16")]
    Precision {
        /// The requested dtype.
        dtype: DType,
    },
    /// A constant does not fit the target's integer type.
    #[error("{node} holds {value}, which does not fit i32; this target computes i64 as i32")]
    Narrow {
        /// Id of the constant.
        node: NodeId,
        /// Value of the constant.
        value: i64,
    },
    /// A tensor exceeds the target's size limit for one tensor.
    #[error(
        "{node} ({op}) takes {bytes} bytes, above the target's {limit} for one tensor; \
         lower the symbols' bounds or split it"
    )]
    TooLarge {
        /// Id of the node.
        node: NodeId,
        /// Operator of the node.
        op: &'static str,
        /// Size in bytes at the symbols' upper bounds.
        bytes: u64,
        /// The target's limit in bytes.
        limit: u64,
    },
    /// The device failed while the program was prepared.
    #[error("device: {reason}")]
    Device {
        /// The driver's error message.
        reason: String,
    },
    /// The driver refused a kernel, and no other variant computes the same.
    #[error("device: kernel {kernel}: {reason}")]
    Kernel {
        /// Name of the kernel.
        kernel: String,
        /// The driver's error message.
        reason: String,
    },
    /// This library was miscompiled by its compiler.
    #[error("this build is miscompiled, so its results are unreliable")]
    Miscompiled(#[from] Miscompiled),
    /// A size of the graph is invalid if symbols have their upper bounds.
    #[error("at the symbols' bounds")]
    Bounds(#[from] DimError),
    /// A forced or forbidden kernel variant leaves no kernel for the graph.
    #[error(transparent)]
    Switch(#[from] SwitchError),
    /// The program does not fit in memory.
    #[error("{what} of {bytes} bytes cannot be allocated; lower the symbols' bounds or the batch")]
    OutOfMemory {
        /// A description of the allocation.
        what: &'static str,
        /// Size of the allocation in bytes.
        bytes: u64,
    },
}

/// Why a run failed. The executable remains usable. After a failed run, states have their values
/// from before the run, unless a variant documents otherwise.
///
/// ```
/// use std::collections::BTreeMap;
/// use tercet_ir::{DType, EvalCtx, Graph, RunError, Type, evaluate};
/// let mut g = Graph::new();
/// g.input("x", Type::new(DType::F32, [4]))?;
/// let error = evaluate(&g, &EvalCtx::default(), &BTreeMap::new()).unwrap_err();
/// assert!(matches!(error, RunError::Missing { what: "input", .. }));
/// assert_eq!(error.to_string(), "missing input `x` of type f32[4]");
/// # Ok::<(), tercet_ir::OpError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RunError {
    /// The graph has no input, parameter, state or output with this name.
    #[error("no {what} named `{name}`; the graph has: {known}")]
    UnknownName {
        /// `input`, `param`, `state` or `output`.
        what: &'static str,
        /// The unknown name.
        name: String,
        /// The names that the graph has.
        known: String,
    },
    /// An input was not provided or a parameter was never set.
    #[error("missing {what} `{name}` of type {ty}")]
    Missing {
        /// `input` or `param`.
        what: &'static str,
        /// Name of the missing input or parameter.
        name: String,
        /// Its declared type.
        ty: Type,
    },
    /// A tensor's type differs from the type that the graph declares.
    #[error("{what} `{name}` is {found}; expected {expected}")]
    Type {
        /// `input`, `param` or `state`.
        what: &'static str,
        /// Name of the input, parameter or state.
        name: String,
        /// The type that the graph declares.
        expected: Type,
        /// The type of the provided tensor.
        found: TensorType,
    },
    /// The value of a symbol exceeds its upper bound.
    #[error(
        "symbol `{symbol}` is {value} in `{input}`, above its bound {bound}; compile with a larger bound"
    )]
    AboveBound {
        /// The symbol whose bound is exceeded.
        symbol: Symbol,
        /// The input whose shape sets the symbol.
        input: String,
        /// Value of the symbol.
        value: usize,
        /// Upper bound of the symbol.
        bound: usize,
    },
    /// Two inputs give one symbol different sizes.
    #[error("symbol `{symbol}` is {first} in `{first_input}` and {second} in `{second_input}`")]
    Conflict {
        /// The symbol with two sizes.
        symbol: Symbol,
        /// The size in the first input.
        first: usize,
        /// Name of the first input.
        first_input: String,
        /// The size in the second input.
        second: usize,
        /// Name of the second input.
        second_input: String,
    },
    /// A value does not fit the executor's integer type.
    #[error(
        "{what} `{name}` holds {value}, which does not fit i32; this executor computes i64 as i32"
    )]
    Narrow {
        /// `input`, `param` or `state`.
        what: &'static str,
        /// Name of the input, parameter or state.
        name: String,
        /// The value that does not fit.
        value: i64,
    },
    /// A row range exceeds an output.
    #[error("rows {start}..{end} are out of range for output `{name}` of type {ty}")]
    Rows {
        /// Name of the output.
        name: String,
        /// The output's type in the last run.
        ty: TensorType,
        /// Index of the first requested row.
        start: usize,
        /// Index after the last requested row.
        end: usize,
    },
    /// An element range exceeds a state.
    #[error("elements {start}..{end} are out of range for state `{name}` of type {ty}")]
    Elements {
        /// Name of the state.
        name: String,
        /// The state's type.
        ty: TensorType,
        /// Index of the first element.
        start: usize,
        /// Index after the last element.
        end: usize,
    },
    /// Creating a tensor failed.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// A dimension has no valid value for the sizes of the run.
    #[error("the sizes of this run are invalid")]
    Dim(#[from] DimError),
    /// A node failed on its data, for example because of an index out of range.
    #[error("{node} ({op})")]
    Node {
        /// The failed node, in the numbering of the graph that was compiled.
        node: NodeId,
        /// Operator of the failed node.
        op: &'static str,
        /// Why the node failed.
        #[source]
        source: EvalError,
    },
    /// A node computed a NaN or infinity from finite operands. Only reported if the check is
    /// enabled.
    #[error("{0}")]
    NonFinite(Box<NonFinite>),
    /// An input cannot be bound to a tensor that this executable's device cannot access.
    #[error(
        "input `{input}` of an executable on {own} cannot be bound to a tensor on another device ({found}); \
         read the tensor back and upload it"
    )]
    OtherDevice {
        /// Name of the input.
        input: String,
        /// Executor of the executable.
        own: &'static str,
        /// Executor of the tensor.
        found: &'static str,
    },
    /// The device is out of memory.
    #[error("{what} of {bytes} bytes cannot be allocated")]
    OutOfMemory {
        /// A description of the allocation.
        what: &'static str,
        /// Size of the allocation in bytes.
        bytes: u64,
    },
    /// The device was lost; open a new one.
    #[error("device lost: {reason}")]
    DeviceLost {
        /// The driver's error message.
        reason: String,
    },
}

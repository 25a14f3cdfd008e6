//! Errors of building, compiling and running graphs. Where outside, why in `source`.

use std::error::Error;
use std::fmt;

use crate::dim::{Dim, DimError, Symbol};
use crate::dtype::DType;
use crate::graph::NodeId;
use crate::non_finite::NonFinite;
use crate::tensor::TensorError;
use crate::trial::Miscompiled;
use crate::types::{TensorType, Type};

/// An error with its causes in one line, each after a colon.
pub fn one_line(e: &dyn Error) -> String {
    let mut text = e.to_string();
    let mut source = e.source();
    while let Some(cause) = source {
        text += &format!(": {cause}");
        source = cause.source();
    }
    text
}

/// A number of things: `1 token`, `2 tokens`.
pub fn counted(n: usize, one: &str, many: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { many })
}

/// Why an operator does not accept its operands or attributes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TypeError {
    /// The number of operands is wrong.
    #[error("expected {expected} operands, got {given}")]
    Arity {
        /// The numbers accepted, for example `1` or `2 or 3`.
        expected: String,
        /// The number given.
        given: usize,
    },
    /// An operand's dtype is not accepted.
    #[error("operand {operand} is {found}; accepted: {accepted}")]
    DType {
        /// The operand's name.
        operand: &'static str,
        /// Its dtype.
        found: DType,
        /// What is accepted.
        accepted: String,
    },
    /// An operand's rank is not accepted.
    #[error("operand {operand} has type {found}; expected {expected}")]
    Rank {
        /// The operand's name.
        operand: &'static str,
        /// Its type.
        found: Type,
        /// What is accepted, for example `rank 2 or more`.
        expected: String,
    },
    /// An axis is outside the rank.
    #[error("axis {axis} is out of range for rank {rank}")]
    Axis {
        /// The axis given.
        axis: usize,
        /// The rank.
        rank: usize,
    },
    /// Two dimensions must be equal and are not, or cannot be shown to be.
    #[error("{what}: {left} and {right} differ{}", Dim2(.left, .right))]
    Mismatch {
        /// Which dimensions.
        what: String,
        /// One of them.
        left: Dim,
        /// The other.
        right: Dim,
    },
    /// Two shapes do not broadcast.
    #[error("shapes {left} and {right} do not broadcast")]
    Broadcast {
        /// One type.
        left: Type,
        /// The other.
        right: Type,
    },
    /// An attribute has a value that the operator does not accept.
    #[error("attribute `{name}`: {reason}")]
    Attr {
        /// The attribute.
        name: &'static str,
        /// What is wrong and what would do.
        reason: String,
    },
    /// The result would have more than [`crate::MAX_RANK`] axes.
    #[error("result {ty} has {} axes; at most {} are possible", .ty.rank(), crate::MAX_RANK)]
    TooManyAxes {
        /// The type.
        ty: Type,
    },
    /// The result would have more bytes than can be addressed, or a size that cannot be counted.
    #[error("{ty} is too large: at most {} bytes are possible", isize::MAX)]
    TooLarge {
        /// The type.
        ty: Type,
    },
    /// Something about the operands that no other variant says.
    #[error("{0}")]
    Other(String),
}

/// The hint for dimensions that may be equal but cannot be shown to be.
struct Dim2<'a>(&'a Dim, &'a Dim);
impl fmt::Display for Dim2<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0, self.1) {
            (Dim::Known(_), Dim::Known(_)) => Ok(()),
            (Dim::Sym(_), _) | (_, Dim::Sym(_)) => {
                f.write_str("; use one symbol for sizes that are always equal")
            }
        }
    }
}

/// An operator that could not be added to a graph.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{op}{}", Operands(.operands))]
pub struct OpError {
    /// The operator.
    pub op: &'static str,
    /// The types of the operands.
    pub operands: Vec<Type>,
    /// What is wrong.
    #[source]
    pub source: TypeError,
}

struct Operands<'a>(&'a [Type]);
impl fmt::Display for Operands<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list: Vec<String> = self.0.iter().map(Type::to_string).collect();
        write!(f, "({})", list.join(", "))
    }
}

/// Why the evaluation of one operator failed on its actual data.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EvalError {
    /// An index is outside its axis.
    #[error("index {index} is out of range for axis of {len}; accepted: -{len} to {len} exclusive")]
    Index {
        /// The offending index.
        index: i64,
        /// The size of the axis.
        len: usize,
    },
    /// A size is not possible, for example a slice that ends before it starts for these symbols.
    #[error(transparent)]
    Dim(#[from] DimError),
    /// A tensor could not be made.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// A node of a graph inside the operator failed.
    #[error("in `{graph}`, {node} ({op})")]
    Within {
        /// The attribute that holds the graph.
        graph: &'static str,
        /// The node, in the numbering of that graph.
        node: NodeId,
        /// Its operator.
        op: &'static str,
        /// What went wrong.
        #[source]
        source: Box<EvalError>,
    },
    /// A loop did not end.
    #[error("its condition still holds after {max_iter} iterations, the `max_iter` it was given")]
    MaxIter {
        /// The most iterations that it may have.
        max_iter: u64,
    },
    /// Operand data that the operator does not accept.
    #[error("{0}")]
    Data(String),
}

/// One node that a target cannot run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnsupportedNode {
    /// The node.
    pub node: NodeId,
    /// Its operator.
    pub op: &'static str,
    /// The types of its results.
    pub results: Vec<Type>,
    /// Why the target refuses it.
    pub reason: String,
    /// The nearest way out.
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

struct Lines<'a>(&'a [UnsupportedNode]);
impl fmt::Display for Lines<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|n| write!(f, "\n  {n}"))
    }
}

/// A graph that could not be compiled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompileError {
    /// The target cannot run some nodes; all of them are listed.
    #[error("{target} cannot run {} of the graph's nodes:{}", .nodes.len(), Lines(.nodes))]
    Unsupported {
        /// The executor.
        target: &'static str,
        /// Every node it cannot run.
        nodes: Vec<UnsupportedNode>,
    },
    /// A symbol has no upper bound.
    #[error("symbol `{symbol}` has no upper bound; give a bound for `{symbol}` when compiling")]
    Unbounded {
        /// The symbol.
        symbol: Symbol,
    },
    /// The graph computes nothing.
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
    /// A pass to leave out is not one of the pipeline's.
    #[error("no pass named `{name}`; the pipeline has: {known}")]
    UnknownPass {
        /// The name given.
        name: String,
        /// The names of the passes.
        known: String,
    },
    /// A graph cannot be computed in this dtype.
    #[error("cannot compute in {dtype}; accepted: f32, f16, bf16")]
    Precision {
        /// The dtype asked for.
        dtype: DType,
    },
    /// A constant does not fit the target's integers.
    #[error("{node} holds {value}, which does not fit i32; this target computes i64 as i32")]
    Narrow {
        /// The constant.
        node: NodeId,
        /// The value.
        value: i64,
    },
    /// A tensor exceeds what the target can address at once.
    #[error(
        "{node} ({op}) takes {bytes} bytes, above the target's {limit} for one tensor; \
         lower the symbols' bounds or split it"
    )]
    TooLarge {
        /// The node.
        node: NodeId,
        /// Its operator.
        op: &'static str,
        /// The size at the symbols' bounds.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// The device failed while the program was made ready.
    #[error("device: {reason}")]
    Device {
        /// What the driver said.
        reason: String,
    },
    /// The compiler that built this library did so wrongly.
    #[error("no answer of this build can be trusted")]
    Miscompiled(#[from] Miscompiled),
    /// A size at the symbols' bounds is not possible.
    #[error("at the symbols' bounds")]
    Bounds(#[from] DimError),
    /// The program needs more memory than there is.
    #[error("{what} of {bytes} bytes cannot be allocated; lower the symbols' bounds or the batch")]
    OutOfMemory {
        /// What was to be allocated.
        what: &'static str,
        /// Its size.
        bytes: u64,
    },
}

/// A run that failed. The executable remains usable; state is as before the run unless said.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RunError {
    /// A name is not one of the graph's.
    #[error("no {what} named `{name}`; the graph has: {known}")]
    UnknownName {
        /// `input`, `param`, `state` or `output`.
        what: &'static str,
        /// The name given.
        name: String,
        /// The graph's names.
        known: String,
    },
    /// An input was not given or a parameter never set.
    #[error("{what} `{name}` of type {ty} was not given")]
    Missing {
        /// `input` or `param`.
        what: &'static str,
        /// Its name.
        name: String,
        /// Its type.
        ty: Type,
    },
    /// A tensor has another type than the graph declares.
    #[error("{what} `{name}` is {found}; the graph takes {expected}")]
    Type {
        /// `input`, `param` or `state`.
        what: &'static str,
        /// Its name.
        name: String,
        /// The declared type.
        expected: Type,
        /// The given type.
        found: TensorType,
    },
    /// A symbol would take a size above its bound.
    #[error(
        "symbol `{symbol}` is {value} in `{input}`, above its bound {bound}; compile with a larger bound"
    )]
    AboveBound {
        /// The symbol.
        symbol: Symbol,
        /// The input that set it.
        input: String,
        /// The size.
        value: usize,
        /// The bound.
        bound: usize,
    },
    /// Two inputs give one symbol two sizes.
    #[error("symbol `{symbol}` is {first} in `{first_input}` and {second} in `{second_input}`")]
    Conflict {
        /// The symbol.
        symbol: Symbol,
        /// The size seen first.
        first: usize,
        /// Where.
        first_input: String,
        /// The other size.
        second: usize,
        /// Where.
        second_input: String,
    },
    /// A value does not fit the executor's integers.
    #[error(
        "{what} `{name}` holds {value}, which does not fit i32; this executor computes i64 as i32"
    )]
    Narrow {
        /// `input`, `param` or `state`.
        what: &'static str,
        /// Its name.
        name: String,
        /// The value.
        value: i64,
    },
    /// Rows that an output does not have.
    #[error("rows {start} to {end} of output `{name}`, which is {ty}")]
    Rows {
        /// The output.
        name: String,
        /// Its type in the last run.
        ty: TensorType,
        /// First row.
        start: usize,
        /// One past the last row.
        end: usize,
    },
    /// A tensor could not be made.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// A dimension has no value for the given sizes.
    #[error("the sizes of this run are not possible")]
    Dim(#[from] DimError),
    /// A node failed on its data, for example by an index out of range.
    #[error("{node} ({op})")]
    Node {
        /// The node, in the numbering of the graph as it was compiled.
        node: NodeId,
        /// Its operator.
        op: &'static str,
        /// What went wrong.
        #[source]
        source: EvalError,
    },
    /// A node computed a number that is not finite of finite operands, where that is looked for.
    #[error("{0}")]
    NonFinite(Box<NonFinite>),
    /// An input was to be bound to a tensor that this executable's device cannot reach.
    #[error(
        "input `{input}` of an executable of {own} cannot be bound to a tensor on another device, of {found}; read \
         it there and upload it"
    )]
    OtherDevice {
        /// The input.
        input: String,
        /// The executor of the executable.
        own: &'static str,
        /// The executor that the tensor is of.
        found: &'static str,
    },
    /// The device is out of memory.
    #[error("{what} of {bytes} bytes cannot be allocated")]
    OutOfMemory {
        /// What was to be allocated.
        what: &'static str,
        /// Its size.
        bytes: u64,
    },
    /// The device is gone; make a new one.
    #[error("device lost: {reason}")]
    DeviceLost {
        /// What the driver said.
        reason: String,
    },
}

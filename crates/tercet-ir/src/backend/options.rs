//! Compile options.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use tercet_tensor::{Bindings, DType, Symbol};

use crate::error::CompileError;
use crate::graph::{Graph, Value};
use crate::passes::PIPELINE;

/// Options of a compilation.
///
/// ```
/// use tercet_ir::{CompileOptions, DType, Symbol};
/// let options = CompileOptions::new()
///     .bound("rows", 64)
///     .without_pass("fuse_elementwise")
///     .with_matmul_precision(Some(DType::F16));
/// assert_eq!(options.bounds.get(&Symbol::new("rows")), Some(64));
/// assert_eq!(options.without_passes, ["fuse_elementwise"]);
/// ```
#[derive(Clone, Debug, Default)]
pub struct CompileOptions {
    /// Upper bounds of the symbols.
    pub bounds: Bindings,
    /// Names of passes to skip; see [`crate::passes::PIPELINE`].
    pub without_passes: Vec<String>,
    /// Intermediate values that can be read after a run, in addition to the outputs.
    pub retain: RetainValues,
    /// The dtype to which F32 activations may be rounded in matmuls with quantized weights or
    /// weights of this dtype: `F16` or `BF16`. No rounding by default. Executors round to this
    /// dtype if the device multiplies it faster; accumulation and results remain F32. A number
    /// beyond the range of F16 becomes an infinity.
    pub matmul_precision: Option<DType>,
}

impl CompileOptions {
    /// Options without bounds, with all passes.
    pub fn new() -> CompileOptions {
        CompileOptions::default()
    }

    /// Sets the upper bound of a symbol and returns the options, for chaining.
    pub fn bound(mut self, symbol: &str, bound: usize) -> CompileOptions {
        self.bounds.set(&Symbol::new(symbol), bound);
        self
    }

    /// Skips a pass and returns the options, for chaining.
    pub fn without_pass(mut self, name: &str) -> CompileOptions {
        self.without_passes.push(name.to_string());
        self
    }

    /// Skips every pass and returns the options, for chaining. Each node then runs unmodified.
    pub fn without_any_pass(mut self) -> CompileOptions {
        self.without_passes = PIPELINE.iter().map(|p| p.name.to_string()).collect();
        self
    }

    /// Permits rounding of matmul inputs and returns the options, for chaining.
    pub fn with_matmul_precision(mut self, dtype: Option<DType>) -> CompileOptions {
        self.matmul_precision = dtype;
        self
    }

    /// Sets the values to retain and returns the options, for chaining.
    pub fn retain(mut self, keep: RetainValues) -> CompileOptions {
        self.retain = keep;
        self
    }
}

/// The values of a graph that can be read after a run.
///
/// Each retained value becomes an additional output ([`RetainValues::add_outputs`] gives the
/// names). Every executor therefore retains the value in the same form, in memory that lives until
/// the end of the run. In this mode no passes run: no node is fused, folded or merged, so values
/// correspond to the original graph. Values of nested graphs (`if`, `while`, `scan`) are not
/// included, but the results of such nodes are.
///
/// ```
/// use tercet_ir::{DType, Graph, RetainValues, Type};
/// let mut g = Graph::new();
/// let x = g.input("x", Type::new(DType::F32, [4]))?;
/// let e = g.exp(x)?;
/// let y = g.tanh(e)?;
/// g.output("y", y)?;
/// let (graph, retained) = RetainValues::All.add_outputs(&g)?;
/// let names: Vec<&str> = retained.iter().map(|r| r.output.as_str()).collect();
/// assert_eq!(names, ["%1", "y"]);
/// assert_eq!(graph.outputs().len(), 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum RetainValues {
    /// Only the outputs.
    #[default]
    Outputs,
    /// Every result of every computing node: all nodes except inputs, parameters, constants and
    /// states.
    All,
    /// Only these values; they may be results of any node.
    Values(Vec<Value>),
}

/// A retained value.
///
/// ```
/// use tercet_ir::{DType, Graph, RetainValues, Type, backend::RetainedValue};
/// let mut g = Graph::new();
/// let x = g.input("x", Type::new(DType::F32, [4]))?;
/// let y = g.exp(x)?;
/// g.output("y", y)?;
/// let (_, retained) = RetainValues::Values(vec![x]).add_outputs(&g)?;
/// assert_eq!(retained, [RetainedValue { value: x, output: "%0".to_string() }]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetainedValue {
    /// The value, in the numbering of the original graph.
    pub value: Value,
    /// Name of the output that returns the value: the graph's output name if the value has one,
    /// else `%3`, or `%3.1` for a second result. If another output already has that name,
    /// apostrophes are appended.
    pub output: String,
}

impl RetainValues {
    /// A copy of the graph with the retained values as outputs, and the names of those outputs.
    /// Nodes and their ids are those of `graph`.
    ///
    /// # Errors
    /// [`CompileError::Rewrite`] for a value that is not of the graph.
    pub fn add_outputs(&self, graph: &Graph) -> Result<(Graph, Vec<RetainedValue>), CompileError> {
        let values = match self {
            RetainValues::Outputs => Vec::new(),
            RetainValues::All => computed(graph),
            RetainValues::Values(values) => values.clone(),
        };
        let mut names: HashSet<String> = graph.outputs().iter().map(|o| o.name.clone()).collect();
        let own = graph.outputs().iter().rev();
        let mut known: HashMap<Value, String> = own.map(|o| (o.value, o.name.clone())).collect();
        let mut open = graph.clone();
        let mut kept = Vec::with_capacity(values.len());
        for value in values {
            let output = match known.get(&value) {
                Some(name) => name.clone(),
                None => {
                    let mut name = value.to_string();
                    while !names.insert(name.clone()) {
                        name.push('\'');
                    }
                    let node = value.node;
                    open.output(&name, value)
                        .map_err(|source| CompileError::Rewrite { node, source })?;
                    known.insert(value, name.clone());
                    name
                }
            };
            kept.push(RetainedValue { value, output });
        }
        Ok((open, kept))
    }
}

impl CompileOptions {
    /// The graph to compile, with the retained values as outputs.
    ///
    /// # Errors
    /// As [`RetainValues::add_outputs`]; [`CompileError::Precision`] when the matmul precision is
    /// not `F16` or `BF16`.
    pub fn opened<'g>(&self, graph: &'g Graph) -> Result<Cow<'g, Graph>, CompileError> {
        match self.matmul_precision {
            None | Some(DType::F16 | DType::BF16) => {}
            Some(dtype) => return Err(CompileError::Precision { dtype }),
        }
        match self.retain {
            RetainValues::Outputs => Ok(Cow::Borrowed(graph)),
            RetainValues::All | RetainValues::Values(_) => {
                Ok(Cow::Owned(self.retain.add_outputs(graph)?.0))
            }
        }
    }
}

/// All results of all nodes except inputs, parameters, constants and states.
fn computed(graph: &Graph) -> Vec<Value> {
    let nodes = graph.nodes().filter(|(_, n)| !n.op.is_leaf());
    let values = nodes.flat_map(|(node, n)| {
        let ports = 0..n.outputs.len() as u8;
        ports.map(move |port| Value { node, port })
    });
    values.collect()
}

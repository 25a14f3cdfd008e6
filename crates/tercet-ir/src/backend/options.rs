//! Choices of a compilation.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use crate::dim::{Bindings, Symbol};
use crate::dtype::DType;
use crate::error::CompileError;
use crate::graph::{Graph, Value};
use crate::passes::PIPELINE;

/// Choices of a compilation.
#[derive(Clone, Debug, Default)]
pub struct CompileOptions {
    /// Upper bounds of the symbols.
    pub bounds: Bindings,
    /// Passes to leave out, by name; see [`crate::passes::PIPELINE`].
    pub without_passes: Vec<String>,
    /// Values that can be read after a run besides the outputs.
    pub keep: Keep,
    /// What rows of F32 may be rounded to on their way into products with packed weights or weights of this type:
    /// `F16` or `BF16`; nothing by default. Executors do so where the device multiplies it faster; sums and results stay F32.
    /// A number beyond the range of F16 becomes an infinity.
    pub products: Option<DType>,
}

impl CompileOptions {
    /// No bounds, all passes.
    pub fn new() -> CompileOptions {
        CompileOptions::default()
    }

    /// Sets the upper bound of a symbol and returns the options, for chaining.
    pub fn bound(mut self, symbol: &str, bound: usize) -> CompileOptions {
        self.bounds.set(&Symbol::new(symbol), bound);
        self
    }

    /// Leaves out a pass and returns the options, for chaining.
    pub fn without_pass(mut self, name: &str) -> CompileOptions {
        self.without_passes.push(name.to_string());
        self
    }

    /// Leaves out every pass and returns the options, for chaining: each node then runs as it was written.
    pub fn without_any_pass(mut self) -> CompileOptions {
        self.without_passes = PIPELINE.iter().map(|p| p.name.to_string()).collect();
        self
    }

    /// Lets rows be rounded in products and returns the options, for chaining.
    pub fn products_in(mut self, dtype: Option<DType>) -> CompileOptions {
        self.products = dtype;
        self
    }

    /// Keeps values and returns the options, for chaining.
    pub fn keeping(mut self, keep: Keep) -> CompileOptions {
        self.keep = keep;
        self
    }
}

/// Which values of a graph can be read after a run.
///
/// What is kept becomes an output after those of the graph ([`Keep::of`] gives the names), so that every executor
/// keeps it alike, in memory that lives to the end of the run. No pass runs then: nothing is fused, folded or merged,
/// and what is read is what was written. Values of graphs inside nodes (`if`, `while`, `scan`) are not among those of
/// the graph around them; the results of such nodes are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Keep {
    /// The outputs.
    #[default]
    Outputs,
    /// Every result of every node that computes something: all but inputs, parameters, constants and states.
    All,
    /// These, of any node.
    Values(Vec<Value>),
}

/// A value that is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// The value, in the numbering of the graph as it was given.
    pub value: Value,
    /// The output that it is read by: the graph's own where it has one, else `%3`, `%3.1` for a second result, with
    /// apostrophes behind it if another output has that name.
    pub output: String,
}

impl Keep {
    /// The graph with what is kept as outputs, and their names. Its nodes, and their numbers, are those of `graph`.
    ///
    /// # Errors
    /// [`CompileError::Rewrite`] for a value that is not of the graph.
    pub fn of(&self, graph: &Graph) -> Result<(Graph, Vec<Kept>), CompileError> {
        let values = match self {
            Keep::Outputs => Vec::new(),
            Keep::All => computed(graph),
            Keep::Values(values) => values.clone(),
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
            kept.push(Kept { value, output });
        }
        Ok((open, kept))
    }
}

impl CompileOptions {
    /// The graph to compile: with what is to be kept as outputs.
    ///
    /// # Errors
    /// As [`Keep::of`]; [`CompileError::Precision`] where products are to be of another type than `F16` or `BF16`.
    pub fn opened<'g>(&self, graph: &'g Graph) -> Result<Cow<'g, Graph>, CompileError> {
        match self.products {
            None | Some(DType::F16 | DType::BF16) => {}
            Some(dtype) => return Err(CompileError::Precision { dtype }),
        }
        match self.keep {
            Keep::Outputs => Ok(Cow::Borrowed(graph)),
            Keep::All | Keep::Values(_) => Ok(Cow::Owned(self.keep.of(graph)?.0)),
        }
    }
}

/// Every result of the nodes that compute something.
fn computed(graph: &Graph) -> Vec<Value> {
    let nodes = graph.nodes().filter(|(_, n)| !n.op.is_leaf());
    let values = nodes.flat_map(|(node, n)| {
        let ports = 0..n.outputs.len() as u8;
        ports.map(move |port| Value { node, port })
    });
    values.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DType, NodeId, Type};

    #[test]
    fn what_is_kept_has_names_of_its_own() {
        let mut g = Graph::new();
        let x = g.input("x", Type::new(DType::F32, [4])).unwrap();
        let e = g.exp(x).unwrap();
        let top = g.top_k(e, 2, 0, true).unwrap();
        g.output("%1", top.port(1)).unwrap();
        g.output("again", top.port(1)).unwrap();
        let (open, kept) = Keep::All.of(&g).unwrap();
        let names: Vec<&str> = kept.iter().map(|k| k.output.as_str()).collect();
        assert_eq!(names, ["%1'", "%2", "%1"]);
        assert_eq!(open.outputs().len(), 4);
        assert_eq!(open.outputs()[..2], g.outputs()[..]);
        let foreign = Value {
            node: NodeId(9),
            port: 0,
        };
        let refused = Keep::Values(vec![foreign]).of(&g).unwrap_err();
        assert!(crate::one_line(&refused).contains("%9 is not of this graph"));
        assert_eq!(Keep::Outputs.of(&g).unwrap(), (g, Vec::new()));
    }
}

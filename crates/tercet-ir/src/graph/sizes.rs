//! Graphs with sizes in place of symbols.

use tercet_tensor::{Bindings, Symbol};

use super::{Graph, NodeId};
use crate::error::{OpError, TypeError};

/// Why symbols of a graph cannot have these sizes.
///
/// ```
/// use tercet_ir::{Bindings, DType, Dim, Graph, SizesError, Type};
/// let mut g = Graph::new();
/// let x = g.input("x", Type::new(DType::F32, [Dim::sym("s"), Dim::Known(4)]))?;
/// let y = g.reshape(x, [Dim::Known(2), Dim::sym("s").checked_mul(&Dim::Known(2)).unwrap()])?;
/// g.output("y", y)?;
/// let error = g.with_sizes(&Bindings::new().with("rows", 3)).unwrap_err();
/// assert!(matches!(error, SizesError::Unknown { .. }));
/// assert_eq!(error.to_string(), "the graph has no symbol `rows`; its symbols: s");
/// # Ok::<(), tercet_ir::OpError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SizesError {
    /// A symbol does not occur in the graph.
    #[error("the graph has no symbol `{symbol}`; its symbols: {known}")]
    Unknown {
        /// The symbol.
        symbol: Symbol,
        /// The symbols of the graph.
        known: String,
    },
    /// An operator rejects the sizes.
    #[error("node {node} rejects these sizes")]
    Node {
        /// The node.
        node: NodeId,
        /// Why the operator rejects the sizes.
        #[source]
        source: OpError,
    },
}

impl Graph {
    /// The same graph with these sizes in place of symbols; symbols without a size remain. Ids of
    /// nodes and names do not change.
    ///
    /// ```
    /// use tercet_ir::{Bindings, DType, Dim, Graph, Type};
    /// let mut g = Graph::new();
    /// let x = g.input("x", Type::new(DType::F32, [Dim::sym("batch"), Dim::sym("length")]))?;
    /// let y = g.softmax(x, 1)?;
    /// g.output("y", y)?;
    /// let fixed = g.with_sizes(&Bindings::new().with("length", 128))?;
    /// assert_eq!(fixed.ty(y).to_string(), "f32[batch, 128]");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`SizesError`] when a symbol does not occur in the graph, or an operator rejects the sizes.
    pub fn with_sizes(&self, sizes: &Bindings) -> Result<Graph, SizesError> {
        let symbols = self.symbols();
        if let Some((symbol, _)) = sizes.iter().find(|(s, _)| !symbols.contains(s)) {
            let known: Vec<&str> = symbols.iter().map(Symbol::name).collect();
            return Err(SizesError::Unknown {
                symbol: symbol.clone(),
                known: match known.is_empty() {
                    true => "none".to_string(),
                    false => known.join(", "),
                },
            });
        }
        self.with_known_sizes(sizes)
    }

    /// As [`Graph::with_sizes`], for symbols that need not occur in the graph.
    pub(crate) fn with_known_sizes(&self, sizes: &Bindings) -> Result<Graph, SizesError> {
        let mut new = Graph::new();
        new.reserve(self.len());
        for (id, node) in self.nodes() {
            let fail = |source| SizesError::Node { node: id, source };
            let mut op = node.op.clone();
            let at_node = |source: TypeError| OpError {
                op: node.op.kind().doc().name,
                operands: node.inputs.iter().map(|v| self.ty(*v).clone()).collect(),
                source,
            };
            op.set_sizes(sizes).map_err(|e| fail(at_node(e)))?;
            new.add_for(Some(self.origin(id)));
            new.add(op, &node.inputs).map_err(fail)?;
            for ty in &new.node(id).outputs {
                let mut left = None;
                ty.for_each_symbol(|s| left = left.take().or(sizes.get(s).map(|_| s.clone())));
                if let Some(symbol) = left {
                    let reason = format!("the result {ty} keeps symbol `{symbol}`");
                    return Err(fail(at_node(TypeError::Other(reason))));
                }
            }
        }
        new.add_for(None);
        for output in self.outputs() {
            let node = output.value.node;
            new.output(&output.name, output.value)
                .map_err(|source| SizesError::Node { node, source })?;
        }
        for assign in self.assigns() {
            let node = assign.value.node;
            new.assign(assign.state, assign.value)
                .map_err(|source| SizesError::Node { node, source })?;
        }
        Ok(new)
    }
}

//! Which values the program stores as structure of arrays ([`SoaLayout`]).
//!
//! Inputs, states, and parameters with other readers stay in file order (array of structures).

use std::collections::{HashMap, HashSet};

use tercet_ir::{DType, Graph, Node, NodeId, Op, Scheme, Value};
use tercet_program::SoaLayout;

use crate::emit::all_known;

/// Values stored as structure of arrays: parameters whose readers dequantize them or take whole
/// rows, and those rows.
pub(crate) fn find_soa_layouts(graph: &Graph) -> HashMap<Value, SoaLayout> {
    let mut uses: HashMap<Value, Vec<(Value, usize)>> = HashMap::new();
    for (id, node) in graph.nodes() {
        for (at, v) in node.inputs.iter().enumerate() {
            uses.entry(*v)
                .or_default()
                .push((Value { node: id, port: 0 }, at));
        }
    }
    // Outputs of the program are read back in file order.
    for v in graph.results() {
        uses.remove(&v);
    }
    let packed = graph.nodes().filter(|(_, node)| {
        let ty = &node.outputs[0];
        matches!(node.op, Op::Param(_)) && ty.dtype == DType::U8 && all_known(&ty.shape)
    });
    let mut params: HashSet<Value> = packed.map(|(node, _)| Value { node, port: 0 }).collect();
    let mut reads = OperandReaders {
        graph,
        uses,
        concats: HashMap::new(),
    };
    reads.concats = reads.concats_of(&params);
    // All parameters of an elided concatenation share one order: if one stays in file order, so do
    // the others.
    let mut asked: Vec<Value> = params.iter().copied().collect();
    while let Some(v) = asked.pop() {
        if reads.scheme(v).is_some() || !params.remove(&v) {
            continue;
        }
        for (to, _) in reads.uses.get(&v).into_iter().flatten() {
            if reads.concats.remove(&to.node).is_some() {
                asked.extend(&graph.node(to.node).inputs);
            }
        }
    }
    let mut found = HashMap::new();
    for v in params {
        let row_bytes = graph
            .ty(v)
            .shape
            .last()
            .and_then(|d| d.known())
            .unwrap_or(0);
        if row_bytes > 0
            && let Some(scheme) = reads.scheme(v)
        {
            reads.mark(v, SoaLayout { scheme, row_bytes }, &mut found);
        }
    }
    found
}

/// Readers of each graph value: each reader is given by its first result and the index of the
/// operand that it reads.
struct OperandReaders<'a> {
    graph: &'a Graph,
    uses: HashMap<Value, Vec<(Value, usize)>>,
    /// Concatenations of parameter rows that can be SoA, with the scheme that their readers
    /// dequantize.
    concats: HashMap<NodeId, Scheme>,
}

impl OperandReaders<'_> {
    /// Concatenations along a row axis whose operands are all parameters and whose result is
    /// dequantized.
    fn concats_of(&self, params: &HashSet<Value>) -> HashMap<NodeId, Scheme> {
        let joins = self.graph.nodes().filter_map(|(id, node)| {
            let Op::Concat(o) = &node.op else { return None };
            let of_rows = o.axis + 1 < node.outputs[0].shape.len();
            let of_params = node.inputs.iter().all(|v| params.contains(v));
            let scheme = self.scheme(Value { node: id, port: 0 });
            Some((id, scheme.filter(|_| of_rows && of_params)?))
        });
        joins.collect()
    }

    /// The common quantization scheme, if all readers of the value, and of rows taken from it,
    /// dequantize with one scheme.
    fn scheme(&self, v: Value) -> Option<Scheme> {
        let uses = self.uses.get(&v)?;
        let mut schemes = uses.iter().map(|&(to, at)| {
            let node = self.graph.node(to.node);
            match &node.op {
                Op::DequantMatMul(o) if at == 1 => Some(o.scheme),
                Op::DequantGroupedMatMul(o) if at == 1 => Some(o.scheme),
                Op::Dequantize(o) => Some(o.scheme),
                Op::Concat(_) => self.concats.get(&to.node).copied(),
                _ if self.preserves_rows(node, at) => self.scheme(to),
                _ => None,
            }
        });
        let first = schemes.next()??;
        schemes.all(|s| s == Some(first)).then_some(first)
    }

    fn mark(&self, v: Value, planes: SoaLayout, found: &mut HashMap<Value, SoaLayout>) {
        if found.insert(v, planes).is_some() {
            return;
        }
        for &(to, at) in self.uses.get(&v).into_iter().flatten() {
            let is_join = self.concats.contains_key(&to.node);
            if is_join || self.preserves_rows(self.graph.node(to.node), at) {
                self.mark(to, planes, found);
            }
        }
    }

    /// True if the result of the node consists of whole rows of this operand, with their bytes in
    /// order.
    fn preserves_rows(&self, node: &Node, operand: usize) -> bool {
        let last = |v: Value| self.graph.ty(v).shape.len().saturating_sub(1);
        let [v, ..] = node.inputs[..] else {
            return false;
        };
        match &node.op {
            Op::Gather(o) => operand == 0 && o.axis < last(v),
            Op::Slice(o) => {
                let at = last(v);
                let ends = [self.graph.ty(v), &node.outputs[0]].map(|t| t.shape.last());
                o.steps.get(at) == Some(&1) && ends[0] == ends[1]
            }
            _ => false,
        }
    }
}

//! Reduced precision on request: an F32 graph computed in F16 or BF16.
//!
//! Inputs, parameters and outputs keep their declared types, with casts at the interface. Executors
//! compute values that depend only on parameters once. F32 states become narrow, which halves a KV
//! cache. Sums, norms and softmax accumulate in F32 by definition.
//!
//! These values remain in F32:
//!
//! - Rotary tables and their inputs.
//! - Numbers derived from integers (positions, counts) until they are combined with activations.
//! - Random numbers.
//! - Dequantized weights, which are cast afterwards.
//! - States of scans and their inputs.
//!
//! Integers, booleans and F64 values are unchanged. A nested graph keeps the types of its arguments
//! and results.

use std::collections::HashMap;

use tercet_tensor::accuracy::Accuracy;
use tercet_tensor::{DType, Tensor, TensorType, Type};

use crate::error::{CompileError, OpError, TypeError, one_line};
use crate::graph::{Graph, Node, NodeId, Value};
use crate::ops::{Cast, Const, Map, Op, OpKind, State};
use crate::scalar::ScalarOp;
use crate::subgraph::SubGraph;

/// The graph with its F32 arithmetic computed in `dtype`, `F16` or `BF16`; `F32` changes nothing.
///
/// # Errors
/// [`CompileError::Precision`] for another dtype; [`CompileError::Rewrite`] when an operator
/// supports neither the narrow nor the F32 operands.
pub fn convert_precision(graph: &Graph, dtype: DType) -> Result<Graph, CompileError> {
    match dtype {
        DType::F32 => return Ok(graph.clone()),
        DType::F16 | DType::BF16 => {}
        DType::F64
        | DType::I32
        | DType::U32
        | DType::I64
        | DType::I16
        | DType::I8
        | DType::U8
        | DType::Bool => {
            return Err(CompileError::Precision { dtype });
        }
    }
    let mut c = PrecisionConverter {
        old: graph,
        new: Graph::new(),
        dtype,
        map: Vec::with_capacity(graph.len()),
        casts: HashMap::new(),
    };
    let keeps = wide_nodes(graph);
    for (id, node) in graph.nodes() {
        let first = c.convert(id, node, keeps[id.index()]);
        let first = first.map_err(|source| CompileError::Rewrite { node: id, source })?;
        let ports = 0..node.outputs.len() as u8;
        c.map.push(ports.map(|p| first.port(p)).collect());
    }
    let fail = |node: NodeId| move |source| CompileError::Rewrite { node, source };
    for o in graph.outputs() {
        let declared = graph.ty(o.value).dtype;
        let at = o.value.node;
        let value = c.read(o.value, declared).map_err(fail(at))?;
        c.new.output(&o.name, value).map_err(fail(at))?;
    }
    for a in graph.assigns() {
        let at = a.value.node;
        let state = c.map[a.state.node.index()][0];
        let to = c.new.ty(state).dtype;
        let value = c.read(a.value, to).map_err(fail(at))?;
        c.new.assign(state, value).map_err(fail(at))?;
    }
    Ok(c.new)
}

/// The nodes that remain in F32 even if their operator supports narrow types.
fn wide_nodes(graph: &Graph) -> Vec<bool> {
    let mut wide = vec![false; graph.len()];
    // Rotary tables, and the nodes that compute them, are found backwards from the `Rope` nodes
    // that read them.
    for (id, node) in graph.nodes().rev() {
        match node.op.kind() {
            OpKind::Rope => (node.inputs[1..].iter()).for_each(|v| wide[v.node.index()] = true),
            OpKind::SelectiveScan | OpKind::Mamba2 => {
                (node.inputs[5..].iter()).for_each(|v| wide[v.node.index()] = true);
            }
            _ if wide[id.index()] => {
                (node.inputs.iter()).for_each(|v| wide[v.node.index()] = true);
            }
            _ => {}
        }
    }
    // Numbers derived from integers are traced forwards until they are combined with others.
    let mut from_integers = vec![false; graph.len()];
    for (id, node) in graph.nodes() {
        let floats: Vec<Value> = (node.inputs.iter().copied())
            .filter(|v| graph.ty(*v).dtype.is_float())
            .collect();
        let constant = |v: &Value| matches!(graph.node(v.node).op, Op::Const(_));
        from_integers[id.index()] = match &node.op {
            Op::Cast(c) => match floats.as_slice() {
                [] => c.to == DType::F32,
                [x, ..] => from_integers[x.node.index()],
            },
            op => {
                op.kind().doc().accuracy < Accuracy::Contraction
                    && floats.iter().any(|v| from_integers[v.node.index()])
                    && floats
                        .iter()
                        .all(|v| from_integers[v.node.index()] || constant(v))
            }
        };
    }
    wide.iter_mut()
        .zip(&from_integers)
        .for_each(|(w, f)| *w |= f);
    wide
}

struct PrecisionConverter<'g> {
    old: &'g Graph,
    new: Graph,
    dtype: DType,
    map: Vec<Vec<Value>>,
    casts: HashMap<(Value, DType), Value>,
}

impl PrecisionConverter<'_> {
    /// The new value of an old one in a dtype; each cast is created once.
    fn read(&mut self, old: Value, to: DType) -> Result<Value, OpError> {
        let v = self.map[old.node.index()][old.port as usize];
        if self.new.ty(v).dtype == to {
            return Ok(v);
        }
        if let Some(&done) = self.casts.get(&(v, to)) {
            return Ok(done);
        }
        let narrowed = match &self.new.node(v.node).op {
            Op::Const(c) => retyped(&c.tensor, to),
            _ => None,
        };
        let new = match narrowed {
            Some(tensor) => self.new.add(Const { tensor }, &[])?,
            None => self.new.add(Cast { to }, &[v])?,
        };
        self.casts.insert((v, to), new);
        Ok(new)
    }

    /// The dtype that narrow arithmetic uses to read a value of the old graph.
    fn narrow(&self, dtype: DType) -> DType {
        if dtype == DType::F32 {
            self.dtype
        } else {
            dtype
        }
    }

    /// Adds the converted form of a node: narrow if permitted and supported by its operator.
    fn convert(&mut self, id: NodeId, node: &Node, stays: bool) -> Result<Value, OpError> {
        match &node.op {
            Op::Input(_) | Op::Param(_) | Op::Const(_) => {
                return self.new.add(node.op.clone(), &[]);
            }
            Op::State(_) if stays => return self.new.add(node.op.clone(), &[]),
            Op::State(s) => {
                let ty = s.ty.with_dtype(self.narrow(s.ty.dtype));
                let name = s.name.clone();
                return self.new.add(State { name, ty }, &[]);
            }
            _ => {}
        }
        let old_dtypes: Vec<DType> = (node.inputs.iter())
            .map(|v| self.old.ty(*v).dtype)
            .collect();
        let mut blocks = Vec::new();
        for (_, block) in node.op.subgraphs() {
            blocks.push(self.block(block)?);
        }
        if !blocks.is_empty() {
            return self.add(node.op.with_subgraphs(blocks), node, &old_dtypes);
        }
        if !stays {
            let op = narrow_op(&node.op, self.dtype);
            let mut all: Vec<DType> = old_dtypes.iter().map(|d| self.narrow(*d)).collect();
            if is_scan(&node.op) {
                all.truncate(5);
                all.extend(&old_dtypes[5..]);
            }
            // Tries narrowing only the first operand: the others may have to remain in F32, as
            // rotary tables do.
            let mut first = old_dtypes.clone();
            first.iter_mut().take(1).for_each(|d| *d = self.narrow(*d));
            for dtypes in [first, all] {
                let mixed = dtypes.contains(&DType::F32);
                if mixed && node.op.kind() != OpKind::Rope && !is_scan(&node.op) {
                    continue;
                }
                if self.accepts(&op, node, &dtypes) {
                    return self.add(op, node, &dtypes);
                }
            }
        }
        debug_assert!(id.index() == self.map.len());
        self.add(node.op.clone(), node, &old_dtypes)
    }

    /// Converts a nested graph: its arithmetic becomes narrow, its argument and result types do not
    /// change.
    fn block(&self, block: &SubGraph) -> Result<SubGraph, OpError> {
        let narrow = convert_precision(block.graph(), self.dtype);
        narrow.map(SubGraph::new).map_err(|e| match e {
            CompileError::Rewrite { source, .. } => source,
            other => OpError {
                op: "graph",
                operands: Vec::new(),
                source: TypeError::Other(one_line(&other)),
            },
        })
    }

    fn accepts(&self, op: &Op, node: &Node, dtypes: &[DType]) -> bool {
        let types: Vec<Type> = (node.inputs.iter().zip(dtypes))
            .map(|(v, d)| self.old.ty(*v).with_dtype(*d))
            .collect();
        let inferred: Result<_, TypeError> = op.infer(&types.iter().collect::<Vec<_>>());
        inferred.is_ok()
    }

    fn add(&mut self, op: Op, node: &Node, dtypes: &[DType]) -> Result<Value, OpError> {
        let mut inputs = Vec::with_capacity(dtypes.len());
        for (v, d) in node.inputs.iter().zip(dtypes) {
            inputs.push(self.read(*v, *d)?);
        }
        self.new.add(op, &inputs)
    }
}

/// True for scans whose states, the sixth operand, are F32 for all operand dtypes.
fn is_scan(op: &Op) -> bool {
    matches!(op, Op::SelectiveScan(_) | Op::Mamba2(_))
}

/// The constant in another float dtype.
fn retyped(tensor: &Tensor, to: DType) -> Option<Tensor> {
    let ty = TensorType::new(to, tensor.shape());
    Tensor::from_f64s(ty, &tensor.to_f64s()).ok()
}

/// The operator with `dtype` in place of F32 in its attributes.
fn narrow_op(op: &Op, dtype: DType) -> Op {
    let narrow = |d: DType| if d == DType::F32 { dtype } else { d };
    match op {
        Op::Cast(c) => Cast { to: narrow(c.to) }.into(),
        Op::Map(m) => {
            let mut m: Map = m.clone();
            for step in &mut m.body {
                match &mut step.op {
                    ScalarOp::Const(d, _) | ScalarOp::Cast(d) => *d = narrow(*d),
                    ScalarOp::Unary(_)
                    | ScalarOp::Binary(_)
                    | ScalarOp::Compare(_)
                    | ScalarOp::Where
                    | ScalarOp::Fma
                    | ScalarOp::Clamp { .. } => {}
                }
            }
            m.into()
        }
        op => op.clone(),
    }
}

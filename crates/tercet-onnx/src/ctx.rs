//! The state of an import: graphs under construction, names in scope, and errors.
//!
//! A *level* is a graph under construction: the model's graph, a subgraph of a node, or a scratch
//! graph for evaluating constants. A *scope* is a set of names: of the model's graph, a function
//! body or a branch. A graph value belongs to the level that created it. Only scopes of the same
//! level can share values.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use tercet_ir::{DType, Dim, Graph, Op, Tensor, Value};

use crate::error::{ModelLocation, NodeError, NodeErrorKind, OnnxError};
use crate::external::ExternalDataFolder;
use crate::import::ImportOptions;
use crate::proto::{AttributeProto, FunctionProto};
use crate::strings::StringTable;
use crate::val::{ImportedValue, ShapeElem, Sizes};

/// Maximum number of elements of an initializer that becomes a graph constant; larger ones become
/// parameters.
const MAX_CONSTANT: usize = 64;
/// Maximum number of nodes that inlined functions and unrolled loops may add to those of the file.
pub(crate) const MAX_ADDED_NODES: usize = 1 << 18;
/// Maximum total number of tensor elements created at import time that are not in the file.
const MAX_MADE: usize = 1 << 23;

/// A graph under construction.
#[derive(Default)]
pub(crate) struct GraphLevel {
    pub(crate) graph: Graph,
    /// A unique number of the level, never reused.
    pub(crate) serial: usize,
    /// Whether this is the model's own graph, which has parameters.
    pub(crate) outermost: bool,
}

/// Operator set versions by domain.
pub(crate) type Opsets = Rc<HashMap<String, i64>>;

/// The names of a scope and their values.
#[derive(Default)]
pub(crate) struct ImportScope<'m> {
    pub(crate) names: HashMap<&'m str, ImportedValue>,
    /// Whether names of enclosing scopes are hidden.
    pub(crate) isolated: bool,
    /// The attributes of the call, if the scope is a function body.
    pub(crate) attributes: HashMap<&'m str, &'m AttributeProto>,
    pub(crate) opsets: Opsets,
}

/// The domain, name and overload of a function.
pub(crate) type FunctionKey<'m> = (&'m str, &'m str, &'m str);

pub(crate) struct ImportCtx<'m> {
    pub(crate) options: &'m ImportOptions,
    pub(crate) folder: ExternalDataFolder,
    /// The strings of the model.
    pub(crate) strings: StringTable,
    pub(crate) functions: HashMap<FunctionKey<'m>, &'m FunctionProto>,
    pub(crate) levels: Vec<GraphLevel>,
    pub(crate) scopes: Vec<ImportScope<'m>>,
    pub(crate) params: Vec<(String, Tensor)>,
    /// The names of the model's graph that a single operand refers to.
    pub(crate) used_once: HashSet<&'m str>,
    pub(crate) errors: Vec<NodeError>,
    /// The functions and nodes that enclose the current node.
    pub(crate) inside: Vec<String>,
    pub(crate) nodes: usize,
    pub(crate) max_nodes: usize,
    name_counter: usize,
    serial: usize,
}

impl<'m> ImportCtx<'m> {
    pub(crate) fn new(
        options: &'m ImportOptions,
        folder: ExternalDataFolder,
        strings: StringTable,
    ) -> ImportCtx<'m> {
        let mut ctx = ImportCtx {
            options,
            folder,
            strings,
            functions: HashMap::new(),
            levels: Vec::new(),
            scopes: Vec::new(),
            params: Vec::new(),
            used_once: HashSet::new(),
            errors: Vec::new(),
            inside: Vec::new(),
            nodes: 0,
            max_nodes: MAX_ADDED_NODES,
            name_counter: 0,
            serial: 0,
        };
        ctx.push_level(true);
        ctx
    }

    pub(crate) fn push_level(&mut self, outermost: bool) {
        self.serial += 1;
        self.levels.push(GraphLevel {
            graph: Graph::new(),
            serial: self.serial,
            outermost,
        });
    }

    pub(crate) fn pop_level(&mut self) -> Graph {
        self.levels.pop().map(|l| l.graph).unwrap_or_default()
    }

    /// As [`ImportCtx::pop_level`], but returns the whole level, so that the import can continue it
    /// later.
    pub(crate) fn pop_whole_level(&mut self) -> GraphLevel {
        self.levels.pop().unwrap_or_default()
    }

    pub(crate) fn level(&mut self) -> &mut GraphLevel {
        self.levels
            .last_mut()
            .expect("invariant: the model's level is never popped")
    }

    pub(crate) fn g(&mut self) -> &mut Graph {
        &mut self.level().graph
    }

    pub(crate) fn graph(&self) -> &Graph {
        &self
            .levels
            .last()
            .expect("invariant: the model's level is never popped")
            .graph
    }

    pub(crate) fn scope(&mut self) -> &mut ImportScope<'m> {
        self.scopes
            .last_mut()
            .expect("invariant: nodes are in a scope")
    }

    /// The value of a name.
    pub(crate) fn lookup(&self, name: &str) -> Option<ImportedValue> {
        for scope in self.scopes.iter().rev() {
            if let Some(val) = scope.names.get(name) {
                return Some(val.clone());
            }
            if scope.isolated {
                return None;
            }
        }
        None
    }

    /// An attribute of the enclosing function call.
    pub(crate) fn function_attribute(&self, name: &str) -> Option<&'m AttributeProto> {
        for scope in self.scopes.iter().rev() {
            if let Some(attr) = scope.attributes.get(name) {
                return Some(attr);
            }
            if scope.isolated {
                return None;
            }
        }
        None
    }

    pub(crate) fn fail(&mut self, name: String, op: &str, source: NodeErrorKind) {
        let at = ModelLocation {
            inside: self.inside.clone(),
            name,
            op: op.to_string(),
        };
        self.errors.push(NodeError { at, source });
    }

    /// Returns all collected errors as one error of the model.
    pub(crate) fn finish(&mut self) -> Result<(), OnnxError> {
        match self.errors.is_empty() {
            true => Ok(()),
            false => Err(OnnxError::Nodes(std::mem::take(&mut self.errors))),
        }
    }

    /// The value in the current graph. A known tensor becomes a constant or a parameter, once.
    pub(crate) fn place(
        &mut self,
        val: &ImportedValue,
        index: usize,
    ) -> Result<Value, NodeErrorKind> {
        match val {
            ImportedValue::Graph(v) => Ok(*v),
            ImportedValue::ConstTensor(known) => {
                let serial = self.level().serial;
                let placed = known
                    .placed
                    .borrow()
                    .iter()
                    .find(|(s, _)| *s == serial)
                    .map(|(_, v)| *v);
                if let Some(value) = placed {
                    return Ok(value);
                }
                let value = self.place_tensor(&known.tensor, known.name.as_deref())?;
                known.placed.borrow_mut().push((serial, value));
                Ok(value)
            }
            ImportedValue::ShapeValue(sizes) => self.place_sizes(sizes),
            ImportedValue::Absent => Err(NodeErrorKind::operand(index, "is missing")),
            ImportedValue::Narrow(narrow, _) => Err(NodeErrorKind::operand(
                index,
                format!(
                    "has dtype {}, which this operator does not support",
                    narrow.name()
                ),
            )),
            ImportedValue::Bounded(_) => Err(NodeErrorKind::operand(
                index,
                "has a data-dependent size, which this operator does not support",
            )),
            ImportedValue::Maps(_) => Err(NodeErrorKind::operand(
                index,
                "contains maps, expected a tensor",
            )),
            ImportedValue::Seq(_) => Err(NodeErrorKind::operand(
                index,
                "is a sequence, expected a tensor",
            )),
            ImportedValue::Unsupported(why) => Err(NodeErrorKind::operand(index, why.to_string())),
            ImportedValue::Failed => Err(NodeErrorKind::operand(index, "failed")),
        }
    }

    /// The contents of a constant or a parameter of the current graph.
    pub(crate) fn known_tensor(&self, value: Value) -> Option<&Tensor> {
        match &self.graph().node(value.node).op {
            Op::Const(constant) => Some(&constant.tensor),
            Op::Param(param) if self.levels.len() == 1 => {
                let own = self.params.iter().find(|(name, _)| *name == param.name);
                own.map(|(_, tensor)| tensor)
            }
            _ => None,
        }
    }

    /// Whether a single operand of the whole model refers to the name of the current graph.
    pub(crate) fn is_used_once(&self, name: &str) -> bool {
        self.levels.len() == 1 && self.scopes.len() == 1 && self.used_once.contains(name)
    }

    pub(crate) fn place_tensor(
        &mut self,
        tensor: &Tensor,
        name: Option<&str>,
    ) -> Result<Value, NodeErrorKind> {
        if !self.level().outermost || tensor.numel() <= MAX_CONSTANT {
            return Ok(self.g().constant(tensor.clone())?);
        }
        // Per-channel zero points stay constants: whether they are zero decides which operators are
        // emitted.
        let codes = matches!(tensor.dtype(), DType::U8 | DType::I8) && tensor.shape().len() == 1;
        if codes && tensor.bytes().iter().all(|byte| *byte == 0) {
            let zero = self.g().scalar(tensor.dtype(), 0.0)?;
            return Ok(self.g().expand(zero, [tensor.numel()])?);
        }
        let mut name = name.unwrap_or("constant").to_string();
        if self.graph().leaf(&name).is_some() {
            name = format!("{name}#{}", self.params.len());
        }
        let value = self.g().param(&name, tensor.ty().into())?;
        self.params.push((name, tensor.clone()));
        Ok(value)
    }

    /// Symbolic sizes as a graph value: a size is computed as a sum of that many ones.
    fn place_sizes(&mut self, sizes: &Sizes) -> Result<Value, NodeErrorKind> {
        let g = self.g();
        let mut parts = Vec::with_capacity(sizes.nums.len());
        for num in &sizes.nums {
            let part = match num {
                ShapeElem::Int(n) => g.constant(Tensor::from_slice(&[1], &[*n])?)?,
                ShapeElem::Dim(dim) => {
                    let one = g.constant(Tensor::from_slice(&[1], &[1i64])?)?;
                    let ones = g.expand(one, [dim.clone()])?;
                    g.reduce(tercet_ir::ops::ReduceFn::Sum, ones, &[0], true)?
                }
                ShapeElem::Data(size) => {
                    let count = g.cast(size.count, DType::I64)?;
                    g.unsqueeze(count, 0)?
                }
            };
            parts.push(part);
        }
        let all = match sizes.scalar {
            true => g.squeeze(parts[0], 0)?,
            false => g.concat(&parts, 0)?,
        };
        crate::emulated_dtypes::cast_to(g, all, sizes.dtype)
    }

    /// The inputs of the model that a value of the current graph depends on.
    pub(crate) fn origins(&self, value: Value) -> Vec<String> {
        let graph = self.graph();
        if self.levels.len() > 1 {
            return Vec::new();
        }
        let mut wanted = vec![false; value.node.index() + 1];
        wanted[value.node.index()] = true;
        let mut names = Vec::new();
        for i in (0..wanted.len()).rev().filter(|i| i <= &value.node.index()) {
            if !wanted[i] {
                continue;
            }
            let node = graph.node(tercet_ir::NodeId(i as u32));
            if let Op::Input(input) = &node.op {
                names.push(input.name.clone());
            }
            node.inputs
                .iter()
                .for_each(|v| wanted[v.node.index()] = true);
        }
        names.reverse();
        names
    }

    /// Whether an input of the model has few elements for all values of its symbols.
    pub(crate) fn is_small(&self, name: &str) -> bool {
        let leaf = self.graph().leaf(name);
        let ty = leaf.and_then(|id| self.graph().node(id).outputs.first());
        let count = ty.and_then(|ty| ty.shape.numel()?.known());
        count.is_some_and(|n| n <= MAX_CONSTANT)
    }

    /// Reserves `elements` from the budget for created elements; false if it is exhausted. Small
    /// requests always succeed.
    pub(crate) fn spend(&mut self, elements: usize) -> bool {
        const FEW: usize = 64;
        let total = self.name_counter.saturating_add(elements);
        if total <= MAX_MADE {
            self.name_counter = total;
        }
        total <= MAX_MADE || elements <= FEW
    }

    /// Counts a node or a subgraph against the node limit.
    pub(crate) fn count_node(&mut self) -> Result<(), String> {
        self.nodes += 1;
        match self.nodes > self.max_nodes {
            true => Err(format!(
                "inlined functions and unrolled loops have more than {} nodes",
                self.max_nodes
            )),
            false => Ok(()),
        }
    }

    /// A scalar constant of a dtype.
    pub(crate) fn scalar(&mut self, dtype: DType, value: f64) -> Result<Value, NodeErrorKind> {
        Ok(self.g().scalar(dtype, value)?)
    }

    /// The dimensions of a value.
    pub(crate) fn dims(&self, value: Value) -> Vec<Dim> {
        self.graph().ty(value).shape.to_vec()
    }
}

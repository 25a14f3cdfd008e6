//! The state of an import: graphs under construction, names in scope, and the errors so far.
//!
//! A *level* is a graph under construction: the model's, one inside a node, or a scratch one in which constants are
//! evaluated. A *scope* is a set of names: of the model's graph, a function's body, a branch. Values of the graph belong
//! to the level they were made in; only scopes of one level see each other's.

use std::collections::HashMap;
use std::rc::Rc;

use tercet_ir::{DType, Dim, Graph, Op, Tensor, Value};

use crate::error::{ModelLocation, NodeError, NodeErrorKind, OnnxError};
use crate::external::ExternalDataFolder;
use crate::import::ImportOptions;
use crate::proto::{AttributeProto, FunctionProto};
use crate::strings::StringTable;
use crate::val::{ImportedValue, ShapeElem, Sizes};

/// Weights with more elements are parameters; smaller ones are constants of the graph.
const MAX_CONSTANT: usize = 64;
/// How many nodes functions and loops written out may add to those of a file.
pub(crate) const MAX_ADDED_NODES: usize = 1 << 18;
/// How many elements of tensors may be made when importing that are not in the file, all together.
const MAX_MADE: usize = 1 << 23;

/// A graph under construction.
pub(crate) struct GraphLevel {
    pub(crate) graph: Graph,
    /// Tells levels apart, those that are gone included.
    pub(crate) serial: usize,
    /// Whether it is the model's own, which has parameters.
    pub(crate) outermost: bool,
}

/// Operator sets by domain.
pub(crate) type Opsets = Rc<HashMap<String, i64>>;

/// Names and what they stand for.
#[derive(Default)]
pub(crate) struct ImportScope<'m> {
    pub(crate) names: HashMap<&'m str, ImportedValue>,
    /// Whether names of scopes around it are not seen.
    pub(crate) isolated: bool,
    /// What attributes of the function that this is the body of are.
    pub(crate) attributes: HashMap<&'m str, &'m AttributeProto>,
    pub(crate) opsets: Opsets,
}

/// Domain, name and overload of a function.
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
    pub(crate) errors: Vec<NodeError>,
    /// Functions and nodes that the current node is in.
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

    pub(crate) fn level(&mut self) -> &mut GraphLevel {
        self.levels
            .last_mut()
            .expect("invariant: the model's level stays")
    }

    pub(crate) fn g(&mut self) -> &mut Graph {
        &mut self.level().graph
    }

    pub(crate) fn graph(&self) -> &Graph {
        &self
            .levels
            .last()
            .expect("invariant: the model's level stays")
            .graph
    }

    pub(crate) fn scope(&mut self) -> &mut ImportScope<'m> {
        self.scopes
            .last_mut()
            .expect("invariant: nodes are in a scope")
    }

    /// What a name stands for.
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

    /// The attribute of the function around, by its name there.
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

    /// The errors so far, as that of the model.
    pub(crate) fn finish(&mut self) -> Result<(), OnnxError> {
        match self.errors.is_empty() {
            true => Ok(()),
            false => Err(OnnxError::Nodes(std::mem::take(&mut self.errors))),
        }
    }

    /// The value in the current graph: what is known becomes a constant or a parameter, once.
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
                format!("has dtype {}, which is not supported there", narrow.name()),
            )),
            ImportedValue::Bounded(_) => Err(NodeErrorKind::operand(
                index,
                "has a size that depends on data, which is not supported there",
            )),
            ImportedValue::Maps(_) => Err(NodeErrorKind::operand(
                index,
                "are maps, a tensor is expected",
            )),
            ImportedValue::Seq(_) => Err(NodeErrorKind::operand(
                index,
                "is a sequence, a tensor is expected",
            )),
            ImportedValue::Unsupported(why) => Err(NodeErrorKind::operand(index, why.to_string())),
            ImportedValue::Failed => Err(NodeErrorKind::operand(index, "failed")),
        }
    }

    fn place_tensor(
        &mut self,
        tensor: &Tensor,
        name: Option<&str>,
    ) -> Result<Value, NodeErrorKind> {
        if !self.level().outermost || tensor.numel() <= MAX_CONSTANT {
            return Ok(self.g().constant(tensor.clone())?);
        }
        // Zero points of channels: that they are zeros decides what the graph becomes.
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

    /// Sizes as numbers of the graph: a size is the sum of so many ones.
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
            };
            parts.push(part);
        }
        let all = match sizes.scalar {
            true => g.squeeze(parts[0], 0)?,
            false => g.concat(&parts, 0)?,
        };
        crate::narrow::cast_to(g, all, sizes.dtype)
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

    /// Whether an input of the model has few elements, whatever its symbols are.
    pub(crate) fn is_small(&self, name: &str) -> bool {
        let leaf = self.graph().leaf(name);
        let ty = leaf.and_then(|id| self.graph().node(id).outputs.first());
        let count = ty.and_then(|ty| ty.shape.numel()?.known());
        count.is_some_and(|n| n <= MAX_CONSTANT)
    }

    /// Whether so many more elements can be made that are not in the file; they count from then on. A few always can.
    pub(crate) fn spend(&mut self, elements: usize) -> bool {
        const FEW: usize = 64;
        let total = self.name_counter.saturating_add(elements);
        if total <= MAX_MADE {
            self.name_counter = total;
        }
        total <= MAX_MADE || elements <= FEW
    }

    /// Counts a node, or a graph inside one.
    pub(crate) fn count_node(&mut self) -> Result<(), String> {
        self.nodes += 1;
        match self.nodes > self.max_nodes {
            true => Err(format!(
                "functions and loops written out have more than {} nodes",
                self.max_nodes
            )),
            false => Ok(()),
        }
    }

    /// A scalar of a dtype.
    pub(crate) fn scalar(&mut self, dtype: DType, value: f64) -> Result<Value, NodeErrorKind> {
        Ok(self.g().scalar(dtype, value)?)
    }

    /// The dimensions of a value.
    pub(crate) fn dims(&self, value: Value) -> Vec<Dim> {
        self.graph().ty(value).shape.to_vec()
    }
}

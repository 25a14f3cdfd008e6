//! The model under construction: nodes, initializers and names.

use std::collections::{BTreeMap, HashMap, HashSet};

use tercet_ir::ops::Dequantize;
use tercet_ir::{
    Bindings, DType, Dim, EvalCtx, Graph, Node, Op, OpSpec, Symbol, Tensor, TensorType, Type,
    Value, one_line,
};

use super::proto::{OnnxAttrValue, attribute, code, tensor_proto, value_info};
use super::{ExportError, OPSET, name_of, node};
use crate::proto::{
    GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto, ValueInfoProto,
};

/// The IR version that belongs to the operator set.
const IR_VERSION: i64 = 10;

/// The reason why a node cannot be written.
#[derive(Debug)]
pub(super) enum ExportNodeError {
    /// ONNX cannot express the node.
    NoForm(String),
    /// No input determines the size.
    Unbound(Symbol),
}

impl ExportNodeError {
    pub(super) fn because<T>(reason: impl Into<String>) -> Result<T, ExportNodeError> {
        Err(ExportNodeError::NoForm(reason.into()))
    }
}

/// The names of a node's results.
pub(super) type ExportNodeResult = Result<Vec<String>, ExportNodeError>;

/// The model under construction.
#[derive(Default)]
pub(super) struct OnnxWriter {
    /// Nodes that compute sizes from inputs. These nodes precede all other nodes, so subgraphs can
    /// use them.
    prologue: Vec<NodeProto>,
    /// The nodes of the current graph.
    nodes: Vec<NodeProto>,
    initializers: Vec<TensorProto>,
    /// The constants by type and bytes.
    constants: HashMap<(DType, Vec<usize>, Vec<u8>), String>,
    /// The input and axis that determine each symbol.
    symbols: BTreeMap<Symbol, (String, usize)>,
    /// The names of one-element I64 tensors by size.
    pub(super) sizes: HashMap<Dim, String>,
    used_names: HashSet<String>,
    next: usize,
    /// Whether the writer only tests if a node can be written; all sizes then count as known.
    is_trial: bool,
    /// The names of the current graph's values.
    names: HashMap<Value, String>,
    /// The tensors of parameters by name.
    weights: HashMap<String, Tensor>,
    /// The initializers with unpacked parameters, by the name of the packed parameter.
    unpacked: HashMap<String, String>,
}

impl OnnxWriter {
    pub(super) fn on_trial() -> OnnxWriter {
        OnnxWriter {
            is_trial: true,
            ..OnnxWriter::default()
        }
    }

    /// Writes a graph whose nodes are all supported.
    pub(super) fn model(
        graph: &Graph,
        mut weight: impl FnMut(&str) -> Option<Tensor>,
    ) -> Result<ModelProto, ExportError> {
        let mut w = OnnxWriter::default();
        w.take_names(graph);
        let mut inputs = Vec::new();
        for (id, node) in graph.nodes() {
            let (name, ty) = match &node.op {
                Op::Input(leaf) => (&leaf.name, &leaf.ty),
                Op::State(leaf) => (&leaf.name, &leaf.ty),
                Op::Param(leaf) => (&leaf.name, &leaf.ty),
                _ => continue,
            };
            let value = Value { node: id, port: 0 };
            let mut own = name.clone();
            match (&node.op, weight_of(node, &mut weight)?) {
                (Op::Param(_), Some(tensor)) => {
                    w.initializers.push(tensor_proto(name, &tensor));
                    w.weights.insert(name.clone(), tensor);
                }
                _ => {
                    let outer = interface_type(ty);
                    inputs.push(value_info(name, &outer));
                    w.note_symbols(name, ty);
                    if outer.dtype != ty.dtype {
                        own = w.cast(name, code(ty.dtype));
                    }
                }
            }
            w.names.insert(value, own);
        }
        w.write_nodes(graph).map_err(|e| match e {
            ExportNodeError::Unbound(symbol) => ExportError::Unbound { symbol },
            ExportNodeError::NoForm(reason) => ExportError::NoForm { reason },
        })?;
        let outputs = w.outputs(graph);
        let mut nodes = w.prologue;
        nodes.append(&mut w.nodes);
        let mut proto = GraphProto {
            node: nodes,
            name: Some("graph".to_string()),
            initializer: w.initializers,
            input: inputs,
            output: outputs,
            sparse_initializer: Vec::new(),
        };
        drop_unused(&mut proto);
        Ok(ModelProto {
            ir_version: Some(IR_VERSION),
            producer_name: Some("tercet".to_string()),
            producer_version: Some(env!("CARGO_PKG_VERSION").to_string()),
            graph: Some(proto),
            opset_import: vec![OperatorSetIdProto {
                domain: Some(String::new()),
                version: Some(OPSET),
            }],
            ..ModelProto::default()
        })
    }

    /// Reserves the names of inputs, parameters and outputs, so that generated names do not
    /// collide.
    fn take_names(&mut self, graph: &Graph) {
        let leaves = graph.nodes().filter_map(|(_, n)| match &n.op {
            Op::Input(leaf) => Some(leaf.name.clone()),
            Op::Param(leaf) => Some(leaf.name.clone()),
            Op::State(leaf) => Some(leaf.name.clone()),
            _ => None,
        });
        let outputs = graph.outputs().iter().map(|o| o.name.clone());
        self.used_names = leaves.chain(outputs).collect();
    }

    /// Records the symbols that are complete axes of an input.
    fn note_symbols(&mut self, input: &str, ty: &Type) {
        for (axis, dim) in ty.shape.iter().enumerate() {
            if let Some(symbol) = dim.as_symbol() {
                let place = || (input.to_string(), axis);
                self.symbols.entry(symbol.clone()).or_insert_with(place);
            }
        }
    }

    /// The input and axis that determine a symbol.
    pub(super) fn place_of(&self, symbol: &Symbol) -> Result<(String, usize), ExportNodeError> {
        match self.symbols.get(symbol) {
            Some(place) => Ok(place.clone()),
            None if self.is_trial => Ok((String::new(), 0)),
            None => Err(ExportNodeError::Unbound(symbol.clone())),
        }
    }

    /// Writes the nodes of a graph whose inputs and parameters already have names.
    fn write_nodes(&mut self, graph: &Graph) -> Result<(), ExportNodeError> {
        for (id, node) in graph.nodes() {
            if let Op::Input(_) | Op::Param(_) | Op::State(_) = node.op {
                continue;
            }
            let written = match &node.op {
                Op::Const(c) => vec![self.constant(&c.tensor)],
                _ => node::emit(self, graph, node)?,
            };
            for (port, name) in written.into_iter().enumerate() {
                let port = port as u8;
                self.names.insert(Value { node: id, port }, name);
            }
        }
        Ok(())
    }

    /// The outputs of a graph with their own names; adds `Identity` nodes for values with another
    /// name.
    fn outputs(&mut self, graph: &Graph) -> Vec<ValueInfoProto> {
        let named = graph.outputs().iter().map(|o| (o.name.clone(), o.value));
        let states = graph.assigns().iter().map(|a| {
            let name = match &graph.node(a.state.node).op {
                Op::State(leaf) => leaf.name.clone(),
                _ => self.names[&a.state].clone(),
            };
            (format!("{name}.next"), a.value)
        });
        let all: Vec<(String, Value)> = named.chain(states).collect();
        let mut infos = Vec::with_capacity(all.len());
        for (name, value) in all {
            let from = self.names[&value].clone();
            let (ty, outer) = (graph.ty(value), interface_type(graph.ty(value)));
            let (op, attrs) = match outer.dtype == ty.dtype {
                true => ("Identity", Vec::new()),
                false => {
                    let to = i64::from(code(outer.dtype));
                    ("Cast", vec![("to", OnnxAttrValue::Int(to))])
                }
            };
            self.push(op, &[from], vec![name.clone()], attrs);
            infos.push(value_info(&name, &outer));
        }
        infos
    }

    /// The name of a value of the current graph.
    pub(super) fn name(&self, value: Value) -> String {
        let known = self.names.get(&value).cloned();
        known.unwrap_or_else(|| name_of(value))
    }

    pub(super) fn fresh(&mut self) -> String {
        loop {
            let name = format!("t{}", self.next);
            self.next += 1;
            if !self.used_names.contains(&name) {
                return name;
            }
        }
    }

    fn push(
        &mut self,
        op: &str,
        inputs: &[String],
        outputs: Vec<String>,
        attrs: Vec<(&str, OnnxAttrValue)>,
    ) {
        let node = self.made(op, inputs, outputs, attrs);
        self.nodes.push(node);
    }

    fn made(
        &self,
        op: &str,
        inputs: &[String],
        outputs: Vec<String>,
        attrs: Vec<(&str, OnnxAttrValue)>,
    ) -> NodeProto {
        let attribute = attrs
            .into_iter()
            .map(|(name, value)| attribute(name, value));
        NodeProto {
            input: inputs.to_vec(),
            name: outputs.first().map(|name| format!("{op}_{name}")),
            output: outputs,
            op_type: Some(op.to_string()),
            attribute: attribute.collect(),
            ..NodeProto::default()
        }
    }

    /// Adds a node with one result.
    pub(super) fn add(
        &mut self,
        op: &str,
        inputs: &[&str],
        attrs: Vec<(&str, OnnxAttrValue)>,
    ) -> String {
        self.add_all(op, inputs, 1, attrs).remove(0)
    }

    /// Adds a node with `count` results.
    pub(super) fn add_all(
        &mut self,
        op: &str,
        inputs: &[&str],
        results: usize,
        attrs: Vec<(&str, OnnxAttrValue)>,
    ) -> Vec<String> {
        let outputs: Vec<String> = (0..results).map(|_| self.fresh()).collect();
        let inputs: Vec<String> = inputs.iter().map(|name| name.to_string()).collect();
        self.push(op, &inputs, outputs.clone(), attrs);
        outputs
    }

    /// Adds a node to the prologue; it may depend only on model inputs.
    pub(super) fn prepend(
        &mut self,
        op: &str,
        inputs: &[&str],
        attrs: Vec<(&str, OnnxAttrValue)>,
    ) -> String {
        let output = self.fresh();
        let inputs: Vec<String> = inputs.iter().map(|name| name.to_string()).collect();
        let node = self.made(op, &inputs, vec![output.clone()], attrs);
        self.prologue.push(node);
        output
    }

    /// Adds a constant tensor; equal constants are stored once.
    pub(super) fn constant(&mut self, tensor: &Tensor) -> String {
        let key = (
            tensor.dtype(),
            tensor.shape().to_vec(),
            tensor.bytes().to_vec(),
        );
        if let Some(name) = self.constants.get(&key) {
            return name.clone();
        }
        let name = self.fresh();
        self.initializers.push(tensor_proto(&name, tensor));
        self.constants.insert(key, name.clone());
        name
    }

    /// The initializer with the values of a packed parameter that this operator unpacks.
    pub(super) fn unpacked(&mut self, param: &str, by: &Dequantize) -> ExportNodeResult {
        if let Some(name) = self.unpacked.get(param) {
            return Ok(vec![name.clone()]);
        }
        if self.is_trial {
            return Ok(vec![String::new()]);
        }
        let Some(packed) = self.weights.get(param) else {
            let what = format!("the packed parameter `{param}` has no tensor to unpack");
            return ExportNodeError::because(what);
        };
        let failed = |what: String| ExportNodeError::NoForm(format!("parameter `{param}`: {what}"));
        let types = by.infer(&[&Type::from(packed.ty())]);
        let types = types.map_err(|e| failed(one_line(&e)))?;
        let ty = types[0].eval(&Bindings::new());
        let ty = ty.map_err(|e| failed(one_line(&e)))?;
        let values = by.eval(&EvalCtx::default(), &[packed], &[ty]);
        let values = values.map_err(|e| failed(one_line(&e)))?;
        let name = self.fresh();
        self.initializers.push(tensor_proto(&name, &values[0]));
        self.unpacked.insert(param.to_string(), name.clone());
        Ok(vec![name])
    }

    /// A constant rounded to a dtype.
    pub(super) fn number(&mut self, dtype: DType, value: f64) -> String {
        let tensor = Tensor::from_f64s(TensorType::new(dtype, &[]), &[value]);
        self.constant(&tensor.expect("invariant: one element fits"))
    }

    /// An integer constant of a dtype.
    pub(super) fn integer(&mut self, dtype: DType, value: i64) -> String {
        let tensor = Tensor::from_i64s(TensorType::new(dtype, &[]), &[value]);
        self.constant(&tensor.expect("invariant: one element fits"))
    }

    /// A constant I64 list.
    pub(super) fn list(&mut self, values: &[i64]) -> String {
        let tensor = Tensor::from_slice(&[values.len()], values);
        self.constant(&tensor.expect("invariant: the list has the number of values in its shape"))
    }

    pub(super) fn cast(&mut self, x: &str, to: i32) -> String {
        self.add(
            "Cast",
            &[x],
            vec![("to", OnnxAttrValue::Int(i64::from(to)))],
        )
    }

    /// Writes a subgraph. The graph's inputs are outer values or subgraph parameters with the given
    /// names.
    pub(super) fn inner(
        &mut self,
        graph: &Graph,
        arguments: &[String],
        parameters: Vec<(String, Type)>,
    ) -> Result<GraphProto, ExportNodeError> {
        let nodes = std::mem::take(&mut self.nodes);
        let results = self.inlined(graph, arguments);
        let mut proto = GraphProto {
            name: Some(self.fresh()),
            input: parameters.iter().map(|(n, ty)| value_info(n, ty)).collect(),
            ..GraphProto::default()
        };
        if let Ok(results) = &results {
            for (name, output) in results.iter().zip(graph.outputs()) {
                let own = self.add("Identity", &[name], Vec::new());
                proto.output.push(value_info(&own, graph.ty(output.value)));
            }
        }
        proto.node = std::mem::replace(&mut self.nodes, nodes);
        results.map(|_| proto)
    }

    /// Writes the nodes of a graph into the current graph and returns the names of its results.
    pub(super) fn inlined(
        &mut self,
        graph: &Graph,
        arguments: &[String],
    ) -> Result<Vec<String>, ExportNodeError> {
        let is_input = |(_, n): &(_, &Node)| matches!(n.op, Op::Input(_));
        let inputs = graph.nodes().filter(is_input).map(|(node, _)| node);
        let own = inputs.zip(arguments).map(|(node, name)| {
            let value = Value { node, port: 0 };
            (value, name.clone())
        });
        let outer = std::mem::replace(&mut self.names, own.collect());
        let written = self.write_nodes(graph);
        let inner = std::mem::replace(&mut self.names, outer);
        written?;
        let name = |o: &tercet_ir::GraphOutput| inner[&o.value].clone();
        Ok(graph.outputs().iter().map(name).collect())
    }
}

/// The type of an input or output of the model for a value. NumPy has no BF16, so that arrays of it
/// can neither be stored nor passed to other runtimes: such values are F32 outside of the model.
fn interface_type(ty: &Type) -> Type {
    match ty.dtype {
        DType::BF16 => Type {
            dtype: DType::F32,
            ..ty.clone()
        },
        _ => ty.clone(),
    }
}

/// Removes nodes and initializers that no output depends on, such as unpacked weights and their
/// readers.
fn drop_unused(graph: &mut GraphProto) {
    let names = |infos: &[ValueInfoProto]| infos.iter().filter_map(|o| o.name.clone()).collect();
    let mut used: HashSet<String> = names(&graph.output);
    let mut kept: Vec<NodeProto> = Vec::with_capacity(graph.node.len());
    for node in graph.node.drain(..).rev() {
        if node.output.iter().any(|name| used.contains(name)) {
            note_reads(&node, &mut used);
            kept.push(node);
        }
    }
    kept.reverse();
    graph.node = kept;
    let is_used = |t: &TensorProto| t.name.as_ref().is_some_and(|name| used.contains(name));
    graph.initializer.retain(is_used);
}

/// Collects the names that a node reads, including in subgraphs.
fn note_reads(node: &NodeProto, used: &mut HashSet<String>) {
    used.extend(node.input.iter().cloned());
    for graph in node.attribute.iter().filter_map(|a| a.g.as_ref()) {
        graph.node.iter().for_each(|inner| note_reads(inner, used));
    }
}

/// The tensor of a parameter, with its type checked.
fn weight_of(
    node: &Node,
    weight: &mut impl FnMut(&str) -> Option<Tensor>,
) -> Result<Option<Tensor>, ExportError> {
    let Op::Param(leaf) = &node.op else {
        return Ok(None);
    };
    let Some(tensor) = weight(&leaf.name) else {
        return Ok(None);
    };
    let is_its = |n: (&Dim, &usize)| n.0.known().is_none_or(|known| known == *n.1);
    let fits = tensor.dtype() == leaf.ty.dtype
        && tensor.shape().len() == leaf.ty.rank()
        && leaf.ty.shape.iter().zip(tensor.shape()).all(is_its);
    match fits {
        true => Ok(Some(tensor)),
        false => Err(ExportError::Weight {
            name: leaf.name.clone(),
            wanted: leaf.ty.clone(),
            given: tensor.ty().clone(),
        }),
    }
}

//! Imports single nodes: operator lookup, operands, and constant folding.

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use tercet_ir::{DType, EvalCtx, Tensor, Value, evaluate};

use crate::attrs::OnnxAttrs;
use crate::call::{ImportNode, NodeOutputs};
use crate::ctx::{ImportCtx, ImportScope};
use crate::error::NodeErrorKind;
use crate::ops::{self, ConstOperandPolicy, OpsetEntry};
use crate::proto::{FunctionProto, NodeProto};
use crate::shape_values;
use crate::sort;
use crate::val::ImportedValue;

/// Maximum elements of a constant that is folded at import time.
const MAX_FOLDED: usize = 1 << 16;
/// Maximum nesting depth of function calls and subgraphs together.
const MAX_DEPTH: usize = 32;

/// The operator or function that a node calls.
enum Callee<'m> {
    Table(&'static OpsetEntry, i64),
    Function(&'m FunctionProto),
}

impl<'m> ImportCtx<'m> {
    /// Imports nodes in topological order. Errors of single nodes are collected; the returned error
    /// concerns the list as a whole.
    pub(crate) fn run_nodes(&mut self, nodes: &'m [NodeProto]) -> Result<(), String> {
        for i in sort::order(nodes)? {
            let node = &nodes[i];
            self.count_node()?;
            let results = match self.run_node(node) {
                Ok(Some(results)) => results,
                Ok(None) => vec![ImportedValue::Failed; node.output.len()],
                Err(reason) => {
                    let name = match node.name.as_deref() {
                        Some(name) if !name.is_empty() => name.to_string(),
                        _ => format!("#{i}"),
                    };
                    self.fail(name, node.op_type.as_deref().unwrap_or(""), reason);
                    vec![ImportedValue::Failed; node.output.len()]
                }
            };
            for (name, val) in node.output.iter().zip(results) {
                if !name.is_empty() {
                    self.scope().names.insert(name, val);
                }
            }
        }
        Ok(())
    }

    /// The results of a node; `None` if an operand failed, which is already reported.
    fn run_node(
        &mut self,
        node: &'m NodeProto,
    ) -> Result<Option<Vec<ImportedValue>>, NodeErrorKind> {
        let callee = self.callee(node)?;
        let mut ins = Vec::with_capacity(node.input.len());
        for (index, name) in node.input.iter().enumerate() {
            let val = match name.is_empty() {
                true => ImportedValue::Absent,
                false => self.lookup(name).ok_or_else(|| {
                    NodeErrorKind::operand(index, format!("no node or input defines `{name}`"))
                })?,
            };
            ins.push(val);
        }
        if ins.iter().any(|v| matches!(v, ImportedValue::Failed)) {
            return Ok(None);
        }
        let attrs = OnnxAttrs::new(self.attributes(node)?);
        let results = match callee {
            Callee::Function(f) => return self.call_function(f, &ins, &attrs),
            Callee::Table(entry, opset) => self.call_any(entry, opset, node, &ins, &attrs)?,
        };
        let wanted = node
            .output
            .iter()
            .rposition(|n| !n.is_empty())
            .map_or(0, |i| i + 1);
        if wanted > results.len() {
            let (op, given) = (entry_name(node), results.len());
            return Err(NodeErrorKind::unsupported(format!(
                "{wanted} results of {op} are used, at most {given} are supported"
            )));
        }
        Ok(Some(results))
    }

    fn callee(&self, node: &'m NodeProto) -> Result<Callee<'m>, NodeErrorKind> {
        let domain = ops::domain(node.domain.as_deref().unwrap_or(""));
        let name = node.op_type.as_deref().unwrap_or("");
        let overload = node.overload.as_deref().unwrap_or("");
        if let Some(f) = self.functions.get(&(domain, name, overload)) {
            return Ok(Callee::Function(f));
        }
        let opset = self.opset(domain)?;
        match ops::find(domain, name, opset) {
            Some(entry) => Ok(Callee::Table(entry, opset)),
            None if domain.is_empty() => Err(NodeErrorKind::Operator(format!("opset {opset}"))),
            None => Err(NodeErrorKind::Operator(format!("`{domain}` {opset}"))),
        }
    }

    fn opset(&self, domain: &str) -> Result<i64, NodeErrorKind> {
        let scope = self.scopes.last();
        let version = scope.and_then(|s| s.opsets.get(domain).copied());
        match version {
            Some(v) => Ok(v),
            // Exporters omit the versions of custom domains.
            None if !domain.is_empty() => Ok(1),
            None => Err(NodeErrorKind::unsupported(
                "the model does not specify an opset version",
            )),
        }
    }

    /// The attributes of a node, with references to the enclosing function call resolved.
    fn attributes(
        &self,
        node: &'m NodeProto,
    ) -> Result<Vec<(&'m str, &'m crate::proto::AttributeProto)>, NodeErrorKind> {
        let mut list = Vec::with_capacity(node.attribute.len());
        for attr in &node.attribute {
            let name = attr.name.as_deref().unwrap_or("");
            match attr.ref_attr_name.as_deref() {
                None | Some("") => list.push((name, attr)),
                // An attribute that the call omits is absent.
                Some(outer) => list.extend(self.function_attribute(outer).map(|a| (name, a))),
            }
        }
        for (i, (name, _)) in list.iter().enumerate() {
            if list[..i].iter().any(|(n, _)| n == name) {
                return Err(NodeErrorKind::attribute(name, "occurs twice"));
            }
        }
        Ok(list)
    }

    /// The results of a table operator, with support for narrow and padded operands.
    fn call_any(
        &mut self,
        entry: &'static OpsetEntry,
        opset: i64,
        node: &'m NodeProto,
        ins: &[ImportedValue],
        attrs: &OnnxAttrs<'m>,
    ) -> NodeOutputs {
        // Sequences and absent optionals keep their type.
        if let ("", "Identity", [val @ (ImportedValue::Seq(_) | ImportedValue::Absent)]) =
            (entry.domain, entry.name, ins)
        {
            return Ok(vec![val.clone()]);
        }
        if let Some(results) = ops::padded::call(self, (entry, opset, node), ins, attrs)? {
            return Ok(results);
        }
        if let Some(plan) = crate::padded_value::plan(self, (entry.domain, entry.name), ins)? {
            let results = self.call(entry, opset, node, &plan.ins, attrs)?;
            return plan.results(self, opset, attrs, results);
        }
        let Some(plan) = crate::emulated_dtypes::plan(entry, ins, attrs)? else {
            return self.call(entry, opset, node, ins, attrs);
        };
        let results = self.call(plan.entry.unwrap_or(entry), opset, node, &plan.ins, attrs)?;
        plan.results(self.g(), results)
    }

    /// The results of a table operator.
    pub(crate) fn call(
        &mut self,
        entry: &'static OpsetEntry,
        opset: i64,
        node: &'m NodeProto,
        ins: &[ImportedValue],
        attrs: &OnnxAttrs<'m>,
    ) -> NodeOutputs {
        if let ConstOperandPolicy::Folded = entry.const_policy {
            if let Some(results) = shape_values::fold(entry.name, opset, ins, attrs)? {
                attrs.finish()?;
                return Ok(results);
            }
            if let Some(results) = self.fold(entry, opset, node, ins, attrs)? {
                return Ok(results);
            }
        }
        let mut call = ImportNode {
            c: self,
            node,
            ins,
            attrs,
            opset,
        };
        let results = (entry.import)(&mut call)?;
        attrs.finish()?;
        Ok(results)
    }

    /// The results of an operator if all operands are known and small.
    fn fold(
        &mut self,
        entry: &'static OpsetEntry,
        opset: i64,
        node: &'m NodeProto,
        ins: &[ImportedValue],
        attrs: &OnnxAttrs<'m>,
    ) -> Result<Option<Vec<ImportedValue>>, NodeErrorKind> {
        let small = |v: &ImportedValue| match v {
            ImportedValue::ConstTensor(k) => k.tensor.numel() <= MAX_FOLDED,
            ImportedValue::Narrow(_, v) => {
                matches!(&**v, ImportedValue::ConstTensor(k) if k.tensor.numel() <= MAX_FOLDED)
            }
            ImportedValue::Absent => true,
            _ => false,
        };
        if ins.is_empty() || !ins.iter().all(small) {
            return Ok(None);
        }
        // Keep the quantized weights of convolutions as constants, so that importers can inspect
        // them.
        let codes = |k: &Tensor| matches!(k.dtype(), DType::U8 | DType::I8) && k.shape().len() > 2;
        if entry.name == "DequantizeLinear"
            && matches!(&ins[0], ImportedValue::ConstTensor(k) if codes(&k.tensor))
        {
            return Ok(None);
        }
        self.push_level(false);
        let mut call = ImportNode {
            c: self,
            node,
            ins,
            attrs,
            opset,
        };
        let results = (entry.import)(&mut call);
        let graph = self.pop_level();
        let results = results?;
        let values = results.iter().filter_map(|v| match v {
            ImportedValue::Graph(v) => Some(*v),
            ImportedValue::Narrow(_, inner) => match &**inner {
                ImportedValue::Graph(v) => Some(*v),
                _ => None,
            },
            _ => None,
        });
        let values: Vec<Value> = values.collect();
        let is_small = |v: &Value| {
            let n = graph.ty(*v).shape.numel().and_then(|n| n.known());
            n.is_some_and(|n| n <= MAX_FOLDED)
        };
        let all_small = (0..graph.len()).all(|i| {
            is_small(&Value {
                node: tercet_ir::NodeId(i as u32),
                port: 0,
            })
        });
        if !all_small || !values.iter().all(is_small) {
            return Ok(None);
        }
        let sizes = values
            .iter()
            .filter_map(|v| graph.ty(*v).shape.numel()?.known());
        if !self.spend(sizes.sum()) {
            return Ok(None);
        }
        attrs.finish()?;
        let done = evaluate(&graph, &EvalCtx::after(0), &BTreeMap::new())?;
        let plain = |v: ImportedValue| match v {
            ImportedValue::Graph(v) => ImportedValue::known(done.get(v).clone()),
            other => other,
        };
        let fold = |v: ImportedValue| match v {
            ImportedValue::Narrow(narrow, v) => {
                ImportedValue::Narrow(narrow, Rc::new(plain((*v).clone())))
            }
            other => plain(other),
        };
        Ok(Some(results.into_iter().map(fold).collect()))
    }

    /// The results of a model function, by importing its body.
    fn call_function(
        &mut self,
        f: &'m FunctionProto,
        ins: &[ImportedValue],
        attrs: &OnnxAttrs<'m>,
    ) -> Result<Option<Vec<ImportedValue>>, NodeErrorKind> {
        if self.inside.len() >= MAX_DEPTH {
            return Err(NodeErrorKind::unsupported(format!(
                "functions and subgraphs are nested more than {MAX_DEPTH} levels deep"
            )));
        }
        let mut scope = ImportScope {
            isolated: true,
            opsets: match f.opset_import.is_empty() {
                true => self
                    .scopes
                    .last()
                    .map(|s| Rc::clone(&s.opsets))
                    .unwrap_or_default(),
                false => crate::import::opsets(&f.opset_import)
                    .map_err(|e| NodeErrorKind::unsupported(e.to_string()))?,
            },
            ..ImportScope::default()
        };
        let given = attrs.all();
        let defaults = f.attribute_proto.iter();
        let mut attributes: HashMap<&str, _> = defaults
            .map(|a| (a.name.as_deref().unwrap_or(""), a))
            .collect();
        for (name, attr) in given {
            if !f.attribute.iter().any(|n| n == name) && !attributes.contains_key(name) {
                return Err(NodeErrorKind::Unread(format!("`{name}`")));
            }
            attributes.insert(name, attr);
        }
        scope.attributes = attributes;
        for (i, name) in f.input.iter().enumerate() {
            scope
                .names
                .insert(name, ins.get(i).cloned().unwrap_or(ImportedValue::Absent));
        }
        self.inside.push(f.name.clone().unwrap_or_default());
        self.scopes.push(scope);
        let ran = self.run_nodes(&f.node);
        let results: Vec<Option<ImportedValue>> = f.output.iter().map(|n| self.lookup(n)).collect();
        self.scopes.pop();
        self.inside.pop();
        ran.map_err(NodeErrorKind::Unsupported)?;
        let missing = || NodeErrorKind::unsupported("no node of the function defines its result");
        let results: Result<Vec<ImportedValue>, NodeErrorKind> =
            results.into_iter().map(|v| v.ok_or_else(missing)).collect();
        Ok(Some(results?))
    }
}

fn entry_name(node: &NodeProto) -> &str {
    node.op_type.as_deref().unwrap_or("")
}

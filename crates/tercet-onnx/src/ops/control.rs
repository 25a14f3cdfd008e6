//! Control flow: branches, loops and scans with subgraphs.
//!
//! Constant conditions and iteration counts are resolved at import time: the selected branch is
//! inlined, and the loop is unrolled. Otherwise a branch, loop or scan becomes a subgraph that
//! receives all values it reads as operands.

mod branches;
mod data_loop;

use std::collections::HashSet;

use tercet_ir::ops::Scan;
use tercet_ir::{Dim, Graph, SubGraph, Tensor, Type, Value};

use super::shape::reshaped;
use super::{OpsetEntry, op};
use crate::call::{ImportNode, NodeOutputs, axis};
use crate::ctx::{ImportCtx, ImportScope};
use crate::error::NodeErrorKind;
use crate::proto::{GraphProto, TypeValue, ValueInfoProto};
use crate::sort;
use crate::val::ImportedValue;

pub(crate) const TABLE: &[OpsetEntry] = &[
    op("If", 1, branch).without_folding(),
    op("Loop", 1, repeat).without_folding(),
    op("Scan", 9, scan).without_folding(),
];

/// Maximum iterations of an unrolled loop.
const MAX_ITERATIONS: i64 = 4096;
/// Maximum nesting depth of subgraphs and functions.
const MAX_DEPTH: usize = 32;

/// The arguments of a subgraph and its results.
type ArgumentsAndResults = (Vec<Value>, Vec<ImportedValue>);

impl<'m> ImportCtx<'m> {
    /// Inlines a subgraph into the current graph and returns its results.
    pub(crate) fn inline(
        &mut self,
        graph: &'m GraphProto,
        arguments: Vec<ImportedValue>,
        what: &str,
    ) -> Result<Vec<ImportedValue>, NodeErrorKind> {
        let opsets = self.scope().opsets.clone();
        let mut scope = ImportScope {
            opsets,
            ..ImportScope::default()
        };
        let names = graph.input.iter().map(|i| i.name.as_deref().unwrap_or(""));
        scope.names.extend(names.zip(arguments));
        self.within(scope, graph, what)
    }

    /// Imports a graph in a new scope and looks up its results.
    fn within(
        &mut self,
        scope: ImportScope<'m>,
        graph: &'m GraphProto,
        what: &str,
    ) -> Result<Vec<ImportedValue>, NodeErrorKind> {
        if self.inside.len() >= MAX_DEPTH {
            return Err(NodeErrorKind::unsupported(format!(
                "functions and subgraphs are nested more than {MAX_DEPTH} levels deep"
            )));
        }
        self.count_node().map_err(NodeErrorKind::Unsupported)?;
        self.inside.push(what.to_string());
        self.scopes.push(scope);
        self.declare_initializers(graph);
        let ran = self.run_nodes(&graph.node);
        let results = graph
            .output
            .iter()
            .map(|o| self.lookup(o.name.as_deref().unwrap_or("")));
        let results: Option<Vec<ImportedValue>> = results.collect();
        self.scopes.pop();
        self.inside.pop();
        ran.map_err(NodeErrorKind::Unsupported)?;
        results.ok_or_else(|| {
            NodeErrorKind::unsupported(format!("no node of `{what}` defines its result"))
        })
    }

    /// The outer values that subgraphs read: graph values and constants.
    fn captures(&self, graphs: &[&'m GraphProto]) -> Vec<(&'m str, ImportedValue)> {
        let mut names = HashSet::new();
        graphs
            .iter()
            .for_each(|g| sort::graph_reads(g, 0, &mut names));
        let found = names.into_iter().filter_map(|n| Some((n, self.lookup(n)?)));
        let mut found: Vec<(&str, ImportedValue)> = found.collect();
        found.sort_by_key(|(n, _)| *n);
        found
    }

    /// Imports a separate graph with arguments of these types, followed by the captured graph
    /// values. `None` if one of its nodes failed, which is already reported.
    fn sub_graph(
        &mut self,
        graph: &'m GraphProto,
        arguments: &[Type],
        captures: &[(&'m str, ImportedValue)],
        what: &str,
    ) -> Result<Option<Graph>, NodeErrorKind> {
        self.sub_graph_with(graph, arguments, captures, what, |_, _, results| {
            Ok(results)
        })
    }

    /// Imports a graph without arguments in a new level, which stays open; `None` if one of its
    /// nodes failed.
    pub(crate) fn open_sub_graph(
        &mut self,
        graph: &'m GraphProto,
        captures: &[(&'m str, ImportedValue)],
        what: &str,
    ) -> Result<Option<Vec<ImportedValue>>, NodeErrorKind> {
        let types = captured(captures).into_iter();
        let types: Vec<Type> = types.map(|v| self.graph().ty(v).clone()).collect();
        let mut scope = self.sub_scope();
        self.push_level(false);
        let made = self.sub_graph_in(graph, &[], captures, &types, &mut scope, what);
        Ok(made?.map(|(_, results)| results))
    }

    /// The scope of a subgraph, which sees its captures only.
    fn sub_scope(&mut self) -> ImportScope<'m> {
        let outer = self.scopes.iter().rev().find(|s| s.isolated);
        let attributes = outer.map(|s| s.attributes.clone()).unwrap_or_default();
        ImportScope {
            isolated: true,
            opsets: self.scope().opsets.clone(),
            attributes,
            ..ImportScope::default()
        }
    }

    /// As [`ImportCtx::sub_graph`]. `finish` receives the arguments and results of the graph, and
    /// adds nodes that compute the results to return. The built graph may have more arguments than
    /// the graph of the file, which come last.
    fn sub_graph_with(
        &mut self,
        graph: &'m GraphProto,
        arguments: &[Type],
        captures: &[(&'m str, ImportedValue)],
        what: &str,
        finish: impl FnOnce(&mut Graph, &[Value], Vec<Value>) -> Result<Vec<Value>, NodeErrorKind>,
    ) -> Result<Option<Graph>, NodeErrorKind> {
        let types = captured(captures).into_iter();
        let types: Vec<Type> = types.map(|v| self.graph().ty(v).clone()).collect();
        let mut scope = self.sub_scope();
        self.push_level(false);
        let made = self.sub_graph_in(graph, arguments, captures, &types, &mut scope, what);
        let made = made.and_then(|results| {
            let Some((arguments, results)) = results else {
                return Ok(false);
            };
            let results = results.iter().enumerate();
            let results: Result<Vec<Value>, NodeErrorKind> =
                results.map(|(i, val)| self.place(val, i)).collect();
            let results = results?;
            let results = finish(self.g(), &arguments, results)?;
            for (i, value) in results.into_iter().enumerate() {
                self.g().output(&format!("result{i}"), value)?;
            }
            Ok(true)
        });
        let built = self.pop_level();
        Ok(made?.then_some(built))
    }

    fn sub_graph_in(
        &mut self,
        graph: &'m GraphProto,
        arguments: &[Type],
        captures: &[(&'m str, ImportedValue)],
        types: &[Type],
        scope: &mut ImportScope<'m>,
        what: &str,
    ) -> Result<Option<ArgumentsAndResults>, NodeErrorKind> {
        let mut given = Vec::with_capacity(arguments.len());
        for (i, ty) in arguments.iter().enumerate() {
            given.push(self.g().input(&format!("argument{i}"), ty.clone())?);
        }
        for (info, value) in graph.input.iter().zip(&given) {
            scope
                .names
                .insert(info.name.as_deref().unwrap_or(""), (*value).into());
        }
        let mut parts = Vec::new();
        for (i, ty) in types.iter().enumerate() {
            parts.push(self.g().input(&format!("capture{i}"), ty.clone())?);
        }
        let mut parts = parts.into_iter();
        for (name, val) in captures {
            // In the subgraph, a captured value refers to the subgraph's inputs in place of the
            // outer graph's values.
            let val = val.with_parts(&mut parts);
            scope.names.entry(name).or_insert(val);
        }
        let results = self.within(std::mem::take(scope), graph, what)?;
        if results.iter().any(|v| matches!(v, ImportedValue::Failed)) {
            return Ok(None);
        }
        Ok(Some((given, results)))
    }
}

/// The graph values that captures consist of, in order.
fn captured(captures: &[(&str, ImportedValue)]) -> Vec<Value> {
    let mut parts = Vec::new();
    captures.iter().for_each(|(_, v)| v.parts(&mut parts));
    parts
}

/// The first `count` results of a node.
fn ports(first: Value, count: usize) -> Vec<ImportedValue> {
    (0..count)
        .map(|i| ImportedValue::Graph(first.port(i as u8)))
        .collect()
}

fn branch(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let (yes, no) = (k.attrs.graph("then_branch")?, k.attrs.graph("else_branch")?);
    if let ImportedValue::ConstTensor(cond) = k.val(0) {
        let taken = cond.tensor.to_i64s().first().is_some_and(|c| *c != 0);
        let (graph, what) = if taken { (yes, "then") } else { (no, "else") };
        return k.c.inline(graph, Vec::new(), what);
    }
    let pred = k.x(0)?;
    let count = yes.output.len();
    let pred = reshaped(k.g(), pred, &[])?;
    let known = k.c.errors.len();
    let built = branches::import(k, pred, [yes, no]);
    // A branch that is not taken may be invalid at the current sizes. If the condition is a small
    // input, its value can select the branch at import time.
    let fresh = k.c.errors.get(known..).unwrap_or(&[]);
    let helped = match &built {
        Ok(Some(_)) => false,
        Ok(None) => fresh.iter().all(|e| e.source.may_need_sizes()),
        Err(reason) => reason.may_need_sizes(),
    };
    let inputs = k.c.origins(pred);
    if helped && !inputs.is_empty() && inputs.iter().all(|name| k.c.is_small(name)) {
        k.c.errors.truncate(known);
        return Err(NodeErrorKind::NeedsValue { index: 0, inputs });
    }
    Ok(built?.unwrap_or_else(|| vec![ImportedValue::Failed; count]))
}

/// Imports a loop: unrolled if its end is known, otherwise as a loop of the graph.
fn repeat(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let is_data = |val: &ImportedValue| matches!(val, ImportedValue::Graph(_));
    let known = k.c.errors.len();
    if is_data(k.val(0)) || is_data(k.val(1)) {
        let asked = (0..2).find_map(|i| match k.has(i) {
            true => k.const_operand(i).err().filter(NodeErrorKind::needs_inputs),
            false => None,
        });
        let results = data_loop::import(k);
        let failed = k.c.errors.len() > known;
        return match (results, asked) {
            // If the end of the loop is a model input, request its value: the loop can then be
            // unrolled.
            (Err(_), Some(reason)) => Err(reason),
            (Ok(_), Some(reason)) if failed => {
                k.c.errors.truncate(known);
                Err(reason)
            }
            (results, _) => results,
        };
    }
    match unrolled(k)? {
        Some(results) => Ok(results),
        None => {
            k.c.errors.truncate(known);
            data_loop::import(k)
        }
    }
}

/// Imports a loop by unrolling its iterations; `None` if its end depends on data.
fn unrolled(k: &mut ImportNode<'_, '_>) -> Result<Option<Vec<ImportedValue>>, NodeErrorKind> {
    let body = k.attrs.graph("body")?;
    let most = match k.has(0) {
        true => k.int(0)?,
        false => i64::MAX,
    };
    let mut goes_on = !k.has(1) || k.int(1)? != 0;
    let mut carried: Vec<ImportedValue> = k.ins.get(2..).unwrap_or(&[]).to_vec();
    let mut lists: Vec<Vec<ImportedValue>> = Vec::new();
    let mut i = 0;
    while goes_on && i < most {
        if i >= MAX_ITERATIONS {
            return Err(NodeErrorKind::unsupported(format!(
                "a loop of more than {MAX_ITERATIONS} iterations is not supported"
            )));
        }
        let mut arguments = vec![
            ImportedValue::known(Tensor::scalar(i)),
            ImportedValue::known(Tensor::from_bools(&[], &[true])?),
        ];
        arguments.append(&mut carried);
        let count = arguments.len() - 2;
        let mut results = k.c.inline(body, arguments, &format!("iteration {i}"))?;
        if results.iter().any(|v| matches!(v, ImportedValue::Failed)) {
            return Ok(Some(vec![ImportedValue::Failed; k.node.output.len()]));
        }
        if results.len() <= count {
            return Err(NodeErrorKind::unsupported(
                "the body of the loop has too few results",
            ));
        }
        let parts = results.split_off(1 + count);
        lists.resize(parts.len(), Vec::new());
        lists
            .iter_mut()
            .zip(parts)
            .for_each(|(list, part)| list.push(part));
        carried = results.split_off(1);
        goes_on = match &results[0] {
            ImportedValue::ConstTensor(cond) => {
                cond.tensor.to_i64s().first().is_some_and(|c| *c != 0)
            }
            _ => return Ok(None),
        };
        i += 1;
    }
    if i == 0 && body.output.len() > 1 + carried.len() {
        let rows = no_rows(k, body, &carried)?;
        return Ok(Some(carried.into_iter().chain(rows).collect()));
    }
    let mut results = carried;
    for list in lists {
        results.push(stacked(k, &list)?);
    }
    Ok(Some(results))
}

/// The empty stacks of a loop without iterations. The types of the empty stacks are those of the
/// body's results; if the body cannot be imported, those that the file declares.
fn no_rows<'m>(
    k: &mut ImportNode<'_, 'm>,
    body: &'m GraphProto,
    carried: &[ImportedValue],
) -> Result<Vec<ImportedValue>, NodeErrorKind> {
    let mut arguments = vec![
        ImportedValue::known(Tensor::scalar(0i64)),
        ImportedValue::known(Tensor::from_bools(&[], &[true])?),
    ];
    arguments.extend_from_slice(carried);
    let known = k.c.errors.len();
    let results = k.c.inline(body, arguments, "iteration 0");
    k.c.errors.truncate(known);
    let results = results.unwrap_or_default();
    let mut rows = Vec::new();
    for at in 1 + carried.len()..body.output.len() {
        let made = match results.get(at) {
            None | Some(ImportedValue::Failed) => None,
            Some(val) => k.c.place(val, at).ok(),
        };
        let ty = match made {
            Some(value) => k.ty(value),
            None => declared(&body.output[at])?,
        };
        let mut dims = vec![Dim::Known(0)];
        dims.extend(ty.shape.iter().cloned());
        let zero = k.c.scalar(ty.dtype, 0.0)?;
        rows.push(k.g().expand(zero, dims)?.into());
    }
    Ok(rows)
}

/// The declared type of a subgraph's result; unknown sizes are 0, as in ONNX Runtime.
fn declared(info: &ValueInfoProto) -> Result<Type, NodeErrorKind> {
    let Some(TypeValue::Tensor(tensor)) = info.r#type.as_ref().and_then(|t| t.value.as_ref())
    else {
        let text = "a loop without iterations has a result whose type the file does not declare";
        return Err(NodeErrorKind::unsupported(text));
    };
    let dtype = crate::elem::dtype(tensor.elem_type.unwrap_or(0).into());
    let dtype = dtype.map_err(NodeErrorKind::unsupported)?;
    let dims = tensor.shape.iter().flat_map(|s| &s.dim);
    let dims = dims.map(|d| {
        Dim::Known(
            d.dim_value
                .and_then(|n| usize::try_from(n).ok())
                .unwrap_or(0),
        )
    });
    Ok(Type::new(dtype, dims.collect::<Vec<Dim>>()))
}

/// Stacks values along a new first axis.
fn stacked(
    k: &mut ImportNode<'_, '_>,
    list: &[ImportedValue],
) -> Result<ImportedValue, NodeErrorKind> {
    let mut rows = Vec::with_capacity(list.len());
    for val in list {
        let value = k.c.place(val, 0)?;
        rows.push(k.g().unsqueeze(value, 0)?);
    }
    Ok(k.g().concat(&rows, 0)?.into())
}

/// The integers of an attribute, one per sequence.
fn per_sequence(
    k: &ImportNode<'_, '_>,
    name: &str,
    count: usize,
) -> Result<Vec<i64>, NodeErrorKind> {
    let list = k
        .attrs
        .ints_opt(name)?
        .map_or_else(|| vec![0; count], <[i64]>::to_vec);
    match list.len() == count {
        true => Ok(list),
        false => Err(NodeErrorKind::attribute(
            name,
            format!("{} numbers for {count} sequences", list.len()),
        )),
    }
}

/// The permutation that moves an axis to the front, and its inverse.
fn to_front(rank: usize, at: usize) -> (Vec<usize>, Vec<usize>) {
    let mut front = vec![at];
    front.extend((0..rank).filter(|a| *a != at));
    let mut back: Vec<usize> = (1..rank).collect();
    back.insert(at, 0);
    (front, back)
}

fn scan(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let body = k.attrs.graph("body")?;
    let scanned = usize::try_from(k.attrs.int("num_scan_inputs", 0)?).unwrap_or(0);
    let all = k.xs()?;
    let carried = all
        .len()
        .checked_sub(scanned)
        .ok_or_else(|| NodeErrorKind::attribute("num_scan_inputs", "is too large"))?;
    let made = body.output.len().checked_sub(carried);
    let made = made.ok_or_else(|| NodeErrorKind::attribute("body", "has too few results"))?;
    let axes_in = per_sequence(k, "scan_input_axes", scanned)?;
    let axes_out = per_sequence(k, "scan_output_axes", made)?;
    let flags = |list: Vec<i64>| -> Vec<bool> { list.into_iter().map(|n| n != 0).collect() };
    let reverse = flags(per_sequence(k, "scan_input_directions", scanned)?);
    let reverse_results = flags(per_sequence(k, "scan_output_directions", made)?);
    let mut operands = all[..carried].to_vec();
    for (x, at) in all[carried..].iter().zip(axes_in) {
        let rank = k.rank(*x);
        let (front, _) = to_front(rank, axis(at, rank)?);
        operands.push(k.g().transpose(*x, &front)?);
    }
    let mut arguments: Vec<Type> = operands.iter().map(|v| k.ty(*v)).collect();
    for ty in &mut arguments[carried..] {
        let part: Vec<Dim> = ty.shape.iter().skip(1).cloned().collect();
        *ty = Type::new(ty.dtype, part);
    }
    let captures = k.c.captures(&[body]);
    let Some(inner) = k.c.sub_graph(body, &arguments, &captures, "body")? else {
        return Ok(vec![ImportedValue::Failed; k.node.output.len()]);
    };
    operands.extend(captured(&captures));
    let op = Scan {
        body: SubGraph::new(inner),
        carried,
        scanned,
        reverse,
        reverse_results,
    };
    let first = k.g().add(op, &operands)?;
    let mut results = ports(first, carried);
    for (i, at) in axes_out.into_iter().enumerate() {
        let y = first.port((carried + i) as u8);
        let rank = k.rank(y);
        let (_, back) = to_front(rank, axis(at, rank)?);
        results.push(k.g().transpose(y, &back)?.into());
    }
    Ok(results)
}

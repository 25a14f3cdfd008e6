//! Control flow: branches, loops and scans with subgraphs.
//!
//! Constant conditions and iteration counts are resolved at import time: the selected branch is
//! inlined, and the loop is unrolled. Otherwise a branch or scan becomes a subgraph that receives
//! all values it reads as operands.

use std::collections::HashSet;

use tercet_ir::ops::Scan;
use tercet_ir::{Dim, Graph, SubGraph, Tensor, Type, Value};

use super::shape::reshaped;
use super::{OpsetEntry, op};
use crate::call::{ImportNode, NodeOutputs, axis};
use crate::ctx::{ImportCtx, ImportScope};
use crate::error::NodeErrorKind;
use crate::proto::GraphProto;
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
        let types: Vec<Option<Type>> = captures
            .iter()
            .map(|(_, v)| match v {
                ImportedValue::Graph(v) => Some(self.graph().ty(*v).clone()),
                _ => None,
            })
            .collect();
        let mut scope = ImportScope {
            isolated: true,
            opsets: self.scope().opsets.clone(),
            attributes: self
                .scopes
                .iter()
                .rev()
                .find(|s| s.isolated)
                .map(|s| s.attributes.clone())
                .unwrap_or_default(),
            ..ImportScope::default()
        };
        self.push_level(false);
        let made = self.sub_graph_in(graph, arguments, captures, &types, &mut scope, what);
        let built = self.pop_level();
        Ok(made?.then_some(built))
    }

    fn sub_graph_in(
        &mut self,
        graph: &'m GraphProto,
        arguments: &[Type],
        captures: &[(&'m str, ImportedValue)],
        types: &[Option<Type>],
        scope: &mut ImportScope<'m>,
        what: &str,
    ) -> Result<bool, NodeErrorKind> {
        for (i, (info, ty)) in graph.input.iter().zip(arguments).enumerate() {
            let value = self.g().input(&format!("argument{i}"), ty.clone())?;
            scope
                .names
                .insert(info.name.as_deref().unwrap_or(""), value.into());
        }
        for (i, ((name, val), ty)) in captures.iter().zip(types).enumerate() {
            let val = match ty {
                Some(ty) => self.g().input(&format!("capture{i}"), ty.clone())?.into(),
                // Values of the outer graph are not available here.
                None => match val {
                    ImportedValue::Narrow(_, inner)
                        if matches!(&**inner, ImportedValue::Graph(_)) =>
                    {
                        ImportedValue::Unsupported(
                            "has a dtype that subgraphs cannot capture".into(),
                        )
                    }
                    ImportedValue::Bounded(_) => ImportedValue::Unsupported(
                        "has a data-dependent size, which subgraphs cannot capture".into(),
                    ),
                    ImportedValue::Maps(_) => ImportedValue::Unsupported(
                        "contains maps, which subgraphs cannot capture".into(),
                    ),
                    ImportedValue::Seq(list)
                        if list
                            .iter()
                            .any(|v| !matches!(v, ImportedValue::ConstTensor(_))) =>
                    {
                        ImportedValue::Unsupported(
                            "is a sequence, which subgraphs cannot capture".into(),
                        )
                    }
                    other => other.clone(),
                },
            };
            scope.names.entry(name).or_insert(val);
        }
        let results = self.within(std::mem::take(scope), graph, what)?;
        if results.iter().any(|v| matches!(v, ImportedValue::Failed)) {
            return Ok(false);
        }
        for (i, val) in results.iter().enumerate() {
            let value = self.place(val, i)?;
            self.g().output(&format!("result{i}"), value)?;
        }
        Ok(true)
    }
}

/// The captures that are graph values, in order.
fn captured(captures: &[(&str, ImportedValue)]) -> Vec<Value> {
    let values = captures.iter().filter_map(|(_, v)| match v {
        ImportedValue::Graph(v) => Some(*v),
        _ => None,
    });
    values.collect()
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
    let built = either(k, pred, [yes, no]);
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
    Ok(match built? {
        Some(first) => ports(first, count),
        None => vec![ImportedValue::Failed; count],
    })
}

/// Imports both branches as subgraphs; `None` if a node of one failed, which is already reported.
fn either<'m>(
    k: &mut ImportNode<'_, 'm>,
    pred: Value,
    [yes, no]: [&'m GraphProto; 2],
) -> Result<Option<Value>, NodeErrorKind> {
    let captures = k.c.captures(&[yes, no]);
    let yes = k.c.sub_graph(yes, &[], &captures, "then")?;
    let no = k.c.sub_graph(no, &[], &captures, "else")?;
    let (Some(yes), Some(no)) = (yes, no) else {
        return Ok(None);
    };
    Ok(Some(k.g().if_else(pred, &captured(&captures), yes, no)?))
}

/// Imports a loop by unrolling its iterations.
fn repeat(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
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
            return Ok(vec![ImportedValue::Failed; k.node.output.len()]);
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
            _ => {
                return Err(NodeErrorKind::unsupported(
                    "a loop with a data-dependent end is not supported",
                ));
            }
        };
        i += 1;
    }
    if lists.is_empty() && body.output.len() > 1 + carried.len() {
        return Err(NodeErrorKind::unsupported(
            "a loop without iterations has results of unknown type",
        ));
    }
    let mut results = carried;
    for list in lists {
        results.push(stacked(k, &list)?);
    }
    Ok(results)
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

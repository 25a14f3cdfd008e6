//! Exports operators with subgraphs. Subgraphs refer to outer values by name.

use tercet_ir::ops::{If, Scan, While};
use tercet_ir::{DType, Graph, Op, Type};

use super::node::ExportNode;
use super::proto::OnnxAttrValue;
use super::writer::{ExportNodeError, ExportNodeResult};
use crate::proto::GraphProto;

pub(super) fn branch(at: &mut ExportNode<'_>, o: &If) -> ExportNodeResult {
    let captures = at.names[1..].to_vec();
    let mut block = |graph: &Graph| at.w.inner(graph, &captures, Vec::new());
    let then = block(o.then.graph())?;
    let otherwise = block(o.otherwise.graph())?;
    let results = o.then.graph().outputs().len();
    let attrs = vec![
        ("then_branch", OnnxAttrValue::Graph(then)),
        ("else_branch", OnnxAttrValue::Graph(otherwise)),
    ];
    let predicate = at.x(0).to_string();
    Ok(at.w.add_all("If", &[&predicate], results, attrs))
}

/// The types of the arguments of a graph.
fn arguments(graph: &Graph) -> Vec<Type> {
    let input = |(_, node): (_, &tercet_ir::Node)| match &node.op {
        Op::Input(leaf) => Some(leaf.ty.clone()),
        _ => None,
    };
    graph.nodes().filter_map(input).collect()
}

/// Exports a loop. `Loop` expects the condition after each iteration, so the body computes it from
/// its results. ONNX stops after the maximum number of iterations, where Tercet fails.
pub(super) fn repeat(at: &mut ExportNode<'_>, o: &While) -> ExportNodeResult {
    let body = o.body.graph();
    let carried = body.outputs().len();
    let (initial, captures) = at.names.split_at(carried);
    let (initial, captures) = (initial.to_vec(), captures.to_vec());
    let with_captures = |carried: &[String]| [carried, &captures].concat();
    let w = &mut *at.w;
    let first = w.inlined(o.cond.graph(), &with_captures(&initial))?;
    let types = arguments(body).into_iter().take(carried);
    let own: Vec<(String, Type)> = types.map(|ty| (w.fresh(), ty)).collect();
    let names: Vec<String> = own.iter().map(|(name, _)| name.clone()).collect();
    let scalar = |dtype| Type::new(dtype, Vec::new());
    let mut parameters = vec![
        (w.fresh(), scalar(DType::I64)),
        (w.fresh(), scalar(DType::Bool)),
    ];
    parameters.extend(own);
    let turn = w.inner(body, &with_captures(&names), parameters)?;
    let turn = with_condition(at, turn, o.cond.graph(), &captures)?;
    let most = i64::try_from(o.max_iter).unwrap_or(i64::MAX);
    let most = at.w.integer(DType::I64, most);
    let operands: Vec<&str> = [&most, &first[0]]
        .into_iter()
        .chain(&initial)
        .map(String::as_str)
        .collect();
    let attrs = vec![("body", OnnxAttrValue::Graph(turn))];
    Ok(at.w.add_all("Loop", &operands, carried, attrs))
}

/// The body with the loop condition as an additional first result.
fn with_condition(
    at: &mut ExportNode<'_>,
    mut turn: GraphProto,
    condition: &Graph,
    captures: &[String],
) -> Result<GraphProto, ExportNodeError> {
    let results = turn.output.iter().filter_map(|o| o.name.clone());
    let arguments: Vec<String> = results.chain(captures.iter().cloned()).collect();
    let asked = at.w.inner(condition, &arguments, Vec::new())?;
    turn.node.extend(asked.node);
    turn.output = asked.output.into_iter().chain(turn.output).collect();
    Ok(turn)
}

pub(super) fn scan(at: &mut ExportNode<'_>, o: &Scan) -> ExportNodeResult {
    let body = o.body.graph();
    let inputs = o.carried + o.scanned;
    let (given, captures) = at.names.split_at(inputs);
    let (given, captures) = (given.to_vec(), captures.to_vec());
    let w = &mut *at.w;
    let types = arguments(body).into_iter().take(inputs);
    let parameters: Vec<(String, Type)> = types.map(|ty| (w.fresh(), ty)).collect();
    let own = parameters.iter().map(|(name, _)| name.clone());
    let names: Vec<String> = own.chain(captures).collect();
    let step = w.inner(body, &names, parameters)?;
    let direction = |reverse: &[bool]| reverse.iter().map(|r| i64::from(*r)).collect();
    let attrs = vec![
        ("body", OnnxAttrValue::Graph(step)),
        ("num_scan_inputs", OnnxAttrValue::Int(o.scanned as i64)),
        (
            "scan_input_directions",
            OnnxAttrValue::Ints(direction(&o.reverse)),
        ),
        (
            "scan_output_directions",
            OnnxAttrValue::Ints(direction(&o.reverse_results)),
        ),
    ];
    let given: Vec<&str> = given.iter().map(String::as_str).collect();
    let results = body.outputs().len();
    Ok(w.add_all("Scan", &given, results, attrs))
}

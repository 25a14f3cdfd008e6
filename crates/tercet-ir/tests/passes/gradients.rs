//! Applies passes and legalization to the gradient graphs of operator cases.

use std::collections::BTreeMap;

use tercet_cases::{CaseGraph, cases};
use tercet_ir::backend::CompileOptions;
use tercet_ir::fill::InputFill;
use tercet_ir::legalize::legalize;
use tercet_ir::passes::optimize;
use tercet_ir::{DType, Graph, Op, OpKind, Tensor, Value, one_line};

use crate::rules::Strict;
use crate::run;

/// Maximum number of elements in all values of a case; larger cases are skipped in favour of
/// smaller ones.
const MAX_ELEMENTS: usize = 1 << 12;
/// Permitted error relative to the maximum element: decompositions round at other places, and
/// gradients cancel.
const ALLOWED: f64 = 1e-7;

/// The case with cotangents as inputs and gradients as additional outputs, and its data; `None` if
/// it has no gradient.
fn differentiated(c: &CaseGraph) -> Option<(Graph, BTreeMap<String, Tensor>)> {
    let (mut graph, mut leaves) = (c.graph.clone(), c.tensors.clone());
    let types = graph.nodes().flat_map(|(_, n)| &n.outputs);
    let counts = types.map(|ty| Some(ty.eval(&c.sizes).ok()?.numel()));
    if c.expected_fault.is_some() || counts.sum::<Option<usize>>()? > MAX_ELEMENTS {
        return None;
    }
    let floats = graph.nodes().filter_map(|(node, n)| match &n.op {
        Op::Input(_) | Op::Param(_) if n.outputs[0].dtype.is_float() => {
            Some(Value { node, port: 0 })
        }
        _ => None,
    });
    let wanted: Vec<Value> = floats.collect();
    let mut pairs = Vec::new();
    for (i, output) in c.graph.outputs().iter().enumerate() {
        let ty = graph.ty(output.value).clone();
        if ty.dtype.is_float() {
            let name = format!("cotangent {i}");
            let data = InputFill::Normal.tensor(&name, ty.eval(&c.sizes).unwrap());
            leaves.insert(name.clone(), data);
            pairs.push((output.value, graph.input(&name, ty).unwrap()));
        }
    }
    // The tests of gradients cover cases without a gradient.
    let gradients = graph.vjp(&pairs, &wanted).ok()?;
    for (i, gradient) in gradients.into_iter().flatten().enumerate() {
        graph.output(&format!("gradient {i}"), gradient).unwrap();
    }
    for tensor in leaves.values_mut().filter(|t| t.dtype().is_float()) {
        let values = tensor.to_f64s();
        let plain = values.iter().map(|x| if x.abs() < 1e4 { *x } else { 0.5 });
        *tensor = Tensor::from_f64s(tensor.ty().clone(), &plain.collect::<Vec<_>>()).unwrap();
    }
    Some((graph, leaves))
}

/// The difference between the results of the original and a rewritten graph, if any.
fn apart(want: &[Tensor], graph: &Graph, leaves: &BTreeMap<String, Tensor>) -> Option<String> {
    let got = match run(graph, 0, &mut leaves.clone()) {
        Ok(got) => got,
        Err(e) => return Some(one_line(&e)),
    };
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        let (got, want) = (got.to_f64s(), want.to_f64s());
        let scale = want.iter().filter(|w| w.is_finite());
        let scale = scale.fold(1.0f64, |m, w| m.max(w.abs()));
        let far = |(g, w): (&f64, &f64)| w.is_finite() && (g - w).abs() > ALLOWED * scale;
        if let Some(at) = got.iter().zip(&want).position(far) {
            let (got, want) = (got[at], want[at]);
            return Some(format!("result {i}, element {at}: {got} instead of {want}"));
        }
    }
    None
}

#[test]
fn gradients_keep_their_meaning() {
    let mut wrong = Vec::new();
    let mut tried = 0;
    for &kind in OpKind::ALL {
        let doc = kind.doc();
        for case in cases(kind) {
            if !doc.dtypes.contains(&DType::F64) || !case.runs_with(DType::F64) {
                continue;
            }
            let built = case.build(DType::F64).unwrap();
            let Some((graph, leaves)) = differentiated(&built) else {
                continue;
            };
            let name = format!("{}/{}", doc.name, case.name);
            let want = run(&graph, 0, &mut leaves.clone()).unwrap();
            let short = optimize(&graph, &CompileOptions::new()).unwrap();
            let legal = legalize(&short, &Strict);
            let legal = legal.unwrap_or_else(|e| panic!("{name}: {}", one_line(&e)));
            for (what, graph) in [("passes", short), ("rules", legal)] {
                let apart = apart(&want, &graph, &leaves);
                wrong.extend(apart.map(|apart| format!("{name} after {what}: {apart}")));
            }
            tried += 1;
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(tried > 1000, "{tried} cases were tried");
}

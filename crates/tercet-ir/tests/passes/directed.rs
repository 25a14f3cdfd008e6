//! Tests of each pass as text: `cases/PASS.txt` contains graphs before and after the pass.
//!
//! A case begins with `===` and a title; `--->` separates the two graphs. The test runs the pass
//! and then `dce`, so that the result contains only relevant nodes. `TERCET_BLESS=1` rewrites the
//! files with the actual results; review the difference.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use tercet_ir::accuracy::Accuracy;
use tercet_ir::backend::Signature;
use tercet_ir::fill::InputFill;
use tercet_ir::legalize::legalize;
use tercet_ir::passes::{PIPELINE, SIMPLIFICATIONS, convert_precision, optimize, simplify_traced};
use tercet_ir::{Bindings, CompileOptions, DType, Graph, Tensor, one_line, parse};

use crate::rules::Strict;
use crate::{difference, run};

struct Case {
    title: String,
    before: Graph,
    after: String,
}

fn path(file: &str) -> PathBuf {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    root.join("tests/passes/cases").join(format!("{file}.txt"))
}

fn cases(file: &str) -> Vec<Case> {
    let text = std::fs::read_to_string(path(file)).unwrap_or_else(|e| panic!("{file}: {e}"));
    let parts = text.split("=== ").filter(|p| !p.trim().is_empty());
    parts
        .map(|part| {
            let (title, graphs) = part.split_once('\n').unwrap();
            let (before, after) = graphs.split_once("--->").unwrap();
            let before = parse(before).unwrap_or_else(|e| panic!("{file}, {title}: {e}"));
            Case {
                title: title.to_string(),
                before,
                after: after.trim().to_string(),
            }
        })
        .collect()
}

/// Compares the result of `apply` with the file. With `TERCET_BLESS` the file is rewritten.
fn check(file: &str, apply: impl Fn(&Graph) -> Graph) {
    let cases = cases(file);
    if std::env::var_os("TERCET_BLESS").is_some() {
        let text = std::fs::read_to_string(path(file)).unwrap();
        let mut blessed = String::new();
        for (case, part) in cases.iter().zip(text.split("=== ").skip(1)) {
            let (before, _) = part.split_once("--->").unwrap();
            blessed += &format!("=== {before}--->\n{}\n\n", apply(&case.before));
        }
        std::fs::write(path(file), blessed.trim_end().to_string() + "\n").unwrap();
        return;
    }
    for case in cases {
        let after = apply(&case.before).to_string();
        assert_eq!(after, case.after, "{file}: {}\n{after}", case.title);
    }
}

fn pass(name: &str) -> fn(&Graph) -> Result<Graph, tercet_ir::CompileError> {
    PIPELINE.iter().find(|p| p.name == name).unwrap().apply
}

#[test]
fn passes_do_what_their_cases_show() {
    for p in PIPELINE {
        check(p.name, |g| pass("dce")(&(p.apply)(g).unwrap()).unwrap());
    }
}

#[test]
fn narrow_precision_does_what_its_cases_show() {
    check("convert_precision", |g| {
        pass("dce")(&convert_precision(g, DType::F16).unwrap()).unwrap()
    });
}

#[test]
fn legalization_does_what_its_cases_show() {
    check("legalize", |g| {
        pass("dce")(&legalize(g, &Strict).unwrap()).unwrap()
    });
}

/// Ordinary data for the leaves of a graph, with 3 for every symbol.
fn data(graph: &Graph) -> BTreeMap<String, Tensor> {
    let mut sizes = Bindings::new();
    graph.symbols().iter().for_each(|s| sizes.set(s, 3));
    let signature = Signature::of(graph);
    let ports = signature.inputs.iter().chain(&signature.params);
    ports
        .chain(&signature.states)
        .map(|p| {
            let ty = p.ty.eval(&sizes).unwrap();
            let fill = match ty.dtype {
                // Quantized blocks whose scales are ordinary numbers.
                DType::U8 => InputFill::Values(vec![34.0; ty.numel()]),
                DType::I32 => InputFill::Uniform(0.0, 4.0),
                _ => InputFill::Normal,
            };
            (p.name.clone(), fill.tensor(&p.name, ty))
        })
        .collect()
}

#[test]
fn cases_keep_their_meaning_through_the_pipeline() {
    for file in PIPELINE.iter().map(|p| p.name).chain(["legalize"]) {
        for case in cases(file) {
            let after = optimize(&case.before, &CompileOptions::new()).unwrap();
            let legal = legalize(&after, &Strict).unwrap();
            let (mut a, mut b) = (data(&case.before), data(&case.before));
            let what = format!("{file}: {}", case.title);
            match (run(&case.before, 0, &mut a), run(&legal, 0, &mut b)) {
                (Ok(want), Ok(got)) => {
                    for (g, w) in got.iter().zip(&want) {
                        let d = difference(Accuracy::Contraction, g, w);
                        assert_eq!(d, None, "{what}");
                    }
                }
                (Err(_), Err(_)) => {}
                (a, b) => panic!("{what}: {:?}", a.err().or(b.err()).map(|e| one_line(&e))),
            }
        }
    }
}

#[test]
fn every_simplification_fires() {
    let mut fired = BTreeSet::new();
    for case in cases("simplify") {
        fired.extend(simplify_traced(&case.before).unwrap().1);
    }
    let all: BTreeSet<&str> = SIMPLIFICATIONS
        .iter()
        .copied()
        .flatten()
        .map(|r| r.name)
        .collect();
    assert_eq!(fired, all);
}

#[test]
fn narrow_graphs_give_nearly_the_same() {
    for case in cases("convert_precision") {
        for dtype in [DType::F16, DType::BF16] {
            let narrow = convert_precision(&case.before, dtype).unwrap();
            let signature = Signature::of(&narrow);
            assert_eq!(signature.outputs, Signature::of(&case.before).outputs);
            let wide = data(&case.before);
            let mut leaves = wide.clone();
            // States are converted to the narrow dtype too.
            for p in &signature.states {
                let ty = p.ty.eval(&Bindings::new()).unwrap();
                let data = Tensor::from_f64s(ty, &wide[&p.name].to_f64s()).unwrap();
                leaves.insert(p.name.clone(), data);
            }
            let want = run(&case.before, 0, &mut wide.clone()).unwrap();
            let got = run(&narrow, 0, &mut leaves).unwrap();
            for (g, w) in got.iter().zip(&want) {
                let class = Accuracy::Contraction;
                let narrow = |t: &Tensor| {
                    let ty = tercet_ir::TensorType::new(dtype, t.shape());
                    Tensor::from_f64s(ty, &t.to_f64s()).unwrap()
                };
                assert_eq!(
                    difference(class, &narrow(g), &narrow(w)),
                    None,
                    "{}",
                    case.title
                );
            }
        }
    }
    let graph = Graph::new();
    let error = convert_precision(&graph, DType::I32).unwrap_err();
    assert_eq!(
        error.to_string(),
        "cannot compute in i32; accepted: f32, f16, bf16"
    );
}

#[test]
fn an_unknown_pass_is_refused() {
    let options = CompileOptions::new().without_pass("fusion");
    let error = optimize(&Graph::new(), &options).unwrap_err();
    assert_eq!(
        error.to_string(),
        "no pass named `fusion`; the pipeline has: recognize_codes, fold_constants, simplify, cse, drop_checkpoints, \
         recognize, patches, few_rows, factors, fuse_epilogue, pack_qkv, fuse_elementwise, dce"
    );
}

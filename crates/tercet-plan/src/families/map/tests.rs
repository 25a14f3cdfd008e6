//! Every generated text is valid.

use std::collections::HashSet;

use tercet_ir::{CompileOptions, DType, Graph, Type};

use super::MAP;
use crate::caps::Caps;
use crate::kernel::{Instance, Source};
use crate::program::{Program, Work};

fn validate(instance: &Instance) {
    let Source::Wgsl(text) = &instance.source else {
        panic!("{instance} is not WGSL")
    };
    let fail = |e: String| -> ! { panic!("{instance}: {e}\n{text}") };
    let module =
        naga::front::wgsl::parse_str(text).unwrap_or_else(|e| fail(e.emit_to_string(text)));
    naga::valid::Validator::new(
        naga::valid::ValidationFlags::all(),
        naga::valid::Capabilities::empty(),
    )
    .validate(&module)
    .unwrap_or_else(|e| fail(e.emit_to_string(text)));
}

fn plan(graph: &Graph, caps: &Caps) -> Result<Program, tercet_ir::CompileError> {
    crate::compile(graph, &CompileOptions::new(), caps)
}

#[test]
fn texts_of_all_cases_are_valid() {
    let mut seen = HashSet::new();
    let mut planned = 0;
    for &kind in MAP.ops {
        for case in kind.cases() {
            let dtypes = kind.doc().dtypes.iter();
            for &dtype in dtypes.filter(|d| case.runs_with(**d)) {
                let built = case.build(dtype).unwrap();
                let options = CompileOptions {
                    bounds: built.bounds.clone(),
                    ..CompileOptions::new()
                };
                let Ok(program) = crate::compile(&built.graph, &options, &Caps::browser()) else {
                    let has_f64 = |(_, n): (_, &tercet_ir::Node)| {
                        n.outputs.iter().any(|t| t.dtype == DType::F64)
                            || format!("{:?}", n.op).contains("F64")
                    };
                    let wide = built.graph.nodes().any(has_f64) || dtype == DType::I64;
                    assert!(wide, "{kind:?} {} {dtype}", case.name);
                    continue;
                };
                planned += 1;
                for instance in &program.kernels {
                    if instance.name.starts_with("map") && seen.insert(instance.clone()) {
                        validate(instance);
                    }
                }
            }
        }
    }
    assert!(
        planned > 1000 && seen.len() > 300,
        "{planned} {}",
        seen.len()
    );
}

#[test]
fn a_map_of_many_operands_runs_as_several() {
    let mut g = Graph::new();
    let ty = Type::new(DType::F32, [4, 3]);
    let mut sum = g.input("x0", ty.clone()).unwrap();
    for i in 1..20 {
        let x = g.input(&format!("x{i}"), ty.clone()).unwrap();
        sum = g.plus(sum, x).unwrap();
    }
    g.output("y", sum).unwrap();
    let program = plan(&g, &Caps::browser()).unwrap();
    for instance in &program.kernels {
        assert!(instance.args.len() <= 8, "{instance}");
        validate(instance);
    }
}

#[test]
fn a_broadcast_reads_by_few_coordinates() {
    let mut g = Graph::new();
    let x = g.input("x", Type::new(DType::F32, [2, 3, 4, 5])).unwrap();
    let b = g.input("b", Type::new(DType::F32, [4, 5])).unwrap();
    let y = g.plus(x, b).unwrap();
    g.output("y", y).unwrap();
    let program = plan(&g, &Caps::browser()).unwrap();
    assert_eq!(program.kernels.len(), 1);
    let Source::Wgsl(text) = &program.kernels[0].source else {
        panic!("generated text")
    };
    let text = &text[text.find("@compute").unwrap()..];
    // x is read at the result's index, b along the two inner axes as one.
    assert!(
        text.contains("let a0 = i;") && text.contains("let c1 = i % p.w[0].z;"),
        "{text}"
    );
    assert!(
        !text.contains("let c0") && !text.contains("let c2"),
        "{text}"
    );
    assert!(matches!(program.steps[0].work, Work::Dispatch(_)));
}

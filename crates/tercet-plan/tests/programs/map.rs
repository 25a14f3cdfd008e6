//! Tests that every generated WGSL module is valid.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::HashSet;

use tercet_ir::{CompileOptions, DType, Dim, Graph, Type};

use tercet_plan::{
    DeviceCaps, FAMILIES, GpuProgram, KernelInstance, KernelSource, StepOp, compile,
};

pub(crate) fn validate(instance: &KernelInstance) {
    let KernelSource::Wgsl(text) = &instance.source else {
        panic!("{instance} is not WGSL")
    };
    let fail = |e: String| -> ! { panic!("{instance}: {e}\n{text}") };
    let module =
        naga::front::wgsl::parse_str(text).unwrap_or_else(|e| fail(e.emit_to_string(text)));
    naga::valid::Validator::new(
        naga::valid::ValidationFlags::all(),
        // `unpack2x16float` is core WGSL, but naga requires a flag for it, because OpenGL may lack
        // it.
        naga::valid::Capabilities::SHADER_FLOAT16_IN_FLOAT32 | naga::valid::Capabilities::SUBGROUP,
    )
    .validate(&module)
    .unwrap_or_else(|e| fail(e.emit_to_string(text)));
}

fn plan(graph: &Graph, caps: &DeviceCaps) -> Result<GpuProgram, tercet_ir::CompileError> {
    compile(graph, &CompileOptions::new(), caps)
}

#[test]
fn texts_of_all_cases_are_valid() {
    let mut seen = HashSet::new();
    let mut planned = 0;
    let map = FAMILIES.iter().find(|f| f.name == "map");
    for &kind in map.expect("a family of kernels").ops {
        for case in tercet_cases::cases(kind) {
            let dtypes = kind.doc().dtypes.iter();
            for &dtype in dtypes.filter(|d| case.runs_with(**d)) {
                let built = case.build(dtype).unwrap();
                let options = CompileOptions {
                    bounds: built.bounds.clone(),
                    ..CompileOptions::new()
                };
                let Ok(program) = compile(&built.graph, &options, &DeviceCaps::browser()) else {
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
    let program = plan(&g, &DeviceCaps::browser()).unwrap();
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
    let program = plan(&g, &DeviceCaps::browser()).unwrap();
    assert_eq!(program.kernels.len(), 1);
    let KernelSource::Wgsl(text) = &program.kernels[0].source else {
        panic!("generated text")
    };
    let text = &text[text.find("fn map_load").unwrap()..];
    // The kernel reads x at the linear result index; for b, it merges both inner axes into one
    // coordinate.
    assert!(
        text.contains("x0[(i) / 4u]") && text.contains("let c1 = i % p.w[0].z;"),
        "{text}"
    );
    assert!(
        text.contains("x1[(c1 * p.w[0].w) / 4u]") && !text.contains("c0"),
        "{text}"
    );
    assert!(matches!(program.steps[0].work, StepOp::Dispatch(_)));
}

/// Name of the only kernel of a program that computes `x + y`, where `look` adds `y` to the graph.
fn name_of_sum(
    dtype: DType,
    shape: &[Dim],
    look: impl Fn(&mut Graph) -> Result<tercet_ir::Value, tercet_ir::OpError>,
) -> String {
    let mut g = Graph::new();
    let x = g.input("x", Type::new(dtype, shape.to_vec())).unwrap();
    let y = look(&mut g).unwrap();
    let sum = g.plus(x, y).unwrap();
    g.output("sum", sum).unwrap();
    let options = CompileOptions::new().bound("s", 100);
    let program = compile(&g, &options, &DeviceCaps::browser()).unwrap();
    program.kernels.iter().for_each(validate);
    let last = program.kernels.last().expect("a kernel");
    last.name.clone()
}

#[test]
fn whole_vectors_at_any_size_are_computed_as_such() {
    let rows = |n: usize| [Dim::sym("s"), Dim::Known(n)];
    let same = |dtype, n| {
        move |g: &mut Graph| g.input("y", Type::new(dtype, [Dim::sym("s"), Dim::Known(n)]))
    };
    let f32s = |n| name_of_sum(DType::F32, &rows(n), same(DType::F32, n));
    let f16s = |n| name_of_sum(DType::F16, &rows(n), same(DType::F16, n));
    assert!(f32s(12).ends_with(" by 4") && !f32s(6).contains(" by "));
    assert!(f16s(24).ends_with(" by 8") && !f16s(12).contains(" by "));
    // Vectors may not cross the end of a row; a column operand is read once per vector.
    let row = name_of_sum(DType::F32, &rows(12), |g| {
        g.input("y", Type::new(DType::F32, [12]))
    });
    assert!(row.ends_with("f32,f32[1]->f32 by 4"), "{row}");
    let column = name_of_sum(DType::F32, &rows(12), |g| {
        g.input("y", Type::new(DType::F32, [Dim::sym("s"), Dim::Known(1)]))
    });
    assert!(column.ends_with("f32,f32[0]->f32 by 4"), "{column}");
    // A slot that the kernel reads with two access patterns is bound once, as an array of 32-bit
    // words.
    let cut = name_of_sum(DType::F32, &[Dim::Known(8), Dim::Known(8)], |g| {
        let y = g.input("z", Type::new(DType::F32, [8, 9]))?;
        let a = g.slice(y, &[0, 0], &[8, 8], &[1, 1])?;
        let b = g.slice(y, &[0, 1], &[8, 9], &[1, 1])?;
        g.plus(a, b)
    });
    assert!(cut.contains(" by 4"), "{cut}");
}

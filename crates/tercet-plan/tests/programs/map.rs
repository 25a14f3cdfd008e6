//! Tests that every generated WGSL module is valid.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::HashSet;

use tercet_ir::ops::ResizeMode;
use tercet_ir::{CompileOptions, DType, Dim, Graph, Type};

use tercet_plan::{
    DeviceCaps, FAMILIES, GpuProgram, KernelInstance, KernelSource, StepOp, check_races, compile,
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

/// A graph of `count` equal chains over inputs of different sizes, and another chain.
fn chains(count: usize) -> Graph {
    let mut g = Graph::new();
    let mut build = || -> Result<(), tercet_ir::OpError> {
        for i in 0..count {
            let x = g.input(&format!("x{i}"), Type::new(DType::F32, [3 + i, 8]))?;
            let y = g.exp(x)?;
            let y = g.mul(y, x)?;
            let y = g.sigmoid(y)?;
            g.output(&format!("y{i}"), y)?;
        }
        let x = g.input("other", Type::new(DType::F32, [5]))?;
        let y = g.tanh(x)?;
        g.output("other", y)
    };
    build().expect("the graph is well typed");
    g
}

#[test]
fn equal_chains_are_one_launch() {
    let steps = |count: usize, caps: &DeviceCaps| {
        let program = compile(&chains(count), &CompileOptions::new(), caps);
        let program = program.expect("maps compile");
        check_races(&program).expect("parts of a batch are independent");
        let names = program.steps.iter().filter_map(|step| match &step.work {
            StepOp::Dispatch(d) => Some(program.kernels[d.kernel.0 as usize].name.clone()),
            StepOp::Copy { .. } | StepOp::Fill { .. } => None,
        });
        names.collect::<Vec<String>>()
    };
    let caps = DeviceCaps::h200();
    let names = steps(64, &caps);
    assert_eq!(names.len(), 2, "{names:?}");
    assert!(names.iter().any(|name| name.ends_with(" x64")), "{names:?}");
    // A browser binds eight buffers: four parts.
    assert_eq!(steps(64, &DeviceCaps::browser()).len(), 17);
    assert_eq!(steps(1, &caps).len(), 2);
}

/// The heads of a detector at three scales: boxes, sizes and scores of a YOLO head, joined.
fn detector_heads() -> Graph {
    let mut g = Graph::new();
    let mut build = || -> Result<(), tercet_ir::OpError> {
        let mut scales = Vec::new();
        for (i, side) in [40usize, 20, 10].into_iter().enumerate() {
            let x = g.input(
                &format!("x{i}"),
                Type::new(DType::F32, [1, 255, side, side]),
            )?;
            let x = g.reshape(x, [1, 3, 85, side * side])?;
            let x = g.transpose(x, &[0, 1, 3, 2])?;
            let x = g.sigmoid(x)?;
            let cells = g.input(
                &format!("cells{i}"),
                Type::new(DType::F32, [side * side, 2]),
            )?;
            let anchors = g.input(&format!("anchors{i}"), Type::new(DType::F32, [3, 1, 2]))?;
            let two = g.scalar(DType::F32, 2.0)?;
            let doubled = g.mul(x, two)?;
            let near = g.slice_axis(doubled, 3, 0, 2, 1)?;
            let centers = g.plus(near, cells)?;
            let sizes = g.slice_axis(doubled, 3, 2, 4, 1)?;
            let sizes = g.mul(sizes, sizes)?;
            let sizes = g.mul(sizes, anchors)?;
            let scores = g.slice_axis(x, 3, 4, 85, 1)?;
            let boxes = g.concat(&[centers, sizes, scores], 3)?;
            scales.push(g.reshape(boxes, [1, 3 * side * side, 85])?);
        }
        let all = g.concat(&scales, 1)?;
        g.output("boxes", all)
    };
    build().expect("the graph is well typed");
    g
}

#[test]
fn heads_of_a_detector_are_fewer_launches_together() {
    let dispatches = |max_batch_buffers: u32| {
        let caps = DeviceCaps {
            max_batch_buffers,
            ..DeviceCaps::h200()
        };
        let program = plan(&detector_heads(), &caps).expect("the heads compile");
        check_races(&program).expect("parts of a batch are independent");
        let steps = program.steps.iter();
        steps
            .filter(|step| matches!(step.work, StepOp::Dispatch(_)))
            .count()
    };
    let (alone, together) = (
        dispatches(0),
        dispatches(DeviceCaps::h200().max_batch_buffers),
    );
    assert_eq!((alone, together), (13, 8));
}

#[test]
fn large_and_dependent_maps_are_not_merged() {
    let mut g = Graph::new();
    let mut build = || -> Result<(), tercet_ir::OpError> {
        for i in 0..2 {
            let x = g.input(&format!("x{i}"), Type::new(DType::F32, [4096, 2048]))?;
            let y = g.exp(x)?;
            g.output(&format!("y{i}"), y)?;
        }
        // Each of these reads the result of the one before.
        let mut y = g.input("z", Type::new(DType::F32, [64]))?;
        for i in 0..3 {
            y = g.cum_sum(y, 0)?;
            y = g.sin(y)?;
            g.output(&format!("z{i}"), y)?;
        }
        Ok(())
    };
    build().expect("the graph is well typed");
    let program = compile(&g, &CompileOptions::new(), &DeviceCaps::h200()).expect("it compiles");
    let batched = |k: &&tercet_plan::KernelInstance| k.args.len() > 2;
    assert_eq!(program.kernels.iter().filter(batched).count(), 0);
}

#[test]
fn nearest_upsampling_is_part_of_a_map() {
    let mut g = Graph::new();
    let mut build = || -> Result<(), tercet_ir::OpError> {
        let x = g.input("x", Type::new(DType::F32, [1, 8, 16, 16]))?;
        let y = g.resize(x, [1usize, 8, 32, 32], ResizeMode::Nearest)?;
        let y = g.exp(y)?;
        let y = g.sigmoid(y)?;
        g.output("y", y)
    };
    build().expect("the graph is well typed");
    let program = compile(&g, &CompileOptions::new(), &DeviceCaps::h200()).expect("it compiles");
    assert_eq!(program.steps.len(), 1, "{:?}", program.kernels);
}

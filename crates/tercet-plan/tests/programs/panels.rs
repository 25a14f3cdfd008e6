//! Intermediate matmul operands that lie in panels, where their only reader wants them so.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use tercet_ir::ops::{AttentionLayout, AttentionOptions};
use tercet_ir::random::RngState;
use tercet_ir::scalar::UnaryFn;
use tercet_ir::{Bindings, CompileOptions, DType, Dim, Graph, Type, Value};

use tercet_plan::{DeviceCaps, GpuProgram, LaunchSizes, ParamWord, StepOp};

const WIDTH: usize = 768;

/// Test graph: a layer norm of `[rows, 768]`, followed by a matmul with GELU and by a second
/// matmul.
fn graph(rows: &[Dim]) -> (Graph, [Value; 3]) {
    let mut g = Graph::new();
    let shape = rows.iter().cloned().chain([Dim::Known(WIDTH)]);
    let shape: Vec<Dim> = shape.collect();
    let x = g.input("x", Type::new(DType::F16, shape)).unwrap();
    let weights = |g: &mut Graph, name: &str, shape: &[usize]| {
        let shape: Vec<Dim> = shape.iter().copied().map(Dim::Known).collect();
        g.param(name, Type::new(DType::F16, shape)).unwrap()
    };
    let [gamma, beta] = ["gamma", "beta"].map(|name| weights(&mut g, name, &[WIDTH]));
    let up = weights(&mut g, "up", &[WIDTH, 4 * WIDTH]);
    let down = weights(&mut g, "down", &[4 * WIDTH, WIDTH]);
    let axis = rows.len();
    let normed = g.layer_norm(x, gamma, Some(beta), axis, 1e-12).unwrap();
    let hidden = g.linear(normed, up, None, Some(UnaryFn::Gelu)).unwrap();
    let y = g.linear(hidden, down, None, None).unwrap();
    g.output("y", y).unwrap();
    (g, [normed, hidden, y])
}

fn compile(g: &Graph) -> GpuProgram {
    let options = CompileOptions::new().bound("b", 32).bound("s", 64);
    tercet_plan::compile(g, &options, &DeviceCaps::h200()).unwrap()
}

/// For each dispatch of a run: the kernel name, whether its constants select panel-packed
/// input, and whether its parameter block selects panel-packed output.
fn run(program: &GpuProgram, sizes: [usize; 2]) -> Vec<(String, bool, bool)> {
    let [b, s] = sizes;
    let mut launch = LaunchSizes::default();
    let sizes = Bindings::new().with("b", b).with("s", s);
    launch
        .compute(program, &sizes, RngState::default())
        .unwrap();
    let steps = program.steps.iter().zip(&launch.grids);
    let on = steps.filter_map(|(step, grid)| match &step.work {
        StepOp::Dispatch(d) if !grid.contains(&0) => Some(d),
        StepOp::Dispatch(_) | StepOp::Copy { .. } | StepOp::Fill { .. } => None,
    });
    let all = on.map(|d| {
        let name = &program.kernels[d.kernel.0 as usize].name;
        // The fields `y_panels` and `c_panels`, which select panel-packed output, are the last
        // words of their parameter blocks.
        let word = match name {
            name if name.starts_with("norm") => Some(8),
            name if name.starts_with("gemm_laid") => Some(26),
            name if name.starts_with("attention_lanes") => Some(38),
            _ => None,
        };
        let writes = word.is_some_and(|at| {
            let word = program.params[d.block as usize + at];
            matches!(word, ParamWord::SymInt(n) if launch.value(n) == 1)
        });
        let kernel = name.split(' ').next().unwrap().to_string();
        (kernel, name.contains("A_PANELS=1"), writes)
    });
    all.collect()
}

fn laid(reads: bool, writes: bool) -> (String, bool, bool) {
    ("gemm_laid_f16".to_string(), reads, writes)
}

#[test]
fn rows_that_one_product_reads_lie_in_panels() {
    let (g, _) = graph(&[Dim::sym("b"), Dim::Known(197)]);
    let all = run(&compile(&g), [32, 0]);
    let norm = ("norm_vectors".to_string(), false, true);
    assert_eq!(all, [norm, laid(true, true), laid(true, false)]);
}

#[test]
fn only_runs_that_fill_parts_of_tiles_have_panels() {
    let (g, _) = graph(&[Dim::sym("b"), Dim::sym("s")]);
    let program = compile(&g);
    for (sizes, panels) in [([32, 64], true), ([3, 16], true), ([1, 47], false)] {
        let all = run(&program, sizes);
        let norm = ("norm_vectors".to_string(), false, panels);
        let wanted = [norm, laid(panels, panels), laid(panels, false)];
        assert_eq!(all, wanted, "{sizes:?}");
    }
    let few = run(&program, [1, 3]);
    assert!(few.iter().all(|(_, reads, _)| !reads), "{few:?}");
    assert!(!few[0].2, "{few:?}");
}

#[test]
fn rows_that_somebody_else_reads_lie_as_they_are() {
    for at in [0, 1] {
        let (mut g, values) = graph(&[Dim::sym("b"), Dim::Known(197)]);
        let twice = g.unary(UnaryFn::Relu, values[at]).unwrap();
        g.output("more", twice).unwrap();
        let all = run(&compile(&g), [32, 0]);
        let writers = all.iter().filter(|(.., writes)| *writes);
        assert_eq!(writers.count(), 1, "{at}: {all:?}");
        let (mut g, values) = graph(&[Dim::sym("b"), Dim::Known(197)]);
        g.output("more", values[at]).unwrap();
        let all = run(&compile(&g), [32, 0]);
        let writers = all.iter().filter(|(.., writes)| *writes);
        assert_eq!(writers.count(), 1, "{at}: {all:?}");
    }
}

/// Test graph: attention with head size 64 whose queries, keys and values are column ranges of
/// one matmul result, starting at these columns.
fn attention(begins: [usize; 3], is_read: bool) -> Graph {
    let mut g = Graph::new();
    let (b, s) = (Dim::sym("b"), Dim::Known(197));
    let shape = [b.clone(), s.clone(), Dim::Known(WIDTH)];
    let x = g.input("x", Type::new(DType::F16, shape)).unwrap();
    let w = Type::new(DType::F16, [WIDTH, 3 * WIDTH]);
    let w = g.param("w", w).unwrap();
    let all = g.linear(x, w, None, None).unwrap();
    let parts = begins.map(|first| {
        let own = g.narrow(all, 2, first, WIDTH).unwrap();
        let apart = [b.clone(), s.clone(), Dim::Known(WIDTH / 64), Dim::Known(64)];
        g.reshape(own, apart).unwrap()
    });
    let [q, k, v] = parts;
    let options = AttentionOptions::new(WIDTH / 64, WIDTH / 64, AttentionLayout::Bshd);
    let y = g.attention(q, k, v, options).unwrap();
    let joined = g.reshape(y, [b, s, Dim::Known(WIDTH)]).unwrap();
    let w = Type::new(DType::F16, [WIDTH, WIDTH]);
    let w = g.param("out", w).unwrap();
    let y = g.linear(joined, w, None, None).unwrap();
    g.output("y", y).unwrap();
    if is_read {
        let sums = g.unary(UnaryFn::Relu, all).unwrap();
        g.output("more", sums).unwrap();
    }
    g
}

#[test]
fn heads_that_are_columns_of_one_product_lie_in_panels() {
    let begins = [0, WIDTH, 2 * WIDTH];
    for (begins, is_read, panels) in [
        (begins, false, true),
        (begins, true, false),
        ([0, WIDTH + 32, 2 * WIDTH], false, true),
        ([0, WIDTH + 8, 2 * WIDTH], false, false),
    ] {
        let program = compile(&attention(begins, is_read));
        let mut all = run(&program, [32, 0]);
        all.retain(|(kernel, ..)| kernel != "map");
        let attention = ("attention_lanes_f16".to_string(), false, true);
        let wanted = [laid(false, panels), attention, laid(true, false)];
        assert_eq!(all, wanted, "{begins:?} {is_read}");
    }
}

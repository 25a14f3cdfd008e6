//! Tests of kernel fusion and of concat elision for weights.

use tercet_ir::ops::{AttentionLayout, RopeStyle};
use tercet_ir::{CompileOptions, DType, Dim, Graph, OpError, Scheme, Type, Value};
use tercet_plan::{
    DeviceCaps, GpuProgram, ProgramBuffer, ProgramStep, StepOp, check_races, compile,
};

use crate::common::played;

/// The program of a graph with at most 64 rows, checked for races.
fn planned(graph: &Graph) -> GpuProgram {
    let options = CompileOptions::new().bound("s", 64);
    let program = compile(graph, &options, &DeviceCaps::h200()).expect("the graph is supported");
    check_races(&program).unwrap_or_else(|race| panic!("{race}\n{program}"));
    program
}

/// Three matmuls of one operand with quantized weights of this scheme.
fn projections(scheme: Scheme, rows: [usize; 3]) -> Result<Graph, OpError> {
    let mut g = Graph::new();
    let x = Type::new(DType::F32, [Dim::sym("s"), Dim::Known(256)]);
    let x = g.input("x", x)?;
    let bytes = scheme.row_bytes(256).expect("whole blocks");
    for (name, rows) in ["q", "k", "v"].into_iter().zip(rows) {
        let w = g.param(name, Type::new(DType::U8, [rows, bytes]))?;
        let y = g.dequant_matmul(x, w, scheme)?;
        g.output(name, y)?;
    }
    Ok(g)
}

#[test]
fn weights_of_one_operand_lie_behind_each_other_once() {
    let rows = [64, 32, 32];
    let program = planned(&projections(Scheme::Q8_0, rows).expect("a graph"));
    assert!(program.prepare.is_empty(), "{program}");
    assert_eq!(
        program.bytes_of(|b| b == ProgramBuffer::Prepared),
        0,
        "{program}"
    );
    let bytes = 128 * Scheme::Q8_0.row_bytes(256).expect("whole blocks");
    let params = program.bytes_of(|b| matches!(b, ProgramBuffer::Param(_)));
    assert_eq!(params, bytes as u64, "{program}");
    let homes: Vec<ProgramBuffer> = program
        .param_io
        .iter()
        .map(|io| program.slot(io.slot).buffer)
        .collect();
    assert_eq!(homes, [ProgramBuffer::Param(0); 3], "{program}");
}

#[test]
fn packed_rows_of_odd_sizes_lie_behind_each_other_aligned() {
    // Rows of 210 bytes.
    let program = planned(&projections(Scheme::Q6K, [3, 2, 2]).expect("a graph"));
    assert!(program.prepare.is_empty(), "{program}");
    let params = program.bytes_of(|b| matches!(b, ProgramBuffer::Param(_)));
    assert_eq!(params, 7 * 224, "{program}");
    assert!(program.param_io.iter().all(|io| io.soa_layout.is_some()));
}

#[test]
fn packed_weights_that_something_else_reads_stay_in_file_order() {
    let mut g = projections(Scheme::Q8_0, [4, 2, 2]).expect("a graph");
    let w = g
        .param("bytes", Type::new(DType::U8, [4, 272]))
        .expect("a parameter");
    let x = g
        .input("z", Type::new(DType::F32, [1, 256]))
        .expect("an input");
    let y = g.dequant_matmul(x, w, Scheme::Q8_0).expect("a product");
    g.output("y", y).expect("an output");
    g.output("w", w).expect("an output");
    let program = planned(&g);
    let in_planes: Vec<bool> = program
        .param_io
        .iter()
        .map(|io| io.soa_layout.is_some())
        .collect();
    assert_eq!(in_planes, [true, true, true, false]);
}

/// Like [`projections`], with weights that are also dequantized for another matmul, as in backward
/// graphs.
fn projections_and_back(scheme: Scheme, rows: [usize; 3]) -> Result<Graph, OpError> {
    let mut g = projections(scheme, rows)?;
    for (name, rows) in ["q", "k", "v"].into_iter().zip(rows) {
        let node = g.leaf(name).expect("a parameter");
        let w = Value { node, port: 0 };
        let dy = Type::new(DType::F32, [Dim::sym("s"), Dim::Known(rows)]);
        let dy = g.input(&format!("d{name}"), dy)?;
        let w = g.dequantize(w, scheme)?;
        let dx = g.matmul(dy, w)?;
        g.output(&format!("dx{name}"), dx)?;
    }
    Ok(g)
}

#[test]
fn weights_that_gradients_decode_lie_behind_each_other_in_planes() {
    let rows = [64, 32, 32];
    let program = planned(&projections_and_back(Scheme::Q8_0, rows).expect("a graph"));
    let bytes = 128 * Scheme::Q8_0.row_bytes(256).expect("whole blocks");
    let params = program.bytes_of(|b| matches!(b, ProgramBuffer::Param(_)));
    assert_eq!(params, bytes as u64, "{program}");
    assert_eq!(
        program.bytes_of(|b| b == ProgramBuffer::Prepared),
        0,
        "{program}"
    );
    assert!(program.param_io.iter().all(|io| io.soa_layout.is_some()));
    // The second matrix does not start at an aligned binding offset, so the weights are
    // concatenated by a copy.
    let program = planned(&projections_and_back(Scheme::Q8_0, [63, 32, 32]).expect("a graph"));
    assert!(
        program.bytes_of(|b| b == ProgramBuffer::Prepared) > 0,
        "{program}"
    );
    assert!(program.param_io.iter().all(|io| io.soa_layout.is_some()));
}

/// A RoPE whose result is written to a state, and optionally read by another node.
fn rotated(is_read: bool) -> Result<Graph, OpError> {
    let mut g = Graph::new();
    let s = Dim::sym("s");
    let shape = [Dim::Known(1), s.clone(), Dim::Known(2), Dim::Known(8)];
    let x = g.input("x", Type::new(DType::F32, shape))?;
    let table = Type::new(DType::F32, [s, Dim::Known(4)]);
    let (cos, sin) = (g.input("cos", table.clone())?, g.input("sin", table)?);
    let at = g.input("at", Type::new(DType::I32, [4]))?;
    let y = g.rope(x, cos, sin, RopeStyle::NeoX, 8, AttentionLayout::Bshd)?;
    let cache = g.state("cache", Type::new(DType::F32, [1, 64, 2, 8]))?;
    let all = g.dynamic_update_slice(cache, y, at)?;
    g.assign(cache, all)?;
    if is_read {
        g.output("y", y)?;
    }
    Ok(g)
}

#[test]
fn a_rotation_that_only_a_cache_reads_is_written_there() {
    let kernels = |is_read| -> Vec<String> {
        let program = planned(&rotated(is_read).expect("a graph"));
        let names = program
            .dispatches()
            .map(|d| &program.kernels[d.kernel.0 as usize].name);
        let first = |name: &String| name.split(' ').next().unwrap_or_default().to_string();
        names.map(first).collect()
    };
    assert_eq!(kernels(false), ["rope_update"]);
    assert_eq!(kernels(true), ["rope", "dynamic_update"]);
}

/// A mixture-of-experts router. `reads` tells whether other nodes also read the scores and the
/// weights of the router.
fn router(reads: [bool; 2]) -> Result<Graph, OpError> {
    let mut g = Graph::new();
    let x = Type::new(DType::F32, [Dim::sym("s"), Dim::Known(128)]);
    let x = g.input("x", x)?;
    let scores = g.softmax(x, 1)?;
    let top = g.top_k(scores, 8, 1, true)?;
    let sum = g.reduce_sum(top, &[1], true)?;
    let shares = g.div(top, sum)?;
    g.output("shares", shares)?;
    g.output("experts", top.port(1))?;
    if reads[0] {
        g.output("scores", scores)?;
    }
    if reads[1] {
        g.output("weights", top)?;
    }
    Ok(g)
}

#[test]
fn scores_that_only_a_choice_reads_are_made_by_it() {
    let with = |reads| {
        let program = planned(&router(reads).expect("a graph"));
        played(&program, 1)
    };
    assert_eq!(with([false, false]), ["top_k_ranks"]);
    assert_eq!(with([true, false]), ["softmax_vectors", "top_k_ranks"]);
    let weighed = with([false, true]);
    assert_eq!(weighed[0], "top_k_ranks");
    assert_eq!(weighed.len(), 2, "{weighed:?}");
}

/// `x + f(norm(x) gate) * (norm(x) up) down`, optionally with another reader of the norm.
fn feed_forward(is_read: bool) -> Result<Graph, OpError> {
    let mut g = Graph::new();
    let x = Type::new(DType::F32, [Dim::sym("s"), Dim::Known(256)]);
    let x = g.input("x", x)?;
    let gain = g.param("gain", Type::new(DType::F32, [256]))?;
    let h = g.rms_norm(x, gain, None, 1e-5)?;
    let bytes = Scheme::Q4K.row_bytes(256).expect("whole blocks");
    let weight = |g: &mut Graph, name| g.param(name, Type::new(DType::U8, [256, bytes]));
    let (gate, up, down) = (
        weight(&mut g, "gate")?,
        weight(&mut g, "up")?,
        weight(&mut g, "down")?,
    );
    let gate = g.dequant_matmul(h, gate, Scheme::Q4K)?;
    let up = g.dequant_matmul(h, up, Scheme::Q4K)?;
    let gate = g.silu(gate)?;
    let a = g.mul(gate, up)?;
    let y = g.dequant_matmul(a, down, Scheme::Q4K)?;
    let y = g.plus(x, y)?;
    g.output("y", y)?;
    if is_read {
        g.output("h", h)?;
    }
    Ok(g)
}

#[test]
fn one_row_takes_its_norm_its_gate_and_its_sum_by_the_way() {
    let program = planned(&feed_forward(false).expect("a graph"));
    let one = ["gemv_held_activated", "gemv_held"];
    assert_eq!(played(&program, 1), one, "{program}");
    // Rows are prepacked before each matmul; the norm stores its rows prepacked.
    let dozens = [
        "norm_lay",
        "few_rows_laid_q4_k",
        "lay_rows",
        "few_rows_laid_q4_k",
    ];
    for rows in [8, 64] {
        assert_eq!(played(&program, rows), dozens, "{program}");
    }
    // A server may run 2 rows in place of 60, because they give the same bits.
    let variants = |rows| {
        let switches = program.shape_switches.iter();
        switches.map(|s| s.variant_for(rows)).collect::<Vec<_>>()
    };
    for rows in [2, 8, 9, 20] {
        assert_eq!(variants(rows), variants(60));
    }
    assert_ne!(variants(1), variants(2));
    let graph = feed_forward(false).expect("a graph");
    let options = CompileOptions::new().bound("s", 64);
    let without_lanes = DeviceCaps {
        coop_fragment_layout: false,
        ..DeviceCaps::h200()
    };
    let program = compile(&graph, &options, &without_lanes).expect("a program");
    // A separate elementwise kernel applies the gate; the kernel that adds split-K partial sums
    // also adds the residual.
    let many = [
        "norm_vectors",
        "gemm_quads_packed",
        "sum_parts",
        "map",
        "gemm_quads_packed",
        "sum_parts",
    ];
    assert_eq!(played(&program, 64), many, "{program}");
}

#[test]
fn norms_and_gates_of_prompts_write_their_rows_rounded() {
    let graph = feed_forward(false).expect("a graph");
    let options = CompileOptions::new().bound("s", 512);
    let options = options.with_matmul_precision(Some(DType::F16));
    let program = compile(&graph, &options, &DeviceCaps::h200()).expect("a program");
    let steps = played(&program, 512);
    let products = steps.iter().filter(|k| k.starts_with("gemm_coop_f16"));
    assert_eq!(products.count(), 2, "{steps:?}");
    assert_eq!(steps[0], "norm_vectors_rounded", "{steps:?}");
    // The elementwise kernel that applies the gate also writes a rounded copy of its result.
    let is_second = |k: &String| k == "norm_vectors" || k.contains("narrow");
    assert!(!steps.iter().any(is_second), "{steps:?}");
    assert!(program.to_string().contains("->f32,f16"), "{program}");
}

#[test]
fn weights_are_decoded_behind_the_product_before() {
    let graph = feed_forward(false).expect("a graph");
    let options = CompileOptions::new().bound("s", 512);
    let options = options.with_matmul_precision(Some(DType::F16));
    let program = compile(&graph, &options, &DeviceCaps::h200()).expect("a program");
    let kernel = |step: &ProgramStep| match &step.work {
        StepOp::Dispatch(d) => program.kernels[d.kernel.0 as usize].name.clone(),
        StepOp::Copy { .. } | StepOp::Fill { .. } => String::new(),
    };
    let groups = program.steps.chunk_by(|_, next| !next.barrier);
    let groups = groups.map(|group| group.iter().map(kernel).collect::<Vec<_>>());
    let place = |group: &[String], name| group.iter().position(|k| k.starts_with(name));
    let decoded = groups.filter_map(|group| {
        let decoded = place(&group, "dequantize_half")?;
        Some(place(&group, "gemm_coop_f16").map(|product| product < decoded))
    });
    // The weights of gate and up have no earlier matmul to be dequantized beside; those of down
    // have one.
    let decoded: Vec<Option<bool>> = decoded.collect();
    assert_eq!(decoded, [None, Some(true)], "{program}");
}

#[test]
fn a_norm_that_something_else_reads_is_a_step() {
    let program = planned(&feed_forward(true).expect("a graph"));
    assert_eq!(played(&program, 1)[0], "norm_vectors", "{program}");
}

/// Rows of two results in F16, gathered after they are joined, and cast to F32.
fn joined(is_read: bool, axis: usize) -> Result<Graph, OpError> {
    let mut g = Graph::new();
    let part = |g: &mut Graph, name, rows| {
        let x = g.input(name, Type::new(DType::F16, [1, rows, 4, 64]))?;
        let x = g.mul(x, x)?;
        g.reshape(x, [1, rows, 256])
    };
    let (x, more) = (part(&mut g, "x", 8)?, part(&mut g, "more", 5)?);
    let all = g.concat(&[x, more], 1)?;
    let rows = g.input("rows", Type::new(DType::I32, [7]))?;
    let y = g.gather(all, rows, axis)?;
    let y = g.cast(y, DType::F32)?;
    g.output("y", y)?;
    if is_read {
        g.output("all", all)?;
    }
    Ok(g)
}

#[test]
fn joined_rows_are_gathered_from_both_operands_and_cast() {
    let names = |program: &GpuProgram| -> Vec<String> {
        let kernels = program.kernels.iter();
        let name =
            |k: &tercet_plan::KernelInstance| k.name.split(' ').next().unwrap_or("").to_string();
        kernels.map(name).collect()
    };
    let fused = names(&planned(&joined(false, 1).expect("a graph")));
    assert!(
        fused.iter().any(|name| name == "gather_joined"),
        "{fused:?}"
    );
    let has_copies = |names: &[String]| names.iter().any(|name| name.starts_with("concat"));
    assert!(!has_copies(&fused) && fused.len() == 4, "{fused:?}");
    for (is_read, axis) in [(true, 1), (false, 2)] {
        let apart = names(&planned(&joined(is_read, axis).expect("a graph")));
        assert!(has_copies(&apart), "{apart:?}");
    }
}

//! Tests of row-wise fusion groups: which nodes become one kernel, and that its WGSL is valid.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use tercet_ir::{CompileOptions, DType, Graph, OpError, Type, Value};

use tercet_plan::{DeviceCaps, GpuProgram, KernelSource, StepOp, compile};

use crate::map::validate;

/// The program of the gradients of `build`'s result with respect to the first `wanted` inputs.
fn backward(
    caps: &DeviceCaps,
    inputs: &[Type],
    wanted: usize,
    build: impl FnOnce(&mut Graph, &[Value]) -> Result<Value, OpError>,
) -> GpuProgram {
    let mut g = Graph::new();
    let mut values = Vec::new();
    for (i, ty) in inputs.iter().enumerate() {
        values.push(g.input(&format!("x{i}"), ty.clone()).unwrap());
    }
    let y = build(&mut g, &values).unwrap();
    let dy = g.input("dy", g.ty(y).clone()).unwrap();
    let gradients = g.vjp(&[(y, dy)], &values[..wanted]).unwrap();
    for (i, gradient) in gradients.into_iter().flatten().enumerate() {
        g.output(&format!("d{i}"), gradient).unwrap();
    }
    let program = compile(&g, &CompileOptions::new(), caps).unwrap();
    let written = program.kernels.iter();
    let written = written.filter(|k| matches!(k.source, KernelSource::Wgsl(_)));
    written.for_each(validate);
    program
}

/// Names of the program's kernels in dispatch order.
fn names(program: &GpuProgram) -> Vec<String> {
    let dispatches = program.steps.iter().filter_map(|step| match &step.work {
        StepOp::Dispatch(d) => Some(program.kernels[d.kernel.0 as usize].name.clone()),
        StepOp::Copy { .. } | StepOp::Fill { .. } => None,
    });
    dispatches.collect()
}

/// Number of names with this prefix.
fn count(names: &[String], start: &str) -> usize {
    names.iter().filter(|n| n.starts_with(start)).count()
}

#[test]
fn norms_backwards_are_a_kernel_of_rows_and_one_of_columns() {
    for caps in [DeviceCaps::browser(), DeviceCaps::h200()] {
        for dtype in [DType::F32, DType::F16] {
            let x = || Type::new(dtype, [256, 512]);
            let gain = || Type::new(dtype, [512]);
            let p = backward(&caps, &[x(), gain(), gain()], 3, |g, v| {
                g.layer_norm(v[0], v[1], Some(v[2]), 1, 1e-5)
            });
            let names = names(&p);
            assert_eq!(count(&names, "rows mean mean mean mean"), 1, "{names:#?}");
            assert_eq!(count(&names, "columns 2 sums"), 1, "{names:#?}");
            // The gradients of gain and bias are sums in one kernel; their results are then cast or
            // copied to the outputs.
            assert_eq!(names.len(), 5, "{names:#?}");
        }
    }
}

#[test]
fn softmaxes_backwards_are_a_kernel() {
    let x = || Type::new(DType::F16, [256, 512]);
    let p = backward(&DeviceCaps::browser(), &[x()], 1, |g, v| g.softmax(v[0], 1));
    let names = names(&p);
    // The kernel of the softmax gradient also computes the softmax itself.
    assert_eq!(names.len(), 1, "{names:#?}");
    assert_eq!(count(&names, "rows max sum sum"), 1, "{names:#?}");
}

/// Kernel names of a graph with an input `x`, in dispatch order.
fn forward(
    shape: [usize; 2],
    build: impl FnOnce(&mut Graph, Value) -> Result<Value, OpError>,
) -> Vec<String> {
    let mut g = Graph::new();
    let x = g.input("x", Type::new(DType::F32, shape)).unwrap();
    let y = build(&mut g, x).unwrap();
    g.output("y", y).unwrap();
    let program = compile(&g, &CompileOptions::new(), &DeviceCaps::browser()).unwrap();
    program.kernels.iter().for_each(validate);
    names(&program)
}

fn centred(g: &mut Graph, x: Value) -> Result<Value, OpError> {
    let mean = g.reduce_mean(x, &[1], true)?;
    g.sub(x, mean)
}

#[test]
fn few_long_rows_fill_a_device_otherwise() {
    assert_eq!(count(&forward([100, 40_000], centred), "rows mean"), 1);
    assert_eq!(count(&forward([2, 40_000], centred), "rows"), 0);
}

#[test]
fn what_a_product_reads_between_ends_a_group() {
    let names = forward([64, 64], |g, x| {
        let y = centred(g, x)?;
        let product = g.matmul(y, y)?;
        let most = g.reduce_max(y, &[1], true)?;
        g.sub(product, most)
    });
    assert_eq!(count(&names, "rows mean"), 1, "{names:#?}");
    assert!(names.len() > 2, "{names:#?}");
}

#[test]
fn rows_that_are_not_whole_words_are_computed_one_by_one() {
    let mut g = Graph::new();
    let x = g.input("x", Type::new(DType::F16, [80, 33])).unwrap();
    let y = centred(&mut g, x).unwrap();
    g.output("y", y).unwrap();
    let program = compile(&g, &CompileOptions::new(), &DeviceCaps::browser()).unwrap();
    assert_eq!(count(&names(&program), "rows"), 0);
}

#[test]
fn attention_backwards_multiplies_narrow_factors_where_there_are_matrices() {
    // Attention with so few scores is decomposed into matmuls and a softmax, and the scores are
    // stored in memory. One launch casts the four factors.
    for (caps, casts) in [(DeviceCaps::h200(), 0), (DeviceCaps::browser(), 1)] {
        let x = || Type::new(DType::BF16, [2, 4, 64, 64]);
        let p = backward(&caps, &[x(), x(), x()], 3, |g, v| {
            let options =
                tercet_ir::ops::AttentionOptions::new(4, 4, tercet_ir::ops::AttentionLayout::Bhsd);
            g.attention(v[0], v[1], v[2], options)
        });
        let names = names(&p);
        let widened = names.iter().filter(|n| n.starts_with("map cast bf16->f32"));
        assert_eq!(widened.count(), casts, "{names:#?}");
        let on_matrices = names
            .iter()
            .filter(|n| n.starts_with("gemm_coop") || n.starts_with("gemm_block"));
        assert_eq!(
            on_matrices.count(),
            if casts == 0 { 5 } else { 0 },
            "{names:#?}"
        );
    }
}

/// The gradients of attention with 2 x 4 heads of 64 elements.
fn attention_backward(dtype: DType, caps: &DeviceCaps, len: usize) -> GpuProgram {
    let x = || Type::new(dtype, [2, 4, len, 64]);
    backward(caps, &[x(), x(), x()], 3, |g, v| {
        let options =
            tercet_ir::ops::AttentionOptions::new(4, 4, tercet_ir::ops::AttentionLayout::Bhsd);
        g.attention(v[0], v[1], v[2], options)
    })
}

#[test]
fn attention_backwards_has_no_scores_without_matrices() {
    let len = 512;
    for (dtype, grads) in [
        (DType::F32, "attention_grad_vec4"),
        (DType::F16, "attention_grad_vec2"),
        (DType::BF16, "attention_grad_vec2"),
    ] {
        for caps in [DeviceCaps::browser(), DeviceCaps::apple()] {
            let p = attention_backward(dtype, &caps, len);
            let names = names(&p);
            assert_eq!(count(&names, "attention_lse_vec"), 1, "{names:#?}");
            // The gradients of queries, keys and values.
            assert_eq!(count(&names, grads), 3, "{names:#?}");
            assert_eq!(count(&names, "attention_grad_known"), 1, "{names:#?}");
            assert_eq!(count(&names, "gemm"), 0, "{names:#?}");
            let scores = (2 * 4 * len * len * dtype.size_bytes()) as u64;
            let largest = p.slots.iter().map(|slot| slot.bytes).max();
            assert!(
                largest.is_some_and(|n| 2 * n <= scores),
                "{largest:?} {scores}"
            );
        }
    }
}

#[test]
fn attention_backwards_has_no_scores_where_there_are_matrices() {
    let of = |dtype, caps: &DeviceCaps, len| names(&attention_backward(dtype, caps, len));
    // Queries, keys and values are split to F16 pairs in the forward pass. The backward pass splits
    // queries, keys and values once more, with the cotangents, for both gradient kernels.
    for (dtype, forward, pairs) in [
        (DType::F16, "attention_convert_lse_f16", 0),
        (DType::F32, "attention_halves_convert_lse_f32", 3 + 4),
    ] {
        let names = of(dtype, &DeviceCaps::h200(), 256);
        let count = |start: &str| names.iter().filter(|n| n.starts_with(start)).count();
        // The forward pass runs once and also stores the values that the gradients require.
        assert_eq!(count(forward), 1, "{names:#?}");
        assert_eq!(count("attention_split"), pairs, "{names:#?}");
        assert_eq!(count("attention_grad_queries_convert"), 1, "{names:#?}");
        assert_eq!(count("attention_grad_keys_convert"), 1, "{names:#?}");
        assert_eq!(count("gemm"), 0, "{names:#?}");
    }
    // With so few scores, the matrix of scores is multiplied.
    let names = of(DType::F32, &DeviceCaps::h200(), 64);
    assert_eq!(count(&names, "attention_grad"), 0, "{names:#?}");
}

#[test]
fn statistics_of_channels_are_sums_of_what_is_in_16_bits() {
    for caps in [DeviceCaps::browser(), DeviceCaps::h200()] {
        let x = Type::new(DType::F16, [8, 16, 14, 14]);
        let gain = || Type::new(DType::F32, [16]);
        let p = backward(&caps, &[x, gain(), gain()], 3, |g, v| {
            let normed = g.batch_statistics_norm(v[0], v[1], v[2], 1e-5)?;
            Ok(normed.y)
        });
        let names = names(&p);
        assert!(count(&names, "channels") >= 4, "{names:#?}");
        let of_channels = names.iter().filter(|n| n.starts_with("channels"));
        let leaves = of_channels.map(|n| n.split(' ').nth(6).unwrap_or_default());
        assert!(leaves.clone().all(|l| l.starts_with("f16")), "{names:#?}");
        assert_eq!(count(&names, "map cast f16->f32"), 0, "{names:#?}");
    }
}

//! Tests of matmuls with constant weights against f64 sums, with both weight layouts. The tests
//! cover every tiling of prepacked weights at row edges, and every tiling whose last columns use
//! split-K.
//!
//! On a device without F16 cooperative matrices, or with another fragment layout, the test prints
//! the reason and passes.

#![allow(clippy::unwrap_used, reason = "helper failures fail the test")]

mod common;

use common::{assert_silent, backend};
use tercet_ir::accuracy::{Accuracy, tolerance};
use tercet_ir::scalar::UnaryFn;
use tercet_ir::{CompileOptions, DType, Dim, Executable, Graph, Scheme, Tensor, TensorType, Type};
use tercet_plan::gemm_coop::{CoopGemmTiling, CoopScope};
use tercet_plan::{CoopType, GpuKind};
use tercet_vulkan::{GemmProblem, TuningTable, VulkanBackend};

/// Pseudo-random F16 numbers from -1 to 1.
fn numbers(shape: &[usize], seed: u32) -> (Tensor, Vec<f64>) {
    let len: usize = shape.iter().product();
    let values = (0..len as u32).map(|i| {
        let mixed = (i + seed).wrapping_mul(0x9e37_79b1);
        let mixed = (mixed ^ (mixed >> 15)).wrapping_mul(0x85eb_ca77);
        f64::from(mixed >> 22) / 512.0 - 1.0
    });
    let values: Vec<f64> = values.collect();
    let tensor = Tensor::from_f64s(TensorType::new(DType::F16, shape), &values);
    (tensor.unwrap(), values)
}

/// Checks one matmul of this size with this tiling. There is no epilogue if the weights are `[n,
/// k]`. The program's matmul kernels must be exactly the named ones.
fn check(
    backend: &VulkanBackend,
    tiling: &str,
    [m, n, k]: [usize; 3],
    f: Option<UnaryFn>,
    kernels: &[&str],
) {
    let is_transposed = f.is_none();
    let (x, a) = numbers(&[m, k], 1);
    let shape = if is_transposed { [n, k] } else { [k, n] };
    let (w, b) = numbers(&shape, 2 << 20);
    let (bias, c) = numbers(&[n], 3 << 20);

    let mut g = Graph::new();
    let rows = g.input("x", Type::new(DType::F16, [m, k])).unwrap();
    let shape = w.ty().shape.clone();
    let mut weights = g.param("w", Type::new(DType::F16, &shape[..])).unwrap();
    if is_transposed {
        weights = g.transpose(weights, &[1, 0]).unwrap();
    }
    let added = g.param("bias", Type::new(DType::F16, [n])).unwrap();
    let added = (!is_transposed).then_some(added);
    let y = g.linear(rows, weights, added, f).unwrap();
    g.output("y", y).unwrap();

    let backend = backend.tuned(TuningTable::always(tiling));
    let program = tercet_plan::compile(&g, &CompileOptions::new(), backend.caps()).unwrap();
    let names = program.kernels.iter().map(|k| k.name.split(' ').next());
    let names =
        names.filter(|k| k.is_some_and(|k| k.starts_with("gemm") || k.starts_with("sum_parts")));
    let names: Vec<&str> = names.flatten().collect();
    assert_eq!(names, kernels, "{tiling}: {program}");
    let mut exe = backend.compile_gpu(&g, &CompileOptions::new()).unwrap();
    let exe: &mut dyn Executable = &mut exe;
    exe.set_param("w", w).unwrap();
    exe.set_param("bias", bias).unwrap();
    let got = exe.run(&[("x", &x)]).unwrap()[0].to_f64s();

    let allowed = tolerance(Accuracy::Contraction, DType::F16);
    let of = |i: usize, j: usize| {
        let weight = |at: usize| match is_transposed {
            true => b[j * k + at],
            false => b[at * n + j],
        };
        let sum: f64 = (0..k).map(|at| a[i * k + at] * weight(at)).sum();
        match f {
            Some(f) => f.eval_f64(sum + c[j]),
            None => sum,
        }
    };
    let wanted: Vec<f64> = (0..m * n).map(|at| of(at / n, at % n)).collect();
    let scale = wanted.iter().map(|w| w.abs()).fold(1e-30, f64::max);
    for (at, (got, wanted)) in got.iter().zip(&wanted).enumerate() {
        let units = allowed.error_in_tolerances(*got, *wanted, scale);
        assert!(
            units <= 1.0,
            "{tiling} of {m}x{n}x{k}: [{at}] is {got}, not {wanted}"
        );
    }
}

#[test]
fn laid_out_weights_give_the_product() {
    let Some(backend) = backend() else {
        return;
    };
    let problem = GemmProblem {
        dtype: DType::F16,
        b_transposed: false,
        m: 128,
        n: 192,
        k: 128,
    };
    let all = CoopGemmTiling::prepacked_candidates(backend.caps(), CoopType::F16, &problem);
    if all.is_empty() {
        eprintln!(
            "ignored: {} does not have the expected fragment layout",
            backend.device().name
        );
        return;
    }
    for tiling in &all {
        for (m, f) in [
            (9, None),
            (107, Some(UnaryFn::Gelu)),
            (130, Some(UnaryFn::Relu)),
        ] {
            let name = tiling.to_string();
            check(backend, &name, [m, 192, 128], f, &["gemm_laid_f16"]);
        }
    }
    assert_silent(backend);
}

#[test]
fn last_columns_in_parts_give_the_product() {
    let Some(backend) = backend() else {
        return;
    };
    let all = CoopGemmTiling::candidates(backend.caps(), CoopType::F16).into_iter();
    let mut all: Vec<CoopGemmTiling> = all
        .filter(|t| t.scope == CoopScope::Subgroup && t.stages == 1)
        .collect();
    let mut cases = vec![(2, 3, None), (1, 2, Some(UnaryFn::Gelu))];
    // Software devices take ten seconds to compile each kernel.
    if backend.caps().device.kind == GpuKind::Software {
        all.sort_by_key(|t| t.tile[0] * t.tile[1]);
        all.truncate(1);
        cases.truncate(1);
    }
    if all.is_empty() {
        eprintln!(
            "ignored: {} has no such cooperative matrices",
            backend.device().name
        );
        return;
    }
    for tiling in &all {
        let [bm, bn, bk] = tiling.tile.map(|n| n as usize);
        for &(columns, splits, f) in &cases {
            let name = format!("{tiling}:tail{columns}x{splits}");
            let size = [bm + 3, 3 * bn + 8, 4 * splits * bk + 8];
            let kernels = ["gemm_coop_f16", "gemm_coop_f16", "sum_parts"];
            let kernels = match f {
                None => kernels,
                Some(_) => [kernels[0], kernels[1], "sum_parts_activated"],
            };
            check(backend, &name, size, f, &kernels);
        }
    }
    assert_silent(backend);
}

/// `f(norm(x) gate) * (norm(x) up)` times `down` with 16-bit weights. If `are_read`, the
/// intermediate matmul results are graph outputs too.
fn feed_forward(k: usize, are_read: bool) -> Graph {
    let mut g = Graph::new();
    let x = Type::new(DType::F32, [Dim::sym("m"), k.into()]);
    let x = g.input("x", x).unwrap();
    let gain = g.param("gain", Type::new(DType::F32, [k])).unwrap();
    let both = g.param("both", Type::new(DType::F16, [2 * k, k])).unwrap();
    let down = g.param("down", Type::new(DType::F16, [k, k])).unwrap();
    let rows = g.rms_norm(x, gain, None, 1e-5).unwrap();
    let sums = g.dequant_matmul(rows, both, Scheme::F16).unwrap();
    let [gate, up] = [0, k as i64].map(|at| {
        let half = g.slice_axis(sums, 1, at, at + k as i64, 1);
        half.unwrap()
    });
    let gate = g.silu(gate).unwrap();
    let gated = g.mul(gate, up).unwrap();
    let y = g.dequant_matmul(gated, down, Scheme::F16).unwrap();
    g.output("y", y).unwrap();
    if are_read {
        g.output("rows", rows).unwrap();
        g.output("gated", gated).unwrap();
    }
    g
}

#[test]
fn rows_that_are_made_rounded_give_the_bits_of_rows_rounded_after() {
    let Some(backend) = backend() else {
        return;
    };
    let (m, k) = (35, 128);
    let wide = |shape: &[usize], seed| {
        let (_, values) = numbers(shape, seed);
        Tensor::from_f64s(TensorType::new(DType::F32, shape), &values).unwrap()
    };
    let (x, gain) = (wide(&[m, k], 1), wide(&[k], 1 << 20));
    let (both, _) = numbers(&[2 * k, k], 2 << 20);
    let (down, _) = numbers(&[k, k], 3 << 20);
    let options = CompileOptions::new().bound("m", 40);
    let options = options.with_matmul_precision(Some(DType::F16));
    let [together, apart] = [false, true].map(|are_read| {
        let g = feed_forward(k, are_read);
        let mut exe = backend.compile_gpu(&g, &options).unwrap();
        let kernels = &exe.program().kernels;
        let is_there = |name: &str| kernels.iter().any(|k| k.name.starts_with(name));
        let found = ["gemm_coop", "norm_vectors_rounded", "matmul_narrow_rows"].map(is_there);
        let exe: &mut dyn Executable = &mut exe;
        for (name, value) in [("gain", &gain), ("both", &both), ("down", &down)] {
            exe.set_param(name, value.clone()).unwrap();
        }
        (exe.run(&[("x", &x)]).unwrap()[0].clone(), found)
    });
    assert_eq!(together.0.bytes(), apart.0.bytes());
    let has_matrices = apart.1[0];
    if has_matrices {
        assert_eq!(together.1, [true, true, false]);
        assert_eq!(apart.1, [true, false, true]);
    } else {
        eprintln!("{} has no such cooperative matrices", backend.device().name);
    }
    assert_silent(backend);
}

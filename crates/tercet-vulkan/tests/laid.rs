//! Products with constant weights that are laid out: every tiling of them against sums in f64, at edges of rows, with weights
//! that are stored either way.
//!
//! A device that does not have such matrices, or has their elements elsewhere, is passed over with a printed reason.

#![allow(clippy::unwrap_used, reason = "a test's helpers fail the test")]

mod common;

use common::{assert_silent, backend};
use tercet_ir::accuracy::{Accuracy, tolerance};
use tercet_ir::scalar::UnaryFn;
use tercet_ir::{CompileOptions, DType, Executable, Graph, Tensor, TensorType, Type};
use tercet_plan::CoopType;
use tercet_plan::gemm_coop::Tiling;
use tercet_vulkan::{GemmProblem, Tuning, VulkanBackend};

/// Numbers of F16 from -1 to 1 without a pattern.
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

fn check(backend: &VulkanBackend, tiling: &Tiling, m: usize, f: Option<UnaryFn>) {
    const N: usize = 192;
    const K: usize = 128;
    let is_transposed = f.is_none();
    let (x, a) = numbers(&[m, K], 1);
    let (w, b) = numbers(if is_transposed { &[N, K] } else { &[K, N] }, 2 << 20);
    let (bias, c) = numbers(&[N], 3 << 20);

    let mut g = Graph::new();
    let rows = g.input("x", Type::new(DType::F16, [m, K])).unwrap();
    let shape = w.ty().shape.clone();
    let mut weights = g.param("w", Type::new(DType::F16, &shape[..])).unwrap();
    if is_transposed {
        weights = g.transpose(weights, &[1, 0]).unwrap();
    }
    let added = g.param("bias", Type::new(DType::F16, [N])).unwrap();
    let added = (!is_transposed).then_some(added);
    let y = g.linear(rows, weights, added, f).unwrap();
    g.output("y", y).unwrap();

    let backend = backend.tuned(Tuning::always(&tiling.to_string()));
    let program = tercet_plan::compile(&g, &CompileOptions::new(), backend.caps()).unwrap();
    let is_laid = |k: &tercet_plan::Instance| k.name.starts_with("gemm_laid");
    assert!(program.kernels.iter().any(is_laid), "{tiling}: {program}");
    let mut exe = backend.compile_gpu(&g, &CompileOptions::new()).unwrap();
    let exe: &mut dyn Executable = &mut exe;
    exe.set_param("w", w).unwrap();
    exe.set_param("bias", bias).unwrap();
    let got = exe.run(&[("x", &x)]).unwrap()[0].to_f64s();

    let allowed = tolerance(Accuracy::Contraction, DType::F16);
    let of = |i: usize, j: usize| {
        let weight = |k: usize| match is_transposed {
            true => b[j * K + k],
            false => b[k * N + j],
        };
        let sum: f64 = (0..K).map(|k| a[i * K + k] * weight(k)).sum();
        match f {
            Some(f) => f.eval_f64(sum + c[j]),
            None => sum,
        }
    };
    let wanted: Vec<f64> = (0..m * N).map(|at| of(at / N, at % N)).collect();
    let scale = wanted.iter().map(|w| w.abs()).fold(1e-30, f64::max);
    for (at, (got, wanted)) in got.iter().zip(&wanted).enumerate() {
        let units = allowed.units(*got, *wanted, scale);
        assert!(
            units <= 1.0,
            "{tiling} of {m} rows: [{at}] is {got}, not {wanted}"
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
    let all = Tiling::laid_candidates(backend.caps(), CoopType::F16, &problem);
    if all.is_empty() {
        eprintln!("ignored: {} does not fill matrices", backend.device().name);
        return;
    }
    for tiling in &all {
        for (m, f) in [
            (9, None),
            (107, Some(UnaryFn::Gelu)),
            (130, Some(UnaryFn::Relu)),
        ] {
            check(backend, tiling, m, f);
        }
    }
    assert_silent(backend);
}

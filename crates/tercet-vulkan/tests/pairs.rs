//! Tests of split-F16 matmuls of F32 operands (each value as two F16) against f64 sums. The tests
//! cover transposed operands, edges, epilogues, batches, and values outside the split-F16 range.
//!
//! On a device without F16 cooperative matrices, the test prints the reason and passes.

#![allow(clippy::unwrap_used, reason = "helper failures fail the test")]

mod common;

use common::{assert_silent, backend};
use tercet_ir::accuracy::{Accuracy, tolerance};
use tercet_ir::scalar::UnaryFn;
use tercet_ir::{CompileOptions, DType, Executable, Graph, Tensor, TensorType, Type, Value};
use tercet_vulkan::{TuningTable, VulkanBackend};

/// Pseudo-random numbers from -1 to 1 that use all bits of F32.
fn numbers(len: usize, seed: u32) -> Vec<f64> {
    let values = (0..len as u32).map(|i| {
        let mixed = (i + seed).wrapping_mul(0x9e37_79b1);
        let mixed = (mixed ^ (mixed >> 15)).wrapping_mul(0x85eb_ca77);
        let mixed = (mixed ^ (mixed >> 13)).wrapping_mul(0xc2b2_ae3d);
        f64::from(f64::from(mixed) as f32 / 2.0f32.powi(31) - 1.0)
    });
    values.collect()
}

/// A matmul and the layouts of its operands.
struct Case {
    batch: usize,
    size: [usize; 3],
    a_turned: bool,
    b_turned: bool,
    f: Option<UnaryFn>,
}

const PLAIN: Case = Case {
    batch: 1,
    size: [70, 136, 200],
    a_turned: false,
    b_turned: false,
    f: None,
};

/// An operand of the graph; `turned` transposes its last two axes.
fn operand(g: &mut Graph, name: &str, [batch, rows, columns]: [usize; 3], turned: bool) -> Value {
    let lies = if turned {
        [columns, rows]
    } else {
        [rows, columns]
    };
    let shape = match batch {
        1 => lies.to_vec(),
        _ => vec![batch, lies[0], lies[1]],
    };
    let axes: &[usize] = if batch == 1 { &[1, 0] } else { &[0, 2, 1] };
    let value = g.input(name, Type::new(DType::F32, &shape[..])).unwrap();
    match turned {
        true => g.transpose(value, axes).unwrap(),
        false => value,
    }
}

/// The values `[batch, rows, columns]` as a tensor, transposed if `turned`.
fn tensor(values: &[f64], [batch, rows, columns]: [usize; 3], turned: bool) -> Tensor {
    let lies = if turned {
        [columns, rows]
    } else {
        [rows, columns]
    };
    let at = |i: usize| {
        let (entry, within) = (i / (rows * columns), i % (rows * columns));
        let (line, place) = (within / lies[1], within % lies[1]);
        let (row, column) = if turned { (place, line) } else { (line, place) };
        values[(entry * rows + row) * columns + column]
    };
    let lying: Vec<f64> = (0..values.len()).map(at).collect();
    let shape = match batch {
        1 => lies.to_vec(),
        _ => vec![batch, lies[0], lies[1]],
    };
    Tensor::from_f64s(TensorType::new(DType::F32, &shape), &lying).unwrap()
}

/// Multiplies the values on the device with split-F16 and compares the result with f64 sums.
fn check(backend: &VulkanBackend, c: &Case, a: &[f64], b: &[f64]) {
    let [m, n, k] = c.size;
    let mut g = Graph::new();
    let x = operand(&mut g, "a", [c.batch, m, k], c.a_turned);
    let w = operand(&mut g, "b", [c.batch, k, n], c.b_turned);
    let added = numbers(n, 9 << 20);
    let y = match c.f {
        None => g.matmul(x, w).unwrap(),
        Some(_) => {
            let bias = g.input("bias", Type::new(DType::F32, [n])).unwrap();
            g.linear(x, w, Some(bias), c.f).unwrap()
        }
    };
    g.output("y", y).unwrap();
    let backend = backend.tuned(TuningTable::always("pairs"));
    let mut exe = backend.compile_gpu(&g, &CompileOptions::new()).unwrap();
    let kernels = &exe.program().kernels;
    let has = |name: &str| kernels.iter().any(|k| k.name.starts_with(name));
    assert!(
        has("gemm_pairs_f32") && has("gemm_rest"),
        "{}",
        exe.program()
    );
    let exe: &mut dyn Executable = &mut exe;
    let operands = [
        ("a", tensor(a, [c.batch, m, k], c.a_turned)),
        ("b", tensor(b, [c.batch, k, n], c.b_turned)),
        (
            "bias",
            tensor(&added, [1, 1, n], false).reshaped(&[n]).unwrap(),
        ),
    ];
    let given = operands
        .iter()
        .filter(|(name, _)| c.f.is_some() || *name != "bias");
    let given: Vec<_> = given.map(|(name, tensor)| (*name, tensor)).collect();
    let got = exe.run(&given).unwrap()[0].to_f64s();
    let sum = |at: usize| {
        let (z, i, j) = (at / (m * n), at / n % m, at % n);
        let terms = (0..k).map(|s| a[(z * m + i) * k + s] * b[(z * k + s) * n + j]);
        let sum: f64 = terms.sum();
        c.f.map_or(sum, |f| f.eval_f64(sum + added[j]))
    };
    let wanted: Vec<f64> = (0..c.batch * m * n).map(sum).collect();
    // Compare each row with its own tolerance, because the magnitudes of rows may differ much.
    let allowed = tolerance(Accuracy::Contraction, DType::F32);
    for (row, (got, wanted)) in got.chunks(n).zip(wanted.chunks(n)).enumerate() {
        let finite = wanted.iter().filter(|w| w.is_finite());
        let scale = finite.fold(1e-30, |s: f64, w| s.max(w.abs()));
        for (j, (got, wanted)) in got.iter().zip(wanted).enumerate() {
            let units = allowed.error_in_tolerances(*got, *wanted, scale);
            assert!(units <= 1.0, "[{row}, {j}] is {got}, not {wanted}");
        }
    }
}

fn able() -> Option<&'static VulkanBackend> {
    let backend = backend()?;
    let has = backend.caps().coop_matmul_dtypes().contains(&DType::F16);
    if !has {
        eprintln!(
            "ignored: {} has no such cooperative matrices",
            backend.device().name
        );
    }
    has.then_some(backend)
}

fn operands(c: &Case) -> [Vec<f64>; 2] {
    let [m, n, k] = c.size;
    [
        numbers(c.batch * m * k, 1),
        numbers(c.batch * k * n, 2 << 20),
    ]
}

#[test]
fn pairs_give_the_product_however_operands_lie() {
    let Some(backend) = able() else {
        return;
    };
    for (a_turned, b_turned, f) in [
        (false, false, Some(UnaryFn::Gelu)),
        (false, true, None),
        (true, false, None),
    ] {
        let c = Case {
            a_turned,
            b_turned,
            f,
            ..PLAIN
        };
        let [a, b] = operands(&c);
        check(backend, &c, &a, &b);
    }
    let c = Case {
        batch: 3,
        size: [65, 72, 64],
        ..PLAIN
    };
    let [a, b] = operands(&c);
    check(backend, &c, &a, &b);
    assert_silent(backend);
}

#[test]
fn what_pairs_do_not_hold_is_left_to_f32() {
    let Some(backend) = able() else {
        return;
    };
    let [m, n, k] = PLAIN.size;
    let [a, b] = operands(&PLAIN);
    let scaled = |of: &[f64], width: usize, by: &dyn Fn(usize, usize) -> f64| {
        let scaled = of.iter().enumerate();
        let scaled = scaled.map(|(i, x)| f64::from((x * by(i / width, i % width)) as f32));
        scaled.collect::<Vec<f64>>()
    };
    let tiny = 2.0f64.powi(-30);
    // Scale factors: small rows, small columns, a small and a large matrix, alternating elements,
    // zero rows, and one NaN.
    let cases: [&dyn Fn(usize, usize) -> f64; 7] = [
        &|row, _| if row % 3 == 0 { tiny } else { 1.0 },
        &|_, column| if column % 3 == 0 { tiny } else { 1.0 },
        &|_, _| 2.0f64.powi(-60),
        &|_, _| 2.0f64.powi(50),
        &|row, column| if (row + column) % 2 == 0 { tiny } else { 1.0 },
        &|row, _| if row < 5 { 0.0 } else { 1.0 },
        &|row, column| {
            if [row, column] == [3, 7] {
                f64::NAN
            } else {
                1.0
            }
        },
    ];
    for by in cases {
        check(backend, &PLAIN, &scaled(&a, k, by), &b);
    }
    let infinite = |row, column| match [row, column] {
        [66, 130] => f64::INFINITY,
        _ => 1.0,
    };
    check(backend, &PLAIN, &a, &scaled(&b, n, &infinite));
    assert_eq!(a.len(), m * k);
    assert_silent(backend);
}

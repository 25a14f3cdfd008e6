//! GEMM compared with plain loops in f64, at every SIMD level of the machine.
#![allow(clippy::unwrap_used, reason = "tests")]

use tercet_cpu::kernels::gemm::{self, GemmActivation, GemmEpilogue, MatView, PackedB};
use tercet_cpu::kernels::{KernelThreads, SimdLevel};

/// Random values in [-1, 1) from a small generator.
fn noise(len: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(1);
    (0..len)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        })
        .collect()
}

fn activate(activation: GemmActivation, x: f64) -> f64 {
    match activation {
        GemmActivation::None => x,
        GemmActivation::Relu => x.max(0.0),
        GemmActivation::Relu6 => x.clamp(0.0, 6.0),
        GemmActivation::Gelu => x * normal_cdf(x),
        GemmActivation::GeluTanh => {
            0.5 * x * (1.0 + (0.797_884_560_802_865_4 * (x + 0.044715 * x * x * x)).tanh())
        }
        GemmActivation::Silu => x / (1.0 + (-x).exp()),
        GemmActivation::Sigmoid => 1.0 / (1.0 + (-x).exp()),
        GemmActivation::Tanh => x.tanh(),
    }
}

/// Normal CDF by its series; the arguments in these tests are small.
fn normal_cdf(x: f64) -> f64 {
    if x.abs() > 9.0 {
        return f64::from(x > 0.0);
    }
    let (mut term, mut sum, mut i) = (x, x, 1.0);
    while term.abs() > 1e-18 * sum.abs() && i < 400.0 {
        term *= x * x / (2.0 * i + 1.0);
        sum += term;
        i += 1.0;
    }
    (0.5 + sum * (-0.5 * x * x).exp() / (2.0 * std::f64::consts::PI).sqrt()).clamp(0.0, 1.0)
}

struct Case {
    m: usize,
    n: usize,
    k: usize,
    a_transposed: bool,
    /// Stride between the rows of a transposed A.
    a_apart: usize,
    b_transposed: bool,
    activation: GemmActivation,
    bias: bool,
    residual: bool,
}

/// Whether a transposed A is packed (which needs scratch memory) or read in place.
#[derive(Clone, Copy)]
enum Across {
    Copied,
    InPlace,
}

fn check(case: &Case, level: SimdLevel, threads: KernelThreads, across: Across) -> Vec<f32> {
    let &Case { m, n, k, .. } = case;
    let (a_data, b_data) = (noise(m * k * case.a_apart, 1), noise(k * n, 2));
    let a = if case.a_transposed {
        MatView {
            data: &a_data,
            rows: m,
            cols: k,
            row_stride: case.a_apart,
            col_stride: m * case.a_apart,
        }
    } else {
        MatView::row_major(&a_data, m, k)
    };
    let b = if case.b_transposed {
        MatView::row_major(&b_data, n, k).transposed()
    } else {
        MatView::row_major(&b_data, k, n)
    };
    let (bias, residual) = (noise(n, 3), noise(m * n, 4));
    let epilogue = GemmEpilogue {
        bias: case.bias.then_some(&bias[..]),
        activation: case.activation,
        residual: case.residual.then(|| MatView::row_major(&residual, m, n)),
        after: GemmActivation::None,
    };
    let stride = n + 3;
    let mut c = vec![7.0; m * stride];
    let copied = gemm::gemm_packed_scratch_len(level, threads.count(), [m, n, k], a.col_stride);
    let packed = gemm::gemm_scratch_len(level, threads, m, n, k);
    let mut scratch = match across {
        Across::Copied => vec![0.0; packed + copied],
        Across::InPlace => vec![0.0; packed],
    };
    gemm::gemm(
        level,
        threads,
        a,
        b,
        &mut c,
        stride,
        &epilogue,
        &mut scratch,
    );
    for i in 0..m {
        for j in 0..n {
            let mut sum = 0f64;
            for p in 0..k {
                let x = a.data[i * a.row_stride + p * a.col_stride];
                let y = b.data[p * b.row_stride + j * b.col_stride];
                sum += f64::from(x) * f64::from(y);
            }
            if case.bias {
                sum += f64::from(bias[j]);
            }
            let mut want = activate(case.activation, sum);
            if case.residual {
                want += f64::from(residual[i * n + j]);
            }
            let got = f64::from(c[i * stride + j]);
            let tolerance = 1e-6 * (k as f64 + 4.0);
            assert!(
                (got - want).abs() <= tolerance,
                "{m}x{n}x{k} at {}: c[{i},{j}] is {got}, want {want}",
                level.name()
            );
        }
        assert!(
            c[i * stride + n..(i + 1) * stride]
                .iter()
                .all(|x| *x == 7.0),
            "the kernel wrote past a row"
        );
    }
    c
}

#[test]
fn products_agree_with_f64() {
    let shapes = [
        (0, 5, 3),
        (5, 0, 3),
        (4, 7, 0),
        (1, 1, 1),
        (1, 33, 17),
        (3, 70, 65),
        (13, 31, 5),
        (14, 32, 4),
        (15, 47, 33),
        (29, 64, 1000),
        (128, 50, 96),
        (65, 129, 257),
        (300, 40, 20),
        (7, 9, 512),
        (70, 100, 1100),
    ];
    let activations = [
        GemmActivation::None,
        GemmActivation::Relu,
        GemmActivation::Gelu,
        GemmActivation::GeluTanh,
        GemmActivation::Silu,
        GemmActivation::Sigmoid,
        GemmActivation::Tanh,
    ];
    for &level in SimdLevel::available() {
        for (i, &(m, n, k)) in shapes.iter().enumerate() {
            for flags in 0..4 {
                let case = Case {
                    m,
                    n,
                    k,
                    a_transposed: flags & 1 != 0,
                    a_apart: 1 + i % 2,
                    b_transposed: flags & 2 != 0,
                    activation: activations[(i + flags) % activations.len()],
                    bias: (i + flags) % 2 == 0,
                    residual: (i + flags) % 3 == 0,
                };
                let serial = check(&case, level, KernelThreads::Serial, Across::Copied);
                let pool = check(&case, level, KernelThreads::Pool, Across::Copied);
                assert_eq!(serial, pool, "the result depends on the number of threads");
                let in_place = check(&case, level, KernelThreads::Pool, Across::InPlace);
                assert_eq!(serial, in_place, "the result depends on packing A");
            }
        }
    }
}

#[test]
fn packed_weights_are_reusable() {
    // In the second size, a single row of A is multiplied with several panels at once, then with
    // the remaining panels, in two chains over k.
    for (&level, (k, n)) in SimdLevel::available()
        .iter()
        .flat_map(|level| [(40, 50), (700, 245)].map(|size| (level, size)))
    {
        let weights = noise(k * n, 5);
        let mut packed = vec![0.0; gemm::packed_b_len(level, k, n)];
        gemm::pack_b(
            level,
            KernelThreads::Pool,
            MatView::row_major(&weights, n, k).transposed(),
            &mut packed,
        );
        for m in [1, 2, 20] {
            let a = noise(m * k, 6);
            let mut c = vec![0.0; m * n];
            let b = PackedB::new(level, &packed, k, n);
            let a_view = MatView::row_major(&a, m, k);
            gemm::gemm_packed(
                level,
                KernelThreads::Pool,
                a_view,
                b,
                &mut c,
                n,
                &GemmEpilogue::NONE,
                &mut [],
            );
            for i in 0..m {
                for j in 0..n {
                    let want: f64 = (0..k)
                        .map(|p| f64::from(a[i * k + p]) * f64::from(weights[j * k + p]))
                        .sum();
                    assert!((f64::from(c[i * n + j]) - want).abs() < 2e-7 * (k as f64 + 10.0));
                }
            }
        }
    }
}

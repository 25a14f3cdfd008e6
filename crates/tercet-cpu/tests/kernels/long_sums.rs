//! Sums of thousands of products, at every SIMD level of the machine. For every kernel, the error
//! stays within a fraction of the tolerance.
#![allow(clippy::unwrap_used, reason = "tests")]

use tercet_cpu::kernels::attention::{
    AttentionArgs, AttentionKeyMask, HeadsView, HeadsViewMut, attention, attention_scratch_len,
};
use tercet_cpu::kernels::conv::{ConvShape, ConvWeights, ConvWindowAxes, conv, conv_scratch_len};
use tercet_cpu::kernels::gemm::{self, GemmActivation, GemmEpilogue, MatView};
use tercet_cpu::kernels::quant::{
    QuantRowLayout, QuantView, quant_matmul, quant_matmul_scratch_len,
};
use tercet_cpu::kernels::{KernelThreads, SimdLevel};
use tercet_ir::accuracy::{Accuracy, tolerance};
use tercet_ir::{DType, Scheme};

/// Products per sum, or keys; not a multiple of any kernel's block.
const K: usize = 12_136;
/// Number of columns.
const N: usize = 53;
/// Maximum error as a fraction of the tolerance. A single chain over all products would have an
/// error of 0.7 to 2.7.
const MAX_ERROR_IN_TOLERANCES: f64 = 0.4;

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

/// Maximum error of `[m, N]`, in units of the tolerance.
fn furthest(got: &[f32], want: &[f64]) -> f64 {
    let allowed = tolerance(Accuracy::Contraction, DType::F32);
    let scale = want.iter().fold(0f64, |most, x| most.max(x.abs()));
    let units = got
        .iter()
        .zip(want)
        .map(|(got, want)| allowed.error_in_tolerances(f64::from(*got), *want, scale));
    units.fold(0.0, f64::max)
}

/// Computes `x [m, K]` times `w [N, K]` in f64.
fn product(x: &[f32], w: &[f32]) -> Vec<f64> {
    let dot = |x: &[f32], w: &[f32]| {
        x.iter()
            .zip(w)
            .map(|(x, w)| f64::from(*x) * f64::from(*w))
            .sum()
    };
    x.chunks_exact(K)
        .flat_map(|x| w.chunks_exact(K).map(move |w| dot(x, w)))
        .collect()
}

/// Transposes `[rows, cols]` to `[cols, rows]`.
fn transposed(x: &[f32], cols: usize) -> Vec<f32> {
    let rows = x.len() / cols;
    (0..x.len())
        .map(|i| x[i % rows * cols + i / rows])
        .collect()
}

/// Kernel that computes a product.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// The kernel gets both operands unpacked, `[m, K]` and `[N, K]`.
    Dots,
    /// Left-hand side `[K, m]`.
    StridedDots,
    /// Right-hand side `[K, N]`.
    Rows,
    /// The kernel gets the right-hand side as packed panels.
    Packed,
    /// The kernel gets the right-hand side `[N, K]` in BF16.
    Halves,
    /// The kernel is a 1x1 convolution whose weights are the left-hand side.
    Pointwise,
}

const WAYS: [Way; 6] = [
    Way::Dots,
    Way::StridedDots,
    Way::Rows,
    Way::Packed,
    Way::Halves,
    Way::Pointwise,
];

fn run(way: Way, level: SimdLevel, m: usize, x: &[f32], w: &[f32]) -> Vec<f32> {
    let threads = KernelThreads::Serial;
    let mut y = vec![0.0; m * N];
    let (xt, wt) = (transposed(x, K), transposed(w, K));
    let rows = MatView::row_major(x, m, K);
    let right = MatView::row_major(w, N, K).transposed();
    let mut scratch = vec![0.0; gemm::gemm_scratch_len(level, threads, m, N, K)];
    let mut multiply = |a, b| {
        gemm::gemm(
            level,
            threads,
            a,
            b,
            &mut y,
            N,
            &GemmEpilogue::NONE,
            &mut scratch,
        )
    };
    match way {
        Way::Dots => multiply(rows, right),
        Way::StridedDots => multiply(MatView::row_major(&xt, K, m).transposed(), right),
        Way::Rows => multiply(rows, MatView::row_major(&wt, K, N)),
        Way::Packed => {
            let mut packed = vec![0.0; gemm::packed_b_len(level, K, N)];
            gemm::pack_b(level, threads, right, &mut packed);
            let packed = gemm::PackedB::new(level, &packed, K, N);
            gemm::gemm_packed(
                level,
                threads,
                rows,
                packed,
                &mut y,
                N,
                &GemmEpilogue::NONE,
                &mut [],
            );
        }
        Way::Halves => halves(level, rows, w, &mut y),
        Way::Pointwise => pointwise(level, m, x, &wt, &mut y),
    }
    y
}

/// Computes `x [m, K]` times `w [N, K]`, with weights exact in BF16.
fn halves(level: SimdLevel, x: MatView<'_>, w: &[f32], y: &mut [f32]) {
    let bytes: Vec<u8> = w
        .iter()
        .flat_map(|w| ((w.to_bits() >> 16) as u16).to_le_bytes())
        .collect();
    let view = QuantView {
        scheme: Scheme::BF16,
        bytes: &bytes,
        n: N,
        k: K,
        arrangement: QuantRowLayout::Rows,
    };
    let mut scratch = vec![0.0; quant_matmul_scratch_len(level, KernelThreads::Serial, x.rows, K)];
    quant_matmul(
        level,
        KernelThreads::Serial,
        x,
        view,
        y,
        N,
        &GemmEpilogue::NONE,
        &mut scratch,
    );
}

/// Computes `w [m, K]` times `x [K, N]`.
fn pointwise(level: SimdLevel, m: usize, w: &[f32], x: &[f32], y: &mut [f32]) {
    let windows = ConvWindowAxes {
        sizes: [1, 1, N],
        kernel: [1; 3],
        out: [1, 1, N],
        stride: [1; 3],
        dilation: [1; 3],
        pad: [0; 3],
    };
    let shape = ConvShape {
        windows,
        batch: 1,
        groups: 1,
        channels: K,
        m,
    };
    let mut scratch = vec![0.0; conv_scratch_len(level, 1, &shape)];
    conv(
        level,
        KernelThreads::Serial,
        &shape,
        x,
        ConvWeights::Plain(w),
        None,
        GemmActivation::None,
        y,
        &mut scratch,
    );
}

#[test]
fn products_keep_within_the_tolerance() {
    // The right-hand side, rounded to values that BF16 represents exactly.
    let w: Vec<f32> = noise(N * K, 2)
        .iter()
        .map(|w| f32::from_bits(w.to_bits() & 0xFFFF_0000))
        .collect();
    for m in [1, 5, 8, 13] {
        let x = noise(m * K, 1);
        let want = product(&x, &w);
        for &level in SimdLevel::available() {
            for way in WAYS {
                let units = furthest(&run(way, level, m, &x, &w), &want);
                assert!(
                    units < MAX_ERROR_IN_TOLERANCES,
                    "{way:?} of {m} rows at {}: {units}",
                    level.name()
                );
            }
        }
    }
}

#[test]
fn attention_over_many_keys_does_too() {
    let (dk, dv) = (16, N);
    for rows in [1, 3, 9] {
        let (q, k, v) = (noise(rows * dk, 1), noise(K * dk, 2), noise(K * dv, 3));
        let a = AttentionArgs {
            batch: 1,
            q_heads: rows,
            kv_heads: 1,
            q_len: 1,
            kv_lens: &[K],
            dk,
            dv,
            scale: 1.0,
            softcap: None,
            mask: AttentionKeyMask::None,
        };
        let mut want = Vec::new();
        for q in q.chunks_exact(dk) {
            let scores: Vec<f64> = k
                .chunks_exact(dk)
                .map(|k| {
                    q.iter()
                        .zip(k)
                        .map(|(q, k)| f64::from(*q) * f64::from(*k))
                        .sum::<f64>()
                        .exp()
                })
                .collect();
            let sum: f64 = scores.iter().sum();
            want.extend((0..dv).map(|c| {
                scores
                    .iter()
                    .zip(v.chunks_exact(dv))
                    .map(|(s, v)| s * f64::from(v[c]))
                    .sum::<f64>()
                    / sum
            }));
        }
        for &level in SimdLevel::available() {
            let mut scratch = vec![0.0; attention_scratch_len(level, KernelThreads::Serial, &a)];
            let mut out = vec![0.0; rows * dv];
            attention(
                level,
                KernelThreads::Serial,
                &a,
                HeadsView {
                    data: &q,
                    strides: [0, dk, dk],
                },
                HeadsView {
                    data: &k,
                    strides: [0, 0, dk],
                },
                HeadsView {
                    data: &v,
                    strides: [0, 0, dv],
                },
                HeadsViewMut {
                    data: &mut out,
                    strides: [0, dv, dv],
                },
                &mut scratch,
            );
            let units = furthest(&out, &want);
            assert!(
                units < MAX_ERROR_IN_TOLERANCES,
                "{rows} rows at {}: {units}",
                level.name()
            );
        }
    }
}

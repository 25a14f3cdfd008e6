//! Benchmarks that compare single CPU kernels with the same operation of another library.
//!
//! `cargo xtask bench cpu` parses the names: `group/name` for a kernel of Tercet,
//! `group/name/peer-NAME` for another library. Throughput counts floating-point operations as
//! elements, or the bytes of weights if reading them limits the speed. Tercet's kernels and the
//! other libraries each use as many threads as `RAYON_NUM_THREADS` says.
#![allow(missing_docs, reason = "criterion's macros make public items")]

use std::time::Duration;

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion, Throughput, criterion_group, criterion_main};
use tercet_cpu::kernels::attention::{
    AttentionArgs, AttentionKeyMask, HeadsView, HeadsViewMut, attention, attention_scratch_len,
};
use tercet_cpu::kernels::gemm::{
    GemmEpilogue, MatView, PackedB, gemm, gemm_packed, gemm_scratch_len, pack_b, packed_b_len,
};
use tercet_cpu::kernels::quant::{
    QuantRowLayout, QuantView, quant_matmul, quant_matmul_scratch_len,
};
use tercet_cpu::kernels::{KernelThreads, SimdLevel, vmath};
use tercet_ir::Scheme;

/// GEMM sizes `m, k, n`: a square product, those of a sentence encoder, and products with few rows.
const GEMM_SHAPES: [[usize; 3]; 8] = [
    [1024, 1024, 1024],
    [128, 384, 384],
    [128, 384, 1536],
    [128, 1536, 384],
    [4096, 384, 1536],
    [16, 384, 1536],
    [8, 4096, 4096],
    [1, 4096, 4096],
];
const SCHEMES: [Scheme; 7] = [
    Scheme::F16,
    Scheme::BF16,
    Scheme::Q8_0,
    Scheme::Q4_0,
    Scheme::Q4K,
    Scheme::Q5K,
    Scheme::Q6K,
];
/// Sizes per case: batch, query heads, key heads, queries, keys, elements per head.
const ATTENTION_SHAPES: [[usize; 6]; 4] = [
    [1, 12, 12, 128, 128, 32],
    [8, 12, 12, 128, 128, 64],
    [1, 16, 16, 1024, 1024, 64],
    [1, 32, 8, 1, 2048, 128],
];

fn noise(len: usize) -> Vec<f32> {
    (0..len)
        .map(|i| (i * 7919 % 1000) as f32 / 1000.0 - 0.5)
        .collect()
}

fn group<'a>(c: &'a mut Criterion, name: &str) -> BenchmarkGroup<'a, WallTime> {
    let mut group = c.benchmark_group(name);
    group.sample_size(20);
    group.warm_up_time(Duration::from_millis(300));
    group.measurement_time(Duration::from_secs(1));
    group
}

fn gemm_f32(c: &mut Criterion) {
    let (level, threads) = (SimdLevel::detect(), KernelThreads::Pool);
    let mut group = group(c, "gemm");
    for [m, k, n] in GEMM_SHAPES {
        let (a, b) = (noise(m * k), noise(k * n));
        let mut out = vec![0.0; m * n];
        let (a_view, b_view) = (MatView::row_major(&a, m, k), MatView::row_major(&b, k, n));
        let mut packed = vec![0.0; packed_b_len(level, k, n)];
        pack_b(level, threads, b_view, &mut packed);
        let packed = PackedB::new(level, &packed, k, n);
        let mut scratch = vec![0.0; gemm_scratch_len(level, threads, m, n, k)];
        let none = &GemmEpilogue::NONE;
        let name = format!("{m}x{k}x{n}");
        group.throughput(Throughput::Elements(2 * (m * k * n) as u64));
        group.bench_function(&name, |bench| {
            bench.iter(|| gemm_packed(level, threads, a_view, packed, &mut out, n, none, &mut []));
        });
        group.bench_function(format!("{name}-unpacked"), |bench| {
            bench.iter(|| {
                gemm(
                    level,
                    threads,
                    a_view,
                    b_view,
                    &mut out,
                    n,
                    none,
                    &mut scratch,
                )
            });
        });
        peers(&mut group, &name, [m, k, n], &a, &b, &mut out);
    }
    group.finish();
}

fn peers(
    group: &mut BenchmarkGroup<'_, WallTime>,
    name: &str,
    [m, k, n]: [usize; 3],
    a: &[f32],
    b: &[f32],
    out: &mut [f32],
) {
    use faer::linalg::matmul::matmul;
    let workers = rayon::current_num_threads();
    let par = if workers == 1 {
        faer::Par::Seq
    } else {
        faer::Par::rayon(workers)
    };
    group.bench_function(format!("{name}/peer-faer"), |bench| {
        let (a, b) = (
            faer::MatRef::from_row_major_slice(a, m, k),
            faer::MatRef::from_row_major_slice(b, k, n),
        );
        bench.iter(|| {
            let out = faer::MatMut::from_row_major_slice_mut(out, m, n);
            matmul(out, faer::Accum::Replace, a, b, 1f32, par);
        });
    });
    let par = if workers == 1 {
        gemmkit::Parallelism::Serial
    } else {
        gemmkit::Parallelism::Rayon(workers)
    };
    group.bench_function(format!("{name}/peer-gemmkit"), |bench| {
        let (a, b) = (
            gemmkit::MatRef::from_row_major(a, m, k),
            gemmkit::MatRef::from_row_major(b, k, n),
        );
        bench.iter(|| {
            let out = gemmkit::MatMut::from_row_major(out, m, n);
            gemmkit::gemm(1.0, a, b, 0.0, out, par);
        });
    });
    peer_gemm(group, name, [m, k, n], a, b, out);
}

#[allow(unsafe_code, reason = "the peer's interface takes pointers")]
fn peer_gemm(
    group: &mut BenchmarkGroup<'_, WallTime>,
    name: &str,
    [m, k, n]: [usize; 3],
    a: &[f32],
    b: &[f32],
    out: &mut [f32],
) {
    let workers = rayon::current_num_threads();
    let par = if workers == 1 {
        ::gemm::Parallelism::None
    } else {
        ::gemm::Parallelism::Rayon(workers)
    };
    let (k_stride, n_stride) = (k as isize, n as isize);
    group.bench_function(format!("{name}/peer-gemm"), |bench| {
        bench.iter(|| {
            let (a, b, c) = (a.as_ptr(), b.as_ptr(), out.as_mut_ptr());
            // SAFETY: the slices contain row-major matrices of m x k, k x n and m x n elements.
            unsafe {
                ::gemm::gemm(
                    m, n, k, c, 1, n_stride, false, a, 1, k_stride, b, 1, n_stride, 0.0, 1.0,
                    false, false, false, par,
                );
            }
        });
    });
}

fn quantised(c: &mut Criterion) {
    let (level, threads) = (SimdLevel::detect(), KernelThreads::Pool);
    let mut group = group(c, "quant");
    let (n, k) = (4096, 4096);
    for m in [1, 4, 128] {
        let x = noise(m * k);
        let mut y = vec![0.0; m * n];
        for scheme in SCHEMES {
            let bytes = vec![17u8; n * k / scheme.block_len() * scheme.block_bytes()];
            let weights = QuantView {
                scheme,
                bytes: &bytes,
                n,
                k,
                arrangement: QuantRowLayout::Rows,
            };
            let mut scratch = vec![0.0; quant_matmul_scratch_len(level, threads, m, k)];
            group.throughput(if m == 128 {
                Throughput::Elements(2 * (m * n * k) as u64)
            } else {
                Throughput::Bytes(bytes.len() as u64)
            });
            group.bench_function(format!("{scheme:?}-{m}x{k}x{n}"), |bench| {
                bench.iter(|| {
                    let (x, none) = (MatView::row_major(&x, m, k), &GemmEpilogue::NONE);
                    quant_matmul(level, threads, x, weights, &mut y, n, none, &mut scratch);
                });
            });
        }
    }
    let src = vec![0u8; 64 << 20];
    let mut dst = src.clone();
    group.throughput(Throughput::Bytes(2 * src.len() as u64));
    group.bench_function("copy-64MiB", |bench| {
        bench.iter(|| dst.copy_from_slice(&src));
    });
    group.finish();
}

fn attentions(c: &mut Criterion) {
    let (level, threads) = (SimdLevel::detect(), KernelThreads::Pool);
    let mut group = group(c, "attention");
    for [batch, q_heads, kv_heads, q_len, kv_len, dim] in ATTENTION_SHAPES {
        let q = noise(batch * q_heads * q_len * dim);
        let kv = noise(batch * kv_heads * kv_len * dim);
        let mut out = vec![0.0; q.len()];
        let a = AttentionArgs {
            batch,
            q_heads,
            kv_heads,
            q_len,
            kv_lens: &[kv_len],
            dk: dim,
            dv: dim,
            scale: 1.0 / (dim as f32).sqrt(),
            softcap: None,
            mask: AttentionKeyMask::None,
        };
        let mut scratch = vec![0.0; attention_scratch_len(level, threads, &a)];
        let q_strides = [q_heads * q_len * dim, dim, q_heads * dim];
        let kv = HeadsView {
            data: &kv,
            strides: [kv_heads * kv_len * dim, dim, kv_heads * dim],
        };
        group.throughput(Throughput::Elements(
            4 * (batch * q_heads * q_len * kv_len * dim) as u64,
        ));
        let name = format!("b{batch}_h{q_heads}x{kv_heads}_q{q_len}_k{kv_len}_d{dim}");
        group.bench_function(name, |bench| {
            bench.iter(|| {
                let q = HeadsView {
                    data: &q,
                    strides: q_strides,
                };
                let out = HeadsViewMut {
                    data: &mut out,
                    strides: q_strides,
                };
                attention(level, threads, &a, q, kv, kv, out, &mut scratch);
            });
        });
    }
    group.finish();
}

fn functions(c: &mut Criterion) {
    let level = SimdLevel::detect();
    let mut group = group(c, "vmath");
    let x: Vec<f32> = noise(16 << 10).iter().map(|x| 8.0 * x).collect();
    let mut out = vec![0.0; x.len()];
    group.throughput(Throughput::Bytes(8 * x.len() as u64));
    group.bench_function("exp", |b| b.iter(|| vmath::exp(level, &x, &mut out)));
    group.bench_function("gelu", |b| b.iter(|| vmath::gelu(level, &x, &mut out)));
    group.bench_function("silu", |b| b.iter(|| vmath::silu(level, &x, &mut out)));
    group.finish();
}

criterion_group!(benches, gemm_f32, quantised, attentions, functions);
criterion_main!(benches);

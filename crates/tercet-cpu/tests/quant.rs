//! Quantised products against the dequantised weights in f64.
#![allow(clippy::unwrap_used, reason = "tests")]

use tercet_cpu::kernels::gemm::{Activation, Epilogue, MatView};
use tercet_cpu::kernels::quant::{QuantView, quant_matmul, quant_matmul_scratch_len};
use tercet_cpu::kernels::{SimdLevel, Threads};
use tercet_ir::case::Fill;
use tercet_ir::{Scheme, TensorType};

/// Random codes with scales that keep weights below about 1.
fn blocks(scheme: Scheme, count: usize) -> Vec<u8> {
    let stored = count * scheme.block_bytes() / scheme.storage().size_bytes();
    let ty = TensorType::new(scheme.storage(), &[stored]);
    Fill::Blocks(scheme).tensor("blocks", ty).bytes().to_vec()
}

#[test]
fn products_from_blocks_agree_with_f64() {
    for &scheme in Scheme::ALL {
        let ks: &[usize] = if scheme.block_len() == 1 {
            &[0, 1, 67, 256]
        } else {
            &[0, 256, 512]
        };
        for &k in ks {
            for (m, n) in [(0, 3), (1, 0), (1, 1), (1, 37), (3, 17), (5, 70), (30, 65)] {
                let bytes = blocks(scheme, n * k / scheme.block_len());
                let mut weights = vec![0.0; n * k];
                scheme.dequantize(&bytes, &mut weights).unwrap();
                let x: Vec<f32> = (0..m * k)
                    .map(|i| ((i * 37 % 101) as f32 - 50.0) / 50.0)
                    .collect();
                let bias: Vec<f32> = (0..n).map(|i| i as f32).collect();
                let epilogue = Epilogue {
                    bias: Some(&bias),
                    activation: Activation::Relu,
                    residual: None,
                };
                for &level in SimdLevel::available() {
                    let mut runs = Vec::new();
                    for threads in [Threads::Serial, Threads::Pool] {
                        let mut y = vec![0.0; m * n];
                        let mut scratch = vec![0.0; quant_matmul_scratch_len(level, threads, m, k)];
                        let w = QuantView {
                            scheme,
                            bytes: &bytes,
                            n,
                            k,
                        };
                        let view = MatView::row_major(&x, m, k);
                        quant_matmul(level, threads, view, w, &mut y, n, &epilogue, &mut scratch);
                        runs.push(y);
                    }
                    assert_eq!(runs[0], runs[1], "the result depends on the threads");
                    for (at, got) in runs[0].iter().enumerate() {
                        let (i, j) = (at / n, at % n);
                        let terms =
                            (0..k).map(|p| f64::from(x[i * k + p]) * f64::from(weights[j * k + p]));
                        let (sum, size) = terms.fold((0.0, 0.0), |(s, a), t| (s + t, a + t.abs()));
                        let want = (sum + f64::from(bias[j])).max(0.0);
                        assert!(
                            (f64::from(*got) - want).abs()
                                <= 2e-6 * (size + f64::from(bias[j]) + 1.0),
                            "{scheme:?} {m}x{n}x{k} at {}: [{i},{j}] is {got}, want {want}",
                            level.name()
                        );
                    }
                }
            }
        }
    }
}

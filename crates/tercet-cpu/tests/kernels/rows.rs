//! Row kernels and data movement compared with plain loops in f64.
#![allow(clippy::unwrap_used, reason = "tests")]

use proptest::prelude::*;
use tercet_cpu::kernels::rows::{self, RopePairs, RowNormKind, RowScanKind};
use tercet_cpu::kernels::{SimdLevel, layout};

fn noise(len: usize) -> Vec<f32> {
    (0..len)
        .map(|i| ((i * 7_919 + 13) % 1_009) as f32 / 200.0 - 2.5)
        .collect()
}

fn close(got: &[f32], want: impl Iterator<Item = f64>, what: &str) {
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        let error = (f64::from(*got) - want).abs();
        assert!(
            error <= 1e-5 * want.abs().max(1.0),
            "{what}[{i}] is {got}, want {want}"
        );
    }
}

#[test]
fn reductions_and_softmax() {
    for &level in SimdLevel::available() {
        for n in [1, 2, 15, 16, 17, 63, 64, 65, 384, 1000] {
            let x = noise(n);
            let d: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
            let total: f64 = d.iter().sum();
            close(&[rows::sum(level, &x)], [total].into_iter(), "sum");
            close(
                &[rows::mean(level, &x)],
                [total / n as f64].into_iter(),
                "mean",
            );
            let top = d.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            assert_eq!(f64::from(rows::max(level, &x)), top);
            assert_eq!(
                x.iter().position(|v| f64::from(*v) == top),
                Some(rows::argmax(level, &x))
            );
            let low = d.iter().copied().fold(f64::INFINITY, f64::min);
            assert_eq!(f64::from(rows::min(level, &x)), low);
            assert_eq!(
                x.iter().position(|v| f64::from(*v) == low),
                Some(rows::argmin(level, &x))
            );
            let small: Vec<f32> = x.iter().map(|x| 1.0 + x / 1000.0).collect();
            let product = small.iter().map(|x| f64::from(*x)).product();
            close(&[rows::prod(level, &small)], [product].into_iter(), "prod");
            let sum: f64 = d.iter().map(|x| (x - top).exp()).sum();
            let mut out = vec![0.0; n];
            rows::softmax(level, &x, n, &mut out);
            close(&out, d.iter().map(|x| (x - top).exp() / sum), "softmax");
            rows::log_softmax(level, &x, n, &mut out);
            close(&out, d.iter().map(|x| x - top - sum.ln()), "log_softmax");
            let mut bad = x.clone();
            bad[n / 2] = f32::NAN;
            assert!(rows::max(level, &bad).is_nan() && rows::min(level, &bad).is_nan());
            assert_eq!(rows::argmax(level, &bad), n / 2);
        }
        assert_eq!(rows::sum(level, &[]), 0.0);
        assert_eq!(rows::prod(level, &[]), 1.0);
        assert_eq!(rows::max(level, &[]), f32::NEG_INFINITY);
        assert!(rows::mean(level, &[]).is_nan());
        let mut out = [1.0; 6];
        let masked = [
            f32::NEG_INFINITY,
            f32::NEG_INFINITY,
            f32::NEG_INFINITY,
            0.0,
            f32::NEG_INFINITY,
            0.0,
        ];
        rows::softmax(level, &masked, 3, &mut out);
        assert_eq!(out, [0.0, 0.0, 0.0, 0.5, 0.0, 0.5]);
        rows::softmax(level, &[], 0, &mut []);
    }
}

#[test]
fn norms_and_their_residual_forms() {
    for &level in SimdLevel::available() {
        for (n, kind) in [
            (1, RowNormKind::Rms),
            (7, RowNormKind::Layer),
            (33, RowNormKind::Rms),
            (384, RowNormKind::Layer),
            (100, RowNormKind::Rms),
        ] {
            let (x, gamma) = (noise(3 * n), noise(n));
            let (beta, bias): (Vec<f32>, Vec<f32>) =
                (0..n).map(|i| (i as f32 / 50.0, 0.25)).unzip();
            let residual: Vec<f32> = x.iter().rev().copied().collect();
            let mut out = vec![0.0; 3 * n];
            let mut sum = vec![0.0; 3 * n];
            let want = |x: &[f32], beta: bool| -> Vec<f64> {
                x.chunks(n)
                    .flat_map(|row| {
                        let d: Vec<f64> = row.iter().map(|x| f64::from(*x)).collect();
                        let mean = if kind == RowNormKind::Layer {
                            d.iter().sum::<f64>() / n as f64
                        } else {
                            0.0
                        };
                        let var = d.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n as f64;
                        let scale = 1.0 / (var + 1e-5).sqrt();
                        let (gamma, b) = (&gamma, &bias);
                        assert_eq!(b.len(), n);
                        (0..n)
                            .map(|i| {
                                let shift = if beta { i as f32 / 50.0 } else { 0.0 };
                                (d[i] - mean) * scale * f64::from(gamma[i]) + f64::from(shift)
                            })
                            .collect::<Vec<_>>()
                    })
                    .collect()
            };
            rows::norm(level, kind, 1e-5, &x, &gamma, Some(&beta), &mut out);
            close(&out, want(&x, true).into_iter(), "norm");
            rows::norm(level, kind, 1e-5, &x, &gamma, None, &mut out);
            close(&out, want(&x, false).into_iter(), "norm without beta");
            rows::residual_norm(
                level,
                kind,
                1e-5,
                &x,
                &residual,
                Some(&bias),
                &gamma,
                Some(&beta),
                &mut out,
                &mut sum,
            );
            let added: Vec<f32> = x.iter().zip(&residual).map(|(x, r)| x + r + 0.25).collect();
            assert_eq!(sum, added);
            close(&out, want(&added, true).into_iter(), "residual norm");
        }
    }
}

#[test]
fn scans_and_rope() {
    let x = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
    let mut out = [0.0; 6];
    let table = [
        (false, false, [1.0, 3.0, 6.0, 4.0, 9.0, 15.0]),
        (true, false, [0.0, 1.0, 3.0, 0.0, 4.0, 9.0]),
        (false, true, [6.0, 5.0, 3.0, 15.0, 11.0, 6.0]),
        (true, true, [5.0, 3.0, 0.0, 11.0, 6.0, 0.0]),
    ];
    for (exclusive, reverse, want) in table {
        rows::cumsum(RowScanKind { exclusive, reverse }, &x, 3, &mut out);
        assert_eq!(out, want);
    }
    for &level in SimdLevel::available() {
        let (cos, sin) = ([0.6, 0.0], [0.8, 1.0]);
        rows::rope(level, RopePairs::NeoX, &x, &cos, &sin, &mut out);
        close(
            &out,
            [0.6 - 2.4, -4.0, 0.8 + 1.8, 2.0, 5.0, 6.0].into_iter(),
            "neox",
        );
        rows::rope(level, RopePairs::GptJ, &x, &cos, &sin, &mut out);
        close(
            &out,
            [0.6 - 1.6, 0.8 + 1.2, -4.0, 3.0, 5.0, 6.0].into_iter(),
            "gptj",
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn views_copy_as_indexed(shape in prop::collection::vec(0usize..20, 0..4), flip in 0usize..4, swap: bool) {
        let size: usize = shape.iter().product();
        let x: Vec<u16> = (0..size as u16).collect();
        let mut strides = vec![1isize; shape.len()];
        for i in (0..shape.len().saturating_sub(1)).rev() {
            strides[i] = strides[i + 1] * shape[i + 1] as isize;
        }
        let (mut shape, mut offset) = (shape, 0usize);
        if flip < shape.len() && shape[flip] > 0 {
            offset = (shape[flip] - 1) * strides[flip] as usize;
            strides[flip] = -strides[flip];
        }
        if swap {
            shape.reverse();
            strides.reverse();
        }
        let mut out = vec![0; size];
        layout::strided_copy(&x, offset, &shape, &strides, &mut out);
        for (at, got) in out.iter().enumerate() {
            let (mut rest, mut from) = (at, offset as isize);
            for (n, s) in shape.iter().zip(&strides).rev() {
                from += (rest % n) as isize * s;
                rest /= n;
            }
            prop_assert_eq!(*got, x[from as usize]);
        }
    }
}

#[test]
fn transposes_and_gathers() {
    for (r, c) in [(0, 3), (1, 1), (17, 40), (33, 16)] {
        let x: Vec<u32> = (0..r * c).map(|i| i as u32).collect();
        let mut out = vec![0; x.len()];
        layout::transpose(&x, r as usize, c as usize, &mut out);
        assert!((0..r).all(|i| (0..c).all(|j| out[(j * r + i) as usize] == (i * c + j) as u32)));
    }
    let table = [0u8, 1, 2, 3, 4, 5];
    let mut out = [0; 4];
    assert_eq!(
        layout::gather_rows(&table, 2, 3, &[-1, 1], &mut out),
        Ok(())
    );
    assert_eq!(out, [4, 5, 2, 3]);
    assert_eq!(layout::gather_rows(&table, 2, 3, &[0, 3], &mut out), Err(3));
    assert_eq!(
        layout::gather_rows(&table, 2, 3, &[0, -4], &mut out),
        Err(-4)
    );
}

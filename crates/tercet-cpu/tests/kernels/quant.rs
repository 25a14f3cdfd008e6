//! Quantized matmuls compared with dequantized weights in f64.
#![allow(clippy::unwrap_used, reason = "tests")]

use tercet_cpu::kernels::gemm::{GemmActivation, GemmEpilogue, MatView};
use tercet_cpu::kernels::quant::{
    QuantRowLayout, QuantView, pack_strips, quant_matmul, quant_matmul_scratch_len,
    repack_is_profitable, row_ranges, strips_scratch_len,
};
use tercet_cpu::kernels::{KernelThreads, SimdLevel};
use tercet_ir::fill::InputFill;
use tercet_ir::{Scheme, TensorType};

/// Random quantized values, with scales that keep weights below about 1.
fn blocks(scheme: Scheme, count: usize) -> Vec<u8> {
    let stored = count * scheme.block_bytes() / scheme.storage().size_bytes();
    let ty = TensorType::new(scheme.storage(), &[stored]);
    InputFill::Blocks(scheme)
        .tensor("blocks", ty)
        .bytes()
        .to_vec()
}

/// Computes `x W^T` on one thread with repacked weights. `None` if repacking is not profitable.
fn from_strips(
    level: SimdLevel,
    w: QuantView<'_>,
    x: MatView<'_>,
    epilogue: &GemmEpilogue<'_>,
) -> Option<Vec<f32>> {
    if !repack_is_profitable(level, w.scheme) {
        return None;
    }
    let mut runs = [KernelThreads::Serial, KernelThreads::Pool].map(|threads| {
        let mut bytes = vec![0; w.bytes.len()];
        pack_strips(level, threads, &w, &mut bytes);
        let w = QuantView {
            bytes: &bytes,
            arrangement: QuantRowLayout::Strips,
            ..w
        };
        let len = quant_matmul_scratch_len(level, threads, x.rows, w.k);
        let len = len.max(strips_scratch_len(w.scheme, threads.count(), w.k));
        let (mut y, mut scratch) = (vec![0.0; x.rows * w.n], vec![0.0; len]);
        quant_matmul(level, threads, x, w, &mut y, w.n, epilogue, &mut scratch);
        y
    });
    let [serial, pool] = &mut runs;
    assert!(
        serial
            .iter()
            .zip(&*pool)
            .all(|(a, b)| a.to_bits() == b.to_bits()),
        "the result depends on the number of threads"
    );
    Some(std::mem::take(serial))
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
            for (m, n) in [
                (0, 3),
                (1, 0),
                (1, 1),
                (1, 37),
                (1, 64),
                (3, 17),
                (5, 70),
                (8, 5),
                (30, 65),
            ] {
                let bytes = blocks(scheme, n * k / scheme.block_len());
                let mut weights = vec![0.0; n * k];
                scheme.dequantize(&bytes, &mut weights).unwrap();
                let x: Vec<f32> = (0..m * k)
                    .map(|i| ((i * 37 % 101) as f32 - 50.0) / 50.0)
                    .collect();
                let bias: Vec<f32> = (0..n).map(|i| i as f32).collect();
                let epilogue = GemmEpilogue {
                    bias: Some(&bias),
                    activation: GemmActivation::Relu,
                    residual: None,
                    after: GemmActivation::None,
                };
                for &level in SimdLevel::available() {
                    let mut runs = Vec::new();
                    for threads in [KernelThreads::Serial, KernelThreads::Pool] {
                        let mut y = vec![0.0; m * n];
                        let mut scratch = vec![0.0; quant_matmul_scratch_len(level, threads, m, k)];
                        let w = QuantView {
                            scheme,
                            bytes: &bytes,
                            n,
                            k,
                            arrangement: QuantRowLayout::Rows,
                        };
                        let view = MatView::row_major(&x, m, k);
                        quant_matmul(level, threads, view, w, &mut y, n, &epilogue, &mut scratch);
                        let strips = from_strips(level, w, view, &epilogue);
                        runs.push((y, strips));
                    }
                    assert_eq!(
                        runs[0], runs[1],
                        "the result depends on the number of threads"
                    );
                    let (rows, strips) = runs.swap_remove(0);
                    if let (true, Some(strips)) = (m > 16, &strips) {
                        assert_eq!(
                            &rows, strips,
                            "results for many rows depend on the weight layout"
                        );
                    }
                    let all = rows.iter().enumerate();
                    let all = all.chain(strips.iter().flatten().enumerate());
                    for (at, got) in all {
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

type Element = fn(usize) -> f32;

/// Generators of a row's elements, by index.
const ROWS: [(&str, Element); 10] = [
    ("different magnitudes within 32 elements", |i| {
        [1.0, -1e4, 3e-4, 0.5][i * 7 % 4] * (1.0 + (i % 13) as f32)
    }),
    ("different magnitudes between groups of 32", |i| {
        10f32.powi((i / 32) as i32 - 8) * ((i * 37 % 101) as f32 - 50.0)
    }),
    ("different magnitudes between ranges of 256", |i| {
        10f32.powi(20 * (i / 256) as i32 - 10) * ((i * 37 % 101) as f32 - 50.0)
    }),
    ("the maximum that the limbs represent", |i| {
        [8_388_607.0, -8_355_840.0, 8_355_839.0, 127.0][i % 4]
    }),
    ("just above the value of three limbs of 127", |i| {
        [8_355_712.0, -8_355_839.0, 8_355_711.0, 127.0][i % 4]
    }),
    ("zeros", |_| 0.0),
    (
        "a single nonzero element",
        |i| if i == 77 { 3.25 } else { 0.0 },
    ),
    ("subnormal", |i| 1e-40 * (i % 3) as f32),
    ("tiny", |i| 1e-30 * ((i * 37 % 101) as f32 - 50.0)),
    ("huge", |i| 1e30 * ((i * 37 % 101) as f32 - 50.0)),
];

/// For up to as many rows as one kernel serves, a row has the same bits alone and with others, also next
/// to rows that fixed point cannot represent.
#[test]
fn a_row_has_the_same_bits_for_any_number_of_rows() {
    const K: usize = 512;
    const N: usize = 37;
    for &scheme in Scheme::ALL {
        let bytes = blocks(scheme, N * K / scheme.block_len());
        let w = QuantView {
            scheme,
            bytes: &bytes,
            n: N,
            k: K,
            arrangement: QuantRowLayout::Rows,
        };
        let x: Vec<f32> = (0..16)
            .flat_map(|i| {
                let (_, element) = ROWS[i * 7 % ROWS.len()];
                (0..K).map(move |p| element(p + 31 * i))
            })
            .collect();
        let bias: Vec<f32> = (0..N).map(|i| i as f32).collect();
        let epilogue = GemmEpilogue {
            bias: Some(&bias),
            ..GemmEpilogue::NONE
        };
        for &level in SimdLevel::available() {
            let most = row_ranges(level, scheme, true)[0];
            let run = |rows: std::ops::Range<usize>| {
                let x = &x[rows.start * K..rows.end * K];
                let view = MatView::row_major(x, rows.len(), K);
                let len = quant_matmul_scratch_len(level, KernelThreads::Pool, rows.len(), K);
                let (mut y, mut scratch) = (vec![0.0; rows.len() * N], vec![0.0; len]);
                let threads = KernelThreads::Pool;
                quant_matmul(level, threads, view, w, &mut y, N, &epilogue, &mut scratch);
                [Some(y), from_strips(level, w, view, &epilogue)]
            };
            let bits = |y: &[f32]| y.iter().map(|x| x.to_bits()).collect::<Vec<u32>>();
            let alone: Vec<_> = (0..most).map(|i| run(i..i + 1)).collect();
            for rows in [0..2, 1..4, 2..7, 0..8, 3..12, 0..most] {
                let rows = rows.start.min(most - 1)..rows.end.min(most);
                let together = run(rows.clone());
                for (i, row) in rows.enumerate() {
                    for (one, all) in alone[row].iter().zip(&together) {
                        let (Some(one), Some(all)) = (one, all) else {
                            continue;
                        };
                        let name = level.name();
                        let own = &all[i * N..(i + 1) * N];
                        assert_eq!(bits(one), bits(own), "{scheme:?} {name} row {row}");
                    }
                }
            }
        }
        // Repacked weights have the same bits with all instruction sets that multiply integers.
        let strips = SimdLevel::available()
            .iter()
            .filter_map(|level| from_strips(*level, w, MatView::row_major(&x, 9, K), &epilogue));
        let strips: Vec<Vec<f32>> = strips.collect();
        let first = strips.first().cloned().unwrap_or_default();
        for other in &strips {
            let same = first
                .iter()
                .zip(other)
                .all(|(a, b)| a.to_bits() == b.to_bits());
            assert!(same, "{scheme:?}");
        }
    }
}

/// Strips have the same bits with all instructions that multiply integers, also at levels that do not
/// repack weights themselves.
#[test]
fn strips_have_the_same_bits_at_every_level_with_integer_products() {
    const K: usize = 4096 + 512;
    const N: usize = 24;
    const M: usize = 7;
    let threads = KernelThreads::Serial;
    let x: Vec<f32> = (0..M)
        .flat_map(|i| (0..K).map(move |p| ROWS[i % 3].1(p + 31 * i)))
        .collect();
    let with_integers = |level: &&SimdLevel| !["portable", "neon"].contains(&level.name());
    let levels: Vec<SimdLevel> = SimdLevel::available()
        .iter()
        .filter(with_integers)
        .copied()
        .collect();
    for scheme in [Scheme::Q4K, Scheme::Q5K, Scheme::Q6K] {
        let Some(packing) = levels.iter().find(|l| repack_is_profitable(**l, scheme)) else {
            return;
        };
        let bytes = blocks(scheme, N * K / scheme.block_len());
        let rows = QuantView {
            scheme,
            bytes: &bytes,
            n: N,
            k: K,
            arrangement: QuantRowLayout::Rows,
        };
        let mut packed = vec![0; bytes.len()];
        pack_strips(*packing, threads, &rows, &mut packed);
        let w = QuantView {
            bytes: &packed,
            arrangement: QuantRowLayout::Strips,
            ..rows
        };
        for m in 1..=M {
            let run = |level: SimdLevel| {
                let len = quant_matmul_scratch_len(level, threads, m, K);
                let len = len.max(strips_scratch_len(scheme, 1, K));
                let (mut y, mut scratch) = (vec![0.0; m * N], vec![0.0; len]);
                let (x, none) = (MatView::row_major(&x[..m * K], m, K), GemmEpilogue::NONE);
                quant_matmul(level, threads, x, w, &mut y, N, &none, &mut scratch);
                y.iter().map(|y| y.to_bits()).collect::<Vec<u32>>()
            };
            let first = run(levels[0]);
            for level in &levels[1..] {
                let (a, b) = (levels[0].name(), level.name());
                assert_eq!(first, run(*level), "{scheme:?}, {m} rows, {a} and {b}");
            }
        }
    }
}

/// Activation rows that fixed point can represent, and rows that fixed point cannot represent.
#[test]
fn one_row_of_any_magnitude() {
    const K: usize = 512;
    const N: usize = 9;
    for &scheme in Scheme::ALL {
        let bytes = blocks(scheme, N * K / scheme.block_len());
        let mut weights = vec![0.0; N * K];
        scheme.dequantize(&bytes, &mut weights).unwrap();
        let run = |level, x: &[f32]| {
            let w = QuantView {
                scheme,
                bytes: &bytes,
                n: N,
                k: K,
                arrangement: QuantRowLayout::Rows,
            };
            let mut y = vec![0.0; N];
            let mut scratch =
                vec![0.0; quant_matmul_scratch_len(level, KernelThreads::Serial, 1, K)];
            let (view, none) = (MatView::row_major(x, 1, K), GemmEpilogue::NONE);
            quant_matmul(
                level,
                KernelThreads::Serial,
                view,
                w,
                &mut y,
                N,
                &none,
                &mut scratch,
            );
            [Some(y), from_strips(level, w, view, &none)]
        };
        for (name, element) in ROWS {
            let x: Vec<f32> = (0..K).map(element).collect();
            for &level in SimdLevel::available() {
                for (j, got) in run(level, &x)
                    .into_iter()
                    .flatten()
                    .flat_map(|y| y.into_iter().enumerate())
                {
                    // The error of an element is half a unit in the last place of the maximum of
                    // its 256 elements. The sums have the usual float errors.
                    let (mut sum, mut size) = (0.0, 0.0);
                    for (x, w) in x.chunks(256).zip(weights[j * K..][..K].chunks(256)) {
                        let greatest = x.iter().fold(0f32, |max, x| max.max(x.abs()));
                        for (x, w) in x.iter().zip(w) {
                            sum += f64::from(*x) * f64::from(*w);
                            size += f64::from(greatest) * f64::from(w.abs());
                        }
                    }
                    assert!(
                        (f64::from(got) - sum).abs() <= 3e-7 * size + 1e-42,
                        "{scheme:?}, {name} at {}: element {j} is {got}, want {sum}",
                        level.name()
                    );
                }
            }
        }
        for odd in [f32::NAN, f32::INFINITY] {
            let mut x = vec![1.0; K];
            x[300] = odd;
            for &level in SimdLevel::available() {
                for (j, got) in run(level, &x)
                    .into_iter()
                    .flatten()
                    .flat_map(|y| y.into_iter().enumerate())
                {
                    let want = x.iter().zip(&weights[j * K..]);
                    let want = want
                        .map(|(x, w)| f64::from(*x) * f64::from(*w))
                        .sum::<f64>();
                    let alike =
                        got.is_nan() == want.is_nan() && got.is_infinite() == want.is_infinite();
                    assert!(alike, "{scheme:?} with {odd} gives {got}, want {want}");
                }
            }
        }
    }
}

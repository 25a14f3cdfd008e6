//! Quantized GEMM with activations in 16-bit fixed point, including extreme quantized values and
//! scales.
#![allow(clippy::unwrap_used, reason = "tests")]

use tercet_cpu::CpuBackend;
use tercet_cpu::kernels::gemm::{GemmActivation, GemmEpilogue, MatView};
use tercet_cpu::kernels::quant::{
    QuantRowLayout, QuantView, i16_is_profitable, i16_scratch_len, pack_strips, quant_matmul,
    quant_matmul_i16, quant_matmul_scratch_len, repack_is_profitable, row_ranges,
    strips_scratch_len,
};
use tercet_cpu::kernels::{KernelThreads, SimdLevel};
use tercet_ir::fill::InputFill;
use tercet_ir::{Backend, CompileOptions, DType, Dim, Graph, Scheme, Tensor, TensorType, Type};

/// Quantized weights and their dequantized values.
struct Weights {
    scheme: Scheme,
    bytes: Vec<u8>,
    values: Vec<f32>,
    n: usize,
    k: usize,
}

impl Weights {
    fn new(scheme: Scheme, bytes: Vec<u8>, n: usize, k: usize) -> Weights {
        let mut values = vec![0.0; n * k];
        scheme.dequantize(&bytes, &mut values).unwrap();
        Weights {
            scheme,
            bytes,
            values,
            n,
            k,
        }
    }

    /// Random quantized values, with scales that keep weights below about 1.
    fn random(scheme: Scheme, n: usize, k: usize) -> Weights {
        let stored =
            n * k / scheme.block_len() * scheme.block_bytes() / scheme.storage().size_bytes();
        let ty = TensorType::new(scheme.storage(), &[stored]);
        let bytes = InputFill::Blocks(scheme)
            .tensor("blocks", ty)
            .bytes()
            .to_vec();
        Weights::new(scheme, bytes, n, k)
    }

    fn view(&self) -> QuantView<'_> {
        QuantView {
            scheme: self.scheme,
            bytes: &self.bytes,
            n: self.n,
            k: self.k,
            arrangement: QuantRowLayout::Rows,
        }
    }

    /// Computes `x W^T` with the kernel that may round rows of `x` to 16 bits.
    fn rounded(
        &self,
        level: SimdLevel,
        threads: KernelThreads,
        x: &[f32],
        e: &GemmEpilogue<'_>,
    ) -> Vec<f32> {
        let (m, n, k) = (x.len() / self.k, self.n, self.k);
        let exact = quant_matmul_scratch_len(level, threads, m, k);
        let len = exact.max(i16_scratch_len(level, threads.count(), m, k));
        let (mut y, mut scratch) = (vec![f32::NAN; m * n], vec![0.0; len]);
        let x = MatView::row_major(x, m, k);
        quant_matmul_i16(level, threads, x, self.view(), &mut y, n, e, &mut scratch);
        if repack_is_profitable(level, self.scheme) {
            let mut bytes = vec![0; self.bytes.len()];
            pack_strips(level, threads, &self.view(), &mut bytes);
            let w = QuantView {
                bytes: &bytes,
                arrangement: QuantRowLayout::Strips,
                ..self.view()
            };
            let len = len.max(strips_scratch_len(self.scheme, threads.count(), k));
            let (mut strips, mut scratch) = (vec![f32::NAN; m * n], vec![0.0; len]);
            quant_matmul_i16(level, threads, x, w, &mut strips, n, e, &mut scratch);
            // The integer kernels for few rows add in the order of the layout.
            if m > 16 {
                let bits = |y: &[f32]| y.iter().map(|y| y.to_bits()).collect::<Vec<_>>();
                assert_eq!(
                    bits(&strips),
                    bits(&y),
                    "results depend on the weight layout"
                );
            }
        }
        y
    }

    fn exact(&self, level: SimdLevel, x: &[f32]) -> Vec<f32> {
        let (m, n, k) = (x.len() / self.k, self.n, self.k);
        let threads = KernelThreads::Serial;
        let mut scratch = vec![0.0; quant_matmul_scratch_len(level, threads, m, k)];
        let mut y = vec![f32::NAN; m * n];
        let (x, none) = (MatView::row_major(x, m, k), GemmEpilogue::NONE);
        quant_matmul(
            level,
            threads,
            x,
            self.view(),
            &mut y,
            n,
            &none,
            &mut scratch,
        );
        y
    }

    /// Fails unless `y` equals `x W^T` within two error bounds. The first is relative to the sum of
    /// magnitudes. The second is relative to that sum with each element replaced by the maximum of
    /// its 256 elements. Scales are normal numbers.
    fn check(&self, what: &str, x: &[f32], y: &[f32], (own, greatest): (f64, f64)) {
        // The kernel subtracts sums of zero points from sums of quantized values, which are at most
        // 15; scales here are 1.
        let offset = match self.scheme {
            Scheme::Int4Asym => 15.0,
            _ => 0.0,
        };
        for (at, got) in y.iter().enumerate() {
            let (i, j) = (at / self.n, at % self.n);
            let (mut sum, mut size, mut room, mut least) = (0.0, 0.0, 0.0, 1e-2);
            let x = x[i * self.k..][..self.k].chunks(256);
            for (x, w) in x.zip(self.values[j * self.k..][..self.k].chunks(256)) {
                let most = x.iter().fold(0f32, |most, x| most.max(x.abs()));
                for (x, w) in x.iter().zip(w) {
                    sum += f64::from(*x) * f64::from(*w);
                    size += (f64::from(*x) * f64::from(*w)).abs() + f64::from(x.abs()) * offset;
                    room += f64::from(most) * f64::from(w.abs());
                    least += f64::from(w.abs());
                }
            }
            assert!(
                (f64::from(*got) - sum).abs() <= own * size + greatest * room + least * 1.2e-38,
                "{:?} {what}, {}x{}: [{i},{j}] is {got}, want {sum}",
                self.scheme,
                self.n,
                self.k
            );
        }
    }
}

/// Numbers with at most 12 bits, which 16-bit fixed point represents exactly.
fn small(len: usize) -> Vec<f32> {
    let number = |i: usize| ((i * 37 + i / 256 * 11) % 4001) as f32 - 2000.0;
    (0..len).map(|i| number(i) / 512.0).collect()
}

fn waves(len: usize) -> Vec<f32> {
    (0..len)
        .map(|i| (i as f32 * 0.7).sin() * (1.0 + (i % 7) as f32))
        .collect()
}

#[test]
fn each_number_of_rows_and_columns() {
    for &scheme in Scheme::ALL {
        let k = scheme.block_len().max(32);
        // Rows of a single block, and rows of several chunks of k, the last of which is shorter if
        // the block length allows that.
        for (k, n) in [(k, 1), (256 + k, 15), (k, 17), (512, 97)] {
            let w = Weights::random(scheme, n, k);
            for m in (1..=20).chain([37]) {
                let x = small(m * k);
                for &level in SimdLevel::available() {
                    let what = format!("{m} rows at {}", level.name());
                    let y = w.rounded(level, KernelThreads::Pool, &x, &GemmEpilogue::NONE);
                    // 16-bit fixed point represents these elements exactly, so the result has only
                    // float rounding errors.
                    w.check(&what, &x, &y, (1e-6, 1e-7));
                    let alone = w.rounded(level, KernelThreads::Serial, &x, &GemmEpilogue::NONE);
                    assert_eq!(
                        y, alone,
                        "{scheme:?} {what}: depends on the number of threads"
                    );
                }
            }
        }
    }
}

#[test]
fn elements_are_off_by_a_part_of_the_greatest() {
    for &scheme in Scheme::ALL {
        let (k, n) = (512, 19);
        let w = Weights::random(scheme, n, k);
        let spread: Vec<f32> = waves(23 * k)
            .iter()
            .enumerate()
            .map(|(i, x)| x * 10f32.powi((i / 64 % 9) as i32 - 4))
            .collect();
        let tiny: Vec<f32> = waves(23 * k).iter().map(|x| x * 1e-41).collect();
        for x in [waves(23 * k), spread, tiny, vec![0.0; 23 * k]] {
            for &level in SimdLevel::available() {
                let y = w.rounded(level, KernelThreads::Serial, &x, &GemmEpilogue::NONE);
                w.check(level.name(), &x, &y, (1e-6, 1.01 / 32768.0));
            }
        }
    }
}

#[test]
fn a_row_does_not_depend_on_the_others() {
    for &scheme in Scheme::ALL {
        let (k, n) = (256, 33);
        let w = Weights::random(scheme, n, k);
        let x = waves(64 * k);
        for &level in SimdLevel::available() {
            let all = w.rounded(level, KernelThreads::Serial, &x, &GemmEpilogue::NONE);
            let few = row_ranges(level, scheme, true);
            let few = few.last().copied().unwrap_or(0).max(15);
            for m in few + 1..64 {
                let some = w.rounded(
                    level,
                    KernelThreads::Serial,
                    &x[..m * k],
                    &GemmEpilogue::NONE,
                );
                assert_eq!(some, all[..m * n], "{scheme:?}, {m} rows");
            }
            // With so few rows, the kernel does not round `x`.
            let few = w.rounded(
                level,
                KernelThreads::Serial,
                &x[..15 * k],
                &GemmEpilogue::NONE,
            );
            assert_eq!(few, w.exact(level, &x[..15 * k]), "{scheme:?}");
        }
    }
}

#[test]
fn epilogues_and_rows_that_are_not_finite() {
    let (k, n, m) = (256, 21, 18);
    let w = Weights::random(Scheme::Q4K, n, k);
    let mut x = waves(m * k);
    for &level in SimdLevel::available() {
        let bias: Vec<f32> = (0..n).map(|j| j as f32 - 10.0).collect();
        let epilogue = GemmEpilogue {
            bias: Some(&bias),
            activation: GemmActivation::Relu,
            residual: None,
            after: GemmActivation::None,
        };
        let plain = w.rounded(level, KernelThreads::Serial, &x, &GemmEpilogue::NONE);
        let want = plain.iter().enumerate();
        let want: Vec<f32> = want.map(|(at, y)| (y + bias[at % n]).max(0.0)).collect();
        assert_eq!(w.rounded(level, KernelThreads::Pool, &x, &epilogue), want);
    }
    for odd in [f32::NAN, f32::INFINITY] {
        x[5 * k + 3] = odd;
        for &level in SimdLevel::available() {
            let bits = |y: Vec<f32>| y.into_iter().map(f32::to_bits).collect::<Vec<_>>();
            let got = w.rounded(level, KernelThreads::Serial, &x, &GemmEpilogue::NONE);
            assert_eq!(bits(got), bits(w.exact(level, &x)), "{odd}");
        }
    }
}

/// Weight blocks in which every byte is the same, except f16 scales, which are 1.
fn uniform(scheme: Scheme, byte: u8, count: usize) -> Option<Vec<u8>> {
    let halves = match scheme {
        Scheme::Q8_0 | Scheme::Q4_0 | Scheme::Q5_0 => 0..2,
        Scheme::Q4_1 | Scheme::Q5_1 | Scheme::Q4K | Scheme::Q5K => 0..4,
        Scheme::Int4 | Scheme::Int4Asym | Scheme::Int8 | Scheme::Int8Asym => 0..8,
        Scheme::Q2K => 80..84,
        Scheme::Q3K => 108..110,
        Scheme::Q6K => 208..210,
        _ => return None,
    };
    let mut block = vec![byte; scheme.block_bytes()];
    for half in block[halves].chunks_mut(2) {
        half.copy_from_slice(&0x3C00u16.to_le_bytes());
    }
    Some(block.repeat(count))
}

#[test]
fn the_greatest_codes_scales_and_elements() {
    let (n, k) = (17, 512);
    let mut seen = 0;
    for &scheme in Scheme::ALL {
        for byte in [0x00, 0x7F, 0x80, 0xFF] {
            let Some(bytes) = uniform(scheme, byte, n * k / scheme.block_len()) else {
                continue;
            };
            seen += 1;
            let w = Weights::new(scheme, bytes, n, k);
            for m in [1, 2, 9, 16, 19] {
                for (name, x) in [
                    ("all maximum", [32_767.0, 32_767.0]),
                    ("all minimum", [-32_767.0, -32_767.0]),
                    ("both", [32_767.0, -32_767.0]),
                    ("of 24 digits", [8_355_711.0, 8_355_711.0]),
                    ("beyond 24 digits", [8_355_712.0, -8_355_839.0]),
                    ("negative, of 24 digits", [-8_355_711.0, -8_355_711.0]),
                ] {
                    let x: Vec<f32> = (0..m * k).map(|i| x[i % 2]).collect();
                    for &level in SimdLevel::available() {
                        let what = format!("bytes {byte:#x}, {m} rows, {name}, {}", level.name());
                        // The float reference adds 512 equal terms in a chain, which may err by
                        // half a unit per addition in the same direction; integer sums are exact.
                        let (chain, whole) = (512.0 * f64::from(f32::EPSILON) / 2.0, 1e-6);
                        let own = |integers: bool| match integers && i16_is_profitable(level) {
                            true => whole,
                            false => chain,
                        };
                        let bytes = [Scheme::Q8_0, Scheme::Int8, Scheme::Int8Asym];
                        let alone = m == 1 && !bytes.contains(&scheme);
                        w.check(&what, &x, &w.exact(level, &x), (own(alone), 0.0));
                        let y = w.rounded(level, KernelThreads::Serial, &x, &GemmEpilogue::NONE);
                        // Rounded activations have a relative error of at most 2^-15.
                        w.check(&what, &x, &y, (own(alone || m > 16), 1.01 / 32768.0));
                    }
                }
            }
        }
    }
    assert_eq!(seen, 4 * 14, "every scheme with integer codes");
}

#[test]
fn products_are_rounded_where_the_options_allow_it() {
    let (n, k) = (40, 256);
    let w = Weights::random(Scheme::Q4K, n, k);
    let mut g = Graph::new();
    let x = g
        .input("x", Type::new(DType::F32, [Dim::sym("m"), Dim::Known(k)]))
        .unwrap();
    let ty = Type::new(DType::U8, [n, Scheme::Q4K.stored_len(k).unwrap()]);
    let stored = g.param("w", ty.clone()).unwrap();
    let y = g.dequant_matmul(x, stored, Scheme::Q4K).unwrap();
    g.output("y", y).unwrap();
    let shape = ty.shape.as_known().unwrap();
    let stored = Tensor::from_slice(&shape, &w.bytes).unwrap();
    let run = |products, m: usize| {
        let options = CompileOptions::new()
            .bound("m", 64)
            .with_matmul_precision(products);
        let mut exe = CpuBackend::new().compile(&g, &options).unwrap();
        exe.set_param("w", stored.clone()).unwrap();
        let x = Tensor::from_slice(&[m, k], &waves(m * k)).unwrap();
        let y = exe.run(&[("x", &x)]).unwrap();
        y[0].as_slice::<f32>().unwrap().to_vec()
    };
    let pays = i16_is_profitable(SimdLevel::detect());
    let faster = CpuBackend::new().fast_quant_matmul_dtypes();
    assert_eq!(faster, if pays { vec![DType::F16] } else { Vec::new() });
    for narrow in [DType::F16, DType::BF16] {
        assert_eq!(run(Some(narrow), 15), run(None, 15));
        let (rounded, exact) = (run(Some(narrow), 50), run(None, 50));
        assert_eq!(rounded != exact, pays, "many rows are rounded");
        w.check("rounded", &waves(50 * k), &rounded, (1e-6, 1.01 / 32768.0));
        w.check("exact", &waves(50 * k), &exact, (1e-6, 0.0));
    }
}

//! I32 GEMM compared with plain loops, for elements that fit in 16 bits, larger elements, and
//! weights in the i8 range.

use tercet_cpu::kernels::int_gemm::{IntGemmShape, int_gemm, int_gemm_wide, pack_panels};
#[cfg(target_arch = "x86_64")]
use tercet_cpu::kernels::int8_conv::gemm;
use tercet_cpu::kernels::{KernelThreads, SimdLevel};

fn numbers(len: usize, seed: u32, bits: u32) -> Vec<i32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state as i32) >> (32 - bits)
    };
    (0..len).map(|_| next()).collect()
}

/// Reference sums by plain loops.
fn sums(&IntGemmShape { m, k, n }: &IntGemmShape, a: &[i32], b: &[i32]) -> Vec<i32> {
    let mut all = vec![0i32; m * n];
    for (i, sum) in all.iter_mut().enumerate() {
        let (row, col) = (i / n, i % n);
        for p in 0..k {
            let product = a[row * k + p].wrapping_mul(b[p * n + col]);
            *sum = sum.wrapping_add(product);
        }
    }
    all
}

#[test]
fn products_are_those_of_the_sums_written_out() {
    for (m, k, n) in [
        (1, 1, 1),
        (7, 3, 17),
        (6, 64, 16),
        (13, 129, 40),
        (100, 20, 33),
        (2, 0, 3),
    ] {
        let shape = IntGemmShape { m, k, n };
        for (bits_a, bits_b) in [(8, 8), (16, 16), (32, 16), (9, 32)] {
            let (a, b) = (numbers(m * k, 1, bits_a), numbers(k * n, 2, bits_b));
            let want = sums(&shape, &a, &b);
            let mut c = vec![-1; m * n];
            int_gemm_wide(KernelThreads::Pool, &shape, &a, &b, &mut c);
            assert_eq!(c, want, "{shape:?} unpacked");
            let mut panels = vec![0; shape.panels_len()];
            let fits = b.iter().all(|x| i16::try_from(*x).is_ok());
            assert_eq!(
                pack_panels(KernelThreads::Pool, &shape, &b, &mut panels),
                fits
            );
            if !fits {
                continue;
            }
            for &level in SimdLevel::available() {
                let mut rows = vec![0; shape.rows_len()];
                c.fill(-1);
                int_gemm(
                    level,
                    KernelThreads::Pool,
                    &shape,
                    &a,
                    &panels,
                    &mut c,
                    &mut rows,
                );
                assert_eq!(c, want, "{shape:?} {bits_a} {bits_b} {}", level.name());
            }
        }
    }
}

/// Random elements of `bits` bits; half of them are extreme values.
#[cfg(any(target_arch = "x86_64", tercet_byte_gemm))]
fn extremes(len: usize, seed: u32, bits: u32) -> Vec<i32> {
    let (least, most) = (i32::MIN >> (32 - bits), i32::MAX >> (32 - bits));
    let kinds = numbers(len, seed + 1, 2);
    let all = numbers(len, seed, bits).into_iter().zip(kinds);
    all.map(|(x, kind)| match kind {
        0 => least,
        1 => most,
        _ => x,
    })
    .collect()
}

/// i8 weights for every packing format: few large ones, many large ones, and a single extreme
/// value.
#[cfg(any(target_arch = "x86_64", tercet_byte_gemm))]
fn weights(len: usize, seed: u32) -> [Vec<i32>; 5] {
    let spread = extremes(len, seed, 8);
    let few = spread.iter().zip(numbers(len, seed, 7));
    let few = few.map(|(w, other)| if other == 5 { *w } else { w / 6 });
    [
        few.collect(),
        spread.iter().map(|w| w / 2).collect(),
        vec![-128; len],
        vec![127; len],
        spread,
    ]
}

#[cfg(target_arch = "x86_64")]
#[test]
fn products_with_weights_of_bytes_are_those_of_the_sums_written_out() {
    for (m, k, n) in [
        (1, 1, 1),
        (1, 130, 12),
        (1, 67, 7),
        (2, 129, 20),
        (3, 40, 33),
        (8, 33, 6),
        (9, 31, 4),
        (16, 64, 16),
        (18, 100, 24),
        (50, 300, 21),
        (2, 0, 3),
        (3, 4, 0),
    ] {
        let shape = IntGemmShape { m, k, n };
        for b in weights(k * n, 3) {
            // Elements of 8 bits, of 9 bits, and of two, three and four 8-bit limbs; sums of the
            // last wrap.
            for (bits, moved) in [(8, 0), (8, 128), (8, -77), (9, 0), (17, 3), (32, 0)] {
                let mut a = extremes(m * k, 5, bits);
                a.iter_mut().for_each(|a| *a = a.wrapping_add(moved));
                let want = sums(&shape, &a, &b);
                for &level in SimdLevel::available() {
                    if !gemm::supports(level, &b) {
                        continue;
                    }
                    let mut packed = vec![-1; gemm::packed_len(&shape)];
                    gemm::pack(&shape, &b, &mut packed);
                    for threads in [KernelThreads::Serial, KernelThreads::Pool] {
                        let mut c = vec![-1; m * n];
                        let mut scratch = vec![-1; gemm::scratch_len(&shape)];
                        gemm::byte_gemm(level, threads, &shape, &a, &packed, &mut c, &mut scratch);
                        assert_eq!(c, want, "{shape:?} {bits} {moved} {}", level.name());
                    }
                }
            }
        }
    }
    let taken = |b: &[i32]| SimdLevel::available().iter().any(|l| gemm::supports(*l, b));
    assert!(!taken(&[0, 128]) && !taken(&[-129]));
}

#[cfg(tercet_byte_gemm)]
#[test]
fn products_by_byte_dots_are_those_of_the_sums_written_out() {
    use tercet_cpu::kernels::int_gemm_bytes as bytes;
    for (m, k, n) in [
        (1, 1, 1),
        (1, 130, 65),
        (5, 67, 7),
        (7, 129, 80),
        (13, 40, 33),
        (100, 33, 130),
        (9, 31, 64),
        (2, 0, 3),
        (3, 4, 0),
    ] {
        let shape = IntGemmShape { m, k, n };
        // Signed bytes, and bytes around other centers.
        for center in [0, 128, -200, i32::MAX - 127] {
            for b in weights(k * n, 3) {
                let b: Vec<i32> = b.iter().map(|b| b.wrapping_add(center)).collect();
                for (bits, moved) in [(8, 0), (8, -77), (9, 0), (17, 3), (25, -9), (32, 0)] {
                    let mut a = extremes(m * k, 5, bits);
                    a.iter_mut().for_each(|a| *a = a.wrapping_add(moved));
                    let want = sums(&shape, &a, &b);
                    for &level in SimdLevel::available() {
                        let Some(own) = bytes::center(level, KernelThreads::Pool, &b) else {
                            continue;
                        };
                        let mut packed = vec![-1; bytes::packed_len(&shape)];
                        bytes::pack(KernelThreads::Pool, &shape, &b, own, &mut packed);
                        for threads in [KernelThreads::Serial, KernelThreads::Pool] {
                            let mut c = vec![-1; m * n];
                            let mut scratch = vec![-1; bytes::scratch_len(&shape)];
                            bytes::byte_gemm(
                                level,
                                threads,
                                &shape,
                                &a,
                                &packed,
                                &mut c,
                                &mut scratch,
                            );
                            assert_eq!(c, want, "{shape:?} {center} {bits} {moved}");
                        }
                    }
                }
            }
        }
    }
    // A list of several tasks, whose extremes are in different ones.
    let far = |last: i32| {
        let mut b = vec![0; 1 << 17];
        (b[3], b[(1 << 17) - 1]) = (-5, last);
        b
    };
    for &level in SimdLevel::available() {
        for threads in [KernelThreads::Serial, KernelThreads::Pool] {
            let center = |level, b: &[i32]| bytes::center(level, threads, b);
            assert_eq!(center(level.without_dots(), &[0]), None);
            let has_dots = center(level, &[0]).is_some();
            assert_eq!(center(level, &[-128, 128]), None);
            assert_eq!(center(level, &[-5, 250]), has_dots.then_some(123));
            assert_eq!(center(level, &far(250)), has_dots.then_some(123));
            assert_eq!(center(level, &far(251)), None);
            assert_eq!(center(level, &far(100)), has_dots.then_some(0));
        }
    }
}

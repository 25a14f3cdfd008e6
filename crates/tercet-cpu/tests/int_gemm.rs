//! Products of I32 against sums written out, within 16 bits and beyond.

use tercet_cpu::kernels::int_gemm::{IntShape, int_gemm, int_gemm_wide, pack_panels};
use tercet_cpu::kernels::{SimdLevel, Threads};

fn numbers(len: usize, seed: u32, bits: u32) -> Vec<i32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state as i32) >> (32 - bits)
    };
    (0..len).map(|_| next()).collect()
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
        let shape = IntShape { m, k, n };
        for (bits_a, bits_b) in [(8, 8), (16, 16), (32, 16), (9, 32)] {
            let (a, b) = (numbers(m * k, 1, bits_a), numbers(k * n, 2, bits_b));
            let mut want = vec![0i32; m * n];
            for (i, want) in want.iter_mut().enumerate() {
                let (row, col) = (i / n, i % n);
                for p in 0..k {
                    let product = a[row * k + p].wrapping_mul(b[p * n + col]);
                    *want = want.wrapping_add(product);
                }
            }
            let mut c = vec![-1; m * n];
            int_gemm_wide(Threads::Pool, &shape, &a, &b, &mut c);
            assert_eq!(c, want, "{shape:?} as it is");
            let mut panels = vec![0; shape.panels_len()];
            let fits = b.iter().all(|x| i16::try_from(*x).is_ok());
            assert_eq!(pack_panels(&shape, &b, &mut panels), fits);
            if !fits {
                continue;
            }
            for &level in SimdLevel::available() {
                let mut rows = vec![0; shape.rows_len()];
                c.fill(-1);
                int_gemm(level, Threads::Pool, &shape, &a, &panels, &mut c, &mut rows);
                assert_eq!(c, want, "{shape:?} {bits_a} {bits_b} {}", level.name());
            }
        }
    }
}

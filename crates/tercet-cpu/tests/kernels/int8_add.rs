//! Quantized addition compared with plain loops, at every SIMD level of the machine.

use tercet_cpu::kernels::SimdLevel;
use tercet_cpu::kernels::int8_add::{Int8Add, Int8AddEpilogue, int8_add};

#[test]
fn sums_of_bytes_are_what_is_written_out() {
    let actions = [
        Int8AddEpilogue::Max(-3.0),
        Int8AddEpilogue::Mul(1.5),
        Int8AddEpilogue::Div(0.7),
        Int8AddEpilogue::Round,
        Int8AddEpilogue::Add(5.0),
        Int8AddEpilogue::Max(-100.0),
        Int8AddEpilogue::Min(101.0),
    ];
    for signed in [false, true] {
        let code = |byte: u8| match signed {
            true => f32::from(byte as i8),
            false => f32::from(byte),
        };
        let of = Int8Add {
            signed,
            operands: [[3.0, 0.31], [-7.0, 0.113]],
            actions: actions.to_vec(),
            signed_result: true,
        };
        // Every pair of bytes, and lengths with every remainder.
        let a: Vec<u8> = (0..1 << 16).map(|i: u32| i as u8).collect();
        let b: Vec<u8> = (0..1 << 16).map(|i: u32| (i >> 8) as u8).collect();
        let want = |i: usize| {
            let sum = (code(a[i]) - 3.0) * 0.31 + (code(b[i]) + 7.0) * 0.113;
            let scaled = (sum.max(-3.0) * 1.5 / 0.7).round_ties_even() + 5.0;
            scaled.clamp(-100.0, 101.0) as i8 as u8
        };
        for level in SimdLevel::available() {
            for len in [0, 1, 31, 32, 33, 95, 1 << 16] {
                let mut y = vec![0; len];
                int8_add(*level, &of, &a[..len], &b[..len], &mut y);
                for (i, y) in y.iter().enumerate() {
                    assert_eq!(*y, want(i), "{} of {len}, {}", i, level.name());
                }
            }
        }
    }
}

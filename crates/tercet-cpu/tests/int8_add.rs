//! Sums of bytes against what is done with them written out, at every level of the machine.

use tercet_cpu::kernels::SimdLevel;
use tercet_cpu::kernels::byte_sum::{Action, ByteSum, byte_sum};

#[test]
fn sums_of_bytes_are_what_is_written_out() {
    let actions = [
        Action::Max(-3.0),
        Action::Mul(1.5),
        Action::Div(0.7),
        Action::Round,
        Action::Add(5.0),
        Action::Max(-100.0),
        Action::Min(101.0),
    ];
    for signed in [false, true] {
        let code = |byte: u8| match signed {
            true => f32::from(byte as i8),
            false => f32::from(byte),
        };
        let of = ByteSum {
            signed,
            operands: [[3.0, 0.31], [-7.0, 0.113]],
            actions: actions.to_vec(),
            signed_result: true,
        };
        // Every pair of bytes, and lengths of every rest.
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
                byte_sum(*level, &of, &a[..len], &b[..len], &mut y);
                for (i, y) in y.iter().enumerate() {
                    assert_eq!(*y, want(i), "{} of {len}, {}", i, level.name());
                }
            }
        }
    }
}

//! Conversions of blocks between dtypes.

use tercet_cpu::internals::cast_function;
use tercet_cpu::kernels::SimdLevel;
use tercet_ir::scalar::{Scalar, convert as exact};
use tercet_ir::{DType, Tensor, TensorType};

/// Values at the ends of all ranges.
fn samples() -> Vec<f64> {
    let mut x = vec![
        0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 1.9, 127.5, -128.9, 255.4, 256.0, -300.0, 32_767.5,
        -32_769.0, 65_519.0, 1e9,
    ];
    x.extend([
        2_147_483_648.0,
        -2_147_483_649.0,
        1e19,
        -1e19,
        16_777_217.0,
        1e-8,
    ]);
    x.extend((0..50).map(|i| f64::from(i * i * i) * 0.37 - 900.0));
    x
}

#[test]
fn conversions_are_those_of_single_numbers() {
    let mut found = 0;
    for (from, to) in DType::ALL
        .iter()
        .flat_map(|a| DType::ALL.iter().map(move |b| (*a, *b)))
    {
        let Some(cast) = cast_function(from, to) else {
            continue;
        };
        found += 1;
        let given = samples();
        let x = Tensor::from_f64s(TensorType::new(from, &[given.len()]), &given).unwrap();
        let want: Vec<f64> = match from.is_float() {
            true => x
                .to_f64s()
                .iter()
                .map(|x| exact(Scalar::F(*x), to).as_f64())
                .collect(),
            false => x
                .to_i64s()
                .iter()
                .map(|x| exact(Scalar::I(*x), to).as_f64())
                .collect(),
        };
        for &level in SimdLevel::available() {
            let mut out = Tensor::zeros(TensorType::new(to, &[given.len()])).unwrap();
            cast(level, x.bytes(), out.bytes_mut());
            assert_eq!(out.to_f64s(), want, "{from} to {to} at {}", level.name());
        }
    }
    assert_eq!(found, 29);
    let mut out = [7u8; 4];
    let f32_i32 = cast_function(DType::F32, DType::I32).unwrap();
    f32_i32(SimdLevel::portable(), &f32::NAN.to_ne_bytes(), &mut out);
    assert_eq!(out, [0; 4]);
}

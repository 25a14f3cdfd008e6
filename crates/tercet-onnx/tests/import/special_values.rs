//! Elementwise functions at zeros, subnormals, extremes, infinities and NaN.

use tercet::{DType, Device, Tensor};
use tercet_onnx::ImportOptions;

use crate::made::{Model, attr_int, node};
use crate::run;

/// Special values of F32, and values around the borders of the functions below.
const VALUES: [f32; 34] = [
    0.0,
    -0.0,
    f32::from_bits(1),
    -f32::MIN_POSITIVE,
    1e-20,
    -1e-10,
    1e-4,
    0.5,
    -0.5,
    0.999_999_94,
    1.0,
    -1.0,
    1.000_000_1,
    -1.5,
    3.0,
    -100.0,
    127.0,
    129.0,
    255.0,
    8191.0,
    8193.0,
    -9000.0,
    -65504.0,
    65504.0,
    1e10,
    -1e10,
    1.8e19,
    1.9e19,
    -2e19,
    1e30,
    f32::MAX,
    f32::MIN,
    f32::INFINITY,
    f32::NEG_INFINITY,
];

/// The name of an ONNX function and its definition.
type NumberFunction = (&'static str, fn(f64) -> f64);

/// ONNX functions of one number that are composed of several operators, with their definitions.
const FUNCTIONS: [NumberFunction; 9] = [
    ("Acosh", f64::acosh),
    ("Asinh", f64::asinh),
    ("Atanh", f64::atanh),
    ("Elu", |x| if x > 0.0 { x } else { x.exp_m1() }),
    ("Celu", |x| if x > 0.0 { x } else { x.exp_m1() }),
    ("Selu", |x| {
        let y = match x > 0.0 {
            true => x,
            false => 1.673_263_192_176_818_8 * x.exp_m1(),
        };
        1.050_701_022_148_132_3 * y
    }),
    ("LeakyRelu", |x| {
        if x < 0.0 { f64::from(0.01f32) * x } else { x }
    }),
    ("HardSigmoid", |x| {
        (x * f64::from(0.2f32) + 0.5).clamp(0.0, 1.0)
    }),
    ("Abs", f64::abs),
];

/// Whether a result is close to the expected value. If the expected value is zero, infinite or NaN,
/// the result must be the same.
fn is_close(got: f32, want: f64, roundoff: f64, least: f64) -> bool {
    match want as f32 {
        w if w.is_nan() => got.is_nan(),
        w if w == 0.0 || w.is_infinite() => got.to_bits() == w.to_bits(),
        _ => (f64::from(got) - want).abs() <= 8.0 * roundoff * want.abs() + least,
    }
}

#[test]
fn composed_functions_are_right_at_special_values() {
    let x: Vec<f32> = VALUES.into_iter().chain([f32::NAN]).collect();
    let input = Tensor::from_slice(&[x.len()], &x).expect("fits");
    for (name, f) in FUNCTIONS {
        let model = Model::new(&[&x.len().to_string()]).node(node(name, &["x"], &["y"]));
        let y = run(&model, &input);
        for (x, y) in x.iter().zip(y.as_slice::<f32>().expect("F32")) {
            let want = f(f64::from(*x));
            let roundoff = f64::from(f32::EPSILON) / 2.0;
            assert!(
                is_close(*y, want, roundoff, 1.5e-45),
                "{name}({x:e}) = {y:e}, not {want:e}"
            );
        }
    }
}

#[test]
fn inverse_hyperbolic_functions_of_halves_do_not_overflow() {
    let x = VALUES.map(|x| half::f16::from_f32(x).to_f32());
    let input = Tensor::from_slice(&[x.len()], &x).expect("fits");
    for (name, f) in &FUNCTIONS[..2] {
        let model = Model::new(&[&x.len().to_string()])
            .node(node("Cast", &["x"], &["h"]).with(attr_int("to", 10)))
            .node(node(name, &["h"], &["z"]))
            .node(node("Cast", &["z"], &["y"]).with(attr_int("to", 1)));
        let y = run(&model, &input);
        for (x, y) in x.iter().zip(y.as_slice::<f32>().expect("F32")) {
            let want = f(f64::from(*x));
            assert!(
                is_close(*y, want, 4.9e-4, 6e-8),
                "{name}({x:e}) = {y:e}, not {want:e}"
            );
        }
    }
}

#[test]
fn norms_of_halves_do_not_overflow() {
    let input = Tensor::from_slice(&[2], &[300f32, 400.0]).expect("fits");
    for (name, want) in [
        ("ReduceL2", vec![500.0]),
        ("LpNormalization", vec![0.6, 0.8]),
    ] {
        let model = Model::new(&["2"])
            .node(node("Cast", &["x"], &["h"]).with(attr_int("to", 10)))
            .node(node(name, &["h"], &["z"]))
            .node(node("Cast", &["z"], &["y"]).with(attr_int("to", 1)));
        let imported = tercet_onnx::import(model.bytes(), &ImportOptions::new()).expect("imports");
        let mut executable = imported.compile(&Device::cpu()).expect("compiles");
        let y = executable.run(&[("x", &input)]).expect("runs");
        assert_eq!(y[0].dtype(), DType::F32);
        for (y, want) in y[0].to_f64s().into_iter().zip(want) {
            assert!(
                (y - want).abs() < 1e-3 * want,
                "{name}: {y} instead of {want}"
            );
        }
    }
}

//! Rules of scalar functions.

use tercet_ir::DType;
use tercet_ir::scalar::{BinaryFn, Scalar, ScalarOp, UnaryFn, convert, maximum, minimum};

fn int(f: BinaryFn, d: DType, a: i64, b: i64) -> i64 {
    f.eval(d, Scalar::I(a), Scalar::I(b)).as_i64()
}

#[test]
fn integer_rules() {
    use BinaryFn::*;
    let d = DType::I32;
    let min = i64::from(i32::MIN);
    assert_eq!(int(Add, d, 16_777_217, 0), 16_777_217);
    assert_eq!(int(Div, d, 7, 0), 7);
    assert_eq!(int(Rem, d, 7, 0), 0);
    assert_eq!(int(Div, d, min, -1), min);
    assert_eq!(int(Div, d, -7, 2), -3);
    assert_eq!(int(Shl, d, 1, 33), 2);
    assert_eq!(int(Shr, d, -8, 1), -4);
    assert_eq!(int(Pow, d, 3, 4), 81);
    assert_eq!(int(Pow, d, -1, -3), -1);
    assert_eq!(int(Sub, DType::U8, 1, 2), 255);
    assert_eq!(int(Mul, DType::I16, 182, 182), -32_412);
    assert_eq!(int(Shl, DType::I16, 1, 17), 2);
}

#[test]
fn maximum_propagates_nan_and_orders_zeros() {
    assert!(maximum(f64::NAN, 1.0).is_nan() && maximum(1.0, f64::NAN).is_nan());
    assert!(maximum(-0.0, 0.0).is_sign_positive());
    assert!(minimum(0.0, -0.0).is_sign_negative());
    assert!(UnaryFn::Relu.eval_f64(f64::NAN).is_nan());
}

#[test]
fn casts_saturate() {
    assert_eq!(
        convert(Scalar::F(1e20), DType::I32),
        Scalar::I(i32::MAX.into())
    );
    assert_eq!(convert(Scalar::F(f64::NAN), DType::I8), Scalar::I(0));
    assert_eq!(convert(Scalar::F(-4e4), DType::I16), Scalar::I(-32_768));
    assert_eq!(convert(Scalar::I(40_000), DType::I16), Scalar::I(-25_536));
    assert_eq!(convert(Scalar::F(-1.0), DType::U32), Scalar::I(0));
    assert_eq!(convert(Scalar::I(300), DType::U8), Scalar::I(44));
    assert_eq!(convert(Scalar::F(0.5), DType::Bool), Scalar::I(1));
}

#[test]
fn fma_rounds_once() {
    let e = f64::from(f32::EPSILON);
    let a = Scalar::F(1.0 + e);
    // Rounding the product first would lose e^2 and give 0.
    assert_eq!(
        ScalarOp::Fma.eval(DType::F32, DType::F32, &[a, a, Scalar::F(-1.0 - 2.0 * e)]),
        Scalar::F(e * e)
    );
}

#[test]
fn gelu_keeps_its_left_tail() {
    let y = UnaryFn::Gelu.eval_f64(-10.0);
    assert!((y / -7.619_853_024_160_525e-23 - 1.0).abs() < 1e-9, "{y:e}");
}

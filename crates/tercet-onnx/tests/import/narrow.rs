//! Tests of dtypes that the graph does not have.

use tercet::{DType, Device, Tensor};
use tercet_onnx::{ImportOptions, OnnxError};

use super::made::{Model, attr_int, node};
use super::{ones, run};

/// `TensorProto.DataType` numbers.
const UINT16: i32 = 4;
const INT16: i32 = 5;
const INT4: i32 = 22;
const FLOAT8E4M3FN: i32 = 17;

#[test]
fn weights_of_four_bits_are_unpacked_and_scaled() {
    // The 4-bit integers -8, 7 and 1, and an unused half byte.
    let model = Model::new(&["3"])
        .opset(21)
        .raw("w", INT4, &[3], &[0x78, 0xF1])
        .raw("scale", 1, &[], &0.5f32.to_le_bytes())
        .node(node("DequantizeLinear", &["w", "scale"], &["f"]))
        .node(node("Mul", &["x", "f"], &["y"]));
    assert_eq!(run(&model, &ones(&[3])).to_f64s(), [-4.0, 3.5, 0.5]);
}

#[test]
fn bytes_that_are_missing_are_refused() {
    let model = Model::new(&["3"])
        .opset(21)
        .raw("w", INT4, &[3], &[0x78])
        .node(node("Cast", &["w"], &["f"]).with(attr_int("to", 1)))
        .node(node("Mul", &["x", "f"], &["y"]));
    let e =
        tercet_onnx::import(model.bytes(), &ImportOptions::new()).expect_err("a byte is missing");
    assert!(
        e.to_string().contains("3 elements of int4 need 2 bytes"),
        "{e}"
    );
}

#[test]
fn sums_of_sixteen_bits_wrap_and_what_is_given_is_brought_into_range() {
    let model = Model::new(&["2"])
        .input("a", UINT16, &["2"])
        .node(node("Add", &["a", "a"], &["b"]))
        .node(node("Cast", &["b"], &["f"]).with(attr_int("to", 1)))
        .node(node("Mul", &["x", "f"], &["y"]));
    let imported = tercet_onnx::import(model.bytes(), &ImportOptions::new()).expect("imports");
    assert_eq!(imported.inputs[1].ty.dtype, DType::I32, "the carrier");
    let mut executable = imported.compile(&Device::cpu()).expect("compiles");
    let a = Tensor::from_slice(&[2], &[40_000i32, 65_536 + 3]).expect("fits");
    let y = executable
        .run(&[("x", &ones(&[2])), ("a", &a)])
        .expect("runs");
    assert_eq!(y[0].to_f64s(), [14_464.0, 6.0]);
}

#[test]
fn integers_of_sixteen_bits_have_their_dtype() {
    let model = Model::new(&["2"])
        .opset(21)
        .input("a", INT16, &["2"])
        .raw("w", INT16, &[2], &[0xff, 0x7f, 0xfe, 0xff])
        .raw("scale", 1, &[], &0.5f32.to_le_bytes())
        .node(node("Add", &["a", "w"], &["b"]))
        .node(node("Relu", &["b"], &["c"]))
        .node(node("DequantizeLinear", &["c", "scale"], &["f"]))
        .node(node("Mul", &["x", "f"], &["y"]));
    let imported = tercet_onnx::import(model.bytes(), &ImportOptions::new()).expect("imports");
    assert_eq!(imported.inputs[1].ty.dtype, DType::I16);
    let mut executable = imported.compile(&Device::cpu()).expect("compiles");
    let mut of = |a: [i16; 2]| {
        let a = Tensor::from_slice(&[2], &a).expect("fits");
        let y = executable.run(&[("x", &ones(&[2])), ("a", &a)]);
        y.expect("runs")[0].to_f64s()
    };
    // 32767 + 1 wraps to a negative number.
    assert_eq!(of([1, 9]), [0.0, 3.5]);
    assert_eq!(of([-1, 1]), [16383.0, 0.0]);
}

#[test]
fn sixteen_bits_are_quantized_within_their_range() {
    let model = Model::new(&["4"])
        .opset(21)
        .raw("scale", 1, &[], &0.5f32.to_le_bytes())
        .raw("zero", INT16, &[], &[0x10, 0x00])
        .node(node("QuantizeLinear", &["x", "scale", "zero"], &["q"]))
        .node(node("DequantizeLinear", &["q", "scale", "zero"], &["y"]));
    let x = Tensor::from_slice(&[4], &[1e6f32, -1e6, 1.3, 0.0]).expect("fits");
    let y = run(&model, &x).to_f64s();
    assert_eq!(y, [16375.5, -16392.0, 1.5, 0.0]);
}

#[test]
fn floats_of_eight_bits_round_there_and_back() {
    let model = Model::new(&["4"])
        .opset(19)
        .node(node("Cast", &["x"], &["f"]).with(attr_int("to", FLOAT8E4M3FN.into())))
        .node(node("Cast", &["f"], &["y"]).with(attr_int("to", 1)));
    let x = Tensor::from_slice(&[4], &[1.06f32, 1.07, -500.0, 0.0019]).expect("fits");
    let y = run(&model, &x).to_f64s();
    assert_eq!(y, [1.0, 1.125, -448.0, 0.001953125]);
}

#[test]
fn operators_that_do_not_know_a_dtype_refuse_it_by_name() {
    let model = Model::new(&["2"])
        .input("a", UINT16, &["2"])
        .node(node("Relu", &["a"], &["b"]))
        .node(node("Cast", &["b"], &["f"]).with(attr_int("to", 1)))
        .node(node("Mul", &["x", "f"], &["y"]));
    let e = tercet_onnx::import(model.bytes(), &ImportOptions::new()).expect_err("no such relu");
    let OnnxError::Nodes(nodes) = &e else {
        panic!("{e}")
    };
    assert_eq!(nodes.len(), 1, "{e}");
    assert!(e.to_string().contains("has dtype uint16"), "{e}");
}

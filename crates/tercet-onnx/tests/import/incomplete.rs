//! Tests of files whose declared shapes are incomplete: unknown ranks, negative sizes, one name for
//! sizes that differ.

use tercet::{Device, Tensor};
use tercet_onnx::{ImportOptions, OnnxModel as Read, Session, SessionError};

use crate::made::{Model, attr_int, node};
use crate::ones;

fn open(model: &Model, options: &ImportOptions) -> Session {
    Session::open(model.bytes(), &Device::cpu(), options).expect("opens")
}

/// `y = x + x` with an input of unknown rank.
fn unranked() -> Model {
    let mut model = Model::new(&[]).node(node("Add", &["x", "x"], &["y"]));
    let ty = model.graph.input[0].r#type.as_mut().expect("a type");
    let Some(tercet_onnx::proto::TypeValue::Tensor(tensor)) = &mut ty.value else {
        panic!("a tensor")
    };
    tensor.shape = None;
    model
}

#[test]
fn an_input_without_a_shape_has_that_of_its_tensor() {
    let mut session = open(&unranked(), &ImportOptions::new());
    assert_eq!(session.about().inputs[0].shape, None);
    for shape in [&[2, 3][..], &[4], &[], &[2, 3], &[1, 2, 3]] {
        let y = session.run(&[("x", &ones(shape))], None).expect("runs");
        assert_eq!(y[0].1.shape(), shape);
        assert!(y[0].1.to_f64s().iter().all(|y| *y == 2.0));
        assert_eq!(session.inputs()[0].ty.rank(), shape.len());
    }
    let e = tercet_onnx::import(unranked().bytes(), &ImportOptions::new()).expect_err("no rank");
    assert!(e.to_string().contains("rank is unknown"), "{e}");
}

#[test]
fn negative_sizes_are_unknown_ones() {
    let model = Model::new(&["-1", "3", "-1"]).node(node("Neg", &["x"], &["y"]));
    let about = Read::read(model.bytes()).expect("reads").describe();
    let shape = about.inputs[0].shape.clone().expect("a rank");
    assert_eq!(shape, ["?", "3", "?"]);
    let mut session = open(&model, &ImportOptions::new().bound("x_dim_0", 4));
    for sizes in [[2, 3, 5], [4, 3, 1]] {
        let y = session.run(&[("x", &ones(&sizes))], None).expect("runs");
        assert_eq!(y[0].1.shape(), sizes);
    }
    let e = session.run(&[("x", &ones(&[5, 3, 1]))], None);
    assert!(e.is_err(), "beyond the bound");
}

#[test]
fn a_symbol_of_sizes_that_differ_is_separated() {
    let model = Model::new(&["n", "4"])
        .input("z", 1, &["n", "4"])
        .node(node("Add", &["x", "z"], &["y"]));
    let mut session = open(&model, &ImportOptions::new().bound("n", 6));
    let mut shape = |a: usize, b: usize| {
        let (x, z) = (ones(&[a, 4]), ones(&[b, 4]));
        let y = session.run(&[("x", &x), ("z", &z)], None);
        y.map(|y| y[0].1.shape()[0])
    };
    assert_eq!(shape(3, 3).expect("equal sizes"), 3);
    assert_eq!(shape(5, 1).expect("broadcasts"), 5);
    assert_eq!(shape(1, 2).expect("broadcasts"), 2);
    assert_eq!(shape(4, 4).expect("equal sizes"), 4);
    assert!(shape(3, 2).is_err(), "sizes do not broadcast");
    assert!(shape(7, 1).is_err(), "beyond the bound");
}

#[test]
fn axes_named_alike_may_differ() {
    let model =
        Model::new(&["?", "?"]).node(node("Softmax", &["x"], &["y"]).with(attr_int("axis", 1)));
    let mut session = open(&model, &ImportOptions::new());
    for sizes in [[2, 2], [2, 5], [3, 3]] {
        let y = session.run(&[("x", &ones(&sizes))], None).expect("runs");
        assert_eq!(y[0].1.shape(), sizes);
    }
    let flat = session.run(&[("x", &ones(&[4]))], None);
    assert!(matches!(flat, Err(SessionError::Run(_))), "{flat:?}");
}

#[test]
fn options_say_which_symbols_are_separate() {
    let model = Model::new(&["n", "n"]).node(node("Neg", &["x"], &["y"]));
    let model = Read::read(model.bytes()).expect("reads");
    let inputs = model.inputs(&ImportOptions::new().separate("n"));
    assert_eq!(
        inputs.expect("ports")[0].ty.to_string(),
        "f32[x_dim_0, x_dim_1]"
    );
    let same = Tensor::zeros(tercet_ir::TensorType::new(tercet_ir::DType::F32, &[2, 2]));
    let same = same.expect("fits");
    let adapted = model.options_for(&ImportOptions::new(), &[("x", same.ty())]);
    assert!(adapted.expect("fits").is_none());
}

//! Tests of sessions: when they compile, and which inputs they reject.

use tercet::{Device, Tensor};
use tercet_onnx::{ImportOptions, OnnxModel as Read, Session, SessionError};

use crate::made::{Model, attr_int, node};
use crate::ones;

fn open(model: &Model, options: &ImportOptions) -> Session {
    Session::open(model.bytes(), &Device::cpu(), options).expect("opens")
}

fn run(session: &mut Session, inputs: &[(&str, &Tensor)]) -> Vec<usize> {
    let outputs = session.run(inputs, None).expect("runs");
    assert_eq!(outputs[0].0, "y");
    outputs[0].1.shape().to_vec()
}

fn ints(values: &[i64]) -> Tensor {
    Tensor::from_slice(&[values.len()], values).expect("fits")
}

/// Splits `x [batch, sequence, 6]` into heads `[batch, 2, sequence, 3]` with a softmax, through
/// shape arithmetic.
fn heads() -> Model {
    Model::new(&["batch", "sequence", "6"])
        .ints("zero", &[1], &[0])
        .ints("one", &[1], &[1])
        .ints("heads", &[2], &[2, 3])
        .node(node("Shape", &["x"], &["shape"]))
        .node(node("Gather", &["shape", "zero"], &["b"]))
        .node(node("Gather", &["shape", "one"], &["s"]))
        .node(node("Concat", &["b", "s", "heads"], &["target"]).with(attr_int("axis", 0)))
        .node(node("Reshape", &["x", "target"], &["split"]))
        .node(
            node("Transpose", &["split"], &["h"])
                .with(crate::made::attr_ints("perm", &[0, 2, 1, 3])),
        )
        .node(node("Softmax", &["h"], &["y"]))
}

#[test]
fn a_dynamic_batch_and_sequence_run_at_fifty_sizes_with_one_compilation() {
    let options = ImportOptions::new().bound("batch", 5).bound("sequence", 40);
    let mut session = open(&heads(), &options);
    for batch in 1..=5 {
        for sequence in (4..=40).step_by(4) {
            let x = ones(&[batch, sequence, 6]);
            assert_eq!(run(&mut session, &[("x", &x)]), [batch, 2, sequence, 3]);
        }
    }
    assert_eq!(session.compilations(), 1);
    let e = session.run(&[("x", &ones(&[6, 1, 6]))], None);
    let e = e.expect_err("beyond the bound");
    assert!(matches!(&e, SessionError::Run(_)), "{e}");
}

#[test]
fn sizes_without_a_bound_compile_when_they_double() {
    let mut session = open(&heads(), &ImportOptions::new());
    for (sequence, compilations) in [(3, 1), (4, 1), (1, 1), (5, 2), (8, 2), (3, 2), (9, 3)] {
        let shape = run(&mut session, &[("x", &ones(&[1, sequence, 6]))]);
        assert_eq!(shape, [1, 2, sequence, 3]);
        assert_eq!(session.compilations(), compilations, "{sequence}");
    }
}

#[test]
fn operands_that_decide_shapes_compile_once_for_each_value_that_is_kept() {
    let model = Model::new(&["n", "6"])
        .int_input("shape", 2)
        .int_input("repeats", 2)
        .node(node("Reshape", &["x", "shape"], &["a"]))
        .node(node("Tile", &["a", "repeats"], &["y"]));
    let options = ImportOptions::new().bound("n", 4);
    let mut session = open(&model, &options).with_forms(2);
    assert_eq!(session.deciding().collect::<Vec<_>>(), ["shape"]);
    let x = ones(&[2, 6]);
    let mut at = |shape: &[i64], repeats: &[i64]| {
        let (shape, repeats) = (ints(shape), ints(repeats));
        let inputs = [("x", &x), ("shape", &shape), ("repeats", &repeats)];
        (run(&mut session, &inputs), session.compilations())
    };
    assert_eq!(at(&[-1, 3], &[1, 2]), (vec![4, 6], 1));
    assert_eq!(at(&[-1, 3], &[1, 2]), (vec![4, 6], 1));
    assert_eq!(at(&[-1, 2], &[1, 2]), (vec![6, 4], 2));
    assert_eq!(at(&[-1, 3], &[1, 2]), (vec![4, 6], 2));
    assert_eq!(at(&[-1, 3], &[2, 1]), (vec![8, 3], 3));
    // The specialization of [-1, 2] was the least recently used one, so it was dropped.
    assert_eq!(at(&[-1, 3], &[1, 2]), (vec![4, 6], 3));
    assert_eq!(at(&[-1, 2], &[1, 2]), (vec![6, 4], 4));
    assert_eq!(session.deciding().collect::<Vec<_>>(), ["repeats", "shape"]);
}

#[test]
fn any_of_the_outputs_can_be_had_and_what_is_wrong_is_named() {
    let model = Model::new(&["n"])
        .node(node("Add", &["x", "x"], &["y"]))
        .node(node("Neg", &["y"], &["z"]))
        .output("z");
    let mut session = open(&model, &ImportOptions::new());
    let x = ones(&[3]);
    let outputs = session.run(&[("x", &x)], Some(&["z"])).expect("runs");
    assert_eq!(outputs.len(), 1);
    assert_eq!(outputs[0].1.as_slice::<f32>().expect("f32"), [-2.0; 3]);
    let mut refused = |inputs: &[(&str, &Tensor)], wanted: Option<&[&str]>, what: &str| {
        let e = session.run(inputs, wanted).expect_err("is refused");
        assert!(e.to_string().contains(what), "{e}");
    };
    refused(&[("x", &x)], Some(&["w"]), "no output `w`; it has: y, z");
    refused(&[("w", &x)], None, "no input `w`; it has: x");
    refused(&[], None, "input `x` is missing");
    refused(&[("x", &ints(&[1]))], None, "is i64, expected f32");
    refused(&[("x", &x), ("x", &x)], None, "provided twice");
}

#[test]
fn an_initializer_that_is_an_input_is_its_default() {
    let model = Model::new(&["5"])
        .int_input("k", 1)
        .ints("k", &[1], &[2])
        .node(node("TopK", &["x", "k"], &["y", "at"]));
    let mut session = open(&model, &ImportOptions::new());
    let (x, three) = (ones(&[5]), ints(&[3]));
    let x = ("x", &x);
    assert_eq!(run(&mut session, &[x]), [2]);
    assert_eq!(run(&mut session, &[x, ("k", &three)]), [3]);
    assert_eq!(run(&mut session, &[x]), [2]);
    assert_eq!(session.compilations(), 2);
}

#[test]
fn a_model_that_no_input_can_help_is_refused_when_opened() {
    let model = Model::new(&["n"])
        .int_input("shape", 2)
        .node(node("Reshape", &["x", "shape"], &["a"]))
        .node(node("Nonsense", &["x"], &["y"]));
    let e = Session::open(model.bytes(), &Device::cpu(), &ImportOptions::new()).err();
    assert!(matches!(e, Some(SessionError::Import(_))), "{e:?}");
}

#[test]
fn a_description_says_what_the_file_declares() {
    let about = Read::read(heads().bytes()).expect("reads").describe();
    assert_eq!(about.opsets, [("ai.onnx".to_string(), 18)]);
    assert_eq!(about.operators["Gather"], 2);
    let x = &about.inputs[0];
    assert_eq!((x.name.as_str(), x.dtype.as_str()), ("x", "float"));
    let shape = x.shape.as_ref().expect("a shape");
    assert_eq!(shape, &["batch", "sequence", "6"]);
    assert_eq!(about.initializers[2].0, "heads");
    assert_eq!(about.initializers[2].2, [2]);
}

#[test]
fn outputs_stay_on_the_device_and_feed_the_next_run() {
    let model = Model::new(&["n"])
        .node(node("Add", &["x", "x"], &["y"]))
        .node(node("Neg", &["y"], &["z"]))
        .output("z");
    let mut session = open(&model, &ImportOptions::new());
    let x = ones(&[3]);
    let first = session.run_on_device(&[("x", &x)], &[], Some(&["y"]));
    let first = first.expect("runs");
    let again = session.run_on_device(&[], &[("x", &first[0].1)], None);
    let again = again.expect("runs");
    let read = |i: usize| again[i].1.read().expect("is there");
    let names: Vec<&str> = again.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["y", "z"]);
    assert_eq!(read(0).as_slice::<f32>().expect("f32"), [4.0; 3]);
    assert_eq!(read(1).as_slice::<f32>().expect("f32"), [-4.0; 3]);
    // A run with host inputs is no longer bound to the device tensor.
    let outputs = session.run(&[("x", &x)], None).expect("runs");
    assert_eq!(outputs[0].1.as_slice::<f32>().expect("f32"), [2.0; 3]);
    let e = session.run(&[], None).expect_err("nothing is given");
    assert!(e.to_string().contains("input `x` is missing"), "{e}");
}

//! Tests of importing models. Most of them are hand-made: constant folding, unsupported constructs
//! and invalid files. `models` has those of other tools, and `units` tests single parts of the
//! library.

mod codes;
mod folded;
mod hostile;
mod incomplete;
mod learned;
mod made;
mod microsoft;
mod models;
mod narrow;
mod session;
mod special_values;
mod units;

use made::{Model, attr_int, attr_ints, attr_text, node};
use tercet::{Device, Tensor};
use tercet_onnx::{ImportOptions, NodeErrorKind, OnnxError};

/// Imports, compiles and runs a model on one input, and returns its only result.
fn run(model: &Model, input: &Tensor) -> Tensor {
    let options = ImportOptions::new().bound("n", 64);
    let imported = tercet_onnx::import(model.bytes(), &options).expect("imports");
    let mut executable = imported.compile(&Device::cpu()).expect("compiles");
    let outputs = executable.run(&[("x", input)]).expect("runs");
    outputs.into_iter().next().expect("one result")
}

fn ones(shape: &[usize]) -> Tensor {
    Tensor::from_slice(shape, &vec![1f32; shape.iter().product()]).expect("fits")
}

/// `x [n, 2, 3]` flattened to `[n, 6]` by `Shape`, `Gather`, `Concat` and `Reshape`.
fn flattening() -> Model {
    Model::new(&["n", "2", "3"])
        .ints("zero", &[], &[0])
        .ints("rest", &[1], &[-1])
        .node(node("Shape", &["x"], &["shape"]))
        .node(node("Gather", &["shape", "zero"], &["rows"]))
        .node(node("Unsqueeze", &["rows", "axes"], &["row"]))
        .ints("axes", &[1], &[0])
        .node(node("Concat", &["row", "rest"], &["target"]).with(attr_int("axis", 0)))
        .node(node("Reshape", &["x", "target"], &["y"]))
}

#[test]
fn arithmetic_on_shapes_never_runs() {
    let imported =
        tercet_onnx::import(flattening().bytes(), &ImportOptions::new()).expect("imports");
    assert_eq!(imported.outputs[0].ty.to_string(), "f32[n, 6]");
    assert_eq!(imported.inputs[0].ty.to_string(), "f32[n, 2, 3]");
    assert_eq!(imported.graph.len(), 2, "an input and a reshape");
}

#[test]
fn a_dynamic_batch_runs_at_several_sizes_without_compiling_again() {
    let options = ImportOptions::new().bound("n", 64);
    let imported = tercet_onnx::import(flattening().bytes(), &options).expect("imports");
    let mut executable = imported.compile(&Device::cpu()).expect("compiles");
    for n in [1, 7, 64, 2] {
        let outputs = executable.run(&[("x", &ones(&[n, 2, 3]))]).expect("runs");
        assert_eq!(outputs[0].shape(), [n, 6]);
    }
}

#[test]
fn nodes_need_not_be_in_order() {
    let mut model = flattening();
    model.graph.node.reverse();
    assert_eq!(run(&model, &ones(&[3, 2, 3])).shape(), [3, 6]);
}

#[test]
fn a_circle_of_nodes_is_refused() {
    let model = Model::new(&["2"])
        .node(node("Add", &["x", "b"], &["a"]))
        .node(node("Neg", &["a"], &["b"]))
        .node(node("Neg", &["b"], &["y"]));
    let e = tercet_onnx::import(model.bytes(), &ImportOptions::new())
        .expect_err("the nodes form a cycle");
    assert!(
        matches!(&e, OnnxError::Invalid(why) if why.contains("cycle")),
        "{e}"
    );
}

#[test]
fn everything_that_is_refused_is_said_at_once() {
    let model = Model::new(&["2"])
        .node(node("Relu", &["x"], &["a"]).with(attr_int("leak", 1)))
        .node(node("Nonsense", &["x"], &["b"]).named("here"))
        .node(node("Add", &["a", "b"], &["y"]));
    let e = tercet_onnx::import(model.bytes(), &ImportOptions::new()).expect_err("two problems");
    let OnnxError::Nodes(nodes) = &e else {
        panic!("{e}")
    };
    assert_eq!(nodes.len(), 2, "{e}");
    assert!(
        matches!(&nodes[0].source, NodeErrorKind::Unread(names) if names == "`leak`"),
        "{e}"
    );
    assert_eq!(nodes[0].at.to_string(), "#0 (Relu)");
    assert_eq!(nodes[1].at.to_string(), "here (Nonsense)");
}

#[test]
fn an_input_that_decides_shapes_is_asked_for() {
    let model =
        Model::new(&["6"])
            .int_input("shape", 2)
            .node(node("Reshape", &["x", "shape"], &["y"]));
    let e = tercet_onnx::import(model.bytes(), &ImportOptions::new())
        .expect_err("the shape is unknown");
    let OnnxError::Nodes(nodes) = &e else {
        panic!("{e}")
    };
    assert!(
        matches!(&nodes[0].source, NodeErrorKind::NeedsValue { inputs, .. } if inputs == &["shape"]),
        "{e}"
    );
    let shape = Tensor::from_slice(&[2], &[2i64, 3]).expect("fits");
    let imported = tercet_onnx::import(model.bytes(), &ImportOptions::new().value("shape", shape))
        .expect("imports");
    assert_eq!(imported.outputs[0].ty.to_string(), "f32[2, 3]");
    assert_eq!(imported.fixed, ["shape"]);
}

#[test]
fn slices_to_the_end_of_a_symbolic_axis_stay_symbolic() {
    let model = Model::new(&["n", "4"])
        .ints("from", &[1], &[1])
        .ints("to", &[1], &[i64::MAX])
        .ints("along", &[1], &[0])
        .node(node("Slice", &["x", "from", "to", "along"], &["y"]));
    assert_eq!(run(&model, &ones(&[5, 4])).shape(), [4, 4]);
}

#[test]
fn versions_change_what_softmax_is() {
    let model = |opset| {
        Model::new(&["2", "3", "4"])
            .opset(opset)
            .node(node("Softmax", &["x"], &["y"]))
    };
    let old = run(&model(11), &ones(&[2, 3, 4]));
    assert_eq!(old.as_slice::<f32>().expect("f32")[0], 1.0 / 12.0);
    let new = run(&model(13), &ones(&[2, 3, 4]));
    assert_eq!(new.as_slice::<f32>().expect("f32")[0], 0.25);
}

#[test]
fn axes_are_an_attribute_before_they_are_an_operand() {
    let model = Model::new(&["2", "1"])
        .opset(11)
        .node(node("Squeeze", &["x"], &["y"]).with(attr_ints("axes", &[1])));
    assert_eq!(run(&model, &ones(&[2, 1])).shape(), [2]);
    let model = model.opset(13);
    let e = tercet_onnx::import(model.bytes(), &ImportOptions::new()).expect_err("an operand now");
    assert!(e.to_string().contains("`axes`"), "{e}");
}

#[test]
fn functions_are_written_out_and_those_that_call_themselves_refused() {
    let model = Model::new(&["2"])
        .function(
            "Twice",
            &["a"],
            &["b"],
            vec![node("Add", &["a", "a"], &["b"]).proto],
        )
        .node(node("Twice", &["x"], &["y"]).of("local"));
    assert_eq!(
        run(&model, &ones(&[2])).as_slice::<f32>().expect("f32"),
        [2.0, 2.0]
    );
    let model = Model::new(&["2"])
        .function(
            "Again",
            &["a"],
            &["b"],
            vec![node("Again", &["a"], &["b"]).of("local").proto],
        )
        .node(node("Again", &["x"], &["y"]).of("local"));
    let e = tercet_onnx::import(model.bytes(), &ImportOptions::new()).expect_err("it never ends");
    assert!(e.to_string().contains("deep"), "{e}");
}

/// Weights of a linear filter that is stretched for a smaller size, `[to][from]`.
fn stretched_weights(from: usize, to: usize) -> Vec<Vec<f64>> {
    let scale = to as f64 / from as f64;
    let row = |o: usize| {
        let center = (o as f64 + 0.5) / scale - 0.5;
        let weight = |i: i64| (1.0 - ((i as f64 - center) * scale).abs()).max(0.0);
        let mut row = vec![0.0; from];
        // Elements beyond the ends repeat the last ones.
        for i in -(from as i64)..2 * from as i64 {
            row[i.clamp(0, from as i64 - 1) as usize] += weight(i);
        }
        let total: f64 = row.iter().sum();
        row.iter().map(|w| w / total).collect()
    };
    (0..to).map(row).collect()
}

#[test]
fn antialiased_resizes_have_the_weights_of_a_stretched_filter() {
    // Few and many taps for the size of an axis, on the last axis and on the one before it.
    for (from, to) in [
        ([200, 170], [57, 40]),
        ([12, 190], [5, 60]),
        ([190, 9], [190, 4]),
    ] {
        let [rows, columns] = from.map(|n: usize| n.to_string());
        let sizes = [1, 2, to[0] as i64, to[1] as i64];
        let resize = node("Resize", &["x", "", "", "sizes"], &["y"]);
        let resize = resize
            .with(attr_text("mode", "linear"))
            .with(attr_int("antialias", 1));
        let model = Model::new(&["1", "2", &rows, &columns])
            .ints("sizes", &[4], &sizes)
            .node(resize);
        let plane = from[0] * from[1];
        let x: Vec<f32> = (0..2 * plane)
            .map(|i| (i * 7919 % 1013) as f32 / 100.0)
            .collect();
        let input = Tensor::from_slice(&[1, 2, from[0], from[1]], &x).expect("fits");
        let y = run(&model, &input);
        assert_eq!(y.shape(), [1, 2, to[0], to[1]]);
        let (down, across) = (
            stretched_weights(from[0], to[0]),
            stretched_weights(from[1], to[1]),
        );
        for (at, got) in y.to_f64s().iter().enumerate() {
            let (channel, r, c) = (at / (to[0] * to[1]), at / to[1] % to[0], at % to[1]);
            let row = |i: usize| {
                let x = &x[channel * plane + i * from[1]..][..from[1]];
                let products = x.iter().zip(&across[c]);
                products.map(|(x, w)| f64::from(*x) * w).sum::<f64>()
            };
            let rows = down[r].iter().enumerate().filter(|(_, w)| **w != 0.0);
            let want: f64 = rows.map(|(i, w)| w * row(i)).sum();
            assert!(
                (got - want).abs() < 1e-4,
                "{from:?}, element {at}: {got}, expected {want}"
            );
        }
    }
}

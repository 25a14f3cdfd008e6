//! Tests of damaged or contradictory files with `ai.onnx.ml` operators.

use std::path::Path;

use tercet::{Device, Tensor, one_line};
use tercet_onnx::ImportOptions;
use tercet_onnx::proto::AttributeProto;

use crate::made::{MadeNode, Model, attr_int, attr_ints, node};

fn floats(name: &str, floats: &[f32]) -> AttributeProto {
    AttributeProto {
        name: Some(name.to_string()),
        floats: floats.to_vec(),
        r#type: Some(6),
        ..AttributeProto::default()
    }
}

fn strings(name: &str, list: &[&str]) -> AttributeProto {
    AttributeProto {
        name: Some(name.to_string()),
        strings: list.iter().map(|s| s.to_string().into()).collect(),
        r#type: Some(8),
        ..AttributeProto::default()
    }
}

fn learned(op: &str) -> MadeNode {
    node(op, &["x"], &["y"]).of("ai.onnx.ml")
}

/// A tree of one inner node and two leaves, with some of its lists replaced.
fn tree(changed: &[AttributeProto]) -> Model {
    let lists = [
        attr_ints("nodes_treeids", &[0, 0, 0]),
        attr_ints("nodes_nodeids", &[0, 1, 2]),
        attr_ints("nodes_featureids", &[0, 0, 0]),
        floats("nodes_values", &[0.5, 0.0, 0.0]),
        strings("nodes_modes", &["BRANCH_LEQ", "LEAF", "LEAF"]),
        attr_ints("nodes_truenodeids", &[1, 0, 0]),
        attr_ints("nodes_falsenodeids", &[2, 0, 0]),
        attr_ints("target_treeids", &[0, 0]),
        attr_ints("target_nodeids", &[1, 2]),
        attr_ints("target_ids", &[0, 0]),
        floats("target_weights", &[1.0, 2.0]),
    ];
    let mut made = learned("TreeEnsembleRegressor");
    for list in lists {
        let other = changed.iter().find(|c| c.name == list.name);
        made = made.with(other.cloned().unwrap_or(list));
    }
    Model::new(&["n", "2"]).node(made)
}

fn refusal(model: &Model) -> String {
    let made = tercet_onnx::import(model.bytes(), &ImportOptions::new());
    one_line(&made.expect_err("is refused"))
}

#[test]
fn trees_that_contradict_themselves_are_refused() {
    tercet_onnx::import(tree(&[]).bytes(), &ImportOptions::new()).expect("it is whole");
    let cases: &[(AttributeProto, &str)] = &[
        (attr_ints("nodes_truenodeids", &[0, 0, 0]), "form a cycle"),
        (
            attr_ints("nodes_falsenodeids", &[7, 0, 0]),
            "refers to node 7, which does not exist",
        ),
        (attr_ints("nodes_nodeids", &[0, 1, 1]), "occurs twice"),
        (attr_ints("nodes_featureids", &[2, 0, 0]), "reads feature 2"),
        (
            attr_ints("nodes_featureids", &[-1, 0, 0]),
            "reads feature -1",
        ),
        (
            attr_ints("nodes_featureids", &[0, 0]),
            "`nodes_nodeids` has 3",
        ),
        (attr_ints("target_nodeids", &[0, 2]), "which is not a leaf"),
        (attr_ints("target_ids", &[0, 3]), "target 3 of 1"),
        (attr_ints("target_ids", &[0, -1]), "a target is -1"),
        (attr_ints("target_ids", &[0]), "differ in length"),
        (
            strings("nodes_modes", &["BRANCH_MAYBE", "LEAF", "LEAF"]),
            "`BRANCH_MAYBE` is not known",
        ),
    ];
    for (changed, wanted) in cases {
        let found = refusal(&tree(std::slice::from_ref(changed)));
        assert!(found.contains(wanted), "{found}");
    }
}

#[test]
fn classifiers_need_labels_and_numbers_of_one_length() {
    let classifier = || learned("LinearClassifier").with(floats("intercepts", &[0.0, 1.0]));
    let small = |made: MadeNode| refusal(&Model::new(&["n", "2"]).node(made));
    let whole = || classifier().with(floats("coefficients", &[1.0; 4]));
    assert!(small(whole()).contains("class labels are missing"));
    let three = whole().with(attr_ints("classlabels_ints", &[1, 2, 3]));
    assert!(small(three).contains("2 for 3 classes"));
    let both = whole().with(attr_ints("classlabels_ints", &[1, 2]));
    let both = both.with(strings("classlabels_strings", &["a", "b"]));
    assert!(small(both).contains("labels must be either numbers or strings, found both"));
    let short = classifier().with(attr_ints("classlabels_ints", &[1, 2]));
    let short = short.with(floats("coefficients", &[1.0; 3]));
    assert!(small(short).contains("has 3 values, expected 4"));
    let unknown = whole().with(attr_ints("classlabels_ints", &[1, 2]));
    let unknown = unknown.with(attr_int("sharpness", 1));
    assert!(small(unknown).contains("unsupported attributes `sharpness`"));
}

#[test]
fn a_category_that_is_none_fails_the_run_where_the_file_says_so() {
    let made = learned("OneHotEncoder")
        .with(attr_ints("cats_int64s", &[1, 2]))
        .with(attr_int("zeros", 0));
    let model = Model::new(&["n"]).node(made);
    let options = ImportOptions::new().bound("n", 4);
    let imported = tercet_onnx::import(model.bytes(), &options).expect("imports");
    let mut executable = imported.compile(&Device::cpu()).expect("compiles");
    let known = Tensor::from_slice(&[2], &[2f32, 1.0]).expect("fits");
    let y = executable.run(&[("x", &known)]).expect("runs");
    assert_eq!(y[0].to_f64s(), [0.0, 1.0, 1.0, 0.0]);
    let unknown = Tensor::from_slice(&[2], &[2f32, 5.0]).expect("fits");
    executable
        .run(&[("x", &unknown)])
        .expect_err("5 is no category");
}

#[test]
fn bytes_of_trees_that_are_changed_do_not_panic() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/onnx-learned");
    for name in [
        "two_sums_none",
        "ensemble_members",
        "label_texts_to_texts",
        "svm_poly",
    ] {
        let whole = std::fs::read(folder.join(format!("{name}.onnx"))).expect("is there");
        for at in 0..whole.len() {
            for bit in [0, 3, 7] {
                let mut bytes = whole.clone();
                bytes[at] ^= 1 << bit;
                let _ = tercet_onnx::import(bytes, &ImportOptions::new());
            }
        }
    }
}

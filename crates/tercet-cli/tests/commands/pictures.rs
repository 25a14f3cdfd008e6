//! `embed` and `classify` on small image-model folders.

use crate::common::{bad, data, good, json};
use serde_json::Value;

fn reference(name: &str) -> Value {
    let path = format!("{}/reference.json", data(name));
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn floats(v: &Value) -> Vec<f64> {
    let all = v.as_array().unwrap().iter();
    all.map(|x| x.as_f64().unwrap()).collect()
}

fn near(got: &Value, want: &Value) {
    let (got, want) = (floats(got), floats(want));
    assert_eq!(got.len(), want.len());
    for (x, y) in got.iter().zip(&want) {
        assert!((x - y).abs() < 2e-4, "{x} instead of {y}");
    }
}

#[test]
fn pictures_and_texts_are_embedded_in_their_order() {
    let model = data("vision/clip-a");
    let want = reference("vision/clip-a");
    let picture = data("vision/pictures/wide.png");
    let text = want["words"]["texts"][0].as_str().unwrap();
    let v = json(&["embed", "-m", &model, "--json", text, &picture]);
    near(&v[0]["embedding"], &want["words"]["features"][0]);
    near(&v[1]["embedding"], &want["features"][0]);
    let table = good(&["embed", "-m", &model, text, &picture]).out;
    assert_eq!(table.lines().count(), 3, "{table}");
}

#[test]
fn pictures_are_classified_by_heads_and_descriptions() {
    let picture = data("vision/pictures/wide.png");
    let model = data("vision/vit-a");
    let v = json(&["classify", "-m", &model, "--json", &picture]);
    assert_eq!(v[0]["picture"], picture);
    let logits = floats(&reference("vision/vit-a")["logits"][0]);
    let sum: f64 = logits.iter().map(|x| x.exp()).sum();
    for (at, x) in logits.iter().enumerate() {
        let got = v[0]["scores"][format!("class-{at}")].as_f64().unwrap();
        assert!((got - x.exp() / sum).abs() < 1e-4, "{got}");
    }
    let model = data("vision/siglip-a");
    let labels = [
        "--label",
        "a photo of a cat",
        "--label",
        "two dogs on grass",
    ];
    let args = [&["classify", "-m", &model, &picture][..], &labels].concat();
    let out = good(&args).out;
    assert_eq!(out.lines().count(), 1, "{out}");
    assert!(out.contains("cat") || out.contains("dogs"), "{out}");
}

#[test]
fn what_does_not_fit_is_refused() {
    let picture = data("vision/pictures/wide.png");
    let model = data("vision/vit-a");
    bad(
        &["embed", "-m", &model, "--json", "a cat"],
        1,
        &["`vit`", "no texts"],
    );
    bad(
        &["classify", "-m", &model, "--label", "a cat", &picture],
        1,
        &["`vit`", "no texts"],
    );
    let bare = data("vision/vit-c");
    bad(
        &["classify", "-m", &bare, &picture],
        1,
        &["ForImageClassification"],
    );
    bad(
        &["embed", "-m", &model, "--json", "missing.png"],
        1,
        &["missing.png"],
    );
    let json = data("vision/pictures/resized.json");
    bad(
        &["classify", "-m", &model, &json],
        1,
        &["resized.json", "cannot decode as PNG, JPEG, WebP or GIF"],
    );
    bad(&["generate", "-m", &model, "-p", "a"], 1, &["vit"]);
}

//! Tests of models trained by scikit-learn, XGBoost and LightGBM against ONNX Runtime, and of
//! unsupported operators. `make.py` in `tests/data/onnx-learned` created the data.

use std::path::{Path, PathBuf};

use tercet::{Device, Tensor, one_line};
use tercet_onnx::{ImportOptions, Session};

/// Maximum difference of scores, relative to the maximum score.
const TOLERANCE: f64 = 2e-5;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/onnx-learned")
}

fn open(name: &str) -> Result<Session, String> {
    let path = folder().join(format!("{name}.onnx"));
    let session = Session::open(path.as_path(), &Device::cpu(), &ImportOptions::new());
    session.map_err(|e| one_line(&e))
}

/// The inputs and outputs of a model run.
struct Run {
    inputs: Vec<(String, Tensor)>,
    outputs: Vec<(String, Tensor)>,
}

fn run_of(name: &str, session: &Session) -> Run {
    let bytes = std::fs::read(folder().join(format!("{name}.pb"))).expect("the test data exists");
    let tensors = session.strings().read_tensors(bytes).expect("tensors");
    let side = |kind: &str| -> Vec<(String, Tensor)> {
        let own = tensors.iter().filter_map(|(name, tensor)| {
            let name = name.strip_prefix(kind)?;
            Some((name.to_string(), tensor.clone()))
        });
        own.collect()
    };
    Run {
        inputs: side("0/in/"),
        outputs: side("0/out/"),
    }
}

/// The difference from the expected results of a model, if any.
fn wrong(name: &str) -> Option<String> {
    let mut session = match open(name) {
        Ok(session) => session,
        Err(e) => return Some(e),
    };
    let run = run_of(name, &session);
    let inputs: Vec<_> = run.inputs.iter().map(|(n, t)| (n.as_str(), t)).collect();
    let got = match session.run(&inputs, None) {
        Ok(got) => got,
        Err(e) => return Some(one_line(&e)),
    };
    for ((name, got), (wanted, want)) in got.iter().zip(&run.outputs) {
        if name != wanted || got.ty() != want.ty() {
            return Some(format!(
                "{name} is {}, not {wanted} {}",
                got.ty(),
                want.ty()
            ));
        }
        let exact = want.dtype().is_int();
        let (got, want) = (got.to_f64s(), want.to_f64s());
        let greatest = want.iter().fold(1e-30f64, |m, x| m.max(x.abs()));
        let bound = if exact { 0.0 } else { TOLERANCE * greatest };
        let mut pairs = got.iter().zip(&want).enumerate();
        let off =
            pairs.find(|(_, (a, b))| !((*a - *b).abs() <= bound || (a.is_nan() && b.is_nan())));
        if let Some((at, (a, b))) = off {
            return Some(format!("{name}: element {at} is {a}, not {b}"));
        }
    }
    (got.len() != run.outputs.len()).then(|| format!("{} results", got.len()))
}

#[test]
fn models_give_what_onnx_runtime_gives() {
    let mut names: Vec<String> = std::fs::read_dir(folder())
        .expect("the folder exists")
        .filter_map(|e| Some(e.ok()?.path()))
        .filter(|p| p.extension().is_some_and(|e| e == "onnx"))
        .filter_map(|p| Some(p.file_stem()?.to_str()?.to_string()))
        .collect();
    names.sort();
    assert!(names.len() >= 55, "{} models", names.len());
    let off = names
        .iter()
        .filter_map(|n| Some(format!("{n}: {}", wrong(n)?)));
    let off: Vec<String> = off.collect();
    assert!(off.is_empty(), "{}", off.join("\n"));
}

#[test]
fn labels_are_places_of_strings_and_maps_are_columns() {
    let mut session = open("logistic_maps").expect("opens");
    let run = run_of("logistic_maps", &session);
    let inputs: Vec<_> = run.inputs.iter().map(|(n, t)| (n.as_str(), t)).collect();
    let got = session.run(&inputs, None).expect("runs");
    let label = |place: &i64| session.strings().at(*place).map(str::to_string);
    let labels: Option<Vec<String>> = got[0].1.to_i64s().iter().map(label).collect();
    let labels = labels.expect("all strings are in the file's table");
    let columns = session.columns(&got[1].0).expect("has keys");
    assert_eq!(columns, ["ash", "birch", "cedar", "oak"]);
    let scores = got[1].1.to_f64s();
    for (label, row) in labels.iter().zip(scores.chunks(columns.len())) {
        let best = (0..row.len()).max_by(|a, b| row[*a].total_cmp(&row[*b]));
        assert_eq!(Some(label), best.map(|at| &columns[at]));
    }
    assert_eq!(session.columns(&got[0].0), None);
    assert_eq!(session.strings().place("elm"), -1);
}

//! Tests of `com.microsoft` operators (`tests/data/onnx-microsoft`), of results with data-dependent
//! sizes (`tests/data/onnx-selected`) and of less common forms of operators
//! (`tests/data/onnx-variants`) against ONNX Runtime. `make.py` in each folder
//! created the cases.

use std::path::{Path, PathBuf};

use tercet::{Device, Tensor, one_line};
use tercet_onnx::{ImportOptions, Session, read_tensor};

fn tensors(folder: &Path, kind: &str) -> Vec<Tensor> {
    let path = |i: usize| folder.join(format!("{kind}_{i}.pb"));
    let files = (0..).map(path).take_while(|p| p.exists());
    let tensor = |p: PathBuf| read_tensor(std::fs::read(p).expect("is read")).expect("a tensor");
    files.map(tensor).collect()
}

/// The maximum difference in units of the tolerance: 1e-5 plus 1e-5 of the value.
fn difference(got: &Tensor, want: &Tensor) -> f64 {
    assert_eq!((got.dtype(), got.shape()), (want.dtype(), want.shape()));
    let pairs = got.to_f64s().into_iter().zip(want.to_f64s());
    let off = pairs.map(|(a, b)| (a - b).abs() / (1e-5 + 1e-5 * b.abs()));
    off.fold(0.0, |most, d| if d.is_nan() { d } else { d.max(most) })
}

/// The difference from the expected results of a case, if any.
fn wrong(folder: &Path) -> Option<String> {
    let model = folder.join("model.onnx");
    let session = Session::open(model.as_path(), &Device::cpu(), &ImportOptions::new());
    let mut session = match session {
        Ok(session) => session,
        Err(e) => return Some(one_line(&e)),
    };
    let names: Vec<String> = session.inputs().iter().map(|p| p.name.clone()).collect();
    let given = tensors(folder, "input");
    assert_eq!(names.len(), given.len());
    let inputs: Vec<_> = names.iter().map(String::as_str).zip(&given).collect();
    let got = match session.run(&inputs, None) {
        Ok(got) => got,
        Err(e) => return Some(one_line(&e)),
    };
    let wanted = tensors(folder, "output");
    assert_eq!(got.len(), wanted.len());
    got.iter().zip(&wanted).find_map(|((name, got), want)| {
        let off = difference(got, want);
        (off.is_nan() || off > 1.0).then(|| format!("{name} is off by {off} tolerances"))
    })
}

/// Runs all cases of a folder and checks that there are at least `least`.
fn check(folder: &str, least: usize) {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data");
    let entries = std::fs::read_dir(data.join(folder)).expect("the data");
    let folders: Vec<PathBuf> = entries.flatten().map(|e| e.path()).collect();
    let folders: Vec<PathBuf> = folders
        .into_iter()
        .filter(|p| p.join("model.onnx").exists())
        .collect();
    let problem = |folder: &PathBuf| Some(format!("{}: {}", folder.display(), wrong(folder)?));
    let problems: Vec<String> = folders.iter().filter_map(problem).collect();
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    assert!(folders.len() >= least, "{} cases", folders.len());
}

#[test]
fn operators_of_microsoft_give_what_onnx_runtime_gives() {
    check("onnx-microsoft", 75);
}

#[test]
fn results_whose_size_depends_on_data_have_their_size() {
    check("onnx-selected", 32);
}

#[test]
fn other_forms_of_operators_give_what_onnx_runtime_gives() {
    check("onnx-variants", 92);
}

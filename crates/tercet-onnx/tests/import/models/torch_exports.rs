//! Tests of models exported by both of torch's exporters against torch in F64
//! (`tests/data/onnx-torch`). Quantized and F16 variants are tested against ONNX Runtime
//! (`tests/data/onnx-quantized`). `make.py` in each folder created the data.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use tercet::{Device, Tensor, one_line};
use tercet_onnx::{ImportOptions, Session, read_tensors};

/// Maximum difference, relative to the maximum element.
const F32: f64 = 2e-5;
/// The same for F16. ONNX Runtime rounds intermediate F16 values at other operators.
const F16: f64 = 4e-3;

fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data")
}

fn folder() -> PathBuf {
    data().join("onnx-torch")
}

/// The named inputs and the results of a run.
#[derive(Default)]
struct Run {
    inputs: Vec<(String, Tensor)>,
    outputs: Vec<Tensor>,
}

/// The runs of a model by number.
fn runs(model: &str) -> BTreeMap<String, Run> {
    runs_in(&folder().join(format!("{model}.pb")))
}

fn runs_in(path: &Path) -> BTreeMap<String, Run> {
    let bytes = std::fs::read(path).expect("the test data exists");
    let mut runs: BTreeMap<String, Run> = BTreeMap::new();
    for (name, tensor) in read_tensors(bytes).expect("tensors") {
        let parts: Vec<&str> = name.splitn(3, '/').collect();
        let [run, kind, name] = parts[..] else {
            panic!("`{name}` is not a tensor of a run")
        };
        let run = runs.entry(run.to_string()).or_default();
        match kind {
            "in" => run.inputs.push((name.to_string(), tensor)),
            "out" => run.outputs.push(tensor),
            other => panic!("{other}"),
        }
    }
    runs
}

/// The exports, each with the runs for which the export itself is correct.
fn exports() -> Vec<(String, Vec<String>)> {
    let text = std::fs::read_to_string(folder().join("exports.txt")).expect("the list exists");
    let line = |line: &str| {
        let mut words = line.split_whitespace().map(str::to_string);
        (words.next().expect("a file"), words.collect())
    };
    text.lines().map(line).collect()
}

fn open(file: &str, options: &ImportOptions) -> Result<Session, String> {
    open_in(&folder().join(file), options)
}

fn open_in(path: &Path, options: &ImportOptions) -> Result<Session, String> {
    Session::open(path, &Device::cpu(), options).map_err(|e| one_line(&e))
}

/// The difference from the expected results of an F32 run, if any.
fn wrong(session: &mut Session, run: &Run) -> Option<String> {
    wrong_beyond(F32, session, run)
}

/// The difference from the expected results of a run: another type, or values outside the
/// tolerance.
fn wrong_beyond(tolerance: f64, session: &mut Session, run: &Run) -> Option<String> {
    let inputs: Vec<_> = run.inputs.iter().map(|(n, t)| (n.as_str(), t)).collect();
    let got = match session.run(&inputs, None) {
        Ok(got) => got,
        Err(e) => return Some(one_line(&e)),
    };
    if got.len() != run.outputs.len() {
        return Some(format!("{} results of {}", got.len(), run.outputs.len()));
    }
    for ((name, got), want) in got.iter().zip(&run.outputs) {
        if got.ty() != want.ty() {
            return Some(format!("{name} is {}, expected {}", got.ty(), want.ty()));
        }
        let (got, want) = (got.to_f64s(), want.to_f64s());
        let greatest = want.iter().fold(1e-30f64, |m, x| m.max(x.abs()));
        let off = got.iter().zip(&want).map(|(a, b)| (a - b).abs() / greatest);
        let off = off.fold(0.0f64, |m, d| if d.is_nan() { d } else { m.max(d) });
        if off.is_nan() || off > tolerance {
            return Some(format!("{name} differs by {off:e} of the maximum element"));
        }
    }
    None
}

#[test]
fn exports_of_torch_compute_what_torch_does() {
    let mut failures = Vec::new();
    let (mut models, mut ran) = (0, 0);
    for (file, at) in exports() {
        let name = file.split('.').next().expect("a name");
        let runs = runs(name);
        let mut session = match open(&file, &ImportOptions::new()) {
            Ok(session) => session,
            Err(e) => {
                failures.push(format!("{file}: {e}"));
                continue;
            }
        };
        models += 1;
        for number in at {
            let problem = wrong(&mut session, &runs[&number]);
            failures.extend(problem.map(|p| format!("{file}, run {number}: {p}")));
            ran += 1;
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(models >= 100 && ran >= 190, "{models} models, {ran} runs");
}

#[test]
fn a_decoder_of_any_batch_and_sequence_compiles_once() {
    let options = ImportOptions::new().bound("n", 4).bound("s", 16);
    for file in [
        "llama.script.onnx",
        "bert.script.onnx",
        "encoder.dynamo.onnx",
    ] {
        let mut session = open(file, &options).expect("opens");
        for run in runs(file.split('.').next().expect("a name")).values() {
            assert_eq!(wrong(&mut session, run), None, "{file}");
        }
        assert_eq!(session.compilations(), 1, "{file}");
        assert!(session.fixed_sizes().is_empty(), "{file}");
    }
}

#[test]
fn sizes_that_shapes_have_no_form_for_are_fixed_and_no_others() {
    let mut session = open("resnet.script.onnx", &ImportOptions::new()).expect("opens");
    let runs = runs("resnet");
    for run in [&runs["0"], &runs["1"], &runs["0"]] {
        assert_eq!(wrong(&mut session, run), None);
    }
    let fixed: Vec<&str> = session.fixed_sizes().iter().map(|s| s.name()).collect();
    assert_eq!(fixed, ["h", "w"]);
    assert_eq!(session.compilations(), 2);
    let options = ImportOptions::new().bound("h", 16);
    let mut bounded = open("resnet.script.onnx", &options).expect("opens");
    let problem = wrong(&mut bounded, &runs["0"]).expect("beyond the bound");
    assert!(
        problem.contains("`h`, which exceeds its bound 16"),
        "{problem}"
    );
}

#[test]
fn exports_in_fewer_bits_compute_what_onnx_runtime_does() {
    let entries = std::fs::read_dir(data().join("onnx-quantized")).expect("the models");
    let mut failures = Vec::new();
    let mut models = 0;
    for path in entries.flatten().map(|e| e.path()) {
        if path.extension().is_none_or(|e| e != "onnx") {
            continue;
        }
        let name = path.display();
        let tolerance = match path.with_extension("").extension() {
            Some(kind) if kind == "f16" => F16,
            _ => F32,
        };
        models += 1;
        match open_in(&path, &ImportOptions::new()) {
            Err(e) => failures.push(format!("{name}: {e}")),
            Ok(mut session) => {
                for (number, run) in runs_in(&path.with_extension("pb")) {
                    let problem = wrong_beyond(tolerance, &mut session, &run);
                    failures.extend(problem.map(|p| format!("{name}, run {number}: {p}")));
                }
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(models >= 19, "{models} models");
}

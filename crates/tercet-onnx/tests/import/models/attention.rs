//! Tests of `Attention` against ONNX's reference evaluator: queries at the end of the valid keys of
//! each sequence, queries that see no key, and windows of keys. `make.py` in
//! `tests/data/onnx-attention` created the data.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use prost::Message;
use tercet::{Device, Tensor, one_line};
use tercet_onnx::proto::ModelProto;
use tercet_onnx::{ImportOptions, OnnxError, Session};

/// Maximum difference, relative to the maximum element.
const TOLERANCE: f64 = 1e-5;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/onnx-attention")
}

/// The inputs and results of a run.
#[derive(Default)]
struct AttentionRun {
    inputs: Vec<(String, Tensor)>,
    outputs: Vec<Tensor>,
}

fn runs(model: &Path, session: &Session) -> Vec<AttentionRun> {
    let bytes = std::fs::read(model.with_extension("pb")).expect("the data exists");
    let mut runs: BTreeMap<String, AttentionRun> = BTreeMap::new();
    for (name, tensor) in session.strings().read_tensors(bytes).expect("tensors") {
        let parts: Vec<&str> = name.splitn(3, '/').collect();
        let run = runs.entry(parts[0].to_string()).or_default();
        match parts[1] {
            "in" => run.inputs.push((parts[2].to_string(), tensor)),
            _ => run.outputs.push(tensor),
        }
    }
    runs.into_values().collect()
}

/// The first difference from the expected results of a model, if any.
fn wrong(model: &Path) -> Result<(), String> {
    let session = Session::open(model, &Device::cpu(), &ImportOptions::new());
    let mut session = session.map_err(|e| one_line(&e))?;
    for run in runs(model, &session) {
        let inputs: Vec<_> = run.inputs.iter().map(|(n, t)| (n.as_str(), t)).collect();
        let got = session.run(&inputs, None).map_err(|e| one_line(&e))?;
        if got.len() != run.outputs.len() {
            return Err(format!("{} results", got.len()));
        }
        for ((name, got), want) in got.iter().zip(&run.outputs) {
            if got.ty() != want.ty() {
                return Err(format!("{name} is {}, not {}", got.ty(), want.ty()));
            }
            let (got, want) = (got.to_f64s(), want.to_f64s());
            let bound = TOLERANCE * want.iter().fold(1e-30f64, |m, x| m.max(x.abs()));
            let mut pairs = got.iter().zip(&want).enumerate();
            // A NaN is no small difference either.
            let off = pairs.find(|(_, (a, b))| (*a - *b).abs().total_cmp(&bound).is_gt());
            if let Some((at, (a, b))) = off {
                return Err(format!("{name}: element {at} is {a}, not {b}"));
            }
        }
    }
    Ok(())
}

#[test]
fn masks_causality_valid_keys_and_windows_combine_as_in_the_reference() {
    let entries = std::fs::read_dir(folder()).expect("the folder exists");
    let paths = entries.filter_map(|e| Some(e.ok()?.path()));
    let models: Vec<PathBuf> = paths
        .filter(|p| p.extension().is_some_and(|e| e == "onnx"))
        .collect();
    assert_eq!(models.len(), 16);
    let off = models.iter().filter_map(|model| {
        let reason = wrong(model).err()?;
        Some(format!("{}: {reason}", model.display()))
    });
    let off: Vec<String> = off.collect();
    assert!(off.is_empty(), "{}", off.join("\n"));
}

#[test]
fn a_negative_window_is_refused_by_name() {
    let model = folder().join("window_left.onnx");
    let bytes = std::fs::read(model).expect("reads");
    let mut model = ModelProto::decode(bytes.as_slice()).expect("decodes");
    let graph = model.graph.as_mut().expect("has a graph");
    let mut attributes = graph.node[0].attribute.iter_mut();
    let window = attributes.find(|a| a.name.as_deref() == Some("left_window_size"));
    window.expect("has a window").i = Some(-2);
    let bytes = model.encode_to_vec();
    let e = tercet_onnx::import(bytes, &ImportOptions::new()).expect_err("no size");
    assert!(matches!(&e, OnnxError::Nodes(_)), "{e}");
    assert!(e.to_string().contains("left_window_size"), "{e}");
}

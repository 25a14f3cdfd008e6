//! Tests of ONNX models on every executor. There are four groups: torch exports against torch in
//! F64 (`tests/data/onnx-torch`), models from Python packages against ONNX Runtime
//! (`tests/data/onnx-packages`), classical machine learning models (`tests/data/onnx-learned`), and
//! `Attention` operators against ONNX's reference evaluator (`tests/data/onnx-attention`).
//! `tercet-onnx` tests all models of the other groups than the second on the CPU.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use libtest_mimic::Failed;
use tercet::{Device, Tensor, one_line};
use tercet_onnx::{ImportOptions, Session, StringTable};

use crate::{SuiteTest, data, executors};

/// A few models from both exporters, because software drivers take seconds to compile the kernels
/// of each.
const MODELS: &[&str] = &[
    "mobilenet_v2.script",
    "efficientnet.dynamo",
    "unet.script",
    "yolo.dynamo",
    "swin.dynamo",
    "lstm.script",
    "diffusion.dynamo",
    "graph_conv.dynamo",
    "bert.script",
    "llama.dynamo",
    "t5.script",
];

/// Models of `ai.onnx.ml`: trees with missing features, string labels and categories, kernels, and
/// common preprocessing operators.
const LEARNED: &[&str] = &[
    "forest_texts",
    "xgboost_three",
    "lightgbm_two",
    "trees_all",
    "trees_min_of_three",
    "isolation_forest",
    "columns",
    "logistic_maps",
    "svc",
    "svr",
    "neighbours",
    "label_texts_to_numbers",
    "label_numbers_to_texts",
];

/// `Attention` operators: queries at the end of the valid keys of each sequence, queries that see no
/// key, and windows of keys.
const ATTENTION: &[&str] = &[
    "nonpad_causal",
    "nonpad_causal_scores",
    "nonpad_causal_mask",
    "nonpad_causal_kept_by_head",
    "nonpad_causal_decode_gqa",
    "nonpad_causal_flat",
    "window_both",
    "window_past",
    "window_nonpad",
    "window_row_mask",
];

/// Models from packages: the name of the reference, and the file in the folder of downloaded
/// models.
const PACKAGES: &[(&str, &str)] = &[
    ("silero_vad", "silero-vad/silero_vad.onnx"),
    ("silero_vad_16k_op15", "silero-vad/silero_vad_16k_op15.onnx"),
    ("silero_vad_half", "silero-vad/silero_vad_half.onnx"),
    (
        "silero_vad_op18_ifless",
        "silero-vad/silero_vad_op18_ifless.onnx",
    ),
    ("magika", "magika/model.onnx"),
];

/// The environment variable with the folder of downloaded models.
const MODELS_DIR: &str = "TERCET_ONNX_MODELS";

const NO_MODELS: &str =
    "no models: set TERCET_ONNX_MODELS to what `cargo xtask fetch onnx-models` prints";

/// Maximum error of an element, relative to the maximum element.
const TOLERANCE: f64 = 5e-5;

#[derive(Default)]
struct OnnxCaseRun {
    inputs: Vec<(String, Tensor)>,
    outputs: Vec<Tensor>,
}

/// The inputs and results of each run by number; strings as indices.
fn runs(path: &Path, strings: &StringTable) -> Result<BTreeMap<String, OnnxCaseRun>, Failed> {
    let bytes = std::fs::read(path)?;
    let mut runs: BTreeMap<String, OnnxCaseRun> = BTreeMap::new();
    for (name, tensor) in strings.read_tensors(bytes)? {
        let mut parts = name.splitn(3, '/');
        let run = runs.entry(parts.next().unwrap_or_default().into());
        let run = run.or_default();
        match (parts.next(), parts.next()) {
            (Some("in"), Some(name)) => run.inputs.push((name.into(), tensor)),
            (Some("out"), Some(_)) => run.outputs.push(tensor),
            _ => return Err(format!("`{name}` is not a tensor of a run").into()),
        }
    }
    Ok(runs)
}

fn check(model: &Path, references: &Path, device: &Device) -> Result<(), Failed> {
    let session = Session::open(model, device, &ImportOptions::new());
    let mut session = session.map_err(|e| one_line(&e))?;
    for (number, run) in runs(references, session.strings())? {
        let inputs: Vec<_> = run.inputs.iter().map(|(n, t)| (n.as_str(), t)).collect();
        let got = session.run(&inputs, None).map_err(|e| one_line(&e))?;
        if got.len() != run.outputs.len() {
            return Err(format!("run {number}: {} results", got.len()).into());
        }
        for ((name, got), want) in got.iter().zip(&run.outputs) {
            if got.ty() != want.ty() {
                return Err(format!(
                    "run {number}: {name} is {}, expected {}",
                    got.ty(),
                    want.ty()
                )
                .into());
            }
            let (got, want) = (got.to_f64s(), want.to_f64s());
            let greatest = want.iter().fold(1e-30f64, |m, x| m.max(x.abs()));
            let mut off = got.iter().zip(&want).map(|(a, b)| (a - b).abs() / greatest);
            if let Some(off) = off.find(|d| d.is_nan() || *d > TOLERANCE) {
                let text =
                    format!("run {number}: {name} differs by {off:e} of its maximum element");
                return Err(text.into());
            }
        }
    }
    Ok(())
}

/// Tests a model that torch exported.
fn exported(model: &str, device: &Device) -> Result<(), Failed> {
    let name = model.split('.').next().unwrap_or_default();
    let file = |file: String| data(&format!("onnx-torch/{file}"));
    check(
        &file(format!("{model}.onnx")),
        &file(format!("{name}.pb")),
        device,
    )
}

/// The tests of this suite.
pub(super) fn tests() -> Vec<SuiteTest> {
    let dir = std::env::var_os(MODELS_DIR).map(PathBuf::from);
    let mut tests = Vec::new();
    for executor in executors() {
        for &model in MODELS {
            let name = format!("onnx/{model}");
            let test = move |device: &Device| exported(model, device);
            tests.push(SuiteTest::on(executor, name, test));
        }
        for &model in LEARNED {
            let file = move |ending| data(&format!("onnx-learned/{model}.{ending}"));
            let test = move |device: &Device| check(&file("onnx"), &file("pb"), device);
            tests.push(SuiteTest::on(
                executor,
                format!("onnx/learned_{model}"),
                test,
            ));
        }
        for &model in ATTENTION {
            let file = move |ending| data(&format!("onnx-attention/{model}.{ending}"));
            let test = move |device: &Device| check(&file("onnx"), &file("pb"), device);
            let name = format!("onnx/attention_{model}");
            tests.push(SuiteTest::on(executor, name, test));
        }
        for &(name, file) in PACKAGES {
            let model = dir.as_ref().map(|dir| dir.join(file));
            let references = data(&format!("onnx-packages/{name}.pb"));
            let given = model.is_some();
            let test = SuiteTest::on(executor, format!("onnx/{name}"), move |device| {
                check(&model.ok_or(NO_MODELS)?, &references, device)
            });
            tests.push(if given { test } else { test.ignored(NO_MODELS) });
        }
    }
    tests
}

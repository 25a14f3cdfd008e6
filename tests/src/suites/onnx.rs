//! ONNX models as torch exports them, on every executor, against torch in F64: some of `tests/data/onnx-torch`. All of them are
//! tests of `tercet-onnx` on the CPU.

use std::collections::BTreeMap;

use libtest_mimic::Failed;
use tercet::{Device, Tensor, one_line};
use tercet_onnx::{ImportOptions, Session, read_tensors};

use crate::{Test, data, executors};

/// Few, since software drivers take seconds to compile kernels for each; of both exporters.
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

/// How far an element may be off, in parts of the greatest.
const TOLERANCE: f64 = 5e-5;

#[derive(Default)]
struct Run {
    inputs: Vec<(String, Tensor)>,
    outputs: Vec<Tensor>,
}

/// The inputs and results of each run, by its number.
fn runs(name: &str) -> Result<BTreeMap<String, Run>, Failed> {
    let bytes = std::fs::read(data(&format!("onnx-torch/{name}.pb")))?;
    let mut runs: BTreeMap<String, Run> = BTreeMap::new();
    for (name, tensor) in read_tensors(bytes)? {
        let mut parts = name.splitn(3, '/');
        let run = runs.entry(parts.next().unwrap_or_default().into());
        let run = run.or_default();
        match (parts.next(), parts.next()) {
            (Some("in"), Some(name)) => run.inputs.push((name.into(), tensor)),
            (Some("out"), Some(_)) => run.outputs.push(tensor),
            _ => return Err(format!("`{name}` is no tensor of a run").into()),
        }
    }
    Ok(runs)
}

fn check(model: &str, device: &Device) -> Result<(), Failed> {
    let path = data(&format!("onnx-torch/{model}.onnx"));
    let session = Session::open(path.as_path(), device, &ImportOptions::new());
    let mut session = session.map_err(|e| one_line(&e))?;
    let name = model.split('.').next().unwrap_or_default();
    for (number, run) in runs(name)? {
        let inputs: Vec<_> = run.inputs.iter().map(|(n, t)| (n.as_str(), t)).collect();
        let got = session.run(&inputs, None).map_err(|e| one_line(&e))?;
        if got.len() != run.outputs.len() {
            return Err(format!("run {number}: {} results", got.len()).into());
        }
        for ((name, got), want) in got.iter().zip(&run.outputs) {
            if got.ty() != want.ty() {
                return Err(
                    format!("run {number}: {name} is {}, not {}", got.ty(), want.ty()).into(),
                );
            }
            let (got, want) = (got.to_f64s(), want.to_f64s());
            let greatest = want.iter().fold(1e-30f64, |m, x| m.max(x.abs()));
            let mut off = got.iter().zip(&want).map(|(a, b)| (a - b).abs() / greatest);
            if let Some(off) = off.find(|d| d.is_nan() || *d > TOLERANCE) {
                let text =
                    format!("run {number}: {name} is off by {off:e} of its greatest element");
                return Err(text.into());
            }
        }
    }
    Ok(())
}

/// The tests of this suite.
pub(super) fn tests() -> Vec<Test> {
    let test = |model: &'static str| {
        executors().iter().map(move |executor| {
            Test::on(executor, format!("onnx/{model}"), move |device| {
                check(model, device)
            })
        })
    };
    MODELS.iter().copied().flat_map(test).collect()
}

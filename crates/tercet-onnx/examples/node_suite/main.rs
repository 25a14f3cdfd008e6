//! Runs ONNX's own test cases (`onnx/backend/test/data`) on an executor: `node_suite EXECUTOR
//! FILTER VERSION=FOLDER...`.
//!
//! The folders are those of several versions of ONNX. A case that several versions have with the
//! same bytes is run once. Prints a line per case with tab-separated columns: outcome, set and case
//! with `@VERSION`, operator, reason. `cargo xtask onnx` turns the lines into a table. If the
//! import error requests the value of an input that decides shapes, the case is imported again with
//! that value, and its outcome is `given`.

mod compare;
mod run;

use std::collections::HashSet;
use std::error::Error;
use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use prost::Message;
use tercet::Device;
use tercet_onnx::proto::ModelProto;

use run::{Case, Outcome};

/// The folders with test cases. Each case has a model and its data.
const SETS: [&str; 4] = ["node", "simple", "pytorch-converted", "pytorch-operator"];

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let usage = "usage: node_suite EXECUTOR FILTER VERSION=FOLDER...";
    let device = Device::by_name(&args.next().ok_or(usage)?)?;
    let filter = args.next().ok_or(usage)?;
    let mut seen = HashSet::new();
    // Panics are counted as an outcome, so their messages are suppressed.
    std::panic::set_hook(Box::new(|_| {}));
    let mut out = std::io::stdout().lock();
    let mut all = Vec::new();
    for versioned in args {
        let (version, folder) = versioned.split_once('=').ok_or(usage)?;
        for (name, case) in cases(Path::new(folder))? {
            let digest = case.digest(&name)?;
            if name.contains(&filter) && seen.insert(digest) {
                all.push((format!("{name}@{version}"), case));
            }
        }
    }
    for (name, case) in all {
        let outcome = catch_unwind(AssertUnwindSafe(|| case.run(&device)));
        let outcome = outcome.unwrap_or(Ok(Outcome::Panicked))?;
        let reason = outcome.reason().replace(['\n', '\t'], " ");
        let operator = operator(&name, &case.model);
        writeln!(out, "{}\t{name}\t{operator}\t{reason}", outcome.name())?;
        out.flush()?;
    }
    Ok(())
}

/// All cases with the names of their sets and folders.
fn cases(folder: &Path) -> Result<Vec<(String, Case)>, Box<dyn Error>> {
    let mut cases = Vec::new();
    for set in SETS {
        let Ok(entries) = std::fs::read_dir(folder.join(set)) else {
            continue;
        };
        for entry in entries {
            let path = entry?.path();
            let model = path.join("model.onnx");
            if !model.exists() {
                continue;
            }
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let data = std::fs::read_dir(&path)?
                .filter_map(|e| Some(e.ok()?.path()))
                .filter(|p| p.is_dir());
            let mut data: Vec<PathBuf> = data.collect();
            data.sort();
            cases.push((format!("{set}/{name}"), Case { model, data }));
        }
    }
    let light = std::fs::read_dir(folder.join("light"));
    for entry in light.into_iter().flatten() {
        let model = entry?.path();
        if model.extension().is_some_and(|e| e == "onnx") {
            let name = model.file_stem().unwrap_or_default().to_string_lossy();
            let name = format!("light/{name}");
            cases.push((
                name,
                Case {
                    model,
                    data: Vec::new(),
                },
            ));
        }
    }
    cases.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(cases)
}

/// The operator of a case: that of its last node, `expanded` for cases with inlined functions, or
/// the set name for whole models.
fn operator(name: &str, model: &Path) -> String {
    let (set, case) = name.split_once('/').unwrap_or(("", name));
    if set != "node" {
        return format!("({set})");
    }
    if case.contains("_expanded") {
        return "expanded".into();
    }
    let bytes = std::fs::read(model).unwrap_or_default();
    let graph = ModelProto::decode(bytes.as_slice())
        .ok()
        .and_then(|m| m.graph);
    let node = graph.and_then(|g| g.node.last().cloned());
    node.and_then(|n| n.op_type).unwrap_or_default()
}

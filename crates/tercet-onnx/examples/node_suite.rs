//! Runs ONNX's own node cases (`onnx/backend/test/data/node`) on an executor and prints a table by operator.
//!
//! `node_suite FOLDER [EXECUTOR] [FILTER]`. An input that decides shapes is given when importing, as the refusal asks for;
//! such cases are counted apart. Values are equal as ONNX's runner has it: `|a - b| <= 1e-7 + 1e-3 |b|`.

use std::collections::BTreeMap;
use std::error::Error;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use prost::Message;
use tercet::{Device, OpKind, Tensor, one_line};
use tercet_onnx::proto::{ModelProto, TypeValue};
use tercet_onnx::{ImportOptions, Imported, OnnxError, Reason};

/// How a case ended.
enum Outcome {
    Passed {
        fixed: bool,
    },
    Refused(String),
    /// Beyond the rule, by no more than the rounding of F32 sums: near zero, among large numbers.
    Rounded(String),
    Wrong(String),
    Panicked,
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let folder = PathBuf::from(
        args.next()
            .ok_or("usage: node_suite FOLDER [EXECUTOR] [FILTER]")?,
    );
    let device = Device::by_name(&args.next().unwrap_or_else(|| "cpu".into()))?;
    let filter = args.next().unwrap_or_default();
    let mut cases: Vec<PathBuf> = std::fs::read_dir(folder)?
        .map(|e| e.map(|e| e.path()))
        .collect::<Result<_, _>>()?;
    cases.sort();
    let mut table: BTreeMap<String, [usize; 6]> = BTreeMap::new();
    for case in cases {
        let name = case
            .file_name()
            .map(|n| n.to_string_lossy().into_owned())
            .unwrap_or_default();
        if !name.contains(&filter) || !case.join("model.onnx").exists() {
            continue;
        }
        let bytes = std::fs::read(case.join("model.onnx"))?;
        let op = operator(&name, &bytes);
        let run = || run_case(&device, &case);
        let outcome = catch_unwind(AssertUnwindSafe(run)).unwrap_or(Ok(Outcome::Panicked))?;
        let column = match &outcome {
            Outcome::Passed { fixed: false } => 0,
            Outcome::Passed { fixed: true } => 1,
            Outcome::Refused(_) => 2,
            Outcome::Rounded(_) => 3,
            Outcome::Wrong(_) => 4,
            Outcome::Panicked => 5,
        };
        table.entry(op).or_default()[column] += 1;
        match outcome {
            Outcome::Passed { .. } => println!("passed   {name}"),
            Outcome::Refused(why) => println!("refused  {name}: {}", why.replace('\n', " ")),
            Outcome::Rounded(why) => println!("rounded  {name}: {why}"),
            Outcome::Wrong(why) => println!("wrong    {name}: {}", why.replace('\n', " ")),
            Outcome::Panicked => println!("panicked {name}"),
        }
    }
    println!(
        "\n| operator | passed | passed, inputs given at import | refused | rounding | wrong | panicked |\n|---|---|---|---|---|---|---|"
    );
    let mut all = [0; 6];
    for (op, counts) in &table {
        println!("| {op} | {} |", counts.map(|n| n.to_string()).join(" | "));
        all.iter_mut().zip(counts).for_each(|(sum, n)| *sum += n);
    }
    println!("| all | {} |", all.map(|n| n.to_string()).join(" | "));
    Ok(())
}

/// The operator of a case: that of its last node; `expanded` for those that are written out.
fn operator(name: &str, bytes: &[u8]) -> String {
    if name.contains("_expanded") {
        return "expanded".into();
    }
    let graph = ModelProto::decode(bytes).ok().and_then(|m| m.graph);
    let node = graph.and_then(|g| g.node.last().cloned());
    node.and_then(|n| n.op_type).unwrap_or_default()
}

/// A tensor of a case.
fn tensor(path: &Path) -> Result<Tensor, String> {
    tercet_onnx::read_tensor(std::fs::read(path).map_err(|e| e.to_string())?)
}

fn run_case(device: &Device, case: &Path) -> Result<Outcome, Box<dyn Error>> {
    let bytes = std::fs::read(case.join("model.onnx"))?;
    let model = ModelProto::decode(bytes.as_slice())?;
    let graph = model.graph.unwrap_or_default();
    let data = case.join("test_data_set_0");
    let mut inputs = Vec::new();
    for (i, info) in graph.input.iter().enumerate() {
        let path = data.join(format!("input_{i}.pb"));
        let is_tensor = matches!(
            info.r#type.as_ref().and_then(|t| t.value.as_ref()),
            Some(TypeValue::Tensor(_))
        );
        if is_tensor && path.exists() {
            inputs.push((info.name.clone().unwrap_or_default(), tensor(&path)));
        }
    }
    let (imported, fixed) = match import(&case.join("model.onnx"), &inputs) {
        Ok(imported) => imported,
        Err(e) => return Ok(Outcome::Refused(one_line(&e))),
    };
    let imported = Imported {
        bounds: bounds(&imported),
        ..imported
    };
    let mut executable = match imported.compile(device) {
        Ok(executable) => executable,
        Err(e) => return Ok(Outcome::Refused(one_line(&e))),
    };
    let mut given: Vec<(&str, &Tensor)> = Vec::new();
    for port in &imported.inputs {
        match inputs.iter().find(|(n, _)| *n == port.name) {
            Some((name, Ok(t))) => given.push((name, t)),
            Some((_, Err(e))) => return Ok(Outcome::Refused(e.clone())),
            None => return Ok(Outcome::Wrong(format!("no data for {}", port.name))),
        }
    }
    let kinds = imported.graph.nodes().map(|(_, n)| n.op.kind());
    let random = kinds
        .into_iter()
        .any(|k| matches!(k, OpKind::RngUniform | OpKind::RngNormal));
    let mut outputs = Vec::new();
    if let Err(e) = executable.run_into(&given, &mut outputs) {
        return Ok(Outcome::Wrong(format!("does not run: {}", one_line(&e))));
    }
    for (i, found) in outputs.iter().enumerate() {
        let expected = match tensor(&data.join(format!("output_{i}.pb"))) {
            Ok(t) => t,
            Err(e) => return Ok(Outcome::Wrong(format!("output {i}: {e}"))),
        };
        // Random numbers are only of the type that is expected.
        if random && found.ty() == expected.ty() {
            continue;
        }
        if let Some(difference) = differ(found, &expected) {
            if is_rounding(found, &expected) {
                return Ok(Outcome::Rounded(format!("output {i}: {difference}")));
            }
            return Ok(Outcome::Wrong(format!("output {i}: {difference}")));
        }
    }
    Ok(Outcome::Passed { fixed })
}

/// A named input with its data, or why it cannot be read.
type Input = (String, Result<Tensor, String>);

/// Imports a model, with the values of inputs that it asks for; and whether it asked for any.
fn import(path: &Path, inputs: &[Input]) -> Result<(Imported, bool), OnnxError> {
    let mut options = ImportOptions::new();
    let mut fixed = false;
    loop {
        let e = match tercet_onnx::import(path, &options) {
            Ok(imported) => return Ok((imported, fixed)),
            Err(e) => e,
        };
        let asked = asked_for(&e);
        let new = |name: &&String| !options.has_value(name);
        let known = |name: &String| {
            let (name, tensor) = inputs.iter().find(|(n, _)| n == name)?;
            Some((name.clone(), tensor.as_ref().ok()?.clone()))
        };
        let more: Vec<(String, Tensor)> = asked.iter().filter(new).filter_map(known).collect();
        if more.is_empty() {
            return Err(e);
        }
        for (name, tensor) in more {
            options = options.value(&name, tensor);
        }
        fixed = true;
    }
}

/// Every symbol of the graph, with a bound that the cases stay within.
fn bounds(imported: &Imported) -> tercet::Bindings {
    let mut bounds = imported.bounds.clone();
    for symbol in imported.graph.symbols() {
        bounds.set(&symbol, 64);
    }
    bounds
}

/// The inputs whose values a refusal asks for.
fn asked_for(e: &OnnxError) -> Vec<String> {
    let OnnxError::Nodes(nodes) = e else {
        return Vec::new();
    };
    let asked = nodes.iter().flat_map(|n| match &n.source {
        Reason::NeedsValue { inputs, .. } => inputs.clone(),
        _ => Vec::new(),
    });
    asked.collect()
}

/// Whether all differences are within the rounding of F32 sums of numbers as large as the greatest.
fn is_rounding(found: &Tensor, expected: &Tensor) -> bool {
    if found.ty() != expected.ty() || !found.dtype().is_float() {
        return false;
    }
    let (a, b) = (found.to_f64s(), expected.to_f64s());
    let greatest = b.iter().fold(0f64, |m, x| m.max(x.abs()));
    greatest.is_finite()
        && a.iter()
            .zip(&b)
            .all(|(a, b)| (a - b).abs() <= 1e-6 * greatest)
}

/// How two tensors differ, if they do.
fn differ(found: &Tensor, expected: &Tensor) -> Option<String> {
    if found.ty() != expected.ty() {
        return Some(format!("is {}, expected {}", found.ty(), expected.ty()));
    }
    if !found.dtype().is_float() {
        return (found.bytes() != expected.bytes())
            .then(|| format!("is {found:?}, expected {expected:?}"));
    }
    let close = |a: f64, b: f64| {
        a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= 1e-7 + 1e-3 * b.abs()
    };
    let (a, b) = (found.to_f64s(), expected.to_f64s());
    let at = a.iter().zip(&b).position(|(a, b)| !close(*a, *b))?;
    Some(format!(
        "element {at} of {} is {}, expected {}",
        found.ty(),
        a[at],
        b[at]
    ))
}

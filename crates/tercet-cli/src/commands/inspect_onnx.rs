//! `tercet inspect` of an ONNX model: its metadata, inputs and outputs, and whether this version
//! can run it.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use serde::Serialize;
use tercet::counted;
use tercet_onnx::{ImportOptions, OnnxModelInfo, OnnxPort};

use super::onnx;
use crate::error::{CliError, CommandOutcome, causes};
use crate::output;

/// Maximum width of a name and of a metadata line, in characters.
const NAME_WIDTH: usize = 60;
const LINE_WIDTH: usize = 120;

#[derive(Serialize)]
struct OnnxPortRow {
    name: String,
    dtype: String,
    /// A number, a symbol, or `?` for each dimension; null if the file does not specify the rank.
    shape: Option<Vec<String>>,
    /// Whether the model has a default value for this input.
    default: bool,
}

impl OnnxPortRow {
    fn has_symbols(&self) -> bool {
        let mut dims = self.shape.iter().flatten();
        dims.any(|dim| dim.parse::<u64>().is_err())
    }
}

#[derive(Serialize)]
struct InspectOnnxReport {
    format: String,
    producer: String,
    opsets: BTreeMap<String, i64>,
    metadata: BTreeMap<String, String>,
    inputs: Vec<OnnxPortRow>,
    outputs: Vec<OnnxPortRow>,
    operators: BTreeMap<String, usize>,
    functions: Vec<String>,
    initializers: usize,
    parameters: u64,
    /// Inputs whose values determine shapes. The model is imported again for each value of these
    /// inputs.
    deciding: Vec<String>,
    /// Shapes that cannot be expressed with symbols, one line each. The model is imported again for
    /// each size of its inputs.
    sized: Vec<String>,
    /// Why this version cannot run the model, one line per reason.
    unsupported: Vec<String>,
}

pub(crate) fn run(path: &Path, as_json: bool) -> Result<CommandOutcome, CliError> {
    let model = onnx::read(path)?;
    let mut report = report(model.describe());
    match model.deciding(&ImportOptions::new()) {
        Ok(deciding) => report.deciding = deciding,
        Err(e) => {
            let mut lines: Vec<String> = e.to_string().lines().map(str::to_string).collect();
            lines.extend(causes(&e));
            let has_symbols = report.inputs.iter().any(OnnxPortRow::has_symbols);
            match has_symbols && e.may_need_sizes() {
                true => report.sized = lines,
                false => report.unsupported = lines,
            }
        }
    }
    match as_json {
        true => output::json(&report)?,
        false => output::print_for_humans(|out| print(out, &report))?,
    }
    Ok(CommandOutcome::Done)
}

fn report(about: OnnxModelInfo) -> InspectOnnxReport {
    let port = |d: OnnxPort| OnnxPortRow {
        name: d.name,
        dtype: d.dtype,
        shape: d.shape,
        default: d.has_default,
    };
    let elements = about.initializers.iter().map(|(_, _, sizes)| {
        let sizes = sizes.iter();
        sizes.fold(1u64, |n, &d| n.saturating_mul(d))
    });
    InspectOnnxReport {
        format: format!("ONNX, file format {}", about.ir_version),
        producer: about.producer,
        initializers: about.initializers.len(),
        parameters: elements.fold(0u64, u64::saturating_add),
        opsets: about.opsets.into_iter().collect(),
        metadata: about.metadata.into_iter().collect(),
        inputs: about.inputs.into_iter().map(port).collect(),
        outputs: about.outputs.into_iter().map(port).collect(),
        operators: about.operators,
        functions: about.functions,
        deciding: Vec::new(),
        sized: Vec::new(),
        unsupported: Vec::new(),
    }
}

fn print(out: &mut impl Write, report: &InspectOnnxReport) -> std::io::Result<()> {
    let name = |name: &str| output::clip(name, NAME_WIDTH);
    let by = match report.producer.is_empty() {
        true => String::new(),
        false => format!(", produced by {}", name(&report.producer)),
    };
    writeln!(out, "{}{by}", report.format)?;
    for (domain, version) in &report.opsets {
        writeln!(out, "  {} {version}", name(domain))?;
    }
    if !report.metadata.is_empty() {
        writeln!(out, "\nmetadata")?;
    }
    for (key, value) in &report.metadata {
        let key = name(key);
        let left = LINE_WIDTH.saturating_sub(4 + key.chars().count());
        writeln!(out, "  {key}  {}", output::clip(value, left))?;
    }
    ports(out, "inputs", &report.inputs, &report.deciding)?;
    ports(out, "outputs", &report.outputs, &[])?;
    let nodes: usize = report.operators.values().sum();
    writeln!(out, "\n{}", counted(nodes, "node", "nodes"))?;
    for (op, n) in &report.operators {
        writeln!(out, "  {n:>6}  {}", name(op))?;
    }
    if !report.functions.is_empty() {
        let n = counted(report.functions.len(), "function", "functions");
        writeln!(out, "\n{n} defined by the model")?;
    }
    let n = counted(report.initializers, "initializer", "initializers");
    let parameters = output::count(report.parameters);
    writeln!(out, "\nparameters  {parameters} in {n}")?;
    if !report.sized.is_empty() {
        let text =
            "imported for each input size, because these shapes cannot be expressed with symbols:";
        writeln!(out, "\n{text}")?;
    }
    for line in &report.sized {
        writeln!(out, "  {line}")?;
    }
    if !report.unsupported.is_empty() {
        writeln!(out, "\nthis version cannot run the model:")?;
    }
    for line in &report.unsupported {
        writeln!(out, "  {line}")?;
    }
    Ok(())
}

fn ports(
    out: &mut impl Write,
    title: &str,
    ports: &[OnnxPortRow],
    deciding: &[String],
) -> std::io::Result<()> {
    writeln!(out, "\n{title}")?;
    let clipped = |p: &OnnxPortRow| output::clip(&p.name, NAME_WIDTH);
    let width = ports.iter().map(|p| clipped(p).chars().count()).max();
    let width = width.unwrap_or(0);
    for port in ports {
        let shape = match &port.shape {
            Some(dims) => format!("[{}]", dims.join(", ")),
            None => "of any rank".to_string(),
        };
        let default = if port.default { ", has a default" } else { "" };
        let decides = match deciding.contains(&port.name) {
            true => ", determines shapes",
            false => "",
        };
        let shape = output::clip(&shape, LINE_WIDTH);
        let (name, dtype) = (clipped(port), &port.dtype);
        writeln!(out, "  {name:<width$}  {dtype} {shape}{default}{decides}")?;
    }
    Ok(())
}

//! `tercet verify`: every value of a graph on a device against the reference.

use std::io::Write;

use serde::Serialize;
use tercet::random::Stream;
use tercet::{DType, Op, Signature, Tensor, TensorType, verify};

use super::source::{Source, Sourced};
use super::{device, run::read_tensors};
use crate::error::{CliError, Outcome};
use crate::output;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    source: Source,
    /// An array as NAME=FILE.npy, or several by name as FILE.npz; what is not given is random
    #[arg(short, long, value_name = "[NAME=]FILE")]
    input: Vec<String>,
    /// Seed of the random data
    #[arg(long, default_value_t = 0, value_name = "N")]
    seed: u64,
    /// The device to verify; see `tercet devices`
    #[arg(long, default_value = "auto", value_name = "NAME")]
    device: String,
    /// Print every value, not only the worst
    #[arg(long)]
    all: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Row {
    value: String,
    op: &'static str,
    units: f64,
    element: usize,
    got: f64,
    want: f64,
}

#[derive(Serialize)]
struct Report {
    device: &'static str,
    agrees: bool,
    first_divergence: Option<String>,
    values: Vec<Row>,
}

pub(crate) fn run(args: &Args) -> Result<Outcome, CliError> {
    let device = device(&args.device)?;
    let sourced = args.source.load()?;
    let mut tensors = read_tensors(&Signature::of(&sourced.graph), &args.input)?;
    tensors.extend(sourced.params.iter().chain(&sourced.inputs).cloned());
    fill(&sourced, args.seed, &mut tensors)?;
    let named: Vec<(&str, &Tensor)> = tensors.iter().map(|(n, t)| (n.as_str(), t)).collect();
    let verification = verify(&sourced.graph, &named, &device)?;
    let first = verification.first_divergence();
    if args.json {
        let rows = verification.nodes.iter().map(|n| Row {
            value: n.value.to_string(),
            op: n.op,
            units: n.units,
            element: n.element,
            got: n.got,
            want: n.want,
        });
        output::json(&Report {
            device: verification.device,
            agrees: first.is_none(),
            first_divergence: first.map(|n| n.value.to_string()),
            values: rows.collect(),
        })?;
    } else {
        let mut out = std::io::stdout().lock();
        let shown = verification.to_string();
        let last = shown.lines().last().unwrap_or_default();
        if args.all {
            writeln!(out, "{shown}")?;
        } else {
            if let Some(worst) = verification.worst() {
                let (value, op, units) = (worst.value, worst.op, worst.units);
                writeln!(
                    out,
                    "{} values compared; furthest off: {value} ({op}), {units:.3} tolerances",
                    verification.nodes.len()
                )?;
            }
            writeln!(out, "{last}")?;
        }
    }
    match first {
        None => Ok(Outcome::Done),
        Some(n) => Err(CliError::Diverges {
            device: verification.device,
            value: n.value.to_string(),
        }),
    }
}

/// Random data for what was not given: floats near a normal distribution, and small indices that
/// any axis has.
fn fill(sourced: &Sourced, seed: u64, tensors: &mut Vec<(String, Tensor)>) -> Result<(), CliError> {
    let sizes = sourced.sizes();
    for (id, node) in sourced.graph.nodes() {
        let name = match &node.op {
            Op::Input(o) => &o.name,
            Op::Param(o) => &o.name,
            _ => continue,
        };
        if tensors.iter().any(|(n, _)| n == name) {
            continue;
        }
        let shape = node.outputs[0].shape.eval(&sizes);
        let shape = shape.map_err(|e| CliError::Usage(format!("`{name}`: {e}")))?;
        let ty = TensorType::new(node.outputs[0].dtype, &shape);
        let stream = Stream {
            seed,
            stream: id.0,
            step: 0,
        };
        let value = |i: usize| match ty.dtype.is_float() {
            true => stream.normal(ty.dtype, i as u64),
            // Zero is an index of every axis, and a count of keys.
            false => 0.0,
        };
        let values: Vec<f64> = (0..ty.numel()).map(value).collect();
        let tensor = match ty.dtype {
            DType::Bool => Tensor::from_bools(&shape, &vec![true; ty.numel()]),
            _ => Tensor::from_f64s(ty.clone(), &values),
        };
        let tensor = tensor.map_err(|source| CliError::Tensor {
            what: format!("random data for `{name}`"),
            source,
        })?;
        tensors.push((name.clone(), tensor));
    }
    Ok(())
}

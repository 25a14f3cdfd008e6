//! `tercet verify`: compares every value of a graph on a device with the reference interpreter.

use std::io::Write;
use std::sync::Arc;

use serde::Serialize;
use tercet::random::PhiloxStream;
use tercet::{
    Bindings, DType, Op, Signature, Tensor, TensorType, counted, verify, verify_optimized,
};

use super::source::{GraphSourceArgs, LoadedGraph};
use super::{device, seed};
use crate::error::{CliError, CommandOutcome};
use crate::{output, progress};

#[derive(clap::Args)]
pub(crate) struct VerifyArgs {
    #[command(flatten)]
    source: GraphSourceArgs,
    /// Input array as NAME=FILE.npy, or several as FILE.npz; missing inputs are filled with random
    /// values; repeatable
    #[arg(short, long, value_name = "[NAME=]FILE")]
    input: Vec<String>,
    /// Seed of the random data; -1 draws one
    #[arg(long, default_value_t = 0, value_name = "N", allow_negative_numbers = true, value_parser = seed)]
    seed: u64,
    /// Device to verify; see `tercet devices`
    #[arg(long, default_value = "auto", value_name = "NAME")]
    device: String,
    /// Compare the values of the optimized program instead: those that it writes to memory with all
    /// passes and fused kernels
    #[arg(long, alias = "optimised")]
    optimized: bool,
    /// Print every value instead of only the one with the largest error
    #[arg(long)]
    all: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct ValueErrorRow {
    value: String,
    op: &'static str,
    units: f64,
    element: usize,
    got: f64,
    want: f64,
    /// Nodes of the fused step.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    fused: Vec<String>,
}

#[derive(Serialize)]
struct VerifyReport {
    device: &'static str,
    /// Seed of the random data.
    seed: u64,
    agrees: bool,
    first_divergence: Option<String>,
    values: Vec<ValueErrorRow>,
}

pub(crate) fn run(args: &VerifyArgs) -> Result<CommandOutcome, CliError> {
    let device = device(&args.device)?;
    let mut sourced = args.source.load(&args.input, Some(&device))?;
    let signature = Signature::of(&sourced.graph);
    let mut tensors = std::mem::take(&mut sourced.arrays);
    tensors.extend(sourced.params.iter().chain(&sourced.inputs).cloned());
    let drawn = fill(&sourced, args.seed, &mut tensors)?;
    let named: Vec<(&str, &Tensor)> = tensors.iter().map(|(n, t)| (n.as_str(), t)).collect();
    check_bounds(&sourced, &signature, &named)?;
    let spinner = progress::spinner("comparing");
    let verification = match args.optimized {
        true => verify_optimized(&sourced.graph, &named, &device),
        false => verify(&sourced.graph, &named, &device),
    };
    spinner.finish_and_clear();
    let verification = verification?;
    let first = verification.first_divergence();
    if args.json {
        let rows = verification.nodes.iter().map(|n| ValueErrorRow {
            value: n.value.to_string(),
            op: n.op,
            units: n.error_in_tolerances,
            element: n.element,
            got: n.actual,
            want: n.expected,
            fused: n.fused.iter().map(|(id, _)| id.to_string()).collect(),
        });
        output::json(&VerifyReport {
            seed: args.seed,
            device: verification.device,
            agrees: first.is_none(),
            first_divergence: first.map(|n| n.value.to_string()),
            values: rows.collect(),
        })?;
    } else {
        let shown = verification.to_string();
        let last = shown.lines().last().unwrap_or_default();
        output::print_for_humans(|out| {
            if drawn {
                writeln!(out, "random data with seed {}", args.seed)?;
            }
            if args.all {
                return writeln!(out, "{shown}");
            }
            if let Some(worst) = verification.worst() {
                let units = worst.error_in_tolerances;
                let compared = counted(verification.nodes.len(), "value", "values");
                writeln!(
                    out,
                    "{compared} compared; largest error: {worst}, {units:.3} tolerances",
                )?;
            }
            writeln!(out, "{last}")
        })?;
    }
    match first {
        None => Ok(CommandOutcome::Done),
        Some(n) => Err(CliError::Diverges {
            device: verification.device,
            value: n.value.to_string(),
        }),
    }
}

/// Returns an error if an input is larger than its bound.
fn check_bounds(
    sourced: &LoadedGraph,
    signature: &Signature,
    tensors: &[(&str, &Tensor)],
) -> Result<(), CliError> {
    let inputs = tensors.iter().copied();
    let inputs: Vec<(&str, &Tensor)> = inputs
        .filter(|(name, _)| signature.inputs.iter().any(|port| port.name == *name))
        .collect();
    signature.bind(&inputs, &sourced.options.bounds, &mut Bindings::new())?;
    Ok(())
}

/// Fills missing inputs with random data: floats with a normal distribution, and integers of 0.
/// Returns true if anything was drawn.
pub(crate) fn fill(
    sourced: &LoadedGraph,
    seed: u64,
    tensors: &mut Vec<(String, Tensor)>,
) -> Result<bool, CliError> {
    let sizes = sourced.sizes();
    let given = tensors.len();
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
        let stream = PhiloxStream {
            seed,
            stream: id.0,
            step: 0,
        };
        tensors.push((name.clone(), random(name, ty, stream)?));
    }
    Ok(tensors.len() > given)
}

/// A random tensor of type `ty`. Elements are generated in pieces of a few thousand.
fn random(name: &str, ty: TensorType, stream: PhiloxStream) -> Result<Tensor, CliError> {
    const PIECE: usize = 4096;
    let what = || format!("random data for `{name}` of type {ty}");
    let lacking = |bytes: u64| CliError::Memory {
        what: format!("{} of {bytes} bytes cannot be allocated", what()),
        remedy: "use a smaller --bound, or provide the array with --input".to_string(),
    };
    let sizes = ty.shape.iter();
    let bytes = sizes.fold(ty.dtype.size_bytes() as u64, |n, &d| {
        n.saturating_mul(d as u64)
    });
    let len = usize::try_from(bytes).map_err(|_| lacking(bytes))?;
    let mut data: Vec<u8> = Vec::new();
    data.try_reserve_exact(len).map_err(|_| lacking(bytes))?;
    let failed = |source| CliError::Tensor {
        what: what(),
        source,
    };
    let value = |i: usize| match ty.dtype.is_float() {
        true => stream.normal(ty.dtype, i as u64),
        // Zero is a valid index on every axis, and a valid count of keys.
        false => f64::from(u8::from(ty.dtype == DType::Bool)),
    };
    let numel = ty.numel();
    for at in (0..numel).step_by(PIECE) {
        let values: Vec<f64> = (at..numel.min(at + PIECE)).map(value).collect();
        let piece = TensorType::new(ty.dtype, &[values.len()]);
        data.extend_from_slice(Tensor::from_f64s(piece, &values).map_err(failed)?.bytes());
    }
    Tensor::from_owner(ty.clone(), Arc::new(data), 0..len).map_err(failed)
}

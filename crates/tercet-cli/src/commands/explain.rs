//! `tercet explain`: the compiled program, without allocating or running it.

use std::io::Write;

use serde::Serialize;
use tercet::CompileError;

use super::device;
use super::source::GraphSourceArgs;
use crate::error::{CliError, CommandOutcome};
use crate::output;

#[derive(clap::Args)]
pub(crate) struct ExplainArgs {
    #[command(flatten)]
    source: GraphSourceArgs,
    /// Values that determine shapes of an ONNX model, as NAME=FILE.npy or FILE.npz
    #[arg(short, long, value_name = "[NAME=]FILE")]
    input: Vec<String>,
    /// Device to compile for; see `tercet devices`
    #[arg(long, default_value = "auto", value_name = "NAME")]
    device: String,
    /// Also print every step, and which kernel variants were selected and why
    #[arg(long)]
    steps: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct KernelRow {
    op: &'static str,
    kernel: String,
    calls: usize,
}

#[derive(Serialize)]
struct UnsupportedRow {
    node: String,
    op: &'static str,
    reason: String,
    remedy: String,
}

#[derive(Serialize)]
struct ExplainReport {
    target: &'static str,
    /// The switches of the device in effect; absent without switches.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    switches: Vec<String>,
    dispatches: usize,
    barriers: usize,
    host_fallbacks: usize,
    prepare: usize,
    peak_bytes: u64,
    bytes: Vec<(&'static str, u64)>,
    kernels: Vec<KernelRow>,
    unsupported: Vec<UnsupportedRow>,
}

pub(crate) fn run(args: &ExplainArgs) -> Result<CommandOutcome, CliError> {
    let device = device(&args.device)?;
    let sourced = args.source.load(&args.input, Some(&device))?;
    sourced.check_bounded()?;
    let explained = device.explain(&sourced.graph, &sourced.options);
    if args.json {
        return json(device.name(), explained);
    }
    let explanation = explained?;
    output::print_for_humans(|out| {
        write!(out, "{explanation}")?;
        if args.steps {
            write!(out, "{}", explanation.listing)?;
        }
        Ok(())
    })?;
    Ok(CommandOutcome::Done)
}

/// Prints the report as JSON. Unsupported nodes are part of the report and not an error.
fn json(
    target: &'static str,
    explained: Result<tercet::Explanation, CompileError>,
) -> Result<CommandOutcome, CliError> {
    let (explanation, unsupported) = match explained {
        Ok(explanation) => (explanation, Vec::new()),
        Err(CompileError::Unsupported { nodes, .. }) => {
            let rows = nodes.into_iter().map(|n| UnsupportedRow {
                node: n.node.to_string(),
                op: n.op,
                reason: n.reason,
                remedy: n.remedy,
            });
            (tercet::Explanation::default(), rows.collect())
        }
        Err(e) => return Err(e.into()),
    };
    let kernels = explanation.kernels.iter().map(|k| KernelRow {
        op: k.op,
        kernel: k.kernel.clone(),
        calls: k.calls,
    });
    output::json(&ExplainReport {
        target,
        switches: explanation.switches.clone(),
        dispatches: explanation.dispatches,
        barriers: explanation.barriers,
        host_fallbacks: explanation.host_fallbacks,
        prepare: explanation.prepare,
        peak_bytes: explanation.peak_bytes(),
        bytes: explanation.bytes.clone(),
        kernels: kernels.collect(),
        unsupported,
    })?;
    Ok(CommandOutcome::Done)
}

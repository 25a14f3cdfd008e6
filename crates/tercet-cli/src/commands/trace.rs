//! `tercet trace`: an execution trace in the format of Chrome and Perfetto: compile phases,
//! uploads, the device time of each dispatch, readback.
//!
//! Host phases are `tracing` spans of the library; [`SpanRecorder`] collects them. Device times of
//! dispatches are aligned with the host span that waits for the run.

use std::cmp::Reverse;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use serde_json::{Value, json};
use tercet::{Bindings, Device, Signature, StepTime, Tensor, counted};
use tracing::span::{Attributes, Id};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;

use super::source::{GraphSourceArgs, bound};
use super::verify::fill;
use super::{ComputePrecision, onnx, open, tokens};
use crate::error::{CliError, CommandOutcome};
use crate::{output, output_path};

mod language_model;

#[derive(clap::Args)]
pub(crate) struct TraceArgs {
    /// A graph in text form (see docs/reference/text-format.md), or an .onnx file
    #[arg(conflicts_with = "model")]
    graph: Option<PathBuf>,
    /// A GGUF file, a folder with safetensors, or an .onnx file [default: the embedded model]
    #[arg(short, long, value_name = "PATH")]
    model: Option<PathBuf>,
    /// Prompt [default: Ownership is]
    #[arg(short, long, value_name = "TEXT")]
    prompt: Option<String>,
    /// Input of a graph or ONNX model as NAME=FILE.npy, or several as FILE.npz; missing inputs are
    /// filled with random values; repeatable
    #[arg(short, long, value_name = "[NAME=]FILE")]
    input: Vec<String>,
    /// Size of a symbol of a graph or ONNX model that no input determines, as NAME=N [default: 8];
    /// repeatable
    #[arg(short, long, value_name = "NAME=N", value_parser = bound)]
    bound: Vec<(String, usize)>,
    /// Tokens to generate; -1 until the context is full. For a graph or ONNX model, the number of
    /// runs after the first
    #[arg(short = 'n', long, default_value_t = 4, value_name = "N", allow_negative_numbers = true, value_parser = tokens)]
    tokens: usize,
    /// Trace the program of a server that generates N sequences in parallel
    #[arg(long, value_name = "N", alias = "slots", value_parser = clap::value_parser!(u16).range(1..=256))]
    parallel: Option<u16>,
    /// Sequences that generate, with --parallel [default: all]
    #[arg(long, value_name = "N", requires = "parallel", value_parser = clap::value_parser!(u16).range(1..=256))]
    sequences: Option<u16>,
    /// Context length of a sequence in tokens [default: what the memory holds]
    #[arg(short, long, value_name = "N", alias = "ctx-size")]
    context: Option<usize>,
    /// Device to run on; see `tercet devices`
    #[arg(long, default_value = "auto", value_name = "NAME")]
    device: String,
    /// Float type for computation
    #[arg(long, value_name = "TYPE", value_enum, default_value_t = ComputePrecision::Auto)]
    dtype: ComputePrecision,
    /// Output file
    #[arg(short, long, default_value = "trace.json", value_name = "FILE")]
    output: PathBuf,
}

/// A finished span.
struct RecordedSpan {
    name: &'static str,
    start: Instant,
    end: Instant,
}

/// Collects the spans of the library.
#[derive(Clone, Default)]
struct SpanRecorder {
    spans: Arc<Mutex<Vec<RecordedSpan>>>,
}

impl SpanRecorder {
    fn take(&self) -> Vec<RecordedSpan> {
        let mut spans = self.spans.lock().unwrap_or_else(|e| e.into_inner());
        std::mem::take(&mut *spans)
    }
}

impl<S: tracing::Subscriber + for<'a> LookupSpan<'a>> Layer<S> for SpanRecorder {
    fn on_new_span(&self, _: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        if let Some(span) = context.span(id) {
            span.extensions_mut().insert(Instant::now());
        }
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let Some(span) = context.span(&id) else {
            return;
        };
        let Some(start) = span.extensions().get::<Instant>().copied() else {
            return;
        };
        let finished = RecordedSpan {
            name: span.name(),
            start,
            end: Instant::now(),
        };
        let mut spans = self.spans.lock().unwrap_or_else(|e| e.into_inner());
        spans.push(finished);
    }
}

const HOST: u32 = 1;
const DEVICE: u32 = 2;

pub(crate) fn run(args: &TraceArgs) -> Result<CommandOutcome, CliError> {
    check_output(args)?;
    let recorder = SpanRecorder::default();
    let subscriber = tracing_subscriber::registry().with(recorder.clone());
    let zero = Instant::now();
    let mut events = vec![
        json!({"ph": "M", "pid": 1, "tid": HOST, "name": "thread_name", "args": {"name": "host"}}),
        json!({"ph": "M", "pid": 1, "tid": DEVICE, "name": "thread_name", "args": {"name": args.device}}),
    ];
    tracing::subscriber::with_default(subscriber, || record(args, &recorder, zero, &mut events))?;
    let n = events.len() - 2;
    let document = json!({"traceEvents": events, "displayTimeUnit": "ms"});
    output_path::write(&args.output, |file| {
        let mut file = BufWriter::new(file);
        serde_json::to_writer(&mut file, &document)?;
        file.flush()
    })?;
    let path = args.output.display();
    output::print_note(format_args!(
        "{} in {path}; open it in ui.perfetto.dev or chrome://tracing",
        counted(n, "event", "events")
    ));
    Ok(CommandOutcome::Done)
}

/// Returns an error if the output path is the model file. The model is memory-mapped, so
/// overwriting it would crash the process.
fn check_output(args: &TraceArgs) -> Result<(), CliError> {
    let same = |model: &Path| {
        let of = |path: &Path| path.canonicalize().ok();
        of(model).is_some_and(|model| of(&args.output) == Some(model))
    };
    let source = args.graph.as_deref().or(args.model.as_deref());
    if source.is_some_and(same) {
        let path = args.output.display();
        let text = format!("{path} is the model; write the trace to another file");
        return Err(CliError::Usage(text));
    }
    output_path::check(&args.output)
}

fn record(
    args: &TraceArgs,
    recorder: &SpanRecorder,
    zero: Instant,
    events: &mut Vec<Value>,
) -> Result<(), CliError> {
    let device = {
        let _span = tracing::debug_span!("open device").entered();
        open(&args.device, true)?
    };
    let is_graph = |path: &Path| args.graph.is_some() || onnx::is_onnx(path);
    let path = args.graph.as_deref().or(args.model.as_deref());
    if let Some(path) = path.filter(|path| is_graph(path)) {
        return record_graph(args, path, &device, recorder, zero, events);
    }
    if !args.input.is_empty() || !args.bound.is_empty() {
        let text =
            "--input and --bound are for graphs and ONNX models; use --prompt for a language model";
        return Err(CliError::Usage(text.into()));
    }
    language_model::record(args, &device, recorder, zero, events)
}

/// Runs a graph or an ONNX model. Sizes come from the input arrays, or else from the bounds.
fn record_graph(
    args: &TraceArgs,
    path: &Path,
    device: &Device,
    recorder: &SpanRecorder,
    zero: Instant,
    events: &mut Vec<Value>,
) -> Result<(), CliError> {
    if args.prompt.is_some() || args.tokens == usize::MAX {
        let text = "graphs and ONNX models take no --prompt; set the number of runs with -n N";
        return Err(CliError::Usage(text.into()));
    }
    if args.parallel.is_some() || args.context.is_some() {
        let text = "--parallel and --context are for language models; set sizes with --bound";
        return Err(CliError::Usage(text.into()));
    }
    let source = GraphSourceArgs {
        part: None,
        graph: Some(path.to_path_buf()),
        model: None,
        bound: args.bound.clone(),
        dtype: args.dtype.throughout(),
    };
    let mut sourced = source.load(&args.input, None)?;
    let mut tensors = std::mem::take(&mut sourced.arrays);
    tensors.extend(std::mem::take(&mut sourced.params));
    fill(&sourced, 0, &mut tensors)?;
    let ports = Signature::of(&sourced.graph).inputs;
    let is_input = |(name, _): &(String, Tensor)| ports.iter().any(|p| p.name == *name);
    let (tensors, params): (Vec<_>, Vec<_>) = tensors.into_iter().partition(is_input);
    let inputs: Vec<(&str, &Tensor)> = tensors.iter().map(|(n, t)| (n.as_str(), t)).collect();
    let mut exe = {
        let _span = tracing::debug_span!("compile and load").entered();
        let mut sizes = Bindings::new();
        let signature = Signature::of(&sourced.graph);
        signature.bind(&inputs, &Bindings::new(), &mut sizes)?;
        sourced.options.bounds = sizes;
        let mut exe = device.compile(&sourced.graph, &sourced.options)?;
        for (name, tensor) in params {
            // Compilation removes parameters that no result depends on. States start at zero.
            if exe.signature().params.iter().any(|p| p.name == name) {
                exe.set_param(&name, tensor)?;
            }
        }
        exe
    };
    collect(recorder, zero, &[], events);
    let mut outputs = Vec::new();
    let mut steps = Vec::new();
    for _ in 0..=args.tokens {
        {
            let _span = tracing::debug_span!("run").entered();
            exe.run_into(&inputs, &mut outputs)?;
        }
        steps = exe.timings();
        collect(recorder, zero, &steps, events);
    }
    print_kernels(&steps)
}

/// Number of kernels that the summary lists.
const LISTED_KERNELS: usize = 20;

/// Prints the device time of the last run by kernel, the largest first.
fn print_kernels(steps: &[StepTime]) -> Result<(), CliError> {
    let mut kernels: Vec<(&str, usize, u64)> = Vec::new();
    for step in steps {
        match kernels.iter_mut().find(|(name, ..)| *name == step.kernel) {
            Some((_, count, ns)) => (*count, *ns) = (*count + 1, *ns + step.ns),
            None => kernels.push((&step.kernel, 1, step.ns)),
        }
    }
    kernels.sort_by_key(|(_, _, ns)| Reverse(*ns));
    let sum: u64 = kernels.iter().map(|(_, _, ns)| ns).sum();
    if sum == 0 {
        return Ok(());
    }
    output::print_for_humans(|out| {
        let micros = |ns: u64| ns as f64 / 1e3;
        writeln!(
            out,
            "last run: {} dispatches, {:.1} us on the device",
            steps.len(),
            micros(sum)
        )?;
        writeln!(out, "{:>10} {:>6} {:>6}  kernel", "us", "share", "count")?;
        for (name, count, ns) in kernels.iter().take(LISTED_KERNELS) {
            let share = 100.0 * *ns as f64 / sum as f64;
            writeln!(
                out,
                "{:>10.1} {share:>5.1}% {count:>6}  {name}",
                micros(*ns)
            )?;
        }
        match kernels.len().saturating_sub(LISTED_KERNELS) {
            0 => Ok(()),
            more => writeln!(out, "and {more} more kernels in the file"),
        }
    })
}

/// Adds the spans since the last call, and the device steps of the run they contain.
fn collect(recorder: &SpanRecorder, zero: Instant, steps: &[StepTime], events: &mut Vec<Value>) {
    let micros = |t: Instant| t.duration_since(zero).as_secs_f64() * 1e6;
    let spans = recorder.take();
    // A GPU is active between the submission and the end of the wait, the CPU during the run.
    let last = |name: &str| spans.iter().rev().find(|s| s.name == name);
    let submitted = last("submit").or_else(|| last("run"));
    let submitted = submitted.map(|s| micros(s.start));
    for s in spans {
        events.push(json!({
            "ph": "X", "pid": 1, "tid": HOST, "name": s.name,
            "ts": micros(s.start), "dur": micros(s.end) - micros(s.start),
        }));
    }
    let base = submitted.unwrap_or(0.0);
    for step in steps {
        events.push(json!({
            "ph": "X", "pid": 1, "tid": DEVICE, "name": step.op,
            "ts": base + step.start_ns as f64 / 1e3, "dur": step.ns as f64 / 1e3,
            "args": {"kernel": step.kernel},
        }));
    }
}

//! The arguments of the command, and the calls of its commands.

use std::ffi::OsString;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use crate::error::{CliError, CommandOutcome};
use crate::{commands, error, output};

/// Exit codes, as help shows them.
pub const EXIT_CODES: &str = "\
Exit codes:
  0    done
1    failed: standard error has the error, its causes and a remedy
2    invalid arguments
  130  interrupted by Ctrl-C
141  standard output was closed, for example by `head`";

/// Machine-learning models on any machine: no Python, no CUDA.
#[derive(Parser)]
#[command(name = "tercet", version = tercet::BUILD.text, propagate_version = true, after_help = EXIT_CODES)]
pub struct TercetCli {
    #[command(subcommand)]
    command: CliCommand,
    /// Refuse models with configuration keys that would be ignored
    #[arg(long, global = true)]
    strict: bool,
    #[command(flatten)]
    switches: commands::SwitchArgs,
    #[cfg(feature = "hub")]
    #[command(flatten)]
    hub: commands::hub::HubArgs,
}

#[derive(Subcommand)]
enum CliCommand {
    /// Generate text with a language model
    Generate(Box<commands::generate::GenerateArgs>),
    /// Chat interactively with a language model
    Chat(Box<commands::chat::ChatArgs>),
    /// Measure tokens per second of a language model, or latency of another model
    Bench(commands::bench::BenchArgs),
    /// Compute the perplexity of a text
    Perplexity(commands::perplexity::PerplexityArgs),
    /// Train a language model or encoder, or a LoRA adapter for it
    Finetune(Box<commands::finetune::FinetuneArgs>),
    /// Merge LoRA adapters into a model's weights
    Merge(commands::merge::MergeArgs),
    /// Quantize a model to GGUF
    Quantize(commands::quantize::QuantizeArgs),
    /// Embed sentences or images as vectors, or compare them
    Embed(commands::embed::EmbedArgs),
    /// Classify texts, tokens or images
    Classify(commands::classify::ClassifyArgs),
    /// Rank documents by relevance to a query
    Rerank(commands::rerank::RerankArgs),
    /// Index a folder of texts or images, and search it by meaning
    Search(Box<commands::search::SearchArgs>),
    /// Transcribe speech to text
    #[cfg(feature = "audio")]
    Transcribe(Box<commands::transcribe::TranscribeArgs>),
    /// Show the contents of a model file: metadata, tensors, parameters, memory
    Inspect(commands::inspect::InspectArgs),
    /// Run a graph in text form or an ONNX model on .npy or .npz inputs
    Run(commands::run::RunArgs),
    /// Show the compiled program without running it: kernels, dispatches, barriers, memory
    Explain(commands::explain::ExplainArgs),
    /// Export a graph or a model to ONNX
    Export(commands::export::ExportArgs),
    /// Compare every value of a graph on a device with the reference
    Verify(commands::verify::VerifyArgs),
    /// Record an execution trace for Perfetto or chrome://tracing
    Trace(commands::trace::TraceArgs),
    /// Autotune kernels for a device
    Tune(commands::tune::TuneArgs),
    /// Serve models and graphs over HTTP
    #[cfg(feature = "serve")]
    Serve(Box<commands::serve::ServeArgs>),
    /// Serve the tools of models to an MCP client over standard input and output
    #[cfg(feature = "serve")]
    Mcp(Box<commands::serve::McpArgs>),
    /// Render a 3D Gaussian splatting scene
    #[cfg(feature = "splat")]
    Splat(Box<commands::splat::SplatArgs>),
    /// List the operators: their semantics, and their support on each executor
    Ops(commands::ops::OpsArgs),
    /// List the supported model families
    Models(commands::models::ModelsArgs),
    /// List the devices of this machine
    Devices(commands::devices::DevicesArgs),
    /// Download a model of the hub
    #[cfg(feature = "hub")]
    Pull(commands::hub::pull::PullArgs),
    /// List the downloaded models
    #[cfg(feature = "hub")]
    List(commands::hub::list::ListArgs),
    /// Remove downloaded models
    #[cfg(feature = "hub")]
    Rm(commands::hub::rm::RmArgs),
    /// Show the files of a downloaded model, or of a model of the hub
    #[cfg(feature = "hub")]
    Show(commands::hub::show::ShowArgs),
}

/// Runs the command with the arguments of this process.
pub fn main() -> ExitCode {
    output::print_library_notes();
    let arguments = arguments(std::env::args_os().collect());
    let result = match TercetCli::try_parse_from(&arguments) {
        Ok(cli) => {
            commands::open::set_strict(cli.strict);
            // `tune --without` leaves out candidates instead.
            let applied = match cli.command {
                CliCommand::Tune(_) => Ok(()),
                _ => cli.switches.apply(),
            };
            match applied.and_then(|()| named(&arguments, cli)) {
                Ok(cli) => run(cli.command),
                Err(e) => Err(e),
            }
        }
        Err(said) => return usage(&said),
    };
    match result {
        Ok(CommandOutcome::Done) => ExitCode::SUCCESS,
        Ok(CommandOutcome::Interrupted) => ExitCode::from(130),
        Err(e) => failure(&e),
    }
}

/// The command with paths instead of the names of models. Everything else is checked before, so that
/// nothing is downloaded for a command that cannot run.
#[cfg(feature = "hub")]
fn named(arguments: &[OsString], cli: TercetCli) -> Result<TercetCli, CliError> {
    cli.hub.apply()?;
    match commands::hub::resolved(arguments)? {
        Some(arguments) => {
            TercetCli::try_parse_from(arguments).map_err(|e| CliError::Usage(e.to_string()))
        }
        None => Ok(cli),
    }
}

#[cfg(not(feature = "hub"))]
fn named(_: &[OsString], cli: TercetCli) -> Result<TercetCli, CliError> {
    Ok(cli)
}

/// Options of llama.cpp that cannot change a result here, and whether a value follows.
/// `--cache-type-k` sets the format of keys and values.
const WITHOUT_EFFECT: [(&str, bool); 28] = [
    ("--batch-size", true),
    ("--cache-type-v", true),
    ("--cont-batching", false),
    ("--embedding", false),
    ("--embeddings", false),
    ("--jinja", false),
    ("--log-disable", false),
    ("--main-gpu", true),
    ("--mlock", false),
    ("--mmap", false),
    ("--no-cont-batching", false),
    ("--no-mmap", false),
    ("--no-warmup", false),
    ("--no-webui", false),
    ("--numa", true),
    ("--poll", true),
    ("--prio", true),
    ("--reranking", false),
    ("--split-mode", true),
    ("--threads-batch", true),
    ("--ubatch-size", true),
    ("-cb", false),
    ("-ctv", true),
    ("-mg", true),
    ("-nocb", false),
    ("-sm", true),
    ("-tb", true),
    ("-ub", true),
];

/// Commands that take options of llama.cpp.
const TAKE_LLAMA_OPTIONS: [&str; 4] = ["chat", "generate", "serve", "perplexity"];

/// Removes options of llama.cpp that have no effect here, and returns them without their values.
fn take_without_effect(given: &mut Vec<OsString>) -> Vec<String> {
    let mut removed = Vec::new();
    let takes = given.get(1).and_then(|command| command.to_str());
    if !takes.is_some_and(|command| TAKE_LLAMA_OPTIONS.contains(&command)) {
        return removed;
    }
    let mut at = 2;
    while let Some(text) = given
        .get(at)
        .map(|text| text.to_string_lossy().into_owned())
    {
        if text == "--" {
            break;
        }
        let (name, has_value) = match text.split_once('=') {
            Some((name, _)) => (name, true),
            None => (&*text, false),
        };
        let next = given.get(at + 1).and_then(|next| next.to_str());
        let count = match name {
            // The value may be left out.
            "-fa" | "--flash-attn" => {
                1 + usize::from(
                    next.is_some_and(|next| ["on", "off", "auto", "0", "1"].contains(&next)),
                )
            }
            _ => match WITHOUT_EFFECT.iter().find(|(option, _)| *option == name) {
                Some((_, true)) if !has_value => 2,
                Some(_) => 1,
                None => 0,
            },
        };
        match count {
            0 => at += 1,
            count => {
                removed.push(name.to_string());
                given.drain(at..given.len().min(at + count));
            }
        }
    }
    removed
}

/// Arguments that the parser cannot express: a model alone is `chat -m MODEL`, as is `run` with a model
/// file, names of models, and the options of llama.cpp that have one dash and several letters. Options of
/// llama.cpp that have no effect here are left out with a note.
pub fn arguments(mut given: Vec<OsString>) -> Vec<OsString> {
    let runs_model = given.get(1).is_some_and(|command| command == "run")
        && given.get(2).is_some_and(|path| is_gguf(Path::new(path)));
    if runs_model {
        let chat = ["chat", "--model"].map(OsString::from);
        given.splice(1..2, chat);
    }
    let without_effect = take_without_effect(&mut given);
    if !without_effect.is_empty() {
        let names = without_effect.join(", ");
        output::print_note(format_args!("note: options without effect here: {names}"));
    }
    let model = given.get(1).filter(|first| {
        let is_command = || {
            let command = TercetCli::command();
            first.to_str().is_some_and(|name| {
                name == "help" || name.starts_with('-') || command.find_subcommand(name).is_some()
            })
        };
        let path = Path::new(first);
        (is_gguf(path) || path.exists()) && !is_command()
    });
    if model.is_some() {
        let chat = ["chat", "--model"].map(OsString::from);
        given.splice(1..1, chat);
    }
    let options = given
        .iter_mut()
        .skip(1)
        .take_while(|argument| *argument != "--");
    for argument in options {
        let long = match argument.to_str() {
            Some("-ngl") => "--n-gpu-layers",
            Some("-np") => "--parallel",
            Some("-ctk") => "--cache-type-k",
            _ => continue,
        };
        *argument = long.into();
    }
    #[cfg(feature = "hub")]
    let given = commands::hub::rewritten(given);
    given
}

fn is_gguf(path: &Path) -> bool {
    let end = path.extension();
    end.is_some_and(|end| end.eq_ignore_ascii_case("gguf"))
}

fn run(command: CliCommand) -> Result<CommandOutcome, CliError> {
    match command {
        CliCommand::Generate(args) => commands::generate::run(&args),
        CliCommand::Chat(args) => commands::chat::run(&args),
        CliCommand::Bench(args) => commands::bench::run(&args),
        CliCommand::Perplexity(args) => commands::perplexity::run(&args),
        CliCommand::Finetune(args) => commands::finetune::run(&args),
        CliCommand::Merge(args) => commands::merge::run(&args),
        CliCommand::Quantize(args) => commands::quantize::run(&args),
        CliCommand::Embed(args) => commands::embed::run(&args),
        CliCommand::Classify(args) => commands::classify::run(&args),
        CliCommand::Rerank(args) => commands::rerank::run(&args),
        CliCommand::Search(args) => commands::search::run(&args),
        #[cfg(feature = "audio")]
        CliCommand::Transcribe(args) => commands::transcribe::run(&args),
        CliCommand::Inspect(args) => commands::inspect::run(&args),
        CliCommand::Run(args) => commands::run::run(&args),
        CliCommand::Explain(args) => commands::explain::run(&args),
        CliCommand::Export(args) => commands::export::run(&args),
        CliCommand::Verify(args) => commands::verify::run(&args),
        CliCommand::Trace(args) => commands::trace::run(&args),
        CliCommand::Tune(args) => commands::tune::run(&args),
        #[cfg(feature = "serve")]
        CliCommand::Serve(args) => commands::serve::run(&args),
        #[cfg(feature = "serve")]
        CliCommand::Mcp(args) => commands::serve::run_mcp(&args),
        #[cfg(feature = "splat")]
        CliCommand::Splat(args) => commands::splat::run(&args),
        CliCommand::Ops(args) => commands::ops::run(&args),
        CliCommand::Models(args) => commands::models::run(&args),
        CliCommand::Devices(args) => commands::devices::run(&args),
        #[cfg(feature = "hub")]
        CliCommand::Pull(args) => commands::hub::pull::run(&args),
        #[cfg(feature = "hub")]
        CliCommand::List(args) => commands::hub::list::run(&args),
        #[cfg(feature = "hub")]
        CliCommand::Rm(args) => commands::hub::rm::run(&args),
        #[cfg(feature = "hub")]
        CliCommand::Show(args) => commands::hub::show::run(&args),
    }
}

fn failure(e: &CliError) -> ExitCode {
    // The reader of standard output is gone, so the error is not printed. 141 is 128 plus the
    // number of SIGPIPE.
    if e.is_broken_pipe() {
        return ExitCode::from(141);
    }
    error::report(e);
    ExitCode::from(if matches!(e, CliError::Usage(_)) {
        2
    } else {
        1
    })
}

/// Prints messages of the argument parser: help, the version and errors.
fn usage(said: &clap::Error) -> ExitCode {
    if said.use_stderr() {
        // The message repeats arguments, which may be file names with control characters.
        let plain = said.to_string();
        match output::acts_on_terminals(&plain) {
            true => output::print_note(format_args!("{}", plain.trim_end())),
            // If standard error is closed, the message is lost.
            false => drop(said.print()),
        }
        return ExitCode::from(2);
    }
    let printed = said.print().and_then(|()| std::io::stdout().flush());
    match printed {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => failure(&e.into()),
    }
}

//! The `tercet` command: generate text, embed sentences, inspect model files, run graphs.
//!
//! Each command is a module of [`commands`] with its arguments and one `run`. What a person reads
//! goes to the terminal, progress to standard error; with `--json` one JSON document goes to
//! standard output. Exit codes: see [`EXIT_CODES`].
#![forbid(unsafe_code)]

mod commands;
mod destination;
mod drivers;
mod error;
mod interrupt;
mod npy;
mod output;
mod progress;

use std::io::Write;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::error::{CliError, Outcome};

const EXIT_CODES: &str = "\
Exit codes:
  0    done
  1    failed: what, why and what to do is on standard error
  2    wrong usage
  130  interrupted by Ctrl-C
  141  the reader of standard output closed it, as `head` does";

/// Machine-learning models on any machine: no Python, no CUDA.
#[derive(Parser)]
#[command(name = "tercet", version = tercet::BUILD.text, propagate_version = true, after_help = EXIT_CODES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Write text with a language model
    Generate(Box<commands::generate::Args>),
    /// Talk with a language model
    Chat(Box<commands::chat::Args>),
    /// Measure tokens per second of a language model, or milliseconds of another
    Bench(commands::bench::Args),
    /// Measure how well a language model foretells a text
    Perplexity(commands::perplexity::Args),
    /// Train a language model, or an adapter for it, on texts or conversations
    Finetune(Box<commands::finetune::Args>),
    /// Write a model with adapters in its weights
    Merge(commands::merge::Args),
    /// Write a model as a GGUF file with its weights in fewer bits
    Quantize(commands::quantize::Args),
    /// Turn sentences into vectors, or compare them
    Embed(commands::embed::Args),
    /// Tell the classes of texts, or of their tokens
    Classify(commands::classify::Args),
    /// Order documents by how well they answer a query
    Rerank(commands::rerank::Args),
    /// Index a folder of texts or pictures, and find what is nearest to a query
    Search(Box<commands::search::Args>),
    /// Write what is said in a recording
    #[cfg(feature = "audio")]
    Transcribe(Box<commands::transcribe::Args>),
    /// Show what is in a model file: metadata, tensors, parameters, memory
    Inspect(commands::inspect::Args),
    /// Run a graph in text form or an ONNX model on .npy or .npz inputs
    Run(commands::run::Args),
    /// Show what would run where: kernels, dispatches, barriers, memory
    Explain(commands::explain::Args),
    /// Write a graph, or a model's, as an ONNX model
    Export(commands::export::Args),
    /// Compare every value of a graph on a device with the reference
    Verify(commands::verify::Args),
    /// Record when what ran, for Perfetto or chrome://tracing
    Trace(commands::trace::Args),
    /// Measure which variants of kernels are best for which problems on a device
    Tune(commands::tune::Args),
    /// Answer requests over HTTP with models and graphs
    #[cfg(feature = "serve")]
    Serve(commands::serve::Args),
    /// Draw a scene of 3-D Gaussians
    #[cfg(feature = "splat")]
    Splat(Box<commands::splat::Args>),
    /// List the operators: what they mean and which executor runs them how
    Ops(commands::ops::Args),
    /// List the devices of this machine
    Devices(commands::devices::Args),
}

fn main() -> ExitCode {
    let result = match Cli::try_parse() {
        Ok(cli) => run(cli.command),
        Err(said) => return usage(&said),
    };
    match result {
        Ok(Outcome::Done) => ExitCode::SUCCESS,
        Ok(Outcome::Interrupted) => ExitCode::from(130),
        Err(e) => failure(&e),
    }
}

fn run(command: Command) -> Result<Outcome, CliError> {
    match command {
        Command::Generate(args) => commands::generate::run(&args),
        Command::Chat(args) => commands::chat::run(&args),
        Command::Bench(args) => commands::bench::run(&args),
        Command::Perplexity(args) => commands::perplexity::run(&args),
        Command::Finetune(args) => commands::finetune::run(&args),
        Command::Merge(args) => commands::merge::run(&args),
        Command::Quantize(args) => commands::quantize::run(&args),
        Command::Embed(args) => commands::embed::run(&args),
        Command::Classify(args) => commands::classify::run(&args),
        Command::Rerank(args) => commands::rerank::run(&args),
        Command::Search(args) => commands::search::run(&args),
        #[cfg(feature = "audio")]
        Command::Transcribe(args) => commands::transcribe::run(&args),
        Command::Inspect(args) => commands::inspect::run(&args),
        Command::Run(args) => commands::run::run(&args),
        Command::Explain(args) => commands::explain::run(&args),
        Command::Export(args) => commands::export::run(&args),
        Command::Verify(args) => commands::verify::run(&args),
        Command::Trace(args) => commands::trace::run(&args),
        Command::Tune(args) => commands::tune::run(&args),
        #[cfg(feature = "serve")]
        Command::Serve(args) => commands::serve::run(&args),
        #[cfg(feature = "splat")]
        Command::Splat(args) => commands::splat::run(&args),
        Command::Ops(args) => commands::ops::run(&args),
        Command::Devices(args) => commands::devices::run(&args),
    }
}

fn failure(e: &CliError) -> ExitCode {
    // The reader of our output has gone: nobody is left to tell. 128 and the number of SIGPIPE.
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

/// What the parser has to say: help and the version as well as errors.
fn usage(said: &clap::Error) -> ExitCode {
    if said.use_stderr() {
        // It repeats arguments, which may be the names of files.
        let plain = said.to_string();
        match output::acts_on_terminals(&plain) {
            true => output::note(format_args!("{}", plain.trim_end())),
            // Nobody reads standard error: nobody is told.
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

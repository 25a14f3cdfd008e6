//! Project chores, run as `cargo xtask COMMAND`.
//!
//! | command | what |
//! |---|---|
//! | `test [ARGS]` | every test and doc test of the workspace, with what they need set up first |
//! | `parity [--pack FILE] [ARGS]` | every suite on this machine's devices: one verdict, a report; or a program that does so anywhere |
//! | `shaders [--check [--compile]]` | the GLSL kernels into the committed SPIR-V modules, or compare them |
//! | `programs --digest [--update]` | digests of the GPU programs of all operator cases on all device profiles, compared with the committed ones |
//! | `words [--update] [--list METRIC]` | violations of the rules of prose and names by crate, and the form of commits |
//! | `tree` | files and functions that are longer than they may be |
//! | `docs` | the tables of the documentation that follow from the code |
//! | `fetch minilm` | the MiniLM weights into the cache folder |
//! | `fetch digits` | the images that an example learns from into the cache folder |
//! | `fetch onnx` | ONNX's own cases into the cache folder |
//! | `fetch onnx-models` | ONNX models that packages carry into the cache folder |
//! | `fetch lavapipe` | a newer Vulkan software device and `spirv-val` into the cache folder |
//! | `onnx [--device D] [FILTER]` | ONNX's own cases on every executor, and the table of them in `docs/reference/onnx-operators.md` |
//! | `python [--ray]` | the wheel of the Python module, tested; with Ray also the example that runs on two nodes |
//! | `web [--serve]` | the example that runs in browsers, as a folder, tested in a headless Chromium or served |
//! | `bench cpu` | the CPU benches as one table, and as JSON |
//! | `bench gpu` | the bench of a GPU executor |
//!
//! Each command is one module; [`cache`] says where files are kept, [`process`] runs other
//! programs. The environment variables that matter are listed in [`env`](mod@env).

mod bench;
mod benchmarks;
mod cache;
mod docs;
mod env;
mod error;
mod fetch;
mod lavapipe;
mod onnx;
mod parity;
mod process;
mod program_digests;
mod programs;
mod python;
mod shaders;
mod system;
mod test;
mod tree;
mod web;
mod words;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use error::XtaskError;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Project chores")]
struct XtaskCli {
    #[command(subcommand)]
    command: XtaskCommand,
}

#[derive(Subcommand)]
enum XtaskCommand {
    /// Run every test and doc test, after setting up what they need
    Test {
        /// Of `cargo test`, for those tests alone: a part of their names, `--test suites`
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<OsString>,
    },
    /// Run every suite on the devices of this machine, in the profile that ships, and give one verdict; or pack the
    /// program that does so
    Parity {
        /// Write a self-contained program that runs on machines without a toolchain, and do not run it
        #[arg(long, value_name = "FILE")]
        pack: Option<PathBuf>,
        /// Without the weights of MiniLM (84 MB): its tests are ignored
        #[arg(long)]
        without_minilm: bool,
        /// Passed on: `--device vulkan`, `--suite models`, `--json FILE`, a part of names
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<OsString>,
    },
    /// Build the wheel of the Python module, and run its tests and the check of its types
    Python {
        /// Then install Ray (400 MB) and run the tests of `examples/ray`, on two nodes of this machine
        #[arg(long)]
        ray: bool,
    },
    /// Build `examples/web` into `target/web`, a folder for any web server, and test it in a headless Chromium
    Web {
        /// Serve it on this machine instead, until interrupted
        #[arg(long, conflicts_with = "build")]
        serve: bool,
        /// The port to serve on
        #[arg(long, default_value_t = 8000, requires = "serve")]
        port: u16,
        /// Build it only
        #[arg(long)]
        build: bool,
        /// Test it on the CPU alone: seconds, where WebGPU on the processor takes minutes
        #[arg(long, conflicts_with_all = ["serve", "build"])]
        cpu: bool,
        /// Test all of it on the CPU and a part on WebGPU, after installing what is missing (Chromium on Debian as root); where
        /// that cannot be, say so and do the rest
        #[arg(long, conflicts_with_all = ["serve", "build", "cpu"])]
        check: bool,
    },
    /// Compile the GLSL kernels into the SPIR-V modules that are committed beside them
    Shaders {
        /// Write nothing; fail with the name of each module that was made from another source, by
        /// digests: without the compiler, in a second
        #[arg(long)]
        check: bool,
        /// With --check: compile, and compare the modules themselves
        #[arg(long, requires = "check")]
        compile: bool,
    },
    /// Find files above 500 lines and functions above 80 that say no reason
    Tree,
    /// Count violations of the rules of prose, names and commits, and fail if a count rises
    Words(words::Options),
    /// Compare the GPU programs of all operator cases with the committed digests
    Programs(program_digests::Options),
    /// Write the tables of the documentation that follow from the code
    Docs,
    /// Run ONNX's own cases on every executor and write the table of them
    Onnx(onnx::OnnxRunArgs),
    /// Fetch a model or a tool into the cache folder and print where it is
    Fetch {
        #[command(subcommand)]
        what: FetchCommand,
    },
    /// Run benches and print them as one table
    Bench {
        #[command(subcommand)]
        what: BenchCommand,
    },
}

#[derive(Subcommand)]
enum FetchCommand {
    /// all-MiniLM-L6-v2: weights, configuration and tokenizer (84 MB to download)
    Minilm,
    /// 1,797 handwritten digits of 8 x 8 pixels, for the image classifier of `examples/training` (10 MB to download)
    Digits,
    /// The cases that ONNX's wheel ships (18 MB to download)
    Onnx,
    /// The ONNX models of `silero-vad` and `magika` (28 MB to download); prints the folder for TERCET_ONNX_MODELS
    OnnxModels,
    /// Debian unstable's lavapipe (a Vulkan device on the CPU), validation layers and SPIR-V tools,
    /// 80 MB to download, 400 MB on disk; needs apt with a Debian mirror, not root
    Lavapipe,
}

#[derive(Subcommand)]
enum BenchCommand {
    /// The CPU executor: kernels, MiniLM, the demo model
    Cpu(CpuBenchArgs),
    /// A GPU executor: kernels by their times on the device, models by the wall clock
    Gpu {
        /// Then measure torch (of the python3 found, with CUDA) and Burn on the same work
        #[arg(long)]
        peers: bool,
        /// Passed on: `--device NAME`, `--json PATH`, `--quick`, names of groups such as `gemm`
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<OsString>,
    },
}

/// The options of `bench cpu`.
#[derive(Args)]
struct CpuBenchArgs {
    /// Measure ONNX Runtime on the same models and convolutions in the same run
    #[arg(long)]
    peers: bool,
    /// Also write the rows as JSON
    #[arg(long, value_name = "PATH")]
    json: Option<PathBuf>,
    /// Threads, ours and the peers'
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..))]
    threads: u16,
    /// Print the results of the last run without measuring ours again
    #[arg(long)]
    no_run: bool,
    /// Passed on to criterion, for example a filter such as `gemm`
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<OsString>,
}

fn main() -> ExitCode {
    match run(XtaskCli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            let mut source = std::error::Error::source(&error);
            while let Some(cause) = source {
                eprintln!("  because: {cause}");
                source = cause.source();
            }
            ExitCode::FAILURE
        }
    }
}

fn run(command: XtaskCommand) -> Result<(), XtaskError> {
    match command {
        XtaskCommand::Test { args } => test::run(&args),
        XtaskCommand::Parity {
            pack,
            without_minilm,
            args,
        } => parity::run(&parity::ParityOptions {
            pack,
            without_minilm,
            args,
        }),
        XtaskCommand::Fetch {
            what: FetchCommand::Minilm,
        } => {
            let dir = fetch::minilm(&cache::dir()?)?;
            println!("{}", dir.display());
            Ok(())
        }
        XtaskCommand::Fetch {
            what: FetchCommand::Digits,
        } => {
            let dir = fetch::digits(&cache::dir()?)?;
            println!("{}", dir.display());
            Ok(())
        }
        XtaskCommand::Onnx(options) => onnx::run(&options),
        XtaskCommand::Fetch {
            what: FetchCommand::Onnx,
        } => {
            let dir = fetch::onnx(&cache::dir()?)?;
            println!("{}", dir.display());
            Ok(())
        }
        XtaskCommand::Fetch {
            what: FetchCommand::OnnxModels,
        } => {
            let cache = cache::dir()?;
            fetch::onnx_models(&cache)?;
            println!("{}", cache.display());
            Ok(())
        }
        XtaskCommand::Fetch {
            what: FetchCommand::Lavapipe,
        } => {
            let root = lavapipe::fetch(&cache::dir()?)?;
            println!("{}", root.dir().display());
            Ok(())
        }
        XtaskCommand::Python { ray } => python::run(ray),
        XtaskCommand::Web {
            serve,
            port,
            build,
            cpu,
            check,
        } => web::run(match (serve, build) {
            (true, _) => web::AfterBuild::Serve(port),
            (false, true) => web::AfterBuild::Nothing,
            (false, false) if check => web::AfterBuild::Check(&[
                ("cpu", web::PageCoverage::Whole),
                ("webgpu", web::PageCoverage::Part),
            ]),
            (false, false) if cpu => web::AfterBuild::Test(&[("cpu", web::PageCoverage::Whole)]),
            (false, false) => web::AfterBuild::Test(&[
                ("cpu", web::PageCoverage::Whole),
                ("webgpu", web::PageCoverage::Whole),
            ]),
        }),
        XtaskCommand::Tree => tree::run(),
        XtaskCommand::Docs => docs::run(),
        XtaskCommand::Words(options) => words::run(&options),
        XtaskCommand::Programs(options) => program_digests::run(&options),
        XtaskCommand::Shaders { check, compile } => shaders::run(match (check, compile) {
            (false, _) => shaders::ShaderMode::Write,
            (true, false) => shaders::ShaderMode::Check,
            (true, true) => shaders::ShaderMode::CheckCompiled,
        }),
        XtaskCommand::Bench {
            what: BenchCommand::Cpu(options),
        } => bench::cpu(&options),
        XtaskCommand::Bench {
            what: BenchCommand::Gpu { peers, args },
        } => bench::gpu(&args, peers),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        XtaskCli::command().debug_assert();
    }

    #[test]
    fn test_arguments_are_passed_on_untouched() {
        let cli = XtaskCli::parse_from(["xtask", "test", "softmax", "--", "--nocapture"]);
        let XtaskCommand::Test { args } = cli.command else {
            panic!("not the test command")
        };
        assert_eq!(args, ["softmax", "--", "--nocapture"]);
    }

    #[test]
    fn bench_options_stop_where_criterion_arguments_begin() {
        let cli =
            XtaskCli::parse_from(["xtask", "bench", "cpu", "--threads", "1", "gemm", "--quick"]);
        let XtaskCommand::Bench {
            what: BenchCommand::Cpu(options),
        } = cli.command
        else {
            panic!("not the bench command")
        };
        assert_eq!(options.threads, 1);
        assert_eq!(options.args, ["gemm", "--quick"]);
    }
}

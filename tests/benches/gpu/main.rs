//! Benches of a GPU executor, printed as a table and written as JSON. `cargo xtask bench gpu` runs
//! the benches, as does `gpu --device vulkan --json gpu.json [FILTER...]`. Training steps are
//! separate groups such as `training_bert_f16` (`steps.rs`).
//!
//! Kernel times are device times, medians over many runs. Model times are wall-clock times from
//! inputs to results on the host. Matmuls are checked against F64 sums in the same run.

mod attention;
mod conv;
mod fft;
mod kernels;
mod models;
mod products;
mod profile;
mod report;
mod sequence;
#[cfg(feature = "splat")]
mod splats;
mod steps;
mod training;
mod vision_encoders;

use tercet::{Device, DeviceOptions, one_line};

use report::Report;

pub(crate) type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// A group of measurements: name and function.
type Group = (&'static str, fn(&mut Bench) -> Result<()>);

const GROUPS: &[Group] = &[
    ("gemm", kernels::gemm),
    ("gradient_products", products::gradients),
    ("gemv", kernels::gemv),
    ("rows", kernels::rows),
    ("attention", attention::attention),
    ("conv", conv::conv),
    ("seq", sequence::sequence),
    ("spectra", fft::spectra),
    #[cfg(feature = "splat")]
    ("splats", splats::splats),
    ("training_attention", training::training_attention),
    ("training", training::training),
    ("chain", kernels::chain),
    ("maps", kernels::maps),
    ("overhead", kernels::overhead),
    ("bert", models::bert),
    ("towers", vision_encoders::towers),
    ("resize", models::resize),
    ("first_run", models::first_run),
    ("decode", models::decode),
    ("large", models::large),
    ("profile", profile::profile),
];

/// The devices and options of a run.
pub(crate) struct Bench {
    /// A device without timestamps, for wall-clock times.
    pub(crate) device: Device,
    /// A device that measures each step.
    pub(crate) timed: Device,
    pub(crate) name: String,
    pub(crate) report: Report,
    /// Only measure small sizes, to try the bench.
    pub(crate) quick: bool,
    /// Print the time of each step of a measured graph.
    pub(crate) steps: bool,
}

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let (mut name, mut json) = ("vulkan".to_string(), None);
    let (mut quick, mut steps) = (false, false);
    let mut filters = Vec::new();
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--device" => name = args.next().ok_or("--device requires a name")?,
            "--json" => json = Some(args.next().ok_or("--json requires a path")?),
            "--quick" => quick = true,
            "--steps" => steps = true,
            // Cargo passes `--bench` to every bench target.
            "--bench" => {}
            _ => filters.push(arg),
        }
    }
    let open = |timings| {
        let options = DeviceOptions {
            timings,
            ..DeviceOptions::default()
        };
        Device::open(&name, &options)
    };
    let mut bench = Bench {
        device: open(false)?,
        timed: open(true)?,
        report: Report::new(&name),
        name,
        quick,
        steps,
    };
    for (group, run) in GROUPS {
        if !filters.is_empty() && !filters.iter().any(|f| group.contains(f.as_str())) {
            continue;
        }
        // A failed group does not stop the others.
        if let Err(e) = run(&mut bench) {
            bench.report.failed(group, &one_line(&*e));
        }
        if let Some(path) = &json {
            std::fs::write(path, bench.report.json())?;
        }
    }
    steps::steps(&mut bench, &filters);
    if let Some(path) = &json {
        std::fs::write(path, bench.report.json())?;
    }
    Ok(())
}

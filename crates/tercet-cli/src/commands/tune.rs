//! `tercet tune`: measures kernel variants per problem size, and saves the results as a tuning
//! table that this machine's devices load.

use std::io::Write;

use tercet::{DeviceOptions, TuneOptions, TunedProblem, tune};

use super::cache_dir;
use crate::error::{CliError, CommandOutcome};
use crate::{drivers, interrupt, output, progress};

#[derive(clap::Args)]
pub(crate) struct TuneArgs {
    /// Device to tune; see `tercet devices`
    #[arg(long, default_value = "vulkan", value_name = "NAME")]
    device: String,
    /// Measure only a few sizes
    #[arg(long)]
    quick: bool,
    /// Measure this matmul size instead: MxNxK, with `nt` appended if the right operand is N x K;
    /// repeatable
    #[arg(long, value_name = "MxNxK[nt]", value_parser = shape)]
    shape: Vec<([usize; 3], bool)>,
    /// Only candidates whose name contains this; repeatable
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,
    /// Skip candidates whose name contains this; repeatable
    #[arg(long, value_name = "TEXT")]
    without: Vec<String>,
}

pub fn shape(text: &str) -> Result<([usize; 3], bool), String> {
    let (text, transposed) = match text.strip_suffix("nt") {
        Some(sizes) => (sizes, true),
        None => (text, false),
    };
    let sizes: Option<Vec<usize>> = text.split('x').map(|n| n.parse().ok()).collect();
    match sizes.as_deref() {
        Some(&[m, n, k]) if is_measurable(m, n, k) => Ok(([m, n, k], transposed)),
        _ => Err("expected three sizes, such as 4096x768x3072".to_string()),
    }
}

/// Whether a matmul of these three sizes can be measured.
fn is_measurable(m: usize, n: usize, k: usize) -> bool {
    let work = m.checked_mul(n).and_then(|mn| mn.checked_mul(k));
    work.is_some_and(|work| work > 0)
}

pub(crate) fn run(args: &TuneArgs) -> Result<CommandOutcome, CliError> {
    let options = DeviceOptions {
        cache_dir: cache_dir(),
        ..DeviceOptions::default()
    };
    let what = TuneOptions {
        quick: args.quick,
        shapes: args.shape.clone(),
        only: args.only.clone(),
        without: args.without.clone(),
    };
    // Opened before the messages of drivers are redirected.
    let spinner = progress::spinner("tuning");
    let (mut failed, mut count) = (None, 0);
    let mut done = |product: TunedProblem| {
        // From here on there are results to save, so Ctrl-C must stop cleanly.
        interrupt::listen();
        count += 1;
        spinner.set_message(format!("tuning: {count} sizes measured"));
        let print = || output::print_for_humans(|out| writeln!(out, "{}", line(&product)));
        failed = spinner.suspend(print).err();
        failed.is_none() && !interrupt::interrupted()
    };
    let kept = drivers::labelled(|| tune(&args.device, &options, &what, &mut done));
    spinner.finish_and_clear();
    let kept = kept?;
    if let Some(e) = failed {
        return Err(e);
    }
    if let Some(file) = kept {
        output::print_for_humans(|out| writeln!(out, "saved to {}", file.display()))?;
    }
    Ok(match interrupt::interrupted() {
        true => CommandOutcome::Interrupted,
        false => CommandOutcome::Done,
    })
}

/// One line per matmul: its size, the best candidate, and all candidates with their TFLOP/s,
/// fastest first.
pub fn line(product: &TunedProblem) -> String {
    let mut line = format!("{:<24}", product.name);
    for (at, (name, outcome)) in product.candidates.iter().enumerate() {
        line += match at {
            0 => " best ",
            _ => " | ",
        };
        line += &match outcome {
            Ok(seconds) => format!("{name} {:.1}", product.flops / seconds * 1e-12),
            Err(why) => format!("{name} failed: {why}"),
        };
    }
    line
}

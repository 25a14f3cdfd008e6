//! `tercet tune`: measures which variants of kernels are best for which problems, and keeps the table
//! where this machine's devices find it.

use std::io::Write;

use tercet::{DeviceOptions, TuneOptions, TunedProduct, tune};

use super::cache_dir;
use crate::error::{CliError, Outcome};
use crate::{drivers, interrupt, output};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The device; see `tercet devices`
    #[arg(long, default_value = "vulkan", value_name = "NAME")]
    device: String,
    /// Measure a few sizes only
    #[arg(long)]
    quick: bool,
    /// Measure products of this size instead, rows x columns x summed, with `nt` after it where the right factor
    /// is columns x summed; may be repeated
    #[arg(long, value_name = "MxNxK[nt]", value_parser = shape)]
    shape: Vec<([usize; 3], bool)>,
    /// Only candidates whose name contains this; may be repeated
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,
    /// No candidates whose name contains this; may be repeated
    #[arg(long, value_name = "TEXT")]
    without: Vec<String>,
}

fn shape(text: &str) -> Result<([usize; 3], bool), String> {
    let (text, transposed) = match text.strip_suffix("nt") {
        Some(sizes) => (sizes, true),
        None => (text, false),
    };
    let sizes: Option<Vec<usize>> = text.split('x').map(|n| n.parse().ok()).collect();
    match sizes.as_deref() {
        Some(&[m, n, k]) if countable(m, n, k) => Ok(([m, n, k], transposed)),
        _ => Err("expected three sizes, such as 4096x768x3072".to_string()),
    }
}

/// Whether three sizes are a product of which something can be measured.
fn countable(m: usize, n: usize, k: usize) -> bool {
    let work = m.checked_mul(n).and_then(|mn| mn.checked_mul(k));
    work.is_some_and(|work| work > 0)
}

pub(crate) fn run(args: &Args) -> Result<Outcome, CliError> {
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
    let mut failed = None;
    let mut done = |product| {
        // From here on there is something to keep.
        interrupt::listen();
        failed = output::people(|out| writeln!(out, "{}", line(&product))).err();
        failed.is_none() && !interrupt::interrupted()
    };
    let kept = drivers::labelled(|| tune(&args.device, &options, &what, &mut done))?;
    if let Some(e) = failed {
        return Err(e);
    }
    if let Some(file) = kept {
        output::people(|out| writeln!(out, "kept in {}", file.display()))?;
    }
    Ok(match interrupt::interrupted() {
        true => Outcome::Interrupted,
        false => Outcome::Done,
    })
}

/// The product, the best candidate, and all with their TFLOP/s from fast to slow.
fn line(product: &TunedProduct) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_begins_with_the_best() {
        let product = TunedProduct {
            name: "f16 nn 1x2x3".to_string(),
            flops: 3e12,
            candidates: vec![
                ("a".to_string(), Ok(1.0)),
                ("b".to_string(), Ok(2.0)),
                ("c".to_string(), Err("no".to_string())),
            ],
        };
        assert_eq!(
            line(&product),
            "f16 nn 1x2x3             best a 3.0 | b 1.5 | c failed: no"
        );
    }

    #[test]
    fn shapes_are_three_sizes() {
        const HUGE: &str = "4294967295x4294967295x4294967295";
        assert_eq!(shape("4096x768x3072"), Ok(([4096, 768, 3072], false)));
        assert_eq!(shape("512x64x8nt"), Ok(([512, 64, 8], true)));
        for wrong in ["", "1x2", "1x2x0", "1x2x3x4", "axbxc", "nt", HUGE] {
            assert!(shape(wrong).is_err(), "{wrong}");
        }
    }
}

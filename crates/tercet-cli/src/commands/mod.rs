//! The commands, one module each: `Args` and `run`.

pub(crate) mod devices;
pub(crate) mod embed;
pub(crate) mod explain;
pub(crate) mod generate;
pub(crate) mod inspect;
pub(crate) mod ops;
pub(crate) mod run;
pub(crate) mod source;
#[cfg(feature = "splat")]
pub(crate) mod splat;
pub(crate) mod trace;
pub(crate) mod tune;
pub(crate) mod verify;

use std::path::PathBuf;

use clap::ValueEnum;
use tercet::{DType, Device, DeviceOptions};

use crate::error::CliError;

/// Float types that a model can be computed in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Precision {
    F32,
    F16,
    Bf16,
}

impl Precision {
    pub(crate) fn dtype(self) -> DType {
        match self {
            Precision::F32 => DType::F32,
            Precision::F16 => DType::F16,
            Precision::Bf16 => DType::BF16,
        }
    }
}

pub(crate) fn device(name: &str) -> Result<Device, CliError> {
    open(name, false)
}

/// As [`device`], measuring each step where `timings` is set.
pub(crate) fn open(name: &str, timings: bool) -> Result<Device, CliError> {
    let options = DeviceOptions {
        which: None,
        cache_dir: cache_dir(),
        timings,
    };
    Device::open(name, &options).map_err(|e| CliError::Usage(e.to_string()))
}

/// Where compiled pipelines are kept: `TERCET_CACHE_DIR`, else the user's cache folder.
fn cache_dir() -> Option<PathBuf> {
    let var = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty());
    if let Some(dir) = var("TERCET_CACHE_DIR") {
        return Some(PathBuf::from(dir).join("pipelines"));
    }
    let cache = match var("XDG_CACHE_HOME").or_else(|| var("LOCALAPPDATA")) {
        Some(dir) => PathBuf::from(dir),
        None => PathBuf::from(var("HOME")?).join(".cache"),
    };
    Some(cache.join("tercet").join("pipelines"))
}

/// Parses a float argument of a range; both ends included.
pub(crate) fn within(
    range: std::ops::RangeInclusive<f64>,
) -> impl Fn(&str) -> Result<f64, String> + Clone + Send + Sync {
    move |text| {
        let x: Option<f64> = text.parse().ok();
        x.filter(|x| range.contains(x)).ok_or_else(|| {
            let (lo, hi) = (range.start(), range.end());
            format!("expected a number from {lo} to {hi}")
        })
    }
}

/// Parses a count of at least 1.
pub(crate) fn positive(text: &str) -> Result<usize, String> {
    let n: Option<usize> = text.parse().ok();
    n.filter(|&n| n > 0)
        .ok_or_else(|| "expected a whole number from 1 on".to_string())
}

//! The commands, one module each: `Args` and `run`.

pub(crate) mod devices;
pub(crate) mod embed;
pub(crate) mod generate;
pub(crate) mod inspect;
pub(crate) mod run;

use clap::ValueEnum;
use tercet::{DType, Device};

use crate::error::CliError;

/// Float types that a model can be computed in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Precision {
    /// As the model's graph says: 32 bits
    F32,
    /// IEEE binary16 with 32-bit accumulation
    F16,
    /// bfloat16 with 32-bit accumulation
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
    Device::by_name(name).map_err(|e| CliError::Usage(e.to_string()))
}

/// A float argument within a range; both ends included.
pub(crate) fn within(what: &str, x: f64, lo: f64, hi: f64) -> Result<f64, CliError> {
    if (lo..=hi).contains(&x) {
        return Ok(x);
    }
    Err(CliError::Usage(format!(
        "{what} must be from {lo} to {hi}, got {x}"
    )))
}

//! The commands, one module each: `Args` and `run`.

pub(crate) mod bench;
pub(crate) mod chat;
mod choosing;
pub(crate) mod classify;
pub(crate) mod devices;
pub(crate) mod dump;
pub(crate) mod embed;
pub(crate) mod explain;
pub(crate) mod export;
pub(crate) mod finetune;
pub(crate) mod generate;
pub(crate) mod inspect;
mod inspect_onnx;
pub(crate) mod merge;
mod onnx;
pub(crate) mod ops;
pub(crate) mod perplexity;
mod pictures;
pub(crate) mod quantize;
pub(crate) mod rerank;
pub(crate) mod run;
pub(crate) mod search;
#[cfg(feature = "serve")]
pub(crate) mod serve;
pub(crate) mod source;
#[cfg(feature = "splat")]
pub(crate) mod splat;
mod strings;
mod tensors;
mod texts;
pub(crate) mod trace;
#[cfg(feature = "audio")]
pub(crate) mod transcribe;
pub(crate) mod tune;
pub(crate) mod verify;
mod writing;

use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::PathBuf;

use clap::ValueEnum;
use tercet::{DType, Device, DeviceOptions};
use tercet_models::{Decoder, Products};

use crate::drivers;
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

/// How caches store keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Cache {
    F32,
    F16,
    Bf16,
    /// Codes of 8 bits with a scale for each 32: little more than a quarter of f32, decoded for each token
    #[value(name = "q8_0")]
    Q8,
}

impl Cache {
    pub(crate) fn format(self) -> tercet_models::CacheFormat {
        match self {
            Cache::F32 => DType::F32.into(),
            Cache::F16 => DType::F16.into(),
            Cache::Bf16 => DType::BF16.into(),
            Cache::Q8 => tercet_models::CacheFormat::Q8_0,
        }
    }
}

/// What a language model is computed in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Arithmetic {
    /// F32, but rows of prompts and texts are multiplied in f16 or bf16 where weights and device gain by it
    Auto,
    /// F32 throughout
    F32,
    /// F16 with sums in f32
    F16,
    /// BF16 with sums in f32
    Bf16,
}

impl Arithmetic {
    pub(crate) fn dtype(self) -> DType {
        self.throughout().dtype()
    }

    /// Of what has no products to choose for.
    pub(crate) fn throughout(self) -> Precision {
        match self {
            Arithmetic::Auto | Arithmetic::F32 => Precision::F32,
            Arithmetic::F16 => Precision::F16,
            Arithmetic::Bf16 => Precision::Bf16,
        }
    }

    pub(crate) fn products(self) -> Products {
        match self {
            Arithmetic::Auto => Products::Auto,
            Arithmetic::F32 | Arithmetic::F16 | Arithmetic::Bf16 => Products::Exact,
        }
    }

    /// As tables have it, of a model on a device.
    pub(crate) fn shown(self, decoder: &Decoder, device: &Device) -> String {
        match decoder.products(device) {
            Some(products) => format!("{} ({products} products)", self.dtype()),
            None => self.dtype().to_string(),
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
    drivers::labelled(|| Device::open(name, &options)).map_err(|e| CliError::Usage(e.to_string()))
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

/// Parses a number of tokens to write; -1 and -2 are no number, as in llama.cpp: the text ends where the model
/// ends it or the context is full.
pub(crate) fn tokens(text: &str) -> Result<usize, String> {
    match text {
        "-1" | "-2" => Ok(usize::MAX),
        text => text
            .parse()
            .map_err(|_| "expected a whole number, or -1 for no limit".to_string()),
    }
}

/// Parses a seed; -1 draws one.
pub(crate) fn seed(text: &str) -> Result<u64, String> {
    match text {
        // The keys of a hash map come from the system's randomness.
        // 32 bits of them: a number that can be typed again.
        "-1" => Ok(RandomState::new().build_hasher().finish() >> 32),
        text => text
            .parse()
            .map_err(|_| format!("expected a whole number up to {}, or -1 for any", u64::MAX)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minus_one_is_no_limit_and_any_seed() {
        assert_eq!((tokens("7"), tokens("-1")), (Ok(7), Ok(usize::MAX)));
        assert!(tokens("-3").is_err() && tokens("").is_err() && tokens("1e3").is_err());
        assert_eq!(seed("7"), Ok(7));
        assert_ne!(seed("-1"), seed("-1"));
        assert!(seed("-2").is_err() && seed("18446744073709551616").is_err());
    }
}

//! Measuring which way of a matrix product is best for which size on a device.
//!
//! The table that comes out is kept in the folder of the pipeline cache, one for each device and
//! driver. Devices that are opened with that folder choose by it.

use std::path::PathBuf;

use crate::device::{DeviceError, DeviceOptions};

/// What to measure.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TuneOptions {
    /// A few sizes instead of all.
    pub quick: bool,
    /// These sizes `[m, n, k]` instead, and whether the right factor is `[n, k]`.
    pub shapes: Vec<([usize; 3], bool)>,
    /// Only candidates whose name contains one of these; all where there is none.
    pub only: Vec<String>,
    /// Not candidates whose name contains one of these.
    pub without: Vec<String>,
}

/// How the candidates did on one product.
#[derive(Clone, Debug, PartialEq)]
pub struct TunedProduct {
    /// Type, layout and size, such as `f16 nn 4096x4096x768`: `m x n x k`, where `nt` says that the
    /// right factor is `[n, k]`.
    pub name: String,
    /// Multiplications and additions.
    pub flops: f64,
    /// Name and seconds of each candidate, or why it cannot be used; the fastest first.
    pub candidates: Vec<(String, Result<f64, String>)>,
}

/// Why nothing was measured, or not kept.
#[derive(Debug, thiserror::Error)]
pub enum TuneError {
    /// The device cannot be opened.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The device has one way only.
    #[error("device `{0}` has no choice to measure; `vulkan` with cooperative matrices has")]
    NoChoice(String),
    /// A product cannot be made on the device.
    #[error("cannot measure {name}")]
    Measure {
        /// The product.
        name: String,
        /// Why.
        source: tercet_ir::CompileError,
    },
    /// The table cannot be written.
    #[error("cannot keep the measurements")]
    Store(#[from] std::io::Error),
}

/// Measures all candidates on a device, tells of each product as soon as it is done, and keeps the
/// table where the options have a cache folder. Stops, and keeps what was measured, when `done` gives
/// false. Gives the file.
///
/// # Errors
/// [`TuneError`].
pub fn tune(
    device: &str,
    options: &DeviceOptions,
    what: &TuneOptions,
    done: &mut dyn FnMut(TunedProduct) -> bool,
) -> Result<Option<PathBuf>, TuneError> {
    let (name, which) = match device.split_once(':') {
        Some((name, which)) => (name, Some(which.to_string())),
        None => (device, options.which.clone()),
    };
    if name != "vulkan" {
        return Err(TuneError::NoChoice(device.to_string()));
    }
    let options = DeviceOptions {
        which,
        timings: true,
        ..options.clone()
    };
    vulkan::tune(&options, what, done)
}

#[cfg(not(feature = "vulkan"))]
mod vulkan {
    use super::{DeviceOptions, PathBuf, TuneError, TuneOptions, TunedProduct};
    use crate::device::DeviceError;

    pub(super) fn tune(
        _: &DeviceOptions,
        _: &TuneOptions,
        _: &mut dyn FnMut(TunedProduct) -> bool,
    ) -> Result<Option<PathBuf>, TuneError> {
        Err(TuneError::Device(DeviceError::Feature {
            name: "vulkan",
            feature: "vulkan",
        }))
    }
}

#[cfg(feature = "vulkan")]
mod vulkan {
    use std::collections::BTreeSet;

    use tercet_ir::DType;
    use tercet_vulkan::tune::{self, Measured, Outcome};
    use tercet_vulkan::{Entry, Problem, Tuning, VulkanBackend};

    use super::{DeviceOptions, PathBuf, TuneError, TuneOptions, TunedProduct};
    use crate::device::open_vulkan;

    /// `m n k`, and whether the right factor is `[n, k]`: squares, the layers of a BERT-base at 4096
    /// and at 128 rows, those of language models of 1 and 8 billion parameters at 512 rows.
    const SHAPES: &[([usize; 3], bool)] = &[
        ([512, 512, 512], false),
        ([1024, 1024, 1024], false),
        ([2048, 2048, 2048], false),
        ([4096, 4096, 4096], false),
        ([8192, 8192, 8192], false),
        ([4096, 768, 768], false),
        ([4096, 2304, 768], false),
        ([4096, 3072, 768], false),
        ([4096, 768, 3072], false),
        ([128, 768, 768], false),
        ([128, 3072, 768], false),
        ([128, 768, 3072], false),
        ([512, 2048, 2048], true),
        ([512, 5632, 2048], true),
        ([512, 2048, 5632], true),
        ([512, 4096, 4096], true),
        ([512, 14336, 4096], true),
    ];

    const QUICK: &[([usize; 3], bool)] = &[
        ([1024, 1024, 1024], false),
        ([4096, 4096, 4096], false),
        ([4096, 768, 768], false),
    ];

    fn problems(what: &TuneOptions) -> Vec<Problem> {
        let shapes: Vec<([usize; 3], bool)> = match (&what.shapes[..], what.quick) {
            ([], false) => SHAPES.to_vec(),
            ([], true) => QUICK.to_vec(),
            (own, _) => own.to_vec(),
        };
        let of = |dtype| {
            shapes
                .iter()
                .map(move |&([m, n, k], b_transposed)| Problem {
                    dtype,
                    b_transposed,
                    m,
                    n,
                    k,
                })
        };
        let mut all: Vec<Problem> = of(DType::F16).chain(of(DType::BF16)).collect();
        // Large ones first: an idle device clocks up while they run.
        all.sort_by_key(|p| std::cmp::Reverse(p.m * p.n * p.k));
        all
    }

    fn names(backend: &VulkanBackend, problem: &Problem, what: &TuneOptions) -> Vec<String> {
        let in_any = |name: &str, list: &[String]| list.iter().any(|part| name.contains(part));
        let mut all = tune::candidates(backend, problem);
        all.retain(|name| what.only.is_empty() || in_any(name, &what.only));
        all.retain(|name| !in_any(name, &what.without));
        all
    }

    fn product_of(measured: &Measured) -> TunedProduct {
        let p = measured.problem;
        let outcomes = measured.candidates.iter().map(|(name, outcome)| {
            let outcome = match outcome {
                Outcome::Seconds(s) => Ok(*s),
                Outcome::Failed(why) => Err(why.clone()),
            };
            (name.clone(), outcome)
        });
        TunedProduct {
            name: shown(&p),
            flops: 2.0 * p.m as f64 * p.n as f64 * p.k as f64,
            candidates: outcomes.collect(),
        }
    }

    fn shown(p: &Problem) -> String {
        let layout = if p.b_transposed { "nt" } else { "nn" };
        format!("{} {layout} {}x{}x{}", p.dtype, p.m, p.n, p.k)
    }

    pub(super) fn tune(
        options: &DeviceOptions,
        what: &TuneOptions,
        done: &mut dyn FnMut(TunedProduct) -> bool,
    ) -> Result<Option<PathBuf>, TuneError> {
        let backend = open_vulkan(options)?;
        let mut problems = problems(what);
        problems.retain(|p| !names(&backend, p, what).is_empty());
        if problems.is_empty() {
            return Err(TuneError::NoChoice(backend.device().name.clone()));
        }
        let ways = problems.iter().flat_map(|p| {
            let names = names(&backend, p, what).into_iter();
            names.map(|name| (name, p.dtype, p.b_transposed))
        });
        let ways: BTreeSet<(String, DType, bool)> = ways.collect();
        tune::prepare(&backend, &Vec::from_iter(ways));
        // What was measured before, but for what is measured now.
        let mut entries: Vec<Entry> = backend.caps().tuning.entries().to_vec();
        for problem in &problems {
            let names = names(&backend, problem, what);
            let measured =
                tune::measure(&backend, problem, &names).map_err(|source| TuneError::Measure {
                    name: shown(problem),
                    source,
                })?;
            entries.retain(|e| e.problem != *problem);
            if let Some(best) = measured.best() {
                entries.push(Entry {
                    problem: *problem,
                    way: best.to_string(),
                });
            }
            if !done(product_of(&measured)) {
                break;
            }
        }
        match options.cache_dir {
            Some(_) => Ok(Some(backend.store_tuning(&Tuning::new(entries))?)),
            None => Ok(None),
        }
    }
}

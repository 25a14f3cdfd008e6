//! Measuring which variant of a kernel is best for which problem on a device.
//!
//! The table that comes out is kept in the folder of the pipeline cache, one for each device and
//! driver. Devices that are opened with that folder choose by it.

use std::path::PathBuf;

use crate::device::{DeviceError, DeviceOptions, chosen};

/// What to measure.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TuneOptions {
    /// A few sizes instead of all.
    pub quick: bool,
    /// Products of these sizes `[m, n, k]` instead, and whether the right factor is `[n, k]`.
    pub shapes: Vec<([usize; 3], bool)>,
    /// Only candidates whose name contains one of these; all where there is none.
    pub only: Vec<String>,
    /// Not candidates whose name contains one of these.
    pub without: Vec<String>,
}

/// How the candidates did on one problem.
#[derive(Clone, Debug, PartialEq)]
pub struct TunedProduct {
    /// What was measured and its sizes, such as `matmul/f16/nn 4096x4096x768`: `m x n x k`, where `nt` says that the
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
    /// The device has one variant of everything.
    #[error("device `{0}` has no choice to measure; `vulkan` and `wgpu` have")]
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

/// Measures all candidates on a device, tells of each problem as soon as it is done, and keeps the
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
    let (name, which) = chosen(device)?;
    let options = DeviceOptions {
        which: which.or_else(|| options.which.clone()),
        timings: true,
        ..options.clone()
    };
    match name {
        "vulkan" => on::vulkan(&options, what, done),
        "wgpu" => on::wgpu(&options, what, done),
        _ => Err(TuneError::NoChoice(device.to_string())),
    }
}

#[cfg(feature = "wgpu")]
pub(crate) use files::load;

/// The devices of this build.
mod on {
    use super::{DeviceOptions, PathBuf, TuneError, TuneOptions, TunedProduct};

    type Done<'a> = &'a mut dyn FnMut(TunedProduct) -> bool;

    #[cfg(feature = "vulkan")]
    pub(super) fn vulkan(
        options: &DeviceOptions,
        what: &TuneOptions,
        done: Done<'_>,
    ) -> Result<Option<PathBuf>, TuneError> {
        let backend = crate::device::open_vulkan(options)?;
        let before = &backend.caps().device.tuning;
        let table = super::tasks::table(&backend, &backend.device().name, before, what, done)?;
        match options.cache_dir {
            Some(_) => Ok(Some(backend.store_tuning(&table)?)),
            None => Ok(None),
        }
    }

    #[cfg(feature = "wgpu")]
    pub(super) fn wgpu(
        options: &DeviceOptions,
        what: &TuneOptions,
        done: Done<'_>,
    ) -> Result<Option<PathBuf>, TuneError> {
        let backend = crate::device::open_wgpu(options)?;
        let dir = options.cache_dir.as_deref();
        let before = dir.and_then(|dir| super::files::load(dir, &backend));
        let name = &backend.adapter().name;
        let table = super::tasks::table(&backend, name, &before.unwrap_or_default(), what, done)?;
        match dir {
            Some(dir) => Ok(Some(super::files::store(dir, &backend, &table)?)),
            None => Ok(None),
        }
    }

    #[cfg(not(feature = "vulkan"))]
    pub(super) fn vulkan(
        _: &DeviceOptions,
        _: &TuneOptions,
        _: Done<'_>,
    ) -> Result<Option<PathBuf>, TuneError> {
        Err(TuneError::Device(crate::DeviceError::Feature {
            name: "vulkan",
            feature: "vulkan",
        }))
    }

    #[cfg(not(feature = "wgpu"))]
    pub(super) fn wgpu(
        _: &DeviceOptions,
        _: &TuneOptions,
        _: Done<'_>,
    ) -> Result<Option<PathBuf>, TuneError> {
        Err(TuneError::Device(crate::DeviceError::Feature {
            name: "wgpu",
            feature: "wgpu",
        }))
    }
}

/// The table of an adapter of wgpu, in the folder of caches.
#[cfg(feature = "wgpu")]
mod files {
    use std::fs;
    use std::io;
    use std::path::{Path, PathBuf};

    use tercet_plan::Tuning;
    use tercet_wgpu::{AdapterSummary, WgpuBackend};

    /// One for each adapter, interface and driver.
    fn file(dir: &Path, adapter: &AdapterSummary) -> PathBuf {
        let AdapterSummary {
            name,
            kind: _,
            api,
            driver,
        } = adapter;
        let all = format!("{name}-{api}-{driver}");
        let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
        let word: String = all.chars().map(plain).take(120).collect();
        dir.join(format!("tuning-wgpu-{word}.txt"))
    }

    /// What was measured; a file that is missing or damaged is as good as none.
    pub(crate) fn load(dir: &Path, backend: &WgpuBackend) -> Option<Tuning> {
        let text = fs::read_to_string(file(dir, backend.adapter())).ok()?;
        text.parse().ok()
    }

    /// Replaces the file, whole.
    pub(super) fn store(dir: &Path, backend: &WgpuBackend, table: &Tuning) -> io::Result<PathBuf> {
        let file = file(dir, backend.adapter());
        fs::create_dir_all(dir)?;
        let temporary = file.with_extension(format!("{}.tmp", std::process::id()));
        let done = fs::write(&temporary, table.to_string());
        let done = done.and_then(|()| fs::rename(&temporary, &file));
        if done.is_err() {
            let _ = fs::remove_file(&temporary);
        }
        done.map(|()| file)
    }
}

/// What is measured.
#[cfg(any(feature = "vulkan", feature = "wgpu"))]
mod tasks {
    use tercet_ir::{CompileError, DType, Scheme};
    use tercet_plan::tune::{self, Measured, Outcome, StateScan, Task, Tunable};
    use tercet_plan::{Entry, GemmProblem, Key, Tuning, Weights};

    use super::{TuneError, TuneOptions, TunedProduct};

    /// `m n k`, and whether the right factor is `[n, k]`: squares, the layers of a BERT-base at 4096
    /// and at 128 rows, those of language models of 1 and 8 billion parameters at 512 rows.
    const SHAPES: &[([usize; 3], bool)] = &[
        ([8192, 8192, 8192], false),
        ([4096, 4096, 4096], false),
        ([2048, 2048, 2048], false),
        ([1024, 1024, 1024], false),
        ([512, 512, 512], false),
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
        ([4096, 4096, 4096], false),
        ([1024, 1024, 1024], false),
        ([4096, 768, 768], false),
    ];

    /// Layers of language models, as columns and summed sizes.
    const LAYERS: &[[usize; 2]] = &[[2048, 2048], [5632, 2048], [14336, 4096], [4096, 14336]];

    /// Formats of weights that have variants of their own.
    const PACKED: &[Scheme] = &[Scheme::Q4_0, Scheme::Q8_0, Scheme::Q4K, Scheme::Q6K];

    /// Key heads, query heads of each, queries, keys, elements of a head: an encoder, a prompt, a token.
    const ATTENTION: &[[usize; 5]] = &[
        [16, 1, 1024, 1024, 64],
        [8, 4, 512, 512, 128],
        [8, 4, 1, 4096, 128],
    ];

    /// Batch, channels, sides of the image, channels of the result, sides of a window.
    const CONVS: &[[usize; 5]] = &[
        [32, 64, 56, 64, 3],
        [1, 64, 56, 64, 3],
        [32, 512, 7, 512, 3],
        [32, 64, 56, 256, 1],
    ];

    /// Batch, steps, heads, channels of a head, states of a channel: models of one to three billion parameters.
    const SCANS: &[(StateScan, [usize; 5])] = &[
        (StateScan::Selective, [1, 4096, 4096, 1, 16]),
        (StateScan::Selective, [8, 2048, 4096, 1, 16]),
        (StateScan::Mamba2, [1, 4096, 64, 64, 128]),
        (StateScan::GatedDelta, [1, 4096, 16, 128, 128]),
    ];

    /// A problem, whose operands are made when it is its turn.
    #[derive(Debug)]
    enum Planned {
        Tilings(GemmProblem),
        Product(DType, Weights, [usize; 3]),
        Attention(DType, [usize; 5]),
        Conv(DType, [usize; 5]),
        Scan(StateScan, DType, [usize; 5]),
    }

    impl Planned {
        fn task(&self) -> Result<Task, CompileError> {
            match self {
                Planned::Tilings(problem) => Task::tilings(problem),
                Planned::Product(dtype, weights, sizes) => Task::product(*dtype, *weights, *sizes),
                Planned::Attention(dtype, sizes) => Task::attention(*dtype, *sizes),
                Planned::Conv(dtype, sizes) => Task::conv(*dtype, *sizes),
                Planned::Scan(op, dtype, sizes) => Task::scan(*op, *dtype, *sizes),
            }
        }
    }

    /// Large ones first: an idle device clocks up while they run.
    fn planned(what: &TuneOptions) -> Vec<Planned> {
        let shapes: &[([usize; 3], bool)] = match (&what.shapes[..], what.quick) {
            ([], false) => SHAPES,
            ([], true) => QUICK,
            (own, _) => own,
        };
        let mut all = Vec::new();
        for &([m, n, k], b_transposed) in shapes {
            for dtype in [DType::F16, DType::BF16] {
                all.push(Planned::Tilings(GemmProblem {
                    dtype,
                    b_transposed,
                    m,
                    n,
                    k,
                }));
            }
            for dtype in [DType::F32, DType::F16] {
                let weights = match b_transposed {
                    true => Weights::Along(dtype),
                    false => Weights::Across(dtype),
                };
                all.push(Planned::Product(dtype, weights, [m, n, k]));
            }
        }
        if !what.shapes.is_empty() {
            return all;
        }
        let layers = if what.quick { &LAYERS[2..3] } else { LAYERS };
        for &[n, k] in layers {
            for m in [8, 1] {
                all.push(Planned::Product(
                    DType::F16,
                    Weights::Along(DType::F16),
                    [m, n, k],
                ));
                let packed = PACKED.iter().map(|scheme| Weights::Packed(*scheme));
                all.extend(packed.map(|w| Planned::Product(DType::F32, w, [m, n, k])));
            }
        }
        let few = |len: usize| if what.quick { 1 } else { len };
        for dtype in [DType::F16, DType::F32] {
            let attention = &ATTENTION[ATTENTION.len() - few(ATTENTION.len())..];
            all.extend(
                attention
                    .iter()
                    .map(|sizes| Planned::Attention(dtype, *sizes)),
            );
            let convs = &CONVS[..few(CONVS.len())];
            all.extend(convs.iter().map(|sizes| Planned::Conv(dtype, *sizes)));
            let scans = &SCANS[..few(SCANS.len())];
            let scans = scans.iter();
            all.extend(scans.map(|(op, sizes)| Planned::Scan(*op, dtype, *sizes)));
        }
        all
    }

    fn names(device: &dyn Tunable, task: &Task, what: &TuneOptions) -> Vec<String> {
        let in_any = |name: &str, list: &[String]| list.iter().any(|part| name.contains(part));
        let mut all = tune::candidates(device.caps(), task);
        all.retain(|name| what.only.is_empty() || in_any(name, &what.only));
        all.retain(|name| !in_any(name, &what.without));
        all
    }

    fn product_of(key: &Key, flops: f64, measured: Measured) -> TunedProduct {
        let outcomes = measured.candidates.into_iter().map(|(name, outcome)| {
            let outcome = match outcome {
                Outcome::Seconds(s) => Ok(s),
                Outcome::Failed(why) => Err(why),
            };
            (name, outcome)
        });
        TunedProduct {
            name: key.to_string(),
            flops,
            candidates: outcomes.collect(),
        }
    }

    /// The table of measurements: what was measured before, but for what is measured now.
    pub(super) fn table(
        device: &dyn Tunable,
        name: &str,
        before: &Tuning,
        what: &TuneOptions,
        done: &mut dyn FnMut(TunedProduct) -> bool,
    ) -> Result<Tuning, TuneError> {
        let mut entries: Vec<Entry> = before.entries().to_vec();
        let mut some = false;
        for planned in planned(what) {
            let task = planned.task().map_err(|source| TuneError::Measure {
                name: format!("{planned:?}"),
                source,
            })?;
            let names = names(device, &task, what);
            if names.is_empty() {
                continue;
            }
            some = true;
            tune::prepare(device, &task, &names);
            let measured = tune::measure(device, &task, &names);
            entries.retain(|e| e.key != task.key);
            if let Some(best) = measured.best() {
                entries.push(Entry {
                    key: task.key.clone(),
                    variant: best.to_string(),
                });
            }
            if !done(product_of(&task.key, task.flops, measured)) {
                break;
            }
        }
        match some {
            true => Ok(Tuning::new(entries)),
            false => Err(TuneError::NoChoice(name.to_string())),
        }
    }
}

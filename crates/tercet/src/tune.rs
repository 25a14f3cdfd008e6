//! Autotuning: measures which kernel variant is fastest for each problem on a device.
//!
//! The results are stored in the folder of the pipeline cache, as one tuning table per device and
//! driver. Devices that are opened with this folder select variants from the table.

use std::path::PathBuf;

use crate::device::{DeviceError, DeviceOptions, split_selector};

/// Selection of measurements.
///
/// ```
/// use tercet::TuneOptions;
/// // One matmul, without the candidates of one kernel family.
/// let options = TuneOptions {
///     shapes: vec![([512, 4096, 4096], true)],
///     without: vec!["coop".to_string()],
///     ..TuneOptions::default()
/// };
/// assert!(!options.quick && options.only.is_empty());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TuneOptions {
    /// Measure only a few sizes.
    pub quick: bool,
    /// Measure only these matmul sizes `[m, n, k]`; the flag means that the right operand is `[n,
    /// k]`.
    pub shapes: Vec<([usize; 3], bool)>,
    /// Only candidates whose name contains one of these; empty means all.
    pub only: Vec<String>,
    /// Skip candidates whose name contains one of these.
    pub without: Vec<String>,
}

/// Measurements of all candidates for one problem.
///
/// ```
/// use tercet::TunedProblem;
/// let problem = TunedProblem {
///     name: "matmul/f16/nn 1024x1024x1024".to_string(),
///     flops: 2.0 * 1024f64.powi(3),
///     candidates: vec![("tile 64x64".to_string(), Ok(1e-3))],
/// };
/// let best = problem.candidates[0].1.as_ref().map(|seconds| problem.flops / seconds);
/// assert!(best.is_ok_and(|flops_per_second| flops_per_second > 2e12));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct TunedProblem {
    /// Problem and sizes, such as `matmul/f16/nn 4096x4096x768`: `m x n x k`. `nt` means that the
    /// right operand is `[n, k]`.
    pub name: String,
    /// Number of multiplications and additions.
    pub flops: f64,
    /// Candidate names with their seconds, or the reason why they are unsupported; fastest first.
    pub candidates: Vec<(String, Result<f64, String>)>,
}

/// Errors of autotuning.
///
/// ```
/// use tercet::{DeviceOptions, TuneError, TuneOptions, tune};
/// let (device, what) = (DeviceOptions::default(), TuneOptions::default());
/// let error = tune("cpu", &device, &what, &mut |_| true).unwrap_err();
/// assert!(matches!(error, TuneError::NoChoice(name) if name == "cpu"));
/// ```
#[derive(Debug, thiserror::Error)]
pub enum TuneError {
    /// The device cannot be opened.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The device has only one variant of every kernel.
    #[error("device `{0}` has no kernel variants to measure; use `vulkan` or `wgpu`")]
    NoChoice(String),
    /// The device cannot compile a problem.
    #[error("cannot measure {name}")]
    Measure {
        /// Name of the problem.
        name: String,
        /// The compile error.
        source: tercet_ir::CompileError,
    },
    /// The table cannot be written.
    #[error("cannot save the measurements")]
    Store(#[from] std::io::Error),
}

/// Measures all candidates on a device and calls `done` after each problem. If the options have a
/// cache folder, the table is saved there. If `done` returns false, measuring stops and the results
/// so far are saved. Returns the path of the table.
///
/// # Errors
/// [`TuneError`] if the device cannot be opened, a problem cannot be compiled or the table cannot
/// be written.
pub fn tune(
    device: &str,
    options: &DeviceOptions,
    what: &TuneOptions,
    done: &mut dyn FnMut(TunedProblem) -> bool,
) -> Result<Option<PathBuf>, TuneError> {
    let (name, which) = split_selector(device)?;
    let options = DeviceOptions {
        which: which.or_else(|| options.which.clone()),
        timings: true,
        switches: crate::device::switches_in_effect(&options.switches)
            .map_err(crate::DeviceError::from)?,
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

/// Tuning on the devices of this build.
mod on {
    use super::{DeviceOptions, PathBuf, TuneError, TuneOptions, TunedProblem};

    type Done<'a> = &'a mut dyn FnMut(TunedProblem) -> bool;

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
        let before = match dir {
            Some(dir) => super::files::load(dir, &backend)?,
            None => None,
        };
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

/// Tuning tables of wgpu adapters, in the cache folder.
#[cfg(feature = "wgpu")]
mod files {
    use std::fs;
    use std::io;
    use std::path::{Path, PathBuf};

    use crate::DeviceError;

    use tercet_plan::{TuningError, TuningTable};
    use tercet_wgpu::{AdapterSummary, WgpuBackend};

    /// Table path, which is unique per adapter, graphics API and driver.
    fn file(dir: &Path, adapter: &AdapterSummary) -> PathBuf {
        dir.join(format!("tuning-wgpu-{}.txt", adapter.file_stem()))
    }

    /// Loads a table. A missing or damaged file gives `None`.
    ///
    /// # Errors
    /// [`DeviceError::Switch`] if the file has an invalid switch.
    pub(crate) fn load(
        dir: &Path,
        backend: &WgpuBackend,
    ) -> Result<Option<TuningTable>, DeviceError> {
        let Ok(text) = fs::read_to_string(file(dir, backend.adapter())) else {
            return Ok(None);
        };
        match text.parse::<TuningTable>() {
            Ok(table) => Ok(Some(table)),
            Err(TuningError {
                switch: Some(switch),
                ..
            }) => Err(switch.into()),
            Err(_) => Ok(None),
        }
    }

    /// Replaces the file atomically.
    pub(super) fn store(
        dir: &Path,
        backend: &WgpuBackend,
        table: &TuningTable,
    ) -> io::Result<PathBuf> {
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

/// Problems to measure.
#[cfg(any(feature = "vulkan", feature = "wgpu"))]
mod tasks {
    use tercet_ir::{CompileError, DType, Scheme};
    use tercet_plan::tune::{
        self, CandidateOutcome, ProblemMeasurement, StateScan, TunableBackend, TuneTask,
    };
    use tercet_plan::{GemmProblem, TuningEntry, TuningKey, TuningTable, WeightLayout};

    use super::{TuneError, TuneOptions, TunedProblem};

    /// `m n k`, and whether the right operand is `[n, k]`. Squares; the layers of BERT-base at 4096
    /// and at 128 rows; those of language models with 1 and 8 billion parameters at 512 rows.
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

    /// Weight shapes of language models, as `[n, k]`.
    const LAYERS: &[[usize; 2]] = &[[2048, 2048], [5632, 2048], [14336, 4096], [4096, 14336]];

    /// Quantization formats with specialized kernel variants.
    const PACKED: &[Scheme] = &[Scheme::Q4_0, Scheme::Q8_0, Scheme::Q4K, Scheme::Q6K];

    /// KV heads, query heads per KV head, queries, keys, head size: an encoder, a prefill chunk, a
    /// decode step.
    const ATTENTION: &[[usize; 5]] = &[
        [16, 1, 1024, 1024, 64],
        [8, 4, 512, 512, 128],
        [8, 4, 1, 4096, 128],
    ];

    /// Batch, input channels, image height and width, output channels, kernel height and width.
    const CONVS: &[[usize; 5]] = &[
        [32, 64, 56, 64, 3],
        [1, 64, 56, 64, 3],
        [32, 512, 7, 512, 3],
        [32, 64, 56, 256, 1],
    ];

    /// Batch, steps, heads, channels per head, states per channel: models of one to three billion
    /// parameters.
    const SCANS: &[(StateScan, [usize; 5])] = &[
        (StateScan::Selective, [1, 4096, 4096, 1, 16]),
        (StateScan::Selective, [8, 2048, 4096, 1, 16]),
        (StateScan::Mamba2, [1, 4096, 64, 64, 128]),
        (StateScan::GatedDelta, [1, 4096, 16, 128, 128]),
    ];

    /// A problem whose operands are created only when it is measured.
    #[derive(Debug)]
    enum PlannedProblem {
        Tilings(GemmProblem),
        Product(DType, WeightLayout, [usize; 3]),
        Attention(DType, [usize; 5]),
        Conv(DType, [usize; 5]),
        Scan(StateScan, DType, [usize; 5]),
    }

    impl PlannedProblem {
        fn task(&self) -> Result<TuneTask, CompileError> {
            match self {
                PlannedProblem::Tilings(problem) => TuneTask::tilings(problem),
                PlannedProblem::Product(dtype, weights, sizes) => {
                    TuneTask::product(*dtype, *weights, *sizes)
                }
                PlannedProblem::Attention(dtype, sizes) => TuneTask::attention(*dtype, *sizes),
                PlannedProblem::Conv(dtype, sizes) => TuneTask::conv(*dtype, *sizes),
                PlannedProblem::Scan(op, dtype, sizes) => TuneTask::scan(*op, *dtype, *sizes),
            }
        }
    }

    /// Large problems come first, because an idle device raises its clock while they run.
    fn planned(what: &TuneOptions) -> Vec<PlannedProblem> {
        let shapes: &[([usize; 3], bool)] = match (&what.shapes[..], what.quick) {
            ([], false) => SHAPES,
            ([], true) => QUICK,
            (own, _) => own,
        };
        let mut all = Vec::new();
        for &([m, n, k], b_transposed) in shapes {
            for dtype in [DType::F16, DType::BF16] {
                all.push(PlannedProblem::Tilings(GemmProblem {
                    dtype,
                    b_transposed,
                    m,
                    n,
                    k,
                }));
            }
            for dtype in [DType::F32, DType::F16] {
                let weights = match b_transposed {
                    true => WeightLayout::KMajor(dtype),
                    false => WeightLayout::NMajor(dtype),
                };
                all.push(PlannedProblem::Product(dtype, weights, [m, n, k]));
            }
        }
        if !what.shapes.is_empty() {
            return all;
        }
        let layers = if what.quick { &LAYERS[2..3] } else { LAYERS };
        for &[n, k] in layers {
            for m in [8, 1] {
                all.push(PlannedProblem::Product(
                    DType::F16,
                    WeightLayout::KMajor(DType::F16),
                    [m, n, k],
                ));
                let packed = PACKED.iter().map(|scheme| WeightLayout::Packed(*scheme));
                all.extend(packed.map(|w| PlannedProblem::Product(DType::F32, w, [m, n, k])));
            }
        }
        let few = |len: usize| if what.quick { 1 } else { len };
        for dtype in [DType::F16, DType::F32] {
            let attention = &ATTENTION[ATTENTION.len() - few(ATTENTION.len())..];
            all.extend(
                attention
                    .iter()
                    .map(|sizes| PlannedProblem::Attention(dtype, *sizes)),
            );
            let convs = &CONVS[..few(CONVS.len())];
            all.extend(
                convs
                    .iter()
                    .map(|sizes| PlannedProblem::Conv(dtype, *sizes)),
            );
            let scans = &SCANS[..few(SCANS.len())];
            let scans = scans.iter();
            all.extend(scans.map(|(op, sizes)| PlannedProblem::Scan(*op, dtype, *sizes)));
        }
        all
    }

    fn names(device: &dyn TunableBackend, task: &TuneTask, what: &TuneOptions) -> Vec<String> {
        let in_any = |name: &str, list: &[String]| list.iter().any(|part| name.contains(part));
        let mut all = tune::candidates(device.caps(), task);
        all.retain(|name| what.only.is_empty() || in_any(name, &what.only));
        all.retain(|name| !in_any(name, &what.without));
        all
    }

    fn product_of(key: &TuningKey, flops: f64, measured: ProblemMeasurement) -> TunedProblem {
        let outcomes = measured.candidates.into_iter().map(|(name, outcome)| {
            let outcome = match outcome {
                CandidateOutcome::Seconds(s) => Ok(s),
                CandidateOutcome::Failed(why) => Err(why),
            };
            (name, outcome)
        });
        TunedProblem {
            name: key.to_string(),
            flops,
            candidates: outcomes.collect(),
        }
    }

    /// A table with the previous measurements, updated with the new ones.
    pub(super) fn table(
        device: &dyn TunableBackend,
        name: &str,
        before: &TuningTable,
        what: &TuneOptions,
        done: &mut dyn FnMut(TunedProblem) -> bool,
    ) -> Result<TuningTable, TuneError> {
        let mut entries: Vec<TuningEntry> = before.entries().to_vec();
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
                entries.push(TuningEntry {
                    key: task.key.clone(),
                    variant: best.to_string(),
                });
            }
            if !done(product_of(&task.key, task.flops, measured)) {
                break;
            }
        }
        match some {
            true => Ok(TuningTable::new(entries).with_switches(before.switches().clone())),
            false => Err(TuneError::NoChoice(name.to_string())),
        }
    }
}

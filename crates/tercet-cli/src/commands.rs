//! The commands. Each command is a module with `Args` and `run`.

pub(crate) mod bench;
pub(crate) mod chat;
pub(crate) mod classify;
pub(crate) mod devices;
pub(crate) mod dump;
pub(crate) mod embed;
pub(crate) mod explain;
pub(crate) mod export;
pub(crate) mod finetune;
pub(crate) mod generate;
pub(crate) mod generation;
#[cfg(feature = "hub")]
pub(crate) mod hub;
pub(crate) mod inspect;
mod inspect_onnx;
pub(crate) mod merge;
mod model_parts;
pub(crate) mod models;
mod onnx;
pub(crate) mod open;
pub(crate) mod ops;
pub(crate) mod perplexity;
mod pictures;
pub(crate) mod quantize;
pub(crate) mod rerank;
pub(crate) mod run;
pub(crate) mod sampling_args;
pub(crate) mod search;
#[cfg(feature = "serve")]
pub(crate) mod serve;
pub(crate) mod source;
#[cfg(feature = "splat")]
pub(crate) mod splat;
mod strings;
pub(crate) mod tensors;
mod texts;
pub(crate) mod trace;
#[cfg(feature = "audio")]
pub(crate) mod transcribe;
pub(crate) mod tune;
pub(crate) mod verify;

use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::PathBuf;

use clap::ValueEnum;
use tercet::{DType, DebugSwitches, Device, DeviceOptions, DeviceSwitches};
use tercet_models::MatmulPrecision;

use crate::error::CliError;
use crate::{drivers, output};

/// Float types for computation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum FloatPrecision {
    F32,
    F16,
    Bf16,
}

impl FloatPrecision {
    pub(crate) fn dtype(self) -> DType {
        match self {
            FloatPrecision::F32 => DType::F32,
            FloatPrecision::F16 => DType::F16,
            FloatPrecision::Bf16 => DType::BF16,
        }
    }
}

/// Storage formats of the KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum KvCacheDType {
    F32,
    F16,
    Bf16,
    /// 8-bit values with one scale per 32: about a quarter of the size of f32, dequantized for each
    /// token
    #[value(name = "q8_0")]
    Q8,
}

impl KvCacheDType {
    pub(crate) fn format(self) -> tercet_models::CacheFormat {
        match self {
            KvCacheDType::F32 => DType::F32.into(),
            KvCacheDType::F16 => DType::F16.into(),
            KvCacheDType::Bf16 => DType::BF16.into(),
            KvCacheDType::Q8 => tercet_models::CacheFormat::Q8_0,
        }
    }
}

/// Compute types of a language model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ComputePrecision {
    /// F32; matmuls use f16 or bf16 inputs if the weights and the device make that faster
    Auto,
    /// F32 throughout
    F32,
    /// F16 with f32 accumulation
    F16,
    /// BF16 with f32 accumulation
    Bf16,
}

impl ComputePrecision {
    pub(crate) fn dtype(self) -> DType {
        self.throughout().dtype()
    }

    /// The compute type of models without a separate matmul precision.
    pub(crate) fn throughout(self) -> FloatPrecision {
        match self {
            ComputePrecision::Auto | ComputePrecision::F32 => FloatPrecision::F32,
            ComputePrecision::F16 => FloatPrecision::F16,
            ComputePrecision::Bf16 => FloatPrecision::Bf16,
        }
    }

    pub(crate) fn matmul_precision(self) -> MatmulPrecision {
        match self {
            ComputePrecision::Auto => MatmulPrecision::Auto,
            ComputePrecision::F32 | ComputePrecision::F16 | ComputePrecision::Bf16 => {
                MatmulPrecision::Full
            }
        }
    }

    /// The compute type of a model on a device, for result tables.
    pub(crate) fn label(self, matmul_dtype: Option<DType>) -> String {
        match matmul_dtype {
            Some(products) => format!("{} ({products} matmuls)", self.dtype()),
            None => self.dtype().to_string(),
        }
    }
}

/// Layers on the GPU, as llama.cpp counts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GpuLayerCount {
    Zero,
    All,
    Some(u32),
}

impl GpuLayerCount {
    fn parse(text: &str) -> Result<GpuLayerCount, String> {
        match text {
            "0" => Ok(GpuLayerCount::Zero),
            "all" | "auto" | "-1" => Ok(GpuLayerCount::All),
            text => {
                let count = text.parse().map(GpuLayerCount::Some);
                count.map_err(|_| "expected a whole number, `all` or `auto`".to_string())
            }
        }
    }
}

/// Switches of devices: flags of all commands that open one.
#[derive(Clone, Default, clap::Args)]
pub(crate) struct SwitchArgs {
    /// Turn off features of devices (coop, chains, subgroups, avx512, ...), or forbid a kernel variant
    /// as FAMILY=VARIANT; comma-separated. Adds to TERCET_WITHOUT; see `tercet devices --variants`
    #[arg(long, global = true, value_name = "LIST", help_heading = "Switches")]
    without: Vec<String>,
    /// Force kernel variants, as FAMILY=VARIANT; comma-separated. Goes before TERCET_FORCE
    #[arg(
        long,
        global = true,
        value_name = "FAMILY=VARIANT",
        help_heading = "Switches"
    )]
    force: Vec<String>,
    /// Diagnose GPU runs: barriers=all or barriers=none between all steps, record commands anew each
    /// run, upload inputs each run; comma-separated. Goes before TERCET_DEBUG
    #[arg(long, global = true, value_name = "LIST", help_heading = "Switches")]
    debug: Vec<String>,
    /// Record an execution trace of everything that runs on the device in FILE, for Perfetto. Goes
    /// before TERCET_TRACE
    #[arg(long, global = true, value_name = "FILE", help_heading = "Switches")]
    trace: Option<PathBuf>,
}

/// The switches of the command line.
static SWITCHES: std::sync::OnceLock<DeviceSwitches> = std::sync::OnceLock::new();

/// The trace file of the command line.
static TRACE: std::sync::OnceLock<Option<PathBuf>> = std::sync::OnceLock::new();

impl SwitchArgs {
    /// Makes the switches those of all devices that this process opens.
    ///
    /// # Errors
    /// [`CliError::Usage`] if a switch is invalid or does not exist.
    pub(crate) fn apply(&self) -> Result<(), CliError> {
        let switches = DeviceSwitches::parse(&self.without.join(","), &self.force.join(","));
        let debug = self.debug.join(",").parse::<DebugSwitches>();
        let switches = switches.and_then(|switches| Ok(switches.with_debug(debug?)));
        let switches = switches.map_err(|e| CliError::Usage(e.to_string()))?;
        // Applied once, so nothing is set yet.
        let _ = SWITCHES.set(switches);
        let _ = TRACE.set(self.trace.clone());
        Ok(())
    }
}

/// The switches of the command line.
pub(crate) fn switches() -> DeviceSwitches {
    SWITCHES.get().cloned().unwrap_or_default()
}

/// Device and threads: flags of the commands that run models.
#[derive(Clone, clap::Args)]
pub(crate) struct DeviceArgs {
    /// Device to run on; see `tercet devices`
    #[arg(long, default_value = "auto", value_name = "NAME")]
    pub(crate) device: String,
    /// Threads of the CPU device [default: one per core]
    #[arg(short, long, value_name = "N", value_parser = positive)]
    pub(crate) threads: Option<usize>,
}

impl DeviceArgs {
    /// Sets the number of threads and opens the device.
    pub(crate) fn open(&self) -> Result<Device, CliError> {
        self.open_as(&self.device)
    }

    /// Sets the number of threads and opens the device with this name.
    fn open_as(&self, name: &str) -> Result<Device, CliError> {
        self.set_threads()?;
        device(name)
    }

    /// Sets the number of threads. Only the first call has an effect, and only before anything uses
    /// threads.
    ///
    /// # Errors
    /// [`CliError::Usage`] if the system cannot create the threads.
    fn set_threads(&self) -> Result<(), CliError> {
        static SET: std::sync::OnceLock<Result<(), String>> = std::sync::OnceLock::new();
        let Some(threads) = self.threads else {
            return Ok(());
        };
        let set = SET.get_or_init(|| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads);
            pool.build_global().map_err(|e| tercet::one_line(&e))
        });
        set.clone()
            .map_err(|e| CliError::Usage(format!("--threads {threads}: {e}")))
    }
}

/// Device, threads and layers: flags of the commands that run language models.
#[derive(clap::Args)]
pub(crate) struct PlacementArgs {
    #[command(flatten)]
    device: DeviceArgs,
    /// Layers on the GPU: with 0 and --device auto, the model runs on the CPU. Otherwise all layers run
    /// on the device, for any number; they are not split yet. Also -ngl
    #[arg(long, visible_alias = "gpu-layers", value_name = "N", allow_negative_numbers = true, value_parser = GpuLayerCount::parse)]
    n_gpu_layers: Option<GpuLayerCount>,
}

impl PlacementArgs {
    /// Sets the number of threads and opens the device.
    pub(crate) fn open(&self) -> Result<Device, CliError> {
        let device = match (self.n_gpu_layers, self.device.device.as_str()) {
            (Some(GpuLayerCount::Zero), "auto") => self.device.open_as("cpu")?,
            _ => self.device.open()?,
        };
        if let Some(GpuLayerCount::Some(_)) = self.n_gpu_layers {
            output::print_note(format_args!(
                "note: all layers run on {}; --n-gpu-layers does not split them",
                device.name()
            ));
        }
        Ok(device)
    }

    /// Sets the number of threads; see [`DeviceArgs`].
    pub(crate) fn set_threads(&self) -> Result<(), CliError> {
        self.device.set_threads()
    }
}

pub(crate) fn device(name: &str) -> Result<Device, CliError> {
    open(name, false)
}

/// Opens a device; `timings` measures each step.
pub(crate) fn open(name: &str, timings: bool) -> Result<Device, CliError> {
    let options = DeviceOptions {
        which: None,
        cache_dir: cache_dir(),
        timings,
        memory_bytes: memory_limit()?,
        switches: switches(),
        trace: TRACE.get().cloned().flatten(),
    };
    drivers::labelled(|| Device::open(name, &options)).map_err(|e| CliError::Usage(e.to_string()))
}

/// Limit of the device memory to plan for: `TERCET_DEVICE_MEMORY`, in bytes or with a unit.
fn memory_limit() -> Result<Option<u64>, CliError> {
    const NAME: &str = "TERCET_DEVICE_MEMORY";
    let Some(value) = std::env::var_os(NAME).filter(|v| !v.is_empty()) else {
        return Ok(None);
    };
    let value = value.to_string_lossy();
    let bytes = memory_size(&value).ok_or_else(|| {
        CliError::Usage(format!(
            "{NAME} is `{value}`; expected a size in bytes, or with a unit such as 512MiB or 8GiB"
        ))
    })?;
    Ok(Some(bytes))
}

/// Parses bytes with an optional unit: `8GiB`, `8G` and `8589934592` are the same size.
pub fn memory_size(text: &str) -> Option<u64> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.');
    let (number, unit) = text.split_at(end.unwrap_or(text.len()));
    let number: f64 = number.parse().ok()?;
    let power = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 1,
        "m" | "mb" | "mib" => 2,
        "g" | "gb" | "gib" => 3,
        "t" | "tb" | "tib" => 4,
        _ => return None,
    };
    Some((number * 1024f64.powi(power)) as u64)
}

/// Folder of the compiled-pipeline cache: `TERCET_CACHE_DIR`, or else the user's cache folder.
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

/// Folder of data that commands keep between runs: the user's state folder.
fn state_dir() -> Option<PathBuf> {
    let var = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty());
    let state = match var("XDG_STATE_HOME").or_else(|| var("LOCALAPPDATA")) {
        Some(dir) => PathBuf::from(dir),
        None => PathBuf::from(var("HOME")?).join(".local/state"),
    };
    Some(state.join("tercet"))
}

/// Parses a float argument in a range that includes both ends.
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
        .ok_or_else(|| "expected a whole number of at least 1".to_string())
}

/// Parses a maximum number of tokens. As in llama.cpp, -1 and -2 mean no maximum: generation stops
/// at end of text or when the context is full.
pub fn tokens(text: &str) -> Result<usize, String> {
    match text {
        "-1" | "-2" => Ok(usize::MAX),
        text => text
            .parse()
            .map_err(|_| "expected a whole number, or -1 for no limit".to_string()),
    }
}

/// Parses a seed; -1 draws one.
pub fn seed(text: &str) -> Result<u64, String> {
    match text {
        // The standard library seeds hash maps from the system's random source. 32 bits are enough,
        // and short enough for a user to type again.
        "-1" => Ok(RandomState::new().build_hasher().finish() >> 32),
        text => text
            .parse()
            .map_err(|_| format!("expected a whole number up to {}, or -1 for any", u64::MAX)),
    }
}

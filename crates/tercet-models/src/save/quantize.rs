//! Conversion of a model to a GGUF file with quantized matrices.

use std::borrow::Cow;
use std::cell::RefCell;
use std::path::{Path, PathBuf};

use tercet::Scheme;
use tercet_ir::quant::QuantizeError;

use crate::open::ModelFiles;
use tercet_files::MappedFile;
use tercet_files::gguf::{GgmlType, Gguf, GgufTensorInfo, GgufValue};
use tercet_files::weight::scheme_of;
use tercet_files::writing::{GgufHeader, write_gguf};
use tercet_files::writing::{SaveError, SavedTensorEntry, SavedTensorStorage};
use tercet_networks::{ModelError, Weights};

/// The target format of quantization.
///
/// ```no_run
/// use tercet_models::gguf::GgmlType;
/// use tercet_models::save::{QuantMix, quantize_model};
/// let files = tercet_models::ModelFiles::open("model-f16.gguf")?;
/// let mix = QuantMix { to: GgmlType::Q4_K, mixed: true };
/// let report = quantize_model(&files, "model-q4_k.gguf", &mix, &|_, _| {})?;
/// assert!(report.tensors.iter().any(|tensor| tensor.after == GgmlType::Q4_K));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QuantMix {
    /// The format of most matrices: F16, BF16, or a type for which [`Scheme::can_quantize`].
    pub to: GgmlType,
    /// Whether sensitive matrices get more bits: Q6_K, or Q8_0 if their rows are not whole Q6_K
    /// blocks. Sensitive matrices are the output projection, and value and down projections in the
    /// first and last eighth of the layers and in every third layer between.
    pub mixed: bool,
}

/// The result for one tensor: quantized or unchanged.
///
/// ```
/// use tercet_models::gguf::GgmlType;
/// use tercet_models::save::QuantizedTensor;
/// let tensor = QuantizedTensor {
///     name: "output.weight".to_string(), source_storage: GgmlType::F16, after: GgmlType::Q8_0,
///     elements: 64, bytes: 68, error: 0.004,
/// };
/// assert_eq!(tensor.bytes, tensor.elements / 32 * GgmlType::Q8_0.block_bytes());
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct QuantizedTensor {
    /// The tensor's name.
    pub name: String,
    /// The original type.
    pub source_storage: GgmlType,
    /// The type in the written file.
    pub after: GgmlType,
    /// Number of elements.
    pub elements: u64,
    /// Size in the written file, in bytes.
    pub bytes: u64,
    /// Root mean square of the quantization error, relative to that of the original values; 0 for
    /// an unchanged tensor.
    pub error: f64,
}

/// The result of quantizing a model.
///
/// ```no_run
/// use tercet_models::gguf::GgmlType;
/// use tercet_models::save::{QuantMix, QuantizationReport, quantize_model};
/// let files = tercet_models::ModelFiles::open("model-f16.gguf")?;
/// let mix = QuantMix { to: GgmlType::Q8_0, mixed: false };
/// let report: QuantizationReport = quantize_model(&files, "model-q8_0.gguf", &mix, &|_, _| {})?;
/// assert!(report.tensors.iter().all(|tensor| tensor.error < 0.1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct QuantizationReport {
    /// Path of the written file.
    pub path: PathBuf,
    /// All tensors, in file order.
    pub tensors: Vec<QuantizedTensor>,
}

/// Writes a GGUF file with the matrices of a GGUF file or a folder quantized according to `recipe`.
/// Vectors, position embeddings, expert routers and convolutions stay unchanged. Rows that are not
/// whole blocks of the format become Q8_0 or F16. `progress` receives the number of finished
/// tensors and the total.
///
/// # Errors
/// [`SaveError`]: the folder cannot be stored as GGUF, the format is not supported for writing, or
/// a value is out of its range. The same error is returned if the target is the model itself, or
/// the operating system reports an error.
pub fn quantize_model(
    files: &ModelFiles,
    to: impl AsRef<Path>,
    recipe: &QuantMix,
    progress: &dyn Fn(usize, usize),
) -> Result<QuantizationReport, SaveError> {
    let to = to.as_ref();
    check_encodable(recipe.to)?;
    let dense;
    let gguf = match files {
        ModelFiles::Gguf(gguf) => gguf,
        ModelFiles::Hf(folder) => {
            if to.exists() && super::model::same_place(folder.dir(), to) {
                let path = to.to_path_buf();
                return Err(SaveError::OverModel { path });
            }
            dense = super::folder::dense(folder, to)?;
            &dense.gguf
        }
    };
    let mut own = gguf.files().iter().filter_map(MappedFile::path);
    if own.any(|own| super::model::same_place(own, to)) {
        let path = to.to_path_buf();
        return Err(SaveError::OverModel { path });
    }
    quantize_gguf(gguf, to, recipe, progress)
}

/// Quantizes a GGUF file.
fn quantize_gguf(
    gguf: &Gguf,
    to: &Path,
    recipe: &QuantMix,
    progress: &dyn Fn(usize, usize),
) -> Result<QuantizationReport, SaveError> {
    let weights = Weights::Gguf(gguf.clone());
    let layout = QuantMixLayout::new(gguf);
    let infos: Vec<&GgufTensorInfo> = gguf.tensors().iter().collect();
    let rounded: RefCell<Vec<QuantizedTensor>> = RefCell::default();
    let mut entries = Vec::new();
    // The values of a quantized weight already include its factor.
    let mut factors = Vec::new();
    for info in &infos {
        if target(info, recipe, &layout) != info.ggml_type() {
            factors.extend(Weights::factors_of(info.name()));
        }
    }
    let infos = infos
        .into_iter()
        .filter(|info| !factors.iter().any(|f| f == info.name()));
    let infos: Vec<&GgufTensorInfo> = infos.collect();
    let count = infos.len();
    for info in infos {
        let after = target(info, recipe, &layout);
        let (weights, rounded) = (&weights, &rounded);
        let bytes = move || -> Result<Cow<'_, [u8]>, SaveError> {
            let (bytes, error) = match after == info.ggml_type() {
                true => (Cow::Borrowed(gguf.data(info)), 0.0),
                false => {
                    let (bytes, error) = rounding(weights, info, after)?;
                    (Cow::Owned(bytes), error)
                }
            };
            let mut rounded = rounded.borrow_mut();
            rounded.push(QuantizedTensor {
                name: info.name().to_string(),
                source_storage: info.ggml_type(),
                after,
                elements: info.shape().iter().map(|&n| n as u64).product(),
                bytes: bytes.len() as u64,
                error,
            });
            progress(rounded.len(), count);
            Ok(bytes)
        };
        let elements: usize = info.shape().iter().product();
        entries.push(SavedTensorEntry {
            name: info.name().to_string(),
            storage: SavedTensorStorage::Ggml(after),
            shape: info.shape(),
            len_bytes: elements / after.block_len() as usize * after.block_bytes() as usize,
            bytes: Box::new(bytes),
        });
    }
    let mut header =
        GgufHeader::from_gguf(gguf, &["general.file_type", "general.quantization_version"]);
    if let Some(id) = file_type(recipe) {
        header.push("general.file_type", GgufValue::U32(id));
        header.push("general.quantization_version", GgufValue::U32(2));
    }
    write_gguf(to, &header, &entries)?;
    drop(entries);
    Ok(QuantizationReport {
        path: to.to_path_buf(),
        tensors: rounded.into_inner(),
    })
}

/// Checks that the format is supported for writing.
fn check_encodable(ty: GgmlType) -> Result<(), SaveError> {
    let known = matches!(ty, GgmlType::F32 | GgmlType::F16 | GgmlType::BF16);
    match known || scheme_of(ty).is_some_and(Scheme::can_quantize) {
        true => Ok(()),
        false => {
            let reason = format!("quantizing to {} is not supported (read only)", ty.name());
            Err(SaveError::Unsupported(reason))
        }
    }
}

/// The properties of a model that determine the types of its tensors.
struct QuantMixLayout {
    /// Number of layers: the number of blocks in tensor names.
    layers: usize,
    /// The name of the output matrix.
    output: &'static str,
}

impl QuantMixLayout {
    fn new(gguf: &Gguf) -> QuantMixLayout {
        let tensors = gguf.tensors().iter();
        let layers = tensors.filter_map(|t| layer(t.name())).map(|l| l + 1);
        let output = match gguf.has_tensor("output.weight") {
            true => "output.weight",
            false => "token_embd.weight",
        };
        QuantMixLayout {
            layers: layers.max().unwrap_or(0),
            output,
        }
    }
}

fn layer(name: &str) -> Option<usize> {
    name.strip_prefix("blk.")?.split('.').next()?.parse().ok()
}

/// The target type of a tensor.
fn target(info: &GgufTensorInfo, recipe: &QuantMix, layout: &QuantMixLayout) -> GgmlType {
    let (name, shape) = (info.name(), info.shape());
    let is_matrix = shape.len() >= 2 && shape[shape.len() - 2..].iter().all(|&n| n > 1);
    let kept = [
        "_norm.",
        "position_embd",
        "token_types",
        "ffn_gate_inp",
        "ssm_conv1d",
        "ssm_a",
        "conv1d",
    ];
    let is_weight = scheme_of(info.ggml_type()).is_some()
        || matches!(
            info.ggml_type(),
            GgmlType::F32 | GgmlType::F16 | GgmlType::BF16
        );
    if !is_matrix
        || !is_weight
        || !name.ends_with(".weight")
        || kept.iter().any(|k| name.contains(k))
    {
        return info.ggml_type();
    }
    let wanted = match recipe.mixed && is_most_sensitive(name, layout) {
        true => GgmlType::Q6_K,
        false => recipe.to,
    };
    let row = shape[shape.len() - 1] as u64;
    let whole = |ty: &GgmlType| row.is_multiple_of(ty.block_len());
    let order = [wanted, GgmlType::Q8_0, GgmlType::F16];
    order.into_iter().find(whole).unwrap_or(GgmlType::F16)
}

fn is_most_sensitive(name: &str, &QuantMixLayout { layers, output }: &QuantMixLayout) -> bool {
    let Some(layer) = layer(name) else {
        return name == output;
    };
    let eighth = layers / 8;
    let chosen = layer < eighth || layer + eighth >= layers || (layer - eighth) % 3 == 2;
    chosen
        && ["attn_v.", "attn_qkv.", "ffn_down"]
            .iter()
            .any(|part| name.contains(part))
}

/// Quantizes rows in parallel on all processors, a batch of rows per turn.
fn rounding(
    weights: &Weights,
    info: &GgufTensorInfo,
    after: GgmlType,
) -> Result<(Vec<u8>, f64), SaveError> {
    let name = info.name();
    let failed = |source: ModelError| SaveError::Tensor {
        tensor: name.to_string(),
        source: Box::new(source),
    };
    let beyond = || {
        failed(ModelError::Unsupported(format!(
            "a value is not finite or beyond the range of {}; choose another format",
            after.name()
        )))
    };
    let tensor = weights.dense_f32(name, &info.shape()).map_err(failed)?;
    let values = tensor.as_slice::<f32>().map_err(|source| {
        failed(ModelError::WeightBytes {
            tensor: name.to_string(),
            source,
        })
    })?;
    let Some(scheme) = scheme_of(after) else {
        let bytes = SavedTensorStorage::Ggml(after)
            .encode(values)
            .ok_or_else(beyond)?;
        return Ok((bytes, 0.0));
    };
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let blocks = values.len() / scheme.block_len();
    let part = blocks.div_ceil(processors).max(1) * scheme.block_len();
    let done: Vec<Result<QuantizedBlocks, QuantizeError>> = std::thread::scope(|scope| {
        let parts = values.chunks(part);
        let threads: Vec<_> = parts
            .map(|x| scope.spawn(move || rounded(scheme, x)))
            .collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, _>| match thread.join() {
            Ok(done) => done,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        threads.into_iter().map(join).collect()
    });
    let (mut bytes, mut sums) = (Vec::new(), [0.0; 2]);
    for part in done {
        let (more, squares) = part.map_err(|_| beyond())?;
        bytes.extend(more);
        sums = [sums[0] + squares[0], sums[1] + squares[1]];
    }
    let error = if sums[1] > 0.0 {
        (sums[0] / sums[1]).sqrt()
    } else {
        0.0
    };
    Ok((bytes, error))
}

/// Blocks, with the sum of squared errors and the sum of squared values.
type QuantizedBlocks = (Vec<u8>, [f64; 2]);

/// Quantizes values into blocks, with the sum of squared errors and the sum of squared values.
fn rounded(scheme: Scheme, x: &[f32]) -> Result<QuantizedBlocks, QuantizeError> {
    let bytes = scheme.quantize(x)?;
    let mut back = vec![0.0; x.len()];
    scheme.dequantize(&bytes, &mut back)?;
    let square = |x: f64| x * x;
    let off = x
        .iter()
        .zip(&back)
        .map(|(a, b)| square(f64::from(*a) - f64::from(*b)));
    let size = x.iter().map(|a| square(f64::from(*a)));
    Ok((bytes, [off.sum(), size.sum()]))
}

/// The value of `general.file_type` for a recipe.
fn file_type(recipe: &QuantMix) -> Option<u32> {
    Some(match (recipe.to, recipe.mixed) {
        (GgmlType::F32, _) => 0,
        (GgmlType::F16, _) => 1,
        (GgmlType::Q4_0, _) => 2,
        (GgmlType::Q4_1, _) => 3,
        (GgmlType::Q8_0, _) => 7,
        (GgmlType::Q5_0, _) => 8,
        (GgmlType::Q5_1, _) => 9,
        (GgmlType::Q2_K, _) => 10,
        (GgmlType::Q3_K, false) => 11,
        (GgmlType::Q3_K, true) => 12,
        (GgmlType::Q4_K, false) => 14,
        (GgmlType::Q4_K, true) => 15,
        (GgmlType::Q5_K, false) => 16,
        (GgmlType::Q5_K, true) => 17,
        (GgmlType::Q6_K, _) => 18,
        (GgmlType::BF16, _) => 32,
        _ => return None,
    })
}

//! A model as a GGUF file with its matrices in another format.

use std::borrow::Cow;
use std::cell::RefCell;
use std::path::{Path, PathBuf};

use tercet::Scheme;
use tercet_ir::quant::QuantizeError;

use super::{Entry, SaveError, Storage};
use crate::builder::{ModelError, Weights};
use crate::gguf::write::{Header, write_gguf};
use crate::gguf::{GgmlType, Gguf, TensorInfo, Value};
use crate::mmap::MappedFile;
use crate::open::ModelFiles;
use crate::weight::scheme_of;

/// What matrices are rounded to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Recipe {
    /// The format of most matrices: F16, BF16, or one that [`Scheme::is_written`].
    pub to: GgmlType,
    /// More bits (Q6_K, or Q8_0 where rows are not whole blocks of it) for what errs most: the output, values and the
    /// second matrix of the feed-forward network in the first and last eighth of the layers and in every third between.
    pub mixed: bool,
}

/// A tensor that was rounded, or kept.
#[derive(Clone, Debug, PartialEq)]
pub struct Rounded {
    /// Its name.
    pub name: String,
    /// How it was stored.
    pub before: GgmlType,
    /// How it is stored now.
    pub after: GgmlType,
    /// Its elements.
    pub elements: u64,
    /// Its bytes now.
    pub bytes: u64,
    /// The root of the mean square of the error over that of the values before; 0 for a tensor that was kept.
    pub error: f64,
}

/// What was written.
#[derive(Clone, Debug, PartialEq)]
pub struct Quantized {
    /// The file.
    pub path: PathBuf,
    /// All tensors, in their order.
    pub tensors: Vec<Rounded>,
}

/// Writes a GGUF file with the matrices of another one, or of a folder, rounded as `recipe` says. Vectors, embeddings of positions, routers of
/// experts and convolutions stay as they are; rows that are not whole blocks of the format become Q8_0, or F16.
/// `progress` is told how many of how many tensors are done.
///
/// # Errors
/// [`SaveError`]: a folder that GGUF files cannot hold, a format that is not written, a value beyond its range, the
/// model's own place, or what the operating system says.
pub fn quantize_model(
    files: &ModelFiles,
    to: impl AsRef<Path>,
    recipe: &Recipe,
    progress: &dyn Fn(usize, usize),
) -> Result<Quantized, SaveError> {
    let to = to.as_ref();
    written(recipe.to)?;
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

/// The same of a GGUF file.
fn quantize_gguf(
    gguf: &Gguf,
    to: &Path,
    recipe: &Recipe,
    progress: &dyn Fn(usize, usize),
) -> Result<Quantized, SaveError> {
    let weights = Weights::Gguf(gguf.clone());
    let layout = Layout::of(gguf);
    let infos: Vec<&TensorInfo> = gguf.tensors().iter().collect();
    let rounded: RefCell<Vec<Rounded>> = RefCell::default();
    let mut entries = Vec::new();
    // The factor of a weight that is rounded is in its values already.
    let mut factors = Vec::new();
    for info in &infos {
        if target(info, recipe, &layout) != info.ggml_type() {
            factors.extend(Weights::factors_of(info.name()));
        }
    }
    let infos = infos
        .into_iter()
        .filter(|info| !factors.iter().any(|f| f == info.name()));
    let infos: Vec<&TensorInfo> = infos.collect();
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
            rounded.push(Rounded {
                name: info.name().to_string(),
                before: info.ggml_type(),
                after,
                elements: info.shape().iter().map(|&n| n as u64).product(),
                bytes: bytes.len() as u64,
                error,
            });
            progress(rounded.len(), count);
            Ok(bytes)
        };
        let elements: usize = info.shape().iter().product();
        entries.push(Entry {
            name: info.name().to_string(),
            storage: Storage::Ggml(after),
            shape: info.shape(),
            len_bytes: elements / after.block_len() as usize * after.block_bytes() as usize,
            bytes: Box::new(bytes),
        });
    }
    let mut header = Header::of(gguf, &["general.file_type", "general.quantization_version"]);
    if let Some(id) = file_type(recipe) {
        header.push("general.file_type", Value::U32(id));
        header.push("general.quantization_version", Value::U32(2));
    }
    write_gguf(to, &header, &entries)?;
    drop(entries);
    Ok(Quantized {
        path: to.to_path_buf(),
        tensors: rounded.into_inner(),
    })
}

/// Refuses a format that nothing is rounded to.
fn written(ty: GgmlType) -> Result<(), SaveError> {
    let known = matches!(ty, GgmlType::F32 | GgmlType::F16 | GgmlType::BF16);
    match known || scheme_of(ty).is_some_and(Scheme::is_written) {
        true => Ok(()),
        false => {
            let reason = format!("{} is read, but no weights are rounded to it", ty.name());
            Err(SaveError::Unsupported(reason))
        }
    }
}

/// What of a model decides where bits go.
struct Layout {
    /// The number of layers: that of blocks that tensors name.
    layers: usize,
    /// The matrix of the output.
    output: &'static str,
}

impl Layout {
    fn of(gguf: &Gguf) -> Layout {
        let tensors = gguf.tensors().iter();
        let layers = tensors.filter_map(|t| layer(t.name())).map(|l| l + 1);
        let output = match gguf.has_tensor("output.weight") {
            true => "output.weight",
            false => "token_embd.weight",
        };
        Layout {
            layers: layers.max().unwrap_or(0),
            output,
        }
    }
}

fn layer(name: &str) -> Option<usize> {
    name.strip_prefix("blk.")?.split('.').next()?.parse().ok()
}

/// How a tensor is to be stored.
fn target(info: &TensorInfo, recipe: &Recipe, layout: &Layout) -> GgmlType {
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
    let wanted = match recipe.mixed && errs_most(name, layout) {
        true => GgmlType::Q6_K,
        false => recipe.to,
    };
    let row = shape[shape.len() - 1] as u64;
    let whole = |ty: &GgmlType| row.is_multiple_of(ty.block_len());
    let order = [wanted, GgmlType::Q8_0, GgmlType::F16];
    order.into_iter().find(whole).unwrap_or(GgmlType::F16)
}

fn errs_most(name: &str, &Layout { layers, output }: &Layout) -> bool {
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

/// Rows are rounded on all processors, some at a time.
fn rounding(
    weights: &Weights,
    info: &TensorInfo,
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
        let bytes = Storage::Ggml(after).encode(values).ok_or_else(beyond)?;
        return Ok((bytes, 0.0));
    };
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let blocks = values.len() / scheme.block_len();
    let part = blocks.div_ceil(processors).max(1) * scheme.block_len();
    let done: Vec<Result<Blocks, QuantizeError>> = std::thread::scope(|scope| {
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

/// Blocks, with the sums of the squares of their errors and of the values.
type Blocks = (Vec<u8>, [f64; 2]);

/// The blocks of some values, with the sums of the squares of their errors and of the values.
fn rounded(scheme: Scheme, x: &[f32]) -> Result<Blocks, QuantizeError> {
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

/// The number that `general.file_type` has for a recipe.
fn file_type(recipe: &Recipe) -> Option<u32> {
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

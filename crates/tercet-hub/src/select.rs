//! The files of a repository that make up one model.

use std::collections::BTreeMap;

use crate::error::HubError;
use crate::listing::{RepoFile, RepoListing, listed};
use crate::name::HubName;
use crate::quant::{preference, quant_of, split_part};

/// Bytes that a model needs beside its weights: caches, intermediate values, pipelines.
const RESERVE_BYTES: u64 = 256 << 20;

/// The format of a model.
///
/// ```
/// assert_eq!(tercet_hub::ModelFormat::Gguf.label(), "GGUF");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelFormat {
    /// A GGUF file, or the parts of one.
    Gguf,
    /// A folder with `config.json` and safetensors weights.
    Safetensors,
    /// An ONNX model.
    Onnx,
    /// An adapter of another model (PEFT).
    Adapter,
    /// A file that the name selects, in another format.
    Other,
}

impl ModelFormat {
    /// The name of the format.
    pub fn label(self) -> &'static str {
        match self {
            ModelFormat::Gguf => "GGUF",
            ModelFormat::Safetensors => "safetensors",
            ModelFormat::Onnx => "ONNX",
            ModelFormat::Adapter => "adapter",
            ModelFormat::Other => "file",
        }
    }
}

/// The files of one model of a repository.
///
/// ```
/// use tercet_hub::{FileSet, ModelFormat, RepoFile, RepoListing};
/// let files = ["m-Q4_K_M.gguf", "m-Q8_0.gguf", "README.md"].map(RepoFile::new).to_vec();
/// let listing = RepoListing { repo: "a/m".into(), commit: "0".repeat(40), files };
/// let set = FileSet::choose(&listing, &"a/m".parse()?, None)?;
/// assert_eq!((set.format, set.open.as_str()), (ModelFormat::Gguf, "m-Q4_K_M.gguf"));
/// # Ok::<(), tercet_hub::HubError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileSet {
    /// The format.
    pub format: ModelFormat,
    /// The quantization of a GGUF model, in capitals, if its name has one.
    pub quant: Option<String>,
    /// The files.
    pub files: Vec<RepoFile>,
    /// The path to open: the first GGUF file, or empty for the folder.
    pub open: String,
    /// The image projector (`mmproj`) of the repository. It is not in `files`.
    pub projector: Option<RepoFile>,
}

impl FileSet {
    /// Size in bytes of all files whose size is known.
    pub fn bytes(&self) -> u64 {
        self.files.iter().filter_map(|file| file.bytes).sum()
    }

    /// Memory in bytes that the model needs on a device, estimated from its size.
    pub fn needed_bytes(&self) -> u64 {
        needed(self.bytes())
    }

    /// Chooses the model that `name` selects. If it selects none and there are several
    /// quantizations, the choice is Q4_K_M if it fits into `free_bytes` of memory, or else the best
    /// that fits.
    ///
    /// # Errors
    /// [`HubError::NoModel`], [`HubError::NoQuant`], [`HubError::NoFile`], [`HubError::Memory`],
    /// [`HubError::SeveralModels`], [`HubError::MissingParts`].
    pub fn choose(
        listing: &RepoListing,
        name: &HubName,
        free_bytes: Option<u64>,
    ) -> Result<FileSet, HubError> {
        if let Some(file) = name.file() {
            return of_file(listing, file);
        }
        let models = gguf_models(listing)?;
        if let Some(quant) = name.quant() {
            return of_quant(listing, models, quant);
        }
        if !models.is_empty() {
            return preferred(listing, models, free_bytes);
        }
        if let Some(set) = safetensors(listing) {
            return Ok(set);
        }
        if let Some(set) = onnx(listing) {
            return Ok(set);
        }
        let found = listing.files.iter().map(|file| file.path.as_str());
        let found: Vec<&str> = found.filter(|path| is_weights(path)).collect();
        Err(HubError::NoModel {
            repo: listing.repo.clone(),
            found: listed("; it has: ", &found),
        })
    }

    /// The quantizations of a repository, each with its model.
    ///
    /// # Errors
    /// [`HubError::MissingParts`].
    pub fn quants(listing: &RepoListing) -> Result<Vec<FileSet>, HubError> {
        gguf_models(listing)
    }
}

fn needed(bytes: u64) -> u64 {
    bytes
        .saturating_add(bytes / 8)
        .saturating_add(RESERVE_BYTES)
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

fn folder(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(folder, _)| folder)
}

fn is_gguf_model(path: &str) -> bool {
    let name = file_name(path).to_ascii_lowercase();
    name.ends_with(".gguf") && !is_projector(path) && !name.contains("imatrix")
}

fn is_projector(path: &str) -> bool {
    let name = file_name(path).to_ascii_lowercase();
    name.ends_with(".gguf") && name.contains("mmproj")
}

fn is_weights(path: &str) -> bool {
    let ends = [
        ".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".ot", ".npz", ".tflite",
    ];
    ends.iter().any(|end| path.ends_with(end))
}

/// The GGUF models, sorted by path; the parts of a split file are one model.
fn gguf_models(listing: &RepoListing) -> Result<Vec<FileSet>, HubError> {
    let mut sets: BTreeMap<String, (Option<usize>, Vec<RepoFile>)> = BTreeMap::new();
    for file in listing
        .files
        .iter()
        .filter(|file| is_gguf_model(&file.path))
    {
        let (key, count) = match split_part(file_name(&file.path)) {
            Some(part) => {
                let key = format!("{}/{}/{}", folder(&file.path), part.stem, part.count);
                (key, Some(part.count))
            }
            None => (file.path.clone(), None),
        };
        let set = sets.entry(key).or_insert((count, Vec::new()));
        set.1.push(file.clone());
    }
    let projector = projector(listing);
    let set = |(count, mut files): (Option<usize>, Vec<RepoFile>)| {
        files.sort_by(|a, b| a.path.cmp(&b.path));
        let open = files.first().map(|file| file.path.clone())?;
        if let Some(expected) = count
            && files.len() != expected
        {
            return Some(Err(HubError::MissingParts {
                repo: listing.repo.clone(),
                file: open,
                found: files.len(),
                expected,
            }));
        }
        Some(Ok(FileSet {
            format: ModelFormat::Gguf,
            quant: quant_of(&open),
            files,
            open,
            projector: projector.clone(),
        }))
    };
    let (mut found, mut missing) = (Vec::new(), None);
    for one in sets.into_values().filter_map(set) {
        match one {
            Ok(set) => found.push(set),
            Err(e) => missing = Some(e),
        }
    }
    // A model with missing parts is an error only if there is no other.
    match missing {
        Some(e) if found.is_empty() => Err(e),
        _ => Ok(found),
    }
}

/// The image projector; F16 is preferred, because it loses nothing and is small.
fn projector(listing: &RepoListing) -> Option<RepoFile> {
    const ORDER: [&str; 4] = ["F16", "BF16", "Q8_0", "F32"];
    let place = |file: &&RepoFile| {
        let quant = quant_of(&file.path);
        let place = quant.and_then(|quant| ORDER.iter().position(|own| *own == quant));
        (place.unwrap_or(ORDER.len()), file.path.clone())
    };
    let all = listing.files.iter().filter(|file| is_projector(&file.path));
    all.min_by_key(place).cloned()
}

/// The model in a file: with the other parts of a split file, the external data of ONNX, or the
/// folder around safetensors.
fn of_file(listing: &RepoListing, path: &str) -> Result<FileSet, HubError> {
    let Some(file) = listing.files.iter().find(|file| file.path == path) else {
        return Err(HubError::NoFile {
            repo: listing.repo.clone(),
            file: path.to_string(),
            near: listing.near(path),
        });
    };
    if let Some(set) = gguf_models(listing)?
        .into_iter()
        .find(|set| set.files.contains(file))
    {
        return Ok(set);
    }
    let all = || listing.files.iter();
    if path.ends_with(".onnx") {
        return Ok(onnx_model(listing, file));
    }
    if let Some(split) = split_part(file_name(path)) {
        return Err(HubError::MissingParts {
            repo: listing.repo.clone(),
            file: path.to_string(),
            found: all().filter(|file| is_gguf_model(&file.path)).count(),
            expected: split.count,
        });
    }
    let is_folder = path == "config.json" || path == "model.safetensors";
    match safetensors(listing).filter(|_| is_folder) {
        Some(set) => Ok(set),
        None => Ok(FileSet {
            format: ModelFormat::Other,
            quant: None,
            files: vec![file.clone()],
            open: path.to_string(),
            projector: None,
        }),
    }
}

/// The model with a quantization: by its name, or by the end of its file name.
fn of_quant(listing: &RepoListing, models: Vec<FileSet>, quant: &str) -> Result<FileSet, HubError> {
    let upper = quant.to_ascii_uppercase();
    let own = |set: &FileSet| set.quant.as_deref() == Some(&*upper);
    let dynamic = |set: &FileSet| {
        let plain = set.quant.as_deref().and_then(|own| own.strip_prefix("UD-"));
        plain == Some(&*upper)
    };
    let named = |set: &FileSet| {
        let stem = set.open.to_ascii_uppercase();
        let stem = stem.strip_suffix(".GGUF").unwrap_or(&stem);
        let head = stem.strip_suffix(&*upper);
        head.is_some_and(|head| head.is_empty() || head.ends_with(['-', '.', '_', '/']))
    };
    let rules: [&dyn Fn(&FileSet) -> bool; 3] = [&own, &dynamic, &named];
    for rule in rules {
        let found: Vec<&FileSet> = models.iter().filter(|set| rule(set)).collect();
        match found.as_slice() {
            [] => {}
            [only] => return Ok((*only).clone()),
            several => return Err(several_models(listing, several)),
        }
    }
    let mut quants: Vec<String> = models
        .iter()
        .map(|set| set.quant.clone().unwrap_or_else(|| set.open.clone()))
        .collect();
    quants.dedup();
    Err(HubError::NoQuant {
        repo: listing.repo.clone(),
        quant: quant.to_string(),
        quants: match quants.is_empty() {
            true => "no GGUF files".to_string(),
            false => quants.join(", "),
        },
    })
}

fn several_models(listing: &RepoListing, sets: &[&FileSet]) -> HubError {
    let names: Vec<&str> = sets.iter().map(|set| set.open.as_str()).collect();
    HubError::SeveralModels {
        repo: listing.repo.clone(),
        names: listed("", &names),
    }
}

/// The best quantization that fits.
fn preferred(
    listing: &RepoListing,
    models: Vec<FileSet>,
    free_bytes: Option<u64>,
) -> Result<FileSet, HubError> {
    // The only model needs no choice; the command that runs it checks the memory.
    if let [only] = models.as_slice() {
        return Ok(only.clone());
    }
    let fits = |set: &&FileSet| free_bytes.is_none_or(|free| set.needed_bytes() <= free);
    let fitting: Vec<&FileSet> = models.iter().filter(fits).collect();
    let by_preference = |set: &&FileSet| preference(set.quant.as_deref());
    let best = fitting
        .iter()
        .copied()
        .filter_map(|set| Some((by_preference(&set)?, set)));
    let best = best.min_by_key(|(place, _)| *place);
    // Without four bits that fit, the largest file is the most exact.
    let best = match best {
        Some((_, set)) => Some(set),
        None => fitting.iter().copied().max_by_key(|set| set.bytes()),
    };
    let Some(best) = best else {
        let smallest = models.iter().min_by_key(|set| set.bytes());
        return Err(HubError::Memory {
            repo: listing.repo.clone(),
            quant: smallest
                .map(|set| set.quant.clone().unwrap_or_else(|| set.open.clone()))
                .unwrap_or_default(),
            needed: smallest.map_or(0, FileSet::needed_bytes),
            free: free_bytes.unwrap_or_default(),
        });
    };
    let alike: Vec<&FileSet> = fitting
        .iter()
        .copied()
        .filter(|set| set.quant == best.quant)
        .collect();
    match alike.as_slice() {
        [_] => Ok(best.clone()),
        several => Err(several_models(listing, several)),
    }
}

/// The small files around weights: configurations, tokenizers, templates.
fn is_companion(path: &str) -> bool {
    let name = file_name(path);
    let ends = [".json", ".txt", ".model", ".jinja", ".tiktoken", ".jsonl"];
    let is_text = ends.iter().any(|end| name.ends_with(end));
    let of_training = [
        "trainer_state.json",
        "training_args.json",
        "all_results.json",
    ];
    let is_index = name.ends_with(".index.json") && name != "model.safetensors.index.json";
    is_text && !of_training.contains(&name) && !is_index && !name.starts_with("README")
}

/// Whether a folder has a module of a sentence encoder, such as `1_Pooling` and `2_Dense`.
fn is_module(folder: &str) -> bool {
    let (number, kind) = folder.split_once('_').unwrap_or(("", ""));
    !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()) && !kind.contains('/')
}

/// The model or the adapter in safetensors.
fn safetensors(listing: &RepoListing) -> Option<FileSet> {
    let all = || listing.files.iter();
    let has = |path: &str| all().any(|file| file.path == path);
    let of_weights = |path: &str| {
        let folder = folder(path);
        let name = file_name(path);
        if !name.ends_with(".safetensors") || !(folder.is_empty() || is_module(folder)) {
            return false;
        }
        match folder.is_empty() {
            // Other names are variants of the same weights (`model.fp16.safetensors`).
            true => {
                name == "model.safetensors"
                    || (has("model.safetensors.index.json")
                        && name.starts_with("model-")
                        && name.contains("-of-"))
            }
            false => name == "model.safetensors",
        }
    };
    let is_model = has("config.json") || has("modules.json");
    let (format, is_wanted): (_, &dyn Fn(&str) -> bool) =
        match is_model && all().any(|file| of_weights(&file.path)) {
            true => (ModelFormat::Safetensors, &of_weights),
            false if has("adapter_config.json") && has("adapter_model.safetensors") => {
                let of_adapter = &|path: &str| path == "adapter_model.safetensors";
                (ModelFormat::Adapter, of_adapter)
            }
            false => return None,
        };
    let near = |path: &str| folder(path).is_empty() || is_module(folder(path));
    let wanted =
        |file: &&RepoFile| is_wanted(&file.path) || (near(&file.path) && is_companion(&file.path));
    Some(FileSet {
        format,
        quant: None,
        files: all().filter(wanted).cloned().collect(),
        open: String::new(),
        projector: None,
    })
}

/// The ONNX model: `model.onnx` at the top or in the folder `onnx`, or the only one.
fn onnx(listing: &RepoListing) -> Option<FileSet> {
    let all = || {
        listing
            .files
            .iter()
            .filter(|file| file.path.ends_with(".onnx"))
    };
    let usual = ["model.onnx", "onnx/model.onnx"];
    let usual = usual
        .iter()
        .find_map(|path| all().find(|file| file.path == *path));
    let only = || all().next().filter(|_| all().count() == 1);
    usual.or_else(only).map(|file| onnx_model(listing, file))
}

/// An ONNX model with its external data and the small files at the top.
fn onnx_model(listing: &RepoListing, file: &RepoFile) -> FileSet {
    let stem = file.path.strip_suffix(".onnx").unwrap_or(&file.path);
    let wanted = |other: &&RepoFile| {
        let rest = other.path.strip_prefix(stem);
        let is_data = rest.is_some_and(|rest| {
            rest.starts_with(".onnx_data") || rest.starts_with(".onnx.data") || rest == ".data"
        });
        let is_top = folder(&other.path).is_empty() && is_companion(&other.path);
        other.path == file.path || is_data || is_top
    };
    FileSet {
        format: ModelFormat::Onnx,
        quant: None,
        files: listing.files.iter().filter(wanted).cloned().collect(),
        open: file.path.clone(),
        projector: None,
    }
}

#[cfg(test)]
mod tests;

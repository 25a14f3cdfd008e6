//! Ollama's store: `manifests/HOST/NAMESPACE/MODEL/TAG` is a JSON list of layers, each of which is
//! a file of `blobs` named by its digest.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;

use crate::error::ModelPathError;
use tercet_files::clip;
use tercet_files::mmap::read_small;

/// The defaults of the parts that a name leaves out.
const HOST: &str = "registry.ollama.ai";
const NAMESPACE: &str = "library";
const TAG: &str = "latest";
/// Maximum size of a manifest, in bytes; real ones have about 1 kB.
const MAX_MANIFEST_BYTES: u64 = 4 << 20;
/// Maximum size of a system message, a template or parameters, in bytes.
const MAX_TEXT_BYTES: u64 = 4 << 20;
/// The media types of layers begin with this.
const PREFIX: &str = "application/vnd.ollama.image.";
/// The template of models without one.
const PROMPT_ONLY: &str = "{{ .Prompt }}";

/// A model of Ollama's store: the files and the settings that its manifest lists.
///
/// [`ModelFiles::open`](crate::ModelFiles::open) opens only the weights, and refuses a model with
/// adapters.
///
/// ```
/// use tercet_models::OllamaModel;
/// // The name of a file.
/// assert!(OllamaModel::find("model.gguf")?.is_none());
/// # Ok::<(), tercet_models::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct OllamaModel {
    /// The path of the manifest.
    pub manifest: PathBuf,
    /// The weights, a GGUF file without extension.
    pub weights: PathBuf,
    /// LoRA adapters that belong to the model.
    pub adapters: Vec<PathBuf>,
    /// Image projectors.
    pub projectors: Vec<PathBuf>,
    /// The template in Go's template language.
    pub template: Option<String>,
    /// The default system message.
    pub system: Option<String>,
    /// Defaults of the generation.
    pub params: OllamaParams,
}

/// Options of Ollama: defaults of the generation. An option that is not given is `None`.
///
/// ```
/// use tercet_models::OllamaParams;
/// let json = r#"{"temperature": 0.6, "stop": ["<|user|>"], "num_gpu": 1}"#;
/// let params: OllamaParams = serde_json::from_str(json)?;
/// assert_eq!((params.temperature, params.stop.len()), (Some(0.6), 1));
/// assert!(params.other.contains_key("num_gpu"));
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the fields are Ollama's names")]
pub struct OllamaParams {
    pub temperature: Option<f64>,
    pub top_k: Option<i64>,
    pub top_p: Option<f64>,
    pub min_p: Option<f64>,
    pub typical_p: Option<f64>,
    pub repeat_penalty: Option<f64>,
    /// Recent tokens that the penalty covers; -1 for all.
    pub repeat_last_n: Option<i64>,
    pub presence_penalty: Option<f64>,
    pub frequency_penalty: Option<f64>,
    pub mirostat: Option<u8>,
    pub mirostat_eta: Option<f64>,
    pub mirostat_tau: Option<f64>,
    pub seed: Option<i64>,
    /// Context length in tokens.
    pub num_ctx: Option<usize>,
    /// Maximum tokens of an answer; negative: no limit.
    pub num_predict: Option<i64>,
    /// Stop strings.
    pub stop: Vec<String>,
    /// All other options.
    #[serde(flatten)]
    pub other: BTreeMap<String, Value>,
}

#[derive(Deserialize)]
struct OllamaManifest {
    #[serde(default)]
    layers: Vec<OllamaLayer>,
}

#[derive(Deserialize)]
struct OllamaLayer {
    #[serde(rename = "mediaType")]
    media_type: String,
    digest: String,
}

impl OllamaLayer {
    /// The kind of the layer, such as `model`.
    fn kind(&self) -> Option<&str> {
        self.media_type.strip_prefix(PREFIX)
    }
}

/// The path of the manifest of a model `[[HOST/]NAMESPACE/]MODEL[:TAG]`; `None` if the text is not
/// such a name.
pub(super) fn manifest_path(store: &Path, model: &str) -> Option<PathBuf> {
    let (path, tag) = match model.rsplit_once(':') {
        Some((path, tag)) if !tag.contains('/') => (path, tag),
        _ => (model, TAG),
    };
    let parts: Vec<&str> = path.split('/').collect();
    let parts = match parts[..] {
        [model] => [HOST, NAMESPACE, model],
        [namespace, model] => [HOST, namespace, model],
        [host, namespace, model] => [host, namespace, model],
        _ => return None,
    };
    let known = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let plain = |part: &str| !part.is_empty() && !part.starts_with('.') && part.chars().all(known);
    let all = parts.into_iter().chain([tag]);
    let manifests = store.join("manifests");
    all.clone()
        .all(plain)
        .then(|| all.fold(manifests, |path, part| path.join(part)))
}

/// The model of a manifest. `name` is the argument that selected it.
pub(super) fn read(store: &Path, name: &str, model: &str) -> Result<OllamaModel, ModelPathError> {
    let missing = |path: PathBuf| ModelPathError::NotInOllama {
        name: clip(name),
        model: clip(model),
        path,
    };
    let Some(path) = manifest_path(store, model) else {
        return Err(missing(store.join("manifests")));
    };
    if !path.is_file() {
        return Err(missing(path));
    }
    let bad = |reason: String| ModelPathError::BadManifest {
        path: path.clone(),
        reason,
    };
    let bytes = read_small(&path, MAX_MANIFEST_BYTES)?;
    let manifest: OllamaManifest = serde_json::from_slice(&bytes)
        .map_err(|e| bad(format!("not a manifest of Ollama's store: {e}")))?;
    // The file of a layer.
    let blob = |layer: &OllamaLayer| {
        let hex = layer.digest.strip_prefix("sha256:");
        let hex = hex.filter(|hex| hex.len() == 64 && hex.bytes().all(|b| b.is_ascii_hexdigit()));
        let hex = hex.ok_or_else(|| {
            let digest = clip(&layer.digest);
            bad(format!(
                "the digest `{digest}` is not `sha256:` with 64 hex digits"
            ))
        })?;
        let file = store.join("blobs").join(format!("sha256-{hex}"));
        match file.is_file() {
            true => Ok(file),
            false => Err(bad(format!(
                "the file of the {} {} is missing; download it with `ollama pull {}`",
                layer.kind().unwrap_or("layer"),
                file.display(),
                clip(model)
            ))),
        }
    };
    let of = |kind: &'static str| {
        let layers = manifest.layers.iter();
        layers.filter(move |layer| layer.kind() == Some(kind))
    };
    let files = |kind: &'static str| of(kind).map(blob).collect::<Result<Vec<_>, _>>();
    let text = |kind: &'static str| {
        let Some(file) = files(kind)?.pop() else {
            return Ok(None);
        };
        let bytes = read_small(&file, MAX_TEXT_BYTES)?;
        let text = String::from_utf8(bytes)
            .map_err(|_| bad(format!("the {kind} {} is not UTF-8", file.display())))?;
        Ok::<_, ModelPathError>(Some(text).filter(|text| !text.trim().is_empty()))
    };
    let Some(weights) = of("model").next() else {
        let kinds = manifest.layers.iter().map(|layer| clip(&layer.media_type));
        let kinds = kinds.take(8).collect::<Vec<_>>().join(", ");
        return Err(bad(format!(
            "no layer is a GGUF file ({PREFIX}model); it has: {kinds}"
        )));
    };
    let params = match text("params")? {
        Some(json) => serde_json::from_str(&json)
            .map_err(|e| bad(format!("the params are not options of Ollama: {e}")))?,
        None => OllamaParams::default(),
    };
    Ok(OllamaModel {
        weights: blob(weights)?,
        adapters: files("adapter")?,
        projectors: files("projector")?,
        template: text("template")?.filter(|text| text.trim() != PROMPT_ONLY),
        system: text("system")?,
        params,
        manifest: path.clone(),
    })
}

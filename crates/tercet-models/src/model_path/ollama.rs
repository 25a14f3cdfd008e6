//! Ollama's store: `manifests/HOST/NAMESPACE/MODEL/TAG` is a JSON list of layers, each of which is
//! a file of `blobs` named by its digest.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::ModelPathError;
use crate::gguf::clip;
use crate::mmap::read_small;

/// The defaults of the parts that a name leaves out.
const HOST: &str = "registry.ollama.ai";
const NAMESPACE: &str = "library";
const TAG: &str = "latest";
/// Maximum size of a manifest, in bytes; real ones have about 1 kB.
const MAX_MANIFEST_BYTES: u64 = 4 << 20;
/// The media types of layers.
const MODEL: &str = "application/vnd.ollama.image.model";
const ADAPTER: &str = "application/vnd.ollama.image.adapter";

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

/// The path of the weights of a model, a GGUF file without extension. `name` is the argument that
/// selected it.
pub(super) fn weights(store: &Path, name: &str, model: &str) -> Result<PathBuf, ModelPathError> {
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
    let of = |kind: &str| {
        let mut layers = manifest.layers.iter();
        layers.find(|layer| layer.media_type == kind)
    };
    let blob = |layer: &OllamaLayer| {
        let hex = layer.digest.strip_prefix("sha256:");
        let hex = hex.filter(|hex| hex.len() == 64 && hex.bytes().all(|b| b.is_ascii_hexdigit()));
        let hex = hex.ok_or_else(|| {
            let digest = clip(&layer.digest);
            bad(format!(
                "the digest `{digest}` is not `sha256:` with 64 hex digits"
            ))
        })?;
        Ok::<_, ModelPathError>(store.join("blobs").join(format!("sha256-{hex}")))
    };
    if let Some(adapter) = of(ADAPTER) {
        let adapter = blob(adapter)?;
        return Err(bad(format!(
            "the model has the adapter {}, which is not applied; open the file of the weights and \
             give the adapter as --lora",
            adapter.display()
        )));
    }
    let Some(layer) = of(MODEL) else {
        let kinds = manifest.layers.iter().map(|layer| clip(&layer.media_type));
        let kinds = kinds.take(8).collect::<Vec<_>>().join(", ");
        return Err(bad(format!(
            "no layer is a GGUF file ({MODEL}); it has: {kinds}"
        )));
    };
    let weights = blob(layer)?;
    match weights.is_file() {
        true => Ok(weights),
        false => Err(bad(format!(
            "the file of the weights {} is missing; download it with `ollama pull {}`",
            weights.display(),
            clip(model)
        ))),
    }
}

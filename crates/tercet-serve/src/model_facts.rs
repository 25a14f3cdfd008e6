//! Facts about the files of a served model, for routes that list models.

use std::collections::BTreeMap;

use sha2::{Digest, Sha256};
use tercet_models::{ModelFamily, ModelFiles};

/// Facts about a model's files.
#[derive(Clone, Debug)]
pub(crate) struct ModelFacts {
    /// `gguf` or `safetensors`.
    pub(crate) format: &'static str,
    /// Name of the architecture in the files.
    pub(crate) architecture: String,
    pub(crate) parameters: u64,
    /// Total bytes of the tensors.
    pub(crate) bytes: u64,
    /// The format of most bytes of the tensors, such as `Q4_K` or `BF16`.
    pub(crate) quantization: String,
    /// Trained context of a decoder in tokens.
    pub(crate) context: Option<usize>,
    /// Hidden size of a decoder.
    pub(crate) width: Option<usize>,
}

impl ModelFacts {
    pub(crate) fn from_files(files: &ModelFiles) -> ModelFacts {
        let mut parameters = 0;
        let mut bytes: BTreeMap<String, u64> = BTreeMap::new();
        let mut add = |format: String, elements: u64, len: usize| {
            parameters += elements;
            *bytes.entry(format).or_default() += len as u64;
        };
        let (format, architecture) = match files {
            ModelFiles::Gguf(gguf) => {
                for tensor in gguf.tensors() {
                    let format = tensor.ggml_type().to_string();
                    add(format, tensor.element_count(), tensor.range().len());
                }
                let name = gguf.metadata().get_str("general.architecture");
                ("gguf", name.unwrap_or_default().to_string())
            }
            ModelFiles::Hf(folder) => {
                for (_, tensor) in folder.weights().tensors() {
                    let format = format!("{:?}", tensor.dtype());
                    add(format, tensor.element_count() as u64, tensor.range().len());
                }
                let name = folder.model_type().unwrap_or_default();
                ("safetensors", name.to_string())
            }
        };
        let most = bytes.iter().max_by_key(|(_, bytes)| **bytes);
        let is_decoder = matches!(files.family(), Ok(ModelFamily::Decoder));
        let spec = is_decoder.then(|| files.decoder_spec().ok()).flatten();
        ModelFacts {
            format,
            architecture,
            parameters,
            quantization: most.map(|(name, _)| name.clone()).unwrap_or_default(),
            bytes: bytes.values().sum(),
            context: spec.as_ref().map(|spec| spec.context),
            width: spec.as_ref().map(|spec| spec.hidden),
        }
    }

    /// The number of parameters in millions or billions.
    pub(crate) fn parameter_size(&self) -> String {
        let count = self.parameters as f64;
        match self.parameters {
            ..1_000_000_000 => format!("{:.2}M", count / 1e6),
            _ => format!("{:.1}B", count / 1e9),
        }
    }

    /// An identifier of the model named `name`: a digest of its facts, because reading all bytes would
    /// delay the start of the server.
    pub(crate) fn digest(&self, name: &str) -> String {
        let text = format!("{name} {self:?}");
        let digest = Sha256::digest(text.as_bytes());
        digest.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

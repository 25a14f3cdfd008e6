//! Models of Ollama's store: the parts and settings that their manifests add to the weights.

use tercet_models::{Adapter, ModelFiles, OllamaModel, ScaledAdapter};

use super::super::generate::open_model;
use super::{ModelArgs, TextGenerator};
use crate::error::CliError;
use crate::output;

impl ModelArgs {
    /// The model of Ollama's store that `-m` names.
    pub(crate) fn ollama(&self) -> Result<Option<OllamaModel>, CliError> {
        let Some(path) = &self.model else {
            return Ok(None);
        };
        let what = format!("cannot load the model {}", path.display());
        OllamaModel::find(path).map_err(CliError::model(what))
    }

    /// The context length in tokens: that of the flags, or else of the manifest.
    pub(super) fn given_context(&self) -> Option<usize> {
        let of_manifest = || self.ollama().ok()??.params.num_ctx;
        self.context.or_else(of_manifest)
    }

    /// The files of the model, and the message for its errors. The adapters of a manifest are not
    /// applied.
    pub(super) fn model_files(&self) -> Result<(ModelFiles, String), CliError> {
        match self.ollama()? {
            Some(ollama) => open_model(Some(&ollama.weights)),
            None => open_model(self.model.as_deref()),
        }
    }

    /// The adapters of a manifest.
    pub(super) fn own_adapters(&self, files: &ModelFiles) -> Result<Vec<ScaledAdapter>, CliError> {
        let Some(ollama) = self.ollama()? else {
            return Ok(Vec::new());
        };
        let open = |path: &std::path::PathBuf| {
            let what = format!("cannot load the adapter {} of the manifest", path.display());
            let spec = files.decoder_spec().map_err(CliError::model(&*what))?;
            let adapter = Adapter::open(path, &spec).map_err(CliError::model(what))?;
            Ok(ScaledAdapter::new(adapter))
        };
        ollama.adapters.iter().map(open).collect()
    }
}

/// Prints notes about the parts of a manifest that have no effect.
pub(super) fn report_ignored(ollama: &OllamaModel) {
    if !ollama.projectors.is_empty() {
        output::print_note(format_args!(
            "note: the image projector of Ollama's model is not read, so the model takes no images"
        ));
    }
    let other: Vec<&str> = ollama.params.other.keys().map(String::as_str).collect();
    if !other.is_empty() {
        let names = output::clip(&other.join(", "), 200);
        output::print_note(format_args!(
            "note: options of Ollama without effect here: {names}"
        ));
    }
}

impl TextGenerator {
    /// Checks that a conversation needs no template in Go's template language.
    pub(super) fn check_go_template(&self) -> Result<(), CliError> {
        let ollama = self.ollama.as_ref();
        let Some(ollama) = ollama.filter(|ollama| ollama.template.is_some()) else {
            return Ok(());
        };
        let has_own = match self.model.files() {
            ModelFiles::Gguf(gguf) => gguf
                .metadata()
                .opt_str("tokenizer.chat_template")
                .is_ok_and(|source| source.is_some()),
            ModelFiles::Hf(_) => true,
        };
        if has_own {
            output::print_note(format_args!(
                "note: the GGUF file has a chat template, so the one of Ollama's manifest is not used"
            ));
            return Ok(());
        }
        Err(CliError::Usage(format!(
            "{}: the chat template is in Go's template language, which is not read, and the GGUF file has none; \
             give one in Jinja with --chat-template or --chat-template-file, such as --chat-template chatml",
            ollama.manifest.display()
        )))
    }
}

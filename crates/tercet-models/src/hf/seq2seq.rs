//! Folders of encoder-decoders of texts.

use super::{HfError, HfFolder, read_optional_json};
use crate::config::{Fields, TextToTextSpec};

impl HfFolder {
    /// The specification of an encoder-decoder of texts. What `generation_config.json` says of the tokens that begin and end a
    /// text goes before `config.json`.
    ///
    /// # Errors
    /// [`HfError::Config`], or [`HfError::Json`] for `generation_config.json`.
    pub fn text_to_text_spec(&self) -> Result<TextToTextSpec, HfError> {
        let refused = |name: &str| {
            let path = self.dir.join(name);
            move |source| HfError::Config { path, source }
        };
        let mut spec = TextToTextSpec::from_json(&self.config).map_err(refused("config.json"))?;
        spec.settle_tensors(&self.weights)
            .map_err(refused("config.json"))?;
        let name = "generation_config.json";
        if let Some(generation) = read_optional_json(&self.dir.join(name))? {
            let fields = Fields::new(&generation, "");
            let start = fields.opt_token("decoder_start_token_id");
            spec.start = start.map_err(refused(name))?.unwrap_or(spec.start);
            let eos = fields.tokens("eos_token_id").map_err(refused(name))?;
            for id in eos {
                if !spec.eos.contains(&id) {
                    spec.eos.push(id);
                }
            }
            spec.check().map_err(refused(name))?;
        }
        Ok(spec)
    }
}

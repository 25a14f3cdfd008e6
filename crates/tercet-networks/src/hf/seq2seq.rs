//! Folders of text-to-text encoder-decoders.

use super::{HfError, HfFolder, read_optional_json};
use crate::config::bounds::TensorBounds;
use crate::config::{ConfigFields, Seq2SeqSpec};

impl HfFolder {
    /// The specification of a text-to-text encoder-decoder. Start and end tokens of
    /// `generation_config.json` take precedence over those of `config.json`.
    ///
    /// # Errors
    /// [`HfError::Config`], or [`HfError::Json`] for `generation_config.json`.
    pub fn seq2seq_spec(&self) -> Result<Seq2SeqSpec, HfError> {
        let refused = |name: &str| {
            let path = self.dir.join(name);
            move |source| HfError::Config { path, source }
        };
        let mut spec = Seq2SeqSpec::from_json(&self.config).map_err(refused("config.json"))?;
        spec.check_bounds(&TensorBounds::from_folder(&self.weights))
            .map_err(refused("config.json"))?;
        spec.settle_tensors(&self.weights)
            .map_err(refused("config.json"))?;
        let name = "generation_config.json";
        if let Some(generation) = read_optional_json(&self.dir.join(name))? {
            let fields = ConfigFields::new(&generation, "");
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

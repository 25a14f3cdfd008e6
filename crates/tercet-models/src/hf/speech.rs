//! Folders of speech recognizers.

use super::{HfError, HfFolder, read_json, read_optional_json};
use crate::config::speech::checked_features;
use crate::config::{MoonshineSpec, SpeechSpec, SpeechTokens};

impl HfFolder {
    /// The specification of a speech recognizer. That the features are those of Whisper is checked where
    /// `preprocessor_config.json` is there.
    ///
    /// # Errors
    /// [`HfError::Config`], [`HfError::Json`].
    pub fn speech_spec(&self) -> Result<SpeechSpec, HfError> {
        let refused = |name: &str| {
            let path = self.dir.join(name);
            move |source| HfError::Config { path, source }
        };
        let spec = SpeechSpec::from_json(&self.config).map_err(refused("config.json"))?;
        (spec.refuse_unknown_tensors(&self.weights)).map_err(refused("config.json"))?;
        let name = "preprocessor_config.json";
        if let Some(features) = read_optional_json(&self.dir.join(name))? {
            checked_features(&features, &spec).map_err(refused(name))?;
        }
        Ok(spec)
    }

    /// What the tokens of a speech recognizer mean: `generation_config.json`.
    ///
    /// # Errors
    /// [`HfError::Config`], [`HfError::Json`], [`HfError::File`] where it is missing.
    pub fn speech_tokens(&self, spec: &SpeechSpec) -> Result<SpeechTokens, HfError> {
        let path = self.dir.join("generation_config.json");
        let json = read_json(&path)?;
        SpeechTokens::from_json(&json, &self.config, spec)
            .map_err(|source| HfError::Config { path, source })
    }

    /// The specification of a speech recognizer of the Moonshine family, with what `generation_config.json` says of the tokens
    /// around a text. That samples are not prepared is checked where `preprocessor_config.json` is there.
    ///
    /// # Errors
    /// [`HfError::Config`], [`HfError::Json`].
    pub fn moonshine_spec(&self) -> Result<MoonshineSpec, HfError> {
        let refused = |name: &str| {
            let path = self.dir.join(name);
            move |source| HfError::Config { path, source }
        };
        let mut spec = MoonshineSpec::from_json(&self.config).map_err(refused("config.json"))?;
        (spec.refuse_unknown_tensors(&self.weights)).map_err(refused("config.json"))?;
        let name = "generation_config.json";
        if let Some(json) = read_optional_json(&self.dir.join(name))? {
            spec.read_generation(&json).map_err(refused(name))?;
        }
        let name = "preprocessor_config.json";
        if let Some(json) = read_optional_json(&self.dir.join(name))? {
            MoonshineSpec::check_features(&json).map_err(refused(name))?;
        }
        Ok(spec)
    }
}

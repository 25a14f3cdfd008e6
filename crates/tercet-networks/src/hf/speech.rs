//! Folders of speech recognizers.

use super::{HfError, HfFolder, read_json, read_optional_json};
use crate::config::bounds::TensorBounds;
use crate::config::speech::checked_features;
use crate::config::{MoonshineSpec, SpeechSpec, SpeechTokens};

impl HfFolder {
    /// The specification of a Whisper speech recognizer. If `preprocessor_config.json` exists, it
    /// is checked to describe Whisper's features.
    ///
    /// # Errors
    /// [`HfError::Config`], [`HfError::Json`].
    pub fn speech_spec(&self) -> Result<SpeechSpec, HfError> {
        let refused = |name: &str| {
            let path = self.dir.join(name);
            move |source| HfError::Config { path, source }
        };
        let spec = SpeechSpec::from_json(&self.config).map_err(refused("config.json"))?;
        spec.check_bounds(&TensorBounds::from_folder(&self.weights))
            .map_err(refused("config.json"))?;
        (spec.reject_unknown_tensors(&self.weights)).map_err(refused("config.json"))?;
        let name = "preprocessor_config.json";
        if let Some(features) = read_optional_json(&self.dir.join(name))? {
            checked_features(&features, &spec).map_err(refused(name))?;
        }
        Ok(spec)
    }

    /// The special tokens of a speech recognizer, from `generation_config.json`.
    ///
    /// # Errors
    /// [`HfError::Config`], [`HfError::Json`]; [`HfError::File`] if the file is missing.
    pub fn speech_tokens(&self, spec: &SpeechSpec) -> Result<SpeechTokens, HfError> {
        let path = self.dir.join("generation_config.json");
        let json = read_json(&path)?;
        SpeechTokens::from_json(&json, &self.config, spec)
            .map_err(|source| HfError::Config { path, source })
    }

    /// The specification of a Moonshine speech recognizer, with the special tokens of
    /// `generation_config.json`. If `preprocessor_config.json` exists, it must not require
    /// preprocessing of samples.
    ///
    /// # Errors
    /// [`HfError::Config`], [`HfError::Json`].
    pub fn moonshine_spec(&self) -> Result<MoonshineSpec, HfError> {
        let refused = |name: &str| {
            let path = self.dir.join(name);
            move |source| HfError::Config { path, source }
        };
        let mut spec = MoonshineSpec::from_json(&self.config).map_err(refused("config.json"))?;
        spec.check_bounds(&TensorBounds::from_folder(&self.weights))
            .map_err(refused("config.json"))?;
        (spec.reject_unknown_tensors(&self.weights)).map_err(refused("config.json"))?;
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

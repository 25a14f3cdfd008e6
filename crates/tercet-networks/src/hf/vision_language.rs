//! Folders of vision-language models: specification, preprocessing, and the special tokens around
//! images.

use serde_json::{Map, Value};

use super::{HfError, HfFolder, read_optional_json};
use crate::config::bounds::TensorBounds;
use crate::config::vision_language::for_model_type;
use crate::config::{ConfigError, ConfigFields, VisionLanguageSpec};
use crate::image::{ImageTileProcessor, read_tiles};

const CONFIG: &str = "config.json";
const PICTURES: &str = "preprocessor_config.json";
const PROCESSOR: &str = "processor_config.json";

/// The default number of embeddings per tile of the processor's file.
const ASSUMED_ROWS: usize = 169;

/// Fields of the processor's file that do not affect images or prompts.
const WITHOUT_INFLUENCE: &[&str] = &["auto_map", "processor_class", "video_processor"];

/// The `tokenizer_config.json` fields of the tokens around images, and their expected values.
const TOKENS: [(&str, &str); 3] = [
    ("image_token", IMAGE),
    ("fake_image_token", AROUND),
    ("global_image_token", WHOLE),
];

/// The placeholder token that image embeddings replace.
pub(crate) const IMAGE: &str = "<image>";
/// The token before every tile and after the last.
pub(crate) const AROUND: &str = "<fake_token_around_image>";
/// The token that announces the downscaled full image.
pub(crate) const WHOLE: &str = "<global-img>";

/// Whether a folder has a vision-language model.
pub(super) fn is(folder: &HfFolder) -> bool {
    folder.model_type().and_then(for_model_type).is_some()
}

impl HfFolder {
    /// The specification of a vision-language model. End-of-sequence tokens of
    /// `generation_config.json` are added to those of `config.json`.
    ///
    /// # Errors
    /// [`HfError::Config`], or [`HfError::Json`] for `generation_config.json`.
    pub fn vision_language_spec(&self) -> Result<VisionLanguageSpec, HfError> {
        let refused = |source| self.not_supported(CONFIG, source);
        let mut spec = VisionLanguageSpec::from_json(&self.config).map_err(refused)?;
        spec.check_bounds(&TensorBounds::from_folder(&self.weights))
            .map_err(refused)?;
        spec.reject_unknown_tensors(&self.weights)
            .map_err(refused)?;
        self.add_ends(&mut spec.decoder)?;
        Ok(spec)
    }

    /// The image preprocessing of this model: `preprocessor_config.json`, or `image_processor` of
    /// `processor_config.json`. These files and `tokenizer_config.json` must agree with the model
    /// on the number of embeddings per tile and on the tokens around tiles.
    ///
    /// # Errors
    /// [`HfError::Config`] for an unsupported or missing field; [`HfError::Json`].
    pub fn tile_processor(&self, spec: &VisionLanguageSpec) -> Result<ImageTileProcessor, HfError> {
        let own = read_optional_json(&self.dir.join(PROCESSOR))?.unwrap_or_default();
        let fields = ConfigFields::new(&own, "");
        let found = around(&fields, spec);
        let inner = found.map_err(|source| self.not_supported(PROCESSOR, source))?;
        let (json, file) = match (read_optional_json(&self.dir.join(PICTURES))?, inner) {
            (Some(json), _) => (json, PICTURES),
            (None, Some(inner)) => (inner.clone(), PROCESSOR),
            // Read the missing file for its error message.
            (None, None) => (super::read_json(&self.dir.join(PICTURES))?, PICTURES),
        };
        let read = read_tiles(&json).and_then(|read| {
            read.expect_side(spec.side())?;
            Ok(read)
        });
        let read = read.map_err(|source| self.not_supported(file, source))?;
        let name = "tokenizer_config.json";
        if let Some(json) = read_optional_json(&self.dir.join(name))? {
            tokens(&json).map_err(|source| self.not_supported(name, source))?;
        }
        Ok(read)
    }

    fn not_supported(&self, file: &str, source: ConfigError) -> HfError {
        HfError::Config {
            path: self.dir.join(file),
            source,
        }
    }
}

/// Reads the processor's file and returns its `image_processor` object, if any.
fn around<'a>(
    fields: &ConfigFields<'a>,
    spec: &VisionLanguageSpec,
) -> Result<Option<&'a Map<String, Value>>, ConfigError> {
    let (own, rows) = (fields.opt_size("image_seq_len")?, spec.rows_of_tile());
    let own = own.unwrap_or(ASSUMED_ROWS);
    if own != rows {
        return Err(ConfigError::Inconsistent {
            reason: format!(
                "`image_seq_len` is {own}, but the model has {rows} embeddings per \
                 tile"
            ),
        });
    }
    let inner = fields.opt_object("image_processor")?;
    fields.finish(&[WITHOUT_INFLUENCE])?;
    Ok(inner)
}

/// Checks that the tokens around images are those that prompts use.
fn tokens(json: &Map<String, Value>) -> Result<(), ConfigError> {
    let fields = ConfigFields::new(json, "");
    let extra = match fields.get("extra_special_tokens") {
        Some(Value::Object(extra)) => Some(extra),
        Some(_) | None => None,
    };
    let extra = extra.map(|extra| ConfigFields::new(extra, "extra_special_tokens."));
    for fields in [Some(fields), extra].iter().flatten() {
        for (name, token) in TOKENS {
            fields.only(name, &format!("\"{token}\""), |v| {
                let content = v.as_str().or_else(|| v.get("content")?.as_str());
                content == Some(token)
            })?;
        }
    }
    Ok(())
}

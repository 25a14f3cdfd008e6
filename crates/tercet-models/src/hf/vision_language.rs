//! Folders of models of pictures and texts: specification, preprocessing, and the texts that stand around pictures.

use serde_json::{Map, Value};

use super::{HfError, HfFolder, read_optional_json};
use crate::config::vision_language::of_model_type;
use crate::config::{ConfigError, Fields, VisionLanguageSpec};
use crate::picture::{TileProcessor, read_tiles};

const CONFIG: &str = "config.json";
const PICTURES: &str = "preprocessor_config.json";
const PROCESSOR: &str = "processor_config.json";

/// Rows of a tile that a processor assumes where its file says nothing.
const ASSUMED_ROWS: usize = 169;

/// Fields of the processor's file that say nothing of pictures and prompts.
const WITHOUT_INFLUENCE: &[&str] = &["auto_map", "processor_class", "video_processor"];

/// What a tokenizer's file calls tokens around pictures, and which they are.
const TOKENS: [(&str, &str); 3] = [
    ("image_token", IMAGE),
    ("fake_image_token", AROUND),
    ("global_image_token", WHOLE),
];

/// The token whose places pictures take.
pub(crate) const IMAGE: &str = "<image>";
/// What stands before every tile and behind a picture.
pub(crate) const AROUND: &str = "<fake_token_around_image>";
/// What says that the whole picture follows.
pub(crate) const WHOLE: &str = "<global-img>";

/// Whether a folder is of such a model.
pub(super) fn is(folder: &HfFolder) -> bool {
    folder.model_type().and_then(of_model_type).is_some()
}

impl HfFolder {
    /// The specification of a model of pictures and texts. Where `generation_config.json` names the tokens that end a text,
    /// they are added to those of `config.json`.
    ///
    /// # Errors
    /// [`HfError::Config`], or [`HfError::Json`] for `generation_config.json`.
    pub fn vision_language_spec(&self) -> Result<VisionLanguageSpec, HfError> {
        let refused = |source| self.not_supported(CONFIG, source);
        let mut spec = VisionLanguageSpec::from_json(&self.config).map_err(refused)?;
        spec.refuse_unknown_tensors(&self.weights)
            .map_err(refused)?;
        self.add_ends(&mut spec.decoder)?;
        Ok(spec)
    }

    /// How pictures are prepared for this model: `preprocessor_config.json`, or `image_processor` of `processor_config.json`.
    /// Both files, and `tokenizer_config.json`, have to agree with the model about the rows of a tile and the tokens around
    /// them.
    ///
    /// # Errors
    /// [`HfError::Config`] for a field that is not supported, or missing; [`HfError::Json`].
    pub fn tile_processor(&self, spec: &VisionLanguageSpec) -> Result<TileProcessor, HfError> {
        let own = read_optional_json(&self.dir.join(PROCESSOR))?.unwrap_or_default();
        let fields = Fields::new(&own, "");
        let found = around(&fields, spec);
        let inner = found.map_err(|source| self.not_supported(PROCESSOR, source))?;
        let (json, file) = match (read_optional_json(&self.dir.join(PICTURES))?, inner) {
            (Some(json), _) => (json, PICTURES),
            (None, Some(inner)) => (inner.clone(), PROCESSOR),
            // The error says which file is missing.
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

/// What the processor's file says: the object of its image processor, where it has it.
fn around<'a>(
    fields: &Fields<'a>,
    spec: &VisionLanguageSpec,
) -> Result<Option<&'a Map<String, Value>>, ConfigError> {
    let (own, rows) = (fields.opt_size("image_seq_len")?, spec.rows_of_tile());
    let own = own.unwrap_or(ASSUMED_ROWS);
    if own != rows {
        return Err(ConfigError::Inconsistent {
            reason: format!("`image_seq_len` is {own}, but the model makes {rows} rows of a tile"),
        });
    }
    let inner = fields.opt_object("image_processor")?;
    fields.finish(&[WITHOUT_INFLUENCE])?;
    Ok(inner)
}

/// Refuses other tokens around pictures than those that prompts are written with.
fn tokens(json: &Map<String, Value>) -> Result<(), ConfigError> {
    let fields = Fields::new(json, "");
    let extra = match fields.get("extra_special_tokens") {
        Some(Value::Object(extra)) => Some(extra),
        Some(_) | None => None,
    };
    let extra = extra.map(|extra| Fields::new(extra, "extra_special_tokens."));
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

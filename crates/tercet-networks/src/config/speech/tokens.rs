//! `generation_config.json` of Whisper: special tokens and suppressed tokens.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::super::{ConfigError, ConfigFields, ensure};
use super::SpeechSpec;
use tercet_files::clip;

/// Fields about the file, beam search, and word-level timestamps, which are not implemented.
const WITHOUT_INFLUENCE: &[&str] = &[
    "_from_model_config",
    "alignment_heads",
    "median_filter_width",
    "pad_token_id",
    "return_timestamps",
    "transformers_version",
    "use_cache",
];

/// The tokens of a speech recognizer, from `generation_config.json`.
///
/// ```
/// # let json = r#"{
/// #     "model_type": "whisper", "d_model": 8, "num_mel_bins": 80, "encoder_layers": 1,
/// #     "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
/// #     "encoder_ffn_dim": 8, "decoder_ffn_dim": 8, "max_source_positions": 1500,
/// #     "max_target_positions": 448, "vocab_size": 51865
/// # }"#;
/// # let spec = tercet_networks::SpeechSpec::from_json(&serde_json::from_str(json)?)?;
/// use tercet_networks::SpeechTokens;
/// let json = r#"{
///     "decoder_start_token_id": 50258, "eos_token_id": 50257, "no_timestamps_token_id": 50363,
///     "lang_to_id": {"<|de|>": 50261, "<|en|>": 50259}
/// }"#;
/// let (json, config) = (serde_json::from_str(json)?, serde_json::Map::new());
/// let tokens = SpeechTokens::from_json(&json, &config, &spec)?;
/// assert_eq!((tokens.languages["en"], tokens.first_timestamp()), (50259, 50364));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct SpeechTokens {
    /// The decoder's start token.
    pub start: u32,
    /// The end-of-text token.
    pub end: u32,
    /// The token that precedes text of earlier windows in the prompt.
    pub previous: Option<u32>,
    /// The token that disables timestamps. The token directly follows the no-speech token and
    /// directly precedes the timestamp of 0 s.
    pub no_timestamps: u32,
    /// Language tokens by the code between `<|` and `|>`, such as `en`. Empty for English-only
    /// models.
    pub languages: BTreeMap<String, u32>,
    /// Task tokens: `transcribe` and `translate`. Empty for English-only models.
    pub tasks: BTreeMap<String, u32>,
    /// Whether the model is multilingual.
    pub multilingual: bool,
    /// The tokens after the start token if the caller chooses neither language nor task. `None`
    /// stands for a detected language.
    pub forced: Vec<Option<u32>>,
    /// The default language, a key of [`SpeechTokens::languages`].
    pub language: Option<String>,
    /// The default task.
    pub task: Option<String>,
    /// Tokens that are never generated.
    pub suppressed: Vec<u32>,
    /// Tokens that are not generated first.
    pub suppressed_first: Vec<u32>,
    /// Maximum value of the first timestamp, in steps of 20 ms.
    pub latest_first: Option<usize>,
    /// Maximum number of tokens per text. The number includes the start of the prompt, and excludes
    /// the text of earlier windows.
    pub max_length: usize,
}

impl SpeechTokens {
    /// Reads a `generation_config.json`. Without forced tokens in this file, those of the
    /// `config.json` in `config` are used.
    ///
    /// # Errors
    /// [`ConfigError`] for a field that is missing, wrong, not supported or not known, and for a
    /// token outside the vocabulary.
    pub fn from_json(
        json: &Map<String, Value>,
        config: &Map<String, Value>,
        spec: &SpeechSpec,
    ) -> Result<SpeechTokens, ConfigError> {
        let fields = ConfigFields::new(json, "").of_class("GenerationConfig");
        let token = |name| fields.required(name, fields.opt_token(name)?);
        for name in ["num_beams", "num_return_sequences", "temperature"] {
            fields.only(name, "1", |v| v.as_f64() == Some(1.0))?;
        }
        for name in ["do_sample", "condition_on_prev_tokens"] {
            fields.only(name, "false", |v| v.as_bool() == Some(false))?;
        }
        let languages = table(&fields, "lang_to_id")?;
        let plain = |name: &str| {
            name.trim_start_matches("<|")
                .trim_end_matches("|>")
                .to_string()
        };
        let languages: BTreeMap<String, u32> = languages
            .into_iter()
            .map(|(name, id)| (plain(&name), id))
            .collect();
        let forced = match fields.get("forced_decoder_ids") {
            Some(forced) => forced_tokens(forced)?,
            None => match config.get("forced_decoder_ids").filter(|v| !v.is_null()) {
                Some(forced) => forced_tokens(forced)?,
                None => Vec::new(),
            },
        };
        let language = fields.opt_str("language")?;
        // In older files `bos_token_id` is the end-of-text token, which is also the start of a
        // training text.
        fields.opt_token("bos_token_id")?;
        let tokens = SpeechTokens {
            start: token("decoder_start_token_id")?,
            end: token("eos_token_id")?,
            previous: fields.opt_token("prev_sot_token_id")?,
            no_timestamps: token("no_timestamps_token_id")?,
            multilingual: (fields.opt_bool("is_multilingual")?).unwrap_or(!languages.is_empty()),
            languages,
            tasks: table(&fields, "task_to_id")?,
            forced,
            language: language.map(plain),
            task: fields.opt_str("task")?.map(str::to_string),
            suppressed: fields.tokens("suppress_tokens")?,
            suppressed_first: fields.tokens("begin_suppress_tokens")?,
            latest_first: match fields.get("max_initial_timestamp_index") {
                Some(Value::Number(n)) if n.as_u64() == Some(0) => Some(0),
                _ => fields.opt_size("max_initial_timestamp_index")?,
            },
            max_length: (fields.opt_size("max_length")?).unwrap_or(spec.text_positions),
        };
        fields.finish(&[WITHOUT_INFLUENCE])?;
        tokens.check(spec)?;
        Ok(tokens)
    }

    /// The timestamp token of 0 s.
    pub fn first_timestamp(&self) -> u32 {
        self.no_timestamps + 1
    }

    fn check(&self, spec: &SpeechSpec) -> Result<(), ConfigError> {
        let singles = [self.start, self.end, self.no_timestamps];
        let lists = [&self.suppressed, &self.suppressed_first];
        let all = (singles.into_iter().chain(self.previous))
            .chain(self.languages.values().copied())
            .chain(self.tasks.values().copied())
            .chain(self.forced.iter().flatten().copied())
            .chain(lists.into_iter().flatten().copied());
        for token in all {
            ensure((token as usize) < spec.vocab, || {
                let vocab = spec.vocab;
                format!(
                    "token {token} of generation_config.json is beyond the vocabulary of \
                     {vocab}"
                )
            })?;
        }
        ensure(self.no_timestamps > 0, || {
            "`no_timestamps_token_id` = 0; expected at least 1, because the no-speech token \
             precedes it"
                .into()
        })?;
        ensure((self.no_timestamps as usize) + 1 < spec.vocab, || {
            let (last, vocab) = (self.no_timestamps, spec.vocab);
            format!("there are no timestamps after token {last} in a vocabulary of {vocab}")
        })
    }
}

/// Reads a table of names and token ids.
fn table(
    fields: &ConfigFields<'_>,
    name: &'static str,
) -> Result<BTreeMap<String, u32>, ConfigError> {
    let mut tokens = BTreeMap::new();
    for (key, value) in fields.opt_object(name)?.into_iter().flatten() {
        let id = value.as_u64().and_then(|id| u32::try_from(id).ok());
        let id = id.ok_or_else(|| ConfigError::WrongType {
            field: format!("{name}.{}", clip(key)),
            expected: "a token id",
            found: clip(&value.to_string()),
        })?;
        tokens.insert(key.clone(), id);
    }
    Ok(tokens)
}

/// Reads pairs of positions, consecutive from 1, and tokens.
fn forced_tokens(json: &Value) -> Result<Vec<Option<u32>>, ConfigError> {
    let wrong = || ConfigError::WrongType {
        field: "forced_decoder_ids".to_string(),
        expected: "pairs of a position, consecutive from 1, and a token",
        found: clip(&json.to_string()),
    };
    let pairs = json.as_array().ok_or_else(wrong)?;
    let mut forced = Vec::new();
    for (at, pair) in pairs.iter().enumerate() {
        let [place, token] = pair.as_array().ok_or_else(wrong)?.as_slice() else {
            return Err(wrong());
        };
        if place.as_u64() != Some(at as u64 + 1) {
            return Err(wrong());
        }
        forced.push(match token {
            // `null` stands for a detected token, which only the first one (the language) can be.
            Value::Null if at == 0 => None,
            token => {
                let id = token.as_u64().and_then(|id| u32::try_from(id).ok());
                Some(id.ok_or_else(wrong)?)
            }
        });
    }
    Ok(forced)
}

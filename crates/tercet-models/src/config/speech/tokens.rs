//! `generation_config.json` of Whisper: which tokens mean what, and which are never written.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::super::{ConfigError, Fields, ensure};
use super::SpeechSpec;
use crate::gguf::clip;

/// Fields about the file, beams, and times of words, which are not computed.
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
#[derive(Clone, Debug, PartialEq)]
pub struct SpeechTokens {
    /// What every text begins with.
    pub start: u32,
    /// What ends a text.
    pub end: u32,
    /// What earlier text is announced by.
    pub previous: Option<u32>,
    /// What says that there are no timestamps. The first timestamp, of 0 s, comes after it; what says that there is no speech
    /// comes before it.
    pub no_timestamps: u32,
    /// Tokens of languages, by what is between `<|` and `|>`: `en`. Empty for models of English alone.
    pub languages: BTreeMap<String, u32>,
    /// Tokens of tasks: `transcribe`, `translate`. Empty for models of English alone.
    pub tasks: BTreeMap<String, u32>,
    /// Whether the model knows several languages.
    pub multilingual: bool,
    /// Tokens after the first where neither language nor task was chosen; `None` is a language to be found out.
    pub forced: Vec<Option<u32>>,
    /// The language unless another is chosen, as [`SpeechTokens::languages`] has it.
    pub language: Option<String>,
    /// The task unless another is chosen.
    pub task: Option<String>,
    /// Never written.
    pub suppressed: Vec<u32>,
    /// Not written first.
    pub suppressed_first: Vec<u32>,
    /// The latest first timestamp, in steps of 20 ms.
    pub latest_first: Option<usize>,
    /// Tokens of a text at most, prompt included, before what the prompt of a window adds.
    pub max_length: usize,
}

impl SpeechTokens {
    /// Reads a `generation_config.json`; `config` is the `config.json` beside it, which says which tokens are forced where the
    /// former does not.
    ///
    /// # Errors
    /// [`ConfigError`] for a field that is missing, wrong, not supported or not known, and for a token outside the vocabulary.
    pub fn from_json(
        json: &Map<String, Value>,
        config: &Map<String, Value>,
        spec: &SpeechSpec,
    ) -> Result<SpeechTokens, ConfigError> {
        let fields = Fields::new(json, "");
        let token = |name| fields.required(name, fields.opt_token(name)?);
        for name in ["num_beams", "num_return_sequences", "temperature"] {
            fields.only(name, "1", |v| v.as_f64() == Some(1.0))?;
        }
        for name in ["do_sample", "condition_on_prev_tokens"] {
            fields.only(name, "false", |v| v.as_bool() == Some(false))?;
        }
        fields.only("is_multilingual", "true or false", Value::is_boolean)?;
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
        // Old files name what begins a text as the BOS token, which ends it, too.
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

    /// The timestamp of 0 s.
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
                format!("generation_config.json names token {token}; there are {vocab}")
            })?;
        }
        ensure(self.no_timestamps > 0, || {
            "`no_timestamps_token_id` = 0; what says that there is no speech comes before it".into()
        })?;
        ensure((self.no_timestamps as usize) + 1 < spec.vocab, || {
            let (last, vocab) = (self.no_timestamps, spec.vocab);
            format!("there are no timestamps after token {last} in a vocabulary of {vocab}")
        })
    }
}

/// Names and their tokens.
fn table(fields: &Fields<'_>, name: &'static str) -> Result<BTreeMap<String, u32>, ConfigError> {
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

/// Pairs of places, from 1 on, and tokens.
fn forced_tokens(json: &Value) -> Result<Vec<Option<u32>>, ConfigError> {
    let wrong = || ConfigError::WrongType {
        field: "forced_decoder_ids".to_string(),
        expected: "pairs of consecutive places from 1 on, and tokens",
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
            // Only the language is found out.
            Value::Null if at == 0 => None,
            token => {
                let id = token.as_u64().and_then(|id| u32::try_from(id).ok());
                Some(id.ok_or_else(wrong)?)
            }
        });
    }
    Ok(forced)
}

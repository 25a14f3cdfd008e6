//! Added tokens that other files than `tokenizer.json` describe.

use serde_json::{Map, Value};
use tokenizers::AddedToken;

use super::{Tokenizer, TokenizerEngine, TokenizerError, caught, json};

impl Tokenizer {
    /// The same tokenizer with the tokens of `added_tokens_decoder` of a `tokenizer_config.json`, a map from ids to
    /// tokens. As in `transformers`, its rules of a known token (`lstrip`, `rstrip`, `single_word`, `normalized`,
    /// `special`) replace those of `tokenizer.json`. A new token is added if its id follows the last one.
    ///
    /// A SentencePiece model has its own added tokens and stays as it is.
    ///
    /// ```
    /// # let json = r#"{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
    /// #     "normalizer": null, "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null, "decoder": null,
    /// #     "model": {"type": "WordLevel", "unk_token": "a", "vocab": {"a": 0, "b": 1}}}"#;
    /// # let tokenizer = tercet_text::Tokenizer::from_json(json.as_bytes())?;
    /// let added = serde_json::json!({"2": {"content": "<end>", "special": true}});
    /// let tokenizer = tokenizer.with_added_tokens(added.as_object().unwrap())?;
    /// assert_eq!(tokenizer.encode("a b<end>", true)?, [0, 1, 2]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`TokenizerError::BadJson`] if the tokens are too long.
    pub fn with_added_tokens(self, tokens: &Map<String, Value>) -> Result<Self, TokenizerError> {
        let Tokenizer {
            engine: TokenizerEngine::Crate { inner, .. },
            bos,
            eos,
            ..
        } = &self
        else {
            return Ok(self);
        };
        let known = inner.get_added_tokens_decoder();
        let mut listed: Vec<(u32, AddedToken)> = tokens
            .iter()
            .filter_map(|(id, token)| Some((id.parse().ok()?, added_token(token)?)))
            .collect();
        listed.sort_by_key(|(id, _)| *id);
        let mut next = inner.get_vocab_size(true);
        let mut changed = Vec::new();
        for (id, token) in listed {
            match inner.token_to_id(&token.content) {
                Some(own) if known.get(&own) == Some(&token) => {}
                Some(_) => changed.push(token),
                None if usize::try_from(id) == Ok(next) => {
                    next += 1;
                    changed.push(token);
                }
                None => {}
            }
        }
        if changed.is_empty() {
            return Ok(self);
        }
        json::check_added(changed.iter().map(|token| token.content.as_str()))?;
        let (bos, eos) = (*bos, *eos);
        let TokenizerEngine::Crate { mut inner, .. } = self.engine else {
            return Ok(self);
        };
        caught("adding tokens", || {
            inner.add_tokens(&changed);
            Ok(Tokenizer {
                bos,
                eos,
                ..Self::new(*inner)?
            })
        })
    }
}

/// A token with its rules, as `transformers` writes it.
fn added_token(token: &Value) -> Option<AddedToken> {
    let content = token.get("content")?.as_str()?;
    let flag = |name: &str| token.get(name).and_then(Value::as_bool);
    let special = flag("special").unwrap_or(false);
    let made = AddedToken::from(content, special)
        .single_word(flag("single_word").unwrap_or(false))
        .lstrip(flag("lstrip").unwrap_or(false))
        .rstrip(flag("rstrip").unwrap_or(false))
        .normalized(flag("normalized").unwrap_or(!special));
    (!content.is_empty()).then_some(made)
}

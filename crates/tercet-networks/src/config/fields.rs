//! Typed access to a JSON object that records which fields were read.

use std::cell::RefCell;
use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::ConfigError;
use super::known_keys::{self, ConfigClass, UnreadKey};
use tercet_files::clip;

/// Upper limit of a size. No model has larger sizes, and products of a few of them fit `u64`.
const MAX_SIZE: u64 = 1 << 31;

/// A JSON object that records which of its fields were read.
///
/// With a class, fields that were not read follow the rule of [`known_keys`]. Without a class,
/// every field must be read or be on a list of harmless fields.
pub(crate) struct ConfigFields<'a> {
    map: &'a Map<String, Value>,
    /// Path of the object for error messages, with a final dot: `rope_parameters.`; empty at the
    /// top level.
    prefix: &'static str,
    used_keys: RefCell<BTreeSet<&'static str>>,
    /// The keys that the configuration class of `transformers` defines.
    class: Option<ConfigClass>,
    /// The defaults of the class, for optional fields that are absent.
    defaults: Map<String, Value>,
}

impl<'a> ConfigFields<'a> {
    pub(crate) fn new(map: &'a Map<String, Value>, prefix: &'static str) -> Self {
        Self {
            map,
            prefix,
            used_keys: RefCell::default(),
            class: None,
            defaults: Map::new(),
        }
    }

    /// The same fields, checked against the configuration class of a `model_type`.
    pub(crate) fn of_class(mut self, model_type: &str) -> Self {
        self.class = ConfigClass::new(model_type);
        self
    }

    /// The same fields; optional fields that are absent have the defaults of the class. `null` is
    /// not absent: it turns a feature off.
    pub(crate) fn with_class_defaults(mut self) -> Self {
        self.defaults = match &self.class {
            Some(class) => class.defaults_for(self.map),
            None => Map::new(),
        };
        self
    }

    /// The class's default of a field, `null` for computed ones; `None` if the class does not define
    /// the field.
    pub(super) fn class_default(&self, name: &str) -> Option<&Value> {
        self.class.as_ref()?.default_of(name)
    }

    /// Whether the family's own code reads this key of `rope_parameters`.
    pub(super) fn honours_rope_key(&self, key: &str) -> bool {
        self.class
            .as_ref()
            .is_none_or(|class| class.honours_rope_key(key))
    }

    /// The rotary parameters of the class for files without rotary keys, unless they are the usual
    /// ones.
    pub(super) fn rotary_defaults(&self) -> Option<&Map<String, Value>> {
        self.class.as_ref()?.rotary_defaults()
    }

    fn path(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    /// The value of a field, without defaults; `null` counts as absent.
    pub(crate) fn get(&self, name: &'static str) -> Option<&'a Value> {
        self.used_keys.borrow_mut().insert(name);
        self.map.get(name).filter(|value| !value.is_null())
    }

    /// The value of a field, or its default.
    fn get_or_default(&self, name: &'static str) -> Option<&Value> {
        self.used_keys.borrow_mut().insert(name);
        let value = match self.map.get(name) {
            Some(value) => Some(value),
            None => self.defaults.get(name),
        };
        value.filter(|value| !value.is_null())
    }

    fn typed<'b, T>(
        &self,
        name: &'static str,
        value: Option<&'b Value>,
        expected: &'static str,
        convert: impl FnOnce(&'b Value) -> Option<T>,
    ) -> Result<Option<T>, ConfigError> {
        let Some(value) = value else {
            return Ok(None);
        };
        match convert(value) {
            Some(converted) => Ok(Some(converted)),
            // A default such as "auto" means that the reader derives the value.
            None if !self.map.contains_key(name) => Ok(None),
            None => Err(ConfigError::WrongType {
                field: self.path(name),
                expected,
                found: clip(&value.to_string()),
            }),
        }
    }

    pub(crate) fn required<T>(
        &self,
        name: &'static str,
        value: Option<T>,
    ) -> Result<T, ConfigError> {
        value.ok_or_else(|| ConfigError::Missing {
            field: self.path(name),
        })
    }

    /// An optional size: an integer from 1 to 2^31.
    pub(crate) fn opt_size(&self, name: &'static str) -> Result<Option<usize>, ConfigError> {
        self.size_of(name, self.get_or_default(name))
    }

    /// A size of the file, without defaults.
    pub(crate) fn stated_size(&self, name: &'static str) -> Result<Option<usize>, ConfigError> {
        self.size_of(name, self.get(name))
    }

    /// An optional attention window: an integer from `least` to 2^31.
    pub(crate) fn opt_window(
        &self,
        name: &'static str,
        least: u64,
    ) -> Result<Option<usize>, ConfigError> {
        let expected = match least {
            0 => "an integer from 0 to 2^31",
            _ => "an integer from 1 to 2^31, or null for full attention",
        };
        self.typed(name, self.get_or_default(name), expected, |value| {
            let size = value.as_u64().filter(|v| (least..=MAX_SIZE).contains(v))?;
            usize::try_from(size).ok()
        })
    }

    /// Whether a field has a value or a default other than `null`.
    pub(crate) fn has_value(&self, name: &'static str) -> bool {
        self.get_or_default(name).is_some()
    }

    /// Whether the file sets a field to `null`, which disables the default.
    pub(crate) fn is_null(&self, name: &'static str) -> bool {
        self.map.get(name).is_some_and(Value::is_null)
    }

    fn size_of(
        &self,
        name: &'static str,
        value: Option<&Value>,
    ) -> Result<Option<usize>, ConfigError> {
        self.typed(name, value, "an integer from 1 to 2^31", |value| {
            let size = value.as_u64().filter(|v| (1..=MAX_SIZE).contains(v))?;
            usize::try_from(size).ok()
        })
    }

    /// An optional count: an integer from 0 to 2^31.
    pub(crate) fn opt_count(&self, name: &'static str) -> Result<Option<u64>, ConfigError> {
        let value = self.get_or_default(name);
        self.typed(name, value, "an integer from 0 to 2^31", |value| {
            value.as_u64().filter(|count| *count <= MAX_SIZE)
        })
    }

    /// A size of the file, or the class's default; an error if neither exists.
    pub(crate) fn size_or_default(&self, name: &'static str) -> Result<usize, ConfigError> {
        self.required(name, self.opt_size(name)?)
    }

    pub(crate) fn size(&self, name: &'static str) -> Result<usize, ConfigError> {
        self.required(name, self.stated_size(name)?)
    }

    /// An optional positive, finite number.
    pub(crate) fn opt_positive(&self, name: &'static str) -> Result<Option<f64>, ConfigError> {
        self.positive_of(name, self.get_or_default(name))
    }

    /// A positive, finite number of the file, without defaults.
    pub(crate) fn stated_positive(&self, name: &'static str) -> Result<Option<f64>, ConfigError> {
        self.positive_of(name, self.get(name))
    }

    fn positive_of(
        &self,
        name: &'static str,
        value: Option<&Value>,
    ) -> Result<Option<f64>, ConfigError> {
        self.typed(name, value, "a positive number", |value| {
            value.as_f64().filter(|v| v.is_finite() && *v > 0.0)
        })
    }

    /// An optional finite number that is at least 0.
    pub(crate) fn opt_not_negative(&self, name: &'static str) -> Result<Option<f64>, ConfigError> {
        let value = self.get_or_default(name);
        self.typed(name, value, "a number that is not negative", |value| {
            value.as_f64().filter(|v| v.is_finite() && *v >= 0.0)
        })
    }

    /// A positive number of the file, or the class's default; an error if neither exists.
    pub(crate) fn positive_or_default(&self, name: &'static str) -> Result<f64, ConfigError> {
        self.required(name, self.opt_positive(name)?)
    }

    pub(crate) fn positive(&self, name: &'static str) -> Result<f64, ConfigError> {
        self.required(name, self.stated_positive(name)?)
    }

    /// An optional list of exactly `N` finite numbers.
    pub(crate) fn numbers<const N: usize>(
        &self,
        name: &'static str,
    ) -> Result<Option<[f32; N]>, ConfigError> {
        self.typed(
            name,
            self.get(name),
            "a list with one number per part of the model",
            |value| {
                let all = value.as_array()?.iter().map(|x| Some(x.as_f64()? as f32));
                let all: Vec<f32> = all.collect::<Option<_>>()?;
                let all = <[f32; N]>::try_from(all).ok()?;
                all.iter().all(|x| x.is_finite()).then_some(all)
            },
        )
    }

    pub(crate) fn opt_bool(&self, name: &'static str) -> Result<Option<bool>, ConfigError> {
        self.typed(
            name,
            self.get_or_default(name),
            "true or false",
            Value::as_bool,
        )
    }

    /// A flag that is set by default. As in Python, `null` clears it.
    pub(crate) fn flag_set_unless_off(&self, name: &'static str) -> Result<bool, ConfigError> {
        Ok(!self.is_null(name) && self.opt_bool(name)?.unwrap_or(true))
    }

    pub(crate) fn opt_str(&self, name: &'static str) -> Result<Option<&'a str>, ConfigError> {
        self.typed(name, self.get(name), "a string", Value::as_str)
    }

    pub(crate) fn opt_object(
        &self,
        name: &'static str,
    ) -> Result<Option<&'a Map<String, Value>>, ConfigError> {
        self.typed(name, self.get(name), "an object", Value::as_object)
    }

    pub(crate) fn opt_token(&self, name: &'static str) -> Result<Option<u32>, ConfigError> {
        // Some tools write -1 for a token that does not exist.
        let value = self.get(name).filter(|value| value.as_i64() != Some(-1));
        self.typed(name, value, "a token id", |value| {
            u32::try_from(value.as_u64()?).ok()
        })
    }

    /// A field with one token id or a list of token ids.
    pub(crate) fn tokens(&self, name: &'static str) -> Result<Vec<u32>, ConfigError> {
        let id = |value: &Value| u32::try_from(value.as_u64()?).ok();
        let expected = "a token id or a list of them";
        let value = self.get(name).filter(|value| value.as_i64() != Some(-1));
        let ids = self.typed(name, value, expected, |value| match value {
            Value::Array(ids) => ids.iter().map(id).collect::<Option<Vec<_>>>(),
            other => id(other).map(|id| vec![id]),
        })?;
        Ok(ids.unwrap_or_default())
    }

    /// Checks that the value of a field passes `accept`; absent fields and `null` pass.
    ///
    /// # Errors
    /// [`ConfigError`] if `accept` returns false.
    pub(crate) fn only(
        &self,
        name: &'static str,
        supported: &str,
        accept: impl FnOnce(&Value) -> bool,
    ) -> Result<(), ConfigError> {
        match self.get(name) {
            Some(value) if !accept(value) => Err(ConfigError::Unsupported {
                field: self.path(name),
                found: clip(&value.to_string()),
                supported: supported.to_owned(),
            }),
            Some(_) | None => Ok(()),
        }
    }

    /// Applies the rule for fields that were not read. Fields of the lists `harmless` describe the
    /// file or its training.
    ///
    /// # Errors
    /// [`ConfigError::Unsupported`] for a field that changes the result;
    /// [`ConfigError::UnknownFields`] without a class.
    pub(crate) fn finish(&self, harmless: &[&[&str]]) -> Result<(), ConfigError> {
        let Some(class) = &self.class else {
            return self.finish_strictly(harmless);
        };
        for (name, value) in self.unread(harmless) {
            match class.classify(self.map, name, value) {
                UnreadKey::Silent => {}
                UnreadKey::Ignored => self.note(name),
                UnreadKey::Meaningful(supported) => {
                    let path = format!("{}{}", self.prefix, clip(name));
                    return Err(known_keys::refused(path, value, supported));
                }
            }
        }
        Ok(())
    }

    /// Applies the rule for fields of `rope_parameters` that were not read, for a type of scaling.
    ///
    /// # Errors
    /// [`ConfigError::Unsupported`] for a field that the type reads.
    pub(super) fn finish_scaling(&self, kind: &str) -> Result<(), ConfigError> {
        for (name, value) in self.unread(&[]) {
            if known_keys::scaling_reads(kind, name) {
                let path = format!("{}{}", self.prefix, clip(name));
                return Err(known_keys::refused(path, value, "null".to_string()));
            }
            self.note(name);
        }
        Ok(())
    }

    /// Notes that a field was ignored.
    pub(crate) fn note(&self, name: &str) {
        known_keys::note(format!("{}{}", self.prefix, clip(name)));
    }

    /// The fields that were not read and are not `null`.
    fn unread(&self, harmless: &[&[&str]]) -> impl Iterator<Item = (&'a String, &'a Value)> {
        let seen = self.used_keys.borrow();
        self.map.iter().filter(move |(name, value)| {
            !value.is_null()
                && !seen.contains(name.as_str())
                && !harmless.iter().any(|list| list.contains(&name.as_str()))
        })
    }

    fn finish_strictly(&self, harmless: &[&[&str]]) -> Result<(), ConfigError> {
        let unknown: Vec<String> = self
            .unread(harmless)
            .map(|(name, _)| format!("`{}{}`", self.prefix, clip(name)))
            .collect();
        if unknown.is_empty() {
            Ok(())
        } else {
            Err(ConfigError::UnknownFields {
                fields: clip(&unknown.join(", ")),
            })
        }
    }
}

/// Fields of `config.json` that describe the file, its training or its users, for every
/// architecture. None of these fields affects the forward pass.
pub(super) const HARMLESS: &[&str] = &[
    "_attn_implementation",
    "_attn_implementation_autoset",
    "_name_or_path",
    "architectures",
    "attention_dropout",
    "attention_probs_dropout_prob",
    "auto_map",
    "chunk_size_feed_forward",
    "classifier_dropout",
    "dtype",
    "embd_pdrop",
    "finetuning_task",
    "gradient_checkpointing",
    "hidden_dropout",
    "hidden_dropout_prob",
    "id2label",
    "initializer_range",
    "label2id",
    "model_type",
    "output_attentions",
    "output_hidden_states",
    "output_past",
    "pad_token_id",
    "pretraining_tp",
    "problem_type",
    "resid_pdrop",
    "return_dict",
    "tokenizer_class",
    "torch_dtype",
    "torchscript",
    "transformers.js_config",
    "transformers_version",
    "unsloth_fixed",
    "unsloth_version",
    "use_cache",
    "xla_device",
];

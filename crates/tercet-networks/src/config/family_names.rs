//! The names of all supported families, for listings and error messages.

use super::{decoder, encoder, speech, vision, vision_language};

/// The names of the supported families of one kind.
///
/// ```
/// let kinds = tercet_networks::config::family_names();
/// let texts = kinds.iter().find(|names| names.kind == "language models");
/// assert!(texts.is_some_and(|names| names.model_types.contains(&"llama")));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FamilyNames {
    /// The kind of the models.
    pub kind: &'static str,
    /// Values of `model_type` in `config.json`.
    pub model_types: Vec<&'static str>,
    /// Values of `general.architecture` in GGUF files; empty if there are none.
    pub architectures: Vec<&'static str>,
}

/// The names of all supported families, by kind.
#[must_use]
pub fn family_names() -> Vec<FamilyNames> {
    let kind = |kind, model_types, architectures| FamilyNames {
        kind,
        model_types,
        architectures,
    };
    vec![
        kind(
            "language models",
            decoder::model_types(),
            decoder::gguf_names(),
        ),
        kind(
            "encoders of texts",
            encoder::model_types(),
            encoder::gguf_names(),
        ),
        kind("encoders of images", vision::model_types(), Vec::new()),
        kind(
            "language models with images",
            vision_language::MODEL_TYPES.to_vec(),
            Vec::new(),
        ),
        kind(
            "speech recognition",
            vec![speech::MODEL_TYPE, speech::MOONSHINE],
            Vec::new(),
        ),
    ]
}

/// Maximum number of names in an error message.
pub const MAX_NEAR: usize = 3;

/// The families with names like `name`, and the command that lists all: the end of an error message.
/// A name of another kind of models is reported as that.
pub(crate) fn near(name: &str, names: impl IntoIterator<Item = &'static str>) -> String {
    let is_own = |of: &&FamilyNames| of.model_types.contains(&name);
    if let Some(other) = family_names().iter().find(is_own) {
        return format!(
            "families of this task; `{name}` is one of the {} in `tercet models`",
            other.kind
        );
    }
    let mut rated: Vec<(f64, &str)> = names
        .into_iter()
        .map(|own| (similarity(name, own), own))
        .filter(|(rating, _)| *rating >= 0.5)
        .collect();
    rated.sort_by(|(a, one), (b, other)| b.total_cmp(a).then(one.cmp(other)));
    rated.dedup_by_key(|(_, own)| *own);
    let near: Vec<&str> = rated.iter().take(MAX_NEAR).map(|(_, own)| *own).collect();
    match near.is_empty() {
        true => "the families that `tercet models` lists".to_string(),
        false => format!(
            "{}, and the other families that `tercet models` lists",
            near.join(", ")
        ),
    }
}

/// The supported names that resemble `name`, for an error message.
#[must_use]
pub fn near_any(name: &str) -> String {
    let all = family_names().into_iter();
    near(
        name,
        all.flat_map(|of| [of.model_types, of.architectures].concat()),
    )
}

/// Similarity of two names from 0 to 1: the share of pairs of adjacent characters in common (Dice,
/// 1945). Case and punctuation do not count.
pub fn similarity(a: &str, b: &str) -> f64 {
    let pairs = |name: &str| -> Vec<[char; 2]> {
        // A name from a file may have any length.
        let plain = name.chars().take(64).filter(|c| c.is_alphanumeric());
        let plain: Vec<char> = plain.flat_map(char::to_lowercase).collect();
        plain.windows(2).map(|pair| [pair[0], pair[1]]).collect()
    };
    let (mut left, right) = (pairs(a), pairs(b));
    let total = left.len() + right.len();
    if total == 0 {
        return 0.0;
    }
    let mut common = 0;
    for pair in right {
        if let Some(at) = left.iter().position(|own| *own == pair) {
            left.swap_remove(at);
            common += 1;
        }
    }
    2.0 * f64::from(common) / total as f64
}

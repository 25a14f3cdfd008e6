//! The classification head of a folder: text or token classification, class names, and the score
//! function.

use serde_json::Value;

use super::{HfError, HfFolder};
use crate::config::encoder::{EncoderNames, EncoderPart};
use crate::config::outputs::Scoring;
use crate::config::{ConfigError, ConfigFields, EncoderSpec};
use crate::weights::Weights;
use tercet_files::clip;

/// A classification head.
///
/// ```
/// use tercet_networks::{ClassHead, Scoring};
/// let labels = vec!["negative".to_string(), "positive".to_string()];
/// let (scoring, ranking) = (Scoring::Softmax, Scoring::Raw);
/// let head = ClassHead { per_token: false, labels, scoring, ranking };
/// assert_eq!(head.labels.len(), 2);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassHead {
    /// Whether tokens are classified; otherwise whole texts.
    pub per_token: bool,
    /// The class names, in order.
    pub labels: Vec<String>,
    /// The function from logits to scores.
    pub scoring: Scoring,
    /// The function from logits to scores if the model ranks text pairs.
    pub ranking: Scoring,
}

const OF_TEXTS: &str = "ForSequenceClassification";
const OF_TOKENS: &str = "ForTokenClassification";

impl HfFolder {
    /// Whether the first of `architectures` is a classifier of texts or tokens.
    pub fn has_class_head(&self) -> bool {
        is_per_token(&ConfigFields::new(&self.config, "")).is_ok()
    }

    /// Reads the classification head from `config.json` and the weights.
    ///
    /// # Errors
    /// [`HfError::Config`] if the folder has no classification head, or a field is not supported.
    /// [`HfError::Labels`] if the class names do not match the classifier.
    pub fn class_head(&self, spec: &EncoderSpec) -> Result<ClassHead, HfError> {
        let refused = |source| HfError::Config {
            path: self.dir.join("config.json"),
            source,
        };
        let fields = ConfigFields::new(&self.config, "");
        let of_tokens = is_per_token(&fields).map_err(refused)?;
        let part = match of_tokens {
            true => EncoderPart::TokenClassifier,
            false => EncoderPart::Classifier,
        };
        let weights = Weights::Hf(self.weights.clone());
        let name = EncoderNames::new(spec, &weights).tensor(part, 0, "weight");
        let (_, info) = self.weights.tensor(&name)?;
        let classes = info.shape().first().copied().unwrap_or(0);
        let labels = self.labels(&fields, classes)?;
        let scoring = match of_tokens {
            true => Scoring::Softmax,
            false => scoring(&fields, classes).map_err(refused)?,
        };
        Ok(ClassHead {
            per_token: of_tokens,
            labels,
            scoring,
            ranking: ranking(&fields, classes).map_err(refused)?,
        })
    }

    pub(super) fn labels(
        &self,
        fields: &ConfigFields<'_>,
        classes: usize,
    ) -> Result<Vec<String>, HfError> {
        let path = self.dir.join("config.json");
        let bad = |reason: String| HfError::Labels {
            path: path.clone(),
            reason,
        };
        let refused = |source| HfError::Config {
            path: path.clone(),
            source,
        };
        let named = fields.opt_object("id2label").map_err(refused)?;
        // As in the reference implementation, the names take precedence over their number.
        if named.is_none()
            && let Some(stated) = fields.opt_size("num_labels").map_err(refused)?
            && stated != classes
        {
            return Err(bad(format!(
                "num_labels is {stated}, but the classifier has {classes} classes"
            )));
        }
        let Some(named) = named else {
            // The default names of the reference implementation.
            return Ok((0..classes).map(|i| format!("LABEL_{i}")).collect());
        };
        if named.len() != classes {
            let count = named.len();
            return Err(bad(format!(
                "id2label names {count} classes, but the classifier has {classes}"
            )));
        }
        let label = |i: usize| {
            let name = named.get(&i.to_string()).and_then(Value::as_str);
            name.map(str::to_string)
                .ok_or_else(|| bad(format!("id2label has no name for class {i}")))
        };
        (0..classes).map(label).collect()
    }
}

/// Whether the first architecture in the list classifies tokens.
fn is_per_token(fields: &ConfigFields<'_>) -> Result<bool, ConfigError> {
    let mut found = None;
    let supported = format!("a model {OF_TEXTS} or {OF_TOKENS}");
    fields.only("architectures", &supported, |v| {
        let first = v.as_array().and_then(|all| all.first()?.as_str());
        found = match first {
            Some(name) if name.ends_with(OF_TEXTS) => Some(false),
            Some(name) if name.ends_with(OF_TOKENS) => Some(true),
            Some(_) | None => None,
        };
        found.is_some()
    })?;
    fields.required("architectures", found)
}

pub(super) fn scoring(fields: &ConfigFields<'_>, classes: usize) -> Result<Scoring, ConfigError> {
    let mut found = match classes {
        1 => Scoring::Sigmoid,
        _ => Scoring::Softmax,
    };
    let supported = "regression, single_label_classification or multi_label_classification";
    fields.only("problem_type", supported, |v| {
        found = match v.as_str() {
            Some("regression") => Scoring::Raw,
            Some("multi_label_classification") => Scoring::Sigmoid,
            Some("single_label_classification") => found,
            Some(_) | None => return false,
        };
        true
    })?;
    Ok(found)
}

/// Reads the score function from the field that reranker models have for it.
fn ranking(fields: &ConfigFields<'_>, classes: usize) -> Result<Scoring, ConfigError> {
    let mut found = match classes {
        1 => Scoring::Sigmoid,
        _ => Scoring::Raw,
    };
    let supported = "torch's Identity or Sigmoid";
    let mut read = |v: &Value| {
        found = match v.as_str() {
            Some("torch.nn.modules.linear.Identity") => Scoring::Raw,
            Some("torch.nn.modules.activation.Sigmoid") => Scoring::Sigmoid,
            Some(_) | None => return false,
        };
        true
    };
    fields.only("sbert_ce_default_activation_function", supported, &mut read)?;
    if let Some(object) = fields.opt_object("sentence_transformers")?
        && let Some(name) = object.get("activation_fn").filter(|v| !v.is_null())
        && !read(name)
    {
        return Err(ConfigError::Unsupported {
            field: "sentence_transformers.activation_fn".to_string(),
            found: clip(&name.to_string()),
            supported: supported.to_string(),
        });
    }
    Ok(found)
}

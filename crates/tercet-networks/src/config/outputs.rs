//! Outputs of encoders: pooling, the modules after it, and scores of classes.

use serde::{Deserialize, Serialize};
use tercet::Tensor;

use super::FfnActivation;

/// Pooling of the token states of a text into one vector.
///
/// ```
/// use tercet_networks::{PoolingMode, SentenceModules};
/// let modules = SentenceModules::normalized(PoolingMode::Cls);
/// assert_eq!(modules.modes, [PoolingMode::Cls]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PoolingMode {
    /// State of the first token (the class token of BERT).
    Cls,
    /// Maximum of each element.
    Max,
    /// Mean over the tokens.
    Mean,
    /// Sum divided by the square root of the number of tokens.
    MeanSqrtLen,
    /// Mean weighted by position, with weight 1 for the first token.
    WeightedMean,
    /// State of the last token.
    #[serde(rename = "last")]
    LastToken,
}

impl PoolingMode {
    /// All modes.
    pub const ALL: [PoolingMode; 6] = [
        PoolingMode::Mean,
        PoolingMode::Cls,
        PoolingMode::LastToken,
        PoolingMode::Max,
        PoolingMode::WeightedMean,
        PoolingMode::MeanSqrtLen,
    ];

    /// The name in flags, in Python and in index files.
    ///
    /// ```
    /// use tercet_networks::PoolingMode;
    /// assert_eq!(PoolingMode::LastToken.name(), "last");
    /// ```
    pub fn name(self) -> &'static str {
        match self {
            PoolingMode::Cls => "cls",
            PoolingMode::Max => "max",
            PoolingMode::Mean => "mean",
            PoolingMode::MeanSqrtLen => "mean-sqrt-len",
            PoolingMode::WeightedMean => "weighted-mean",
            PoolingMode::LastToken => "last",
        }
    }

    /// The mode of a name; `None` for an unknown one. The names of sentence-transformers are
    /// aliases.
    ///
    /// ```
    /// use tercet_networks::PoolingMode;
    /// assert_eq!(PoolingMode::from_name("lasttoken"), Some(PoolingMode::LastToken));
    /// assert_eq!(PoolingMode::from_name("median"), None);
    /// ```
    pub fn from_name(name: &str) -> Option<PoolingMode> {
        match name {
            "lasttoken" | "last-token" => Some(PoolingMode::LastToken),
            "weightedmean" => Some(PoolingMode::WeightedMean),
            "mean_sqrt_len_tokens" => Some(PoolingMode::MeanSqrtLen),
            name => Self::ALL.into_iter().find(|mode| mode.name() == name),
        }
    }
}

/// A dense layer after pooling.
///
/// ```
/// use tercet::Tensor;
/// use tercet_networks::{DenseModule, PoolingMode, SentenceModule, SentenceModules};
/// let weight = Tensor::from_slice(&[2, 3], &[0.5f32; 6])?;
/// let dense = DenseModule { name: "2_Dense".to_string(), weight, bias: None, activation: None };
/// let mut modules = SentenceModules::normalized(PoolingMode::Mean);
/// modules.then.insert(0, SentenceModule::Dense(dense));
/// assert_eq!(modules.width(3), 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct DenseModule {
    /// Name prefix of the dense layer's tensors in the graph.
    pub name: String,
    /// Weight, F32 `[outputs, inputs]`.
    pub weight: Tensor,
    /// Bias, F32 `[outputs]`.
    pub bias: Option<Tensor>,
    /// Activation after the layer.
    pub activation: Option<FfnActivation>,
}

/// A module after pooling.
///
/// ```
/// use tercet_networks::{PoolingMode, SentenceModule, SentenceModules};
/// let modules = SentenceModules::normalized(PoolingMode::Mean);
/// assert!(matches!(modules.then[0], SentenceModule::Normalize));
/// ```
#[derive(Clone, Debug)]
pub enum SentenceModule {
    /// A dense layer.
    Dense(DenseModule),
    /// L2 normalization.
    Normalize,
    /// The first elements of the vector, this many.
    Truncate(usize),
}

/// Pipeline from hidden states to an embedding vector.
///
/// ```
/// use tercet_networks::{PoolingMode, SentenceModules};
/// let modes = vec![PoolingMode::Mean, PoolingMode::Max];
/// let modules = SentenceModules { modes, ..SentenceModules::normalized(PoolingMode::Mean) };
/// assert_eq!(modules.width(384), 768);
/// ```
#[derive(Clone, Debug)]
pub struct SentenceModules {
    /// Pooling modes; their results are concatenated.
    pub modes: Vec<PoolingMode>,
    /// True if pooling includes the prompt tokens.
    pub include_prompt: bool,
    /// Modules after pooling, in order.
    pub then: Vec<SentenceModule>,
    /// Number of leading elements to keep, with renormalization (Kusupati et al., "Matryoshka
    /// representation learning", 2022).
    pub dims: Option<usize>,
}

impl SentenceModules {
    /// One pooling mode followed by L2 normalization.
    pub fn normalized(mode: PoolingMode) -> SentenceModules {
        SentenceModules {
            modes: vec![mode],
            include_prompt: true,
            then: vec![SentenceModule::Normalize],
            dims: None,
        }
    }

    /// Elements of an embedding for hidden states of this width.
    pub fn width(&self, hidden: usize) -> usize {
        let pooled = hidden * self.modes.len();
        let last = self.then.iter().rev().find_map(|module| match module {
            SentenceModule::Dense(dense) => dense.weight.shape().first().copied(),
            SentenceModule::Truncate(dims) => Some(*dims),
            SentenceModule::Normalize => None,
        });
        self.dims.unwrap_or(last.unwrap_or(pooled))
    }
}

/// Conversion of logits to scores.
///
/// ```
/// use tercet_networks::Scoring;
/// let mut logits = [0.0, 0.0];
/// Scoring::Softmax.apply(&mut logits);
/// assert_eq!(logits, [0.5, 0.5]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scoring {
    /// Softmax probabilities that sum to 1, for exactly one class per text.
    Softmax,
    /// Sigmoid probability of each class, for any number of classes per text.
    Sigmoid,
    /// The logits themselves.
    Raw,
}

impl Scoring {
    /// Converts logits to scores in place.
    pub fn apply(self, logits: &mut [f32]) {
        match self {
            Scoring::Raw => {}
            Scoring::Sigmoid => logits
                .iter_mut()
                .for_each(|x| *x = 1.0 / (1.0 + (-*x).exp())),
            Scoring::Softmax => {
                let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                logits.iter_mut().for_each(|x| *x = (*x - most).exp());
                let sum: f32 = logits.iter().sum();
                logits.iter_mut().for_each(|x| *x /= sum);
            }
        }
    }
}

/// Class names and scoring of an image classifier.
///
/// ```
/// use tercet_networks::{ImageLabels, Scoring};
/// let labels = vec!["cat".to_string(), "dog".to_string()];
/// let labels = ImageLabels { labels, scoring: Scoring::Softmax };
/// assert_eq!(labels.labels[1], "dog");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageLabels {
    /// Class names, in order.
    pub labels: Vec<String>,
    /// Conversion of logits to scores.
    pub scoring: Scoring,
}

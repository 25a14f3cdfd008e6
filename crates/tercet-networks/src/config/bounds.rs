//! Comparison of the counts and sizes of a configuration with the tensors of the model.
//!
//! A configuration is a few hundred bytes that anybody can edit. Readers allocate names, tables and
//! layers for the counts of a configuration only after this comparison, so memory stays in
//! proportion to the model's files.

use super::{ConfigError, DecoderSpec, EncoderSpec, Seq2SeqSpec};
use super::{MoonshineSpec, PositionEncoding, SpeechSpec, StagesKind, TokenTypes};
use super::{VisionBody, VisionLanguageSpec, VisionSpec};
use crate::config::decoder::{DecoderPart, EXPERT};
use tercet_files::folder_weights::HfWeights;
use tercet_files::gguf::Gguf;
use tercet_files::safetensors::SafeDtype;

/// Maximum number of layers; the deepest published models have a few hundred.
pub(crate) const MAX_LAYERS: usize = 4096;

/// Maximum context of an encoder whose positions are not rows of a tensor, in tokens.
pub(crate) const MAX_ROTARY_CONTEXT: usize = 1 << 20;

/// Maximum number of values that an element of an integer tensor packs, two bits each.
const VALUES_PER_WORD: usize = 16;

/// The number of tensors of a model and their largest sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TensorBounds {
    /// Number of tensors.
    count: usize,
    /// Length of the longest axis, in values.
    longest_axis: usize,
    /// Number of values of the largest tensor.
    most_values: usize,
    /// Whether the file is a GGUF file, in which one tensor has the matrices of all experts.
    is_gguf: bool,
}

impl TensorBounds {
    /// The bounds of a folder's weights. Integer tensors may pack several values per element.
    pub(crate) fn from_folder(weights: &HfWeights) -> TensorBounds {
        let sizes = weights.tensors().map(|(_, info)| {
            let packed = match info.dtype() {
                SafeDtype::F64 | SafeDtype::F32 | SafeDtype::F16 | SafeDtype::BF16 => 1,
                _ => VALUES_PER_WORD,
            };
            (info.shape().to_vec(), packed)
        });
        TensorBounds::from_shapes(sizes, false)
    }

    /// The bounds of a GGUF file's tensors.
    pub(crate) fn from_gguf(gguf: &Gguf) -> TensorBounds {
        let shapes = gguf.tensors().iter().map(|info| (info.shape(), 1));
        TensorBounds::from_shapes(shapes, true)
    }

    fn from_shapes(
        shapes: impl Iterator<Item = (Vec<usize>, usize)>,
        is_gguf: bool,
    ) -> TensorBounds {
        let none = TensorBounds {
            count: 0,
            longest_axis: 0,
            most_values: 0,
            is_gguf,
        };
        shapes.fold(none, |all, (shape, packed)| {
            let axis = shape.iter().copied().max().unwrap_or(1);
            let values = shape.iter().fold(packed, |n, len| n.saturating_mul(*len));
            TensorBounds {
                count: all.count + 1,
                longest_axis: all.longest_axis.max(axis.saturating_mul(packed)),
                most_values: all.most_values.max(values),
                is_gguf,
            }
        })
    }

    /// Checks a number of layers, experts or other parts that have at least one tensor each.
    pub(crate) fn parts(&self, what: &'static str, claimed: usize) -> Result<(), ConfigError> {
        self.compare(what, claimed, self.count, "tensors")
    }

    /// Checks a size that is the length of an axis of a tensor.
    pub(crate) fn axis(&self, what: &'static str, claimed: usize) -> Result<(), ConfigError> {
        self.compare(
            what,
            claimed,
            self.longest_axis,
            "elements along the longest axis of a tensor",
        )
    }

    /// Checks a product of sizes that are axes of one tensor.
    fn values(&self, what: &'static str, sizes: &[usize]) -> Result<(), ConfigError> {
        let claimed = sizes.iter().fold(1usize, |n, size| n.saturating_mul(*size));
        self.compare(
            what,
            claimed,
            self.most_values,
            "elements in the largest tensor",
        )
    }

    fn compare(
        &self,
        what: &'static str,
        claimed: usize,
        found: usize,
        unit: &'static str,
    ) -> Result<(), ConfigError> {
        match claimed <= found {
            true => Ok(()),
            false => Err(ConfigError::BeyondTensors {
                what,
                claimed,
                found,
                unit,
            }),
        }
    }

    fn axes(&self, sizes: &[(&'static str, usize)]) -> Result<(), ConfigError> {
        let mut sizes = sizes.iter();
        sizes.try_for_each(|(what, claimed)| self.axis(what, *claimed))
    }
}

/// Checks a number of layers before any is made.
pub(crate) fn checked_layers(field: &'static str, layers: usize) -> Result<usize, ConfigError> {
    match layers <= MAX_LAYERS {
        true => Ok(layers),
        false => Err(ConfigError::WrongType {
            field: field.to_string(),
            expected: "at most 4096 layers",
            found: layers.to_string(),
        }),
    }
}

impl DecoderSpec {
    /// Compares the counts and sizes with the model's tensors.
    ///
    /// # Errors
    /// [`ConfigError::BeyondTensors`].
    pub(crate) fn check_bounds(&self, bounds: &TensorBounds) -> Result<(), ConfigError> {
        bounds.parts("layers", self.layers.len())?;
        bounds.axes(&[
            ("elements of hidden states", self.hidden),
            ("tokens in the vocabulary", self.vocab),
        ])?;
        if self.layers.iter().any(|layer| layer.mixer.attends()) {
            let width = |heads: usize| heads.saturating_mul(self.head_dim);
            bounds.axis("elements in the queries of all heads", width(self.heads))?;
            bounds.axis("elements in the keys of all heads", width(self.kv_heads))?;
            if let Some(latent) = self.attention.latent {
                bounds.axes(&[
                    (
                        "elements of latent queries",
                        latent.query_rank.unwrap_or_default(),
                    ),
                    ("elements of latent keys", latent.rank),
                    (
                        "elements in the values of all heads",
                        self.heads.saturating_mul(latent.value_dim),
                    ),
                ])?;
            }
        }
        let dense = |layer: &super::LayerSpec| layer.feed_forward && !layer.experts;
        if self.layers.iter().any(dense) {
            bounds.axis("elements in the feed-forward network", self.ffn)?;
        }
        if self.has_learned_positions() {
            bounds.axis("positions", self.context)?;
        }
        self.check_experts(bounds)?;
        let Some(states) = self.states.filter(|_| self.has_states()) else {
            return Ok(());
        };
        bounds.axes(&[
            ("channels of the scan", states.inner),
            ("states of the scan", states.states),
            ("positions of the scan's convolution", states.kernel),
            ("heads of the scan", states.heads()),
            ("elements of the scan's step sizes", states.rank()),
        ])?;
        bounds.axis("channels of the scan's projection", states.projected())
    }

    fn check_experts(&self, bounds: &TensorBounds) -> Result<(), ConfigError> {
        let sparse = self.layers.iter().filter(|layer| layer.experts).count();
        let Some(experts) = self.experts.filter(|_| sparse > 0) else {
            return Ok(());
        };
        bounds.axes(&[
            ("experts", experts.count),
            ("elements in an expert", experts.ffn),
            (
                "elements of the experts' inputs",
                experts.latent.unwrap_or_default(),
            ),
            (
                "elements in the shared expert",
                experts.shared.map_or(0, |shared| shared.ffn),
            ),
        ])?;
        let name = DecoderPart::ExpertDown.module(self, 0);
        match !bounds.is_gguf && name.contains(EXPERT) {
            true => bounds.parts(
                "experts in all layers",
                sparse.saturating_mul(experts.count),
            ),
            false => Ok(()),
        }
    }
}

impl EncoderSpec {
    /// Compares the counts and sizes with the model's tensors.
    ///
    /// # Errors
    /// [`ConfigError::BeyondTensors`]; [`ConfigError::Inconsistent`] for a context that no tensor
    /// bounds.
    pub(crate) fn check_bounds(&self, bounds: &TensorBounds) -> Result<(), ConfigError> {
        bounds.parts("layers", self.layers.len())?;
        bounds.axes(&[
            ("elements of hidden states", self.hidden),
            ("elements of embeddings", self.embedding),
            (
                "elements in the queries of all heads",
                self.heads.saturating_mul(self.head_dim),
            ),
            ("elements in the feed-forward network", self.ffn),
            ("tokens in the vocabulary", self.vocab),
        ])?;
        match self.token_types {
            TokenTypes::None => {}
            TokenTypes::First { rows } | TokenTypes::BySegment { rows } => {
                bounds.axis("token types", rows)?;
            }
        }
        if let Some(terms) = self.relative_position_bias {
            bounds.axis("buckets of distances", terms.buckets)?;
        }
        if let Some(patches) = self.patches {
            let [rows, columns] = patches.patch;
            bounds.values("values in a patch", &[rows, columns, patches.channels])?;
            return bounds.axis("positions", self.context);
        }
        match self.positions {
            PositionEncoding::Learned { rows } | PositionEncoding::AfterPadding { rows } => {
                bounds.axis("positions", rows)
            }
            PositionEncoding::Rotary | PositionEncoding::Distances => {
                super::ensure(self.context <= MAX_ROTARY_CONTEXT, || {
                    format!(
                        "the model has {} positions; an encoder has at most {MAX_ROTARY_CONTEXT}",
                        self.context
                    )
                })
            }
        }
    }
}

impl Seq2SeqSpec {
    /// Compares the counts and sizes with the model's tensors.
    pub(crate) fn check_bounds(&self, bounds: &TensorBounds) -> Result<(), ConfigError> {
        self.encoder.check_bounds(bounds)?;
        bounds.parts("decoder layers", self.decoder_layers)
    }
}

impl SpeechSpec {
    /// Compares the counts and sizes with the model's tensors.
    pub(crate) fn check_bounds(&self, bounds: &TensorBounds) -> Result<(), ConfigError> {
        bounds.parts("encoder layers", self.encoder_layers)?;
        bounds.parts("decoder layers", self.decoder_layers)?;
        bounds.axes(&[
            ("elements of hidden states", self.width),
            ("mel bands", self.mels),
            (
                "elements in the encoder's feed-forward network",
                self.encoder_ffn,
            ),
            (
                "elements in the decoder's feed-forward network",
                self.decoder_ffn,
            ),
            ("tokens in the vocabulary", self.vocab),
            ("positions of sound", self.audio_positions),
            ("positions of text", self.text_positions),
        ])
    }
}

impl MoonshineSpec {
    /// Compares the counts and sizes with the model's tensors.
    pub(crate) fn check_bounds(&self, bounds: &TensorBounds) -> Result<(), ConfigError> {
        bounds.parts("encoder layers", self.encoder_layers)?;
        bounds.parts("decoder layers", self.decoder_layers)?;
        bounds.axes(&[
            ("elements of hidden states", self.width),
            ("elements in the feed-forward network", self.ffn),
            ("tokens in the vocabulary", self.vocab),
        ])
    }
}

impl VisionSpec {
    /// Compares the counts and sizes with the model's tensors.
    pub(crate) fn check_bounds(&self, bounds: &TensorBounds) -> Result<(), ConfigError> {
        match &self.body {
            VisionBody::Tower {
                spec, projection, ..
            } => {
                spec.check_bounds(bounds)?;
                bounds.axis(
                    "elements of an image vector",
                    projection.unwrap_or_default(),
                )?;
            }
            VisionBody::Stages(stages) => {
                let layers = stages
                    .depths
                    .iter()
                    .fold(0usize, |n, of| n.saturating_add(*of));
                bounds.parts("layers", layers)?;
                for channels in &stages.channels {
                    bounds.axis("channels of a stage", *channels)?;
                }
                match stages.kind {
                    StagesKind::Residual { stem, .. } => {
                        bounds.axis("channels of the stem", stem)?
                    }
                    StagesKind::ConvNext { patch, .. } => {
                        bounds.axis("pixels of a patch", patch)?
                    }
                }
            }
        }
        match &self.text {
            Some(tower) => {
                tower.spec.check_bounds(bounds)?;
                bounds.axis("elements of a text vector", tower.width)
            }
            None => Ok(()),
        }
    }
}

impl VisionLanguageSpec {
    /// Compares the counts and sizes with the model's tensors.
    pub(crate) fn check_bounds(&self, bounds: &TensorBounds) -> Result<(), ConfigError> {
        self.tower.check_bounds(bounds)?;
        self.decoder.check_bounds(bounds)
    }
}

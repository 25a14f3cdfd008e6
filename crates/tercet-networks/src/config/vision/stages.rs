//! Convolutional stages: ResNet (He and others, "Deep residual learning", 2015) and ConvNeXt (Liu
//! and others, "A ConvNet for the 2020s", 2022).

use serde_json::Value;

use super::super::activation;
use super::super::fields::HARMLESS;
use super::super::{ConfigError, ConfigFields, FfnActivation, ensure};
use crate::weights::Weights;

/// The structure of a ResNet layer.
///
/// ```
/// use tercet_networks::config::{ResidualLayer, StagesKind};
/// let layer = ResidualLayer::Bottleneck { shrinks_first: false };
/// let kind = StagesKind::Residual { stem: 64, layer, shrinks_at_once: false };
/// assert!(matches!(kind, StagesKind::Residual { layer: ResidualLayer::Bottleneck { .. }, .. }));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ResidualLayer {
    /// Two 3 x 3 convolutions.
    Basic,
    /// A 3 x 3 convolution between two 1 x 1 convolutions, with a quarter of the channels.
    Bottleneck {
        /// Whether the first 1 x 1 convolution has the stride; otherwise the 3 x 3 convolution.
        shrinks_first: bool,
    },
}

/// The model family of the stages.
///
/// ```
/// use tercet_networks::config::StagesKind;
/// let kind = StagesKind::ConvNext { patch: 4, layer_scale: true };
/// assert!(matches!(kind, StagesKind::ConvNext { patch: 4, .. }));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StagesKind {
    /// ResNet.
    Residual {
        /// Number of channels before the first stage.
        stem: usize,
        /// The structure of a layer.
        layer: ResidualLayer,
        /// Whether the first stage halves the resolution, as all later stages do.
        shrinks_at_once: bool,
    },
    /// ConvNeXt.
    ConvNext {
        /// Side of a patch, in pixels; a patch is one position of the first stage's input.
        patch: usize,
        /// Whether layers have a LayerScale vector.
        layer_scale: bool,
    },
}

/// A convolutional model in stages. All layers of a stage have the same number of channels.
///
/// ```
/// use tercet_networks::FfnActivation;
/// use tercet_networks::config::{StagesKind, StagesSpec};
/// let spec = StagesSpec {
///     channels: vec![96, 192, 384, 768], depths: vec![3, 3, 9, 3], eps: 1e-12,
///     activation: FfnActivation::Gelu, kind: StagesKind::ConvNext { patch: 4, layer_scale: true },
/// };
/// assert_eq!(spec.width(), 768);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct StagesSpec {
    /// Number of channels of each stage.
    pub channels: Vec<usize>,
    /// Number of layers of each stage.
    pub depths: Vec<usize>,
    /// The activation.
    pub activation: FfnActivation,
    /// The epsilon of the last norm; the other norms use constants.
    pub eps: f32,
    /// The structure of the layers.
    pub kind: StagesKind,
}

impl StagesSpec {
    /// Length of an image vector: the number of channels of the last stage.
    pub fn width(&self) -> usize {
        self.channels.last().copied().unwrap_or(0)
    }

    /// The prefix of the file's tensor names: `prefix` if the file has a classifier, else empty.
    pub(crate) fn prefix(&self, prefix: &'static str, weights: &Weights) -> &'static str {
        let first = match self.kind {
            StagesKind::Residual { .. } => "embedder.embedder.convolution.weight",
            StagesKind::ConvNext { .. } => "embeddings.patch_embeddings.weight",
        };
        match weights.has(&format!("{prefix}{first}")) {
            true => prefix,
            false => "",
        }
    }

    /// The stride of a ResNet stage's first layer, and whether its residual connection has a
    /// projection convolution.
    pub(crate) fn first_of(&self, stage: usize) -> (usize, bool) {
        let before = match (stage.checked_sub(1), self.kind) {
            (Some(before), _) => self.channels[before],
            (None, StagesKind::Residual { stem, .. }) => stem,
            (None, StagesKind::ConvNext { .. }) => self.channels[0],
        };
        let shrinks = match self.kind {
            StagesKind::Residual {
                shrinks_at_once, ..
            } => stage > 0 || shrinks_at_once,
            StagesKind::ConvNext { .. } => stage > 0,
        };
        let stride = if shrinks { 2 } else { 1 };
        (stride, shrinks || before != self.channels[stage])
    }

    /// The names of all tensors except those of a classifier, without prefix. Batch counters of
    /// batch norms are excluded.
    pub(crate) fn tensors(&self) -> Vec<String> {
        let mut names = Vec::new();
        match self.kind {
            StagesKind::Residual { layer, .. } => {
                let mut add = |name: String| {
                    names.push(format!("{name}.convolution.weight"));
                    let norm = ["weight", "bias", "running_mean", "running_var"];
                    names.extend(norm.map(|of| format!("{name}.normalization.{of}")));
                };
                add("embedder.embedder".to_string());
                let each = match layer {
                    ResidualLayer::Basic => 2,
                    ResidualLayer::Bottleneck { .. } => 3,
                };
                for (stage, depth) in self.depths.iter().enumerate() {
                    for at in 0..*depth {
                        let layer = format!("encoder.stages.{stage}.layers.{at}");
                        if at == 0 && self.first_of(stage).1 {
                            add(format!("{layer}.shortcut"));
                        }
                        (0..each).for_each(|i| add(format!("{layer}.layer.{i}")));
                    }
                }
            }
            StagesKind::ConvNext { layer_scale, .. } => {
                let mut add = |name: String| {
                    names.extend(["weight", "bias"].map(|of| format!("{name}.{of}")));
                };
                add("embeddings.patch_embeddings".to_string());
                add("embeddings.layernorm".to_string());
                add("layernorm".to_string());
                let mut scales = Vec::new();
                for (stage, depth) in self.depths.iter().enumerate() {
                    let stage_name = format!("encoder.stages.{stage}");
                    if stage > 0 {
                        (0..2).for_each(|i| add(format!("{stage_name}.downsampling_layer.{i}")));
                    }
                    for at in 0..*depth {
                        let layer = format!("{stage_name}.layers.{at}");
                        for part in ["dwconv", "layernorm", "pwconv1", "pwconv2"] {
                            add(format!("{layer}.{part}"));
                        }
                        scales.push(format!("{layer}.layer_scale_parameter"));
                    }
                }
                if layer_scale {
                    names.extend(scales);
                }
            }
        }
        names
    }

    /// Minimum image side, in pixels, for which every stage has at least one position.
    pub(crate) fn min_side(&self) -> usize {
        match self.kind {
            StagesKind::Residual { .. } => 1,
            StagesKind::ConvNext { patch, .. } => {
                let halved = u32::try_from(self.channels.len().saturating_sub(1)).unwrap_or(31);
                patch.saturating_mul(1 << halved.min(31))
            }
        }
    }
}

/// Maximum number of stages, and of layers per stage.
const MAX_STAGES: usize = 1024;

fn sizes(fields: &ConfigFields<'_>, name: &'static str) -> Result<Vec<usize>, ConfigError> {
    let mut found = None;
    let size = |v: &Value| v.as_u64().filter(|n| (1..1 << 20).contains(n));
    let supported = "a list of sizes, one for each of at most 1024 stages";
    fields.only(name, supported, |v| {
        let all = v
            .as_array()
            .filter(|all| (1..=MAX_STAGES).contains(&all.len()));
        found = all.and_then(|all| all.iter().map(|v| Some(size(v)? as usize)).collect());
        found.is_some()
    })?;
    fields.required(name, found)
}

/// Fields about training, and about backbones, which select other stages than the last.
const WITHOUT_INFLUENCE: &[&str] = &[
    "drop_path_rate",
    "image_size",
    "out_features",
    "out_indices",
    "stage_names",
];

fn common(fields: &ConfigFields<'_>, kind: StagesKind) -> Result<StagesSpec, ConfigError> {
    fields.only("num_channels", "3", |v| v.as_u64() == Some(3))?;
    let channels = sizes(fields, "hidden_sizes")?;
    let depths = sizes(fields, "depths")?;
    ensure(channels.len() == depths.len(), || {
        format!(
            "{} hidden_sizes, but {} depths",
            channels.len(),
            depths.len()
        )
    })?;
    ensure(depths.iter().all(|depth| *depth <= MAX_STAGES), || {
        format!("a stage has more than {MAX_STAGES} layers")
    })?;
    let found = activation::read(fields, "hidden_act")?;
    Ok(StagesSpec {
        channels,
        depths,
        activation: fields.required("hidden_act", found)?,
        eps: 0.0,
        kind,
    })
}

pub(super) fn resnet(fields: &ConfigFields<'_>) -> Result<StagesSpec, ConfigError> {
    let flag = |name| Ok::<_, ConfigError>(fields.opt_bool(name)?.unwrap_or(false));
    let shrinks_first = flag("downsample_in_bottleneck")?;
    let mut layer = ResidualLayer::Bottleneck { shrinks_first };
    fields.only("layer_type", "\"basic\" or \"bottleneck\"", |v| {
        if v.as_str() == Some("basic") {
            layer = ResidualLayer::Basic;
        }
        matches!(v.as_str(), Some("basic" | "bottleneck"))
    })?;
    let kind = StagesKind::Residual {
        stem: fields.size("embedding_size")?,
        layer,
        shrinks_at_once: flag("downsample_in_first_stage")?,
    };
    let spec = common(fields, kind)?;
    if let ResidualLayer::Bottleneck { .. } = layer {
        ensure(spec.channels.iter().all(|n| *n >= 4), || {
            "a bottleneck has fewer than 4 channels".to_string()
        })?;
    }
    fields.finish(&[HARMLESS, WITHOUT_INFLUENCE])?;
    Ok(spec)
}

pub(super) fn convnext(fields: &ConfigFields<'_>) -> Result<StagesSpec, ConfigError> {
    let mut scale = Some(1e-6);
    fields.only("layer_scale_init_value", "a number", |v| {
        scale = v.as_f64();
        scale.is_some()
    })?;
    let kind = StagesKind::ConvNext {
        patch: fields.opt_size("patch_size")?.unwrap_or(4),
        layer_scale: scale.is_some_and(|scale| scale > 0.0),
    };
    let mut spec = common(fields, kind)?;
    spec.eps = fields.opt_positive("layer_norm_eps")?.unwrap_or(1e-12) as f32;
    let count = spec.channels.len() as u64;
    let supported = format!("{count}, the number of hidden_sizes");
    fields.only("num_stages", &supported, |v| v.as_u64() == Some(count))?;
    fields.finish(&[HARMLESS, WITHOUT_INFLUENCE])?;
    Ok(spec)
}

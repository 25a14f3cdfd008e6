//! Vision models: image encoders, with or without a text tower. The image encoder is a transformer
//! tower (an [`EncoderSpec`] over patches) or convolutional stages.

mod stages;
mod tensors;

use serde_json::{Map, Value};

use super::encoder::read_tower;
use super::fields::HARMLESS;
use super::{ConfigError, ConfigFields, EncoderSpec, ensure, near};
pub use stages::{ResidualLayer, StagesKind, StagesSpec};

/// The model families of vision models.
///
/// ```
/// # let json = r#"{"model_type": "vit", "hidden_size": 192, "num_hidden_layers": 12,
/// #     "num_attention_heads": 3, "intermediate_size": 768, "image_size": 224, "patch_size": 16,
/// #     "hidden_act": "gelu"}"#;
/// # let json = serde_json::from_str(json)?;
/// use tercet_networks::{VisionFamily, VisionSpec};
/// assert_eq!(VisionSpec::from_json(&json)?.family, VisionFamily::Vit);
/// assert_eq!(VisionFamily::Dinov2.model_type(), "dinov2");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum VisionFamily {
    /// ViT (Dosovitskiy and others, 2020).
    Vit,
    /// DINOv2 (Oquab and others, 2023).
    Dinov2,
    /// CLIP (Radford and others, 2021), with a text tower.
    Clip,
    /// SigLIP (Zhai and others, 2023) and SigLIP 2 with a fixed image size, with a text tower.
    Siglip,
    /// ResNet (He and others, 2015).
    Resnet,
    /// ConvNeXt (Liu and others, 2022).
    Convnext,
}

impl VisionFamily {
    const ALL: [(VisionFamily, &'static str); 6] = [
        (VisionFamily::Vit, "vit"),
        (VisionFamily::Dinov2, "dinov2"),
        (VisionFamily::Clip, "clip"),
        (VisionFamily::Siglip, "siglip"),
        (VisionFamily::Resnet, "resnet"),
        (VisionFamily::Convnext, "convnext"),
    ];

    /// The `model_type` of the family's folders.
    pub fn model_type(self) -> &'static str {
        let own = VisionFamily::ALL.iter().find(|(family, _)| *family == self);
        own.expect("invariant: the table has all families").1
    }

    /// The prefix of tensor names in checkpoints with a classifier.
    pub(crate) fn prefix(self) -> &'static str {
        match self {
            VisionFamily::Vit => "vit.",
            VisionFamily::Dinov2 => "dinov2.",
            VisionFamily::Clip | VisionFamily::Siglip => "",
            VisionFamily::Resnet => "resnet.",
            VisionFamily::Convnext => "convnext.",
        }
    }

    /// The name of the classification layer, without `.weight`.
    #[must_use]
    pub fn classifier(self) -> &'static str {
        match self {
            VisionFamily::Resnet => "classifier.1",
            _ => "classifier",
        }
    }
}

/// The family with this `model_type`.
#[must_use]
pub fn for_model_type(name: &str) -> Option<VisionFamily> {
    let mut all = VisionFamily::ALL.iter();
    all.find_map(|(family, own)| (*own == name).then_some(*family))
}

/// The supported values of `model_type`.
pub(crate) fn model_types() -> Vec<&'static str> {
    VisionFamily::ALL.map(|(_, name)| name).to_vec()
}

/// The pooling of a vision tower's states into an image vector.
///
/// ```
/// # let json = r#"{"model_type": "vit", "hidden_size": 192, "num_hidden_layers": 12,
/// #     "num_attention_heads": 3, "intermediate_size": 768, "image_size": 224, "patch_size": 16,
/// #     "hidden_act": "gelu"}"#;
/// # let json = serde_json::from_str(json)?;
/// use tercet_networks::{VisionSpec, config::{ImagePooling, VisionBody}};
/// let body = VisionSpec::from_json(&json)?.body;
/// assert!(matches!(body, VisionBody::Tower { pooling: ImagePooling::ClassToken, .. }));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ImagePooling {
    /// The state of the class token.
    ClassToken,
    /// Attention of a learned query over all states, followed by a feed-forward network (SigLIP).
    Attention,
}

/// The pooling of a text tower's states into a text vector.
///
/// ```
/// use tercet_networks::config::TextPooling;
/// let (end, pad) = (49_407, 1);
/// assert_ne!(TextPooling::First(end), TextPooling::First(pad));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TextPooling {
    /// The state of the first token with the greatest token id, which is the end token.
    Greatest,
    /// The state at the first occurrence of this end token.
    First(u32),
    /// The last state, including padding. All texts are padded to the maximum length.
    Last,
}

/// The text tower of a vision model.
///
/// ```
/// # let dims = tercet_networks::EncoderDims {
/// #     hidden: 32, layers: 1, heads: 2, ffn: 64, vocab: 16, context: 32,
/// # };
/// use tercet_networks::{EncoderSpec, config::{TextPooling, TextTower}};
/// let spec = EncoderSpec::bert(dims);
/// let tower = TextTower { spec, pooling: TextPooling::Last, width: 512 };
/// assert_eq!(tower.spec.hidden, dims.hidden);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct TextTower {
    /// The encoder of the text tower.
    pub spec: EncoderSpec,
    /// The pooling of token states into a text vector.
    pub pooling: TextPooling,
    /// Length of a text vector, the output width of the projection.
    pub width: usize,
}

/// The image encoder of a vision model.
///
/// ```
/// # let json = r#"{"model_type": "vit", "hidden_size": 192, "num_hidden_layers": 12,
/// #     "num_attention_heads": 3, "intermediate_size": 768, "image_size": 224, "patch_size": 16,
/// #     "hidden_act": "gelu"}"#;
/// # let json = serde_json::from_str(json)?;
/// use tercet_networks::{VisionSpec, config::VisionBody};
/// let body = VisionSpec::from_json(&json)?.body;
/// assert!(matches!(body, VisionBody::Tower { projection: None, .. }));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "a model has one of it")]
pub enum VisionBody {
    /// A transformer over patches.
    Tower {
        /// The specification of the layers and patches.
        spec: EncoderSpec,
        /// The pooling of states into an image vector.
        pooling: ImagePooling,
        /// Length of an image vector if a projection produces it; `None` for the width of the
        /// layers.
        projection: Option<usize>,
    },
    /// Convolutional stages.
    Stages(StagesSpec),
}

/// The specification of a vision model: everything that its weights do not determine.
///
/// ```
/// use tercet_networks::VisionSpec;
///
/// let json = r#"{"model_type": "vit", "hidden_size": 192, "num_hidden_layers": 12, "num_attention_heads": 3,
///     "intermediate_size": 768, "image_size": 224, "patch_size": 16, "hidden_act": "gelu"}"#;
/// let mut json = serde_json::from_str(json)?;
/// assert_eq!(VisionSpec::from_json(&json)?.width(), 192);
///
/// json.insert("hidden_act".into(), "mish".into());
/// let refused = VisionSpec::from_json(&json).unwrap_err().to_string();
/// assert!(refused.contains("`hidden_act`"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct VisionSpec {
    /// The model family.
    pub family: VisionFamily,
    /// The image encoder.
    pub body: VisionBody,
    /// The text tower, if there is one.
    pub text: Option<TextTower>,
}

impl VisionSpec {
    /// Reads a Hugging Face `config.json` of a vision family.
    ///
    /// # Errors
    /// [`ConfigError`]: a field is missing, wrong, unsupported, or unknown.
    pub fn from_json(json: &Map<String, Value>) -> Result<VisionSpec, ConfigError> {
        let fields = ConfigFields::new(json, "");
        let model_type = fields.required("model_type", fields.opt_str("model_type")?)?;
        let found = for_model_type(model_type);
        fields.only("model_type", &near(model_type, model_types()), |_| {
            found.is_some()
        })?;
        // An unsupported `model_type` is already an error above.
        let family = found.unwrap_or(VisionFamily::Vit);
        let fields = fields.of_class(model_type);
        fields.only("quantization_config", "an unquantised checkpoint", |_| {
            false
        })?;
        let tower = |model_type| -> Result<VisionBody, ConfigError> {
            let spec = read_tower(json, "", model_type)?;
            Ok(VisionBody::Tower {
                spec,
                pooling: ImagePooling::ClassToken,
                projection: None,
            })
        };
        let body = match family {
            VisionFamily::Vit => tower("vit")?,
            VisionFamily::Dinov2 => tower("dinov2")?,
            VisionFamily::Clip => return clip(&fields),
            VisionFamily::Siglip => return siglip(&fields),
            VisionFamily::Resnet => VisionBody::Stages(stages::resnet(&fields)?),
            VisionFamily::Convnext => VisionBody::Stages(stages::convnext(&fields)?),
        };
        Ok(VisionSpec {
            family,
            body,
            text: None,
        })
    }

    /// Length of an image vector.
    pub fn width(&self) -> usize {
        match &self.body {
            VisionBody::Tower {
                spec, projection, ..
            } => projection.unwrap_or(spec.hidden),
            VisionBody::Stages(stages) => stages.width(),
        }
    }
}

/// Fields of two-tower models that do not affect the computed features.
const OF_TWO: &[&str] = &[
    "initializer_factor",
    "logit_scale_init_value",
    "tie_word_embeddings",
];

/// Reads a tower's configuration. Older files have a second copy of the object in the field
/// `twice`, which takes precedence in the reference implementation, so both must agree.
fn part(
    fields: &ConfigFields<'_>,
    [name, twice]: [&'static str; 2],
) -> Result<Map<String, Value>, ConfigError> {
    let own = fields.opt_object(name)?.cloned().unwrap_or_default();
    if let Some(second) = fields.opt_object(twice)? {
        for (key, value) in second {
            ensure(own.get(key) == Some(value), || {
                format!("`{twice}` and `{name}` differ in `{key}`")
            })?;
        }
    }
    Ok(own)
}

fn clip(fields: &ConfigFields<'_>) -> Result<VisionSpec, ConfigError> {
    let text = part(fields, ["text_config", "text_config_dict"])?;
    let vision = part(fields, ["vision_config", "vision_config_dict"])?;
    let width = fields.opt_size("projection_dim")?.unwrap_or(512);
    fields.finish(&[HARMLESS, OF_TWO])?;
    let eos = ConfigFields::new(&text, "text_config.").opt_token("eos_token_id")?;
    let pooling = match eos {
        // CLIP's first files have 2 as `eos_token_id`, although the end token has another id.
        Some(2) => TextPooling::Greatest,
        other => TextPooling::First(other.unwrap_or(49407)),
    };
    let tower = TextTower {
        spec: read_tower(&text, "text_config.", "clip_text_model")?,
        pooling,
        width,
    };
    Ok(VisionSpec {
        family: VisionFamily::Clip,
        body: VisionBody::Tower {
            spec: read_tower(&vision, "vision_config.", "clip_vision_model")?,
            pooling: ImagePooling::ClassToken,
            projection: Some(width),
        },
        text: Some(tower),
    })
}

fn siglip(fields: &ConfigFields<'_>) -> Result<VisionSpec, ConfigError> {
    let text = part(fields, ["text_config", "text_config_dict"])?;
    let vision = part(fields, ["vision_config", "vision_config_dict"])?;
    fields.finish(&[HARMLESS, OF_TWO])?;
    let spec = read_tower(&text, "text_config.", "siglip_text_model")?;
    let width = ConfigFields::new(&text, "text_config.").opt_size("projection_size")?;
    let width = width.unwrap_or(spec.hidden);
    let vision = read_tower(&vision, "vision_config.", "siglip_vision_model")?;
    ensure(width == vision.hidden, || {
        let own = vision.hidden;
        format!("text vectors have {width} elements, but image vectors {own}")
    })?;
    Ok(VisionSpec {
        family: VisionFamily::Siglip,
        body: VisionBody::Tower {
            spec: vision,
            pooling: ImagePooling::Attention,
            projection: None,
        },
        text: Some(TextTower {
            spec,
            pooling: TextPooling::Last,
            width,
        }),
    })
}

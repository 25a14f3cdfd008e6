//! Models of pictures: a transformer's tower, which is an [`EncoderSpec`] of patches, or stages of convolutions; with
//! a tower of texts beside it, or without.

mod stages;
mod tensors;

use serde_json::{Map, Value};

use super::encoder::read_tower;
use super::fields::HARMLESS;
use super::{ConfigError, EncoderSpec, Fields, ensure};
pub use stages::{ResidualLayer, StagesKind, StagesSpec};

/// The families of models of pictures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum VisionFamily {
    /// ViT (Dosovitskiy and others, 2020).
    Vit,
    /// DINOv2 (Oquab and others, 2023).
    Dinov2,
    /// CLIP (Radford and others, 2021), with texts.
    Clip,
    /// SigLIP (Zhai and others, 2023), and SigLIP 2 of one size of pictures, with texts.
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

    /// The `model_type` of its folders.
    pub fn model_type(self) -> &'static str {
        let own = VisionFamily::ALL.iter().find(|(family, _)| *family == self);
        own.expect("invariant: the table has all families").1
    }

    /// What tensors begin with in checkpoints with a classifier.
    pub(crate) fn prefix(self) -> &'static str {
        match self {
            VisionFamily::Vit => "vit.",
            VisionFamily::Dinov2 => "dinov2.",
            VisionFamily::Clip | VisionFamily::Siglip => "",
            VisionFamily::Resnet => "resnet.",
            VisionFamily::Convnext => "convnext.",
        }
    }

    /// The layer that tells classes, without `.weight`.
    pub(crate) fn classifier(self) -> &'static str {
        match self {
            VisionFamily::Resnet => "classifier.1",
            _ => "classifier",
        }
    }
}

/// The family that a folder's configuration names.
pub(crate) fn of_model_type(name: &str) -> Option<VisionFamily> {
    let mut all = VisionFamily::ALL.iter();
    all.find_map(|(family, own)| (*own == name).then_some(*family))
}

/// What folders may name.
pub(crate) fn model_types() -> String {
    VisionFamily::ALL.map(|(_, name)| name).join(", ")
}

/// What of a tower's states stands for the picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PicturePooling {
    /// That of the class token.
    ClassToken,
    /// What a learned query attends to, through a feed-forward network (SigLIP).
    Attention,
}

/// What of a text's states stands for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TextPooling {
    /// That of the first token of the greatest number, which ends texts.
    Greatest,
    /// That of the first of these tokens, which end texts.
    First(u32),
    /// That of the last one, padding included: all texts are filled up to the longest.
    Last,
}

/// The texts' side of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct TextTower {
    /// Its layers.
    pub spec: EncoderSpec,
    /// What stands for a text.
    pub pooling: TextPooling,
    /// Elements of a vector, which a projection gives.
    pub width: usize,
}

/// What computes a picture's features.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "a model has one of it")]
pub enum VisionBody {
    /// A transformer.
    Tower {
        /// Its layers and patches.
        spec: EncoderSpec,
        /// What stands for the picture.
        pooling: PicturePooling,
        /// Elements of a vector, where a projection gives them; else the width of the layers.
        projection: Option<usize>,
    },
    /// Convolutions.
    Stages(StagesSpec),
}

/// Everything that the weights of a model of pictures do not say themselves.
///
/// ```
/// use tercet_models::VisionSpec;
///
/// let json = r#"{"model_type": "vit", "hidden_size": 192, "num_hidden_layers": 12, "num_attention_heads": 3,
///     "intermediate_size": 768, "image_size": 224, "patch_size": 16, "hidden_act": "gelu"}"#;
/// let mut json = serde_json::from_str(json)?;
/// assert_eq!(VisionSpec::from_json(&json)?.width(), 192);
///
/// json.insert("shifted_patches".into(), true.into());
/// let refused = VisionSpec::from_json(&json).unwrap_err().to_string();
/// assert!(refused.contains("`shifted_patches`"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct VisionSpec {
    /// The family.
    pub family: VisionFamily,
    /// The pictures' side.
    pub body: VisionBody,
    /// The texts' side, where there is one.
    pub text: Option<TextTower>,
}

impl VisionSpec {
    /// Reads a Hugging Face `config.json` of any of the families.
    ///
    /// # Errors
    /// [`ConfigError`]: a field is missing, wrong, unsupported, or unknown.
    pub fn from_json(json: &Map<String, Value>) -> Result<VisionSpec, ConfigError> {
        let fields = Fields::new(json, "");
        let model_type = fields.required("model_type", fields.opt_str("model_type")?)?;
        let found = of_model_type(model_type);
        fields.only("model_type", &model_types(), |_| found.is_some())?;
        // Refused above where there is none.
        let family = found.unwrap_or(VisionFamily::Vit);
        fields.only("quantization_config", "an unquantised checkpoint", |_| {
            false
        })?;
        let tower = |model_type| -> Result<VisionBody, ConfigError> {
            let spec = read_tower(json, "", model_type)?;
            Ok(VisionBody::Tower {
                spec,
                pooling: PicturePooling::ClassToken,
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

    /// Elements of a picture's vector.
    pub fn width(&self) -> usize {
        match &self.body {
            VisionBody::Tower {
                spec, projection, ..
            } => projection.unwrap_or(spec.hidden),
            VisionBody::Stages(stages) => stages.width(),
        }
    }
}

/// Fields of models of two towers that have no part in computing features.
const OF_TWO: &[&str] = &[
    "initializer_factor",
    "logit_scale_init_value",
    "tie_word_embeddings",
];

/// A tower's object in the configuration. Old files have it a second time, which counts more in the reference.
fn part(
    fields: &Fields<'_>,
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

fn clip(fields: &Fields<'_>) -> Result<VisionSpec, ConfigError> {
    let text = part(fields, ["text_config", "text_config_dict"])?;
    let vision = part(fields, ["vision_config", "vision_config_dict"])?;
    let width = fields.opt_size("projection_dim")?.unwrap_or(512);
    fields.finish(&[HARMLESS, OF_TWO])?;
    let eos = Fields::new(&text, "text_config.").opt_token("eos_token_id")?;
    let pooling = match eos {
        // What the first files have, in which it is another token.
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
            pooling: PicturePooling::ClassToken,
            projection: Some(width),
        },
        text: Some(tower),
    })
}

fn siglip(fields: &Fields<'_>) -> Result<VisionSpec, ConfigError> {
    let text = part(fields, ["text_config", "text_config_dict"])?;
    let vision = part(fields, ["vision_config", "vision_config_dict"])?;
    fields.finish(&[HARMLESS, OF_TWO])?;
    let spec = read_tower(&text, "text_config.", "siglip_text_model")?;
    let width = Fields::new(&text, "text_config.").opt_size("projection_size")?;
    let width = width.unwrap_or(spec.hidden);
    let vision = read_tower(&vision, "vision_config.", "siglip_vision_model")?;
    ensure(width == vision.hidden, || {
        let own = vision.hidden;
        format!("vectors of texts have {width} elements, those of pictures {own}")
    })?;
    Ok(VisionSpec {
        family: VisionFamily::Siglip,
        body: VisionBody::Tower {
            spec: vision,
            pooling: PicturePooling::Attention,
            projection: None,
        },
        text: Some(TextTower {
            spec,
            pooling: TextPooling::Last,
            width,
        }),
    })
}

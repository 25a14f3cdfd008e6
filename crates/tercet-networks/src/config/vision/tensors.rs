//! Detection of unknown tensors. A tensor that no builder would read may change the result, so it
//! is an error.

use std::collections::HashSet;

use super::super::ConfigError;
use super::super::decoder::reject_names;
use super::super::encoder::{EncoderNames, is_derived, known_tensors};
use super::{ImagePooling, VisionBody, VisionFamily, VisionSpec};
use crate::weights::Weights;
use tercet_files::folder_weights::HfWeights;

/// The tensors of the attention pooling head of a SigLIP tower.
const OF_ATTENTION_HEAD: [&str; 11] = [
    "probe",
    "attention.in_proj_weight",
    "attention.in_proj_bias",
    "attention.out_proj.weight",
    "attention.out_proj.bias",
    "layernorm.weight",
    "layernorm.bias",
    "mlp.fc1.weight",
    "mlp.fc1.bias",
    "mlp.fc2.weight",
    "mlp.fc2.bias",
];

impl VisionSpec {
    /// Rejects a folder with a tensor that a model of this specification does not have.
    ///
    /// # Errors
    /// [`ConfigError::UnknownTensors`] names the first few unknown tensors.
    pub(crate) fn reject_unknown_tensors(&self, weights: &HfWeights) -> Result<(), ConfigError> {
        let all = Weights::Hf(weights.clone());
        let mut known = HashSet::new();
        let mut add = |name: &str| known.insert(name.to_string());
        for suffix in ["weight", "bias"] {
            add(&format!("{}.{suffix}", self.family.classifier()));
        }
        match self.family {
            VisionFamily::Vit | VisionFamily::Dinov2 => {
                // The classifier reads the class token directly and not ViT's pooler. The mask
                // token is for training only.
                for prefix in ["", self.family.prefix()] {
                    for name in [
                        "pooler.dense.weight",
                        "pooler.dense.bias",
                        "embeddings.mask_token",
                    ] {
                        add(&format!("{prefix}{name}"));
                    }
                }
            }
            VisionFamily::Clip => {
                for name in [
                    "visual_projection.weight",
                    "text_projection.weight",
                    "logit_scale",
                ] {
                    add(name);
                }
            }
            VisionFamily::Siglip => {
                for name in [
                    "text_model.head.weight",
                    "text_model.head.bias",
                    "logit_scale",
                    "logit_bias",
                ] {
                    add(name);
                }
            }
            VisionFamily::Resnet | VisionFamily::Convnext => {}
        }
        let mut towers = Vec::new();
        match &self.body {
            VisionBody::Tower { spec, pooling, .. } => {
                towers.push(spec);
                if *pooling == ImagePooling::Attention {
                    for name in OF_ATTENTION_HEAD {
                        add(&format!("vision_model.head.{name}"));
                    }
                }
            }
            VisionBody::Stages(stages) => {
                let prefix = stages.prefix(self.family.prefix(), &all);
                known.extend(
                    stages
                        .tensors()
                        .iter()
                        .map(|name| format!("{prefix}{name}")),
                );
            }
        }
        towers.extend(self.text.iter().map(|text| &text.spec));
        for spec in towers {
            known.extend(known_tensors(spec, &EncoderNames::new(spec, &all)));
        }
        let tensors = weights.tensors().map(|(_, info)| info.name());
        let counts = "num_batches_tracked";
        reject_names(
            tensors.filter(|name| !is_derived(name) && !name.ends_with(counts)),
            &known,
        )
    }
}

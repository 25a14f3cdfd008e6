//! Folders of models of pictures: specification, preprocessing, classes.

use super::{HfError, HfFolder, read_optional_json};
use crate::builder::PictureLabels;
use crate::config::{ConfigError, Fields, VisionFamily, VisionSpec};
use crate::picture::{PictureProcessor, ProcessorKind, read_processor};

const OF_PICTURES: &str = "ForImageClassification";
const FILE: &str = "preprocessor_config.json";
/// What newer folders have, with the same object inside.
const NEW_FILE: &str = "processor_config.json";

impl HfFolder {
    /// The specification of a model of pictures.
    ///
    /// # Errors
    /// [`HfError::Config`].
    pub fn vision_spec(&self) -> Result<VisionSpec, HfError> {
        let refused = |source| self.refused("config.json", source);
        let spec = VisionSpec::from_json(&self.config).map_err(refused)?;
        let checked = spec.refuse_unknown_tensors(&self.weights);
        checked.map_err(|source| self.refused("config.json", source))?;
        Ok(spec)
    }

    /// How pictures are prepared: `preprocessor_config.json`, or `image_processor` of `processor_config.json`.
    ///
    /// # Errors
    /// [`HfError::Config`] for a field that is not supported; [`HfError::File`] where neither is there.
    pub fn picture_processor(&self, family: VisionFamily) -> Result<PictureProcessor, HfError> {
        let kind = match family {
            VisionFamily::Vit => ProcessorKind::Vit,
            VisionFamily::Dinov2 => ProcessorKind::Bit,
            VisionFamily::Clip => ProcessorKind::Clip,
            VisionFamily::Siglip => ProcessorKind::Siglip,
            VisionFamily::Resnet | VisionFamily::Convnext => ProcessorKind::ConvNext,
        };
        if !self.dir.join(FILE).exists()
            && let Some(json) = read_optional_json(&self.dir.join(NEW_FILE))?
        {
            let fields = Fields::new(&json, "");
            let own = fields.opt_object("image_processor");
            let own = own.and_then(|own| fields.required("image_processor", own));
            let read = own.and_then(|own| read_processor(own, kind));
            return read.map_err(|source| self.refused(NEW_FILE, source));
        }
        let json = super::read_json(&self.dir.join(FILE))?;
        read_processor(&json, kind).map_err(|source| self.refused(FILE, source))
    }

    /// The classes that a model of pictures tells, by `architectures` and its classifier.
    ///
    /// # Errors
    /// [`HfError::Config`] for a folder without a classifier; [`HfError::Labels`] where the names of classes are not those of
    /// the classifier.
    pub fn picture_labels(&self, spec: &VisionSpec) -> Result<PictureLabels, HfError> {
        let refused = |source| self.refused("config.json", source);
        let fields = Fields::new(&self.config, "");
        let supported = format!("a model {OF_PICTURES}");
        let mut found = None;
        let checked = fields.only("architectures", &supported, |v| {
            let first = v.as_array().and_then(|all| all.first()?.as_str());
            found = first.filter(|name| name.ends_with(OF_PICTURES)).map(|_| ());
            found.is_some()
        });
        checked.map_err(refused)?;
        fields.required("architectures", found).map_err(refused)?;
        let name = format!("{}.weight", spec.family.classifier());
        let (_, info) = self.weights.tensor(&name)?;
        let classes = info.shape().first().copied().unwrap_or(0);
        Ok(PictureLabels {
            labels: self.labels(&fields, classes)?,
            scoring: super::classes::scoring(&fields, classes).map_err(refused)?,
        })
    }

    fn refused(&self, file: &str, source: ConfigError) -> HfError {
        HfError::Config {
            path: self.dir.join(file),
            source,
        }
    }
}

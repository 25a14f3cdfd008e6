//! Folders of vision models: specification, preprocessing, classes.

use super::{HfError, HfFolder, read_optional_json};
use crate::config::bounds::TensorBounds;
use crate::config::outputs::ImageLabels;
use crate::config::{ConfigError, ConfigFields, VisionFamily, VisionSpec};
use crate::image::{ImageProcessor, ProcessorKind, read_processor};

const OF_PICTURES: &str = "ForImageClassification";
const FILE: &str = "preprocessor_config.json";
/// Newer folders have this file instead, with the same object in a field.
const NEW_FILE: &str = "processor_config.json";

impl HfFolder {
    /// The specification of a vision model.
    ///
    /// # Errors
    /// [`HfError::Config`].
    pub fn vision_spec(&self) -> Result<VisionSpec, HfError> {
        let refused = |source| self.config_error("config.json", source);
        let spec = VisionSpec::from_json(&self.config).map_err(refused)?;
        let checked = spec.check_bounds(&TensorBounds::from_folder(&self.weights));
        let checked = checked.and_then(|()| spec.reject_unknown_tensors(&self.weights));
        checked.map_err(|source| self.config_error("config.json", source))?;
        Ok(spec)
    }

    /// The image preprocessing: `preprocessor_config.json`, or `image_processor` of
    /// `processor_config.json`.
    ///
    /// # Errors
    /// [`HfError::Config`] for an unsupported field; [`HfError::File`] if neither file exists.
    pub fn image_processor(&self, family: VisionFamily) -> Result<ImageProcessor, HfError> {
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
            let fields = ConfigFields::new(&json, "");
            let own = fields.opt_object("image_processor");
            let own = own.and_then(|own| fields.required("image_processor", own));
            let read = own.and_then(|own| read_processor(own, kind));
            return read.map_err(|source| self.config_error(NEW_FILE, source));
        }
        let json = super::read_json(&self.dir.join(FILE))?;
        read_processor(&json, kind).map_err(|source| self.config_error(FILE, source))
    }

    /// The classes of an image classifier, from `architectures` and the classifier weights.
    ///
    /// # Errors
    /// [`HfError::Config`] if the folder has no classifier; [`HfError::Labels`] if the class names
    /// do not match the classifier.
    pub fn image_labels(&self, spec: &VisionSpec) -> Result<ImageLabels, HfError> {
        let refused = |source| self.config_error("config.json", source);
        let fields = ConfigFields::new(&self.config, "");
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
        Ok(ImageLabels {
            labels: self.labels(&fields, classes)?,
            scoring: super::classes::scoring(&fields, classes).map_err(refused)?,
        })
    }

    fn config_error(&self, file: &str, source: ConfigError) -> HfError {
        HfError::Config {
            path: self.dir.join(file),
            source,
        }
    }
}

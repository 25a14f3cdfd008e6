//! Vision models: the graph of any [`VisionSpec`], for features or classification.
//!
//! Input: `pixels` F32 `[b, 3, height, width]`, normalized. Outputs, F32:
//!
//! | [`VisionOutput`] | output |
//! |---|---|
//! | `Features` | `embedding [b, width]` |
//! | `Classes` | `logits [b, classes]` |

mod runner;
mod stages;
mod tower;

use tercet::{CompileOptions, DType, Device, Dim, Executable, Type};

use super::{Encoder, MatmulPrecision, ModelBuilder, ModelError, ModelGraph, Weights};
use crate::config::{TextTower, VisionBody, VisionSpec};
pub use runner::{ImageClassifier, ImageEmbedder, ImageLabels};

/// Output of a vision model for an image.
///
/// ```no_run
/// use tercet::DType;
/// use tercet_models::{ModelFiles, VisionOutput};
/// let files = ModelFiles::open("resnet-50")?;
/// let model = files.vision_model(VisionOutput::Classes(1000), DType::F32)?;
/// assert_eq!(model.width, 1000);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum VisionOutput {
    /// Feature vector. CLIP and SigLIP return the vector that is compared with texts. ViT and
    /// DINOv2 return the class token after the last norm. ResNet and ConvNeXt return the mean over
    /// all positions (ConvNeXt normalizes it).
    Features,
    /// Logits of this number of classes.
    Classes(usize),
}

/// A vision model: graph and parameters.
///
/// ```no_run
/// use tercet::{DType, Device};
/// use tercet_models::{ModelFiles, VisionModel, VisionOutput};
/// let files = ModelFiles::open("dinov2-small")?;
/// let model: VisionModel = files.vision_model(VisionOutput::Features, DType::F32)?;
/// assert_eq!(model.width, files.vision_spec()?.width());
/// let exe = model.compile(&Device::cpu(), 8)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct VisionModel {
    /// Graph and parameters.
    pub model: ModelGraph,
    /// Height and width of the images, in pixels.
    pub size: [usize; 2],
    /// Elements per row of the output.
    pub width: usize,
}

impl VisionModel {
    /// Builds the graph for images of this height and width from the weights of a file, with
    /// arithmetic in `dtype`.
    ///
    /// # Errors
    /// [`ModelError`] if a weight is missing or has an unexpected shape or format, or if the model
    /// does not support this image size.
    pub fn build(
        spec: &VisionSpec,
        weights: &Weights,
        output: VisionOutput,
        size: [usize; 2],
        dtype: DType,
    ) -> Result<VisionModel, ModelError> {
        let mut b = ModelBuilder::new(weights, dtype);
        let [height, width] = size;
        let shape = [Dim::sym("b"), Dim::Known(3), height.into(), width.into()];
        let pixels = b.graph.input("pixels", Type::new(DType::F32, shape))?;
        let vectors = match &spec.body {
            VisionBody::Tower { .. } => tower::vectors(&mut b, spec, pixels, size, output)?,
            VisionBody::Stages(stages) => {
                stages::vectors(&mut b, (spec.family, stages), pixels, size)?
            }
        };
        let width = match output {
            VisionOutput::Features => {
                b.graph.output("embedding", vectors)?;
                spec.width()
            }
            VisionOutput::Classes(classes) => {
                let name = spec.family.classifier();
                let inputs = b.graph.ty(vectors).shape[1].known().unwrap_or(0);
                let (weight, bias) = (format!("{name}.weight"), format!("{name}.bias"));
                let logits = b.linear(vectors, &weight, Some(&bias), [classes, inputs])?;
                b.graph.output("logits", logits)?;
                classes
            }
        };
        Ok(VisionModel {
            model: b.finish().with_precision(dtype)?,
            size,
            width,
        })
    }

    /// Compiles the model for batches of at most `batch` images.
    ///
    /// # Errors
    /// [`ModelError::Compile`] and [`ModelError::Run`] of the device.
    pub fn compile(
        &self,
        device: &Device,
        batch: usize,
    ) -> Result<Box<dyn Executable>, ModelError> {
        let options = CompileOptions::new().bound("b", batch);
        self.model.compile(device, &options)
    }
}

impl Encoder {
    /// Builds the text encoder of an image-text model, with arithmetic in `dtype`. Inputs: `ids`
    /// I32 `[b, s]` and `place` I32 `[b, 1]`, the index of the token whose state becomes the text's
    /// vector. Output: `embedding` F32 `[b, width]`.
    ///
    /// # Errors
    /// Same errors as [`Encoder::build`]; [`ModelError::Unsupported`] for a model without a text encoder.
    pub fn from_text_tower(
        spec: &VisionSpec,
        weights: &Weights,
        dtype: DType,
    ) -> Result<Encoder, ModelError> {
        let Some(text) = &spec.text else {
            return Err(ModelError::no_texts(spec));
        };
        let mut b = ModelBuilder::new(weights, dtype);
        let vectors = tower::text_vectors(&mut b, spec.family, text)?;
        b.graph.output("embedding", vectors)?;
        let TextTower { spec, width, .. } = text;
        Ok(Encoder {
            model: b.finish().with_precision(dtype)?,
            context: spec.context,
            width: *width,
            matmul_precision: MatmulPrecision::Full,
        })
    }
}

impl ModelError {
    /// The error for texts that a vision model without a text encoder gets.
    #[must_use]
    pub fn no_texts(spec: &VisionSpec) -> ModelError {
        let family = spec.family.model_type();
        ModelError::Unsupported(format!(
            "a model of the family `{family}` accepts images, no texts"
        ))
    }
}

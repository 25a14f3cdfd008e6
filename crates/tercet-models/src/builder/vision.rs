//! Models of pictures: the graph of any [`VisionSpec`], as features or classes.
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

use super::{Builder, Encoder, Model, ModelError, Products, Weights};
use crate::config::{TextTower, VisionBody, VisionSpec};
pub use runner::{PictureClassifier, PictureEncoder, PictureLabels};

/// What becomes of a picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum VisionOutput {
    /// A vector: of CLIP and SigLIP the one that texts are compared with; of ViT and DINOv2 the class token's state after the
    /// last norm; of ResNet and ConvNeXt the mean over places (normed, of ConvNeXt).
    Features,
    /// Logits of so many classes.
    Classes(usize),
}

/// A model of pictures: its graph and parameters.
#[derive(Clone, Debug)]
pub struct VisionModel {
    /// Graph and parameters.
    pub model: Model,
    /// Height and width of the pictures, in pixels.
    pub size: [usize; 2],
    /// Elements of a row of the output.
    pub width: usize,
}

impl VisionModel {
    /// Builds the graph for pictures of this height and width over the weights of a file, computed in `dtype`.
    ///
    /// # Errors
    /// [`ModelError`] when a weight is missing or of another shape or format, or the model does not read this size.
    pub fn build(
        spec: &VisionSpec,
        weights: &Weights,
        output: VisionOutput,
        size: [usize; 2],
        dtype: DType,
    ) -> Result<VisionModel, ModelError> {
        let mut b = Builder::new(weights, dtype);
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

    /// Compiles the model for at most `batch` pictures at once.
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
    /// The texts' side of a model of pictures and texts, computed in `dtype`. Inputs: `ids` I32 `[b, s]` and `place` I32
    /// `[b, 1]`, where the state stands that becomes the text's vector; output: `embedding` F32 `[b, width]`.
    ///
    /// # Errors
    /// As [`Encoder::build`]; [`ModelError::Unsupported`] for a model without texts.
    pub fn of_texts(
        spec: &VisionSpec,
        weights: &Weights,
        dtype: DType,
    ) -> Result<Encoder, ModelError> {
        let Some(text) = &spec.text else {
            return Err(no_texts(spec));
        };
        let mut b = Builder::new(weights, dtype);
        let vectors = tower::text_vectors(&mut b, spec.family, text)?;
        b.graph.output("embedding", vectors)?;
        let TextTower { spec, width, .. } = text;
        Ok(Encoder {
            model: b.finish().with_precision(dtype)?,
            context: spec.context,
            width: *width,
            products: Products::Exact,
        })
    }
}

/// A model that texts are asked of, and has none.
pub(crate) fn no_texts(spec: &VisionSpec) -> ModelError {
    let family = spec.family.model_type();
    ModelError::Unsupported(format!("a model of `{family}` reads pictures, no texts"))
}

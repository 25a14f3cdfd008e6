//! Models of pictures: what their folder says, and what the caller chooses.

use tercet::{DType, Device};

use super::{EncoderOptions, ModelFiles};
use crate::builder::{
    Embedder, Encoder, ModelError, PictureClassifier, PictureEncoder, Scoring, VisionModel,
    VisionOutput, no_texts,
};
use crate::config::{VisionBody, VisionFamily, VisionSpec};
use crate::error::Error;

/// How the vectors of a picture and of a text say whether they belong together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Likeness {
    /// What cosines are multiplied with.
    pub scale: f32,
    /// What is added then.
    pub bias: f32,
    /// What the sums for all texts become: the probability of each among them, or for itself.
    pub scoring: Scoring,
}

impl Likeness {
    /// The scores of texts for a picture.
    pub fn scores(&self, picture: &[f32], texts: &[Vec<f32>]) -> Vec<f32> {
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(x, y)| x * y).sum::<f32>();
        let norm = |a: &[f32]| dot(a, a).sqrt().max(f32::MIN_POSITIVE);
        let own = norm(picture);
        let of = |text: &Vec<f32>| {
            let cosine = dot(picture, text) / own / norm(text);
            cosine * self.scale + self.bias
        };
        let mut scores: Vec<f32> = texts.iter().map(of).collect();
        self.scoring.apply(&mut scores);
        scores
    }
}

impl ModelFiles {
    /// The specification of a model of pictures.
    ///
    /// # Errors
    /// [`Error`] when it is not one, or a field or tensor is not supported.
    pub fn vision_spec(&self) -> Result<VisionSpec, Error> {
        Ok(self.folder()?.vision_spec()?)
    }

    /// The graph of a model of pictures, computed in `dtype`, for pictures of the size that the folder makes them.
    ///
    /// # Errors
    /// [`Error`] of the configuration or of [`VisionModel::build`].
    pub fn vision_model(&self, output: VisionOutput, dtype: DType) -> Result<VisionModel, Error> {
        let spec = self.vision_spec()?;
        let processor = self.folder()?.picture_processor(spec.family)?;
        let own = match &spec.body {
            VisionBody::Tower { spec, .. } => spec.patches.map(|patches| patches.image),
            VisionBody::Stages(_) => None,
        };
        let Some(size) = processor.size().or(own) else {
            return Err(ModelError::Unsupported(
                "preprocessor_config.json gives pictures sides of their own; give it a crop_size, or a size of height and width"
                    .to_string(),
            )
            .into());
        };
        let weights = self.weights();
        Ok(VisionModel::build(&spec, &weights, output, size, dtype)?)
    }

    /// A compiled model of pictures: their features.
    ///
    /// # Errors
    /// [`Error`] of the files, the configuration or the device.
    pub fn picture_encoder(
        &self,
        device: &Device,
        options: &EncoderOptions,
    ) -> Result<PictureEncoder, Error> {
        self.compiled(VisionOutput::Features, device, options)
    }

    /// A compiled model that tells the classes of pictures.
    ///
    /// # Errors
    /// [`Error`] of the files, the configuration or the device; a folder without a classifier among them.
    pub fn picture_classifier(
        &self,
        device: &Device,
        options: &EncoderOptions,
    ) -> Result<PictureClassifier, Error> {
        let labels = self.folder()?.picture_labels(&self.vision_spec()?)?;
        let output = VisionOutput::Classes(labels.labels.len());
        let encoder = self.compiled(output, device, options)?;
        Ok(PictureClassifier::new(encoder, labels)?)
    }

    fn compiled(
        &self,
        output: VisionOutput,
        device: &Device,
        options: &EncoderOptions,
    ) -> Result<PictureEncoder, Error> {
        let model = self.vision_model(output, options.dtype)?;
        let family = self.vision_spec()?.family;
        let processor = self.folder()?.picture_processor(family)?;
        Ok(PictureEncoder::new(
            &model,
            processor,
            device,
            options.batch,
        )?)
    }

    /// The compiled texts' side of a model of pictures and texts.
    pub(super) fn text_embedder(
        &self,
        device: &Device,
        options: &EncoderOptions,
    ) -> Result<Embedder, Error> {
        let spec = self.vision_spec()?;
        let Some(text) = &spec.text else {
            return Err(no_texts(&spec).into());
        };
        let encoder = Encoder::of_texts(&spec, &self.weights(), options.dtype)?;
        let most = options.most(None, encoder.context)?;
        let tokenizer = self.tokenizer()?;
        let embedder = Embedder::new(&encoder, tokenizer, device, options.batch, most)?;
        let embedder = embedder.cutting(options.cut);
        Ok(embedder.pooled(text.pooling, (text.spec.context, text.spec.pad)))
    }

    /// How vectors of pictures and of texts are compared.
    ///
    /// # Errors
    /// [`Error`] for a model without texts, or whose numbers are missing.
    pub fn likeness(&self) -> Result<Likeness, Error> {
        let spec = self.vision_spec()?;
        let weights = self.weights();
        let number = |name: &str| -> Result<f32, ModelError> {
            let found = weights.rows_f32(name, [1, 1])?;
            Ok(found.to_f64s().first().map_or(0.0, |x| *x as f32))
        };
        let scale = |name| number(name).map(f32::exp);
        match spec.family {
            VisionFamily::Clip => Ok(Likeness {
                scale: scale("logit_scale")?,
                bias: 0.0,
                scoring: Scoring::Softmax,
            }),
            VisionFamily::Siglip => Ok(Likeness {
                scale: scale("logit_scale")?,
                bias: number("logit_bias")?,
                scoring: Scoring::Sigmoid,
            }),
            VisionFamily::Vit
            | VisionFamily::Dinov2
            | VisionFamily::Resnet
            | VisionFamily::Convnext => Err(no_texts(&spec).into()),
        }
    }
}

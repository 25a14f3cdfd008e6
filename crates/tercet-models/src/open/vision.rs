//! Opening vision models: the settings of the model's folder and the caller's options.

use std::path::Path;

use tercet::{DType, Device};

use super::{EncoderOptions, ModelFiles, OpenModel};
use crate::error::Error;
use crate::family::ModelFamily;
use tercet_networks::config::{VisionBody, VisionFamily, VisionSpec};
use tercet_networks::{
    Embedder, Encoder, ImageClassifier, ImageEmbedder, ModelError, Scoring, VisionModel,
    VisionOutput,
};

/// The comparison of image and text vectors (CLIP, SigLIP).
///
/// ```
/// use tercet_models::{Scoring, SimilarityHead};
/// let head = SimilarityHead { scale: 100.0, bias: 0.0, scoring: Scoring::Raw };
/// let scores = head.scores(&[1.0, 0.0], &[vec![2.0, 0.0], vec![0.0, 1.0]]);
/// assert_eq!(scores, [100.0, 0.0]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SimilarityHead {
    /// The factor of the cosine similarity.
    pub scale: f32,
    /// The bias added to the scaled cosine similarity.
    pub bias: f32,
    /// The function from the logits of all texts to scores: softmax over the texts, or a sigmoid of
    /// each.
    pub scoring: Scoring,
}

impl SimilarityHead {
    /// The scores of texts for an image.
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

/// Vision models.
impl OpenModel for ImageEmbedder {
    fn open_with(
        path: impl AsRef<Path>,
        device: &Device,
        options: &EncoderOptions,
    ) -> Result<ImageEmbedder, Error> {
        let files = ModelFiles::open(path)?;
        let (wanted, found) = ("ImageEmbedder", files.family()?);
        match found {
            ModelFamily::Vision => files.image_embedder(device, options),
            _ => Err(Error::OtherFamily { wanted, found }),
        }
    }
}

impl ModelFiles {
    /// The specification of a vision model.
    ///
    /// # Errors
    /// [`Error`] if the model is not one, or a field or tensor is not supported.
    pub fn vision_spec(&self) -> Result<VisionSpec, Error> {
        Ok(self.folder()?.vision_spec()?)
    }

    /// Builds the graph of a vision model, computed in `dtype`, for images of the size that the
    /// folder's preprocessing produces.
    ///
    /// # Errors
    /// [`Error`] of the configuration or of [`VisionModel::build`].
    pub fn vision_model(&self, output: VisionOutput, dtype: DType) -> Result<VisionModel, Error> {
        let spec = self.vision_spec()?;
        let processor = self.folder()?.image_processor(spec.family)?;
        let own = match &spec.body {
            VisionBody::Tower { spec, .. } => spec.patches.map(|patches| patches.image),
            VisionBody::Stages(_) => None,
        };
        let Some(size) = processor.size().or(own) else {
            return Err(ModelError::Unsupported(
                "preprocessor_config.json does not give images a fixed size; set a crop_size, or \
                 a size with height and width"
                    .to_string(),
            )
            .into());
        };
        let weights = self.weights();
        Ok(VisionModel::build(&spec, &weights, output, size, dtype)?)
    }

    /// Compiles a vision model that computes image features.
    ///
    /// # Errors
    /// [`Error`] of the files, the configuration or the device.
    pub fn image_embedder(
        &self,
        device: &Device,
        options: &EncoderOptions,
    ) -> Result<ImageEmbedder, Error> {
        self.compiled(VisionOutput::Features, device, options)
    }

    /// The number of classes, if the folder's `architectures` name an image classifier.
    ///
    /// # Errors
    /// [`Error`] of the configuration, or if the class names do not match the classifier.
    pub fn image_classes(&self) -> Result<Option<usize>, Error> {
        let folder = self.folder()?;
        let first = folder.config().get("architectures");
        let first = first.and_then(|names| names.as_array()?.first()?.as_str());
        if !first.is_some_and(|name| name.ends_with("ForImageClassification")) {
            return Ok(None);
        }
        let labels = folder.image_labels(&self.vision_spec()?)?;
        Ok(Some(labels.labels.len()))
    }

    /// Builds the graph of the text tower of a vision model, computed in `dtype`.
    ///
    /// # Errors
    /// [`Error`] of the configuration or of [`Encoder::from_text_tower`].
    pub fn text_tower(&self, dtype: DType) -> Result<Encoder, Error> {
        let spec = self.vision_spec()?;
        Ok(Encoder::from_text_tower(&spec, &self.weights(), dtype)?)
    }

    /// Compiles an image classifier.
    ///
    /// # Errors
    /// [`Error`] of the files, the configuration or the device, or if the folder has no classifier.
    pub fn image_classifier(
        &self,
        device: &Device,
        options: &EncoderOptions,
    ) -> Result<ImageClassifier, Error> {
        let labels = self.folder()?.image_labels(&self.vision_spec()?)?;
        let output = VisionOutput::Classes(labels.labels.len());
        let encoder = self.compiled(output, device, options)?;
        Ok(ImageClassifier::new(encoder, labels)?)
    }

    fn compiled(
        &self,
        output: VisionOutput,
        device: &Device,
        options: &EncoderOptions,
    ) -> Result<ImageEmbedder, Error> {
        let model = self.vision_model(output, options.dtype)?;
        let family = self.vision_spec()?.family;
        let processor = self.folder()?.image_processor(family)?;
        Ok(ImageEmbedder::new(
            &model,
            processor,
            device,
            options.batch,
        )?)
    }

    /// Compiles the text tower of a vision model.
    pub(super) fn text_embedder(
        &self,
        device: &Device,
        options: &EncoderOptions,
    ) -> Result<Embedder, Error> {
        let spec = self.vision_spec()?;
        let Some(text) = &spec.text else {
            return Err(ModelError::no_texts(&spec).into());
        };
        let encoder = Encoder::from_text_tower(&spec, &self.weights(), options.dtype)?;
        let most = options.max_tokens(None, encoder.context)?;
        let tokenizer = self.tokenizer()?;
        let embedder = Embedder::new(&encoder, tokenizer, device, options.batch, most)?;
        let embedder = embedder.truncating(options.truncate);
        Ok(embedder.pooled(text.pooling, (text.spec.context, text.spec.pad)))
    }

    /// The comparison of image and text vectors.
    ///
    /// # Errors
    /// [`Error`] if the model has no text tower, or its scale and bias are missing.
    pub fn similarity_head(&self) -> Result<SimilarityHead, Error> {
        let spec = self.vision_spec()?;
        let weights = self.weights();
        let number = |name: &str| -> Result<f32, ModelError> {
            let found = weights.rows_f32(name, [1, 1])?;
            Ok(found.to_f64s().first().map_or(0.0, |x| *x as f32))
        };
        let scale = |name| number(name).map(f32::exp);
        match spec.family {
            VisionFamily::Clip => Ok(SimilarityHead {
                scale: scale("logit_scale")?,
                bias: 0.0,
                scoring: Scoring::Softmax,
            }),
            VisionFamily::Siglip => Ok(SimilarityHead {
                scale: scale("logit_scale")?,
                bias: number("logit_bias")?,
                scoring: Scoring::Sigmoid,
            }),
            VisionFamily::Vit
            | VisionFamily::Dinov2
            | VisionFamily::Resnet
            | VisionFamily::Convnext => Err(ModelError::no_texts(&spec).into()),
        }
    }
}

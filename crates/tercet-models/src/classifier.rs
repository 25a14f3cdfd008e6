//! Classification of texts or images by a model of any family that has classes.

use std::path::Path;

use tercet::Device;

use crate::error::Error;
use crate::family::ModelFamily;
use crate::open::{EncoderOptions, ModelFiles, SimilarityHead};
use tercet_networks::image::Image;
use tercet_networks::{ImageClassifier, ImageEmbedder, ModelError, TextClassifier};

/// The result of a classification.
///
/// ```
/// use tercet_models::Classification;
/// let found = Classification { label: "cat".to_string(), score: 0.75, scores: vec![0.25, 0.75] };
/// assert_eq!(found.score, found.scores[1]);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Classification {
    /// The class with the greatest score, the first among equals.
    pub label: String,
    /// Its score.
    pub score: f32,
    /// The scores of all classes, in the order of [`Classifier::labels`].
    pub scores: Vec<f32>,
}

/// A model that classifies texts or images, ready to run.
///
/// ```
/// # let data = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/vision/");
/// # let (path, picture) = (format!("{data}vit-a"), format!("{data}pictures/wide.png"));
/// use tercet_models::Classifier;
/// let mut classifier = Classifier::open(path)?;
/// let found = classifier.classify(&[picture])?;
/// assert!(classifier.labels().contains(&found[0].label));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Classifier {
    kind: ClassifierKind,
    labels: Vec<String>,
}

#[allow(
    clippy::large_enum_variant,
    reason = "programs hold a few classifiers, not collections of them"
)]
enum ClassifierKind {
    Texts(TextClassifier),
    Images(ImageClassifier),
    /// Classes are described by texts.
    Described {
        head: SimilarityHead,
        images: ImageEmbedder,
        descriptions: Vec<Vec<f32>>,
    },
}

impl Classifier {
    /// Opens a classifier of texts or images on the best device of this machine, with default
    /// options. The path is that of [`ModelFiles::open`].
    ///
    /// # Errors
    /// The errors of [`Self::from_files`].
    pub fn open(path: impl AsRef<Path>) -> Result<Classifier, Error> {
        let files = ModelFiles::open(path)?;
        Classifier::from_files(&files, &Device::auto()?, &EncoderOptions::default())
    }

    /// Opens an image-text model such as CLIP as a classifier of images into classes that texts
    /// describe (zero-shot).
    ///
    /// # Errors
    /// The errors of [`Self::from_files_with_labels`].
    ///
    /// ```
    /// # let data = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/vision/");
    /// # let (path, picture) = (format!("{data}clip-a"), format!("{data}pictures/wide.png"));
    /// use tercet_models::Classifier;
    /// let mut classifier = Classifier::open_with_labels(path, &["a cat", "a dog"])?;
    /// assert!(["a cat", "a dog"].contains(&&*classifier.classify(&[picture])?[0].label));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn open_with_labels<T: AsRef<str>>(
        path: impl AsRef<Path>,
        labels: &[T],
    ) -> Result<Classifier, Error> {
        let (files, device) = (ModelFiles::open(path)?, Device::auto()?);
        let options = EncoderOptions::default();
        Classifier::from_files_with_labels(&files, &device, &options, labels)
    }

    /// Compiles the classifier of opened files.
    ///
    /// # Errors
    /// [`Error`] of the files or the device; [`Error::OtherFamily`] if the model has no classes;
    /// [`ModelError::Unsupported`] for a classifier of tokens.
    pub fn from_files(
        files: &ModelFiles,
        device: &Device,
        options: &EncoderOptions,
    ) -> Result<Classifier, Error> {
        let (wanted, found) = ("Classifier", files.family()?);
        match found {
            ModelFamily::Vision => {
                let images = files.image_classifier(device, options)?;
                let labels = images.labels().to_vec();
                let kind = ClassifierKind::Images(images);
                Ok(Classifier { kind, labels })
            }
            ModelFamily::Encoder => {
                if files.class_head()?.per_token {
                    let reason = "the model predicts classes of tokens; use `ModelFiles::classifier` and \
                        `TextClassifier::entities`";
                    return Err(ModelError::Unsupported(reason.into()).into());
                }
                let texts = files.classifier(device, options)?;
                let labels = texts.labels().to_vec();
                let kind = ClassifierKind::Texts(texts);
                Ok(Classifier { kind, labels })
            }
            ModelFamily::Decoder
            | ModelFamily::VisionLanguage
            | ModelFamily::TextToText
            | ModelFamily::Speech => Err(Error::OtherFamily { wanted, found }),
        }
    }

    /// Compiles an image-text model as a classifier of images into these classes.
    ///
    /// # Errors
    /// [`Error`] of the files or the device; [`ModelError::Unsupported`] without labels, and for a
    /// model without a text tower.
    pub fn from_files_with_labels<T: AsRef<str>>(
        files: &ModelFiles,
        device: &Device,
        options: &EncoderOptions,
        labels: &[T],
    ) -> Result<Classifier, Error> {
        if labels.is_empty() {
            let reason = "no labels; pass a description of each class";
            return Err(ModelError::Unsupported(reason.into()).into());
        }
        let (wanted, found) = ("Classifier::open_with_labels", files.family()?);
        if found != ModelFamily::Vision {
            return Err(Error::OtherFamily { wanted, found });
        }
        let head = files.similarity_head()?;
        let descriptions = files.embedder(device, options)?.embed(labels)?;
        let images = files.image_embedder(device, options)?;
        Ok(Classifier {
            kind: ClassifierKind::Described {
                head,
                images,
                descriptions,
            },
            labels: labels
                .iter()
                .map(|text| text.as_ref().to_string())
                .collect(),
        })
    }

    /// Names of the classes.
    pub fn labels(&self) -> &[String] {
        &self.labels
    }

    /// Whether the inputs are images; otherwise they are texts.
    pub fn is_of_images(&self) -> bool {
        !matches!(self.kind, ClassifierKind::Texts(_))
    }

    /// Classifies texts; for a model of images, the PNG, JPEG, WebP and GIF files with these paths.
    ///
    /// # Errors
    /// [`ModelError::TextTooLong`]; [`Error`] of the tokenizer, an image or the device.
    pub fn classify<T: AsRef<str>>(&mut self, inputs: &[T]) -> Result<Vec<Classification>, Error> {
        let scores = self.scores_with_progress(inputs, &mut |_| true)?;
        Ok(self.classifications(scores))
    }

    /// Classifies images in memory.
    ///
    /// # Errors
    /// [`ModelError::Unsupported`] for a model of texts; [`Error::Model`] of the device.
    pub fn classify_images(&mut self, images: &[Image]) -> Result<Vec<Classification>, Error> {
        let scores = match &mut self.kind {
            ClassifierKind::Texts(_) => {
                let reason = "the model classifies texts; pass texts to `classify`";
                return Err(ModelError::Unsupported(reason.into()).into());
            }
            ClassifierKind::Images(classifier) => classifier.classify_images(images)?,
            ClassifierKind::Described {
                head,
                images: encoder,
                descriptions,
            } => {
                let rows = encoder.embed_images(images)?;
                rows.iter()
                    .map(|row| head.scores(row, descriptions))
                    .collect()
            }
        };
        Ok(self.classifications(scores))
    }

    /// The scores of all classes for the inputs of [`Self::classify`]. `progress` receives the
    /// number of finished inputs. If `progress` returns false, the call stops early and the
    /// remaining scores are empty.
    ///
    /// # Errors
    /// The errors of [`Self::classify`].
    pub fn scores_with_progress<T: AsRef<str>>(
        &mut self,
        inputs: &[T],
        progress: &mut dyn FnMut(usize) -> bool,
    ) -> Result<Vec<Vec<f32>>, Error> {
        let paths = || inputs.iter().map(AsRef::as_ref).collect::<Vec<&str>>();
        match &mut self.kind {
            ClassifierKind::Texts(texts) => Ok(texts.classify_with_progress(inputs, progress)?),
            ClassifierKind::Images(images) => {
                Ok(images.classify_with_progress(&paths(), progress)?)
            }
            ClassifierKind::Described {
                head,
                images,
                descriptions,
            } => {
                let rows = images.embed_files_with_progress(&paths(), progress)?;
                let scores = rows.iter().map(|row| match row.is_empty() {
                    true => Vec::new(),
                    false => head.scores(row, descriptions),
                });
                Ok(scores.collect())
            }
        }
    }

    fn classifications(&self, scores: Vec<Vec<f32>>) -> Vec<Classification> {
        let best = |scores: Vec<f32>| {
            let all = scores.iter().copied().enumerate();
            let (class, score) = all.reduce(|a, b| if b.1 > a.1 { b } else { a })?;
            Some(Classification {
                label: self.labels.get(class)?.clone(),
                score,
                scores,
            })
        };
        scores.into_iter().filter_map(best).collect()
    }
}

//! Image embedding and classification with a compiled vision model.

use std::path::Path;

use tercet::{DType, Device, Executable, Tensor, TensorType};

use super::super::ModelError;
use super::VisionModel;
pub use crate::config::outputs::ImageLabels;
use crate::image::{Image, ImageProcessor};

/// Default number of images per run.
const BATCH: usize = 8;

/// A compiled vision model with its preprocessing. The embedder turns images into output rows.
///
/// ```no_run
/// use tercet::Device;
/// use tercet_models::{EncoderOptions, ModelFiles};
/// let files = ModelFiles::open("dinov2-small")?;
/// let mut embedder = files.image_embedder(&Device::cpu(), &EncoderOptions::default())?;
/// let vectors = embedder.embed_files(&["cat.jpg"])?;
/// assert_eq!(vectors[0].len(), embedder.width());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct ImageEmbedder {
    exe: Box<dyn Executable>,
    processor: ImageProcessor,
    size: [usize; 2],
    batch: usize,
    width: usize,
    pixels: Tensor,
    outputs: Vec<Tensor>,
}

impl ImageEmbedder {
    /// Compiles `model` for batches of `batch` images; the default is 8.
    ///
    /// # Errors
    /// Same errors as [`VisionModel::compile`].
    pub fn new(
        model: &VisionModel,
        processor: ImageProcessor,
        device: &Device,
        batch: Option<usize>,
    ) -> Result<ImageEmbedder, ModelError> {
        let batch = batch.unwrap_or(BATCH).max(1);
        let empty = Tensor::zeros(TensorType::new(DType::F32, &[0, 0, 0, 0]));
        Ok(ImageEmbedder {
            exe: model.compile(device, batch)?,
            processor,
            size: model.size,
            batch,
            width: model.width,
            pixels: empty.expect("invariant: an empty tensor fits memory"),
            outputs: Vec::new(),
        })
    }

    /// Elements per output row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Output rows of these image files, in order: features or class logits. Only the images of one
    /// batch are in memory.
    ///
    /// # Errors
    /// [`ModelError::Image`] of a file; errors of the device.
    pub fn embed_files<P: AsRef<Path>>(
        &mut self,
        paths: &[P],
    ) -> Result<Vec<Vec<f32>>, ModelError> {
        self.embed_files_with_progress(paths, &mut |_| true)
    }

    /// Like [`Self::embed_files`]. `progress` receives the number of finished images. If `progress`
    /// returns false, the call stops early and the remaining rows are empty.
    ///
    /// # Errors
    /// Same errors as [`Self::embed_files`].
    pub fn embed_files_with_progress<P: AsRef<Path>>(
        &mut self,
        paths: &[P],
        progress: &mut dyn FnMut(usize) -> bool,
    ) -> Result<Vec<Vec<f32>>, ModelError> {
        let mut read = |at: usize| -> Result<Image, ModelError> { Ok(Image::open(&paths[at])?) };
        self.run_all(paths.len(), &mut read, progress)
    }

    /// Output rows of these images, as [`Self::embed_files`].
    ///
    /// # Errors
    /// Same errors as [`Self::embed_files`].
    pub fn embed_images(&mut self, pictures: &[Image]) -> Result<Vec<Vec<f32>>, ModelError> {
        let mut read = |at: usize| -> Result<Image, ModelError> { Ok(pictures[at].clone()) };
        self.run_all(pictures.len(), &mut read, &mut |_| true)
    }

    fn run_all(
        &mut self,
        count: usize,
        read: &mut dyn FnMut(usize) -> Result<Image, ModelError>,
        progress: &mut dyn FnMut(usize) -> bool,
    ) -> Result<Vec<Vec<f32>>, ModelError> {
        let mut rows = vec![Vec::new(); count];
        let mut done = 0;
        while done < count {
            let now = self.batch.min(count - done);
            self.run(now, &mut |at| read(done + at))?;
            let first = self.outputs.first();
            let first = first.ok_or_else(|| ModelError::Unsupported("no output".into()))?;
            let all = first.as_slice::<f32>().map_err(tensor_error)?;
            let own = all.chunks_exact(self.width.max(1));
            for (row, own) in rows[done..].iter_mut().zip(own) {
                *row = own.to_vec();
            }
            done += now;
            if !progress(done) {
                break;
            }
        }
        Ok(rows)
    }

    fn run(
        &mut self,
        count: usize,
        read: &mut dyn FnMut(usize) -> Result<Image, ModelError>,
    ) -> Result<(), ModelError> {
        let [height, width] = self.size;
        let shape = [count, 3, height, width];
        let pixels = &mut self.pixels;
        pixels.reset_to(DType::F32, &shape).map_err(tensor_error)?;
        let to = pixels.as_slice_mut::<f32>().map_err(tensor_error)?;
        for (at, to) in to.chunks_exact_mut(3 * height * width).enumerate() {
            self.processor.apply(&read(at)?, self.size, to)?;
        }
        let inputs = [("pixels", &self.pixels)];
        let run = self.exe.run_into(&inputs, &mut self.outputs);
        run.map_err(ModelError::from)
    }
}

fn tensor_error(e: tercet::TensorError) -> ModelError {
    ModelError::Unsupported(format!("pixels or output of the model: {e}"))
}

/// A compiled image classifier.
///
/// ```no_run
/// use tercet::Device;
/// use tercet_models::{EncoderOptions, ModelFiles};
/// let files = ModelFiles::open("resnet-50")?;
/// let mut classifier = files.image_classifier(&Device::cpu(), &EncoderOptions::default())?;
/// let scores = classifier.classify(&["cat.jpg"])?;
/// assert_eq!(scores[0].len(), classifier.labels().len());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct ImageClassifier {
    encoder: ImageEmbedder,
    labels: ImageLabels,
}

impl ImageClassifier {
    /// Wraps a model whose number of logits equals the number of labels.
    ///
    /// # Errors
    /// [`ModelError::Unsupported`] if the numbers differ.
    pub fn new(encoder: ImageEmbedder, labels: ImageLabels) -> Result<ImageClassifier, ModelError> {
        match encoder.width() == labels.labels.len() {
            true => Ok(ImageClassifier { encoder, labels }),
            false => Err(ModelError::Unsupported(format!(
                "the model was not built with logits for {} classes",
                labels.labels.len()
            ))),
        }
    }

    /// Names of the classes.
    pub fn labels(&self) -> &[String] {
        &self.labels.labels
    }

    /// Scores of all classes for each file.
    ///
    /// # Errors
    /// Same errors as [`ImageEmbedder::embed_files`].
    pub fn classify<P: AsRef<Path>>(&mut self, paths: &[P]) -> Result<Vec<Vec<f32>>, ModelError> {
        self.classify_with_progress(paths, &mut |_| true)
    }

    /// Scores of all classes for each image in memory.
    ///
    /// # Errors
    /// Same errors as [`ImageEmbedder::embed_images`].
    pub fn classify_images(&mut self, images: &[Image]) -> Result<Vec<Vec<f32>>, ModelError> {
        let mut rows = self.encoder.embed_images(images)?;
        let scoring = self.labels.scoring;
        rows.iter_mut().for_each(|row| scoring.apply(row));
        Ok(rows)
    }

    /// Like [`Self::classify`], with the callback of [`ImageEmbedder::embed_files_with_progress`].
    ///
    /// # Errors
    /// Same errors as [`ImageEmbedder::embed_files`].
    pub fn classify_with_progress<P: AsRef<Path>>(
        &mut self,
        paths: &[P],
        progress: &mut dyn FnMut(usize) -> bool,
    ) -> Result<Vec<Vec<f32>>, ModelError> {
        let mut rows = self.encoder.embed_files_with_progress(paths, progress)?;
        let scoring = self.labels.scoring;
        rows.iter_mut().for_each(|row| scoring.apply(row));
        Ok(rows)
    }
}

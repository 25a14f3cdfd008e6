//! Pictures to vectors and classes.

use std::path::Path;

use tercet::{DType, Device, Executable, Tensor, TensorType};

use super::super::{ModelError, Scoring};
use super::VisionModel;
use crate::error::Error;
use crate::picture::{Picture, PictureProcessor};

/// Pictures of a run unless the caller says.
const BATCH: usize = 8;

/// A compiled model of pictures with what prepares them: pictures in, rows of numbers out.
pub struct PictureEncoder {
    exe: Box<dyn Executable>,
    processor: PictureProcessor,
    size: [usize; 2],
    batch: usize,
    width: usize,
    pixels: Tensor,
    outputs: Vec<Tensor>,
}

impl PictureEncoder {
    /// Compiles `model` for `batch` pictures at once; 8 where there is none.
    ///
    /// # Errors
    /// As [`VisionModel::compile`].
    pub fn new(
        model: &VisionModel,
        processor: PictureProcessor,
        device: &Device,
        batch: Option<usize>,
    ) -> Result<PictureEncoder, ModelError> {
        let batch = batch.unwrap_or(BATCH).max(1);
        let empty = Tensor::zeros(TensorType::new(DType::F32, &[0, 0, 0, 0]));
        Ok(PictureEncoder {
            exe: model.compile(device, batch)?,
            processor,
            size: model.size,
            batch,
            width: model.width,
            pixels: empty.expect("invariant: an empty tensor fits memory"),
            outputs: Vec::new(),
        })
    }

    /// Elements of a row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// The rows of these files, in their order: of features, or logits of classes. As many files as run at once are in
    /// memory. `progress` is called with the number of pictures done; false stops early with what is done, and rows of the
    /// others are empty.
    ///
    /// # Errors
    /// [`Error::Picture`] of a file; [`Error::Model`] of the device.
    pub fn of_files<P: AsRef<Path>>(
        &mut self,
        paths: &[P],
        progress: &mut dyn FnMut(usize) -> bool,
    ) -> Result<Vec<Vec<f32>>, Error> {
        let mut read = |at: usize| -> Result<Picture, Error> { Ok(Picture::open(&paths[at])?) };
        self.run_all(paths.len(), &mut read, progress)
    }

    /// The rows of these pictures, as [`Self::of_files`].
    ///
    /// # Errors
    /// As [`Self::of_files`].
    pub fn of_pictures(&mut self, pictures: &[Picture]) -> Result<Vec<Vec<f32>>, Error> {
        let mut read = |at: usize| -> Result<Picture, Error> { Ok(pictures[at].clone()) };
        self.run_all(pictures.len(), &mut read, &mut |_| true)
    }

    fn run_all(
        &mut self,
        count: usize,
        read: &mut dyn FnMut(usize) -> Result<Picture, Error>,
        progress: &mut dyn FnMut(usize) -> bool,
    ) -> Result<Vec<Vec<f32>>, Error> {
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
        read: &mut dyn FnMut(usize) -> Result<Picture, Error>,
    ) -> Result<(), Error> {
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
        Ok(run.map_err(ModelError::from)?)
    }
}

fn tensor_error(e: tercet::TensorError) -> ModelError {
    ModelError::Unsupported(format!("the pixels or the output of the model: {e}"))
}

/// What a model of pictures tells: the names of its classes and what logits mean.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PictureLabels {
    /// The classes, in order.
    pub labels: Vec<String>,
    /// What logits become.
    pub scoring: Scoring,
}

/// A compiled model of pictures that tells their classes.
pub struct PictureClassifier {
    encoder: PictureEncoder,
    labels: PictureLabels,
}

impl PictureClassifier {
    /// Of an encoder of logits of as many classes as there are labels.
    ///
    /// # Errors
    /// [`ModelError::Unsupported`] for another number.
    pub fn new(
        encoder: PictureEncoder,
        labels: PictureLabels,
    ) -> Result<PictureClassifier, ModelError> {
        match encoder.width() == labels.labels.len() {
            true => Ok(PictureClassifier { encoder, labels }),
            false => Err(ModelError::Unsupported(format!(
                "the model was not built for logits of {} classes",
                labels.labels.len()
            ))),
        }
    }

    /// The names of the classes.
    pub fn labels(&self) -> &[String] {
        &self.labels.labels
    }

    /// The scores of all classes for each file; `progress` as [`PictureEncoder::of_files`].
    ///
    /// # Errors
    /// As [`PictureEncoder::of_files`].
    pub fn classify<P: AsRef<Path>>(
        &mut self,
        paths: &[P],
        progress: &mut dyn FnMut(usize) -> bool,
    ) -> Result<Vec<Vec<f32>>, Error> {
        let mut rows = self.encoder.of_files(paths, progress)?;
        let scoring = self.labels.scoring;
        rows.iter_mut().for_each(|row| scoring.apply(row));
        Ok(rows)
    }
}

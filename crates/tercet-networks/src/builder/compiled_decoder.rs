//! A compiled decoder graph with the outputs of its last run. If rounded matmul inputs overflow, the
//! graph is recompiled in a wider dtype.

use std::ops::Range;

use tercet::{Executable, OutputSelection, StepTime, Tensor, TensorError};

use super::decoder::PICTURES;
use super::decoder::matmul_precision::{OverflowFallback, PrecisionFallback, WidenedModel};
use super::{MatmulPrecision, ModelError};
use crate::maybe_async::WaitMode;

/// The executable of a decoder graph.
pub(super) struct CompiledDecoder {
    /// `None` if recompiling in a wider dtype failed.
    exe: Option<Box<dyn Executable>>,
    /// Information for recompiling in a wider dtype after an overflow, if matmuls are rounded to a
    /// narrow dtype.
    overflow_fallback: Option<OverflowFallback>,
    precision_fallback: Option<PrecisionFallback>,
    /// Image embeddings that token ids above the vocabulary refer to, for vision-language models.
    images: Option<ImageEmbeddings>,
    /// Names of the outputs of the last run, in the order of `outputs`.
    names: &'static [&'static str],
    outputs: Vec<Tensor>,
}

/// Embedding rows that image tokens refer to.
struct ImageEmbeddings {
    /// Embedding rows; at least one, because an input cannot be empty.
    rows: Tensor,
    /// Number of valid image rows.
    count: usize,
}

impl CompiledDecoder {
    pub(super) fn new(
        exe: Box<dyn Executable>,
        overflow_fallback: Option<OverflowFallback>,
    ) -> CompiledDecoder {
        CompiledDecoder {
            exe: Some(exe),
            overflow_fallback,
            precision_fallback: None,
            images: None,
            names: &[],
            outputs: Vec::new(),
        }
    }

    /// The executable.
    ///
    /// # Errors
    /// [`ModelError::Unsupported`] if recompiling in a wider dtype failed.
    pub(super) fn exe(&mut self) -> Result<&mut Box<dyn Executable>, ModelError> {
        self.exe.as_mut().ok_or_else(no_executable)
    }

    /// Starts a run and copies these outputs of it.
    pub(super) async fn submit(
        &mut self,
        inputs: &[(&str, &Tensor)],
        outputs: &'static [&'static str],
        waits: WaitMode,
    ) -> Result<(), ModelError> {
        self.names = outputs;
        let exe = self.exe.as_mut().ok_or_else(no_executable)?;
        let wanted = OutputSelection::Only(outputs);
        Ok(waits.submit(&mut **exe, inputs, wanted).await?)
    }

    /// Elements of an output of the last run; `None` if it was not copied.
    pub(super) fn output<T: tercet::Element>(
        &self,
        name: &str,
    ) -> Result<Option<&[T]>, ModelError> {
        let at = self.names.iter().position(|own| *own == name);
        let output = at.and_then(|at| self.outputs.get(at));
        let output = output.map(|output| output.as_slice());
        output.transpose().map_err(|e| not_the_output(name, &e))
    }

    /// Waits for the submitted run and takes its outputs.
    pub(super) fn wait(&mut self) -> Result<(), ModelError> {
        let exe = self.exe.as_mut().ok_or_else(no_executable)?;
        Ok(exe.wait(&mut self.outputs)?)
    }

    /// Device time of each step of the last run, if the device measures it.
    pub(super) fn timings(&mut self) -> Vec<StepTime> {
        self.exe.as_mut().map_or(Vec::new(), |exe| exe.timings())
    }

    /// Clears all states.
    pub(super) fn reset(&mut self) {
        if let Some(exe) = &mut self.exe {
            exe.reset();
        }
    }

    /// Drops the executable, whose states no longer match the sequences.
    pub(super) fn discard(&mut self) {
        self.exe = None;
    }

    /// True if a run of rounded matmuls can overflow.
    pub(super) fn may_overflow(&self) -> bool {
        self.overflow_fallback.is_some()
    }

    /// Recompiles the model in a wider dtype. All states are empty afterwards. Returns false if there
    /// is no wider dtype.
    pub(super) fn widen(&mut self) -> Result<bool, ModelError> {
        let Some(rounded) = self.overflow_fallback.take() else {
            return Ok(false);
        };
        // Free the memory of the old executable before compiling the new one.
        self.exe = None;
        let WidenedModel {
            mut exe,
            fallback,
            next_fallback,
        } = rounded.widen()?;
        if let Some(images) = &self.images {
            images.bind(&mut *exe)?;
        }
        self.exe = Some(exe);
        self.precision_fallback = Some(fallback);
        self.overflow_fallback = next_fallback;
        Ok(true)
    }

    /// User-facing message about a precision fallback since compilation; usually `None`.
    pub(super) fn fallback_message(&self) -> Option<String> {
        self.precision_fallback.map(|moved| moved.to_string())
    }

    /// Matmul precision after an overflow fallback.
    pub(super) fn fallback_precision(&self) -> Option<MatmulPrecision> {
        self.precision_fallback
            .map(PrecisionFallback::matmul_precision)
    }

    /// Rows of an F32 output of the last run, copied from the device.
    pub(super) async fn read_rows(
        &mut self,
        name: &str,
        rows: Range<usize>,
        waits: WaitMode,
    ) -> Result<Vec<f32>, ModelError> {
        let exe = self.exe()?;
        let rows = match waits {
            WaitMode::Blocking => exe.read_output_rows(name, rows)?,
            WaitMode::Awaiting => exe.fetch_output_rows(name, rows)?.await?,
        };
        let rows = rows.as_slice::<f32>();
        Ok(rows.map_err(|e| not_the_output(name, &e))?.to_vec())
    }

    /// Number of image rows that token ids above the vocabulary refer to.
    pub(super) fn image_rows(&self) -> usize {
        self.images.as_ref().map_or(0, |images| images.count)
    }

    /// True if the graph has an input for image embeddings.
    pub(super) fn takes_images(&self) -> bool {
        self.images.is_some()
    }

    /// Sets the image embeddings: token id `vocab + i` refers to row `i` of `rows`, with `width`
    /// elements per row.
    pub(super) fn set_image_embeddings(
        &mut self,
        width: usize,
        rows: &[f32],
    ) -> Result<(), ModelError> {
        let count = rows.len() / width.max(1);
        let rows = match count {
            0 => Tensor::from_slice(&[1, width], &vec![0.0f32; width]),
            _ => Tensor::from_slice(&[count, width], rows),
        };
        let rows = rows.map_err(|e| ModelError::Unsupported(format!("image embeddings: {e}")))?;
        let images = ImageEmbeddings { rows, count };
        images.bind(&mut **self.exe()?)?;
        self.images = Some(images);
        Ok(())
    }
}

/// A generator that takes image embeddings for the image tokens of its sequence.
pub(super) trait EmbeddingTarget {
    /// Sets the image embeddings: token id `vocab + i` refers to row `i` of `rows`, with `width`
    /// elements per row.
    fn set_image_embeddings(&mut self, width: usize, rows: &[f32]) -> Result<(), ModelError>;

    /// Truncates the caches at the first token whose id is `token` or greater.
    fn truncate_from(&mut self, token: u32);
}

impl ImageEmbeddings {
    fn bind(&self, exe: &mut dyn Executable) -> Result<(), ModelError> {
        let rows = exe.upload(&self.rows)?;
        Ok(exe.bind(PICTURES, &rows)?)
    }
}

fn no_executable() -> ModelError {
    ModelError::Unsupported(
        "the model overflowed its dtype and could not be recompiled in a wider one; open it again"
            .to_string(),
    )
}

fn not_the_output(name: &str, e: &TensorError) -> ModelError {
    ModelError::Unsupported(format!("output `{name}` of the model: {e}"))
}

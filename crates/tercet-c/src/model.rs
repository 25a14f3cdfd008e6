//! Options of opening a model, and the check of its kind.

use tercet::DType;
use tercet_models::{MatmulPrecision, ModelFamily, ModelFiles};

use crate::boundary::OptionsStruct;
use crate::error::{CallError, TercetStatus};
use crate::tensor::dtype_of;

/// Options of opening a language model or an encoder. All zeros, except `struct_size`, are the defaults.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct TercetModelOptions {
    /// `sizeof(TercetModelOptions)`.
    pub struct_size: usize,
    /// Maximum tokens of prompt and answer, or of a text to embed; 0 for the model's maximum, as far as memory allows.
    pub context: usize,
    /// A TercetDtype of floats to compute in; TERCET_DTYPE_NONE for f32 with matmul inputs in 16 bits where that is
    /// faster.
    pub dtype: i32,
    /// Must be 0.
    pub reserved: i32,
}

// SAFETY: all fields are integers.
unsafe impl OptionsStruct for TercetModelOptions {}

impl TercetModelOptions {
    /// The dtype to compute in, and the precision of matmul inputs.
    pub(crate) fn precision(&self) -> Result<(DType, MatmulPrecision), CallError> {
        if self.reserved != 0 {
            return Err(CallError::argument(
                "`options->reserved` is not 0; initialize the whole structure",
            ));
        }
        if self.dtype == 0 {
            return Ok((DType::F32, MatmulPrecision::Auto));
        }
        match dtype_of(self.dtype)? {
            dtype if dtype.is_float() => Ok((dtype, MatmulPrecision::Full)),
            dtype => Err(CallError::argument(format!(
                "`options->dtype` is {dtype}; expected a dtype of floats"
            ))),
        }
    }

    /// The requested context.
    pub(crate) fn context(&self) -> Option<usize> {
        (self.context > 0).then_some(self.context)
    }
}

/// Opens the files of a model of these families.
pub(crate) fn files_of(
    path: &str,
    families: &[ModelFamily],
    purpose: &str,
) -> Result<ModelFiles, CallError> {
    let files = ModelFiles::open(path)?;
    let found = files.family()?;
    match families.contains(&found) {
        true => Ok(files),
        false => {
            let reason = format!("{path}: {} cannot {purpose}", found.describe());
            Err(CallError::new(TercetStatus::Model, reason))
        }
    }
}

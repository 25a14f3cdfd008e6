//! Conversion of file tensors to IR tensors that share the mapped bytes.
//!
//! Data that is aligned for its dtype is not copied, and the tensor keeps the mapping alive. GGUF
//! guarantees this alignment, and safetensors files usually have it. Unaligned data is copied once.
//! Files are little-endian, as are all machines that Tercet supports.

mod small_blocks;

use std::sync::Arc;

use tercet_ir::{DType, MAX_RANK, Scheme, Tensor, TensorError, TensorType};

use crate::foreign::clip;
use crate::gguf::{GgmlType, Gguf, GgufTensorInfo};
use crate::safetensors::{SafeDtype, SafeTensorInfo, SafeTensors};

/// The reason why a tensor of a file cannot be converted to a tensor of the IR.
///
/// ```
/// use tercet_files::WeightError;
/// let error = WeightError::TooManyDims { tensor: "x".to_string(), rank: 9 };
/// assert!(error.to_string().starts_with("tensor `x` has 9 dimensions"));
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(
    missing_docs,
    reason = "the fields are named by the messages above them"
)]
pub enum WeightError {
    /// The IR has no equivalent of the storage type.
    #[error(
        "tensor `{tensor}` at file offset {offset} is stored as {found}, which is not supported; use a model file with another type"
    )]
    UnsupportedType {
        tensor: String,
        offset: usize,
        found: &'static str,
    },
    /// The tensor has more dimensions than the IR supports.
    #[error("tensor `{tensor}` has {rank} dimensions; at most {MAX_RANK} are supported")]
    TooManyDims { tensor: String, rank: usize },
    /// The tensors of a quantized weight are inconsistent.
    #[error("tensor `{tensor}`: {reason}")]
    Quantized { tensor: String, reason: String },
    /// The bytes do not form a valid tensor.
    #[error("tensor `{tensor}`")]
    Tensor { tensor: String, source: TensorError },
}

impl WeightError {
    /// The error of a quantized weight with this name, for a reason.
    pub(crate) fn quantized(tensor: &str) -> impl Fn(String) -> WeightError + '_ {
        move |reason| WeightError::Quantized {
            tensor: tensor.to_string(),
            reason,
        }
    }
}

/// A weight in the form that model builders use.
///
/// ```
/// use tercet_ir::Tensor;
/// use tercet_files::ModelWeight;
/// let weight = ModelWeight::Dense(Tensor::from_slice(&[2, 3], &[0f32; 6])?);
/// assert_eq!(weight.shape(), [2, 3]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub enum ModelWeight {
    /// Unquantized elements, in row-major order.
    Dense(Tensor),
    /// Quantized rows.
    Packed {
        /// The format of the blocks.
        scheme: Scheme,
        /// The blocks, `U8` of shape `[.., row bytes]`.
        blocks: Tensor,
        /// The shape in elements, `[.., row elements]`.
        shape: Vec<usize>,
    },
}

impl ModelWeight {
    /// The shape in elements.
    #[must_use]
    pub fn shape(&self) -> &[usize] {
        match self {
            Self::Dense(tensor) => tensor.shape(),
            Self::Packed { shape, .. } => shape,
        }
    }
}

enum WeightStorage {
    Plain(DType),
    Blocks(Scheme),
    /// The function converts the blocks when they are read to Q4_0, which represents the same
    /// values.
    AsQ4_0(fn(&[u8], &mut Vec<u8>)),
    Unsupported,
}

fn storage(ty: GgmlType) -> WeightStorage {
    match ty {
        GgmlType::F32 => WeightStorage::Plain(DType::F32),
        GgmlType::F16 => WeightStorage::Plain(DType::F16),
        GgmlType::BF16 => WeightStorage::Plain(DType::BF16),
        GgmlType::F64 => WeightStorage::Plain(DType::F64),
        GgmlType::I8 => WeightStorage::Plain(DType::I8),
        GgmlType::I16 => WeightStorage::Plain(DType::I16),
        GgmlType::I32 => WeightStorage::Plain(DType::I32),
        GgmlType::I64 => WeightStorage::Plain(DType::I64),
        GgmlType::Q4_0 => WeightStorage::Blocks(Scheme::Q4_0),
        GgmlType::Q4_1 => WeightStorage::Blocks(Scheme::Q4_1),
        GgmlType::Q5_0 => WeightStorage::Blocks(Scheme::Q5_0),
        GgmlType::Q5_1 => WeightStorage::Blocks(Scheme::Q5_1),
        GgmlType::Q8_0 => WeightStorage::Blocks(Scheme::Q8_0),
        GgmlType::Q2_K => WeightStorage::Blocks(Scheme::Q2K),
        GgmlType::Q3_K => WeightStorage::Blocks(Scheme::Q3K),
        GgmlType::Q4_K => WeightStorage::Blocks(Scheme::Q4K),
        GgmlType::Q5_K => WeightStorage::Blocks(Scheme::Q5K),
        GgmlType::Q6_K => WeightStorage::Blocks(Scheme::Q6K),
        GgmlType::IQ2_XXS => WeightStorage::Blocks(Scheme::Iq2Xxs),
        GgmlType::IQ2_XS => WeightStorage::Blocks(Scheme::Iq2Xs),
        GgmlType::IQ2_S => WeightStorage::Blocks(Scheme::Iq2S),
        GgmlType::IQ3_XXS => WeightStorage::Blocks(Scheme::Iq3Xxs),
        GgmlType::IQ3_S => WeightStorage::Blocks(Scheme::Iq3S),
        GgmlType::IQ1_S => WeightStorage::Blocks(Scheme::Iq1S),
        GgmlType::IQ1_M => WeightStorage::Blocks(Scheme::Iq1M),
        GgmlType::IQ4_NL => WeightStorage::Blocks(Scheme::Iq4Nl),
        GgmlType::IQ4_XS => WeightStorage::Blocks(Scheme::Iq4Xs),
        GgmlType::TQ1_0 => WeightStorage::Blocks(Scheme::Tq1_0),
        GgmlType::TQ2_0 => WeightStorage::Blocks(Scheme::Tq2_0),
        GgmlType::MXFP4 => WeightStorage::Blocks(Scheme::Mxfp4),
        GgmlType::NVFP4 => WeightStorage::Blocks(Scheme::Nvfp4),
        GgmlType::Q1_0 => WeightStorage::AsQ4_0(small_blocks::q1_0),
        GgmlType::Q2_0 => WeightStorage::AsQ4_0(small_blocks::q2_0),
        GgmlType::Q8_1 | GgmlType::Q8_K => WeightStorage::Unsupported,
    }
}

/// The block format of this tensor type.
#[must_use]
pub fn scheme_of(ty: GgmlType) -> Option<Scheme> {
    match storage(ty) {
        WeightStorage::Blocks(scheme) => Some(scheme),
        WeightStorage::Plain(_) | WeightStorage::AsQ4_0(_) | WeightStorage::Unsupported => None,
    }
}

/// The tensor `info` of `gguf`: unquantized elements, or packed blocks for quantized types.
///
/// # Errors
/// [`WeightError::UnsupportedType`] for block formats that the IR does not support.
pub fn gguf_weight(gguf: &Gguf, info: &GgufTensorInfo) -> Result<ModelWeight, WeightError> {
    let share = |dtype: DType, shape: &[usize]| {
        let owner = Arc::new(gguf.file_of(info).clone());
        Tensor::from_owner(TensorType::new(dtype, shape), owner, info.range()).map_err(|source| {
            WeightError::Tensor {
                tensor: clip(info.name()),
                source,
            }
        })
    };
    let shape = info.shape();
    match storage(info.ggml_type()) {
        WeightStorage::Plain(dtype) => share(dtype, &shape).map(ModelWeight::Dense),
        WeightStorage::Blocks(scheme) => {
            let mut packed = shape.clone();
            match packed.last_mut() {
                // A row of a tensor inside the file is shorter than the file, so this fits usize.
                Some(row) => *row = info.row_bytes() as usize,
                None => packed.push(info.row_bytes() as usize),
            }
            Ok(ModelWeight::Packed {
                scheme,
                blocks: share(DType::U8, &packed)?,
                shape,
            })
        }
        WeightStorage::AsQ4_0(convert) => {
            let mut packed = shape.clone();
            let row_bytes = shape.last().map_or(0, |k| k / 32 * 18);
            match packed.last_mut() {
                Some(row) => *row = row_bytes,
                None => packed.push(row_bytes),
            }
            let mut bytes = Vec::with_capacity(packed.iter().product());
            let block = info.ggml_type().block_bytes() as usize;
            for block in gguf.data(info).chunks_exact(block) {
                convert(block, &mut bytes);
            }
            let blocks = Tensor::from_slice(&packed, &bytes);
            let blocks = blocks.map_err(|source| WeightError::Tensor {
                tensor: clip(info.name()),
                source,
            })?;
            Ok(ModelWeight::Packed {
                scheme: Scheme::Q4_0,
                blocks,
                shape,
            })
        }
        WeightStorage::Unsupported => Err(WeightError::UnsupportedType {
            tensor: clip(info.name()),
            offset: info.range().start,
            found: info.ggml_type().name(),
        }),
    }
}

fn dtype(dtype: SafeDtype) -> Option<DType> {
    match dtype {
        SafeDtype::BOOL => Some(DType::Bool),
        SafeDtype::U8 => Some(DType::U8),
        SafeDtype::I8 => Some(DType::I8),
        SafeDtype::I16 => Some(DType::I16),
        SafeDtype::F16 => Some(DType::F16),
        SafeDtype::BF16 => Some(DType::BF16),
        SafeDtype::I32 => Some(DType::I32),
        SafeDtype::U32 => Some(DType::U32),
        SafeDtype::F32 => Some(DType::F32),
        SafeDtype::F64 => Some(DType::F64),
        SafeDtype::I64 => Some(DType::I64),
        SafeDtype::F4
        | SafeDtype::F6_E2M3
        | SafeDtype::F6_E3M2
        | SafeDtype::F8_E5M2
        | SafeDtype::F8_E4M3
        | SafeDtype::F8_E8M0
        | SafeDtype::F8_E4M3FNUZ
        | SafeDtype::F8_E5M2FNUZ
        | SafeDtype::U16
        | SafeDtype::C64
        | SafeDtype::U64 => None,
    }
}

/// The tensor `info` of `file`.
///
/// ```
/// use tercet_files::{MappedFile, SafeTensors, safetensors_tensor};
///
/// let header = br#"{"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
/// let bytes = [&(header.len() as u64).to_le_bytes()[..], header, &[0; 8]].concat();
/// let file = SafeTensors::parse(MappedFile::from_vec(bytes))?;
/// let x = safetensors_tensor(&file, file.tensor("x")?)?;
/// assert_eq!(x.as_slice::<f32>()?, [0.0, 0.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`WeightError::UnsupportedType`] for element types that the IR does not support,
/// [`WeightError::TooManyDims`].
pub fn safetensors_tensor(
    file: &SafeTensors,
    info: &SafeTensorInfo,
) -> Result<Tensor, WeightError> {
    let Some(dtype) = dtype(info.dtype()) else {
        return Err(WeightError::UnsupportedType {
            tensor: clip(info.name()),
            offset: info.range().start,
            found: info.dtype().name(),
        });
    };
    if info.shape().len() > MAX_RANK {
        return Err(WeightError::TooManyDims {
            tensor: clip(info.name()),
            rank: info.shape().len(),
        });
    }
    let ty = TensorType::new(dtype, info.shape());
    let owner = Arc::new(file.file().clone());
    Tensor::from_owner(ty, owner, info.range()).map_err(|source| WeightError::Tensor {
        tensor: clip(info.name()),
        source,
    })
}

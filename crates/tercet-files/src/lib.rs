//! Model files for Tercet: readers through memory maps, and atomic writers.
//!
//! | module | content |
//! |---|---|
//! | [`gguf`] | GGUF files, versions 2 and 3 |
//! | [`safetensors`] | safetensors files |
//! | [`folder_weights`] | the weights of a Hugging Face folder, also quantized ones |
//! | [`weight`] | tensors of files as tensors of the IR, without a copy |
//! | [`writing`] | writers of both formats |
//! | [`json`] | JSON files of a folder |
//! | [`mmap`] | memory-mapped files, and bounded reads of small files |
//!
//! Every reader works on a [`MappedFile`] and accepts untrusted input. An invalid file gives a
//! typed error with the position in the file and the remedy. Detecting it takes memory and time in
//! proportion to the file's header. User input never causes a panic.

mod folder_error;
pub mod folder_weights;
mod foreign;
pub mod gguf;
pub mod json;
pub mod mmap;
pub mod safetensors;
pub mod weight;
pub mod writing;

pub use folder_error::FolderError;
pub use folder_weights::HfWeights;
pub use foreign::{clip, contained};
pub use gguf::{GgmlType, Gguf, GgufError};
pub use mmap::{FileError, MappedFile};
pub use safetensors::{SafeDtype, SafeTensorInfo, SafeTensors, SafeTensorsError};
pub use weight::{ModelWeight, WeightError, gguf_weight, safetensors_tensor};
pub use writing::SaveError;

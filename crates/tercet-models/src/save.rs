//! Writing of models and adapters.
//!
//! | file | content |
//! |---|---|
//! | `model.rs` | copies of a model's files with some weights replaced |
//! | `quantize.rs` | conversion to a GGUF file with quantized matrices |
//! | `folder/` | conversion of a safetensors folder to a GGUF file |

mod folder;
mod model;
mod quantize;

pub use model::{RepackFormat, SaveOptions, SaveReport, name_classes, save_model};
pub(crate) use model::{WeightReplacement, rewrite};
pub use quantize::{QuantMix, QuantizationReport, QuantizedTensor, quantize_model};
pub use tercet_files::writing::SaveError;

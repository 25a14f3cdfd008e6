//! Parts of the library, through `tercet_onnx::internals`.

mod emulated_dtypes;
mod recurrent_export;

//! Parts of the library: some tests use items of `tercet_ir::internals`.

mod arena;
mod debug_switches;
mod layout;
mod map_text;
mod non_finite;
mod resize_table;
mod scalar;
mod spectral;
#[cfg(feature = "splat")]
mod splat;
mod switches;
mod tensor_text;
mod window;

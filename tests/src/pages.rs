//! The examples of the documentation pages, as documentation tests.

#[doc = include_str!("../../docs/guide/concepts.md")]
mod concepts {}
#[doc = include_str!("../../docs/howto/debug-numerics.md")]
mod debug_numerics {}
#[doc = include_str!("../../docs/guide/getting-started.md")]
mod getting_started {}
#[doc = include_str!("../../docs/howto/onnx.md")]
mod onnx {}
#[doc = include_str!("../../README.md")]
mod readme {}
#[doc = include_str!("../../docs/guide/rust.md")]
mod rust {}
#[cfg(feature = "wgpu")]
#[doc = include_str!("../../docs/guide/browser.md")]
mod browser {}

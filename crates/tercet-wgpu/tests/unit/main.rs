//! Private parts of the crate. Most need no device; without a driver, the others pass.
#![allow(clippy::unwrap_used, reason = "a test: errors fail it")]

mod bindings;
mod call;
mod encode;
mod inputs;
mod options;
mod pipeline;
mod rewrite;
mod spirv;
mod vulkan_hal;

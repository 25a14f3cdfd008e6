//! A Vulkan layer for tests, between a program and a software driver. It plays drivers that this
//! machine does not have.
//!
//! | switch | effect |
//! |---|---|
//! | `portability` | the device is MoltenVK's: its extensions, features and limits, and nothing else |
//! | `refuse=HASH` | pipelines of the shader module with this hash are refused |
//! | `spoil=HASH` | cooperative matrices of the shader module with this hash multiply wrong |
//!
//! [`ENV_SWITCHES`] contains a comma-separated list of switches. The layer appends a line to the file
//! in [`ENV_LOG`] for each pipeline ([`PIPELINE`]) and for each use that the device does not permit
//! ([`VIOLATION`]).
//!
//! Tests run programs with the layer through [`InstalledLayer`]. `entry.rs` has the functions that the
//! loader calls, `portability.rs` the properties of MoltenVK.
#![allow(
    unsafe_code,
    reason = "a layer is a C library that the loader calls, and calls the driver"
)]

mod chain;
mod entry;
mod installed;
mod objects;
mod portability;
mod settings;
mod spirv;

pub use installed::{InstalledLayer, own_program};

/// The name of the layer.
pub const NAME: &str = "VK_LAYER_TERCET_test";

/// The environment variable with the switches of the layer.
pub const ENV_SWITCHES: &str = "TERCET_TEST_LAYER";

/// The environment variable with the path of the log file.
pub const ENV_LOG: &str = "TERCET_TEST_LAYER_LOG";

/// The first word of a line for a created pipeline. The hash of its shader module follows.
pub const PIPELINE: &str = "pipeline";

/// The first word of a line for a use that the device does not permit.
pub const VIOLATION: &str = "violation:";

//! Tests of graphs and devices, in one binary because each binary takes seconds to link.
#![allow(clippy::unwrap_used, reason = "a test fails by a panic")]

#[cfg(any(feature = "vulkan", feature = "wgpu"))]
mod debug;
#[cfg(feature = "cpu")]
mod expressions;
#[cfg(feature = "cpu")]
mod optimized;
#[cfg(any(feature = "vulkan", feature = "wgpu"))]
mod refused;
#[cfg(feature = "cpu")]
mod switches;
#[cfg(all(feature = "cpu", feature = "train"))]
mod trace;
mod units;
#[cfg(feature = "cpu")]
mod verify;

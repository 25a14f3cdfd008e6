//! Errors of opening a device, and the error of every later call to the driver.

use ash::vk;
use tercet_ir::{CompileError, RunError};

/// Why no Vulkan device could be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VulkanOpenError {
    /// The Vulkan loader is not installed.
    #[error(
        "no Vulkan loader: {reason}; install it (Debian: libvulkan1) with the driver of the GPU"
    )]
    NoLoader {
        /// What the system said.
        reason: String,
    },
    /// The loader or the device is older than Vulkan 1.2.
    #[error("{what} has Vulkan {found}; 1.2 is needed: update the driver")]
    TooOld {
        /// The loader or the name of the device.
        what: String,
        /// Its version.
        found: String,
    },
    /// The loader found no driver.
    #[error(
        "no Vulkan driver: {reason}; install the driver of the GPU (Debian: mesa-vulkan-drivers, \
         or the vendor's)"
    )]
    NoDriver {
        /// What the loader said.
        reason: String,
    },
    /// Drivers are there, but no device.
    #[error("Vulkan is installed but finds no device; check the GPU and the rights on /dev/dri")]
    NoDevice,
    /// No device matches the one asked for.
    #[error("no Vulkan device matches `{wanted}`; there are: {found}")]
    NotFound {
        /// What was asked for.
        wanted: String,
        /// The devices there are.
        found: String,
    },
    /// The device lacks something that every program needs.
    #[error("{device} lacks {feature}; update the driver or choose another device")]
    MissingFeature {
        /// The device.
        device: String,
        /// What it lacks.
        feature: &'static str,
    },
    /// Validation was asked for and its layer is not installed.
    #[error(
        "the layer VK_LAYER_KHRONOS_validation is not installed (Debian: \
         vulkan-validationlayers); install it or leave validation off"
    )]
    NoValidation,
    /// The device was found but could not be made ready.
    #[error("{device}: {reason}")]
    Setup {
        /// The device.
        device: String,
        /// What went wrong.
        reason: String,
    },
    /// A call failed.
    #[error("{call}: {result}")]
    Driver {
        /// The Vulkan function.
        call: &'static str,
        /// Its result.
        result: vk::Result,
    },
}

/// Why a call to an open device failed.
#[derive(Clone, Debug)]
pub(crate) enum VulkanError {
    /// No memory for `what`.
    OutOfMemory { what: &'static str, bytes: u64 },
    /// The device is gone.
    Lost { reason: String },
    /// Anything else: a driver's failure, or code of ours that it refuses.
    Failed { reason: String },
}

impl From<VulkanError> for CompileError {
    fn from(e: VulkanError) -> CompileError {
        match e {
            VulkanError::OutOfMemory { what, bytes } => CompileError::OutOfMemory { what, bytes },
            VulkanError::Lost { reason } => CompileError::Device {
                reason: format!("device lost: {reason}"),
            },
            VulkanError::Failed { reason } => CompileError::Device { reason },
        }
    }
}

impl From<VulkanError> for RunError {
    fn from(e: VulkanError) -> RunError {
        match e {
            VulkanError::OutOfMemory { what, bytes } => RunError::OutOfMemory { what, bytes },
            VulkanError::Lost { reason } | VulkanError::Failed { reason } => {
                RunError::DeviceLost { reason }
            }
        }
    }
}

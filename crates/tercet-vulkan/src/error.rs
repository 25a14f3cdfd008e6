//! Errors of opening a device, and the error type of later driver calls.

use ash::vk;
use tercet_ir::{CompileError, RunError, SwitchError};

/// The error of opening a Vulkan device.
///
/// ```
/// use tercet_vulkan::VulkanOpenError;
/// let (wanted, found) = ("titan".to_string(), "0: llvmpipe".to_string());
/// let error = VulkanOpenError::NotFound { wanted, found };
/// assert!(error.to_string().contains("`titan`"));
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VulkanOpenError {
    /// The Vulkan loader is not installed.
    #[error(
        "no Vulkan loader: {reason}; install it (Debian: libvulkan1) with the driver of the GPU"
    )]
    NoLoader {
        /// The reason from the operating system.
        reason: String,
    },
    /// The loader or the device is older than Vulkan 1.2.
    #[error("{what} has Vulkan {found}, at least 1.2 is required; update the driver")]
    TooOld {
        /// `the loader`, or the name of the device.
        what: String,
        /// Its Vulkan version.
        found: String,
    },
    /// The loader found no driver.
    #[error(
        "no Vulkan driver: {reason}; install the driver of the GPU (Debian: mesa-vulkan-drivers, \
         or the vendor's)"
    )]
    NoDriver {
        /// The reason from the loader.
        reason: String,
    },
    /// A driver is installed but reports no device.
    #[error(
        "Vulkan is installed but reports no device; check the GPU and the permissions of /dev/dri"
    )]
    NoDevice,
    /// No device matches the requested one.
    #[error("no Vulkan device matches `{wanted}`; available: {found}")]
    NotFound {
        /// The requested index or name.
        wanted: String,
        /// The available devices.
        found: String,
    },
    /// The device lacks a feature that every program needs.
    #[error("{device} lacks {feature}; update the driver or choose another device")]
    MissingFeature {
        /// The name of the device.
        device: String,
        /// The missing feature.
        feature: &'static str,
    },
    /// Validation was requested but its layer is not installed.
    #[error(
        "the layer VK_LAYER_KHRONOS_validation is not installed (Debian: \
         vulkan-validationlayers); install it or disable validation"
    )]
    NoValidation,
    /// The device was found but its setup failed.
    #[error("{device}: {reason}")]
    Setup {
        /// The name of the device.
        device: String,
        /// The reason of the failure.
        reason: String,
    },
    /// A switch does not exist, or the device cannot run a forced variant.
    #[error(transparent)]
    Switch(#[from] SwitchError),
    /// A Vulkan call failed.
    #[error("{call}: {result}")]
    Driver {
        /// The Vulkan function.
        call: &'static str,
        /// The result code.
        result: vk::Result,
    },
}

/// The error of a call to an open device.
#[derive(Clone, Debug)]
pub enum VulkanError {
    /// Out of memory during the allocation of `what`.
    OutOfMemory {
        /// The memory that was asked for.
        what: &'static str,
        /// The size in bytes.
        bytes: u64,
    },
    /// The device is lost.
    Lost {
        /// The cause.
        reason: String,
    },
    /// The driver rejects a kernel.
    Refused {
        /// The name of the kernel.
        kernel: String,
        /// The cause.
        reason: String,
    },
    /// Any other failure.
    Failed {
        /// The cause.
        reason: String,
    },
}

impl From<VulkanError> for CompileError {
    fn from(e: VulkanError) -> CompileError {
        match e {
            VulkanError::OutOfMemory { what, bytes } => CompileError::OutOfMemory { what, bytes },
            VulkanError::Lost { reason } => CompileError::Device {
                reason: format!("device lost: {reason}"),
            },
            VulkanError::Refused { kernel, reason } => CompileError::Kernel { kernel, reason },
            VulkanError::Failed { reason } => CompileError::Device { reason },
        }
    }
}

impl From<VulkanError> for RunError {
    fn from(e: VulkanError) -> RunError {
        match e {
            VulkanError::OutOfMemory { what, bytes } => RunError::OutOfMemory { what, bytes },
            VulkanError::Lost { reason }
            | VulkanError::Refused { reason, .. }
            | VulkanError::Failed { reason } => RunError::DeviceLost { reason },
        }
    }
}

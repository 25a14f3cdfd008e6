//! What a device offers, as far as plans depend on it.

use crate::natives::Natives;
use crate::tuning::Tuning;

/// The kinds of numbers a cooperative matrix multiplies, with `f32` accumulators.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CoopType {
    /// IEEE half precision.
    F16,
    /// bfloat16.
    BF16,
}

/// A cooperative-matrix shape `m x n x k` of subgroup scope with `f32` accumulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CoopShape {
    /// The type of both factors.
    pub ty: CoopType,
    /// Rows of the result.
    pub m: u32,
    /// Columns of the result.
    pub n: u32,
    /// The summed size.
    pub k: u32,
    /// There are matrices of results of the factors' type, too.
    pub narrow_sums: bool,
}

/// Cooperative matrices of a whole workgroup, with `f32` accumulation: sizes are multiples of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CoopBlock {
    /// The type of both factors.
    pub ty: CoopType,
    /// What rows of the result are a multiple of.
    pub m: u32,
    /// What columns of the result are a multiple of.
    pub n: u32,
    /// What the summed size is a multiple of.
    pub k: u32,
    /// The invocations of the workgroup.
    pub threads: u32,
}

/// Limits and features of a device.
///
/// The `Caps` of a device profile make a plan without a device: see [`Caps::h200`] and its siblings,
/// whose plans are snapshots of the tests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caps {
    /// The executor's name, for errors.
    pub target: &'static str,
    /// The most bytes that one binding reaches.
    pub max_binding_bytes: u64,
    /// The most storage buffers of one kernel.
    pub max_storage_buffers: u32,
    /// Slots start at multiples of this.
    pub storage_align_bytes: u32,
    /// Parameter blocks start at multiples of this.
    pub uniform_align_bytes: u32,
    /// Shared memory of a workgroup.
    pub workgroup_bytes: u32,
    /// The most invocations of a workgroup.
    pub max_workgroup: u32,
    /// The most workgroups along one axis of a grid.
    pub max_grid: u32,
    /// The size of subgroups, where kernels may use them and all have this size.
    pub subgroup: Option<u32>,
    /// SPIR-V kernels can run.
    pub spirv: bool,
    /// Cooperative matrices.
    pub coop: Vec<CoopShape>,
    /// Cooperative matrices of a workgroup, loaded from tensors, with functions of their elements.
    pub coop_blocks: Vec<CoopBlock>,
    /// Accumulators of cooperative matrices can be converted to factors.
    pub coop_converts: bool,
    /// Elements of F16 matrices of 16 x 8 x 16 lie over a subgroup of 32 as kernels expect that fill such matrices
    /// themselves, which [`lanes`](crate::lanes) finds out.
    pub coop_lanes: bool,
    /// What the device's own arithmetic does right, which [`native_trial`](crate::native_trial) finds out.
    pub natives: Natives,
    /// Products of two words of four signed bytes, added up, are one instruction.
    pub packed_dots: bool,
    /// Units that run workgroups side by side; 0 when unknown.
    pub compute_units: u32,
    /// What was measured on the device.
    pub tuning: Tuning,
}

impl Caps {
    /// The units that run workgroups side by side, or a guess of the caller's where the device does not say.
    pub fn units_or(&self, typical: usize) -> usize {
        match self.compute_units {
            0 => typical,
            units => units as usize,
        }
    }

    /// What every WebGPU implementation offers: the default limits of a browser.
    pub fn browser() -> Caps {
        Caps {
            target: "wgpu",
            max_binding_bytes: 128 << 20,
            max_storage_buffers: 8,
            storage_align_bytes: 256,
            uniform_align_bytes: 256,
            workgroup_bytes: 16 << 10,
            max_workgroup: 256,
            max_grid: 65535,
            subgroup: None,
            spirv: false,
            coop: Vec::new(),
            coop_blocks: Vec::new(),
            coop_converts: false,
            coop_lanes: false,
            natives: Natives::default(),
            packed_dots: false,
            compute_units: 0,
            tuning: Tuning::default(),
        }
    }

    /// A data-centre GPU of 2024 through Vulkan.
    pub fn h200() -> Caps {
        let shape = |ty| CoopShape {
            ty,
            m: 16,
            n: 16,
            k: 16,
            narrow_sums: ty == CoopType::F16,
        };
        let block = |ty, threads| CoopBlock {
            ty,
            m: 32,
            n: 32,
            k: 16,
            threads,
        };
        Caps {
            target: "vulkan",
            max_binding_bytes: u64::from(u32::MAX),
            max_storage_buffers: 32,
            storage_align_bytes: 64,
            uniform_align_bytes: 64,
            workgroup_bytes: 48 << 10,
            max_workgroup: 1024,
            max_grid: 65535,
            subgroup: Some(32),
            spirv: true,
            coop: vec![shape(CoopType::F16), shape(CoopType::BF16)],
            coop_blocks: vec![
                block(CoopType::F16, 128),
                block(CoopType::F16, 256),
                block(CoopType::BF16, 128),
                block(CoopType::BF16, 256),
            ],
            coop_converts: true,
            coop_lanes: true,
            natives: Natives {
                halves: true,
                floats: true,
            },
            packed_dots: true,
            compute_units: 132,
            tuning: Tuning::default(),
        }
    }

    /// An integrated GPU through Vulkan, without cooperative matrices.
    pub fn laptop() -> Caps {
        Caps {
            target: "vulkan",
            max_binding_bytes: 1 << 30,
            max_storage_buffers: 16,
            storage_align_bytes: 64,
            uniform_align_bytes: 64,
            workgroup_bytes: 32 << 10,
            max_workgroup: 1024,
            max_grid: 65535,
            subgroup: Some(32),
            spirv: true,
            coop: Vec::new(),
            coop_blocks: Vec::new(),
            coop_converts: false,
            coop_lanes: false,
            natives: Natives {
                halves: true,
                floats: true,
            },
            packed_dots: true,
            compute_units: 12,
            tuning: Tuning::default(),
        }
    }

    /// Mesa's Vulkan on the processor, as Debian 12 has it.
    pub fn lavapipe() -> Caps {
        Caps {
            max_binding_bytes: 128 << 20,
            subgroup: None,
            natives: Natives::default(),
            packed_dots: true,
            compute_units: 0,
            ..Caps::laptop()
        }
    }
}

//! Device profiles: capabilities of devices for which tests plan programs without the hardware. A
//! profile of a real device holds the properties that its driver reports or its vendor publishes.
//! Properties that are not reported are derived as for any other device.

use super::{DeviceModel, GpuKind, ReportedProperties};
use crate::caps::{CoopBlock, CoopShape, CoopType, DeviceCaps, WgslCoopShape, WgslCoopType};
use crate::native_ops::NativeOps;

const RIGHT: NativeOps = NativeOps {
    f16_conversions: true,
    floats: true,
    shuffles: true,
};

fn shape(ty: CoopType, [m, n, k]: [u32; 3]) -> CoopShape {
    CoopShape {
        ty,
        m,
        n,
        k,
        narrow_accumulators: ty == CoopType::F16,
    }
}

impl DeviceCaps {
    /// A browser with the default WebGPU limits, which every implementation offers.
    pub fn browser() -> DeviceCaps {
        DeviceCaps {
            target: "wgpu",
            max_binding_bytes: 128 << 20,
            max_storage_buffers: 8,
            max_batch_buffers: 8,
            storage_align_bytes: 256,
            uniform_align_bytes: 256,
            workgroup_bytes: 16 << 10,
            max_workgroup: 256,
            max_grid: 65535,
            subgroup: None,
            spirv: false,
            coop: Vec::new(),
            coop_blocks: Vec::new(),
            coop_wgsl: Vec::new(),
            coop_converts: false,
            coop_fragment_layout: false,
            shuffles: false,
            ordered_storage: false,
            ordered_dispatches: false,
            natives: NativeOps::default(),
            packed_dots: false,
            device: DeviceModel::new(&ReportedProperties {
                workgroup_bytes: 16 << 10,
                ..ReportedProperties::default()
            }),
        }
    }

    /// NVIDIA H200, a data-center GPU of 2024, through Vulkan: 132 SMs. The profile contains
    /// exactly what the driver reports, so programs planned for it equal those planned on the
    /// hardware.
    pub fn h200() -> DeviceCaps {
        let block = |ty, threads| CoopBlock {
            ty,
            m: 32,
            n: 32,
            k: 16,
            threads,
        };
        DeviceCaps {
            max_binding_bytes: u64::from(u32::MAX),
            max_storage_buffers: 32,
            max_batch_buffers: 128,
            workgroup_bytes: 48 << 10,
            coop: [CoopType::F16, CoopType::BF16]
                .map(|ty| shape(ty, [16; 3]))
                .to_vec(),
            coop_blocks: vec![
                block(CoopType::F16, 128),
                block(CoopType::F16, 256),
                block(CoopType::BF16, 128),
                block(CoopType::BF16, 256),
            ],
            coop_converts: true,
            coop_fragment_layout: true,
            ordered_dispatches: true,
            device: DeviceModel::new(&ReportedProperties {
                kind: GpuKind::Discrete,
                units: Some(132),
                subgroups: Some([32; 2]),
                workgroup_bytes: 48 << 10,
                ..ReportedProperties::default()
            }),
            ..DeviceCaps::laptop()
        }
    }

    /// An integrated GPU through Vulkan, without cooperative matrices.
    pub fn laptop() -> DeviceCaps {
        DeviceCaps {
            target: "vulkan",
            max_binding_bytes: 1 << 30,
            max_storage_buffers: 16,
            max_batch_buffers: 16,
            storage_align_bytes: 64,
            uniform_align_bytes: 64,
            workgroup_bytes: 32 << 10,
            max_workgroup: 1024,
            max_grid: 65535,
            subgroup: Some(32),
            spirv: true,
            coop: Vec::new(),
            coop_blocks: Vec::new(),
            coop_wgsl: Vec::new(),
            coop_converts: false,
            coop_fragment_layout: false,
            shuffles: true,
            ordered_storage: true,
            ordered_dispatches: false,
            natives: RIGHT,
            packed_dots: true,
            device: DeviceModel {
                unit_shared_bytes: 100 << 10,
                multi_occupancy_shared_bytes: 32 << 10,
                ..DeviceModel::new(&ReportedProperties {
                    kind: GpuKind::Integrated,
                    units: Some(12),
                    subgroups: Some([32; 2]),
                    workgroup_bytes: 32 << 10,
                    ..ReportedProperties::default()
                })
            },
        }
    }

    /// Lavapipe, Mesa's Vulkan implementation on the CPU, as packaged in Debian 12.
    pub fn lavapipe() -> DeviceCaps {
        DeviceCaps {
            max_binding_bytes: 128 << 20,
            subgroup: None,
            shuffles: false,
            natives: NativeOps::default(),
            packed_dots: true,
            ordered_dispatches: true,
            device: DeviceModel::new(&ReportedProperties {
                kind: GpuKind::Software,
                workgroup_bytes: 32 << 10,
                ..ReportedProperties::default()
            }),
            ..DeviceCaps::laptop()
        }
    }

    /// An AMD RDNA 3 card through Vulkan with subgroups of 32 or 64. The RDNA 3 card has 96 compute
    /// units, each with 64 lanes, 64 KiB of shared memory and 96 K registers. On the RDNA 3 card, a
    /// thread has at most 256 registers, and the L2 cache has 6 MiB.
    pub fn rdna3(subgroup: u32) -> DeviceCaps {
        DeviceCaps {
            max_binding_bytes: u64::from(u32::MAX),
            max_storage_buffers: 32,
            max_batch_buffers: 128,
            workgroup_bytes: 64 << 10,
            subgroup: Some(subgroup),
            coop: [CoopType::F16, CoopType::BF16]
                .map(|ty| shape(ty, [16; 3]))
                .to_vec(),
            device: DeviceModel {
                unit_shared_bytes: 64 << 10,
                cache_bytes: 6 << 20,
                ..DeviceModel::new(&ReportedProperties {
                    kind: GpuKind::Discrete,
                    units: Some(96),
                    unit_lanes: Some(64),
                    unit_registers: Some(96 << 10),
                    registers: Some(256),
                    subgroups: Some([32, 64]),
                    workgroup_bytes: 64 << 10,
                })
            },
            ..DeviceCaps::laptop()
        }
    }

    /// An Intel Arc card through Vulkan: subgroups of 8 to 32, cooperative matrices of 8 x 16 x 16.
    /// The driver does not report the number of compute units.
    pub fn arc() -> DeviceCaps {
        DeviceCaps {
            max_binding_bytes: u64::from(u32::MAX),
            max_storage_buffers: 32,
            max_batch_buffers: 128,
            workgroup_bytes: 64 << 10,
            subgroup: Some(16),
            coop: [CoopType::F16, CoopType::BF16]
                .map(|ty| shape(ty, [8, 16, 16]))
                .to_vec(),
            device: DeviceModel::new(&ReportedProperties {
                kind: GpuKind::Discrete,
                subgroups: Some([8, 32]),
                workgroup_bytes: 64 << 10,
                ..ReportedProperties::default()
            }),
            ..DeviceCaps::laptop()
        }
    }

    /// An NVIDIA H200 through wgpu on Vulkan, without passthrough of SPIR-V: cooperative matrices in
    /// WGSL only, and barriers of wgpu.
    pub fn h200_without_passthrough() -> DeviceCaps {
        DeviceCaps {
            target: "wgpu",
            max_batch_buffers: 31,
            storage_align_bytes: 256,
            uniform_align_bytes: 256,
            spirv: false,
            coop: Vec::new(),
            coop_blocks: Vec::new(),
            coop_wgsl: vec![WgslCoopShape {
                ty: WgslCoopType::F16,
                side: 16,
            }],
            coop_converts: false,
            coop_fragment_layout: false,
            ordered_dispatches: false,
            ..DeviceCaps::h200()
        }
    }

    /// An Apple GPU through wgpu: 32 KiB of threadgroup memory and SIMD groups of 32. The matrix
    /// instructions of Apple GPUs are available in Metal but not through SPIR-V.
    pub fn apple() -> DeviceCaps {
        DeviceCaps {
            max_binding_bytes: u64::from(u32::MAX) / 4 * 4,
            max_storage_buffers: 29,
            max_batch_buffers: 29,
            workgroup_bytes: 32 << 10,
            max_workgroup: 1024,
            subgroup: Some(32),
            coop_wgsl: [WgslCoopType::F32, WgslCoopType::F16]
                .map(|ty| WgslCoopShape { ty, side: 8 })
                .to_vec(),
            shuffles: true,
            ordered_storage: false,
            ordered_dispatches: false,
            natives: RIGHT,
            device: DeviceModel::new(&ReportedProperties {
                kind: GpuKind::Integrated,
                subgroups: Some([32; 2]),
                workgroup_bytes: 32 << 10,
                ..ReportedProperties::default()
            }),
            ..DeviceCaps::browser()
        }
    }

    /// An Apple GPU through MoltenVK, a portability driver of Vulkan on Metal: no matrices, no
    /// dependent launches, no packed dot products in hardware. All buffers of a kernel share Metal's
    /// 31 slots. MoltenVK does not report the number of GPU cores.
    pub fn moltenvk() -> DeviceCaps {
        DeviceCaps {
            max_binding_bytes: u64::from(u32::MAX),
            max_storage_buffers: 29,
            storage_align_bytes: 64,
            uniform_align_bytes: 256,
            workgroup_bytes: 32 << 10,
            max_workgroup: 1024,
            packed_dots: false,
            device: DeviceModel::new(&ReportedProperties {
                kind: GpuKind::Integrated,
                subgroups: Some([32; 2]),
                workgroup_bytes: 32 << 10,
                ..ReportedProperties::default()
            }),
            ..DeviceCaps::laptop()
        }
    }

    /// A Qualcomm Adreno phone GPU through Vulkan: subgroups of 64 or 128, bindings of at most 128
    /// MiB.
    pub fn adreno() -> DeviceCaps {
        DeviceCaps {
            max_binding_bytes: 128 << 20,
            subgroup: Some(64),
            device: DeviceModel::new(&ReportedProperties {
                kind: GpuKind::Integrated,
                subgroups: Some([64, 128]),
                workgroup_bytes: 32 << 10,
                ..ReportedProperties::default()
            }),
            ..DeviceCaps::laptop()
        }
    }

    /// An Arm Mali phone GPU through Vulkan: subgroups of 16, 12 cores, bindings of at most 256
    /// MiB. The profile has the smallest shared memory and workgroup limits among recent Mali GPU
    /// generations.
    pub fn mali() -> DeviceCaps {
        DeviceCaps {
            max_binding_bytes: 256 << 20,
            workgroup_bytes: 16 << 10,
            max_workgroup: 512,
            subgroup: Some(16),
            device: DeviceModel::new(&ReportedProperties {
                kind: GpuKind::Integrated,
                units: Some(12),
                subgroups: Some([16; 2]),
                workgroup_bytes: 16 << 10,
                ..ReportedProperties::default()
            }),
            ..DeviceCaps::laptop()
        }
    }
}

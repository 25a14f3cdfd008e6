//! Devices that tests plan for without having them. What a profile says of a real device is what its driver reports or its
//! maker publishes; the rest is derived as for any device.

use super::{Device, Kind, Said};
use crate::caps::{Caps, CoopBlock, CoopShape, CoopType};
use crate::natives::Natives;

const RIGHT: Natives = Natives {
    halves: true,
    floats: true,
    shuffles: true,
};

fn shape(ty: CoopType, [m, n, k]: [u32; 3]) -> CoopShape {
    CoopShape {
        ty,
        m,
        n,
        k,
        narrow_sums: ty == CoopType::F16,
    }
}

impl Caps {
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
            shuffles: false,
            ordered_storage: false,
            ordered_dispatches: false,
            natives: Natives::default(),
            packed_dots: false,
            device: Device::of(&Said {
                workgroup_bytes: 16 << 10,
                ..Said::default()
            }),
        }
    }

    /// A data-centre GPU of 2024 through Vulkan: 132 units. Its description is what its driver says, nothing beside, so that
    /// plans of the profile are those of the device.
    pub fn h200() -> Caps {
        let block = |ty, threads| CoopBlock {
            ty,
            m: 32,
            n: 32,
            k: 16,
            threads,
        };
        Caps {
            max_binding_bytes: u64::from(u32::MAX),
            max_storage_buffers: 32,
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
            coop_lanes: true,
            ordered_dispatches: true,
            device: Device::of(&Said {
                kind: Kind::Discrete,
                units: Some(132),
                subgroups: Some([32; 2]),
                workgroup_bytes: 48 << 10,
                ..Said::default()
            }),
            ..Caps::laptop()
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
            shuffles: true,
            ordered_storage: true,
            ordered_dispatches: false,
            natives: RIGHT,
            packed_dots: true,
            device: Device {
                unit_shared_bytes: 100 << 10,
                several_bytes: 32 << 10,
                ..Device::of(&Said {
                    kind: Kind::Integrated,
                    units: Some(12),
                    subgroups: Some([32; 2]),
                    workgroup_bytes: 32 << 10,
                    ..Said::default()
                })
            },
        }
    }

    /// Mesa's Vulkan on the processor, as Debian 12 has it.
    pub fn lavapipe() -> Caps {
        Caps {
            max_binding_bytes: 128 << 20,
            subgroup: None,
            shuffles: false,
            natives: Natives::default(),
            packed_dots: true,
            ordered_dispatches: true,
            device: Device::of(&Said {
                kind: Kind::Software,
                workgroup_bytes: 32 << 10,
                ..Said::default()
            }),
            ..Caps::laptop()
        }
    }

    /// A card of AMD's third generation of RDNA through Vulkan, whose subgroups have this size, 32 or 64: 96 compute units
    /// of 64 lanes and 64 KiB, 96 K registers, 256 an invocation, 6 MiB of cache that all share.
    pub fn rdna3(subgroup: u32) -> Caps {
        Caps {
            max_binding_bytes: u64::from(u32::MAX),
            max_storage_buffers: 32,
            workgroup_bytes: 64 << 10,
            subgroup: Some(subgroup),
            coop: [CoopType::F16, CoopType::BF16]
                .map(|ty| shape(ty, [16; 3]))
                .to_vec(),
            device: Device {
                unit_shared_bytes: 64 << 10,
                cache_bytes: 6 << 20,
                ..Device::of(&Said {
                    kind: Kind::Discrete,
                    units: Some(96),
                    unit_lanes: Some(64),
                    unit_registers: Some(96 << 10),
                    registers: Some(256),
                    subgroups: Some([32, 64]),
                    workgroup_bytes: 64 << 10,
                })
            },
            ..Caps::laptop()
        }
    }

    /// An Arc card of Intel's through Vulkan: subgroups of 8 to 32, fragments of 8 x 16 x 16; the driver does not say how
    /// many cores there are.
    pub fn arc() -> Caps {
        Caps {
            max_binding_bytes: u64::from(u32::MAX),
            max_storage_buffers: 32,
            workgroup_bytes: 64 << 10,
            subgroup: Some(16),
            coop: [CoopType::F16, CoopType::BF16]
                .map(|ty| shape(ty, [8, 16, 16]))
                .to_vec(),
            device: Device::of(&Said {
                kind: Kind::Discrete,
                subgroups: Some([8, 32]),
                workgroup_bytes: 64 << 10,
                ..Said::default()
            }),
            ..Caps::laptop()
        }
    }

    /// A GPU of Apple's through wgpu: 32 KiB of threadgroup memory, SIMD groups of 32, matrices that are Metal's own and not
    /// SPIR-V's.
    pub fn apple() -> Caps {
        Caps {
            max_binding_bytes: u64::from(u32::MAX) / 4 * 4,
            max_storage_buffers: 29,
            workgroup_bytes: 32 << 10,
            max_workgroup: 1024,
            subgroup: Some(32),
            coop: vec![shape(CoopType::F16, [8; 3])],
            shuffles: true,
            ordered_storage: false,
            ordered_dispatches: false,
            natives: RIGHT,
            device: Device::of(&Said {
                kind: Kind::Integrated,
                subgroups: Some([32; 2]),
                workgroup_bytes: 32 << 10,
                ..Said::default()
            }),
            ..Caps::browser()
        }
    }

    /// A phone's GPU of Adreno's kind through Vulkan: subgroups of 64 or 128, 128 MiB a binding.
    pub fn adreno() -> Caps {
        Caps {
            max_binding_bytes: 128 << 20,
            subgroup: Some(64),
            device: Device::of(&Said {
                kind: Kind::Integrated,
                subgroups: Some([64, 128]),
                workgroup_bytes: 32 << 10,
                ..Said::default()
            }),
            ..Caps::laptop()
        }
    }

    /// A phone's GPU of Mali's kind through Vulkan: subgroups of 16, 12 cores, the least shared memory and the smallest
    /// workgroups of its generations, 256 MiB a binding.
    pub fn mali() -> Caps {
        Caps {
            max_binding_bytes: 256 << 20,
            workgroup_bytes: 16 << 10,
            max_workgroup: 512,
            subgroup: Some(16),
            device: Device::of(&Said {
                kind: Kind::Integrated,
                units: Some(12),
                subgroups: Some([16; 2]),
                workgroup_bytes: 16 << 10,
                ..Said::default()
            }),
            ..Caps::laptop()
        }
    }
}

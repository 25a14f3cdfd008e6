//! What a device offers, as far as plans depend on it.

use tercet_ir::DType;

use crate::device::Device;
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

impl CoopType {
    /// The bytes of a number.
    pub fn size_bytes(self) -> u64 {
        match self {
            CoopType::F16 | CoopType::BF16 => 2,
        }
    }
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

/// Limits and features of a device, found by asking its driver and by trials, and its description.
///
/// The `Caps` of a device profile make a plan without a device: see [`Caps::h200`] and its siblings,
/// whose plans are snapshots of the tests.
#[derive(Clone, Debug, PartialEq)]
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
    /// Kernels may ask for shuffles within subgroups.
    pub shuffles: bool,
    /// A barrier of storage orders what a workgroup wrote before it, and what it reads behind it, for all workgroups: one that
    /// counts others by atomics may read what these left. WebGPU alone does not say so.
    pub ordered_storage: bool,
    /// All workgroups of a dispatch have started before the first one of a later dispatch does, barriers or not: it may wait
    /// for them.
    pub ordered_dispatches: bool,
    /// What the device's own arithmetic does right, which [`native_trial`](crate::native_trial) finds out.
    pub natives: Natives,
    /// Products of two words of four signed bytes, added up, are one instruction.
    pub packed_dots: bool,
    /// What the device is like, where ways that it can all run are to be told apart.
    pub device: Device,
}

/// The largest clusters that kernels were tried with: those of WebGPU.
const MOST_CLUSTER: u32 = 128;

/// Rows that have kernels of few rows on every device.
pub(crate) const FEW_ROWS: usize = 8;

impl Caps {
    /// The 16-bit types of floats whose products run on cooperative matrices.
    pub fn products(&self) -> Vec<DType> {
        let types = [(CoopType::F16, DType::F16), (CoopType::BF16, DType::BF16)];
        let has = |ty: CoopType| self.spirv && self.coop.iter().any(|shape| shape.ty == ty);
        let found = types.into_iter().filter(|(ty, _)| has(*ty));
        found.map(|(_, dtype)| dtype).collect()
    }

    /// What a backend says of rows of packed weights that gain by being in one run: laid out, in blocks of eight, or as
    /// tiles.
    pub fn packed_rows(&self) -> usize {
        self.device.rates.rows.laid_rows as usize
    }

    /// The same device, where another table of measurements decides.
    pub fn tuned(self, tuning: Tuning) -> Caps {
        Caps {
            device: Device {
                tuning,
                ..self.device
            },
            ..self
        }
    }

    /// The invocations of a cluster, which shuffles reach: the size of subgroups, or the least where they have several.
    pub(crate) fn cluster(&self) -> u32 {
        let size = self.subgroup.unwrap_or(self.device.subgroups[0]);
        match self.shuffles && self.natives.shuffles && size.is_power_of_two() {
            true => size.min(MOST_CLUSTER),
            false => 1,
        }
    }

    /// The text of a kernel as this device runs it: with its own operations instead of portable ones, if that is another.
    pub(crate) fn own_text(&self, text: &str) -> Option<String> {
        self.natives.in_text(text, self.cluster())
    }

    /// The units, or as many as such devices have where the driver does not say.
    pub(crate) fn units(&self) -> usize {
        self.device.units_or_typical()
    }
}

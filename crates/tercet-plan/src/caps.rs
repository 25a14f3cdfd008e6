//! Device capabilities that planning depends on: limits, optional features and a performance model.

use tercet_ir::DType;

use crate::device::DeviceModel;
use crate::native_ops::NativeOps;
use crate::tuning::TuningTable;

/// Operand element types of cooperative matrices that accumulate in `f32`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CoopType {
    /// IEEE half precision.
    F16,
    /// bfloat16.
    BF16,
}

impl CoopType {
    /// Size of one element in bytes.
    pub fn size_bytes(self) -> u64 {
        match self {
            CoopType::F16 | CoopType::BF16 => 2,
        }
    }
}

/// A shape `m x n x k` of subgroup-scope cooperative matrices with `f32` accumulation that the
/// device supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CoopShape {
    /// Element type of both operands (A and B).
    pub ty: CoopType,
    /// Number of rows of the result (M).
    pub m: u32,
    /// Number of columns of the result (N).
    pub n: u32,
    /// Length of the reduction axis (K).
    pub k: u32,
    /// True if the device also supports this shape with accumulators in the 16-bit operand type.
    pub narrow_accumulators: bool,
}

/// Operand element types of cooperative matrices that WGSL loads and multiplies, with `f32` sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WgslCoopType {
    /// IEEE half precision.
    F16,
    /// IEEE single precision.
    F32,
}

impl WgslCoopType {
    /// Size of one element in bytes.
    pub fn size_bytes(self) -> u32 {
        match self {
            WgslCoopType::F16 => 2,
            WgslCoopType::F32 => 4,
        }
    }
}

/// Square cooperative matrices with `f32` accumulation that WGSL kernels of the device can use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WgslCoopShape {
    /// Element type of both operands (A and B).
    pub ty: WgslCoopType,
    /// Number of rows and columns of the operands and of the result: 8 or 16.
    pub side: u32,
}

/// Granularity of the device's workgroup-scope cooperative matrices with `f32` accumulation: every
/// matrix size must be a multiple of these sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CoopBlock {
    /// Element type of both operands (A and B).
    pub ty: CoopType,
    /// Number of which the row count of the result (M) must be a multiple.
    pub m: u32,
    /// Number of which the column count of the result (N) must be a multiple.
    pub n: u32,
    /// Number of which the length of the reduction axis (K) must be a multiple.
    pub k: u32,
    /// Threads per workgroup that these workgroup-scope matrices require.
    pub threads: u32,
}

/// Limits and features of a device, as reported by its driver or measured by probe programs, plus
/// its performance model.
///
/// The device profiles ([`DeviceCaps::h200`] and its siblings) make planning possible without a
/// device. Snapshot tests compare the programs that are planned for these profiles.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceCaps {
    /// Name of the GPU runtime that runs the programs, for error messages.
    pub target: &'static str,
    /// Maximum size of one buffer binding in bytes.
    pub max_binding_bytes: u64,
    /// Maximum number of storage buffers bound by one kernel.
    pub max_storage_buffers: u32,
    /// Maximum number of storage buffers bound by one dispatch of several equal maps.
    pub max_batch_buffers: u32,
    /// Required alignment in bytes of slots within their buffers (storage buffer offset alignment).
    pub storage_align_bytes: u32,
    /// Required alignment in bytes of kernels' parameter blocks (uniform buffer offset alignment).
    pub uniform_align_bytes: u32,
    /// Shared memory available to one workgroup, in bytes.
    pub workgroup_bytes: u32,
    /// Maximum number of threads per workgroup.
    pub max_workgroup: u32,
    /// Maximum number of workgroups along one axis of a dispatch grid.
    pub max_grid: u32,
    /// Subgroup size of the device; `None` if kernels must not use subgroups or if subgroups differ
    /// in size.
    pub subgroup: Option<u32>,
    /// True if the device can run SPIR-V kernels.
    pub spirv: bool,
    /// Supported subgroup-scope cooperative-matrix shapes.
    pub coop: Vec<CoopShape>,
    /// Supported workgroup-scope cooperative matrices; the device can load them from tensors and
    /// apply functions to each element.
    pub coop_blocks: Vec<CoopBlock>,
    /// Supported subgroup-scope cooperative matrices of WGSL kernels. Empty if the device can run
    /// SPIR-V kernels with matrices, which are faster.
    pub coop_wgsl: Vec<WgslCoopShape>,
    /// True if the device can convert an accumulator matrix to an operand of the next
    /// cooperative-matrix multiplication.
    pub coop_converts: bool,
    /// True if F16 fragments of 16 x 8 x 16 have the register layout over a subgroup of 32 that
    /// mma-style kernels assume. The probe in [`lanes`](crate::lanes) verifies this layout.
    pub coop_fragment_layout: bool,
    /// True if kernels may use subgroup shuffles.
    pub shuffles: bool,
    /// True if a storage barrier in one workgroup orders its earlier writes and later reads for all
    /// workgroups. The last workgroup, found with an atomic counter, can then read the results of
    /// all others. WebGPU alone does not guarantee that storage barriers order memory accesses
    /// across workgroups.
    pub ordered_storage: bool,
    /// True if all workgroups of a dispatch start before the first workgroup of a later dispatch,
    /// even without a barrier. A kernel may therefore spin until an earlier dispatch finishes.
    pub ordered_dispatches: bool,
    /// Arithmetic operations whose native device versions conform to IEEE 754, as measured by
    /// [`native_ops_probe`](crate::native_ops_probe).
    pub natives: NativeOps,
    /// True if the device has an instruction for the dot product of two words of four signed bytes.
    pub packed_dots: bool,
    /// Performance model of the device, used to choose between applicable kernel variants.
    pub device: DeviceModel,
}

/// Maximum cluster size (number of threads that exchange values by shuffles) with which the kernels
/// are tested: the maximum subgroup size of WebGPU.
const MAX_CLUSTER_SIZE: u32 = 128;

/// Maximum number of rows (M) that the skinny matmul kernels support on every device.
pub(crate) const MAX_SKINNY_ROWS: usize = 8;

impl DeviceCaps {
    /// 16-bit float types whose matmuls run on cooperative matrices.
    pub fn coop_matmul_dtypes(&self) -> Vec<DType> {
        let types = [(CoopType::F16, DType::F16), (CoopType::BF16, DType::BF16)];
        let wgsl = |ty| match ty {
            CoopType::F16 => self.has_wgsl_matrices(WgslCoopType::F16),
            CoopType::BF16 => false,
        };
        let spirv = |ty| self.spirv && self.coop.iter().any(|shape| shape.ty == ty);
        let has = |ty: CoopType| spirv(ty) || wgsl(ty);
        let found = types.into_iter().filter(|(ty, _)| has(*ty));
        found.map(|(_, dtype)| dtype).collect()
    }

    /// True if WGSL kernels can use cooperative matrices of this type.
    pub fn has_wgsl_matrices(&self, ty: WgslCoopType) -> bool {
        self.coop_wgsl.iter().any(|shape| shape.ty == ty)
    }

    /// Maximum number of activation rows (M) for which the small-M kernels for quantized weights
    /// are faster than the large-M kernels. `max_small_m_rows` of each backend returns this number.
    pub fn max_small_m_rows(&self) -> usize {
        self.device.rates.rows.max_prepacked_rows as usize
    }

    /// Returns these device capabilities with the autotuning table `tuning`.
    pub fn tuned(self, tuning: TuningTable) -> DeviceCaps {
        DeviceCaps {
            device: DeviceModel {
                tuning,
                ..self.device
            },
            ..self
        }
    }

    /// Number of threads of a cluster: threads that exchange values by shuffles. A cluster has the
    /// subgroup size, or the smallest subgroup size if a device has several. Without usable
    /// shuffles, a cluster is one thread.
    pub(crate) fn cluster(&self) -> u32 {
        let size = self.subgroup.unwrap_or(self.device.subgroups[0]);
        match self.shuffles && self.natives.shuffles && size.is_power_of_two() {
            true => size.min(MAX_CLUSTER_SIZE),
            false => 1,
        }
    }

    /// WGSL source in which native operations of this device replace the portable ones. `None` if
    /// nothing changes.
    pub(crate) fn own_text(&self, text: &str) -> Option<String> {
        self.natives.in_text(text, self.cluster())
    }

    /// Number of compute units of the device; a typical number if the driver does not report it.
    pub(crate) fn units(&self) -> usize {
        self.device.units_or_typical()
    }
}

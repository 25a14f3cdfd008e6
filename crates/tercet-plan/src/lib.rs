//! Compiler from a legal graph to a GPU program.
//!
//! [`plan`] turns a legal graph into a [`GpuProgram`], which `tercet-program` defines. [`FAMILIES`]
//! lists all lowerings of operators to kernels.
//!
//! Next: `emit.rs` for the lowering context, `lowerings/` for the lowerings and their kernels,
//! `plan.rs` for the sequence of compilation steps.
#![forbid(unsafe_code)]

mod binding_limit;
mod caps;
mod concat_elision;
mod device;
mod emit;
mod fragment_layout;
mod fusions;
mod lowerings;
mod narrow;
mod native_ops;
mod plan;
mod refused;
mod scalar;
mod schedule;
mod soa_weights;
mod spirv_module;
mod switches;
pub mod tune;
mod tuning;
mod variant;
mod walk;

pub use caps::{CoopBlock, CoopShape, CoopType, DeviceCaps, WgslCoopShape, WgslCoopType};
pub use device::{DeviceModel, GpuKind, ReportedProperties};
pub use emit::{LoweringCtx, SlotView};
pub use fragment_layout::{FragmentLayoutProbe, LAYOUT_TRIAL, lanes};
pub use lowerings::gemm_coop;
pub use lowerings::{FAMILIES, Lowering, PlanTarget, kernels};
pub use narrow::narrow_i64;
pub use native_ops::{NativeOps, NativeOpsProbe, native_ops_probe};
pub use plan::{PlanOptions, compile, compile_with, plan};
pub use refused::{NOTES, RefusedVariants};
pub use tercet_program::{
    ActiveStep, ArgAccess, BufferSlot, CheckKind, ControlFlowGraph, DataCheck, DataRace,
    DisplayExpr, ExprArena, ExprNode, ExprNodeId, FftPassValue, FieldType, GpuExecutable,
    GpuProgram, InputUpdate, IoBinding, KernelCode, KernelDef, KernelDispatch, KernelId,
    KernelInstance, KernelSource, LaunchSizeCheck, LaunchSizes, LoadedProgram, NestedNode,
    NodeLocation, ParamBlock, ParamField, ParamWord, PendingReadback, ProgramBuffer, ProgramStep,
    ReadbackRange, ShapeBranch, ShapeBranches, ShapeSwitch, ShapeSwitchId, SharedBuffer, SizeRule,
    SlotId, SoaLayout, SpirvModule, StageId, StepOp, SymInt, TypedKernel, VariantSelection,
    check_races, explain, kernel, params,
};
pub use tuning::{GemmProblem, TuningEntry, TuningError, TuningKey, TuningTable, WeightLayout};

/// Private items that the tests of this crate use. They are no interface: they change without
/// notice.
#[doc(hidden)]
pub mod internals {
    /// Tilings of attention.
    pub mod attention {
        pub use crate::lowerings::attention::backward::GradTiling;
        pub use crate::lowerings::attention::backward_split_f16::PairTiling;
        pub use crate::lowerings::attention::coop::tiling::{AttentionTiling, MmaPrecision};
        pub use crate::lowerings::attention::flash_decoding::{FlashDecodeSplit, STAGED};
        pub use crate::lowerings::attention::wgsl_matrices::WgslAttentionTiling;
    }

    /// Partitions of values above the binding limit.
    pub mod binding_limit {
        pub use crate::binding_limit::parts::PartitionedValues;
        pub use crate::binding_limit::range::{
            IndexRegion, PartitionSpec, cut, first_of, from_elements, full, numel,
        };
        pub use crate::binding_limit::{bytes_of, over, split};
    }

    /// The measured rates of a device.
    pub mod cost_model {
        use crate::device::DeviceModel;
        pub use crate::device::cost_model::{TileConfig, TileRate};

        /// Tile configurations of matmuls on cooperative matrices: for operands that are not
        /// prepacked, for implicit GEMM, and for prepacked weights.
        pub fn tile_configs(device: &DeviceModel) -> [&'static [TileConfig]; 3] {
            let rates = &device.rates.matrices;
            [rates.divisions, rates.windows, rates.prepacked]
        }
    }

    /// Kernels of the FFT.
    pub mod fft {
        pub use crate::lowerings::fft::text::{FftKernelPlan, radices};
        pub use crate::lowerings::rows::WORKGROUP;
    }

    /// Tilings and kernels of matmuls.
    pub mod matmul {
        pub use crate::lowerings::gemm_coop::choose::ImplicitGemm;
        pub use crate::lowerings::matmul::skinny::{
            ALL as SKINNY_KERNELS, SLICE, SUBGROUP, max_subgroups,
        };
        pub use crate::lowerings::matmul::skinny_prepacked_a::{
            PrepackedAShape, PrepackedASplit, ROW_BLOCKS,
        };
        pub use crate::lowerings::matmul::skinny_shared_mem::{
            REGISTERS, STEP_ROW, SharedMemPipeline,
        };
        pub use crate::lowerings::tiles::{TileChoice, TileProblem, WorkgroupTile};
    }

    /// Parameters of sampling.
    pub mod sample {
        pub use crate::lowerings::sample::{fraction, scale};
    }

    /// Tilings of state scans.
    pub mod state_scan {
        pub use crate::lowerings::state_scan::chunked::{ChunkTiling, FRAGMENT};
        pub use crate::lowerings::state_scan::tile::{MAX_STATES, ScanStepSizes, ScanTile};
    }

    /// Order of steps.
    pub mod schedule {
        pub use crate::emit::dequant_schedule::{DequantSchedule, SharedLhsGroup};
        pub use crate::schedule::batch::{BoundArray, batched_text, with_calls, with_parameters};
    }

    /// WGSL text, and integers of 64 bits.
    pub mod scalar {
        pub use crate::narrow::is_overflow_check;
        pub use crate::native_ops::{FLOATS, HALVES};
        pub use crate::scalar::{WgslHelper, text};
    }

    /// Autotuning.
    pub mod tuning {
        pub use crate::tune::task::{element, spread_indices};
        pub use crate::tuning::{FIRST_HEADER, HEADER};
    }
}

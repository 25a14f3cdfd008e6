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

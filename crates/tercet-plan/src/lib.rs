//! Compiler from a legal graph to a GPU program.
//!
//! [`plan`] turns a legal graph into a [`GpuProgram`]: kernel instances, steps, memory and barriers
//! as plain data. [`FAMILIES`] lists all lowerings of operators to kernels. A [`LaunchSizes`] holds
//! the values that depend on the sizes of one run; the program itself is the same for all sizes.
//! [`GpuExecutable`] runs a program through a [`LoadedProgram`], which each GPU runtime implements.
//!
//! Next: `emit.rs` for the lowering context, `lowerings/` for the lowerings and their kernels,
//! `plan.rs` for the sequence of compilation steps.
#![forbid(unsafe_code)]

mod active_steps;
mod binding_limit;
mod caps;
mod concat_elision;
mod device;
mod driver;
mod emit;
mod flow;
mod fragment_layout;
mod fusions;
pub mod kernel;
mod launch;
mod lowerings;
mod narrow;
mod native_ops;
mod plan;
mod print;
mod program;
mod races;
mod refused;
mod scalar;
mod schedule;
mod soa_weights;
mod spirv_module;
mod switches;
mod sym_int;
pub mod tune;
mod tuning;
mod variant;
mod walk;

pub use active_steps::ActiveStep;
pub use caps::{CoopBlock, CoopShape, CoopType, DeviceCaps};
pub use device::{DeviceModel, GpuKind, ReportedProperties};
pub use driver::{
    GpuExecutable, InputUpdate, LoadedProgram, PendingReadback, ReadbackRange, SharedBuffer,
};
pub use emit::{LoweringCtx, SlotView};
pub use flow::{ControlFlowGraph, NestedNode, NodeLocation, StageId};
pub use fragment_layout::{FragmentLayoutProbe, LAYOUT_TRIAL, lanes};
pub use kernel::{
    ArgAccess, FieldType, KernelCode, KernelDef, KernelInstance, KernelSource, ParamBlock,
    ParamField, ParamWord, TypedKernel,
};
pub use launch::LaunchSizes;
pub use lowerings::gemm_coop;
pub use lowerings::{FAMILIES, Lowering, PlanTarget, kernels};
pub use narrow::narrow_i64;
pub use native_ops::{NativeOps, NativeOpsProbe, native_ops_probe};
pub use plan::{PlanOptions, compile, compile_with, plan};
pub use print::explain;
pub use program::{
    BufferSlot, CheckKind, DataCheck, GpuProgram, IoBinding, KernelDispatch, KernelId,
    LaunchSizeCheck, ProgramBuffer, ProgramStep, ShapeBranch, ShapeBranches, ShapeSwitch,
    ShapeSwitchId, SizeRule, SlotId, StepOp,
};
pub use races::{DataRace, check_races};
pub use refused::{NOTES, RefusedVariants};
pub use soa_weights::SoaLayout;
pub use spirv_module::SpirvModule;
pub use sym_int::{DisplayExpr, ExprArena, ExprNode, ExprNodeId, FftPassValue, SymInt};
pub use tuning::{GemmProblem, TuningEntry, TuningError, TuningKey, TuningTable, WeightLayout};
pub use variant::VariantSelection;

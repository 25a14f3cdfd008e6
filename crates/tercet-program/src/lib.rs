//! GPU programs as plain data, and the host code that runs them on any GPU runtime.
//!
//! A [`GpuProgram`] has kernel instances, steps, memory and barriers. `tercet-plan` compiles graphs
//! to programs. A [`LaunchSizes`] holds the values that depend on the sizes of one run; the program
//! itself is the same for all sizes. [`check_races`] proves that a program has no data races, and
//! [`explain`] prints it. [`GpuExecutable`] runs a program through a [`LoadedProgram`], which each
//! GPU runtime implements.
//!
//! Next: `program.rs` for the parts of a program, `kernel.rs` for kernels and parameter blocks,
//! `driver.rs` for runs.
#![forbid(unsafe_code)]

mod active_steps;
mod device_data;
mod driver;
mod flow;
pub mod kernel;
mod launch;
mod print;
mod program;
mod races;
mod soa_layout;
mod spirv_module;
mod sym_int;
mod variant_selection;

pub use active_steps::{ActiveStep, LINK_BYTES, MAX_LAUNCH_DEPENDENCIES};
pub use device_data::device_dtype;
pub use driver::{
    GpuExecutable, InputUpdate, LoadedProgram, PendingReadback, ReadbackRange, SharedBuffer,
};
pub use flow::{ControlFlowGraph, NestedNode, NodeLocation, StageId};
pub use kernel::{
    ArgAccess, FieldType, KernelCode, KernelDef, KernelInstance, KernelSource, ParamBlock,
    ParamField, ParamWord, TypedKernel, block_bytes,
};
pub use launch::LaunchSizes;
pub use print::explain;
pub use program::{
    BufferSlot, CheckKind, DataCheck, DependentLaunches, GpuProgram, IoBinding, KernelDispatch,
    KernelId, LaunchSizeCheck, ProgramBuffer, ProgramStep, ShapeBranch, ShapeBranches, ShapeSwitch,
    ShapeSwitchId, SizeRule, SlotId, StepOp,
};
pub use program::{RECORD_BYTES, are_exclusive};
pub use races::{DataRace, check_races};
pub use soa_layout::{SoaLayout, places};
pub use spirv_module::SpirvModule;
pub use sym_int::{DisplayExpr, ExprArena, ExprNode, ExprNodeId, FftPassValue, SymInt};
pub use sym_int::{fft_pass_count, sym_value};
pub use variant_selection::{FORBIDDEN, VariantSelection};

//! From a legal graph to a GPU program.
//!
//! [`plan`] turns a legal graph into a [`Program`]: kernel instances, steps, memory and barriers as
//! plain data. [`FAMILIES`] lists what lowers which operator. A [`Launch`] holds the numbers of a run:
//! new sizes give new numbers only. [`GpuExecutable`] runs a program through a [`Driver`], which a
//! player implements.
//!
//! Next: `emit.rs` for what a family may do, `families/` for the kernels, `plan.rs` for the order of work.
#![forbid(unsafe_code)]

mod caps;
mod device;
mod driver;
mod emit;
mod families;
mod flow;
mod fusions;
mod joined;
pub mod kernel;
mod lanes;
mod launch;
mod narrow;
mod natives;
mod num;
mod plan;
mod planes;
mod played;
mod print;
mod program;
mod races;
mod scalar;
mod schedule;
mod split;
pub mod tune;
mod tuning;
mod variant;
mod walk;

pub use caps::{Caps, CoopBlock, CoopShape, CoopType};
pub use device::{Device, Kind, Said};
pub use driver::{Driver, Fetched, GpuExecutable, Put, Read, SharedBuffer};
pub use emit::{Emit, View};
pub use families::gemm_coop;
pub use families::{FAMILIES, Family, PlanTarget, kernels};
pub use flow::{Flow, Inner, Site, StageId};
pub use kernel::{
    Access, Code, Field, FieldType, Instance, Kernel, KernelDef, Params, Source, Word,
};
pub use lanes::{Lanes, lanes};
pub use launch::Launch;
pub use narrow::narrow_i64;
pub use natives::{NativeTrial, Natives, native_trial};
pub use num::{Expr, ExprId, Num, Shown, Tape};
pub use plan::{PlanOptions, compile, compile_with, plan};
pub use planes::Planes;
pub use played::Played;
pub use print::explain;
pub use program::{
    Arm, Arms, Buffer, CheckKind, Choice, ChoiceId, DataCheck, Dispatch, Io, KernelId, Program,
    SizeCheck, SizeRule, Slot, SlotId, Step, Work,
};
pub use races::{Race, check_races};
pub use tuning::{Entry, GemmProblem, Key, Tuning, TuningError, Weights};
pub use variant::Taken;

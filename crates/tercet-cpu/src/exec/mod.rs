//! Running a program: sizes, constants, steps, states.

mod constants;
mod memory;
mod run;

pub(crate) use run::CpuExecutable;

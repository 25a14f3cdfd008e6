//! Running a program: sizes, constants, steps, states.

mod constants;
mod frame;
mod memory;
mod play;
mod run;
mod sub;

pub(crate) use run::CpuExecutable;
pub(crate) use sub::{Spare, Sub, bytes_of};

//! Execution of a compiled program: sizes, constants, steps and states.

mod constants;
mod execute;
mod frame;
mod memory;
mod run;
pub(crate) mod shared;
mod subgraph;

pub(crate) use run::CpuExecutable;
pub(crate) use subgraph::{SubgraphBuffers, SubgraphProgram, bytes_of};

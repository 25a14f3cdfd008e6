//! Proof that a program has no data races, independent of the scheduler.
//!
//! The proof uses only the finished program: the byte ranges that each step reads and writes, and
//! the barriers. Two steps without a barrier between them must not touch the same byte if one of
//! them writes it. The boundary between two stages counts as a barrier. Steps of branches that no
//! run executes together are exempt.

use std::fmt;

use crate::kernel::ArgAccess;
use crate::program::{GpuProgram, ProgramStep, SlotId};

/// A race: two steps without a barrier between them, one of which writes bytes that the other
/// accesses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataRace {
    /// Indices of the two steps.
    pub steps: (usize, usize),
    /// The two slots that share bytes.
    pub slots: (SlotId, SlotId),
    /// True if the two steps belong to [`GpuProgram::prepare`], otherwise they belong to
    /// [`GpuProgram::steps`].
    pub preparing: bool,
}

impl fmt::Display for DataRace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (a, b) = self.steps;
        let list = if self.preparing { "prepare " } else { "" };
        write!(
            f,
            "{list}steps {a} and {b} race on slots {} and {}",
            self.slots.0.0, self.slots.1.0
        )
    }
}

/// Proves that no two steps of a program race.
///
/// # Errors
/// The first [`DataRace`] found.
pub fn check_races(program: &GpuProgram) -> Result<(), DataRace> {
    check_list(program, &program.prepare, None)?;
    program
        .stages()
        .into_iter()
        .try_for_each(|stage| check_list(program, &program.steps[stage.clone()], Some(stage.start)))
}

/// Checks the steps of [`GpuProgram::prepare`], or those of a stage that starts at step `stage`.
fn check_list(
    program: &GpuProgram,
    steps: &[ProgramStep],
    stage: Option<usize>,
) -> Result<(), DataRace> {
    let (first, preparing) = (stage.unwrap_or(0), stage.is_none());
    let mut since_barrier: Vec<(usize, SlotId, ArgAccess)> = Vec::new();
    for (at, step) in steps.iter().enumerate() {
        if step.barrier {
            since_barrier.clear();
        }
        let own = step.accesses(&program.kernels);
        for (slot, access) in &own {
            for (before, other, other_access) in &since_barrier {
                if program.are_exclusive(step, &steps[*before]) {
                    continue;
                }
                let writes = *access == ArgAccess::Write || *other_access == ArgAccess::Write;
                if writes && program.slot(*slot).overlaps(program.slot(*other)) {
                    return Err(DataRace {
                        steps: (first + *before, first + at),
                        slots: (*other, *slot),
                        preparing,
                    });
                }
            }
        }
        // Within one step, a written argument must not overlap another argument.
        for (i, (slot, access)) in own.iter().enumerate() {
            for (other, other_access) in &own[..i] {
                let writes = *access == ArgAccess::Write || *other_access == ArgAccess::Write;
                if writes && program.slot(*slot).overlaps(program.slot(*other)) {
                    return Err(DataRace {
                        steps: (first + at, first + at),
                        slots: (*other, *slot),
                        preparing,
                    });
                }
            }
        }
        since_barrier.extend(own.into_iter().map(|(slot, access)| (at, slot, access)));
    }
    Ok(())
}

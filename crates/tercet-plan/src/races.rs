//! A proof, independent of the scheduler, that a program has no races.
//!
//! It looks at nothing but the finished program: the byte ranges that each step reads and writes, and
//! where the barriers are. Two steps between the same barriers must not touch the same byte if one of
//! them writes it (at the borders of stages there is one), unless they are arms of choices for ranges of one number that do not meet.

use std::fmt;

use crate::kernel::Access;
use crate::program::{Program, SlotId, Step};

/// Two steps without a barrier between them, one of which writes what the other touches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Race {
    /// The steps, by their place.
    pub steps: (usize, usize),
    /// The slots that share bytes.
    pub slots: (SlotId, SlotId),
    /// Whether the steps are those of `prepare`.
    pub preparing: bool,
}

impl fmt::Display for Race {
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

/// Proves that no two steps race.
///
/// # Errors
/// The first [`Race`].
pub fn check_races(program: &Program) -> Result<(), Race> {
    check_list(program, &program.prepare, None)?;
    program
        .stages()
        .into_iter()
        .try_for_each(|stage| check_list(program, &program.steps[stage.clone()], Some(stage.start)))
}

/// Steps of [`Program::prepare`], or of a stage that begins at a step of a run.
fn check_list(program: &Program, steps: &[Step], stage: Option<usize>) -> Result<(), Race> {
    let (first, preparing) = (stage.unwrap_or(0), stage.is_none());
    let mut since_barrier: Vec<(usize, SlotId, Access)> = Vec::new();
    for (at, step) in steps.iter().enumerate() {
        if step.barrier {
            since_barrier.clear();
        }
        let own = step.accesses(&program.kernels);
        for (slot, access) in &own {
            for (before, other, other_access) in &since_barrier {
                if program.exclude(step, &steps[*before]) {
                    continue;
                }
                let writes = *access == Access::Write || *other_access == Access::Write;
                if writes && program.slot(*slot).overlaps(program.slot(*other)) {
                    return Err(Race {
                        steps: (first + *before, first + at),
                        slots: (*other, *slot),
                        preparing,
                    });
                }
            }
        }
        // Inside one step a written argument must not overlap another.
        for (i, (slot, access)) in own.iter().enumerate() {
            for (other, other_access) in &own[..i] {
                let writes = *access == Access::Write || *other_access == Access::Write;
                if writes && program.slot(*slot).overlaps(program.slot(*other)) {
                    return Err(Race {
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

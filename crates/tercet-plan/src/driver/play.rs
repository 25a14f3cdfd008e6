//! Playing the flow of a program: stages up to what data decides, one word read back, and on.

use tercet_ir::{EvalError, RunError};

use super::{Driver, GpuExecutable, Read, fault_of};
use crate::flow::{Flow, StageId};
use crate::program::{Program, SlotId};

/// The most stages of one submission: a loop of any length keeps the device busy and no list grows with it.
const MOST_DUE: usize = 256;

impl<D: Driver> GpuExecutable<D> {
    /// Submits the stages that are due, with the reads at hand.
    pub(super) fn submit_due(&mut self) -> Result<(), RunError> {
        let driver = self.driver.get_mut();
        driver.submit(&self.launch, &self.due, self.changed, &self.reads)?;
        self.changed = false;
        self.due.clear();
        Ok(())
    }

    /// Plays a list of stages, all but what is due at the end.
    pub(super) fn play(&mut self, program: &Program, flow: &[Flow]) -> Result<(), RunError> {
        for part in flow {
            match part {
                Flow::Stage(stage) => self.play_stage(*stage)?,
                Flow::Sizes(checks) => {
                    let refused = self.launch.refused.iter();
                    if let Some((_, e)) = refused.clone().find(|(at, _)| checks.contains(at)) {
                        return Err(e.clone());
                    }
                }
                Flow::If {
                    pred,
                    then,
                    otherwise,
                } => match self.holds(program, *pred)? {
                    true => self.play(program, then)?,
                    false => self.play(program, otherwise)?,
                },
                Flow::While {
                    cond,
                    pred,
                    body,
                    max_iter,
                    site,
                } => {
                    let mut done = 0;
                    loop {
                        self.play(program, cond)?;
                        if !self.holds(program, *pred)? {
                            break;
                        }
                        if done == *max_iter {
                            let max_iter = *max_iter;
                            return Err(site.fail(EvalError::MaxIter { max_iter }));
                        }
                        self.play(program, body)?;
                        done += 1;
                    }
                }
                Flow::Repeat { count, body } => {
                    for _ in 0..self.launch.value(*count) {
                        self.play(program, body)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn play_stage(&mut self, stage: StageId) -> Result<(), RunError> {
        if self.due.len() >= MOST_DUE {
            self.reads.clear();
            self.submit_due()?;
        }
        self.due.push(stage);
        Ok(())
    }

    /// Plays what is due and reads a truth value back, unless a check of data failed by then.
    fn holds(&mut self, program: &Program, pred: SlotId) -> Result<bool, RunError> {
        let slot = program.slot(pred);
        self.reads.clear();
        self.reads.push(Read {
            buffer: slot.buffer,
            offset_bytes: slot.offset_bytes,
            bytes: 4,
        });
        self.reads.extend(self.faults);
        self.submit_due()?;
        let (mut holds, mut fault) = (false, None);
        let launch = &self.launch;
        self.driver.get_mut().wait(&mut |i, bytes| match i {
            0 => holds = bytes[0] != 0,
            _ => fault = fault_of(program, launch, bytes),
        })?;
        match fault {
            Some(fault) => Err(fault),
            None => Ok(holds),
        }
    }
}

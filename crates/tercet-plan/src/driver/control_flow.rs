//! Playing the flow of a program: stages up to what data decides, one word read back, and on.
//!
//! The flow is a tree; what is played is a list of instructions made of it once ([`Code`]), so that where a run stands is
//! a number and the counts of its loops ([`Cursor`]). So a run can stop at a predicate until the device has answered,
//! however its caller waits.

use std::sync::Arc;

use tercet_ir::{EvalError, RunError};

use super::{Driver, GpuExecutable, Read, fault_of};
use crate::flow::{Flow, Site, StageId};
use crate::num::Num;
use crate::program::{Program, SlotId};

/// The most stages of one submission: a loop of any length keeps the device busy and no list grows with it.
const MOST_DUE: usize = 256;

/// What a run does next; places are indices of [`Code::list`].
#[derive(Debug)]
enum Instruction {
    /// The steps of a stage.
    Stage(StageId),
    /// The run ends here if these of [`Program::size_checks`] fail.
    Sizes(Vec<usize>),
    /// Goes on behind it where the byte at `pred` is not 0, else at `otherwise`.
    Decide { pred: SlotId, otherwise: usize },
    /// A count becomes 0.
    Zero(usize),
    /// Goes on behind it, and counts, so many times; then at `end`.
    Repeat {
        counter: usize,
        count: Num,
        end: usize,
    },
    /// Counts an iteration, of so many at most.
    Iterate {
        counter: usize,
        max_iter: u64,
        site: Site,
    },
    /// Goes on at another place.
    Jump(usize),
}

/// A flow as instructions.
#[derive(Debug)]
pub(super) struct Code {
    list: Vec<Instruction>,
    counters: usize,
}

/// Where a run stands.
#[derive(Debug, Default)]
pub(super) struct Cursor {
    at: usize,
    counts: Vec<u64>,
}

impl Code {
    pub(super) fn of(program: &Program) -> Arc<Code> {
        let mut code = Code {
            list: Vec::new(),
            counters: 0,
        };
        match program.flow.is_empty() {
            true => code.list.push(Instruction::Stage(StageId(0))),
            false => code.add(&program.flow),
        }
        Arc::new(code)
    }

    fn add(&mut self, flow: &[Flow]) {
        for part in flow {
            match part {
                Flow::Stage(stage) => self.list.push(Instruction::Stage(*stage)),
                Flow::Sizes(checks) => self.list.push(Instruction::Sizes(checks.clone())),
                Flow::If {
                    pred,
                    then,
                    otherwise,
                } => {
                    let decide = self.later();
                    self.add(then);
                    let over = self.later();
                    self.list[decide] = Instruction::Decide {
                        pred: *pred,
                        otherwise: self.list.len(),
                    };
                    self.add(otherwise);
                    self.list[over] = Instruction::Jump(self.list.len());
                }
                Flow::While {
                    cond,
                    pred,
                    body,
                    max_iter,
                    site,
                } => {
                    let counter = self.counter();
                    let again = self.list.len();
                    self.add(cond);
                    let decide = self.later();
                    self.list.push(Instruction::Iterate {
                        counter,
                        max_iter: *max_iter,
                        site: site.clone(),
                    });
                    self.add(body);
                    self.list.push(Instruction::Jump(again));
                    self.list[decide] = Instruction::Decide {
                        pred: *pred,
                        otherwise: self.list.len(),
                    };
                }
                Flow::Repeat { count, body } => {
                    let counter = self.counter();
                    let again = self.later();
                    self.add(body);
                    self.list.push(Instruction::Jump(again));
                    self.list[again] = Instruction::Repeat {
                        counter,
                        count: *count,
                        end: self.list.len(),
                    };
                }
            }
        }
    }

    /// A place for an instruction that is known later.
    fn later(&mut self) -> usize {
        self.list.push(Instruction::Jump(self.list.len() + 1));
        self.list.len() - 1
    }

    /// A counter that is 0 from here on.
    fn counter(&mut self) -> usize {
        self.counters += 1;
        self.list.push(Instruction::Zero(self.counters - 1));
        self.counters - 1
    }
}

impl Cursor {
    pub(super) fn begin(&mut self, code: &Code) {
        self.at = 0;
        self.counts.clear();
        self.counts.resize(code.counters, 0);
    }
}

impl<D: Driver> GpuExecutable<D> {
    /// Plays stages up to the next predicate, which is submitted to be read, or to the end, which is submitted with
    /// the reads of the results.
    pub(super) fn advance(&mut self) -> Result<(), RunError> {
        let code = Arc::clone(&self.code);
        while let Some(instruction) = code.list.get(self.cursor.at) {
            let next = self.cursor.at + 1;
            self.cursor.at = match instruction {
                Instruction::Stage(stage) => {
                    self.play_stage(*stage)?;
                    next
                }
                Instruction::Sizes(checks) => {
                    let mut refused = self.launch.refused.iter();
                    if let Some((_, e)) = refused.find(|(at, _)| checks.contains(at)) {
                        return Err(e.clone());
                    }
                    next
                }
                Instruction::Decide { pred, .. } => return self.submit_predicate(*pred),
                Instruction::Zero(counter) => {
                    self.cursor.counts[*counter] = 0;
                    next
                }
                Instruction::Repeat {
                    counter,
                    count,
                    end,
                } => {
                    let done = &mut self.cursor.counts[*counter];
                    let count = u64::try_from(self.launch.value(*count)).unwrap_or(0);
                    let goes_on = *done < count;
                    *done += 1;
                    if goes_on { next } else { *end }
                }
                Instruction::Iterate {
                    counter,
                    max_iter,
                    site,
                } => {
                    let done = &mut self.cursor.counts[*counter];
                    if *done == *max_iter {
                        let max_iter = *max_iter;
                        return Err(site.fail(EvalError::MaxIter { max_iter }));
                    }
                    *done += 1;
                    next
                }
                Instruction::Jump(to) => *to,
            };
        }
        self.undecided = false;
        self.submit_results()
    }

    /// Goes on with what the device answered, up to the next predicate or the end. The driver's submission is the one
    /// of the predicate.
    pub(super) fn decide(&mut self) -> Result<(), RunError> {
        let holds = self.holds()?;
        let code = Arc::clone(&self.code);
        if let Some(Instruction::Decide { otherwise, .. }) = code.list.get(self.cursor.at) {
            self.cursor.at = match holds {
                true => self.cursor.at + 1,
                false => *otherwise,
            };
        }
        self.advance()
    }

    /// Submits the stages that are due, with the reads at hand.
    fn submit_due(&mut self) -> Result<(), RunError> {
        let _span = tracing::debug_span!("submit").entered();
        let driver = self.driver.get_mut();
        driver.submit(&self.launch, &self.due, self.changed, &self.reads)?;
        self.changed = false;
        self.due.clear();
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

    /// Plays what is due and has a truth value read, with what checks of data found by then.
    fn submit_predicate(&mut self, pred: SlotId) -> Result<(), RunError> {
        let slot = self.program.slot(pred);
        self.reads.clear();
        self.reads.push(Read {
            buffer: slot.buffer,
            offset_bytes: slot.offset_bytes,
            bytes: 4,
        });
        self.reads.extend(self.faults);
        self.undecided = true;
        self.submit_due()
    }

    /// Plays what is due at the end and has the wanted outputs read.
    fn submit_results(&mut self) -> Result<(), RunError> {
        self.reads.clear();
        self.reads.extend(self.faults);
        let (program, launch) = (&self.program, &self.launch);
        let wanted = self.flight.iter().flat_map(|flight| &flight.wanted);
        let reads =
            wanted.filter_map(|&place| super::whole(program, launch, &program.outputs[place]));
        self.reads.extend(reads.filter(|r| r.bytes > 0));
        self.submit_due()
    }

    /// Waits for a truth value, unless a check of data failed by then.
    fn holds(&mut self) -> Result<bool, RunError> {
        let (mut holds, mut fault) = (false, None);
        let (program, launch) = (&self.program, &self.launch);
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

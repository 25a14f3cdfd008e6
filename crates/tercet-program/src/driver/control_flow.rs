//! Executes control flow: submits stages up to a predicate, reads the predicate back, then submits
//! the stages that it selects.
//!
//! The control flow is a tree, compiled once to a linear instruction list ([`FlowCode`]). The
//! position of a run is therefore an instruction index plus loop counters ([`ProgramCounter`]).
//! Blocking and async callers can thus interrupt a run at a predicate and resume it once the device
//! answers.

use std::sync::Arc;

use tercet_ir::{EvalError, RunError};

use super::{GpuExecutable, LoadedProgram, ReadbackRange, fault_of};
use crate::flow::{ControlFlowGraph, NodeLocation, StageId};
use crate::program::{GpuProgram, SlotId};
use crate::sym_int::SymInt;

/// Maximum number of stages per submission. The limit bounds the list of stages, and it lets the
/// device start on a long loop early.
const MAX_PENDING_STAGES: usize = 256;

/// An instruction of the host's control-flow interpreter; jump targets are indices into
/// [`FlowCode::list`].
#[derive(Debug)]
enum FlowInstruction {
    /// Executes the steps of a stage.
    Stage(StageId),
    /// Ends the run with an error if one of these [`GpuProgram::size_checks`] fails.
    Sizes(Vec<usize>),
    /// Continues at the next instruction if the byte at `pred` is nonzero, otherwise at
    /// `otherwise`.
    BranchIf { pred: SlotId, otherwise: usize },
    /// Sets the loop counter with this index to 0.
    Zero(usize),
    /// Head of a loop with a fixed count: increments `counter` and continues at the next
    /// instruction, or at `end` after `count` iterations.
    Repeat {
        counter: usize,
        count: SymInt,
        end: usize,
    },
    /// Increments the counter of a while loop; the run fails if it exceeds the maximum number of
    /// iterations.
    Iterate {
        counter: usize,
        max_iter: u64,
        site: NodeLocation,
    },
    /// Continues at another instruction.
    Jump(usize),
}

/// Control flow compiled to a linear instruction list.
#[derive(Debug)]
pub(super) struct FlowCode {
    list: Vec<FlowInstruction>,
    counters: usize,
}

/// Program counter and loop counters of a run.
#[derive(Debug, Default)]
pub(super) struct ProgramCounter {
    at: usize,
    counts: Vec<u64>,
}

impl FlowCode {
    pub(super) fn new(program: &GpuProgram) -> Arc<FlowCode> {
        let mut code = FlowCode {
            list: Vec::new(),
            counters: 0,
        };
        match program.flow.is_empty() {
            true => code.list.push(FlowInstruction::Stage(StageId(0))),
            false => code.add(&program.flow),
        }
        Arc::new(code)
    }

    fn add(&mut self, flow: &[ControlFlowGraph]) {
        for part in flow {
            match part {
                ControlFlowGraph::Stage(stage) => self.list.push(FlowInstruction::Stage(*stage)),
                ControlFlowGraph::Sizes(checks) => {
                    self.list.push(FlowInstruction::Sizes(checks.clone()))
                }
                ControlFlowGraph::If {
                    pred,
                    then,
                    else_flow: otherwise,
                } => {
                    let decide = self.later();
                    self.add(then);
                    let over = self.later();
                    self.list[decide] = FlowInstruction::BranchIf {
                        pred: *pred,
                        otherwise: self.list.len(),
                    };
                    self.add(otherwise);
                    self.list[over] = FlowInstruction::Jump(self.list.len());
                }
                ControlFlowGraph::While {
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
                    self.list.push(FlowInstruction::Iterate {
                        counter,
                        max_iter: *max_iter,
                        site: site.clone(),
                    });
                    self.add(body);
                    self.list.push(FlowInstruction::Jump(again));
                    self.list[decide] = FlowInstruction::BranchIf {
                        pred: *pred,
                        otherwise: self.list.len(),
                    };
                }
                ControlFlowGraph::Repeat { count, body } => {
                    let counter = self.counter();
                    let again = self.later();
                    self.add(body);
                    self.list.push(FlowInstruction::Jump(again));
                    self.list[again] = FlowInstruction::Repeat {
                        counter,
                        count: *count,
                        end: self.list.len(),
                    };
                }
            }
        }
    }

    /// Appends a placeholder that the caller later replaces by an instruction; returns its index.
    fn later(&mut self) -> usize {
        self.list.push(FlowInstruction::Jump(self.list.len() + 1));
        self.list.len() - 1
    }

    /// Allocates a loop counter and emits the instruction that resets it.
    fn counter(&mut self) -> usize {
        self.counters += 1;
        self.list.push(FlowInstruction::Zero(self.counters - 1));
        self.counters - 1
    }
}

impl ProgramCounter {
    pub(super) fn begin(&mut self, code: &FlowCode) {
        self.at = 0;
        self.counts.clear();
        self.counts.resize(code.counters, 0);
    }
}

impl<D: LoadedProgram> GpuExecutable<D> {
    /// Executes stages up to the next predicate, whose readback it submits, or to the end of the
    /// run. The last submission of a run includes the readback of the results.
    pub(super) fn advance(&mut self) -> Result<(), RunError> {
        let code = Arc::clone(&self.code);
        while let Some(instruction) = code.list.get(self.cursor.at) {
            let next = self.cursor.at + 1;
            self.cursor.at = match instruction {
                FlowInstruction::Stage(stage) => {
                    self.execute_stage(*stage)?;
                    next
                }
                FlowInstruction::Sizes(checks) => {
                    let mut refused = self.launch.failed_checks.iter();
                    if let Some((_, e)) = refused.find(|(at, _)| checks.contains(at)) {
                        return Err(e.clone());
                    }
                    next
                }
                FlowInstruction::BranchIf { pred, .. } => return self.submit_predicate(*pred),
                FlowInstruction::Zero(counter) => {
                    self.cursor.counts[*counter] = 0;
                    next
                }
                FlowInstruction::Repeat {
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
                FlowInstruction::Iterate {
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
                FlowInstruction::Jump(to) => *to,
            };
        }
        self.awaits_predicate = false;
        self.submit_results()
    }

    /// Reads the predicate whose readback was submitted, then executes stages up to the next
    /// predicate or the end of the run. The driver's last submission must be the one that reads the
    /// predicate back.
    pub(super) fn branch_on_predicate(&mut self) -> Result<(), RunError> {
        let holds = self.read_predicate()?;
        let code = Arc::clone(&self.code);
        if let Some(FlowInstruction::BranchIf { otherwise, .. }) = code.list.get(self.cursor.at) {
            self.cursor.at = match holds {
                true => self.cursor.at + 1,
                false => *otherwise,
            };
        }
        self.advance()
    }

    /// Submits the pending stages, followed by the readbacks in `reads`.
    fn submit_pending(&mut self) -> Result<(), RunError> {
        let _span = tracing::debug_span!("submit").entered();
        let driver = self.driver.get_mut();
        driver.submit(&self.launch, &self.due, self.sizes_changed, &self.reads)?;
        self.sizes_changed = false;
        self.due.clear();
        Ok(())
    }

    fn execute_stage(&mut self, stage: StageId) -> Result<(), RunError> {
        if self.due.len() >= MAX_PENDING_STAGES {
            self.reads.clear();
            self.submit_pending()?;
        }
        self.due.push(stage);
        Ok(())
    }

    /// Submits the pending stages and the readback of a predicate and of the fault records.
    fn submit_predicate(&mut self, pred: SlotId) -> Result<(), RunError> {
        let slot = self.program.slot(pred);
        self.reads.clear();
        self.reads.push(ReadbackRange {
            buffer: slot.buffer,
            offset_bytes: slot.offset_bytes,
            bytes: 4,
        });
        self.reads.extend(self.faults);
        self.awaits_predicate = true;
        self.submit_pending()
    }

    /// Submits the last pending stages and the readback of the requested outputs.
    fn submit_results(&mut self) -> Result<(), RunError> {
        self.reads.clear();
        self.reads.extend(self.faults);
        let (program, launch) = (&self.program, &self.launch);
        let wanted = self.flight.iter().flat_map(|flight| &flight.output_indices);
        let reads = wanted
            .filter_map(|&place| super::readback_range(program, launch, &program.outputs[place]));
        self.reads.extend(reads.filter(|r| r.bytes > 0));
        self.submit_pending()
    }

    /// Waits for the value of a predicate; returns an error if a data check failed before.
    fn read_predicate(&mut self) -> Result<bool, RunError> {
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

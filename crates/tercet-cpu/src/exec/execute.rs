//! Executes the steps of a program. Debug builds check redzones after every range that a step
//! writes.

use std::time::Instant;

use smallvec::SmallVec;
use tercet_ir::backend::StepTime;
use tercet_ir::{EvalCtx, EvalError};

use crate::args::KernelView;
use crate::exec::constants::Constants;
use crate::exec::memory::{RunMemory, StepCall};
use crate::lower::copy_view;
use crate::plan::{CpuProgram, MemoryRoot};
use tercet_ir::layout::Layout;

/// Executes every step, then commits the states. Writes the time of each step to `times`. After a
/// failure the states are unchanged.
pub(super) fn play(
    program: &CpuProgram,
    constants: &Constants,
    layouts: &[Layout],
    parallel: &[bool],
    ctx: EvalCtx,
    memory: &mut RunMemory<'_>,
    mut times: Option<&mut Vec<StepTime>>,
) -> Result<(), (usize, EvalError)> {
    let mut clock = times.as_deref_mut().map(|times| {
        times.clear();
        Instant::now()
    });
    let zero = clock;
    let call = |at: usize| {
        let step = &program.steps[at];
        StepCall {
            step,
            operands: &program.operands[step.operands.clone()],
            layouts: &layouts[step.operands.clone()],
            packed: step.pack.and_then(|p| constants.packs[p].as_deref()),
            ctx,
            parallel: parallel[at],
        }
    };
    for (at, step) in program.steps.iter().enumerate() {
        let fenced = memory.fence(step, &program.operands[step.operands.clone()]);
        let done = memory.call(&call(at), &*step.run);
        memory.check_fence(step, fenced);
        if let (Some(times), Some(before), Some(zero)) = (times.as_deref_mut(), clock, zero) {
            let now = Instant::now();
            let nanos = |from: Instant, to: Instant| to.duration_since(from).as_nanos() as u64;
            times.push(StepTime {
                op: step.op,
                kernel: step.kernel.to_string(),
                start_ns: nanos(zero, before),
                ns: nanos(before, now),
            });
            clock = Some(now);
        }
        let Err(e) = done else { continue };
        for (earlier, step) in program.steps[..at].iter().enumerate().rev() {
            if let Some(undo) = &step.undo {
                memory
                    .call(&call(earlier), &**undo)
                    .map_err(|e| (earlier, e))?;
            }
        }
        return Err((at, e));
    }
    for commit in &program.commits {
        let operand = &program.operands[commit.from];
        let mut state = std::mem::take(&mut memory.states[commit.state]);
        let view = KernelView {
            root: memory.read(operand.root),
            within: 0,
            dtype: operand.dtype,
            layout: &layouts[commit.from],
        };
        copy_view(&view, state.bytes_mut(), false);
        memory.states[commit.state] = state;
    }
    Ok(())
}

/// Slots whose redzone was filled before a step.
type SentinelSlots = SmallVec<[usize; 4]>;

const SENTINEL: u8 = 0xa5;

impl RunMemory<'_> {
    /// In debug builds, fills the redzone after each slot that a step writes.
    fn fence(
        &mut self,
        step: &crate::plan::CpuStep,
        operands: &[crate::plan::StepOperand],
    ) -> SentinelSlots {
        let mut fence = SentinelSlots::new();
        if crate::plan::SENTINEL_BYTES == 0 {
            return fence;
        }
        let outs = operands[step.ins..].iter().filter_map(|o| match o.root {
            MemoryRoot::Slot(s) => Some(s),
            MemoryRoot::Input(_)
            | MemoryRoot::Const(_)
            | MemoryRoot::State(_)
            | MemoryRoot::Output(_) => None,
        });
        fence.extend(outs.chain(step.scratch.as_ref().map(|(s, _)| *s)));
        for &s in &fence {
            let end = self.slots[s].offset + self.slots[s].bytes;
            self.arena[end..end + crate::plan::SENTINEL_BYTES].fill(SENTINEL);
        }
        fence
    }

    /// Checks the redzones that [`RunMemory::fence`] filled.
    fn check_fence(&self, step: &crate::plan::CpuStep, fence: SentinelSlots) {
        for s in fence {
            let end = self.slots[s].offset + self.slots[s].bytes;
            let intact = self.arena[end..end + crate::plan::SENTINEL_BYTES]
                .iter()
                .all(|&b| b == SENTINEL);
            assert!(
                intact,
                "invariant: kernel {} wrote past the end of its result",
                step.kernel
            );
        }
    }
}

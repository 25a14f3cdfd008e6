//! Playing a program's steps, with the fences that debug builds put around what they write.

use smallvec::SmallVec;
use tercet_ir::{EvalCtx, EvalError};

use crate::args::View;
use crate::exec::constants::Constants;
use crate::exec::memory::{Call, Memory};
use crate::lower::copy_view;
use crate::plan::{Program, Root};
use tercet_ir::layout::Layout;

/// Runs every step, then writes the states. After a failure the states are as before.
pub(super) fn play(
    program: &Program,
    constants: &Constants,
    layouts: &[Layout],
    parallel: &[bool],
    ctx: EvalCtx,
    memory: &mut Memory<'_>,
) -> Result<(), (usize, EvalError)> {
    let call = |at: usize| {
        let step = &program.steps[at];
        Call {
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
        let view = View {
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

/// Slots whose sentinel was filled before a step.
type Fence = SmallVec<[usize; 4]>;

const SENTINEL: u8 = 0xa5;

impl Memory<'_> {
    /// In debug builds, fills the bytes after each slot that a step writes.
    fn fence(&mut self, step: &crate::plan::Step, operands: &[crate::plan::Operand]) -> Fence {
        let mut fence = Fence::new();
        if crate::plan::SENTINEL_BYTES == 0 {
            return fence;
        }
        let outs = operands[step.ins..].iter().filter_map(|o| match o.root {
            Root::Slot(s) => Some(s),
            Root::Input(_) | Root::Const(_) | Root::State(_) | Root::Output(_) => None,
        });
        fence.extend(outs.chain(step.scratch.as_ref().map(|(s, _)| *s)));
        for &s in &fence {
            let end = self.slots[s].offset + self.slots[s].bytes;
            self.arena[end..end + crate::plan::SENTINEL_BYTES].fill(SENTINEL);
        }
        fence
    }

    /// Checks what [`Memory::fence`] filled.
    fn check_fence(&self, step: &crate::plan::Step, fence: Fence) {
        for s in fence {
            let end = self.slots[s].offset + self.slots[s].bytes;
            let intact = self.arena[end..end + crate::plan::SENTINEL_BYTES]
                .iter()
                .all(|&b| b == SENTINEL);
            assert!(
                intact,
                "invariant: kernel {} writes only its result",
                step.kernel
            );
        }
    }
}

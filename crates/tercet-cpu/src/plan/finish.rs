//! Last phase of planning: retained constants, shared slots and arena offsets.

use tercet_ir::CompileError;

use tercet_ir::layout::{LiveRange, place};

use super::ALIGN_BYTES;
use super::{ArenaSlot, CpuProgram, CpuStep, MemoryRoot, PendingArenaSlot, StepOperand};
use tercet_ir::layout::SymLayout;

/// Redzone: bytes after each slot that debug builds fill and check. So an out-of-bounds write of a
/// kernel fails the first test that runs the kernel with such a write.
pub(crate) const SENTINEL_BYTES: usize = if cfg!(debug_assertions) {
    ALIGN_BYTES
} else {
    0
};

/// Completes a program whose steps and operands are known.
///
/// # Errors
/// [`CompileError::OutOfMemory`] if the arena exceeds the address space.
pub(super) fn finish(
    mut program: CpuProgram,
    mut drafts: Vec<PendingArenaSlot>,
) -> Result<CpuProgram, CompileError> {
    keep_undo(&mut program, &mut drafts);
    let mut lives = lives(&program, &drafts);
    let shared = share(&mut program, &drafts, &mut lives);
    for operand in &mut program.operands {
        if let MemoryRoot::Slot(s) = operand.root {
            operand.root = shared[s];
        }
    }
    want_constants(&mut program);
    let sized: Vec<LiveRange> = lives
        .iter()
        .zip(&shared)
        .enumerate()
        .map(|(s, (life, home))| LiveRange {
            // A slot needs no memory if it shares another slot or an output, or is never used.
            bytes: match (life, home) {
                (Some(life), MemoryRoot::Slot(own)) if *own == s => {
                    life.bytes.saturating_add(SENTINEL_BYTES)
                }
                _ => 0,
            },
            ..life.unwrap_or(LiveRange {
                bytes: 0,
                first: 0,
                last: 0,
            })
        })
        .collect();
    let (offsets, total) = place(&sized, ALIGN_BYTES).ok_or(CompileError::OutOfMemory {
        what: "the arena at the symbols' bounds",
        bytes: u64::MAX,
    })?;
    program.slots = offsets
        .iter()
        .zip(&drafts)
        .map(|(&offset, draft)| ArenaSlot {
            offset,
            bytes: draft.bytes,
        })
        .collect();
    program.arena_bytes = total;
    Ok(program)
}

/// A step may save the old contents of a state in scratch memory. If a later step can fail, this
/// memory stays live until the end of the run; otherwise the step's `undo` is removed.
fn keep_undo(program: &mut CpuProgram, drafts: &mut [PendingArenaSlot]) {
    let mut fallible_after = false;
    for step in program.steps.iter_mut().rev() {
        if !fallible_after {
            step.undo = None;
        } else if let (Some(_), Some((slot, _))) = (&step.undo, &step.scratch) {
            drafts[*slot].pinned = true;
        }
        fallible_after |= step.fallible;
    }
}

/// Live range of each slot in step numbers, from its first write to its last read. `None` for slots
/// that no step uses.
fn lives(program: &CpuProgram, drafts: &[PendingArenaSlot]) -> Vec<Option<LiveRange>> {
    let mut lives: Vec<Option<LiveRange>> = vec![None; drafts.len()];
    let end = program.steps.len();
    let mut touch = |slot: usize, at: usize| {
        let last = if drafts[slot].pinned { end } else { at };
        let life = lives[slot].get_or_insert(LiveRange {
            bytes: drafts[slot].bytes,
            first: at,
            last,
        });
        life.last = life.last.max(last);
    };
    for (at, step) in program.steps.iter().enumerate() {
        for operand in &program.operands[step.operands.clone()] {
            if let MemoryRoot::Slot(s) = operand.root {
                touch(s, at);
            }
        }
        if let Some((s, _)) = step.scratch {
            touch(s, at);
        }
    }
    for commit in &program.commits {
        if let MemoryRoot::Slot(s) = program.operands[commit.from].root {
            touch(s, end);
        }
    }
    // Steps that prepare constants also need scratch memory. No other slot is live before the first
    // run.
    for step in &program.prepare {
        if let Some((s, _)) = step.scratch {
            touch(s, 0);
        }
    }
    lives
}

/// Lets results take over the memory of operands that no later step reads. Returns the memory of
/// each slot, which may be that of another slot.
fn share(
    program: &mut CpuProgram,
    drafts: &[PendingArenaSlot],
    lives: &mut [Option<LiveRange>],
) -> Vec<MemoryRoot> {
    let mut homes: Vec<MemoryRoot> = (0..drafts.len()).map(MemoryRoot::Slot).collect();
    for at in 0..program.steps.len() {
        let step = &program.steps[at];
        if let Some((operand, from, to)) = dying_operand(program, step, drafts, lives, &homes, at) {
            // The result takes over the operand's slot, which then lives as long as the result.
            let life = lives[to].expect("invariant: the step writes its result");
            homes[to] = MemoryRoot::Slot(from);
            if let Some(from) = lives[from].as_mut() {
                from.last = life.last;
            }
            program.operands[operand].absent = true;
        }
    }
    // A slot may share a slot that itself shares a third one; the last slot of such a chain is the
    // memory of all.
    for s in 0..homes.len() {
        while let MemoryRoot::Slot(next) = homes[s]
            && homes[next] != homes[s]
        {
            homes[s] = homes[next];
        }
    }
    homes
}

/// Finds an operand whose memory the first result of a step can take. Returns its index, its slot
/// and the slot of the result.
fn dying_operand(
    program: &CpuProgram,
    step: &CpuStep,
    drafts: &[PendingArenaSlot],
    lives: &[Option<LiveRange>],
    homes: &[MemoryRoot],
    at: usize,
) -> Option<(usize, usize, usize)> {
    let operands = &program.operands[step.operands.clone()];
    let (ins, outs) = operands.split_at(step.ins);
    let result = outs.first()?;
    let MemoryRoot::Slot(to) = result.root else {
        return None;
    };
    let home = |o: &StepOperand| match o.root {
        MemoryRoot::Slot(s) => Some(resolve(homes, s)),
        MemoryRoot::Input(_)
        | MemoryRoot::Const(_)
        | MemoryRoot::State(_)
        | MemoryRoot::Output(_) => None,
    };
    step.in_place.iter().find_map(|&i| {
        let operand = &ins[i];
        let from = home(operand)?;
        let fits = operand.dtype.size_bytes() == result.dtype.size_bytes()
            && operand.layout == SymLayout::dense(result.layout.shape())?
            && drafts[from].bytes == drafts[to].bytes;
        let dies = lives[from].is_some_and(|l| l.last == at) && !drafts[from].pinned;
        let alone = ins.iter().filter(|o| home(o) == Some(from)).count() == 1;
        (fits && dies && alone && from != to).then_some((step.operands.start + i, from, to))
    })
}

fn resolve(homes: &[MemoryRoot], mut slot: usize) -> usize {
    while let MemoryRoot::Slot(next) = homes[slot]
        && next != slot
    {
        slot = next;
    }
    slot
}

/// Marks the constants that every run reads; the others are dropped after their last use.
fn want_constants(program: &mut CpuProgram) {
    let in_runs = program.steps.iter().flat_map(|s| s.operands.clone());
    let committed = program.commits.iter().map(|c| c.from);
    for at in in_runs.chain(committed) {
        let operand = &program.operands[at];
        if let (MemoryRoot::Const(c), false) = (operand.root, operand.absent) {
            program.consts[c].is_read_in_run = true;
        }
    }
}

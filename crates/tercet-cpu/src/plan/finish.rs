//! The end of planning: which constants are kept, which slots share memory, where slots lie.

use tercet_ir::CompileError;

use tercet_ir::layout::{Life, place};

use super::ALIGN_BYTES;
use super::{Operand, Program, Root, Slot, SlotDraft, Step};
use tercet_ir::layout::SymLayout;

/// Bytes after each slot that debug builds fill and check, so that a kernel that writes past its
/// result is found by the first test that runs it.
pub(crate) const SENTINEL_BYTES: usize = if cfg!(debug_assertions) {
    ALIGN_BYTES
} else {
    0
};

/// Completes a program whose steps and operands are known.
///
/// # Errors
/// [`CompileError::OutOfMemory`] when the arena exceeds the address space.
pub(super) fn finish(
    mut program: Program,
    mut drafts: Vec<SlotDraft>,
) -> Result<Program, CompileError> {
    keep_undo(&mut program, &mut drafts);
    let mut lives = lives(&program, &drafts);
    let shared = share(&mut program, &drafts, &mut lives);
    for operand in &mut program.operands {
        if let Root::Slot(s) = operand.root {
            operand.root = shared[s];
        }
    }
    want_constants(&mut program);
    let sized: Vec<Life> = lives
        .iter()
        .zip(&shared)
        .enumerate()
        .map(|(s, (life, home))| Life {
            // A slot that lies in another, or in an output, or is never used, needs no room.
            bytes: match (life, home) {
                (Some(life), Root::Slot(own)) if *own == s => {
                    life.bytes.saturating_add(SENTINEL_BYTES)
                }
                _ => 0,
            },
            ..life.unwrap_or(Life {
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
        .map(|(&offset, draft)| Slot {
            offset,
            bytes: draft.bytes,
        })
        .collect();
    program.arena_bytes = total;
    Ok(program)
}

/// What a step saves of a state lives to the end, if a later step can fail; else it is not needed.
fn keep_undo(program: &mut Program, drafts: &mut [SlotDraft]) {
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

/// From the writing to the last reading of each slot; `None` for slots without a step.
fn lives(program: &Program, drafts: &[SlotDraft]) -> Vec<Option<Life>> {
    let mut lives: Vec<Option<Life>> = vec![None; drafts.len()];
    let end = program.steps.len();
    let mut touch = |slot: usize, at: usize| {
        let last = if drafts[slot].pinned { end } else { at };
        let life = lives[slot].get_or_insert(Life {
            bytes: drafts[slot].bytes,
            first: at,
            last,
        });
        life.last = life.last.max(last);
    };
    for (at, step) in program.steps.iter().enumerate() {
        for operand in &program.operands[step.operands.clone()] {
            if let Root::Slot(s) = operand.root {
                touch(s, at);
            }
        }
        if let Some((s, _)) = step.scratch {
            touch(s, at);
        }
    }
    for commit in &program.commits {
        if let Root::Slot(s) = program.operands[commit.from].root {
            touch(s, end);
        }
    }
    // Steps that run once have scratch memory too; nothing else is live then.
    for step in &program.prepare {
        if let Some((s, _)) = step.scratch {
            touch(s, 0);
        }
    }
    lives
}

/// Lets results take the place of operands that die in the same step. Gives the root of each slot.
fn share(program: &mut Program, drafts: &[SlotDraft], lives: &mut [Option<Life>]) -> Vec<Root> {
    let mut homes: Vec<Root> = (0..drafts.len()).map(Root::Slot).collect();
    for at in 0..program.steps.len() {
        let step = &program.steps[at];
        if let Some((operand, from, to)) = dying_operand(program, step, drafts, lives, &homes, at) {
            // The result moves into the operand's memory, which lives on.
            let life = lives[to].expect("invariant: the step writes its result");
            homes[to] = Root::Slot(from);
            if let Some(from) = lives[from].as_mut() {
                from.last = life.last;
            }
            program.operands[operand].absent = true;
        }
    }
    // Chains end in a slot of its own: operands come before results.
    for s in 0..homes.len() {
        while let Root::Slot(next) = homes[s]
            && homes[next] != homes[s]
        {
            homes[s] = homes[next];
        }
    }
    homes
}

/// The operand whose memory the first result of a step can take: its index, its slot, the result's.
fn dying_operand(
    program: &Program,
    step: &Step,
    drafts: &[SlotDraft],
    lives: &[Option<Life>],
    homes: &[Root],
    at: usize,
) -> Option<(usize, usize, usize)> {
    let operands = &program.operands[step.operands.clone()];
    let (ins, outs) = operands.split_at(step.ins);
    let result = outs.first()?;
    let Root::Slot(to) = result.root else {
        return None;
    };
    let home = |o: &Operand| match o.root {
        Root::Slot(s) => Some(resolve(homes, s)),
        Root::Input(_) | Root::Const(_) | Root::State(_) | Root::Output(_) => None,
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

fn resolve(homes: &[Root], mut slot: usize) -> usize {
    while let Root::Slot(next) = homes[slot]
        && next != slot
    {
        slot = next;
    }
    slot
}

/// Marks the constants that are read at each run; the others are dropped once they were used.
fn want_constants(program: &mut Program) {
    let in_runs = program.steps.iter().flat_map(|s| s.operands.clone());
    let committed = program.commits.iter().map(|c| c.from);
    for at in in_runs.chain(committed) {
        let operand = &program.operands[at];
        if let (Root::Const(c), false) = (operand.root, operand.absent) {
            program.consts[c].wanted = true;
        }
    }
}

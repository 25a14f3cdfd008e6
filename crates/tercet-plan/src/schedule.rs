//! Order, memory and barriers of a draft.
//!
//! Steps are grouped by depth: a step comes one group after the last step it depends on, so that
//! independent work stands together and there is one barrier per group, the fewest that the longest
//! chain allows. Slots live over groups, and share memory only across a barrier; sharing adds no
//! barrier.

use std::collections::HashMap;

use tercet_ir::layout::{Life, place};
use tercet_ir::{CompileError, Signature, Symbol};

use crate::caps::Caps;
use crate::emit::{Draft, Home, RECORD_BYTES};
use crate::kernel::Access;
use crate::plan::{Borders, PlanOptions};
use crate::program::{Buffer, Program, Slot, SlotId, Step};

/// Bytes left after each slot where sentinels are wanted.
const GAP_BYTES: u64 = 256;

/// The program of a draft.
///
/// # Errors
/// [`CompileError::OutOfMemory`] when the arena exceeds the address space.
pub(crate) fn finish(
    mut draft: Draft,
    borders: Borders,
    signature: Signature,
    symbols: Vec<(Symbol, usize)>,
    caps: &Caps,
    choices: PlanOptions,
) -> Result<Program, CompileError> {
    let prepare = group(std::mem::take(&mut draft.prepare), &draft);
    let steps = group(std::mem::take(&mut draft.steps), &draft);
    let (slots, gaps) = memory(&draft, &steps.groups, &steps.list, caps, choices)?;
    Ok(Program {
        signature,
        symbols,
        kernels: draft.kernels,
        slots,
        gaps,
        prepare: prepare.list,
        steps: steps.list,
        params: draft.params,
        tape: draft.tape,
        consts: borders.consts,
        inputs: borders.inputs,
        param_io: borders.params,
        states: borders.states,
        outputs: borders.outputs,
        data_checks: draft.data_checks,
        size_checks: draft.size_checks,
    })
}

/// Steps in their order, with the group of each.
struct Grouped {
    list: Vec<Step>,
    groups: Vec<usize>,
}

/// What happened to a slot so far.
#[derive(Clone, Copy, Default)]
struct Touched {
    /// One past the group of the last write.
    written: usize,
    /// One past the group of the last read.
    read: usize,
}

/// Orders steps by depth and puts a barrier at the start of each group but the first.
fn group(steps: Vec<Step>, draft: &Draft) -> Grouped {
    let mut touched: HashMap<SlotId, Touched> = HashMap::new();
    let mut placed: Vec<(usize, Step)> = Vec::with_capacity(steps.len());
    for step in steps {
        let accesses = expand(&step, draft);
        let mut at = 0;
        for (slot, access) in &accesses {
            let t = touched.get(slot).copied().unwrap_or_default();
            at = at.max(match access {
                Access::Read => t.written,
                Access::Write => t.written.max(t.read),
            });
        }
        for (slot, access) in accesses {
            let t = touched.entry(slot).or_default();
            match access {
                Access::Read => t.read = t.read.max(at + 1),
                Access::Write => t.written = at + 1,
            }
        }
        placed.push((at, step));
    }
    // Stable: inside a group the order of emission stays.
    placed.sort_by_key(|(at, _)| *at);
    let mut grouped = Grouped {
        list: Vec::with_capacity(placed.len()),
        groups: Vec::with_capacity(placed.len()),
    };
    for (at, mut step) in placed {
        step.barrier = grouped.groups.last().is_some_and(|last| *last != at);
        grouped.groups.push(at);
        grouped.list.push(step);
    }
    grouped
}

/// The accesses of a step; the slot over all records of checks counts as each of them.
fn expand(step: &Step, draft: &Draft) -> Vec<(SlotId, Access)> {
    let mut accesses: Vec<(SlotId, Access)> = step.accesses(&draft.kernels).into_iter().collect();
    if let Some(all) = draft.faults
        && let Some(&(_, access)) = accesses.iter().find(|(slot, _)| *slot == all)
    {
        accesses.extend(draft.data_checks.iter().map(|c| (c.record, access)));
    }
    accesses
}

/// Where every slot lies, and the gaps after them where they are wanted.
fn memory(
    draft: &Draft,
    groups: &[usize],
    steps: &[Step],
    caps: &Caps,
    choices: PlanOptions,
) -> Result<(Vec<Slot>, Vec<Slot>), CompileError> {
    let align = caps.storage_align_bytes.max(16) as usize;
    let gap = if choices.sentinels { GAP_BYTES } else { 0 };
    let lives = lives(draft, groups, steps, choices, gap);
    let too_large = || CompileError::OutOfMemory {
        what: "the arena at the symbols' bounds",
        bytes: u64::MAX,
    };
    let (offsets, _) = place(&lives, align).ok_or_else(too_large)?;
    let mut ends: HashMap<Buffer, u64> = HashMap::new();
    let (mut slots, mut gaps) = (Vec::with_capacity(draft.slots.len()), Vec::new());
    for ((slot, offset), life) in draft.slots.iter().zip(&offsets).zip(&lives) {
        let mut next = |buffer: Buffer| {
            let end = ends.entry(buffer).or_insert(0);
            let at = *end;
            *end = (at + slot.bytes + gap).next_multiple_of(align as u64);
            (buffer, at)
        };
        let (buffer, offset_bytes) = match slot.home {
            Home::Arena => (Buffer::Arena, *offset as u64),
            Home::Prepared => next(Buffer::Prepared),
            Home::Output => next(Buffer::Output),
            Home::Input => next(Buffer::Input),
            Home::At(buffer, offset) => (buffer, offset),
        };
        let placed = Slot {
            buffer,
            offset_bytes,
            bytes: slot.bytes,
            dtype: slot.dtype,
        };
        // A slot of the arena that no step touches has no place of its own.
        let placed_here = match slot.home {
            Home::Arena => life.bytes > 0,
            Home::Output | Home::Prepared => true,
            Home::Input | Home::At(..) => false,
        };
        if gap > 0 && placed_here {
            gaps.push(Slot {
                offset_bytes: offset_bytes + slot.bytes,
                bytes: gap,
                ..placed
            });
        }
        slots.push(placed);
    }
    debug_assert!(RECORD_BYTES >= u64::from(caps.storage_align_bytes));
    Ok((slots, gaps))
}

/// The groups over which each slot of the arena lives.
fn lives(
    draft: &Draft,
    groups: &[usize],
    steps: &[Step],
    choices: PlanOptions,
    gap: u64,
) -> Vec<Life> {
    let mut lives: Vec<Option<Life>> = vec![None; draft.slots.len()];
    for (step, &group) in steps.iter().zip(groups) {
        for (slot, _) in step.accesses(&draft.kernels) {
            let draft = &draft.slots[slot.0 as usize];
            if draft.home != Home::Arena {
                continue;
            }
            let life = lives[slot.0 as usize].get_or_insert(Life {
                bytes: (draft.bytes + gap) as usize,
                first: group,
                last: group,
            });
            life.last = life.last.max(group);
            if choices.sentinels {
                (life.first, life.last) = (0, usize::MAX);
            }
        }
    }
    let none = Life {
        bytes: 0,
        first: 0,
        last: 0,
    };
    lives.into_iter().map(|l| l.unwrap_or(none)).collect()
}

//! Order, memory and barriers of a draft.
//!
//! Steps are grouped (`groups.rs`), with one barrier per group. Slots live over groups, and share memory only across a barrier,
//! or where they belong to different arms; sharing adds no barrier.
//!
//! Stages are ordered each by itself. A slot that several stages touch lives for all of every control
//! flow that its life reaches into: a branch not taken leaves it alone, another iteration may read it.

use std::collections::HashMap;
use std::ops::Range;

use tercet_ir::layout::{Life, place};
use tercet_ir::{CompileError, NodeId, Signature, Symbol};

mod groups;

use self::groups::{Grouped, group};
use crate::caps::Caps;
use crate::emit::{Draft, Home, RECORD_BYTES};
use crate::flow::{Flow, StageId};
use crate::plan::{Borders, PlanOptions};
use crate::program::{Arm, Buffer, ChoiceId, Program, Slot, Step};

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
    let mut run = Run::default();
    let flow = match std::mem::take(&mut draft.flow) {
        plain if plain.is_empty() => {
            run.stage(std::mem::take(&mut draft.steps), &draft);
            Vec::new()
        }
        flow => run.flow(flow, &draft, true),
    };
    let (slots, gaps) = memory(&draft, &run, caps, choices)?;
    Ok(Program {
        signature,
        symbols,
        kernels: draft.kernels,
        slots,
        gaps,
        prepare: prepare.list,
        steps: run.steps.list,
        stages: run.stages,
        flow,
        params: draft.params,
        chain: draft.chain,
        choices: draft.choices,
        tape: draft.tape,
        consts: draft.consts,
        inputs: borders.inputs,
        param_io: borders.params,
        states: borders.states,
        outputs: borders.outputs,
        data_checks: draft.data_checks,
        size_checks: draft.size_checks,
        variants: draft.variants,
    })
}

/// The stages of a run, one after the other.
#[derive(Default)]
struct Run {
    steps: Grouped,
    /// The stage of each step.
    of_step: Vec<usize>,
    stages: Vec<Range<usize>>,
    /// The groups of each control flow that lies in no other: the first and the last.
    spans: Vec<(usize, usize)>,
}

impl Run {
    /// Adds the steps of a stage. Their groups come after all before.
    fn stage(&mut self, steps: Vec<Step>, draft: &Draft) -> StageId {
        let (first, next) = (self.steps.list.len(), self.next_group());
        let Grouped { list, groups } = group(steps, draft);
        let stage = self.stages.len();
        self.of_step.extend(list.iter().map(|_| stage));
        self.steps.list.extend(list);
        self.steps.groups.extend(groups.iter().map(|g| next + g));
        self.stages.push(first..self.steps.list.len());
        StageId(stage as u32)
    }

    fn next_group(&self) -> usize {
        self.steps.groups.last().map_or(0, |last| last + 1)
    }

    fn flow(&mut self, flow: Vec<Flow<Vec<Step>>>, draft: &Draft, outermost: bool) -> Vec<Flow> {
        let mut done = Vec::with_capacity(flow.len());
        for part in flow {
            let first = self.next_group();
            let mut list = |flow| self.flow(flow, draft, false);
            let part = match part {
                Flow::Stage(steps) => {
                    done.push(Flow::Stage(self.stage(steps, draft)));
                    continue;
                }
                Flow::Sizes(checks) => Flow::Sizes(checks),
                Flow::If {
                    pred,
                    then,
                    otherwise,
                } => Flow::If {
                    pred,
                    then: list(then),
                    otherwise: list(otherwise),
                },
                Flow::While {
                    cond,
                    pred,
                    body,
                    max_iter,
                    site,
                } => Flow::While {
                    cond: list(cond),
                    pred,
                    body: list(body),
                    max_iter,
                    site,
                },
                Flow::Repeat { count, body } => Flow::Repeat {
                    count,
                    body: list(body),
                },
            };
            let next = self.next_group();
            if outermost && next > first {
                self.spans.push((first, next - 1));
            }
            done.push(part);
        }
        done
    }
}

/// Where every slot lies, and the gaps after them where they are wanted.
fn memory(
    draft: &Draft,
    run: &Run,
    caps: &Caps,
    choices: PlanOptions,
) -> Result<(Vec<Slot>, Vec<Slot>), CompileError> {
    let align = caps.storage_align_bytes.max(16) as usize;
    let gap = if choices.sentinels { GAP_BYTES } else { 0 };
    let uses = uses(draft, run, choices);
    let too_large = || CompileError::OutOfMemory {
        what: "the arena at the symbols' bounds",
        bytes: u64::MAX,
    };
    let offsets = arena(draft, &uses, align, gap).ok_or_else(too_large)?;
    let mut ends: HashMap<Buffer, u64> = HashMap::new();
    let (mut slots, mut gaps) = (Vec::with_capacity(draft.slots.len()), Vec::new());
    for ((slot, offset), used) in draft.slots.iter().zip(&offsets).zip(&uses) {
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
            Home::Counters => next(Buffer::Counters),
            Home::At(buffer, offset) => (buffer, offset),
            // Once the whole has its place, which may come later.
            Home::Within(..) => (Buffer::Output, 0),
        };
        let placed = Slot {
            buffer,
            offset_bytes,
            bytes: slot.bytes,
            dtype: slot.dtype,
        };
        // A slot of the arena that no step touches has no place of its own.
        let placed_here = match slot.home {
            Home::Arena => used.is_some(),
            Home::Output | Home::Prepared | Home::Counters => true,
            Home::Input | Home::At(..) | Home::Within(..) => false,
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
    for (at, slot) in draft.slots.iter().enumerate() {
        if let Home::Within(whole, offset) = slot.home {
            let whole = slots[whole.0 as usize];
            slots[at].buffer = whole.buffer;
            slots[at].offset_bytes = whole.offset_bytes + offset;
        }
    }
    debug_assert!(RECORD_BYTES >= u64::from(caps.storage_align_bytes));
    Ok((slots, gaps))
}

/// When a slot of the arena is used, and in which arm if in one only.
#[derive(Clone)]
struct Used {
    first: usize,
    last: usize,
    owner: Option<(NodeId, Arm)>,
    /// The stage, if one only.
    stage: Option<usize>,
}

/// The use of each slot of the arena that some step touches.
fn uses(draft: &Draft, run: &Run, choices: PlanOptions) -> Vec<Option<Used>> {
    let mut uses: Vec<Option<Used>> = vec![None; draft.slots.len()];
    let steps = run.steps.list.iter().zip(&run.steps.groups);
    for ((step, &group), &stage) in steps.zip(&run.of_step) {
        let owner = step.arms.first().map(|arm| (step.node, *arm));
        for (slot, _) in step.accesses(&draft.kernels) {
            if draft.slots[slot.0 as usize].home != Home::Arena {
                continue;
            }
            let used = uses[slot.0 as usize].get_or_insert(Used {
                first: group,
                last: group,
                owner,
                stage: Some(stage),
            });
            used.last = used.last.max(group);
            if used.stage != Some(stage) {
                used.stage = None;
            }
            if used.owner != owner || choices.sentinels {
                used.owner = None;
            }
            if choices.sentinels {
                (used.first, used.last) = (0, usize::MAX);
            }
        }
    }
    for used in uses.iter_mut().flatten().filter(|u| u.stage.is_none()) {
        for &(first, last) in &run.spans {
            if first <= used.last && used.first <= last {
                (used.first, used.last) = (used.first.min(first), used.last.max(last));
            }
        }
    }
    uses
}

/// Slots that lie behind each other in one piece of the arena.
struct Piece {
    life: Life,
    /// What is used up in each arm of the choice that the piece is for.
    ends: HashMap<u32, usize>,
}

/// The offset of each slot of the arena. What belongs to one arm of a node shares a piece with what
/// belongs to the other arms.
fn arena(draft: &Draft, uses: &[Option<Used>], align: usize, gap: u64) -> Option<Vec<usize>> {
    let mut pieces: Vec<Piece> = Vec::new();
    let mut of_choice: HashMap<(NodeId, ChoiceId), usize> = HashMap::new();
    let mut placed: Vec<Option<(usize, usize)>> = Vec::with_capacity(uses.len());
    for (slot, used) in draft.slots.iter().zip(uses) {
        let Some(used) = used else {
            placed.push(None);
            continue;
        };
        let bytes = usize::try_from(slot.bytes + gap).ok()?;
        let mut new = || {
            pieces.push(Piece {
                life: Life {
                    bytes: 0,
                    first: used.first,
                    last: used.last,
                },
                ends: HashMap::new(),
            });
            pieces.len() - 1
        };
        let (piece, index) = match used.owner {
            None => (new(), 0),
            Some((node, arm)) => {
                let piece = of_choice.entry((node, arm.choice)).or_insert_with(new);
                (*piece, arm.index)
            }
        };
        let to = &mut pieces[piece];
        let end = to.ends.entry(index).or_insert(0);
        placed.push(Some((piece, *end)));
        let filled = end.checked_add(bytes)?;
        *end = filled.checked_next_multiple_of(align)?;
        to.life.bytes = to.life.bytes.max(filled);
        to.life.first = to.life.first.min(used.first);
        to.life.last = to.life.last.max(used.last);
    }
    let lives: Vec<Life> = pieces.iter().map(|p| p.life).collect();
    let (offsets, _) = place(&lives, align)?;
    let offset = |at: Option<(usize, usize)>| at.map_or(0, |(piece, at)| offsets[piece] + at);
    Some(placed.into_iter().map(offset).collect())
}

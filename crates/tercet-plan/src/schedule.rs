//! Scheduling and memory planning: step order, barriers and slot placement of a program under
//! construction.
//!
//! Steps are grouped (`groups.rs`), with one barrier per group. The lifetime of a slot is a range
//! of groups. Slots share memory only if a barrier separates their lifetimes, or if they belong to
//! different branches of one shape switch. Sharing memory adds no barrier.
//!
//! Each stage is ordered separately. If several stages use a slot, its lifetime extends over the
//! whole outermost branch or loop. Another branch must not overwrite the slot, and the next
//! iteration of a loop may read it.

use std::collections::HashMap;
use std::ops::Range;

use tercet_ir::layout::{LiveRange, place};
use tercet_ir::{Bindings, CompileError, NodeId, Signature, Symbol};

pub(crate) mod batch;
mod groups;

use self::groups::{GroupedSteps, group};
use crate::caps::DeviceCaps;
use crate::emit::{ProgramBuilder, SlotPlacement};
use crate::plan::{PlanOptions, ProgramInterface};
use tercet_program::RECORD_BYTES;
use tercet_program::{
    BufferSlot, GpuProgram, ProgramBuffer, ProgramStep, ShapeBranch, ShapeSwitchId,
};
use tercet_program::{ControlFlowGraph, StageId};

/// Guard bytes after each slot when sentinels are requested.
const GAP_BYTES: u64 = 256;

/// Schedules the steps and places the slots, which yields the finished program.
///
/// # Errors
/// [`CompileError::OutOfMemory`] if the arena exceeds the address space.
pub(crate) fn finish(
    mut draft: ProgramBuilder,
    borders: ProgramInterface,
    signature: Signature,
    symbols: Vec<(Symbol, usize)>,
    caps: &DeviceCaps,
    choices: PlanOptions,
) -> Result<GpuProgram, CompileError> {
    let prepare = group(std::mem::take(&mut draft.prepare), &draft);
    let mut run = ScheduledRun::default();
    let mut batches = BatchBounds {
        symbols: Bindings::new(),
        caps,
    };
    for (symbol, bound) in &symbols {
        batches.symbols.set(symbol, *bound);
    }
    let flow = match std::mem::take(&mut draft.flow) {
        plain if plain.is_empty() => {
            run.stage(std::mem::take(&mut draft.steps), &mut draft, &batches);
            Vec::new()
        }
        flow => run.flow(flow, &mut draft, &batches, true),
    };
    let (slots, gaps) = memory(&draft, &run, caps, choices)?;
    Ok(GpuProgram {
        signature,
        symbols,
        kernels: draft.kernels,
        slots,
        redzones: gaps,
        prepare: prepare.list,
        steps: run.steps.list,
        stages: run.stages,
        flow,
        params: draft.params,
        chain: draft.chain,
        shape_switches: draft.shape_switches,
        tape: draft.tape,
        consts: draft.consts,
        inputs: borders.inputs,
        param_io: borders.params,
        states: borders.states,
        outputs: borders.outputs,
        data_checks: draft.data_checks,
        size_checks: draft.size_checks,
        variants: draft.variants,
        debug: caps.device.switches.debug(),
    })
}

/// The sizes and the device that limit batches.
struct BatchBounds<'a> {
    symbols: Bindings,
    caps: &'a DeviceCaps,
}

/// All scheduled stages of a run, concatenated.
#[derive(Default)]
struct ScheduledRun {
    steps: GroupedSteps,
    /// Index of the stage that contains each step.
    stage_of_step: Vec<usize>,
    stages: Vec<Range<usize>>,
    /// First and last group of each outermost branch or loop.
    spans: Vec<(usize, usize)>,
}

impl ScheduledRun {
    /// Appends the steps of a stage; their groups are numbered after all earlier ones.
    fn stage(
        &mut self,
        steps: Vec<ProgramStep>,
        draft: &mut ProgramBuilder,
        batches: &BatchBounds<'_>,
    ) -> StageId {
        let (first, next) = (self.steps.list.len(), self.next_group());
        let grouped = group(steps, draft);
        let merged = batch::merge(grouped, draft, &batches.symbols, batches.caps);
        let GroupedSteps { list, groups } = merged;
        let stage = self.stages.len();
        self.stage_of_step.extend(list.iter().map(|_| stage));
        self.steps.list.extend(list);
        self.steps.groups.extend(groups.iter().map(|g| next + g));
        self.stages.push(first..self.steps.list.len());
        StageId(stage as u32)
    }

    fn next_group(&self) -> usize {
        self.steps.groups.last().map_or(0, |last| last + 1)
    }

    fn flow(
        &mut self,
        flow: Vec<ControlFlowGraph<Vec<ProgramStep>>>,
        draft: &mut ProgramBuilder,
        batches: &BatchBounds<'_>,
        outermost: bool,
    ) -> Vec<ControlFlowGraph> {
        let mut done = Vec::with_capacity(flow.len());
        for part in flow {
            let first = self.next_group();
            let mut list = |flow| self.flow(flow, draft, batches, false);
            let part = match part {
                ControlFlowGraph::Stage(steps) => {
                    let stage = self.stage(steps, draft, batches);
                    done.push(ControlFlowGraph::Stage(stage));
                    continue;
                }
                ControlFlowGraph::Sizes(checks) => ControlFlowGraph::Sizes(checks),
                ControlFlowGraph::If {
                    pred,
                    then,
                    else_flow: otherwise,
                } => ControlFlowGraph::If {
                    pred,
                    then: list(then),
                    else_flow: list(otherwise),
                },
                ControlFlowGraph::While {
                    cond,
                    pred,
                    body,
                    max_iter,
                    site,
                } => ControlFlowGraph::While {
                    cond: list(cond),
                    pred,
                    body: list(body),
                    max_iter,
                    site,
                },
                ControlFlowGraph::Repeat { count, body } => ControlFlowGraph::Repeat {
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

/// Places every slot, and the guard ranges after them if sentinels are requested.
fn memory(
    draft: &ProgramBuilder,
    run: &ScheduledRun,
    caps: &DeviceCaps,
    choices: PlanOptions,
) -> Result<(Vec<BufferSlot>, Vec<BufferSlot>), CompileError> {
    let align = caps.storage_align_bytes.max(16) as usize;
    let gap = if choices.sentinels { GAP_BYTES } else { 0 };
    let uses = uses(draft, run, choices);
    let too_large = || CompileError::OutOfMemory {
        what: "the arena at the symbols' bounds",
        bytes: u64::MAX,
    };
    let offsets = arena(draft, &uses, align, gap).ok_or_else(too_large)?;
    let mut ends: HashMap<ProgramBuffer, u64> = HashMap::new();
    let (mut slots, mut gaps) = (Vec::with_capacity(draft.slots.len()), Vec::new());
    for ((slot, offset), used) in draft.slots.iter().zip(&offsets).zip(&uses) {
        let mut next = |buffer: ProgramBuffer| {
            let end = ends.entry(buffer).or_insert(0);
            let at = *end;
            *end = (at + slot.bytes + gap).next_multiple_of(align as u64);
            (buffer, at)
        };
        let (buffer, offset_bytes) = match slot.home {
            SlotPlacement::Arena => (ProgramBuffer::Arena, *offset as u64),
            SlotPlacement::Prepared => next(ProgramBuffer::Prepared),
            SlotPlacement::Output => next(ProgramBuffer::Output),
            SlotPlacement::Input => next(ProgramBuffer::Input),
            SlotPlacement::Counters => next(ProgramBuffer::Counters),
            SlotPlacement::At(buffer, offset) => (buffer, offset),
            // Placeholder for a slot within another slot; its position is set below, once the
            // containing slot is placed.
            SlotPlacement::Within(..) => (ProgramBuffer::Output, 0),
        };
        let placed = BufferSlot {
            buffer,
            offset_bytes,
            bytes: slot.bytes,
            dtype: slot.dtype,
        };
        // An arena slot that no step accesses occupies no memory.
        let placed_here = match slot.home {
            SlotPlacement::Arena => used.is_some(),
            SlotPlacement::Output | SlotPlacement::Prepared | SlotPlacement::Counters => true,
            SlotPlacement::Input | SlotPlacement::At(..) | SlotPlacement::Within(..) => false,
        };
        if gap > 0 && placed_here {
            gaps.push(BufferSlot {
                offset_bytes: offset_bytes + slot.bytes,
                bytes: gap,
                ..placed
            });
        }
        slots.push(placed);
    }
    for (at, slot) in draft.slots.iter().enumerate() {
        if let SlotPlacement::Within(whole, offset) = slot.home {
            let whole = slots[whole.0 as usize];
            slots[at].buffer = whole.buffer;
            slots[at].offset_bytes = whole.offset_bytes + offset;
        }
    }
    debug_assert!(RECORD_BYTES >= u64::from(caps.storage_align_bytes));
    Ok((slots, gaps))
}

/// Lifetime of an arena slot, and its shape-switch branch if all its uses are in a single one.
#[derive(Clone)]
struct SlotUsage {
    first: usize,
    last: usize,
    owner: Option<(NodeId, ShapeBranch)>,
    /// The stage that contains all uses of the slot; `None` if several stages use it.
    stage: Option<usize>,
}

/// Lifetime of each arena slot that a step accesses; `None` for unused slots.
fn uses(
    draft: &ProgramBuilder,
    run: &ScheduledRun,
    choices: PlanOptions,
) -> Vec<Option<SlotUsage>> {
    let mut uses: Vec<Option<SlotUsage>> = vec![None; draft.slots.len()];
    let steps = run.steps.list.iter().zip(&run.steps.groups);
    for ((step, &group), &stage) in steps.zip(&run.stage_of_step) {
        let owner = step.branches.first().map(|arm| (step.node, *arm));
        for (slot, _) in step.accesses(&draft.kernels) {
            if draft.slots[slot.0 as usize].home != SlotPlacement::Arena {
                continue;
            }
            let used = uses[slot.0 as usize].get_or_insert(SlotUsage {
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

/// A byte range of the arena in which slots are placed one after the other.
struct PackedSlots {
    life: LiveRange,
    /// Number of bytes used so far by each branch of the shape switch whose slots share this byte
    /// range.
    ends: HashMap<u32, usize>,
}

/// Arena offset of each slot. The slots of all branches of one shape switch share a byte range,
/// because a run executes only one branch.
fn arena(
    draft: &ProgramBuilder,
    uses: &[Option<SlotUsage>],
    align: usize,
    gap: u64,
) -> Option<Vec<usize>> {
    let mut pieces: Vec<PackedSlots> = Vec::new();
    let mut of_choice: HashMap<(NodeId, ShapeSwitchId), usize> = HashMap::new();
    let mut placed: Vec<Option<(usize, usize)>> = Vec::with_capacity(uses.len());
    for (slot, used) in draft.slots.iter().zip(uses) {
        let Some(used) = used else {
            placed.push(None);
            continue;
        };
        let bytes = usize::try_from(slot.bytes + gap).ok()?;
        let mut new = || {
            pieces.push(PackedSlots {
                life: LiveRange {
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
    let lives: Vec<LiveRange> = pieces.iter().map(|p| p.life).collect();
    let (offsets, _) = place(&lives, align)?;
    let offset = |at: Option<(usize, usize)>| at.map_or(0, |(piece, at)| offsets[piece] + at);
    Some(placed.into_iter().map(offset).collect())
}

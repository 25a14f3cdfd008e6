//! Grouping of steps between barriers.
//!
//! By default, a step comes one group after the last step it depends on. Independent work then
//! shares a group, and the longest dependency chain determines the number of barriers. Branches of
//! one shape switch do not depend on each other and share groups; the steps after them follow the
//! longest branch.
//!
//! This default runs steps with few dependencies early, and the results of these steps stay in
//! memory until they are used. Examples are weights cast for the backward pass, and values
//! recomputed from checkpoints. If the results of early steps take much memory, steps with large
//! results are deferred to groups near their position in the graph. A chain of deferred steps may
//! add groups. Deferral is accepted if it saves an eighth of the memory, or a 32nd if it adds no
//! groups. Dequantization of weights is not deferred: `emit/dequant_schedule.rs` determines its
//! group, and it comes last within this group.

use std::collections::{BTreeMap, HashMap};

use tercet_ir::NodeId;

use crate::emit::{ProgramBuilder, SlotPlacement};
use tercet_program::ArgAccess;
use tercet_program::{ProgramStep, ShapeBranches, ShapeSwitchId, SlotId, are_exclusive};

/// Candidates for the maximum number of groups by which a step with a large result may precede the
/// latest group of all steps before it in emission order. The candidates correspond to side chains
/// of different length, such as QKV of a layer.
const WAITS: [usize; 3] = [16, 6, 2];

/// Results below this many bytes are never deferred.
const LARGE_BYTES: u64 = 16 << 10;

/// Maximum arena size in bytes for which nothing is deferred.
const LITTLE_BYTES: u64 = 1 << 20;

/// The steps in execution order, and for each step its group.
#[derive(Default)]
pub(super) struct GroupedSteps {
    pub(super) list: Vec<ProgramStep>,
    pub(super) groups: Vec<usize>,
}

/// Slots that a step accesses, with access modes.
type StepAccesses = Vec<(SlotId, ArgAccess)>;

/// Orders steps by group, with a barrier at the start of each group except the first.
pub(super) fn group(steps: Vec<ProgramStep>, draft: &ProgramBuilder) -> GroupedSteps {
    let accesses: Vec<StepAccesses> = steps.iter().map(|step| expand(step, draft)).collect();
    let mut groups = depths(&steps, &accesses, draft, None);
    let mut bytes = max_bytes(&steps, &groups, draft);
    if bytes > LITTLE_BYTES {
        for wait in WAITS {
            let other = depths(&steps, &accesses, draft, Some(wait));
            let less = max_bytes(&steps, &other, draft);
            let worth = match other.iter().max() > groups.iter().max() {
                true => bytes / 8,
                false => bytes / 32,
            };
            if less <= bytes - worth {
                (groups, bytes) = (other, less);
            }
        }
    }
    let behind = accesses.iter().map(|all| decodes(all, draft));
    let places = groups.into_iter().zip(behind);
    let mut placed: Vec<((usize, bool), ProgramStep)> = places.zip(steps).collect();
    // The sort is stable: within a group, steps keep their order of emission.
    placed.sort_by_key(|(at, _)| *at);
    let mut grouped = GroupedSteps {
        list: Vec::with_capacity(placed.len()),
        groups: Vec::with_capacity(placed.len()),
    };
    for ((at, _), mut step) in placed {
        step.barrier = grouped.groups.last().is_some_and(|last| *last != at);
        grouped.groups.push(at);
        grouped.list.push(step);
    }
    grouped
}

/// Latest accesses of a slot so far, by steps of one set of shape-switch branches.
#[derive(Clone, Default)]
struct SlotHazards {
    branches: ShapeBranches,
    /// One plus the last group that writes the slot.
    write_end: usize,
    /// One plus the last group that reads the slot.
    read: usize,
}

/// The group of each step: one after its dependencies. With `wait`, a step with a large result
/// comes at most this many groups before the latest group of all steps before it in emission order.
fn depths(
    steps: &[ProgramStep],
    accesses: &[StepAccesses],
    draft: &ProgramBuilder,
    wait: Option<usize>,
) -> Vec<usize> {
    let mut touched: HashMap<SlotId, Vec<SlotHazards>> = HashMap::new();
    let mut groups = Vec::with_capacity(steps.len());
    let mut last = 0;
    for (step, accesses) in steps.iter().zip(accesses) {
        let mut at = 0;
        for (slot, access) in accesses {
            for t in touched.get(slot).into_iter().flatten() {
                if are_exclusive(&draft.shape_switches, &t.branches, &step.branches) {
                    continue;
                }
                at = at.max(match access {
                    ArgAccess::Read => t.write_end,
                    ArgAccess::Write => t.write_end.max(t.read),
                });
            }
        }
        if let Some(wait) = wait
            && first_writes_large_slot(accesses, &touched, draft)
        {
            at = at.max(last - wait.min(last));
        }
        last = last.max(at);
        for (slot, access) in accesses {
            let all = touched.entry(*slot).or_default();
            let t = hazards_of(all, &step.branches);
            match access {
                ArgAccess::Read => t.read = t.read.max(at + 1),
                ArgAccess::Write => t.write_end = t.write_end.max(at + 1),
            }
            if *access == ArgAccess::Write && !step.branches.is_empty() {
                level(all, draft, &step.branches);
            }
        }
        groups.push(at);
    }
    groups
}

/// Whether a step dequantizes weights for a matmul.
fn decodes(accesses: &[(SlotId, ArgAccess)], draft: &ProgramBuilder) -> bool {
    let mut all = accesses.iter();
    all.any(|(slot, access)| *access == ArgAccess::Write && draft.decoding.has(*slot))
}

/// Whether a step is the first to write a large arena slot, so that it may be deferred.
fn first_writes_large_slot(
    accesses: &[(SlotId, ArgAccess)],
    touched: &HashMap<SlotId, Vec<SlotHazards>>,
    draft: &ProgramBuilder,
) -> bool {
    accesses.iter().any(|(slot, access)| {
        let to = &draft.slots[slot.0 as usize];
        let large = to.home == SlotPlacement::Arena
            && to.bytes >= LARGE_BYTES
            && !draft.decoding.has(*slot);
        large && *access == ArgAccess::Write && !touched.contains_key(slot)
    })
}

/// First and last group of a slot, and the shape switch if a single branch owns the slot.
type SlotLifetimes = (usize, usize, Option<(NodeId, ShapeSwitchId)>);

/// Maximum number of arena bytes live at the same time, which approximates the arena size. Of the
/// slots in different branches of one shape switch, only the largest counts.
fn max_bytes(steps: &[ProgramStep], groups: &[usize], draft: &ProgramBuilder) -> u64 {
    let mut lives: BTreeMap<SlotId, SlotLifetimes> = BTreeMap::new();
    for (step, &group) in steps.iter().zip(groups) {
        let owner = step.branches.first().map(|arm| (step.node, arm.choice));
        for (slot, _) in step.accesses(&draft.kernels) {
            if draft.slots[slot.0 as usize].home == SlotPlacement::Arena {
                let life = lives.entry(slot).or_insert((group, group, owner));
                (life.0, life.1) = (life.0.min(group), life.1.max(group));
                if life.2 != owner {
                    life.2 = None;
                }
            }
        }
    }
    let mut largest: HashMap<(NodeId, ShapeSwitchId), SlotId> = HashMap::new();
    let bytes = |slot: SlotId| draft.slots[slot.0 as usize].bytes;
    for (slot, (.., owner)) in &lives {
        if let Some(owner) = owner {
            let most = largest.entry(*owner).or_insert(*slot);
            if bytes(*slot) > bytes(*most) {
                *most = *slot;
            }
        }
    }
    let end = groups.iter().max().map_or(0, |last| last + 2);
    let (mut begin, mut over) = (vec![0u64; end], vec![0u64; end]);
    for (slot, (first, last, owner)) in &lives {
        if owner.is_none_or(|owner| largest.get(&owner) == Some(slot)) {
            begin[*first] = begin[*first].saturating_add(bytes(*slot));
            over[*last + 1] = over[*last + 1].saturating_add(bytes(*slot));
        }
    }
    let (mut now, mut most) = (0u64, 0u64);
    for (begin, over) in begin.into_iter().zip(over) {
        now = now.saturating_sub(over).saturating_add(begin);
        most = most.max(now);
    }
    most
}

/// Treats the writes of alternative branches to a slot as equally late. Without this rule, a branch
/// with more steps would drift to ever later groups, and shared slots would live for all groups in
/// between.
fn level(all: &mut [SlotHazards], draft: &ProgramBuilder, arms: &ShapeBranches) {
    let beside = |t: &&mut SlotHazards| {
        t.branches == *arms || are_exclusive(&draft.shape_switches, &t.branches, arms)
    };
    let last = all.iter_mut().filter(beside).map(|t| t.write_end).max();
    for t in all.iter_mut().filter(beside) {
        t.write_end = t.write_end.max(last.unwrap_or(0));
    }
}

/// The record of slot accesses by steps of these branches; adds it if it does not exist.
fn hazards_of<'t>(all: &'t mut Vec<SlotHazards>, arms: &ShapeBranches) -> &'t mut SlotHazards {
    let at = all.iter().position(|t| t.branches == *arms);
    let at = at.unwrap_or_else(|| {
        all.push(SlotHazards {
            branches: arms.clone(),
            ..SlotHazards::default()
        });
        all.len() - 1
    });
    &mut all[at]
}

/// Accesses of a step. A slot that spans several fault records counts as an access to each of them.
fn expand(step: &ProgramStep, draft: &ProgramBuilder) -> StepAccesses {
    let mut accesses: StepAccesses = step.accesses(&draft.kernels).into_iter().collect();
    if let Some(all) = draft.faults
        && let Some(&(_, access)) = accesses.iter().find(|(slot, _)| *slot == all)
    {
        accesses.extend(draft.data_checks.iter().map(|c| (c.record, access)));
    }
    let joined = accesses.iter().filter_map(|(slot, access)| {
        let records = draft.joined_records.get(slot)?;
        Some(records.iter().map(|record| (*record, *access)))
    });
    let joined: StepAccesses = joined.flatten().collect();
    accesses.extend(joined);
    accesses
}

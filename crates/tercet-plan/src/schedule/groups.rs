//! Which steps stand together between two barriers.
//!
//! By depth, a step comes one group after the last step it depends on, so that independent work stands together, with the
//! fewest barriers that the longest chain allows. Arms of one choice do not depend on each other and stand side by side; what
//! comes after them does so after the longest.
//!
//! What depends on little is done early then, and kept until it is needed: weights that the way back casts, what gradients
//! compute again from checkpoints or draw again. Where that takes much memory, steps with large results wait instead until
//! groups come near the place that they have in the graph's own order, which computes such things where they are needed. A chain
//! of them may then make groups of its own: an eighth of the memory is taken for worth it, and a 32nd where there are no more.
//! Weights that are decoded do not wait so: they say themselves beside what they stand (`emit/decoding.rs`), and do so behind it.

use std::collections::{BTreeMap, HashMap};

use tercet_ir::NodeId;

use crate::emit::{Draft, Home};
use crate::kernel::Access;
use crate::program::{Arms, ChoiceId, SlotId, Step, exclude};

/// How many groups before the last one so far a step with a large result may stand, if it may not stand anywhere: the
/// lengths of side chains, such as those to the queries, keys and values of a layer, and of next to none.
const WAITS: [usize; 3] = [16, 6, 2];

/// Results below this many bytes stand anywhere.
const LARGE_BYTES: u64 = 16 << 10;

/// Memory between steps that nothing is done about.
const LITTLE_BYTES: u64 = 1 << 20;

/// Steps in their order, with the group of each.
#[derive(Default)]
pub(super) struct Grouped {
    pub(super) list: Vec<Step>,
    pub(super) groups: Vec<usize>,
}

/// What a step reads and writes.
type Accesses = Vec<(SlotId, Access)>;

/// Orders steps by their groups and puts a barrier at the start of each group but the first.
pub(super) fn group(steps: Vec<Step>, draft: &Draft) -> Grouped {
    let accesses: Vec<Accesses> = steps.iter().map(|step| expand(step, draft)).collect();
    let mut groups = depths(&steps, &accesses, draft, None);
    let mut bytes = most_bytes(&steps, &groups, draft);
    if bytes > LITTLE_BYTES {
        for wait in WAITS {
            let other = depths(&steps, &accesses, draft, Some(wait));
            let less = most_bytes(&steps, &other, draft);
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
    let mut placed: Vec<((usize, bool), Step)> = places.zip(steps).collect();
    // Stable: inside a group the order of emission stays.
    placed.sort_by_key(|(at, _)| *at);
    let mut grouped = Grouped {
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

/// What happened to a slot so far in steps of these arms.
#[derive(Clone, Default)]
struct Touched {
    arms: Arms,
    /// One past the group of the last write.
    written: usize,
    /// One past the group of the last read.
    read: usize,
}

/// The group of each step: one after those it depends on, and where `wait` is given and its result is large, at most so many
/// before the last one of the steps before it.
fn depths(steps: &[Step], accesses: &[Accesses], draft: &Draft, wait: Option<usize>) -> Vec<usize> {
    let mut touched: HashMap<SlotId, Vec<Touched>> = HashMap::new();
    let mut groups = Vec::with_capacity(steps.len());
    let mut last = 0;
    for (step, accesses) in steps.iter().zip(accesses) {
        let mut at = 0;
        for (slot, access) in accesses {
            for t in touched.get(slot).into_iter().flatten() {
                if exclude(&draft.choices, &t.arms, &step.arms) {
                    continue;
                }
                at = at.max(match access {
                    Access::Read => t.written,
                    Access::Write => t.written.max(t.read),
                });
            }
        }
        if let Some(wait) = wait
            && makes_much(accesses, &touched, draft)
        {
            at = at.max(last - wait.min(last));
        }
        last = last.max(at);
        for (slot, access) in accesses {
            let all = touched.entry(*slot).or_default();
            let t = of_arms(all, &step.arms);
            match access {
                Access::Read => t.read = t.read.max(at + 1),
                Access::Write => t.written = t.written.max(at + 1),
            }
            if *access == Access::Write && !step.arms.is_empty() {
                level(all, draft, &step.arms);
            }
        }
        groups.push(at);
    }
    groups
}

/// Whether a step decodes weights for a product.
fn decodes(accesses: &[(SlotId, Access)], draft: &Draft) -> bool {
    let mut all = accesses.iter();
    all.any(|(slot, access)| *access == Access::Write && draft.decoding.has(*slot))
}

/// Whether a step is the first to write a large slot of the arena, which may wait.
fn makes_much(
    accesses: &[(SlotId, Access)],
    touched: &HashMap<SlotId, Vec<Touched>>,
    draft: &Draft,
) -> bool {
    accesses.iter().any(|(slot, access)| {
        let to = &draft.slots[slot.0 as usize];
        let large = to.home == Home::Arena && to.bytes >= LARGE_BYTES && !draft.decoding.has(*slot);
        large && *access == Access::Write && !touched.contains_key(slot)
    })
}

/// The first and the last group of a slot, and the choice whose arm alone touches it.
type LifeOf = (usize, usize, Option<(NodeId, ChoiceId)>);

/// The most bytes of the arena that live at once, which is about what it takes. Of the arms of a choice the largest counts.
fn most_bytes(steps: &[Step], groups: &[usize], draft: &Draft) -> u64 {
    let mut lives: BTreeMap<SlotId, LifeOf> = BTreeMap::new();
    for (step, &group) in steps.iter().zip(groups) {
        let owner = step.arms.first().map(|arm| (step.node, arm.choice));
        for (slot, _) in step.accesses(&draft.kernels) {
            if draft.slots[slot.0 as usize].home == Home::Arena {
                let life = lives.entry(slot).or_insert((group, group, owner));
                (life.0, life.1) = (life.0.min(group), life.1.max(group));
                if life.2 != owner {
                    life.2 = None;
                }
            }
        }
    }
    let mut largest: HashMap<(NodeId, ChoiceId), SlotId> = HashMap::new();
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

/// Lets what other arms wrote into a slot count as written as late as what these did: one arm with more steps than
/// another would be ever later in groups, and what both use would live for all that lies between.
fn level(all: &mut [Touched], draft: &Draft, arms: &Arms) {
    let beside = |t: &&mut Touched| t.arms == *arms || exclude(&draft.choices, &t.arms, arms);
    let last = all.iter_mut().filter(beside).map(|t| t.written).max();
    for t in all.iter_mut().filter(beside) {
        t.written = t.written.max(last.unwrap_or(0));
    }
}

/// What happened in steps of the same arms.
fn of_arms<'t>(all: &'t mut Vec<Touched>, arms: &Arms) -> &'t mut Touched {
    let at = all.iter().position(|t| t.arms == *arms);
    let at = at.unwrap_or_else(|| {
        all.push(Touched {
            arms: arms.clone(),
            ..Touched::default()
        });
        all.len() - 1
    });
    &mut all[at]
}

/// The accesses of a step; a slot over some or all records of checks counts as each of them.
fn expand(step: &Step, draft: &Draft) -> Accesses {
    let mut accesses: Accesses = step.accesses(&draft.kernels).into_iter().collect();
    if let Some(all) = draft.faults
        && let Some(&(_, access)) = accesses.iter().find(|(slot, _)| *slot == all)
    {
        accesses.extend(draft.data_checks.iter().map(|c| (c.record, access)));
    }
    let joined = accesses.iter().filter_map(|(slot, access)| {
        let records = draft.joined_records.get(slot)?;
        Some(records.iter().map(|record| (*record, *access)))
    });
    let joined: Accesses = joined.flatten().collect();
    accesses.extend(joined);
    accesses
}

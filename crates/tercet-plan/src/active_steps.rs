//! What a run plays: the steps of the arms that its sizes choose, with the barriers that those need.

use crate::flow::StageId;
use crate::kernel::Access;
use crate::program::{Program, Slot, Step, Work};

/// The most groups of a run that are links of chains.
pub(crate) const MOST_LINKS: u32 = 1024;

/// Bytes from the counter of a link to that of the next: `CHAIN_STEP` of the shader.
pub(crate) const LINK_BYTES: u64 = 128;

/// A step of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Played {
    /// Its place among the steps.
    pub step: usize,
    /// Whether all steps played before it must be finished, and their writes seen, before it reads what they write.
    pub barrier: bool,
    /// Its place in a chain, where it has one.
    pub link: Option<Link>,
}

impl Played {
    /// Whether the device has to wait before it: it does not wait by itself.
    pub fn needs_barrier(&self) -> bool {
        self.barrier && self.link.is_none_or(|link| link.waits.is_none())
    }
}

/// A place in a chain: what a step waits for by itself, and where it counts its workgroups that are done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// The link whose steps it waits for.
    pub waits: Option<u32>,
    /// The link that its own workgroups count for.
    pub own: u32,
}

impl Program {
    /// As [`Program::played`], for the steps of one stage of a run.
    pub fn played_stage(&self, stage: StageId, chosen: &[u32]) -> Vec<Played> {
        let range = self.stage(stage);
        let mut played = self.played(&self.steps[range.clone()], chosen);
        played.iter_mut().for_each(|p| p.step += range.start);
        if self.flow.is_empty() {
            self.link(&mut played);
        }
        played
    }

    /// Makes links of steps that can wait for the group before them by themselves.
    fn link(&self, played: &mut [Played]) {
        let Some(chain) = &self.chain else {
            return;
        };
        let is_link = |p: &Played| match &self.steps[p.step].work {
            Work::Dispatch(d) => chain.numbers.contains_key(&d.block),
            Work::Copy { .. } | Work::Fill { .. } => false,
        };
        let mut next = 0;
        let mut before: Option<u32> = None;
        for group in played.chunk_by_mut(|_, next| !next.barrier) {
            if !group.iter().all(is_link) || next == MOST_LINKS {
                before = None;
                continue;
            }
            for p in group.iter_mut() {
                p.link = Some(Link {
                    waits: before,
                    own: next,
                });
            }
            before = Some(next);
            next += 1;
        }
    }

    /// The steps of [`Program::steps`] or [`Program::prepare`] that run where these arms, one for each
    /// choice, are chosen ([`crate::Launch::chosen`]). A barrier of the program stands before the
    /// first step after it that must wait for one that is played; where there is none, it is left
    /// out.
    pub fn played(&self, steps: &[Step], chosen: &[u32]) -> Vec<Played> {
        let mut played = Vec::with_capacity(steps.len());
        let mut touched: Vec<(Slot, Access)> = Vec::new();
        let mut barrier_due = false;
        for (at, step) in steps.iter().enumerate() {
            barrier_due |= step.barrier;
            if !step.runs(chosen) {
                continue;
            }
            let accesses = step.accesses(&self.kernels);
            let own = accesses.iter().map(|(slot, how)| (*self.slot(*slot), *how));
            let waits = |(slot, how): (Slot, Access)| {
                let mut before = touched.iter();
                before.any(|(other, other_how)| {
                    let writes = how == Access::Write || *other_how == Access::Write;
                    writes && slot.overlaps(other)
                })
            };
            let barrier = barrier_due && own.clone().any(waits);
            if barrier {
                touched.clear();
                barrier_due = false;
            }
            touched.extend(own);
            played.push(Played {
                step: at,
                barrier,
                link: None,
            });
        }
        played
    }
}

//! What a compilation would run, before anything is allocated.

use std::collections::BTreeMap;
use std::fmt;

use crate::error::counted;

/// A kernel and how often a run calls it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelUse {
    /// The operator it runs.
    pub op: &'static str,
    /// The kernel.
    pub kernel: String,
    /// Calls in one run.
    pub calls: usize,
}

/// What will run where.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Explanation {
    /// The executor.
    pub target: &'static str,
    /// The kernels of a run, by operator.
    pub kernels: Vec<KernelUse>,
    /// Kernel calls of a run.
    pub dispatches: usize,
    /// Points where a run waits for all work before.
    pub barriers: usize,
    /// Kernel calls that prepare parameters, once.
    pub prepare: usize,
    /// Steps that run on the host though the target is a GPU. A GPU program has no way to express
    /// one: what a GPU cannot run is refused when compiling.
    pub host_fallbacks: usize,
    /// Memory by what it is for, in bytes at the symbols' bounds.
    pub bytes: Vec<(&'static str, u64)>,
    /// The program in full, for those who want every step; empty where there is none.
    pub listing: String,
}

impl Explanation {
    /// The most memory that the executable holds at once.
    pub fn peak_bytes(&self) -> u64 {
        self.bytes.iter().map(|(_, n)| n).sum()
    }

    /// Counts kernels from (operator, kernel) pairs.
    pub fn count(calls: impl Iterator<Item = (&'static str, String)>) -> Vec<KernelUse> {
        let mut counts: BTreeMap<(&'static str, String), usize> = BTreeMap::new();
        for call in calls {
            *counts.entry(call).or_default() += 1;
        }
        let uses = counts
            .into_iter()
            .map(|((op, kernel), calls)| KernelUse { op, kernel, calls });
        uses.collect()
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "target          {}", self.target)?;
        writeln!(f, "dispatches      {}", self.dispatches)?;
        writeln!(f, "barriers        {}", self.barriers)?;
        writeln!(f, "host fallbacks  {}", self.host_fallbacks)?;
        let prepare = counted(self.prepare, "dispatch", "dispatches");
        writeln!(f, "prepare once    {prepare}")?;
        writeln!(f, "memory          {} bytes", self.peak_bytes())?;
        for (what, bytes) in &self.bytes {
            writeln!(f, "  {what:<13} {bytes}")?;
        }
        writeln!(f, "kernels")?;
        for k in &self.kernels {
            writeln!(f, "  {:>5} x {:<22} {}", k.calls, k.op, k.kernel)?;
        }
        Ok(())
    }
}

//! A description of a compiled program, computed without device allocations.

use std::collections::BTreeMap;
use std::fmt;

use crate::error::counted;

/// A kernel and its number of calls in one run.
///
/// ```
/// use tercet_ir::backend::{Explanation, KernelUse};
/// let calls = ["naive", "tiled", "tiled"].map(|kernel| ("mat_mul", kernel.to_string()));
/// let kernels = Explanation::count(calls.into_iter());
/// let tiled = KernelUse { op: "mat_mul", kernel: "tiled".to_string(), calls: 2 };
/// assert_eq!(kernels[1], tiled);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelUse {
    /// The operator that the kernel computes.
    pub op: &'static str,
    /// Name of the kernel.
    pub kernel: String,
    /// Number of calls in one run.
    pub calls: usize,
}

/// The kernels, dispatches and memory of a compiled program.
///
/// ```
/// use tercet_ir::backend::Explanation;
/// let bytes = vec![("params", 4096), ("activations", 1024)];
/// let explanation = Explanation { target: "cpu", bytes, ..Explanation::default() };
/// assert_eq!(explanation.peak_bytes(), 5120);
/// assert!(explanation.to_string().contains("memory          5120 bytes"));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Explanation {
    /// Name of the executor.
    pub target: &'static str,
    /// The kernels of a run, by operator.
    pub kernels: Vec<KernelUse>,
    /// Number of kernel calls in a run.
    pub dispatches: usize,
    /// Number of results that the kernels of a run write to memory, without copies. Kernels that
    /// compute several nodes write only the results that other kernels or the caller read.
    pub written: usize,
    /// Number of barriers in a run. At a barrier, all previous work must finish before the next
    /// step starts.
    pub barriers: usize,
    /// Number of kernel calls that prepare parameters, once.
    pub prepare: usize,
    /// Number of steps that run on the host although the target is a GPU. GPU programs cannot
    /// contain steps on the host: an unsupported node is a compile error.
    pub host_fallbacks: usize,
    /// Memory by purpose, in bytes at the symbols' upper bounds.
    pub bytes: Vec<(&'static str, u64)>,
    /// The switches of the device in effect, and the kernel variants that its driver refused; one
    /// line each.
    pub switches: Vec<String>,
    /// The full listing of all steps; empty if the executor has none.
    pub listing: String,
}

impl Explanation {
    /// The peak memory of the executable in bytes.
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
        for line in &self.switches {
            writeln!(f, "switches        {line}")?;
        }
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

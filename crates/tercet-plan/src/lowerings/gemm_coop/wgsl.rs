//! Tilings of GEMMs on cooperative matrices that WGSL loads and multiplies
//! (`shaders/portable/matmul/coop_tiles.wgsl`).

use super::choose::CoopGemmWork;
use super::tiling::{CoopGemmTiling, CoopScope};
use crate::caps::{DeviceCaps, WgslCoopShape};
use crate::device::cost_model::TileThroughput;
use crate::tuning::GemmProblem;

/// Numbers of fragments that a subgroup tile may have in each direction.
const FRAGMENTS: [u32; 2] = [2, 4];

/// Numbers of vectors of an operand that a thread may load per k step.
const LOADS: [u32; 4] = [1, 2, 4, 8];

/// Elements of padding per staged line, and F32 numbers of padding per line of a stored fragment.
const PADDING: u32 = 8;
const SUMS_PADDING: u32 = 4;

/// Bytes of the padding words and of an F32 sum.
const F32_BYTES: u32 = 4;

/// Elements per vector load.
const QUAD: u32 = 4;

/// Number of tile rows per stripe.
const STRIPE: u32 = 8;

impl CoopGemmTiling {
    /// All tilings without split-K that the device can run with fragments of this shape.
    pub fn wgsl_candidates(caps: &DeviceCaps, shape: WgslCoopShape) -> Vec<CoopGemmTiling> {
        let mut found: Vec<CoopGemmTiling> = Vec::new();
        for is_k_major in [true, false] {
            for (tiling, _) in CoopGemmTiling::for_wgsl(caps, shape, is_k_major) {
                if !found.contains(&tiling) {
                    found.push(tiling);
                }
            }
        }
        found
    }

    /// The tilings for fragments of this shape that the device can run, with their rates for a right
    /// operand that is contiguous along `k` or along `n`.
    fn for_wgsl(
        caps: &DeviceCaps,
        shape: WgslCoopShape,
        is_k_major: bool,
    ) -> Vec<(CoopGemmTiling, TileThroughput)> {
        let Some(subgroup) = caps.subgroup else {
            return Vec::new();
        };
        let fragment = [shape.side; 3];
        let rates = &caps.device.rates.matrices;
        let table = match is_k_major {
            true => rates.wgsl_k_major,
            false => rates.wgsl_n_major,
        };
        let all = caps.device.divisions(fragment, subgroup, table);
        let all = all.into_iter().map(|d| {
            let tiling = CoopGemmTiling {
                scope: CoopScope::Wgsl,
                subgroup,
                fragment,
                tile: [
                    d.subgroups[0] * d.subgroup_tile[0],
                    d.subgroups[1] * d.subgroup_tile[1],
                    d.depth,
                ],
                subgroup_tile: d.subgroup_tile,
                stages: d.stages,
                band: STRIPE,
                splits: 1,
                slices: 1,
            };
            (tiling, d.rate)
        });
        let able = all.filter(|(t, _)| {
            let [bm, bn, bk] = t.tile;
            let parts = t.subgroup_tile.map(|n| n / shape.side);
            let loads = [bm, bn].map(|n| n * bk / QUAD);
            let is_whole = loads.iter().all(|n| n.is_multiple_of(t.threads()));
            parts.iter().all(|n| FRAGMENTS.contains(n))
                && is_whole
                && loads.iter().all(|n| LOADS.contains(&(n / t.threads())))
                && t.threads() <= caps.max_workgroup
                && t.wgsl_shared_bytes(shape) <= caps.workgroup_bytes
        });
        let limited = able.map(|(t, rate)| {
            let groups = caps.device.resident_workgroups(t.wgsl_shared_bytes(shape));
            (t, rate.limited_to(groups))
        });
        limited.collect()
    }

    /// Shared memory per workgroup in bytes, computed as in the shader: staged lines of both
    /// operands, for both orders of b, and one fragment of sums per subgroup.
    #[doc(hidden)]
    pub fn wgsl_shared_bytes(&self, shape: WgslCoopShape) -> u32 {
        let [bm, bn, bk] = self.tile;
        let lines_of_b = (bn * (bk + PADDING)).max(bk * (bn + PADDING));
        let staged = bm * (bk + PADDING) + lines_of_b;
        let sums = self.threads() / self.subgroup * shape.side * (shape.side + SUMS_PADDING);
        staged * shape.ty.size_bytes() + sums * F32_BYTES
    }

    /// The tiling that a switch or the autotuning table names, otherwise the fastest one, with the
    /// estimated time of `batches` GEMMs in seconds. At most `max_parts` split-K parts fit into a
    /// slot.
    #[doc(hidden)]
    pub fn choose_for_wgsl(
        caps: &DeviceCaps,
        shape: WgslCoopShape,
        problem: &GemmProblem,
        batches: usize,
        max_parts: u32,
    ) -> Option<(CoopGemmTiling, f64)> {
        let rates = &caps.device.rates.matrices;
        let work = CoopGemmWork::new(&caps.device, problem, batches);
        let all = CoopGemmTiling::for_wgsl(caps, shape, problem.b_transposed).into_iter();
        let all = all.flat_map(|(t, rate)| {
            let parts = t.splits_of(problem);
            parts.map(move |t| (t, rate))
        });
        let all = all.filter(|(t, _)| t.splits <= max_parts);
        let costs: Vec<(CoopGemmTiling, f64)> = all
            .map(|(t, rate)| (t, work.cost(&t, rate) / rates.per_s))
            .collect();
        let name = caps.device.named_tiling(|| problem.key());
        let named = name.and_then(|name| costs.iter().find(|(t, _)| t.to_string() == name));
        let least = costs.iter().min_by(|(_, s), (_, t)| s.total_cmp(t));
        named.or(least).copied()
    }
}

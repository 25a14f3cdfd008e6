//! How attention on cooperative matrices is divided.

use super::super::pairs;
use crate::caps::{Caps, CoopShape, CoopType};

/// What operands are multiplied as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Factors {
    /// F16, as they are.
    Halves,
    /// F32 as pairs of F16.
    Pairs,
    /// BF16 as F16 with a power of two for some rows.
    Scaled,
}

impl Factors {
    /// Halves of an element.
    pub(in super::super) fn pieces(self) -> u32 {
        match self {
            Factors::Halves | Factors::Scaled => 1,
            Factors::Pairs => 2,
        }
    }
}

/// The numbers that an invocation holds in fragments, in parts of those that its registers have room for, beyond which
/// nearly all lie in memory and drivers take minutes for the code.
pub(in super::super) const TOO_MANY_HELD: u32 = 2;

/// The matrices that attention runs on: those of F16 whose rows are whole words, of sums that can be rounded.
pub(in super::super) fn shape(caps: &Caps) -> Option<&CoopShape> {
    let shapes = caps.coop.iter();
    shapes
        .filter(|s| s.ty == CoopType::F16 && s.narrow_sums)
        .filter(|s| s.k.is_multiple_of(8) && s.n.is_multiple_of(8))
        .max_by_key(|s| s.m * s.n * s.k)
}

/// How an attention is divided over workgroups, subgroups and fragments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct AttentionTiling {
    /// Invocations of a subgroup.
    pub(super) subgroup: u32,
    /// The device's matrices, `m n k`.
    pub(super) fragment: [u32; 3],
    /// Rows of a workgroup and of a subgroup.
    pub(super) rows: [u32; 2],
    /// Keys of a step.
    pub(super) keys: u32,
    /// Elements of a query and of a value, in whole fragments.
    pub(super) dims: [u32; 2],
    /// Weights become factors by a conversion.
    pub(super) converts: bool,
    pub(super) factors: Factors,
}

impl AttentionTiling {
    /// The tiling for heads of these sizes and `rows` rows of each of `heads` key heads; none where
    /// the device has no cooperative matrices of F16, or not the shared memory.
    pub(in super::super) fn choose(
        caps: &Caps,
        [head_dim, value_dim]: [usize; 2],
        rows: usize,
        heads: usize,
        factors: Factors,
    ) -> Option<AttentionTiling> {
        let subgroup = caps.subgroup?;
        if !caps.spirv {
            return None;
        }
        let shape = shape(caps)?;
        let dims = [
            u32::try_from(head_dim).ok()?.next_multiple_of(shape.k),
            u32::try_from(value_dim).ok()?.next_multiple_of(shape.n),
        ];
        let units = caps.units();
        let converts = caps.coop_converts && shape.n == shape.k;
        let room = caps.device.held(subgroup);
        let all = AttentionTiling::candidates(shape, subgroup, dims, converts, factors, room);
        let fit: Vec<AttentionTiling> = all.into_iter().filter(|t| t.fits(caps)).collect();
        // Workgroups of four subgroups.
        let enough = |t: &&AttentionTiling| {
            let groups = rows.div_ceil(t.rows[0] as usize) * heads;
            groups * t.subgroups() as usize >= 4 * units
        };
        fit.iter().find(enough).or(fit.last()).copied()
    }

    /// From large, which read keys and values least often, to small, which give more workgroups.
    fn candidates(
        shape: &CoopShape,
        subgroup: u32,
        dims: [u32; 2],
        converts: bool,
        factors: Factors,
        room: u32,
    ) -> Vec<AttentionTiling> {
        // More keys a step meet less often, but take registers and shared memory, and so the place of a
        // second workgroup.
        let keys = (2 * shape.n).next_multiple_of(shape.k);
        let of = |strips, subgroups| AttentionTiling {
            subgroup,
            fragment: [shape.m, shape.n, shape.k],
            rows: [subgroups * strips * shape.m, strips * shape.m],
            keys,
            dims,
            converts,
            factors,
        };
        // As many rows of subgroups that hold half as much, where two strips are too much for one. Pairs read each
        // fragment for two products, so that two strips gain less than more subgroups do.
        let large = match (of(2, 4), factors) {
            (two, Factors::Halves | Factors::Scaled) if two.held() <= room => two,
            _ => of(1, 8),
        };
        [large, of(1, 4), of(1, 2)]
            .into_iter()
            .filter(|t| t.held() <= TOO_MANY_HELD * room)
            .collect()
    }

    /// The columns of queries in whole fragments, and of values.
    pub(in super::super) fn dims(&self) -> [u32; 2] {
        self.dims
    }

    /// Rows of a workgroup and of a subgroup.
    pub(in super::super) fn rows(&self) -> [u32; 2] {
        self.rows
    }

    /// Whether weights become factors by a conversion.
    pub(in super::super) fn converts(&self) -> bool {
        self.converts
    }

    /// What operands are multiplied as.
    pub(in super::super) fn factors(&self) -> Factors {
        self.factors
    }

    /// The workgroups that a device runs side by side.
    pub(in super::super) fn side_by_side(&self, caps: &Caps) -> usize {
        let registers = caps.device.registers_of(self.subgroup).saturating_add(1);
        let of_registers = caps.device.unit_invocations(registers) / self.threads();
        let together = of_registers.min(caps.device.together(self.shared_bytes()));
        caps.units() * together.max(1) as usize
    }

    /// The 32-bit numbers of an invocation in fragments: scores, sums, weights, centers, queries.
    fn held(&self) -> u32 {
        let queries = self.factors.pieces() * self.dims[0] / 2;
        let columns = self.keys + self.dims[1] + 2 * self.fragment[1] + queries;
        self.rows[1] * columns / self.subgroup
    }

    fn fits(&self, caps: &Caps) -> bool {
        let chunk = pairs::CHUNK as u32;
        // What has one scale is not cut across.
        let is_whole = match self.factors {
            Factors::Halves => true,
            Factors::Pairs | Factors::Scaled => {
                chunk.is_multiple_of(self.keys) && chunk.is_multiple_of(self.rows[1])
            }
        };
        is_whole
            && self.shared_bytes() <= caps.workgroup_bytes
            && self.threads() <= caps.max_workgroup
    }

    /// Subgroups of a workgroup.
    fn subgroups(&self) -> u32 {
        self.rows[0] / self.rows[1]
    }

    /// Invocations of a workgroup.
    pub(in super::super) fn threads(&self) -> u32 {
        self.subgroup * self.subgroups()
    }

    /// Shared memory of a workgroup. As in the shaders.
    fn shared_bytes(&self) -> u32 {
        let [fm, fn_, _] = self.fragment;
        let [rows, own_rows] = self.rows;
        let (subgroups, strips) = (rows / own_rows, own_rows / fm);
        let pieces = self.factors.pieces();
        let [k_stride, v_stride] = self.dims.map(|d| pieces * d / 8 + 1);
        let sums = fm * (fn_ / 4 + 1);
        // What one kernel needs beside that and the other does not: a strip of weights, sums, queries.
        let (weight_strips, others, queries) = match self.factors {
            Factors::Halves => (1, subgroups * sums, rows * k_stride),
            Factors::Pairs | Factors::Scaled => (0, 0, 0),
        };
        let weight_strips = if self.converts { weight_strips } else { strips };
        let weights = weight_strips * fm * (pieces * self.keys / 8 + 1);
        let staged = (self.keys * k_stride).max(others) + self.keys * v_stride;
        let step = staged + subgroups * weights.max(strips * sums);
        let together = match self.dims[1] / fn_ {
            5..=8 => 4 * fn_,
            _ => self.dims[1],
        };
        let results = subgroups * fm * (together / 4 + 1);
        let words = step.max(queries).max(results) + rows;
        let numbers = 4 * rows + self.keys + fm.max(fn_);
        16 * words + 4 * numbers + 16
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tilings_keep_the_constraints_of_the_shader() {
        let mut software = Caps::h200();
        software.subgroup = Some(8);
        software.workgroup_bytes = 32 << 10;
        software.coop = vec![CoopShape {
            ty: CoopType::F16,
            m: 8,
            n: 8,
            k: 8,
            narrow_sums: true,
        }];
        let others = [Caps::rdna3(32), Caps::rdna3(64), Caps::arc()];
        for caps in [Caps::h200(), software].into_iter().chain(others) {
            for dims in [[8, 8], [40, 24], [64, 64], [128, 128], [80, 128], [192, 64]] {
                let rows = [1, 100, 10_000].into_iter();
                for (rows, factors) in rows.flat_map(|n| {
                    [Factors::Halves, Factors::Pairs, Factors::Scaled].map(|of| (n, of))
                }) {
                    let Some(t) = AttentionTiling::choose(&caps, dims, rows, 4, factors) else {
                        assert!(caps.device.registers_of(16) < 127, "{dims:?}");
                        continue;
                    };
                    assert_eq!(Some(t.subgroup), caps.subgroup);
                    assert!(t.threads() <= caps.max_workgroup, "{t:?}");
                    let [fm, fn_, fk] = t.fragment;
                    assert!(fk % 8 == 0 && fn_ % 8 == 0, "{t:?}");
                    assert!(
                        t.rows[0].is_multiple_of(t.rows[1]) && t.rows[1].is_multiple_of(fm),
                        "{t:?}"
                    );
                    assert!(
                        t.keys.is_multiple_of(fn_) && t.keys.is_multiple_of(fk),
                        "{t:?}"
                    );
                    assert!(t.keys >= 2 * fn_, "{t:?}");
                    assert!(
                        t.dims[0].is_multiple_of(fk) && t.dims[1].is_multiple_of(fn_),
                        "{t:?}"
                    );
                    assert!(t.dims[0] as usize >= dims[0], "{t:?}");
                    assert!(t.dims[1] as usize >= dims[1], "{t:?}");
                    assert!(t.shared_bytes() <= caps.workgroup_bytes, "{t:?}");
                }
            }
        }
        let large =
            AttentionTiling::choose(&Caps::h200(), [64, 64], 1024, 128, Factors::Halves).unwrap();
        assert_eq!((large.rows, large.keys), ([128, 32], 32));
        let wide =
            AttentionTiling::choose(&Caps::h200(), [128, 128], 1024, 128, Factors::Halves).unwrap();
        assert_eq!((wide.rows, wide.keys), ([128, 16], 32));
        assert_eq!(
            AttentionTiling::choose(&Caps::browser(), [64, 64], 64, 1, Factors::Halves),
            None
        );
    }
}

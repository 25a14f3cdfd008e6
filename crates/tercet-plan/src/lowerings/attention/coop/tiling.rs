//! Tiling of attention on cooperative matrices.

use super::super::pairs;
use crate::caps::{CoopShape, CoopType, DeviceCaps};

/// Format in which the kernel multiplies its operands on cooperative matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MmaPrecision {
    /// F16 operands, unmodified.
    F16,
    /// F32 operands, each number split into a pair of F16 numbers.
    SplitF16,
    /// BF16 operands converted to F16, with a power-of-two scale per chunk of rows.
    Scaled,
}

impl MmaPrecision {
    /// Number of F16 numbers that represent one operand element.
    pub(in super::super) fn pieces(self) -> u32 {
        match self {
            MmaPrecision::F16 | MmaPrecision::Scaled => 1,
            MmaPrecision::SplitF16 => 2,
        }
    }
}

/// Maximum factor by which the fragments of a tiling may exceed the available registers. Beyond
/// this factor, most values spill to memory, and drivers compile for minutes.
pub(in super::super) const TOO_MANY_HELD: u32 = 2;

/// The F16 cooperative-matrix shape that attention uses: its rows consist of whole 32-bit words,
/// and its accumulators can be rounded to F16.
pub(in super::super) fn shape(caps: &DeviceCaps) -> Option<&CoopShape> {
    let shapes = caps.coop.iter();
    shapes
        .filter(|s| s.ty == CoopType::F16 && s.narrow_accumulators)
        .filter(|s| s.k.is_multiple_of(8) && s.n.is_multiple_of(8))
        .max_by_key(|s| s.m * s.n * s.k)
}

/// Tiling of an attention: how its rows are divided over workgroups, subgroups and matrix
/// fragments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionTiling {
    /// Threads per subgroup.
    pub subgroup: u32,
    /// The cooperative-matrix shape that the kernel uses, `m n k`.
    pub fragment: [u32; 3],
    /// Number of query rows per workgroup and per subgroup.
    pub rows: [u32; 2],
    /// Keys per step.
    pub keys: u32,
    /// Head size of queries and head size of values, both rounded up to whole fragments.
    pub dims: [u32; 2],
    /// True if the kernel converts the accumulator with the softmax weights directly into a matmul
    /// operand; false if it stores them to shared memory.
    pub(super) converts: bool,
    pub(super) factors: MmaPrecision,
}

impl AttentionTiling {
    /// Selects the tiling for these head sizes and `rows` query rows for each of `heads` KV heads.
    /// `None` if the device lacks F16 cooperative matrices or shared memory.
    pub fn choose(
        caps: &DeviceCaps,
        [head_dim, value_dim]: [usize; 2],
        rows: usize,
        heads: usize,
        factors: MmaPrecision,
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
        let room = caps.device.max_fragment_registers(subgroup);
        let all = AttentionTiling::candidates(shape, subgroup, dims, converts, factors, room);
        let fit: Vec<AttentionTiling> = all.into_iter().filter(|t| t.is_supported(caps)).collect();
        // True if the tiling fills the device, which takes four subgroups per compute unit.
        let enough = |t: &&AttentionTiling| {
            let groups = rows.div_ceil(t.rows[0] as usize) * heads;
            groups * t.subgroups() as usize >= 4 * units
        };
        fit.iter().find(enough).or(fit.last()).copied()
    }

    /// Candidate tilings, from large tiles, which reuse loaded keys and values most, to small
    /// tiles, which give more workgroups.
    fn candidates(
        shape: &CoopShape,
        subgroup: u32,
        dims: [u32; 2],
        converts: bool,
        factors: MmaPrecision,
        room: u32,
    ) -> Vec<AttentionTiling> {
        // With more keys per loop step, the kernel needs fewer barriers, but more registers and
        // shared memory, so that a second workgroup may not fit on a compute unit.
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
        // If two strips of rows per subgroup need too many registers, use twice as many subgroups
        // with one strip each. A split-F16 kernel uses each loaded fragment in two multiplications,
        // so it gains less from a second strip than from more subgroups.
        let large = match (of(2, 4), factors) {
            (two, MmaPrecision::F16 | MmaPrecision::Scaled) if two.fragment_registers() <= room => {
                two
            }
            _ => of(1, 8),
        };
        [large, of(1, 4), of(1, 2)]
            .into_iter()
            .filter(|t| t.fragment_registers() <= TOO_MANY_HELD * room)
            .collect()
    }

    /// Head size of queries and head size of values, both rounded up to whole fragments.
    pub(in super::super) fn dims(&self) -> [u32; 2] {
        self.dims
    }

    /// Number of query rows per workgroup and per subgroup.
    pub(in super::super) fn rows(&self) -> [u32; 2] {
        self.rows
    }

    /// Whether the kernel converts the accumulator with the softmax weights directly into a matmul
    /// operand.
    pub(in super::super) fn converts(&self) -> bool {
        self.converts
    }

    /// Format in which the kernel multiplies its operands on cooperative matrices.
    pub(in super::super) fn factors(&self) -> MmaPrecision {
        self.factors
    }

    /// Number of workgroups of this tiling that the device runs concurrently.
    pub(in super::super) fn resident_workgroups(&self, caps: &DeviceCaps) -> usize {
        let registers = caps.device.registers_of(self.subgroup).saturating_add(1);
        let of_registers = caps.device.unit_invocations(registers) / self.threads();
        let together = of_registers.min(caps.device.resident_workgroups(self.shared_bytes()));
        caps.units() * together.max(1) as usize
    }

    /// 32-bit registers per thread that fragments occupy: scores, output sums, softmax weights,
    /// scale factors and queries.
    fn fragment_registers(&self) -> u32 {
        let queries = self.factors.pieces() * self.dims[0] / 2;
        let columns = self.keys + self.dims[1] + 2 * self.fragment[1] + queries;
        self.rows[1] * columns / self.subgroup
    }

    fn is_supported(&self, caps: &DeviceCaps) -> bool {
        let chunk = pairs::CHUNK as u32;
        // A tile must not contain only some of the rows that share a scale factor.
        let is_whole = match self.factors {
            MmaPrecision::F16 => true,
            MmaPrecision::SplitF16 | MmaPrecision::Scaled => {
                chunk.is_multiple_of(self.keys) && chunk.is_multiple_of(self.rows[1])
            }
        };
        is_whole
            && self.shared_bytes() <= caps.workgroup_bytes
            && self.threads() <= caps.max_workgroup
    }

    /// Subgroups per workgroup.
    fn subgroups(&self) -> u32 {
        self.rows[0] / self.rows[1]
    }

    /// Threads per workgroup.
    pub fn threads(&self) -> u32 {
        self.subgroup * self.subgroups()
    }

    /// Shared memory per workgroup in bytes, computed as in the shaders.
    pub fn shared_bytes(&self) -> u32 {
        let [fm, fn_, _] = self.fragment;
        let [rows, own_rows] = self.rows;
        let (subgroups, strips) = (rows / own_rows, own_rows / fm);
        let pieces = self.factors.pieces();
        let [k_stride, v_stride] = self.dims.map(|d| pieces * d / 8 + 1);
        let sums = fm * (fn_ / 4 + 1);
        // Shared memory that only the F16 kernels use: one strip of softmax weights, output sums,
        // and queries.
        let (weight_strips, others, queries) = match self.factors {
            MmaPrecision::F16 => (1, subgroups * sums, rows * k_stride),
            MmaPrecision::SplitF16 | MmaPrecision::Scaled => (0, 0, 0),
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

//! Attention of many queries on cooperative matrices.
//!
//! The shader is `shaders/vulkan/include/attention_coop.glsl`; its header says what the numbers mean.

use tercet_ir::{CompileError, DType};

use super::{AttentionParams, AttentionProblem, pairs};
use crate::caps::{Caps, CoopShape, CoopType};
use crate::emit::{Emit, View};
use crate::kernel::{Access, Kernel};
use crate::num::Num;
use crate::program::SlotId;

crate::params! {
    /// The block of `attention_coop.glsl`.
    pub struct AttentionCoopParams {
        q_offset: U32,
        q_batch: U32,
        q_head: U32,
        q_seq: U32,
        k_offset: U32,
        k_batch: U32,
        k_head: U32,
        k_seq: U32,
        v_offset: U32,
        v_batch: U32,
        v_head: U32,
        v_seq: U32,
        mask_offset: U32,
        mask_batch: U32,
        mask_head: U32,
        mask_query: U32,
        mask_key: U32,
        y_batch: U32,
        y_head: U32,
        y_seq: U32,
        lens_offset: U32,
        lens_stride: U32,
        has_lens: U32,
        causal: U32,
        window: U32,
        queries: U32,
        keys: U32,
        kv_heads: U32,
        group: U32,
        head_dim: U32,
        value_dim: U32,
        tiles: U32,
        groups: U32,
        scale: F32,
        softcap: F32,
    }
}

/// A module of the shader, with the access of the results after the first.
macro_rules! module {
    ($name:literal $(, $more:expr)*) => {
        Kernel::spirv(
            $name,
            include_bytes!(concat!(
                env!("CARGO_MANIFEST_DIR"),
                "/../../shaders/vulkan/spirv/",
                $name,
                ".spv"
            )),
            &[
                Access::Read,
                Access::Read,
                Access::Read,
                Access::Read,
                Access::Read,
                Access::Write,
                $($more,)*
            ],
            &[
                "THREADS", "SUBGROUP", "FM", "FN", "FK", "BM", "WM", "BN", "HEAD", "VALUE", "MASK",
                "KEY_MASK", "CAPPED",
            ],
        )
    };
}

/// Weights become factors through shared memory.
pub(super) static F16: Kernel<AttentionCoopParams> = module!("attention_coop_f16");

/// Weights become factors by a conversion.
pub(super) static CONVERT_F16: Kernel<AttentionCoopParams> = module!("attention_convert_f16");

/// The logarithms of the sums of exponentials are a second result; weights become factors as above.
pub(super) static LSE_F16: Kernel<AttentionCoopParams> =
    module!("attention_coop_lse_f16", Access::Write);

/// The same where weights become factors by a conversion.
pub(super) static CONVERT_LSE_F16: Kernel<AttentionCoopParams> =
    module!("attention_convert_lse_f16", Access::Write);

/// F32 as pairs of F16, whose heads that were left are told by the last argument; weights become factors as above.
pub(super) static PAIRS: Kernel<AttentionCoopParams> =
    module!("attention_halves_f32", Access::Write);

/// The same where weights become factors by a conversion.
pub(super) static CONVERT_PAIRS: Kernel<AttentionCoopParams> =
    module!("attention_halves_convert_f32", Access::Write);

/// The same, with the logarithms of sums as one more result; weights become factors as above.
pub(super) static LSE_PAIRS: Kernel<AttentionCoopParams> =
    module!("attention_halves_lse_f32", Access::Write, Access::Write);

/// The same where weights become factors by a conversion.
pub(super) static CONVERT_LSE_PAIRS: Kernel<AttentionCoopParams> = module!(
    "attention_halves_convert_lse_f32",
    Access::Write,
    Access::Write
);

/// BF16 as F16 with a scale, with the logarithms of sums as above.
pub(super) static LSE_SCALED: Kernel<AttentionCoopParams> =
    module!("attention_halves_lse_bf16", Access::Write, Access::Write);

/// The same where weights become factors by a conversion.
pub(super) static CONVERT_LSE_SCALED: Kernel<AttentionCoopParams> = module!(
    "attention_halves_convert_lse_bf16",
    Access::Write,
    Access::Write
);

/// What operands are multiplied as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Factors {
    /// F16, as they are.
    Halves,
    /// F32 as pairs of F16.
    Pairs,
    /// BF16 as F16 with a power of two for some rows.
    Scaled,
}

impl Factors {
    /// Halves of an element.
    pub(super) fn pieces(self) -> u32 {
        match self {
            Factors::Halves | Factors::Scaled => 1,
            Factors::Pairs => 2,
        }
    }
}

/// Elements that the kernel loads at a time.
const LOAD: usize = 8;
/// The numbers that an invocation holds in fragments, in parts of those that its registers have room for, beyond which
/// nearly all lie in memory and drivers take minutes for the code.
pub(super) const TOO_MANY_HELD: u32 = 2;

/// The matrices that attention runs on: those of F16 whose rows are whole words, of sums that can be rounded.
pub(super) fn shape(caps: &Caps) -> Option<&CoopShape> {
    let shapes = caps.coop.iter();
    shapes
        .filter(|s| s.ty == CoopType::F16 && s.narrow_sums)
        .filter(|s| s.k.is_multiple_of(8) && s.n.is_multiple_of(8))
        .max_by_key(|s| s.m * s.n * s.k)
}

/// How an attention is divided over workgroups, subgroups and fragments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AttentionTiling {
    /// Invocations of a subgroup.
    subgroup: u32,
    /// The device's matrices, `m n k`.
    fragment: [u32; 3],
    /// Rows of a workgroup and of a subgroup.
    rows: [u32; 2],
    /// Keys of a step.
    keys: u32,
    /// Elements of a query and of a value, in whole fragments.
    dims: [u32; 2],
    /// Weights become factors by a conversion.
    converts: bool,
    factors: Factors,
}

impl AttentionTiling {
    /// The tiling for heads of these sizes and `rows` rows of each of `heads` key heads; none where
    /// the device has no cooperative matrices of F16, or not the shared memory.
    pub(super) fn choose(
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

    pub(super) fn factors(&self) -> Factors {
        self.factors
    }

    /// The columns of queries in whole fragments, and of values.
    pub(super) fn dims(&self) -> [u32; 2] {
        self.dims
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
    fn threads(&self) -> u32 {
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
        let words = step.max(queries).max(results) + rows + fm * fn_ / 4;
        let numbers = 2 * rows + self.keys;
        16 * words + 4 * numbers + 16
    }
}

/// How the kernel computes this attention of up to `queries` queries; none where it does not.
pub(super) fn tiling(
    e: &Emit<'_>,
    p: &AttentionProblem<'_>,
    y: &View,
    queries: usize,
) -> Result<Option<AttentionTiling>, CompileError> {
    let factors = match (p.dtype, y.dtype) {
        (DType::F16, DType::F16) if p.together >= LOAD => Factors::Halves,
        (DType::F32, DType::F32) if pairs::takes(e, p, queries)? => Factors::Pairs,
        _ => return Ok(None),
    };
    tiling_of(e, p, factors, queries)
}

/// How the kernel computes this attention of up to `queries` queries as such factors; none where it does not.
pub(super) fn tiling_of(
    e: &Emit<'_>,
    p: &AttentionProblem<'_>,
    factors: Factors,
    queries: usize,
) -> Result<Option<AttentionTiling>, CompileError> {
    let rows = queries.saturating_mul(p.group());
    let heads = e.bound(p.batch)?.saturating_mul(p.op.kv_heads);
    let dims = [p.head_dim, p.value_dim];
    let tiling = AttentionTiling::choose(e.caps, dims, rows, heads, factors);
    Ok(match (tiling, factors) {
        (Some(t), Factors::Pairs | Factors::Scaled) if !pairs::fit(e, p, queries, &t)? => None,
        (tiling, _) => tiling,
    })
}

/// Runs it on queries, keys and values in these slots. Results beside `y`: of F32 the heads that are left, and the logarithms
/// of sums if they are wanted.
pub(super) fn dispatch(
    e: &mut Emit<'_>,
    p: &AttentionProblem<'_>,
    [q, k, v]: [SlotId; 3],
    (y, beside): (SlotId, &[SlotId]),
    tiling: &AttentionTiling,
) {
    // Long: a list of the shader's numbers.
    let rows = super::variants::rows(e, p);
    let tiles = e.tape().ceil_div(rows, tiling.rows[0]);
    let groups = super::variants::groups(e, p, &[tiles]);
    let b: AttentionParams = p.block.clone();
    let has_key_mask =
        p.op.has_mask_operand() && b.mask_head == Num::ZERO && b.mask_query == Num::ZERO;
    let params = AttentionCoopParams {
        q_offset: b.q_offset,
        q_batch: b.q_batch,
        q_head: b.q_head,
        q_seq: b.q_seq,
        k_offset: b.k_offset,
        k_batch: b.k_batch,
        k_head: b.k_head,
        k_seq: b.k_seq,
        v_offset: b.v_offset,
        v_batch: b.v_batch,
        v_head: b.v_head,
        v_seq: b.v_seq,
        mask_offset: b.mask_offset,
        mask_batch: b.mask_batch,
        mask_head: b.mask_head,
        mask_query: b.mask_query,
        mask_key: b.mask_key,
        y_batch: b.y_batch,
        y_head: b.y_head,
        y_seq: b.y_seq,
        lens_offset: b.lens_offset,
        lens_stride: b.lens_stride,
        has_lens: b.has_lens,
        causal: b.causal,
        window: b.window,
        queries: b.queries,
        keys: b.keys,
        kv_heads: b.kv_heads,
        group: b.group,
        head_dim: b.head_dim,
        value_dim: b.value_dim,
        tiles,
        groups,
        scale: b.scale,
        softcap: b.softcap,
    };
    let [fm, fn_, fk] = tiling.fragment;
    let [_, _, mask, capped] = p.consts(p.dtype)[..] else {
        unreachable!("invariant: dtypes, mask and cap")
    };
    let consts = [
        tiling.threads(),
        tiling.subgroup,
        fm,
        fn_,
        fk,
        tiling.rows[0],
        tiling.rows[1],
        tiling.keys,
        tiling.dims[0],
        tiling.dims[1],
        mask,
        has_key_mask.into(),
        capped,
    ];
    let [_, _, _, mask, lens] = p.slots;
    let grid = e.flat_grid(groups);
    let mut args = vec![q, k, v, mask, lens, y];
    args.extend(beside);
    // Pairs always say which heads are left.
    let keeps_lse = match tiling.factors {
        Factors::Halves => !beside.is_empty(),
        Factors::Pairs | Factors::Scaled => beside.len() > 1,
    };
    let kernel = match (tiling.factors, keeps_lse, tiling.converts) {
        (Factors::Halves, false, false) => &F16,
        (Factors::Halves, false, true) => &CONVERT_F16,
        (Factors::Halves, true, false) => &LSE_F16,
        (Factors::Halves, true, true) => &CONVERT_LSE_F16,
        (Factors::Pairs, false, false) => &PAIRS,
        (Factors::Pairs, false, true) => &CONVERT_PAIRS,
        (Factors::Pairs, true, false) => &LSE_PAIRS,
        (Factors::Pairs, true, true) => &CONVERT_LSE_PAIRS,
        // Only what is trained is multiplied so.
        (Factors::Scaled, _, false) => &LSE_SCALED,
        (Factors::Scaled, _, true) => &CONVERT_LSE_SCALED,
    };
    e.dispatch(kernel, &consts, &args, &params, grid);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::gemm_coop;

    #[test]
    fn the_module_declares_the_block_the_arguments_and_the_constants() {
        gemm_coop::tests::agrees(&F16.def);
        gemm_coop::tests::agrees(&CONVERT_F16.def);
        gemm_coop::tests::agrees(&LSE_F16.def);
        gemm_coop::tests::agrees(&CONVERT_LSE_F16.def);
        gemm_coop::tests::agrees(&PAIRS.def);
        gemm_coop::tests::agrees(&CONVERT_PAIRS.def);
    }

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

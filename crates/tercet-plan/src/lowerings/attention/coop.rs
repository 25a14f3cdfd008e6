//! Attention of many queries on cooperative matrices.
//!
//! The shader is `shaders/vulkan/include/attention_coop.glsl`; its header says what the numbers mean.

pub(super) mod lanes;
mod tiling;

use tercet_ir::{CompileError, DType};

pub(super) use self::tiling::{AttentionTiling, Factors, TOO_MANY_HELD, shape};
use super::{AttentionParams, AttentionProblem, pairs};
use crate::emit::{Emit, View};
use crate::kernel::{Access, Kernel, Params};
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
        parts: U32,
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

pub(super) use module;

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

/// Elements that the kernel loads at a time.
const LOAD: usize = 8;

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
    operands: [SlotId; 3],
    (y, beside): (SlotId, &[SlotId]),
    tiling: &AttentionTiling,
) {
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
    let params = params(e, p, tiling);
    let mut results = vec![y];
    results.extend(beside);
    run(
        e,
        p,
        (operands, &results),
        tiling,
        (kernel, &params, params.groups),
    );
}

/// The numbers of a kernel that takes all keys.
pub(super) fn params(
    e: &mut Emit<'_>,
    p: &AttentionProblem<'_>,
    tiling: &AttentionTiling,
) -> AttentionCoopParams {
    // Long: a list of the shader's numbers.
    let rows = super::variants::rows(e, p);
    let tiles = e.tape().ceil_div(rows, tiling.rows[0]);
    let groups = super::variants::groups(e, p, &[tiles]);
    let b: AttentionParams = p.block.clone();
    AttentionCoopParams {
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
        parts: Num::ONE,
        scale: b.scale,
        softcap: b.softcap,
    }
}

/// Runs one of the kernels in so many workgroups.
pub(super) fn run<P: Params>(
    e: &mut Emit<'_>,
    p: &AttentionProblem<'_>,
    ([q, k, v], results): ([SlotId; 3], &[SlotId]),
    tiling: &AttentionTiling,
    (kernel, params, groups): (&Kernel<P>, &P, Num),
) {
    let b = &p.block;
    let has_key_mask =
        p.op.has_mask_operand() && b.mask_head == Num::ZERO && b.mask_query == Num::ZERO;
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
    let mut args = vec![q, k, v, mask, lens];
    args.extend(results);
    e.dispatch(kernel, &consts, &args, params, grid);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::gemm_coop;

    #[test]
    fn the_module_declares_the_block_the_arguments_and_the_constants() {
        gemm_coop::tests::agrees(&lanes::LANES_F16.def);
        gemm_coop::tests::agrees(&F16.def);
        gemm_coop::tests::agrees(&CONVERT_F16.def);
        gemm_coop::tests::agrees(&LSE_F16.def);
        gemm_coop::tests::agrees(&CONVERT_LSE_F16.def);
        gemm_coop::tests::agrees(&PAIRS.def);
        gemm_coop::tests::agrees(&CONVERT_PAIRS.def);
    }
}

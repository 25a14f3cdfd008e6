//! Many-query attention on cooperative matrices.
//!
//! The shader is `shaders/vulkan/include/attention_coop.glsl`; its header documents the parameters.

pub(super) mod mma;
pub(crate) mod tiling;

use tercet_ir::{CompileError, DType};

pub(super) use self::tiling::{AttentionTiling, MmaPrecision, TOO_MANY_HELD, shape};
use super::{AttentionParams, AttentionProblem, pairs};
use crate::emit::{LoweringCtx, SlotView};
use tercet_program::SlotId;
use tercet_program::SymInt;
use tercet_program::{ArgAccess, ParamBlock, TypedKernel};

crate::params! {
    /// Parameter block of `attention_coop.glsl`.
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

/// Kernel definition for a SPIR-V module of the attention shader; further arguments are the access
/// modes of results after the first.
macro_rules! module {
    ($name:literal $(, $more:expr)*) => {
        TypedKernel::spirv(
            $name,
            $crate::spirv_module::spirv_module!(concat!($name, ".spv")),
            &[
                ArgAccess::Read,
                ArgAccess::Read,
                ArgAccess::Read,
                ArgAccess::Read,
                ArgAccess::Read,
                ArgAccess::Write,
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

/// F16 attention; softmax weights go through shared memory to become matmul operands.
pub(super) static F16: TypedKernel<AttentionCoopParams> = module!("attention_coop_f16");

/// F16 attention; the kernel converts accumulators with softmax weights directly into matmul
/// operands.
pub(super) static CONVERT_F16: TypedKernel<AttentionCoopParams> = module!("attention_convert_f16");

/// F16 attention with the log-sum-exp of each row as second result; softmax weights go through
/// shared memory.
pub(super) static LSE_F16: TypedKernel<AttentionCoopParams> =
    module!("attention_coop_lse_f16", ArgAccess::Write);

/// F16 attention with the log-sum-exp as second result; accumulators with softmax weights are
/// converted to matmul operands.
pub(super) static CONVERT_LSE_F16: TypedKernel<AttentionCoopParams> =
    module!("attention_convert_lse_f16", ArgAccess::Write);

/// F32 attention on split-F16; softmax weights go through shared memory. The second result flags
/// the KV heads that the F32 fallback kernel must compute.
pub(super) static PAIRS: TypedKernel<AttentionCoopParams> =
    module!("attention_halves_f32", ArgAccess::Write);

/// F32 attention on split-F16; accumulators with softmax weights are converted to matmul operands.
pub(super) static CONVERT_PAIRS: TypedKernel<AttentionCoopParams> =
    module!("attention_halves_convert_f32", ArgAccess::Write);

/// F32 attention on split-F16 with the log-sum-exp as additional result; softmax weights go through
/// shared memory.
pub(super) static LSE_PAIRS: TypedKernel<AttentionCoopParams> = module!(
    "attention_halves_lse_f32",
    ArgAccess::Write,
    ArgAccess::Write
);

/// F32 attention on split-F16 with the log-sum-exp as additional result; accumulators with softmax
/// weights are converted to matmul operands.
pub(super) static CONVERT_LSE_PAIRS: TypedKernel<AttentionCoopParams> = module!(
    "attention_halves_convert_lse_f32",
    ArgAccess::Write,
    ArgAccess::Write
);

/// BF16 attention on scaled F16 with the log-sum-exp as additional result; softmax weights go
/// through shared memory.
pub(super) static LSE_SCALED: TypedKernel<AttentionCoopParams> = module!(
    "attention_halves_lse_bf16",
    ArgAccess::Write,
    ArgAccess::Write
);

/// BF16 attention on scaled F16 with the log-sum-exp as additional result; accumulators with
/// softmax weights are converted to matmul operands.
pub(super) static CONVERT_LSE_SCALED: TypedKernel<AttentionCoopParams> = module!(
    "attention_halves_convert_lse_bf16",
    ArgAccess::Write,
    ArgAccess::Write
);

/// Number of elements per vector load of the F16 kernels.
const LOAD: usize = 8;

/// Tiling of an attention on cooperative matrices for up to `queries` queries; `None` if the kernel
/// does not support the attention.
pub(super) fn tiling(
    e: &LoweringCtx<'_>,
    p: &AttentionProblem<'_>,
    y: &SlotView,
    queries: usize,
) -> Result<Option<AttentionTiling>, CompileError> {
    let factors = match (p.dtype, y.dtype) {
        (DType::F16, DType::F16) if p.vector_width >= LOAD => MmaPrecision::F16,
        (DType::F32, DType::F32) if pairs::supports(e, p, queries)? => MmaPrecision::SplitF16,
        _ => return Ok(None),
    };
    tiling_of(e, p, factors, queries)
}

/// Like [`tiling`], with operands that are multiplied in the format `factors`.
pub(super) fn tiling_of(
    e: &LoweringCtx<'_>,
    p: &AttentionProblem<'_>,
    factors: MmaPrecision,
    queries: usize,
) -> Result<Option<AttentionTiling>, CompileError> {
    let rows = queries.saturating_mul(p.group());
    let heads = e.bound(p.batch)?.saturating_mul(p.op.kv_heads);
    let dims = [p.head_dim, p.value_dim];
    let tiling = AttentionTiling::choose(e.caps, dims, rows, heads, factors);
    Ok(match (tiling, factors) {
        (Some(t), MmaPrecision::SplitF16 | MmaPrecision::Scaled)
            if !pairs::fit(e, p, queries, &t)? =>
        {
            None
        }
        (tiling, _) => tiling,
    })
}

/// Dispatches the attention kernel on queries, keys and values in the slots `operands`. `beside`
/// are the slots of further results: for F32, the fallback flags of the KV heads; then the
/// log-sum-exp if requested.
pub(super) fn dispatch(
    e: &mut LoweringCtx<'_>,
    p: &AttentionProblem<'_>,
    operands: [SlotId; 3],
    (y, beside): (SlotId, &[SlotId]),
    tiling: &AttentionTiling,
) {
    // For split-F16 kernels, the first slot of `beside` always receives the fallback flags.
    let keeps_lse = match tiling.factors {
        MmaPrecision::F16 => !beside.is_empty(),
        MmaPrecision::SplitF16 | MmaPrecision::Scaled => beside.len() > 1,
    };
    let kernel = match (tiling.factors, keeps_lse, tiling.converts) {
        (MmaPrecision::F16, false, false) => &F16,
        (MmaPrecision::F16, false, true) => &CONVERT_F16,
        (MmaPrecision::F16, true, false) => &LSE_F16,
        (MmaPrecision::F16, true, true) => &CONVERT_LSE_F16,
        (MmaPrecision::SplitF16, false, false) => &PAIRS,
        (MmaPrecision::SplitF16, false, true) => &CONVERT_PAIRS,
        (MmaPrecision::SplitF16, true, false) => &LSE_PAIRS,
        (MmaPrecision::SplitF16, true, true) => &CONVERT_LSE_PAIRS,
        // BF16 on scaled F16 is only used in training, which always needs the log-sum-exp.
        (MmaPrecision::Scaled, _, false) => &LSE_SCALED,
        (MmaPrecision::Scaled, _, true) => &CONVERT_LSE_SCALED,
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

/// Parameter block of a kernel without split-KV: each workgroup processes all keys of its rows.
pub(super) fn params(
    e: &mut LoweringCtx<'_>,
    p: &AttentionProblem<'_>,
    tiling: &AttentionTiling,
) -> AttentionCoopParams {
    // Long: a list of all parameters of the shader.
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
        parts: SymInt::ONE,
        scale: b.scale,
        softcap: b.softcap,
    }
}

/// Dispatches one of the attention kernels with `groups` workgroups.
pub(super) fn run<P: ParamBlock>(
    e: &mut LoweringCtx<'_>,
    p: &AttentionProblem<'_>,
    ([q, k, v], results): ([SlotId; 3], &[SlotId]),
    tiling: &AttentionTiling,
    (kernel, params, groups): (&TypedKernel<P>, &P, SymInt),
) {
    let b = &p.block;
    let has_key_mask =
        p.op.has_mask_operand() && b.mask_head == SymInt::ZERO && b.mask_query == SymInt::ZERO;
    let [fm, fn_, fk] = tiling.fragment;
    let [_, _, mask, capped] = p.consts(p.dtype)[..] else {
        unreachable!("invariant: one constant per dtype, mask and softcap")
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

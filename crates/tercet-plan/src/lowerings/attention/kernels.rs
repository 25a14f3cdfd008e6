//! Kernels of attention and their parameter blocks.

use crate::lowerings::portable;
use crate::scalar::{PRELUDE, WgslHelper};
use tercet_program::{ArgAccess, TypedKernel};

crate::params! {
    /// Parameter block of `attention_params.wgsl`.
    pub struct AttentionParams {
        q_offset: U32,
        q_batch: U32,
        q_head: U32,
        q_seq: U32,
        q_dim: U32,
        k_offset: U32,
        k_batch: U32,
        k_head: U32,
        k_seq: U32,
        k_dim: U32,
        v_offset: U32,
        v_batch: U32,
        v_head: U32,
        v_seq: U32,
        v_dim: U32,
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
        batch: U32,
        kv_heads: U32,
        group: U32,
        head_dim: U32,
        value_dim: U32,
        tiles: U32,
        slices: U32,
        splits: U32,
        split_keys: U32,
        groups: U32,
        scale: F32,
        softcap: F32,
    }
    /// Parameter block of `attention_grad_params.wgsl`.
    pub struct TiledAttentionGradParams {
        q_offset: U32,
        q_batch: U32,
        q_head: U32,
        q_seq: U32,
        q_dim: U32,
        k_offset: U32,
        k_batch: U32,
        k_head: U32,
        k_seq: U32,
        k_dim: U32,
        v_offset: U32,
        v_batch: U32,
        v_head: U32,
        v_seq: U32,
        v_dim: U32,
        dy_offset: U32,
        dy_batch: U32,
        dy_head: U32,
        dy_seq: U32,
        dy_dim: U32,
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
        batch: U32,
        kv_heads: U32,
        group: U32,
        head_dim: U32,
        value_dim: U32,
        tiles: U32,
        slices: U32,
        groups: U32,
        scale: F32,
        softcap: F32,
    }
    /// Parameter block of `attention_combine.wgsl`.
    pub struct AttentionCombineParams {
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
        value_dim: U32,
        splits: U32,
        split_keys: U32,
        blocks: U32,
        groups: U32,
    }
    /// Parameter block of `attention_split.wgsl`.
    pub struct AttentionSplitParams {
        offset: U32,
        of_batch: U32,
        of_head: U32,
        of_seq: U32,
        rows: U32,
        group: U32,
        heads: U32,
        dim: U32,
        chunks: U32,
        lens_offset: U32,
        lens_stride: U32,
        has_lens: U32,
        groups: U32,
        sign: F32,
    }
    /// Parameter block of `attention_gather.wgsl`.
    pub struct AttentionSingleCombineParams {
        y_batch: U32,
        y_head: U32,
        splits: U32,
        groups: U32,
    }
    /// Parameter block of `attention_join.wgsl`.
    pub struct AttentionSplitKvCombineParams {
        y_batch: U32,
        y_head: U32,
        y_seq: U32,
        rows: U32,
        kv_heads: U32,
        group: U32,
        quads: U32,
        tiles: U32,
        tile_rows: U32,
        parts: U32,
        count: U32,
    }
    /// Parameter block of `attention_pack.wgsl`, `attention_widen.wgsl` and
    /// `attention_grad_known.wgsl`.
    pub struct AttentionPackParams {
        numel: U32,
    }
}

/// WGSL fragments that map scores to order-preserving integers, and that compute the range of
/// visible keys.
pub(super) const RANGE: &str = concat!(
    portable!("attention_order.wgsl"),
    portable!("attention_range.wgsl")
);

/// WGSL source of an attention kernel: the fragments that all of them need, followed by these
/// files.
macro_rules! pieces {
    ($($file:tt),*) => {
        &[
            PRELUDE,
            WgslHelper::Base.text(),
            WgslHelper::Exp.text(),
            WgslHelper::Hyperbolic.text(),
            RANGE,
            $(portable!($file),)*
        ]
    };
}

/// The attention kernels for one load width; `$operands` is the WGSL fragment that loads queries,
/// keys and values.
macro_rules! kernels {
    ($many:literal, $large:literal, $few:literal, $operands:literal) => {
        AttentionKernels {
            tiles: TypedKernel::wgsl(
                $many,
                pieces![
                    $operands,
                    "attention_halves.wgsl",
                    "attention_params.wgsl",
                    "attention_common.wgsl",
                    "attention_store.wgsl",
                    "attention_rows.wgsl",
                    "attention_all.wgsl",
                    "attention.wgsl"
                ],
                TILES_ARGS,
                &["DTYPE", "OUT", "MASK", "CAPPED", "ROWS", "COLS"],
            ),
            large: TypedKernel::wgsl(
                $large,
                pieces![
                    $operands,
                    "attention_halves.wgsl",
                    "attention_params.wgsl",
                    "attention_common.wgsl",
                    "attention_store.wgsl",
                    "attention_rows.wgsl",
                    "attention_large.wgsl"
                ],
                TILES_ARGS,
                &["DTYPE", "OUT", "MASK", "CAPPED"],
            ),
            decode: TypedKernel::wgsl(
                $few,
                pieces![
                    $operands,
                    "attention_halves.wgsl",
                    "attention_params.wgsl",
                    "attention_common.wgsl",
                    "attention_store.wgsl",
                    "attention_few.wgsl",
                    "attention_decode.wgsl"
                ],
                DECODE_ARGS,
                &["DTYPE", "OUT", "MASK", "CAPPED", "ROWS", "COLS", "SPLIT"],
            ),
        }
    };
}

/// Access modes of the arguments: queries, keys, values, mask, KV lengths, result.
pub(super) const TILES_ARGS: &[ArgAccess] = &[
    ArgAccess::Read,
    ArgAccess::Read,
    ArgAccess::Read,
    ArgAccess::Read,
    ArgAccess::Read,
    ArgAccess::Write,
];

/// Access modes as in [`TILES_ARGS`], with the softmax statistics of each key range as additional
/// result.
const DECODE_ARGS: &[ArgAccess] = &[
    ArgAccess::Read,
    ArgAccess::Read,
    ArgAccess::Read,
    ArgAccess::Read,
    ArgAccess::Read,
    ArgAccess::Write,
    ArgAccess::Write,
];

/// The attention kernels for many, very many and few queries (`tiles`, `large`, `decode`).
pub(super) struct AttentionKernels {
    pub(super) tiles: TypedKernel<AttentionParams>,
    pub(super) large: TypedKernel<AttentionParams>,
    pub(super) decode: TypedKernel<AttentionParams>,
}

/// Attention kernels for views with any strides.
pub(super) static WORDS: AttentionKernels = kernels!(
    "attention",
    "attention_large",
    "attention_decode",
    "attention_words.wgsl"
);

/// Attention kernels for F32 views whose rows consist of whole 16-byte vectors.
pub(super) static VEC4: AttentionKernels = kernels!(
    "attention_vec4",
    "attention_large_vec4",
    "attention_decode_vec4",
    "attention_vec4.wgsl"
);

/// Attention kernels for F16 and BF16 views whose rows consist of whole 8-byte vectors.
pub(super) static VEC2: AttentionKernels = kernels!(
    "attention_vec2",
    "attention_large_vec2",
    "attention_decode_vec2",
    "attention_vec2.wgsl"
);

/// The attention kernel for many queries that also stores the log-sum-exp of each query's scores,
/// for one load width; `$operands` is the WGSL fragment that loads queries, keys and values.
macro_rules! lse_kernel {
    ($name:literal, $operands:literal) => {
        TypedKernel::wgsl(
            $name,
            pieces![
                $operands,
                "attention_halves.wgsl",
                "attention_params.wgsl",
                "attention_common.wgsl",
                "attention_store.wgsl",
                "attention_rows.wgsl",
                "attention_all_lse.wgsl",
                "attention.wgsl"
            ],
            DECODE_ARGS,
            &["DTYPE", "OUT", "MASK", "CAPPED", "ROWS", "COLS"],
        )
    };
}

pub(super) static LSE_WORDS: TypedKernel<AttentionParams> =
    lse_kernel!("attention_lse", "attention_words.wgsl");
pub(super) static LSE_VEC4: TypedKernel<AttentionParams> =
    lse_kernel!("attention_lse_vec4", "attention_vec4.wgsl");
pub(super) static LSE_VEC2: TypedKernel<AttentionParams> =
    lse_kernel!("attention_lse_vec2", "attention_vec2.wgsl");

/// The backward kernel for one load width; `$operands` is the WGSL fragment that loads queries,
/// keys and values, `$dy` the one that loads cotangents of results.
macro_rules! grad_kernel {
    ($name:literal, $operands:literal, $dy:literal) => {
        TypedKernel::wgsl(
            $name,
            pieces![
                $operands,
                $dy,
                "attention_halves.wgsl",
                "attention_grad_params.wgsl",
                "attention_common.wgsl",
                "attention_store.wgsl",
                "attention_grad.wgsl"
            ],
            GRAD_ARGS,
            &["DTYPE", "OUT", "MASK", "CAPPED", "OF", "COLS"],
        )
    };
}

/// Pairs the log-sum-exp and `delta` of each query.
pub(super) static GRAD_KNOWN: TypedKernel<AttentionPackParams> = TypedKernel::wgsl(
    "attention_grad_known",
    &[PRELUDE, portable!("attention_grad_known.wgsl")],
    &[ArgAccess::Read, ArgAccess::Read, ArgAccess::Write],
    &[],
);

/// Access modes as in [`TILES_ARGS`], followed by the cotangents of results and the statistics of
/// queries.
const GRAD_ARGS: &[ArgAccess] = &[
    ArgAccess::Read,
    ArgAccess::Read,
    ArgAccess::Read,
    ArgAccess::Read,
    ArgAccess::Read,
    ArgAccess::Write,
    ArgAccess::Read,
    ArgAccess::Read,
];

pub(super) static GRAD_WORDS: TypedKernel<TiledAttentionGradParams> = grad_kernel!(
    "attention_grad",
    "attention_words.wgsl",
    "attention_grad_words.wgsl"
);
pub(super) static GRAD_VEC4: TypedKernel<TiledAttentionGradParams> = grad_kernel!(
    "attention_grad_vec4",
    "attention_vec4.wgsl",
    "attention_grad_vec4.wgsl"
);
pub(super) static GRAD_VEC2: TypedKernel<TiledAttentionGradParams> = grad_kernel!(
    "attention_grad_vec2",
    "attention_vec2.wgsl",
    "attention_grad_vec2.wgsl"
);

/// Attention kernel for few queries, for F16 and BF16 views whose rows consist of whole 16-byte
/// vectors.
pub(super) static DECODE_WIDE: TypedKernel<AttentionParams> = TypedKernel::wgsl(
    "attention_decode_wide",
    pieces![
        "attention_vec8.wgsl",
        "attention_halves.wgsl",
        "attention_params.wgsl",
        "attention_common.wgsl",
        "attention_store.wgsl",
        "attention_few.wgsl",
        "attention_decode_wide.wgsl"
    ],
    DECODE_ARGS,
    &[
        "DTYPE", "OUT", "MASK", "CAPPED", "ROWS", "COLS", "SPLIT", "PARTS",
    ],
);

/// Attention kernel for a single query, with few instructions per key.
pub(super) static ONE: TypedKernel<AttentionParams> = TypedKernel::wgsl(
    "attention_one",
    pieces![
        "attention_halves.wgsl",
        "attention_params.wgsl",
        "attention_common.wgsl",
        "attention_one.wgsl"
    ],
    DECODE_ARGS,
    &[
        "DTYPE",
        "OUT",
        "MASK",
        "CAPPED",
        "SPLIT",
        "HEAD",
        "VALUE",
        "ROWS",
        "GROUP",
        "KEY_HEADS",
    ],
);

/// Combines the partial results of all key ranges for few queries.
pub(super) static COMBINE: TypedKernel<AttentionCombineParams> = TypedKernel::wgsl(
    "attention_combine",
    &[PRELUDE, RANGE, portable!("attention_combine.wgsl")],
    &[
        ArgAccess::Read,
        ArgAccess::Read,
        ArgAccess::Read,
        ArgAccess::Write,
    ],
    &["OUT"],
);

/// Combines the partial results of all key ranges for a single query.
pub(super) static GATHER: TypedKernel<AttentionSingleCombineParams> = TypedKernel::wgsl(
    "attention_gather",
    &[
        PRELUDE,
        portable!("attention_order.wgsl"),
        portable!("attention_gather.wgsl"),
    ],
    &[ArgAccess::Read, ArgAccess::Read, ArgAccess::Write],
    &["OUT", "VALUE", "HEADS"],
);

/// Combines the partial results of split-KV for many queries on cooperative matrices.
pub(super) static JOIN: TypedKernel<AttentionSplitKvCombineParams> = TypedKernel::wgsl(
    "attention_join",
    &[PRELUDE, portable!("attention_join.wgsl")],
    &[ArgAccess::Read, ArgAccess::Read, ArgAccess::Write],
    &["OUT", "NATURAL"],
);

/// Rounds F32 result rows of odd length to 16 bits and packs them, because neighboring rows share
/// 32-bit words.
pub(super) static PACK: TypedKernel<AttentionPackParams> = TypedKernel::wgsl(
    "attention_pack",
    &[PRELUDE, portable!("attention_pack.wgsl")],
    &[ArgAccess::Read, ArgAccess::Write],
    &["OUT"],
);

/// Converts BF16 to F32.
pub(super) static WIDEN: TypedKernel<AttentionPackParams> = TypedKernel::wgsl(
    "attention_widen",
    &[PRELUDE, portable!("attention_widen.wgsl")],
    &[ArgAccess::Read, ArgAccess::Write],
    &[],
);

/// Splits F32 rows into F16 pairs; rows that were widened from BF16 are converted to scaled F16
/// instead.
pub(super) static SPLIT: TypedKernel<AttentionSplitParams> = TypedKernel::wgsl(
    "attention_split",
    &[PRELUDE, portable!("attention_split.wgsl")],
    &[ArgAccess::Read, ArgAccess::Read, ArgAccess::Write],
    &["COLS", "PIECES"],
);

/// F32 fallback kernel for the KV heads that the split-F16 kernel skips; rows must consist of whole
/// 16-byte vectors.
pub(super) static REST: TypedKernel<AttentionParams> = TypedKernel::wgsl(
    "attention_rest",
    pieces![
        "attention_vec4.wgsl",
        "attention_halves.wgsl",
        "attention_params.wgsl",
        "attention_common.wgsl",
        "attention_store.wgsl",
        "attention_rows.wgsl",
        "attention_rest.wgsl",
        "attention.wgsl"
    ],
    &[
        ArgAccess::Read,
        ArgAccess::Read,
        ArgAccess::Read,
        ArgAccess::Read,
        ArgAccess::Read,
        ArgAccess::Write,
        ArgAccess::Read,
    ],
    &["DTYPE", "OUT", "MASK", "CAPPED", "ROWS", "COLS"],
);

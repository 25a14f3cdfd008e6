//! The kernels of attention and their parameter blocks.

use crate::families::portable;
use crate::kernel::{Access, Kernel};
use crate::scalar::{PRELUDE, Piece};

crate::params! {
    /// The block of `attention_common.wgsl`.
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
    /// The block of `attention_combine.wgsl`.
    pub struct CombineParams {
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
    /// The block of `attention_split.wgsl`.
    pub struct SplitParams {
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
    /// The block of `attention_gather.wgsl`.
    pub struct GatherParams {
        y_batch: U32,
        y_head: U32,
        splits: U32,
        groups: U32,
    }
    /// The block of `attention_join.wgsl`.
    pub struct JoinParams {
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
    /// The block of `attention_pack.wgsl` and `attention_widen.wgsl`.
    pub struct PackParams {
        numel: U32,
    }
}

/// Which keys are seen, and scores in order.
const RANGE: &str = concat!(
    portable!("attention_order.wgsl"),
    portable!("attention_range.wgsl")
);

/// The text of a kernel that scores keys: what all of them begin with, then these files.
macro_rules! pieces {
    ($($file:tt),*) => {
        &[
            PRELUDE,
            Piece::Base.text(),
            Piece::Exp.text(),
            Piece::Hyperbolic.text(),
            RANGE,
            $(portable!($file),)*
        ]
    };
}

/// The kernels of operands read by `$operands`.
macro_rules! kernels {
    ($many:literal, $large:literal, $few:literal, $operands:literal) => {
        Kernels {
            tiles: Kernel::wgsl(
                $many,
                pieces![
                    $operands,
                    "attention_halves.wgsl",
                    "attention_common.wgsl",
                    "attention_store.wgsl",
                    "attention_rows.wgsl",
                    "attention_all.wgsl",
                    "attention.wgsl"
                ],
                TILES_ARGS,
                &["DTYPE", "OUT", "MASK", "CAPPED", "ROWS", "COLS"],
            ),
            large: Kernel::wgsl(
                $large,
                pieces![
                    $operands,
                    "attention_halves.wgsl",
                    "attention_common.wgsl",
                    "attention_store.wgsl",
                    "attention_rows.wgsl",
                    "attention_large.wgsl"
                ],
                TILES_ARGS,
                &["DTYPE", "OUT", "MASK", "CAPPED"],
            ),
            decode: Kernel::wgsl(
                $few,
                pieces![
                    $operands,
                    "attention_halves.wgsl",
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

/// q, k, v, mask, lens, y.
const TILES_ARGS: &[Access] = &[
    Access::Read,
    Access::Read,
    Access::Read,
    Access::Read,
    Access::Read,
    Access::Write,
];

/// The same and what is known of each range of keys.
const DECODE_ARGS: &[Access] = &[
    Access::Read,
    Access::Read,
    Access::Read,
    Access::Read,
    Access::Read,
    Access::Write,
    Access::Write,
];

/// The kernels of many queries, of very many and of few.
pub(super) struct Kernels {
    pub(super) tiles: Kernel<AttentionParams>,
    pub(super) large: Kernel<AttentionParams>,
    pub(super) decode: Kernel<AttentionParams>,
}

/// Views of any strides.
pub(super) static WORDS: Kernels = kernels!(
    "attention",
    "attention_large",
    "attention_decode",
    "attention_words.wgsl"
);

/// F32 in whole 16 bytes.
pub(super) static VEC4: Kernels = kernels!(
    "attention_vec4",
    "attention_large_vec4",
    "attention_decode_vec4",
    "attention_vec4.wgsl"
);

/// F16 and BF16 in whole 8 bytes.
pub(super) static VEC2: Kernels = kernels!(
    "attention_vec2",
    "attention_large_vec2",
    "attention_decode_vec2",
    "attention_vec2.wgsl"
);

/// Few queries of F16 and BF16 in whole 16 bytes.
pub(super) static DECODE_WIDE: Kernel<AttentionParams> = Kernel::wgsl(
    "attention_decode_wide",
    pieces![
        "attention_vec8.wgsl",
        "attention_halves.wgsl",
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

/// One query, few instructions.
pub(super) static ONE: Kernel<AttentionParams> = Kernel::wgsl(
    "attention_one",
    pieces![
        "attention_halves.wgsl",
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

/// The ranges of keys of few queries, together.
pub(super) static COMBINE: Kernel<CombineParams> = Kernel::wgsl(
    "attention_combine",
    &[PRELUDE, RANGE, portable!("attention_combine.wgsl")],
    &[Access::Read, Access::Read, Access::Read, Access::Write],
    &["OUT"],
);

/// The ranges of keys of one query, together.
pub(super) static GATHER: Kernel<GatherParams> = Kernel::wgsl(
    "attention_gather",
    &[
        PRELUDE,
        portable!("attention_order.wgsl"),
        portable!("attention_gather.wgsl"),
    ],
    &[Access::Read, Access::Read, Access::Write],
    &["OUT", "VALUE", "HEADS"],
);

/// The parts of keys of many queries on matrices, together.
pub(super) static JOIN: Kernel<JoinParams> = Kernel::wgsl(
    "attention_join",
    &[PRELUDE, portable!("attention_join.wgsl")],
    &[Access::Read, Access::Read, Access::Write],
    &["OUT", "NATURAL"],
);

/// Rows that share words.
pub(super) static PACK: Kernel<PackParams> = Kernel::wgsl(
    "attention_pack",
    &[PRELUDE, portable!("attention_pack.wgsl")],
    &[Access::Read, Access::Write],
    &["OUT"],
);

/// BF16 as F32.
pub(super) static WIDEN: Kernel<PackParams> = Kernel::wgsl(
    "attention_widen",
    &[PRELUDE, portable!("attention_widen.wgsl")],
    &[Access::Read, Access::Write],
    &[],
);

/// Rows of F32 as pairs of F16, or rows of what was BF16 as one of them.
pub(super) static SPLIT: Kernel<SplitParams> = Kernel::wgsl(
    "attention_split",
    &[PRELUDE, portable!("attention_split.wgsl")],
    &[Access::Read, Access::Read, Access::Write],
    &["COLS", "PIECES"],
);

/// F32 in whole 16 bytes, of the key heads that the kernel on pairs of F16 left.
pub(super) static REST: Kernel<AttentionParams> = Kernel::wgsl(
    "attention_rest",
    pieces![
        "attention_vec4.wgsl",
        "attention_halves.wgsl",
        "attention_common.wgsl",
        "attention_store.wgsl",
        "attention_rows.wgsl",
        "attention_rest.wgsl",
        "attention.wgsl"
    ],
    &[
        Access::Read,
        Access::Read,
        Access::Read,
        Access::Read,
        Access::Read,
        Access::Write,
        Access::Read,
    ],
    &["DTYPE", "OUT", "MASK", "CAPPED", "ROWS", "COLS"],
);

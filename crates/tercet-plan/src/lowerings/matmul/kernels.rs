//! Kernels of matmuls. All matmul kernels use the parameter block and the bindings of
//! `operands.wgsl`.

mod held;
mod keyed;
mod rest;
mod wgsl_matrices;

pub(super) use self::held::{
    DOTS_ACTIVATED, DOTS_ACTIVATED_CHAINED, DOTS_PLAIN, DOTS_PLAIN_CHAINED, HELD_ACTIVATED,
    HELD_ACTIVATED_CHAINED, HELD_PLAIN, HELD_PLAIN_CHAINED,
};
pub(super) use self::keyed::{KEYED_CODED, KEYED_QUADS, KEYED_WIDE, KEYED_WORDS};
pub(super) use self::rest::{GEMM_REST, GEMM_REST_ACTIVATED};
pub(super) use self::wgsl_matrices::{FLOATS_OF_8, HALVES_OF_8, HALVES_OF_16, WgslKernels};
use super::{prepack, skinny, skinny_prepacked_a, skinny_shared_mem, split_f16};
use crate::lowerings::dequant::{BLOCK_CONSTS, BLOCKS, CODED, PIECES, PIECES_CODED, QUADS, WORDS};
use crate::lowerings::sums::{ACTIVATED, ARGS, OF_SUMS, PLAIN, SUMS, with_functions};
use crate::lowerings::{gemm_coop, portable};
use crate::scalar::PRELUDE;
use tercet_program::{ArgAccess, KernelDef, TypedKernel, kernel_names as names};

crate::params! {
    /// Parameter block of `matmul/operands.wgsl`.
    pub struct MatMulParams {
        batch_sizes: U32x8,
        a_batches: U32x8,
        b_batches: U32x8,
        batch_axes: U32,
        batch: U32,
        m: U32,
        n: U32,
        k: U32,
        a_offset: U32,
        a_row: U32,
        a_col: U32,
        b_offset: U32,
        b_row: U32,
        b_col: U32,
        bias_offset: U32,
        bias_row: U32,
        bias_stride: U32,
        zero: U32,
        eps: F32,
        chain_waits: U32,
        chain_wanted: U32,
        chain_own: U32,
    }
    /// Parameter block of `matmul/narrow.wgsl`.
    pub struct CastF16Params {
        count: U32,
    }
    /// Parameter block of `matmul/narrow_rows.wgsl`.
    pub struct NarrowRowsParams {
        count: U32,
        row_len: U32,
        offset: U32,
        row: U32,
    }
    /// Parameter block of `matmul/sum_parts.wgsl`.
    pub struct SplitKReduceParams {
        quads: U32,
        m: U32,
        n: U32,
        bias_offset: U32,
        bias_row: U32,
        bias_stride: U32,
        first: U32,
        row_quads: U32,
        zero: U32,
    }
}

/// Arguments of kernels with a norm prologue: [`ARGS`] plus the gains of the norm.
const ROW_ARGS: &[ArgAccess] = &[
    ArgAccess::Read,
    ArgAccess::Read,
    ArgAccess::Read,
    ArgAccess::Write,
    ArgAccess::Read,
];
/// [`ARGS`] and [`ROW_ARGS`], each followed by a codebook for quantized weights.
const CODED_ARGS: &[ArgAccess] = &[
    ArgAccess::Read,
    ArgAccess::Read,
    ArgAccess::Read,
    ArgAccess::Write,
    ArgAccess::Read,
];
const CODED_ROW_ARGS: &[ArgAccess] = &[
    ArgAccess::Read,
    ArgAccess::Read,
    ArgAccess::Read,
    ArgAccess::Write,
    ArgAccess::Read,
    ArgAccess::Read,
];
/// Names of the constants of tiled kernels with 4-element loads; they follow [`OF_SUMS`].
const OF_QUADS: &[&str] = &["TM", "TN", "PARTS"];
/// Names of the constants of kernels for quantized weights whose groups have separate scales and
/// minima.
const OF_GROUPS: &[&str] = names![&BLOCK_CONSTS, &["GROUPS", "SECOND"]];
/// Names of the constants of kernels with activation rows in shared memory; they follow all other
/// constants.
const OF_ROWS: &[&str] = &["ROWS", "UNITS", "PER", "STEPS", "GATED", "NORMED"];
const GRID: &str = portable!("dequant/grid_5.wgsl");
const ROW_GRID: &str = portable!("dequant/grid_6.wgsl");
/// WGSL source that all matmul kernels include; it does not declare the bindings of the left
/// operand and the result.
const SHARED: &str = portable!("matmul/operands.wgsl");
const OF_BATCHES: &str = portable!("matmul/batches.wgsl");
const OPERANDS: &str = concat!(
    portable!("matmul/operands.wgsl"),
    portable!("matmul/batches.wgsl"),
    portable!("matmul/words.wgsl")
);
const B_WORDS: &str = portable!("matmul/b_words.wgsl");
const FLOATS: &str = concat!(
    portable!("matmul/floats.wgsl"),
    portable!("matmul/a_words.wgsl")
);
const EVERY_TILE: &str = portable!("matmul/every_tile.wgsl");
const GEMM: &str = portable!("matmul/gemm.wgsl");
const GEMM_FLOATS: &str = portable!("matmul/gemm_floats.wgsl");
const GEMV: &str = concat!(portable!("cluster.wgsl"), portable!("matmul/gemv.wgsl"));
const LOOSE: &str = concat!(
    portable!("matmul/prologue_none.wgsl"),
    portable!("matmul/gemv_loose.wgsl")
);
const GAINS: &str = portable!("matmul/gains_words.wgsl");
/// WGSL source of the norm prologue, which normalizes activation rows.
const PROLOGUE: &str = concat!(
    portable!("norm_scale.wgsl"),
    portable!("matmul/prologue_norm.wgsl")
);
const TILE: &str = portable!("matmul/gemv_tile.wgsl");
const GEMV_PACKED: &str = portable!("matmul/gemv_packed.wgsl");

/// Declares a kernel for float weights in two versions: with activation functions of little code
/// only, and with all activation functions. The kernel's own WGSL fragments and constants follow
/// those that all kernels have.
macro_rules! of_floats {
    ($plain:ident $plain_name:literal, $full:ident $full_name:literal,
     [$($piece:expr),*], $names:expr) => {
        pub(super) static $plain: TypedKernel<MatMulParams> = TypedKernel::wgsl(
            $plain_name,
            &[PRELUDE, OPERANDS, PLAIN, FLOATS, $($piece),*],
            ARGS,
            names![OF_SUMS, $names],
        );
        pub(super) static $full: TypedKernel<MatMulParams> = TypedKernel::wgsl(
            $full_name,
            with_functions![OPERANDS, ACTIVATED, FLOATS, $($piece),*],
            ARGS,
            names![OF_SUMS, $names],
        );
    };
}

of_floats!(
    GEMM_PLAIN "gemm", GEMM_ACTIVATED "gemm_activated",
    [B_WORDS, EVERY_TILE, GEMM, GEMM_FLOATS],
    &["B_TYPE", "SIDE", "WIDE", "A_ALONG", "B_ALONG"]
);

of_floats!(
    ALONG_PLAIN "gemv_along", ALONG_ACTIVATED "gemv_along_activated",
    [B_WORDS, GEMV, LOOSE, portable!("matmul/gemv_along.wgsl")],
    &["B_TYPE", "ROWS", "B_WORDS"]
);

of_floats!(
    ACROSS_PLAIN "gemv_across", ACROSS_ACTIVATED "gemv_across_activated",
    [B_WORDS, GEMV, LOOSE, portable!("matmul/gemv_across.wgsl")],
    &["B_TYPE", "ROWS", "PER"]
);

pub(super) mod strips;
/// Declares a tiled GEMM kernel for quantized weights.
macro_rules! of_blocks {
    ($kernel:ident $label:literal, $args:expr, [$($piece:expr),*]) => {
        pub(super) static $kernel: TypedKernel<MatMulParams> = TypedKernel::wgsl(
            $label,
            &[
                PRELUDE,
                OPERANDS,
                B_WORDS,
                PLAIN,
                FLOATS,
                EVERY_TILE,
                GEMM,
                $($piece,)*
                portable!("matmul/gemm_packed.wgsl"),
            ],
            $args,
            names![OF_SUMS, &BLOCK_CONSTS, &["SIDE", "WIDE", "A_ALONG"]],
        );
    };
}

of_blocks!(GEMM_PACKED "gemm_packed", ARGS, [BLOCKS]);
of_blocks!(GEMM_CODED "gemm_coded", CODED_ARGS, [CODED, GRID]);

/// WGSL source of tiled kernels that load 4 elements of an operand at once.
const QUAD_PRODUCTS: &str = concat!(
    portable!("matmul/quad_tiles.wgsl"),
    portable!("matmul/gemm_quads.wgsl")
);
const QUADS_WIDE: &str = portable!("matmul/quads_wide.wgsl");
const QUADS_HALF: &str = portable!("matmul/quads_half.wgsl");
const B_QUADS_WIDE: &str = portable!("matmul/b_quads_wide.wgsl");
const B_QUADS_HALF: &str = portable!("matmul/b_quads_half.wgsl");
const B_QUADS_PACKED: &str = portable!("matmul/b_quads_packed.wgsl");

/// Declares a tiled kernel with 4-element loads, which has activation functions of little code
/// only, such as ReLU.
macro_rules! of_quads {
    ($kernel:ident $label:literal, $pieces:tt, $names:expr) => {
        of_quads!($kernel $label, ARGS, $pieces, $names);
    };
    ($kernel:ident $label:literal, $args:expr, [$($piece:expr),*], $names:expr) => {
        pub(super) static $kernel: TypedKernel<MatMulParams> = TypedKernel::wgsl(
            $label,
            &[PRELUDE, SHARED, OF_BATCHES, PLAIN, SUMS, QUAD_PRODUCTS, $($piece),*],
            $args,
            names![OF_SUMS, OF_QUADS, $names],
        );
    };
}

/// Declares a tiled kernel with 4-element loads and all activation functions.
macro_rules! of_quads_activated {
    ($kernel:ident $label:literal, [$($piece:expr),*], $names:expr) => {
        pub(super) static $kernel: TypedKernel<MatMulParams> = TypedKernel::wgsl(
            $label,
            with_functions![SHARED, OF_BATCHES, ACTIVATED, SUMS, QUAD_PRODUCTS, $($piece),*],
            ARGS,
            names![OF_SUMS, OF_QUADS, $names],
        );
    };
}

of_quads!(QUADS_F32 "gemm_quads", [QUADS_WIDE, B_QUADS_WIDE], &["B_ALONG"]);
of_quads_activated!(
    QUADS_F32_ACTIVATED "gemm_quads_activated",
    [QUADS_WIDE, B_QUADS_WIDE],
    &["B_ALONG"]
);
of_quads!(
    QUADS_16 "gemm_quads_half",
    [QUADS_HALF, B_QUADS_HALF],
    &["B_ALONG", "B_TYPE"]
);
of_quads_activated!(
    QUADS_16_ACTIVATED "gemm_quads_half_activated",
    [QUADS_HALF, B_QUADS_HALF],
    &["B_ALONG", "B_TYPE"]
);
of_quads!(
    QUADS_MIXED "gemm_quads_mixed",
    [QUADS_WIDE, B_QUADS_HALF],
    &["B_ALONG", "B_TYPE"]
);
of_quads!(
    QUADS_PACKED_F32 "gemm_quads_packed",
    [QUADS_WIDE, B_WORDS, BLOCKS, B_QUADS_PACKED],
    &BLOCK_CONSTS
);
of_quads!(
    QUADS_PACKED_16 "gemm_quads_packed_half",
    [QUADS_HALF, B_WORDS, BLOCKS, B_QUADS_PACKED],
    &BLOCK_CONSTS
);

of_quads!(
    QUADS_CODED_F32 "gemm_quads_coded",
    CODED_ARGS,
    [QUADS_WIDE, B_WORDS, CODED, GRID, B_QUADS_PACKED],
    &BLOCK_CONSTS
);
of_quads!(
    QUADS_CODED_16 "gemm_quads_coded_half",
    CODED_ARGS,
    [QUADS_HALF, B_WORDS, CODED, GRID, B_QUADS_PACKED],
    &BLOCK_CONSTS
);

/// A kernel for few activation rows, staged in shared memory, with optional norm prologue and gate.
/// The macro defines two versions of the kernel: with activation functions of little code only, and
/// with all activation functions.
macro_rules! of_rows {
    ($plain:ident $plain_name:literal, $full:ident $full_name:literal, $pieces:tt, $names:expr) => {
        of_rows!($plain $plain_name, $full $full_name, ROW_ARGS, $pieces, $names);
    };
    ($plain:ident $plain_name:literal, $full:ident $full_name:literal, $args:expr,
     [$($piece:expr),*], $names:expr) => {
        pub(super) static $plain: TypedKernel<MatMulParams> = TypedKernel::wgsl(
            $plain_name,
            &[PRELUDE, OPERANDS, PLAIN, FLOATS, GEMV, TILE, GAINS, PROLOGUE, $($piece),*],
            $args,
            names![OF_SUMS, $names, OF_ROWS],
        );
        pub(super) static $full: TypedKernel<MatMulParams> = TypedKernel::wgsl(
            $full_name,
            with_functions![OPERANDS, ACTIVATED, FLOATS, GEMV, TILE, GAINS, PROLOGUE, $($piece),*],
            $args,
            names![OF_SUMS, $names, OF_ROWS],
        );
    };
}

of_rows!(
    WIDE_PLAIN "gemv_wide", WIDE_ACTIVATED "gemv_wide_activated",
    [portable!("matmul/gemv_wide.wgsl")],
    &["B_TYPE"]
);
of_rows!(
    PACKED_WORDS_PLAIN "gemv_packed", PACKED_WORDS_ACTIVATED "gemv_packed_activated",
    [BLOCKS, WORDS, PIECES, GEMV_PACKED],
    OF_GROUPS
);
of_rows!(
    PACKED_QUADS_PLAIN "gemv_packed_wide", PACKED_QUADS_ACTIVATED "gemv_packed_wide_activated",
    [BLOCKS, QUADS, PIECES, GEMV_PACKED],
    OF_GROUPS
);

of_rows!(
    CODED_PLAIN "gemv_coded", CODED_ACTIVATED "gemv_coded_activated",
    CODED_ROW_ARGS,
    [CODED, ROW_GRID, WORDS, PIECES_CODED, GEMV_PACKED],
    &BLOCK_CONSTS
);

/// WGSL bindings of one activation row and of the gains of its norm, as arrays of four-word
/// vectors.
const ROW_QUADS: &str = portable!("matmul/row_quads.wgsl");
const ROW: &str = concat!(
    portable!("matmul/gemv_shares.wgsl"),
    portable!("matmul/gemv_floats.wgsl")
);
const ROW_CONSTS: &[&str] = names![
    OF_SUMS,
    &[
        "B_TYPE", "SLICES", "PIECES", "TOGETHER", "COLUMNS", "ROUNDS", "GATED", "NORMED"
    ],
];

/// GEMV kernel with float weights and the activation row in registers.
pub(super) static ROW_PLAIN: TypedKernel<MatMulParams> = TypedKernel::wgsl(
    "gemv_floats",
    &[
        PRELUDE, SHARED, OF_BATCHES, PLAIN, SUMS, ROW_QUADS, PROLOGUE, ROW,
    ],
    ROW_ARGS,
    ROW_CONSTS,
);
pub(super) static ROW_ACTIVATED: TypedKernel<MatMulParams> = TypedKernel::wgsl(
    "gemv_floats_activated",
    with_functions![
        SHARED, OF_BATCHES, ACTIVATED, SUMS, ROW_QUADS, PROLOGUE, ROW
    ],
    ROW_ARGS,
    ROW_CONSTS,
);

/// Matmul kernel for integers of all widths.
pub(super) static INTS: TypedKernel<MatMulParams> = TypedKernel::wgsl(
    "matmul_ints",
    &[PRELUDE, OPERANDS, B_WORDS, portable!("matmul/ints.wgsl")],
    ARGS,
    &["BIAS", "ACTIVATION", "DTYPE"],
);

/// Kernel that rounds F32 sums to a 16-bit result whose rows are not word-aligned.
pub(super) static NARROW: TypedKernel<CastF16Params> = TypedKernel::wgsl(
    "matmul_narrow",
    &[PRELUDE, portable!("matmul/narrow.wgsl")],
    &[ArgAccess::Read, ArgAccess::Write],
    &["Y_TYPE"],
);

/// Kernel that rounds F32 activation rows to dense 16-bit rows.
pub(super) static NARROW_ROWS: TypedKernel<NarrowRowsParams> = TypedKernel::wgsl(
    "matmul_narrow_rows",
    &[PRELUDE, portable!("matmul/narrow_rows.wgsl")],
    &[ArgAccess::Read, ArgAccess::Write],
    &["Y_TYPE"],
);

const PARTS: &str = portable!("matmul/sum_parts.wgsl");
const PARTS_ARGS: &[ArgAccess] = &[ArgAccess::Read, ArgAccess::Read, ArgAccess::Write];
const PARTS_CONSTS: &[&str] = names![OF_SUMS, &["PARTS"]];

/// Kernels that add split-K partial sums and write the result: one with activation functions of
/// little code only, and one with all.
pub(super) static SUM_PARTS: TypedKernel<SplitKReduceParams> = TypedKernel::wgsl(
    "sum_parts",
    &[PRELUDE, PLAIN, SUMS, PARTS],
    PARTS_ARGS,
    PARTS_CONSTS,
);
pub(super) static SUM_PARTS_ACTIVATED: TypedKernel<SplitKReduceParams> = TypedKernel::wgsl(
    "sum_parts_activated",
    with_functions![ACTIVATED, SUMS, PARTS],
    PARTS_ARGS,
    PARTS_CONSTS,
);

pub(super) static OF_NUMBERS: &[&KernelDef] = &[
    &GEMM_PLAIN.def,
    &GEMM_ACTIVATED.def,
    &QUADS_F32.def,
    &QUADS_F32_ACTIVATED.def,
    &QUADS_16.def,
    &QUADS_16_ACTIVATED.def,
    &ALONG_PLAIN.def,
    &ALONG_ACTIVATED.def,
    &ACROSS_PLAIN.def,
    &ACROSS_ACTIVATED.def,
    &strips::STRIPS_PLAIN.def,
    &strips::STRIPS_ACTIVATED.def,
    &strips::STRIPS_NORMED_PLAIN.def,
    &strips::STRIPS_NORMED_ACTIVATED.def,
    &WIDE_PLAIN.def,
    &WIDE_ACTIVATED.def,
    &ROW_PLAIN.def,
    &ROW_ACTIVATED.def,
    &KEYED_WIDE.def,
    &INTS.def,
    &NARROW.def,
    &SUM_PARTS.def,
    &SUM_PARTS_ACTIVATED.def,
    &gemm_coop::F16.def,
    &gemm_coop::BF16.def,
    &gemm_coop::BLOCK_F16.def,
    &gemm_coop::BLOCK_BF16.def,
    &gemm_coop::LAID_F16.def,
    &prepack::LAY_OUT.def,
    &split_f16::SPLIT_BLOCKS.def,
    &split_f16::PAIRS.def,
    &GEMM_REST.def,
    &GEMM_REST_ACTIVATED.def,
    &skinny::KERNEL.def,
    &skinny_shared_mem::KERNEL.def,
    &wgsl_matrices::HALF_16_PLAIN.def,
    &wgsl_matrices::HALF_16_ACTIVATED.def,
    &wgsl_matrices::HALF_8_PLAIN.def,
    &wgsl_matrices::HALF_8_ACTIVATED.def,
    &wgsl_matrices::WIDE_8_PLAIN.def,
    &wgsl_matrices::WIDE_8_ACTIVATED.def,
    &wgsl_matrices::WIDE_8_MIXED.def,
];

pub(super) static OF_BLOCKS: &[&KernelDef] = &[
    &GEMM_PACKED.def,
    &NARROW_ROWS.def,
    &PACKED_WORDS_PLAIN.def,
    &PACKED_WORDS_ACTIVATED.def,
    &PACKED_QUADS_PLAIN.def,
    &PACKED_QUADS_ACTIVATED.def,
    &KEYED_WORDS.def,
    &KEYED_QUADS.def,
    &KEYED_CODED.def,
    &HELD_PLAIN.def,
    &HELD_ACTIVATED.def,
    &DOTS_PLAIN.def,
    &DOTS_ACTIVATED.def,
    &HELD_PLAIN_CHAINED.def,
    &HELD_ACTIVATED_CHAINED.def,
    &DOTS_PLAIN_CHAINED.def,
    &DOTS_ACTIVATED_CHAINED.def,
    &QUADS_MIXED.def,
    &QUADS_PACKED_F32.def,
    &QUADS_PACKED_16.def,
    &GEMM_CODED.def,
    &CODED_PLAIN.def,
    &CODED_ACTIVATED.def,
    &QUADS_CODED_F32.def,
    &QUADS_CODED_16.def,
    &skinny_prepacked_a::LAY_ROWS.def,
    &skinny_prepacked_a::Q4_0.def,
    &skinny_prepacked_a::Q8_0.def,
    &skinny_prepacked_a::Q4_K.def,
    &skinny_prepacked_a::Q6_K.def,
    &wgsl_matrices::HALF_16_PACKED.def,
    &wgsl_matrices::HALF_16_CODED.def,
    &wgsl_matrices::HALF_8_PACKED.def,
    &wgsl_matrices::HALF_8_CODED.def,
    &wgsl_matrices::WIDE_8_PACKED.def,
    &wgsl_matrices::WIDE_8_CODED.def,
];

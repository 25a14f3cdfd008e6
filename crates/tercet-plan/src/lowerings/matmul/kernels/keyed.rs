//! Kernels of batched GEMV with an expert index per row.

use super::{
    BLOCK_CONSTS, BLOCKS, CODED, FLOATS, GAINS, GEMV, GEMV_PACKED, MatMulParams, OF_GROUPS,
    OF_ROWS, OF_SUMS, PIECES, PIECES_CODED, PLAIN, PRELUDE, PROLOGUE, QUADS, SHARED, TILE, WORDS,
};
use crate::lowerings::portable;
use tercet_program::{ArgAccess, TypedKernel, kernel_names as names};

const KEYS: &str = portable!("matmul/keyed.wgsl");
const ROW_WORDS: &str = portable!("matmul/words.wgsl");
/// `ROW_ARGS` with the expert index of each row, followed by the codebook for weights that need
/// one.
const KEYED_ARGS: &[ArgAccess] = &[
    ArgAccess::Read,
    ArgAccess::Read,
    ArgAccess::Read,
    ArgAccess::Write,
    ArgAccess::Read,
    ArgAccess::Read,
];
const KEYED_CODED_ARGS: &[ArgAccess] = &[
    ArgAccess::Read,
    ArgAccess::Read,
    ArgAccess::Read,
    ArgAccess::Write,
    ArgAccess::Read,
    ArgAccess::Read,
    ArgAccess::Read,
];
const KEYED_GRID: &str = portable!("dequant/grid_7.wgsl");
/// Declares a batched GEMV kernel in which each activation row has its own expert index.
macro_rules! of_keyed {
    ($kernel:ident $label:literal, $args:expr, [$($piece:expr),*], $names:expr) => {
        pub(in crate::lowerings::matmul) static $kernel: TypedKernel<MatMulParams> = TypedKernel::wgsl(
            $label,
            &[PRELUDE, SHARED, KEYS, ROW_WORDS, PLAIN, FLOATS, GEMV, TILE, GAINS, PROLOGUE, $($piece),*],
            $args,
            names![OF_SUMS, $names, OF_ROWS],
        );
    };
}

of_keyed!(KEYED_WIDE "gemv_wide_keyed", KEYED_ARGS, [portable!("matmul/gemv_wide.wgsl")], &["B_TYPE"]);
of_keyed!(KEYED_WORDS "gemv_packed_keyed", KEYED_ARGS, [BLOCKS, WORDS, PIECES, GEMV_PACKED], OF_GROUPS);
of_keyed!(
    KEYED_QUADS "gemv_packed_wide_keyed",
    KEYED_ARGS,
    [BLOCKS, QUADS, PIECES, GEMV_PACKED],
    OF_GROUPS
);
of_keyed!(
    KEYED_CODED "gemv_coded_keyed",
    KEYED_CODED_ARGS,
    [CODED, KEYED_GRID, WORDS, PIECES_CODED, GEMV_PACKED],
    &BLOCK_CONSTS
);

//! Products of one row side by side, each with a matrix of its own, which a key numbers.

use super::{
    BLOCK_CONSTS, BLOCKS, CODED, FLOATS, GAINS, GEMV, GEMV_PACKED, OF_GROUPS, OF_ROWS, OF_SUMS,
    PIECES, PIECES_CODED, PLAIN, PRELUDE, PROLOGUE, ProductParams, QUADS, SHARED, TILE, WORDS,
};
use crate::families::portable;
use crate::kernel::{Access, Kernel, names};

const KEYS: &str = portable!("matmul/keyed.wgsl");
const ROW_WORDS: &str = portable!("matmul/words.wgsl");
/// [`ROW_ARGS`] with the keys of rows, and with the rows of a codebook behind them.
const KEYED_ARGS: &[Access] = &[
    Access::Read,
    Access::Read,
    Access::Read,
    Access::Write,
    Access::Read,
    Access::Read,
];
const KEYED_CODED_ARGS: &[Access] = &[
    Access::Read,
    Access::Read,
    Access::Read,
    Access::Write,
    Access::Read,
    Access::Read,
    Access::Read,
];
const KEYED_GRID: &str = portable!("dequant/grid_7.wgsl");
/// Rows with matrices of their own.
macro_rules! of_keyed {
    ($kernel:ident $label:literal, $args:expr, [$($piece:expr),*], $names:expr) => {
        pub(in crate::families::matmul) static $kernel: Kernel<ProductParams> = Kernel::wgsl(
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

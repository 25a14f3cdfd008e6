//! Tiles of F32 that products of pairs of F16 have left (`matmul/pairs.rs`), once with short functions of a sum and once with
//! all.

use super::{B_WORDS, FLOATS, GEMM, GEMM_FLOATS, OPERANDS, ProductParams, ROW_ARGS};
use crate::families::portable;
use crate::families::sums::{ACTIVATED, OF_SUMS, PLAIN, with_functions};
use crate::kernel::{Kernel, names};
use crate::scalar::PRELUDE;

const LEFT: &str = portable!("matmul/left_tiles.wgsl");
const CONSTS: &[&str] = names![
    OF_SUMS,
    &[
        "B_TYPE",
        "SIDE",
        "WIDE",
        "A_ALONG",
        "B_ALONG",
        "LEFT_ROWS",
        "LEFT_COLUMNS"
    ],
];

/// The operands, the bias, results, and the tiles that are left.
pub(in crate::families::matmul) static GEMM_REST: Kernel<ProductParams> = Kernel::wgsl(
    "gemm_rest",
    &[
        PRELUDE,
        OPERANDS,
        PLAIN,
        FLOATS,
        B_WORDS,
        LEFT,
        GEMM,
        GEMM_FLOATS,
    ],
    ROW_ARGS,
    CONSTS,
);

/// The same with functions of a sum.
pub(in crate::families::matmul) static GEMM_REST_ACTIVATED: Kernel<ProductParams> = Kernel::wgsl(
    "gemm_rest_activated",
    with_functions![
        OPERANDS,
        ACTIVATED,
        FLOATS,
        B_WORDS,
        LEFT,
        GEMM,
        GEMM_FLOATS
    ],
    ROW_ARGS,
    CONSTS,
);

//! F32 fallback tiles of the split-F16 GEMM (`matmul/split_f16.rs`), in two versions: with
//! activation functions of little code only, and with all activation functions.

use super::{B_WORDS, FLOATS, GEMM, GEMM_FLOATS, MatMulParams, OPERANDS, ROW_ARGS};
use crate::lowerings::portable;
use crate::lowerings::sums::{ACTIVATED, OF_SUMS, PLAIN, with_functions};
use crate::scalar::PRELUDE;
use tercet_program::{TypedKernel, kernel_names as names};

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

/// Kernel of the F32 fallback tiles, with activation functions of little code, such as ReLU.
/// Arguments: operands, bias, results, and the flags that tell which tiles the kernel computes.
pub(in crate::lowerings::matmul) static GEMM_REST: TypedKernel<MatMulParams> = TypedKernel::wgsl(
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

/// Kernel of the F32 fallback tiles, with all activation functions.
pub(in crate::lowerings::matmul) static GEMM_REST_ACTIVATED: TypedKernel<MatMulParams> =
    TypedKernel::wgsl(
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

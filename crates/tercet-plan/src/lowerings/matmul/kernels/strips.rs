//! Kernels of GEMV with weights that are contiguous along n, with and without a fused norm
//! prologue.

use super::{FLOATS, MatMulParams, OPERANDS};
use crate::lowerings::portable;
use crate::lowerings::sums::{ACTIVATED, ARGS, OF_SUMS, PLAIN, with_functions};
use crate::scalar::PRELUDE;
use tercet_program::{ArgAccess, TypedKernel, kernel_names as names};

pub(in crate::lowerings::matmul) static STRIPS_PLAIN: TypedKernel<MatMulParams> = TypedKernel::wgsl(
    "gemv_strips",
    &[PRELUDE, OPERANDS, PLAIN, FLOATS, STRIPS_ROW, STRIPS],
    ARGS,
    STRIPS_CONSTS,
);
pub(in crate::lowerings::matmul) static STRIPS_ACTIVATED: TypedKernel<MatMulParams> =
    TypedKernel::wgsl(
        "gemv_strips_activated",
        with_functions![OPERANDS, ACTIVATED, FLOATS, STRIPS_ROW, STRIPS],
        ARGS,
        STRIPS_CONSTS,
    );

const STRIPS_ROW: &str = concat!(
    portable!("cluster.wgsl"),
    portable!("matmul/strips_plain.wgsl")
);
const STRIPS_CONSTS: &[&str] = names![OF_SUMS, &["B_TYPE", "LANES", "DEPTH"]];
const STRIPS: &str = portable!("matmul/gemv_strips.wgsl");
/// WGSL source of the norm prologue, which normalizes the activation row.
const STRIPS_NORM: &str = concat!(
    portable!("cluster.wgsl"),
    portable!("rows.wgsl"),
    portable!("row_floats.wgsl"),
    portable!("norm_scale.wgsl"),
    portable!("norm_value.wgsl"),
    portable!("matmul/strips_normed.wgsl")
);
const STRIPS_NORM_CONSTS: &[&str] = names![
    OF_SUMS,
    &[
        "B_TYPE", "LANES", "DEPTH", "THREADS", "ACROSS", "RMS", "BETA", "RESIDUAL", "LENGTH"
    ],
];
/// Arguments: [`ARGS`], the norm's gains and beta, the residual that is added to the activation
/// row, and the resulting sum.
const STRIPS_NORM_ARGS: &[ArgAccess] = &[
    ArgAccess::Read,
    ArgAccess::Read,
    ArgAccess::Read,
    ArgAccess::Write,
    ArgAccess::Read,
    ArgAccess::Read,
    ArgAccess::Read,
    ArgAccess::Write,
];

/// Kernel of GEMV with weights that are contiguous along n and a fused norm prologue.
pub(in crate::lowerings::matmul) static STRIPS_NORMED_PLAIN: TypedKernel<MatMulParams> =
    TypedKernel::wgsl(
        "gemv_strips_normed",
        &[PRELUDE, OPERANDS, PLAIN, FLOATS, STRIPS_NORM, STRIPS],
        STRIPS_NORM_ARGS,
        STRIPS_NORM_CONSTS,
    );
pub(in crate::lowerings::matmul) static STRIPS_NORMED_ACTIVATED: TypedKernel<MatMulParams> =
    TypedKernel::wgsl(
        "gemv_strips_normed_activated",
        with_functions![OPERANDS, ACTIVATED, FLOATS, STRIPS_NORM, STRIPS],
        STRIPS_NORM_ARGS,
        STRIPS_NORM_CONSTS,
    );

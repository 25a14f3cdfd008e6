//! Products of one row with weights that lie along n, and the same with the norm that the row comes from.

use super::{FLOATS, OPERANDS, ProductParams};
use crate::families::portable;
use crate::families::sums::{ACTIVATED, ARGS, OF_SUMS, PLAIN, with_functions};
use crate::kernel::{Access, Kernel, names};
use crate::scalar::PRELUDE;

pub(in crate::families::matmul) static STRIPS_PLAIN: Kernel<ProductParams> = Kernel::wgsl(
    "gemv_strips",
    &[PRELUDE, OPERANDS, PLAIN, FLOATS, STRIPS_ROW, STRIPS],
    ARGS,
    STRIPS_CONSTS,
);
pub(in crate::families::matmul) static STRIPS_ACTIVATED: Kernel<ProductParams> = Kernel::wgsl(
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
/// The row as a norm leaves it.
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
/// [`ARGS`], gains, beta, what is added to the row, and the sum.
const STRIPS_NORM_ARGS: &[Access] = &[
    Access::Read,
    Access::Read,
    Access::Read,
    Access::Write,
    Access::Read,
    Access::Read,
    Access::Read,
    Access::Write,
];

/// The same with the norm that the row comes from.
pub(in crate::families::matmul) static STRIPS_NORMED_PLAIN: Kernel<ProductParams> = Kernel::wgsl(
    "gemv_strips_normed",
    &[PRELUDE, OPERANDS, PLAIN, FLOATS, STRIPS_NORM, STRIPS],
    STRIPS_NORM_ARGS,
    STRIPS_NORM_CONSTS,
);
pub(in crate::families::matmul) static STRIPS_NORMED_ACTIVATED: Kernel<ProductParams> =
    Kernel::wgsl(
        "gemv_strips_normed_activated",
        with_functions![OPERANDS, ACTIVATED, FLOATS, STRIPS_NORM, STRIPS],
        STRIPS_NORM_ARGS,
        STRIPS_NORM_CONSTS,
    );

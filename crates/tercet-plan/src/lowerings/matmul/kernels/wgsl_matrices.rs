//! GEMM kernels on cooperative matrices that WGSL loads and multiplies: one for each kind of
//! fragments and of right operands.

use super::{
    B_QUADS_HALF, B_QUADS_PACKED, B_QUADS_WIDE, B_WORDS, CODED_ARGS, GRID, MatMulParams,
    OF_BATCHES, SHARED,
};
use crate::lowerings::dequant::{BLOCK_CONSTS, BLOCKS, CODED};
use crate::lowerings::portable;
use crate::lowerings::sums::{ACTIVATED, ARGS, OF_SUMS, PLAIN, SUMS};
use crate::scalar::{PRELUDE, WgslHelper};
use tercet_program::{TypedKernel, kernel_names as names};

/// Names of the constants of `coop_tiles.wgsl`.
const OF_TILES: &[&str] = &[
    "DOWN", "ACROSS", "FRAGS_M", "FRAGS_N", "DEPTH", "SUBGROUP", "PARTS",
];

const ENABLE_HALF: &str = portable!("matmul/coop_enable_half.wgsl");
const ENABLE_WIDE: &str = portable!("matmul/coop_enable_wide.wgsl");
const HALF_16: &str = portable!("matmul/coop_half_16.wgsl");
const HALF_8: &str = portable!("matmul/coop_half_8.wgsl");
const WIDE_8: &str = portable!("matmul/coop_wide_8.wgsl");
const A_HALF: &str = portable!("matmul/coop_a_half.wgsl");
const A_WIDE: &str = portable!("matmul/coop_a_wide.wgsl");
const B_HALF: &str = portable!("matmul/coop_b_half.wgsl");
/// Converts the vectors of another fragment to staged elements.
const B_QUADS: &str = portable!("matmul/coop_b_quads.wgsl");
const TILES: &str = concat!(
    portable!("matmul/coop_y.wgsl"),
    portable!("matmul/coop_tiles.wgsl")
);

/// The kernels with one kind of fragments.
pub(in crate::lowerings::matmul) struct WgslKernels {
    /// Operands of the type of the fragments.
    pub(in crate::lowerings::matmul) plain: &'static TypedKernel<MatMulParams>,
    /// The same, with all activation functions.
    pub(in crate::lowerings::matmul) activated: &'static TypedKernel<MatMulParams>,
    /// F32 rows and 16-bit weights.
    pub(in crate::lowerings::matmul) mixed: Option<&'static TypedKernel<MatMulParams>>,
    /// Quantized weights in integer formats.
    pub(in crate::lowerings::matmul) packed: &'static TypedKernel<MatMulParams>,
    /// Quantized weights in codebook and float formats.
    pub(in crate::lowerings::matmul) coded: &'static TypedKernel<MatMulParams>,
}

/// Declares a kernel with activation functions of little code only.
macro_rules! of_matrices {
    ($kernel:ident $label:literal, $args:expr, [$enable:expr, $($piece:expr),*], $names:expr) => {
        pub(super) static $kernel: TypedKernel<MatMulParams> = TypedKernel::wgsl(
            $label,
            &[$enable, PRELUDE, SHARED, OF_BATCHES, PLAIN, SUMS, $($piece),*, TILES],
            $args,
            names![OF_SUMS, $names, OF_TILES],
        );
    };
}

/// Declares a kernel with all activation functions.
macro_rules! of_matrices_activated {
    ($kernel:ident $label:literal, [$enable:expr, $($piece:expr),*]) => {
        pub(super) static $kernel: TypedKernel<MatMulParams> = TypedKernel::wgsl(
            $label,
            &[
                $enable,
                PRELUDE,
                WgslHelper::Base.text(),
                WgslHelper::Exp.text(),
                WgslHelper::Log.text(),
                WgslHelper::Softplus.text(),
                WgslHelper::Hyperbolic.text(),
                WgslHelper::Tail.text(),
                WgslHelper::Gate.text(),
                WgslHelper::Erf.text(),
                SHARED,
                OF_BATCHES,
                ACTIVATED,
                SUMS,
                $($piece),*,
                TILES
            ],
            ARGS,
            names![OF_SUMS, &["B_ALONG"], OF_TILES],
        );
    };
}

of_matrices!(
    HALF_16_PLAIN "gemm_coop_wgsl_half_16", ARGS,
    [ENABLE_HALF, HALF_16, A_HALF, B_HALF],
    &["B_ALONG"]
);
of_matrices_activated!(
    HALF_16_ACTIVATED "gemm_coop_wgsl_half_16_activated",
    [ENABLE_HALF, HALF_16, A_HALF, B_HALF]
);
of_matrices!(
    HALF_16_PACKED "gemm_coop_wgsl_half_16_packed", ARGS,
    [ENABLE_HALF, HALF_16, A_HALF, B_WORDS, BLOCKS, B_QUADS_PACKED, B_QUADS],
    &BLOCK_CONSTS
);
of_matrices!(
    HALF_16_CODED "gemm_coop_wgsl_half_16_coded", CODED_ARGS,
    [ENABLE_HALF, HALF_16, A_HALF, B_WORDS, CODED, GRID, B_QUADS_PACKED, B_QUADS],
    &BLOCK_CONSTS
);
of_matrices!(
    HALF_8_PLAIN "gemm_coop_wgsl_half_8", ARGS,
    [ENABLE_HALF, HALF_8, A_HALF, B_HALF],
    &["B_ALONG"]
);
of_matrices_activated!(
    HALF_8_ACTIVATED "gemm_coop_wgsl_half_8_activated",
    [ENABLE_HALF, HALF_8, A_HALF, B_HALF]
);
of_matrices!(
    HALF_8_PACKED "gemm_coop_wgsl_half_8_packed", ARGS,
    [ENABLE_HALF, HALF_8, A_HALF, B_WORDS, BLOCKS, B_QUADS_PACKED, B_QUADS],
    &BLOCK_CONSTS
);
of_matrices!(
    HALF_8_CODED "gemm_coop_wgsl_half_8_coded", CODED_ARGS,
    [ENABLE_HALF, HALF_8, A_HALF, B_WORDS, CODED, GRID, B_QUADS_PACKED, B_QUADS],
    &BLOCK_CONSTS
);
of_matrices!(
    WIDE_8_PLAIN "gemm_coop_wgsl_wide_8", ARGS,
    [ENABLE_WIDE, WIDE_8, A_WIDE, B_QUADS_WIDE, B_QUADS],
    &["B_ALONG"]
);
of_matrices_activated!(
    WIDE_8_ACTIVATED "gemm_coop_wgsl_wide_8_activated",
    [ENABLE_WIDE, WIDE_8, A_WIDE, B_QUADS_WIDE, B_QUADS]
);
of_matrices!(
    WIDE_8_MIXED "gemm_coop_wgsl_wide_8_mixed", ARGS,
    [ENABLE_WIDE, WIDE_8, A_WIDE, B_QUADS_HALF, B_QUADS],
    &["B_ALONG", "B_TYPE"]
);
of_matrices!(
    WIDE_8_PACKED "gemm_coop_wgsl_wide_8_packed", ARGS,
    [ENABLE_WIDE, WIDE_8, A_WIDE, B_WORDS, BLOCKS, B_QUADS_PACKED, B_QUADS],
    &BLOCK_CONSTS
);
of_matrices!(
    WIDE_8_CODED "gemm_coop_wgsl_wide_8_coded", CODED_ARGS,
    [ENABLE_WIDE, WIDE_8, A_WIDE, B_WORDS, CODED, GRID, B_QUADS_PACKED, B_QUADS],
    &BLOCK_CONSTS
);

/// F16 fragments of 16 x 16.
pub(in crate::lowerings::matmul) static HALVES_OF_16: WgslKernels = WgslKernels {
    plain: &HALF_16_PLAIN,
    activated: &HALF_16_ACTIVATED,
    mixed: None,
    packed: &HALF_16_PACKED,
    coded: &HALF_16_CODED,
};

/// F16 fragments of 8 x 8.
pub(in crate::lowerings::matmul) static HALVES_OF_8: WgslKernels = WgslKernels {
    plain: &HALF_8_PLAIN,
    activated: &HALF_8_ACTIVATED,
    mixed: None,
    packed: &HALF_8_PACKED,
    coded: &HALF_8_CODED,
};

/// F32 fragments of 8 x 8.
pub(in crate::lowerings::matmul) static FLOATS_OF_8: WgslKernels = WgslKernels {
    plain: &WIDE_8_PLAIN,
    activated: &WIDE_8_ACTIVATED,
    mixed: Some(&WIDE_8_MIXED),
    packed: &WIDE_8_PACKED,
    coded: &WIDE_8_CODED,
};

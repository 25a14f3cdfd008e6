//! Kernels of convolutions.

use super::windows::WindowParams;
use crate::lowerings::portable;
use crate::lowerings::sums::{ACTIVATED, ARGS, OF_SUMS, PLAIN, SUMS, with_functions};
use crate::scalar::PRELUDE;
use tercet_program::{ArgAccess, KernelDef, ParamBlock, TypedKernel, kernel_names as names};

crate::params! {
    /// Parameter block of `conv/conv_finish.wgsl`.
    pub struct ConvFinishParams {
        count: U32,
        channels: U32,
        windows: U32,
        sums_part: U32,
        sums_entry: U32,
        sums_channel: U32,
        bias_offset: U32,
        bias_row: U32,
        bias_stride: U32,
        zero: U32,
    }
}

const WINDOWS: &str = portable!("conv/windows.wgsl");
const OPERANDS: &str = concat!(
    portable!("conv/windows.wgsl"),
    portable!("conv/operands.wgsl")
);
/// WGSL fragments of the tiled implicit GEMM for convolutions.
const TILES: &str = concat!(
    portable!("matmul/quad_tiles.wgsl"),
    portable!("conv/conv_gemm.wgsl")
);

/// WGSL fragments of the tiled GEMM for convolution weight gradients.
const WEIGHT_TILES: &str = concat!(
    portable!("matmul/quad_tiles.wgsl"),
    portable!("conv/conv_weights.wgsl")
);

/// Two versions of a convolution kernel: `plain` supports only short activation functions such as
/// ReLU, `activated` supports all activation functions.
pub(super) struct ConvEpilogueKernels<P: ParamBlock> {
    plain: TypedKernel<P>,
    activated: TypedKernel<P>,
}

impl<P: ParamBlock> ConvEpilogueKernels<P> {
    /// Returns the version with all activation functions if `activated`, otherwise the one with
    /// activation functions of few instructions only.
    pub(super) fn pick(&'static self, activated: bool) -> &'static TypedKernel<P> {
        match activated {
            true => &self.activated,
            false => &self.plain,
        }
    }
}

/// `pair!("name", "name_activated", [pieces], ARGS, ["CONSTANT"])`: defines both versions of a
/// kernel, each with its activation fragments first.
macro_rules! pair {
    ($plain:literal, $activated:literal, [$($piece:expr),*], $args:expr, [$($name:literal),*]) => {
        ConvEpilogueKernels {
            plain: TypedKernel::wgsl(
                $plain,
                &[PRELUDE, PLAIN, SUMS, $($piece),*],
                $args,
                names![OF_SUMS, &[$($name),*]],
            ),
            activated: TypedKernel::wgsl(
                $activated,
                with_functions![ACTIVATED, SUMS, $($piece),*],
                $args,
                names![OF_SUMS, &[$($name),*]],
            ),
        }
    };
}

/// Width of the loads with which a kernel reads convolution weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConvWeightLoad {
    Words,
    Quads,
    HalfQuads,
}

/// The kernels of the tiled implicit GEMM, one per width of weight loads.
pub(super) struct WindowGemmKernels {
    words: ConvEpilogueKernels<WindowParams>,
    quads: ConvEpilogueKernels<WindowParams>,
    half_quads: ConvEpilogueKernels<WindowParams>,
}

impl WindowGemmKernels {
    pub(super) fn pick(
        &'static self,
        weights: ConvWeightLoad,
        activated: bool,
    ) -> &'static TypedKernel<WindowParams> {
        let pair = match weights {
            ConvWeightLoad::Words => &self.words,
            ConvWeightLoad::Quads => &self.quads,
            ConvWeightLoad::HalfQuads => &self.half_quads,
        };
        pair.pick(activated)
    }
}

pub(super) static GEMM: WindowGemmKernels = WindowGemmKernels {
    words: pair!(
        "conv_gemm",
        "conv_gemm_activated",
        [OPERANDS, portable!("conv/w_words.wgsl"), TILES],
        ARGS,
        ["AXES", "KD", "KH", "KW", "TM", "TN", "PARTS"]
    ),
    quads: pair!(
        "conv_gemm_quads",
        "conv_gemm_quads_activated",
        [OPERANDS, portable!("conv/w_quads.wgsl"), TILES],
        ARGS,
        ["AXES", "KD", "KH", "KW", "TM", "TN", "PARTS"]
    ),
    half_quads: pair!(
        "conv_gemm_half",
        "conv_gemm_half_activated",
        [OPERANDS, portable!("conv/w_quads_half.wgsl"), TILES],
        ARGS,
        ["AXES", "KD", "KH", "KW", "TM", "TN", "PARTS"]
    ),
};

/// The kernels of the tiled weight gradient, one per width of loads from the result's gradient
/// (cotangent).
pub(super) struct WeightGradGemmKernels {
    pub(super) words: TypedKernel<WindowParams>,
    pub(super) quads: TypedKernel<WindowParams>,
    pub(super) half_quads: TypedKernel<WindowParams>,
}

impl WeightGradGemmKernels {
    pub(super) fn pick(&'static self, read: ConvWeightLoad) -> &'static TypedKernel<WindowParams> {
        match read {
            ConvWeightLoad::Words => &self.words,
            ConvWeightLoad::Quads => &self.quads,
            ConvWeightLoad::HalfQuads => &self.half_quads,
        }
    }
}

/// `weight_tiles!("name", PIECE)`: the weight-gradient kernel with `PIECE` as the fragment that
/// reads four adjacent elements of the result's gradient.
macro_rules! weight_tiles {
    ($name:literal, $quads:expr) => {
        TypedKernel::wgsl(
            $name,
            &[PRELUDE, PLAIN, SUMS, OPERANDS, $quads, WEIGHT_TILES],
            ARGS,
            names![OF_SUMS, &["AXES", "KD", "KH", "KW", "TM", "TN", "PARTS"]],
        )
    };
}

pub(super) static WEIGHTS: WeightGradGemmKernels = WeightGradGemmKernels {
    words: weight_tiles!("conv_weights", portable!("conv/w_words.wgsl")),
    quads: weight_tiles!("conv_weights_quads", portable!("conv/w_quads.wgsl")),
    half_quads: weight_tiles!("conv_weights_half", portable!("conv/w_quads_half.wgsl")),
};

pub(super) static DEPTHWISE: ConvEpilogueKernels<WindowParams> = pair!(
    "conv_depthwise",
    "conv_depthwise_activated",
    [OPERANDS, portable!("conv/conv_depthwise.wgsl")],
    ARGS,
    ["AXES", "KD", "KH", "KW", "STRIDE", "NEAR", "SPAN"]
);

/// Adds split-K partial sums in F32, applies bias and activation, and rounds to the result dtype.
pub(super) static FINISH: ConvEpilogueKernels<ConvFinishParams> = pair!(
    "conv_finish",
    "conv_finish_activated",
    [portable!("conv/conv_finish.wgsl")],
    &[ArgAccess::Read, ArgAccess::Read, ArgAccess::Write],
    ["PARTS"]
);

/// im2col: copies each window to a column of a matrix, bit by bit for any dtype.
pub(super) static IM2COL: TypedKernel<WindowParams> = TypedKernel::wgsl(
    "im2col",
    &[PRELUDE, WINDOWS, portable!("conv/im2col.wgsl")],
    &[ArgAccess::Read, ArgAccess::Write],
    &["ELEM_BYTES", "AXES", "KD", "KH", "KW"],
);

pub(super) static OF_CONV: &[&KernelDef] = &[
    &GEMM.words.plain.def,
    &GEMM.words.activated.def,
    &GEMM.quads.plain.def,
    &GEMM.quads.activated.def,
    &GEMM.half_quads.plain.def,
    &GEMM.half_quads.activated.def,
    &DEPTHWISE.plain.def,
    &DEPTHWISE.activated.def,
    &FINISH.plain.def,
    &FINISH.activated.def,
    &super::coop::F16.def,
    &super::coop::BF16.def,
];

/// Direct transposed convolution: each thread sums the contributions of all inputs to its result.
pub(super) static DIRECT: TypedKernel<WindowParams> = TypedKernel::wgsl(
    "conv_transpose",
    &[
        PRELUDE,
        PLAIN,
        SUMS,
        OPERANDS,
        portable!("conv/spread.wgsl"),
        portable!("conv/conv_transpose.wgsl"),
    ],
    ARGS,
    names![OF_SUMS, &["AXES", "KD", "KH", "KW"]],
);

/// col2im of a transposed convolution: each thread sums the elements of the matmul's columns that
/// belong to its result.
pub(super) static COL2IM: TypedKernel<WindowParams> = TypedKernel::wgsl(
    "col2im",
    &[
        PRELUDE,
        PLAIN,
        SUMS,
        WINDOWS,
        portable!("conv/spread.wgsl"),
        portable!("conv/col2im.wgsl"),
    ],
    &[ArgAccess::Read, ArgAccess::Read, ArgAccess::Write],
    names![OF_SUMS, &["AXES", "KD", "KH", "KW"]],
);

//! The kernels of convolutions.

use super::windows::WindowParams;
use crate::families::portable;
use crate::families::sums::{ACTIVATED, ARGS, OF_SUMS, PLAIN, SUMS, with_functions};
use crate::kernel::{Access, Kernel, KernelDef, Params, names};
use crate::scalar::PRELUDE;

crate::params! {
    /// The block of `conv/conv_finish.wgsl`.
    pub struct FinishParams {
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
/// The tiled product that gathers windows.
const TILES: &str = concat!(
    portable!("matmul/quad_tiles.wgsl"),
    portable!("conv/conv_gemm.wgsl")
);

/// The same of gradients of weights.
const WEIGHT_TILES: &str = concat!(
    portable!("matmul/quad_tiles.wgsl"),
    portable!("conv/conv_weights.wgsl")
);

/// Two kernels that differ in what functions of a sum they have.
pub(super) struct Pair<P: Params> {
    plain: Kernel<P>,
    activated: Kernel<P>,
}

impl<P: Params> Pair<P> {
    /// The one with long functions, or with short ones.
    pub(super) fn pick(&'static self, activated: bool) -> &'static Kernel<P> {
        match activated {
            true => &self.activated,
            false => &self.plain,
        }
    }
}

/// `pair!("name", "name_activated", [pieces], ARGS, ["CONSTANT"])`: kernels with the pieces of short and of
/// long functions before their own.
macro_rules! pair {
    ($plain:literal, $activated:literal, [$($piece:expr),*], $args:expr, [$($name:literal),*]) => {
        Pair {
            plain: Kernel::wgsl(
                $plain,
                &[PRELUDE, PLAIN, SUMS, $($piece),*],
                $args,
                names![OF_SUMS, &[$($name),*]],
            ),
            activated: Kernel::wgsl(
                $activated,
                with_functions![ACTIVATED, SUMS, $($piece),*],
                $args,
                names![OF_SUMS, &[$($name),*]],
            ),
        }
    };
}

/// How weights are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Weights {
    Words,
    Quads,
    HalfQuads,
}

/// The tiled product that gathers windows, by how weights are read.
pub(super) struct Gemm {
    words: Pair<WindowParams>,
    quads: Pair<WindowParams>,
    half_quads: Pair<WindowParams>,
}

impl Gemm {
    pub(super) fn pick(
        &'static self,
        weights: Weights,
        activated: bool,
    ) -> &'static Kernel<WindowParams> {
        let pair = match weights {
            Weights::Words => &self.words,
            Weights::Quads => &self.quads,
            Weights::HalfQuads => &self.half_quads,
        };
        pair.pick(activated)
    }
}

pub(super) static GEMM: Gemm = Gemm {
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

/// The tiled product of gradients of weights, by how the cotangent is read.
pub(super) struct WeightTiles {
    pub(super) words: Kernel<WindowParams>,
    pub(super) quads: Kernel<WindowParams>,
    pub(super) half_quads: Kernel<WindowParams>,
}

impl WeightTiles {
    pub(super) fn pick(&'static self, read: Weights) -> &'static Kernel<WindowParams> {
        match read {
            Weights::Words => &self.words,
            Weights::Quads => &self.quads,
            Weights::HalfQuads => &self.half_quads,
        }
    }
}

/// `weight_tiles!("name", PIECE)`: with the piece that reads quads of the cotangent.
macro_rules! weight_tiles {
    ($name:literal, $quads:expr) => {
        Kernel::wgsl(
            $name,
            &[PRELUDE, PLAIN, SUMS, OPERANDS, $quads, WEIGHT_TILES],
            ARGS,
            names![OF_SUMS, &["AXES", "KD", "KH", "KW", "TM", "TN", "PARTS"]],
        )
    };
}

pub(super) static WEIGHTS: WeightTiles = WeightTiles {
    words: weight_tiles!("conv_weights", portable!("conv/w_words.wgsl")),
    quads: weight_tiles!("conv_weights_quads", portable!("conv/w_quads.wgsl")),
    half_quads: weight_tiles!("conv_weights_half", portable!("conv/w_quads_half.wgsl")),
};

pub(super) static DEPTHWISE: Pair<WindowParams> = pair!(
    "conv_depthwise",
    "conv_depthwise_activated",
    [OPERANDS, portable!("conv/conv_depthwise.wgsl")],
    ARGS,
    ["AXES", "KD", "KH", "KW", "STRIDE", "NEAR", "SPAN"]
);

/// Bias, function and rounding of F32 sums, in parts or whole.
pub(super) static FINISH: Pair<FinishParams> = pair!(
    "conv_finish",
    "conv_finish_activated",
    [portable!("conv/conv_finish.wgsl")],
    &[Access::Read, Access::Read, Access::Write],
    ["PARTS"]
);

/// Windows as columns, by bits.
pub(super) static IM2COL: Kernel<WindowParams> = Kernel::wgsl(
    "im2col",
    &[PRELUDE, WINDOWS, portable!("conv/im2col.wgsl")],
    &[Access::Read, Access::Write],
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

/// Sums of transposed convolutions, each by itself.
pub(super) static DIRECT: Kernel<WindowParams> = Kernel::wgsl(
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

/// Sums of the columns of transposed convolutions.
pub(super) static COL2IM: Kernel<WindowParams> = Kernel::wgsl(
    "col2im",
    &[
        PRELUDE,
        PLAIN,
        SUMS,
        WINDOWS,
        portable!("conv/spread.wgsl"),
        portable!("conv/col2im.wgsl"),
    ],
    &[Access::Read, Access::Read, Access::Write],
    names![OF_SUMS, &["AXES", "KD", "KH", "KW"]],
);

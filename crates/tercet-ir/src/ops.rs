//! The operators, one file per operator or per group with one signature; the list below generates
//! the closed [`Op`] enum.
//!
//! To add an operator, write a file with the struct (declared by [`attrs!`](crate::attrs)), its
//! [`OpSpec`] and its builder method on [`Graph`](crate::Graph), and add a line to the list. Its
//! test cases are a text file of the crate `tercet-cases`.

use tercet_tensor::{Tensor, TensorType, Type};

use crate::attr::{AttrError, AttrLiteral, Attrs};
use crate::error::{EvalError, TypeError};
use crate::grad::{GradientKind, Vjp, VjpResult};
use crate::interp::check_room;
use crate::op::{EvalCtx, OpDoc, OpSpec};

mod arg_extreme;
mod attention;
mod binary;
pub(crate) mod blocks;
mod cast;
mod causal_conv;
mod channel_norm;
mod clamp;
mod compare;
mod concat;
mod contract;
mod control;
mod conv;
mod conv_transpose;
mod conv_weight_grad;
mod cumsum;
mod custom;
mod dequant;
mod dequant_grouped;
mod dot_general;
mod dynamic_slice;
mod expand;
pub(crate) mod fft;
mod fma;
mod gated_delta_net;
mod gather;
mod gather_elements;
mod gather_nd;
mod grad_markers;
mod grouped_matmul;
mod im2col;
mod layers;
mod leaf;
mod linear;
pub(crate) mod log_mel;
mod lora_matmul;
mod map;
mod matmul;
mod non_max_suppression;
mod non_zero;
mod norm;
mod one_hot;
mod pad;
mod philox;
mod pool;
mod quantized_conv;
mod recurrence;
mod reduce;
mod reshape;
mod residual_norm;
pub(crate) mod resize;
mod rfft;
mod rng;
pub(crate) mod rnn;
mod roll;
mod rope;
mod sample;
mod scatter;
mod search_sorted;
mod select;
mod selective_scan;
mod slice;
mod softmax;
mod sort;
#[cfg(feature = "splat")]
pub mod splat;
mod stft;
mod tile;
mod top_k;
mod transpose;
mod trilu;
mod unary;
mod unique;
pub(crate) mod util;
pub(crate) mod welch_peaks;
pub(crate) mod window;

pub use attention::{AttentionGradOf, AttentionLayout, AttentionMask, AttentionOptions, MaskKind};
pub use blocks::{AttentionBlockOptions, BlockRope, LinearWeights, TransformerWeights};
pub use cumsum::ScanFn;
pub use fft::{
    FftNorm, MAX_LENGTH as MAX_FFT_LENGTH, check_run as check_fft_length, root as unit_root,
};
pub use map::{AxisMap, IndexMap, MapArg, MapStep};
pub use pad::PadMode;
pub use pool::PoolFn;
pub use recurrence::RecurrentCell;
pub use reduce::ReduceFn;
pub use reshape::ReshapeTarget;
pub use resize::{
    Coordinates, MAX_RESIZED, MAX_RESIZED_LEN, NearestRounding, ResizeMode, ResizePositions,
    ResizeTaps,
};
pub use rnn::RnnFn;
pub use rope::RopeStyle;
pub use sample::SampleOptions;
pub use scatter::ScatterReduce;
pub use selective_scan::ScanSizes;
pub use slice::SliceAxis;
pub use window::Window;

crate::define_ops! {
    leaf::Input,
    leaf::Param,
    leaf::Const,
    leaf::State,
    unary::Unary,
    binary::Binary,
    compare::Compare,
    select::Where,
    fma::Fma,
    clamp::Clamp,
    cast::Cast,
    map::Map,
    reshape::Reshape,
    transpose::Transpose,
    slice::Slice,
    concat::Concat,
    expand::Expand,
    pad::Pad,
    tile::Tile,
    roll::Roll,
    trilu::Trilu,
    gather::Gather,
    gather_elements::GatherElements,
    gather_nd::GatherNd,
    scatter::ScatterElements,
    scatter::ScatterNd,
    scatter::ScatterAdd,
    one_hot::OneHot,
    dynamic_slice::DynamicSlice,
    dynamic_slice::DynamicUpdateSlice,
    top_k::TopK,
    sort::Sort,
    search_sorted::SearchSorted,
    non_zero::NonZero,
    non_max_suppression::NonMaxSuppression,
    unique::Unique,
    arg_extreme::ArgMax,
    arg_extreme::ArgMin,
    softmax::Softmax,
    softmax::LogSoftmax,
    cumsum::CumSum,
    reduce::Reduce,
    norm::LayerNorm,
    norm::RmsNorm,
    channel_norm::GroupNorm,
    channel_norm::LayerNorm2d,
    channel_norm::BatchNormInference,
    residual_norm::ResidualLayerNorm,
    residual_norm::ResidualRmsNorm,
    matmul::MatMul,
    linear::Linear,
    dot_general::DotGeneral,
    grouped_matmul::GroupedMatMul,
    lora_matmul::LoraMatMul,
    im2col::Im2Col,
    conv::Conv,
    quantized_conv::QuantizedConv,
    conv_transpose::ConvTranspose,
    conv_weight_grad::ConvWeightGrad,
    pool::Pool,
    resize::Resize,
    dequant::Dequantize,
    dequant::DequantMatMul,
    dequant_grouped::DequantGroupedMatMul,
    attention::Attention,
    attention::AttentionWithLse,
    attention::AttentionGrad,
    rope::Rope,
    blocks::AttentionBlock,
    blocks::TransformerLayer,
    philox::Philox,
    custom::Custom,
    rng::RngUniform,
    rng::RngNormal,
    sample::Sample,
    fft::Fft,
    rfft::RFft,
    rfft::IRFft,
    stft::Stft,
    welch_peaks::WelchPeaks,
    log_mel::LogMel,
    causal_conv::CausalConv,
    selective_scan::SelectiveScan,
    selective_scan::Mamba2,
    gated_delta_net::GatedDeltaNet,
    recurrence::Recurrence,
    rnn::Lstm,
    rnn::Gru,
    rnn::Rnn,
    control::If,
    control::While,
    control::Scan,
    grad_markers::StopGradient,
    grad_markers::Checkpoint,
    #[cfg(feature = "splat")]
    splat::GaussianSplatPrepare,
    #[cfg(feature = "splat")]
    splat::GaussianSplatRasterize,
    #[cfg(feature = "splat")]
    splat::GaussianSplatRasterizeGrad,
    #[cfg(feature = "splat")]
    splat::GaussianSplatRender,
}

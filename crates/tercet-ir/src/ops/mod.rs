//! The operators, one file each or one file per family of one shape; the list below makes the
//! closed [`Op`] enum.
//!
//! To add an operator: its file, with the struct (by [`attrs!`](crate::attrs)), its [`OpSpec`] and
//! its builder method on [`Graph`](crate::Graph), and a line in the list.

use crate::attr::{AttrError, Attrs, Literal};
use crate::case::{Case, Reject};
use crate::error::{EvalError, TypeError};
use crate::op::{Doc, EvalCtx, OpSpec};
use crate::tensor::Tensor;
use crate::types::{TensorType, Type};

mod arg_extreme;
mod attention;
mod binary;
mod cast;
mod clamp;
mod compare;
mod concat;
mod contract;
mod cumsum;
mod dequant;
mod dot_general;
mod dynamic_slice;
mod expand;
pub(crate) mod fft;
mod fma;
mod gated_delta_net;
mod gather;
mod leaf;
mod linear;
pub(crate) mod log_mel;
mod log_softmax;
mod map;
mod matmul;
mod norm;
mod pad;
mod recurrence;
mod reduce;
mod reshape;
mod residual_norm;
mod rfft;
mod rng;
pub(crate) mod rnn;
mod rope;
mod sample;
mod select;
mod selective_scan;
mod slice;
mod softmax;
mod stft;
#[cfg(test)]
mod tests;
mod top_k;
mod transpose;
mod unary;
pub(crate) mod util;
pub(crate) mod welch_peaks;

pub use attention::{AttentionMask, AttentionOptions, Layout, MaskKind};
pub use cumsum::ScanFn;
pub use fft::{FftNorm, root as unit_root};
pub use map::{AxisMap, IndexMap, MapArg, MapStep};
pub use pad::PadMode;
pub use recurrence::Cell;
pub use reduce::ReduceFn;
pub use reshape::NewShape;
pub use rnn::RnnFn;
pub use rope::RopeStyle;
pub use sample::SampleOptions;
pub use selective_scan::ScanSizes;
pub use slice::SliceAxis;

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
    gather::Gather,
    dynamic_slice::DynamicSlice,
    dynamic_slice::DynamicUpdateSlice,
    top_k::TopK,
    arg_extreme::ArgMax,
    arg_extreme::ArgMin,
    softmax::Softmax,
    log_softmax::LogSoftmax,
    cumsum::CumSum,
    reduce::Reduce,
    norm::LayerNorm,
    norm::RmsNorm,
    residual_norm::ResidualLayerNorm,
    residual_norm::ResidualRmsNorm,
    matmul::MatMul,
    linear::Linear,
    dot_general::DotGeneral,
    dequant::Dequantize,
    dequant::DequantMatMul,
    attention::Attention,
    rope::Rope,
    rng::RngUniform,
    rng::RngNormal,
    sample::Sample,
    fft::Fft,
    rfft::RFft,
    rfft::IRFft,
    stft::Stft,
    welch_peaks::WelchPeaks,
    log_mel::LogMel,
    selective_scan::SelectiveScan,
    selective_scan::Mamba2,
    gated_delta_net::GatedDeltaNet,
    recurrence::Recurrence,
    rnn::Lstm,
    rnn::Gru,
    rnn::Rnn,
}

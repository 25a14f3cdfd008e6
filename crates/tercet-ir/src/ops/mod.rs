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
mod conv;
mod conv_transpose;
mod cumsum;
mod dequant;
mod dot_general;
mod dynamic_slice;
mod expand;
mod fma;
mod gather;
mod im2col;
mod layers;
mod leaf;
mod linear;
mod log_softmax;
mod map;
mod matmul;
mod norm;
mod pad;
mod pool;
mod reduce;
mod reshape;
mod residual_norm;
mod resize;
mod rng;
mod rope;
mod sample;
mod select;
mod slice;
mod softmax;
#[cfg(test)]
mod tests;
mod top_k;
mod transpose;
mod unary;
pub(crate) mod util;
pub(crate) mod window;

pub use attention::{AttentionMask, AttentionOptions, Layout, MaskKind};
pub use cumsum::ScanFn;
pub use map::{AxisMap, IndexMap, MapArg, MapStep};
pub use pad::PadMode;
pub use pool::PoolFn;
pub use reduce::ReduceFn;
pub use reshape::NewShape;
pub use resize::{Coordinates, MAX_RESIZED, NearestRounding, ResizeMode, Taps};
pub use rope::RopeStyle;
pub use sample::SampleOptions;
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
    im2col::Im2Col,
    conv::Conv,
    conv_transpose::ConvTranspose,
    pool::Pool,
    resize::Resize,
    dequant::Dequantize,
    dequant::DequantMatMul,
    attention::Attention,
    rope::Rope,
    rng::RngUniform,
    rng::RngNormal,
    sample::Sample,
}

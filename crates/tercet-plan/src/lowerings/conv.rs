//! Lowering of convolutions and `Im2Col`.
//!
//! The number of channels, the dtype and the device determine the algorithm:
//!
//! - one input channel per output channel (depthwise): a direct kernel;
//! - a single window of one element (as in squeeze-and-excitation): a skinny matmul;
//! - 16-bit floats with cooperative matrices: an implicit GEMM that gathers windows during staging.
//!   Such convolutions with many taps per window use im2col, then a matmul into F32 sums, then a
//!   kernel for bias and activation;
//! - F32 with windows of one element and no epilogue: a matmul;
//! - all others: an implicit GEMM on tiles.
//!
//! If an implicit GEMM has too few tiles to fill the device, it uses split-K. A second kernel adds
//! the partial sums and applies bias and activation.
//!
//! Integer convolutions are decomposed. If 16-bit result rows do not start at 32-bit word
//! boundaries, results are computed in F32 and rounded by a separate kernel.
//!
//! Next: `conv/windows.rs` for window sizes, `conv/kernels.rs` for the kernels, `conv/coop.rs` for
//! cooperative matrices.

mod coop;
mod kernels;
mod rows;
mod tiles;
mod transpose;
mod weights;
mod weights_coop;
pub(super) mod windows;

pub(super) use transpose::TRANSPOSES;
pub(super) use weights::WEIGHT_GRADS;

use tercet_ir::ops::{Conv, Im2Col, Op};
use tercet_ir::scalar::UnaryFn;
use tercet_ir::{CompileError, DType, Dim, Graph, Node, OpKind, Support, VariantFamily};

use self::coop::CoopConv;
use self::kernels::{ConvFinishParams, DEPTHWISE, FINISH, IM2COL};
use self::windows::{GpuConvWindows, check_windows_fit, known, product};
use super::matmul::product::activation_code;
use super::matmul::product_into;
use super::{Lowering, always, code, missing};
use crate::caps::{CoopType, DeviceCaps};
use crate::emit::{LoweringCtx, SlotView};
use crate::tuning::TuningKey;
use crate::variant::{self, KernelVariant, needs};
use tercet_program::SlotId;
use tercet_program::SymInt;

/// Lowering of `Im2Col`.
pub(crate) static IM2COLS: Lowering = Lowering {
    name: "im2col",
    ops: &[OpKind::Im2Col],
    kernels: &[&IM2COL.def],
    supports: always,
    lower: lower_columns,
};

/// Lowering of float convolutions.
pub(crate) static CONVS: Lowering = Lowering {
    name: "conv",
    ops: &[OpKind::Conv],
    kernels: kernels::OF_CONV,
    supports,
    lower,
};

/// Number of adjacent windows of a row that one thread of the depthwise kernel computes.
const STRIP: usize = 4;
/// Maximum number of row elements that one thread of the depthwise kernel holds in registers.
const MAX_REGISTER_ELEMENTS: usize = 24;

fn supports(_: &Graph, node: &Node, _: &DeviceCaps) -> Support {
    let Op::Conv(o) = &node.op else {
        unreachable!("invariant: a lowering receives only its own operators")
    };
    if !node.outputs[0].dtype.is_float() {
        return missing("integer convolutions are decomposed to im2col and a matmul");
    }
    match o.activation {
        Some(f) if activation_code(Some(f)).is_none() => {
            missing("the kernels do not support this activation")
        }
        _ => Support::Native,
    }
}

fn lower_columns(e: &mut LoweringCtx<'_>, node: &Node) -> Result<(), CompileError> {
    let Op::Im2Col(op) = &node.op else {
        unreachable!("invariant: a lowering receives only its own operators")
    };
    let x = e.view(node.inputs[0]);
    let y = e.result(0)?;
    let shape = e.graph.ty(node.inputs[0]).shape.to_vec();
    check_windows_fit(e, &op.window(), &op.kernel, &shape);
    columns_into(e, op, shape, &x, &y);
    Ok(())
}

fn columns_into(e: &mut LoweringCtx<'_>, op: &Im2Col, shape: Vec<Dim>, x: &SlotView, y: &SlotView) {
    let ty = tercet_ir::Type::new(x.dtype, shape);
    let out = op.windows(&ty);
    let out = out.unwrap_or_else(|e| unreachable!("invariant: the node was checked: {e}"));
    let windows = GpuConvWindows::new(&op.window(), &op.kernel, out);
    let mut params = windows.params(e, x);
    params.k = e.num(&y.layout.shape()[1]);
    let words = e.words(y.dtype, y.layout.shape());
    let grid = e.grid_of(words, 256);
    let mut consts = vec![x.dtype.size_bytes() as u32];
    consts.extend(windows.consts());
    e.dispatch(&IM2COL, &consts, &[x.slot, y.slot], &params, grid);
}

/// The operands and sizes of the convolution node that is being lowered.
struct ConvProblem<'a> {
    op: &'a Conv,
    windows: GpuConvWindows,
    x: SlotView,
    /// Dense view of the weights.
    w: SlotView,
    bias: Option<SlotView>,
    /// Number of output channels per group, and number of input channels per group.
    m: Dim,
    out_channels_dim: Dim,
    /// Length of the reduction: input channels per group times taps per window.
    k: Dim,
    y: SlotView,
    /// True for a transposed convolution, whose window of a result contains the inputs that
    /// contribute to it. Only the kernels on cooperative matrices support such windows.
    is_spread: bool,
}

fn lower(e: &mut LoweringCtx<'_>, node: &Node) -> Result<(), CompileError> {
    let Op::Conv(op) = &node.op else {
        unreachable!("invariant: a lowering receives only its own operators")
    };
    let x = e.view(node.inputs[0]);
    let w = e.view(node.inputs[1]);
    let w = e.dense(&w)?;
    let bias = node.inputs.get(2).map(|v| e.view(*v));
    let shape = w.layout.shape().to_vec();
    let kernel: Vec<usize> = shape[2..].iter().map(known).collect();
    let groups = Dim::Known(op.groups);
    let m = shape[0].div_exact(&groups);
    let y = e.result(0)?;
    let out = y.layout.shape()[2..].to_vec();
    let given = ConvProblem {
        op,
        windows: GpuConvWindows::new(&op.window(), &kernel, out),
        x,
        m: m.unwrap_or_else(|| unreachable!("invariant: groups divide channels")),
        out_channels_dim: shape[1].clone(),
        k: product(&shape[1..]),
        w,
        bias,
        y,
        is_spread: false,
    };
    let [entries, count, channels, sums] = [
        &given.x.layout.shape()[0],
        &given.windows.count,
        &given.m,
        &given.k,
    ]
    .map(|dim| e.bound(dim));
    let windows = entries?.saturating_mul(count?);
    let taps = given.windows.kernel.iter().product();
    let sizes = [op.groups, channels?, sums?, windows, taps];
    let measured = e
        .caps
        .device
        .tuning
        .find(|| TuningKey::conv(given.x.dtype, sizes));
    variant::run(e, FAMILY_OF_VARIANTS, &variants(), measured, &given)
}

/// Family of the variants of convolutions.
const FAMILY_OF_VARIANTS: &str = "conv";

/// The families of convolutions with the names of their variants.
pub(super) fn families() -> [VariantFamily; 2] {
    [
        variant::family(FAMILY_OF_VARIANTS, &[&variants()]),
        weights::family(),
    ]
}

/// The kernel variants that compete for a convolution, with their conditions and costs.
fn variants<'a>() -> [KernelVariant<ConvProblem<'a>>; 5] {
    const SEVERAL: &str = "several output channels per group";
    [
        KernelVariant {
            name: "depthwise",
            supports: |_, c| needs(c.out_channels_dim.is_one(), "one output channel per group"),
            // Each result takes one multiply-add per tap of its window.
            cost: |e, c| {
                let mut products = e.bound(&c.k)? as f64;
                for dim in c.y.layout.shape() {
                    products *= e.bound(dim)? as f64;
                }
                let units = e.caps.units() as f64;
                Ok(products / (e.caps.device.rates.tiles.per_s * units))
            },
            emit: |e, c| {
                let even = c.y.layout.shape().last().is_some_and(|n| n.twos() > 0);
                c.rounded(e, even, ConvProblem::depthwise)
            },
        },
        rows::variant(),
        KernelVariant {
            name: "matrices",
            supports: |e, c| {
                needs(!c.out_channels_dim.is_one(), SEVERAL)?;
                let what = "16-bit cooperative matrices, at least 16 output channels and reduction length 16, at most 64 taps";
                needs(CoopConv::new(e, c)?.is_some(), what)
            },
            cost: |e, c| Ok(CoopConv::new(e, c)?.map_or(0.0, |coop| coop.seconds(e))),
            emit: |e, c| match CoopConv::new(e, c)? {
                Some(coop) => {
                    e.record_variant_detail(coop.name());
                    coop.dispatch(e, c)
                }
                None => unreachable!("invariant: the variant supports it"),
            },
        },
        KernelVariant {
            name: "product",
            supports: |e, c| {
                needs(!c.out_channels_dim.is_one(), SEVERAL)?;
                let as_they_lie =
                    c.windows.are_elements() && c.has_no_epilogue() && c.y.dtype == DType::F32;
                let what = "cooperative matrices for im2col columns, or F32 single-element windows without epilogue";
                needs(as_they_lie || c.by_matrices(e)?, what)
            },
            // The factor 0.9 estimates how much faster a matmul is than an implicit GEMM, because
            // it gathers no windows.
            cost: |e, c| Ok(tiles::seconds(e, c)? * 0.9),
            emit: |e, c| c.product(e, c.has_no_epilogue()),
        },
        KernelVariant {
            name: "windows",
            supports: |_, c| needs(!c.out_channels_dim.is_one(), SEVERAL),
            cost: |e, c| tiles::seconds(e, c),
            emit: |e, c| c.gathered(e),
        },
    ]
}

impl ConvProblem<'_> {
    /// True if the convolution has no bias and no activation.
    fn has_no_epilogue(&self) -> bool {
        self.bias.is_none() && self.op.activation.is_none()
    }

    /// Emits the tiled WGSL implicit GEMM (without cooperative matrices).
    fn gathered(&self, e: &mut LoweringCtx<'_>) -> Result<(), CompileError> {
        let tiles = tiles::best(e, self)?;
        if tiles.parts > 1 {
            let sums = self.parts(e, tiles.parts)?;
            let none = ConvEpilogueArgs::none(e.temp(DType::U32, &[Dim::Known(1)])?.slot);
            tiles::emit(tiles, e, self, &sums, none);
            return self.finish(e, &sums, PartialSumLayout::SplitK(tiles.parts));
        }
        let even = self.windows.count.twos() > 0;
        self.rounded(e, even, |given, e, y, epilogue| {
            tiles::emit(tiles, e, given, y, epilogue);
        })
    }

    /// Allocates a slot for split-K partial sums: `[part, channel, column]`.
    fn parts(&self, e: &mut LoweringCtx<'_>, parts: u32) -> Result<SlotView, CompileError> {
        let entries = &self.x.layout.shape()[0];
        let channels = &self.y.layout.shape()[1];
        let shape = [
            Dim::Known(parts as usize),
            channels.clone(),
            product(&[entries.clone(), self.windows.count.clone()]),
        ];
        e.temp(DType::F32, &shape)
    }

    /// Maximum split-K factor for which the partial sums fit into a slot.
    fn max_parts(&self, e: &LoweringCtx<'_>) -> Result<u32, CompileError> {
        let mut bytes = e.bound(&self.m)?.saturating_mul(4 * self.op.groups);
        for dim in [&self.x.layout.shape()[0], &self.windows.count] {
            bytes = bytes.saturating_mul(e.bound(dim)?);
        }
        let most = e.caps.max_binding_bytes / 2 / bytes.max(1) as u64;
        Ok(most.min(u64::from(u32::MAX)) as u32)
    }

    /// True if im2col plus a matmul on cooperative matrices is applicable: the dtype is supported,
    /// the matrices are large enough, and the im2col columns are within the binding limit.
    fn by_matrices(&self, e: &LoweringCtx<'_>) -> Result<bool, CompileError> {
        let ty = match self.x.dtype {
            DType::F16 => CoopType::F16,
            DType::BF16 => CoopType::BF16,
            _ => return Ok(false),
        };
        let (m, k) = (e.bound(&self.m)?, e.bound(&self.k)?);
        let mut bytes = k.saturating_mul(2 * self.op.groups);
        for dim in [&self.x.layout.shape()[0], &self.windows.count] {
            bytes = bytes.saturating_mul(e.bound(dim)?);
        }
        let fits = bytes as u64 <= e.caps.max_binding_bytes / 2;
        let has = e.caps.spirv && e.caps.coop.iter().any(|c| c.ty == ty);
        Ok(has && fits && m >= 16 && k >= 16)
    }

    /// Calls `emit` to write sums with bias and activation directly into the result. If the result
    /// must be rounded separately, `emit` writes F32 sums, and a second kernel applies bias and
    /// activation and rounds.
    fn rounded(
        &self,
        e: &mut LoweringCtx<'_>,
        whole_words: bool,
        emit: impl Fn(&Self, &mut LoweringCtx<'_>, &SlotView, ConvEpilogueArgs),
    ) -> Result<(), CompileError> {
        if self.y.dtype == DType::F32 || whole_words {
            let epilogue = self.epilogue(e)?;
            emit(self, e, &self.y, epilogue);
            return Ok(());
        }
        let sums = e.temp(DType::F32, self.y.layout.shape())?;
        let none = ConvEpilogueArgs::none(e.temp(DType::U32, &[Dim::Known(1)])?.slot);
        emit(self, e, &sums, none);
        self.finish(e, &sums, PartialSumLayout::Unsplit)
    }

    fn epilogue(&self, e: &mut LoweringCtx<'_>) -> Result<ConvEpilogueArgs, CompileError> {
        let (bias, offset, stride) = match &self.bias {
            Some(view) => (view.slot, e.offset(view), e.strides(view)[0]),
            // A dummy slot for the absent bias, which the kernel never reads. A new slot is needed,
            // because the kernel binds existing slots under other types.
            None => {
                let slot = e.temp(DType::U32, &[Dim::Known(1)])?.slot;
                (slot, SymInt::ZERO, SymInt::ZERO)
            }
        };
        let activation = activation_code(self.op.activation).unwrap_or(0);
        Ok(ConvEpilogueArgs {
            bias,
            consts: [u32::from(self.bias.is_some()), activation],
            offset,
            stride,
        })
    }

    fn depthwise(&self, e: &mut LoweringCtx<'_>, y: &SlotView, epilogue: ConvEpilogueArgs) {
        let params = self.params(e, &epilogue);
        let [.., taps] = self.windows.kernel;
        let [.., stride] = self.windows.stride;
        let [.., dilation] = self.windows.dilation;
        let span = (STRIP - 1) * stride + taps;
        let near = dilation == 1 && span <= MAX_REGISTER_ELEMENTS;
        let span = if near { span } else { 1 };
        let strips = e.tape().ceil_div(params.out_w, STRIP as u32);
        let lines = [
            params.batch,
            params.groups,
            params.m,
            params.out_d,
            params.out_h,
            strips,
        ];
        let items = super::words::product(e, &lines);
        let grid = e.grid_of(items, 128);
        let mut consts = self.consts(&epilogue, y);
        consts.extend([stride as u32, u32::from(near), span as u32]);
        let args = [self.x.slot, self.w.slot, epilogue.bias, y.slot];
        let kernel = DEPTHWISE.pick(epilogue.activation());
        e.dispatch(kernel, &consts, &args, &params, grid);
    }

    /// Emits im2col, a matmul, and if needed the kernel that applies bias and activation.
    fn product(&self, e: &mut LoweringCtx<'_>, plain: bool) -> Result<(), CompileError> {
        let shape = self.x.layout.shape().to_vec();
        let groups = Dim::Known(self.op.groups);
        let columns = match self.windows.are_elements() {
            true => e.dense(&self.x)?,
            false => {
                let op = Im2Col::new(self.windows.taps(), self.op.window());
                let rows = product(&[groups.clone(), self.k.clone()]);
                let columns = [shape[0].clone(), rows, self.windows.count.clone()];
                let columns = e.temp(self.x.dtype, &columns)?;
                columns_into(e, &op, shape.clone(), &self.x, &columns);
                columns
            }
        };
        let as_shape = |view: &SlotView, dims: &[Dim]| -> SlotView {
            let layout = view.layout.reshape(dims);
            SlotView {
                layout: layout.unwrap_or_else(|| unreachable!("invariant: dense views reshape")),
                ..view.clone()
            }
        };
        let (m, k) = (self.m.clone(), self.k.clone());
        let count = self.windows.count.clone();
        let columns = as_shape(
            &columns,
            &[shape[0].clone(), groups.clone(), k.clone(), count.clone()],
        );
        let w = as_shape(&self.w, &[groups.clone(), m.clone(), k]);
        let dims = [shape[0].clone(), groups, m, count];
        if plain {
            return product_into(e, &w, &columns, &as_shape(&self.y, &dims));
        }
        let sums = e.temp(DType::F32, &dims)?;
        product_into(e, &w, &columns, &sums)?;
        self.finish(e, &sums, PartialSumLayout::Unsplit)
    }

    /// Emits the kernel that adds split-K partial sums, applies bias and activation, and rounds to
    /// the result dtype.
    fn finish(
        &self,
        e: &mut LoweringCtx<'_>,
        sums: &SlotView,
        lie: PartialSumLayout,
    ) -> Result<(), CompileError> {
        let epilogue = self.epilogue(e)?;
        let shape = self.y.layout.shape().to_vec();
        let (entries, channels) = (e.num(&shape[0]), e.num(&shape[1]));
        let windows = e.num(&self.windows.count);
        let tape = e.tape();
        let (parts, entry, channel) = match lie {
            PartialSumLayout::Unsplit => (1, tape.mul(channels, windows), windows),
            PartialSumLayout::SplitK(parts) => (parts, windows, tape.mul(entries, windows)),
        };
        let params = ConvFinishParams {
            count: e.numel(&shape),
            channels,
            windows,
            sums_part: e.numel(&shape),
            sums_entry: entry,
            sums_channel: channel,
            bias_offset: epilogue.offset,
            bias_row: SymInt::ZERO,
            bias_stride: epilogue.stride,
            zero: SymInt::ZERO,
        };
        let words = e.words(self.y.dtype, &shape);
        let grid = e.grid_of(words, 256);
        let [bias, activation] = epilogue.consts;
        let dtypes = [self.x.dtype, self.y.dtype].map(code);
        let consts = [bias, activation, dtypes[0], dtypes[1], parts];
        let args = [sums.slot, epilogue.bias, self.y.slot];
        let kernel = FINISH.pick(epilogue.activation());
        e.dispatch(kernel, &consts, &args, &params, grid);
        Ok(())
    }

    fn params(
        &self,
        e: &mut LoweringCtx<'_>,
        epilogue: &ConvEpilogueArgs,
    ) -> windows::WindowParams {
        let mut params = self.windows.params(e, &self.x);
        params.groups = SymInt::Const(self.op.groups as i64);
        params.m = e.num(&self.m);
        params.k = e.num(&self.k);
        params.channels = e.num(&self.out_channels_dim);
        params.bias_offset = epilogue.offset;
        params.bias_stride = epilogue.stride;
        params
    }

    fn consts(&self, epilogue: &ConvEpilogueArgs, y: &SlotView) -> Vec<u32> {
        let mut consts = epilogue.consts.to_vec();
        consts.extend([code(self.x.dtype), code(y.dtype)]);
        consts.extend(self.windows.consts());
        consts
    }
}

/// Bias and activation of a convolution, as kernel arguments.
#[derive(Clone, Copy)]
struct ConvEpilogueArgs {
    bias: SlotId,
    /// Values of the shader constants `BIAS` and `ACTIVATION`.
    consts: [u32; 2],
    offset: SymInt,
    stride: SymInt,
}

/// Layout of F32 sums to which a separate kernel applies bias and activation.
#[derive(Clone, Copy)]
enum PartialSumLayout {
    /// The sums have the layout of the convolution's result.
    Unsplit,
    /// There are this number of `[channel, column]` matrices of split-K partial sums, which the
    /// separate kernel adds.
    SplitK(u32),
}

impl ConvEpilogueArgs {
    /// Arguments for a kernel that applies no bias and no activation; `bias` is a dummy slot that
    /// the kernel never reads.
    fn none(bias: SlotId) -> ConvEpilogueArgs {
        ConvEpilogueArgs {
            bias,
            consts: [0, 0],
            offset: SymInt::ZERO,
            stride: SymInt::ZERO,
        }
    }

    /// True if the code of the activation function needs further WGSL fragments, as for GELU.
    fn activation(&self) -> bool {
        let short = [UnaryFn::Relu, UnaryFn::Relu6].map(|f| activation_code(Some(f)));
        self.consts[1] > 0 && !short.contains(&Some(self.consts[1]))
    }
}

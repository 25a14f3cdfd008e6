//! Kernels of the fast executor, one file per family of operators, and the one table of them.
//!
//! [`KERNELS`] lists which kernel runs which operator. What [`crate::CpuTarget`] supports is read
//! off this table: the first row of the operator's kind whose `supports` accepts the node runs it.

mod arg_extreme;
pub(crate) mod attention;
mod concat;
pub(crate) mod control;
mod conv;
mod copy;
mod cumsum;
mod dequantize;
mod dynamic_slice;
mod dynamic_update;
mod elem;
mod fft;
mod gated_delta_net;
mod gather;
mod grouped;
mod halves;
mod indexed;
mod int_matmul;
pub(crate) mod last;
mod log_softmax;
mod map;
mod matmul;
mod pad;
mod pool;
mod quant_matmul;
mod quantized_conv;
mod rank;
mod recurrence;
mod reduce;
mod reference_eval;
mod resize;
mod rng;
mod rows;
mod sample;
mod scatter;
mod sort;
#[cfg(feature = "splat")]
mod splat;
#[cfg(feature = "splat")]
mod splat_grad;
mod state_scan;
mod top_k;
mod zeroed;

use tercet_ir::{DType, EvalError, Graph, Node, Op, OpKind, Support, Tier};

use crate::args::{Args, Packed, View};
use attention::grad;
use tercet_ir::layout::{Layout, SymLayout};

pub(crate) use copy::{copy_kernel, copy_view};
pub(crate) use zeroed::{words, zeroed_floats};

/// A kernel call.
pub(crate) type Run = Box<dyn Fn(&mut Args<'_>) -> Result<(), EvalError> + Send + Sync>;

/// Makes [`Packed`] of an operand.
pub(crate) type Pack = Box<dyn Fn(&View<'_>) -> Result<Packed, EvalError> + Send + Sync>;

/// Bytes of scratch memory for operands of these layouts, on this many threads.
pub(crate) type Scratch = Box<dyn Fn(&[Layout], usize) -> usize + Send + Sync>;

/// Which layouts of an operand a kernel reads as they are; others are copied first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Accept {
    /// One element after the other.
    Dense,
    /// Neighbours along the last axis side by side, rows anywhere.
    Rows,
    /// One of the last two axes dense, no axis reversed.
    Matrix,
    /// Any strides.
    Any,
}

impl Accept {
    /// True if a value of this layout needs no copy.
    pub(crate) fn takes(self, layout: &SymLayout) -> bool {
        match self {
            Accept::Dense => layout.is_contiguous(),
            Accept::Rows => layout.has_dense_rows(),
            Accept::Matrix => layout.is_matrix(),
            Accept::Any => true,
        }
    }
}

/// A node made ready to run.
pub(crate) struct Lowered {
    /// The kernel.
    pub(crate) run: Run,
    /// What each operand may look like.
    pub(crate) accepts: Vec<Accept>,
    /// Whether it can fail on its data.
    pub(crate) fallible: bool,
    /// Operands that may share the memory of the first result when this is their last use.
    pub(crate) in_place: Vec<usize>,
    /// Scratch memory, from the layouts of operands and then results.
    pub(crate) scratch: Option<Scratch>,
    /// The operand that is packed once when it is constant.
    pub(crate) pack: Option<(usize, Pack)>,
    /// Rough work in element operations, from the layouts of operands and then results.
    pub(crate) work: fn(&[Layout]) -> usize,
    /// Takes back the writing of a state, from what the kernel saved in its scratch memory.
    pub(crate) undo: Option<Run>,
}

impl Lowered {
    /// A kernel that takes dense operands, cannot fail, and works once per element.
    pub(crate) fn new(
        operands: usize,
        run: impl Fn(&mut Args<'_>) -> Result<(), EvalError> + Send + Sync + 'static,
    ) -> Lowered {
        Lowered {
            run: Box::new(run),
            accepts: vec![Accept::Dense; operands],
            fallible: false,
            in_place: Vec::new(),
            scratch: None,
            pack: None,
            work: |layouts| layouts.iter().map(Layout::numel).max().unwrap_or(0),
            undo: None,
        }
    }
}

/// How a row of the table treats a node.
#[derive(Clone, Copy)]
pub(crate) enum Lower {
    /// A leaf: nothing runs.
    Leaf,
    /// A view of its operand: nothing runs, at most a copy.
    View,
    /// A kernel.
    Kernel(fn(&Graph, &Node) -> Lowered),
    /// A product whose rows may be rounded where that is said ([`tercet_ir::CompileOptions::products`]).
    Product(fn(&Graph, &Node, bool) -> Lowered),
    /// Graphs inside, which become programs of their own.
    Control,
}

/// A row of the kernel table.
pub(crate) struct Kernel {
    /// The name, for plans and errors.
    pub(crate) name: &'static str,
    /// The operator.
    pub(crate) op: OpKind,
    /// Whether it runs this node.
    pub(crate) supports: fn(&Graph, &Node) -> Support,
    /// How.
    pub(crate) lower: Lower,
    /// Computes in f32: F16 and BF16 are converted before and after.
    through_f32: bool,
}

impl Kernel {
    /// What the table's function makes of a node.
    pub(crate) fn make(
        &self,
        lower: impl Fn(&Graph, &Node) -> Lowered,
        graph: &Graph,
        node: &Node,
    ) -> Lowered {
        match self.through_f32 {
            true => halves::lower(lower, graph, node),
            false => lower(graph, node),
        }
    }
}

fn always(_: &Graph, _: &Node) -> Support {
    Support::Native
}

const fn row(name: &'static str, op: OpKind, lower: Lower) -> Kernel {
    Kernel {
        name,
        op,
        supports: always,
        lower,
        through_f32: false,
    }
}

/// Every kernel; the first row that supports a node runs it.
pub(crate) const KERNELS: &[Kernel] = &[
    row("input", OpKind::Input, Lower::Leaf),
    row("param", OpKind::Param, Lower::Leaf),
    row("const", OpKind::Const, Lower::Leaf),
    row("state", OpKind::State, Lower::Leaf),
    row("view", OpKind::Reshape, Lower::View),
    row("view", OpKind::Transpose, Lower::View),
    row("view", OpKind::Slice, Lower::View),
    row("view", OpKind::Expand, Lower::View),
    row("if", OpKind::If, Lower::Control),
    row("while", OpKind::While, Lower::Control),
    row("scan", OpKind::Scan, Lower::Control),
    row("map", OpKind::Unary, MAP),
    row("map", OpKind::Binary, MAP),
    row("map", OpKind::Compare, MAP),
    row("map", OpKind::Where, MAP),
    row("map", OpKind::Fma, MAP),
    row("map", OpKind::Clamp, MAP),
    row("map", OpKind::Cast, MAP),
    Kernel {
        supports: map::supports,
        ..row("map", OpKind::Map, MAP)
    },
    kernel("reduce", OpKind::Reduce, reduce::supports, reduce::lower),
    kernel("cum_sum", OpKind::CumSum, cumsum::supports, cumsum::lower),
    kernel(
        "log_softmax",
        OpKind::LogSoftmax,
        log_softmax::supports,
        log_softmax::lower,
    ),
    kernel("dequantize", OpKind::Dequantize, always, dequantize::lower),
    kernel("gather", OpKind::Gather, always, gather::lower),
    kernel(
        "gather_elements",
        OpKind::GatherElements,
        always,
        indexed::lower_elements,
    ),
    kernel("gather_nd", OpKind::GatherNd, always, indexed::lower_nd),
    kernel("one_hot", OpKind::OneHot, always, indexed::lower_one_hot),
    kernel("scatter", OpKind::ScatterElements, always, scatter::lower),
    kernel("scatter", OpKind::ScatterNd, always, scatter::lower),
    kernel("scatter", OpKind::ScatterAdd, always, scatter::lower),
    kernel("concat", OpKind::Concat, always, concat::lower),
    kernel("pad", OpKind::Pad, always, pad::lower),
    kernel(
        "dynamic_slice",
        OpKind::DynamicSlice,
        always,
        dynamic_slice::lower,
    ),
    kernel("top_k", OpKind::TopK, top_k::supports, top_k::lower),
    kernel("sort", OpKind::Sort, top_k::supports, sort::lower),
    kernel("arg_max", OpKind::ArgMax, always, arg_extreme::lower),
    kernel("arg_min", OpKind::ArgMin, always, arg_extreme::lower),
    kernel("rng_uniform", OpKind::RngUniform, always, rng::lower),
    kernel("rng_normal", OpKind::RngNormal, always, rng::lower),
    kernel("philox", OpKind::Philox, always, rng::lower_words),
    kernel("sample", OpKind::Sample, sample::supports, sample::lower),
    through_f32("gemm", OpKind::MatMul, matmul::supports, matmul::lower),
    kernel(
        "int_gemm",
        OpKind::MatMul,
        int_matmul::supports,
        int_matmul::lower,
    ),
    through_f32("gemm", OpKind::Linear, matmul::supports, matmul::lower),
    Kernel {
        supports: matmul::supports,
        through_f32: true,
        ..row(
            "quant_matmul",
            OpKind::DequantMatMul,
            Lower::Product(quant_matmul::lower),
        )
    },
    through_f32(
        "grouped_matmul",
        OpKind::GroupedMatMul,
        grouped::supports,
        grouped::lower,
    ),
    through_f32(
        "quant_grouped_matmul",
        OpKind::DequantGroupedMatMul,
        grouped::supports,
        grouped::lower_dequant,
    ),
    kernel("im2col", OpKind::Im2Col, always, conv::lower_columns),
    through_f32("conv", OpKind::Conv, conv::supports, conv::lower),
    kernel(
        "quantized_conv",
        OpKind::QuantizedConv,
        quantized_conv::supports,
        quantized_conv::lower,
    ),
    through_f32("pool", OpKind::Pool, pool::supports, pool::lower),
    kernel(
        "resize",
        OpKind::Resize,
        resize::supports_moves,
        resize::lower,
    ),
    through_f32(
        "resize",
        OpKind::Resize,
        resize::supports_sums,
        resize::lower,
    ),
    through_f32("rows", OpKind::Softmax, rows::supports, rows::lower_map),
    through_f32("rows", OpKind::LayerNorm, rows::supports, rows::lower_norm),
    through_f32("rows", OpKind::RmsNorm, rows::supports, rows::lower_norm),
    through_f32(
        "rows",
        OpKind::ResidualLayerNorm,
        rows::supports,
        rows::lower_residual_norm,
    ),
    through_f32(
        "rows",
        OpKind::ResidualRmsNorm,
        rows::supports,
        rows::lower_residual_norm,
    ),
    through_f32(
        "attention",
        OpKind::Attention,
        attention::supports,
        attention::lower,
    ),
    kernel(
        "attention",
        OpKind::AttentionWithLse,
        grad::supports,
        attention::lower,
    ),
    kernel(
        "attention_grad",
        OpKind::AttentionGrad,
        grad::supports,
        grad::lower,
    ),
    through_f32(
        "rope",
        OpKind::Rope,
        attention::supports,
        attention::lower_rope,
    ),
    through_f32("fft", OpKind::Fft, fft::supports, fft::lower),
    through_f32(
        "state_scan",
        OpKind::SelectiveScan,
        state_scan::supports,
        state_scan::lower,
    ),
    through_f32(
        "state_scan",
        OpKind::Mamba2,
        state_scan::supports,
        state_scan::lower,
    ),
    through_f32(
        "gated_delta_net",
        OpKind::GatedDeltaNet,
        gated_delta_net::supports,
        gated_delta_net::lower,
    ),
    through_f32(
        "recurrence",
        OpKind::Recurrence,
        recurrence::supports,
        recurrence::lower,
    ),
    #[cfg(feature = "splat")]
    kernel(
        "splat_prepare",
        OpKind::GaussianSplatPrepare,
        splat::supports,
        splat::lower_prepare,
    ),
    #[cfg(feature = "splat")]
    kernel(
        "splat_rasterize",
        OpKind::GaussianSplatRasterize,
        splat::supports,
        splat::lower_rasterize,
    ),
    #[cfg(feature = "splat")]
    kernel(
        "splat_rasterize_grad",
        OpKind::GaussianSplatRasterizeGrad,
        splat::supports,
        splat_grad::lower,
    ),
    kernel(
        "dynamic_update_slice",
        OpKind::DynamicUpdateSlice,
        always,
        dynamic_update::lower,
    ),
];

const fn kernel(
    name: &'static str,
    op: OpKind,
    supports: fn(&Graph, &Node) -> Support,
    lower: fn(&Graph, &Node) -> Lowered,
) -> Kernel {
    Kernel {
        name,
        op,
        supports,
        lower: Lower::Kernel(lower),
        through_f32: false,
    }
}

const fn through_f32(
    name: &'static str,
    op: OpKind,
    supports: fn(&Graph, &Node) -> Support,
    lower: fn(&Graph, &Node) -> Lowered,
) -> Kernel {
    Kernel {
        through_f32: true,
        ..kernel(name, op, supports, lower)
    }
}

/// The refusal of a kernel.
pub(crate) fn missing(reason: &str) -> Support {
    Support::Missing {
        reason: reason.to_string(),
    }
}

/// Scratch memory as floats.
pub(crate) fn floats_mut(scratch: &mut [u8]) -> &mut [f32] {
    bytemuck::cast_slice_mut(scratch)
}

/// The elements of a dense I32 or I64 operand.
pub(crate) fn indices<'a>(view: &View<'a>) -> impl Iterator<Item = i64> + 'a {
    let (narrow, wide): (&[i32], &[i64]) = match view.dtype {
        DType::I64 => (&[], view.dense()),
        _ => (view.dense(), &[]),
    };
    narrow
        .iter()
        .map(|&i| i64::from(i))
        .chain(wide.iter().copied())
}

const MAP: Lower = Lower::Kernel(map::lower);

/// What runs operators of the core and of the host that no row supports: their own reference evaluation. Composite ones
/// are decomposed by the legalizer instead.
pub(crate) const REFERENCE_EVAL: Kernel = Kernel {
    name: "reference_eval",
    op: OpKind::Const,
    supports: always,
    lower: Lower::Kernel(reference_eval::lower),
    through_f32: false,
};

/// The row that runs a node.
///
/// # Errors
/// Why no row does.
pub(crate) fn find(graph: &Graph, node: &Node) -> Result<&'static Kernel, String> {
    let kind = node.op.kind();
    let mut why = "no kernel".to_string();
    for kernel in KERNELS.iter().filter(|k| k.op == kind) {
        match (kernel.supports)(graph, node) {
            Support::Native => return Ok(kernel),
            Support::Missing { reason } => why = reason,
        }
    }
    match kind.doc().tier {
        Tier::Core | Tier::Host => Ok(&REFERENCE_EVAL),
        Tier::Composite => Err(why),
    }
}

/// True for leaves that get their value from outside or from an earlier run, or that give another
/// value at each run: what depends on them is computed in every run.
pub(crate) fn varies(op: &Op) -> bool {
    matches!(
        op,
        Op::Input(_) | Op::State(_) | Op::RngUniform(_) | Op::RngNormal(_) | Op::Sample(_)
    )
}

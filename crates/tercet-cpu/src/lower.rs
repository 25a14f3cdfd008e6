//! Kernel table of the fast executor, and one lowering file per group of operators.
//!
//! [`KERNELS`] maps operators to kernels. The first row of an operator whose `supports` accepts the
//! node runs that node. [`crate::CpuTarget`] derives the supported operators from this table.

mod arg_extreme;
pub(crate) mod attention;
pub(crate) mod channels_last;
mod concat;
pub(crate) mod control;
mod conv;
mod conv_transpose;
pub(crate) mod copy;
mod cumsum;
mod dequantize;
mod dynamic_slice;
mod dynamic_update;
mod elem;
pub(crate) mod fft;
mod gated_delta_net;
mod gather;
mod grouped;
mod indexed;
mod int_matmul;
mod log_softmax;
pub(crate) mod map;
mod matmul;
mod non_max_suppression;
mod non_zero;
mod pad;
mod pool;
mod quant_matmul;
mod quantized_conv;
pub(crate) mod rank;
mod recurrence;
mod reduce;
mod reference_eval;
mod resize;
mod rng;
mod row_products;
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
mod upcast;
mod zeroed;

use tercet_ir::{DType, EvalError, Graph, Node, Op, OpKind, Support, Tier};

use crate::args::{KernelArgs, KernelView, PackedConst};
use tercet_ir::layout::{Layout, SymLayout};

pub(crate) use copy::{copy_kernel, copy_view};
pub(crate) use zeroed::{words, zeroed_floats};

/// Kernel function of a step.
pub(crate) type KernelRunFn =
    Box<dyn Fn(&mut KernelArgs<'_>) -> Result<(), EvalError> + Send + Sync>;

/// Packs an operand into [`PackedConst`].
pub(crate) type KernelPackFn =
    Box<dyn Fn(&KernelView<'_>) -> Result<PackedConst, EvalError> + Send + Sync>;

/// Bytes of scratch memory for these layouts (operands, then results) and number of threads.
pub(crate) type KernelScratchFn = Box<dyn Fn(&[Layout], usize) -> usize + Send + Sync>;

/// Operand layouts that a kernel reads in place; other layouts are copied first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AcceptedLayout {
    /// Contiguous in row-major order.
    Dense,
    /// Last axis contiguous; the other axes have any strides.
    Rows,
    /// One of the last two axes contiguous, no negative strides.
    Matrix,
    /// Any strides.
    Any,
}

impl AcceptedLayout {
    /// True if a value of this layout needs no copy.
    pub(crate) fn accepts(self, layout: &SymLayout) -> bool {
        match self {
            AcceptedLayout::Dense => layout.is_contiguous(),
            AcceptedLayout::Rows => layout.has_dense_rows(),
            AcceptedLayout::Matrix => layout.is_matrix(),
            AcceptedLayout::Any => true,
        }
    }
}

/// A node lowered to a kernel call.
pub(crate) struct LoweredNode {
    /// Kernel function.
    pub(crate) run: KernelRunFn,
    /// For each operand, the layouts that the kernel reads in place.
    pub(crate) accepts: Vec<AcceptedLayout>,
    /// True if the kernel can fail depending on the values of its operands.
    pub(crate) fallible: bool,
    /// Operands that may share the memory of the first result if this is their last use.
    pub(crate) in_place: Vec<usize>,
    /// Computes the size of the scratch memory from the layouts of operands, then results; `None`
    /// if the kernel needs none.
    pub(crate) scratch: Option<KernelScratchFn>,
    /// Operand that is packed once if it is constant, and its packing function.
    pub(crate) pack: Option<(usize, KernelPackFn)>,
    /// Name of the packed form, if it depends only on the operand. Steps with equal names and
    /// operands then share it.
    pub(crate) pack_name: Option<&'static str>,
    /// Rough work in element operations, from the layouts of operands, then results.
    pub(crate) work: fn(&[Layout]) -> usize,
    /// Restores the old contents of a state that the kernel overwrote and saved in its scratch
    /// memory.
    pub(crate) undo: Option<KernelRunFn>,
}

impl LoweredNode {
    /// A kernel with dense operands that cannot fail and costs one operation per element.
    pub(crate) fn new(
        operands: usize,
        run: impl Fn(&mut KernelArgs<'_>) -> Result<(), EvalError> + Send + Sync + 'static,
    ) -> LoweredNode {
        LoweredNode {
            run: Box::new(run),
            accepts: vec![AcceptedLayout::Dense; operands],
            fallible: false,
            in_place: Vec::new(),
            scratch: None,
            pack: None,
            pack_name: None,
            work: |layouts| layouts.iter().map(Layout::numel).max().unwrap_or(0),
            undo: None,
        }
    }
}

/// How a row of the kernel table lowers a node.
#[derive(Clone, Copy)]
pub(crate) enum LowerFn {
    /// A leaf of the graph; no kernel runs.
    Leaf,
    /// The result is a view of the operand; no kernel runs, except a copy if strides cannot express
    /// the view.
    View,
    /// A kernel.
    Kernel(fn(&Graph, &Node) -> LoweredNode),
    /// A matmul that may round its activations if [`tercet_ir::CompileOptions::matmul_precision`] allows
    /// it.
    MatMul(fn(&Graph, &Node, bool) -> LoweredNode),
    /// A control-flow node; its nested graphs become separate programs.
    Control,
}

/// A row of the kernel table.
pub(crate) struct CpuKernel {
    /// Kernel name, for plans and errors.
    pub(crate) name: &'static str,
    /// Kind of operator.
    pub(crate) op: OpKind,
    /// Whether the kernel supports this node.
    pub(crate) supports: fn(&Graph, &Node) -> Support,
    /// Lowering of the node.
    pub(crate) lower: LowerFn,
    /// True if F16 and BF16 operands are converted to f32 for this kernel, and its results back.
    through_f32: bool,
}

impl CpuKernel {
    /// Lowers a node with this row's function.
    pub(crate) fn lower_node(
        &self,
        lower: impl Fn(&Graph, &Node) -> LoweredNode,
        graph: &Graph,
        node: &Node,
    ) -> LoweredNode {
        match self.through_f32 {
            true => upcast::lower(lower, graph, node),
            false => lower(graph, node),
        }
    }
}

fn always(_: &Graph, _: &Node) -> Support {
    Support::Native
}

const fn row(name: &'static str, op: OpKind, lower: LowerFn) -> CpuKernel {
    CpuKernel {
        name,
        op,
        supports: always,
        lower,
        through_f32: false,
    }
}

/// The kernels of each file; the first row that supports a node runs it.
pub(crate) static KERNELS: &[&[CpuKernel]] = &[
    LEAVES,
    control::KERNELS,
    map::KERNELS,
    reduce::KERNELS,
    cumsum::KERNELS,
    log_softmax::KERNELS,
    dequantize::KERNELS,
    gather::KERNELS,
    indexed::KERNELS,
    scatter::KERNELS,
    concat::KERNELS,
    pad::KERNELS,
    dynamic_slice::KERNELS,
    top_k::KERNELS,
    sort::KERNELS,
    non_zero::KERNELS,
    non_max_suppression::KERNELS,
    arg_extreme::KERNELS,
    rng::KERNELS,
    sample::KERNELS,
    matmul::KERNELS,
    int_matmul::KERNELS,
    row_products::KERNELS,
    quant_matmul::KERNELS,
    grouped::KERNELS,
    conv::KERNELS,
    conv_transpose::KERNELS,
    quantized_conv::KERNELS,
    pool::KERNELS,
    resize::KERNELS,
    rows::KERNELS,
    attention::KERNELS,
    fft::KERNELS,
    state_scan::KERNELS,
    gated_delta_net::KERNELS,
    recurrence::KERNELS,
    #[cfg(feature = "splat")]
    splat::KERNELS,
    dynamic_update::KERNELS,
];

/// Operators that run no kernel, except copies of operands.
const LEAVES: &[CpuKernel] = &[
    row("input", OpKind::Input, LowerFn::Leaf),
    row("param", OpKind::Param, LowerFn::Leaf),
    row("const", OpKind::Const, LowerFn::Leaf),
    row("state", OpKind::State, LowerFn::Leaf),
    row("view", OpKind::Reshape, LowerFn::View),
    row("view", OpKind::Transpose, LowerFn::View),
    row("view", OpKind::Slice, LowerFn::View),
    row("view", OpKind::Expand, LowerFn::View),
];

const fn kernel(
    name: &'static str,
    op: OpKind,
    supports: fn(&Graph, &Node) -> Support,
    lower: fn(&Graph, &Node) -> LoweredNode,
) -> CpuKernel {
    CpuKernel {
        name,
        op,
        supports,
        lower: LowerFn::Kernel(lower),
        through_f32: false,
    }
}

const fn through_f32(
    name: &'static str,
    op: OpKind,
    supports: fn(&Graph, &Node) -> Support,
    lower: fn(&Graph, &Node) -> LoweredNode,
) -> CpuKernel {
    CpuKernel {
        through_f32: true,
        ..kernel(name, op, supports, lower)
    }
}

/// Reports that a kernel does not support a node.
pub(crate) fn missing(reason: &str) -> Support {
    Support::Missing {
        reason: reason.to_string(),
    }
}

/// Scratch memory as floats.
pub(crate) fn floats_mut(scratch: &mut [u8]) -> &mut [f32] {
    bytemuck::cast_slice_mut(scratch)
}

/// Elements of a dense I32 or I64 operand.
pub(crate) fn indices<'a>(view: &KernelView<'a>) -> impl Iterator<Item = i64> + 'a {
    let (narrow, wide): (&[i32], &[i64]) = match view.dtype {
        DType::I64 => (&[], view.dense()),
        _ => (view.dense(), &[]),
    };
    narrow
        .iter()
        .map(|&i| i64::from(i))
        .chain(wide.iter().copied())
}

/// Fallback for core operators that no row supports: the operator's reference evaluation.
/// Composite operators are decomposed by the legalizer instead.
pub(crate) const REFERENCE_EVAL: CpuKernel = CpuKernel {
    name: "reference_eval",
    op: OpKind::Const,
    supports: always,
    lower: LowerFn::Kernel(reference_eval::lower),
    through_f32: false,
};

/// The row of the kernel table that runs a node.
///
/// # Errors
/// The reason why no row supports the node.
pub(crate) fn find(graph: &Graph, node: &Node) -> Result<&'static CpuKernel, String> {
    let kind = node.op.kind();
    let mut why = "no kernel".to_string();
    for kernel in KERNELS.iter().copied().flatten().filter(|k| k.op == kind) {
        match (kernel.supports)(graph, node) {
            Support::Native => return Ok(kernel),
            Support::Missing { reason } => why = reason,
        }
    }
    // The rule `matmul_of_i16_in_i32` converts the operands to I32, which has a kernel.
    let is_i16 = kind == OpKind::MatMul && graph.ty(node.inputs[0]).dtype == DType::I16;
    match kind.doc().tier {
        Tier::Core if !is_i16 => Ok(&REFERENCE_EVAL),
        Tier::Core | Tier::Composite => Err(why),
    }
}

/// True for inputs and states, and for operators of random numbers: their values differ per run.
/// Everything that depends on such a value is computed in every run.
pub(crate) fn varies(op: &Op) -> bool {
    matches!(
        op,
        Op::Input(_) | Op::State(_) | Op::RngUniform(_) | Op::RngNormal(_) | Op::Sample(_)
    )
}

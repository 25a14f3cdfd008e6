//! Lowerings of operators to kernels, one file per lowering, and the list of all lowerings.
//!
//! A [`Lowering`] turns nodes of a set of operators into kernel dispatches. [`FAMILIES`] lists all
//! lowerings in order of preference: the first one that supports a node is used. [`PlanTarget`]
//! tells legalization which operators [`FAMILIES`] supports, so legalization and lowering agree.

mod arg_extreme;
pub(crate) mod attention;
mod causal_conv;
mod channel_norm;
pub(crate) mod check;
mod concat;
mod control;
mod control_scan;
mod conv;
pub(crate) mod copy;
mod cumsum;
mod custom;
mod dequant;
mod dynamic_slice;
pub(crate) mod fft;
pub(crate) mod gather;
pub mod gemm_coop;
pub(crate) mod grouped;
mod indexed;
pub(crate) mod map;
pub(crate) mod matmul;
pub(crate) mod norm;
mod pad;
mod pool;
mod recurrence;
mod reduce;
mod resize;
mod rng;
pub(crate) mod rope;
pub(crate) mod rows;
pub(crate) mod sample;
mod scatter;
mod softmax;
#[cfg(feature = "splat")]
mod splat;
pub(crate) mod state_scan;
mod sums;
mod tile_roll;
pub(crate) mod tiles;
pub(crate) mod top_k;
mod trilu;
mod words;

use tercet_ir::layout::is_view;
use tercet_ir::ops::ScatterReduce;
use tercet_ir::{CompileError, DType, Graph, Node, Op, OpKind, Support, Target, VariantFamily};

use crate::caps::DeviceCaps;
use crate::emit::LoweringCtx;
use tercet_program::KernelDef;

/// Turns nodes of a set of operators into kernel dispatches.
pub struct Lowering {
    /// Name of the lowering, for errors and printed programs.
    pub name: &'static str,
    /// Operators of the lowering.
    pub ops: &'static [OpKind],
    /// Kernels of the lowering, except kernels that are generated per node.
    pub kernels: &'static [&'static KernelDef],
    /// Whether the lowering supports this node on this device.
    pub supports: fn(&Graph, &Node, &DeviceCaps) -> Support,
    /// Lowers a node: emits its kernels.
    pub lower: fn(&mut LoweringCtx<'_>, &Node) -> Result<(), CompileError>,
}

/// All lowerings in order of preference: the first one that supports a node is used.
pub static FAMILIES: &[&Lowering] = &[
    &map::MAP,
    &control::CONTROLS,
    &softmax::SOFTMAXES,
    &norm::NORMS,
    &channel_norm::CHANNEL_NORMS,
    &reduce::REDUCES,
    &cumsum::SCANS,
    &arg_extreme::ARG_EXTREMES,
    &attention::FAMILY,
    &attention::backward::FAMILY,
    &attention::backward_split_f16::FAMILY,
    &attention::backward_portable::FAMILY,
    &rope::FAMILY,
    &gather::GATHERS,
    &indexed::INDEXED,
    &scatter::SCATTERS,
    &concat::CONCATS,
    &pad::PADS,
    &tile_roll::PERIODICS,
    &trilu::TRILUS,
    &dynamic_slice::WINDOWS,
    &top_k::TOP_KS,
    &custom::CUSTOMS,
    &rng::RANDOMS,
    &sample::SAMPLES,
    &fft::FFTS,
    &state_scan::STATE_SCANS,
    &causal_conv::CAUSAL_CONVS,
    &recurrence::RECURRENCES,
    &matmul::MATMUL,
    &matmul::DEQUANT_MATMUL,
    &dequant::DEQUANTIZE,
    &grouped::GROUPED,
    &grouped::DEQUANT_GROUPED,
    &conv::IM2COLS,
    &conv::CONVS,
    &conv::TRANSPOSES,
    &conv::WEIGHT_GRADS,
    &pool::POOLS,
    &resize::RESIZES,
    #[cfg(feature = "splat")]
    &splat::SPLATS,
];

/// Kernels that the planner itself uses, such as copies and data checks.
static SERVICE: &[&KernelDef] = &[
    &copy::COPY.def,
    &copy::VECTORS.def,
    &copy::TRANSPOSE.def,
    &copy::COMMIT.def,
    &check::CHECK.def,
    &check::PARTS.def,
    &check::FIRST.def,
];

/// All kernels with a fixed definition; kernels that are generated per node are not included.
pub fn kernels() -> impl Iterator<Item = &'static KernelDef> {
    let of_families = FAMILIES.iter().flat_map(|f| f.kernels);
    SERVICE.iter().chain(of_families).copied()
}

/// The families of kernel variants, which switches can force and forbid, except tilings.
pub(crate) fn variant_families() -> Vec<VariantFamily> {
    let mut all = Vec::from(attention::variant_families());
    all.extend(conv::families());
    all.extend(matmul::variant_families());
    all.extend(state_scan::variant_families());
    all
}

/// Legalization target: the operators that a device with these capabilities supports.
#[derive(Clone, Copy, Debug)]
pub struct PlanTarget<'a>(pub &'a DeviceCaps);

impl Target for PlanTarget<'_> {
    fn name(&self) -> &'static str {
        self.0.target
    }

    fn supports(&self, graph: &Graph, node: &Node) -> Support {
        let types = node
            .inputs
            .iter()
            .map(|v| graph.ty(*v))
            .chain(&node.outputs);
        let mut is_i16 = false;
        for ty in types {
            is_i16 |= ty.dtype == DType::I16;
            if let Some(reason) = unsupported_reason(ty.dtype) {
                return missing(reason);
            }
        }
        let kind = node.op.kind();
        if is_i16 && reads_numbers(&node.op) {
            return missing("its kernels compute i16 in i32");
        }
        if is_view(kind)
            || matches!(
                kind,
                OpKind::Input | OpKind::Param | OpKind::Const | OpKind::State
            )
        {
            return Support::Native;
        }
        match find(graph, node, self.0) {
            Ok(_) => Support::Native,
            Err(reason) => Support::Missing { reason },
        }
    }
}

/// Returns the reason why no kernel supports a dtype; `None` for supported dtypes.
pub(crate) fn unsupported_reason(dtype: DType) -> Option<&'static str> {
    match dtype {
        DType::F64 => Some("GPUs compute in f32 and below"),
        DType::I64 => Some("GPUs compute i64 as i32; the graph was not narrowed"),
        DType::F32
        | DType::F16
        | DType::BF16
        | DType::I32
        | DType::U32
        | DType::I16
        | DType::I8
        | DType::U8
        | DType::Bool => None,
    }
}

/// Finds the first lowering that supports a node.
///
/// # Errors
/// The reason why no lowering supports the node.
pub(crate) fn find(
    graph: &Graph,
    node: &Node,
    caps: &DeviceCaps,
) -> Result<&'static Lowering, String> {
    let kind = node.op.kind();
    let mut why = "no kernel".to_string();
    for family in FAMILIES.iter().filter(|f| f.ops.contains(&kind)) {
        match (family.supports)(graph, node, caps) {
            Support::Native => return Ok(family),
            Support::Missing { reason } => why = reason,
        }
    }
    Err(why)
}

/// Supports every node.
pub(crate) fn always(_: &Graph, _: &Node, _: &DeviceCaps) -> Support {
    Support::Native
}

/// `Support` for a node that a lowering does not support, with this reason.
pub(crate) fn missing(reason: &str) -> Support {
    Support::Missing {
        reason: reason.to_string(),
    }
}

/// True if the kernels of an operator read numbers by the code of their dtype ([`code`]). I16 has no
/// code, so the rules `.._of_i16_in_i32` of legalization convert operands and results.
fn reads_numbers(op: &Op) -> bool {
    match op {
        Op::ScatterElements(o) => o.reduce != ScatterReduce::Replace,
        Op::ScatterNd(o) => o.reduce != ScatterReduce::Replace,
        op => matches!(
            op.kind(),
            OpKind::ArgMax
                | OpKind::ArgMin
                | OpKind::CumSum
                | OpKind::Linear
                | OpKind::MatMul
                | OpKind::Pool
                | OpKind::Reduce
                | OpKind::ScatterAdd
                | OpKind::Sort
                | OpKind::TopK
        ),
    }
}

/// Number of a dtype in the shaders, as defined in `prelude.wgsl`. Kernels of I16 are generated and
/// need none.
pub(crate) fn code(dtype: DType) -> u32 {
    match dtype {
        DType::F32 => 0,
        DType::F16 => 1,
        DType::BF16 => 2,
        DType::I32 => 3,
        DType::U32 => 4,
        DType::I8 => 5,
        DType::U8 => 6,
        DType::Bool => 7,
        DType::F64 | DType::I64 | DType::I16 => {
            unreachable!("invariant: no kernel reads numbers of {dtype}")
        }
    }
}

/// Number of a dtype of the same size, for kernels that only move bits.
pub(crate) fn bits_code(dtype: DType) -> u32 {
    match dtype {
        DType::I16 => code(DType::F16),
        dtype => code(dtype),
    }
}

/// WGSL source of a shader under `shaders/portable/`, as the build script copies it.
macro_rules! portable {
    ($file:literal) => {
        include_str!(concat!(env!("OUT_DIR"), "/portable/", $file))
    };
}
pub(crate) use portable;

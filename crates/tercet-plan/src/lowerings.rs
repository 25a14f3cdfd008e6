//! Families: what lowers which operators, one file each, and the one list of them.
//!
//! [`FAMILIES`] is explicit: the first family of an operator's kind that supports a node lowers it.
//! What [`PlanTarget`] supports is read off this list, so that legalization and lowering agree.

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
mod fft;
mod gather;
pub mod gemm_coop;
mod grouped;
#[cfg(test)]
mod imports;
mod indexed;
pub(crate) mod map;
pub(crate) mod matmul;
pub(crate) mod norm;
mod pad;
mod periodic;
mod pool;
mod recurrence;
mod reduce;
mod resize;
mod rng;
pub(crate) mod rope;
mod rows;
mod sample;
mod scatter;
mod softmax;
#[cfg(feature = "splat")]
mod splat;
mod state_scan;
mod sums;
mod tiles;
pub(crate) mod top_k;
mod trilu;
mod words;

use tercet_ir::layout::is_view;
use tercet_ir::{CompileError, DType, Graph, Node, OpKind, Support, Target, Tier};

use crate::caps::Caps;
use crate::emit::Emit;
use crate::kernel::KernelDef;

/// How some operators are lowered.
pub struct Family {
    /// Its name, for errors and plans.
    pub name: &'static str,
    /// The operators.
    pub ops: &'static [OpKind],
    /// Its kernels; generated ones are not listed.
    pub kernels: &'static [&'static KernelDef],
    /// Whether it lowers this node.
    pub supports: fn(&Graph, &Node, &Caps) -> Support,
    /// Lowers it.
    pub lower: fn(&mut Emit<'_>, &Node) -> Result<(), CompileError>,
}

/// Every family; the first that supports a node lowers it.
pub static FAMILIES: &[&Family] = &[
    &map::MAP,
    &control::CONTROLS,
    &softmax::SOFTMAXES,
    &norm::NORMS,
    &channel_norm::CHANNEL_NORMS,
    &reduce::REDUCES,
    &cumsum::SCANS,
    &arg_extreme::ARG_EXTREMES,
    &attention::FAMILY,
    &attention::training::FAMILY,
    &attention::training_pairs::FAMILY,
    &rope::FAMILY,
    &gather::GATHERS,
    &indexed::INDEXED,
    &scatter::SCATTERS,
    &concat::CONCATS,
    &pad::PADS,
    &periodic::PERIODICS,
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

/// Kernels that planning itself uses.
static SERVICE: &[&KernelDef] = &[
    &copy::COPY.def,
    &copy::VECTORS.def,
    &copy::TRANSPOSE.def,
    &copy::COMMIT.def,
    &check::CHECK.def,
    &check::PARTS.def,
    &check::FIRST.def,
];

/// Every registered kernel; generated ones are not.
pub fn kernels() -> impl Iterator<Item = &'static KernelDef> {
    let of_families = FAMILIES.iter().flat_map(|f| f.kernels);
    SERVICE.iter().chain(of_families).copied()
}

/// What a device with these capabilities runs.
#[derive(Clone, Copy, Debug)]
pub struct PlanTarget<'a>(pub &'a Caps);

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
        for ty in types {
            if let Some(reason) = refused(ty.dtype) {
                return missing(reason);
            }
        }
        let kind = node.op.kind();
        if kind.doc().tier == Tier::Host {
            return missing(HOST);
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

/// Why no GPU runs an operator of the host.
const HOST: &str = "how much of its result is used depends on data, which only the CPU looks at";

/// Why no kernel takes a dtype.
pub(crate) fn refused(dtype: DType) -> Option<&'static str> {
    match dtype {
        DType::F64 => Some("GPUs compute in f32 and below"),
        DType::I64 => Some("GPUs compute i64 as i32; the graph was not narrowed"),
        DType::F32
        | DType::F16
        | DType::BF16
        | DType::I32
        | DType::U32
        | DType::I8
        | DType::U8
        | DType::Bool => None,
    }
}

/// The family that lowers a node.
///
/// # Errors
/// Why none does.
pub(crate) fn find(graph: &Graph, node: &Node, caps: &Caps) -> Result<&'static Family, String> {
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
pub(crate) fn always(_: &Graph, _: &Node, _: &Caps) -> Support {
    Support::Native
}

/// A refusal.
pub(crate) fn missing(reason: &str) -> Support {
    Support::Missing {
        reason: reason.to_string(),
    }
}

/// The code of a dtype in the shaders' prelude.
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
        DType::F64 | DType::I64 => unreachable!("invariant: GPU targets refuse {dtype}"),
    }
}

/// Text of a shader under `shaders/portable/`.
macro_rules! portable {
    ($file:literal) => {
        include_str!(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../shaders/portable/",
            $file
        ))
    };
}
pub(crate) use portable;

//! Matmuls on cooperative matrices that WGSL loads and multiplies, for devices that take no SPIR-V:
//! Metal, and Vulkan below wgpu without passthrough.
//!
//! F16 operands use F16 fragments with F32 sums. F32 rows use F32 fragments, with weights of F32 or
//! 16 bits. Quantized weights are dequantized to the type of the fragments while they are staged.

use tercet_ir::scalar::UnaryFn;
use tercet_ir::{CompileError, DType};

use super::coop::{self, ColumnRange};
use super::gemm_vectors::{has_whole_rows, operand_orders};
use super::kernels::{FLOATS_OF_8, HALVES_OF_8, HALVES_OF_16, MatMulParams, WgslKernels};
use super::portable::MatMulArgs;
use super::product::MatMulProblem;
use crate::caps::{WgslCoopShape, WgslCoopType};
use crate::emit::{LoweringCtx, SlotView};
use crate::lowerings::code;
use crate::lowerings::dequant::PackedWeights;
use crate::lowerings::gemm_coop::CoopGemmTiling;
use crate::tuning::GemmProblem;
use crate::variant;
use tercet_program::SymInt;
use tercet_program::TypedKernel;

/// Name of the variant.
pub(super) const WGSL_MATRICES: &str = "wgsl_matrices";

/// A matmul on cooperative matrices in WGSL, with its kernel and tiling.
pub(super) struct WgslMatMul {
    shape: WgslCoopShape,
    tiling: CoopGemmTiling,
    /// Estimated time in seconds.
    pub(super) seconds: f64,
    /// The kernel, and the values of its constants that describe the right operand.
    kernel: &'static TypedKernel<MatMulParams>,
    of_right: Vec<u32>,
    problem: GemmProblem,
}

impl WgslMatMul {
    /// The plan for this matmul with result `y`; `None` if the device has no matrices for it or
    /// the kernels do not support it. Quantized weights are given as `blocks`.
    pub(super) fn new(
        e: &mut LoweringCtx<'_>,
        p: &MatMulProblem,
        blocks: Option<&PackedWeights>,
        y: &SlotView,
    ) -> Result<Option<WgslMatMul>, CompileError> {
        let ty = match p.a.dtype {
            DType::F16 => WgslCoopType::F16,
            DType::F32 => WgslCoopType::F32,
            _ => return Ok(None),
        };
        let shapes = e.caps.coop_wgsl.iter().filter(|shape| shape.ty == ty);
        // The largest fragments do the most arithmetic per loaded element.
        let Some(&shape) = shapes.max_by_key(|shape| shape.side) else {
            return Ok(None);
        };
        let kernels = match (shape.ty, shape.side) {
            (WgslCoopType::F16, 16) => &HALVES_OF_16,
            (WgslCoopType::F16, 8) => &HALVES_OF_8,
            (WgslCoopType::F32, 8) => &FLOATS_OF_8,
            _ => return Ok(None),
        };
        let Some((whole, of_right)) = right(kernels, p, blocks, p.activation) else {
            return Ok(None);
        };
        let is_float = matches!(y.dtype, DType::F32 | DType::F16 | DType::BF16);
        if !has_whole_rows(p) || !is_float || !p.is_apart() {
            return Ok(None);
        }
        let mut batches = 1usize;
        for dim in &p.batch {
            batches = batches.saturating_mul(e.bound(dim)?);
        }
        let [_, along] = operand_orders(p);
        let problem = GemmProblem {
            dtype: p.a.dtype,
            b_transposed: blocks.is_some() || along,
            m: e.bound(&p.m)?,
            n: e.bound(&p.n)?,
            k: e.bound(&p.k)?,
        };
        let sums = [problem.m, problem.n, batches, 4];
        let bytes = sums
            .into_iter()
            .fold(1u64, |bytes, n| bytes.saturating_mul(n as u64));
        let most = (e.caps.max_binding_bytes / 2 / bytes.max(1)).min(64) as u32;
        let chosen = CoopGemmTiling::choose_for_wgsl(e.caps, shape, &problem, batches, most.max(1));
        Ok(chosen.map(|(tiling, seconds)| {
            // The kernel with all functions has no identity, which partial sums need.
            let of_parts = right(kernels, p, blocks, None).filter(|_| tiling.splits > 1);
            WgslMatMul {
                shape,
                tiling,
                seconds,
                kernel: of_parts.map_or(whole, |(kernel, _)| kernel),
                of_right,
                problem,
            }
        }))
    }

    /// Name of the tiling.
    pub(super) fn name(&self) -> String {
        self.tiling.to_string()
    }

    /// True if a switch or the device's autotuning table names the tiling.
    pub(super) fn is_measured(&self, e: &LoweringCtx<'_>) -> bool {
        let named = e.caps.device.named_tiling(|| self.problem.key());
        named == Some(&self.name())
    }

    /// Emits the matmul as a variant that was selected without a table.
    pub(super) fn emit_alone(
        &self,
        e: &mut LoweringCtx<'_>,
        family: &'static str,
        p: &MatMulProblem,
        given: &MatMulArgs,
    ) -> Result<(), CompileError> {
        variant::run_alone(e, family, (WGSL_MATRICES, self.seconds), |e| {
            e.record_variant_detail(self.name());
            self.dispatch(e, p, given)
        })
    }

    /// Dispatches the kernel and, with split-K, the kernel that adds the partial sums.
    pub(super) fn dispatch(
        &self,
        e: &mut LoweringCtx<'_>,
        p: &MatMulProblem,
        given: &MatMulArgs,
    ) -> Result<(), CompileError> {
        let t = &self.tiling;
        let [bm, bn, depth] = t.tile;
        let [wm, wn] = t.subgroup_tile;
        let mut own = self.of_right.clone();
        own.extend([bm / wm, bn / wn, wm / self.shape.side, wn / self.shape.side]);
        own.extend([depth, t.subgroup, t.splits]);
        let [x, y, batches] = given.tile_grid(e, [bm, bn]);
        if t.splits == 1 {
            given
                .with_dtype_of_addend(p)
                .dispatch(e, self.kernel, &own, [x, y, batches]);
            return Ok(());
        }
        let sums = coop::parts(e, p, t.splits, p.n.clone())?;
        let z = e.tape().mul(batches, SymInt::Const(i64::from(t.splits)));
        let limit = e.caps.max_grid;
        let z = e.tape().min(z, limit);
        let all = ColumnRange::all(given);
        given.sums(sums).dispatch(e, self.kernel, &own, [x, y, z]);
        coop::add_parts(e, given, p, t.splits, sums, &all);
        Ok(())
    }
}

/// The kernel for a right operand and an activation, and the values of its constants for the
/// operand; `None` if there is none.
fn right(
    kernels: &WgslKernels,
    p: &MatMulProblem,
    blocks: Option<&PackedWeights>,
    activation: Option<UnaryFn>,
) -> Option<(&'static TypedKernel<MatMulParams>, Vec<u32>)> {
    let is_simple = matches!(activation, None | Some(UnaryFn::Relu | UnaryFn::Relu6));
    if let Some(blocks) = blocks {
        let kernel = match blocks.uses_codebook() {
            true => kernels.coded,
            false => kernels.packed,
        };
        return is_simple.then(|| (kernel, blocks.consts().to_vec()));
    }
    let [across, along] = operand_orders(p);
    if !(across || along) {
        return None;
    }
    let b_along = u32::from(!along);
    let is_half = matches!(p.b.dtype, DType::F16 | DType::BF16);
    match (p.a.dtype == p.b.dtype, is_simple) {
        (true, true) => Some((kernels.plain, vec![b_along])),
        (true, false) => Some((kernels.activated, vec![b_along])),
        (false, true) if is_half => kernels
            .mixed
            .map(|kernel| (kernel, vec![b_along, code(p.b.dtype)])),
        (false, _) => None,
    }
}

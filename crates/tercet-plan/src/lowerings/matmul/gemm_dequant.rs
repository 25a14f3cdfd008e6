//! GEMM of 16-bit activations and quantized weights on cooperative matrices. The weights are first
//! dequantized to the activation type, into arena memory.
//!
//! A 16-bit matmul rounds its operands and results anyway; rounding the dequantized weights to 16
//! bits adds an error of the same size. F16 cannot hold large numbers and has few bits for tiny
//! ones. If the scales of a parameter are outside the F16 range, runs take another branch, which
//! does not convert the weights to F16. The scales are checked when the parameter is set.

use tercet_ir::{CompileError, DType};

use super::coop::CoopMatMul;
use super::gemm::LARGE_M;
use super::portable::matmul_args;
use super::product::{MatMulOperand, MatMulProblem};
use super::reduced_precision::{self, ReducedPrecisionMatMul};
use super::wgsl_matrices::{WGSL_MATRICES, WgslMatMul};
use crate::caps::WgslCoopType;
use crate::emit::{LoweringCtx, SlotView};
use crate::lowerings::dequant::{PackedWeights, UnpackHalfParams, piece_consts, unpack_half};
use tercet_program::SlotId;
use tercet_program::SymInt;

/// Minimum number of rows for which dequantizing all weights pays off.
pub(super) fn min_rows(e: &LoweringCtx<'_>) -> u32 {
    e.caps.device.rates.rows.min_rows_for_dequant
}

/// Maximum size of dequantized weights in bytes; larger weights are dequantized inside the GEMM.
const MAX_DECODED_BYTES: usize = 512 << 20;

/// True if the weights of this matmul may be dequantized to this dtype first.
pub(super) fn fits(
    e: &LoweringCtx<'_>,
    p: &MatMulProblem,
    dtype: DType,
) -> Result<bool, CompileError> {
    let (n, k) = (e.bound(&p.n)?, e.bound(&p.k)?);
    let bytes = n.saturating_mul(k).saturating_mul(dtype.size_bytes());
    let is_bound = bytes as u64 <= e.caps.max_binding_bytes;
    Ok(bytes > 0 && bytes <= MAX_DECODED_BYTES && is_bound)
}

/// Symbolic value: 1 if F16 represents the weights accurately, else 0. `None` if that is not known,
/// because the weights are no parameters.
pub(super) fn fits_f16(e: &mut LoweringCtx<'_>, blocks: &PackedWeights) -> Option<SymInt> {
    let params = blocks.params.clone()?;
    Some(params.into_iter().fold(SymInt::ONE, |all, at| {
        let fits = e.tape().fits_f16(at);
        e.tape().mul(all, fits)
    }))
}

/// The GEMM on cooperative matrices after the dequantization.
enum MatrixGemm {
    SpirV(CoopMatMul),
    Wgsl(WgslMatMul),
}

/// The plan for a GEMM that dequantizes its weights to 16 bits first.
pub(super) struct DequantGemm {
    product: MatMulProblem,
    /// Slot of the activation rows before any cast to 16 bits.
    rows: SlotId,
    /// The cast of F32 rows to 16 bits, if it is allowed and required.
    rounding: Option<ReducedPrecisionMatMul>,
    matrices: MatrixGemm,
    weights: SlotView,
}

impl DequantGemm {
    /// The plan for a matmul with quantized weights; `None` if it is not supported.
    pub(super) fn new(
        e: &mut LoweringCtx<'_>,
        p: &MatMulProblem,
        blocks: &PackedWeights,
        y: &SlotView,
    ) -> Result<Option<DequantGemm>, CompileError> {
        let narrow = reduced_precision::dtype_of(e, p);
        let dtype = narrow.unwrap_or(p.a.dtype);
        let some = fits(e, p, dtype)? && e.bound(&p.m)? > min_rows(e) as usize;
        let known = dtype == DType::BF16 || (dtype == DType::F16 && blocks.params.is_some());
        let has_matrices = e.caps.spirv && !e.caps.coop.is_empty();
        let has_wgsl = dtype == DType::F16
            && e.caps.has_wgsl_matrices(WgslCoopType::F16)
            && e.may_use(LARGE_M, WGSL_MATRICES);
        if !some || !known || !(has_matrices || has_wgsl) {
            return Ok(None);
        }
        let weights = e.temp(dtype, &[p.n.clone(), p.k.clone()])?;
        let rounding = narrow
            .map(|to| ReducedPrecisionMatMul::new(e, p, to))
            .transpose()?;
        let rows = rounding.as_ref().map_or(p, |r| &r.product);
        let product = MatMulProblem {
            b: MatMulOperand::new(e, &weights, Some(0), 1, &[]),
            ..rows.clone()
        };
        let matrices = match CoopMatMul::new(e, &product, y)? {
            Some(coop) => Some(MatrixGemm::SpirV(coop)),
            None if has_wgsl => WgslMatMul::new(e, &product, None, y)?.map(MatrixGemm::Wgsl),
            None => None,
        };
        Ok(matrices.map(|matrices| DequantGemm {
            product,
            rows: p.a.slot,
            rounding,
            matrices,
            weights,
        }))
    }

    /// Symbolic value: 1 if the 16-bit target dtype represents the weights accurately, else 0.
    pub(super) fn fits_dtype(&self, e: &mut LoweringCtx<'_>, blocks: &PackedWeights) -> SymInt {
        match self.weights.dtype {
            DType::F16 => fits_f16(e, blocks).unwrap_or(SymInt::ONE),
            _ => SymInt::ONE,
        }
    }

    /// Dequantizes the weights, concurrently with an earlier matmul if possible
    /// (`emit/dequant_schedule.rs`), then runs the GEMM.
    pub(super) fn dispatch(
        &self,
        e: &mut LoweringCtx<'_>,
        blocks: &PackedWeights,
        y: &SlotView,
    ) -> Result<(), CompileError> {
        if let Some(rounding) = &self.rounding {
            rounding.emit(e);
        }
        let given = matmul_args(e, &self.product, y)?;
        let k = e.num(&self.product.k);
        let [groups, _] = piece_consts(blocks.scheme);
        let weights = e.numel(&[self.product.n.clone(), self.product.k.clone()]);
        let pieces = e.tape().div(weights, SymInt::Const(i64::from(16 * groups)));
        let params = UnpackHalfParams {
            pieces,
            offset: e.offset(&blocks.view),
            row_len: k,
            row_stride: e.strides(&blocks.view)[0],
        };
        let taken = self.product.a.slot;
        let order = e.order_of_decoding(self.rows, taken, self.weights.slot);
        unpack_half(e, blocks, order, &self.weights, &params)?;
        match &self.matrices {
            MatrixGemm::SpirV(coop) => coop.dispatch(e, &given, &self.product),
            MatrixGemm::Wgsl(wgsl) => wgsl.emit_alone(e, LARGE_M, &self.product, &given),
        }
    }
}

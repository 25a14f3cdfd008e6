//! Lowering of a norm of a residual sum; the sum is a second result.

use tercet_ir::{CompileError, DType};

use super::{
    NormOperands, NormReaders, NormResidualParams, NormResidualVectorsParams, RESIDUAL,
    RESIDUAL_VECTORS, RowLayout, SUM, cache, groups, in_vectors, matrix, optional, plain, share,
};
use crate::emit::{LoweringCtx, SlotView};
use crate::lowerings::code;
use tercet_program::SymInt;

/// The operands of a residual sum, and the view that receives the sum.
pub(super) struct ResidualSum {
    pub(super) x: (SlotView, RowLayout),
    pub(super) residual: (SlotView, RowLayout),
    pub(super) bias: Option<SlotView>,
    pub(super) sum: SlotView,
}

impl ResidualSum {
    pub(super) fn lower(
        &self,
        e: &mut LoweringCtx<'_>,
        norm: &NormOperands,
        y: &SlotView,
        axis: usize,
    ) -> Result<(), CompileError> {
        let ResidualSum {
            x: (x, rows),
            residual: (residual, other),
            bias,
            sum,
        } = self;
        let params = NormResidualParams {
            rows: rows.rows,
            len: rows.len,
            x_offset: rows.offset,
            x_row: rows.strides[0],
            x_stride: rows.stride(),
            r_offset: other.offset,
            r_row: other.strides[0],
            r_stride: other.stride(),
            eps: norm.eps,
        };
        let dtype = code(x.dtype);
        let (has_bias, bias) = optional(e, bias)?;
        if let (Some((vectors, share)), Some(_)) =
            (in_vectors(e, rows, x.dtype), other.per_vector(e, x.dtype))
        {
            let (has_beta, beta) = optional(e, &norm.beta)?;
            let (threads, rms) = (share.threads, u32::from(norm.rms));
            let consts = [dtype, vectors, threads, 0, rms, has_beta, has_bias];
            let gamma = norm.gamma.slot;
            let args = [x.slot, residual.slot, gamma, beta, bias, y.slot, sum.slot];
            let grid = groups(e, rows, share);
            let params = NormResidualVectorsParams {
                norm: params,
                y_panels: SymInt::ZERO,
            };
            e.dispatch(&RESIDUAL_VECTORS, &consts, &args, &params, grid);
            let size = [rows.rows, rows.len];
            e.offer_panels::<NormResidualVectorsParams>("y_panels", y.slot, size);
            return Ok(());
        }
        let per = rows.per_word(x.dtype).min(other.per_word(x.dtype));
        if per == 1 && x.dtype != DType::F32 {
            let args = [x.slot, residual.slot, bias, sum.slot];
            let words = e.words(sum.dtype, sum.layout.shape());
            let grid = e.grid_of(words, 256);
            e.dispatch(&SUM, &[dtype, has_bias], &args, &params, grid);
            let (sum, rows) = matrix(e, sum, axis)?;
            return plain(e, norm, &sum, &rows, y, NormReaders::Nodes);
        }
        let units = rows.bounds.len / per as usize;
        let share = share(rows, units);
        let (has_beta, beta) = optional(e, &norm.beta)?;
        let (threads, rms) = (share.threads, u32::from(norm.rms));
        let cached = cache(units, threads);
        let consts = [dtype, per, threads, 0, cached, rms, has_beta, has_bias];
        let weights = [norm.gamma.slot, beta, bias];
        let [gamma, beta, bias] = weights;
        let args = [x.slot, residual.slot, gamma, beta, bias, y.slot, sum.slot];
        let grid = groups(e, rows, share);
        e.dispatch(&RESIDUAL, &consts, &args, &params, grid);
        Ok(())
    }
}

//! Convolution weight gradients on cooperative matrices.
//!
//! The shader is `shaders/vulkan/include/gemm_coop.glsl` with `weights.glsl`. The rows of the GEMM
//! are the channels of `dy` in a group, its columns the channels of `x` times taps. The reduction
//! axis `k` runs over the windows of all batch entries; the windows of each entry are padded to
//! whole k steps.

use tercet_ir::{CompileError, DType};

use super::weights::WeightGradProblem;
use crate::caps::CoopType;
use crate::emit::{LoweringCtx, SlotView};
use crate::lowerings::gemm_coop::{
    self, CoopGemmOptions, CoopGemmTiling, GemmCoopParams, ImplicitGemm, module,
};
use crate::tuning::GemmProblem;
use tercet_program::SymInt;
use tercet_program::{TypedKernel, kernel_names as names};

crate::params! {
    /// Parameter block of `gemm_params.glsl` with `weight_params.glsl`.
    pub struct WeightCoopParams {
        ..product: GemmCoopParams,
        windows: U32,
        span: U32,
        x_channel: U32,
        x_deep: U32,
        x_row: U32,
        x_col: U32,
        tap_d: U32,
        tap_h: U32,
        tap_w: U32,
        size_d: U32,
        size_h: U32,
        size_w: U32,
        out_h: U32,
        out_w: U32,
        stride_d: U32,
        stride_h: U32,
        stride_w: U32,
        dilation_d: U32,
        dilation_h: U32,
        dilation_w: U32,
        pad_d: U32,
        pad_h: U32,
        pad_w: U32,
    }
}

const CONSTS: &[&str] = names![gemm_coop::CONSTS, &["GATHERS", "KD", "KH", "KW"]];

pub(super) static F16: TypedKernel<WeightCoopParams> = TypedKernel::spirv(
    "conv_weights_f16",
    module!("conv_weights_f16.spv"),
    gemm_coop::ARGS,
    CONSTS,
);

pub(super) static BF16: TypedKernel<WeightCoopParams> = TypedKernel::spirv(
    "conv_weights_bf16",
    module!("conv_weights_bf16.spv"),
    gemm_coop::ARGS,
    CONSTS,
);

/// Maximum number of taps per window, because the kernel has one bit per tap in a 64-bit mask.
const MAX_TAPS: usize = 64;

/// Minimum number of GEMM rows and columns, so that matrix fragments are not mostly padding.
const MIN_FRAGMENT_DIM: usize = 16;

/// Length of a k step in most tilings; the cost model assumes this length.
const STEP: usize = 32;

/// Number of elements per vector load from the operands.
const LOAD: usize = 8;

/// A way to compute a weight gradient on cooperative matrices, with its tiling.
pub(super) struct CoopWeightGrad {
    ty: CoopType,
    tiling: CoopGemmTiling,
    /// True if the kernel gathers windows from `x`. False if windows are single elements, so that
    /// the rows of both operands are contiguous along `k`.
    gathers: bool,
    seconds: f64,
}

impl CoopWeightGrad {
    /// `None` if the device lacks cooperative matrices of this type, or the kernel does not support
    /// the gradient.
    pub(super) fn new(
        e: &LoweringCtx<'_>,
        g: &WeightGradProblem,
    ) -> Result<Option<CoopWeightGrad>, CompileError> {
        let Some(ty) = gemm_coop::type_of(g.x.dtype) else {
            return Ok(None);
        };
        let (m, n) = (e.bound(&g.m)?, e.bound(&g.n)?);
        let taps: usize = g.windows.kernel.iter().product();
        if m < MIN_FRAGMENT_DIM || n < MIN_FRAGMENT_DIM || taps > MAX_TAPS {
            return Ok(None);
        }
        let gathers = !(g.windows.are_elements() && g.x.layout.is_contiguous());
        let entries = e.bound(&g.x.layout.shape()[0])?;
        let span = e.bound(&g.windows.count)?.div_ceil(STEP) * STEP;
        let problem = GemmProblem {
            dtype: g.x.dtype,
            b_transposed: !gathers,
            m,
            n,
            k: entries.saturating_mul(span),
        };
        let bytes = m.saturating_mul(n).saturating_mul(4 * g.groups);
        let most = WeightGradProblem::max_bytes(e) / bytes.max(1) as u64;
        let gathering = ImplicitGemm {
            products: g.groups,
            channels: None,
            max_parts: most.min(u64::from(u32::MAX)) as u32,
        };
        let chosen =
            CoopGemmTiling::choose_for_weight_grad(e.caps, ty, &problem, gathers, &gathering);
        Ok(chosen.map(|(tiling, seconds)| CoopWeightGrad {
            ty,
            tiling,
            gathers,
            seconds,
        }))
    }

    /// Name of the tiling.
    pub(super) fn name(&self) -> String {
        self.tiling.to_string()
    }

    /// Estimated time in seconds.
    pub(super) fn seconds(&self, _: &LoweringCtx<'_>) -> f64 {
        self.seconds
    }

    /// Dispatches the gradient.
    pub(super) fn dispatch(
        &self,
        e: &mut LoweringCtx<'_>,
        g: &WeightGradProblem,
    ) -> Result<(), CompileError> {
        let splits = self.tiling.splits;
        if splits == 1 {
            self.tiles(e, g, &g.y);
            return Ok(());
        }
        let parts = g.parts(e, splits)?;
        self.tiles(e, g, &parts);
        g.finish(e, &parts, splits)
    }

    /// Dispatches the GEMM, which writes results or split-K partial sums to `to`.
    fn tiles(&self, e: &mut LoweringCtx<'_>, g: &WeightGradProblem, to: &SlotView) {
        let whole = |n: Option<usize>| n.is_some_and(|n| n.is_multiple_of(LOAD));
        let x = &g.x.layout;
        let mut lines = x.offset().iter().chain(&x.strides()[..2]);
        let windows = whole(g.windows.count.known());
        let options = CoopGemmOptions {
            b_transposed: !self.gathers,
            aligned_a: windows,
            aligned_b: windows && lines.all(|t| t.power_of_two() >= LOAD as u64),
            out_f32: to.dtype == DType::F32,
            aligned_c: whole(g.n.known()),
            planes: true,
            min_rows: 1,
            ..CoopGemmOptions::default()
        };
        let params = self.params(e, g);
        let mut consts = gemm_coop::constants(&self.tiling, &options);
        let [_, kd, kh, kw] = g.windows.consts();
        consts.extend([u32::from(self.gathers), kd, kh, kw]);
        let [bm, bn, _] = self.tiling.tile;
        let p = &params.product;
        let tape = e.tape();
        let (down, across) = (tape.ceil_div(p.m, bm), tape.ceil_div(p.n, bn));
        let tiles = tape.mul(down, across);
        let depth = tape.mul(p.batches, p.splits);
        let [gx, gy, _] = e.flat_grid(tiles);
        let limit = e.caps.max_grid;
        let depth = e.tape().min(depth, limit);
        let kernel = match self.ty {
            CoopType::F16 => &F16,
            CoopType::BF16 => &BF16,
        };
        // The two repeated `dy` slots are dummies for bias and residual, which the kernel does not
        // read.
        let args = [g.dy.slot, g.x.slot, g.dy.slot, g.dy.slot, to.slot];
        e.dispatch(kernel, &consts, &args, &params, [gx, gy, depth]);
    }

    fn params(&self, e: &mut LoweringCtx<'_>, g: &WeightGradProblem) -> WeightCoopParams {
        let w = g.windows.params(e, &g.x);
        let (m, n, own) = (e.num(&g.m), e.num(&g.n), e.num(&g.own));
        let groups = SymInt::Const(g.groups as i64);
        let step = self.tiling.tile[2];
        let tape = e.tape();
        let steps = tape.ceil_div(w.windows, step);
        let span = tape.mul(steps, SymInt::Const(step.into()));
        let k = tape.mul(w.batch, span);
        let rows = tape.mul(m, w.windows);
        let len = tape.mul(m, n);
        let all = tape.mul(groups, len);
        let splits = SymInt::Const(i64::from(self.tiling.splits));
        let product = GemmCoopParams {
            m,
            n,
            k,
            batches: groups,
            batch_inner: groups,
            splits,
            split_k: self.tiling.split_k(tape, k),
            lda: w.windows,
            ldb: w.x_channel,
            ldc: n,
            ld_residual: SymInt::ZERO,
            offset_a: SymInt::ZERO,
            offset_b: w.x_offset,
            offset_c: SymInt::ZERO,
            offset_bias: SymInt::ZERO,
            offset_residual: SymInt::ZERO,
            outer_a: tape.mul(groups, rows),
            outer_b: w.x_batch,
            outer_c: all,
            outer_residual: SymInt::ZERO,
            inner_a: rows,
            inner_b: tape.mul(own, w.x_channel),
            inner_c: len,
            inner_residual: SymInt::ZERO,
            split_c: all,
            len_c: tape.mul(all, splits),
        };
        WeightCoopParams {
            product,
            windows: w.windows,
            span,
            x_channel: w.x_channel,
            x_deep: w.x_deep,
            x_row: w.x_row,
            x_col: w.x_col,
            tap_d: tape.mul(w.dilation_d, w.x_deep),
            tap_h: tape.mul(w.dilation_h, w.x_row),
            tap_w: tape.mul(w.dilation_w, w.x_col),
            size_d: w.size_d,
            size_h: w.size_h,
            size_w: w.size_w,
            out_h: w.out_h,
            out_w: w.out_w,
            stride_d: w.stride_d,
            stride_h: w.stride_h,
            stride_w: w.stride_w,
            dilation_d: w.dilation_d,
            dilation_h: w.dilation_h,
            dilation_w: w.dilation_w,
            pad_d: w.pad_d,
            pad_h: w.pad_h,
            pad_w: w.pad_w,
        }
    }
}

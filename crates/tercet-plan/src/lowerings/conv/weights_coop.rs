//! Gradients of convolutions' weights on cooperative matrices.
//!
//! The shader is `shaders/vulkan/include/gemm_coop.glsl` with `weights.glsl`. Rows are the channels of `dy` in a group,
//! columns those of `x` and their taps, `k` the windows of all batch entries, each rounded up to whole steps.

use tercet_ir::{CompileError, DType};

use super::weights::Given;
use crate::caps::CoopType;
use crate::emit::{Emit, View};
use crate::families::gemm_coop::{self, Gathering, GemmCoopParams, Options, Tiling, module};
use crate::kernel::{Kernel, names};
use crate::num::Num;
use crate::tuning::GemmProblem;

crate::params! {
    /// The block of `gemm_params.glsl` with `weight_params.glsl`.
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

pub(super) static F16: Kernel<WeightCoopParams> = Kernel::spirv(
    "conv_weights_f16",
    module!("conv_weights_f16.spv"),
    gemm_coop::ARGS,
    CONSTS,
);

pub(super) static BF16: Kernel<WeightCoopParams> = Kernel::spirv(
    "conv_weights_bf16",
    module!("conv_weights_bf16.spv"),
    gemm_coop::ARGS,
    CONSTS,
);

/// Taps of a window that the kernel has a bit for.
const MOST_TAPS: usize = 64;

/// The least rows and columns that fill fragments.
const LEAST: usize = 16;

/// What a step of most tilings takes of `k`, for the model.
const STEP: usize = 32;

/// Elements that operands are read by.
const LOAD: usize = 8;

/// How the kernel computes a gradient.
pub(super) struct Coop {
    ty: CoopType,
    tiling: Tiling,
    /// False if windows are elements, so that both operands are rows of `k`.
    gathers: bool,
    seconds: f64,
}

impl Coop {
    /// None where the device has no cooperative matrices of this type, or the kernel does not take it.
    pub(super) fn of(e: &Emit<'_>, g: &Given) -> Result<Option<Coop>, CompileError> {
        let Some(ty) = gemm_coop::type_of(g.x.dtype) else {
            return Ok(None);
        };
        let (m, n) = (e.bound(&g.m)?, e.bound(&g.n)?);
        let taps: usize = g.windows.kernel.iter().product();
        if m < LEAST || n < LEAST || taps > MOST_TAPS {
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
        let most = Given::most_bytes(e) / bytes.max(1) as u64;
        let gathering = Gathering {
            products: g.groups,
            channels: None,
            most_parts: most.min(u64::from(u32::MAX)) as u32,
        };
        let chosen = Tiling::choose_for_weights(e.caps, ty, &problem, gathers, &gathering);
        Ok(chosen.map(|(tiling, seconds)| Coop {
            ty,
            tiling,
            gathers,
            seconds,
        }))
    }

    /// The name of its tiling.
    pub(super) fn name(&self) -> String {
        self.tiling.to_string()
    }

    /// About how many seconds it takes.
    pub(super) fn seconds(&self, _: &Emit<'_>) -> f64 {
        self.seconds
    }

    /// Runs it.
    pub(super) fn dispatch(&self, e: &mut Emit<'_>, g: &Given) -> Result<(), CompileError> {
        let splits = self.tiling.splits;
        if splits == 1 {
            self.tiles(e, g, &g.y);
            return Ok(());
        }
        let parts = g.parts(e, splits)?;
        self.tiles(e, g, &parts);
        g.finish(e, &parts, splits)
    }

    /// Dispatches the tiles into the result, or into sums of parts.
    fn tiles(&self, e: &mut Emit<'_>, g: &Given, to: &View) {
        let whole = |n: Option<usize>| n.is_some_and(|n| n.is_multiple_of(LOAD));
        let x = &g.x.layout;
        let mut lines = x.offset().iter().chain(&x.strides()[..2]);
        let windows = whole(g.windows.count.known());
        let options = Options {
            b_transposed: !self.gathers,
            aligned_a: windows,
            aligned_b: windows && lines.all(|t| t.power_of_two() >= LOAD as u64),
            out_f32: to.dtype == DType::F32,
            aligned_c: whole(g.n.known()),
            planes: true,
            least_rows: 1,
            ..Options::default()
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
        // Neither bias nor residual is read.
        let args = [g.dy.slot, g.x.slot, g.dy.slot, g.dy.slot, to.slot];
        e.dispatch(kernel, &consts, &args, &params, [gx, gy, depth]);
    }

    fn params(&self, e: &mut Emit<'_>, g: &Given) -> WeightCoopParams {
        let w = g.windows.params(e, &g.x);
        let (m, n, own) = (e.num(&g.m), e.num(&g.n), e.num(&g.own));
        let groups = Num::Const(g.groups as i64);
        let step = self.tiling.tile[2];
        let tape = e.tape();
        let steps = tape.ceil_div(w.windows, step);
        let span = tape.mul(steps, Num::Const(step.into()));
        let k = tape.mul(w.batch, span);
        let rows = tape.mul(m, w.windows);
        let len = tape.mul(m, n);
        let all = tape.mul(groups, len);
        let splits = Num::Const(i64::from(self.tiling.splits));
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
            ld_residual: Num::ZERO,
            offset_a: Num::ZERO,
            offset_b: w.x_offset,
            offset_c: Num::ZERO,
            offset_bias: Num::ZERO,
            offset_residual: Num::ZERO,
            outer_a: tape.mul(groups, rows),
            outer_b: w.x_batch,
            outer_c: all,
            outer_residual: Num::ZERO,
            inner_a: rows,
            inner_b: tape.mul(own, w.x_channel),
            inner_c: len,
            inner_residual: Num::ZERO,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_declare_the_block_the_arguments_and_the_constants() {
        gemm_coop::tests::agrees(&F16.def);
        gemm_coop::tests::agrees(&BF16.def);
    }
}

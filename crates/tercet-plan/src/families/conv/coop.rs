//! Convolutions of 16-bit floats on cooperative matrices: a product that gathers windows while it stages
//! them (implicit GEMM), with bias and function.
//!
//! The shader is `shaders/vulkan/include/gemm_coop.glsl` with `windows.glsl`. Rows are the channels of the
//! result in a group, columns its windows; batch entries and groups are batches.

use tercet_ir::{CompileError, DType};

use super::Given;
use crate::caps::CoopType;
use crate::emit::Emit;
use crate::families::gemm_coop::{self, Options, Tiling, module, names};
use crate::kernel::Kernel;
use crate::num::Num;
use crate::tuning::Problem;

crate::params! {
    /// The block of `gemm_params.glsl` with `window_params.glsl`.
    pub struct ConvCoopParams {
        m: U32,
        n: U32,
        k: U32,
        batches: U32,
        batch_inner: U32,
        splits: U32,
        split_k: U32,
        lda: U32,
        ldb: U32,
        ldc: U32,
        ld_residual: U32,
        offset_a: U32,
        offset_b: U32,
        offset_c: U32,
        offset_bias: U32,
        offset_residual: U32,
        outer_a: U32,
        outer_b: U32,
        outer_c: U32,
        outer_residual: U32,
        inner_a: U32,
        inner_b: U32,
        inner_c: U32,
        inner_residual: U32,
        split_c: U32,
        len_c: U32,
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

const CONSTS: &[&str] = names!["GATHERS", "KD", "KH", "KW"];

pub(super) static F16: Kernel<ConvCoopParams> = Kernel::spirv(
    "conv_coop_f16",
    module!("conv_coop_f16.spv"),
    gemm_coop::ARGS,
    CONSTS,
);

pub(super) static BF16: Kernel<ConvCoopParams> = Kernel::spirv(
    "conv_coop_bf16",
    module!("conv_coop_bf16.spv"),
    gemm_coop::ARGS,
    CONSTS,
);

/// Taps of a window that the kernel has a bit for.
const MOST_TAPS: usize = 64;

/// The least channels of a group of the result, and sums of each, that fill fragments.
const LEAST: usize = 16;

/// How the kernel computes a convolution.
pub(super) struct Coop {
    ty: CoopType,
    tiling: Tiling,
}

impl Coop {
    /// None where the device has no cooperative matrices of this type, or the kernel does not take it.
    pub(super) fn of(e: &Emit<'_>, c: &Given<'_>) -> Result<Option<Coop>, CompileError> {
        let ty = match c.x.dtype {
            DType::F16 => CoopType::F16,
            DType::BF16 => CoopType::BF16,
            _ => return Ok(None),
        };
        let (m, k) = (e.bound(&c.m)?, e.bound(&c.k)?);
        let taps: usize = c.windows.kernel.iter().product();
        if m < LEAST || k < LEAST || taps > MOST_TAPS {
            return Ok(None);
        }
        let problem = Problem {
            dtype: c.x.dtype,
            b_transposed: false,
            m,
            n: e.bound(&c.windows.count)?,
            k,
        };
        let entries = e.bound(&c.x.layout.shape()[0])?;
        let batches = entries.saturating_mul(c.op.groups);
        let tiling = Tiling::choose_for_batches(e.caps, ty, &problem, batches);
        Ok(tiling.map(|tiling| Coop { ty, tiling }))
    }

    /// Runs it.
    pub(super) fn dispatch(&self, e: &mut Emit<'_>, c: &Given<'_>) -> Result<(), CompileError> {
        let epilogue = c.epilogue(e)?;
        let x_strides = e.strides(&c.x);
        // Windows that are elements are rows of B.
        let dense = c.windows.are_elements() && c.x.layout.is_contiguous();
        let own = e.num(&c.own);
        let params = self.params(e, c, &epilogue, [x_strides[0], x_strides[1], own]);
        let whole = |n: Option<usize>| n.is_some_and(|n| n.is_multiple_of(8));
        let known_n = c.windows.count.known();
        let x = &c.x.layout;
        let mut lines = x.offset().iter().chain(&x.strides()[..2]);
        let x_is_whole = lines.all(|t| t.power_of_two() >= 8);
        let options = Options {
            b_transposed: false,
            aligned_a: whole(c.k.known()),
            aligned_b: whole(known_n) && x_is_whole,
            activation: c.op.activation,
            bias_f32: c.bias.as_ref().map(|b| b.dtype == DType::F32),
            residual_f32: None,
            out_f32: false,
            aligned_c: whole(known_n),
            planes: true,
        };
        let mut consts = gemm_coop::constants(&self.tiling, &options);
        let [_, kd, kh, kw] = c.windows.consts();
        consts.extend([u32::from(!dense), kd, kh, kw]);
        let [bm, bn, _] = self.tiling.tile;
        let tape = e.tape();
        let (down, across) = (tape.ceil_div(params.m, bm), tape.ceil_div(params.n, bn));
        let tiles = tape.mul(down, across);
        let [gx, gy, _] = e.flat_grid(tiles);
        let limit = e.caps.max_grid;
        let depth = e.tape().min(params.batches, limit);
        let bias = match &c.bias {
            Some(_) => epilogue.bias,
            None => c.w.slot,
        };
        let kernel = match self.ty {
            CoopType::F16 => &F16,
            CoopType::BF16 => &BF16,
        };
        let args = [c.w.slot, c.x.slot, bias, bias, c.y.slot];
        e.dispatch(kernel, &consts, &args, &params, [gx, gy, depth]);
        Ok(())
    }

    fn params(
        &self,
        e: &mut Emit<'_>,
        c: &Given<'_>,
        epilogue: &super::Epilogue,
        [x_batch, x_channel, own]: [Num; 3],
    ) -> ConvCoopParams {
        let w = c.windows.params(e, &c.x);
        let (m, n, k) = (e.num(&c.m), w.windows, e.num(&c.k));
        let groups = Num::Const(c.op.groups as i64);
        let offset_a = e.offset(&c.w);
        let tape = e.tape();
        let batches = tape.mul(w.batch, groups);
        let len = tape.mul(m, n);
        ConvCoopParams {
            m,
            n,
            k,
            batches,
            batch_inner: groups,
            splits: Num::ONE,
            split_k: k,
            lda: k,
            ldb: w.x_channel,
            ldc: n,
            ld_residual: epilogue.stride,
            offset_a,
            offset_b: w.x_offset,
            offset_c: Num::ZERO,
            offset_bias: Num::ZERO,
            offset_residual: epilogue.offset,
            outer_a: Num::ZERO,
            outer_b: x_batch,
            outer_c: tape.mul(groups, len),
            outer_residual: Num::ZERO,
            inner_a: tape.mul(m, k),
            inner_b: tape.mul(own, x_channel),
            inner_c: len,
            inner_residual: tape.mul(m, epilogue.stride),
            split_c: Num::ZERO,
            len_c: tape.mul(batches, len),
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

//! 16-bit convolutions on cooperative matrices as implicit GEMM, which gathers windows during
//! staging, with bias and activation.
//!
//! The shader is `shaders/vulkan/include/gemm_coop.glsl` with `windows.glsl`. The rows of the GEMM
//! are the output channels of a group, its columns the windows of all batch entries. The groups
//! form the batch of the GEMM. If there are fewer tiles than the device runs concurrently, the GEMM
//! uses split-K, and `conv_finish.wgsl` adds the partial sums.

use tercet_ir::{CompileError, DType, Dim};

use super::windows::WindowParams;
use super::{ConvEpilogueArgs, ConvProblem, PartialSumLayout};
use crate::caps::CoopType;
use crate::emit::{LoweringCtx, SlotView};
use crate::lowerings::gemm_coop::{
    self, CoopGemmOptions, CoopGemmTiling, GemmCoopParams, ImplicitGemm, module,
};
use crate::tuning::GemmProblem;
use tercet_program::SlotId;
use tercet_program::SymInt;
use tercet_program::{TypedKernel, kernel_names as names};

crate::params! {
    /// Parameter block of `gemm_params.glsl` with `window_params.glsl`.
    pub struct ConvCoopParams {
        ..product: GemmCoopParams,
        windows: U32,
        c_entry: U32,
        channels: U32,
        x_batch: U32,
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

const CONSTS: &[&str] = names![
    gemm_coop::CONSTS,
    &["GATHERS", "KD", "KH", "KW", "INNER", "SPREAD"]
];

pub(super) static F16: TypedKernel<ConvCoopParams> = TypedKernel::spirv(
    "conv_coop_f16",
    module!("conv_coop_f16.spv"),
    gemm_coop::ARGS,
    CONSTS,
);

pub(super) static BF16: TypedKernel<ConvCoopParams> = TypedKernel::spirv(
    "conv_coop_bf16",
    module!("conv_coop_bf16.spv"),
    gemm_coop::ARGS,
    CONSTS,
);

/// Maximum number of taps per window, because the kernel has one bit per tap in a 64-bit mask.
const MAX_TAPS: usize = 64;

/// Minimum number of output channels per group and minimum reduction length, so that matrix
/// fragments are not mostly padding.
const MIN_FRAGMENT_DIM: usize = 16;

/// A way to compute a convolution on cooperative matrices, with its tiling.
pub(super) struct CoopConv {
    ty: CoopType,
    tiling: CoopGemmTiling,
    /// True for an implicit GEMM with the windows of all batch entries as columns. False for one
    /// GEMM per batch entry that reads the input as right operand (B) in its original layout.
    gathers: bool,
    /// True if the weights are reordered so that all channels of a tap are adjacent. This order
    /// requires that the number of channels is a multiple of the k step, and that the weights are
    /// constant or small compared to the windows.
    inner: bool,
    problem: GemmProblem,
    /// Number of GEMMs of the size `problem`.
    products: usize,
}

impl CoopConv {
    /// `None` if the device lacks cooperative matrices of this type, or the kernel does not support
    /// the convolution.
    pub(super) fn new(
        e: &LoweringCtx<'_>,
        c: &ConvProblem<'_>,
    ) -> Result<Option<CoopConv>, CompileError> {
        let ty = match c.x.dtype {
            DType::F16 => CoopType::F16,
            DType::BF16 => CoopType::BF16,
            _ => return Ok(None),
        };
        let (m, k) = (e.bound(&c.m)?, e.bound(&c.k)?);
        let taps: usize = c.windows.kernel.iter().product();
        if m < MIN_FRAGMENT_DIM || k < MIN_FRAGMENT_DIM || taps > MAX_TAPS {
            return Ok(None);
        }
        // If windows are single elements, the input itself is the right operand (B). Gathering it
        // may still be faster if its rows are not aligned.
        let are_rows = c.windows.are_elements() && c.x.layout.is_contiguous();
        let is_whole = c.windows.count.known().is_some_and(|n| n.is_multiple_of(8));
        let ways: &[bool] = match (are_rows, is_whole) {
            (false, _) => &[true],
            (true, true) => &[false],
            (true, false) => &[false, true],
        };
        let mut best: Option<CoopConv> = None;
        for &gathers in ways {
            let Some(coop) = CoopConv::choose_algorithm(e, c, ty, gathers)? else {
                continue;
            };
            let seconds = |coop: &CoopConv| match coop.gathers || is_whole {
                true => coop.seconds(e),
                false => coop.seconds(e) * e.caps.device.rates.matrices.broken_rows,
            };
            if best.as_ref().is_none_or(|b| seconds(&coop) < seconds(b)) {
                best = Some(coop);
            }
        }
        Ok(best)
    }

    /// The fastest tiling of the implicit GEMM (`gathers`), or of GEMMs that read the input in its
    /// original layout.
    fn choose_algorithm(
        e: &LoweringCtx<'_>,
        c: &ConvProblem<'_>,
        ty: CoopType,
        gathers: bool,
    ) -> Result<Option<CoopConv>, CompileError> {
        let (m, k) = (e.bound(&c.m)?, e.bound(&c.k)?);
        let (n, entries) = (e.bound(&c.windows.count)?, e.bound(&c.x.layout.shape()[0])?);
        let mut problem = GemmProblem {
            dtype: c.x.dtype,
            b_transposed: gathers,
            m,
            n,
            k,
        };
        let products = match gathers {
            true => c.op.groups,
            false => entries.saturating_mul(c.op.groups),
        };
        let pays = e.is_constant(&c.w)
            || n.saturating_mul(entries) >= e.caps.device.rates.matrices.min_windows_for_prepack;
        let tiling = match gathers {
            true => {
                problem.n = n.saturating_mul(entries);
                let gathering = ImplicitGemm {
                    products,
                    channels: c.out_channels_dim.known().filter(|_| pays),
                    max_parts: c.max_parts(e)?,
                };
                CoopGemmTiling::choose_for_windows(e.caps, ty, &problem, &gathering)
            }
            false => CoopGemmTiling::choose_for_batches(e.caps, ty, &problem, products),
        };
        Ok(tiling.map(|tiling| {
            let whole = |n: usize| n.is_multiple_of(tiling.tile[2] as usize);
            CoopConv {
                ty,
                tiling,
                gathers,
                inner: gathers && c.out_channels_dim.known().is_some_and(whole) && pays,
                problem,
                products,
            }
        }))
    }

    /// Name of the tiling.
    pub(super) fn name(&self) -> String {
        self.tiling.to_string()
    }

    /// Estimated time in seconds.
    pub(super) fn seconds(&self, e: &LoweringCtx<'_>) -> f64 {
        let products = self.products;
        match self.gathers {
            true => self
                .tiling
                .seconds_for_windows(e.caps, self.ty, &self.problem, products),
            false => self
                .tiling
                .seconds(e.caps, self.ty, &self.problem, products),
        }
    }

    /// Dispatches the convolution.
    pub(super) fn dispatch(
        &self,
        e: &mut LoweringCtx<'_>,
        c: &ConvProblem<'_>,
    ) -> Result<(), CompileError> {
        let w = match self.inner {
            true => tap_by_tap(e, c)?,
            false => c.w.clone(),
        };
        let splits = self.tiling.splits;
        if splits == 1 {
            let epilogue = c.epilogue(e)?;
            let bias = c.bias.as_ref().map_or(w.slot, |_| epilogue.bias);
            self.tiles(
                e,
                c,
                &self.options(c, false),
                &epilogue,
                [w.slot, bias, c.y.slot],
            );
            return Ok(());
        }
        let parts = c.parts(e, splits)?;
        let none = ConvEpilogueArgs::none(w.slot);
        self.tiles(
            e,
            c,
            &self.options(c, true),
            &none,
            [w.slot, w.slot, parts.slot],
        );
        c.finish(e, &parts, PartialSumLayout::SplitK(splits))
    }

    fn options(&self, c: &ConvProblem<'_>, parts: bool) -> CoopGemmOptions {
        let whole = |n: Option<usize>| n.is_some_and(|n| n.is_multiple_of(8));
        let known_n = c.windows.count.known();
        let entries = c.x.layout.shape()[0].known();
        let x = &c.x.layout;
        let mut lines = x.offset().iter().chain(&x.strides()[..2]);
        let x_is_whole = lines.all(|t| t.power_of_two() >= 8);
        let options = CoopGemmOptions {
            b_transposed: self.gathers,
            aligned_a: whole(c.k.known()),
            aligned_b: whole(known_n) && x_is_whole,
            activation: c.op.activation,
            bias_f32: c.bias.as_ref().map(|b| b.dtype == DType::F32),
            residual_f32: None,
            out_f32: false,
            aligned_c: whole(known_n),
            planes: true,
            // Native F16 conversions of the results would not help, because loading the windows
            // takes much longer.
            native_f16_conversions: false,
            min_rows: 1,
            known_lda: 0,
            a_panels: false,
        };
        match parts {
            false => options,
            true => CoopGemmOptions {
                activation: None,
                bias_f32: None,
                out_f32: true,
                aligned_c: whole(known_n.zip(entries).map(|(n, entries)| n * entries)),
                ..options
            },
        }
    }

    /// Dispatches the tiles. The kernel writes results with bias and activation applied, or `[m,
    /// columns]` partial sums per split-K part and group.
    fn tiles(
        &self,
        e: &mut LoweringCtx<'_>,
        c: &ConvProblem<'_>,
        options: &CoopGemmOptions,
        epilogue: &ConvEpilogueArgs,
        [w, bias, y]: [SlotId; 3],
    ) {
        let params = self.params(e, c, epilogue);
        let mut consts = gemm_coop::constants(&self.tiling, options);
        let [_, kd, kh, kw] = c.windows.consts();
        consts.extend([u32::from(self.gathers), kd, kh, kw]);
        consts.extend([self.inner, c.is_spread].map(u32::from));
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
        let args = [w, c.x.slot, bias, bias, y];
        e.dispatch(kernel, &consts, &args, &params, [gx, gy, depth]);
    }

    fn params(
        &self,
        e: &mut LoweringCtx<'_>,
        c: &ConvProblem<'_>,
        epilogue: &ConvEpilogueArgs,
    ) -> ConvCoopParams {
        let w = c.windows.params(e, &c.x);
        let own = e.num(&c.out_channels_dim);
        let product = self.product(e, c, &w, own, epilogue);
        let tape = e.tape();
        ConvCoopParams {
            windows: w.windows,
            c_entry: match self.tiling.splits {
                1 => product.outer_c,
                _ => w.windows,
            },
            channels: own,
            product,
            x_batch: w.x_batch,
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

    fn product(
        &self,
        e: &mut LoweringCtx<'_>,
        c: &ConvProblem<'_>,
        w: &WindowParams,
        own: SymInt,
        epilogue: &ConvEpilogueArgs,
    ) -> GemmCoopParams {
        let (m, k) = (e.num(&c.m), e.num(&c.k));
        let groups = SymInt::Const(c.op.groups as i64);
        let splits = SymInt::Const(i64::from(self.tiling.splits));
        let split_k = self.tiling.split_k(e.tape(), k);
        let tape = e.tape();
        let columns = tape.mul(w.batch, w.windows);
        // Number of columns of one GEMM, which is the row length of its result C.
        let n = if self.gathers { columns } else { w.windows };
        let batches = match self.gathers {
            true => groups,
            false => tape.mul(w.batch, groups),
        };
        let ldc = match self.tiling.splits {
            1 => w.windows,
            _ => columns,
        };
        let len = tape.mul(m, ldc);
        let outer_c = tape.mul(groups, len);
        let entries = if self.tiling.splits == 1 {
            w.batch
        } else {
            splits
        };
        GemmCoopParams {
            m,
            n,
            k,
            batches,
            batch_inner: groups,
            splits,
            split_k,
            lda: k,
            ldb: w.x_channel,
            ldc,
            ld_residual: epilogue.stride,
            offset_a: SymInt::ZERO,
            offset_b: w.x_offset,
            offset_c: SymInt::ZERO,
            offset_bias: SymInt::ZERO,
            offset_residual: epilogue.offset,
            outer_a: SymInt::ZERO,
            outer_b: w.x_batch,
            outer_c,
            outer_residual: SymInt::ZERO,
            inner_a: tape.mul(m, k),
            inner_b: tape.mul(own, w.x_channel),
            inner_c: len,
            inner_residual: tape.mul(m, epilogue.stride),
            split_c: outer_c,
            len_c: tape.mul(outer_c, entries),
        }
    }
}

/// Copies the weights into a dense slot with taps before channels.
fn tap_by_tap(e: &mut LoweringCtx<'_>, c: &ConvProblem<'_>) -> Result<SlotView, CompileError> {
    let w = &c.w;
    let taps = Dim::Known(c.windows.kernel.iter().product());
    let shape = [
        w.layout.shape()[0].clone(),
        c.out_channels_dim.clone(),
        taps,
    ];
    let layout = w.layout.reshape(&shape);
    let layout = layout.unwrap_or_else(|| unreachable!("invariant: dense views reshape"));
    let view = SlotView {
        layout: layout.transpose(&[0, 2, 1]),
        ..w.clone()
    };
    e.dense(&view)
}

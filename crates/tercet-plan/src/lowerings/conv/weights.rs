//! Lowering of convolution weight gradients: GEMMs whose reduction runs over the batch and the
//! windows of `dy`, the gradient of the convolution's result. The kernels gather the right operand
//! from the input `x`, at each tap of each window, without storing im2col columns in memory.
//!
//! 16-bit floats run on cooperative matrices if the device has them (`weights_coop.rs`), all other
//! cases on a tiled WGSL kernel. The reduction is long and results are few, so the GEMMs use
//! split-K: `conv_finish.wgsl` adds the F32 partial sums in a fixed order.

use tercet_ir::ops::{ConvWeightGrad, Op, Window};
use tercet_ir::{CompileError, DType, Dim, Node, OpKind, VariantFamily};

use super::kernels::{ConvFinishParams, ConvWeightLoad, FINISH, WEIGHTS};
use super::weights_coop::{self, CoopWeightGrad};
use super::windows::{GpuConvWindows, product};
use crate::emit::{LoweringCtx, SlotView};
use crate::lowerings::tiles::{
    LatencyClass, TileChoice, TileProblem, WorkgroupTile, saturating_threads,
};
use crate::lowerings::{Lowering, always, code, gemm_coop};
use crate::variant::{self, KernelVariant, needs};
use tercet_program::SymInt;

/// Lowering of convolution weight gradients.
pub(crate) static WEIGHT_GRADS: Lowering = Lowering {
    name: "conv_weight_grad",
    ops: &[OpKind::ConvWeightGrad],
    kernels: &[
        &WEIGHTS.words.def,
        &WEIGHTS.quads.def,
        &WEIGHTS.half_quads.def,
        &weights_coop::F16.def,
        &weights_coop::BF16.def,
    ],
    supports: always,
    lower,
};

/// Candidate split-K factors.
const PARTS: &[u32] = &[1, 2, 3, 4, 6, 8, 9, 12, 16, 24, 32, 48, 64];

/// Along the reduction axis `k`, the number of windows of each batch entry is padded to a multiple
/// of this number.
const QUAD: u32 = 4;

/// The operands and sizes of the weight gradient that is being lowered.
pub(super) struct WeightGradProblem {
    pub(super) windows: GpuConvWindows,
    pub(super) groups: usize,
    pub(super) x: SlotView,
    /// Dense view of the gradient of the convolution's result (cotangent).
    pub(super) dy: SlotView,
    /// Number of channels of `dy` per group.
    pub(super) m: Dim,
    /// Number of channels of `x` per group.
    pub(super) own: Dim,
    /// Number of columns of the GEMM: channels of `x` per group times taps.
    pub(super) n: Dim,
    pub(super) y: SlotView,
}

fn lower(e: &mut LoweringCtx<'_>, node: &Node) -> Result<(), CompileError> {
    let Op::ConvWeightGrad(op) = &node.op else {
        unreachable!("invariant: a lowering receives only its own operators")
    };
    let given = WeightGradProblem::new(e, node, op)?;
    variant::run(e, FAMILY, &variants(), None, &given)
}

/// Family of the variants.
const FAMILY: &str = "conv_weight_grad";

/// The family with the names of its variants.
pub(super) fn family() -> VariantFamily {
    variant::family(FAMILY, &[&variants()])
}

fn variants() -> [KernelVariant<WeightGradProblem>; 2] {
    [
        KernelVariant {
            name: "matrices",
            supports: |e, g| {
                let what = "16-bit cooperative matrices, at least 16 channels of dy and 16 columns, at most 64 taps";
                needs(CoopWeightGrad::new(e, g)?.is_some(), what)
            },
            cost: |e, g| Ok(CoopWeightGrad::new(e, g)?.map_or(0.0, |coop| coop.seconds(e))),
            emit: |e, g| match CoopWeightGrad::new(e, g)? {
                Some(coop) => {
                    e.record_variant_detail(coop.name());
                    coop.dispatch(e, g)
                }
                None => unreachable!("invariant: the variant supports it"),
            },
        },
        KernelVariant {
            name: "tiles",
            supports: |_, _| Ok(()),
            cost: |e, g| Ok(g.best(e)?.time / e.caps.device.rates.tiles.per_s),
            emit: |e, g| g.tiles(e),
        },
    ]
}

impl WeightGradProblem {
    fn new(
        e: &mut LoweringCtx<'_>,
        node: &Node,
        op: &ConvWeightGrad,
    ) -> Result<WeightGradProblem, CompileError> {
        let x = e.view(node.inputs[0]);
        let dy = e.view(node.inputs[1]);
        let y = e.result(0)?;
        if let Some(given) = WeightGradProblem::from_rows(e, op, [&x, &dy], &y)? {
            return Ok(given);
        }
        let dy = e.dense(&dy)?;
        let shape = y.layout.shape();
        let m = shape[0].div_exact(&Dim::Known(op.groups));
        let out = dy.layout.shape()[2..].to_vec();
        Ok(WeightGradProblem {
            windows: GpuConvWindows::new(&op.window(), &op.kernel, out),
            groups: op.groups,
            m: m.unwrap_or_else(|| unreachable!("invariant: groups divide channels")),
            own: shape[1].clone(),
            n: product(&shape[1..]),
            x,
            dy,
            y,
        })
    }

    /// For single-element windows whose rows are not word-aligned: copies the rows of all batch
    /// entries into aligned rows, which cooperative matrices can load.
    fn from_rows(
        e: &mut LoweringCtx<'_>,
        op: &ConvWeightGrad,
        [x, dy]: [&SlotView; 2],
        y: &SlotView,
    ) -> Result<Option<WeightGradProblem>, CompileError> {
        const LOAD: usize = 8;
        let has_matrices = gemm_coop::type_of(x.dtype)
            .is_some_and(|ty| e.caps.spirv && e.caps.coop.iter().any(|c| c.ty == ty));
        let shape = x.layout.shape();
        let (window, rest) = (Window::new(op.kernel.len()), &shape[2..]);
        let are_elements = op.window() == window && op.kernel.iter().all(|n| *n == 1);
        let (Some(entries), Some(count)) = (shape[0].known(), product(rest).known()) else {
            return Ok(None);
        };
        let all = entries.saturating_mul(count);
        let is_broken = !count.is_multiple_of(LOAD) && all.is_multiple_of(LOAD) && all > 0;
        let m = y.layout.shape()[0].div_exact(&Dim::Known(op.groups));
        let (Some(m), true) = (m, has_matrices && are_elements && is_broken) else {
            return Ok(None);
        };
        let rows = |e: &mut LoweringCtx<'_>, view: &SlotView| -> Result<SlotView, CompileError> {
            let rank = view.layout.shape().len();
            let channels = view.layout.shape()[1].clone();
            let turn: Vec<usize> = [1, 0].into_iter().chain(2..rank).collect();
            let turned = SlotView {
                layout: view.layout.transpose(&turn),
                ..view.clone()
            };
            let rows = e.dense(&turned)?;
            let layout = rows
                .layout
                .reshape(&[Dim::Known(1), channels, Dim::Known(all)]);
            Ok(SlotView {
                layout: layout.unwrap_or_else(|| unreachable!("invariant: dense views reshape")),
                ..rows
            })
        };
        let shape = y.layout.shape();
        Ok(Some(WeightGradProblem {
            windows: GpuConvWindows::new(&Window::new(1), &[1], vec![Dim::Known(all)]),
            groups: op.groups,
            x: rows(e, x)?,
            dy: rows(e, dy)?,
            m,
            own: shape[1].clone(),
            n: product(&shape[1..]),
            y: y.clone(),
        }))
    }

    /// Number of windows in all batch entries, which is the length of the reduction.
    pub(super) fn lines(&self, e: &LoweringCtx<'_>) -> Result<usize, CompileError> {
        let entries = e.bound(&self.x.layout.shape()[0])?;
        Ok(entries.saturating_mul(e.bound(&self.windows.count)?))
    }

    /// Maximum total size of split-K partial sums in bytes.
    pub(super) fn max_bytes(e: &LoweringCtx<'_>) -> u64 {
        e.caps.max_binding_bytes / 2
    }

    /// Allocates a slot for split-K partial sums: `[part, channel of dy, column]`.
    pub(super) fn parts(
        &self,
        e: &mut LoweringCtx<'_>,
        parts: u32,
    ) -> Result<SlotView, CompileError> {
        let channels = self.y.layout.shape()[0].clone();
        let shape = [Dim::Known(parts as usize), channels, self.n.clone()];
        e.temp(DType::F32, &shape)
    }

    /// Emits the kernel that adds the split-K partial sums and rounds the result.
    pub(super) fn finish(
        &self,
        e: &mut LoweringCtx<'_>,
        sums: &SlotView,
        parts: u32,
    ) -> Result<(), CompileError> {
        let shape = self.y.layout.shape().to_vec();
        let (channels, columns) = (e.num(&shape[0]), e.num(&self.n));
        let count = e.numel(&shape);
        let params = ConvFinishParams {
            count,
            channels,
            windows: columns,
            sums_part: count,
            sums_entry: count,
            sums_channel: columns,
            bias_offset: SymInt::ZERO,
            bias_row: SymInt::ZERO,
            bias_stride: SymInt::ZERO,
            zero: SymInt::ZERO,
        };
        let words = e.words(self.y.dtype, &shape);
        let grid = e.grid_of(words, 256);
        let consts = [0, 0, code(self.x.dtype), code(self.y.dtype), parts];
        let none = e.temp(DType::U32, &[Dim::Known(1)])?.slot;
        let args = [sums.slot, none, self.y.slot];
        e.dispatch(FINISH.pick(false), &consts, &args, &params, grid);
        Ok(())
    }

    /// The tile shape and split-K factor that minimize the work of the busiest compute unit.
    fn best(&self, e: &LoweringCtx<'_>) -> Result<TileChoice, CompileError> {
        let problem = TileProblem {
            rows: e.bound(&self.m)?,
            columns: e.bound(&self.n)?,
            k: self.lines(e)?,
            products: self.groups,
            device: &e.caps.device,
            saturating_threads: saturating_threads(&e.caps.device, LatencyClass::Windows),
            max_bytes: WeightGradProblem::max_bytes(e),
        };
        let rates = &e.caps.device.rates.tiles.windows;
        let best = problem.best_with_parts(&rates.each_ref().map(WorkgroupTile::from_rate), PARTS);
        Ok(best.unwrap_or_else(|| unreachable!("invariant: there are sizes")))
    }

    /// Emits the tiled kernel, which gathers windows during the matmul.
    fn tiles(&self, e: &mut LoweringCtx<'_>) -> Result<(), CompileError> {
        let tiles = self.best(e)?;
        let is_whole = tiles.parts == 1 && self.y.dtype == DType::F32;
        let sums = match is_whole {
            true => self.y.clone(),
            false => self.parts(e, tiles.parts)?,
        };
        let mut params = self.windows.params(e, &self.x);
        params.groups = SymInt::Const(self.groups as i64);
        params.m = e.num(&self.m);
        params.channels = e.num(&self.own);
        let quads = e.tape().ceil_div(params.windows, QUAD);
        params.k = e.tape().mul(quads, SymInt::Const(QUAD.into()));
        let apart = self.dy.slot != self.x.slot;
        let some = self.windows.count.twos() >= 2 && self.lines(e)? > 0;
        let kernel = WEIGHTS.pick(match (apart && some, self.dy.dtype) {
            (false, _) => ConvWeightLoad::Words,
            (true, DType::F32) => ConvWeightLoad::Quads,
            (true, _) => ConvWeightLoad::HalfQuads,
        });
        let [tm, tn] = tiles.size.sides();
        let columns = e.num(&self.n);
        let limit = e.caps.max_grid;
        let tape = e.tape();
        let (down, across) = (
            tape.ceil_div(params.m, 8 * tm),
            tape.ceil_div(columns, 8 * tn),
        );
        let grid = tape.mul(down, across);
        let products = tape.mul(params.groups, SymInt::Const(i64::from(tiles.parts)));
        let products = tape.min(products, limit);
        let [gx, gy, _] = e.flat_grid(grid);
        let mut consts = vec![0, 0, code(self.x.dtype), code(DType::F32)];
        consts.extend(self.windows.consts());
        consts.extend([tm, tn, tiles.parts]);
        // A dummy slot for the absent bias, which the kernel never reads.
        let none = e.temp(DType::U32, &[Dim::Known(1)])?.slot;
        let args = [self.x.slot, self.dy.slot, none, sums.slot];
        e.dispatch(kernel, &consts, &args, &params, [gx, gy, products]);
        match is_whole {
            true => Ok(()),
            false => self.finish(e, &sums, tiles.parts),
        }
    }
}

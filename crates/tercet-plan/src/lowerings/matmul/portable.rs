//! Kernel selection for matmuls, and the arguments common to all kernels.

use tercet_ir::scalar::UnaryFn;
use tercet_ir::{CompileError, DType};

use super::gemm::{self, GemmWorkgroupTile};
use super::gemm_dequant;
use super::gemv;
use super::kernels::{CastF16Params, INTS, MatMulParams, NARROW};
use super::product::{MatMulProblem, activation_code, min_size};
use super::reduced_precision;
use super::skinny_prepacked_a::PrepackedASkinny;
use crate::caps::MAX_SKINNY_ROWS;
use crate::emit::{LoweringCtx, SlotView};
use crate::lowerings::dequant::PackedWeights;
use crate::lowerings::sums::OF_SUMS;
use crate::lowerings::{code, map, norm};
use tercet_program::SlotId;
use tercet_program::SymInt;
use tercet_program::TypedKernel;

/// Range of the row count (M) that a group of kernels handles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RowRange {
    /// GEMV or skinny GEMM with at most this number of rows.
    UpTo(u32),
    /// At most this number of rows, which skinny GEMM processes in blocks of its maximum.
    Blocks(u32),
    /// At most this number of rows, which are prepacked for small-M GEMM.
    SmallM(u32),
    /// Tiled GEMM, for any number of rows.
    LargeM,
}

/// The row ranges of GEMV (one row) and of skinny GEMM (a few rows).
const SKINNY_ROW_RANGES: [RowRange; 2] =
    [RowRange::UpTo(1), RowRange::UpTo(MAX_SKINNY_ROWS as u32)];

impl RowRange {
    /// Maximum number of rows; `None` if unlimited.
    fn max_rows(self) -> Option<u32> {
        match self {
            RowRange::UpTo(most) | RowRange::Blocks(most) | RowRange::SmallM(most) => Some(most),
            RowRange::LargeM => None,
        }
    }
}

/// Emits the kernels for a matmul. If the row count is symbolic, emits a shape switch over `ranges` and
/// tiles.
fn by_rows<'a>(
    e: &mut LoweringCtx<'a>,
    p: &MatMulProblem,
    ranges: &[RowRange],
    mut way: impl FnMut(&mut LoweringCtx<'a>, RowRange) -> Result<(), CompileError>,
) -> Result<(), CompileError> {
    // No run has fewer rows than the minimum row count, so ranges below are skipped; only empty
    // matmuls have fewer, and every kernel supports them.
    let least = min_size(&p.m);
    let is_reached = |rows: &&RowRange| rows.max_rows().is_none_or(|most| most as usize >= least);
    let all: Vec<RowRange> = ranges.iter().filter(is_reached).copied().collect();
    let bounds: Vec<u32> = all.iter().filter_map(|rows| rows.max_rows()).collect();
    // Small-M GEMM splits k in the same way for each number of rows.
    let is_small = |rows: &RowRange| matches!(rows, RowRange::SmallM(_));
    let first = all.iter().position(is_small).unwrap_or(all.len());
    let of_arm = |arm: usize| match all.get(arm).is_some_and(is_small) {
        true => first as u32,
        false => arm as u32,
    };
    let same_bits: Vec<u32> = (0..=all.len()).map(of_arm).collect();
    e.switch_on_size_with(&p.m, (&bounds, &same_bits), |e, arm| {
        way(e, all.get(arm).copied().unwrap_or(RowRange::LargeM))
    })
}

/// Two versions of a matmul kernel: with activation functions of little code only, and with all
/// activation functions.
pub(super) struct EpilogueKernels {
    pub(super) plain: &'static TypedKernel<MatMulParams>,
    pub(super) activated: &'static TypedKernel<MatMulParams>,
}

impl EpilogueKernels {
    pub(super) fn select(&self, activation: Option<UnaryFn>) -> &'static TypedKernel<MatMulParams> {
        match activation {
            None | Some(UnaryFn::Relu | UnaryFn::Relu6) => self.plain,
            Some(_) => self.activated,
        }
    }
}

/// Arguments common to all matmul kernels.
pub(super) struct MatMulArgs {
    pub(super) params: MatMulParams,
    /// The two operands, the bias (or a dummy slot), and the result.
    pub(super) args: [SlotId; 4],
    /// The gains of the norm prologue, or a dummy slot.
    gains: SlotId,
    /// The expert index of each row, if rows use different matrices.
    keys: Option<SlotId>,
    /// The codebook of quantized weights, for kernels that take one.
    grid: Option<SlotId>,
    /// Values of the constants `BIAS`, `ACTIVATION`, `A_TYPE` and `Y_TYPE`.
    pub(super) consts: [u32; 4],
    /// Workgroups along z.
    pub(super) batches: SymInt,
}

pub(super) fn matmul_args(
    e: &mut LoweringCtx<'_>,
    p: &MatMulProblem,
    y: &SlotView,
) -> Result<MatMulArgs, CompileError> {
    let mut params = MatMulParams {
        batch_sizes: [SymInt::ONE; 8],
        a_batches: [SymInt::ZERO; 8],
        b_batches: [SymInt::ZERO; 8],
        batch_axes: SymInt::Const(p.batch.len() as i64),
        batch: e.numel(&p.batch),
        m: e.num(&p.m),
        n: e.num(&p.n),
        k: e.num(&p.k),
        a_offset: p.a.offset,
        a_row: p.a.own_axis.stride,
        a_col: p.a.summed.stride,
        b_offset: p.b.offset,
        b_row: p.b.summed.stride,
        b_col: p.b.own_axis.stride,
        bias_offset: SymInt::ZERO,
        bias_row: SymInt::ZERO,
        bias_stride: SymInt::ZERO,
        zero: SymInt::ZERO,
        eps: p.norm.as_ref().map_or(0.0, |norm| norm.eps),
        chain_waits: SymInt::ZERO,
        chain_wanted: SymInt::ZERO,
        chain_own: SymInt::ZERO,
    };
    for (axis, size) in e.sizes(&p.batch).into_iter().enumerate() {
        params.batch_sizes[axis] = size;
        params.a_batches[axis] = p.a.batch[axis].stride;
        params.b_batches[axis] = p.b.batch[axis].stride;
    }
    let bias = match p.bias.as_ref().or(p.residual.as_ref()) {
        Some(view) => {
            params.bias_offset = e.offset(view);
            let strides = e.strides(view);
            if let [row, _] = strides[..] {
                params.bias_row = row;
            }
            params.bias_stride = strides[strides.len() - 1];
            view.slot
        }
        None => e.placeholder_slot()?,
    };
    let gains = match &p.norm {
        Some(norm) => norm.gain.slot,
        None => e.placeholder_slot()?,
    };
    let limit = e.caps.max_grid;
    let batches = e.tape().min(params.batch, limit);
    Ok(MatMulArgs {
        args: [p.a.slot, p.b.slot, bias, y.slot],
        gains,
        keys: None,
        grid: None,
        consts: [
            u32::from(p.bias.is_some() || p.residual.is_some()),
            activation_code(p.function()).unwrap_or(0),
            code(p.a.dtype),
            code(y.dtype),
        ],
        params,
        batches,
    })
}

impl MatMulArgs {
    /// Adds the codebook of the weights to these arguments, for kernels that take one.
    pub(super) fn with_packed_weights(
        self,
        e: &mut LoweringCtx<'_>,
        blocks: &PackedWeights,
    ) -> Result<MatMulArgs, CompileError> {
        let grid = blocks.grid(e)?;
        Ok(MatMulArgs { grid, ..self })
    }

    /// Adds the expert index of each row to these arguments; `repeats` adjacent rows of the result
    /// share a row of the left operand.
    pub(super) fn with_keys(mut self, keys: SlotId, repeats: usize) -> MatMulArgs {
        self.params.batch_sizes[1] = SymInt::Const(repeats as i64);
        MatMulArgs {
            keys: Some(keys),
            ..self
        }
    }

    /// True if the kernels take a codebook as argument to dequantize the weights.
    pub(super) fn uses_codebook(&self) -> bool {
        self.grid.is_some()
    }

    /// Returns these arguments for kernels that read the bias or residual in its own dtype, and know
    /// that of the rows.
    pub(super) fn with_dtype_of_addend(&self, p: &MatMulProblem) -> MatMulArgs {
        let mut consts = self.consts;
        if let (Some(added), Some(at)) = (
            p.bias.as_ref().or(p.residual.as_ref()),
            OF_SUMS.iter().position(|name| *name == "A_TYPE"),
        ) {
            consts[at] = code(added.dtype);
        }
        MatMulArgs {
            consts,
            params: self.params.clone(),
            ..*self
        }
    }

    /// Returns these arguments with the result replaced by split-K partial sums, without epilogue.
    pub(super) fn sums(&self, sums: SlotId) -> MatMulArgs {
        let [a, b, bias, _] = self.args;
        let [_, _, a_type, _] = self.consts;
        MatMulArgs {
            args: [a, b, bias, sums],
            consts: [0, 0, a_type, code(DType::F32)],
            params: self.params.clone(),
            ..*self
        }
    }

    pub(super) fn dispatch(
        &self,
        e: &mut LoweringCtx<'_>,
        kernel: &TypedKernel<MatMulParams>,
        own: &[u32],
        grid: [SymInt; 3],
    ) {
        let consts: Vec<u32> = self.consts.iter().chain(own).copied().collect();
        let args: Vec<SlotId> = self.args.into_iter().chain(self.grid).collect();
        e.dispatch(kernel, &consts, &args, &self.params, grid);
    }

    /// Like [`MatMulArgs::dispatch`], for kernels that also take the gains of a norm and the expert
    /// indices.
    pub(super) fn dispatch_rows(
        &self,
        e: &mut LoweringCtx<'_>,
        kernel: &TypedKernel<MatMulParams>,
        own: &[u32],
        grid: [SymInt; 3],
    ) {
        let consts: Vec<u32> = self.consts.iter().chain(own).copied().collect();
        let args = self.args.into_iter().chain([self.gains]);
        let args: Vec<SlotId> = args.chain(self.keys).chain(self.grid).collect();
        e.dispatch(kernel, &consts, &args, &self.params, grid);
    }

    /// Like [`MatMulArgs::dispatch_rows`], with dependent launch if the device supports it.
    pub(super) fn dispatch_dependent(
        &self,
        e: &mut LoweringCtx<'_>,
        kernels: [&TypedKernel<MatMulParams>; 2],
        own: &[u32],
        grid: [SymInt; 3],
    ) {
        let consts: Vec<u32> = self.consts.iter().chain(own).copied().collect();
        let [alone, chained] = kernels;
        let chain = e.chain();
        let args = self.args.into_iter().chain([self.gains]);
        let args: Vec<SlotId> = args.chain(chain).collect();
        let kernel = if chain.is_some() { chained } else { alone };
        e.dispatch(kernel, &consts, &args, &self.params, grid);
    }

    /// Workgroup grid for result tiles of these numbers of rows and columns, flattened over x and
    /// y.
    pub(super) fn tile_grid(&self, e: &mut LoweringCtx<'_>, tile: [u32; 2]) -> [SymInt; 3] {
        self.tile_grid_of_columns(e, self.params.n, tile, None)
    }

    /// Like [`MatMulArgs::tile_grid`], for this number of columns and at most `most` workgroups.
    pub(super) fn tile_grid_of_columns(
        &self,
        e: &mut LoweringCtx<'_>,
        columns: SymInt,
        tile: [u32; 2],
        most: Option<u32>,
    ) -> [SymInt; 3] {
        let tape = e.tape();
        let down = tape.ceil_div(self.params.m, tile[0]);
        let across = tape.ceil_div(columns, tile[1]);
        let groups = tape.mul(down, across);
        let groups = most.map_or(groups, |most| tape.min(groups, most));
        let [x, y, _] = e.flat_grid(groups);
        [x, y, self.batches]
    }

    pub(super) fn tiles(
        &self,
        e: &mut LoweringCtx<'_>,
        kernel: &TypedKernel<MatMulParams>,
        own: &[u32],
        tile: GemmWorkgroupTile,
    ) {
        let grid = self.tile_grid(e, [tile.len(); 2]);
        self.dispatch(e, kernel, own, grid);
    }
}

/// Emits a float matmul. If rows of `y` are word-aligned, kernels write `y` directly; otherwise
/// they write F32 sums, which a separate kernel rounds.
pub(super) fn floats(
    e: &mut LoweringCtx<'_>,
    p: &MatMulProblem,
    y: &SlotView,
) -> Result<(), CompileError> {
    let mut p = p.clone().transpose_single_column();
    if !gemv::float_fused_ops(e, &p, 1)?.norm {
        let rounded = reduced_precision::dtype_of(e, &p);
        p = with_norm_before(e, p, rounded)?;
    }
    let p = &p;
    through_f32(e, p, y, |e, sums| {
        by_rows(e, p, &SKINNY_ROW_RANGES, |e, rows| {
            let takes = match rows {
                RowRange::UpTo(rows) => gemv::float_fused_ops(e, p, rows)?,
                RowRange::Blocks(_) | RowRange::SmallM(_) => FusedOps::NOTHING,
                RowRange::LargeM => FusedOps::none(e, p),
            };
            takes.emit(e, p, sums, |e, p, sums| {
                let given = matmul_args(e, p, sums)?;
                match rows {
                    RowRange::UpTo(rows) => gemv::floats(e, p, &given, rows),
                    RowRange::Blocks(_) | RowRange::SmallM(_) | RowRange::LargeM => {
                        gemm::floats(e, p, &given, sums)
                    }
                }
            })
        })
    })
}

/// Like [`floats`], for quantized weights.
pub(super) fn packed(
    e: &mut LoweringCtx<'_>,
    p: &MatMulProblem,
    blocks: &PackedWeights,
    y: &SlotView,
) -> Result<(), CompileError> {
    let dozens = max_prepacked_rows(e, p)?;
    let bare = MatMulProblem {
        norm: None,
        ..p.clone()
    };
    let has_dozens = PrepackedASkinny::fits(e, &bare, blocks, dozens)?;
    let ranges: Vec<RowRange> = match has_dozens {
        true => {
            let bounds = PrepackedASkinny::row_bounds(dozens).map(RowRange::SmallM);
            [RowRange::UpTo(1)].into_iter().chain(bounds).collect()
        }
        false => {
            let blocks = RowRange::Blocks(e.caps.device.rates.rows.block_rows);
            SKINNY_ROW_RANGES.into_iter().chain([blocks]).collect()
        }
    };
    through_f32(e, p, y, |e, sums| {
        by_rows(e, p, &ranges, |e, rows| {
            let takes = match rows {
                RowRange::UpTo(rows) | RowRange::Blocks(rows) => gemv::packed_fused_ops(p, rows),
                RowRange::SmallM(_) => FusedOps {
                    norm: true,
                    gate: true,
                    rounds: None,
                },
                RowRange::LargeM => FusedOps::none(e, p),
            };
            takes.emit(e, p, sums, |e, p, sums| {
                if let RowRange::SmallM(rows) = rows {
                    return match PrepackedASkinny::new(e, p, blocks, rows)? {
                        Some(laid) => laid.dispatch(e, p, blocks, sums),
                        None => unreachable!("invariant: the kernels support the rows"),
                    };
                }
                let given = matmul_args(e, p, sums)?.with_packed_weights(e, blocks)?;
                match rows {
                    RowRange::UpTo(rows) | RowRange::Blocks(rows) => {
                        gemv::packed(e, p, &given, blocks, rows)
                    }
                    RowRange::SmallM(_) | RowRange::LargeM => {
                        gemm::packed(e, p, &given, blocks, sums, has_dozens)
                    }
                }
            })
        })
    })
}

/// Maximum number of rows for the kernels with prepacked activation rows: more if no kernel dequantizes the weights in
/// a separate step.
fn max_prepacked_rows(e: &LoweringCtx<'_>, p: &MatMulProblem) -> Result<u32, CompileError> {
    let rates = &e.caps.device.rates.rows;
    Ok(match gemm_dequant::fits(e, p, DType::F16)? {
        true => rates.max_prepacked_rows,
        false => rates.max_prepacked_rows_of_large_weights,
    })
}

/// Emits the norm prologue of a matmul as a separate step, and returns the matmul of the normalized
/// rows. If `rounded` is given, the norm also writes rows rounded to 16 bits.
fn with_norm_before(
    e: &mut LoweringCtx<'_>,
    mut p: MatMulProblem,
    rounded: Option<DType>,
) -> Result<MatMulProblem, CompileError> {
    let Some(norm) = p.norm.take() else {
        return Ok(p);
    };
    let rows = norm::rows(e, &norm, rounded)?;
    p.with_rows(e, &rows)
}

/// Norm prologue and gate epilogue that a kernel can fuse.
#[derive(Clone, Copy)]
pub(super) struct FusedOps {
    pub(super) norm: bool,
    pub(super) gate: bool,
    /// The 16-bit dtype that kernels for this row range may cast activation rows to.
    pub(super) rounds: Option<DType>,
}

impl FusedOps {
    pub(super) const NOTHING: FusedOps = FusedOps {
        norm: false,
        gate: false,
        rounds: None,
    };

    /// Large-M kernels fuse neither a norm prologue nor a gate epilogue.
    fn none(e: &LoweringCtx<'_>, p: &MatMulProblem) -> FusedOps {
        FusedOps {
            rounds: reduced_precision::dtype_of(e, p),
            ..FusedOps::NOTHING
        }
    }

    /// Emits a matmul kernel. A prologue or epilogue that the kernel cannot fuse becomes a separate
    /// step.
    fn emit(
        self,
        e: &mut LoweringCtx<'_>,
        p: &MatMulProblem,
        y: &SlotView,
        kernel: impl FnOnce(&mut LoweringCtx<'_>, &MatMulProblem, &SlotView) -> Result<(), CompileError>,
    ) -> Result<(), CompileError> {
        let mut p = match self.norm {
            true => p.clone(),
            false => with_norm_before(e, p.clone(), self.rounds)?,
        };
        match p.gate.take_if(|_| !self.gate) {
            Some(gate) => {
                let both = e.temp(y.dtype, &e.graph.node(gate.product).outputs[0].shape)?;
                kernel(e, &p, &both)?;
                let rounds = self
                    .rounds
                    .filter(|_| gate.is_rows && y.dtype == DType::F32);
                let rounded = match rounds {
                    Some(to) => e.round(y, to)?,
                    None => None,
                };
                map::gate(e, &gate, both, y, rounded);
                Ok(())
            }
            None => kernel(e, &p, y),
        }
    }
}

fn through_f32(
    e: &mut LoweringCtx<'_>,
    p: &MatMulProblem,
    y: &SlotView,
    emit: impl FnOnce(&mut LoweringCtx<'_>, &SlotView) -> Result<(), CompileError>,
) -> Result<(), CompileError> {
    // If the bound of the row count is zero, no kernel is emitted. With zero rows, the operand
    // slots would be shorter than a vector load of some kernels.
    if e.bound(&p.m)? == 0 {
        return Ok(());
    }
    if y.dtype == DType::F32 || rows_are_words(e, p)? {
        return emit(e, y);
    }
    let sums = e.temp(DType::F32, y.layout.shape())?;
    emit(e, &sums)?;
    let count = e.numel(y.layout.shape());
    let words = e.words(y.dtype, y.layout.shape());
    let grid = e.grid_of(words, 256);
    let params = CastF16Params { count };
    e.dispatch(
        &NARROW,
        &[code(y.dtype)],
        &[sums.slot, y.slot],
        &params,
        grid,
    );
    Ok(())
}

/// True if every row of a 16-bit result is word-aligned.
fn rows_are_words(e: &LoweringCtx<'_>, p: &MatMulProblem) -> Result<bool, CompileError> {
    let mut rows = e.bound(&p.m)?;
    for dim in &p.batch {
        rows = rows.saturating_mul(e.bound(dim)?);
    }
    Ok(rows <= 1 || p.columns().known().is_some_and(|n| n % 2 == 0))
}

/// Emits an integer matmul.
pub(super) fn ints(
    e: &mut LoweringCtx<'_>,
    p: &MatMulProblem,
    y: &SlotView,
) -> Result<(), CompileError> {
    let given = matmul_args(e, p, y)?;
    let words = e.words(y.dtype, y.layout.shape());
    let grid = e.grid_of(words, 64);
    let consts = [given.consts[0], given.consts[1], code(y.dtype)];
    e.dispatch(&INTS, &consts, &given.args, &given.params, grid);
    Ok(())
}

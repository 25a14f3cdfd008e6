//! Grouped GEMM on cooperative matrices: rows are sorted by expert, and the matrices of all experts
//! are multiplied in one dispatch.
//!
//! The shader is `shaders/vulkan/include/gemm_coop.glsl` with `grouped.glsl`. It dequantizes the
//! weights to the 16-bit type of the rows while it stages them. The rows of an expert are divided
//! into tiles; their number is known only on the device, so the grid covers the largest possible
//! number of tiles. The bits of a row do not depend on the number of rows of its expert.

use tercet_ir::{CompileError, DType, Scheme, Value};

use super::GroupedWeights;
use crate::caps::CoopType;
use crate::emit::{LoweringCtx, SlotView};
use crate::lowerings::dequant::PackedWeights;
use crate::lowerings::gemm_coop::{
    self, CoopGemmOptions, CoopGemmTiling, GemmCoopParams, module, type_of,
};
use crate::lowerings::matmul::expert_gemv::ExpertRows;
use crate::lowerings::matmul::round_rows;
use crate::lowerings::portable;
use crate::lowerings::scatter::max_elements;
use crate::lowerings::words::words;
use tercet_program::SlotId;
use tercet_program::SymInt;
use tercet_program::{ArgAccess, TypedKernel, kernel_names as names};

crate::params! {
    /// Parameter block of `gemm_params.glsl` with `grouped_params.glsl`.
    pub struct GroupedCoopParams {
        ..product: GemmCoopParams,
        repeats: U32,
        tile_count: U32,
        rows_at: U32,
    }
    /// Parameter block of `group_rows.wgsl`.
    pub struct GroupRowsParams {
        rows: U32,
        tile: U32,
        tile_count: U32,
    }
}

const CONSTS: &[&str] = names![
    gemm_coop::CONSTS,
    &["SCHEME", "BLOCK_LEN", "LOW", "HIGH", "SCALES", "HALVES"]
];

pub(super) static F16: TypedKernel<GroupedCoopParams> = TypedKernel::spirv(
    "gemm_grouped_f16",
    module!("gemm_grouped_f16.spv"),
    gemm_coop::ARGS,
    CONSTS,
);

pub(super) static BF16: TypedKernel<GroupedCoopParams> = TypedKernel::spirv(
    "gemm_grouped_bf16",
    module!("gemm_grouped_bf16.spv"),
    gemm_coop::ARGS,
    CONSTS,
);

pub(super) static GROUP_ROWS: TypedKernel<GroupRowsParams> = TypedKernel::wgsl(
    "group_rows",
    &[portable!("group_rows.wgsl")],
    &[ArgAccess::Read, ArgAccess::Write],
    &[],
);

/// Schemes that `grouped.glsl` decodes.
const SCHEMES: &[Scheme] = &[
    Scheme::Q4_0,
    Scheme::Q4_1,
    Scheme::Q5_0,
    Scheme::Q5_1,
    Scheme::Q8_0,
    Scheme::Q4K,
    Scheme::Q5K,
    Scheme::Q6K,
    Scheme::Mxfp4,
];

/// Maximum number of experts; equals `MAX_KEYS` of `group_rows.wgsl`.
const MAX_EXPERTS: usize = 1024;

/// Number of bytes of a vector load of weights.
const LOAD_BYTES: u64 = 16;

/// Number of elements of a vector load of rows, and of a vector store of results.
const LOAD: usize = 8;

/// A grouped GEMM on cooperative matrices.
pub(super) struct GroupedCoop<'w> {
    ty: CoopType,
    tiling: CoopGemmTiling,
    experts: usize,
    pub(super) rows: &'w ExpertRows,
    pub(super) weights: &'w GroupedWeights,
    blocks: &'w PackedWeights,
}

/// Rows sorted by expert, and their tiles.
pub(super) struct RowGroups {
    table: SlotId,
    tile_count: SymInt,
}

impl<'w> GroupedCoop<'w> {
    /// The plan for these rows and weights; `None` if the kernels do not support it.
    pub(super) fn new(
        e: &LoweringCtx<'_>,
        rows: &'w ExpertRows,
        weights: &'w GroupedWeights,
        experts: Option<usize>,
    ) -> Result<Option<GroupedCoop<'w>>, CompileError> {
        let (Some(blocks), Some(experts)) = (&weights.blocks, experts) else {
            return Ok(None);
        };
        let x = &rows.view;
        let dtype = match x.dtype {
            DType::F32 => e.facts.reduced_matmul_dtype,
            dtype => Some(dtype),
        };
        let Some(ty) = dtype.and_then(type_of) else {
            return Ok(None);
        };
        let lines = blocks.view.layout.offset().iter();
        let mut lines = lines.chain(&blocks.view.layout.strides()[..1]);
        let is_aligned = blocks.params.is_some() && lines.all(|t| t.power_of_two() >= LOAD_BYTES);
        let k = x.layout.shape()[1].known().unwrap_or(0);
        let is_known = SCHEMES.contains(&blocks.scheme) && (1..=MAX_EXPERTS).contains(&experts);
        if !is_aligned || !is_known || k == 0 {
            return Ok(None);
        }
        if e.bound(&rows.count)? == 0 {
            return Ok(None);
        }
        let tiling = CoopGemmTiling::choose_grouped(e.caps, ty);
        Ok(tiling.map(|tiling| GroupedCoop {
            ty,
            tiling,
            experts,
            rows,
            weights,
            blocks,
        }))
    }

    /// Maximum number of rows for which multiplying every row alone is faster.
    pub(super) fn max_single_rows(&self, e: &LoweringCtx<'_>) -> u32 {
        let rates = &e.caps.device.rates.rows;
        let most = rates.keyed_rows_per_expert * self.experts as u32;
        most.clamp(rates.min_keyed_rows, rates.keyed_rows)
    }

    /// The rows, dense and in the 16-bit type of the matrices.
    pub(super) fn rows(&self, e: &mut LoweringCtx<'_>) -> Result<SlotView, CompileError> {
        let to = match self.ty {
            CoopType::F16 => DType::F16,
            CoopType::BF16 => DType::BF16,
        };
        round_rows(e, &self.rows.view, to)
    }

    /// Sorts the rows by the expert indices `keys`. Matmuls with the same indices `expert` share the
    /// sorted rows.
    pub(super) fn groups(
        &self,
        e: &mut LoweringCtx<'_>,
        expert: Value,
        keys: SlotId,
    ) -> Result<RowGroups, CompileError> {
        let rows = std::slice::from_ref(&self.rows.count);
        let [tile, ..] = self.tiling.tile;
        let count = e.numel(rows);
        // Each expert has at most one tile that is not full.
        let full = e.tape().div(count, tile);
        let tile_count = e.tape().add(full, SymInt::Const(self.experts as i64));
        let table = e.materialize(expert, |e| {
            let most = max_elements(e, rows)?;
            let tiles = most / tile as usize + self.experts;
            let table = words(e, most.saturating_add(4 * tiles))?;
            let params = GroupRowsParams {
                rows: count,
                tile: SymInt::Const(tile.into()),
                tile_count,
            };
            e.dispatch(
                &GROUP_ROWS,
                &[],
                &[keys, table.slot],
                &params,
                [SymInt::ONE; 3],
            );
            Ok(table)
        })?;
        Ok(RowGroups {
            table: table.slot,
            tile_count,
        })
    }

    /// Symbolic value: 1 if the type of the matrices represents the weights accurately, else 0.
    pub(super) fn fits_dtype(&self, e: &mut LoweringCtx<'_>) -> SymInt {
        match self.ty {
            CoopType::F16 => self.blocks.fit_f16(e),
            CoopType::BF16 => SymInt::ONE,
        }
    }

    /// Dispatches the GEMM: `to` is the result of `rows`, which [`GroupedCoop::rows`] returned.
    pub(super) fn dispatch(
        &self,
        e: &mut LoweringCtx<'_>,
        rows: &SlotView,
        groups: &RowGroups,
        to: &SlotView,
    ) {
        let n = &to.layout.shape()[1];
        let options = CoopGemmOptions {
            b_transposed: true,
            aligned_a: true,
            aligned_b: true,
            out_f32: to.dtype == DType::F32,
            aligned_c: n.known().is_some_and(|n| n.is_multiple_of(LOAD)),
            native_f16_conversions: e.caps.natives.f16_conversions,
            min_rows: 1,
            ..CoopGemmOptions::default()
        };
        let mut consts = gemm_coop::constants(&self.tiling, &options);
        let [scheme, block_len, _, _, places @ ..] = self.blocks.consts();
        consts.extend([scheme, block_len]);
        consts.extend(places);
        let params = self.params(e, rows, groups, to);
        let [_, bn, _] = self.tiling.tile;
        let tape = e.tape();
        let across = tape.ceil_div(params.product.n, bn);
        let tiles = tape.mul(groups.tile_count, across);
        let grid = e.flat_grid(tiles);
        let kernel = match self.ty {
            CoopType::F16 => &F16,
            CoopType::BF16 => &BF16,
        };
        let args = [
            rows.slot,
            self.blocks.view.slot,
            groups.table,
            groups.table,
            to.slot,
        ];
        e.dispatch(kernel, &consts, &args, &params, grid);
    }

    fn params(
        &self,
        e: &mut LoweringCtx<'_>,
        rows: &SlotView,
        groups: &RowGroups,
        to: &SlotView,
    ) -> GroupedCoopParams {
        let (m, n) = (e.num(&to.layout.shape()[0]), e.num(&to.layout.shape()[1]));
        let k = e.num(&rows.layout.shape()[1]);
        let [matrix, column, _] = self.weights.strides;
        let len = e.tape().mul(m, n);
        let product = GemmCoopParams {
            m,
            n,
            k,
            batches: SymInt::ONE,
            batch_inner: SymInt::ONE,
            splits: SymInt::ONE,
            split_k: k,
            lda: k,
            ldb: column,
            ldc: n,
            ld_residual: SymInt::ZERO,
            offset_a: SymInt::ZERO,
            offset_b: self.weights.offset,
            offset_c: SymInt::ZERO,
            offset_bias: SymInt::ZERO,
            offset_residual: SymInt::ZERO,
            outer_a: SymInt::ZERO,
            outer_b: SymInt::ZERO,
            outer_c: SymInt::ZERO,
            outer_residual: SymInt::ZERO,
            inner_a: SymInt::ZERO,
            inner_b: matrix,
            inner_c: SymInt::ZERO,
            inner_residual: SymInt::ZERO,
            split_c: SymInt::ZERO,
            len_c: len,
        };
        GroupedCoopParams {
            product,
            repeats: SymInt::Const(self.rows.repeats as i64),
            tile_count: groups.tile_count,
            rows_at: e.tape().mul(groups.tile_count, SymInt::Const(4)),
        }
    }
}

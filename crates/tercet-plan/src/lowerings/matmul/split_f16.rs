//! F32 GEMM emulated on F16 cooperative matrices with F32 accuracy (split-F16): each F32 number is
//! the sum of two F16 numbers.
//!
//! `split_blocks.wgsl` splits both operands, once for all matmuls that read them;
//! `gemm_pairs_f32.comp` multiplies them. A tile with a large value range would lose accuracy
//! compared to F32. Such tiles, and tiles with non-finite values, are detected on the device. The
//! portable F32 kernel computes such tiles from the original operands.

use tercet_ir::{CompileError, DType, Dim};

use super::coop::{self, ColumnRange, two_axes};
use super::kernels::{GEMM_REST, GEMM_REST_ACTIVATED};
use super::portable::{EpilogueKernels, MatMulArgs};
use super::product::{MatMulOperand, MatMulProblem, OperandAxis};
use crate::emit::{LoweringCtx, SlotView, SplitF16Request};
use crate::lowerings::gemm_coop::{ACTIVATIONS, CoopGemmTiling, GemmCoopParams, module};
use crate::lowerings::{code, portable};
use crate::scalar::PRELUDE;
use crate::tuning::GemmProblem;
use tercet_program::SlotId;
use tercet_program::SymInt;
use tercet_program::{ArgAccess, TypedKernel};

crate::params! {
    /// Parameter block of `matmul/split_blocks.wgsl`.
    pub struct SplitF16ConvertParams {
        offset: U32,
        row: U32,
        rows: U32,
        columns: U32,
        across: U32,
        of_batch: U32,
        blocks: U32,
        batch: U32,
    }
}

/// Kernel that splits F32 numbers into F16 pairs.
pub(super) static SPLIT_BLOCKS: TypedKernel<SplitF16ConvertParams> = TypedKernel::wgsl(
    "split_blocks",
    &[PRELUDE, portable!("matmul/split_blocks.wgsl")],
    &[ArgAccess::Read, ArgAccess::Write],
    &[],
);

/// Names of the constants of `gemm_pairs_f32.comp`.
const CONSTS: &[&str] = &[
    "THREADS",
    "SUBGROUP",
    "FM",
    "FN",
    "FK",
    "BM",
    "BN",
    "BK",
    "WM",
    "WN",
    "A_ALONG",
    "B_ALONG",
    "ACTIVATION",
    "HAS_BIAS",
    "HAS_RESIDUAL",
    "ALIGNED_C",
    "BAND",
];

/// Arguments: Arguments: A, B, bias, residual, result, and the flags of fallback tiles.
const ARGS: &[ArgAccess] = &[
    ArgAccess::Read,
    ArgAccess::Read,
    ArgAccess::Read,
    ArgAccess::Read,
    ArgAccess::Write,
    ArgAccess::Write,
];

/// The split-F16 GEMM.
pub(super) static PAIRS: TypedKernel<GemmCoopParams> = TypedKernel::spirv(
    "gemm_pairs_f32",
    module!("gemm_pairs_f32.spv"),
    ARGS,
    CONSTS,
);

static REST: EpilogueKernels = EpilogueKernels {
    plain: &GEMM_REST,
    activated: &GEMM_REST_ACTIVATED,
};

/// Number of rows and of columns of a block whose elements share a scale (`BLOCK`), and size of a
/// block's F16 pairs in 32-bit words (`BLOCK_LEN`). Both numbers equal those of the shaders.
const BLOCK: u32 = 64;
const BLOCK_LEN: u64 = 4096;
/// Number of rows and of columns of an F32 fallback tile: 16 x 16 threads compute 8 x 8 sums each.
const REST_TILE: u32 = 128;
const REST_SIDE: u32 = 16;

/// An F32 GEMM that runs as split-F16, with its tiling.
pub(super) struct SplitF16Gemm {
    tiling: CoopGemmTiling,
    /// Estimated time in seconds.
    pub(super) seconds: f64,
    /// Batch size, and batch strides of both operands.
    batch: [SymInt; 3],
}

/// Storage order of an operand: the sizes and stride of its contiguous rows, and whether these rows
/// extend along k.
struct OperandOrder<'p> {
    rows: &'p Dim,
    columns: &'p Dim,
    row: OperandAxis,
    along: bool,
}

impl<'p> OperandOrder<'p> {
    fn new(side: &MatMulOperand, own: &'p Dim, k: &'p Dim) -> Option<OperandOrder<'p>> {
        match (side.summed.unit, side.own_axis.unit) {
            (true, _) => Some(OperandOrder {
                rows: own,
                columns: k,
                row: side.own_axis,
                along: true,
            }),
            (false, true) => Some(OperandOrder {
                rows: k,
                columns: own,
                row: side.summed,
                along: false,
            }),
            (false, false) => None,
        }
    }
}

impl SplitF16Gemm {
    /// The plan for this GEMM with result `y`; `None` if the kernel does not support it.
    pub(super) fn new(
        e: &mut LoweringCtx<'_>,
        p: &MatMulProblem,
        y: &SlotView,
    ) -> Result<Option<SplitF16Gemm>, CompileError> {
        let is_f32 = [p.a.dtype, p.b.dtype, y.dtype]
            .iter()
            .all(|ty| *ty == DType::F32);
        let plain = p.norm.is_none() && p.gate.is_none();
        let bias_fits = p
            .bias
            .as_ref()
            .is_none_or(|b| b.dtype == DType::F32 && b.layout.is_contiguous());
        let residual_fits = p.residual.as_ref().is_none_or(|r| {
            let last = r.layout.strides().last();
            r.dtype == DType::F32 && last.is_some_and(|t| t.factor() == 1 && t.dim().is_one())
        });
        let lies = OperandOrder::new(&p.a, &p.m, &p.k).is_some()
            && OperandOrder::new(&p.b, &p.n, &p.k).is_some();
        if !is_f32 || !plain || !bias_fits || !residual_fits || !lies {
            return Ok(None);
        }
        let Some([outer, inner]) = two_axes(e, p) else {
            return Ok(None);
        };
        if outer.size != SymInt::ONE {
            return Ok(None);
        }
        let mut batches = 1usize;
        for dim in &p.batch {
            batches = batches.saturating_mul(e.bound(dim)?);
        }
        let problem = GemmProblem {
            dtype: DType::F32,
            b_transposed: p.b.summed.unit,
            m: e.bound(&p.m)?,
            n: e.bound(&p.n)?,
            k: e.bound(&p.k)?,
        };
        let Some((tiling, mut seconds)) =
            CoopGemmTiling::choose_for_split_f16(e.caps, &problem, batches)
        else {
            return Ok(None);
        };
        let rates = &e.caps.device.rates;
        // Add the time of two dispatches: the split of the operands, and the fallback tiles.
        seconds += 2.0 * rates.dispatch_s;
        for (side, own) in [(&p.a, problem.m), (&p.b, problem.n)] {
            let moves = side.batch.iter().any(|axis| axis.stride != SymInt::ZERO);
            let entries = if moves { batches } else { 1 };
            let blocks = (own.div_ceil(BLOCK as usize) as u64)
                .saturating_mul(problem.k.div_ceil(BLOCK as usize) as u64)
                .saturating_mul(entries as u64);
            if blocks.saturating_mul(4 * (BLOCK_LEN + 1)) > e.caps.max_binding_bytes {
                return Ok(None);
            }
            if !e.home(side.slot).is_constant() {
                let bytes = blocks.saturating_mul(8 * BLOCK_LEN) as f64;
                seconds += bytes / rates.bytes_per_s;
            }
        }
        Ok(Some(SplitF16Gemm {
            tiling,
            seconds,
            batch: [inner.size, inner.a, inner.b],
        }))
    }

    /// Name of the tiling.
    pub(super) fn name(&self) -> String {
        self.tiling.to_string()
    }

    /// Emits the kernels that split the operands, multiply them, and compute the fallback tiles.
    pub(super) fn dispatch(
        &self,
        e: &mut LoweringCtx<'_>,
        given: &MatMulArgs,
        p: &MatMulProblem,
    ) -> Result<(), CompileError> {
        let [batch, of_a, of_b] = self.batch;
        let a = split(e, p, &p.a, &p.m, [batch, of_a])?;
        let b = split(e, p, &p.b, &p.n, [batch, of_b])?;
        let [bm, bn, _] = self.tiling.tile;
        let tiles = [(&p.m, bm), (&p.n, bn)];
        let mut shape = p.batch.clone();
        for (dim, len) in tiles {
            shape.push(Dim::Known(e.bound(dim)?.div_ceil(len as usize)));
        }
        let rest = e.temp(DType::U32, &shape)?.slot;
        let splits = self.tiling.splits;
        if splits > 1 {
            let sums = coop::parts(e, p, splits, p.n.clone())?;
            self.tiles(e, &given.sums(sums), p, [&a, &b], rest);
            coop::add_parts(e, given, p, splits, sums, &ColumnRange::all(given));
        } else {
            self.tiles(e, given, p, [&a, &b], rest);
        }
        self.rest(e, given, p, rest);
        Ok(())
    }

    /// Dispatches the split-F16 tiles.
    fn tiles(
        &self,
        e: &mut LoweringCtx<'_>,
        given: &MatMulArgs,
        p: &MatMulProblem,
        sides: [&SplitF16Operand; 2],
        rest: SlotId,
    ) {
        let t = &self.tiling;
        let [a, b] = sides;
        let q = &given.params;
        let splits = SymInt::Const(i64::from(t.splits));
        let tape = e.tape();
        let len = tape.mul(q.m, q.n);
        let all = tape.mul(q.batch, len);
        let split_k = match t.splits {
            1 => q.k,
            n => {
                let steps = tape.ceil_div(q.k, n * BLOCK);
                tape.mul(steps, SymInt::Const(i64::from(BLOCK)))
            }
        };
        let params = GemmCoopParams {
            m: q.m,
            n: q.n,
            k: q.k,
            batches: q.batch,
            batch_inner: q.batch,
            splits,
            split_k,
            lda: a.blocks,
            ldb: b.blocks,
            ldc: q.n,
            ld_residual: q.bias_row,
            offset_a: SymInt::ZERO,
            offset_b: SymInt::ZERO,
            offset_c: SymInt::ZERO,
            offset_bias: q.bias_offset,
            offset_residual: q.bias_offset,
            outer_a: SymInt::ZERO,
            outer_b: SymInt::ZERO,
            outer_c: SymInt::ZERO,
            outer_residual: SymInt::ZERO,
            inner_a: a.batch_stride,
            inner_b: b.batch_stride,
            inner_c: len,
            inner_residual: SymInt::ZERO,
            split_c: all,
            len_c: tape.mul(all, splits),
        };
        let consts = self.consts(p, sides);
        let [bm, bn, _] = t.tile;
        let [x, y, _] = given.tile_grid(e, [bm, bn]);
        let limit = e.caps.max_grid;
        let tape = e.tape();
        let depth = tape.mul(q.batch, splits);
        let depth = tape.min(depth, limit);
        let [_, _, bias, c] = given.args;
        let args = [a.slot, b.slot, bias, bias, c, rest];
        e.dispatch(&PAIRS, &consts, &args, &params, [x, y, depth]);
    }

    /// Values of the kernel's constants.
    fn consts(&self, p: &MatMulProblem, [a, b]: [&SplitF16Operand; 2]) -> Vec<u32> {
        let t = &self.tiling;
        let [fm, fn_, fk] = t.fragment;
        let [bm, bn, bk] = t.tile;
        let [wm, wn] = t.subgroup_tile;
        let in_parts = t.splits > 1;
        let activation = p.activation.filter(|_| !in_parts).map_or(0, |f| {
            let at = ACTIVATIONS.iter().position(|known| *known == f);
            1 + at.unwrap_or_else(|| unreachable!("invariant: the kernel has the activation"))
                as u32
        });
        let is_whole = |dim: &Dim| dim.known().is_some_and(|n| n.is_multiple_of(8));
        vec![
            t.threads(),
            t.subgroup,
            fm,
            fn_,
            fk,
            bm,
            bn,
            bk,
            wm,
            wn,
            u32::from(a.along),
            u32::from(b.along),
            activation,
            u32::from(p.bias.is_some() && !in_parts),
            u32::from(p.residual.is_some() && !in_parts),
            u32::from(is_whole(&p.n)),
            t.band,
        ]
    }

    /// Dispatches the F32 fallback tiles.
    fn rest(&self, e: &mut LoweringCtx<'_>, given: &MatMulArgs, p: &MatMulProblem, rest: SlotId) {
        let [bm, bn, _] = self.tiling.tile;
        let own = [
            code(p.b.dtype),
            REST_SIDE,
            1,
            u32::from(p.a.own_axis.unit),
            u32::from(p.b.own_axis.unit),
            bm,
            bn,
        ];
        let consts: Vec<u32> = given.consts.into_iter().chain(own).collect();
        let [a, b, bias, y] = given.args;
        let grid = given.tile_grid(e, [REST_TILE; 2]);
        let args = [a, b, bias, y, rest];
        e.dispatch(
            REST.select(p.activation),
            &consts,
            &args,
            &given.params,
            grid,
        );
    }
}

/// An operand after its F32 numbers were split into F16 pairs.
struct SplitF16Operand {
    slot: SlotId,
    /// Total number of scale blocks, and number of scale blocks per batch entry.
    blocks: SymInt,
    batch_stride: SymInt,
    along: bool,
}

/// Emits the kernel that splits an operand of `own` by k elements into F16 pairs, for a batch of
/// this size and stride.
fn split(
    e: &mut LoweringCtx<'_>,
    p: &MatMulProblem,
    side: &MatMulOperand,
    own: &Dim,
    [batch, distance]: [SymInt; 2],
) -> Result<SplitF16Operand, CompileError> {
    let lying = OperandOrder::new(side, own, &p.k);
    let lying = lying.unwrap_or_else(|| {
        unreachable!("invariant: supported operands have contiguous rows or columns")
    });
    let batch = if distance == SymInt::ZERO {
        SymInt::ONE
    } else {
        batch
    };
    let [rows, columns] = [lying.rows, lying.columns].map(|dim| e.num(dim));
    let tape = e.tape();
    let [down, across] = [rows, columns].map(|n| tape.ceil_div(n, BLOCK));
    let of_batch = tape.mul(down, across);
    let blocks = tape.mul(of_batch, batch);
    let halves = SplitF16Request {
        slot: side.slot,
        offset: side.offset,
        row: lying.row.stride,
        size: [rows, columns],
        batch: [batch, distance],
    };
    let mut entries = 1usize;
    if batch != SymInt::ONE {
        for dim in &p.batch {
            entries = entries.saturating_mul(e.bound(dim)?);
        }
    }
    let bounds = [lying.rows, lying.columns].map(|dim| e.bound(dim));
    let [max_rows, max_columns] = bounds.map(|n| n.map(|n| n.div_ceil(BLOCK as usize)));
    let most = entries
        .saturating_mul(max_rows?)
        .saturating_mul(max_columns?);
    let numbers = [
        rows,
        columns,
        batch,
        distance,
        side.offset,
        lying.row.stride,
    ];
    let is_known = numbers.iter().all(|n| matches!(n, SymInt::Const(_)));
    let slot = e.halves(halves, is_known, |e| {
        let len = Dim::Known(most.saturating_mul(BLOCK_LEN as usize + 1));
        let to = e.temp(DType::U32, &[len])?.slot;
        let params = SplitF16ConvertParams {
            offset: side.offset,
            row: lying.row.stride,
            rows,
            columns,
            across,
            of_batch,
            blocks,
            batch: distance,
        };
        let grid = e.flat_grid(blocks);
        e.dispatch(&SPLIT_BLOCKS, &[], &[side.slot, to], &params, grid);
        Ok(to)
    })?;
    Ok(SplitF16Operand {
        slot,
        blocks,
        batch_stride: if distance == SymInt::ZERO {
            SymInt::ZERO
        } else {
            of_batch
        },
        along: lying.along,
    })
}

//! Code that the kernel variants of GEMV and skinny GEMM share.
//!
//! Weights that are contiguous along k are read in 16-byte pieces if they are aligned. A piece of
//! quantized weights has 16 bytes of quantized values. In shared memory, the elements of each
//! activation row are stored in the order in which the dot products read them. GEMV with quantized
//! weights can hold its activation row in registers instead (`gemv_packed.rs`).
//!
//! Next: `gemv/floats.rs` and `gemv/blocks.rs` for the variant tables.

mod blocks;
mod floats;

use tercet_ir::{CompileError, DType, VariantFamily};

pub(super) use self::blocks::{keyed as packed_keyed, packed};
pub(super) use self::floats::{
    floats, has_strips, keyed as floats_keyed, strips, supports_keyed as floats_take_keyed,
};
use super::portable::{FusedOps, MatMulArgs};
use super::product::MatMulProblem;
use super::skinny::{SkinnyGemm, SkinnyGemmPlan};
use crate::device::cost_model::GemvCosts;
use crate::emit::LoweringCtx;
use crate::lowerings::dequant::PackedWeights;
use crate::tuning::TuningKey;
use crate::variant::{self, KernelVariant, VariantRejection, needs};
use tercet_program::SymInt;

/// Family of the variants of GEMV and skinny GEMM.
const ROWS: &str = "rows";

/// The family with the names of its variants.
pub(super) fn family() -> VariantFamily {
    let tables = [
        &skinny_variants()[..],
        &floats::float_variants(),
        &blocks::packed_variants(),
    ];
    variant::family(ROWS, &tables)
}

/// Threads per workgroup.
pub(super) const WORKGROUP: u32 = 256;
/// Bytes of shared memory that kernels with several activation rows use; every device has as much.
const MIN_SHARED_BYTES: u32 = 16 << 10;

/// Prologue and epilogue that kernels with activation rows in shared memory can fuse; they fuse a
/// norm only if there is a single row.
fn fused_ops(p: &MatMulProblem, rows: u32) -> FusedOps {
    FusedOps {
        norm: rows == 1 && p.k.known().is_some_and(|k| k > 0),
        gate: true,
        ..FusedOps::NOTHING
    }
}

/// Prologue and epilogue that the variants for float weights can fuse.
pub(super) fn float_fused_ops(
    e: &LoweringCtx<'_>,
    p: &MatMulProblem,
    rows: u32,
) -> Result<FusedOps, CompileError> {
    Ok(match reads_quads(e, p)? {
        true => fused_ops(p, rows_of(e, p, rows)?),
        false => FusedOps::NOTHING,
    })
}

/// Prologue and epilogue that the variants for quantized weights can fuse.
pub(super) fn packed_fused_ops(p: &MatMulProblem, rows: u32) -> FusedOps {
    fused_ops(p, rows)
}

/// Values of the constants `GATED` and `NORMED`.
fn fused_op_consts(p: &MatMulProblem) -> [u32; 2] {
    [p.gate.is_some(), p.norm.is_some()].map(u32::from)
}

/// Number of four-element activation vectors that match a 16-byte piece of weights.
fn quads_of(dtype: DType) -> u32 {
    if dtype == DType::F32 { 1 } else { 2 }
}

/// A matmul with at most `max_rows` rows per run (1 or 8), or with several blocks of `max_rows`
/// rows.
struct MultiRowGemv<'p> {
    product: &'p MatMulProblem,
    args: &'p MatMulArgs,
    /// The weights if they are quantized; `None` for float weights.
    blocks: Option<&'p PackedWeights>,
    max_rows: u32,
    in_blocks: bool,
}

impl MultiRowGemv<'_> {
    /// Estimated time in seconds: that of reading all weights once, multiplied by `times`.
    fn seconds(&self, e: &LoweringCtx<'_>, times: f64) -> Result<f64, CompileError> {
        let p = self.product;
        let (n, k) = (e.bound(&p.n)? as f64, e.bound(&p.k)? as f64);
        let bytes = match self.blocks {
            Some(blocks) => blocks.scheme.block_bytes() as f64 / blocks.scheme.block_len() as f64,
            None => p.b.dtype.size_bytes() as f64,
        };
        let mut products = 1.0;
        for dim in &p.batch {
            products *= e.bound(dim)? as f64;
        }
        let rates = e.caps.device.rates;
        Ok(rates.dispatch_s + products * n * k * bytes / rates.bytes_per_s * times)
    }

    /// Selects the entry of a measured cost factor: the first for float weights, the second for
    /// quantized weights.
    fn times(&self, e: &LoweringCtx<'_>, of: fn(&GemvCosts) -> [f64; 2]) -> f64 {
        of(&e.caps.device.rates.rows)[usize::from(self.blocks.is_some())]
    }

    /// The variant that the autotuning table names.
    fn tuned_variant<'e>(&self, e: &LoweringCtx<'e>) -> Result<Option<&'e str>, CompileError> {
        let p = self.product;
        let rows = e.bound(&p.m)?.min(self.max_rows as usize);
        let sizes = [rows, e.bound(&p.n)?, e.bound(&p.k)?];
        let weights = p.weights_of(self.blocks.map(|blocks| blocks.scheme));
        Ok(e.caps
            .device
            .tuning
            .find(|| TuningKey::rows(p.a.dtype, weights, sizes)))
    }

    /// True if the matmul has neither a norm prologue nor a gate.
    fn is_alone(&self) -> bool {
        self.product.norm.is_none() && self.product.gate.is_none()
    }

    fn skinny_gemm(&self, e: &LoweringCtx<'_>) -> Result<Option<SkinnyGemm>, CompileError> {
        SkinnyGemm::new(e, self.product, self.max_rows)
    }

    fn skinny_plan(
        &self,
        e: &LoweringCtx<'_>,
        is_streamed: bool,
    ) -> Result<SkinnyGemmPlan, VariantRejection> {
        let few = self.skinny_gemm(e)?;
        needs(
            few.is_some(),
            "2 to 8 rows, whole rows of weights, and the mma fragment layout",
        )?;
        let few = few.and_then(|few| few.with_rows(e.caps, is_streamed));
        few.ok_or(VariantRejection::Needs(
            "more shared memory or registers".into(),
        ))
    }

    fn emit_skinny(&self, e: &mut LoweringCtx<'_>, is_streamed: bool) -> Result<(), CompileError> {
        let few = self.skinny_gemm(e)?;
        let few = few.and_then(|few| few.with_rows(e.caps, is_streamed));
        let few = few.unwrap_or_else(|| unreachable!("invariant: the variant supports it"));
        few.dispatch(e, self.product, self.args);
        Ok(())
    }
}

/// Variants on mma-style fragments.
fn skinny_variants<'p>() -> [KernelVariant<MultiRowGemv<'p>>; 2] {
    [
        KernelVariant {
            name: "few_rows_streamed",
            supports: |e, r| r.skinny_plan(e, true).map(drop),
            cost: |e, r| {
                let few = r.skinny_gemm(e)?;
                let is_short = few.is_some_and(|few| few.has_few_tiles(e.caps));
                let slower = if is_short {
                    e.caps.device.rates.rows.few_tiles
                } else {
                    1.0
                };
                r.seconds(e, slower * r.times(e, |rates| rates.shared_mem))
            },
            emit: |e, r| r.emit_skinny(e, true),
        },
        KernelVariant {
            name: "few_rows_held",
            supports: |e, r| r.skinny_plan(e, false).map(drop),
            cost: |e, r| r.seconds(e, r.times(e, |rates| rates.register_resident)),
            emit: |e, r| r.emit_skinny(e, false),
        },
    ]
}

/// True if the activation row can be bound as an array of four-word vectors and consists of whole
/// 16-byte pieces.
fn row_is_quads(p: &MatMulProblem) -> bool {
    let len = 16 / p.a.dtype.size_bytes() as u64;
    let whole = p.k.known().is_some_and(|k| (k as u64).is_multiple_of(len));
    whole && p.a.summed.unit && p.a.is_multiple(len, p.a.own_axis)
}

/// Number of activation rows that the kernel has accumulators for.
fn rows_of(e: &LoweringCtx<'_>, p: &MatMulProblem, rows: u32) -> Result<u32, CompileError> {
    let few = rows > 1 && e.bound(&p.m)? <= 4;
    Ok(if few { 4 } else { rows })
}

/// True if the weights can be bound as an array of four-word vectors, and every column consists of
/// whole vectors.
fn reads_quads(e: &LoweringCtx<'_>, p: &MatMulProblem) -> Result<bool, CompileError> {
    let len = 4 * quads_of(p.b.dtype) as usize;
    let whole = p.k.known().is_some_and(|k| k >= len && k % len == 0);
    let aligned = p.b.summed.unit && p.b.is_multiple(len as u64, p.b.own_axis);
    Ok(whole && aligned && p.is_apart() && e.bound(&p.n)? > 0)
}

/// Number of thread groups per workgroup for this number of activation rows.
fn teams_of(rows: u32) -> u32 {
    if rows == 8 { 16 } else { 8 }
}

/// Assignment of threads to weight columns: a group of threads computes a column together.
#[derive(Clone, Copy, Debug, PartialEq)]
struct ColumnThreadGroups {
    /// Thread groups per workgroup; each processes `columns_per_group` columns at once.
    units: u32,
    columns_per_group: u32,
    /// Number of weight pieces per thread whose activation elements fit into shared memory at once.
    steps: u32,
}

impl ColumnThreadGroups {
    /// Number of results that a workgroup computes per activation row.
    fn results(self, p: &MatMulProblem) -> u32 {
        self.units * self.columns_per_group / (1 + u32::from(p.gate.is_some()))
    }

    /// The assignment of threads for `rows` activation rows, at most `units` thread groups per
    /// workgroup, and weight pieces of `quads` four-element vectors. Each thread processes `unroll`
    /// pieces per loop iteration. Shared memory holds `extra` additional vectors per piece.
    fn new(
        e: &LoweringCtx<'_>,
        p: &MatMulProblem,
        [rows, units]: [u32; 2],
        [quads, extra]: [u32; 2],
        unroll: u32,
    ) -> Result<ColumnThreadGroups, CompileError> {
        let n = e.bound(&p.columns())?;
        let pieces = e.bound(&p.k)?.div_ceil(4 * quads as usize);
        let device = e.caps.units();
        // With one activation row, partial sums are stored beside the staged row; with several, the
        // sums overwrite the staged rows.
        let (bytes, sums) = match rows {
            1 => (e.caps.device.multi_occupancy_shared_bytes, WORKGROUP),
            _ => (MIN_SHARED_BYTES, 0),
        };
        let steps = |units: u32| {
            let slices = WORKGROUP / units;
            let step = match rows {
                1 => (quads + extra) * (slices + 1),
                _ => rows * (quads + extra) * slices,
            };
            let wanted = pieces.div_ceil(slices as usize) as u32;
            let fit = (bytes / 16 - sums) / step / unroll * unroll;
            fit.min(wanted.next_multiple_of(unroll))
        };
        // Use larger thread groups if there are too few columns for all compute units, and the
        // columns are long enough.
        let mut units = units;
        while rows == 1
            && units > 2
            && 2 * n < device * units as usize
            && pieces * units as usize > WORKGROUP as usize
            && steps(units / 2) > 0
        {
            units /= 2;
        }
        Ok(ColumnThreadGroups {
            units,
            // A thread group computes two columns with the same activation loads, if enough work
            // remains for all compute units.
            columns_per_group: 1 + u32::from(p.gate.is_some() || n >= 24 * device),
            steps: steps(units).max(unroll),
        })
    }
}

/// Workgroup grid of a kernel whose workgroups compute `results` results per activation row. If
/// there are many more workgroups than the device runs concurrently, each workgroup processes
/// several column groups, which reuse its staged rows.
fn grid(e: &mut LoweringCtx<'_>, r: &MultiRowGemv<'_>, results: u32) -> [SymInt; 3] {
    let most = 8 * e.caps.device.max_units() as u32;
    let columns = e.num(&r.product.columns());
    let groups = e.tape().ceil_div(columns, results);
    let mut groups = e.tape().min(groups, most);
    if r.in_blocks {
        let blocks = e.tape().ceil_div(r.args.params.m, r.max_rows);
        groups = e.tape().mul(groups, blocks);
    }
    let [x, y, _] = e.flat_grid(groups);
    [x, y, r.args.batches]
}

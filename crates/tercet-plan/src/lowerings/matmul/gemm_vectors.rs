//! Tiled GEMM without cooperative matrices whose kernels load 4 elements at once; operand rows must
//! consist of whole 4-element vectors.

use tercet_ir::scalar::UnaryFn;
use tercet_ir::{CompileError, DType, Dim};

use super::coop::{self, ColumnRange};
use super::gemm::GemmWorkgroupTile;
use super::kernels::{
    MatMulParams, QUADS_16, QUADS_16_ACTIVATED, QUADS_CODED_16, QUADS_CODED_F32, QUADS_F32,
    QUADS_F32_ACTIVATED, QUADS_MIXED, QUADS_PACKED_16, QUADS_PACKED_F32,
};
use super::portable::{EpilogueKernels, MatMulArgs};
use super::product::MatMulProblem;
use crate::device::cost_model::TileRate;
use crate::emit::{LoweringCtx, SlotView};
use crate::lowerings::code;
use crate::lowerings::dequant::PackedWeights;
use crate::lowerings::tiles::{
    LatencyClass, TileChoice, TileProblem, WorkgroupTile, saturating_threads,
};
use tercet_program::SymInt;
use tercet_program::TypedKernel;

/// Elements per quad.
const QUAD: u64 = 4;

static F32: EpilogueKernels = EpilogueKernels {
    plain: &QUADS_F32,
    activated: &QUADS_F32_ACTIVATED,
};
static HALF: EpilogueKernels = EpilogueKernels {
    plain: &QUADS_16,
    activated: &QUADS_16_ACTIVATED,
};

fn problem<'a>(e: &LoweringCtx<'a>, p: &MatMulProblem) -> Result<TileProblem<'a>, CompileError> {
    let mut products = 1usize;
    for dim in &p.batch {
        products = products.saturating_mul(e.bound(dim)?);
    }
    Ok(TileProblem {
        rows: e.bound(&p.m)?,
        columns: e.bound(&p.n)?,
        k: e.bound(&p.k)?,
        products,
        device: &e.caps.device,
        saturating_threads: saturating_threads(&e.caps.device, LatencyClass::Rows),
        // Allow split-K only for F32 activations: for other dtypes, it would round the results once
        // more.
        max_bytes: match p.a.dtype {
            DType::F32 => e.caps.max_binding_bytes / 2,
            _ => 0,
        },
    })
}

fn best(problem: &TileProblem<'_>, rates: &[TileRate; 4]) -> TileChoice {
    let best = problem.best(&rates.each_ref().map(WorkgroupTile::from_rate));
    best.unwrap_or_else(|| unreachable!("invariant: there are sizes"))
}

/// Dispatches the GEMM kernel and, with split-K, the kernel that adds the partial sums. The
/// constants `TM`, `TN` and `PARTS` precede the GEMM kernel's own constants (`own`).
fn emit(
    e: &mut LoweringCtx<'_>,
    p: &MatMulProblem,
    given: &MatMulArgs,
    kernel: &TypedKernel<MatMulParams>,
    own: &[u32],
    tiles: TileChoice,
) -> Result<(), CompileError> {
    let [tm, tn] = tiles.size.sides();
    let own: Vec<u32> = [tm, tn, tiles.parts]
        .into_iter()
        .chain(own.iter().copied())
        .collect();
    let grid = given.tile_grid(e, tiles.size.tile());
    if tiles.parts == 1 {
        given.dispatch(e, kernel, &own, grid);
        return Ok(());
    }
    let sums = coop::parts(e, p, tiles.parts, p.n.clone())?;
    let [x, y, batches] = grid;
    let depth = e.tape().mul(batches, SymInt::Const(i64::from(tiles.parts)));
    let limit = e.caps.max_grid;
    let depth = e.tape().min(depth, limit);
    given.sums(sums).dispatch(e, kernel, &own, [x, y, depth]);
    coop::add_parts(e, given, p, tiles.parts, sums, &ColumnRange::all(given));
    Ok(())
}

fn is_whole_quads(dim: &Dim) -> bool {
    dim.known().is_some_and(|n| (n as u64).is_multiple_of(QUAD))
}

/// True if the rows of the left operand and of the result have one dtype and consist of whole
/// 4-element vectors.
fn rows_are_quads(p: &MatMulProblem, y: &SlotView) -> bool {
    has_whole_rows(p) && y.dtype == p.a.dtype
}

/// True if the rows of the left operand and of the result consist of whole 4-element vectors.
pub(super) fn has_whole_rows(p: &MatMulProblem) -> bool {
    let rows = p.a.summed.unit && p.a.is_multiple(QUAD, p.a.own_axis) && is_whole_quads(&p.k);
    rows && is_whole_quads(&p.n)
}

fn kernel_of(
    p: &MatMulProblem,
    activation: Option<UnaryFn>,
) -> Option<&'static TypedKernel<MatMulParams>> {
    let half = |dtype| matches!(dtype, DType::F16 | DType::BF16);
    match (p.a.dtype, p.b.dtype) {
        (DType::F32, DType::F32) => Some(F32.select(activation)),
        (a, b) if half(a) && half(b) => Some(HALF.select(activation)),
        (DType::F32, b) if half(b) && activation.is_none() => Some(&QUADS_MIXED),
        _ => None,
    }
}

/// True if the kernels of this file support a float GEMM; `y` must have the dtype of the left
/// operand.
pub(super) fn supports(p: &MatMulProblem, y: &SlotView) -> bool {
    let [across, along] = operand_orders(p);
    kernel_of(p, p.activation).is_some()
        && rows_are_quads(p, y)
        && (across || along)
        && p.is_apart()
}

/// Whether kernels can load 4-element vectors of the right operand along n, and along k.
pub(super) fn operand_orders(p: &MatMulProblem) -> [bool; 2] {
    [
        p.b.own_axis.unit && p.b.is_multiple(QUAD, p.b.summed),
        p.b.summed.unit && p.b.is_multiple(QUAD, p.b.own_axis),
    ]
}

/// True if a float GEMM uses split-K.
pub(super) fn splits(e: &LoweringCtx<'_>, p: &MatMulProblem) -> Result<bool, CompileError> {
    let rates = &e.caps.device.rates.tiles;
    Ok(best(&problem(e, p)?, &rates.floats).parts > 1)
}

/// Input of the tile size selection, with split-K forbidden and compute units that one thread
/// already saturates. The rates of kernels that load single elements also ignore occupancy.
fn busy<'a>(e: &LoweringCtx<'a>, p: &MatMulProblem) -> Result<TileProblem<'a>, CompileError> {
    Ok(TileProblem {
        saturating_threads: 1.0,
        max_bytes: 0,
        ..problem(e, p)?
    })
}

/// Estimated time of a float GEMM with 4-element loads, in seconds.
pub(super) fn seconds(e: &LoweringCtx<'_>, p: &MatMulProblem) -> Result<f64, CompileError> {
    let rates = &e.caps.device.rates.tiles;
    Ok(best(&problem(e, p)?, &rates.floats).time / rates.per_s)
}

/// Estimated time of a float GEMM whose kernel loads single elements, in seconds. It assumes the
/// same occupancy as with 4-element loads.
pub(super) fn seconds_of(
    e: &LoweringCtx<'_>,
    p: &MatMulProblem,
    tile: GemmWorkgroupTile,
) -> Result<f64, CompileError> {
    let device = &e.caps.device;
    let busy = busy(e, p)?;
    let times = busy.time(tile.size(device), 1) / best(&busy, &device.rates.tiles.floats).time;
    Ok(times * seconds(e, p)?)
}

/// Emits a float GEMM that [`supports`] accepts.
pub(super) fn floats(
    e: &mut LoweringCtx<'_>,
    p: &MatMulProblem,
    given: &MatMulArgs,
    y: &SlotView,
) -> Result<(), CompileError> {
    debug_assert!(supports(p, y), "invariant: the kernel supports the problem");
    let tiles = best(&problem(e, p)?, &e.caps.device.rates.tiles.floats);
    // With split-K, the kernel that adds the partial sums applies the activation.
    let plain = kernel_of(p, None).filter(|_| tiles.parts > 1);
    let kernel = plain.or_else(|| kernel_of(p, p.activation));
    let kernel = kernel.unwrap_or_else(|| unreachable!("invariant: there is a kernel for it"));
    let [_, along] = operand_orders(p);
    let mut own = vec![u32::from(!along)];
    if p.b.dtype != DType::F32 {
        own.push(code(p.b.dtype));
    }
    emit(e, p, given, kernel, &own, tiles)
}

/// Estimated time of a GEMM with quantized weights and 4-element loads, in seconds.
pub(super) fn packed_seconds(e: &LoweringCtx<'_>, p: &MatMulProblem) -> Result<f64, CompileError> {
    let rates = &e.caps.device.rates.tiles;
    Ok(best(&problem(e, p)?, &rates.blocks).time / rates.per_s)
}

/// Emits a GEMM with quantized weights whose kernel loads 4 elements at once. Returns false if the
/// kernel does not support the operands' layout.
pub(super) fn packed(
    e: &mut LoweringCtx<'_>,
    p: &MatMulProblem,
    given: &MatMulArgs,
    blocks: &PackedWeights,
    y: &SlotView,
) -> Result<bool, CompileError> {
    if !rows_are_quads(p, y) || !p.is_apart() {
        return Ok(false);
    }
    let kernel = match (p.a.dtype, given.uses_codebook()) {
        (DType::F32, false) => &QUADS_PACKED_F32,
        (_, false) => &QUADS_PACKED_16,
        (DType::F32, true) => &QUADS_CODED_F32,
        (_, true) => &QUADS_CODED_16,
    };
    let tiles = best(&problem(e, p)?, &e.caps.device.rates.tiles.blocks);
    emit(e, p, given, kernel, &blocks.consts(), tiles)?;
    Ok(true)
}

//! Convolutions as tiled implicit GEMM in WGSL.

use tercet_ir::{CompileError, DType, Dim};

use super::kernels::{ConvWeightLoad, GEMM};
use super::{ConvEpilogueArgs, ConvProblem};
use crate::emit::{LoweringCtx, SlotView};
use crate::lowerings::tiles::{
    LatencyClass, TileChoice, TileProblem, WorkgroupTile, saturating_threads,
};
use tercet_program::SymInt;

/// The tile shape and split-K factor that minimize the work of the busiest compute unit.
pub(super) fn best(e: &LoweringCtx<'_>, c: &ConvProblem<'_>) -> Result<TileChoice, CompileError> {
    let entries = e.bound(&c.x.layout.shape()[0])?;
    let problem = TileProblem {
        rows: e.bound(&c.m)?,
        columns: entries.saturating_mul(e.bound(&c.windows.count)?),
        k: e.bound(&c.k)?,
        products: c.op.groups,
        device: &e.caps.device,
        saturating_threads: saturating_threads(&e.caps.device, LatencyClass::Windows),
        max_bytes: e.caps.max_binding_bytes / 2,
    };
    let sizes = e
        .caps
        .device
        .rates
        .tiles
        .windows
        .each_ref()
        .map(WorkgroupTile::from_rate);
    let best = problem.best(&sizes);
    Ok(best.unwrap_or_else(|| unreachable!("invariant: there are sizes")))
}

/// Estimated time in seconds.
pub(super) fn seconds(e: &LoweringCtx<'_>, c: &ConvProblem<'_>) -> Result<f64, CompileError> {
    Ok(best(e, c)?.time / e.caps.device.rates.tiles.per_s)
}

/// Dispatches the tiled kernel, which writes results or split-K partial sums to `y`.
pub(super) fn emit(
    tiles: TileChoice,
    e: &mut LoweringCtx<'_>,
    c: &ConvProblem<'_>,
    y: &SlotView,
    epilogue: ConvEpilogueArgs,
) {
    let params = c.params(e, &epilogue);
    let apart = c.w.slot != c.x.slot && c.w.slot != epilogue.bias;
    // Vector loads need weights that are not empty, because a binding must contain at least one
    // vector.
    let some = c.k != Dim::Known(0);
    let quads = apart && some && c.k.twos() >= 2;
    let weights = match (quads, c.w.dtype) {
        (false, _) => ConvWeightLoad::Words,
        (true, DType::F32) => ConvWeightLoad::Quads,
        (true, _) => ConvWeightLoad::HalfQuads,
    };
    let [tm, tn] = tiles.size.sides();
    let limit = e.caps.max_grid;
    let tape = e.tape();
    let down = tape.ceil_div(params.m, 8 * tm);
    let columns = tape.mul(params.batch, params.windows);
    let across = tape.ceil_div(columns, 8 * tn);
    let grid = tape.mul(down, across);
    let products = tape.mul(params.groups, SymInt::Const(i64::from(tiles.parts)));
    let products = tape.min(products, limit);
    let [gx, gy, _] = e.flat_grid(grid);
    let mut consts = c.consts(&epilogue, y);
    consts.extend([tm, tn, tiles.parts]);
    let args = [c.x.slot, c.w.slot, epilogue.bias, y.slot];
    let kernel = GEMM.pick(weights, epilogue.activation());
    e.dispatch(kernel, &consts, &args, &params, [gx, gy, products]);
}

//! Convolutions as tiles of a product that gathers windows while it multiplies, in WGSL.

use tercet_ir::{CompileError, DType, Dim};

use super::kernels::{GEMM, Weights};
use super::{Epilogue, Given};
use crate::emit::{Emit, View};
use crate::families::tiles::{Size, TileProblem, Tiles, Waits, full_unit};
use crate::num::Num;

/// Those with which the busiest unit has least to do.
pub(super) fn best(e: &Emit<'_>, c: &Given<'_>) -> Result<Tiles, CompileError> {
    let entries = e.bound(&c.x.layout.shape()[0])?;
    let problem = TileProblem {
        rows: e.bound(&c.m)?,
        columns: entries.saturating_mul(e.bound(&c.windows.count)?),
        k: e.bound(&c.k)?,
        products: c.op.groups,
        device: &e.caps.device,
        full_unit: full_unit(&e.caps.device, Waits::ForWindows),
        most_bytes: e.caps.max_binding_bytes / 2,
    };
    let sizes = e
        .caps
        .device
        .rates
        .tiles
        .windows
        .each_ref()
        .map(Size::of_quads);
    let best = problem.best(&sizes);
    Ok(best.unwrap_or_else(|| unreachable!("invariant: there are sizes")))
}

/// About how many seconds they take.
pub(super) fn seconds(e: &Emit<'_>, c: &Given<'_>) -> Result<f64, CompileError> {
    Ok(best(e, c)?.time / e.caps.device.rates.tiles.per_s)
}

/// Dispatches them, into a result or into sums of parts.
pub(super) fn emit(tiles: Tiles, e: &mut Emit<'_>, c: &Given<'_>, y: &View, epilogue: Epilogue) {
    let params = c.params(e, &epilogue);
    let apart = c.w.slot != c.x.slot && c.w.slot != epilogue.bias;
    // No weights fill no quad, which a binding must.
    let some = c.k != Dim::Known(0);
    let quads = apart && some && c.k.twos() >= 2;
    let weights = match (quads, c.w.dtype) {
        (false, _) => Weights::Words,
        (true, DType::F32) => Weights::Quads,
        (true, _) => Weights::HalfQuads,
    };
    let [tm, tn] = tiles.size.sides();
    let limit = e.caps.max_grid;
    let tape = e.tape();
    let down = tape.ceil_div(params.m, 8 * tm);
    let columns = tape.mul(params.batch, params.windows);
    let across = tape.ceil_div(columns, 8 * tn);
    let grid = tape.mul(down, across);
    let products = tape.mul(params.groups, Num::Const(i64::from(tiles.parts)));
    let products = tape.min(products, limit);
    let [gx, gy, _] = e.flat_grid(grid);
    let mut consts = c.consts(&epilogue, y);
    consts.extend([tm, tn, tiles.parts]);
    let args = [c.x.slot, c.w.slot, epilogue.bias, y.slot];
    let kernel = GEMM.pick(weights, epilogue.activation());
    e.dispatch(kernel, &consts, &args, &params, [gx, gy, products]);
}

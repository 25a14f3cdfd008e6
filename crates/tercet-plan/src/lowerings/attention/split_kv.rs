//! Attention on cooperative matrices with its keys in parts: where tiles of rows are fewer than the workgroups that a device runs side by
//! side, several take the keys of a tile, and `attention_join.wgsl` puts together what they make.
//!
//! How many parts there are follows from the sizes of a run; with one, the kernels of whole keys run.

use tercet_ir::ops::MaskKind;
use tercet_ir::{CompileError, DType, Dim};

use super::coop::{self, AttentionCoopParams, AttentionTiling, Factors, module};
use super::kernels::{JOIN, JoinParams};
use super::{AttentionProblem, variants};
use crate::emit::{Emit, View};
use crate::families::code;
use crate::kernel::{Access, Kernel};
use crate::num::Num;
use crate::program::SlotId;

/// Weights become factors through shared memory.
pub(super) static F16: Kernel<AttentionCoopParams> =
    module!("attention_coop_parts_f16", Access::Write);

/// Weights become factors by a conversion.
pub(super) static CONVERT_F16: Kernel<AttentionCoopParams> =
    module!("attention_convert_parts_f16", Access::Write);

/// F32 as pairs of F16; weights become factors as above.
pub(super) static PAIRS: Kernel<AttentionCoopParams> =
    module!("attention_halves_parts_f32", Access::Write, Access::Write);

/// The same where weights become factors by a conversion.
pub(super) static CONVERT_PAIRS: Kernel<AttentionCoopParams> = module!(
    "attention_halves_convert_parts_f32",
    Access::Write,
    Access::Write
);

/// Elements that are joined at a time.
const QUAD: usize = 4;

/// Runs an attention on matrices, its keys in parts where that fills the device better. Results beside `y`: of F32 the heads that
/// are left.
pub(super) fn dispatch(
    e: &mut Emit<'_>,
    p: &AttentionProblem<'_>,
    operands: [SlotId; 3],
    (y, beside): (&View, &[SlotId]),
    tiling: &AttentionTiling,
) -> Result<(), CompileError> {
    let side_by_side = tiling.side_by_side(e.caps);
    if !is_worth(e, p, side_by_side)? {
        coop::dispatch(e, p, operands, (y.slot, beside), tiling);
        return Ok(());
    }
    let parts = parts(e, p, tiling, side_by_side);
    e.choose_by(parts, &[1], |e, arm| match arm {
        0 => {
            coop::dispatch(e, p, operands, (y.slot, beside), tiling);
            Ok(())
        }
        _ => in_parts(e, p, operands, (y, beside), tiling, parts),
    })
}

/// True if some run may have several parts that one binding holds.
pub(super) fn is_worth(
    e: &Emit<'_>,
    p: &AttentionProblem<'_>,
    side_by_side: usize,
) -> Result<bool, CompileError> {
    let has_keys = e.bound(p.keys)? > e.caps.device.rates.attention.part_keys as usize;
    let heads = p.batch.known().unwrap_or(1).saturating_mul(p.op.kv_heads);
    Ok(has_keys && 2 * heads <= side_by_side && p.value_dim.is_multiple_of(QUAD))
}

/// The parts of a run: as many as leave all workgroups side by side.
fn parts(
    e: &mut Emit<'_>,
    p: &AttentionProblem<'_>,
    tiling: &AttentionTiling,
    side_by_side: usize,
) -> Num {
    let rows = variants::rows(e, p);
    let tiles = e.tape().ceil_div(rows, tiling.rows()[0]);
    let groups = variants::groups(e, p, &[tiles]);
    let groups = e.tape().max(groups, Num::ONE);
    let parts = e.tape().div(Num::Const(side_by_side as i64), groups);
    let least = e.caps.device.rates.attention.part_keys;
    let of_keys = e.tape().ceil_div(p.block.keys, least);
    let parts = e.tape().min(parts, of_keys);
    e.tape().max(parts, Num::ONE)
}

fn in_parts(
    e: &mut Emit<'_>,
    p: &AttentionProblem<'_>,
    operands: [SlotId; 3],
    (y, beside): (&View, &[SlotId]),
    tiling: &AttentionTiling,
    parts: Num,
) -> Result<(), CompileError> {
    let [tile_rows, _] = tiling.rows();
    // Groups times parts are no more than run side by side.
    let slots = tiling.side_by_side(e.caps) * tile_rows as usize;
    let sums = e.temp(DType::F32, &[slots, p.value_dim].map(Dim::Known))?;
    let stats = e.temp(DType::F32, &[slots, 2].map(Dim::Known))?;
    let kernel = match (tiling.factors(), tiling.converts()) {
        (Factors::Halves, false) => &F16,
        (Factors::Halves, true) => &CONVERT_F16,
        (Factors::Pairs, false) => &PAIRS,
        (Factors::Pairs, true) => &CONVERT_PAIRS,
        (Factors::Scaled, _) => unreachable!("invariant: what is trained keeps its logarithms"),
    };
    let whole = coop::params(e, p, tiling);
    let params = AttentionCoopParams {
        groups: e.tape().mul(whole.groups, parts),
        parts,
        ..whole
    };
    let mut results = vec![sums.slot];
    results.extend(beside);
    results.push(stats.slot);
    coop::run(
        e,
        p,
        (operands, &results),
        tiling,
        (kernel, &params, params.groups),
    );

    let rows = variants::rows(e, p);
    let quads = p.value_dim / QUAD;
    let count = variants::groups(e, p, &[rows, Num::Const(quads as i64)]);
    let grid = e.grid_of(count, 256);
    let params = JoinParams {
        y_batch: params.y_batch,
        y_head: params.y_head,
        y_seq: params.y_seq,
        rows,
        kv_heads: params.kv_heads,
        group: params.group,
        quads: Num::Const(quads as i64),
        tiles: params.tiles,
        tile_rows: tile_rows.into(),
        parts,
        count,
    };
    let is_natural = u32::from(p.op.mask == MaskKind::Bias);
    let args = [sums.slot, stats.slot, y.slot];
    e.dispatch(&JOIN, &[code(y.dtype), is_natural], &args, &params, grid);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::gemm_coop;

    #[test]
    fn the_modules_declare_the_block_the_arguments_and_the_constants() {
        for kernel in [&F16, &CONVERT_F16, &PAIRS, &CONVERT_PAIRS] {
            gemm_coop::tests::agrees(&kernel.def);
        }
    }
}

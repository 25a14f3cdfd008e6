//! Split-KV for attention on cooperative matrices. If there are fewer tiles of query rows than
//! workgroups that the device runs concurrently, several workgroups share the keys of a tile.
//! `attention_join.wgsl` combines the results of these workgroups.
//!
//! The sizes of a run determine the number of parts that the keys are split into. With one part,
//! the kernels without split-KV run.

use tercet_ir::ops::MaskKind;
use tercet_ir::{CompileError, DType, Dim};

use super::coop::{self, AttentionCoopParams, AttentionTiling, MmaPrecision, module};
use super::kernels::{AttentionSplitKvCombineParams, JOIN};
use super::{AttentionProblem, variants};
use crate::emit::{LoweringCtx, SlotView};
use crate::lowerings::code;
use tercet_program::SlotId;
use tercet_program::SymInt;
use tercet_program::{ArgAccess, TypedKernel};

/// Split-KV attention in F16; softmax weights go through shared memory to become matmul operands.
pub(super) static F16: TypedKernel<AttentionCoopParams> =
    module!("attention_coop_parts_f16", ArgAccess::Write);

/// Split-KV attention in F16; the kernel converts accumulators with softmax weights directly into
/// matmul operands.
pub(super) static CONVERT_F16: TypedKernel<AttentionCoopParams> =
    module!("attention_convert_parts_f16", ArgAccess::Write);

/// Split-KV attention in F32 on split-F16; softmax weights go through shared memory.
pub(super) static PAIRS: TypedKernel<AttentionCoopParams> = module!(
    "attention_halves_parts_f32",
    ArgAccess::Write,
    ArgAccess::Write
);

/// Split-KV attention in F32 on split-F16; accumulators with softmax weights are converted to
/// matmul operands.
pub(super) static CONVERT_PAIRS: TypedKernel<AttentionCoopParams> = module!(
    "attention_halves_convert_parts_f32",
    ArgAccess::Write,
    ArgAccess::Write
);

/// Number of elements that a thread combines at once.
const QUAD: usize = 4;

/// Dispatches an attention on cooperative matrices, with split-KV if that saturates the device
/// better. `beside` are the slots of further results: for F32, the fallback flags of the KV heads.
pub(super) fn dispatch(
    e: &mut LoweringCtx<'_>,
    p: &AttentionProblem<'_>,
    operands: [SlotId; 3],
    (y, beside): (&SlotView, &[SlotId]),
    tiling: &AttentionTiling,
) -> Result<(), CompileError> {
    let side_by_side = tiling.resident_workgroups(e.caps);
    if !is_profitable(e, p, side_by_side)? {
        coop::dispatch(e, p, operands, (y.slot, beside), tiling);
        return Ok(());
    }
    let parts = parts(e, p, tiling, side_by_side);
    e.switch_on(parts, &[1], |e, arm| match arm {
        0 => {
            coop::dispatch(e, p, operands, (y.slot, beside), tiling);
            Ok(())
        }
        _ => in_parts(e, p, operands, (y, beside), tiling, parts),
    })
}

/// True if split-KV may be faster in some run: there are enough keys, and few enough KV heads.
pub(super) fn is_profitable(
    e: &LoweringCtx<'_>,
    p: &AttentionProblem<'_>,
    side_by_side: usize,
) -> Result<bool, CompileError> {
    let has_keys = e.bound(p.keys)? > e.caps.device.rates.attention.min_split_kv_keys as usize;
    let heads = p.batch.known().unwrap_or(1).saturating_mul(p.op.kv_heads);
    Ok(has_keys && 2 * heads <= side_by_side && p.value_dim.is_multiple_of(QUAD))
}

/// Number of parts that the keys are split into in a run: as many as the device can process
/// concurrently.
fn parts(
    e: &mut LoweringCtx<'_>,
    p: &AttentionProblem<'_>,
    tiling: &AttentionTiling,
    side_by_side: usize,
) -> SymInt {
    let rows = variants::rows(e, p);
    let tiles = e.tape().ceil_div(rows, tiling.rows()[0]);
    let groups = variants::groups(e, p, &[tiles]);
    let groups = e.tape().max(groups, SymInt::ONE);
    let parts = e.tape().div(SymInt::Const(side_by_side as i64), groups);
    let least = e.caps.device.rates.attention.min_split_kv_keys;
    let of_keys = e.tape().ceil_div(p.block.keys, least);
    let parts = e.tape().min(parts, of_keys);
    e.tape().max(parts, SymInt::ONE)
}

fn in_parts(
    e: &mut LoweringCtx<'_>,
    p: &AttentionProblem<'_>,
    operands: [SlotId; 3],
    (y, beside): (&SlotView, &[SlotId]),
    tiling: &AttentionTiling,
    parts: SymInt,
) -> Result<(), CompileError> {
    let [tile_rows, _] = tiling.rows();
    // The partial results need one slot per concurrent workgroup, because tiles times parts never
    // exceed this number.
    let slots = tiling.resident_workgroups(e.caps) * tile_rows as usize;
    let sums = e.temp(DType::F32, &[slots, p.value_dim].map(Dim::Known))?;
    let stats = e.temp(DType::F32, &[slots, 2].map(Dim::Known))?;
    let kernel = match (tiling.factors(), tiling.converts()) {
        (MmaPrecision::F16, false) => &F16,
        (MmaPrecision::F16, true) => &CONVERT_F16,
        (MmaPrecision::SplitF16, false) => &PAIRS,
        (MmaPrecision::SplitF16, true) => &CONVERT_PAIRS,
        (MmaPrecision::Scaled, _) => unreachable!("invariant: training requires the log-sum-exp"),
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
    let count = variants::groups(e, p, &[rows, SymInt::Const(quads as i64)]);
    let grid = e.grid_of(count, 256);
    let params = AttentionSplitKvCombineParams {
        y_batch: params.y_batch,
        y_head: params.y_head,
        y_seq: params.y_seq,
        rows,
        kv_heads: params.kv_heads,
        group: params.group,
        quads: SymInt::Const(quads as i64),
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

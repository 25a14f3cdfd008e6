//! Single-query attention without mask operand: 256 threads per query head process all keys, or
//! several workgroups process a range of keys each. In the second case, query heads of one KV head
//! share a workgroup if they fit.

use tercet_ir::ops::MaskKind;
use tercet_ir::{CompileError, DType, Dim};

use super::{AttentionParams, AttentionProblem, AttentionSingleCombineParams, GATHER, ONE};
use crate::emit::{LoweringCtx, SlotView};
use crate::lowerings::code;
use tercet_program::SymInt;

/// Number of keys that a workgroup processes at once.
const BLOCK: usize = 128;
/// Maximum number of key ranges per query head; a separate kernel combines their results.
const MAX_SPLITS: usize = 16;
/// Maximum shared memory in bytes that a workgroup needs per query head.
const ROW_BYTES: u32 = 11 << 10;
/// Number of 32-bit registers of a thread that are not used for prefetched values. An estimate.
const OTHER_REGISTERS: u32 = 32;
/// Maximum head size of queries and of values that `attention_one` supports.
const MAX_HEAD_DIM: usize = 128;

/// True if `attention_one` supports these operands.
pub(super) fn supports(p: &AttentionProblem<'_>) -> bool {
    p.has_vectors && supports_rows(p)
}

/// True if single-query kernels support this head size and mask.
pub(super) fn supports_rows(p: &AttentionProblem<'_>) -> bool {
    let each = if p.dtype == DType::F32 { 4 } else { 8 };
    let whole = |dim: usize| (1..=MAX_HEAD_DIM).contains(&dim) && dim.is_multiple_of(8 * each);
    is_plain_attention(p)
        && p.vector_width >= each
        && whole(p.head_dim)
        && whole(p.value_dim)
        && p.value_dim.is_power_of_two()
}

/// True if the attention has no mask operand and no softcap.
pub(super) fn is_plain_attention(p: &AttentionProblem<'_>) -> bool {
    match p.op.mask {
        MaskKind::None | MaskKind::Causal | MaskKind::Window(_) => p.op.softcap.is_none(),
        MaskKind::Keep | MaskKind::Bias => false,
    }
}

/// Number of query heads of one KV head that share a workgroup.
fn rows(e: &LoweringCtx<'_>, p: &AttentionProblem<'_>) -> usize {
    let chunk = 16 / p.dtype.size_bytes();
    let registers = OTHER_REGISTERS + (BLOCK * p.value_dim / chunk / 256 * 4) as u32;
    let fits = |rows: &usize| {
        let n = *rows as u32;
        p.group().is_multiple_of(*rows)
            && 256 * n <= e.caps.max_workgroup
            && 256 * n <= e.caps.device.unit_invocations(registers)
            && ROW_BYTES * n <= e.caps.workgroup_bytes
    };
    [4, 2].into_iter().find(fits).unwrap_or(1)
}

/// Number of keys per range, and number of ranges for the maximum number of keys.
pub(super) fn ranges(
    e: &LoweringCtx<'_>,
    p: &AttentionProblem<'_>,
) -> Result<[usize; 2], CompileError> {
    let keys = e.bound(p.keys)?;
    let others = e.bound(p.batch)?.max(1).saturating_mul(p.op.q_heads);
    let units = e.caps.device.max_units();
    let bytes = keys.saturating_mul((p.head_dim + p.value_dim) * p.dtype.size_bytes());
    let alone = e.caps.device.rates.attention.alone_bytes[usize::from(p.op.kv_len)];
    let wanted = match bytes <= alone {
        true => 1,
        false => (4 * units).div_ceil(others).clamp(1, MAX_SPLITS),
    };
    let split_keys = keys.div_ceil(wanted).next_multiple_of(BLOCK).max(BLOCK);
    Ok([split_keys, keys.div_ceil(split_keys).max(1)])
}

/// Emits the single-query kernel, and the combining kernel if there are several key ranges.
pub(super) fn emit(
    e: &mut LoweringCtx<'_>,
    p: &AttentionProblem<'_>,
    y: &SlotView,
) -> Result<(), CompileError> {
    let [split_keys, splits] = ranges(e, p)?;
    let is_split = splits > 1;
    let rows = if is_split { rows(e, p) } else { 1 };
    let ranges = match is_split {
        true => e.tape().ceil_div(p.block.keys, split_keys as u32),
        false => SymInt::ONE,
    };
    let tape = e.tape();
    let heads = tape.mul(p.block.kv_heads, p.block.group);
    let entries = tape.mul(p.block.batch, heads);
    // Without a query there are no workgroups, so a run leaves the step out.
    let queries = tape.min(p.block.queries, SymInt::ONE);
    let entries = tape.mul(entries, queries);
    let tiles = tape.div(entries, SymInt::Const(rows as i64));
    let groups = tape.mul(tiles, ranges);
    let params = AttentionParams {
        tiles: SymInt::ONE,
        slices: SymInt::ONE,
        splits: ranges,
        split_keys: SymInt::Const(split_keys as i64),
        groups,
        ..p.block.clone()
    };
    let (to, stats) = match is_split {
        true => {
            let [heads, splits] = [p.op.q_heads, splits].map(Dim::Known);
            let shape = |last: usize| [p.batch.clone(), heads.clone(), splits.clone(), last.into()];
            let sums = e.temp(DType::F32, &shape(p.value_dim))?;
            (sums, e.temp(DType::U32, &shape(2))?)
        }
        // A dummy slot for the softmax statistics; nothing is written to it.
        false => (y.clone(), e.temp(DType::U32, &[])?),
    };
    let dims = [p.head_dim, p.value_dim].map(|dim| dim as u32);
    let mut consts = p.consts(to.dtype);
    consts.extend([u32::from(is_split), dims[0], dims[1]]);
    consts.extend([rows, p.group(), p.op.kv_heads].map(|n| n as u32));
    let [q, k, v, mask, lens] = p.slots;
    let args = [q, k, v, mask, lens, to.slot, stats.slot];
    let grid = e.flat_grid(groups);
    e.dispatch(&ONE, &consts, &args, &params, grid);
    if is_split {
        let params = AttentionSingleCombineParams {
            y_batch: params.y_batch,
            y_head: params.y_head,
            splits: ranges,
            groups: entries,
        };
        let consts = [code(y.dtype), dims[1], p.op.q_heads as u32];
        let grid = e.flat_grid(entries);
        e.dispatch(
            &GATHER,
            &consts,
            &[to.slot, stats.slot, y.slot],
            &params,
            grid,
        );
    }
    Ok(())
}

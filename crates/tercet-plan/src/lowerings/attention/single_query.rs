//! One query a batch entry, without a mask operand: every query head takes 256 invocations, ranges of keys
//! others. Where there are ranges, query heads of one key head share a workgroup if they fit.

use tercet_ir::ops::MaskKind;
use tercet_ir::{CompileError, DType, Dim};

use super::{AttentionParams, AttentionProblem, GATHER, GatherParams, ONE};
use crate::emit::{Emit, View};
use crate::families::code;
use crate::num::Num;

/// The keys that a workgroup takes at a time.
const BLOCK: usize = 128;
/// The most ranges of keys: all of them are put together afterwards.
const MOST_SPLITS: usize = 16;
/// Shared memory that a query head takes at most.
const ROW_BYTES: u32 = 11 << 10;
/// Registers of an invocation beside those of the values that it asked for. An estimate.
const OTHER_REGISTERS: u32 = 32;
/// The most elements of a query and of a value.
const MOST_DIM: usize = 128;

/// True if `attention_one` takes such operands.
pub(super) fn takes(p: &AttentionProblem<'_>) -> bool {
    p.has_vectors && takes_rows(p)
}

/// True if kernels of one query take rows of such lengths under such masks.
pub(super) fn takes_rows(p: &AttentionProblem<'_>) -> bool {
    let each = if p.dtype == DType::F32 { 4 } else { 8 };
    let whole = |dim: usize| (1..=MOST_DIM).contains(&dim) && dim.is_multiple_of(8 * each);
    is_bare(p)
        && p.together >= each
        && whole(p.head_dim)
        && whole(p.value_dim)
        && p.value_dim.is_power_of_two()
}

/// True if a query sees its last keys, by products alone.
pub(super) fn is_bare(p: &AttentionProblem<'_>) -> bool {
    match p.op.mask {
        MaskKind::None | MaskKind::Causal | MaskKind::Window(_) => p.op.softcap.is_none(),
        MaskKind::Keep | MaskKind::Bias => false,
    }
}

/// Query heads of one key head that share a workgroup.
fn rows(e: &Emit<'_>, p: &AttentionProblem<'_>) -> usize {
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

/// The keys of a range, and how many ranges there are at the bounds.
pub(super) fn ranges(e: &Emit<'_>, p: &AttentionProblem<'_>) -> Result<[usize; 2], CompileError> {
    let keys = e.bound(p.keys)?;
    let others = e.bound(p.batch)?.max(1).saturating_mul(p.op.q_heads);
    let units = e.caps.device.units_at_most();
    let bytes = keys.saturating_mul((p.head_dim + p.value_dim) * p.dtype.size_bytes());
    let alone = e.caps.device.rates.attention.alone_bytes[usize::from(p.op.kv_len)];
    let wanted = match bytes <= alone {
        true => 1,
        false => (4 * units).div_ceil(others).clamp(1, MOST_SPLITS),
    };
    let split_keys = keys.div_ceil(wanted).next_multiple_of(BLOCK).max(BLOCK);
    Ok([split_keys, keys.div_ceil(split_keys).max(1)])
}

/// Emits the kernel, and what puts the ranges together where there are several.
pub(super) fn emit(
    e: &mut Emit<'_>,
    p: &AttentionProblem<'_>,
    y: &View,
) -> Result<(), CompileError> {
    let [split_keys, splits] = ranges(e, p)?;
    let is_split = splits > 1;
    let rows = if is_split { rows(e, p) } else { 1 };
    let ranges = match is_split {
        true => e.tape().ceil_div(p.block.keys, split_keys as u32),
        false => Num::ONE,
    };
    let tape = e.tape();
    let heads = tape.mul(p.block.kv_heads, p.block.group);
    let entries = tape.mul(p.block.batch, heads);
    let tiles = tape.div(entries, Num::Const(rows as i64));
    let groups = tape.mul(tiles, ranges);
    let params = AttentionParams {
        tiles: Num::ONE,
        slices: Num::ONE,
        splits: ranges,
        split_keys: Num::Const(split_keys as i64),
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
        // Nothing is written there.
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
        let params = GatherParams {
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

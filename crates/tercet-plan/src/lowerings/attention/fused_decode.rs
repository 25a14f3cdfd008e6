//! Fused decode step (`KvAppend` of `fusions`) for one query of one sequence: RoPE of query and
//! key, append of key and value to the KV cache, and single-query attention.

use tercet_ir::ops::MaskKind;
use tercet_ir::{CompileError, DType, Dim};

use super::{AttentionProblem, single_query};
use crate::emit::{LoweringCtx, SlotPlacement, SlotView};
use crate::lowerings::rope::append::{RopeAppend, RopeAppendParams};
use crate::lowerings::{code, portable};
use crate::scalar::PRELUDE;
use tercet_program::SymInt;
use tercet_program::{ArgAccess, TypedKernel};

crate::params! {
    /// Parameter block of `attention_token.wgsl`.
    pub struct AttentionFusedDecodeParams {
        q_offset: U32,
        q_head: U32,
        k_offset: U32,
        k_head: U32,
        v_offset: U32,
        v_head: U32,
        cos_offset: U32,
        sin_offset: U32,
        n_rot: U32,
        adjacent: U32,
        lens_offset: U32,
        keys: U32,
        window: U32,
        scale: F32,
        chain_waits: U32,
        chain_wanted: U32,
        chain_own: U32,
        checks: U32,
    }
}

/// WGSL source of the fused decode kernel, followed by fragments that do or do not wait on the
/// counters of dependent launches.
macro_rules! pieces {
    ($($piece:expr),*) => {
        &[
            PRELUDE,
            portable!("rope_turn.wgsl"),
            portable!("attention_order.wgsl"),
            portable!("attention_halves.wgsl"),
            portable!("cluster.wgsl"),
            portable!("attention_eights.wgsl"),
            $($piece,)*
            portable!("attention_token.wgsl"),
        ]
    };
}

const CONSTS: &[&str] = &[
    "DTYPE",
    "COS",
    "SIN",
    "HEAD",
    "GROUP",
    "KEY_HEADS",
    "KEY_STEP",
    "HEAD_STEP",
    "AXIS",
    "WINDOWED",
    "SPLITS",
    "ALONE",
    "ROWS",
    "APART",
    "FROM",
    "TO",
];

/// The fused decode kernel with dependent launch.
pub(super) static CHAINED: TypedKernel<AttentionFusedDecodeParams> = TypedKernel::wgsl(
    "attention_token_chained",
    pieces![
        portable!("attention_token_chained.wgsl"),
        portable!("chain.wgsl")
    ],
    &[
        ArgAccess::Read,
        ArgAccess::Read,
        ArgAccess::Read,
        ArgAccess::Read,
        ArgAccess::Read,
        ArgAccess::Read,
        ArgAccess::Read,
        ArgAccess::Write,
        ArgAccess::Write,
        ArgAccess::Write,
        ArgAccess::Write,
        ArgAccess::Write,
        // The counters of dependent launches. The kernel also writes them, but declares them as
        // read so that they cause no barriers.
        ArgAccess::Read,
        ArgAccess::Read,
    ],
    CONSTS,
);

/// The fused decode kernel without dependent launch.
pub(super) static TOKEN: TypedKernel<AttentionFusedDecodeParams> = TypedKernel::wgsl(
    "attention_token",
    pieces![
        portable!("attention_token_alone.wgsl"),
        portable!("chain_none.wgsl")
    ],
    &[
        ArgAccess::Read,
        ArgAccess::Read,
        ArgAccess::Read,
        ArgAccess::Read,
        ArgAccess::Read,
        ArgAccess::Read,
        ArgAccess::Read,
        ArgAccess::Write,
        ArgAccess::Write,
        ArgAccess::Write,
        ArgAccess::Write,
        ArgAccess::Write,
        ArgAccess::Read,
    ],
    CONSTS,
);

/// Maximum number of workgroups per query head; the last workgroup to finish combines the partial
/// results of all.
const MAX_SPLITS: usize = 16;

/// Maximum number of partial results per query head, if a workgroup processes several query heads.
const MAX_SHARED_SPLITS: usize = 32;

/// Number of keys that a workgroup with `rows` query heads processes at once, computed as in the
/// shader.
fn block(p: &AttentionProblem<'_>, rows: usize) -> usize {
    let chunk = 16 / p.dtype.size_bytes();
    let own = p.head_dim / chunk / 8;
    32 * if own > 2 || rows > 2 { 2 } else { 4 }
}

/// Number of query heads of one KV head that a workgroup processes in runs with many keys. Its
/// registers hold the sums of all these heads. The number is 1 if no run has that many keys.
fn rows(e: &LoweringCtx<'_>, p: &AttentionProblem<'_>) -> Result<usize, CompileError> {
    let sizes: &[usize] = match p.dtype {
        DType::F32 => &[2],
        _ => &[4, 2],
    };
    let divides = |rows: &usize| p.group().is_multiple_of(*rows);
    let rows = sizes.iter().copied().find(divides).unwrap_or(1);
    let apart = e.caps.device.rates.attention.token_blocks_apart as usize;
    let has_many = e.bound(p.keys)?.div_ceil(block(p, rows)) > apart;
    Ok(if has_many { rows } else { 1 })
}

/// Number of workgroups per query head: enough to saturate the device if the last workgroup can
/// read the results of the others, otherwise one.
fn splits(e: &LoweringCtx<'_>, p: &AttentionProblem<'_>) -> Result<usize, CompileError> {
    if !e.caps.ordered_storage {
        return Ok(1);
    }
    let blocks = e.bound(p.keys)?.div_ceil(block(p, rows(e, p)?));
    if blocks <= e.caps.device.rates.attention.token_blocks as usize {
        return Ok(1);
    }
    let wanted = (2 * e.caps.device.max_units()).div_ceil(p.op.q_heads);
    Ok(wanted.min(blocks).clamp(1, MAX_SPLITS))
}

/// True if this kernel is fast for the key count: the keys are split over several workgroups, or
/// there are few enough for one workgroup.
fn has_few_keys(e: &LoweringCtx<'_>, p: &AttentionProblem<'_>) -> Result<bool, CompileError> {
    if splits(e, p)? == 1 {
        return Ok(single_query::ranges(e, p)?[1] == 1);
    }
    let row = (p.head_dim + p.value_dim) * p.dtype.size_bytes();
    let readers = p.op.q_heads / rows(e, p)?;
    let bytes = e.bound(p.keys)?.saturating_mul(row * readers);
    Ok(bytes <= e.caps.device.rates.attention.token_bytes)
}

/// True if this kernel can replace RoPE, cache update and `attention_one` for these operands: a
/// single sequence with a suitable number of keys.
pub(super) fn supports(
    e: &LoweringCtx<'_>,
    p: &AttentionProblem<'_>,
    append: &RopeAppend,
) -> Result<bool, CompileError> {
    let (window, state) = (&append.window, &append.cache);
    let seq = p.op.layout.seq_axis();
    let others_whole = (0..4).all(|axis| axis == seq || window[axis] == state[axis]);
    let own = &append.params;
    let quads = (p.head_dim / 4) as u32;
    let rows = rows(e, p)?;
    // Shared memory in bytes of the shader's variables `sums`, `products` and `fresh`, and 256
    // bytes for small variables.
    let products = (rows * block(p, rows) * 8).max(256) as u32;
    let fresh = ((2 + rows) * p.head_dim) as u32;
    let bytes = 16 * 32 * quads + 4 * (products + fresh) + 256;
    Ok(single_query::supports_rows(p)
        && p.op.kv_len
        && p.batch.is_one()
        && state[0].is_one()
        && window[seq] == *p.queries
        && others_whole
        && state[seq].known().is_some()
        && p.head_dim == p.value_dim
        && [own.q_dim, own.k_dim, own.v_dim, own.cos_pair, own.sin_pair] == [SymInt::ONE; 5]
        && e.caps.max_storage_buffers as usize >= TOKEN.def.args.len().max(CHAINED.def.args.len())
        && e.caps.workgroup_bytes >= bytes
        && e.caps.max_workgroup >= 256
        && has_few_keys(e, p)?)
}

fn params(
    p: &AttentionProblem<'_>,
    own: &RopeAppendParams,
    window: usize,
) -> AttentionFusedDecodeParams {
    AttentionFusedDecodeParams {
        q_offset: own.q_offset,
        q_head: own.q_second,
        k_offset: own.k_offset,
        k_head: own.k_second,
        v_offset: own.v_offset,
        v_head: own.v_second,
        cos_offset: own.cos_offset,
        sin_offset: own.sin_offset,
        n_rot: own.n_rot,
        adjacent: own.adjacent,
        lens_offset: p.block.lens_offset,
        keys: p.block.keys,
        window: SymInt::Const(window as i64),
        scale: p.block.scale,
        chain_waits: SymInt::ZERO,
        chain_wanted: SymInt::ZERO,
        chain_own: SymInt::ZERO,
        checks: SymInt::ZERO,
    }
}

/// Emits the kernel.
///
/// # Errors
/// The errors of [`LoweringCtx::temp`] and [`LoweringCtx::allocate`].
pub(super) fn emit(
    e: &mut LoweringCtx<'_>,
    p: &AttentionProblem<'_>,
    y: &SlotView,
    append: &RopeAppend,
) -> Result<(), CompileError> {
    let (splits, rows) = (splits(e, p)?, rows(e, p)?);
    let rows = if splits == 1 { 1 } else { rows };
    let seq = p.op.layout.seq_axis();
    let known = |dim: &Dim| dim.known().unwrap_or(0);
    let state = &append.cache;
    let head = p.head_dim;
    // The appended keys and values have the memory order [position, head, element].
    let [key_step, head_step] = [p.op.kv_heads * head, head];
    let window = match p.op.mask {
        MaskKind::Window(window) => window.min(known(&state[seq])),
        MaskKind::None | MaskKind::Causal | MaskKind::Keep | MaskKind::Bias => 0,
    };
    let params = params(p, &append.params, window);
    let is_windowed = matches!(p.op.mask, MaskKind::Window(_));
    let mut consts = append.consts.to_vec();
    let sizes = [p.group(), p.op.kv_heads, key_step, head_step, seq];
    consts.extend(sizes.map(|n| n as u32));
    consts.extend([
        u32::from(is_windowed),
        splits as u32,
        e.caps.device.rates.attention.token_blocks,
        rows as u32,
        e.caps.device.rates.attention.token_blocks_apart,
        append.from,
        code(y.dtype),
    ]);
    // With a single workgroup per query head, there are no partial results, so dummy slots suffice.
    let (sums, heads) = match splits {
        1 => (1, 1),
        _ => {
            let parts = splits.max((splits * rows).min(MAX_SHARED_SPLITS));
            (p.op.q_heads * parts * (head + 2), p.op.q_heads)
        }
    };
    let partial = e.temp(DType::U32, &[sums.into()])?;
    let counts = e.allocate(DType::U32, &[heads.into()], SlotPlacement::Counters)?;
    let [x, k, v, cos, sin, starts, _, keys, values] = append.args;
    let lens = p.slots[4];
    let args = [
        x,
        k,
        v,
        cos,
        sin,
        starts,
        lens,
        keys,
        values,
        y.slot,
        partial.slot,
        counts.slot,
    ];
    // If the number of queries is 0, the grid is empty.
    let groups = e.tape().mul(
        p.block.queries,
        SymInt::Const((p.op.q_heads * splits) as i64),
    );
    let grid = e.flat_grid(groups);
    let mut args = args.to_vec();
    let kernel = match e.chain() {
        Some(chain) => {
            args.push(chain);
            &CHAINED
        }
        None => &TOKEN,
    };
    e.dispatch_guarded(kernel, &consts, &args, &params, grid);
    Ok(())
}

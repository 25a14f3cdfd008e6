//! One query of one sequence together with what stands before it (`KvAppend` of `fusions`): RoPE of it and of its key, and
//! the appends of key and value to their caches.

use tercet_ir::ops::MaskKind;
use tercet_ir::{CompileError, DType, Dim};

use super::{AttentionProblem, one};
use crate::emit::{Emit, Home, View};
use crate::families::portable;
use crate::families::rope::append::{Append, AppendParams};
use crate::kernel::{Access, Kernel};
use crate::num::Num;
use crate::scalar::PRELUDE;

crate::params! {
    /// The block of `attention_token.wgsl`.
    pub struct TokenParams {
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

/// What a kernel of one token is made of, with ways to wait for what stands before it.
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
];

/// One token, as a link of a chain.
pub(super) static CHAINED: Kernel<TokenParams> = Kernel::wgsl(
    "attention_token_chained",
    pieces![
        portable!("attention_token_chained.wgsl"),
        portable!("chain.wgsl")
    ],
    &[
        Access::Read,
        Access::Read,
        Access::Read,
        Access::Read,
        Access::Read,
        Access::Read,
        Access::Read,
        Access::Write,
        Access::Write,
        Access::Write,
        Access::Write,
        Access::Write,
        // The counters of a chain, which order nothing by themselves.
        Access::Read,
        Access::Read,
    ],
    CONSTS,
);

/// One token.
pub(super) static TOKEN: Kernel<TokenParams> = Kernel::wgsl(
    "attention_token",
    pieces![
        portable!("attention_token_alone.wgsl"),
        portable!("chain_none.wgsl")
    ],
    &[
        Access::Read,
        Access::Read,
        Access::Read,
        Access::Read,
        Access::Read,
        Access::Read,
        Access::Read,
        Access::Write,
        Access::Write,
        Access::Write,
        Access::Write,
        Access::Write,
        Access::Read,
    ],
    CONSTS,
);

/// Workgroups of a query head at most: the last of them puts their sums together.
const MOST_SPLITS: usize = 16;

/// Keys that a workgroup takes at a time. As in the shader.
fn block(p: &AttentionProblem<'_>) -> usize {
    let chunk = 16 / p.dtype.size_bytes();
    let own = p.head_dim / chunk / 8;
    32 * if own > 2 { 2 } else { 4 }
}

/// Workgroups of a query head: enough for all units where these can wait for each other's memory.
fn splits(e: &Emit<'_>, p: &AttentionProblem<'_>) -> Result<usize, CompileError> {
    if !e.caps.ordered_storage {
        return Ok(1);
    }
    let blocks = e.bound(p.keys)?.div_ceil(block(p));
    if blocks <= e.caps.device.rates.attention.token_blocks as usize {
        return Ok(1);
    }
    let wanted = (2 * e.caps.device.units_at_most()).div_ceil(p.op.q_heads);
    Ok(wanted.min(blocks).clamp(1, MOST_SPLITS))
}

/// True if its keys are few enough for it: each of several workgroups takes some of them, or one all.
fn is_short(e: &Emit<'_>, p: &AttentionProblem<'_>) -> Result<bool, CompileError> {
    if splits(e, p)? == 1 {
        return Ok(one::ranges(e, p)?[1] == 1);
    }
    let row = (p.head_dim + p.value_dim) * p.dtype.size_bytes();
    let bytes = e.bound(p.keys)?.saturating_mul(row * p.op.q_heads);
    Ok(bytes <= e.caps.device.rates.attention.token_bytes)
}

/// True if the kernel takes such operands in place of what `append` and `attention_one` do: of one sequence, whose
/// keys are not too many.
pub(super) fn takes(
    e: &Emit<'_>,
    p: &AttentionProblem<'_>,
    append: &Append,
) -> Result<bool, CompileError> {
    let (window, state) = (&append.window, &append.cache);
    let seq = p.op.layout.seq_axis();
    let others_whole = (0..4).all(|axis| axis == seq || window[axis] == state[axis]);
    let own = &append.params;
    let quads = (p.head_dim / 4) as u32;
    // `fresh`, `products`, `sums` and what is small.
    let bytes = 16 * 32 * quads + 4096 + 3 * 4 * p.head_dim as u32 + 256;
    Ok(one::takes_rows(p)
        && p.op.kv_len
        && p.batch.is_one()
        && state[0].is_one()
        && window[seq] == *p.queries
        && others_whole
        && state[seq].known().is_some()
        && p.head_dim == p.value_dim
        && [own.q_dim, own.k_dim, own.v_dim, own.cos_pair, own.sin_pair] == [Num::ONE; 5]
        && e.caps.max_storage_buffers as usize >= TOKEN.def.args.len().max(CHAINED.def.args.len())
        && e.caps.workgroup_bytes >= bytes
        && e.caps.max_workgroup >= 256
        && is_short(e, p)?)
}

fn params(p: &AttentionProblem<'_>, own: &AppendParams, window: usize) -> TokenParams {
    TokenParams {
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
        window: Num::Const(window as i64),
        scale: p.block.scale,
        chain_waits: Num::ZERO,
        chain_wanted: Num::ZERO,
        chain_own: Num::ZERO,
        checks: Num::ZERO,
    }
}

/// Emits the kernel.
///
/// # Errors
/// Those of [`Emit::temp`] and [`Emit::place`].
pub(super) fn emit(
    e: &mut Emit<'_>,
    p: &AttentionProblem<'_>,
    y: &View,
    append: &Append,
) -> Result<(), CompileError> {
    let splits = splits(e, p)?;
    let seq = p.op.layout.seq_axis();
    let known = |dim: &Dim| dim.known().unwrap_or(0);
    let state = &append.cache;
    let head = p.head_dim;
    // Positions stand before heads in what is appended.
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
    ]);
    // Nothing is written there by one workgroup.
    let (sums, heads) = match splits {
        1 => (1, 1),
        _ => (p.op.q_heads * splits * (head + 2), p.op.q_heads),
    };
    let partial = e.temp(DType::U32, &[sums.into()])?;
    let counts = e.place(DType::U32, &[heads.into()], Home::Counters)?;
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
    // No query, no group.
    let groups = e
        .tape()
        .mul(p.block.queries, Num::Const((p.op.q_heads * splits) as i64));
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

//! One query of one sequence together with what stands before it (`KvAppend` of `fusions`): RoPE of it and of its key, and
//! the appends of key and value to their caches.

use tercet_ir::ops::MaskKind;
use tercet_ir::{CompileError, Dim};

use super::{AttentionProblem, one};
use crate::emit::{Emit, View};
use crate::families::portable;
use crate::families::rope::append::Append;
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
        checks: U32,
    }
}

/// One token.
pub(super) static TOKEN: Kernel<TokenParams> = Kernel::wgsl(
    "attention_token",
    &[
        PRELUDE,
        portable!("rope_turn.wgsl"),
        portable!("attention_order.wgsl"),
        portable!("attention_halves.wgsl"),
        portable!("cluster.wgsl"),
        portable!("attention_eights.wgsl"),
        portable!("attention_token.wgsl"),
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
        Access::Read,
    ],
    &[
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
    ],
);

/// True if the kernel takes such operands in place of what `append` and `attention_one` do: of one sequence, whose
/// keys one workgroup takes.
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
        && e.caps.max_storage_buffers as usize >= TOKEN.def.args.len()
        && e.caps.workgroup_bytes >= bytes
        && e.caps.max_workgroup >= 256
        && one::ranges(e, p)?[1] == 1)
}

/// Emits the kernel.
pub(super) fn emit(e: &mut Emit<'_>, p: &AttentionProblem<'_>, y: &View, append: &Append) {
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
    let own = &append.params;
    let params = TokenParams {
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
        checks: Num::ZERO,
    };
    let is_windowed = matches!(p.op.mask, MaskKind::Window(_));
    let mut consts = append.consts.to_vec();
    let sizes = [p.group(), p.op.kv_heads, key_step, head_step, seq];
    consts.extend(sizes.map(|n| n as u32));
    consts.push(u32::from(is_windowed));
    let [x, k, v, cos, sin, starts, _, keys, values] = append.args;
    let lens = p.slots[4];
    let args = [x, k, v, cos, sin, starts, lens, keys, values, y.slot];
    // No query, no group.
    let groups = e
        .tape()
        .mul(p.block.queries, Num::Const(p.op.q_heads as i64));
    let grid = e.flat_grid(groups);
    e.dispatch_guarded(&TOKEN, &consts, &args, &params, grid);
}

//! Flash attention for heads of size 64; the kernel addresses the elements of register fragments
//! itself (mma style, `shaders/vulkan/attention_lanes_f16.comp`). The kernel requires the fragment
//! layout that the probe in `src/fragment_layout.rs` verifies.

use tercet_ir::{CompileError, DType};

use super::super::{AttentionProblem, split_kv};
use super::{AttentionCoopParams, AttentionTiling, MmaPrecision, module, params, run};
use crate::emit::{LoweringCtx, SlotView};
use crate::lowerings::gemm_coop::PANEL;
use tercet_program::SymInt;
use tercet_program::{ArgAccess, TypedKernel};

crate::params! {
    /// Parameter block of `attention_lanes_f16.comp`.
    pub struct AttentionMmaParams {
        ..attention: AttentionCoopParams,
        half_stride: U32,
        rows: U32,
        y_panels: U32,
    }
}

pub(in super::super) static LANES_F16: TypedKernel<AttentionMmaParams> =
    module!("attention_lanes_f16");

/// Supported head size, number of query rows per subgroup, and maximum number of subgroups per
/// workgroup.
const HEAD: usize = 64;
const ROWS: u32 = 32;
const SUBGROUPS: u32 = 4;

/// Tiling of an attention on mma-style fragments for up to `queries` queries. `None` if the
/// attention has a mask operand, a softcap or another head size. Also `None` if there are so many
/// keys that split-KV, or a kernel that stages keys in shared memory, is faster.
///
/// # Errors
/// Those of bounds.
pub(in super::super) fn tiling(
    e: &LoweringCtx<'_>,
    p: &AttentionProblem<'_>,
    y: &SlotView,
    queries: usize,
) -> Result<Option<AttentionTiling>, CompileError> {
    let known = e.caps.coop_fragment_layout && e.caps.subgroup == Some(32) && e.caps.spirv;
    let halves = p.dtype == DType::F16 && y.dtype == DType::F16 && p.vector_width >= 8;
    let plain = !p.op.has_mask_operand() && p.op.softcap.is_none();
    if !(known && halves && plain && p.head_dim == HEAD && p.value_dim == HEAD) {
        return Ok(None);
    }
    let rows = u32::try_from(queries.saturating_mul(p.group())).unwrap_or(u32::MAX);
    // Use as few workgroups as possible, with equal numbers of subgroups.
    let strips = rows.div_ceil(ROWS).max(1);
    let subgroups = strips.div_ceil(strips.div_ceil(SUBGROUPS));
    let tiling = AttentionTiling {
        subgroup: 32,
        fragment: [16, 8, 16],
        rows: [subgroups * ROWS, ROWS],
        keys: 16,
        dims: [HEAD as u32; 2],
        converts: false,
        factors: MmaPrecision::F16,
    };
    let is_short = e.bound(p.keys)? <= e.caps.device.rates.attention.lane_keys;
    let cut = split_kv::is_profitable(e, p, tiling.resident_workgroups(e.caps))?;
    Ok((is_short && !cut).then_some(tiling))
}

/// Dispatches the kernel. The matmul that computes queries, keys and values stores them in panels
/// of 32 columns if it supports this layout. The matmul that reads the attention results may
/// request this layout for them, too.
pub(in super::super) fn emit(
    e: &mut LoweringCtx<'_>,
    p: &AttentionProblem<'_>,
    y: &SlotView,
    tiling: &AttentionTiling,
) {
    let b = &p.block;
    // The row count must be the same symbolic expression as in the neighboring matmuls, because
    // panels are only used if producer and reader have equal row counts.
    let rows = match p.batch.checked_mul(p.queries) {
        Some(rows) => e.num(&rows),
        None => e.tape().mul(b.batch, b.queries),
    };
    let mut params = AttentionMmaParams {
        attention: params(e, p, tiling),
        half_stride: SymInt::Const(PANEL.into()),
        rows,
        y_panels: SymInt::ZERO,
    };
    if reads_panels(e, p, rows) {
        set_panel_strides(e, &mut params);
    }
    let groups = params.attention.groups;
    let [q, k, v, ..] = p.slots;
    let kernel = (&LANES_F16, &params, groups);
    run(e, p, ([q, k, v], &[y.slot]), tiling, kernel);
    let width = SymInt::Const((p.op.q_heads * HEAD) as i64);
    let entry = e.tape().mul(b.queries, width);
    let is_dense = [b.y_head, b.y_seq, b.y_batch] == [SymInt::Const(HEAD as i64), width, entry];
    if is_dense {
        e.offer_panels::<AttentionMmaParams>("y_panels", y.slot, [rows, width]);
    }
}

/// Requests panels for queries, keys and values; true if they are column ranges of one matmul
/// result that will be panel-packed.
fn reads_panels(e: &mut LoweringCtx<'_>, p: &AttentionProblem<'_>, rows: SymInt) -> bool {
    let [q, k, v, ..] = p.slots;
    let b = &p.block;
    let width = b.q_seq;
    let begins = [b.q_offset, b.k_offset, b.v_offset];
    let heads = [b.q_head, b.k_head, b.v_head];
    let begins_a_panel = |n: SymInt| matches!(n, SymInt::Const(n) if n % i64::from(PANEL) == 0);
    let is_one = [k, v] == [q; 2] && b.keys == b.queries && [b.k_seq, b.v_seq] == [width; 2];
    if !is_one || !begins.into_iter().chain(heads).all(begins_a_panel) {
        return false;
    }
    let entry = e.tape().mul(b.queries, width);
    [b.q_batch, b.k_batch, b.v_batch] == [entry; 3] && e.accept_panels(q, [rows, width])
}

/// Sets the strides of panel-packed operands: the columns of a panel row are contiguous, rows are
/// 32 elements apart, and panels are `32 * rows` elements apart.
fn set_panel_strides(e: &mut LoweringCtx<'_>, params: &mut AttentionMmaParams) {
    let tape = e.tape();
    let panel = SymInt::Const(PANEL.into());
    params.half_stride = tape.mul(params.rows, panel);
    let p = &mut params.attention;
    for column in [
        &mut p.q_offset,
        &mut p.k_offset,
        &mut p.v_offset,
        &mut p.q_head,
        &mut p.k_head,
        &mut p.v_head,
    ] {
        *column = tape.mul(*column, params.rows);
    }
    let entry = tape.mul(p.queries, panel);
    [p.q_batch, p.k_batch, p.v_batch] = [entry; 3];
    [p.q_seq, p.k_seq, p.v_seq] = [panel; 3];
}

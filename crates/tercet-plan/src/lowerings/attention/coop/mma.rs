//! Attention of heads of 64 elements on fragments that invocations fill themselves (`shaders/vulkan/attention_lanes_f16.comp`), where
//! the elements of matrices are known to lie as it expects.

use tercet_ir::{CompileError, DType};

use super::super::{AttentionProblem, parts};
use super::{AttentionCoopParams, AttentionTiling, Factors, module, params, run};
use crate::emit::{Emit, View};
use crate::families::gemm_coop::PANEL;
use crate::kernel::{Access, Kernel};
use crate::num::Num;

crate::params! {
    /// The block of `attention_lanes_f16.comp`.
    pub struct AttentionLanesParams {
        ..attention: AttentionCoopParams,
        half_stride: U32,
        rows: U32,
        y_panels: U32,
    }
}

pub(in super::super) static LANES_F16: Kernel<AttentionLanesParams> =
    module!("attention_lanes_f16");

/// Elements of a head, rows of a subgroup, and the most subgroups of a workgroup.
const HEAD: usize = 64;
const ROWS: u32 = 32;
const SUBGROUPS: u32 = 4;

/// How the kernel computes this attention of up to `queries` queries; none where it does not: a mask of values or a cap, other heads, or
/// so many keys that staging them pays, or that they are better cut into parts.
///
/// # Errors
/// Those of bounds.
pub(in super::super) fn tiling(
    e: &Emit<'_>,
    p: &AttentionProblem<'_>,
    y: &View,
    queries: usize,
) -> Result<Option<AttentionTiling>, CompileError> {
    let known = e.caps.coop_lanes && e.caps.subgroup == Some(32) && e.caps.spirv;
    let halves = p.dtype == DType::F16 && y.dtype == DType::F16 && p.together >= 8;
    let plain = !p.op.has_mask_operand() && p.op.softcap.is_none();
    if !(known && halves && plain && p.head_dim == HEAD && p.value_dim == HEAD) {
        return Ok(None);
    }
    let rows = u32::try_from(queries.saturating_mul(p.group())).unwrap_or(u32::MAX);
    // As many workgroups as with the most subgroups, of equal ones.
    let strips = rows.div_ceil(ROWS).max(1);
    let subgroups = strips.div_ceil(strips.div_ceil(SUBGROUPS));
    let tiling = AttentionTiling {
        subgroup: 32,
        fragment: [16, 8, 16],
        rows: [subgroups * ROWS, ROWS],
        keys: 16,
        dims: [HEAD as u32; 2],
        converts: false,
        factors: Factors::Halves,
    };
    let is_short = e.bound(p.keys)? <= e.caps.device.rates.attention.lane_keys;
    let cut = parts::is_worth(e, p, tiling.side_by_side(e.caps))?;
    Ok((is_short && !cut).then_some(tiling))
}

/// Runs it. Operands lie in panels of 32 columns where the product that they come from can write these, and so do results where the
/// product behind takes them.
pub(in super::super) fn emit(
    e: &mut Emit<'_>,
    p: &AttentionProblem<'_>,
    y: &View,
    tiling: &AttentionTiling,
) {
    let b = &p.block;
    // As a product counts its rows.
    let rows = match p.batch.checked_mul(p.queries) {
        Some(rows) => e.num(&rows),
        None => e.tape().mul(b.batch, b.queries),
    };
    let mut params = AttentionLanesParams {
        attention: params(e, p, tiling),
        half_stride: Num::Const(PANEL.into()),
        rows,
        y_panels: Num::ZERO,
    };
    if takes_panels(e, p, rows) {
        in_panels(e, &mut params);
    }
    let groups = params.attention.groups;
    let [q, k, v, ..] = p.slots;
    let kernel = (&LANES_F16, &params, groups);
    run(e, p, ([q, k, v], &[y.slot]), tiling, kernel);
    let width = Num::Const((p.op.q_heads * HEAD) as i64);
    let entry = e.tape().mul(b.queries, width);
    let is_dense = [b.y_head, b.y_seq, b.y_batch] == [Num::Const(HEAD as i64), width, entry];
    if is_dense {
        e.offer_panels::<AttentionLanesParams>("y_panels", y.slot, [rows, width]);
    }
}

/// True if queries, keys and values are columns of one product with so many rows that lie in panels from now on.
fn takes_panels(e: &mut Emit<'_>, p: &AttentionProblem<'_>, rows: Num) -> bool {
    let [q, k, v, ..] = p.slots;
    let b = &p.block;
    let width = b.q_seq;
    let begins = [b.q_offset, b.k_offset, b.v_offset];
    let heads = [b.q_head, b.k_head, b.v_head];
    let begins_a_panel = |n: Num| matches!(n, Num::Const(n) if n % i64::from(PANEL) == 0);
    let is_one = [k, v] == [q; 2] && b.keys == b.queries && [b.k_seq, b.v_seq] == [width; 2];
    if !is_one || !begins.into_iter().chain(heads).all(begins_a_panel) {
        return false;
    }
    let entry = e.tape().mul(b.queries, width);
    [b.q_batch, b.k_batch, b.v_batch] == [entry; 3] && e.take_panels(q, [rows, width])
}

/// Where all is in panels: a column lies as many rows further, and a row 32 elements.
fn in_panels(e: &mut Emit<'_>, params: &mut AttentionLanesParams) {
    let tape = e.tape();
    let panel = Num::Const(PANEL.into());
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

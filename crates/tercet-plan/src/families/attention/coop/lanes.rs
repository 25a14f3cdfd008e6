//! Attention of heads of 64 elements on fragments that invocations fill themselves (`shaders/vulkan/attention_lanes_f16.comp`), where
//! the elements of matrices are known to lie as it expects.

use tercet_ir::{CompileError, DType};

use super::super::{AttentionProblem, parts};
use super::{AttentionCoopParams, AttentionTiling, Factors, module, params, run};
use crate::emit::{Emit, View};
use crate::kernel::{Access, Kernel};

pub(in super::super) static LANES_F16: Kernel<AttentionCoopParams> = module!("attention_lanes_f16");

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

/// Runs it.
pub(in super::super) fn emit(
    e: &mut Emit<'_>,
    p: &AttentionProblem<'_>,
    y: &View,
    tiling: &AttentionTiling,
) {
    let params = params(e, p, tiling);
    let [q, k, v, ..] = p.slots;
    run(e, p, ([q, k, v], &[y.slot]), tiling, (&LANES_F16, &params));
}

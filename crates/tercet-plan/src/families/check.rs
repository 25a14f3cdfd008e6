//! Checks of indices and counts on the device.

use tercet_ir::CompileError;

use super::portable;
use super::words::{eight, words};
use crate::emit::{Emit, View};
use crate::kernel::{Access, Kernel};
use crate::num::Num;
use crate::program::{CheckKind, SlotId};

crate::params! {
    /// The block of `check.wgsl`.
    pub struct CheckParams {
        count: U32,
        len: U32,
    }
    /// The block of `check_parts.wgsl`.
    pub struct PartsParams {
        lens: U32x8,
        count: U32,
        columns: U32,
    }
    /// The block of `check_first.wgsl`.
    pub struct FirstParams {
        count: U32,
        parts: U32,
    }
}

const BAD: &str = portable!("check_bad.wgsl");

/// The first element outside its range.
pub(crate) static CHECK: Kernel<CheckParams> = Kernel::wgsl(
    "check",
    &[BAD, portable!("check.wgsl")],
    &[Access::Read, Access::Write],
    &["KIND", "KEEP"],
);

/// The first element outside its range of each part.
pub(crate) static PARTS: Kernel<PartsParams> = Kernel::wgsl(
    "check_parts",
    &[
        portable!("prelude.wgsl"),
        BAD,
        portable!("check_parts.wgsl"),
    ],
    &[Access::Read, Access::Write],
    &["KIND"],
);

/// The first of the parts' elements.
pub(crate) static FIRST: Kernel<FirstParams> = Kernel::wgsl(
    "check_first",
    &[portable!("check_first.wgsl")],
    &[Access::Read, Access::Read, Access::Write],
    &["KEEP"],
);

/// The elements of a part: `PART` of the shader.
const PART: u32 = 4096;

/// Records the first bad element of a dense I32 value. Few elements of one length are walked by one
/// workgroup, others in parts.
///
/// # Errors
/// As [`Emit::temp`].
pub(crate) fn emit(
    e: &mut Emit<'_>,
    data: &View,
    kind: &CheckKind,
    len: Num,
    record: SlotId,
) -> Result<(), CompileError> {
    let count = e.numel(data.layout.shape());
    let mut most = 1usize;
    for dim in data.layout.shape() {
        most = most.saturating_mul(e.bound(dim)?);
    }
    let (code, lens) = match kind {
        CheckKind::Index => (0, vec![len]),
        CheckKind::Coordinates(lens) => (0, lens.clone()),
        CheckKind::KvLen => (1, vec![len]),
    };
    // Where a check runs more than once, or not at all, what was found first stays.
    let keep = u32::from(e.facts.has_flow);
    // One workgroup, also without elements: the record must be written.
    let grid = [Num::ONE; 3];
    if lens.len() == 1 && most <= PART as usize {
        let params = CheckParams {
            count,
            len: lens[0],
        };
        let consts = [code, keep];
        e.dispatch(&CHECK, &consts, &[data.slot, record], &params, grid);
        return Ok(());
    }
    let found = words(e, most.div_ceil(PART as usize))?;
    let parts = e.tape().ceil_div(count, PART);
    let params = PartsParams {
        lens: eight(&lens),
        count,
        columns: Num::Const(lens.len() as i64),
    };
    let each = e.flat_grid(parts);
    e.dispatch(&PARTS, &[code], &[data.slot, found.slot], &params, each);
    let params = FirstParams { count, parts };
    let args = [data.slot, found.slot, record];
    e.dispatch(&FIRST, &[keep], &args, &params, grid);
    Ok(())
}

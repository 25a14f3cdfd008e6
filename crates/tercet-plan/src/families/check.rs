//! Checks of indices and counts on the device.

use super::portable;
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
}

/// The first element outside its range.
pub(crate) static CHECK: Kernel<CheckParams> = Kernel::wgsl(
    "check",
    &[portable!("check.wgsl")],
    &[Access::Read, Access::Write],
    &["KIND"],
);

/// Records the first bad element of a dense I32 value.
pub(crate) fn emit(e: &mut Emit<'_>, data: &View, kind: &CheckKind, len: Num, record: SlotId) {
    let count = e.numel(data.layout.shape());
    let kind = match kind {
        CheckKind::Index => 0,
        CheckKind::KvLen => 1,
    };
    // One workgroup, also without elements: the record must be written.
    let grid = [Num::ONE; 3];
    let params = CheckParams { count, len };
    e.dispatch(&CHECK, &[kind], &[data.slot, record], &params, grid);
}

//! Device-side checks of indices and KV lengths.

use tercet_ir::{CompileError, DType};

use super::portable;
use super::words::{eight, words};
use crate::emit::{LoweringCtx, PendingSlot, SlotPlacement, SlotView};
use tercet_program::RECORD_BYTES;
use tercet_program::SymInt;
use tercet_program::{ArgAccess, ParamWord, TypedKernel};
use tercet_program::{
    CheckKind, KernelDispatch, KernelId, ProgramBuffer, ProgramStep, SlotId, StepOp,
};

crate::params! {
    /// Parameter block of `check.wgsl`.
    pub struct CheckParams {
        counts: U32x8,
        lens: U32x8,
        kinds: U32x8,
        records: U32x8,
    }
    /// Parameter block of `check_parts.wgsl`.
    pub struct CheckPartsParams {
        lens: U32x8,
        count: U32,
        columns: U32,
    }
    /// Parameter block of `check_first.wgsl`.
    pub struct CheckFirstParams {
        count: U32,
        parts: U32,
    }
}

const BAD: &str = portable!("check_bad.wgsl");

/// Maximum number of tensors that one dispatch of [`CHECK`] checks.
const MAX_CHECKED_VALUES: usize = 4;

/// Finds the first out-of-range element of each of up to four index tensors.
pub(crate) static CHECK: TypedKernel<CheckParams> = TypedKernel::wgsl(
    "check",
    &[BAD, portable!("check.wgsl")],
    &[
        ArgAccess::Read,
        ArgAccess::Read,
        ArgAccess::Read,
        ArgAccess::Read,
        ArgAccess::Write,
    ],
    &["KEEP"],
);

/// Finds the first out-of-range element of each part of a long index tensor.
pub(crate) static PARTS: TypedKernel<CheckPartsParams> = TypedKernel::wgsl(
    "check_parts",
    &[
        portable!("prelude.wgsl"),
        BAD,
        portable!("check_parts.wgsl"),
    ],
    &[ArgAccess::Read, ArgAccess::Write],
    &["KIND"],
);

/// Finds the first out-of-range element of a tensor from the results of [`PARTS`].
pub(crate) static FIRST: TypedKernel<CheckFirstParams> = TypedKernel::wgsl(
    "check_first",
    &[portable!("check_first.wgsl")],
    &[ArgAccess::Read, ArgAccess::Read, ArgAccess::Write],
    &["KEEP"],
);

/// Number of elements that one workgroup of [`PARTS`] checks; equals `PART` of the shader.
const PART: u32 = 4096;

/// Emits a check that writes the first out-of-range element of a dense I32 tensor to its fault
/// record. One workgroup checks a short tensor with a single upper limit; other tensors are checked
/// in parts.
///
/// # Errors
/// The errors of [`LoweringCtx::temp`].
pub(crate) fn emit(
    e: &mut LoweringCtx<'_>,
    data: &SlotView,
    kind: &CheckKind,
    len: SymInt,
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
        CheckKind::KvLen | CheckKind::Overflow => (1, vec![len]),
        CheckKind::Order => {
            unreachable!("invariant: dependent launches write this record themselves")
        }
    };
    // In a program with control flow, a check may execute several times or not at all. Its fault
    // record then keeps the first fault that any of its executions finds.
    let keep = u32::from(e.facts.has_flow);
    // One workgroup runs even if the tensor is empty, because the check must always write its fault
    // record.
    let grid = [SymInt::ONE; 3];
    if lens.len() == 1 && most <= PART as usize {
        let params = CheckParams {
            counts: eight(&[count]),
            lens: eight(&lens),
            kinds: eight(&[SymInt::Const(code.into())]),
            records: eight(&[]),
        };
        let x = data.slot;
        e.dispatch(&CHECK, &[keep], &[x, x, x, x, record], &params, grid);
        return Ok(());
    }
    let found = words(e, most.div_ceil(PART as usize))?;
    let parts = e.tape().ceil_div(count, PART);
    let params = CheckPartsParams {
        lens: eight(&lens),
        count,
        columns: SymInt::Const(lens.len() as i64),
    };
    let each = e.flat_grid(parts);
    e.dispatch(&PARTS, &[code], &[data.slot, found.slot], &params, each);
    let params = CheckFirstParams { count, parts };
    let args = [data.slot, found.slot, record];
    e.dispatch(&FIRST, &[keep], &args, &params, grid);
    Ok(())
}

/// Merges adjacent [`CHECK`] steps into one dispatch, because checking several short tensors takes
/// as long as checking one.
pub(crate) fn join(e: &mut LoweringCtx<'_>) {
    let steps = std::mem::take(&mut e.draft.steps);
    let kernels: Vec<KernelId> = [0, 1]
        .into_iter()
        .filter_map(|keep| e.known_kernel(&CHECK, &[keep]))
        .collect();
    let is_check =
        |step: &ProgramStep| dispatch_of(step).is_some_and(|d| kernels.contains(&d.kernel));
    let mut joined: Vec<ProgramStep> = Vec::with_capacity(steps.len());
    for list in steps.chunk_by(|a, b| is_check(a) && is_check(b) && a.branches == b.branches) {
        match is_check(&list[0]) {
            true => {
                let beside = list.chunk_by(|a, b| have_adjacent_records(e, a, b));
                let few: Vec<&[ProgramStep]> = beside
                    .flat_map(|list| list.chunks(MAX_CHECKED_VALUES))
                    .collect();
                joined.extend(few.into_iter().map(|few| one_of(e, few)));
            }
            false => joined.extend_from_slice(list),
        }
    }
    e.draft.steps = joined;
}

/// Whether the fault records of two checks are adjacent.
fn have_adjacent_records(e: &LoweringCtx<'_>, a: &ProgramStep, b: &ProgramStep) -> bool {
    let place = |step| dispatch_of(step).map(|d| record_at(e, d));
    match (place(a), place(b)) {
        (Some(a), Some(b)) => a.abs_diff(b) == RECORD_BYTES,
        _ => false,
    }
}

/// Byte offset of the fault record that a [`CHECK`] dispatch for a single tensor writes.
fn record_at(e: &LoweringCtx<'_>, check: &KernelDispatch) -> u64 {
    match e.home(check.args[MAX_CHECKED_VALUES]) {
        SlotPlacement::At(_, offset) => offset,
        _ => unreachable!("invariant: fault records have a fixed offset"),
    }
}

/// Returns one [`CHECK`] dispatch that replaces several dispatches for single tensors.
fn one_of(e: &mut LoweringCtx<'_>, checks: &[ProgramStep]) -> ProgramStep {
    let mut step = checks[0].clone();
    let StepOp::Dispatch(joined) = &mut step.work else {
        return step;
    };
    if checks.len() == 1 {
        return step;
    }
    let dispatches = || checks.iter().filter_map(dispatch_of);
    let records: Vec<u64> = dispatches().map(|d| record_at(e, d)).collect();
    let first = records.iter().copied().min().unwrap_or(0);
    let last = records.iter().copied().max().unwrap_or(0);
    let mut words: Vec<ParamWord> = Vec::new();
    for field in 0..3 {
        let mut list = [ParamWord::SymInt(SymInt::ZERO); 8];
        for (to, d) in list.iter_mut().zip(dispatches()) {
            *to = e.draft.params[d.block as usize + field * 8];
        }
        words.extend(list);
    }
    let places = records
        .iter()
        .map(|at| SymInt::Const(((at - first) / 4) as i64));
    words.extend(eight(&places.collect::<Vec<_>>()).map(ParamWord::SymInt));
    for (at, d) in dispatches().enumerate() {
        joined.args[at] = d.args[0];
    }
    let all = e.slot(PendingSlot {
        bytes: last - first + 8,
        dtype: DType::U32,
        numel: None,
        home: SlotPlacement::At(ProgramBuffer::Faults, first),
    });
    let slots = dispatches().map(|d| d.args[MAX_CHECKED_VALUES]).collect();
    e.draft.joined_records.insert(all, slots);
    joined.args[MAX_CHECKED_VALUES] = all;
    joined.grid = [SymInt::Const(checks.len() as i64), SymInt::ONE, SymInt::ONE];
    joined.block = e.block(&words);
    step
}

fn dispatch_of(step: &ProgramStep) -> Option<&KernelDispatch> {
    match &step.work {
        StepOp::Dispatch(d) => Some(d),
        StepOp::Copy { .. } | StepOp::Fill { .. } => None,
    }
}

//! Checks of indices and counts on the device.

use tercet_ir::{CompileError, DType};

use super::portable;
use super::words::{eight, words};
use crate::emit::{Emit, Home, RECORD_BYTES, SlotDraft, View};
use crate::kernel::{Access, Kernel, Word};
use crate::num::Num;
use crate::program::{Buffer, CheckKind, Dispatch, KernelId, SlotId, Step, Work};

crate::params! {
    /// The block of `check.wgsl`.
    pub struct CheckParams {
        counts: U32x8,
        lens: U32x8,
        kinds: U32x8,
        records: U32x8,
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

/// The most values that one dispatch of [`CHECK`] looks at.
const MOST: usize = 4;

/// The first element outside its range, of each of a few values.
pub(crate) static CHECK: Kernel<CheckParams> = Kernel::wgsl(
    "check",
    &[BAD, portable!("check.wgsl")],
    &[
        Access::Read,
        Access::Read,
        Access::Read,
        Access::Read,
        Access::Write,
    ],
    &["KEEP"],
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
        CheckKind::Order => unreachable!("invariant: links of chains record it by themselves"),
    };
    // Where a check runs more than once, or not at all, what was found first stays.
    let keep = u32::from(e.facts.has_flow);
    // One workgroup, also without elements: the record must be written.
    let grid = [Num::ONE; 3];
    if lens.len() == 1 && most <= PART as usize {
        let params = CheckParams {
            counts: eight(&[count]),
            lens: eight(&lens),
            kinds: eight(&[Num::Const(code.into())]),
            records: eight(&[]),
        };
        let x = data.slot;
        e.dispatch(&CHECK, &[keep], &[x, x, x, x, record], &params, grid);
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

/// Puts checks of [`CHECK`] that stand side by side among the steps into one dispatch: each takes a device as long as all of them.
pub(crate) fn join(e: &mut Emit<'_>) {
    let steps = std::mem::take(&mut e.draft.steps);
    let kernels: Vec<KernelId> = [0, 1]
        .into_iter()
        .filter_map(|keep| e.known_kernel(&CHECK, &[keep]))
        .collect();
    let is_check = |step: &Step| dispatch_of(step).is_some_and(|d| kernels.contains(&d.kernel));
    let mut joined: Vec<Step> = Vec::with_capacity(steps.len());
    for list in steps.chunk_by(|a, b| is_check(a) && is_check(b) && a.arms == b.arms) {
        match is_check(&list[0]) {
            true => {
                let beside = list.chunk_by(|a, b| have_records_side_by_side(e, a, b));
                let few: Vec<&[Step]> = beside.flat_map(|list| list.chunks(MOST)).collect();
                joined.extend(few.into_iter().map(|few| one_of(e, few)));
            }
            false => joined.extend_from_slice(list),
        }
    }
    e.draft.steps = joined;
}

/// Whether nobody else's record lies between those of two checks.
fn have_records_side_by_side(e: &Emit<'_>, a: &Step, b: &Step) -> bool {
    let place = |step| dispatch_of(step).map(|d| record_at(e, d));
    match (place(a), place(b)) {
        (Some(a), Some(b)) => a.abs_diff(b) == RECORD_BYTES,
        _ => false,
    }
}

/// Where the record of a check of one value lies.
fn record_at(e: &Emit<'_>, check: &Dispatch) -> u64 {
    match e.home(check.args[MOST]) {
        Home::At(_, offset) => offset,
        _ => unreachable!("invariant: records have a place of their own"),
    }
}

/// One check in place of some of [`CHECK`], each of one value.
fn one_of(e: &mut Emit<'_>, checks: &[Step]) -> Step {
    let mut step = checks[0].clone();
    let Work::Dispatch(joined) = &mut step.work else {
        return step;
    };
    if checks.len() == 1 {
        return step;
    }
    let dispatches = || checks.iter().filter_map(dispatch_of);
    let records: Vec<u64> = dispatches().map(|d| record_at(e, d)).collect();
    let first = records.iter().copied().min().unwrap_or(0);
    let last = records.iter().copied().max().unwrap_or(0);
    let mut words: Vec<Word> = Vec::new();
    for field in 0..3 {
        let mut list = [Word::Num(Num::ZERO); 8];
        for (to, d) in list.iter_mut().zip(dispatches()) {
            *to = e.draft.params[d.block as usize + field * 8];
        }
        words.extend(list);
    }
    let places = records
        .iter()
        .map(|at| Num::Const(((at - first) / 4) as i64));
    words.extend(eight(&places.collect::<Vec<_>>()).map(Word::Num));
    for (at, d) in dispatches().enumerate() {
        joined.args[at] = d.args[0];
    }
    let all = e.slot(SlotDraft {
        bytes: last - first + 8,
        dtype: DType::U32,
        numel: None,
        home: Home::At(Buffer::Faults, first),
    });
    let slots = dispatches().map(|d| d.args[MOST]).collect();
    e.draft.joined_records.insert(all, slots);
    joined.args[MOST] = all;
    joined.grid = [Num::Const(checks.len() as i64), Num::ONE, Num::ONE];
    joined.block = e.block(&words);
    step
}

fn dispatch_of(step: &Step) -> Option<&Dispatch> {
    match &step.work {
        Work::Dispatch(d) => Some(d),
        Work::Copy { .. } | Work::Fill { .. } => None,
    }
}

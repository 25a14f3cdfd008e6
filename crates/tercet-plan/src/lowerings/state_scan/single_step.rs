//! Single-step scan for `SelectiveScan` and `Mamba2`, as in decode. States are read and written
//! once by adjacent threads. The kernel reads operands with their strides, so they may be slices of
//! a projection.

use tercet_ir::layout::LayoutTerm;
use tercet_ir::ops::ScanSizes;
use tercet_ir::{CompileError, DType};

use super::states::ScanStates;
use super::variants::ChannelScan;
use super::{HeadScan, num};
use crate::emit::{LoweringCtx, SlotView};
use crate::lowerings::{code, portable};
use tercet_program::SlotId;
use tercet_program::SymInt;
use tercet_program::{ArgAccess, TypedKernel};

crate::params! {
    /// Parameter block of `state_step.wgsl`.
    pub struct StateStepParams {
        steps: U32,
        states: U32,
        channels: U32,
        per_head: U32,
        each: U32,
        tiles: U32,
        count: U32,
        x_at: U32,
        x_row: U32,
        b_at: U32,
        b_row: U32,
        c_at: U32,
        c_row: U32,
        dt_at: U32,
        dt_row: U32,
        checks: U32,
    }
}

const CONSTS: &[&str] = &[
    "DTYPE", "OUT", "LANES", "PER", "COLUMNS", "THREADS", "BY_STATE", "INITIAL", "CARRY",
];

/// Arguments: b, c, x, results, dt and a; then the initial and the final states.
pub(super) static FREE: TypedKernel<StateStepParams> = TypedKernel::wgsl(
    "state_step",
    &[
        portable!("prelude.wgsl"),
        portable!("halves.wgsl"),
        portable!("state_step_free.wgsl"),
        portable!("state_step.wgsl"),
    ],
    &[
        ArgAccess::Read,
        ArgAccess::Read,
        ArgAccess::Read,
        ArgAccess::Write,
        ArgAccess::Read,
        ArgAccess::Read,
        ArgAccess::Read,
        ArgAccess::Write,
    ],
    CONSTS,
);

/// The single-step kernel for final states that are written to a state of the graph; it also takes
/// the fault records.
pub(super) static GUARDED: TypedKernel<StateStepParams> = TypedKernel::wgsl(
    "state_step_guarded",
    &[
        portable!("prelude.wgsl"),
        portable!("halves.wgsl"),
        portable!("state_step_guarded.wgsl"),
        portable!("state_step.wgsl"),
    ],
    &[
        ArgAccess::Read,
        ArgAccess::Read,
        ArgAccess::Read,
        ArgAccess::Write,
        ArgAccess::Read,
        ArgAccess::Read,
        ArgAccess::Read,
        ArgAccess::Write,
        ArgAccess::Read,
    ],
    CONSTS,
);

/// Index of the constant for initial states in [`CONSTS`], and its value for an in-place update.
const INITIAL: usize = 7;
const IN_PLACE: u32 = 2;

/// Threads per workgroup.
const THREADS: usize = 128;

/// Number of states that a thread holds for all its channels together, unless its part of a single
/// channel has more.
const HELD: usize = 8;

/// A single scan step, with its operands in the form that the kernel takes.
struct StateStep<'v> {
    sizes: ScanSizes,
    /// The operands x, dt, a, b and c.
    operands: [&'v SlotView; 5],
    results: SlotId,
    out: DType,
    states: &'v ScanStates,
    /// Whether each state has a separate decay rate.
    by_state: bool,
}

impl HeadScan<'_> {
    /// Emits a single step of `Mamba2`.
    pub(super) fn one(&self, e: &mut LoweringCtx<'_>) -> Result<(), CompileError> {
        let ([b, c], [dt, a]) = (self.rows, self.gates);
        let step = StateStep {
            sizes: self.sizes,
            operands: [self.values, dt, a, b, c],
            results: self.results,
            out: self.out,
            states: self.states,
            by_state: false,
        };
        step.emit(e)
    }
}

impl ChannelScan<'_> {
    /// Emits a single step of `SelectiveScan`.
    pub(super) fn one(&self, e: &mut LoweringCtx<'_>) -> Result<(), CompileError> {
        let step = StateStep {
            sizes: self.sizes,
            operands: self.operands.each_ref(),
            results: self.results.slot,
            out: self.results.dtype,
            states: self.states,
            by_state: true,
        };
        step.emit(e)
    }
}

/// Returns the view itself if the values of each batch entry are contiguous, otherwise a dense
/// copy.
fn single_step_view(e: &mut LoweringCtx<'_>, view: &SlotView) -> Result<SlotView, CompileError> {
    let known = |term: &LayoutTerm| Some(term.dim().known()? as i64 * term.factor());
    let axes = view.layout.shape().iter().zip(view.layout.strides());
    let mut wanted = Some(1);
    for (size, stride) in axes.skip(2).rev() {
        let is_one = size.known() == Some(1);
        wanted = wanted.filter(|wanted| is_one || known(stride) == Some(*wanted));
        wanted = wanted
            .zip(size.known())
            .map(|(wanted, size)| wanted * size as i64);
    }
    match wanted {
        Some(_) => Ok(view.clone()),
        None => e.dense(view),
    }
}

impl StateStep<'_> {
    fn emit(&self, e: &mut LoweringCtx<'_>) -> Result<(), CompileError> {
        let sizes = self.sizes;
        let [x, dt, a, b, c] = self.operands;
        let a = e.dense(a)?.slot;
        let [x, dt, b, c] = [
            single_step_view(e, x)?,
            single_step_view(e, dt)?,
            single_step_view(e, b)?,
            single_step_view(e, c)?,
        ];
        let lanes = sizes.states.next_power_of_two().min(32);
        let per = sizes.states.div_ceil(lanes).max(1);
        let columns = (HELD / per).clamp(1, 4);
        let tile = THREADS / lanes * columns;
        let tiles = sizes.channels().div_ceil(tile);
        let [batch, steps] = [0, 1].map(|axis| e.num(&x.layout.shape()[axis]));
        let count = e.tape().mul(batch, num(tiles));
        let mut place = |view: &SlotView| [e.offset(view), e.strides(view)[0]];
        let [[x_at, x_row], [dt_at, dt_row]] = [place(&x), place(&dt)];
        let [[b_at, b_row], [c_at, c_row]] = [place(&b), place(&c)];
        let params = StateStepParams {
            steps,
            states: num(sizes.states),
            channels: num(sizes.channels()),
            per_head: num(sizes.per_head.max(1)),
            each: num((sizes.heads / sizes.groups.max(1)).max(1)),
            tiles: num(tiles),
            count,
            x_at,
            x_row,
            b_at,
            b_row,
            c_at,
            c_row,
            dt_at,
            dt_row,
            checks: SymInt::ZERO,
        };
        let [initial, carry] = self.states.consts();
        let mut consts = [
            code(x.dtype),
            code(self.out),
            lanes as u32,
            per as u32,
            columns as u32,
            THREADS as u32,
            self.by_state.into(),
            initial,
            carry,
        ];
        let grid = e.flat_grid(count);
        let has_room = e.caps.max_storage_buffers as usize >= GUARDED.def.args.len();
        let in_place = self.states.last.as_ref().filter(|l| l.is_state && has_room);
        let first = self.states.initial.unwrap_or(x.slot);
        let args = |last: SlotId| {
            [
                b.slot,
                c.slot,
                x.slot,
                self.results,
                dt.slot,
                a,
                first,
                last,
            ]
        };
        if let Some(last) = in_place {
            let mut args = args(last.view.slot);
            if self.states.is_in_place() {
                consts[INITIAL] = IN_PLACE;
                args[6] = x.slot;
            }
            e.dispatch_guarded(&GUARDED, &consts, &args, &params, grid);
            return Ok(());
        }
        let made = self.states.allocate(e)?;
        e.dispatch(&FREE, &consts, &args(made.slot), &params, grid);
        self.states.finish(e, made);
        Ok(())
    }
}

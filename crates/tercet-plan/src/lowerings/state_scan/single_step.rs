//! `SelectiveScan` and `Mamba2` of one step, as when a text is written: states are read and written once, by neighbours
//! in memory, and the operands of the step lie where they are, parts of a projection among them.

use tercet_ir::layout::Term;
use tercet_ir::ops::ScanSizes;
use tercet_ir::{CompileError, DType};

use super::states::States;
use super::variants::Channels;
use super::{Scan, num};
use crate::emit::{Emit, View};
use crate::families::{code, portable};
use crate::kernel::{Access, Kernel};
use crate::num::Num;
use crate::program::SlotId;

crate::params! {
    /// The block of `state_step.wgsl`.
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

/// b, c, x, results, dt and a; the first states and the last.
pub(super) static FREE: Kernel<StateStepParams> = Kernel::wgsl(
    "state_step",
    &[
        portable!("prelude.wgsl"),
        portable!("halves.wgsl"),
        portable!("state_step_free.wgsl"),
        portable!("state_step.wgsl"),
    ],
    &[
        Access::Read,
        Access::Read,
        Access::Read,
        Access::Write,
        Access::Read,
        Access::Read,
        Access::Read,
        Access::Write,
    ],
    CONSTS,
);

/// The same where the last states are a state of the graph; the records of checks.
pub(super) static GUARDED: Kernel<StateStepParams> = Kernel::wgsl(
    "state_step_guarded",
    &[
        portable!("prelude.wgsl"),
        portable!("halves.wgsl"),
        portable!("state_step_guarded.wgsl"),
        portable!("state_step.wgsl"),
    ],
    &[
        Access::Read,
        Access::Read,
        Access::Read,
        Access::Write,
        Access::Read,
        Access::Read,
        Access::Read,
        Access::Write,
        Access::Read,
    ],
    CONSTS,
);

/// Where [`CONSTS`] say where the first states are, and that it is where the last ones go.
const INITIAL: usize = 7;
const IN_PLACE: u32 = 2;

/// Invocations of a workgroup.
const THREADS: usize = 128;

/// States that an invocation has of all its channels, where one channel does not have more of them.
const HELD: usize = 8;

/// A step as its kernel takes it.
struct Step<'v> {
    sizes: ScanSizes,
    /// x, dt, a, b and c.
    operands: [&'v View; 5],
    results: SlotId,
    out: DType,
    states: &'v States,
    /// Whether each state has a rate of its own.
    by_state: bool,
}

impl Scan<'_> {
    /// One step of a `Mamba2`.
    pub(super) fn one(&self, e: &mut Emit<'_>) -> Result<(), CompileError> {
        let ([b, c], [dt, a]) = (self.rows, self.gates);
        let step = Step {
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

impl Channels<'_> {
    /// One step.
    pub(super) fn one(&self, e: &mut Emit<'_>) -> Result<(), CompileError> {
        let step = Step {
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

/// The view, copied unless each entry of the batch has its numbers of a step behind each other.
fn of_one_step(e: &mut Emit<'_>, view: &View) -> Result<View, CompileError> {
    let known = |term: &Term| Some(term.dim().known()? as i64 * term.factor());
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

impl Step<'_> {
    fn emit(&self, e: &mut Emit<'_>) -> Result<(), CompileError> {
        let sizes = self.sizes;
        let [x, dt, a, b, c] = self.operands;
        let a = e.dense(a)?.slot;
        let [x, dt, b, c] = [
            of_one_step(e, x)?,
            of_one_step(e, dt)?,
            of_one_step(e, b)?,
            of_one_step(e, c)?,
        ];
        let lanes = sizes.states.next_power_of_two().min(32);
        let per = sizes.states.div_ceil(lanes).max(1);
        let columns = (HELD / per).clamp(1, 4);
        let tile = THREADS / lanes * columns;
        let tiles = sizes.channels().div_ceil(tile);
        let [batch, steps] = [0, 1].map(|axis| e.num(&x.layout.shape()[axis]));
        let count = e.tape().mul(batch, num(tiles));
        let mut place = |view: &View| [e.offset(view), e.strides(view)[0]];
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
            checks: Num::ZERO,
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
        let made = self.states.make(e)?;
        e.dispatch(&FREE, &consts, &args(made.slot), &params, grid);
        self.states.finish(e, made);
        Ok(())
    }
}

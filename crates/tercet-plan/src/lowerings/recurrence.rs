//! Lowering of `Recurrence` (RNN, GRU, LSTM): one dispatch per step, or one dispatch for all steps.
//!
//! Every step of a recurrence reads all weights again. Large weights are shared by all workgroups,
//! each of which reads a part. With large weights, each step is one dispatch, up to a maximum
//! number of steps. With small weights, or with more steps, each workgroup computes all steps of
//! some batch rows, without synchronization between workgroups. States are computed in F32, and
//! packed at the end for narrower dtypes.

use tercet_ir::layout::AxisSlice;
use tercet_ir::ops::RecurrentCell;
use tercet_ir::{CompileError, DType, Dim, Node, Op, OpKind};

use super::cumsum::pack;
use super::state_scan::F32Result;
use super::{Lowering, always, code, portable};
use crate::emit::{LoweringCtx, SlotView};
use crate::scalar::{PRELUDE, WgslHelper};
use tercet_program::SlotId;
use tercet_program::SymInt;
use tercet_program::{ArgAccess, TypedKernel};

crate::params! {
    /// Parameter block of `recurrence.wgsl`.
    pub struct RecurrenceParams {
        batch: U32,
        steps: U32,
        size: U32,
        wide: U32,
        reverse: U32,
    }
    /// Parameter block of `recurrence_first.wgsl`.
    pub struct FirstStatesParams {
        batch: U32,
        size: U32,
        rows: U32,
    }
    /// Parameter block of `recurrence_step.wgsl`.
    pub struct RecurrenceStepParams {
        batch: U32,
        steps: U32,
        size: U32,
        wide: U32,
        reverse: U32,
        rows: U32,
        tiles: U32,
        count: U32,
        step: U32,
    }
}

/// WGSL source of a kernel that computes recurrence steps.
macro_rules! stepping {
    ($file:literal) => {
        &[
            PRELUDE,
            WgslHelper::Base.text(),
            WgslHelper::Exp.text(),
            WgslHelper::Hyperbolic.text(),
            WgslHelper::Tail.text(),
            WgslHelper::Gate.text(),
            portable!("recurrence_cell.wgsl"),
            portable!($file),
        ]
    };
}

static RECURRENCE: TypedKernel<RecurrenceParams> = TypedKernel::wgsl(
    "recurrence",
    stepping!("recurrence.wgsl"),
    &[
        ArgAccess::Read,
        ArgAccess::Read,
        ArgAccess::Read,
        ArgAccess::Read,
        ArgAccess::Read,
        ArgAccess::Write,
        ArgAccess::Write,
        ArgAccess::Write,
    ],
    &["DTYPE", "CELL", "ROWS", "HELD"],
);

static FIRST_STATES: TypedKernel<FirstStatesParams> = TypedKernel::wgsl(
    "recurrence_first",
    &[
        portable!("prelude.wgsl"),
        portable!("recurrence_first.wgsl"),
    ],
    &[
        ArgAccess::Read,
        ArgAccess::Read,
        ArgAccess::Write,
        ArgAccess::Write,
    ],
    &["DTYPE", "CELL_STATE"],
);

static RECURRENCE_STEP: TypedKernel<RecurrenceStepParams> = TypedKernel::wgsl(
    "recurrence_step",
    stepping!("recurrence_step.wgsl"),
    &[
        ArgAccess::Read,
        ArgAccess::Read,
        ArgAccess::Read,
        ArgAccess::Read,
        ArgAccess::Write,
        ArgAccess::Write,
        ArgAccess::Write,
    ],
    &["DTYPE", "CELL"],
);

/// Lowering of `Recurrence`.
pub(crate) static RECURRENCES: Lowering = Lowering {
    name: "recurrence",
    ops: &[OpKind::Recurrence],
    kernels: &[&RECURRENCE.def, &FIRST_STATES.def, &RECURRENCE_STEP.def],
    supports: always,
    lower,
};

/// Maximum number of values in shared memory; equals `POOL` of the shader.
const POOL: usize = 4096;

/// Minimum number of batch rows for which a workgroup takes several. With fewer batch rows,
/// workgroups of several rows would leave compute units idle.
const MIN_ROWS_FOR_SHARING: usize = 256;

/// Maximum number of weights that fit into the cache of a compute unit. If there are more weights,
/// each workgroup reads a part of them, with one dispatch per step.
const MAX_CACHED_WEIGHTS: usize = 1 << 14;

/// Maximum number of steps of each shape branch with one dispatch per step. Longer sequences than
/// the last number run in one dispatch for all steps.
const STEPS: [u32; 5] = [8, 32, 128, 512, 2048];

/// State elements and batch rows per workgroup of a step; equals `UNITS` and `ROWS` of the shader.
const STEP_TILE: [usize; 2] = [8, 8];

/// A recurrent layer (RNN, GRU or LSTM) with its operands, results and sizes.
struct RecurrenceLayer {
    cell: RecurrentCell,
    reverse: bool,
    /// Input gates, weights, bias, initial h and initial c. Cells without c get a dummy slot.
    operands: [SlotView; 5],
    /// The results and the final states (h, then c), all in F32.
    y: SlotView,
    states: SlotView,
    size: usize,
}

impl RecurrenceLayer {
    fn wide(&self) -> usize {
        self.cell.gates() * self.size
    }

    fn batch(&self) -> &Dim {
        &self.operands[0].layout.shape()[0]
    }

    fn steps(&self) -> &Dim {
        &self.operands[0].layout.shape()[1]
    }

    fn code(&self) -> u32 {
        match self.cell {
            RecurrentCell::Lstm => 0,
            RecurrentCell::Gru => 1,
            RecurrentCell::Tanh => 2,
            RecurrentCell::Relu => 3,
        }
    }
}

fn lower(e: &mut LoweringCtx<'_>, node: &Node) -> Result<(), CompileError> {
    let Op::Recurrence(op) = &node.op else {
        unreachable!("invariant: a lowering receives only its own operator")
    };
    let mut operands = Vec::with_capacity(node.inputs.len());
    for v in &node.inputs {
        let view = e.view(*v);
        operands.push(e.dense(&view)?);
    }
    let [gates, w, bias, h0, ..] = operands.as_slice() else {
        unreachable!("invariant: inference checked the number of operands")
    };
    let Some(size) = w.layout.shape()[0].known() else {
        unreachable!("invariant: inference rejects unknown sizes")
    };
    let y = F32Result::new(e, 0)?;
    let kinds = 1 + usize::from(op.cell.has_cell_state());
    let batch = gates.layout.shape()[0].clone();
    let c0 = operands.get(4).unwrap_or(h0);
    let layer = RecurrenceLayer {
        cell: op.cell,
        reverse: op.reverse,
        operands: [gates, w, bias, h0, c0].map(SlotView::clone),
        y: y.view.clone(),
        states: e.temp(DType::F32, &[kinds.into(), batch, size.into()])?,
        size,
    };
    let most = e.bound(layer.steps())?;
    match size * layer.wide() > MAX_CACHED_WEIGHTS && (1..=STEPS[4] as usize).contains(&most) {
        true => by_steps(e, &layer, most)?,
        false => emit_all_steps(e, &layer)?,
    }
    y.finish(e);
    let states = match gates.dtype {
        DType::F32 => layer.states,
        dtype => {
            let narrow = e.temp(dtype, layer.states.layout.shape())?;
            pack(e, &layer.states, &narrow);
            narrow
        }
    };
    for kind in 0..kinds {
        let own = part(&states, kind);
        e.forward(1 + kind, own);
    }
    Ok(())
}

/// Emits one dispatch that computes all steps.
fn emit_all_steps(e: &mut LoweringCtx<'_>, layer: &RecurrenceLayer) -> Result<(), CompileError> {
    let (batch, wide) = (layer.batch(), layer.wide());
    let rows = match e.bound(batch)? {
        MIN_ROWS_FOR_SHARING.. => 4,
        _ => 1,
    };
    let held = rows * (layer.size + wide) <= POOL;
    let batch_num = e.num(batch);
    let params = RecurrenceParams {
        batch: batch_num,
        steps: e.num(layer.steps()),
        size: SymInt::Const(layer.size as i64),
        wide: SymInt::Const(wide as i64),
        reverse: layer.reverse.into(),
    };
    let scratch = match held {
        true => e.temp(DType::F32, &[1.into()])?,
        false => e.temp(DType::F32, &[batch.clone(), wide.into()])?,
    };
    let mut args: Vec<SlotId> = layer.operands.iter().map(|v| v.slot).collect();
    args.extend([&layer.y, &layer.states, &scratch].map(|v| v.slot));
    let dtype = code(layer.operands[0].dtype);
    let consts = [dtype, layer.code(), rows as u32, held.into()];
    let groups = e.tape().ceil_div(batch_num, rows as u32);
    let grid = e.flat_grid(groups);
    e.dispatch(&RECURRENCE, &consts, &args, &params, grid);
    Ok(())
}

/// Emits one dispatch per step, for at most `most` steps.
fn by_steps(
    e: &mut LoweringCtx<'_>,
    layer: &RecurrenceLayer,
    most: usize,
) -> Result<(), CompileError> {
    let [x, w, bias, h0, c0] = &layer.operands;
    let dtype = code(x.dtype);
    let (batch, size) = (e.num(layer.batch()), SymInt::Const(layer.size as i64));
    let row_tiles = e.tape().ceil_div(batch, STEP_TILE[1] as u32);
    let rows = e.tape().mul(row_tiles, (STEP_TILE[1] as u32).into());
    let max_rows = e.bound(layer.batch())?.next_multiple_of(STEP_TILE[1]);
    let turns = [0, 1].map(|_| e.temp(DType::F32, &[layer.size.into(), max_rows.into()]));
    let [even, odd] = turns;
    let turns = [even?.slot, odd?.slot];
    let params = FirstStatesParams { batch, size, rows };
    let args = [h0.slot, c0.slot, turns[0], layer.states.slot];
    let places = e.tape().mul(rows, size);
    let grid = e.grid_of(places, 128);
    let consts = [dtype, layer.cell.has_cell_state().into()];
    e.dispatch(&FIRST_STATES, &consts, &args, &params, grid);

    let tiles = SymInt::Const(layer.size.div_ceil(STEP_TILE[0]) as i64);
    let count = e.tape().mul(row_tiles, tiles);
    let steps = e.num(layer.steps());
    let grid = e.flat_grid(count);
    e.switch_on_size(layer.steps(), &STEPS[..4], |e, arm| {
        for step in 0..most.min(STEPS[arm] as usize) {
            let params = RecurrenceStepParams {
                batch,
                steps,
                size,
                wide: SymInt::Const(layer.wide() as i64),
                reverse: layer.reverse.into(),
                rows,
                tiles,
                count,
                step: SymInt::Const(step as i64),
            };
            let [before, after] = [step, step + 1].map(|at| turns[at % 2]);
            let args = [
                x.slot,
                w.slot,
                bias.slot,
                before,
                after,
                layer.y.slot,
                layer.states.slot,
            ];
            e.dispatch(
                &RECURRENCE_STEP,
                &[dtype, layer.code()],
                &args,
                &params,
                grid,
            );
        }
        Ok(())
    })
}

/// View of entry `at` along the first axis of a view.
fn part(all: &SlotView, at: usize) -> SlotView {
    let shape = all.layout.shape();
    let mut cuts: Vec<AxisSlice> = shape
        .iter()
        .map(|_| AxisSlice {
            start: Dim::Known(0),
            step: 1,
        })
        .collect();
    cuts[0].start = Dim::Known(at);
    let mut one = shape.to_vec();
    one[0] = Dim::Known(1);
    let layout = all.layout.slice(&cuts, &one);
    let layout = layout.and_then(|layout| layout.reshape(&shape[1..]));
    SlotView {
        layout: layout
            .unwrap_or_else(|| unreachable!("invariant: an entry of a dense slot is a view")),
        ..all.clone()
    }
}

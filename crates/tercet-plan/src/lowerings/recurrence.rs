//! `Recurrence`: a dispatch for each step, or one for all of them.
//!
//! The weights are read again at each step. Where they are many, all workgroups share a step, so that each
//! reads a part: a dispatch for each step, as many as there may be. Else, or where there may be too many steps, a
//! workgroup takes some rows of the batch through all steps, so that nothing waits for other workgroups.
//! States are made in f32 and packed at the end where the dtype is narrower.

use tercet_ir::layout::Cut;
use tercet_ir::ops::Cell;
use tercet_ir::{CompileError, DType, Dim, Node, Op, OpKind};

use super::cumsum::pack;
use super::state_scan::Wide;
use super::{Family, always, code, portable};
use crate::emit::{Emit, View};
use crate::kernel::{Access, Kernel};
use crate::num::Num;
use crate::program::SlotId;
use crate::scalar::{PRELUDE, Piece};

crate::params! {
    /// The block of `recurrence.wgsl`.
    pub struct RecurrenceParams {
        batch: U32,
        steps: U32,
        size: U32,
        wide: U32,
        reverse: U32,
    }
    /// The block of `recurrence_first.wgsl`.
    pub struct FirstStatesParams {
        batch: U32,
        size: U32,
        rows: U32,
    }
    /// The block of `recurrence_step.wgsl`.
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

/// The text of a kernel that makes steps.
macro_rules! stepping {
    ($file:literal) => {
        &[
            PRELUDE,
            Piece::Base.text(),
            Piece::Exp.text(),
            Piece::Hyperbolic.text(),
            Piece::Tail.text(),
            Piece::Gate.text(),
            portable!("recurrence_cell.wgsl"),
            portable!($file),
        ]
    };
}

static RECURRENCE: Kernel<RecurrenceParams> = Kernel::wgsl(
    "recurrence",
    stepping!("recurrence.wgsl"),
    &[
        Access::Read,
        Access::Read,
        Access::Read,
        Access::Read,
        Access::Read,
        Access::Write,
        Access::Write,
        Access::Write,
    ],
    &["DTYPE", "CELL", "ROWS", "HELD"],
);

static FIRST_STATES: Kernel<FirstStatesParams> = Kernel::wgsl(
    "recurrence_first",
    &[
        portable!("prelude.wgsl"),
        portable!("recurrence_first.wgsl"),
    ],
    &[Access::Read, Access::Read, Access::Write, Access::Write],
    &["DTYPE", "CELL_STATE"],
);

static RECURRENCE_STEP: Kernel<RecurrenceStepParams> = Kernel::wgsl(
    "recurrence_step",
    stepping!("recurrence_step.wgsl"),
    &[
        Access::Read,
        Access::Read,
        Access::Read,
        Access::Read,
        Access::Write,
        Access::Write,
        Access::Write,
    ],
    &["DTYPE", "CELL"],
);

/// `Recurrence`.
pub(crate) static RECURRENCES: Family = Family {
    name: "recurrence",
    ops: &[OpKind::Recurrence],
    kernels: &[&RECURRENCE.def, &FIRST_STATES.def, &RECURRENCE_STEP.def],
    supports: always,
    lower,
};

/// Numbers that the kernel keeps in shared memory, at most: `POOL` of the shader.
const POOL: usize = 4096;

/// Rows of the batch from which a workgroup takes several: fewer would leave units without work.
const MANY_ROWS: usize = 256;

/// Weights that the caches of a unit hold: more are shared by all workgroups, a step at a time.
const FEW_WEIGHTS: usize = 1 << 14;

/// The most steps of each way of one dispatch a step: the last one's are the most there may be.
const STEPS: [u32; 5] = [8, 32, 128, 512, 2048];

/// Elements of states and rows of the batch that a workgroup of a step makes: `UNITS` and `ROWS` of the shader.
const STEP_TILE: [usize; 2] = [8, 8];

/// A layer: its operands, where its results go, its sizes.
struct Layer {
    cell: Cell,
    reverse: bool,
    /// Gates of the inputs, weights, bias, first states; the one of c is some slot where there is none.
    given: [View; 5],
    /// In f32, as are the last states, of h and then of c.
    y: View,
    states: View,
    size: usize,
}

impl Layer {
    fn wide(&self) -> usize {
        self.cell.gates() * self.size
    }

    fn batch(&self) -> &Dim {
        &self.given[0].layout.shape()[0]
    }

    fn steps(&self) -> &Dim {
        &self.given[0].layout.shape()[1]
    }

    fn code(&self) -> u32 {
        match self.cell {
            Cell::Lstm => 0,
            Cell::Gru => 1,
            Cell::Tanh => 2,
            Cell::Relu => 3,
        }
    }
}

fn lower(e: &mut Emit<'_>, node: &Node) -> Result<(), CompileError> {
    let Op::Recurrence(op) = &node.op else {
        unreachable!("invariant: the family's operator only")
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
        unreachable!("invariant: inference refuses sizes that are not known")
    };
    let y = Wide::of(e, 0)?;
    let kinds = 1 + usize::from(op.cell.has_cell_state());
    let batch = gates.layout.shape()[0].clone();
    let c0 = operands.get(4).unwrap_or(h0);
    let layer = Layer {
        cell: op.cell,
        reverse: op.reverse,
        given: [gates, w, bias, h0, c0].map(View::clone),
        y: y.view.clone(),
        states: e.temp(DType::F32, &[kinds.into(), batch, size.into()])?,
        size,
    };
    let most = e.bound(layer.steps())?;
    match size * layer.wide() > FEW_WEIGHTS && (1..=STEPS[4] as usize).contains(&most) {
        true => by_steps(e, &layer, most)?,
        false => whole(e, &layer)?,
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

/// All steps in one dispatch.
fn whole(e: &mut Emit<'_>, layer: &Layer) -> Result<(), CompileError> {
    let (batch, wide) = (layer.batch(), layer.wide());
    let rows = match e.bound(batch)? {
        MANY_ROWS.. => 4,
        _ => 1,
    };
    let held = rows * (layer.size + wide) <= POOL;
    let batch_num = e.num(batch);
    let params = RecurrenceParams {
        batch: batch_num,
        steps: e.num(layer.steps()),
        size: Num::Const(layer.size as i64),
        wide: Num::Const(wide as i64),
        reverse: layer.reverse.into(),
    };
    let scratch = match held {
        true => e.temp(DType::F32, &[1.into()])?,
        false => e.temp(DType::F32, &[batch.clone(), wide.into()])?,
    };
    let mut args: Vec<SlotId> = layer.given.iter().map(|v| v.slot).collect();
    args.extend([&layer.y, &layer.states, &scratch].map(|v| v.slot));
    let dtype = code(layer.given[0].dtype);
    let consts = [dtype, layer.code(), rows as u32, held.into()];
    let groups = e.tape().ceil_div(batch_num, rows as u32);
    let grid = e.flat_grid(groups);
    e.dispatch(&RECURRENCE, &consts, &args, &params, grid);
    Ok(())
}

/// A dispatch for each step, of which there are at most so many.
fn by_steps(e: &mut Emit<'_>, layer: &Layer, most: usize) -> Result<(), CompileError> {
    let [x, w, bias, h0, c0] = &layer.given;
    let dtype = code(x.dtype);
    let (batch, size) = (e.num(layer.batch()), Num::Const(layer.size as i64));
    let row_tiles = e.tape().ceil_div(batch, STEP_TILE[1] as u32);
    let rows = e.tape().mul(row_tiles, (STEP_TILE[1] as u32).into());
    let most_rows = e.bound(layer.batch())?.next_multiple_of(STEP_TILE[1]);
    let turns = [0, 1].map(|_| e.temp(DType::F32, &[layer.size.into(), most_rows.into()]));
    let [even, odd] = turns;
    let turns = [even?.slot, odd?.slot];
    let params = FirstStatesParams { batch, size, rows };
    let args = [h0.slot, c0.slot, turns[0], layer.states.slot];
    let places = e.tape().mul(rows, size);
    let grid = e.grid_of(places, 128);
    let consts = [dtype, layer.cell.has_cell_state().into()];
    e.dispatch(&FIRST_STATES, &consts, &args, &params, grid);

    let tiles = Num::Const(layer.size.div_ceil(STEP_TILE[0]) as i64);
    let count = e.tape().mul(row_tiles, tiles);
    let steps = e.num(layer.steps());
    let grid = e.flat_grid(count);
    e.choose(layer.steps(), &STEPS[..4], |e, arm| {
        for step in 0..most.min(STEPS[arm] as usize) {
            let params = RecurrenceStepParams {
                batch,
                steps,
                size,
                wide: Num::Const(layer.wide() as i64),
                reverse: layer.reverse.into(),
                rows,
                tiles,
                count,
                step: Num::Const(step as i64),
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

/// Entry `at` of the first axis.
fn part(all: &View, at: usize) -> View {
    let shape = all.layout.shape();
    let mut cuts: Vec<Cut> = shape
        .iter()
        .map(|_| Cut {
            start: Dim::Known(0),
            step: 1,
        })
        .collect();
    cuts[0].start = Dim::Known(at);
    let mut one = shape.to_vec();
    one[0] = Dim::Known(1);
    let layout = all.layout.slice(&cuts, &one);
    let layout = layout.and_then(|layout| layout.reshape(&shape[1..]));
    View {
        layout: layout
            .unwrap_or_else(|| unreachable!("invariant: a part of a dense slot is a view")),
        ..all.clone()
    }
}

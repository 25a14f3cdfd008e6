//! `Recurrence`: a workgroup takes some rows of the batch through all steps.
//!
//! Nothing waits for other workgroups, so that one dispatch does any number of steps. The weights are read
//! again at each step: from the caches, where they fit. States are made in f32 and packed at the end where
//! the dtype is narrower.

use tercet_ir::layout::Cut;
use tercet_ir::ops::Cell;
use tercet_ir::{CompileError, DType, Dim, Node, Op, OpKind};

use super::cumsum::pack;
use super::state_scan::Wide;
use super::{Family, always, code, portable};
use crate::emit::{Emit, View};
use crate::kernel::{Access, Kernel};
use crate::num::Num;
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
}

static RECURRENCE: Kernel<RecurrenceParams> = Kernel::wgsl(
    "recurrence",
    &[
        PRELUDE,
        Piece::Base.text(),
        Piece::Exp.text(),
        Piece::Hyperbolic.text(),
        Piece::Gate.text(),
        portable!("recurrence.wgsl"),
    ],
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

/// `Recurrence`.
pub(crate) static RECURRENCES: Family = Family {
    name: "recurrence",
    ops: &[OpKind::Recurrence],
    kernels: &[&RECURRENCE.def],
    supports: always,
    lower,
};

/// Numbers that the kernel keeps in shared memory, at most: `POOL` of the shader.
const POOL: usize = 4096;

/// Rows of the batch from which a workgroup takes several: fewer would leave units without work.
const MANY_ROWS: usize = 256;

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
    let wide = op.cell.gates() * size;
    let (batch, steps) = (&gates.layout.shape()[0], &gates.layout.shape()[1]);
    let rows = match e.bound(batch)? {
        MANY_ROWS.. => 4,
        _ => 1,
    };
    let held = rows * (size + wide) <= POOL;
    let batch_num = e.num(batch);
    let params = RecurrenceParams {
        batch: batch_num,
        steps: e.num(steps),
        size: Num::Const(size as i64),
        wide: Num::Const(wide as i64),
        reverse: op.reverse.into(),
    };
    let y = Wide::of(e, 0)?;
    let kinds = 1 + usize::from(op.cell.has_cell_state());
    let states = e.temp(DType::F32, &[kinds.into(), batch.clone(), size.into()])?;
    let scratch = match held {
        true => e.temp(DType::F32, &[1.into()])?,
        false => e.temp(DType::F32, &[batch.clone(), wide.into()])?,
    };
    let c0 = operands.get(4).unwrap_or(h0);
    let args = [gates, w, bias, h0, c0, &y.view, &states, &scratch].map(|v| v.slot);
    let cell = match op.cell {
        Cell::Lstm => 0,
        Cell::Gru => 1,
        Cell::Tanh => 2,
        Cell::Relu => 3,
    };
    let consts = [code(gates.dtype), cell, rows as u32, held.into()];
    let groups = e.tape().ceil_div(batch_num, rows as u32);
    let grid = e.flat_grid(groups);
    e.dispatch(&RECURRENCE, &consts, &args, &params, grid);
    y.finish(e);
    let states = match gates.dtype {
        DType::F32 => states,
        dtype => {
            let narrow = e.temp(dtype, states.layout.shape())?;
            pack(e, &states, &narrow);
            narrow
        }
    };
    for kind in 0..kinds {
        let own = part(&states, kind);
        e.forward(1 + kind, own);
    }
    Ok(())
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

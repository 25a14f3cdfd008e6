//! Lowering of `Resize`. For each resized axis, a table tells which source elements each result
//! reads (`resize/taps.rs`). The kernel looks the table up once for several planes; the axes
//! before the first resized one enumerate planes.

mod taps;

use tercet_ir::ops::Op;
use tercet_ir::{CompileError, Node, OpKind};

use super::rows::{lanes, product};
use super::words::eight;
use super::{Lowering, always, bits_code, portable};
use crate::emit::{LoweringCtx, SlotView};
use crate::scalar::PRELUDE;
use tercet_program::SymInt;
use tercet_program::{ArgAccess, TypedKernel};

crate::params! {
    /// Parameter block of `resize.wgsl`.
    pub struct ResizeParams {
        shape: U32x8,
        strides: U32x8,
        first: U32x8,
        places: U32,
        planes: U32,
        plane_stride: U32,
        offset: U32,
    }
}

static KERNEL: TypedKernel<ResizeParams> = TypedKernel::wgsl(
    "resize",
    &[PRELUDE, portable!("halves.wgsl"), portable!("resize.wgsl")],
    &[ArgAccess::Read, ArgAccess::Read, ArgAccess::Write],
    &["DTYPE", "RANK", "CHANGED", "AXES", "COUNT", "EACH"],
);

/// Lowering of `Resize`.
pub(crate) static RESIZES: Lowering = Lowering {
    name: "resize",
    ops: &[OpKind::Resize],
    kernels: &[&KERNEL.def, &taps::TAPS.def],
    supports: always,
    lower,
};

/// Maximum number of planes per thread, and the target number of threads per compute unit.
const MAX_PLANES: usize = 8;
const INVOCATIONS: usize = 1024;

/// An operand viewed as planes: slices along the first resized axis and all later axes.
struct ResizePlanes {
    /// Number of merged axes that enumerate planes, with their stride; the other axes are positions
    /// within a plane.
    axes: usize,
    stride: SymInt,
    /// Planes per thread.
    each: u32,
}

impl ResizePlanes {
    /// Merges the axes before the first resized one, if their strides allow it and planes of the
    /// result start at whole words. If merging is not possible, the whole operand is a single
    /// plane.
    fn new(
        e: &mut LoweringCtx<'_>,
        x: &SlotView,
        y: &SlotView,
        first: usize,
    ) -> Result<ResizePlanes, CompileError> {
        let one = ResizePlanes {
            axes: 0,
            stride: SymInt::ZERO,
            each: 1,
        };
        let shape = y.layout.shape();
        let lanes = lanes(y.dtype) as usize;
        let places = product(&shape[first..]);
        if first == 0 || 1 << places.twos() < lanes {
            return Ok(one);
        }
        let mut joined = vec![product(&shape[..first])];
        joined.extend_from_slice(&x.layout.shape()[first..]);
        let Some(layout) = x.layout.reshape(&joined) else {
            return Ok(one);
        };
        let view = SlotView {
            layout,
            ..x.clone()
        };
        let stride = e.strides(&view)[0];
        let words = e.bound(&places)? / lanes;
        let items = words.saturating_mul(e.bound(&joined[0])?);
        let units = e.caps.units();
        let each = (items / (units * INVOCATIONS)).clamp(1, MAX_PLANES);
        Ok(ResizePlanes {
            axes: first,
            stride,
            each: 1 << each.ilog2(),
        })
    }
}

fn lower(e: &mut LoweringCtx<'_>, node: &Node) -> Result<(), CompileError> {
    let Op::Resize(op) = &node.op else {
        unreachable!("invariant: a lowering receives only its own operators")
    };
    let x = e.view(node.inputs[0]);
    let axes = op.axes(&e.graph.ty(node.inputs[0]).shape);
    let y = e.result(0)?;
    let planes = match axes.first() {
        Some(first) => ResizePlanes::new(e, &x, &y, *first)?,
        None => ResizePlanes::new(e, &x, &y, 0)?,
    };
    let mut first = vec![SymInt::ZERO; x.layout.shape().len()];
    let mut changed = 0;
    let (table, places) = taps::table(e, op, &x, &axes)?;
    for (&axis, place) in axes.iter().zip(places) {
        first[axis] = place;
        changed |= 1 << (axis - planes.axes);
    }
    let (before, of_plane) = y.layout.shape().split_at(planes.axes);
    let params = ResizeParams {
        shape: eight(&e.sizes(of_plane)),
        strides: eight(&e.strides(&x)[planes.axes..]),
        first: eight(&first[planes.axes..]),
        places: e.numel(of_plane),
        planes: e.numel(before),
        plane_stride: planes.stride,
        offset: e.offset(&x),
    };
    let count = match axes.is_empty() {
        true => 1,
        false => taps::count(op.mode),
    };
    let consts = [
        bits_code(x.dtype),
        of_plane.len() as u32,
        changed,
        axes.len() as u32,
        count,
        planes.each,
    ];
    let words = e.words(y.dtype, of_plane);
    let tape = e.tape();
    let items = tape.ceil_div(params.planes, planes.each);
    let items = tape.mul(items, words);
    let grid = e.grid_of(items, 128);
    let args = [x.slot, table.slot, y.slot];
    e.dispatch(&KERNEL, &consts, &args, &params, grid);
    Ok(())
}

//! `Resize`: which elements a result is made of is worked out when planning, as a table for each axis
//! that changes; the kernel only looks up, once for several planes: all that lies before the first axis that
//! changes numbers planes.

use tercet_ir::DType;
use tercet_ir::ops::{Op, ResizeMode};
use tercet_ir::{CompileError, Dim, Node, OpKind, Tensor, TensorType};

use super::rows::{lanes, product};
use super::words::eight;
use super::{Family, always, code, portable};
use crate::emit::{Emit, View};
use crate::kernel::{Access, Kernel};
use crate::num::Num;
use crate::scalar::PRELUDE;

crate::params! {
    /// The block of `resize.wgsl`.
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

static KERNEL: Kernel<ResizeParams> = Kernel::wgsl(
    "resize",
    &[PRELUDE, portable!("halves.wgsl"), portable!("resize.wgsl")],
    &[Access::Read, Access::Read, Access::Write],
    &["DTYPE", "RANK", "CHANGED", "AXES", "COUNT", "EACH"],
);

/// `Resize`.
pub(crate) static RESIZES: Family = Family {
    name: "resize",
    ops: &[OpKind::Resize],
    kernels: &[&KERNEL.def],
    supports: always,
    lower,
};

/// Planes of an invocation at most, and how many invocations a unit of the device is to have.
const MOST_PLANES: usize = 8;
const INVOCATIONS: usize = 1024;

/// An operand as planes.
struct Planes {
    /// The axes that number planes, as one with this stride; the others are those of places.
    axes: usize,
    stride: Num,
    /// How many planes an invocation takes.
    each: u32,
}

impl Planes {
    /// The axes before the first one that changes, where they lie like one and planes of the result begin
    /// with whole words; else one plane.
    fn of(e: &mut Emit<'_>, x: &View, y: &View, first: usize) -> Result<Planes, CompileError> {
        let one = Planes {
            axes: 0,
            stride: Num::ZERO,
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
        let view = View {
            layout,
            ..x.clone()
        };
        let stride = e.strides(&view)[0];
        let words = e.bound(&places)? / lanes;
        let items = words.saturating_mul(e.bound(&joined[0])?);
        let units = e.caps.units();
        let each = (items / (units * INVOCATIONS)).clamp(1, MOST_PLANES);
        Ok(Planes {
            axes: first,
            stride,
            each: 1 << each.ilog2(),
        })
    }
}

fn lower(e: &mut Emit<'_>, node: &Node) -> Result<(), CompileError> {
    let Op::Resize(op) = &node.op else {
        unreachable!("invariant: a family lowers its own operators")
    };
    let x = e.view(node.inputs[0]);
    let axes = op.axes(&e.graph.ty(node.inputs[0]).shape);
    let y = e.result(0)?;
    let planes = match axes.first() {
        Some(first) => Planes::of(e, &x, &y, *first)?,
        None => Planes::of(e, &x, &y, 0)?,
    };
    let mut first = vec![Num::ZERO; x.layout.shape().len()];
    let mut words: Vec<u32> = Vec::new();
    let mut changed = 0;
    let size = |dim: &Dim| {
        let n = dim.known();
        n.unwrap_or_else(|| unreachable!("invariant: axes that change are known"))
    };
    for &axis in &axes {
        first[axis] = Num::Const(words.len() as i64);
        changed |= 1 << (axis - planes.axes);
        let (n, m) = (size(&x.layout.shape()[axis]), size(&op.sizes[axis]));
        let taps = op.taps(axis, n, m);
        let pairs = taps.indices.iter().zip(&taps.weights);
        words.extend(pairs.flat_map(|(i, w)| [*i, (*w as f32).to_bits()]));
    }
    // A table of no axes is never read.
    words.resize(words.len().max(1), 0);
    let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
    let ty = TensorType::new(DType::U32, &[words.len()]);
    let table = Tensor::from_bytes(ty, &bytes);
    let table = table.unwrap_or_else(|e| unreachable!("invariant: as many bytes as words: {e}"));
    let table = e.constant(table)?;
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
    let count = match op.mode {
        _ if axes.is_empty() => 1,
        ResizeMode::Nearest => 1,
        ResizeMode::Linear => 2,
        ResizeMode::Cubic => 4,
    };
    let consts = [
        code(x.dtype),
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

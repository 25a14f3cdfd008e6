//! `Resize`: which elements a result is made of is worked out when planning, as a table for each axis
//! that changes; the kernel only looks up.

use tercet_ir::DType;
use tercet_ir::ops::{Op, ResizeMode};
use tercet_ir::{CompileError, Dim, Node, OpKind, Tensor, TensorType};

use super::words::eight;
use super::{Family, always, code, portable};
use crate::emit::Emit;
use crate::kernel::{Access, Kernel};
use crate::num::Num;
use crate::scalar::PRELUDE;

crate::params! {
    /// The block of `resize.wgsl`.
    pub struct ResizeParams {
        shape: U32x8,
        strides: U32x8,
        first: U32x8,
        numel: U32,
        offset: U32,
    }
}

static KERNEL: Kernel<ResizeParams> = Kernel::wgsl(
    "resize",
    &[PRELUDE, portable!("resize.wgsl")],
    &[Access::Read, Access::Read, Access::Write],
    &["DTYPE", "RANK", "CHANGED", "AXES", "COUNT"],
);

/// `Resize`.
pub(crate) static RESIZES: Family = Family {
    name: "resize",
    ops: &[OpKind::Resize],
    kernels: &[&KERNEL.def],
    supports: always,
    lower,
};

fn lower(e: &mut Emit<'_>, node: &Node) -> Result<(), CompileError> {
    let Op::Resize(op) = &node.op else {
        unreachable!("invariant: a family lowers its own operators")
    };
    let x = e.view(node.inputs[0]);
    let axes = op.axes(&e.graph.ty(node.inputs[0]).shape);
    let mut first = vec![Num::ZERO; x.layout.shape().len()];
    let mut words: Vec<u32> = Vec::new();
    let mut changed = 0;
    let size = |dim: &Dim| {
        let n = dim.known();
        n.unwrap_or_else(|| unreachable!("invariant: axes that change are known"))
    };
    for &axis in &axes {
        first[axis] = Num::Const(words.len() as i64);
        changed |= 1 << axis;
        let (n, m) = (size(&x.layout.shape()[axis]), size(&op.sizes[axis]));
        let taps = op.taps(axis, n, m);
        let pairs = taps.indices.iter().zip(&taps.weights);
        words.extend(pairs.flat_map(|(i, w)| [*i, (*w as f32).to_bits()]));
    }
    // A table of no axes is never read.
    words.resize(words.len().max(1), 0);
    let y = e.result(0)?;
    let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
    let ty = TensorType::new(DType::U32, &[words.len()]);
    let table = Tensor::from_bytes(ty, &bytes);
    let table = table.unwrap_or_else(|e| unreachable!("invariant: as many bytes as words: {e}"));
    let table = e.constant(table)?;
    let params = ResizeParams {
        shape: eight(&e.sizes(y.layout.shape())),
        strides: eight(&e.strides(&x)),
        first: eight(&first),
        numel: e.numel(y.layout.shape()),
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
        first.len() as u32,
        changed,
        axes.len() as u32,
        count,
    ];
    let words = e.words(y.dtype, y.layout.shape());
    let grid = e.grid_of(words, 128);
    let args = [x.slot, table.slot, y.slot];
    e.dispatch(&KERNEL, &consts, &args, &params, grid);
    Ok(())
}

//! `Gather`: slices by index, of any dtype and strides.

use tercet_ir::ops::Op;
use tercet_ir::{CompileError, Node, OpKind};

use super::indexed::NAMED;
use super::words::{WORD_OF_BITS, are_whole, eight, in_units, lanes, product};
use super::{Family, always, portable};
use crate::emit::{Emit, View};
use crate::kernel::{Access, Kernel};
use crate::num::Num;
use crate::program::CheckKind;
use crate::scalar::PRELUDE;

crate::params! {
    /// The block of `gather.wgsl`.
    pub struct GatherParams {
        shape: U32x8,
        strides: U32x8,
        numel: U32,
        offset: U32,
        axis: U32,
        len: U32,
    }
}

static KERNEL: Kernel<GatherParams> = Kernel::wgsl(
    "gather",
    &[PRELUDE, WORD_OF_BITS, NAMED, portable!("gather.wgsl")],
    &[Access::Read, Access::Read, Access::Write],
    &["ELEM_BYTES", "RANK"],
);

/// `Gather`.
pub(crate) static GATHERS: Family = Family {
    name: "gather",
    ops: &[OpKind::Gather],
    kernels: &[&KERNEL.def],
    supports: always,
    lower,
};

/// How the elements of the operand are walked: sizes of the result with the indices as one axis,
/// strides of the operand, in units of `bytes`.
struct GatherWalk {
    bytes: u32,
    axis: usize,
    sizes: Vec<Num>,
    strides: Vec<Num>,
    offset: Num,
}

fn lower(e: &mut Emit<'_>, node: &Node) -> Result<(), CompileError> {
    let Op::Gather(op) = &node.op else {
        unreachable!("invariant: a family lowers its own operators")
    };
    let (x, idx) = (e.view(node.inputs[0]), e.view(node.inputs[1]));
    let axis_size = x.layout.shape()[op.axis].clone();
    e.check_data(&idx, CheckKind::Index, &axis_size)?;
    let idx = e.dense(&idx)?;
    let y = e.result(0)?;
    let named = e.numel(idx.layout.shape());
    let walk = walk(e, &x, op.axis, named);
    let numel = product(e, &walk.sizes);
    let params = GatherParams {
        shape: eight(&walk.sizes),
        strides: eight(&walk.strides),
        numel,
        offset: walk.offset,
        axis: Num::Const(walk.axis as i64),
        len: e.num(&axis_size),
    };
    let words = e.tape().ceil_div(numel, 4 / walk.bytes);
    let grid = e.grid_of(words, 256);
    let consts = [walk.bytes, walk.sizes.len() as u32];
    e.dispatch(&KERNEL, &consts, &[x.slot, idx.slot, y.slot], &params, grid);
    Ok(())
}

/// A dense operand has three axes: outer, that of the indices, and inner, which is taken as words
/// where it is whole ones.
fn walk(e: &mut Emit<'_>, x: &View, axis: usize, named: Num) -> GatherWalk {
    let shape = x.layout.shape();
    let mut offset = e.offset(x);
    let mut bytes = x.dtype.size_bytes() as u32;
    if !x.layout.is_contiguous() {
        let mut sizes = e.sizes(shape).to_vec();
        sizes[axis] = named;
        return GatherWalk {
            bytes,
            axis,
            sizes,
            strides: e.strides(x).to_vec(),
            offset,
        };
    }
    let outer = e.numel(&shape[..axis]);
    let len = e.num(&shape[axis]);
    let mut inner = e.numel(&shape[axis + 1..]);
    let per = lanes(x.dtype);
    if per > 1 && are_whole(per, &[inner, offset]) {
        (inner, offset) = (in_units(per, inner), in_units(per, offset));
        bytes = 4;
    }
    GatherWalk {
        bytes,
        axis: 1,
        sizes: vec![outer, named, inner],
        strides: vec![product(e, &[len, inner]), inner, Num::ONE],
        offset,
    }
}

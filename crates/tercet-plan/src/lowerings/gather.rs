//! Lowering of `Gather`, which selects slices of its data operand by index, for any dtype and
//! strides.

use tercet_ir::ops::Op;
use tercet_ir::{CompileError, Dim, Node, OpKind};

use super::indexed::NAMED;
use super::words::{WORD_OF_BITS, are_whole, eight, in_units, lanes, product};
use super::{Lowering, always, code, copy, portable};
use crate::emit::{LoweringCtx, SlotView};
use crate::narrow::is_overflow_check;
use crate::scalar::PRELUDE;
use tercet_program::CheckKind;
use tercet_program::SymInt;
use tercet_program::{ArgAccess, TypedKernel};

crate::params! {
    /// Parameter block of `gather.wgsl`.
    pub struct GatherIndexParams {
        shape: U32x8,
        strides: U32x8,
        numel: U32,
        offset: U32,
        axis: U32,
        len: U32,
    }
}

static KERNEL: TypedKernel<GatherIndexParams> = TypedKernel::wgsl(
    "gather",
    &[PRELUDE, WORD_OF_BITS, NAMED, portable!("gather.wgsl")],
    &[ArgAccess::Read, ArgAccess::Read, ArgAccess::Write],
    &["ELEM_BYTES", "RANK"],
);

crate::params! {
    /// Parameter block of `gather_joined.wgsl`.
    pub struct JoinedGatherParams {
        numel: U32,
        count: U32,
        inner: U32,
        len: U32,
        more_len: U32,
        offset: U32,
        more_offset: U32,
    }
}

static JOINED: TypedKernel<JoinedGatherParams> = TypedKernel::wgsl(
    "gather_joined",
    &[PRELUDE, NAMED, portable!("gather_joined.wgsl")],
    &[
        ArgAccess::Read,
        ArgAccess::Read,
        ArgAccess::Read,
        ArgAccess::Write,
    ],
    &["IN", "WIDENS"],
);

/// Lowering of `Gather`.
pub(crate) static GATHERS: Lowering = Lowering {
    name: "gather",
    ops: &[OpKind::Gather],
    kernels: &[&KERNEL.def, &JOINED.def],
    supports: always,
    lower,
};

/// Loop bounds of a gather kernel: the result sizes, with all axes of the indices merged into one,
/// and the strides of the data operand, in units of `bytes` bytes.
struct GatherWalk {
    bytes: u32,
    axis: usize,
    sizes: Vec<SymInt>,
    strides: Vec<SymInt>,
    offset: SymInt,
}

fn lower(e: &mut LoweringCtx<'_>, node: &Node) -> Result<(), CompileError> {
    let Op::Gather(op) = &node.op else {
        unreachable!("invariant: a lowering receives only its own operators")
    };
    let (x, idx) = (e.view(node.inputs[0]), e.view(node.inputs[1]));
    let axis_size = x.layout.shape()[op.axis].clone();
    match is_overflow_check(e.graph, node) {
        true => e.check_data(&idx, CheckKind::Overflow, &Dim::Known(0))?,
        false => e.check_data(&idx, CheckKind::Index, &axis_size)?,
    }
    let idx = e.dense(&idx)?;
    let y = e.result(0)?;
    let named = e.numel(idx.layout.shape());
    let walk = walk(e, &x, op.axis, named);
    let numel = product(e, &walk.sizes);
    let params = GatherIndexParams {
        shape: eight(&walk.sizes),
        strides: eight(&walk.strides),
        numel,
        offset: walk.offset,
        axis: SymInt::Const(walk.axis as i64),
        len: e.num(&axis_size),
    };
    let words = e.tape().ceil_div(numel, 4 / walk.bytes);
    let grid = e.grid_of(words, 256);
    let consts = [walk.bytes, walk.sizes.len() as u32];
    e.dispatch(&KERNEL, &consts, &[x.slot, idx.slot, y.slot], &params, grid);
    Ok(())
}

/// Lowers a gather of rows of two operands as the current node. `per` is the number of elements per word. With
/// `widens`, the elements are floats of 16 bits and the result is F32.
pub(crate) fn lower_joined(
    e: &mut LoweringCtx<'_>,
    node: &Node,
    [x, more]: &[SlotView; 2],
    per: u32,
    widens: bool,
) -> Result<(), CompileError> {
    let Op::Gather(op) = &node.op else {
        unreachable!("invariant: the group has a gather")
    };
    let idx = e.view(node.inputs[1]);
    let axis_size = e.graph.ty(node.inputs[0]).shape[op.axis].clone();
    e.check_data(&idx, CheckKind::Index, &axis_size)?;
    let idx = e.dense(&idx)?;
    let (x, more) = (in_words(e, x, per)?, in_words(e, more, per)?);
    let y = e.result(0)?;
    let shape = x.layout.shape();
    let [outer, inner] = [&shape[..op.axis], &shape[op.axis + 1..]].map(|sizes| e.numel(sizes));
    let inner = words_of(per, inner);
    let named = e.numel(idx.layout.shape());
    let numel = product(e, &[outer, named, inner]);
    let params = JoinedGatherParams {
        numel,
        count: named,
        inner,
        len: e.num(&shape[op.axis]),
        more_len: e.num(&more.layout.shape()[op.axis]),
        offset: words_of(per, e.offset(&x)),
        more_offset: words_of(per, e.offset(&more)),
    };
    let grid = e.grid_of(numel, 256);
    let consts = [code(x.dtype), u32::from(widens)];
    let args = [x.slot, more.slot, idx.slot, y.slot];
    e.dispatch(&JOINED, &consts, &args, &params, grid);
    Ok(())
}

/// Number of words of `count` elements, `per` in each.
fn words_of(per: u32, count: SymInt) -> SymInt {
    match per {
        1 => count,
        _ => in_units(per, count),
    }
}

/// The operand, dense and from a whole word of `per` elements on; a copy if it is not.
fn in_words(e: &mut LoweringCtx<'_>, x: &SlotView, per: u32) -> Result<SlotView, CompileError> {
    let dense = e.dense(x)?;
    let offset = e.offset(&dense);
    if per == 1 || are_whole(per, &[offset]) {
        return Ok(dense);
    }
    let to = e.temp(dense.dtype, dense.layout.shape())?;
    copy::emit(e, &dense, &to)?;
    Ok(to)
}

/// The iteration space. For a dense data operand, there are three axes: all axes before the indexed
/// one merged, the indexed one, and all later ones merged. The last axis counts 32-bit words if it
/// consists of whole words.
fn walk(e: &mut LoweringCtx<'_>, x: &SlotView, axis: usize, named: SymInt) -> GatherWalk {
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
        strides: vec![product(e, &[len, inner]), inner, SymInt::ONE],
        offset,
    }
}

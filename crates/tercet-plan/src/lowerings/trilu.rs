//! Lowering of `Trilu`: triangular parts of matrices, for any dtype and strides.

use tercet_ir::{CompileError, Node, Op, OpKind};

use super::words::{WORD_OF_BITS, eight};
use super::{Lowering, always, portable};
use crate::emit::LoweringCtx;
use crate::scalar::PRELUDE;
use tercet_program::SymInt;
use tercet_program::{ArgAccess, TypedKernel};

crate::params! {
    /// Parameter block of `trilu.wgsl`.
    pub struct TriluParams {
        shape: U32x8,
        strides: U32x8,
        numel: U32,
        offset: U32,
        rows: U32,
        columns: U32,
        k: I32,
    }
}

static KERNEL: TypedKernel<TriluParams> = TypedKernel::wgsl(
    "trilu",
    &[PRELUDE, WORD_OF_BITS, portable!("trilu.wgsl")],
    &[ArgAccess::Read, ArgAccess::Write],
    &["ELEM_BYTES", "RANK", "UPPER"],
);

/// Lowering of `Trilu`.
pub(crate) static TRILUS: Lowering = Lowering {
    name: "trilu",
    ops: &[OpKind::Trilu],
    kernels: &[&KERNEL.def],
    supports: always,
    lower,
};

fn lower(e: &mut LoweringCtx<'_>, node: &Node) -> Result<(), CompileError> {
    let Op::Trilu(op) = &node.op else {
        unreachable!("invariant: a lowering receives only its own operators")
    };
    let x = e.view(node.inputs[0]);
    let y = e.result(0)?;
    let shape = e.sizes(x.layout.shape());
    let [.., rows, columns] = shape[..] else {
        unreachable!("invariant: the operand has two axes")
    };
    // A diagonal outside the I32 range is outside of every matrix, so clamping is exact.
    let k = op.k.clamp(i32::MIN.into(), i32::MAX.into());
    let params = TriluParams {
        shape: eight(&shape),
        strides: eight(&e.strides(&x)),
        numel: e.numel(x.layout.shape()),
        offset: e.offset(&x),
        rows,
        columns,
        k: SymInt::Const(k),
    };
    let words = e.words(y.dtype, y.layout.shape());
    let grid = e.grid_of(words, 256);
    let consts = [
        x.dtype.size_bytes() as u32,
        shape.len() as u32,
        op.upper.into(),
    ];
    e.dispatch(&KERNEL, &consts, &[x.slot, y.slot], &params, grid);
    Ok(())
}

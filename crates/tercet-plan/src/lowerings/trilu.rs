//! `Trilu`: triangles of matrices of any dtype and strides.

use tercet_ir::{CompileError, Node, Op, OpKind};

use super::words::{WORD_OF_BITS, eight};
use super::{Family, always, portable};
use crate::emit::Emit;
use crate::kernel::{Access, Kernel};
use crate::num::Num;
use crate::scalar::PRELUDE;

crate::params! {
    /// The block of `trilu.wgsl`.
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

static KERNEL: Kernel<TriluParams> = Kernel::wgsl(
    "trilu",
    &[PRELUDE, WORD_OF_BITS, portable!("trilu.wgsl")],
    &[Access::Read, Access::Write],
    &["ELEM_BYTES", "RANK", "UPPER"],
);

/// `Trilu`.
pub(crate) static TRILUS: Family = Family {
    name: "trilu",
    ops: &[OpKind::Trilu],
    kernels: &[&KERNEL.def],
    supports: always,
    lower,
};

fn lower(e: &mut Emit<'_>, node: &Node) -> Result<(), CompileError> {
    let Op::Trilu(op) = &node.op else {
        unreachable!("invariant: a family lowers its own operators")
    };
    let x = e.view(node.inputs[0]);
    let y = e.result(0)?;
    let shape = e.sizes(x.layout.shape());
    let [.., rows, columns] = shape[..] else {
        unreachable!("invariant: the operand has two axes")
    };
    // A diagonal beyond I32 is beyond every matrix on its side.
    let k = op.k.clamp(i32::MIN.into(), i32::MAX.into());
    let params = TriluParams {
        shape: eight(&shape),
        strides: eight(&e.strides(&x)),
        numel: e.numel(x.layout.shape()),
        offset: e.offset(&x),
        rows,
        columns,
        k: Num::Const(k),
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

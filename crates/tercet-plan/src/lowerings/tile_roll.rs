//! Lowering of `Tile` and `Roll`: elements at modular indices, for any dtype and strides.

use tercet_ir::{CompileError, Node, Op, OpKind};

use super::words::{WORD_OF_BITS, eight};
use super::{Lowering, always, portable};
use crate::emit::{LoweringCtx, SlotView};
use crate::scalar::PRELUDE;
use tercet_program::SymInt;
use tercet_program::{ArgAccess, TypedKernel};

crate::params! {
    /// Parameter block of `periodic.wgsl`.
    pub struct PeriodicParams {
        shape: U32x8,
        sizes: U32x8,
        starts: U32x8,
        strides: U32x8,
        numel: U32,
        offset: U32,
    }
}

static KERNEL: TypedKernel<PeriodicParams> = TypedKernel::wgsl(
    "periodic",
    &[PRELUDE, WORD_OF_BITS, portable!("periodic.wgsl")],
    &[ArgAccess::Read, ArgAccess::Write],
    &["ELEM_BYTES", "RANK"],
);

/// Lowering of `Tile` and `Roll`.
pub(crate) static PERIODICS: Lowering = Lowering {
    name: "periodic",
    ops: &[OpKind::Tile, OpKind::Roll],
    kernels: &[&KERNEL.def],
    supports: always,
    lower,
};

fn lower(e: &mut LoweringCtx<'_>, node: &Node) -> Result<(), CompileError> {
    let x = e.view(node.inputs[0]);
    let starts = match &node.op {
        Op::Roll(op) => starts(e, &x, &op.shifts),
        Op::Tile(_) => vec![SymInt::ZERO; x.layout.shape().len()],
        _ => unreachable!("invariant: a lowering receives only its own operators"),
    };
    let y = e.result(0)?;
    let params = PeriodicParams {
        shape: eight(&e.sizes(y.layout.shape())),
        sizes: eight(&e.sizes(x.layout.shape())),
        starts: eight(&starts),
        strides: eight(&e.strides(&x)),
        numel: e.numel(y.layout.shape()),
        offset: e.offset(&x),
    };
    let words = e.words(y.dtype, y.layout.shape());
    let grid = e.grid_of(words, 256);
    let consts = [x.dtype.size_bytes() as u32, starts.len() as u32];
    e.dispatch(&KERNEL, &consts, &[x.slot, y.slot], &params, grid);
    Ok(())
}

/// For each axis of size n, the operand index of the first result element, `-shift mod n`.
fn starts(e: &mut LoweringCtx<'_>, x: &SlotView, shifts: &[i64]) -> Vec<SymInt> {
    let sizes = e.sizes(x.layout.shape());
    let start = |(n, &shift): (&SymInt, &i64)| match *n {
        SymInt::Const(0) => SymInt::ZERO,
        SymInt::Const(n) => SymInt::Const((n - shift.rem_euclid(n)) % n),
        // Shifts of an axis with symbolic size fit into I32, so nothing overflows.
        n @ SymInt::ExprNode(_) => {
            let tape = e.tape();
            let whole = tape.div(SymInt::Const(-shift), n);
            let whole = tape.mul(whole, n);
            tape.sub(SymInt::Const(-shift), whole)
        }
    };
    sizes.iter().zip(shifts).map(start).collect()
}

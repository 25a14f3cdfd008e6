//! `Tile` and `Roll`: elements at places counted in a circle, of any dtype and strides.

use tercet_ir::{CompileError, Node, Op, OpKind};

use super::words::{WORD_OF_BITS, eight};
use super::{Family, always, portable};
use crate::emit::{Emit, View};
use crate::kernel::{Access, Kernel};
use crate::num::Num;
use crate::scalar::PRELUDE;

crate::params! {
    /// The block of `periodic.wgsl`.
    pub struct PeriodicParams {
        shape: U32x8,
        sizes: U32x8,
        starts: U32x8,
        strides: U32x8,
        numel: U32,
        offset: U32,
    }
}

static KERNEL: Kernel<PeriodicParams> = Kernel::wgsl(
    "periodic",
    &[PRELUDE, WORD_OF_BITS, portable!("periodic.wgsl")],
    &[Access::Read, Access::Write],
    &["ELEM_BYTES", "RANK"],
);

/// `Tile` and `Roll`.
pub(crate) static PERIODICS: Family = Family {
    name: "periodic",
    ops: &[OpKind::Tile, OpKind::Roll],
    kernels: &[&KERNEL.def],
    supports: always,
    lower,
};

fn lower(e: &mut Emit<'_>, node: &Node) -> Result<(), CompileError> {
    let x = e.view(node.inputs[0]);
    let starts = match &node.op {
        Op::Roll(op) => starts(e, &x, &op.shifts),
        Op::Tile(_) => vec![Num::ZERO; x.layout.shape().len()],
        _ => unreachable!("invariant: a family lowers its own operators"),
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

/// The element that comes first on each axis: `-shift mod n`.
fn starts(e: &mut Emit<'_>, x: &View, shifts: &[i64]) -> Vec<Num> {
    let sizes = e.sizes(x.layout.shape());
    let start = |(n, &shift): (&Num, &i64)| match *n {
        Num::Const(0) => Num::ZERO,
        Num::Const(n) => Num::Const((n - shift.rem_euclid(n)) % n),
        // Shifts of an axis whose size a run decides are within I32: nothing overflows.
        n @ Num::Expr(_) => {
            let tape = e.tape();
            let whole = tape.div(Num::Const(-shift), n);
            let whole = tape.mul(whole, n);
            tape.sub(Num::Const(-shift), whole)
        }
    };
    sizes.iter().zip(shifts).map(start).collect()
}

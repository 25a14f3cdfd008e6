//! `Pool`: a function of the elements of each window, of any strides.

use tercet_ir::ops::{Op, PoolFn};
use tercet_ir::{CompileError, Node, OpKind};

use super::conv::windows::{WindowParams, Windows};
use super::{Family, always, code, portable};
use crate::emit::Emit;
use crate::kernel::{Access, Kernel};
use crate::num::Num;
use crate::scalar::PRELUDE;

static KERNEL: Kernel<WindowParams> = Kernel::wgsl(
    "pool",
    &[
        PRELUDE,
        portable!("conv/windows.wgsl"),
        portable!("conv/pool.wgsl"),
    ],
    &[Access::Read, Access::Write],
    &["DTYPE", "OP", "COUNT_PAD", "AXES", "KD", "KH", "KW"],
);

/// `Pool`.
pub(crate) static POOLS: Family = Family {
    name: "pool",
    ops: &[OpKind::Pool],
    kernels: &[&KERNEL.def],
    supports: always,
    lower,
};

fn lower(e: &mut Emit<'_>, node: &Node) -> Result<(), CompileError> {
    let Op::Pool(pool) = &node.op else {
        unreachable!("invariant: a family lowers its own operators")
    };
    let x = e.view(node.inputs[0]);
    let y = e.result(0)?;
    let out = y.layout.shape()[2..].to_vec();
    let windows = Windows::of(&pool.window(), &pool.kernel, out);
    let params = windows.params(e, &x);
    let params = WindowParams {
        groups: params.channels,
        channels: Num::ONE,
        ..params
    };
    let op = match pool.f {
        PoolFn::Sum => 0,
        PoolFn::Mean => 1,
        PoolFn::Max => 2,
        PoolFn::Min => 3,
    };
    let mut consts = vec![code(x.dtype), op, u32::from(pool.count_include_pad)];
    consts.extend(windows.consts());
    let words = e.words(y.dtype, y.layout.shape());
    let grid = e.grid_of(words, 128);
    e.dispatch(&KERNEL, &consts, &[x.slot, y.slot], &params, grid);
    Ok(())
}

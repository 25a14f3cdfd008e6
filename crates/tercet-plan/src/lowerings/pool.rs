//! Lowering of `Pool`: a reduction over the elements of each window, for any strides.

use tercet_ir::ops::{Op, PoolFn};
use tercet_ir::{CompileError, Node, OpKind};

use super::conv::windows::{GpuConvWindows, WindowParams};
use super::{Lowering, always, code, portable};
use crate::emit::LoweringCtx;
use crate::scalar::PRELUDE;
use tercet_program::SymInt;
use tercet_program::{ArgAccess, TypedKernel};

static KERNEL: TypedKernel<WindowParams> = TypedKernel::wgsl(
    "pool",
    &[
        PRELUDE,
        portable!("conv/windows.wgsl"),
        portable!("conv/pool.wgsl"),
    ],
    &[ArgAccess::Read, ArgAccess::Write],
    &["DTYPE", "OP", "COUNT_PAD", "AXES", "KD", "KH", "KW"],
);

/// Lowering of `Pool`.
pub(crate) static POOLS: Lowering = Lowering {
    name: "pool",
    ops: &[OpKind::Pool],
    kernels: &[&KERNEL.def],
    supports: always,
    lower,
};

fn lower(e: &mut LoweringCtx<'_>, node: &Node) -> Result<(), CompileError> {
    let Op::Pool(pool) = &node.op else {
        unreachable!("invariant: a lowering receives only its own operators")
    };
    let x = e.view(node.inputs[0]);
    let y = e.result(0)?;
    let out = y.layout.shape()[2..].to_vec();
    let windows = GpuConvWindows::new(&pool.window(), &pool.kernel, out);
    let params = windows.params(e, &x);
    let params = WindowParams {
        groups: params.channels,
        channels: SymInt::ONE,
        ..params
    };
    let op = match pool.f {
        PoolFn::Sum => 0,
        PoolFn::Mean => 1,
        PoolFn::Max => 2,
        PoolFn::Min => 3,
        PoolFn::Prod => 4,
    };
    let mut consts = vec![code(x.dtype), op, u32::from(pool.count_include_pad)];
    consts.extend(windows.consts());
    let words = e.words(y.dtype, y.layout.shape());
    let grid = e.grid_of(words, 128);
    e.dispatch(&KERNEL, &consts, &[x.slot, y.slot], &params, grid);
    Ok(())
}

//! `GroupedMatMul`: rows times the matrices that indices name.
//!
//! Rows are put in the order of their matrices, so that neighbours share one. Where rows of 16-bit results
//! would share words, the results are made with 32 bits and packed.

use tercet_ir::{CompileError, DType, Node, OpKind};

use super::cumsum::{PACK, PackParams};
use super::scatter::{most, nd_keys};
use super::top_k::in_order;
use super::words::lanes;
use super::{Family, always, code, portable};
use crate::emit::Emit;
use crate::kernel::{Access, Kernel};
use crate::scalar::PRELUDE;

crate::params! {
    /// The block of `grouped_matmul.wgsl`.
    pub struct GroupedParams {
        rows: U32,
        n: U32,
        k: U32,
        x_offset: U32,
        x_row: U32,
        x_col: U32,
        w_offset: U32,
        w_matrix: U32,
        w_row: U32,
        w_col: U32,
    }
}

static KERNEL: Kernel<GroupedParams> = Kernel::wgsl(
    "grouped_matmul",
    &[PRELUDE, portable!("grouped_matmul.wgsl")],
    &[
        Access::Read,
        Access::Read,
        Access::Read,
        Access::Read,
        Access::Write,
    ],
    &["DTYPE", "OUT"],
);

/// `GroupedMatMul`.
pub(crate) static GROUPED: Family = Family {
    name: "grouped_matmul",
    ops: &[OpKind::GroupedMatMul],
    kernels: &[&KERNEL.def],
    supports: always,
    lower,
};

/// Rows and columns of a workgroup: `TILE` of the shader.
const TILE: u32 = 32;

fn lower(e: &mut Emit<'_>, node: &Node) -> Result<(), CompileError> {
    let [x, w, expert] = [0, 1, 2].map(|i| e.view(node.inputs[i]));
    let experts = &w.layout.shape()[..1];
    let rows = expert.layout.shape();
    let keys = nd_keys(e, experts, &expert, rows)?;
    let (count, most) = (e.numel(rows), most(e, rows)?);
    let sorted = in_order(e, keys.slot, count, most)?;
    let y = e.result(0)?;
    let columns = &y.layout.shape()[1];
    let whole = columns
        .known()
        .is_some_and(|n| n as u32 % lanes(y.dtype) == 0);
    let to = match whole {
        true => y.clone(),
        false => e.temp(DType::F32, y.layout.shape())?,
    };
    let (x_strides, w_strides) = (e.strides(&x), e.strides(&w));
    let params = GroupedParams {
        rows: count,
        n: e.num(columns),
        k: e.num(&x.layout.shape()[1]),
        x_offset: e.offset(&x),
        x_row: x_strides[0],
        x_col: x_strides[1],
        w_offset: e.offset(&w),
        w_matrix: w_strides[0],
        w_row: w_strides[1],
        w_col: w_strides[2],
    };
    let tape = e.tape();
    let (rows, columns) = (tape.ceil_div(count, TILE), tape.ceil_div(params.n, TILE));
    let tiles = tape.mul(rows, columns);
    let grid = e.flat_grid(tiles);
    let consts = [code(x.dtype), code(to.dtype)];
    let args = [x.slot, w.slot, sorted.keys, sorted.indices, to.slot];
    e.dispatch(&KERNEL, &consts, &args, &params, grid);
    if whole {
        return Ok(());
    }
    let params = PackParams {
        numel: e.numel(y.layout.shape()),
    };
    let words = e.words(y.dtype, y.layout.shape());
    let grid = e.grid_of(words, 256);
    e.dispatch(&PACK, &[code(y.dtype)], &[to.slot, y.slot], &params, grid);
    Ok(())
}

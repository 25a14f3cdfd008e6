//! Lowering of `GroupedMatMul` and `DequantGroupedMatMul`: each row times the matrix selected by
//! its index (experts).
//!
//! If there are few rows, each is multiplied by its own matrix (`matmul/expert_gemv.rs`). If there
//! are many rows, they are first sorted by matrix index, so that adjacent rows use the same matrix.
//! Rows of 16 bits and quantized weights then use cooperative matrices (`grouped/coop.rs`). If
//! 16-bit result rows are not word-aligned, results are computed in F32 and then packed.
//!
//! The kernels repeat rows themselves: row `r` of the result reads row `r / repeats`.

mod coop;

use tercet_ir::{CompileError, DType, Graph, Node, Op, OpKind, Scheme, Support, Value};

use self::coop::GroupedCoop;
use super::cumsum::{CumSumPackParams, PACK};
use super::dequant::{BLOCK_CONSTS, BLOCKS, CODED, PackedWeights};
use super::matmul::expert_gemv::{self, ExpertRows, ExpertStack};
use super::scatter::{max_elements, nd_keys};
use super::top_k::in_order;
use super::words::lanes;
use super::{Lowering, always, code, missing, portable};
use crate::caps::DeviceCaps;
use crate::emit::{LoweringCtx, SlotView};
use crate::scalar::PRELUDE;
use tercet_program::SlotId;
use tercet_program::SymInt;
use tercet_program::{ArgAccess, TypedKernel, kernel_names as names};

crate::params! {
    /// Parameter block of `grouped_matmul.wgsl`.
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
        repeats: U32,
    }
}

const TILES: &str = portable!("grouped_matmul.wgsl");
const PACKED: &str = portable!("grouped_packed.wgsl");
/// Arguments: x, w, sorted matrix indices (keys), original row positions, y.
const ARGS: &[ArgAccess] = &[
    ArgAccess::Read,
    ArgAccess::Read,
    ArgAccess::Read,
    ArgAccess::Read,
    ArgAccess::Write,
];
/// The arguments of the float kernel, plus the codebook of the quantized weights.
const CODED_ARGS: &[ArgAccess] = &[
    ArgAccess::Read,
    ArgAccess::Read,
    ArgAccess::Read,
    ArgAccess::Read,
    ArgAccess::Write,
    ArgAccess::Read,
];

static FLOATS: TypedKernel<GroupedParams> = TypedKernel::wgsl(
    "grouped_matmul",
    &[PRELUDE, TILES, portable!("grouped_floats.wgsl")],
    ARGS,
    &["DTYPE", "OUT"],
);

/// Declares a grouped matmul kernel for quantized weights; the WGSL fragments dequantize them.
macro_rules! of_blocks {
    ($kernel:ident $label:literal, $args:expr, [$($piece:expr),*]) => {
        static $kernel: TypedKernel<GroupedParams> = TypedKernel::wgsl(
            $label,
            &[PRELUDE, TILES, $($piece,)* PACKED],
            $args,
            names![&["DTYPE", "OUT"], &BLOCK_CONSTS],
        );
    };
}

of_blocks!(BLOCKED "grouped_matmul_packed", ARGS, [BLOCKS]);
of_blocks!(OF_CODES "grouped_matmul_coded", CODED_ARGS, [CODED, portable!("dequant/grid_6.wgsl")]);

/// Lowering of `GroupedMatMul`.
pub(crate) static GROUPED: Lowering = Lowering {
    name: "grouped_matmul",
    ops: &[OpKind::GroupedMatMul],
    kernels: &[&FLOATS.def],
    supports: always,
    lower,
};

/// Lowering of `DequantGroupedMatMul`.
pub(crate) static DEQUANT_GROUPED: Lowering = Lowering {
    name: "dequant_grouped_matmul",
    ops: &[OpKind::DequantGroupedMatMul],
    kernels: &[
        &BLOCKED.def,
        &OF_CODES.def,
        &coop::F16.def,
        &coop::BF16.def,
        &coop::GROUP_ROWS.def,
    ],
    supports: supports_packed,
    lower: lower_packed,
};

/// Rows and columns per workgroup; equals `TILE` of the shader.
const TILE: u32 = 32;

fn lower(e: &mut LoweringCtx<'_>, node: &Node) -> Result<(), CompileError> {
    let x = all_rows(e, node);
    floats(e, node, &x)
}

fn lower_packed(e: &mut LoweringCtx<'_>, node: &Node) -> Result<(), CompileError> {
    let x = all_rows(e, node);
    packed(e, node, &x)
}

/// Lowers a matmul of experts with the rows `[rows, 1, k]`, each of which is read `repeats` times.
pub(crate) fn lower_repeated(
    e: &mut LoweringCtx<'_>,
    node: &Node,
    rows: Value,
    repeats: usize,
) -> Result<(), CompileError> {
    let rows = e.view(rows);
    let [n, _, k] = rows.layout.shape() else {
        unreachable!("invariant: the repeated rows have an axis of size 1")
    };
    let layout = rows.layout.reshape(&[n.clone(), k.clone()]);
    let layout = layout.unwrap_or_else(|| unreachable!("invariant: axes of size 1 can be dropped"));
    let x = ExpertRows {
        view: SlotView { layout, ..rows },
        repeats,
        count: node.outputs[0].shape[0].clone(),
    };
    match node.op {
        Op::DequantGroupedMatMul(_) => packed(e, node, &x),
        _ => floats(e, node, &x),
    }
}

/// The rows of a matmul, each of which is read once.
fn all_rows(e: &LoweringCtx<'_>, node: &Node) -> ExpertRows {
    let view = e.view(node.inputs[0]);
    ExpertRows {
        repeats: 1,
        count: view.layout.shape()[0].clone(),
        view,
    }
}

fn floats(e: &mut LoweringCtx<'_>, node: &Node, x: &ExpertRows) -> Result<(), CompileError> {
    let w = e.view(node.inputs[1]);
    let strides = e.strides(&w);
    let weights = GroupedWeights {
        offset: e.offset(&w),
        strides: [strides[0], strides[1], strides[2]],
        view: w,
        blocks: None,
    };
    product(e, node, x, &weights)
}

fn scheme_of(node: &Node) -> Scheme {
    let Op::DequantGroupedMatMul(op) = &node.op else {
        unreachable!("invariant: the lowering receives only `DequantGroupedMatMul`");
    };
    op.scheme
}

fn supports_packed(_: &Graph, node: &Node, _: &DeviceCaps) -> Support {
    match scheme_of(node).storage() {
        DType::U8 => Support::Native,
        _ => missing("weights are not quantized; use `grouped_mat_mul`"),
    }
}

fn packed(e: &mut LoweringCtx<'_>, node: &Node, x: &ExpertRows) -> Result<(), CompileError> {
    let blocks = PackedWeights::new(e, node.inputs[1], scheme_of(node))?;
    let row = e.strides(&blocks.view)[0];
    let columns = e.num(&node.outputs[0].shape[1]);
    let weights = GroupedWeights {
        view: blocks.view.clone(),
        offset: e.offset(&blocks.view),
        // Strides from matrix to matrix and from column to column. The stride along k is unused,
        // because the block layout determines positions along k.
        strides: [e.tape().mul(columns, row), row, SymInt::ZERO],
        blocks: Some(blocks),
    };
    product(e, node, x, &weights)
}

/// The stack of expert matrices. Strides of floats: from matrix to matrix, along k, along n.
/// Strides of quantized weights: from matrix to matrix, along n, 0.
struct GroupedWeights {
    view: SlotView,
    offset: SymInt,
    strides: [SymInt; 3],
    blocks: Option<PackedWeights>,
}

impl GroupedWeights {
    fn dispatch(
        &self,
        e: &mut LoweringCtx<'_>,
        types: [u32; 2],
        args: &[SlotId],
        params: &GroupedParams,
        grid: [SymInt; 3],
    ) -> Result<(), CompileError> {
        let Some(blocks) = &self.blocks else {
            e.dispatch(&FLOATS, &types, args, params, grid);
            return Ok(());
        };
        let consts: Vec<u32> = types.into_iter().chain(blocks.consts()).collect();
        match blocks.grid(e)? {
            None => e.dispatch(&BLOCKED, &consts, args, params, grid),
            Some(table) => {
                let args: Vec<SlotId> = args.iter().copied().chain([table]).collect();
                e.dispatch(&OF_CODES, &consts, &args, params, grid);
            }
        }
        Ok(())
    }
}

fn product(
    e: &mut LoweringCtx<'_>,
    node: &Node,
    x: &ExpertRows,
    w: &GroupedWeights,
) -> Result<(), CompileError> {
    let expert = e.view(node.inputs[2]);
    let experts = e.graph.ty(node.inputs[1]).shape[..1].to_vec();
    let count = experts[0].known();
    let rows = expert.layout.shape();
    let keys = nd_keys(e, &experts, &expert, rows)?;
    let y = e.result(0)?;
    let columns = &y.layout.shape()[1];
    let whole = columns
        .known()
        .is_some_and(|n| (n as u32).is_multiple_of(lanes(y.dtype)));
    let to = match whole {
        true => y.clone(),
        false => e.temp(DType::F32, y.layout.shape())?,
    };
    let stack = ExpertStack {
        view: &w.view,
        blocks: w.blocks.as_ref(),
        step: w.strides[0],
        columns: columns.clone(),
    };
    let coop = GroupedCoop::new(e, x, w, count)?;
    let max_single = match &coop {
        Some(coop) => coop.max_single_rows(e),
        None => e.caps.device.rates.rows.keyed_rows,
    };
    let bounds: &[u32] = match expert_gemv::supports_keyed(e, x, &stack)? {
        true => &[max_single],
        false => &[],
    };
    e.switch_on_size(&rows[0], bounds, |e, arm| match arm < bounds.len() {
        true => expert_gemv::keyed(e, x, &stack, keys.slot, &to),
        false => match &coop {
            Some(coop) => many(e, coop, (node.inputs[2], keys.slot), &to),
            None => in_groups(e, x, w, keys.slot, &to),
        },
    })?;
    if whole {
        return Ok(());
    }
    let params = CumSumPackParams {
        numel: e.numel(y.layout.shape()),
    };
    let words = e.words(y.dtype, y.layout.shape());
    let grid = e.grid_of(words, 256);
    e.dispatch(&PACK, &[code(y.dtype)], &[to.slot, y.slot], &params, grid);
    Ok(())
}

/// Emits the matmul of many rows on cooperative matrices, or on F32 tiles if the type of the
/// matrices does not represent the weights accurately. `keys` are the matrix indices, of the value
/// `expert`.
fn many(
    e: &mut LoweringCtx<'_>,
    coop: &GroupedCoop<'_>,
    (expert, keys): (Value, SlotId),
    to: &SlotView,
) -> Result<(), CompileError> {
    // Matmuls with the same rows or indices share what is computed outside of the inner branches.
    let rows = coop.rows(e)?;
    let groups = coop.groups(e, expert, keys)?;
    let fits = coop.fits_dtype(e);
    e.switch_on(fits, &[0], |e, is_fit| match is_fit {
        0 => in_groups(e, coop.rows, coop.weights, keys, to),
        _ => {
            coop.dispatch(e, &rows, &groups, to);
            Ok(())
        }
    })
}

/// Sorts the rows by matrix index and emits the grouped matmul.
fn in_groups(
    e: &mut LoweringCtx<'_>,
    x: &ExpertRows,
    w: &GroupedWeights,
    keys: SlotId,
    to: &SlotView,
) -> Result<(), CompileError> {
    let rows = std::slice::from_ref(&x.count);
    let (count, most) = (e.numel(rows), max_elements(e, rows)?);
    let sorted = in_order(e, keys, count, most)?;
    let repeats = SymInt::Const(x.repeats as i64);
    let x = &x.view;
    let x_strides = e.strides(x);
    let params = GroupedParams {
        rows: count,
        n: e.num(&to.layout.shape()[1]),
        k: e.num(&x.layout.shape()[1]),
        x_offset: e.offset(x),
        x_row: x_strides[0],
        x_col: x_strides[1],
        w_offset: w.offset,
        w_matrix: w.strides[0],
        w_row: w.strides[1],
        w_col: w.strides[2],
        repeats,
    };
    let tape = e.tape();
    let (rows, columns) = (tape.ceil_div(count, TILE), tape.ceil_div(params.n, TILE));
    let tiles = tape.mul(rows, columns);
    let grid = e.flat_grid(tiles);
    let args = [x.slot, w.view.slot, sorted.keys, sorted.indices, to.slot];
    w.dispatch(e, [code(x.dtype), code(to.dtype)], &args, &params, grid)
}

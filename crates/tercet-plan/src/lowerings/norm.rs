//! Lowering of layer norm and RMS norm, with or without a residual sum.
//!
//! If rows consist of whole 32-bit words, a single kernel computes the norm. If a word of a narrow
//! dtype holds elements of several rows, three kernels compute the residual sum, the row statistics
//! and the output words.

mod residual;

use tercet_ir::{CompileError, DType, Dim, Node, Op, OpKind, Value};

use self::residual::ResidualSum;
use super::matmul::PrepackedRows;
use super::rows::{RowLayout, RowThreads, WORKGROUP, register_vectors};
use super::softmax::cache;
use super::{Lowering, always, code, portable};
use crate::emit::{LoweringCtx, SlotView};
use crate::fusions::NormPrologue;
use tercet_program::SlotId;
use tercet_program::SymInt;
use tercet_program::{ArgAccess, TypedKernel};

crate::params! {
    /// Parameter block of `norm.wgsl` and `norm_apply.wgsl`.
    pub struct NormParams {
        rows: U32,
        len: U32,
        x_offset: U32,
        x_row: U32,
        x_stride: U32,
        eps: F32,
        x_count: U32,
        x_outer: U32,
    }
    /// Parameter block of `norm_plain_vectors.wgsl`.
    pub struct NormVectorsParams {
        ..norm: NormParams,
        y_panels: U32,
    }
    /// Parameter block of `norm_lay.wgsl`.
    pub struct NormPrepackParams {
        ..norm: NormParams,
        slices: U32,
        units_at: U32,
        sums_at: U32,
    }
    /// Parameter block of `norm_residual.wgsl` and `norm_sum.wgsl`.
    pub struct NormResidualParams {
        rows: U32,
        len: U32,
        x_offset: U32,
        x_row: U32,
        x_stride: U32,
        r_offset: U32,
        r_row: U32,
        r_stride: U32,
        eps: F32,
    }
    /// Parameter block of `norm_residual_vectors.wgsl`.
    pub struct NormResidualVectorsParams {
        ..norm: NormResidualParams,
        y_panels: U32,
    }
}

/// Computes a norm, or only the statistics of each row.
static NORM: TypedKernel<NormParams> = TypedKernel::wgsl(
    "norm",
    &[
        portable!("prelude.wgsl"),
        portable!("cluster.wgsl"),
        portable!("rows.wgsl"),
        portable!("row_floats.wgsl"),
        portable!("norm_scale.wgsl"),
        portable!("norm_value.wgsl"),
        portable!("norm.wgsl"),
        portable!("norm_about.wgsl"),
        portable!("norm_row.wgsl"),
    ],
    &[
        ArgAccess::Read,
        ArgAccess::Read,
        ArgAccess::Read,
        ArgAccess::Write,
    ],
    &[
        "DTYPE", "PER", "THREADS", "ACROSS", "CACHE", "RMS", "BETA", "STATS",
    ],
);

/// Computes a residual sum and its norm.
static RESIDUAL: TypedKernel<NormResidualParams> = TypedKernel::wgsl(
    "norm_residual",
    &[
        portable!("prelude.wgsl"),
        portable!("cluster.wgsl"),
        portable!("rows.wgsl"),
        portable!("row_floats.wgsl"),
        portable!("norm_scale.wgsl"),
        portable!("norm_value.wgsl"),
        portable!("norm_residual.wgsl"),
        portable!("norm_about.wgsl"),
        portable!("norm_row.wgsl"),
    ],
    &[
        ArgAccess::Read,
        ArgAccess::Read,
        ArgAccess::Read,
        ArgAccess::Read,
        ArgAccess::Read,
        ArgAccess::Write,
        ArgAccess::Write,
    ],
    &[
        "DTYPE", "PER", "THREADS", "ACROSS", "CACHE", "RMS", "BETA", "BIAS",
    ],
);

/// Computes a norm of rows that consist of whole vectors.
static VECTORS: TypedKernel<NormVectorsParams> = TypedKernel::wgsl(
    "norm_vectors",
    &[
        portable!("prelude.wgsl"),
        portable!("cluster.wgsl"),
        portable!("rows.wgsl"),
        portable!("row_floats.wgsl"),
        portable!("halves.wgsl"),
        portable!("row_vectors.wgsl"),
        portable!("norm_scale.wgsl"),
        portable!("norm_value.wgsl"),
        portable!("norm_about.wgsl"),
        portable!("norm_held.wgsl"),
        portable!("norm_plain_vectors.wgsl"),
        portable!("norm_load.wgsl"),
        portable!("norm_alone.wgsl"),
        portable!("norm_vectors.wgsl"),
    ],
    &[
        ArgAccess::Read,
        ArgAccess::Read,
        ArgAccess::Read,
        ArgAccess::Write,
    ],
    &["DTYPE", "VECTORS", "THREADS", "ACROSS", "RMS", "BETA"],
);

/// Computes a norm of F32 rows that consist of whole vectors, and also stores the result rounded to
/// 16 bits.
static VECTORS_ROUNDED: TypedKernel<NormVectorsParams> = TypedKernel::wgsl(
    "norm_vectors_rounded",
    &[
        portable!("prelude.wgsl"),
        portable!("cluster.wgsl"),
        portable!("rows.wgsl"),
        portable!("row_floats.wgsl"),
        portable!("halves.wgsl"),
        portable!("row_vectors.wgsl"),
        portable!("norm_scale.wgsl"),
        portable!("norm_value.wgsl"),
        portable!("norm_about.wgsl"),
        portable!("norm_held.wgsl"),
        portable!("norm_plain_vectors.wgsl"),
        portable!("norm_load.wgsl"),
        portable!("norm_rounded.wgsl"),
        portable!("norm_vectors.wgsl"),
    ],
    &[
        ArgAccess::Read,
        ArgAccess::Read,
        ArgAccess::Read,
        ArgAccess::Write,
        ArgAccess::Write,
    ],
    &[
        "DTYPE", "VECTORS", "THREADS", "ACROSS", "RMS", "BETA", "ROUNDED",
    ],
);

/// Computes an RMS norm of F32 rows that consist of whole vectors, and stores the rows prepacked for the small-M GEMM.
static PREPACKED: TypedKernel<NormPrepackParams> = TypedKernel::wgsl(
    "norm_lay",
    &[
        portable!("prelude.wgsl"),
        portable!("cluster.wgsl"),
        portable!("rows.wgsl"),
        portable!("row_floats.wgsl"),
        portable!("halves.wgsl"),
        portable!("row_vectors.wgsl"),
        portable!("norm_scale.wgsl"),
        portable!("norm_value.wgsl"),
        portable!("norm_about.wgsl"),
        portable!("norm_held.wgsl"),
        portable!("norm_load.wgsl"),
        portable!("matmul/lay_slice.wgsl"),
        portable!("norm_lay.wgsl"),
    ],
    &[
        ArgAccess::Read,
        ArgAccess::Read,
        ArgAccess::Write,
        ArgAccess::Write,
    ],
    &[
        "DTYPE", "VECTORS", "THREADS", "ACROSS", "RMS", "ORDER", "NUMBERS", "ROWS",
    ],
);

/// Computes a residual sum and its norm, for rows that consist of whole vectors.
static RESIDUAL_VECTORS: TypedKernel<NormResidualVectorsParams> = TypedKernel::wgsl(
    "norm_residual_vectors",
    &[
        portable!("prelude.wgsl"),
        portable!("cluster.wgsl"),
        portable!("rows.wgsl"),
        portable!("row_floats.wgsl"),
        portable!("halves.wgsl"),
        portable!("row_vectors.wgsl"),
        portable!("norm_scale.wgsl"),
        portable!("norm_value.wgsl"),
        portable!("norm_about.wgsl"),
        portable!("norm_held.wgsl"),
        portable!("norm_residual_vectors.wgsl"),
        portable!("norm_alone.wgsl"),
        portable!("norm_vectors.wgsl"),
    ],
    &[
        ArgAccess::Read,
        ArgAccess::Read,
        ArgAccess::Read,
        ArgAccess::Read,
        ArgAccess::Read,
        ArgAccess::Write,
        ArgAccess::Write,
    ],
    &[
        "DTYPE", "VECTORS", "THREADS", "ACROSS", "RMS", "BETA", "BIAS",
    ],
);

/// Computes a norm from precomputed row statistics.
static APPLY: TypedKernel<NormParams> = TypedKernel::wgsl(
    "norm_apply",
    &[
        portable!("prelude.wgsl"),
        portable!("norm_scale.wgsl"),
        portable!("norm_value.wgsl"),
        portable!("norm_apply.wgsl"),
    ],
    &[
        ArgAccess::Read,
        ArgAccess::Read,
        ArgAccess::Read,
        ArgAccess::Read,
        ArgAccess::Write,
    ],
    &["DTYPE", "RMS", "BETA"],
);

/// Computes a residual sum.
static SUM: TypedKernel<NormResidualParams> = TypedKernel::wgsl(
    "norm_sum",
    &[portable!("prelude.wgsl"), portable!("norm_sum.wgsl")],
    &[
        ArgAccess::Read,
        ArgAccess::Read,
        ArgAccess::Read,
        ArgAccess::Write,
    ],
    &["DTYPE", "BIAS"],
);

/// Lowering of layer norm and RMS norm.
pub(crate) static NORMS: Lowering = Lowering {
    name: "norm",
    ops: &[
        OpKind::LayerNorm,
        OpKind::RmsNorm,
        OpKind::ResidualLayerNorm,
        OpKind::ResidualRmsNorm,
    ],
    kernels: &[
        &NORM.def,
        &VECTORS.def,
        &VECTORS_ROUNDED.def,
        &PREPACKED.def,
        &RESIDUAL.def,
        &RESIDUAL_VECTORS.def,
        &APPLY.def,
        &SUM.def,
    ],
    supports: always,
    lower,
};

/// Operands and options of a norm, except for the rows to normalize.
struct NormOperands {
    rms: bool,
    eps: f32,
    gamma: SlotView,
    beta: Option<SlotView>,
}

/// The kernels that read the result of a norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NormReaders {
    /// The kernels of other graph nodes, which read the result itself.
    Nodes,
    /// Matmuls whose prologue is the norm; they read the result rounded to this dtype, if one is
    /// given.
    Products(Option<DType>),
}

impl NormOperands {
    /// Emits a norm of rows that consist of whole vectors; each thread holds a fixed number of
    /// vectors.
    fn by_vectors(
        &self,
        e: &mut LoweringCtx<'_>,
        x: &SlotView,
        rows: &RowLayout,
        y: &SlotView,
        (params, (vectors, share), readers): (&NormParams, (u32, RowThreads), NormReaders),
    ) -> Result<(), CompileError> {
        let (has_beta, beta) = optional(e, &self.beta)?;
        let (threads, rms) = (share.threads, u32::from(self.rms));
        let consts = [code(x.dtype), vectors, threads, 0, rms, has_beta];
        let args = [x.slot, self.gamma.slot, beta, y.slot];
        let grid = groups(e, rows, share);
        let params = NormVectorsParams {
            norm: params.clone(),
            y_panels: SymInt::ZERO,
        };
        let rounded = match readers {
            NormReaders::Products(Some(to)) if x.dtype == DType::F32 => e.round(y, to)?,
            NormReaders::Products(_) | NormReaders::Nodes => None,
        };
        if let Some(copy) = rounded {
            let consts: Vec<u32> = consts.into_iter().chain([code(copy.dtype)]).collect();
            let args: Vec<SlotId> = args.into_iter().chain([copy.slot]).collect();
            e.dispatch(&VECTORS_ROUNDED, &consts, &args, &params, grid);
            return Ok(());
        }
        e.dispatch(&VECTORS, &consts, &args, &params, grid);
        // The graph does not list the readers of a norm that is a matmul prologue, so the result
        // cannot be panel-packed.
        if readers == NormReaders::Nodes {
            e.offer_panels::<NormVectorsParams>("y_panels", y.slot, [rows.rows, rows.len]);
        }
        Ok(())
    }
}

/// Converts the RMS norm node that computes this value to a matmul prologue.
///
/// # Errors
/// Those of [`LoweringCtx::dense`].
pub(crate) fn prologue(e: &mut LoweringCtx<'_>, of: Value) -> Result<NormPrologue, CompileError> {
    let node = e.graph.node(of.node);
    let sum = Value { port: 1, ..of };
    let (eps, x, gain) = match &node.op {
        Op::RmsNorm(op) => (op.eps, node.inputs[0], node.inputs[1]),
        Op::ResidualRmsNorm(op) => (op.eps, sum, node.inputs[2]),
        _ => unreachable!("invariant: only RMS norms are fused into matmuls"),
    };
    let gain = e.view(gain);
    Ok(NormPrologue {
        of,
        x: e.view(x),
        gain: e.dense(&gain)?,
        eps: eps.0 as f32,
    })
}

/// Emits the norm of a matmul prologue as a separate step. If `to` is given and the norm kernel
/// supports it, the kernel also writes a copy rounded to this dtype ([`LoweringCtx::rounded`]).
pub(crate) fn rows(
    e: &mut LoweringCtx<'_>,
    norm: &NormPrologue,
    rounded: Option<DType>,
) -> Result<SlotView, CompileError> {
    e.materialize(norm.of, |e| {
        let own = NormOperands {
            rms: true,
            eps: norm.eps,
            gamma: norm.gain.clone(),
            beta: None,
        };
        let y = e.temp(norm.x.dtype, norm.x.layout.shape())?;
        let (x, rows) = planes(e, &norm.x, norm.x.layout.shape().len() - 1)?;
        plain(e, &own, &x, &rows, &y, NormReaders::Products(rounded))?;
        Ok(y)
    })
}

/// Emits the norm of a matmul prologue as [`rows`] does. Returns the rows, and true if the kernel also stored them
/// prepacked.
pub(crate) fn prepacked_rows(
    e: &mut LoweringCtx<'_>,
    norm: &NormPrologue,
    to: &PrepackedRows,
) -> Result<(SlotView, bool), CompileError> {
    let (x, rows) = planes(e, &norm.x, norm.x.layout.shape().len() - 1)?;
    let per = rows.per_vector(e, x.dtype);
    let per = per.filter(|_| x.dtype == DType::F32);
    let vectors = per.and_then(|per| register_vectors(rows.bounds.len / per as usize, WORKGROUP));
    let vectors = vectors.filter(|n| 16 * n * WORKGROUP <= MAX_ROW_BYTES);
    let Some(vectors) = vectors else {
        return Ok((self::rows(e, norm, None)?, false));
    };
    let mut is_prepacked = false;
    let y = e.materialize(norm.of, |e| {
        let y = e.temp(norm.x.dtype, norm.x.layout.shape())?;
        let params = NormPrepackParams {
            norm: norm_params(&rows, norm.eps),
            slices: to.slices,
            units_at: to.units_at,
            sums_at: to.sums_at,
        };
        let [order, numbers, block] = to.consts;
        let consts = [
            code(x.dtype),
            vectors,
            WORKGROUP,
            0,
            1,
            order,
            numbers,
            block,
        ];
        let grid = e.flat_grid(to.rows);
        let args = [x.slot, norm.gain.slot, y.slot, to.slot];
        e.dispatch(&PREPACKED, &consts, &args, &params, grid);
        is_prepacked = true;
        Ok(y)
    })?;
    Ok((y, is_prepacked))
}

fn lower(e: &mut LoweringCtx<'_>, node: &Node) -> Result<(), CompileError> {
    let rank = node.outputs[0].shape.len();
    // Operands: x, (residual,) gamma, beta, bias.
    let (rms, eps, axis, [gamma, beta, bias]) = match &node.op {
        Op::LayerNorm(op) => (false, op.eps, op.axis, [1, 2, usize::MAX]),
        Op::RmsNorm(op) => (true, op.eps, rank - 1, [1, 2, usize::MAX]),
        Op::ResidualLayerNorm(op) => (false, op.eps, rank - 1, [2, 3, 4]),
        Op::ResidualRmsNorm(op) => (true, op.eps, rank - 1, [2, usize::MAX, 3]),
        _ => unreachable!("invariant: a lowering receives only its own operators"),
    };
    let dense = |e: &mut LoweringCtx<'_>, at: usize| -> Result<Option<SlotView>, CompileError> {
        let value = node.inputs.get(at).map(|v| e.view(*v));
        value.map(|v| e.dense(&v)).transpose()
    };
    let gamma = dense(e, gamma)?;
    let norm = NormOperands {
        rms,
        eps: eps.0 as f32,
        gamma: gamma.unwrap_or_else(|| unreachable!("invariant: gamma is required")),
        beta: dense(e, beta)?,
    };
    let x = e.view(node.inputs[0]);
    let y = e.result(0)?;
    if node.outputs.len() == 1 {
        let (x, rows) = planes(e, &x, axis)?;
        return plain(e, &norm, &x, &rows, &y, NormReaders::Nodes);
    }
    let (x, rows) = matrix(e, &x, axis)?;
    let bias = dense(e, bias)?;
    let residual = e.view(node.inputs[1]);
    let residual = matrix(e, &residual, axis)?;
    let sum = e.result(1)?;
    let sums = ResidualSum {
        x: (x, rows),
        residual,
        bias,
        sum,
    };
    sums.lower(e, &norm, &y, axis)
}

/// Returns an operand as a matrix: rows along one axis with a constant row stride. Makes a dense
/// copy if the layout does not allow it.
fn matrix(
    e: &mut LoweringCtx<'_>,
    view: &SlotView,
    axis: usize,
) -> Result<(SlotView, RowLayout), CompileError> {
    in_rows(e, view, axis, 1)
}

/// Returns an operand as rows along one axis. Up to two other axes enumerate the rows, such as
/// tokens and heads in a slice of a projection. Makes a dense copy if the layout does not allow it.
fn planes(
    e: &mut LoweringCtx<'_>,
    view: &SlotView,
    axis: usize,
) -> Result<(SlotView, RowLayout), CompileError> {
    in_rows(e, view, axis, 2)
}

/// Returns an operand as rows along one axis, which at most `kept` other axes enumerate. Makes a
/// dense copy if the layout does not allow it.
fn in_rows(
    e: &mut LoweringCtx<'_>,
    view: &SlotView,
    axis: usize,
    kept: u32,
) -> Result<(SlotView, RowLayout), CompileError> {
    let axes: Vec<usize> = (axis..view.layout.shape().len()).collect();
    let rows = RowLayout::new(e, view, &axes)?;
    if rows.kept <= kept && rows.along == 1 {
        return Ok((view.clone(), rows));
    }
    let view = e.dense(view)?;
    let rows = RowLayout::new(e, &view, &axes)?;
    Ok((view, rows))
}

/// Maximum size of a row in the shared memory of the norm that stores prepacked rows.
const MAX_ROW_BYTES: u32 = 24 << 10;

/// Number of threads that saturates a large device.
const MIN_THREADS_FOR_FULL_DEVICE: usize = 1 << 16;

/// Assignment of a norm's threads to rows. Neighboring threads never work on different rows,
/// because row addresses may not be contiguous. If there are few rows, more threads work on each
/// row.
fn share(rows: &RowLayout, units: usize) -> RowThreads {
    let along = RowLayout {
        across: false,
        ..rows.clone()
    };
    let mut share = along.share(units, 1);
    let few = |threads: u32| {
        rows.bounds.rows.saturating_mul(threads as usize) < MIN_THREADS_FOR_FULL_DEVICE
    };
    while share.threads < WORKGROUP && units > share.threads as usize && few(share.threads) {
        share.threads *= 2;
    }
    share
}

/// Number of vectors per thread, and assignment of threads to rows, for rows of whole vectors that
/// fit into registers.
fn in_vectors(
    e: &mut LoweringCtx<'_>,
    rows: &RowLayout,
    dtype: DType,
) -> Option<(u32, RowThreads)> {
    let units = rows.bounds.len / rows.per_vector(e, dtype)? as usize;
    let share = share(rows, units);
    Some((register_vectors(units, share.threads)?, share))
}

fn groups(e: &mut LoweringCtx<'_>, rows: &RowLayout, share: RowThreads) -> [SymInt; 3] {
    let groups = e.tape().ceil_div(rows.rows, share.rows());
    e.flat_grid(groups)
}

fn norm_params(rows: &RowLayout, eps: f32) -> NormParams {
    let (x_count, x_outer) = match rows.kept {
        1 => (rows.rows, SymInt::ZERO),
        _ => (rows.sizes[1], rows.strides[0]),
    };
    NormParams {
        rows: rows.rows,
        len: rows.len,
        x_offset: rows.offset,
        x_row: rows.strides[rows.kept as usize - 1],
        x_stride: rows.stride(),
        eps,
        x_count,
        x_outer,
    }
}

fn plain(
    e: &mut LoweringCtx<'_>,
    norm: &NormOperands,
    x: &SlotView,
    rows: &RowLayout,
    y: &SlotView,
    readers: NormReaders,
) -> Result<(), CompileError> {
    let params = norm_params(rows, norm.eps);
    if let Some((vectors, share)) = in_vectors(e, rows, x.dtype) {
        let share = (vectors, share);
        return norm.by_vectors(e, x, rows, y, (&params, share, readers));
    }
    let per = rows.per_word(x.dtype);
    let whole = per > 1 || x.dtype == DType::F32;
    let stats = match whole {
        true => None,
        false => Some(e.temp(DType::F32, &[rows.row_dim.clone(), Dim::Known(4)])?),
    };
    let units = rows.bounds.len / per as usize;
    let share = share(rows, units);
    let (dtype, rms) = (code(x.dtype), u32::from(norm.rms));
    let (has_beta, beta) = optional(e, &norm.beta)?;
    let cached = cache(units, share.threads);
    let consts = [
        dtype,
        per,
        share.threads,
        0,
        cached,
        rms,
        has_beta,
        u32::from(!whole),
    ];
    let to = stats.as_ref().unwrap_or(y).slot;
    let args = [x.slot, norm.gamma.slot, beta, to];
    let grid = groups(e, rows, share);
    e.dispatch(&NORM, &consts, &args, &params, grid);
    if let Some(stats) = stats {
        let args = [x.slot, norm.gamma.slot, beta, stats.slot, y.slot];
        let words = e.words(y.dtype, y.layout.shape());
        let grid = e.grid_of(words, 256);
        e.dispatch(&APPLY, &[dtype, rms, has_beta], &args, &params, grid);
    }
    Ok(())
}

/// Returns 1 and the slot of an optional operand, or 0 and a dummy slot if the operand is absent.
fn optional(
    e: &mut LoweringCtx<'_>,
    view: &Option<SlotView>,
) -> Result<(u32, SlotId), CompileError> {
    Ok(match view {
        Some(view) => (1, view.slot),
        None => (0, e.placeholder_slot()?),
    })
}

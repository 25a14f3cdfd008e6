//! Layer norm and RMS norm, alone and of a residual sum.
//!
//! Rows of whole words go through one kernel. Where a word of a narrow dtype holds elements of several
//! rows, one kernel makes the residual sum, one finds out about the rows, one writes words.

mod residual;

use tercet_ir::{CompileError, DType, Dim, Node, Op, OpKind, Value};

use self::residual::Residual;
use super::rows::{Rows, Share, WORKGROUP, held_vectors};
use super::softmax::cache;
use super::{Family, always, code, portable};
use crate::emit::{Emit, View};
use crate::fusions::RowNorm;
use crate::kernel::{Access, Kernel};
use crate::num::Num;
use crate::program::SlotId;

crate::params! {
    /// The block of `norm.wgsl` and `norm_apply.wgsl`.
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
    /// The block of `norm_plain_vectors.wgsl`.
    pub struct VectorsParams {
        ..norm: NormParams,
        y_panels: U32,
    }
    /// The block of `norm_residual.wgsl` and `norm_sum.wgsl`.
    pub struct ResidualParams {
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
    /// The block of `norm_residual_vectors.wgsl`.
    pub struct ResidualVectorsParams {
        ..norm: ResidualParams,
        y_panels: U32,
    }
}

/// A norm, or what is known of each row.
static NORM: Kernel<NormParams> = Kernel::wgsl(
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
    &[Access::Read, Access::Read, Access::Read, Access::Write],
    &[
        "DTYPE", "PER", "THREADS", "ACROSS", "CACHE", "RMS", "BETA", "STATS",
    ],
);

/// A residual sum and its norm.
static RESIDUAL: Kernel<ResidualParams> = Kernel::wgsl(
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
        Access::Read,
        Access::Read,
        Access::Read,
        Access::Read,
        Access::Read,
        Access::Write,
        Access::Write,
    ],
    &[
        "DTYPE", "PER", "THREADS", "ACROSS", "CACHE", "RMS", "BETA", "BIAS",
    ],
);

/// A norm of rows of whole vectors.
static VECTORS: Kernel<VectorsParams> = Kernel::wgsl(
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
        portable!("norm_plain_vectors.wgsl"),
        portable!("norm_alone.wgsl"),
        portable!("norm_vectors.wgsl"),
    ],
    &[Access::Read, Access::Read, Access::Read, Access::Write],
    &["DTYPE", "VECTORS", "THREADS", "ACROSS", "RMS", "BETA"],
);

/// The same of F32, which also writes its result in 16 bits.
static VECTORS_ROUNDED: Kernel<VectorsParams> = Kernel::wgsl(
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
        portable!("norm_plain_vectors.wgsl"),
        portable!("norm_rounded.wgsl"),
        portable!("norm_vectors.wgsl"),
    ],
    &[
        Access::Read,
        Access::Read,
        Access::Read,
        Access::Write,
        Access::Write,
    ],
    &[
        "DTYPE", "VECTORS", "THREADS", "ACROSS", "RMS", "BETA", "ROUNDED",
    ],
);

/// A residual sum and its norm, of rows of whole vectors.
static RESIDUAL_VECTORS: Kernel<ResidualVectorsParams> = Kernel::wgsl(
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
        portable!("norm_residual_vectors.wgsl"),
        portable!("norm_alone.wgsl"),
        portable!("norm_vectors.wgsl"),
    ],
    &[
        Access::Read,
        Access::Read,
        Access::Read,
        Access::Read,
        Access::Read,
        Access::Write,
        Access::Write,
    ],
    &[
        "DTYPE", "VECTORS", "THREADS", "ACROSS", "RMS", "BETA", "BIAS",
    ],
);

/// A norm, given what is known of each row.
static APPLY: Kernel<NormParams> = Kernel::wgsl(
    "norm_apply",
    &[
        portable!("prelude.wgsl"),
        portable!("norm_scale.wgsl"),
        portable!("norm_value.wgsl"),
        portable!("norm_apply.wgsl"),
    ],
    &[
        Access::Read,
        Access::Read,
        Access::Read,
        Access::Read,
        Access::Write,
    ],
    &["DTYPE", "RMS", "BETA"],
);

/// A residual sum.
static SUM: Kernel<ResidualParams> = Kernel::wgsl(
    "norm_sum",
    &[portable!("prelude.wgsl"), portable!("norm_sum.wgsl")],
    &[Access::Read, Access::Read, Access::Read, Access::Write],
    &["DTYPE", "BIAS"],
);

/// Norms.
pub(crate) static NORMS: Family = Family {
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
        &RESIDUAL.def,
        &RESIDUAL_VECTORS.def,
        &APPLY.def,
        &SUM.def,
    ],
    supports: always,
    lower,
};

/// What a norm needs apart from its rows.
struct Norm {
    rms: bool,
    eps: f32,
    gamma: View,
    beta: Option<View>,
}

/// Who reads the rows of a norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Readers {
    /// Nodes that take the value.
    Nodes,
    /// Products that it was left to, which take it rounded to this where that is given.
    Products(Option<DType>),
}

impl Norm {
    /// Rows of whole vectors, so many an invocation.
    fn by_vectors(
        &self,
        e: &mut Emit<'_>,
        x: &View,
        rows: &Rows,
        y: &View,
        (params, (vectors, share), readers): (&NormParams, (u32, Share), Readers),
    ) -> Result<(), CompileError> {
        let (has_beta, beta) = optional(e, &self.beta)?;
        let (threads, rms) = (share.threads, u32::from(self.rms));
        let consts = [code(x.dtype), vectors, threads, 0, rms, has_beta];
        let args = [x.slot, self.gamma.slot, beta, y.slot];
        let grid = groups(e, rows, share);
        let params = VectorsParams {
            norm: params.clone(),
            y_panels: Num::ZERO,
        };
        let rounded = match readers {
            Readers::Products(Some(to)) if x.dtype == DType::F32 => e.round(y, to)?,
            Readers::Products(_) | Readers::Nodes => None,
        };
        if let Some(copy) = rounded {
            let consts: Vec<u32> = consts.into_iter().chain([code(copy.dtype)]).collect();
            let args: Vec<SlotId> = args.into_iter().chain([copy.slot]).collect();
            e.dispatch(&VECTORS_ROUNDED, &consts, &args, &params, grid);
            return Ok(());
        }
        e.dispatch(&VECTORS, &consts, &args, &params, grid);
        // Who reads what was left to products is not told by the graph.
        if readers == Readers::Nodes {
            e.offer_panels::<VectorsParams>("y_panels", y.slot, [rows.rows, rows.len]);
        }
        Ok(())
    }
}

/// The RMS norm of this result, as products take it in.
///
/// # Errors
/// Those of [`Emit::dense`].
pub(crate) fn prologue(e: &mut Emit<'_>, of: Value) -> Result<RowNorm, CompileError> {
    let node = e.graph.node(of.node);
    let sum = Value { port: 1, ..of };
    let (eps, x, gain) = match &node.op {
        Op::RmsNorm(op) => (op.eps, node.inputs[0], node.inputs[1]),
        Op::ResidualRmsNorm(op) => (op.eps, sum, node.inputs[2]),
        _ => unreachable!("invariant: only RMS norms go into products"),
    };
    let gain = e.view(gain);
    Ok(RowNorm {
        of,
        x: e.view(x),
        gain: e.dense(&gain)?,
        eps: eps.0 as f32,
    })
}

/// The rows of a norm that was left to products, as a step of its own, which also writes them rounded where it can if that is
/// asked for ([`Emit::rounded`]).
pub(crate) fn rows(
    e: &mut Emit<'_>,
    norm: &RowNorm,
    rounded: Option<DType>,
) -> Result<View, CompileError> {
    e.made(norm.of, |e| {
        let own = Norm {
            rms: true,
            eps: norm.eps,
            gamma: norm.gain.clone(),
            beta: None,
        };
        let y = e.temp(norm.x.dtype, norm.x.layout.shape())?;
        let (x, rows) = planes(e, &norm.x, norm.x.layout.shape().len() - 1)?;
        plain(e, &own, &x, &rows, &y, Readers::Products(rounded))?;
        Ok(y)
    })
}

fn lower(e: &mut Emit<'_>, node: &Node) -> Result<(), CompileError> {
    let rank = node.outputs[0].shape.len();
    // Operands: x, (residual,) gamma, beta, bias.
    let (rms, eps, axis, [gamma, beta, bias]) = match &node.op {
        Op::LayerNorm(op) => (false, op.eps, op.axis, [1, 2, usize::MAX]),
        Op::RmsNorm(op) => (true, op.eps, rank - 1, [1, 2, usize::MAX]),
        Op::ResidualLayerNorm(op) => (false, op.eps, rank - 1, [2, 3, 4]),
        Op::ResidualRmsNorm(op) => (true, op.eps, rank - 1, [2, usize::MAX, 3]),
        _ => unreachable!("invariant: the family's operators only"),
    };
    let dense = |e: &mut Emit<'_>, at: usize| -> Result<Option<View>, CompileError> {
        let value = node.inputs.get(at).map(|v| e.view(*v));
        value.map(|v| e.dense(&v)).transpose()
    };
    let gamma = dense(e, gamma)?;
    let norm = Norm {
        rms,
        eps: eps.0 as f32,
        gamma: gamma.unwrap_or_else(|| unreachable!("invariant: gamma is required")),
        beta: dense(e, beta)?,
    };
    let x = e.view(node.inputs[0]);
    let y = e.result(0)?;
    if node.outputs.len() == 1 {
        let (x, rows) = planes(e, &x, axis)?;
        return plain(e, &norm, &x, &rows, &y, Readers::Nodes);
    }
    let (x, rows) = matrix(e, &x, axis)?;
    let bias = dense(e, bias)?;
    let residual = e.view(node.inputs[1]);
    let residual = matrix(e, &residual, axis)?;
    let sum = e.result(1)?;
    let sums = Residual {
        x: (x, rows),
        residual,
        bias,
        sum,
    };
    sums.lower(e, &norm, &y, axis)
}

/// A view as rows of one axis each with equal distances, a dense copy where it is not.
fn matrix(e: &mut Emit<'_>, view: &View, axis: usize) -> Result<(View, Rows), CompileError> {
    in_rows(e, view, axis, 1)
}

/// The same where two axes may number the rows, as heads of a part of a projection.
fn planes(e: &mut Emit<'_>, view: &View, axis: usize) -> Result<(View, Rows), CompileError> {
    in_rows(e, view, axis, 2)
}

/// A view as rows of one axis each, numbered by `kept` axes at most, a dense copy where it is not.
fn in_rows(
    e: &mut Emit<'_>,
    view: &View,
    axis: usize,
    kept: u32,
) -> Result<(View, Rows), CompileError> {
    let axes: Vec<usize> = (axis..view.layout.shape().len()).collect();
    let rows = Rows::of(e, view, &axes)?;
    if rows.kept <= kept && rows.along == 1 {
        return Ok((view.clone(), rows));
    }
    let view = e.dense(view)?;
    let rows = Rows::of(e, &view, &axes)?;
    Ok((view, rows))
}

/// Invocations that keep a large device busy.
const ENOUGH: usize = 1 << 16;

/// The shape of a norm's workgroups: never across rows, whose places are not known to be neighbours. Few
/// rows have more invocations each.
fn share(rows: &Rows, units: usize) -> Share {
    let along = Rows {
        across: false,
        ..rows.clone()
    };
    let mut share = along.share(units, 1);
    let few = |threads: u32| rows.bounds.rows.saturating_mul(threads as usize) < ENOUGH;
    while share.threads < WORKGROUP && units > share.threads as usize && few(share.threads) {
        share.threads *= 2;
    }
    share
}

/// The vectors that an invocation keeps and the shape of workgroups, for rows of few enough whole ones.
fn in_vectors(e: &mut Emit<'_>, rows: &Rows, dtype: DType) -> Option<(u32, Share)> {
    let units = rows.bounds.len / rows.per_vector(e, dtype)? as usize;
    let share = share(rows, units);
    Some((held_vectors(units, share.threads)?, share))
}

fn groups(e: &mut Emit<'_>, rows: &Rows, share: Share) -> [Num; 3] {
    let groups = e.tape().ceil_div(rows.rows, share.rows());
    e.flat_grid(groups)
}

fn plain(
    e: &mut Emit<'_>,
    norm: &Norm,
    x: &View,
    rows: &Rows,
    y: &View,
    readers: Readers,
) -> Result<(), CompileError> {
    let (x_count, x_outer) = match rows.kept {
        1 => (rows.rows, Num::ZERO),
        _ => (rows.sizes[1], rows.strides[0]),
    };
    let params = NormParams {
        rows: rows.rows,
        len: rows.len,
        x_offset: rows.offset,
        x_row: rows.strides[rows.kept as usize - 1],
        x_stride: rows.stride(),
        eps: norm.eps,
        x_count,
        x_outer,
    };
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

/// 1 and the slot of an optional operand, or 0 and another one to bind.
fn optional(e: &mut Emit<'_>, view: &Option<View>) -> Result<(u32, SlotId), CompileError> {
    Ok(match view {
        Some(view) => (1, view.slot),
        None => (0, e.absent()?),
    })
}

//! Variants of GEMV and skinny GEMM (up to eight rows) with float weights.

use tercet_ir::CompileError;

use super::{
    ColumnThreadGroups, MultiRowGemv, ROWS, WORKGROUP, fused_op_consts, grid, quads_of,
    reads_quads, row_is_quads, rows_of, skinny_variants, teams_of,
};
use crate::emit::LoweringCtx;
use crate::lowerings::code;
use crate::lowerings::matmul::gemv_floats::FloatGemvConsts;
use crate::lowerings::matmul::kernels::strips::{STRIPS_ACTIVATED, STRIPS_PLAIN};
use crate::lowerings::matmul::kernels::{
    ACROSS_ACTIVATED, ACROSS_PLAIN, ALONG_ACTIVATED, ALONG_PLAIN, KEYED_WIDE, ROW_ACTIVATED,
    ROW_PLAIN, WIDE_ACTIVATED, WIDE_PLAIN,
};
use crate::lowerings::matmul::portable::{EpilogueKernels, MatMulArgs};
use crate::lowerings::matmul::product::MatMulProblem;
use crate::variant::{self, KernelVariant, needs};

static ALONG: EpilogueKernels = EpilogueKernels {
    plain: &ALONG_PLAIN,
    activated: &ALONG_ACTIVATED,
};
static ACROSS: EpilogueKernels = EpilogueKernels {
    plain: &ACROSS_PLAIN,
    activated: &ACROSS_ACTIVATED,
};
static WIDE: EpilogueKernels = EpilogueKernels {
    plain: &WIDE_PLAIN,
    activated: &WIDE_ACTIVATED,
};
static ROW: EpilogueKernels = EpilogueKernels {
    plain: &ROW_PLAIN,
    activated: &ROW_ACTIVATED,
};

static STRIPS: EpilogueKernels = EpilogueKernels {
    plain: &STRIPS_PLAIN,
    activated: &STRIPS_ACTIVATED,
};

/// Maximum number of weight rows that a thread loads at once.
const MAX_DEPTH: usize = 12;
/// Maximum and minimum number of adjacent threads per weight row. Two threads read 32 bytes, the
/// minimum memory transaction.
const LANES: [u32; 2] = [16, 2];

/// Values of the constants `LANES` and `DEPTH` of `gemv_strips.wgsl`, and the columns per
/// workgroup.
pub(in crate::lowerings::matmul) fn strips(
    e: &LoweringCtx<'_>,
    p: &MatMulProblem,
) -> Result<[u32; 3], CompileError> {
    let piece = 4 * quads_of(p.b.dtype);
    let columns = e.bound(&p.n)?;
    let [mut lanes, least] = LANES;
    while lanes > least && columns < (lanes * piece) as usize * e.caps.units() {
        lanes /= 2;
    }
    let slices = (WORKGROUP / lanes) as usize;
    let own = e.bound(&p.k)?.div_ceil(slices).max(1);
    let depth = own.div_ceil(own.div_ceil(MAX_DEPTH));
    Ok([lanes, depth as u32, lanes * piece])
}

/// True if the weights can be bound as an array of four-word vectors, and every weight row along n
/// consists of whole vectors.
pub(in crate::lowerings::matmul) fn has_strips(
    e: &LoweringCtx<'_>,
    p: &MatMulProblem,
) -> Result<bool, CompileError> {
    let len = 4 * quads_of(p.b.dtype) as usize;
    let whole = p.n.known().is_some_and(|n| n >= len && n % len == 0);
    let aligned = p.b.own_axis.unit && p.b.is_multiple(len as u64, p.b.summed);
    Ok(whole && aligned && p.is_apart() && e.bound(&p.k)? > 0)
}

/// Variants with float weights.
pub(super) fn float_variants<'p>() -> [KernelVariant<MultiRowGemv<'p>>; 5] {
    let [row, wide, along] = along_k();
    let [strips, across] = along_columns();
    [row, wide, along, strips, across]
}

/// Variants for weights that are contiguous along k.
fn along_k<'p>() -> [KernelVariant<MultiRowGemv<'p>>; 3] {
    [
        KernelVariant {
            name: "row",
            supports: |e, r| {
                needs(rows_of(e, r.product, r.max_rows)? == 1, "one row")?;
                needs(
                    reads_quads(e, r.product)?,
                    "contiguous weights along k in whole vectors",
                )?;
                needs(
                    row_is_quads(r.product),
                    "an activation row of whole vectors",
                )
            },
            cost: |e, r| r.seconds(e, r.times(e, |rates| rates.row)),
            emit: |e, r| {
                let p = r.product;
                let columns = FloatGemvConsts::new(e, p, 4 * quads_of(p.b.dtype))?;
                let mut own = vec![code(p.b.dtype)];
                own.extend(columns.consts());
                own.extend(fused_op_consts(p));
                let all = e.num(&p.columns());
                let groups = e.tape().ceil_div(all, columns.results(p));
                let [x, y, _] = e.flat_grid(groups);
                let grid = [x, y, r.args.batches];
                r.args
                    .dispatch_rows(e, ROW.select(p.function()), &own, grid);
                Ok(())
            },
        },
        KernelVariant {
            name: "rows_wide",
            supports: |e, r| {
                needs(
                    reads_quads(e, r.product)?,
                    "contiguous weights along k in whole vectors",
                )
            },
            cost: |e, r| r.seconds(e, r.times(e, |rates| rates.wide)),
            emit: |e, r| {
                let p = r.product;
                let rows = rows_of(e, p, r.max_rows)?;
                let teams = ColumnThreadGroups::new(
                    e,
                    p,
                    [rows, teams_of(rows)],
                    [quads_of(p.b.dtype), 0],
                    2,
                )?;
                let kernel = WIDE.select(p.function());
                let mut own = vec![
                    code(p.b.dtype),
                    rows,
                    teams.units,
                    teams.columns_per_group,
                    teams.steps,
                ];
                own.extend(fused_op_consts(p));
                let grid = grid(e, r, teams.results(p));
                r.args.dispatch_rows(e, kernel, &own, grid);
                Ok(())
            },
        },
        KernelVariant {
            name: "rows_along",
            supports: |_, r| {
                needs(r.product.b.summed.unit, "weights contiguous along k")?;
                needs(r.is_alone(), "no fused norm or gate")
            },
            cost: |e, r| r.seconds(e, r.times(e, |rates| rates.along)),
            emit: |e, r| {
                let p = r.product;
                let words = u32::from(p.b.has_words(p.b.summed, p.b.own_axis));
                let own = [code(p.b.dtype), rows_of(e, p, r.max_rows)?, words];
                let grid = grid(e, r, 8);
                r.args.dispatch(e, ALONG.select(p.activation), &own, grid);
                Ok(())
            },
        },
    ]
}

/// Variants for weights that are contiguous along n, and for weights of any strides.
fn along_columns<'p>() -> [KernelVariant<MultiRowGemv<'p>>; 2] {
    [
        KernelVariant {
            name: "row_strips",
            supports: |e, r| {
                needs(rows_of(e, r.product, r.max_rows)? == 1, "one row")?;
                needs(r.is_alone(), "no fused norm or gate")?;
                needs(
                    has_strips(e, r.product)?,
                    "contiguous weights along n in whole vectors",
                )
            },
            cost: |e, r| r.seconds(e, r.times(e, |rates| rates.strips)),
            emit: |e, r| {
                let p = r.product;
                let [lanes, depth, columns] = strips(e, p)?;
                let own = [code(p.b.dtype), lanes, depth];
                let all = e.num(&p.n);
                let groups = e.tape().ceil_div(all, columns);
                let [x, y, _] = e.flat_grid(groups);
                let grid = [x, y, r.args.batches];
                r.args.dispatch(e, STRIPS.select(p.activation), &own, grid);
                Ok(())
            },
        },
        KernelVariant {
            name: "rows_across",
            supports: |_, r| needs(r.is_alone(), "no fused norm or gate"),
            cost: |e, r| r.seconds(e, r.times(e, |rates| rates.across)),
            emit: |e, r| {
                let p = r.product;
                let per = 1 + u32::from(p.b.has_words(p.b.own_axis, p.b.summed));
                let own = [code(p.b.dtype), rows_of(e, p, r.max_rows)?, per];
                let grid = grid(e, r, 16 * per);
                r.args.dispatch(e, ACROSS.select(p.activation), &own, grid);
                Ok(())
            },
        },
    ]
}

/// Whether [`keyed`] supports these weights.
pub(in crate::lowerings::matmul) fn supports_keyed(
    e: &LoweringCtx<'_>,
    product: &MatMulProblem,
) -> Result<bool, CompileError> {
    reads_quads(e, product)
}

/// Emits expert GEMV with float weights: each row times its own matrix. Requires
/// [`supports_keyed`].
pub(in crate::lowerings::matmul) fn keyed(
    e: &mut LoweringCtx<'_>,
    p: &MatMulProblem,
    given: &MatMulArgs,
) -> Result<(), CompileError> {
    let rows = MultiRowGemv {
        product: p,
        args: given,
        blocks: None,
        max_rows: 1,
        in_blocks: false,
    };
    let teams = ColumnThreadGroups::new(e, p, [1, teams_of(1)], [quads_of(p.b.dtype), 0], 2)?;
    let mut own = vec![
        code(p.b.dtype),
        1,
        teams.units,
        teams.columns_per_group,
        teams.steps,
    ];
    own.extend(fused_op_consts(p));
    let grid = grid(e, &rows, teams.results(p));
    given.dispatch_rows(e, &KEYED_WIDE, &own, grid);
    Ok(())
}

/// Emits GEMV or skinny GEMM with float weights, for at most `most` activation rows per run (1 or
/// 8).
pub(in crate::lowerings::matmul) fn floats(
    e: &mut LoweringCtx<'_>,
    product: &MatMulProblem,
    given: &MatMulArgs,
    most: u32,
) -> Result<(), CompileError> {
    let rows = MultiRowGemv {
        product,
        args: given,
        blocks: None,
        max_rows: most,
        in_blocks: false,
    };
    let table: Vec<KernelVariant<MultiRowGemv<'_>>> = skinny_variants()
        .into_iter()
        .chain(float_variants())
        .collect();
    let measured = rows.tuned_variant(e)?;
    variant::run(e, ROWS, &table, measured, &rows)
}

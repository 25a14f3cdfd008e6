//! Matmuls of 16-bit floats on cooperative matrices, if the device has them.
//!
//! If there are fewer tiles than the device runs concurrently, split-K is used. Partial sums go to
//! an F32 slot, and a second kernel adds them and applies the epilogue. If the last wave of tiles
//! would be nearly empty, only the last columns use split-K.

use tercet_ir::scalar::UnaryFn;
use tercet_ir::{CompileError, DType, Dim};

use super::kernels::{SUM_PARTS, SUM_PARTS_ACTIVATED, SplitKReduceParams};
use super::portable::MatMulArgs;
use super::prepack::prepack;
use super::product::{MatMulOperand, MatMulProblem, OperandAxis, min_size};
use crate::caps::CoopType;
use crate::emit::{LoweringCtx, SlotView};
use crate::lowerings::code;
use crate::lowerings::gemm_coop::{
    CoopGemmOptions, CoopGemmTiling, CoopScope, GemmCoopParams, GemmPrepackedParams, LAID_F16,
    TAIL, TailSplitK, constants, kernel,
};
use crate::lowerings::sums::OF_SUMS;
use crate::tuning::GemmProblem;
use tercet_program::SlotId;
use tercet_program::SymInt;

/// Number of elements of an operand row that one vector load reads.
const LOAD: u64 = 8;

/// A matmul on cooperative matrices, with its tiling.
pub(super) struct CoopMatMul {
    ty: CoopType,
    tiling: CoopGemmTiling,
    options: CoopGemmOptions,
    batch: [BatchAxis; 2],
    /// The right operand `[k, n]`, if it is prepacked.
    weights: Option<SlotView>,
    /// The last columns of the result, if only they use split-K.
    tail: Option<TailSplitK>,
    problem: GemmProblem,
}

/// A range of columns of the result.
#[derive(Clone, Copy)]
pub(super) struct ColumnRange {
    first: SymInt,
    len: SymInt,
}

impl ColumnRange {
    /// The column range that covers the whole result.
    pub(super) fn all(given: &MatMulArgs) -> ColumnRange {
        ColumnRange {
            first: SymInt::ZERO,
            len: given.params.n,
        }
    }
}

/// A batch axis with the strides of both operands.
#[derive(Clone, Copy)]
pub(super) struct BatchAxis {
    pub(super) size: SymInt,
    pub(super) a: SymInt,
    pub(super) b: SymInt,
}

impl BatchAxis {
    const ONE: BatchAxis = BatchAxis {
        size: SymInt::ONE,
        a: SymInt::ZERO,
        b: SymInt::ZERO,
    };
}

impl CoopMatMul {
    /// The plan for this matmul with result `y`; `None` if the kernel does not support it.
    pub(super) fn new(
        e: &mut LoweringCtx<'_>,
        p: &MatMulProblem,
        y: &SlotView,
    ) -> Result<Option<CoopMatMul>, CompileError> {
        let ty = match (p.a.dtype, p.b.dtype) {
            (DType::F16, DType::F16) => CoopType::F16,
            (DType::BF16, DType::BF16) => CoopType::BF16,
            _ => return Ok(None),
        };
        let mut rows = e.bound(&p.m)?;
        for dim in &p.batch {
            rows = rows.saturating_mul(e.bound(dim)?);
        }
        let Some(batch) = two_axes(e, p) else {
            return Ok(None);
        };
        let b_transposed = p.b.summed.unit;
        let bias_has_unit = p.bias.as_ref().is_none_or(|b| b.layout.is_contiguous());
        let residual_has_unit = p.residual.as_ref().is_none_or(|r| {
            let last = r.layout.strides().last();
            last.is_some_and(|t| t.factor() == 1 && *t.dim() == Dim::Known(1))
        });
        let has_units = bias_has_unit && residual_has_unit;
        if !p.a.summed.unit || !(b_transposed || p.b.own_axis.unit) || !has_units {
            return Ok(None);
        }
        let whole = |known: &Dim| {
            known
                .known()
                .is_some_and(|n| (n as u64).is_multiple_of(LOAD))
        };
        let aligned = |side: &MatMulOperand, line: OperandAxis, len| {
            side.is_multiple(LOAD, line) && whole(len)
        };
        let options = CoopGemmOptions {
            b_transposed,
            aligned_a: aligned(&p.a, p.a.own_axis, &p.k),
            aligned_b: match b_transposed {
                true => aligned(&p.b, p.b.own_axis, &p.k),
                false => aligned(&p.b, p.b.summed, &p.n),
            },
            activation: p.activation,
            bias_f32: p.bias.as_ref().map(|b| b.dtype == DType::F32),
            residual_f32: p.residual.as_ref().map(|r| r.dtype == DType::F32),
            out_f32: y.dtype == DType::F32,
            // The result is dense and starts at element 0.
            aligned_c: whole(&p.n),
            planes: !p.batch.iter().all(tercet_ir::Dim::is_one),
            native_f16_conversions: e.caps.natives.f16_conversions,
            min_rows: min_size(&p.m),
            known_lda: p.a.own_axis.known_stride(),
            a_panels: false,
        };
        let problem = GemmProblem {
            dtype: p.a.dtype,
            b_transposed,
            m: rows,
            n: e.bound(&p.n)?,
            k: e.bound(&p.k)?,
        };
        let aligned = options.aligned();
        let known = p.k.known().is_some() && p.n.known().is_some();
        let weights = p.weights.as_ref();
        let weights = weights.filter(|_| known && options.can_prepack());
        let tiling = match weights {
            Some(_) => CoopGemmTiling::choose_prepacked(e.caps, ty, &problem, aligned),
            None => CoopGemmTiling::choose(e.caps, ty, &problem, aligned),
        };
        Ok(tiling.map(|tiling| {
            let whole = !options.planes && known;
            CoopMatMul {
                ty,
                tiling,
                options,
                batch,
                weights: weights
                    .filter(|_| tiling.scope == CoopScope::Prepacked)
                    .cloned(),
                tail: whole.then(|| tiling.tail(e.caps, ty, &problem)).flatten(),
                problem,
            }
        }))
    }

    /// True if the device's autotuning table names a tiling for this matmul.
    pub(super) fn is_measured(&self, e: &LoweringCtx<'_>) -> bool {
        let named = e.caps.device.named_tiling(|| self.problem.key());
        named.is_some_and(|name| name.split(TAIL).next() == Some(&self.name()))
    }

    /// Name of the tiling.
    pub(super) fn name(&self) -> String {
        self.tiling.to_string()
    }

    /// Estimated time in seconds.
    pub(super) fn seconds(&self, e: &LoweringCtx<'_>) -> f64 {
        self.tiling.seconds(e.caps, self.ty, &self.problem, 1)
    }

    /// Dispatches the matmul.
    pub(super) fn dispatch(
        &self,
        e: &mut LoweringCtx<'_>,
        given: &MatMulArgs,
        p: &MatMulProblem,
    ) -> Result<(), CompileError> {
        let splits = self.tiling.splits;
        let all = ColumnRange::all(given);
        if splits > 1 {
            return self.in_parts(e, given, p, splits, &all);
        }
        if let Some(w) = &self.weights {
            let w = prepack(e, w)?;
            // If a run has at least as many rows as a subgroup tile, kernels can assume whole
            // tiles. A thread then needs one address per tile, and rows may be panel-packed.
            let fewest = e.caps.device.rates.matrices.max_prepacked_tile_m();
            let fewer = fewest.saturating_sub(1);
            if self.options.min_rows > fewer as usize {
                self.dispatch_prepacked(e, given, &w, &self.options);
                return Ok(());
            }
            return e.switch_on_size(&p.m, &[fewer], |e, arm| {
                let min_rows = match arm {
                    0 => self.options.min_rows,
                    _ => fewest as usize,
                };
                let options = CoopGemmOptions {
                    min_rows,
                    ..self.options
                };
                self.dispatch_prepacked(e, given, &w, &options);
                Ok(())
            });
        }
        let args = given.args;
        let Some(tail) = self.tail else {
            self.tiles(e, given, &self.options, args, &self.tiling, &all);
            return Ok(());
        };
        let [_, bn, _] = self.tiling.tile;
        let whole = (self.problem.n.div_ceil(bn as usize) - tail.columns as usize) * bn as usize;
        let whole = SymInt::Const(whole as i64);
        let first = ColumnRange {
            first: SymInt::ZERO,
            len: whole,
        };
        self.tiles(e, given, &self.options, args, &self.tiling, &first);
        let rest = ColumnRange {
            first: whole,
            len: e.tape().sub(given.params.n, whole),
        };
        self.in_parts(e, given, p, tail.splits, &rest)
    }

    /// Emits the kernels that compute a range of result columns with this split-K factor.
    fn in_parts(
        &self,
        e: &mut LoweringCtx<'_>,
        given: &MatMulArgs,
        p: &MatMulProblem,
        splits: u32,
        columns: &ColumnRange,
    ) -> Result<(), CompileError> {
        let [a, b, ..] = given.args;
        let width = match columns.len {
            SymInt::Const(n) if n != self.problem.n as i64 => Dim::Known(n as usize),
            _ => p.n.clone(),
        };
        let sums = parts(e, p, splits, width)?;
        let plain = CoopGemmOptions {
            activation: None,
            bias_f32: None,
            residual_f32: None,
            out_f32: true,
            planes: true,
            ..self.options
        };
        let tiling = self.tiling.split(splits);
        self.tiles(e, given, &plain, [a, b, a, sums], &tiling, columns);
        add_parts(e, given, p, splits, sums, columns);
        Ok(())
    }

    /// Dispatches the GEMM kernel of a matmul with prepacked weights. Input and output rows are
    /// panel-packed if the neighboring nodes support it.
    fn dispatch_prepacked(
        &self,
        e: &mut LoweringCtx<'_>,
        given: &MatMulArgs,
        weights: &SlotView,
        options: &CoopGemmOptions,
    ) {
        let [a, _, bias, y] = given.args;
        let p = &given.params;
        let is_whole = p.a_offset == SymInt::ZERO && p.a_row == p.k;
        let is_full = options.min_rows >= self.tiling.subgroup_tile[0] as usize;
        let options = CoopGemmOptions {
            a_panels: is_whole && is_full && e.accept_panels(a, [p.m, p.k]),
            ..*options
        };
        let all = ColumnRange::all(given);
        let params = GemmPrepackedParams {
            product: self.params(e, given, &options, &self.tiling, &all),
            c_panels: SymInt::ZERO,
        };
        let grid = self.grid(e, given, &self.tiling, &all);
        let consts = constants(&self.tiling, &options);
        e.dispatch(
            &LAID_F16,
            &consts,
            &[a, weights.slot, bias, bias, y],
            &params,
            grid,
        );
        if is_full {
            e.offer_panels::<GemmPrepackedParams>("c_panels", y, [p.m, p.n]);
        }
    }

    /// Dispatches the GEMM kernel for a range of result columns. Its arguments are `[a, b, bias,
    /// y]`; with split-K, dense partial sums replace `y`.
    fn tiles(
        &self,
        e: &mut LoweringCtx<'_>,
        given: &MatMulArgs,
        options: &CoopGemmOptions,
        args: [SlotId; 4],
        tiling: &CoopGemmTiling,
        columns: &ColumnRange,
    ) {
        let params = self.params(e, given, options, tiling, columns);
        let grid = self.grid(e, given, tiling, columns);
        let consts = constants(tiling, options);
        let kernel = kernel(self.ty, tiling.scope);
        let [a, b, bias, c] = args;
        e.dispatch(kernel, &consts, &[a, b, bias, bias, c], &params, grid);
    }

    /// Workgroup grid of the GEMM kernel for a range of result columns.
    fn grid(
        &self,
        e: &mut LoweringCtx<'_>,
        given: &MatMulArgs,
        tiling: &CoopGemmTiling,
        columns: &ColumnRange,
    ) -> [SymInt; 3] {
        let p = &given.params;
        let [bm, bn, _] = tiling.tile;
        let most = match tiling.scope {
            CoopScope::Prepacked => tiling.groups_at_once(e.caps),
            CoopScope::Subgroup | CoopScope::Workgroup | CoopScope::Wgsl => None,
        };
        let [x, y, _] = given.tile_grid_of_columns(e, columns.len, [bm, bn], most);
        let limit = e.caps.max_grid;
        let splits = SymInt::Const(i64::from(tiling.splits));
        let depth = e.tape().mul(p.batch, splits);
        let depth = e.tape().min(depth, limit);
        [x, y, depth]
    }

    /// Parameter block of the GEMM kernel for a range of result columns.
    fn params(
        &self,
        e: &mut LoweringCtx<'_>,
        given: &MatMulArgs,
        options: &CoopGemmOptions,
        tiling: &CoopGemmTiling,
        columns: &ColumnRange,
    ) -> GemmCoopParams {
        let p = &given.params;
        let [outer, inner] = self.batch;
        let row = match tiling.splits {
            1 => p.n,
            _ => columns.len,
        };
        let len = e.tape().mul(p.m, row);
        let all = e.tape().mul(p.batch, len);
        let splits = SymInt::Const(i64::from(tiling.splits));
        let skipped = e.tape().mul(columns.first, p.b_col);
        GemmCoopParams {
            m: p.m,
            n: columns.len,
            k: p.k,
            batches: p.batch,
            batch_inner: inner.size,
            splits,
            split_k: tiling.split_k(e.tape(), p.k),
            lda: p.a_row,
            ldb: match options.b_transposed {
                true => p.b_col,
                false => p.b_row,
            },
            ldc: row,
            ld_residual: p.bias_row,
            offset_a: p.a_offset,
            offset_b: match self.weights {
                Some(_) => SymInt::ZERO,
                None => e.tape().add(p.b_offset, skipped),
            },
            offset_c: SymInt::ZERO,
            offset_bias: p.bias_offset,
            // A matmul never has both a bias and a residual, so this offset serves both.
            offset_residual: p.bias_offset,
            outer_a: outer.a,
            outer_b: outer.b,
            outer_c: e.tape().mul(inner.size, len),
            outer_residual: SymInt::ZERO,
            inner_a: inner.a,
            inner_b: inner.b,
            inner_c: len,
            inner_residual: SymInt::ZERO,
            split_c: all,
            len_c: e.tape().mul(all, splits),
        }
    }
}

/// Allocates split-K partial sums of shape `[count, batch.., m, width]`.
pub(super) fn parts(
    e: &mut LoweringCtx<'_>,
    p: &MatMulProblem,
    count: u32,
    width: Dim,
) -> Result<SlotId, CompileError> {
    let mut shape = vec![Dim::Known(count as usize)];
    shape.extend(p.batch.iter().cloned());
    shape.extend([p.m.clone(), width]);
    Ok(e.temp(DType::F32, &shape)?.slot)
}

/// Emits the kernel that adds split-K partial sums, applies the epilogue and writes a range of
/// result columns.
pub(super) fn add_parts(
    e: &mut LoweringCtx<'_>,
    given: &MatMulArgs,
    product: &MatMulProblem,
    splits: u32,
    sums: SlotId,
    columns: &ColumnRange,
) {
    const QUAD: u32 = 4;
    const THREADS: u32 = 128;
    let p = &given.params;
    let rows = e.tape().mul(p.batch, p.m);
    let elements = e.tape().mul(rows, columns.len);
    let quads = e.tape().div(elements, QUAD);
    let skipped = e.tape().mul(columns.first, p.bias_stride);
    let params = SplitKReduceParams {
        quads,
        m: p.m,
        n: columns.len,
        bias_offset: e.tape().add(p.bias_offset, skipped),
        bias_row: p.bias_row,
        bias_stride: p.bias_stride,
        first: e.tape().div(columns.first, QUAD),
        row_quads: e.tape().div(p.n, QUAD),
        zero: SymInt::ZERO,
    };
    let kernel = match product.function() {
        None | Some(UnaryFn::Relu | UnaryFn::Relu6) => &SUM_PARTS,
        Some(_) => &SUM_PARTS_ACTIVATED,
    };
    let mut consts = given.consts.to_vec();
    // The kernel needs the dtype of the residual separately: a matmul of 16-bit rows may have an
    // F32 residual.
    if let (Some(added), Some(at)) = (
        product.bias.as_ref().or(product.residual.as_ref()),
        OF_SUMS.iter().position(|name| *name == "A_TYPE"),
    ) {
        consts[at] = code(added.dtype);
    }
    consts.push(splits);
    let grid = e.grid_of(quads, THREADS);
    let [_, _, bias, y] = given.args;
    e.dispatch(kernel, &consts, &[sums, bias, y], &params, grid);
}

/// Merges the batch axes into an outer and an inner one; `None` if the strides require more axes.
pub(super) fn two_axes(e: &mut LoweringCtx<'_>, p: &MatMulProblem) -> Option<[BatchAxis; 2]> {
    let sizes = e.sizes(&p.batch);
    let mut axes: Vec<BatchAxis> = Vec::new();
    for (at, size) in sizes
        .into_iter()
        .enumerate()
        .filter(|(_, n)| *n != SymInt::ONE)
    {
        let (a, b) = (p.a.batch[at].stride, p.b.batch[at].stride);
        let outer = axes.last_mut();
        let tape = e.tape();
        match outer {
            // Both axes are merged, because the outer stride equals the inner stride times the
            // inner size.
            Some(outer) if outer.a == tape.mul(a, size) && outer.b == tape.mul(b, size) => {
                *outer = BatchAxis {
                    size: tape.mul(outer.size, size),
                    a,
                    b,
                };
            }
            Some(_) | None => axes.push(BatchAxis { size, a, b }),
        }
    }
    match axes[..] {
        [] => Some([BatchAxis::ONE; 2]),
        [inner] => Some([BatchAxis::ONE, inner]),
        [outer, inner] => Some([outer, inner]),
        _ => None,
    }
}

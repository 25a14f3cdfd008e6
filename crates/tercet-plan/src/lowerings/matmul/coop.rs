//! Products of 16-bit floats on cooperative matrices, where the device has them.
//!
//! Where there are fewer tiles than the device runs at a time, workgroups sum parts of `k`: partial sums
//! go to a slot in F32, and a second kernel adds them and does what is done to sums. Where the last turn of the device would
//! be far from full, so do the last columns alone.

use tercet_ir::scalar::UnaryFn;
use tercet_ir::{CompileError, DType, Dim};

use super::kernels::{PartsParams, SUM_PARTS, SUM_PARTS_ACTIVATED};
use super::portable::Given;
use super::prepack::lay_out;
use super::product::{Axis, Product, Side, least};
use crate::caps::CoopType;
use crate::emit::{Emit, View};
use crate::families::code;
use crate::families::gemm_coop::{
    GemmCoopParams, GemmLaidParams, LAID_F16, Options, Scope, TAIL, Tail, Tiling, constants, kernel,
};
use crate::families::sums::OF_SUMS;
use crate::num::Num;
use crate::program::SlotId;
use crate::tuning::GemmProblem;

/// The steps that load rows of operands read so many elements at a time.
const LOAD: u64 = 8;

/// A product that the kernel takes, and how.
pub(super) struct Coop {
    ty: CoopType,
    tiling: Tiling,
    options: Options,
    batch: [BatchAxis; 2],
    /// The right side, `[k, n]`, where it is laid out.
    weights: Option<View>,
    /// The columns with `k` in parts, where not all have as many.
    tail: Option<Tail>,
    problem: GemmProblem,
}

/// Columns of a result.
#[derive(Clone, Copy)]
pub(super) struct Columns {
    first: Num,
    len: Num,
}

impl Columns {
    /// All of them.
    pub(super) fn all(given: &Given) -> Columns {
        Columns {
            first: Num::ZERO,
            len: given.params.n,
        }
    }
}

/// A batch axis with the distances of both operands.
#[derive(Clone, Copy)]
pub(super) struct BatchAxis {
    pub(super) size: Num,
    pub(super) a: Num,
    pub(super) b: Num,
}

impl BatchAxis {
    const ONE: BatchAxis = BatchAxis {
        size: Num::ONE,
        a: Num::ZERO,
        b: Num::ZERO,
    };
}

impl Coop {
    /// How the kernel computes this product into `y`; none where it does not.
    pub(super) fn of(
        e: &mut Emit<'_>,
        p: &Product,
        y: &View,
    ) -> Result<Option<Coop>, CompileError> {
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
        if !p.a.summed.unit || !(b_transposed || p.b.own.unit) || !has_units {
            return Ok(None);
        }
        let whole = |known: &Dim| {
            known
                .known()
                .is_some_and(|n| (n as u64).is_multiple_of(LOAD))
        };
        let aligned = |side: &Side, line: Axis, len| side.is_multiple(LOAD, line) && whole(len);
        let options = Options {
            b_transposed,
            aligned_a: aligned(&p.a, p.a.own, &p.k),
            aligned_b: match b_transposed {
                true => aligned(&p.b, p.b.own, &p.k),
                false => aligned(&p.b, p.b.summed, &p.n),
            },
            activation: p.activation,
            bias_f32: p.bias.as_ref().map(|b| b.dtype == DType::F32),
            residual_f32: p.residual.as_ref().map(|r| r.dtype == DType::F32),
            out_f32: y.dtype == DType::F32,
            // The result is dense from element 0.
            aligned_c: whole(&p.n),
            planes: !p.batch.iter().all(tercet_ir::Dim::is_one),
            native_halves: e.caps.natives.halves,
            least_rows: least(&p.m),
            known_lda: p.a.own.known_stride(),
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
        let weights = weights.filter(|_| known && options.can_be_laid());
        let tiling = match weights {
            Some(_) => Tiling::choose_laid(e.caps, ty, &problem, aligned),
            None => Tiling::choose(e.caps, ty, &problem, aligned),
        };
        Ok(tiling.map(|tiling| {
            let whole = !options.planes && known;
            Coop {
                ty,
                tiling,
                options,
                batch,
                weights: weights.filter(|_| tiling.scope == Scope::Laid).cloned(),
                tail: whole.then(|| tiling.tail(e.caps, ty, &problem)).flatten(),
                problem,
            }
        }))
    }

    /// True if a table of measurements names its tiling.
    pub(super) fn is_measured(&self, e: &Emit<'_>) -> bool {
        let named = e.caps.device.tuning.find(|| self.problem.key());
        named.is_some_and(|name| name.split(TAIL).next() == Some(&self.name()))
    }

    /// The name of its tiling.
    pub(super) fn name(&self) -> String {
        self.tiling.to_string()
    }

    /// About how many seconds it takes.
    pub(super) fn seconds(&self, e: &Emit<'_>) -> f64 {
        self.tiling.seconds(e.caps, self.ty, &self.problem, 1)
    }

    /// Runs it.
    pub(super) fn dispatch(
        &self,
        e: &mut Emit<'_>,
        given: &Given,
        p: &Product,
    ) -> Result<(), CompileError> {
        let splits = self.tiling.splits;
        let all = Columns::all(given);
        if splits > 1 {
            return self.in_parts(e, given, p, splits, &all);
        }
        if let Some(w) = &self.weights {
            let w = lay_out(e, w)?;
            // Whole parts take one address, and rows in panels.
            let fewest = e.caps.device.rates.matrices.tallest_laid_part();
            let fewer = fewest.saturating_sub(1);
            if self.options.least_rows > fewer as usize {
                self.laid(e, given, &w, &self.options);
                return Ok(());
            }
            return e.choose(&p.m, &[fewer], |e, arm| {
                let least_rows = match arm {
                    0 => self.options.least_rows,
                    _ => fewest as usize,
                };
                let options = Options {
                    least_rows,
                    ..self.options
                };
                self.laid(e, given, &w, &options);
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
        let whole = Num::Const(whole as i64);
        let first = Columns {
            first: Num::ZERO,
            len: whole,
        };
        self.tiles(e, given, &self.options, args, &self.tiling, &first);
        let rest = Columns {
            first: whole,
            len: e.tape().sub(given.params.n, whole),
        };
        self.in_parts(e, given, p, tail.splits, &rest)
    }

    /// Computes columns with so many parts of `k`.
    fn in_parts(
        &self,
        e: &mut Emit<'_>,
        given: &Given,
        p: &Product,
        splits: u32,
        columns: &Columns,
    ) -> Result<(), CompileError> {
        let [a, b, ..] = given.args;
        let width = match columns.len {
            Num::Const(n) if n != self.problem.n as i64 => Dim::Known(n as usize),
            _ => p.n.clone(),
        };
        let sums = parts(e, p, splits, width)?;
        let plain = Options {
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

    /// Dispatches the tiles of a product whose weights were laid out; rows lie in panels where what is before and behind it can do that.
    fn laid(&self, e: &mut Emit<'_>, given: &Given, weights: &View, options: &Options) {
        let [a, _, bias, y] = given.args;
        let p = &given.params;
        let is_whole = p.a_offset == Num::ZERO && p.a_row == p.k;
        let is_full = options.least_rows >= self.tiling.part[0] as usize;
        let options = Options {
            a_panels: is_whole && is_full && e.take_panels(a, [p.m, p.k]),
            ..*options
        };
        let all = Columns::all(given);
        let params = GemmLaidParams {
            product: self.params(e, given, &options, &self.tiling, &all),
            c_panels: Num::ZERO,
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
            e.offer_panels::<GemmLaidParams>("c_panels", y, [p.m, p.n]);
        }
    }

    /// Dispatches the tiles of columns of `[a, b, bias, y]`, or of their partial sums, which are dense.
    fn tiles(
        &self,
        e: &mut Emit<'_>,
        given: &Given,
        options: &Options,
        args: [SlotId; 4],
        tiling: &Tiling,
        columns: &Columns,
    ) {
        let params = self.params(e, given, options, tiling, columns);
        let grid = self.grid(e, given, tiling, columns);
        let consts = constants(tiling, options);
        let kernel = kernel(self.ty, tiling.scope);
        let [a, b, bias, c] = args;
        e.dispatch(kernel, &consts, &[a, b, bias, bias, c], &params, grid);
    }

    /// The grid of the tiles of columns.
    fn grid(
        &self,
        e: &mut Emit<'_>,
        given: &Given,
        tiling: &Tiling,
        columns: &Columns,
    ) -> [Num; 3] {
        let p = &given.params;
        let [bm, bn, _] = tiling.tile;
        let most = match tiling.scope {
            Scope::Laid => tiling.groups_at_once(e.caps),
            Scope::Subgroup | Scope::Workgroup => None,
        };
        let [x, y, _] = given.tile_grid_of_columns(e, columns.len, [bm, bn], most);
        let limit = e.caps.max_grid;
        let splits = Num::Const(i64::from(tiling.splits));
        let depth = e.tape().mul(p.batch, splits);
        let depth = e.tape().min(depth, limit);
        [x, y, depth]
    }

    /// The numbers of the tiles of columns.
    fn params(
        &self,
        e: &mut Emit<'_>,
        given: &Given,
        options: &Options,
        tiling: &Tiling,
        columns: &Columns,
    ) -> GemmCoopParams {
        let p = &given.params;
        let [outer, inner] = self.batch;
        let row = match tiling.splits {
            1 => p.n,
            _ => columns.len,
        };
        let len = e.tape().mul(p.m, row);
        let all = e.tape().mul(p.batch, len);
        let splits = Num::Const(i64::from(tiling.splits));
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
                Some(_) => Num::ZERO,
                None => e.tape().add(p.b_offset, skipped),
            },
            offset_c: Num::ZERO,
            offset_bias: p.bias_offset,
            // One of both is there at most.
            offset_residual: p.bias_offset,
            outer_a: outer.a,
            outer_b: outer.b,
            outer_c: e.tape().mul(inner.size, len),
            outer_residual: Num::ZERO,
            inner_a: inner.a,
            inner_b: inner.b,
            inner_c: len,
            inner_residual: Num::ZERO,
            split_c: all,
            len_c: e.tape().mul(all, splits),
        }
    }
}

/// A slot for the sums of so many parts of `k`: `[part, batch.., m, width]`.
pub(super) fn parts(
    e: &mut Emit<'_>,
    p: &Product,
    count: u32,
    width: Dim,
) -> Result<SlotId, CompileError> {
    let mut shape = vec![Dim::Known(count as usize)];
    shape.extend(p.batch.iter().cloned());
    shape.extend([p.m.clone(), width]);
    Ok(e.temp(DType::F32, &shape)?.slot)
}

/// Adds partial sums into columns of the result of a product, with what is done to its sums.
pub(super) fn add_parts(
    e: &mut Emit<'_>,
    given: &Given,
    product: &Product,
    splits: u32,
    sums: SlotId,
    columns: &Columns,
) {
    const QUAD: u32 = 4;
    const THREADS: u32 = 128;
    let p = &given.params;
    let rows = e.tape().mul(p.batch, p.m);
    let elements = e.tape().mul(rows, columns.len);
    let quads = e.tape().div(elements, QUAD);
    let skipped = e.tape().mul(columns.first, p.bias_stride);
    let params = PartsParams {
        quads,
        m: p.m,
        n: columns.len,
        bias_offset: e.tape().add(p.bias_offset, skipped),
        bias_row: p.bias_row,
        bias_stride: p.bias_stride,
        first: e.tape().div(columns.first, QUAD),
        row_quads: e.tape().div(p.n, QUAD),
        zero: Num::ZERO,
    };
    let kernel = match product.function() {
        None | Some(UnaryFn::Relu | UnaryFn::Relu6) => &SUM_PARTS,
        Some(_) => &SUM_PARTS_ACTIVATED,
    };
    let mut consts = given.consts.to_vec();
    // What is added has a dtype of its own: rows of 16 bits may have a residual of F32.
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

/// The batch axes as an outer and an inner one; none where there are more.
pub(super) fn two_axes(e: &mut Emit<'_>, p: &Product) -> Option<[BatchAxis; 2]> {
    let sizes = e.sizes(&p.batch);
    let mut axes: Vec<BatchAxis> = Vec::new();
    for (at, size) in sizes
        .into_iter()
        .enumerate()
        .filter(|(_, n)| *n != Num::ONE)
    {
        let (a, b) = (p.a.batch[at].stride, p.b.batch[at].stride);
        let outer = axes.last_mut();
        let tape = e.tape();
        match outer {
            // A step of the outer axis is as the whole of this one.
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

//! View of an operand as rows: axes that enumerate rows, axes within a row, and the assignment of
//! threads to rows.
//!
//! Rows may consist of any axes with any strides; axes that can be merged are merged first. Kernel
//! selection depends only on the upper bounds of sizes.

use tercet_ir::layout::SymLayout;
use tercet_ir::{CompileError, DType, Dim};

use crate::caps::DeviceCaps;
use crate::emit::{LoweringCtx, SlotView};
use tercet_program::SymInt;

/// Threads per workgroup of every row kernel.
pub const WORKGROUP: u32 = 256;

/// An operand viewed as rows.
#[derive(Clone, Debug)]
pub(crate) struct RowLayout {
    /// Sizes and strides of the axes that enumerate rows (at least one), followed by those of the
    /// axes within a row.
    pub(crate) sizes: [SymInt; 8],
    pub(crate) strides: [SymInt; 8],
    /// Number of axes that enumerate rows, and number of axes within a row (at least one each).
    pub(crate) kept: u32,
    pub(crate) along: u32,
    pub(crate) offset: SymInt,
    /// Number of rows, and number of elements per row.
    pub(crate) rows: SymInt,
    pub(crate) len: SymInt,
    /// Number of rows as a (possibly symbolic) dimension.
    pub(crate) row_dim: Dim,
    pub(crate) bounds: RowBounds,
    /// Minimum number of rows that saturate the device with few threads per row.
    pub(crate) many: usize,
    /// True if adjacent elements in memory belong to different rows.
    pub(crate) across: bool,
}

/// Number of rows and of elements per row, at the symbols' bounds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowBounds {
    pub(crate) rows: usize,
    pub(crate) len: usize,
}

/// Assignment of threads to rows: `threads` threads per row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RowThreads {
    pub(crate) threads: u32,
    pub(crate) across: bool,
}

impl RowThreads {
    /// Rows per workgroup.
    pub(crate) fn rows(self) -> u32 {
        WORKGROUP / self.threads
    }
}

impl RowLayout {
    /// Views an operand as rows whose elements lie along `axes` (ascending).
    ///
    /// # Errors
    /// [`CompileError`] if a size overflows.
    pub(crate) fn new(
        e: &mut LoweringCtx<'_>,
        view: &SlotView,
        axes: &[usize],
    ) -> Result<RowLayout, CompileError> {
        let rank = view.layout.shape().len();
        let kept: Vec<usize> = (0..rank).filter(|a| !axes.contains(a)).collect();
        let order: Vec<usize> = kept.iter().chain(axes).copied().collect();
        let (layout, kept) = merged(view.layout.transpose(&order), kept.len());
        let view = SlotView {
            layout,
            ..view.clone()
        };
        let shape = view.layout.shape();
        let (sizes, strides) = (e.sizes(shape), e.strides(&view));
        let bounds = RowBounds {
            rows: bound(e, &shape[..kept])?,
            len: bound(e, &shape[kept..])?,
        };
        let one = SymInt::Const(1);
        let beside = |range: &[SymInt]| range.last() == Some(&one);
        let across = !beside(&strides[kept..]) && beside(&strides[..kept]);
        let mut rows = RowLayout {
            sizes: [SymInt::ONE; 8],
            strides: [SymInt::ZERO; 8],
            kept: kept.max(1) as u32,
            along: (shape.len() - kept).max(1) as u32,
            offset: e.offset(&view),
            rows: e.numel(&shape[..kept]),
            len: e.numel(&shape[kept..]),
            row_dim: product(&shape[..kept]),
            bounds,
            many: many_rows(e.caps),
            across,
        };
        let shift = usize::from(kept == 0);
        for (axis, (size, stride)) in sizes.into_iter().zip(strides).enumerate() {
            (rows.sizes[axis + shift], rows.strides[axis + shift]) = (size, stride);
        }
        Ok(rows)
    }

    /// Distance between consecutive elements of a row, which must have one axis.
    pub(crate) fn stride(&self) -> SymInt {
        self.strides[self.kept as usize]
    }

    /// Elements of `dtype` per word if every row is dense and word-aligned at both ends; otherwise
    /// 1.
    pub(crate) fn per_word(&self, dtype: DType) -> u32 {
        let per = lanes(dtype);
        let whole = |n: SymInt| n.known().is_some_and(|n| n % i64::from(per) == 0);
        let kept = 0..self.kept as usize;
        let starts = kept
            .into_iter()
            .all(|a| self.sizes[a] == SymInt::ONE || whole(self.strides[a]));
        let dense = self.along == 1 && self.stride() == SymInt::ONE;
        match dense && starts && whole(self.offset) && whole(self.len) {
            true => per,
            false => 1,
        }
    }

    /// Elements of `dtype` per 16-byte vector if every row is dense and vector-aligned at both ends
    /// for all sizes.
    pub(crate) fn per_vector(&self, e: &mut LoweringCtx<'_>, dtype: DType) -> Option<u32> {
        let per = 16 / dtype.size_bytes() as u32;
        let dense = self.along == 1 && self.stride() == SymInt::ONE;
        let tape = e.tape();
        let kept = 0..self.kept as usize;
        let mut starts = kept.filter(|&a| self.sizes[a] != SymInt::ONE);
        let whole = starts.all(|a| tape.is_multiple(self.strides[a], per))
            && tape.is_multiple(self.offset, per)
            && tape.is_multiple(self.len, per);
        // Kernels clamp reads to the last vector of a row, so every row must have at least one
        // vector.
        let some = self.len.known().is_some_and(|n| n > 0) && self.bounds.rows > 0;
        (dense && whole && some).then_some(per)
    }

    /// Number of elements per vector if rows consist of whole vectors; otherwise per word if they
    /// consist of whole words; otherwise 1.
    pub(crate) fn per_unit(&self, e: &mut LoweringCtx<'_>, dtype: DType) -> u32 {
        let vector = self.per_vector(e, dtype);
        vector.unwrap_or_else(|| self.per_word(dtype))
    }

    /// Assignment of threads to rows of `units` elements, words or vectors, with at least `least`
    /// rows per workgroup.
    pub(crate) fn share(&self, units: usize, least: u32) -> RowThreads {
        let most = WORKGROUP / least;
        let threads = match (self.across, units, self.bounds.rows) {
            // Adjacent elements in memory belong to different rows, and there are at most eight
            // rows.
            (true, 32.., ..=8) => 64,
            (true, 32.., rows) if rows < 4 * self.many => 8,
            (true, 256.., _) => 8,
            (true, _, _) => 1,
            (false, ..=16, _) => 4,
            (false, ..=128, _) => 32,
            // There are enough rows to saturate the device with few threads per row.
            (false, ..=256, rows) if rows >= self.many => 32,
            (false, _, _) => 256,
        };
        RowThreads {
            threads: threads.min(most),
            across: self.across,
        }
    }

    /// Number of parts that each row of `units` elements, words or vectors is split into, so that a
    /// few long rows saturate the device.
    pub(crate) fn parts(&self, units: usize, share: RowThreads) -> usize {
        let groups = self.bounds.rows.div_ceil(share.rows() as usize).max(1);
        let least = share.threads as usize * 16;
        if units / least < 4 || groups >= 256 {
            return 1;
        }
        (units / least).min(1024 / groups).max(1)
    }
}

/// Vectors of a row that each thread holds in registers; `None` if there are too many.
pub(crate) fn register_vectors(units: usize, threads: u32) -> Option<u32> {
    let each = units.div_ceil(threads as usize);
    [1, 2, 3, 4, 6, 8].into_iter().find(|&n| each <= n as usize)
}

/// Number of rows that saturates the device with few threads per row.
pub(crate) fn many_rows(caps: &DeviceCaps) -> usize {
    16 * caps.units()
}

/// Elements of a dtype per 32-bit word.
pub(crate) fn lanes(dtype: DType) -> u32 {
    (4 / dtype.size_bytes().min(4)) as u32
}

/// Product of dimensions. If the product overflows, the result is a number larger than the size of
/// any slot.
pub(crate) fn product(dims: &[Dim]) -> Dim {
    let product = dims.iter().try_fold(Dim::Known(1), |p, d| p.checked_mul(d));
    product.unwrap_or(Dim::Known(usize::MAX))
}

fn bound(e: &LoweringCtx<'_>, dims: &[Dim]) -> Result<usize, CompileError> {
    let mut n = 1usize;
    for dim in dims {
        n = n.saturating_mul(e.bound(dim)?);
    }
    Ok(n)
}

/// Merges adjacent axes with compatible strides, separately before and after axis `kept`. Returns
/// the layout and the new position of that axis.
pub(crate) fn merged(mut layout: SymLayout, mut kept: usize) -> (SymLayout, usize) {
    let mut axis = 0;
    while axis + 1 < layout.shape().len() {
        let joined = (axis + 1 != kept).then(|| join(&layout, axis)).flatten();
        match joined {
            Some(to) => {
                layout = to;
                kept -= usize::from(axis < kept);
            }
            None => axis += 1,
        }
    }
    (layout, kept)
}

fn join(layout: &SymLayout, axis: usize) -> Option<SymLayout> {
    let mut shape = layout.shape().to_vec();
    let inner = shape.remove(axis + 1);
    shape[axis] = shape[axis].checked_mul(&inner)?;
    layout.reshape(&shape)
}

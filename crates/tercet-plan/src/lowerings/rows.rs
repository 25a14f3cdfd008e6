//! Rows of an operand: the axes that number them, the axes along them, and how a workgroup shares them out.
//!
//! Any axes and strides: axes that lie on each other like one are merged first. All choices look at
//! bounds only.

use tercet_ir::layout::SymLayout;
use tercet_ir::{CompileError, DType, Dim};

use crate::caps::Caps;
use crate::emit::{Emit, View};
use crate::num::Num;

/// Invocations of a workgroup of every kernel of rows.
pub(crate) const WORKGROUP: u32 = 256;

/// An operand as rows.
#[derive(Clone, Debug)]
pub(crate) struct Rows {
    /// Sizes and strides of the axes that number rows (at least one), then of those along them.
    pub(crate) sizes: [Num; 8],
    pub(crate) strides: [Num; 8],
    /// The number of the former, and of the latter (at least one).
    pub(crate) kept: u32,
    pub(crate) along: u32,
    pub(crate) offset: Num,
    /// The number of rows, and of elements of each.
    pub(crate) rows: Num,
    pub(crate) len: Num,
    /// The number of rows as a dimension.
    pub(crate) row_dim: Dim,
    pub(crate) bounds: Bounds,
    /// As many rows fill the device by themselves.
    pub(crate) many: usize,
    /// True where neighbours lie in neighbouring rows rather than in one row.
    pub(crate) across: bool,
}

/// Rows and elements of a row at the symbols' bounds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) rows: usize,
    pub(crate) len: usize,
}

/// How a workgroup shares rows out: `threads` invocations a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    pub(crate) threads: u32,
    pub(crate) across: bool,
}

impl Share {
    /// Rows of a workgroup.
    pub(crate) fn rows(self) -> u32 {
        WORKGROUP / self.threads
    }
}

impl Rows {
    /// The rows along `axes` (ascending) of a view.
    ///
    /// # Errors
    /// [`CompileError`] where a size overflows.
    pub(crate) fn of(e: &mut Emit<'_>, view: &View, axes: &[usize]) -> Result<Rows, CompileError> {
        let rank = view.layout.shape().len();
        let kept: Vec<usize> = (0..rank).filter(|a| !axes.contains(a)).collect();
        let order: Vec<usize> = kept.iter().chain(axes).copied().collect();
        let (layout, kept) = merged(view.layout.transpose(&order), kept.len());
        let view = View {
            layout,
            ..view.clone()
        };
        let shape = view.layout.shape();
        let (sizes, strides) = (e.sizes(shape), e.strides(&view));
        let bounds = Bounds {
            rows: bound(e, &shape[..kept])?,
            len: bound(e, &shape[kept..])?,
        };
        let one = Num::Const(1);
        let beside = |range: &[Num]| range.last() == Some(&one);
        let across = !beside(&strides[kept..]) && beside(&strides[..kept]);
        let mut rows = Rows {
            sizes: [Num::ONE; 8],
            strides: [Num::ZERO; 8],
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

    /// The stride along the rows, of one axis.
    pub(crate) fn stride(&self) -> Num {
        self.strides[self.kept as usize]
    }

    /// The elements of a word of `dtype`, where every row is dense and begins and ends with a word; 1
    /// otherwise.
    pub(crate) fn per_word(&self, dtype: DType) -> u32 {
        let per = lanes(dtype);
        let whole = |n: Num| n.known().is_some_and(|n| n % i64::from(per) == 0);
        let kept = 0..self.kept as usize;
        let starts = kept
            .into_iter()
            .all(|a| self.sizes[a] == Num::ONE || whole(self.strides[a]));
        let dense = self.along == 1 && self.stride() == Num::ONE;
        match dense && starts && whole(self.offset) && whole(self.len) {
            true => per,
            false => 1,
        }
    }

    /// The elements of a vector of 16 bytes, where every row is dense and begins and ends with a vector at
    /// all sizes.
    pub(crate) fn per_vector(&self, e: &mut Emit<'_>, dtype: DType) -> Option<u32> {
        let per = 16 / dtype.size_bytes() as u32;
        let dense = self.along == 1 && self.stride() == Num::ONE;
        let tape = e.tape();
        let kept = 0..self.kept as usize;
        let mut starts = kept.filter(|&a| self.sizes[a] != Num::ONE);
        let whole = starts.all(|a| tape.is_multiple(self.strides[a], per))
            && tape.is_multiple(self.offset, per)
            && tape.is_multiple(self.len, per);
        // Kernels read the last vector of a row in place of those beyond it: there must be one.
        let some = self.len.known().is_some_and(|n| n > 0) && self.bounds.rows > 0;
        (dense && whole && some).then_some(per)
    }

    /// The elements of a vector, or else of a word, or else 1.
    pub(crate) fn per_unit(&self, e: &mut Emit<'_>, dtype: DType) -> u32 {
        let vector = self.per_vector(e, dtype);
        vector.unwrap_or_else(|| self.per_word(dtype))
    }

    /// How a workgroup shares rows of `units` units out, at least `least` rows of them.
    pub(crate) fn share(&self, units: usize, least: u32) -> Share {
        let most = WORKGROUP / least;
        let threads = match (self.across, units, self.bounds.rows) {
            // Few columns: neighbours in memory are then on few rows.
            (true, 32.., ..=8) => 64,
            (true, 32.., rows) if rows < 4 * self.many => 8,
            (true, 256.., _) => 8,
            (true, _, _) => 1,
            (false, ..=16, _) => 4,
            (false, ..=128, _) => 32,
            // Rows enough to fill a device without help of each other.
            (false, ..=256, rows) if rows >= self.many => 32,
            (false, _, _) => 256,
        };
        Share {
            threads: threads.min(most),
            across: self.across,
        }
    }

    /// The parts that rows of `units` are cut into, so that few long rows fill a device.
    pub(crate) fn parts(&self, units: usize, share: Share) -> usize {
        let groups = self.bounds.rows.div_ceil(share.rows() as usize).max(1);
        let least = share.threads as usize * 16;
        if units / least < 4 || groups >= 256 {
            return 1;
        }
        (units / least).min(1024 / groups).max(1)
    }
}

/// The vectors of a row that an invocation keeps, where they are few enough.
pub(crate) fn held_vectors(units: usize, threads: u32) -> Option<u32> {
    let each = units.div_ceil(threads as usize);
    [1, 2, 3, 4, 6, 8].into_iter().find(|&n| each <= n as usize)
}

/// As many rows fill a device where few invocations take each.
pub(crate) fn many_rows(caps: &Caps) -> usize {
    16 * caps.units()
}

/// Elements of a dtype in a word.
pub(crate) fn lanes(dtype: DType) -> u32 {
    (4 / dtype.size_bytes().min(4)) as u32
}

/// The product of dimensions; where that overflows no slot could hold it.
pub(crate) fn product(dims: &[Dim]) -> Dim {
    let product = dims.iter().try_fold(Dim::Known(1), |p, d| p.checked_mul(d));
    product.unwrap_or(Dim::Known(usize::MAX))
}

fn bound(e: &Emit<'_>, dims: &[Dim]) -> Result<usize, CompileError> {
    let mut n = 1usize;
    for dim in dims {
        n = n.saturating_mul(e.bound(dim)?);
    }
    Ok(n)
}

/// The layout with every two neighbouring axes merged that lie like one, on both sides of axis `kept`,
/// and where that axis is then.
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

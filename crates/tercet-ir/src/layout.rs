//! The memory layout of a value: sizes, strides and offset within a dense root buffer.
//!
//! A [`SymLayout`] is a compile-time layout in terms of the symbols; [`SymLayout::eval`] gives the
//! [`Layout`] of a run. Views (reshape, transpose, slice, expand) only change layouts.
//!
//! Invariant: every element of a layout is inside its root, because operators checked their
//! attributes when the graph was built.

pub(crate) mod arena;
mod state;
mod view;

pub use arena::{LiveRange, place};
pub use state::{in_place_carried, in_place_updates};
pub use view::{ViewLowering, check_slice, is_view, view_of};

use tercet_tensor::{Bindings, Dim, DimError, MAX_RANK, check_count};

/// Concrete sizes, strides and offset of a run, in elements.
///
/// ```
/// use tercet_ir::layout::Layout;
/// let dense = Layout::dense(&[2, 3]);
/// assert_eq!(dense.strides(), [3, 1]);
/// let transposed = Layout::new(&[3, 2], &[1, 3], 0);
/// assert_eq!((dense.is_dense(), transposed.is_dense()), (true, false));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    rank: usize,
    shape: [usize; MAX_RANK],
    strides: [isize; MAX_RANK],
    /// Offset of the first element in the root.
    pub offset: usize,
}

impl Layout {
    /// The layout of a rank 0 value at the start of its root.
    pub const SCALAR: Layout = Layout {
        rank: 0,
        shape: [0; MAX_RANK],
        strides: [0; MAX_RANK],
        offset: 0,
    };

    /// A layout with these sizes and strides.
    pub fn new(shape: &[usize], strides: &[isize], offset: usize) -> Layout {
        let mut layout = Layout {
            rank: shape.len(),
            offset,
            ..Layout::SCALAR
        };
        layout.shape[..shape.len()].copy_from_slice(shape);
        layout.strides[..shape.len()].copy_from_slice(strides);
        layout
    }

    /// The row-major layout with these sizes.
    pub fn dense(shape: &[usize]) -> Layout {
        let mut layout = Layout {
            rank: shape.len(),
            ..Layout::SCALAR
        };
        layout.shape[..shape.len()].copy_from_slice(shape);
        let mut stride = 1;
        for axis in (0..shape.len()).rev() {
            layout.strides[axis] = stride as isize;
            stride *= shape[axis];
        }
        layout
    }

    /// The sizes.
    pub fn shape(&self) -> &[usize] {
        &self.shape[..self.rank]
    }

    /// The strides in elements: 0 for a broadcast axis, negative for a reversed axis.
    pub fn strides(&self) -> &[isize] {
        &self.strides[..self.rank]
    }

    /// The number of axes.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The number of elements.
    pub fn numel(&self) -> usize {
        self.shape().iter().product()
    }

    /// True if the elements are contiguous in row-major order.
    pub fn is_dense(&self) -> bool {
        let mut expected = 1;
        for (&n, &s) in self.shape().iter().zip(self.strides()).rev() {
            if n != 1 && s != expected {
                return n == 0 || self.numel() == 0;
            }
            expected *= n as isize;
        }
        true
    }
}

/// A dimension times a signed factor: a stride, or one term of an offset.
///
/// ```
/// use tercet_ir::{Dim, layout::SymLayout};
/// let s = Dim::sym("s");
/// let layout = SymLayout::dense(&[Dim::Known(2), s.clone(), Dim::Known(12)]).expect("it fits");
/// let [outer, middle, _] = layout.strides() else { panic!("there are three axes") };
/// assert_eq!((outer.power_of_two(), middle.power_of_two()), (4, 4));
/// assert_eq!((middle.dim(), middle.factor()), (&Dim::Known(1), 12));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayoutTerm {
    dim: Dim,
    factor: i64,
}

impl LayoutTerm {
    const ZERO: LayoutTerm = LayoutTerm {
        dim: Dim::Known(1),
        factor: 0,
    };

    /// The dimension of the product.
    pub fn dim(&self) -> &Dim {
        &self.dim
    }

    /// The factor of the product.
    pub fn factor(&self) -> i64 {
        self.factor
    }

    /// The largest power of two, at most 2^16, that divides the product for all values of the
    /// symbols.
    pub fn power_of_two(&self) -> u64 {
        1 << (self.factor.trailing_zeros() + self.dim.twos()).min(16)
    }

    fn from_dim(dim: Dim) -> LayoutTerm {
        match dim {
            Dim::Known(n) => LayoutTerm {
                dim: Dim::Known(1),
                factor: n as i64,
            },
            dim @ Dim::Sym(_) => LayoutTerm { dim, factor: 1 },
        }
    }

    fn times(&self, dim: &Dim) -> Option<LayoutTerm> {
        match dim {
            Dim::Known(n) => self.scaled(i64::try_from(*n).ok()?),
            Dim::Sym(_) => Some(LayoutTerm {
                dim: self.dim.checked_mul(dim)?,
                factor: self.factor,
            }),
        }
    }

    fn scaled(&self, by: i64) -> Option<LayoutTerm> {
        Some(LayoutTerm {
            dim: self.dim.clone(),
            factor: self.factor.checked_mul(by)?,
        })
    }

    fn is(&self, n: i64) -> bool {
        self.dim == Dim::Known(1) && self.factor == n
    }

    fn eval(&self, sizes: &Bindings) -> Result<isize, DimError> {
        if self.factor == 0 {
            return Ok(0);
        }
        Ok((self.dim.eval(sizes)? as i64).wrapping_mul(self.factor) as isize)
    }
}

/// A layout in terms of the symbols.
///
/// ```
/// use tercet_ir::{Bindings, Dim, layout::SymLayout};
/// let (s, four) = (Dim::sym("s"), Dim::Known(4));
/// let layout = SymLayout::dense(&[s, four]).expect("the strides do not overflow");
/// let view = layout.transpose(&[1, 0]);
/// assert!(!view.is_contiguous());
/// let concrete = view.eval(&Bindings::new().with("s", 3))?;
/// assert_eq!((concrete.shape(), concrete.strides()), (&[4, 3][..], &[1, 4][..]));
/// # Ok::<(), tercet_ir::DimError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SymLayout {
    shape: Vec<Dim>,
    strides: Vec<LayoutTerm>,
    /// The offset is the sum of these terms.
    offset: Vec<LayoutTerm>,
}

/// A slice of an axis: element `i` is element `start + i * step` of the source.
///
/// ```
/// use tercet_ir::{Bindings, Dim, layout::{AxisSlice, SymLayout}};
/// let layout = SymLayout::dense(&[Dim::Known(6)]).expect("the strides do not overflow");
/// let backwards = AxisSlice { start: Dim::Known(5), step: -2 };
/// let view = layout.slice(&[backwards], &[Dim::Known(3)]).expect("the strides do not overflow");
/// let view = view.eval(&Bindings::new())?;
/// assert_eq!((view.offset, view.strides()), (5, &[-2][..]));
/// # Ok::<(), tercet_ir::DimError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AxisSlice {
    /// Index of the first element.
    pub start: Dim,
    /// Difference of the axis indices of consecutive selected elements; if negative, the elements are
    /// in reverse order.
    pub step: i64,
}

impl SymLayout {
    /// The row-major layout of a shape; `None` when a stride overflows.
    pub fn dense(shape: &[Dim]) -> Option<SymLayout> {
        let mut stride = Dim::Known(1);
        let mut strides = Vec::with_capacity(shape.len());
        for dim in shape.iter().rev() {
            strides.push(LayoutTerm::from_dim(stride.clone()));
            // An axis of size zero must not make the outer strides zero: such axes would look
            // broadcast.
            if *dim != Dim::Known(0) {
                stride = stride.checked_mul(dim)?;
            }
        }
        strides.reverse();
        Some(SymLayout {
            shape: shape.to_vec(),
            strides,
            offset: Vec::new(),
        })
    }

    /// The dimensions.
    pub fn shape(&self) -> &[Dim] {
        &self.shape
    }

    /// The strides in elements, one for each axis.
    pub fn strides(&self) -> &[LayoutTerm] {
        &self.strides
    }

    /// The terms whose sum is the offset of the first element.
    pub fn offset(&self) -> &[LayoutTerm] {
        &self.offset
    }

    /// True if the elements are contiguous in row-major order, at any offset.
    pub fn is_contiguous(&self) -> bool {
        self.is_dense_from(0)
    }

    /// True if the axes from `axis` on are contiguous in row-major order; outer axes may have any
    /// stride.
    pub fn is_dense_from(&self, axis: usize) -> bool {
        SymLayout::dense(&self.shape[axis..]).is_some_and(|d| {
            let axes = self.shape.iter().zip(&self.strides).skip(axis);
            axes.zip(&d.strides).all(|((n, a), b)| n.is_one() || a == b)
        })
    }

    /// True if the value is its whole root, in order.
    pub fn covers_root(&self, numel_of_root: Option<&Dim>) -> bool {
        self.offset.is_empty()
            && self.is_contiguous()
            && numel_of_root.is_some_and(|root| numel(&self.shape).as_ref() == Some(root))
    }

    /// True if the last axis has stride 1 and no axis is reversed. Rows may have any distance and
    /// may overlap.
    pub fn has_dense_rows(&self) -> bool {
        let last = self.shape.last().zip(self.strides.last());
        last.is_none_or(|(n, s)| n.is_one() || s.is(1))
            && self.strides.iter().all(|s| s.factor >= 0)
    }

    /// True if no axis is reversed and one of the last two axes has stride 1.
    pub fn is_matrix(&self) -> bool {
        let n = self.strides.len();
        n >= 2
            && self.strides.iter().all(|s| s.factor >= 0)
            && (n - 2..n).any(|a| self.strides[a].is(1))
    }

    /// The view with permuted axes: axis `i` is axis `perm[i]` of the source.
    pub fn transpose(&self, perm: &[usize]) -> SymLayout {
        SymLayout {
            shape: perm.iter().map(|&a| self.shape[a].clone()).collect(),
            strides: perm.iter().map(|&a| self.strides[a].clone()).collect(),
            offset: self.offset.clone(),
        }
    }

    /// The view broadcast to the sizes `to` by NumPy's rule.
    pub fn expand(&self, to: &[Dim]) -> Option<SymLayout> {
        let missing = to.len().checked_sub(self.shape.len())?;
        let strides = to
            .iter()
            .enumerate()
            .map(|(axis, dim)| match axis.checked_sub(missing) {
                Some(own) if self.shape[own] == *dim => self.strides[own].clone(),
                Some(_) | None => LayoutTerm::ZERO,
            });
        Some(SymLayout {
            strides: strides.collect(),
            shape: to.to_vec(),
            offset: self.offset.clone(),
        })
    }

    /// The view with one slice per axis and the sizes `to`.
    pub fn slice(&self, cuts: &[AxisSlice], to: &[Dim]) -> Option<SymLayout> {
        let mut view = SymLayout {
            shape: to.to_vec(),
            ..self.clone()
        };
        for (axis, cut) in cuts.iter().enumerate() {
            let own = &self.strides[axis];
            if cut.start != Dim::Known(0) {
                view.offset.push(own.times(&cut.start)?);
            }
            view.strides[axis] = own.scaled(cut.step)?;
        }
        Some(view)
    }

    /// The view with other sizes in the same row-major order; `None` if that needs a copy.
    pub fn reshape(&self, to: &[Dim]) -> Option<SymLayout> {
        if self.is_contiguous() {
            return Some(SymLayout {
                offset: self.offset.clone(),
                ..SymLayout::dense(to)?
            });
        }
        let mut strides: Vec<LayoutTerm> = Vec::with_capacity(to.len());
        let mut from = (0..self.shape.len()).filter(|&a| !self.shape[a].is_one());
        let mut rest: Option<(Dim, Vec<usize>)> = None;
        // Axes are matched from the outside: each group of source axes with the group of target
        // axes of the same element count. Only a group of one source axis may be split. Several
        // source axes merge only if they are contiguous with each other.
        let mut pending: Vec<usize> = Vec::new();
        let mut product = Dim::Known(1);
        let close =
            |group: &[usize], targets: &[usize], strides: &mut Vec<LayoutTerm>| -> Option<()> {
                for pair in group.windows(2) {
                    let inner = self.strides[pair[1]].times(&self.shape[pair[1]])?;
                    if self.strides[pair[0]] != inner {
                        return None;
                    }
                }
                let mut stride = group
                    .last()
                    .map_or(LayoutTerm::from_dim(Dim::Known(1)), |&a| {
                        self.strides[a].clone()
                    });
                let at = strides.len();
                for &t in targets.iter().rev() {
                    strides.insert(at, stride.clone());
                    stride = stride.times(&to[t])?;
                }
                Some(())
            };
        for (t, dim) in to.iter().enumerate() {
            pending.push(t);
            product = product.checked_mul(dim)?;
            if rest.is_none() {
                if product.is_one() {
                    continue;
                }
                let first = from.next()?;
                rest = Some((self.shape[first].clone(), vec![first]));
            }
            let (have, group) = rest.as_mut()?;
            while *have != product && have.div_exact(&product).is_none() {
                let next = from.next()?;
                *have = have.checked_mul(&self.shape[next])?;
                group.push(next);
            }
            if *have == product {
                close(group, &pending, &mut strides)?;
                pending.clear();
                product = Dim::Known(1);
                rest = None;
            }
        }
        if rest.is_some() || from.next().is_some() {
            return None;
        }
        close(&[], &pending, &mut strides)?;
        Some(SymLayout {
            shape: to.to_vec(),
            strides,
            offset: self.offset.clone(),
        })
    }

    /// The layout for the sizes of a run.
    ///
    /// # Errors
    /// [`DimError`] when a size is invalid.
    pub fn eval(&self, sizes: &Bindings) -> Result<Layout, DimError> {
        let mut layout = Layout {
            rank: self.shape.len(),
            ..Layout::SCALAR
        };
        for axis in 0..self.shape.len() {
            layout.shape[axis] = self.shape[axis].eval(sizes)?;
            layout.strides[axis] = self.strides[axis].eval(sizes)?;
        }
        check_count(layout.shape(), || self.shape.clone().into())?;
        // The offset of an empty view may be outside its root, but it is never read.
        if layout.numel() > 0 {
            let mut offset = 0;
            for term in &self.offset {
                offset += term.eval(sizes)?;
            }
            layout.offset = usize::try_from(offset).unwrap_or(0);
        }
        Ok(layout)
    }
}

/// The product of the dimensions; `None` on overflow.
pub fn numel(shape: &[Dim]) -> Option<Dim> {
    shape
        .iter()
        .try_fold(Dim::Known(1), |n, d| n.checked_mul(d))
}

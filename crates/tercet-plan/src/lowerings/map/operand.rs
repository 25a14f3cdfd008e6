//! How map kernels address operands: which result axes determine an operand's address, after
//! adjacent axes are merged if possible.

use tercet_ir::ops::IndexMap;
use tercet_ir::{DType, Dim, Shape};

use super::codegen::{IndexTerm, OperandRead, VectorLoad};
use crate::emit::{LoweringCtx, SlotView};
use tercet_program::SlotId;
use tercet_program::SymInt;

/// One term of the address of an operand's element, equal to `distance * (index[axis] >> shift)`.
#[derive(Clone, Debug, PartialEq)]
struct AxisStep {
    axis: usize,
    shift: u8,
    /// The stride is the dimension `distance` (possibly symbolic) times the known `factor`.
    distance: Dim,
    factor: i64,
    backwards: bool,
}

/// An operand of a map; its address depends on the index of the result element.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct IndexedOperand {
    pub(super) slot: SlotId,
    pub(super) dtype: DType,
    offset: SymInt,
    walks: Vec<AxisStep>,
    /// The operand is contiguous: element `i` of the result reads element `offset + i`.
    flat: bool,
}

impl IndexedOperand {
    /// Describes how a map with a result of this shape reads a view through an index map.
    pub(super) fn new(
        e: &mut LoweringCtx<'_>,
        view: &SlotView,
        index: &IndexMap,
        shape: &Shape,
    ) -> IndexedOperand {
        let mut offset = e.offset(view);
        let strides = e.strides(view);
        let mut walks = Vec::new();
        let own = view.layout.shape().iter().zip(view.layout.strides());
        for ((map, (size, stride)), number) in index.axes.iter().zip(own).zip(strides) {
            let start = e.tape().mul(number, SymInt::Const(map.start));
            offset = e.tape().add(offset, start);
            let factor = stride.factor().wrapping_mul(map.step);
            let distance = Dim::Known(factor.unsigned_abs() as usize);
            let (Some(axis), Some(distance)) = (map.from, stride.dim().checked_mul(&distance))
            else {
                continue;
            };
            // On an axis of size 1, and after a shift by 32, the index is always 0.
            if factor != 0 && map.shift < 32 && !size.is_one() && !shape[axis].is_one() {
                walks.push(AxisStep {
                    axis,
                    shift: map.shift,
                    distance,
                    factor,
                    backwards: factor < 0,
                });
            }
        }
        let flat = is_flat(&walks, shape);
        IndexedOperand {
            slot: view.slot,
            dtype: view.dtype,
            offset,
            walks,
            flat,
        }
    }

    /// The address terms that depend on the index along this result axis.
    fn along(&self, axis: usize) -> impl Iterator<Item = &AxisStep> {
        self.walks.iter().filter(move |w| w.axis == axis)
    }

    /// True if this operand allows merging axes `outer` and `inner`: the stride of `outer` equals
    /// `size`, the size of `inner`, times the stride of `inner`.
    fn merges(&self, outer: usize, inner: usize, size: &Dim) -> bool {
        let (mut a, mut b) = (self.along(outer), self.along(inner));
        match (a.next(), b.next(), a.next(), b.next()) {
            (None, None, None, None) => true,
            (Some(a), Some(b), None, None) => {
                (a.shift, b.shift, a.backwards) == (0, 0, b.backwards)
                    && b.distance.checked_mul(size).as_ref() == Some(&a.distance)
            }
            _ => false,
        }
    }
}

/// True if the address terms use exactly the row-major strides of this shape.
fn is_flat(walks: &[AxisStep], shape: &Shape) -> bool {
    let mut dense = Some(Dim::Known(1));
    let mut count = 0;
    for (axis, size) in shape.iter().enumerate().rev() {
        if size.is_one() {
            continue;
        }
        let mut own = walks.iter().filter(|w| w.axis == axis);
        let (Some(walk), None, Some(expected)) = (own.next(), own.next(), &dense) else {
            return false;
        };
        if walk.shift != 0 || walk.backwards || walk.distance != *expected {
            return false;
        }
        count += 1;
        dense = expected.checked_mul(size);
    }
    count == walks.len()
}

/// The coordinates that a kernel computes from the linear result index: one per group of result
/// axes that all operands allow to merge.
pub(super) struct CoordinateGroups {
    /// Innermost result axis of each axis group; the outermost group comes first.
    inner: Vec<usize>,
    /// Sizes of the axis groups, except that of the outermost.
    pub(super) sizes: Vec<SymInt>,
    numel: SymInt,
}

impl CoordinateGroups {
    pub(super) fn new(
        e: &mut LoweringCtx<'_>,
        shape: &Shape,
        operands: &[&IndexedOperand],
    ) -> CoordinateGroups {
        let strided = || operands.iter().filter(|o| !o.flat);
        let mut inner: Vec<usize> = Vec::new();
        let mut sizes: Vec<SymInt> = Vec::new();
        let axes = (0..shape.len()).filter(|&a| !shape[a].is_one());
        for axis in axes.filter(|_| strided().next().is_some()) {
            let size = e.num(&shape[axis]);
            match (inner.last_mut(), sizes.last_mut()) {
                (Some(outer), Some(group))
                    if strided().all(|o| o.merges(*outer, axis, &shape[axis])) =>
                {
                    *outer = axis;
                    *group = e.tape().mul(*group, size);
                }
                _ => {
                    inner.push(axis);
                    sizes.push(size);
                }
            }
        }
        if !sizes.is_empty() {
            sizes.remove(0);
        }
        let numel = e.numel(shape);
        CoordinateGroups {
            inner,
            sizes,
            numel,
        }
    }

    /// True if any `elements` consecutive result elements, aligned to that number, differ only in
    /// the innermost coordinate.
    pub(super) fn is_contiguous(&self, e: &mut LoweringCtx<'_>, elements: u32) -> bool {
        let row = self.sizes.last().copied().unwrap_or(self.numel);
        let tape = e.tape();
        tape.is_multiple(self.numel, elements) && tape.is_multiple(row, elements)
    }

    /// How a thread reads the operand for `elements` consecutive, aligned result elements.
    pub(super) fn along(
        &self,
        e: &mut LoweringCtx<'_>,
        o: &IndexedOperand,
        elements: u32,
    ) -> VectorLoad {
        let starts_whole = e.tape().is_multiple(o.offset, elements);
        let (true, false) = (!o.flat, o.walks.is_empty()) else {
            return match (o.flat, starts_whole) {
                (true, true) => VectorLoad::Vector,
                (true, false) => VectorLoad::PerElement,
                (false, _) => VectorLoad::Broadcast,
            };
        };
        let last = self.inner.last().copied();
        let walked = o.walks.iter().filter(|w| self.inner.contains(&w.axis));
        let (within, across): (Vec<&AxisStep>, Vec<&AxisStep>) =
            walked.partition(|w| Some(w.axis) == last);
        match within[..] {
            [] => VectorLoad::Broadcast,
            [w] if w.distance.is_one() && !w.backwards && w.shift == 0 => {
                let whole = |w: &&AxisStep| w.factor % i64::from(elements) == 0;
                match starts_whole && across.iter().all(whole) {
                    true => VectorLoad::Vector,
                    false => VectorLoad::PerElement,
                }
            }
            _ => VectorLoad::PerElement,
        }
    }

    /// Describes the operand's access for code generation. Appends the operand's strides and offset
    /// to the parameter `words`.
    pub(super) fn read(
        &self,
        e: &mut LoweringCtx<'_>,
        o: &IndexedOperand,
        words: &mut Vec<SymInt>,
    ) -> OperandRead {
        let offset = (o.offset != SymInt::ZERO).then(|| {
            words.push(o.offset);
            words.len() - 1
        });
        let mut terms = Vec::new();
        for (group, &axis) in self.inner.iter().enumerate() {
            for walk in o.along(axis).filter(|_| !o.flat) {
                let size = e.num(&walk.distance);
                words.push(match walk.backwards {
                    true => e.tape().sub(SymInt::ZERO, size),
                    false => size,
                });
                terms.push(IndexTerm {
                    group,
                    shift: walk.shift,
                    word: words.len() - 1,
                });
            }
        }
        OperandRead {
            dtype: o.dtype,
            flat: o.flat,
            offset,
            terms,
            load: VectorLoad::PerElement,
            result: None,
        }
    }
}

//! How operands are read: which axes of the result they follow, and as few of them as will do.

use tercet_ir::ops::IndexMap;
use tercet_ir::{DType, Dim, Shape};

use super::text::{Load, Read, Term};
use crate::emit::{Emit, View};
use crate::num::Num;
use crate::program::SlotId;

/// Adds `distance * (index[axis] >> shift)` to the place of an element.
#[derive(Clone, Debug, PartialEq)]
struct AxisStep {
    axis: usize,
    shift: u8,
    /// The size of the distance, and the part of it that is known.
    distance: Dim,
    factor: i64,
    backwards: bool,
}

/// An operand as the result's index finds it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Operand {
    pub(super) slot: SlotId,
    pub(super) dtype: DType,
    offset: Num,
    walks: Vec<AxisStep>,
    /// Element `offset + i` for element `i` of the result.
    flat: bool,
}

impl Operand {
    /// A view that is read through an index map for a result of this shape.
    pub(super) fn of(e: &mut Emit<'_>, view: &View, index: &IndexMap, shape: &Shape) -> Operand {
        let mut offset = e.offset(view);
        let strides = e.strides(view);
        let mut walks = Vec::new();
        let own = view.layout.shape().iter().zip(view.layout.strides());
        for ((map, (size, stride)), number) in index.axes.iter().zip(own).zip(strides) {
            let start = e.tape().mul(number, Num::Const(map.start));
            offset = e.tape().add(offset, start);
            let factor = stride.factor().wrapping_mul(map.step);
            let distance = Dim::Known(factor.unsigned_abs() as usize);
            let (Some(axis), Some(distance)) = (map.from, stride.dim().checked_mul(&distance))
            else {
                continue;
            };
            // Along an axis of size 1 the index stays 0, and so it does after a shift by 32.
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
        Operand {
            slot: view.slot,
            dtype: view.dtype,
            offset,
            walks,
            flat,
        }
    }

    /// The walks along an axis.
    fn along(&self, axis: usize) -> impl Iterator<Item = &AxisStep> {
        self.walks.iter().filter(move |w| w.axis == axis)
    }

    /// True if stepping along `outer` is as stepping the whole of `inner`, of this size.
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

/// True if the walks are the row-major strides of the shape.
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

/// The coordinates that operands need: groups of axes of the result that none tells apart.
pub(super) struct Coordinates {
    /// The innermost axis of each group, from the outside.
    inner: Vec<usize>,
    /// The sizes of the groups, without the outermost.
    pub(super) sizes: Vec<Num>,
    numel: Num,
}

impl Coordinates {
    pub(super) fn of(e: &mut Emit<'_>, shape: &Shape, operands: &[&Operand]) -> Coordinates {
        let strided = || operands.iter().filter(|o| !o.flat);
        let mut inner: Vec<usize> = Vec::new();
        let mut sizes: Vec<Num> = Vec::new();
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
        Coordinates {
            inner,
            sizes,
            numel,
        }
    }

    /// True if this many elements, from a multiple of it on, differ in the innermost coordinate only.
    pub(super) fn keep_together(&self, e: &mut Emit<'_>, elements: u32) -> bool {
        let row = self.sizes.last().copied().unwrap_or(self.numel);
        let tape = e.tape();
        tape.is_multiple(self.numel, elements) && tape.is_multiple(row, elements)
    }

    /// How an operand lies along such elements.
    pub(super) fn along(&self, e: &mut Emit<'_>, o: &Operand, elements: u32) -> Load {
        let starts_whole = e.tape().is_multiple(o.offset, elements);
        let (true, false) = (!o.flat, o.walks.is_empty()) else {
            return match (o.flat, starts_whole) {
                (true, true) => Load::Vector,
                (true, false) => Load::Each,
                (false, _) => Load::Once,
            };
        };
        let last = self.inner.last().copied();
        let walked = o.walks.iter().filter(|w| self.inner.contains(&w.axis));
        let (within, across): (Vec<&AxisStep>, Vec<&AxisStep>) =
            walked.partition(|w| Some(w.axis) == last);
        match within[..] {
            [] => Load::Once,
            [w] if w.distance.is_one() && !w.backwards && w.shift == 0 => {
                let whole = |w: &&AxisStep| w.factor % i64::from(elements) == 0;
                match starts_whole && across.iter().all(whole) {
                    true => Load::Vector,
                    false => Load::Each,
                }
            }
            _ => Load::Each,
        }
    }

    /// How an operand is read; its numbers are appended to `words`.
    pub(super) fn read(&self, e: &mut Emit<'_>, o: &Operand, words: &mut Vec<Num>) -> Read {
        let offset = (o.offset != Num::ZERO).then(|| {
            words.push(o.offset);
            words.len() - 1
        });
        let mut terms = Vec::new();
        for (group, &axis) in self.inner.iter().enumerate() {
            for walk in o.along(axis).filter(|_| !o.flat) {
                let size = e.num(&walk.distance);
                words.push(match walk.backwards {
                    true => e.tape().sub(Num::ZERO, size),
                    false => size,
                });
                terms.push(Term {
                    group,
                    shift: walk.shift,
                    word: words.len() - 1,
                });
            }
        }
        Read {
            dtype: o.dtype,
            flat: o.flat,
            offset,
            terms,
            load: Load::Each,
            result: None,
        }
    }
}

//! Overlaps of one box with a list of boxes, for non-maximum suppression.

use super::simd::{Simd, simd_dispatch};

/// Boxes per block of the comparison; a block is one iteration of vector code.
const BLOCK: usize = 16;

/// Lower and upper corner `y1, x1, y2, x2`, and area.
pub(crate) type BoxParts = [f32; 5];

/// The parts of a box from its corners or, if `is_centered`, from its center and its size.
pub(crate) fn box_parts(parts: &[f32], is_centered: bool) -> BoxParts {
    let axis = |axis: usize| {
        let (a, b) = (parts[axis], parts[axis + 2]);
        match is_centered {
            true => (a - b * 0.5, a + b * 0.5),
            false => (a.min(b), a.max(b)),
        }
    };
    let ((y1, y2), (x1, x2)) = (axis(0), axis(1));
    [y1, x1, y2, x2, (y2 - y1) * (x2 - x1)]
}

/// Floats that a [`BoxList`] of `n` boxes requires.
pub(crate) fn list_len(n: usize) -> usize {
    n.next_multiple_of(BLOCK) * 5
}

/// A growing list of boxes: five lists of parts. Places after the last box hold empty boxes.
pub(crate) struct BoxList<'a> {
    parts: [&'a mut [f32]; 5],
    len: usize,
}

impl<'a> BoxList<'a> {
    /// An empty list in memory of [`list_len`] floats.
    pub(crate) fn new(memory: &'a mut [f32]) -> BoxList<'a> {
        let room = memory.len() / 5;
        let mut lists = memory.chunks_exact_mut(room.max(1));
        let parts = std::array::from_fn(|_| lists.next().unwrap_or_default());
        BoxList { parts, len: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Adds a box.
    pub(crate) fn push(&mut self, one: &BoxParts) {
        for (list, part) in self.parts.iter_mut().zip(one) {
            if self.len.is_multiple_of(BLOCK) {
                list[self.len..][..BLOCK].fill(0.0);
            }
            list[self.len] = *part;
        }
        self.len += 1;
    }

    /// True if the intersection over union of the box with one of the list exceeds `most`.
    pub(crate) fn covers(&self, level: super::SimdLevel, one: &BoxParts, most: f32) -> bool {
        let used = self.len.next_multiple_of(BLOCK);
        covers(
            level,
            self.parts.each_ref().map(|list| &list[..used]),
            one,
            most,
        )
    }
}

simd_dispatch!(
    fn covers(lists: [&[f32]; 5], one: &BoxParts, most: f32) -> bool = covers_body
);

/// Comparisons that become single vector instructions; a NaN in `a` gives `b`. The area of a box
/// with a NaN is NaN, so that it covers nothing.
///
/// # Safety
/// The machine has the instructions of `S`.
#[inline(always)]
unsafe fn covers_body<S: Simd>(lists: [&[f32]; 5], one: &BoxParts, most: f32) -> bool {
    let larger = |a: f32, b: f32| if a > b { a } else { b };
    let smaller = |a: f32, b: f32| if a < b { a } else { b };
    let [y1, x1, y2, x2, area] = lists.map(|list| list.as_chunks::<BLOCK>().0);
    for block in 0..y1.len() {
        let mut is_covered = [false; BLOCK];
        for (i, is_covered) in is_covered.iter_mut().enumerate() {
            let low = larger(y1[block][i], one[0]);
            let height = larger(smaller(y2[block][i], one[2]) - low, 0.0);
            let low = larger(x1[block][i], one[1]);
            let width = larger(smaller(x2[block][i], one[3]) - low, 0.0);
            let common = height * width;
            let union = area[block][i] + one[4] - common;
            // Boxes of other places, with an area of 0, have nothing in common with any box.
            *is_covered = (common > 0.0) & (common / union > most);
        }
        if is_covered.contains(&true) {
            return true;
        }
    }
    false
}

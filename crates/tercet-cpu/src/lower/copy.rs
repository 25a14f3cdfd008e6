//! Copies strided views into dense memory, for elements of any size.

use bytemuck::Pod;

use crate::args::{KernelArgs, KernelView};
use crate::lower::elem::parts;
use crate::lower::{AcceptedLayout, LoweredNode};
use tercet_ir::layout::Layout;

/// Elements per parallel task.
const TASK: usize = 1 << 16;

/// Kernel that copies a view into dense memory.
pub(crate) fn copy_kernel() -> LoweredNode {
    let run = |args: &mut KernelArgs<'_>| {
        let from = args.ins[0];
        copy_view(&from, args.outs[0].bytes, args.parallel);
        Ok(())
    };
    LoweredNode {
        accepts: vec![AcceptedLayout::Any],
        ..LoweredNode::new(1, run)
    }
}

/// Writes the elements of a view in row-major order.
pub(crate) fn copy_view(from: &KernelView<'_>, to: &mut [u8], parallel: bool) {
    if from.layout.numel() == 0 {
        return;
    }
    if from.layout.is_dense() {
        to.copy_from_slice(from.dense_bytes());
        return;
    }
    match from.dtype.size_bytes() {
        1 => copy_as::<u8>(from, to, parallel),
        2 => copy_as::<u16>(from, to, parallel),
        4 => copy_as::<u32>(from, to, parallel),
        _ => copy_as::<u64>(from, to, parallel),
    }
}

fn copy_as<T: Pod + Send + Sync>(from: &KernelView<'_>, to: &mut [u8], parallel: bool) {
    let source: &[T] = from.root_as();
    let target: &mut [T] = bytemuck::cast_slice_mut(to);
    let walk = StridedRuns::new(from.layout);
    if parallel {
        let rows = TASK.div_ceil(walk.len).max(1) * walk.len;
        parts(true, target, rows, |i, part| {
            walk.copy(source, i * rows / walk.len, part);
        });
    } else {
        walk.copy(source, 0, target);
    }
}

/// A layout as runs of constant stride. A run covers the last axis, and the axes before it if all
/// their elements are equidistant.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StridedRuns {
    /// The remaining outer axes; each of their indices is one run.
    outer: Layout,
    /// Elements of a run.
    pub(crate) len: usize,
    /// Stride within a run.
    pub(crate) stride: isize,
}

impl StridedRuns {
    /// Splits a non-empty layout into runs.
    pub(crate) fn new(layout: &Layout) -> StridedRuns {
        let (shape, strides) = (layout.shape(), layout.strides());
        let mut axes = shape.len();
        let (mut len, mut stride) = (1, 0);
        while axes > 0 {
            let (n, s) = (shape[axes - 1], strides[axes - 1]);
            if len == 1 {
                (len, stride) = (n, s);
            } else if n != 1 && s != stride * len as isize {
                break;
            } else {
                len *= n;
            }
            axes -= 1;
        }
        StridedRuns {
            outer: Layout::new(&shape[..axes], &strides[..axes], layout.offset),
            len,
            stride,
        }
    }

    /// Calls `f` with the start offset of each run, from run `first` on, until `f` returns false.
    pub(crate) fn for_each_run(&self, first: usize, mut f: impl FnMut(usize) -> bool) {
        let (shape, strides) = (self.outer.shape(), self.outer.strides());
        let mut index = [0; tercet_ir::MAX_RANK];
        let mut at = self.outer.offset as isize;
        let mut rest = first;
        for axis in (0..shape.len()).rev() {
            index[axis] = rest % shape[axis];
            rest /= shape[axis];
            at += index[axis] as isize * strides[axis];
        }
        while f(at as usize) {
            let mut axis = shape.len();
            loop {
                if axis == 0 {
                    return;
                }
                axis -= 1;
                index[axis] += 1;
                at += strides[axis];
                if index[axis] < shape[axis] {
                    break;
                }
                at -= strides[axis] * shape[axis] as isize;
                index[axis] = 0;
            }
        }
    }

    /// Copies runs from `first` on into `to`, whose length is a multiple of the run length.
    fn copy<T: Pod>(&self, source: &[T], first: usize, to: &mut [T]) {
        let mut runs = to.chunks_exact_mut(self.len);
        self.for_each_run(first, |at| {
            let Some(run) = runs.next() else { return false };
            match self.stride {
                1 => run.copy_from_slice(&source[at..at + run.len()]),
                0 => run.fill(source[at]),
                stride => {
                    let mut from = at as isize;
                    for x in run {
                        *x = source[from as usize];
                        from += stride;
                    }
                }
            }
            true
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tercet_ir::DType;

    #[test]
    fn strided_reversed_and_broadcast_views_are_copied_in_order() {
        let data: Vec<u16> = (0..24).collect();
        let check = |shape: &[usize], strides: &[isize], offset: usize, want: &[u16]| {
            let layout = Layout::new(shape, strides, offset);
            let view = KernelView {
                root: bytemuck::cast_slice(&data),
                within: 0,
                dtype: DType::F16,
                layout: &layout,
            };
            for parallel in [false, true] {
                let mut to = vec![0u16; want.len()];
                copy_view(&view, bytemuck::cast_slice_mut(&mut to), parallel);
                assert_eq!(to, want, "{shape:?} {strides:?}");
            }
        };
        check(&[2, 3], &[1, 2], 0, &[0, 2, 4, 1, 3, 5]);
        check(&[2, 3], &[12, -1], 2, &[2, 1, 0, 14, 13, 12]);
        check(&[2, 2, 2], &[0, 1, 0], 5, &[5, 5, 6, 6, 5, 5, 6, 6]);
        check(
            &[2, 2, 3],
            &[12, 6, 2],
            1,
            &[1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23],
        );
        check(&[], &[], 7, &[7]);
    }
}

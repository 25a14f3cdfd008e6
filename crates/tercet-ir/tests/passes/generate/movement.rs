//! Generates operators that move elements.

use tercet_ir::attr::FloatAttr;
use tercet_ir::ops::*;
use tercet_ir::{Shape, Value};

use super::Generator;

impl Generator<'_> {
    pub(super) fn movement(&mut self) -> Option<Value> {
        let x = self.value();
        let shape = self.shape(x);
        let rank = shape.rank();
        match self.next(7) {
            0 => {
                let mut perm: Vec<usize> = (0..rank).collect();
                let by = self.next(rank);
                perm.rotate_left(by);
                if self.next(2) == 0 {
                    perm.reverse();
                }
                self.push(Transpose { perm }, &[x])
            }
            1 => {
                let mut dims = shape.into_dims();
                let at = self.next(rank + 1);
                match self.next(3) {
                    0 => dims.insert(at, 1.into()),
                    1 => dims.retain(|d| !d.is_one()),
                    _ => dims = vec![Shape::new(dims).numel()?],
                }
                self.push(Reshape { shape: dims.into() }, &[x])
            }
            2 | 3 => self.slice(x, rank),
            4 => {
                let axis = self.next(rank);
                let op: Op = Concat { axis }.into();
                match self.next(3) {
                    0 => self.push(op, &[x]),
                    _ => {
                        let y = self.operand(&op, &[x], 0)?;
                        self.push(op, &[x, y])
                    }
                }
            }
            5 => {
                let mut dims = shape.into_dims();
                dims.iter_mut()
                    .filter(|d| d.is_one())
                    .for_each(|d| *d = 3.into());
                if self.next(2) == 0 {
                    dims.insert(0, 2.into());
                }
                self.push(Expand { shape: dims.into() }, &[x])
            }
            _ => {
                let amount = self.next(3);
                let mode = self.pick(PadMode::ALL);
                let mut pad = Pad {
                    before: vec![0; rank],
                    after: vec![0; rank],
                    mode,
                    value: FloatAttr(0.0),
                };
                if rank > 0 {
                    let axis = self.next(rank);
                    pad.before[axis] = amount;
                }
                self.push(pad, &[x])
            }
        }
    }

    fn slice(&mut self, x: Value, rank: usize) -> Option<Value> {
        let mut slice = Slice {
            starts: vec![0; rank],
            ends: vec![i64::MAX; rank],
            steps: vec![1; rank],
        };
        if rank > 0 {
            let axis = self.next(rank);
            slice.starts[axis] = self.pick(&[0, 0, 1, 2, -2, -1]);
            slice.ends[axis] = self.pick(&[i64::MAX, i64::MAX, 3, -1, 2]);
            slice.steps[axis] = self.pick(&[1, 1, 2]);
            if self.next(6) == 0 {
                slice.starts[axis] = i64::MAX;
                slice.ends[axis] = i64::MIN;
                slice.steps[axis] = -1;
            }
        }
        self.push(slice, &[x])
    }
}

//! Generates matmuls and convolutions in patterns that `few_rows`, `factors` and `patches` match.

use tercet_ir::ops::*;
use tercet_ir::scalar::BinaryFn;
use tercet_ir::{DType, Tensor, TensorType, Value};

use super::Generator;

impl Generator<'_> {
    /// One row of a matmul, selected by a slice or by a computed index.
    pub(super) fn few_rows(&mut self) -> Option<Value> {
        let y = self.projection(self.leaf("cube"))?;
        let slice = Slice {
            starts: vec![0, self.pick(&[0, 1]), 0],
            ends: vec![i64::MAX; 3],
            steps: vec![1; 3],
        };
        if self.next(2) == 0 {
            let ends = vec![i64::MAX, slice.starts[1] + 1, i64::MAX];
            return self.push(Slice { ends, ..slice }, &[y]);
        }
        let tensor = Tensor::from_slice(&[2, 1], &[1i32, 0]).unwrap();
        let places = self.push(Const { tensor }, &[])?;
        self.push(GatherNd { batch_dims: 1 }, &[y, places])
    }

    /// A scalar factor before or after a matmul with converted weights.
    pub(super) fn factor(&mut self) -> Option<Value> {
        let (mut x, w) = (self.leaf("half"), self.leaf("w0"));
        let w = self.push(Cast { to: DType::F16 }, &[w])?;
        let ty = TensorType::new(DType::F16, &[]);
        let tensor = Tensor::from_f64s(ty, &[self.pick(&[2.0, -0.5, 1.5, 8.0])]).unwrap();
        let by = self.push(Const { tensor }, &[])?;
        let times = Binary { f: BinaryFn::Mul };
        let is_before = self.next(2) == 0;
        if is_before {
            x = self.push(times.clone(), &[x, by])?;
        }
        let y = self.push(MatMul {}, &[x, w])?;
        match is_before {
            true => Some(y),
            false => self.push(times, &[y, by]),
        }
    }

    /// A convolution with adjacent windows, usually followed by a reshape of its result to rows.
    pub(super) fn patches(&mut self) -> Option<Value> {
        let shape = [1, 1, 4, 4].into();
        let x = self.push(Reshape { shape }, &[self.leaf("w0")])?;
        let shape = [4, 1, 2, 2].into();
        let w = self.push(Reshape { shape }, &[self.leaf("w2")])?;
        let stride = self.pick(&[2, 2, 2, 1]);
        let window = Window::new(2).with_stride(&[stride, stride]);
        let y = self.push(Conv::new(window, 1, None), &[x, w])?;
        let places = if stride == 2 { 4 } else { 9 };
        let shape = [1, 4, places].into();
        let y = self.push(Reshape { shape }, &[y])?;
        let perm = vec![0, 2, 1];
        self.push(Transpose { perm }, &[y])
    }

    fn leaf(&self, name: &str) -> Value {
        Value {
            node: self.graph.leaf(name).unwrap(),
            port: 0,
        }
    }
}

//! The operator `example.running_median`.

use tercet::attr::{AttrLiteral, Attrs};
use tercet::custom::{CustomOp, WgslGrid, WgslKernel, WgslParam};
use tercet::grad::{Vjp, VjpResult};
use tercet::ops::PadMode;
use tercet::{DType, Dim, EvalError, Tensor, TensorType, Type, TypeError};

tercet::attrs! {
    /// Median of `width` neighbours along the rows of F32 `[rows, columns]`. The result has the
    /// type of the operand. At the ends of a row, its first and last element are repeated. If a
    /// window contains NaN, its result is unspecified.
    pub struct RunningMedian {
        /// Window size in elements; must be odd.
        pub width: usize,
    }
}

impl RunningMedian {
    /// Name of the operator.
    pub(crate) const NAME: &'static str = "example.running_median";
}

impl CustomOp for RunningMedian {
    fn name(&self) -> &str {
        Self::NAME
    }

    fn attrs(&self) -> Vec<(&'static str, AttrLiteral)> {
        self.to_literals()
    }

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        let [x] = operands else {
            return Err(TypeError::Arity {
                expected: "1".to_string(),
                given: operands.len(),
            });
        };
        if x.dtype != DType::F32 || x.rank() != 2 {
            let reason = format!("x is {x}; accepted: f32[rows, columns]");
            return Err(TypeError::Other(reason));
        }
        if self.width.is_multiple_of(2) || u32::try_from(self.width).is_err() {
            let reason = format!("{} is not an odd number that fits u32", self.width);
            return Err(TypeError::Attr {
                name: "width",
                reason,
            });
        }
        Ok(vec![(*x).clone()])
    }

    fn eval(&self, operands: &[&Tensor], results: &[TensorType]) -> Result<Vec<Tensor>, EvalError> {
        let x = operands[0].as_slice::<f32>()?;
        let columns = operands[0].shape()[1];
        let half = self.width / 2;
        let mut y = Vec::with_capacity(x.len());
        for row in x.chunks_exact(columns.max(1)) {
            for column in 0..columns {
                let place = |i: usize| (column + i).saturating_sub(half).min(columns - 1);
                let mut window: Vec<f32> = (0..self.width).map(|i| row[place(i)]).collect();
                window.sort_by(f32::total_cmp);
                y.push(window[half]);
            }
        }
        Ok(vec![Tensor::from_slice(&results[0].shape, &y)?])
    }

    fn kernels(&self, operands: &[&Type], _: &[Type]) -> Option<Vec<WgslKernel>> {
        let [rows, columns] = &operands[0].shape[..] else {
            return None;
        };
        Some(vec![WgslKernel {
            source: include_str!("median.wgsl").to_string(),
            entry: "median".to_string(),
            workgroup: [64, 1, 1],
            writes: vec![0],
            params: vec![
                WgslParam::U32(rows.clone()),
                WgslParam::U32(columns.clone()),
                WgslParam::U32(Dim::Known(self.width)),
            ],
            // The dimensions may be symbolic; the grid size is then computed for each run.
            grid: WgslGrid::Line(rows.checked_mul(columns)?),
        }])
    }

    /// Expresses the operator by differentiable ones: the middle element of the sorted neighbours.
    fn gradient(&self, v: &mut Vjp<'_>) -> VjpResult {
        v.through(|g, operands| {
            let half = self.width / 2;
            let x = g.pad(operands[0], &[0, half], &[0, half], PadMode::Edge, 0.0)?;
            let mut neighbours = Vec::with_capacity(self.width);
            for first in 0..self.width {
                let end = match self.width - 1 - first {
                    0 => i64::MAX,
                    beyond => -(beyond as i64),
                };
                let own = g.slice_axis(x, 1, first as i64, end, 1)?;
                let [rows, columns] = [0, 1].map(|axis| g.ty(own).shape[axis].clone());
                neighbours.push(g.reshape(own, [rows, columns, Dim::Known(1)])?);
            }
            let all = g.concat(&neighbours, 2)?;
            let sorted = g.sort(all, 2, false)?;
            let median = g.slice_axis(sorted, 2, half as i64, half as i64 + 1, 1)?;
            let shape = g.ty(operands[0]).shape.clone();
            Ok(vec![g.reshape(median, shape)?])
        })
    }
}

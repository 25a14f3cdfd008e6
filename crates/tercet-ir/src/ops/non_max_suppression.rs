//! Non-maximum suppression of boxes.

use tercet_tensor::accuracy::Accuracy;
use tercet_tensor::{DType, Dim, Tensor, TensorType, Type};

use crate::attr::FloatAttr;
use crate::attrs;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::Gradient;
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::util::{exactly, expect_dtype, expect_equal, expect_rank, expect_same_dtype};

attrs! {
    /// Selects boxes by descending score, separately for each class (ONNX `NonMaxSuppression`). A
    /// box is left out if its intersection over union with a box that was selected before exceeds a
    /// threshold.
    ///
    /// The operands are boxes `[batches, boxes, 4]` and scores `[batches, classes, boxes]`. Of equal
    /// scores the first box is selected. A box with score NaN is never selected, and boxes without
    /// an area overlap with nothing.
    ///
    /// The result rows are batch, class and box, ordered by batch, class and selection. Their number
    /// depends on the data, but the shape of the result does not: rows after the last box are 0.
    /// `count` is the number of valid rows.
    ///
    /// Overlaps are computed in F32, and in F64 for F64 boxes.
    ///
    /// ```
    /// # use std::collections::BTreeMap;
    /// use tercet_ir::ops::NonMaxSuppression;
    /// use tercet_ir::{EvalCtx, Graph, Tensor, evaluate};
    /// let mut g = Graph::new();
    /// let boxes = [0f32, 0.0, 2.0, 2.0, 0.0, 0.0, 2.0, 1.9, 5.0, 5.0, 6.0, 6.0];
    /// let boxes = g.constant(Tensor::from_slice(&[1, 3, 4], &boxes)?)?;
    /// let scores = g.constant(Tensor::from_slice(&[1, 1, 3], &[0.5f32, 0.9, 0.7])?)?;
    /// let op = NonMaxSuppression {
    ///     max_boxes: 3,
    ///     iou_threshold: 0.5.into(),
    ///     score_threshold: None,
    ///     is_centered: false,
    /// };
    /// let rows = g.add(op, &[boxes, scores])?;
    /// let done = evaluate(&g, &EvalCtx::default(), &BTreeMap::new())?;
    /// assert_eq!(done.get(rows).as_slice::<i32>()?, [0, 0, 1, 0, 0, 2, 0, 0, 0]);
    /// assert_eq!(done.get(rows.port(1)).as_slice::<i32>()?, [2]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub struct NonMaxSuppression {
        /// The maximum number of boxes of each class of each batch.
        pub max_boxes: usize,
        /// The intersection over union above which a box is left out.
        pub iou_threshold: FloatAttr,
        /// The score that a box must exceed.
        pub score_threshold: Option<FloatAttr>,
        /// True if a box is its center and its size, false if it is two opposite corners.
        pub is_centered: bool,
    }
}

impl OpSpec for NonMaxSuppression {
    const DOC: OpDoc = OpDoc {
        name: "non_max_suppression",
        text: "Selects boxes by descending score, at most `max_boxes` for each batch and class, \
               without those whose intersection over union with a selected box exceeds \
               `iou_threshold`. The results are rows of batch, class and box, and their number \
               (`i32[]`); rows after the last box are 0.",
        operands: &["boxes", "scores"],
        dtypes: DType::FLOATS,
        accuracy: Accuracy::Exact,
        tier: Tier::Composite,
    };

    const GRADIENT: Gradient<Self> = Gradient::Zero("indices and counts are integers");

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        let [boxes, scores] = exactly(operands)?;
        expect_dtype("boxes", boxes, DType::FLOATS)?;
        expect_same_dtype("scores", scores, boxes)?;
        expect_rank("boxes", boxes, 3)?;
        expect_rank("scores", scores, 3)?;
        expect_equal("the numbers of batches", &boxes.shape[0], &scores.shape[0])?;
        expect_equal("the numbers of boxes", &boxes.shape[1], &scores.shape[2])?;
        expect_equal(
            "axis 2 of the boxes and the numbers of a box",
            &boxes.shape[2],
            &Dim::Known(4),
        )?;
        let classes = scores.shape[0].checked_mul(&scores.shape[1]);
        let rows = classes.and_then(|n| n.checked_mul(&Dim::Known(self.max_boxes)));
        let fits = |n: &Dim| n.known().is_none_or(|n| i32::try_from(n).is_ok());
        let rows = rows.filter(fits).ok_or_else(|| {
            let [batches, classes] = [&scores.shape[0], &scores.shape[1]];
            let most = self.max_boxes;
            let reason = format!(
                "{batches} batches of {classes} classes with max_boxes={most} have more rows than \
                 i32 counts; lower max_boxes"
            );
            TypeError::Other(reason)
        })?;
        let rows = Type::new(DType::I32, [rows, Dim::Known(3)]);
        Ok(vec![rows, Type::new(DType::I32, [0usize; 0])])
    }

    fn eval(
        &self,
        _: &EvalCtx,
        operands: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        let [boxes, scores] = [operands[0], operands[1]];
        let &[batches, classes, n] = scores.shape() else {
            unreachable!("invariant: inference checked the rank")
        };
        let round = match boxes.dtype() {
            DType::F64 => |x: f64| x,
            // One operation in F64 on F32 operands and this rounding give the result in F32.
            _ => |x: f64| f64::from(x as f32),
        };
        let (boxes, scores) = (boxes.to_f64s(), scores.to_f64s());
        let mut rows = Vec::with_capacity(results[0].numel());
        for i in 0..batches * classes {
            let (batch, class) = (i / classes, i % classes);
            let corners = |k: usize| self.corners(&boxes[(batch * n + k) * 4..][..4], round);
            for k in self.selected(&scores[i * n..][..n], corners, round) {
                rows.extend([batch as i64, class as i64, k as i64]);
            }
        }
        let count = (rows.len() / 3) as i64;
        rows.resize(results[0].numel(), 0);
        Ok(vec![
            Tensor::from_i64s(results[0].clone(), &rows)?,
            Tensor::from_i64s(results[1].clone(), &[count])?,
        ])
    }
}

impl NonMaxSuppression {
    /// The lower and the upper corner of a box.
    fn corners(&self, parts: &[f64], round: fn(f64) -> f64) -> [f64; 4] {
        let axis = |axis: usize| {
            let (a, b) = (parts[axis], parts[axis + 2]);
            match self.is_centered {
                true => (round(a - round(b * 0.5)), round(a + round(b * 0.5))),
                false => (a.min(b), a.max(b)),
            }
        };
        let ((y1, y2), (x1, x2)) = (axis(0), axis(1));
        [y1, x1, y2, x2]
    }

    /// The selected boxes of one class.
    fn selected(
        &self,
        scores: &[f64],
        corners: impl Fn(usize) -> [f64; 4],
        round: fn(f64) -> f64,
    ) -> Vec<usize> {
        let least = self.score_threshold.map(|t| round(t.0));
        let is_candidate = |k: &usize| match least {
            Some(least) => scores[*k] > least,
            None => !scores[*k].is_nan(),
        };
        let mut order: Vec<usize> = (0..scores.len()).filter(is_candidate).collect();
        // The sort is stable, and NaN is not among the candidates.
        order.sort_by(|a, b| scores[*b].partial_cmp(&scores[*a]).expect("numbers"));
        let most = round(self.iou_threshold.0);
        let mut selected: Vec<usize> = Vec::new();
        for k in order {
            if selected.len() == self.max_boxes {
                break;
            }
            let covers = |other: &usize| overlap(corners(*other), corners(k), round) > most;
            if !selected.iter().any(covers) {
                selected.push(k);
            }
        }
        selected
    }
}

/// The intersection over union of two boxes, and 0 if nothing is common.
fn overlap(a: [f64; 4], b: [f64; 4], round: fn(f64) -> f64) -> f64 {
    let side = |axis: usize| round(a[axis + 2].min(b[axis + 2]) - a[axis].max(b[axis])).max(0.0);
    let area = |c: [f64; 4]| round(round(c[2] - c[0]) * round(c[3] - c[1]));
    let common = round(side(0) * side(1));
    match common > 0.0 {
        true => {
            let union = round(round(area(a) + area(b)) - common);
            round(common / union)
        }
        false => 0.0,
    }
}

impl Graph {
    /// The boxes `[batches, boxes, 4]` that are selected by their scores `[batches, classes, boxes]`
    /// and by their overlaps. The first result has rows of batch, class and box, the second their
    /// number.
    ///
    /// # Errors
    /// [`OpError`] when the shapes do not agree or the dtypes differ.
    pub fn non_max_suppression(
        &mut self,
        boxes: Value,
        scores: Value,
        op: NonMaxSuppression,
    ) -> Result<Value, OpError> {
        self.add(op, &[boxes, scores])
    }
}

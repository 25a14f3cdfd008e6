//! The gate of a mixture of experts with group-limited routing.

use tercet_tensor::{DType, Dim, Tensor, TensorType, Type};

use super::{CustomOp, WgslGrid, WgslKernel, WgslParam};
use crate::attr::{AttrLiteral, Attrs, FloatAttr};
use crate::attrs;
use crate::error::{EvalError, TypeError};
use crate::grad::{Vjp, VjpResult};
use crate::ops::util::{exactly, expect_dtype, expect_equal, expect_rank};

attrs! {
    /// Selects `k` experts for each row of logits (DeepSeek-AI, "DeepSeek-V3", 2024). From F32
    /// `logits [rows, experts]` and `bias [experts]` the operator computes F32 `[rows, 2 k]`: the
    /// expert indices, then their weights.
    ///
    /// The selection score of an expert is `sigmoid(logit) + bias`. A group is `experts / groups`
    /// consecutive experts. The score of a group is the sum of its two largest selection scores; if
    /// it has one expert, that expert's score. The `keep` groups with the largest scores remain. Of
    /// the experts in these groups, the `k` with the largest selection scores are selected in
    /// descending order; ties go to the lower index. A score of NaN counts as `-inf`. The weights
    /// are the sigmoids, divided by their sum plus 1e-20, times `scale`.
    ///
    /// ```
    /// use tercet_ir::{DType, Graph, Type, attr::FloatAttr, custom::GroupLimitedGate};
    /// let mut g = Graph::new();
    /// let logits = g.input("logits", Type::new(DType::F32, [5, 8]))?;
    /// let bias = g.param("bias", Type::new(DType::F32, [8]))?;
    /// let gate = GroupLimitedGate { groups: 4, keep: 2, k: 3, scale: FloatAttr(1.0) };
    /// let chosen = g.custom(gate, &[logits, bias])?;
    /// assert_eq!(g.ty(chosen).to_string(), "f32[5, 6]");
    /// # Ok::<(), tercet_ir::OpError>(())
    /// ```
    pub struct GroupLimitedGate {
        /// Number of groups; the number of experts is a multiple of it.
        pub groups: usize,
        /// Number of groups that remain after group selection.
        pub keep: usize,
        /// Number of selected experts.
        pub k: usize,
        /// Factor of the weights.
        pub scale: FloatAttr,
    }
}

/// Threads per row.
const WORKGROUP: u32 = 64;
/// Maximum number of experts that fit the shader's shared memory.
const MAX_EXPERTS: usize = 2048;
/// As [`MAX_EXPERTS`], for groups and for selected experts.
const MAX_GROUPS: usize = 256;

impl GroupLimitedGate {
    /// Name of the operator.
    pub const NAME: &'static str = "moe.group_limited_gate";

    fn check(&self, experts: usize) -> Result<(), TypeError> {
        let bad = |name, reason| Err(TypeError::Attr { name, reason });
        let Self {
            groups, keep, k, ..
        } = *self;
        if groups == 0 || !experts.is_multiple_of(groups) {
            return bad(
                "groups",
                format!("{experts} experts are not a multiple of {groups} groups"),
            );
        }
        if !(1..=groups).contains(&keep) {
            return bad(
                "keep",
                format!("{keep} is out of range for {groups} groups"),
            );
        }
        let left = experts / groups * keep;
        if !(1..=left).contains(&k) {
            return bad(
                "k",
                format!("{k} is out of range for {left} remaining experts"),
            );
        }
        if !self.scale.0.is_finite() {
            return bad("scale", format!("{:?} is not finite", self.scale));
        }
        Ok(())
    }

    /// The selected expert indices and weights of a row.
    fn row(&self, logits: &[f64], bias: &[f64]) -> (Vec<f64>, Vec<f64>) {
        let sigmoid = |i: usize| 1.0 / (1.0 + (-logits[i]).exp());
        let choice: Vec<f64> = (0..logits.len()).map(|i| sigmoid(i) + bias[i]).collect();
        let choice: Vec<f64> = choice.iter().map(|c| c.max(f64::NEG_INFINITY)).collect();
        let size = logits.len() / self.groups;
        let scores: Vec<f64> = (choice.chunks_exact(size))
            .map(|group| {
                let best = greatest(group, 0..size, 2);
                let sum: f64 = best.iter().map(|i| group[*i]).sum();
                sum.max(f64::NEG_INFINITY)
            })
            .collect();
        let kept = greatest(&scores, 0..self.groups, self.keep);
        let left = (0..logits.len()).filter(|i| kept.contains(&(i / size)));
        let chosen = greatest(&choice, left, self.k);
        let sum = chosen.iter().map(|i| sigmoid(*i)).sum::<f64>() + 1e-20;
        let weights = chosen.iter().map(|i| sigmoid(*i) / sum * self.scale.0);
        let weights = weights.collect();
        (chosen.iter().map(|i| *i as f64).collect(), weights)
    }
}

/// The indices of the `n` largest values in descending order; ties go to the lower index.
fn greatest(values: &[f64], among: impl Iterator<Item = usize>, n: usize) -> Vec<usize> {
    let mut places: Vec<usize> = among.collect();
    places.sort_by(|a, b| values[*b].total_cmp(&values[*a]));
    places.truncate(n);
    places
}

impl CustomOp for GroupLimitedGate {
    fn name(&self) -> &str {
        Self::NAME
    }

    fn attrs(&self) -> Vec<(&'static str, AttrLiteral)> {
        self.to_literals()
    }

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        let [logits, bias] = exactly(operands)?;
        for (name, ty, rank) in [("logits", logits, 2), ("bias", bias, 1)] {
            expect_dtype(name, ty, &[DType::F32])?;
            expect_rank(name, ty, rank)?;
        }
        expect_equal(
            "the experts of logits and bias",
            &logits.shape[1],
            &bias.shape[0],
        )?;
        let experts = logits.shape[1].known().ok_or_else(|| {
            TypeError::Other("the number of experts must be a known size".to_string())
        })?;
        self.check(experts)?;
        let shape = vec![logits.shape[0].clone(), Dim::Known(2 * self.k)];
        Ok(vec![logits.with_shape(shape)])
    }

    fn eval(&self, operands: &[&Tensor], results: &[TensorType]) -> Result<Vec<Tensor>, EvalError> {
        let [logits, bias] = [0, 1].map(|i| operands[i].to_f64s());
        let mut y = Vec::with_capacity(results[0].numel());
        for row in logits.chunks_exact(bias.len()) {
            let (numbers, weights) = self.row(row, &bias);
            y.extend(numbers);
            y.extend(weights);
        }
        Ok(vec![Tensor::from_f64s(results[0].clone(), &y)?])
    }

    /// Differentiates the weights of the selected experts; the indices are constant.
    fn gradient(&self, v: &mut Vjp<'_>) -> VjpResult {
        let y = v.y(0);
        v.through(|g, operands| {
            let k = self.k as i64;
            let numbers = g.slice_axis(y, 1, 0, k, 1)?;
            let chosen = g.cast(numbers, DType::I32)?;
            let scores = g.sigmoid(operands[0])?;
            let scores = g.gather_elements(scores, chosen, 1)?;
            let sum = g.reduce_sum(scores, &[1], true)?;
            let sum = g.shifted(sum, 1e-20)?;
            let weights = g.div(scores, sum)?;
            let weights = g.times(weights, self.scale.0)?;
            Ok(vec![g.concat(&[numbers, weights], 1)?])
        })
    }

    fn kernels(&self, operands: &[&Type], _: &[Type]) -> Option<Vec<WgslKernel>> {
        let [rows, experts] = &operands[0].shape[..] else {
            return None;
        };
        let size = experts.known().filter(|n| *n <= MAX_EXPERTS)? / self.groups;
        if self.groups > MAX_GROUPS || self.k > MAX_GROUPS {
            return None;
        }
        let number = |n: usize| WgslParam::U32(Dim::Known(n));
        Some(vec![WgslKernel {
            source: include_str!("gate.wgsl").to_string(),
            entry: "gate".to_string(),
            workgroup: [WORKGROUP, 1, 1],
            writes: vec![0],
            params: vec![
                WgslParam::U32(rows.clone()),
                number(self.groups),
                number(size),
                number(self.keep),
                number(self.k),
                WgslParam::F32(self.scale.0 as f32),
            ],
            grid: WgslGrid::Line(rows.checked_mul(&Dim::Known(WORKGROUP as usize))?),
        }])
    }
}

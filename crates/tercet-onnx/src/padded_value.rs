//! Padded values: only the first elements of one axis are valid, and a run's data decides their
//! number (ADR 0006).
//!
//! [`call`] derives the padded axis of an operator's result by a rule per operator. Operators without a rule
//! reject padded operands. Elements after the valid ones are computed from index 0 and cut off at
//! the outputs.

use std::rc::Rc;

use tercet_ir::{Dim, Graph, Tensor, TensorType, Value};

use crate::attrs::OnnxAttrs;
use crate::call::axis;
use crate::ctx::ImportCtx;
use crate::error::NodeErrorKind;
use crate::val::ImportedValue;

/// A value with an axis that is longer than its valid part.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PaddedValue {
    pub(crate) value: Value,
    pub(crate) axis: usize,
    /// The number of valid elements on the axis, I32.
    pub(crate) count: Value,
}

impl PaddedValue {
    /// Wraps the padded value as an imported value.
    pub(crate) fn val(value: Value, axis: usize, count: Value) -> ImportedValue {
        ImportedValue::Bounded(Rc::new(PaddedValue { value, axis, count }))
    }
}

/// An output whose size on one axis is the value of another output.
///
/// ```
/// use tercet_ir::Tensor;
/// use tercet_onnx::{DynamicSizeOutput, cut};
/// let counted = [DynamicSizeOutput { output: 0, axis: 0, count: "y#count".to_string() }];
/// let padded = Tensor::from_slice(&[4], &[5i64, 6, 0, 0])?;
/// let outputs = cut(&counted, vec![padded, Tensor::scalar(2i32)])?;
/// assert_eq!(outputs[0].as_slice::<i64>()?, [5, 6]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DynamicSizeOutput {
    /// The output's index in the order of the file.
    pub output: usize,
    /// The axis with the data-dependent size.
    pub axis: usize,
    /// The name of the graph output, `i32[]`, with the valid size of the axis.
    pub count: String,
}

/// Cuts the outputs of a run to their valid sizes. `outputs` has the outputs of the file, followed
/// by one count for each entry of `counted`.
///
/// # Errors
/// A count is missing, or exceeds its axis.
pub fn cut(counted: &[DynamicSizeOutput], mut outputs: Vec<Tensor>) -> Result<Vec<Tensor>, String> {
    let first = outputs.len().checked_sub(counted.len());
    let counts = outputs.split_off(first.ok_or("the counts of padded outputs are missing")?);
    for (own, count) in counted.iter().zip(counts) {
        let (Some(output), Some(n)) = (
            outputs.get_mut(own.output),
            count.to_i64s().first().copied(),
        ) else {
            return Err(format!("output {} has no count", own.output));
        };
        *output = first_of(output, own.axis, n)?;
    }
    Ok(outputs)
}

/// The first `n` elements of an axis.
fn first_of(x: &Tensor, axis: usize, n: i64) -> Result<Tensor, String> {
    let shape = x.shape();
    let size = shape.get(axis).copied().unwrap_or(0);
    let n = usize::try_from(n).ok().filter(|n| *n <= size);
    let n = n.ok_or_else(|| format!("the valid size exceeds the axis size {size}"))?;
    let mut sizes = shape.to_vec();
    sizes[axis] = n;
    let mut y = Tensor::zeros(TensorType::new(x.dtype(), &sizes)).map_err(|e| e.to_string())?;
    let inner: usize = shape[axis + 1..].iter().product::<usize>() * x.dtype().size_bytes();
    if inner * n > 0 {
        let rows = x.bytes().chunks(inner * size);
        let cut = y.bytes_mut().chunks_mut(inner * n);
        rows.zip(cut)
            .for_each(|(from, to)| to.copy_from_slice(&from[..inner * n]));
    }
    Ok(y)
}

/// The position of the padded axis in the result of an operator.
#[derive(Clone, Copy)]
enum PaddedAxisRule {
    /// Elementwise with broadcasting: the axis is counted from the last one.
    Elementwise,
    Transpose,
    Squeeze,
    Unsqueeze,
    Gather,
    GatherNd,
    Slice,
    Concat,
    /// Elements keep their order: the axis is kept, or is the first of axes that are merged or
    /// split.
    Regroup,
    /// The axis stays, if the operator works along other axes.
    Along,
    /// The axis is one of rows, columns or batches of a matmul.
    Matmul,
    /// The axis is the first one, of samples.
    Samples,
    /// Elements are repeated along other axes, counted from the last one.
    Expand,
    /// A new axis is inserted.
    OneHot,
}

fn rule(domain: &str, name: &str) -> Option<PaddedAxisRule> {
    if !domain.is_empty() {
        return None;
    }
    match name {
        "Cast" | "CastLike" | "Neg" | "Abs" | "Sqrt" | "Exp" | "Log" | "Relu" | "Sigmoid"
        | "Tanh" | "Not" | "Identity" | "Add" | "Sub" | "Mul" | "Div" | "Mod" | "Pow" | "Equal"
        | "Less" | "Greater" | "LessOrEqual" | "GreaterOrEqual" | "Where" | "And" | "Or"
        | "Xor" | "Floor" | "Ceil" | "Round" | "Clip" | "Min" | "Max" | "Sum" | "Mean"
        | "Reciprocal" | "Sign" | "Erf" | "Sin" | "Cos" | "Tan" | "Asin" | "Acos" | "Atan"
        | "Sinh" | "Cosh" | "Asinh" | "Acosh" | "Atanh" | "Softplus" | "Softsign" | "Elu"
        | "Selu" | "Celu" | "LeakyRelu" | "PRelu" | "ThresholdedRelu" | "HardSigmoid"
        | "HardSwish" | "Mish" | "Gelu" | "Swish" | "IsNaN" | "IsInf" | "BitwiseAnd"
        | "BitwiseOr" | "BitwiseXor" | "BitwiseNot" => Some(PaddedAxisRule::Elementwise),
        "Transpose" => Some(PaddedAxisRule::Transpose),
        "Squeeze" => Some(PaddedAxisRule::Squeeze),
        "Unsqueeze" => Some(PaddedAxisRule::Unsqueeze),
        "Gather" => Some(PaddedAxisRule::Gather),
        "GatherND" => Some(PaddedAxisRule::GatherNd),
        "Slice" => Some(PaddedAxisRule::Slice),
        "Concat" => Some(PaddedAxisRule::Concat),
        "Reshape" | "Flatten" => Some(PaddedAxisRule::Regroup),
        "LayerNormalization" | "RMSNormalization" | "CumSum" | "Split" | "Tile" | "Softmax"
        | "LogSoftmax" | "LpNormalization" | "GatherElements" => Some(PaddedAxisRule::Along),
        "MatMul" | "Gemm" => Some(PaddedAxisRule::Matmul),
        "Conv"
        | "ConvTranspose"
        | "MaxPool"
        | "AveragePool"
        | "GlobalAveragePool"
        | "GlobalMaxPool"
        | "BatchNormalization"
        | "InstanceNormalization"
        | "GroupNormalization"
        | "RoiAlign" => Some(PaddedAxisRule::Samples),
        "Expand" => Some(PaddedAxisRule::Expand),
        "OneHot" => Some(PaddedAxisRule::OneHot),
        _ => None,
    }
}

/// The plan for a node with padded operands: the operands as plain values, and the rule for the
/// padded axis of the result.
pub(crate) struct PaddedNodePlan {
    pub(crate) ins: Vec<ImportedValue>,
    name: &'static str,
    rule: PaddedAxisRule,
    /// The index of the first padded operand.
    at: usize,
    padded: PaddedValue,
    /// The shape of that operand, and the ranks of all operands in the graph.
    dims: Vec<Dim>,
    ranks: Vec<usize>,
}

/// The plan for a node; `None` if no operand is padded.
pub(crate) fn plan(
    ctx: &ImportCtx<'_>,
    (domain, name): (&'static str, &'static str),
    ins: &[ImportedValue],
) -> Result<Option<PaddedNodePlan>, NodeErrorKind> {
    let bounded = |v: &ImportedValue| match v {
        ImportedValue::Bounded(b) => Some(**b),
        _ => None,
    };
    let Some((at, own)) = ins
        .iter()
        .enumerate()
        .find_map(|(i, v)| Some((i, bounded(v)?)))
    else {
        return Ok(None);
    };
    let refused = || {
        let text = "has a data-dependent size, which this operator does not support";
        NodeErrorKind::operand(at, text)
    };
    let rule = rule(domain, name).ok_or_else(refused)?;
    let rank = |v: &ImportedValue| match v {
        ImportedValue::Bounded(b) => ctx.dims(b.value).len(),
        ImportedValue::Graph(v) => ctx.dims(*v).len(),
        ImportedValue::ConstTensor(k) => k.tensor.shape().len(),
        _ => 0,
    };
    let ranks: Vec<usize> = ins.iter().map(rank).collect();
    for (i, val) in ins.iter().enumerate() {
        let dims = match val {
            ImportedValue::Bounded(other) if i != at => {
                let same = same_value(ctx.graph(), other.count, own.count)
                    && match rule {
                        PaddedAxisRule::Elementwise => {
                            ranks[i] - other.axis == ranks[at] - own.axis
                        }
                        PaddedAxisRule::Concat | PaddedAxisRule::Samples => other.axis == own.axis,
                        PaddedAxisRule::Along => name == "GatherElements" && other.axis == own.axis,
                        _ => false,
                    };
                if !same {
                    return Err(refused());
                }
                continue;
            }
            ImportedValue::Graph(v) => ctx.dims(*v),
            ImportedValue::ConstTensor(k) => {
                k.tensor.shape().iter().map(|n| Dim::Known(*n)).collect()
            }
            _ => continue,
        };
        // A plain operand must broadcast along the axis, otherwise its size would have to equal the
        // data-dependent one.
        let there = dims.len().checked_sub(ranks[at] - own.axis);
        let repeats = there.is_none_or(|a| dims[a].is_one());
        if (matches!(rule, PaddedAxisRule::Elementwise) && !repeats)
            || matches!(rule, PaddedAxisRule::Concat)
        {
            return Err(refused());
        }
    }
    let plain = |v: &ImportedValue| match v {
        ImportedValue::Bounded(b) => ImportedValue::Graph(b.value),
        other => other.clone(),
    };
    Ok(Some(PaddedNodePlan {
        ins: ins.iter().map(plain).collect(),
        name,
        rule,
        at,
        dims: ctx.dims(own.value),
        padded: own,
        ranks,
    }))
}

impl PaddedNodePlan {
    /// The results of the node, with their padded axis.
    pub(crate) fn results(
        &self,
        ctx: &mut ImportCtx<'_>,
        opset: i64,
        attrs: &OnnxAttrs<'_>,
        results: Vec<ImportedValue>,
    ) -> Result<Vec<ImportedValue>, NodeErrorKind> {
        let mut wrapped = Vec::with_capacity(results.len());
        for val in results {
            if matches!(val, ImportedValue::Absent) {
                wrapped.push(val);
                continue;
            }
            let value = ctx.place(&val, 0)?;
            let dims = ctx.dims(value);
            if let PaddedAxisRule::Regroup = self.rule {
                let found = regrouped(&self.dims, self.padded.axis, &dims);
                if let Some((at, factors)) = found {
                    let count = crate::ops::padded::scaled_count(ctx, self.padded.count, factors)?;
                    wrapped.push(PaddedValue::val(value, at, count));
                    continue;
                }
            }
            let found = self.axis(opset, attrs, &dims)?;
            let found = found.ok_or_else(|| {
                let text = "has a data-dependent size, and the size of the result cannot be derived from it";
                NodeErrorKind::operand(self.at, text)
            })?;
            wrapped.push(PaddedValue::val(value, found, self.padded.count));
        }
        Ok(wrapped)
    }

    /// The known integers of an operand, or of an attribute in older operator versions.
    fn ints(&self, index: usize) -> Option<Vec<i64>> {
        match self.ins.get(index) {
            Some(ImportedValue::ConstTensor(k)) => Some(k.tensor.to_i64s()),
            _ => None,
        }
    }

    /// Whether the operator works along other axes than the padded one.
    fn along(&self, attrs: &OnnxAttrs<'_>) -> Result<bool, NodeErrorKind> {
        let (own, rank) = (self.padded.axis, self.dims.len());
        Ok(match self.name {
            "LayerNormalization" | "RMSNormalization" => {
                self.at == 0 && own < axis(attrs.int("axis", -1)?, rank)?
            }
            "Softmax" | "LogSoftmax" | "LpNormalization" => {
                let default = if self.name == "LpNormalization" {
                    -1
                } else {
                    1.min(rank as i64 - 1)
                };
                own < axis(attrs.int("axis", default)?, rank)?
            }
            "Split" => axis(attrs.int("axis", 0)?, rank)? != own,
            "Tile" => self.ints(1).is_some_and(|list| list.get(own) == Some(&1)),
            "CumSum" => {
                let at = self.ints(1).and_then(|list| list.first().copied());
                let forward = !attrs.flag("reverse", false)?;
                at.is_some_and(|at| forward || axis(at, rank).is_ok_and(|at| at != own))
            }
            // The padded operand is the operand with the indices.
            _ => self.at == 1 || own != axis(attrs.int("axis", 0)?, rank)?,
        })
    }

    fn axis(
        &self,
        opset: i64,
        attrs: &OnnxAttrs<'_>,
        to: &[Dim],
    ) -> Result<Option<usize>, NodeErrorKind> {
        let (own, rank) = (self.padded.axis, self.dims.len());
        let listed = |index: usize, since: i64| -> Result<Option<Vec<i64>>, NodeErrorKind> {
            match opset >= since {
                true => Ok(self.ints(index)),
                false => Ok(attrs.ints_opt("axes")?.map(<[i64]>::to_vec)),
            }
        };
        Ok(match self.rule {
            PaddedAxisRule::Elementwise => to.len().checked_sub(rank - own),
            PaddedAxisRule::Transpose => match attrs.ints_opt("perm")? {
                Some(perm) => perm.iter().position(|a| *a == own as i64),
                None => Some(rank - 1 - own),
            },
            PaddedAxisRule::Squeeze => {
                let gone = match listed(1, 13)? {
                    Some(list) => crate::call::axes(&list, rank)?,
                    None => (0..rank).filter(|a| self.dims[*a].is_one()).collect(),
                };
                let before = gone.iter().filter(|a| **a < own).count();
                (!gone.contains(&own)).then(|| own - before)
            }
            PaddedAxisRule::Unsqueeze => {
                let list = listed(1, 13)?.unwrap_or_default();
                let new = crate::call::axes(&list, to.len())?;
                (0..to.len()).filter(|a| !new.contains(a)).nth(own)
            }
            PaddedAxisRule::Gather => {
                let at = axis(attrs.int("axis", 0)?, self.ranks[0])?;
                match self.at {
                    0 if own == at => None,
                    0 if own < at => Some(own),
                    0 => Some(own + self.ranks[1] - 1),
                    _ => Some(at + own),
                }
            }
            PaddedAxisRule::GatherNd => {
                let plain = attrs.int("batch_dims", 0)? == 0;
                (self.at == 1 && plain && own + 1 < rank).then_some(own)
            }
            PaddedAxisRule::Slice => {
                let along = match opset >= 10 {
                    true if self.ins.len() > 3 => self.ints(3),
                    true => self
                        .ints(1)
                        .map(|starts| (0..starts.len() as i64).collect()),
                    false => attrs.ints_opt("axes")?.map(<[i64]>::to_vec),
                };
                let along = along
                    .map(|list| crate::call::axes(&list, rank))
                    .transpose()?;
                along
                    .is_some_and(|list| !list.contains(&own))
                    .then_some(own)
            }
            PaddedAxisRule::Concat => {
                let at = attrs.int_opt("axis")?.unwrap_or(0);
                (axis(at, rank)? != own).then_some(own)
            }
            PaddedAxisRule::Regroup => None,
            PaddedAxisRule::Along => self.along(attrs)?.then_some(own),
            PaddedAxisRule::Matmul => {
                let summed = match (self.name, self.at) {
                    ("Gemm", 0) if !attrs.flag("transA", false)? => 1,
                    ("Gemm", 1) if attrs.flag("transB", false)? => 1,
                    ("Gemm", 0 | 1) => 0,
                    ("Gemm", _) => return Ok(to.len().checked_sub(rank - own)),
                    (_, 0) => rank - 1,
                    _ => rank.saturating_sub(2),
                };
                match (self.name, self.at) {
                    _ if own == summed => None,
                    ("Gemm", at) => Some(at),
                    _ => to.len().checked_sub(rank - own),
                }
            }
            PaddedAxisRule::Samples => (own == 0).then_some(0),
            PaddedAxisRule::Expand => {
                let at = to.len().checked_sub(rank - own);
                at.filter(|at| self.at == 0 && to.get(*at) == self.dims.get(own))
            }
            PaddedAxisRule::OneHot => {
                let at = axis(attrs.int("axis", -1)?, rank + 1)?;
                (self.at == 0).then_some(own + usize::from(own >= at))
            }
        })
    }
}

/// The axis of a reshaped value that has the elements of axis `own`, in the same order, and the
/// factors of its valid size: times the axes merged into it, by the axes split from it.
fn regrouped(from: &[Dim], own: usize, to: &[Dim]) -> Option<(usize, (usize, usize))> {
    let product = |list: &[Dim]| list.iter().try_fold(Dim::Known(1), |n, d| n.checked_mul(d));
    let before = product(&from[..own])?;
    let starts = (0..to.len()).filter(|a| product(&to[..*a]).as_ref() == Some(&before));
    let starts: Vec<usize> = starts.collect();
    if let Some(at) = starts.iter().find(|a| to[**a] == from[own]) {
        return Some((*at, (1, 1)));
    }
    for at in starts {
        for end in own + 1..=from.len() {
            if product(&from[own..end]).as_ref() == Some(&to[at]) {
                let factor = product(&from[own + 1..end])?.known()?;
                return Some((at, (factor, 1)));
            }
        }
        for end in at + 1..=to.len() {
            if product(&to[at..end]).as_ref() == Some(&from[own]) {
                let factor = product(&to[at + 1..end])?.known()?;
                return (factor > 0).then_some((at, (1, factor)));
            }
        }
    }
    None
}

/// Whether two values are equal by construction: the same operators on the same values. Exporters
/// compute the same mask several times.
pub(crate) fn same_value(graph: &Graph, a: Value, b: Value) -> bool {
    const MAX_COMPARED: usize = 512;
    let mut left = vec![(a, b)];
    let mut seen = 0;
    while let Some((a, b)) = left.pop() {
        if a == b {
            continue;
        }
        seen += 1;
        let (x, y) = (graph.node(a.node), graph.node(b.node));
        let alike = a.port == b.port && x.op == y.op && x.inputs.len() == y.inputs.len();
        if !alike || seen > MAX_COMPARED {
            return false;
        }
        left.extend(x.inputs.iter().copied().zip(y.inputs.iter().copied()));
    }
    true
}

/// The indices of the true elements of a boolean list `[N]`: a padded list `I32[N]` and the number
/// of valid elements.
pub(crate) fn places(
    ctx: &mut ImportCtx<'_>,
    keep: Value,
) -> Result<(Value, Value), NodeErrorKind> {
    let g = ctx.g();
    let found = g.non_zero(keep)?;
    let count = found.port(1);
    Ok((g.squeeze(found, 1)?, count))
}

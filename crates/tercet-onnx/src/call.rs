//! The node view that the operator functions receive: a node with its operands, its attributes, and
//! the graph to extend.

use tercet_ir::{DType, Dim, Graph, Tensor, Type, Value};

use crate::attrs::OnnxAttrs;
use crate::ctx::ImportCtx;
use crate::elem::Narrow;
use crate::error::NodeErrorKind;
use crate::proto::NodeProto;
use crate::val::{ImportedValue, ShapeElem};

/// Maximum size of an axis for which attributes are evaluated.
const MAX_SIZE: usize = 1 << 32;

/// The results of an imported node, in order.
pub(crate) type NodeOutputs = Result<Vec<ImportedValue>, NodeErrorKind>;

/// The node being imported.
pub(crate) struct ImportNode<'a, 'm> {
    pub(crate) c: &'a mut ImportCtx<'m>,
    pub(crate) node: &'m NodeProto,
    pub(crate) ins: &'a [ImportedValue],
    pub(crate) attrs: &'a OnnxAttrs<'m>,
    /// The opset version of the operator's domain.
    pub(crate) opset: i64,
}

/// Wraps a single result.
pub(crate) fn one(value: Value) -> NodeOutputs {
    Ok(vec![ImportedValue::Graph(value)])
}

impl ImportNode<'_, '_> {
    /// The graph under construction.
    pub(crate) fn g(&mut self) -> &mut Graph {
        self.c.g()
    }

    /// Whether the operand is present.
    pub(crate) fn has(&self, index: usize) -> bool {
        !matches!(self.val(index), ImportedValue::Absent)
    }

    /// The operand as an imported value.
    pub(crate) fn val(&self, index: usize) -> &ImportedValue {
        self.ins.get(index).unwrap_or(&ImportedValue::Absent)
    }

    /// The operand as a graph value.
    pub(crate) fn x(&mut self, index: usize) -> Result<Value, NodeErrorKind> {
        let val = self.val(index).clone();
        self.c.place(&val, index)
    }

    /// The operand as a graph value, and its dtype if the graph emulates it in another dtype.
    pub(crate) fn carried(
        &mut self,
        index: usize,
    ) -> Result<(Value, Option<Narrow>), NodeErrorKind> {
        match self.val(index).clone() {
            ImportedValue::Narrow(narrow, inner) => {
                Ok((self.c.place(&inner, index)?, Some(narrow)))
            }
            other => Ok((self.c.place(&other, index)?, None)),
        }
    }

    /// The optional operand as a graph value.
    pub(crate) fn opt(&mut self, index: usize) -> Result<Option<Value>, NodeErrorKind> {
        match self.has(index) {
            true => self.x(index).map(Some),
            false => Ok(None),
        }
    }

    /// All operands as graph values.
    pub(crate) fn xs(&mut self) -> Result<Vec<Value>, NodeErrorKind> {
        (0..self.ins.len()).map(|i| self.x(i)).collect()
    }

    /// Whether the model uses this result.
    pub(crate) fn is_requested(&self, index: usize) -> bool {
        self.node.output.get(index).is_some_and(|n| !n.is_empty())
    }

    /// The type of a graph value.
    pub(crate) fn ty(&self, value: Value) -> Type {
        self.c.graph().ty(value).clone()
    }

    pub(crate) fn dtype(&self, value: Value) -> DType {
        self.c.graph().ty(value).dtype
    }

    pub(crate) fn dims(&self, value: Value) -> Vec<Dim> {
        self.c.dims(value)
    }

    pub(crate) fn rank(&self, value: Value) -> usize {
        self.c.graph().ty(value).rank()
    }

    /// The size of an axis; an error if it is symbolic.
    pub(crate) fn size(&self, value: Value, axis: usize) -> Result<usize, NodeErrorKind> {
        let ty = self.c.graph().ty(value);
        let size = ty.shape.get(axis).map(Dim::known);
        match size {
            Some(Some(n)) if n <= MAX_SIZE => Ok(n),
            Some(Some(n)) => Err(NodeErrorKind::unsupported(format!(
                "axis {axis} with {n} elements is too long"
            ))),
            Some(None) => Err(NodeErrorKind::unsupported(format!(
                "axis {axis} of {ty} must have a known size; fix its symbol with `ImportOptions::dim`"
            ))),
            None => Err(NodeErrorKind::unsupported(format!(
                "{ty} has no axis {axis}"
            ))),
        }
    }

    /// The sizes of all axes; an error if one is symbolic.
    pub(crate) fn known_dims(&self, value: Value) -> Result<Vec<usize>, NodeErrorKind> {
        (0..self.rank(value))
            .map(|axis| self.size(value, axis))
            .collect()
    }

    /// A scalar constant with the dtype of a value.
    pub(crate) fn like(&mut self, value: Value, number: f64) -> Result<Value, NodeErrorKind> {
        let dtype = self.dtype(value);
        self.c.scalar(dtype, number)
    }

    /// The operand as a constant tensor; an error if its value is unknown at import time.
    pub(crate) fn const_operand(&self, index: usize) -> Result<Tensor, NodeErrorKind> {
        match self.val(index) {
            ImportedValue::ConstTensor(k) => Ok(k.tensor.clone()),
            ImportedValue::Graph(v) => {
                let inputs = self.c.origins(*v);
                Err(NodeErrorKind::NeedsValue { index, inputs })
            }
            ImportedValue::ShapeValue(_) => Err(NodeErrorKind::operand(
                index,
                "has symbolic sizes where numbers are required; fix them with `ImportOptions::dim`",
            )),
            ImportedValue::Absent => Err(NodeErrorKind::operand(index, "is missing")),
            ImportedValue::Narrow(narrow, _) => Err(NodeErrorKind::operand(
                index,
                format!(
                    "has dtype {}, which this operator does not support",
                    narrow.name()
                ),
            )),
            ImportedValue::Bounded(_) => Err(NodeErrorKind::operand(
                index,
                "has a data-dependent size, which this operator does not support",
            )),
            ImportedValue::Maps(_) => Err(NodeErrorKind::operand(
                index,
                "contains maps, expected a tensor",
            )),
            ImportedValue::Seq(_) => Err(NodeErrorKind::operand(
                index,
                "is a sequence, expected a tensor",
            )),
            ImportedValue::Unsupported(why) => Err(NodeErrorKind::operand(index, why.to_string())),
            ImportedValue::Failed => Err(NodeErrorKind::operand(index, "failed")),
        }
    }

    /// The operand as constant integers.
    pub(crate) fn ints(&self, index: usize) -> Result<Vec<i64>, NodeErrorKind> {
        Ok(self.const_operand(index)?.to_i64s())
    }

    /// The optional operand as constant integers.
    pub(crate) fn ints_opt(&self, index: usize) -> Result<Option<Vec<i64>>, NodeErrorKind> {
        match self.has(index) {
            true => self.ints(index).map(Some),
            false => Ok(None),
        }
    }

    /// The operand as one constant integer.
    pub(crate) fn int(&self, index: usize) -> Result<i64, NodeErrorKind> {
        match self.ints(index)?.as_slice() {
            [n] => Ok(*n),
            other => Err(NodeErrorKind::operand(
                index,
                format!("has {} elements, expected one", other.len()),
            )),
        }
    }

    /// The operand as one constant number.
    pub(crate) fn float(&self, index: usize) -> Result<f64, NodeErrorKind> {
        match self.const_operand(index)?.to_f64s().as_slice() {
            [n] => Ok(*n),
            other => Err(NodeErrorKind::operand(
                index,
                format!("has {} elements, expected one", other.len()),
            )),
        }
    }

    /// The operand as shape elements.
    pub(crate) fn nums(&self, index: usize) -> Result<Vec<ShapeElem>, NodeErrorKind> {
        match self.val(index).as_sizes() {
            Some(sizes) => Ok(sizes.nums),
            None => Ok(self.ints(index)?.into_iter().map(ShapeElem::Int).collect()),
        }
    }

    /// The operand as the sizes of a shape.
    pub(crate) fn shape_operand(&self, index: usize) -> Result<Vec<Dim>, NodeErrorKind> {
        let nums = self.nums(index)?;
        let dims: Option<Vec<Dim>> = nums.iter().map(ShapeElem::dim).collect();
        dims.ok_or_else(|| NodeErrorKind::operand(index, format!("{nums:?} is not a valid shape")))
    }

    /// The axis in the attribute `axis`, normalized.
    pub(crate) fn axis(&self, default: i64, rank: usize) -> Result<usize, NodeErrorKind> {
        axis(self.attrs.int("axis", default)?, rank)
    }

    /// The axes in an attribute, or in an operand in newer operator versions.
    pub(crate) fn axes(
        &self,
        operand: usize,
        since: i64,
    ) -> Result<Option<Vec<i64>>, NodeErrorKind> {
        match self.opset >= since {
            true => self.ints_opt(operand),
            false => Ok(self.attrs.ints_opt("axes")?.map(<[i64]>::to_vec)),
        }
    }
}

/// An axis index; negative values count from the end.
pub(crate) fn axis(axis: i64, rank: usize) -> Result<usize, NodeErrorKind> {
    let from_start = match axis < 0 {
        true => axis.saturating_add(rank as i64),
        false => axis,
    };
    let found = usize::try_from(from_start).ok().filter(|a| *a < rank);
    found.ok_or_else(|| {
        NodeErrorKind::unsupported(format!("axis {axis} is out of range for rank {rank}"))
    })
}

/// Several axis indices, normalized.
pub(crate) fn axes(list: &[i64], rank: usize) -> Result<Vec<usize>, NodeErrorKind> {
    list.iter().map(|a| axis(*a, rank)).collect()
}

/// Converts to sizes; negative numbers are an error.
pub(crate) fn unsigned(name: &str, list: &[i64]) -> Result<Vec<usize>, NodeErrorKind> {
    let sizes: Option<Vec<usize>> = list.iter().map(|n| usize::try_from(*n).ok()).collect();
    sizes.ok_or_else(|| NodeErrorKind::attribute(name, format!("{list:?} must not be negative")))
}

//! A matmul problem: operand views with strides, prologue and epilogue.

use tercet_ir::layout::{LayoutTerm, numel};
use tercet_ir::scalar::UnaryFn;
use tercet_ir::{CompileError, DType, Dim, Scheme};

use crate::emit::{LoweringCtx, SlotView};
use crate::fusions::{GluEpilogue, NormPrologue};
use crate::lowerings::gemm_coop::ACTIVATIONS;
use crate::tuning::WeightLayout;
use tercet_program::SlotId;
use tercet_program::SymInt;

/// Number that selects an activation function in matmul kernels; `None` if the kernels do not
/// support it.
pub(in crate::lowerings) fn activation_code(f: Option<UnaryFn>) -> Option<u32> {
    match f {
        None => Some(0),
        Some(f) => {
            let at = ACTIVATIONS.iter().position(|known| *known == f)?;
            Some(1 + at as u32)
        }
    }
}

/// Stride of an operand along one axis of the matmul, with the alignment of this stride.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct OperandAxis {
    /// Stride in elements, or in bytes for rows of quantized blocks.
    pub(super) stride: SymInt,
    /// The stride is 1.
    pub(super) unit: bool,
    /// Largest power of two, up to 16, that divides the stride in every run.
    pub(super) multiple: u64,
}

impl OperandAxis {
    /// The stride if it is the same in every run, otherwise 0.
    pub(super) fn known_stride(&self) -> u32 {
        let known = self.stride.known();
        known.and_then(|n| u32::try_from(n).ok()).unwrap_or(0)
    }

    /// The entry for a matmul axis that the operand lacks; its stride is 0.
    const NONE: OperandAxis = OperandAxis {
        stride: SymInt::ZERO,
        unit: false,
        multiple: 16,
    };

    fn new(stride: SymInt, term: &LayoutTerm) -> OperandAxis {
        OperandAxis {
            stride,
            unit: term.factor() == 1 && *term.dim() == Dim::Known(1),
            multiple: term.power_of_two().min(16),
        }
    }
}

/// Largest power of two, up to 16, that divides the offset of a view in every run.
fn offset_multiple(view: &SlotView) -> u64 {
    let terms = view.layout.offset().iter();
    terms.fold(16, |least, t| least.min(t.power_of_two()))
}

/// An operand of a matmul. The `own` axis is m for the left operand and n for the right one.
#[derive(Clone, Debug)]
pub(super) struct MatMulOperand {
    pub(super) slot: SlotId,
    pub(super) dtype: DType,
    pub(super) offset: SymInt,
    /// Largest power of two, up to 16, that divides the offset in every run.
    pub(super) offset_multiple: u64,
    /// Strides along the batch axes of the matmul.
    pub(super) batch: Vec<OperandAxis>,
    pub(super) own_axis: OperandAxis,
    pub(super) summed: OperandAxis,
}

impl MatMulOperand {
    /// Describes a view as an operand: its axis m or n is `own` (if present), its axis k is
    /// `summed`. The remaining axes of the view are its batch axes; they correspond to the last
    /// axes of `batch`.
    pub(super) fn new(
        e: &mut LoweringCtx<'_>,
        view: &SlotView,
        own: Option<usize>,
        summed: usize,
        batch: &[Dim],
    ) -> MatMulOperand {
        let strides = e.strides(view);
        let terms = view.layout.strides();
        let axis = |at: usize| OperandAxis::new(strides[at], &terms[at]);
        let lead = terms.len() - 1 - usize::from(own.is_some());
        let mut axes = vec![OperandAxis::NONE; batch.len() - lead];
        // NumPy broadcasting: a batch axis of size 1 has stride 0 if the matmul's axis is larger.
        axes.extend((0..lead).map(|at| {
            let size = &view.layout.shape()[at];
            match *size == batch[batch.len() - lead + at] {
                true => axis(at),
                false => OperandAxis::NONE,
            }
        }));
        MatMulOperand {
            slot: view.slot,
            dtype: view.dtype,
            offset: e.offset(view),
            offset_multiple: offset_multiple(view),
            batch: axes,
            own_axis: own.map_or(OperandAxis::NONE, axis),
            summed: axis(summed),
        }
    }

    /// Describes quantized weight rows `[n, row_bytes]` as the right operand.
    pub(super) fn packed(e: &mut LoweringCtx<'_>, w: &SlotView) -> (MatMulOperand, Dim) {
        let strides = e.strides(w);
        let is_empty = w.layout.shape()[1] == Dim::Known(0);
        let axis = |at: usize| OperandAxis::new(strides[at], &w.layout.strides()[at]);
        let side = MatMulOperand {
            slot: w.slot,
            dtype: w.dtype,
            offset: e.offset(w),
            offset_multiple: offset_multiple(w),
            batch: Vec::new(),
            // Quantized rows that contain no block are never read, so their stride does not matter.
            own_axis: if is_empty { OperandAxis::NONE } else { axis(0) },
            summed: OperandAxis::NONE,
        };
        (side, w.layout.shape()[0].clone())
    }

    /// True if element pairs along the contiguous axis are whole words: offset and other strides
    /// are even.
    pub(super) fn has_words(&self, along: OperandAxis, other: OperandAxis) -> bool {
        let two_bytes = matches!(self.dtype, DType::F16 | DType::BF16);
        two_bytes && along.unit && self.is_multiple(2, other)
    }

    /// True if the offset, the batch strides and the stride of axis `other` are multiples of `n`, a
    /// power of two up to 16.
    pub(super) fn is_multiple(&self, n: u64, other: OperandAxis) -> bool {
        let strides = self.batch.iter().chain([&other]).map(|a| a.multiple);
        strides.chain([self.offset_multiple]).all(|m| m >= n)
    }
}

/// A matmul problem `y[z, i, j] = f(sum_k a[z, i, k] b[z, k, j] + bias[j])` with dense `y`. With a
/// single right matrix, the problem may include a norm of `a`, a gate that halves the columns of
/// `y`, and the sum with a residual.
#[derive(Clone, Debug)]
pub(super) struct MatMulProblem {
    pub(super) batch: Vec<Dim>,
    pub(super) m: Dim,
    pub(super) n: Dim,
    pub(super) k: Dim,
    pub(super) a: MatMulOperand,
    pub(super) b: MatMulOperand,
    pub(super) bias: Option<SlotView>,
    pub(super) activation: Option<UnaryFn>,
    pub(super) norm: Option<NormPrologue>,
    pub(super) gate: Option<GluEpilogue>,
    /// Residual `[m, n]` that is added to the results; a matmul with a residual has no bias.
    pub(super) residual: Option<SlotView>,
    /// The right operand `[k, n]`, if it is constant.
    pub(super) weights: Option<SlotView>,
}

impl MatMulProblem {
    /// The matmul of two views, as NumPy's `matmul` defines it. Batch axes that only the left
    /// operand has are merged with its rows.
    pub(super) fn new(
        e: &mut LoweringCtx<'_>,
        a: &SlotView,
        b: &SlotView,
        bias: Option<SlotView>,
        activation: Option<UnaryFn>,
    ) -> Result<MatMulProblem, CompileError> {
        let b_shape = b.layout.shape();
        let lead = b_shape.len().saturating_sub(2);
        let shared = (0..lead).all(|at| {
            b_shape[at].is_one()
                || (b.layout.strides()[at].factor() == 0
                    && a.layout.shape().len() == b_shape.len()
                    && a.layout.shape()[at] == b_shape[at])
        });
        let own = (b_shape.len() > 1).then_some(lead + 1);
        let summed = if own.is_some() { lead } else { 0 };
        let n = own.map_or(Dim::Known(1), |at| b_shape[at].clone());
        if shared {
            // All batches share one right operand, because its batch axes have size 1 or stride 0;
            // it needs no batch strides.
            let right = |e: &mut LoweringCtx<'_>| {
                let batch = &b_shape[..lead];
                let mut side = MatMulOperand::new(e, b, own, summed, batch);
                side.batch.clear();
                (side, n)
            };
            let product = MatMulProblem::rows_times(e, a, right)?;
            let is_matrix = b_shape.len() == 2 && e.is_constant(b);
            return Ok(MatMulProblem {
                bias,
                activation,
                weights: is_matrix.then(|| b.clone()),
                ..product
            });
        }
        let a_shape = a.layout.shape();
        let a_lead = a_shape.len().saturating_sub(2);
        let a_own = (a_shape.len() > 1).then_some(a_lead);
        let batch = broadcast(&a_shape[..a_lead], &b_shape[..lead]);
        Ok(MatMulProblem {
            m: a_own.map_or(Dim::Known(1), |at| a_shape[at].clone()),
            k: a_shape[a_shape.len() - 1].clone(),
            n,
            a: MatMulOperand::new(e, a, a_own, a_shape.len() - 1, &batch),
            b: MatMulOperand::new(e, b, own, summed, &batch),
            batch,
            bias,
            activation,
            norm: None,
            gate: None,
            residual: None,
            weights: None,
        })
    }

    /// The matmul of all rows of `a` with one right operand. The function `right` returns this
    /// operand and its number of columns.
    pub(super) fn rows_times(
        e: &mut LoweringCtx<'_>,
        a: &SlotView,
        right: impl FnOnce(&mut LoweringCtx<'_>) -> (MatMulOperand, Dim),
    ) -> Result<MatMulProblem, CompileError> {
        let a = as_matrix(e, a)?;
        let [m, k] = [0, 1].map(|at| a.layout.shape()[at].clone());
        let (b, n) = right(e);
        Ok(MatMulProblem {
            batch: Vec::new(),
            m,
            n,
            k,
            a: MatMulOperand::new(e, &a, Some(0), 1, &[]),
            b,
            bias: None,
            activation: None,
            norm: None,
            gate: None,
            residual: None,
            weights: None,
        })
    }

    /// The same matmul with this prologue and epilogue added.
    pub(super) fn with(
        self,
        e: &mut LoweringCtx<'_>,
        norm: Option<NormPrologue>,
        tail: Option<BoundEpilogue>,
    ) -> Result<MatMulProblem, CompileError> {
        let (gate, residual) = match tail {
            Some(BoundEpilogue::Gate(gate)) => (Some(gate), None),
            Some(BoundEpilogue::Sum(with)) => (None, Some(as_matrix(e, &with)?)),
            None => (None, None),
        };
        Ok(MatMulProblem {
            norm,
            gate,
            residual,
            ..self
        })
    }

    /// The same matmul with its left operand replaced by these rows.
    pub(super) fn with_rows(
        self,
        e: &mut LoweringCtx<'_>,
        a: &SlotView,
    ) -> Result<MatMulProblem, CompileError> {
        let a = as_matrix(e, a)?;
        Ok(MatMulProblem {
            a: MatMulOperand::new(e, &a, Some(0), 1, &[]),
            ..self
        })
    }

    /// The activation function that applies to the sums, or that of the gate.
    pub(super) fn function(&self) -> Option<UnaryFn> {
        self.activation.or(self.gate.as_ref().map(|gate| gate.f))
    }

    /// The layout of the weights for keys of autotuning tables; `scheme` is their quantization
    /// scheme.
    pub(super) fn weights_of(&self, scheme: Option<Scheme>) -> WeightLayout {
        match scheme {
            Some(scheme) => WeightLayout::Packed(scheme),
            None if self.b.summed.unit => WeightLayout::KMajor(self.b.dtype),
            None => WeightLayout::NMajor(self.b.dtype),
        }
    }

    /// Number of columns of the result, which is `n`, or half of `n` with a gate.
    pub(super) fn columns(&self) -> Dim {
        match (&self.gate, self.n.known()) {
            (Some(_), Some(n)) => Dim::Known(n / 2),
            (_, _) => self.n.clone(),
        }
    }

    /// True if no operand shares a slot with another one. Kernels that bind operands under several
    /// types require unshared slots.
    pub(super) fn is_apart(&self) -> bool {
        let mut added = self.bias.iter().chain(&self.residual);
        let slots = [self.a.slot, self.b.slot];
        slots[0] != slots[1] && added.all(|v| !slots.contains(&v.slot))
    }

    /// Rewrites a matmul with one column as `y^T = b^T a^T`, so that matrix-vector products run as
    /// GEMV.
    pub(super) fn transpose_single_column(self) -> MatMulProblem {
        let takes_in = self.norm.is_some() || self.residual.is_some();
        if !self.n.is_one() || self.m.is_one() || self.bias.is_some() || takes_in {
            return self;
        }
        MatMulProblem {
            m: self.n,
            n: self.m,
            a: self.b,
            b: self.a,
            weights: None,
            ..self
        }
    }
}

/// Epilogue of a matmul with its operands.
pub(super) enum BoundEpilogue {
    Gate(GluEpilogue),
    /// The residual to add.
    Sum(SlotView),
}

/// The shape that `a` and `b` broadcast to: an axis of size 1 takes the size of the other shape.
fn broadcast(a: &[Dim], b: &[Dim]) -> Vec<Dim> {
    let rank = a.len().max(b.len());
    let at = |dims: &[Dim], axis: usize| {
        let own = (axis + dims.len()).checked_sub(rank);
        own.map_or(Dim::Known(1), |own| dims[own].clone())
    };
    let dims = (0..rank).map(|axis| match at(a, axis) {
        d if d.is_one() => at(b, axis),
        d => d,
    });
    dims.collect()
}

/// Minimum nonzero value of a dimension, for example 197 for `197 b` and 1 for `b - 1`.
pub(super) fn min_size(size: &Dim) -> usize {
    let sum = size.sum();
    let constant = sum.iter().find(|(symbols, _)| symbols.is_empty());
    let factors = sum.iter().map(|(_, factor)| *factor);
    let least = match constant {
        _ if factors.clone().any(|n| n < 0) => 1,
        Some((_, constant)) => *constant,
        None => factors.min().unwrap_or(1),
    };
    usize::try_from(least).unwrap_or(1)
}

/// Views an operand as a matrix by merging all leading axes; copies it if the strides do not allow
/// that.
fn as_matrix(e: &mut LoweringCtx<'_>, a: &SlotView) -> Result<SlotView, CompileError> {
    let shape = a.layout.shape();
    let (lead, last) = shape.split_at(shape.len() - 1);
    if lead.len() == 1 {
        return Ok(a.clone());
    }
    let too_large = || CompileError::OutOfMemory {
        what: "the rows of a matmul at the symbols' bounds",
        bytes: u64::MAX,
    };
    let matrix = [numel(lead).ok_or_else(too_large)?, last[0].clone()];
    if let Some(layout) = a.layout.reshape(&matrix) {
        return Ok(SlotView {
            layout,
            ..a.clone()
        });
    }
    let dense = e.dense(a)?;
    let layout = dense.layout.reshape(&matrix).ok_or_else(too_large)?;
    Ok(SlotView { layout, ..dense })
}

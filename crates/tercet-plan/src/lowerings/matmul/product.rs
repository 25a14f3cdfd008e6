//! A product: which elements of two views meet.

use tercet_ir::layout::{Term, numel};
use tercet_ir::scalar::UnaryFn;
use tercet_ir::{CompileError, DType, Dim, Scheme};

use crate::emit::{Emit, View};
use crate::families::gemm_coop::ACTIVATIONS;
use crate::fusions::{Gate, RowNorm};
use crate::num::Num;
use crate::program::SlotId;
use crate::tuning::Weights;

/// The code of a function of a sum in the kernels; `None` where they do not have it.
pub(in crate::families) fn activation_code(f: Option<UnaryFn>) -> Option<u32> {
    match f {
        None => Some(0),
        Some(f) => {
            let at = ACTIVATIONS.iter().position(|known| *known == f)?;
            Some(1 + at as u32)
        }
    }
}

/// How an operand moves along an axis.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Axis {
    /// Elements, or bytes along the rows of packed blocks.
    pub(super) stride: Num,
    /// The stride is 1.
    pub(super) unit: bool,
    /// The greatest power of two up to 16 that the stride is a multiple of in every run.
    pub(super) multiple: u64,
}

impl Axis {
    /// The stride where it is the same in every run, else 0.
    pub(super) fn known_stride(&self) -> u32 {
        let known = self.stride.known();
        known.and_then(|n| u32::try_from(n).ok()).unwrap_or(0)
    }

    /// An axis that the operand does not have.
    const NONE: Axis = Axis {
        stride: Num::ZERO,
        unit: false,
        multiple: 16,
    };

    fn of(stride: Num, term: &Term) -> Axis {
        Axis {
            stride,
            unit: term.factor() == 1 && *term.dim() == Dim::Known(1),
            multiple: term.power_of_two().min(16),
        }
    }
}

/// As [`Axis::multiple`], for the offset of a view.
fn offset_multiple(view: &View) -> u64 {
    let terms = view.layout.offset().iter();
    terms.fold(16, |least, t| least.min(t.power_of_two()))
}

/// An operand. The left one's own axis is m, the right one's is n.
#[derive(Clone, Debug)]
pub(super) struct Side {
    pub(super) slot: SlotId,
    pub(super) dtype: DType,
    pub(super) offset: Num,
    /// As [`Axis::multiple`].
    pub(super) offset_multiple: u64,
    /// Along the batch axes of the product.
    pub(super) batch: Vec<Axis>,
    pub(super) own: Axis,
    pub(super) summed: Axis,
}

impl Side {
    /// An operand whose last axes are `own` and `summed`, where it has them, and whose others line
    /// up with the last ones of `batch`.
    pub(super) fn of(
        e: &mut Emit<'_>,
        view: &View,
        own: Option<usize>,
        summed: usize,
        batch: &[Dim],
    ) -> Side {
        let strides = e.strides(view);
        let terms = view.layout.strides();
        let axis = |at: usize| Axis::of(strides[at], &terms[at]);
        let lead = terms.len() - 1 - usize::from(own.is_some());
        let mut axes = vec![Axis::NONE; batch.len() - lead];
        // NumPy's broadcasting: a size of 1 against another stays where it is.
        axes.extend((0..lead).map(|at| {
            let size = &view.layout.shape()[at];
            match *size == batch[batch.len() - lead + at] {
                true => axis(at),
                false => Axis::NONE,
            }
        }));
        Side {
            slot: view.slot,
            dtype: view.dtype,
            offset: e.offset(view),
            offset_multiple: offset_multiple(view),
            batch: axes,
            own: own.map_or(Axis::NONE, axis),
            summed: axis(summed),
        }
    }

    /// Rows `[n, row_bytes]` of packed blocks.
    pub(super) fn packed(e: &mut Emit<'_>, w: &View) -> (Side, Dim) {
        let strides = e.strides(w);
        let is_empty = w.layout.shape()[1] == Dim::Known(0);
        let axis = |at: usize| Axis::of(strides[at], &w.layout.strides()[at]);
        let side = Side {
            slot: w.slot,
            dtype: w.dtype,
            offset: e.offset(w),
            offset_multiple: offset_multiple(w),
            batch: Vec::new(),
            // A row without blocks has no stride of its own; it is never read.
            own: if is_empty { Axis::NONE } else { axis(0) },
            summed: Axis::NONE,
        };
        (side, w.layout.shape()[0].clone())
    }

    /// True if elements in pairs along the axis of stride 1 are words: what moves along the others
    /// moves by words.
    pub(super) fn has_words(&self, along: Axis, other: Axis) -> bool {
        let two_bytes = matches!(self.dtype, DType::F16 | DType::BF16);
        two_bytes && along.unit && self.is_multiple(2, other)
    }

    /// True if the offset and every stride but that of the remaining axis are multiples of `n`, a
    /// power of two up to 16.
    pub(super) fn is_multiple(&self, n: u64, other: Axis) -> bool {
        let strides = self.batch.iter().chain([&other]).map(|a| a.multiple);
        strides.chain([self.offset_multiple]).all(|m| m >= n)
    }
}

/// `y[z, i, j] = f(sum_k a[z, i, k] b[z, k, j] + bias[j])`, dense in this order; with what it may take in
/// where there is one matrix on the right: a norm that `a` is the operand of, a gate that halves the
/// columns of `y`, a sum with something of the shape of `y`.
#[derive(Clone, Debug)]
pub(super) struct Product {
    pub(super) batch: Vec<Dim>,
    pub(super) m: Dim,
    pub(super) n: Dim,
    pub(super) k: Dim,
    pub(super) a: Side,
    pub(super) b: Side,
    pub(super) bias: Option<View>,
    pub(super) activation: Option<UnaryFn>,
    pub(super) norm: Option<RowNorm>,
    pub(super) gate: Option<Gate>,
    /// Added to the results, in place of a bias: `[m, n]`.
    pub(super) residual: Option<View>,
    /// The right operand, `[k, n]`, where it is constant.
    pub(super) weights: Option<View>,
}

impl Product {
    /// The product as NumPy's `matmul` has it. Batch axes that the right operand does not have
    /// become rows.
    pub(super) fn of(
        e: &mut Emit<'_>,
        a: &View,
        b: &View,
        bias: Option<View>,
        activation: Option<UnaryFn>,
    ) -> Result<Product, CompileError> {
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
            // Its axes of size 1 or stride 0 do not move.
            let right = |e: &mut Emit<'_>| {
                let batch = &b_shape[..lead];
                let mut side = Side::of(e, b, own, summed, batch);
                side.batch.clear();
                (side, n)
            };
            let product = Product::rows_times(e, a, right)?;
            let is_matrix = b_shape.len() == 2 && e.is_constant(b);
            return Ok(Product {
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
        Ok(Product {
            m: a_own.map_or(Dim::Known(1), |at| a_shape[at].clone()),
            k: a_shape[a_shape.len() - 1].clone(),
            n,
            a: Side::of(e, a, a_own, a_shape.len() - 1, &batch),
            b: Side::of(e, b, own, summed, &batch),
            batch,
            bias,
            activation,
            norm: None,
            gate: None,
            residual: None,
            weights: None,
        })
    }

    /// The product of all rows of `a` with one matrix, whose columns the closure also tells.
    pub(super) fn rows_times(
        e: &mut Emit<'_>,
        a: &View,
        right: impl FnOnce(&mut Emit<'_>) -> (Side, Dim),
    ) -> Result<Product, CompileError> {
        let a = as_matrix(e, a)?;
        let [m, k] = [0, 1].map(|at| a.layout.shape()[at].clone());
        let (b, n) = right(e);
        Ok(Product {
            batch: Vec::new(),
            m,
            n,
            k,
            a: Side::of(e, &a, Some(0), 1, &[]),
            b,
            bias: None,
            activation: None,
            norm: None,
            gate: None,
            residual: None,
            weights: None,
        })
    }

    /// The same with what is done before and after it.
    pub(super) fn with(
        self,
        e: &mut Emit<'_>,
        norm: Option<RowNorm>,
        tail: Option<BoundEpilogue>,
    ) -> Result<Product, CompileError> {
        let (gate, residual) = match tail {
            Some(BoundEpilogue::Gate(gate)) => (Some(gate), None),
            Some(BoundEpilogue::Sum(with)) => (None, Some(as_matrix(e, &with)?)),
            None => (None, None),
        };
        Ok(Product {
            norm,
            gate,
            residual,
            ..self
        })
    }

    /// The same with other rows.
    pub(super) fn with_rows(self, e: &mut Emit<'_>, a: &View) -> Result<Product, CompileError> {
        let a = as_matrix(e, a)?;
        Ok(Product {
            a: Side::of(e, &a, Some(0), 1, &[]),
            ..self
        })
    }

    /// The function of its sums, or of those of the gate.
    pub(super) fn function(&self) -> Option<UnaryFn> {
        self.activation.or(self.gate.as_ref().map(|gate| gate.f))
    }

    /// The right side as tables of measurements have it, where it is not packed in this scheme.
    pub(super) fn weights_of(&self, scheme: Option<Scheme>) -> Weights {
        match scheme {
            Some(scheme) => Weights::Packed(scheme),
            None if self.b.summed.unit => Weights::Along(self.b.dtype),
            None => Weights::Across(self.b.dtype),
        }
    }

    /// The columns of the result.
    pub(super) fn columns(&self) -> Dim {
        match (&self.gate, self.n.known()) {
            (Some(_), Some(n)) => Dim::Known(n / 2),
            (_, _) => self.n.clone(),
        }
    }

    /// True if no operand has the slot of another, as kernels need that bind them under several types.
    pub(super) fn is_apart(&self) -> bool {
        let mut added = self.bias.iter().chain(&self.residual);
        let slots = [self.a.slot, self.b.slot];
        slots[0] != slots[1] && added.all(|v| !slots.contains(&v.slot))
    }

    /// `y^T = b^T a^T`, which for one column is the same result: products with a vector run as
    /// products of one row.
    pub(super) fn of_one_column_as_row(self) -> Product {
        let takes_in = self.norm.is_some() || self.residual.is_some();
        if !self.n.is_one() || self.m.is_one() || self.bias.is_some() || takes_in {
            return self;
        }
        Product {
            m: self.n,
            n: self.m,
            a: self.b,
            b: self.a,
            weights: None,
            ..self
        }
    }
}

/// What is done to the results of a product.
pub(super) enum BoundEpilogue {
    Gate(Gate),
    /// The other operand of a sum.
    Sum(View),
}

/// The axes of both, where a size of 1 gives way to the other.
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

/// The least size that this is in a run in which it is not zero: of `197 b` 197, of `b - 1` one.
pub(super) fn least(size: &Dim) -> usize {
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

/// The leading axes as one, by a copy where the elements would need to move.
fn as_matrix(e: &mut Emit<'_>, a: &View) -> Result<View, CompileError> {
    let shape = a.layout.shape();
    let (lead, last) = shape.split_at(shape.len() - 1);
    if lead.len() == 1 {
        return Ok(a.clone());
    }
    let too_large = || CompileError::OutOfMemory {
        what: "the rows of a matrix product at the symbols' bounds",
        bytes: u64::MAX,
    };
    let matrix = [numel(lead).ok_or_else(too_large)?, last[0].clone()];
    if let Some(layout) = a.layout.reshape(&matrix) {
        return Ok(View {
            layout,
            ..a.clone()
        });
    }
    let dense = e.dense(a)?;
    let layout = dense.layout.reshape(&matrix).ok_or_else(too_large)?;
    Ok(View { layout, ..dense })
}

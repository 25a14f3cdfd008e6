//! Reverse-mode differentiation as a graph transformation.
//!
//! [`Graph::gradients`] appends the nodes that compute gradients to the differentiated graph,
//! before any pass runs. Gradients are ordinary nodes, so executors, the text form and a second
//! differentiation need no special support. [`OpSpec::GRADIENT`](crate::OpSpec::GRADIENT) declares
//! each operator's gradient, or why it has none; it has no default. A rule builds vector-Jacobian
//! products through [`Vjp`] (Griewank and Walther, "Evaluating Derivatives", 2008).
//!
//! Invariants: the cotangent of a value has the value's type. A failed differentiation leaves the
//! graph unchanged. A non-differentiable node on the path is an error and never a silent zero
//! gradient.
//!
//! `reverse.rs` traverses the graph. `recompute.rs` selects forward values to recompute, and
//! `remat.rs` selects more on request. `vjp.rs` is the interface of rules. `rules/` contains all
//! rules that are longer than a line; short ones are next to their operator.

mod build;
mod decompose;
mod error;
mod recompute;
mod remat;
mod reverse;
pub(crate) mod rules;
mod vjp;

pub use error::{GradError, GradientBreak, NoGradient, UnreachableTarget};
pub use vjp::{Vjp, VjpResult};

use crate::graph::{Graph, Value};
use crate::ops::Op;
use reverse::{ReversePassResult, reverse_pass};

/// How an operator is differentiated, or why it is not.
///
/// ```
/// use tercet_ir::{GradientKind, OpSpec, ops};
/// assert_eq!(<ops::MatMul as OpSpec>::GRADIENT.kind(), GradientKind::Rule);
/// let comparison = <ops::Compare as OpSpec>::GRADIENT;
/// assert!(matches!(comparison, tercet_ir::Gradient::Zero(_)));
/// ```
pub enum Gradient<O: 'static> {
    /// A function that computes the cotangents of the operands from those of the results.
    Rule(fn(&O, &mut Vjp<'_>) -> VjpResult),
    /// Differentiates the operators of the legalized decomposition.
    Decompose,
    /// The derivative is zero wherever it exists, for this reason. Gradients stop here without an
    /// error.
    Zero(&'static str),
    /// The operator has no gradient, for this reason. Requesting a gradient that depends on the
    /// operator's gradient is an error.
    None(&'static str),
}

/// A [`Gradient`] without its rule, for documentation and tests.
///
/// ```
/// use tercet_ir::{GradientKind, OpKind};
/// assert_eq!(OpKind::MatMul.gradient(), GradientKind::Rule);
/// assert!(matches!(OpKind::ArgMax.gradient(), GradientKind::Zero(_)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GradientKind {
    /// A gradient by rule: see [`Gradient::Rule`].
    Rule,
    /// A gradient by decomposition: see [`Gradient::Decompose`].
    Decompose,
    /// A zero gradient: see [`Gradient::Zero`].
    Zero(&'static str),
    /// No gradient: see [`Gradient::None`].
    None(&'static str),
}

impl<O> Gradient<O> {
    /// The kind of this gradient.
    pub const fn kind(&self) -> GradientKind {
        match self {
            Gradient::Rule(_) => GradientKind::Rule,
            Gradient::Decompose => GradientKind::Decompose,
            Gradient::Zero(reason) => GradientKind::Zero(reason),
            Gradient::None(reason) => GradientKind::None(reason),
        }
    }

    /// Computes the cotangents of the operands.
    pub(crate) fn apply(&self, op: &O, v: &mut Vjp<'_>) -> VjpResult {
        match self {
            Gradient::Rule(rule) => rule(op, v),
            Gradient::Decompose => v.through_decomposition(),
            Gradient::Zero(_) => Ok(()),
            Gradient::None(reason) => Err(NoGradient::because(*reason)),
        }
    }
}

impl Graph {
    /// The gradients of a scalar loss with respect to values of the graph. Each gradient has the
    /// type of its value. Appends the nodes that compute the gradients to the graph.
    ///
    /// ```
    /// use tercet_ir::{DType, Graph, Type};
    /// let mut g = Graph::new();
    /// let x = g.input("x", Type::new(DType::F32, [3]))?;
    /// let squares = g.mul(x, x)?;
    /// let loss = g.reduce_sum(squares, &[0], false)?;
    /// let dx = g.gradients(loss, &[x])?[0];
    /// assert_eq!(g.ty(dx), g.ty(x));
    /// // Gradients are differentiated like any other node.
    /// let steepness = g.reduce_sum(dx, &[0], false)?;
    /// let second = g.gradients(steepness, &[x])?;
    /// # assert_eq!(second.len(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`GradError`] if the loss is not a float scalar, or a value is not a float. Also if the loss
    /// does not depend on a value, or an operator between them has no gradient. The graph is then
    /// unchanged.
    pub fn gradients(&mut self, loss: Value, wanted: &[Value]) -> Result<Vec<Value>, GradError> {
        self.gradients_of(loss, wanted, false)
    }

    /// As [`Graph::gradients`], but the gradients read fewer values of the forward pass. Gradients
    /// recompute elementwise values from values that are saved anyway, for example activations from
    /// their inputs. The resulting gradients are the same as without recomputation. Memory is saved
    /// if a large value would be stored only for gradients; elementwise work is done twice.
    ///
    /// # Errors
    /// As [`Graph::gradients`].
    pub fn gradients_recomputing(
        &mut self,
        loss: Value,
        wanted: &[Value],
    ) -> Result<Vec<Value>, GradError> {
        self.gradients_of(loss, wanted, true)
    }

    fn gradients_of(
        &mut self,
        loss: Value,
        wanted: &[Value],
        recompute: bool,
    ) -> Result<Vec<Value>, GradError> {
        let ty = self.known(loss)?.clone();
        if ty.rank() != 0 || !ty.dtype.is_float() {
            return Err(GradError::Loss { value: loss, ty });
        }
        let before = self.len();
        let one = self
            .filled(&ty, 1.0)
            .map_err(|source| GradError::rule(loss.node, "gradients", source))?;
        let mut pulled = self.pulled(before, &[(loss, one)], wanted, Vec::new())?;
        if recompute {
            let cotangents: Vec<Value> = pulled.cotangents.iter().flatten().copied().collect();
            let cheap = remat::cheap(self, before, &cotangents);
            self.truncate(before);
            let one = self
                .filled(&ty, 1.0)
                .map_err(|source| GradError::rule(loss.node, "gradients", source))?;
            pulled = self.pulled(before, &[(loss, one)], wanted, cheap)?;
        }
        let all: Option<Vec<Value>> = pulled.cotangents.iter().copied().collect();
        all.ok_or_else(|| {
            let unused = wanted.iter().zip(&pulled.cotangents);
            let unused = unused.filter(|(_, c)| c.is_none());
            let values = unused
                .map(|(v, _)| UnreachableTarget::new(self, *v, loss, &pulled.flat))
                .collect();
            self.truncate(before);
            GradError::Unused { loss, values }
        })
    }

    /// The vector-Jacobian product: for each of the values, the sum over `outputs` of their
    /// cotangent times their derivative, with the value's type. `None` if no output depends on the
    /// value, or only through operators with zero derivative. Appends the nodes that compute the
    /// products to the graph.
    ///
    /// # Errors
    /// As [`Graph::gradients`]; [`GradError::Cotangent`] when a cotangent's type differs from its
    /// output's type.
    pub fn vjp(
        &mut self,
        outputs: &[(Value, Value)],
        wanted: &[Value],
    ) -> Result<Vec<Option<Value>>, GradError> {
        let before = self.len();
        Ok(self.pulled(before, outputs, wanted, Vec::new())?.cotangents)
    }

    /// Validates the arguments and runs the reverse pass. On errors, removes the nodes from
    /// `before` on.
    fn pulled(
        &mut self,
        before: usize,
        outputs: &[(Value, Value)],
        wanted: &[Value],
        cheap: Vec<bool>,
    ) -> Result<ReversePassResult, GradError> {
        let done = self.checked(outputs, wanted).and_then(|()| {
            let pulled = reverse_pass(self, 0, outputs, wanted, cheap)?;
            match pulled.breaks.is_empty() {
                true => Ok(pulled),
                false => Err(GradError::Severed {
                    nodes: pulled.breaks,
                }),
            }
        });
        if done.is_err() {
            self.truncate(before);
        }
        done
    }

    fn checked(&self, outputs: &[(Value, Value)], wanted: &[Value]) -> Result<(), GradError> {
        for &(value, cotangent) in outputs {
            let (ty, given) = (self.known(value)?.clone(), self.known(cotangent)?.clone());
            if ty != given {
                return Err(GradError::Cotangent { value, ty, given });
            }
        }
        for &value in outputs.iter().map(|(v, _)| v).chain(wanted) {
            let ty = self.known(value)?.clone();
            if !ty.dtype.is_float() {
                let name = error::leaf_name(self, value);
                return Err(GradError::NotFloat { value, name, ty });
            }
        }
        Ok(())
    }

    fn known(&self, value: Value) -> Result<&crate::Type, GradError> {
        self.get_type(value).ok_or(GradError::NotOfGraph { value })
    }
}

impl Op {
    /// The operator's name, for errors.
    pub(crate) fn name(&self) -> &'static str {
        self.kind().doc().name
    }
}

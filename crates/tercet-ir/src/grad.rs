//! Reverse-mode differentiation: a function from graph to graph.
//!
//! [`Graph::gradients`] appends the nodes that compute gradients to the graph that it differentiates, before any
//! pass runs. They are ordinary nodes, so that executors, the text form and a second differentiation take them as they
//! are. What an operator's gradient is, or why it has none, [`OpSpec::GRADIENT`](crate::OpSpec::GRADIENT) says, which
//! has no default; a rule builds vector-Jacobian products through [`Vjp`] (Griewank and Walther, "Evaluating
//! Derivatives", 2008).
//!
//! Invariants: the cotangent of a value has its type; a graph that could not be differentiated is left as it was; a
//! gradient is an error where the way to it is blocked, never zeros in silence.
//!
//! `reverse.rs` walks the graph, `recompute.rs` says what of the way forward is computed again, `cheap.rs` what of it on request, `vjp.rs` is what rules build with, `rules/` are those that are not a line beside their
//! operator.

mod build;
mod cheap;
mod decompose;
mod error;
mod recompute;
mod reverse;
pub(crate) mod rules;
#[cfg(test)]
mod tests;
mod vjp;

pub use error::{GradError, NoGradient, Severed, Unused};
pub use vjp::{Ruled, Vjp};

use crate::graph::{Graph, Value};
use crate::ops::Op;
use reverse::{Pulled, pull};

/// How an operator is differentiated, or why it is not.
pub enum Gradient<O: 'static> {
    /// The rule gives the cotangents of the operands from those of the results.
    Rule(fn(&O, &mut Vjp<'_>) -> Ruled),
    /// Through the operators that legalization would make of it.
    Decompose,
    /// Zero wherever it exists, for this reason: gradients end here, and that is no error.
    Zero(&'static str),
    /// There is none, for this reason: a gradient that would need it is an error.
    None(&'static str),
}

/// A [`Gradient`] without its rule, for documentation and tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GradientKind {
    /// See [`Gradient::Rule`].
    Rule,
    /// See [`Gradient::Decompose`].
    Decompose,
    /// See [`Gradient::Zero`].
    Zero(&'static str),
    /// See [`Gradient::None`].
    None(&'static str),
}

impl<O> Gradient<O> {
    /// Which of them it is.
    pub const fn kind(&self) -> GradientKind {
        match self {
            Gradient::Rule(_) => GradientKind::Rule,
            Gradient::Decompose => GradientKind::Decompose,
            Gradient::Zero(reason) => GradientKind::Zero(reason),
            Gradient::None(reason) => GradientKind::None(reason),
        }
    }

    /// Gives the cotangents of the operands.
    pub(crate) fn apply(&self, op: &O, v: &mut Vjp<'_>) -> Ruled {
        match self {
            Gradient::Rule(rule) => rule(op, v),
            Gradient::Decompose => v.through_decomposition(),
            Gradient::Zero(_) => Ok(()),
            Gradient::None(reason) => Err(NoGradient::because(*reason)),
        }
    }
}

impl Graph {
    /// The gradients of a scalar with respect to values of the graph, each of its value's type. Appends the nodes that
    /// compute them.
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
    /// [`GradError`]: the loss is no float scalar, a value is no float or the loss does not depend on it, or the way
    /// between them leads through an operator that has no gradient. The graph stays as it was.
    pub fn gradients(&mut self, loss: Value, wanted: &[Value]) -> Result<Vec<Value>, GradError> {
        self.gradients_of(loss, wanted, false)
    }

    /// As [`Graph::gradients`], with less of the way forward kept for them: elementwise values that follow from values which are kept
    /// anyway, such as activations from what goes into them, are computed again where gradients read them. The results are the
    /// same; memory is saved where a large value is kept for gradients alone, and elementwise work is done twice.
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
            let cheap = cheap::cheap(self, before, &cotangents);
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
                .map(|(v, _)| Unused::of(self, *v, loss, &pulled.flat))
                .collect();
            self.truncate(before);
            GradError::Unused { loss, values }
        })
    }

    /// The vector-Jacobian product: for each of the values the sum over `outputs` of their cotangent times their
    /// derivative, of the value's type; nothing where no output depends on it, or only by steps of slope zero.
    /// Appends the nodes that compute it.
    ///
    /// # Errors
    /// As [`Graph::gradients`]; [`GradError::Cotangent`] when a cotangent is not of its output's type.
    pub fn vjp(
        &mut self,
        outputs: &[(Value, Value)],
        wanted: &[Value],
    ) -> Result<Vec<Option<Value>>, GradError> {
        let before = self.len();
        Ok(self.pulled(before, outputs, wanted, Vec::new())?.cotangents)
    }

    /// Checks what is asked for, and pulls cotangents back; on errors the nodes from `before` on go.
    fn pulled(
        &mut self,
        before: usize,
        outputs: &[(Value, Value)],
        wanted: &[Value],
        cheap: Vec<bool>,
    ) -> Result<Pulled, GradError> {
        let done = self.checked(outputs, wanted).and_then(|()| {
            let pulled = pull(self, 0, outputs, wanted, cheap)?;
            match pulled.severed.is_empty() {
                true => Ok(pulled),
                false => Err(GradError::Severed {
                    nodes: pulled.severed,
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

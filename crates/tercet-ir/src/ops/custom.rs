//! A node of a user's operator.

mod cases;

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use crate::accuracy::Accuracy;
use crate::attr::{AttrError, Attrs, Literal};
use crate::case::{Case, Reject};
use crate::custom::{CustomOp, CustomOps, attrs_kind, spelled_attrs};
use crate::dtype::DType;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::Gradient;
use crate::graph::{Graph, Value};
use crate::op::{Doc, EvalCtx, OpSpec, Tier};
use crate::tensor::Tensor;
use crate::types::{TensorType, Type};

/// An operator from outside: see [`CustomOp`]. Two are equal if name and attributes are.
#[derive(Clone)]
pub struct Custom {
    op: Arc<dyn CustomOp>,
    /// Name and attributes in the text form, which tell operators apart: numbers by their bits.
    spelled: String,
}

impl Custom {
    /// The node of an operator.
    pub fn new(op: Arc<dyn CustomOp>) -> Custom {
        let spelled = format!("{:?} {}", op.name(), spelled_attrs(&*op));
        Custom { op, spelled }
    }

    /// The operator.
    pub fn op(&self) -> &dyn CustomOp {
        &*self.op
    }

    fn check_names(&self) -> Result<(), TypeError> {
        let is_word = |name: &str| {
            let mut chars = name.chars();
            let starts = |c: char| c.is_ascii_alphabetic() || c == '_';
            let goes_on = |c: char| c.is_ascii_alphanumeric() || c == '_';
            chars.next().is_some_and(starts) && chars.all(goes_on) && !matches!(name, "inf" | "nan")
        };
        let own = self.op.name();
        if !own.split('.').all(is_word) {
            let reason = format!("`{own}` is no name of words between dots");
            return Err(TypeError::Attr {
                name: "name",
                reason,
            });
        }
        let attrs = self.op.attrs();
        let names: Vec<&str> = attrs.iter().map(|(name, _)| *name).collect();
        let wrong =
            (names.iter().enumerate()).find(|(i, n)| !is_word(n) || names[..*i].contains(n));
        match wrong {
            Some((_, wrong)) => {
                let reason = format!("`{wrong}` is no word that names one attribute");
                Err(TypeError::Attr {
                    name: "attrs",
                    reason,
                })
            }
            None => Ok(()),
        }
    }
}

impl fmt::Debug for Custom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.op.fmt(f)
    }
}

impl PartialEq for Custom {
    fn eq(&self, other: &Custom) -> bool {
        self.spelled == other.spelled
    }
}
impl Eq for Custom {}

impl Hash for Custom {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.spelled.hash(state);
    }
}

/// Read by the operators that are shipped; [`parse_with`](crate::parse_with) knows others.
impl Attrs for Custom {
    const NAMES: &'static [&'static str] = &["name", "attrs"];

    fn kinds() -> Vec<(&'static str, String)> {
        vec![("name", "string".to_string()), ("attrs", attrs_kind())]
    }

    fn to_literals(&self) -> Vec<(&'static str, Literal)> {
        let name = Literal::Str(self.op.name().to_string());
        vec![("name", name), ("attrs", spelled_attrs(&*self.op))]
    }

    fn from_literals(given: &[(String, Literal)]) -> Result<Custom, AttrError> {
        CustomOps::new().custom(given)
    }
}

/// The most results of a node.
const MOST_RESULTS: usize = 255;

impl OpSpec for Custom {
    const DOC: Doc = Doc {
        name: "custom",
        text: "An operator from outside, by its name; `moe.group_limited_gate` and `knn.pairwise` are shipped. GPUs run it where it has WGSL.",
        operands: &["operands..."],
        dtypes: &[DType::F32],
        accuracy: Accuracy::Contraction,
        tier: Tier::Core,
    };

    const GRADIENT: Gradient<Self> = Gradient::Rule(|op, v| op.op.gradient(v));

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        self.check_names()?;
        let results = self.op.infer(operands)?;
        if (1..=MOST_RESULTS).contains(&results.len()) {
            return Ok(results);
        }
        Err(TypeError::Other(format!(
            "`{}` has {} results; accepted: 1 to {MOST_RESULTS}",
            self.op.name(),
            results.len()
        )))
    }

    fn eval(
        &self,
        _: &EvalCtx,
        operands: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        let values = self.op.eval(operands, results)?;
        let name = self.op.name();
        if values.len() != results.len() {
            let (given, wanted) = (values.len(), results.len());
            let reason = format!("`{name}` gave {given} results instead of {wanted}");
            return Err(EvalError::Data(reason));
        }
        for (at, (value, wanted)) in values.iter().zip(results).enumerate() {
            if value.ty() != wanted {
                let given = value.ty();
                let reason = format!("result {at} of `{name}` is {given} instead of {wanted}");
                return Err(EvalError::Data(reason));
            }
        }
        Ok(values)
    }

    fn cases() -> Vec<Case> {
        cases::cases()
    }

    fn rejects() -> Vec<Reject> {
        cases::rejects()
    }
}

impl Graph {
    /// Applies an operator from outside. The value is its first result; `.port(1)` is the second.
    ///
    /// # Errors
    /// [`OpError`] of the operator's own inference; when its name or that of an attribute is no word, or it has
    /// no results or more than 255.
    pub fn custom(
        &mut self,
        op: impl CustomOp + 'static,
        operands: &[Value],
    ) -> Result<Value, OpError> {
        self.add(Custom::new(Arc::new(op)), operands)
    }
}

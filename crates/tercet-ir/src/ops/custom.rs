//! The operator that holds a custom operator.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use tercet_tensor::accuracy::Accuracy;
use tercet_tensor::{Bindings, DType, Tensor, TensorType, Type};

use crate::attr::{AttrError, AttrLiteral, Attrs};
use crate::custom::{CustomOp, CustomOps, attrs_kind, spelled_attrs};
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::Gradient;
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};

/// A node of a custom operator: see [`CustomOp`]. Two are equal if their names and attributes are
/// equal.
///
/// ```
/// use std::sync::Arc;
/// use tercet_ir::custom::PairwiseKnn;
/// use tercet_ir::ops::Custom;
/// use tercet_ir::{DType, Graph, Op, Type};
/// let mut g = Graph::new();
/// let distances = g.input("distances", Type::new(DType::F32, [5, 5]))?;
/// let near = g.custom(PairwiseKnn { k: 2 }, &[distances])?;
/// let op = Custom::new(Arc::new(PairwiseKnn { k: 2 }));
/// assert_eq!(op.op().name(), "knn.pairwise");
/// assert_eq!(g.node(near.node).op, Op::from(op));
/// # Ok::<(), tercet_ir::OpError>(())
/// ```
#[derive(Clone)]
pub struct Custom {
    op: Arc<dyn CustomOp>,
    /// Name and attributes in the text form, used for comparison; numbers are compared by their
    /// bits.
    text_form: String,
}

impl Custom {
    /// A node of this custom operator.
    pub fn new(op: Arc<dyn CustomOp>) -> Custom {
        let spelled = format!("{:?} {}", op.name(), spelled_attrs(&*op));
        Custom {
            op,
            text_form: spelled,
        }
    }

    /// The custom operator.
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
            let reason = format!("`{own}` is not a name of the form `library.operator`");
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
                let reason = format!("`{wrong}` is not an identifier, or is repeated");
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
        self.text_form == other.text_form
    }
}
impl Eq for Custom {}

impl Hash for Custom {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.text_form.hash(state);
    }
}

/// Parses only the built-in custom operators; [`parse_with`](crate::parse_with) supports others.
impl Attrs for Custom {
    const NAMES: &'static [&'static str] = &["name", "attrs"];

    fn kinds() -> Vec<(&'static str, String)> {
        vec![("name", "string".to_string()), ("attrs", attrs_kind())]
    }

    fn to_literals(&self) -> Vec<(&'static str, AttrLiteral)> {
        let name = AttrLiteral::Str(self.op.name().to_string());
        vec![("name", name), ("attrs", spelled_attrs(&*self.op))]
    }

    fn from_literals(given: &[(String, AttrLiteral)]) -> Result<Custom, AttrError> {
        CustomOps::new().custom(given)
    }

    /// Custom operators derive sizes from their operands; their attributes do not change.
    fn set_sizes(&mut self, _: &Bindings) -> Result<(), TypeError> {
        Ok(())
    }
}

/// Maximum number of results of a node.
const MAX_RESULTS: usize = 255;

impl OpSpec for Custom {
    const DOC: OpDoc = OpDoc {
        name: "custom",
        text: "A custom operator, selected by name; `moe.group_limited_gate` and `knn.pairwise` \
               are built in. GPUs support it if it has WGSL kernels.",
        operands: &["operands..."],
        dtypes: &[DType::F32],
        accuracy: Accuracy::Contraction,
        tier: Tier::Core,
    };

    const GRADIENT: Gradient<Self> = Gradient::Rule(|op, v| op.op.gradient(v));

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        self.check_names()?;
        let results = self.op.infer(operands)?;
        if (1..=MAX_RESULTS).contains(&results.len()) {
            return Ok(results);
        }
        Err(TypeError::Other(format!(
            "`{}` has {} results; accepted: 1 to {MAX_RESULTS}",
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
            let reason = format!("`{name}` returned {given} results; expected {wanted}");
            return Err(EvalError::Data(reason));
        }
        for (at, (value, wanted)) in values.iter().zip(results).enumerate() {
            if value.ty() != wanted {
                let given = value.ty();
                let reason = format!("result {at} of `{name}` is {given}; expected {wanted}");
                return Err(EvalError::Data(reason));
            }
        }
        Ok(values)
    }
}

impl Graph {
    /// Adds a custom operator. Returns its first result; `.port(1)` is the second.
    ///
    /// # Errors
    /// [`OpError`] when the operator's type inference fails, its name or an attribute's name is not
    /// an identifier, or it has no results or more than 255.
    pub fn custom(
        &mut self,
        op: impl CustomOp + 'static,
        operands: &[Value],
    ) -> Result<Value, OpError> {
        self.add(Custom::new(Arc::new(op)), operands)
    }
}

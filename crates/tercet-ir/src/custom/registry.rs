//! Custom operators by name, for the text form.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use super::{CustomOp, GroupLimitedGate, PairwiseKnn};
use crate::attr::{AttrError, AttrLiteral, AttrValue, Attrs, take_attr};
use crate::ops::Custom;

type CustomOpResult = Result<Arc<dyn CustomOp>, AttrError>;
type CustomOpFactory = Arc<dyn Fn(&[(String, AttrLiteral)]) -> CustomOpResult + Send + Sync>;

/// A registry that constructs custom operators from names and attributes, for
/// [`parse_with`](crate::parse_with).
///
/// ```
/// use tercet_ir::custom::{CustomOps, PairwiseKnn};
/// use tercet_ir::{attr::Attrs, parse_with};
/// let mut ops = CustomOps::new();
/// ops.register("knn.pairwise", PairwiseKnn::from_literals);
/// let text = r#"graph {
///   %d = input{name="d", ty=f32[5, 5]}()
///   %n = custom{name="knn.pairwise", attrs=[k(2)]}(%d)
///   return %n as "neighbours"
/// }"#;
/// let graph = parse_with(text, &ops)?;
/// assert_eq!(graph.ty(graph.outputs()[0].value).to_string(), "i32[5, 2]");
/// # Ok::<(), tercet_ir::TextError>(())
/// ```
#[derive(Clone)]
pub struct CustomOps {
    makers: BTreeMap<String, CustomOpFactory>,
}

/// A registry with the built-in custom operators.
impl Default for CustomOps {
    fn default() -> CustomOps {
        let mut ops = CustomOps {
            makers: BTreeMap::new(),
        };
        ops.register(GroupLimitedGate::NAME, GroupLimitedGate::from_literals);
        ops.register(PairwiseKnn::NAME, PairwiseKnn::from_literals);
        ops
    }
}

impl fmt::Debug for CustomOps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.makers.keys()).finish()
    }
}

impl CustomOps {
    /// A registry with the built-in custom operators.
    pub fn new() -> CustomOps {
        CustomOps::default()
    }

    /// Adds an operator, or replaces the one with this name. `make` constructs the operator from
    /// attributes, usually with [`Attrs::from_literals`].
    pub fn register<T: CustomOp + 'static>(
        &mut self,
        name: &str,
        make: impl Fn(&[(String, AttrLiteral)]) -> Result<T, AttrError> + Send + Sync + 'static,
    ) {
        let make: CustomOpFactory =
            Arc::new(move |given| make(given).map(|op| Arc::new(op) as Arc<dyn CustomOp>));
        self.makers.insert(name.to_string(), make);
    }

    /// Constructs the operator that `custom{name=.., attrs=[..]}` of the text form describes.
    ///
    /// # Errors
    /// [`AttrError`] when the name is unknown or the attributes are invalid.
    pub fn custom(&self, given: &[(String, AttrLiteral)]) -> Result<Custom, AttrError> {
        let known = <Custom as Attrs>::NAMES;
        if let Some((name, _)) = given.iter().find(|(n, _)| !known.contains(&n.as_str())) {
            let (name, known) = (name.clone(), known.join(", "));
            return Err(AttrError::Unknown { name, known });
        }
        let name: String = take_attr(given, "name")?;
        let DisplayAttrs(attrs) = take_attr(given, "attrs")?;
        let within = |name, source| AttrError::In {
            name,
            source: Box::new(source),
        };
        let found = |name: &str| AttrLiteral::Str(name.to_string());
        let Some(make) = self.makers.get(&name) else {
            let names: Vec<&str> = self.makers.keys().map(String::as_str).collect();
            let expected = format!("a registered operator: {}", names.join(", "));
            return Err(within("name", AttrError::kind(expected, &found(&name))));
        };
        let op = make(&attrs).map_err(|e| within("attrs", e))?;
        if op.name() != name {
            let expected = format!("the name of the operator, \"{}\"", op.name());
            return Err(within("name", AttrError::kind(expected, &found(&name))));
        }
        Ok(Custom::new(op))
    }
}

/// Attributes in the syntax `[name(value), ..]`.
struct DisplayAttrs(Vec<(String, AttrLiteral)>);

impl AttrValue for DisplayAttrs {
    fn kind() -> String {
        "list of `name(value)`".to_string()
    }

    fn to_literal(&self) -> AttrLiteral {
        AttrLiteral::List(self.0.iter().map(|(n, v)| pair(n, v)).collect())
    }

    fn from_literal(literal: &AttrLiteral) -> Result<DisplayAttrs, AttrError> {
        let expected = || AttrError::kind("a list such as [k(3)]", literal);
        let AttrLiteral::List(items) = literal else {
            return Err(expected());
        };
        let mut pairs: Vec<(String, AttrLiteral)> = Vec::with_capacity(items.len());
        for item in items {
            match item {
                AttrLiteral::Call(name, value) if !pairs.iter().any(|(n, _)| n == name) => {
                    let [value] = value.as_slice() else {
                        return Err(expected());
                    };
                    pairs.push((name.clone(), value.clone()));
                }
                _ => return Err(expected()),
            }
        }
        Ok(DisplayAttrs(pairs))
    }
}

fn pair(name: &str, value: &AttrLiteral) -> AttrLiteral {
    AttrLiteral::Call(name.to_string(), vec![value.clone()])
}

/// The attributes of an operator in text form syntax.
pub(crate) fn spelled_attrs(op: &dyn CustomOp) -> AttrLiteral {
    let attrs = op.attrs().into_iter().map(|(n, v)| (n.to_string(), v));
    DisplayAttrs(attrs.collect()).to_literal()
}

/// The expected syntax of the attributes in words.
pub(crate) fn attrs_kind() -> String {
    DisplayAttrs::kind()
}

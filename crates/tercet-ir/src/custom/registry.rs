//! Custom operators by name, for the text form.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use super::{CustomOp, GroupLimitedGate, PairwiseKnn};
use crate::attr::{AttrError, AttrValue, Attrs, Literal, take_attr};
use crate::ops::Custom;

type Made = Result<Arc<dyn CustomOp>, AttrError>;
type Make = Arc<dyn Fn(&[(String, Literal)]) -> Made + Send + Sync>;

/// What makes custom operators from names and attributes: given to
/// [`parse_with`](crate::parse_with).
#[derive(Clone)]
pub struct CustomOps {
    makers: BTreeMap<String, Make>,
}

/// The operators that are shipped.
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
    /// The operators that are shipped.
    pub fn new() -> CustomOps {
        CustomOps::default()
    }

    /// Adds an operator, or replaces the one of this name. `make` gives the operator of some attributes, which
    /// [`Attrs::from_literals`] does.
    pub fn register<T: CustomOp + 'static>(
        &mut self,
        name: &str,
        make: impl Fn(&[(String, Literal)]) -> Result<T, AttrError> + Send + Sync + 'static,
    ) {
        let make: Make =
            Arc::new(move |given| make(given).map(|op| Arc::new(op) as Arc<dyn CustomOp>));
        self.makers.insert(name.to_string(), make);
    }

    /// The operator that the text form's `custom{name=.., attrs=[..]}` spells.
    ///
    /// # Errors
    /// [`AttrError`] when no operator has the name, or it does not take the attributes.
    pub fn custom(&self, given: &[(String, Literal)]) -> Result<Custom, AttrError> {
        let known = <Custom as Attrs>::NAMES;
        if let Some((name, _)) = given.iter().find(|(n, _)| !known.contains(&n.as_str())) {
            let (name, known) = (name.clone(), known.join(", "));
            return Err(AttrError::Unknown { name, known });
        }
        let name: String = take_attr(given, "name")?;
        let Pairs(attrs) = take_attr(given, "attrs")?;
        let within = |name, source| AttrError::In {
            name,
            source: Box::new(source),
        };
        let found = |name: &str| Literal::Str(name.to_string());
        let Some(make) = self.makers.get(&name) else {
            let names: Vec<&str> = self.makers.keys().map(String::as_str).collect();
            let expected = format!("an operator that is registered, {}", names.join(", "));
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

/// Attributes as `[name(value), ..]`.
struct Pairs(Vec<(String, Literal)>);

impl AttrValue for Pairs {
    fn kind() -> String {
        "list of `name(value)`".to_string()
    }

    fn to_literal(&self) -> Literal {
        Literal::List(self.0.iter().map(|(n, v)| pair(n, v)).collect())
    }

    fn from_literal(literal: &Literal) -> Result<Pairs, AttrError> {
        let expected = || AttrError::kind("a list such as [k(3)]", literal);
        let Literal::List(items) = literal else {
            return Err(expected());
        };
        let mut pairs: Vec<(String, Literal)> = Vec::with_capacity(items.len());
        for item in items {
            match item {
                Literal::Call(name, value) if !pairs.iter().any(|(n, _)| n == name) => {
                    let [value] = value.as_slice() else {
                        return Err(expected());
                    };
                    pairs.push((name.clone(), value.clone()));
                }
                _ => return Err(expected()),
            }
        }
        Ok(Pairs(pairs))
    }
}

fn pair(name: &str, value: &Literal) -> Literal {
    Literal::Call(name.to_string(), vec![value.clone()])
}

/// The attributes of an operator as the text form spells them.
pub(crate) fn spelled_attrs(op: &dyn CustomOp) -> Literal {
    let attrs = op.attrs().into_iter().map(|(n, v)| (n.to_string(), v));
    Pairs(attrs.collect()).to_literal()
}

/// What the text form takes for the attributes, in words.
pub(crate) fn attrs_kind() -> String {
    Pairs::kind()
}

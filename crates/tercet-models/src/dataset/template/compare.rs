//! Equality, order and containment of values.

use std::cmp::Ordering;

use super::eval::Run;
use super::parser::CompareOp;
use super::value::{Internal, InternalKind};
use super::{TemplateError, Value};

impl Run<'_> {
    pub(super) fn compare(
        &mut self,
        op: CompareOp,
        left: &Value,
        right: &Value,
    ) -> Result<bool, TemplateError> {
        Ok(match op {
            CompareOp::Eq => self.equal(left, right)?,
            CompareOp::Ne => !self.equal(left, right)?,
            CompareOp::In => self.contains(right, left)?,
            CompareOp::NotIn => !self.contains(right, left)?,
            CompareOp::Lt => self.order(left, right)? == Some(Ordering::Less),
            CompareOp::Le => matches!(
                self.order(left, right)?,
                Some(Ordering::Less | Ordering::Equal)
            ),
            CompareOp::Gt => self.order(left, right)? == Some(Ordering::Greater),
            CompareOp::Ge => matches!(
                self.order(left, right)?,
                Some(Ordering::Greater | Ordering::Equal)
            ),
        })
    }

    /// The order of two numbers or texts; `None` for NaN.
    fn order(&mut self, left: &Value, right: &Value) -> Result<Option<Ordering>, TemplateError> {
        if let (Value::Text(a), Value::Text(b)) = (left, right) {
            self.scan(a.len().min(b.len()))?;
            return Ok(Some(a.cmp(b)));
        }
        if let (Some(a), Some(b)) = (left.as_int(), right.as_int()) {
            return Ok(Some(a.cmp(&b)));
        }
        match (left.as_float(), right.as_float()) {
            (Some(a), Some(b)) => Ok(a.partial_cmp(&b)),
            _ => {
                let (a, b) = (left.kind(), right.kind());
                Err(self.fail(format!("{a} and {b} have no order")))
            }
        }
    }

    pub(super) fn equal(&mut self, left: &Value, right: &Value) -> Result<bool, TemplateError> {
        self.step(1)?;
        match (left, right) {
            (Value::Undefined, Value::Undefined) | (Value::None, Value::None) => Ok(true),
            (Value::Text(a), Value::Text(b)) => {
                self.scan(a.len().min(b.len()))?;
                Ok(a == b)
            }
            (Value::List(a), Value::List(b)) => {
                if a.items.len() != b.items.len() {
                    return Ok(false);
                }
                for (a, b) in a.items.iter().zip(&b.items) {
                    if !self.equal(a, b)? {
                        return Ok(false);
                    }
                }
                Ok(true)
            }
            (Value::Map(a), Value::Map(b)) => {
                if a.entries.len() != b.entries.len() {
                    return Ok(false);
                }
                for (key, a) in &a.entries {
                    self.step(b.entries.len())?;
                    let found = b.entries.iter().find(|(k, _)| k == key);
                    match found {
                        Some((_, b)) if self.equal(a, b)? => {}
                        _ => return Ok(false),
                    }
                }
                Ok(true)
            }
            (
                Value::Internal(Internal(InternalKind::Namespace(a))),
                Value::Internal(Internal(InternalKind::Namespace(b))),
            ) => Ok(a == b),
            _ => match (left.as_int(), right.as_int()) {
                (Some(a), Some(b)) => Ok(a == b),
                _ => Ok(matches!(
                    (left.as_float(), right.as_float()),
                    (Some(a), Some(b)) if a == b
                )),
            },
        }
    }

    fn contains(&mut self, value: &Value, part: &Value) -> Result<bool, TemplateError> {
        match (value, part) {
            (Value::Text(text), Value::Text(part)) => {
                self.scan(text.len())?;
                Ok(text.contains(&**part))
            }
            (Value::List(list), _) => {
                for item in &list.items {
                    if self.equal(item, part)? {
                        return Ok(true);
                    }
                }
                Ok(false)
            }
            (Value::Map(map), Value::Text(key)) => {
                self.step(map.entries.len())?;
                Ok(map.entries.iter().any(|(k, _)| k == key))
            }
            (Value::Map(_) | Value::Undefined, _) => Ok(false),
            _ => {
                let (value, part) = (value.kind(), part.kind());
                Err(self.fail(format!("{value} cannot contain {part}")))
            }
        }
    }
}

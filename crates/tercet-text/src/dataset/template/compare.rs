//! Equality, order and containment of template values.

use std::cmp::Ordering;

use super::eval::TemplateEvaluator;
use super::parser::TemplateCompareOp;
use super::value::{TemplateInternal, TemplateInternalKind};
use super::{TemplateError, TemplateValue};

impl TemplateEvaluator<'_> {
    pub(super) fn compare(
        &mut self,
        op: TemplateCompareOp,
        left: &TemplateValue,
        right: &TemplateValue,
    ) -> Result<bool, TemplateError> {
        Ok(match op {
            TemplateCompareOp::Eq => self.equal(left, right)?,
            TemplateCompareOp::Ne => !self.equal(left, right)?,
            TemplateCompareOp::In => self.contains(right, left)?,
            TemplateCompareOp::NotIn => !self.contains(right, left)?,
            TemplateCompareOp::Lt => self.order(left, right)? == Some(Ordering::Less),
            TemplateCompareOp::Le => matches!(
                self.order(left, right)?,
                Some(Ordering::Less | Ordering::Equal)
            ),
            TemplateCompareOp::Gt => self.order(left, right)? == Some(Ordering::Greater),
            TemplateCompareOp::Ge => matches!(
                self.order(left, right)?,
                Some(Ordering::Greater | Ordering::Equal)
            ),
        })
    }

    /// The order of two numbers or texts; `None` for NaN.
    pub(super) fn order(
        &mut self,
        left: &TemplateValue,
        right: &TemplateValue,
    ) -> Result<Option<Ordering>, TemplateError> {
        if let (TemplateValue::Text(a), TemplateValue::Text(b)) = (left, right) {
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

    pub(super) fn equal(
        &mut self,
        left: &TemplateValue,
        right: &TemplateValue,
    ) -> Result<bool, TemplateError> {
        self.step(1)?;
        match (left, right) {
            (TemplateValue::Undefined, TemplateValue::Undefined)
            | (TemplateValue::None, TemplateValue::None) => Ok(true),
            (TemplateValue::Text(a), TemplateValue::Text(b)) => {
                self.scan(a.len().min(b.len()))?;
                Ok(**a == **b)
            }
            (TemplateValue::BigInt(a), TemplateValue::BigInt(b)) => {
                self.scan(a.len().min(b.len()))?;
                Ok(a == b)
            }
            (TemplateValue::List(a), TemplateValue::List(b)) => {
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
            (TemplateValue::Map(a), TemplateValue::Map(b)) => {
                if a.entries.len() != b.entries.len() {
                    return Ok(false);
                }
                for (at, (_, value)) in a.entries.iter().enumerate() {
                    self.step(b.entries.len())?;
                    match b.find(&a.key(at)) {
                        Some(other) if self.equal(value, other)? => {}
                        _ => return Ok(false),
                    }
                }
                Ok(true)
            }
            (
                TemplateValue::Internal(TemplateInternal(TemplateInternalKind::Namespace(a))),
                TemplateValue::Internal(TemplateInternal(TemplateInternalKind::Namespace(b))),
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

    fn contains(
        &mut self,
        value: &TemplateValue,
        part: &TemplateValue,
    ) -> Result<bool, TemplateError> {
        match (value, part) {
            (TemplateValue::Text(text), TemplateValue::Text(part)) => {
                self.scan(text.len())?;
                Ok(text.contains(&**part))
            }
            (TemplateValue::List(list), _) => {
                for item in &list.items {
                    if self.equal(item, part)? {
                        return Ok(true);
                    }
                }
                Ok(false)
            }
            (TemplateValue::Map(map), key) => {
                self.step(map.entries.len())?;
                Ok(map.find(key).is_some())
            }
            (TemplateValue::Undefined, _) => Ok(false),
            _ => {
                let (value, part) = (value.kind(), part.kind());
                Err(self.fail(format!("{value} cannot contain {part}")))
            }
        }
    }
}

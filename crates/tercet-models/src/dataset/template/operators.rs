//! Expressions.

use std::sync::Arc;

use super::eval::Run;
use super::parser::{Args, BinaryOp, CompareOp, ExprId, ExprKind};
use super::value::{Internal, InternalKind};
use super::{TemplateError, Value, clip};

impl Run<'_> {
    pub(super) fn eval(&mut self, id: ExprId) -> Result<Value, TemplateError> {
        let template = self.template;
        let expr = &template.exprs[id.0 as usize];
        self.line = expr.line;
        self.deeper(|run| run.expression(&expr.kind))
    }

    fn expression(&mut self, kind: &ExprKind) -> Result<Value, TemplateError> {
        match kind {
            ExprKind::Literal(value) => Ok(value.clone()),
            ExprKind::Name(name) => Ok(self.lookup(name)),
            ExprKind::List(items) => {
                let values: Result<_, _> = items.iter().map(|item| self.eval(*item)).collect();
                self.list(values?)
            }
            ExprKind::Dict(entries) => {
                let mut values = Vec::with_capacity(entries.len());
                for (key, value) in entries {
                    let key = self.eval(*key)?;
                    values.push((self.key(&key)?, self.eval(*value)?));
                }
                self.map(values)
            }
            ExprKind::Attribute(of, name) => {
                let value = self.eval(*of)?;
                self.attribute(&value, name, || self.describe(*of))
            }
            ExprKind::Item(of, index) => {
                let value = self.eval(*of)?;
                let index = self.eval(*index)?;
                self.item(&value, &index, *of)
            }
            ExprKind::Slice(of, parts) => {
                let value = self.eval(*of)?;
                let bounds = self.bounds(parts)?;
                self.slice(&value, bounds)
            }
            ExprKind::Call(callee, args) => self.call(*callee, args),
            ExprKind::Filter(of, name, args) => {
                let value = self.eval(*of)?;
                let args = self.called(args)?;
                self.filter(name, value, args)
            }
            ExprKind::Test {
                subject,
                name,
                args,
                negated,
            } => {
                let value = self.eval(*subject)?;
                let args = self.called(args)?;
                Ok(Value::Bool(self.test(name, &value, args)? != *negated))
            }
            ExprKind::Not(of) => Ok(Value::Bool(!self.eval(*of)?.is_true())),
            ExprKind::Negative(of) => {
                let value = self.eval(*of)?;
                self.negative(&value)
            }
            ExprKind::And(left, right) => match self.eval(*left)? {
                value if value.is_true() => self.eval(*right),
                value => Ok(value),
            },
            ExprKind::Or(left, right) => match self.eval(*left)? {
                value if value.is_true() => Ok(value),
                _ => self.eval(*right),
            },
            ExprKind::Compare(first, rest) => {
                let left = self.eval(*first)?;
                self.compare_all(left, rest)
            }
            ExprKind::Binary(op, left, right) => {
                let left = self.eval(*left)?;
                let right = self.eval(*right)?;
                self.binary(*op, &left, &right)
            }
            ExprKind::Concat(operands) => self.concat(operands),
            ExprKind::Choose { condition, yes, no } => {
                match (self.eval(*condition)?.is_true(), no) {
                    (true, _) => self.eval(*yes),
                    (false, Some(no)) => self.eval(*no),
                    (false, None) => Ok(Value::Undefined),
                }
            }
        }
    }

    /// The bounds and the step of a slice.
    fn bounds(&mut self, parts: &[Option<ExprId>; 3]) -> Result<[Option<i64>; 3], TemplateError> {
        let mut bounds = [None; 3];
        for (bound, part) in bounds.iter_mut().zip(parts) {
            let Some(part) = part else { continue };
            let part = self.eval(*part)?;
            *bound = match (&part, part.as_int()) {
                (Value::None, _) => None,
                (_, Some(at)) => Some(at),
                (_, None) => return Err(self.fail(format!("{} is no place", part.kind()))),
            };
        }
        Ok(bounds)
    }

    /// A method of a value, a function or a macro.
    fn call(&mut self, callee: ExprId, args: &Args) -> Result<Value, TemplateError> {
        if let ExprKind::Attribute(of, name) = &self.template.exprs[callee.0 as usize].kind {
            let value = self.eval(*of)?;
            if !matches!(&value, Value::Internal(i) if matches!(i.0, InternalKind::Namespace(_))) {
                let args = self.called(args)?;
                if matches!(value, Value::Undefined) {
                    let of = self.describe(*of);
                    return Err(self.fail(format!("`{of}` is undefined")));
                }
                return self.method(&value, name, args);
            }
        }
        let value = self.eval(callee)?;
        let args = self.called(args)?;
        match value {
            Value::Internal(Internal(InternalKind::Function(f))) => self.function(f, args),
            Value::Internal(Internal(InternalKind::Macro(at))) => self.call_macro(at, args),
            _ => {
                let callee = self.describe(callee);
                let kind = value.kind();
                Err(self.fail(format!("`{callee}` is {kind}, which cannot be called")))
            }
        }
    }

    /// A chain of comparisons, which ends at the first that is false.
    fn compare_all(
        &mut self,
        mut left: Value,
        rest: &[(CompareOp, ExprId)],
    ) -> Result<Value, TemplateError> {
        for (op, right) in rest {
            let right = self.eval(*right)?;
            if !self.compare(*op, &left, &right)? {
                return Ok(Value::Bool(false));
            }
            left = right;
        }
        Ok(Value::Bool(true))
    }

    fn negative(&self, value: &Value) -> Result<Value, TemplateError> {
        if let Value::Float(x) = value {
            return Ok(Value::Float(-x));
        }
        match value.as_int().and_then(i64::checked_neg) {
            Some(x) => Ok(Value::Int(x)),
            None => Err(self.fail(format!("{} has no negative", value.kind()))),
        }
    }

    /// The texts of all operands, one after the other.
    fn concat(&mut self, operands: &[ExprId]) -> Result<Value, TemplateError> {
        let mut all = String::new();
        for operand in operands {
            let value = self.eval(*operand)?;
            let text = self.text_of(&value)?;
            self.make(text.len())?;
            all.push_str(&text);
        }
        self.text(&all)
    }

    /// How messages call an expression.
    fn describe(&self, id: ExprId) -> String {
        let mut tail = String::new();
        let mut at = id;
        for _ in 0..8 {
            match &self.template.exprs[at.0 as usize].kind {
                ExprKind::Name(name) => return clip(&format!("{name}{tail}")),
                ExprKind::Attribute(of, name) => {
                    tail = format!(".{name}{tail}");
                    at = *of;
                }
                ExprKind::Item(of, _) => {
                    tail = format!("[...]{tail}");
                    at = *of;
                }
                _ => break,
            }
        }
        clip(&format!("(...){tail}"))
    }

    /// A key of an object: text.
    pub(super) fn key(&mut self, key: &Value) -> Result<Arc<str>, TemplateError> {
        match key {
            Value::Text(text) => Ok(Arc::clone(text)),
            _ => {
                let kind = key.kind();
                Err(self.unsupported(format!("{kind} as the key of an object")))
            }
        }
    }

    pub(super) fn attribute(
        &self,
        value: &Value,
        name: &str,
        describe: impl FnOnce() -> String,
    ) -> Result<Value, TemplateError> {
        match value {
            Value::Undefined => Err(self.fail(format!(
                "`{}` is undefined, so it has no `{}`",
                describe(),
                clip(name)
            ))),
            Value::Map(map) => {
                let found = map.entries.iter().find(|(key, _)| &**key == name);
                Ok(found.map_or(Value::Undefined, |(_, value)| value.clone()))
            }
            Value::Internal(Internal(InternalKind::Namespace(at))) => {
                let found = self.namespaces[*at].iter().find(|(key, _)| &**key == name);
                Ok(found.map_or(Value::Undefined, |(_, value)| value.clone()))
            }
            Value::Internal(Internal(InternalKind::Loop { items, index })) => {
                let (index, len) = (*index, items.items.len());
                let int = |x: usize| Value::Int(x as i64);
                let near = |at: Option<usize>| {
                    let item = at.and_then(|at| items.items.get(at));
                    item.cloned().unwrap_or(Value::Undefined)
                };
                Ok(match name {
                    "index" => int(index + 1),
                    "index0" => int(index),
                    "revindex" => int(len - index),
                    "revindex0" => int(len - index - 1),
                    "first" => Value::Bool(index == 0),
                    "last" => Value::Bool(index + 1 == len),
                    "length" => int(len),
                    "depth" => int(1),
                    "depth0" => int(0),
                    "previtem" => near(index.checked_sub(1)),
                    "nextitem" => near(index.checked_add(1)),
                    _ => Value::Undefined,
                })
            }
            _ => Ok(Value::Undefined),
        }
    }

    fn item(&mut self, value: &Value, index: &Value, of: ExprId) -> Result<Value, TemplateError> {
        match (value, index) {
            (Value::Map(map), Value::Text(_)) => self.step(map.entries.len() / 8)?,
            (Value::List(list), _) => {
                let Some(at) = index.as_int() else {
                    return Ok(Value::Undefined);
                };
                let found = place(at, list.items.len()).map(|at| list.items[at].clone());
                return Ok(found.unwrap_or(Value::Undefined));
            }
            (Value::Text(text), _) if index.as_int().is_some() => {
                self.scan(text.len())?;
                let at = index
                    .as_int()
                    .and_then(|at| place(at, text.chars().count()));
                let c = at.and_then(|at| text.chars().nth(at));
                return match c {
                    Some(c) => self.text(c.encode_utf8(&mut [0; 4])),
                    None => Ok(Value::Undefined),
                };
            }
            _ => {}
        }
        match index {
            Value::Text(name) => self.attribute(value, name, || self.describe(of)),
            _ if matches!(value, Value::Undefined) => {
                let of = self.describe(of);
                Err(self.fail(format!("`{of}` is undefined, so it has no items")))
            }
            _ => Ok(Value::Undefined),
        }
    }

    fn slice(&mut self, value: &Value, bounds: [Option<i64>; 3]) -> Result<Value, TemplateError> {
        let step = bounds[2].unwrap_or(1);
        if step == 0 {
            return Err(self.fail("a slice of step 0"));
        }
        match value {
            Value::List(list) => {
                let places = places(list.items.len(), bounds[0], bounds[1], step);
                let items = places.into_iter().map(|at| list.items[at].clone());
                let items = items.collect();
                self.list(items)
            }
            Value::Text(text) => {
                self.make(text.len() * size_of::<char>())?;
                let chars: Vec<char> = text.chars().collect();
                let places = places(chars.len(), bounds[0], bounds[1], step);
                let text: String = places.into_iter().map(|at| chars[at]).collect();
                self.text(&text)
            }
            Value::Undefined => self.list(Vec::new()),
            _ => Err(self.fail(format!("{} cannot be sliced", value.kind()))),
        }
    }

    fn binary(
        &mut self,
        op: BinaryOp,
        left: &Value,
        right: &Value,
    ) -> Result<Value, TemplateError> {
        match (op, left, right) {
            (BinaryOp::Add, Value::Text(a), Value::Text(b)) => {
                self.make(a.len() + b.len())?;
                return self.text(&[&**a, &**b].concat());
            }
            (BinaryOp::Add, Value::List(a), Value::List(b)) => {
                self.make((a.items.len() + b.items.len()) * size_of::<Value>())?;
                return self.list([&a.items[..], &b.items[..]].concat());
            }
            (BinaryOp::Mul, Value::Text(_) | Value::List(_), count) if count.as_int().is_some() => {
                return self.repeat(left, count.as_int().unwrap_or(0));
            }
            (BinaryOp::Mul, count, Value::Text(_) | Value::List(_)) if count.as_int().is_some() => {
                return self.repeat(right, count.as_int().unwrap_or(0));
            }
            (BinaryOp::Rem, Value::Text(_), _) => {
                return Err(self.unsupported("formatting text with `%`"));
            }
            _ => {}
        }
        if let (Some(a), Some(b)) = (left.as_int(), right.as_int())
            && op != BinaryOp::Div
        {
            let result = match op {
                BinaryOp::Add => a.checked_add(b),
                BinaryOp::Sub => a.checked_sub(b),
                BinaryOp::Mul => a.checked_mul(b),
                BinaryOp::FloorDiv => floor_div(a, b),
                BinaryOp::Rem => floor_div(a, b).and_then(|q| a.checked_sub(q.checked_mul(b)?)),
                BinaryOp::Pow => u32::try_from(b).ok().and_then(|b| a.checked_pow(b)),
                BinaryOp::Div => None,
            };
            let result = result.map(Value::Int);
            return result.ok_or_else(|| self.fail("a number is out of range, or a division by 0"));
        }
        let (Some(a), Some(b)) = (left.as_float(), right.as_float()) else {
            let (a, b) = (left.kind(), right.kind());
            return Err(self.fail(format!("{op:?} does not work on {a} and {b}")));
        };
        let divides = matches!(op, BinaryOp::Div | BinaryOp::FloorDiv | BinaryOp::Rem);
        if divides && b == 0.0 {
            return Err(self.fail("a division by 0"));
        }
        Ok(Value::Float(match op {
            BinaryOp::Add => a + b,
            BinaryOp::Sub => a - b,
            BinaryOp::Mul => a * b,
            BinaryOp::Div => a / b,
            BinaryOp::FloorDiv => (a / b).floor(),
            BinaryOp::Rem => a - (a / b).floor() * b,
            BinaryOp::Pow => a.powf(b),
        }))
    }

    fn repeat(&mut self, value: &Value, count: i64) -> Result<Value, TemplateError> {
        let count = usize::try_from(count).unwrap_or(0);
        match value {
            Value::Text(text) => {
                self.make(text.len().saturating_mul(count))?;
                self.text(&text.repeat(count))
            }
            Value::List(list) => {
                let bytes = list.items.len() * size_of::<Value>();
                self.make(bytes.saturating_mul(count))?;
                let items = list.items.iter().cycle().cloned();
                let items = items.take(list.items.len() * count).collect();
                self.list(items)
            }
            _ => Err(self.fail(format!("{} cannot be repeated", value.kind()))),
        }
    }
}

/// A place counted from the start, or from the end where negative.
fn place(at: i64, len: usize) -> Option<usize> {
    let at = if at < 0 {
        at.checked_add(len as i64)?
    } else {
        at
    };
    usize::try_from(at).ok().filter(|at| *at < len)
}

/// The places of a slice, as in Python.
fn places(len: usize, start: Option<i64>, stop: Option<i64>, step: i64) -> Vec<usize> {
    let len = len as i64;
    let (low, high) = if step > 0 { (0, len) } else { (-1, len - 1) };
    let bound = |at: Option<i64>, default: i64| match at {
        None => default,
        Some(at) if at < 0 => at.saturating_add(len).max(low),
        Some(at) => at.min(high),
    };
    let (mut at, end) = match step > 0 {
        true => (bound(start, low), bound(stop, high)),
        false => (bound(start, high), bound(stop, low)),
    };
    let mut places = Vec::new();
    while (step > 0 && at < end) || (step < 0 && at > end) {
        places.extend(usize::try_from(at));
        at = at.saturating_add(step);
    }
    places
}

fn floor_div(a: i64, b: i64) -> Option<i64> {
    let quotient = a.checked_div(b)?;
    let inexact = quotient.checked_mul(b)? != a;
    Some(quotient - i64::from(inexact && ((a < 0) != (b < 0))))
}

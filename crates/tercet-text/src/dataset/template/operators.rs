//! Evaluation of expressions.

use super::eval::TemplateEvaluator;
use super::parser::{
    TemplateArgs, TemplateBinaryOp, TemplateCompareOp, TemplateExprId, TemplateExprKind,
};
use super::spoken::TemplateTextBuilder;
use super::value::{TemplateInternal, TemplateInternalKind};
use super::{TemplateError, TemplateValue, clip};

impl TemplateEvaluator<'_> {
    pub(super) fn eval(&mut self, id: TemplateExprId) -> Result<TemplateValue, TemplateError> {
        let template = self.template;
        let expr = &template.exprs[id.0 as usize];
        self.line = expr.line;
        self.deeper(|run| run.expression(&expr.kind))
    }

    fn expression(&mut self, kind: &TemplateExprKind) -> Result<TemplateValue, TemplateError> {
        match kind {
            TemplateExprKind::Literal(value) => Ok(value.clone()),
            TemplateExprKind::Name(name) => Ok(self.lookup(name)),
            TemplateExprKind::List(items) => {
                let values: Result<_, _> = items.iter().map(|item| self.eval(*item)).collect();
                self.list(values?)
            }
            TemplateExprKind::Dict(entries) => {
                let mut values = Vec::with_capacity(entries.len());
                let mut has_literal_keys = false;
                for (key, value) in entries {
                    let key = self.eval(*key)?;
                    has_literal_keys |= matches!(&key, TemplateValue::Text(t) if t.has_literal());
                    values.push((self.key(key)?, self.eval(*value)?));
                }
                self.map(values, has_literal_keys)
            }
            TemplateExprKind::Attribute(of, name) => {
                let value = self.eval(*of)?;
                self.attribute(&value, name, || self.describe(*of))
            }
            TemplateExprKind::Item(of, index) => {
                let value = self.eval(*of)?;
                let index = self.eval(*index)?;
                self.item(&value, &index, *of)
            }
            TemplateExprKind::Slice(of, parts) => {
                let value = self.eval(*of)?;
                let bounds = self.bounds(parts)?;
                self.slice(&value, bounds)
            }
            TemplateExprKind::Call(callee, args) => self.call(*callee, args),
            TemplateExprKind::Filter(of, name, args) => {
                let value = self.eval(*of)?;
                let args = self.called(args)?;
                self.filter(name, value, args)
            }
            TemplateExprKind::Test {
                subject,
                name,
                args,
                negated,
            } => {
                let value = self.eval(*subject)?;
                let args = self.called(args)?;
                Ok(TemplateValue::Bool(
                    self.test(name, &value, args)? != *negated,
                ))
            }
            TemplateExprKind::Not(of) => Ok(TemplateValue::Bool(!self.eval(*of)?.is_true())),
            TemplateExprKind::Negative(of) => {
                let value = self.eval(*of)?;
                self.negative(&value)
            }
            TemplateExprKind::And(left, right) => match self.eval(*left)? {
                value if value.is_true() => self.eval(*right),
                value => Ok(value),
            },
            TemplateExprKind::Or(left, right) => match self.eval(*left)? {
                value if value.is_true() => Ok(value),
                _ => self.eval(*right),
            },
            TemplateExprKind::Compare(first, rest) => {
                let left = self.eval(*first)?;
                self.compare_all(left, rest)
            }
            TemplateExprKind::Binary(op, left, right) => {
                let left = self.eval(*left)?;
                let right = self.eval(*right)?;
                self.binary(*op, &left, &right)
            }
            TemplateExprKind::Concat(operands) => self.concat(operands),
            TemplateExprKind::Choose { condition, yes, no } => {
                match (self.eval(*condition)?.is_true(), no) {
                    (true, _) => self.eval(*yes),
                    (false, Some(no)) => self.eval(*no),
                    (false, None) => Ok(TemplateValue::Undefined),
                }
            }
        }
    }

    /// Evaluates the bounds and the step of a slice.
    fn bounds(
        &mut self,
        parts: &[Option<TemplateExprId>; 3],
    ) -> Result<[Option<i64>; 3], TemplateError> {
        let mut bounds = [None; 3];
        for (bound, part) in bounds.iter_mut().zip(parts) {
            let Some(part) = part else { continue };
            let part = self.eval(*part)?;
            *bound = match (&part, part.as_int()) {
                (TemplateValue::None, _) => None,
                (_, Some(at)) => Some(at),
                (_, None) => return Err(self.fail(format!("{} is not an index", part.kind()))),
            };
        }
        Ok(bounds)
    }

    /// Calls a method of a value, a function or a macro.
    fn call(
        &mut self,
        callee: TemplateExprId,
        args: &TemplateArgs,
    ) -> Result<TemplateValue, TemplateError> {
        if let TemplateExprKind::Attribute(of, name) = &self.template.exprs[callee.0 as usize].kind
        {
            let value = self.eval(*of)?;
            if !matches!(&value, TemplateValue::Internal(i) if matches!(i.0, TemplateInternalKind::Namespace(_)))
            {
                let args = self.called(args)?;
                if matches!(value, TemplateValue::Undefined) {
                    let of = self.describe(*of);
                    return Err(self.fail(format!("`{of}` is undefined")));
                }
                return self.method(&value, name, args);
            }
        }
        let value = self.eval(callee)?;
        let args = self.called(args)?;
        match value {
            TemplateValue::Internal(TemplateInternal(TemplateInternalKind::Function(f))) => {
                self.function(f, args)
            }
            TemplateValue::Internal(TemplateInternal(TemplateInternalKind::Macro(at))) => {
                self.call_macro(at, args)
            }
            _ => {
                let callee = self.describe(callee);
                let kind = value.kind();
                Err(self.fail(format!("`{callee}` is {kind}, which cannot be called")))
            }
        }
    }

    /// Evaluates a chain of comparisons up to the first that is false.
    fn compare_all(
        &mut self,
        mut left: TemplateValue,
        rest: &[(TemplateCompareOp, TemplateExprId)],
    ) -> Result<TemplateValue, TemplateError> {
        for (op, right) in rest {
            let right = self.eval(*right)?;
            if !self.compare(*op, &left, &right)? {
                return Ok(TemplateValue::Bool(false));
            }
            left = right;
        }
        Ok(TemplateValue::Bool(true))
    }

    fn negative(&self, value: &TemplateValue) -> Result<TemplateValue, TemplateError> {
        if let TemplateValue::Float(x) = value {
            return Ok(TemplateValue::Float(-x));
        }
        match value.as_int().and_then(i64::checked_neg) {
            Some(x) => Ok(TemplateValue::Int(x)),
            None => Err(self.fail(format!("{} cannot be negated", value.kind()))),
        }
    }

    /// Concatenates the texts of all operands.
    fn concat(&mut self, operands: &[TemplateExprId]) -> Result<TemplateValue, TemplateError> {
        let mut all = TemplateTextBuilder::default();
        for operand in operands {
            let value = self.eval(*operand)?;
            let text = self.text_of(&value)?;
            self.reserve_bytes(text.len())?;
            all.push(&text);
        }
        self.made(all.finish())
    }

    /// A description of an expression for error messages.
    fn describe(&self, id: TemplateExprId) -> String {
        let mut tail = String::new();
        let mut at = id;
        for _ in 0..8 {
            match &self.template.exprs[at.0 as usize].kind {
                TemplateExprKind::Name(name) => return clip(&format!("{name}{tail}")),
                TemplateExprKind::Attribute(of, name) => {
                    tail = format!(".{name}{tail}");
                    at = *of;
                }
                TemplateExprKind::Item(of, _) => {
                    tail = format!("[...]{tail}");
                    at = *of;
                }
                _ => break,
            }
        }
        clip(&format!("(...){tail}"))
    }

    /// Checks that a value can be the key of an object: a text, a number, a boolean or none.
    pub(super) fn key(&self, key: TemplateValue) -> Result<TemplateValue, TemplateError> {
        match key {
            TemplateValue::Undefined
            | TemplateValue::List(_)
            | TemplateValue::Map(_)
            | TemplateValue::Internal(_) => {
                let kind = key.kind();
                Err(self.unsupported(format!("{kind} as the key of an object")))
            }
            _ => Ok(key),
        }
    }

    pub(super) fn attribute(
        &self,
        value: &TemplateValue,
        name: &str,
        describe: impl FnOnce() -> String,
    ) -> Result<TemplateValue, TemplateError> {
        match value {
            TemplateValue::Undefined => Err(self.fail(format!(
                "`{}` is undefined, so it has no `{}`",
                describe(),
                clip(name)
            ))),
            TemplateValue::Map(map) => {
                let found = map.find_text(name);
                Ok(found.cloned().unwrap_or(TemplateValue::Undefined))
            }
            TemplateValue::Internal(TemplateInternal(TemplateInternalKind::Namespace(at))) => {
                let found = self.namespaces[*at].iter().find(|(key, _)| &**key == name);
                Ok(found.map_or(TemplateValue::Undefined, |(_, value)| value.clone()))
            }
            TemplateValue::Internal(TemplateInternal(TemplateInternalKind::Loop {
                items,
                index,
            })) => {
                let (index, len) = (*index, items.items.len());
                let int = |x: usize| TemplateValue::Int(x as i64);
                let near = |at: Option<usize>| {
                    let item = at.and_then(|at| items.items.get(at));
                    item.cloned().unwrap_or(TemplateValue::Undefined)
                };
                Ok(match name {
                    "index" => int(index + 1),
                    "index0" => int(index),
                    "revindex" => int(len - index),
                    "revindex0" => int(len - index - 1),
                    "first" => TemplateValue::Bool(index == 0),
                    "last" => TemplateValue::Bool(index + 1 == len),
                    "length" => int(len),
                    "depth" => int(1),
                    "depth0" => int(0),
                    "previtem" => near(index.checked_sub(1)),
                    "nextitem" => near(index.checked_add(1)),
                    _ => TemplateValue::Undefined,
                })
            }
            // The pairs of `groupby`.
            TemplateValue::List(pair) if pair.items.len() == 2 => Ok(match name {
                "grouper" => pair.items[0].clone(),
                "list" => pair.items[1].clone(),
                _ => TemplateValue::Undefined,
            }),
            _ => Ok(TemplateValue::Undefined),
        }
    }

    fn item(
        &mut self,
        value: &TemplateValue,
        index: &TemplateValue,
        of: TemplateExprId,
    ) -> Result<TemplateValue, TemplateError> {
        match (value, index) {
            (TemplateValue::Map(map), _) => {
                self.step(map.entries.len() / 8)?;
                let found = map.find(index).cloned();
                return Ok(found.unwrap_or(TemplateValue::Undefined));
            }
            (TemplateValue::List(list), _) => {
                let Some(at) = index.as_int() else {
                    return Ok(TemplateValue::Undefined);
                };
                let found = place(at, list.items.len()).map(|at| list.items[at].clone());
                return Ok(found.unwrap_or(TemplateValue::Undefined));
            }
            (TemplateValue::Text(text), _) if index.as_int().is_some() => {
                self.scan(text.len())?;
                let at = index
                    .as_int()
                    .and_then(|at| place(at, text.chars().count()));
                let c = at.and_then(|at| text.char_indices().nth(at));
                return match c {
                    Some((at, c)) => self.made(text.part(at..at + c.len_utf8())),
                    None => Ok(TemplateValue::Undefined),
                };
            }
            _ => {}
        }
        match index {
            TemplateValue::Text(name) => self.attribute(value, name, || self.describe(of)),
            _ if matches!(value, TemplateValue::Undefined) => {
                let of = self.describe(of);
                Err(self.fail(format!("`{of}` is undefined, so it has no items")))
            }
            _ => Ok(TemplateValue::Undefined),
        }
    }

    fn slice(
        &mut self,
        value: &TemplateValue,
        bounds: [Option<i64>; 3],
    ) -> Result<TemplateValue, TemplateError> {
        let step = bounds[2].unwrap_or(1);
        if step == 0 {
            return Err(self.fail("a slice of step 0"));
        }
        match value {
            TemplateValue::List(list) => {
                let places = places(list.items.len(), bounds[0], bounds[1], step);
                let items = places.into_iter().map(|at| list.items[at].clone());
                let items = items.collect();
                self.list(items)
            }
            TemplateValue::Text(text) => {
                self.reserve_bytes(text.len() * size_of::<(usize, char)>())?;
                let chars: Vec<(usize, char)> = text.char_indices().collect();
                let places = places(chars.len(), bounds[0], bounds[1], step);
                let mut part = TemplateTextBuilder::default();
                for (at, c) in places.into_iter().map(|at| chars[at]) {
                    part.push_part(text, at..at + c.len_utf8());
                }
                self.made(part.finish())
            }
            TemplateValue::Undefined => self.list(Vec::new()),
            _ => Err(self.fail(format!("{} cannot be sliced", value.kind()))),
        }
    }

    pub(super) fn binary(
        &mut self,
        op: TemplateBinaryOp,
        left: &TemplateValue,
        right: &TemplateValue,
    ) -> Result<TemplateValue, TemplateError> {
        match (op, left, right) {
            (TemplateBinaryOp::Add, TemplateValue::Text(a), TemplateValue::Text(b)) => {
                self.reserve_bytes(a.len() + b.len())?;
                let mut sum = TemplateTextBuilder::default();
                sum.push(a);
                sum.push(b);
                return self.made(sum.finish());
            }
            (TemplateBinaryOp::Add, TemplateValue::List(a), TemplateValue::List(b)) => {
                self.reserve_bytes((a.items.len() + b.items.len()) * size_of::<TemplateValue>())?;
                return self.list([&a.items[..], &b.items[..]].concat());
            }
            (TemplateBinaryOp::Mul, TemplateValue::Text(_) | TemplateValue::List(_), count)
                if count.as_int().is_some() =>
            {
                return self.repeat(left, count.as_int().unwrap_or(0));
            }
            (TemplateBinaryOp::Mul, count, TemplateValue::Text(_) | TemplateValue::List(_))
                if count.as_int().is_some() =>
            {
                return self.repeat(right, count.as_int().unwrap_or(0));
            }
            (TemplateBinaryOp::Rem, TemplateValue::Text(_), _) => {
                return Err(self.unsupported("formatting text with `%`"));
            }
            _ => {}
        }
        if let (Some(a), Some(b)) = (left.as_int(), right.as_int())
            && op != TemplateBinaryOp::Div
        {
            let result = match op {
                TemplateBinaryOp::Add => a.checked_add(b),
                TemplateBinaryOp::Sub => a.checked_sub(b),
                TemplateBinaryOp::Mul => a.checked_mul(b),
                TemplateBinaryOp::FloorDiv => floor_div(a, b),
                TemplateBinaryOp::Rem => {
                    floor_div(a, b).and_then(|q| a.checked_sub(q.checked_mul(b)?))
                }
                TemplateBinaryOp::Pow => u32::try_from(b).ok().and_then(|b| a.checked_pow(b)),
                TemplateBinaryOp::Div => None,
            };
            let result = result.map(TemplateValue::Int);
            return result.ok_or_else(|| self.fail("a number is out of range, or a division by 0"));
        }
        let (Some(a), Some(b)) = (left.as_float(), right.as_float()) else {
            let (a, b) = (left.kind(), right.kind());
            return Err(self.fail(format!("{op:?} is not defined for {a} and {b}")));
        };
        let divides = matches!(
            op,
            TemplateBinaryOp::Div | TemplateBinaryOp::FloorDiv | TemplateBinaryOp::Rem
        );
        if divides && b == 0.0 {
            return Err(self.fail("a division by 0"));
        }
        Ok(TemplateValue::Float(match op {
            TemplateBinaryOp::Add => a + b,
            TemplateBinaryOp::Sub => a - b,
            TemplateBinaryOp::Mul => a * b,
            TemplateBinaryOp::Div => a / b,
            TemplateBinaryOp::FloorDiv => (a / b).floor(),
            TemplateBinaryOp::Rem => a - (a / b).floor() * b,
            TemplateBinaryOp::Pow => a.powf(b),
        }))
    }

    fn repeat(
        &mut self,
        value: &TemplateValue,
        count: i64,
    ) -> Result<TemplateValue, TemplateError> {
        let count = usize::try_from(count).unwrap_or(0);
        match value {
            TemplateValue::Text(text) => {
                let ranges = text.range_count().saturating_mul(16);
                self.reserve_bytes((text.len() + ranges).saturating_mul(count))?;
                let mut repeated = TemplateTextBuilder::default();
                if !text.is_empty() {
                    (0..count).for_each(|_| repeated.push(text));
                }
                self.made(repeated.finish())
            }
            TemplateValue::List(list) => {
                let bytes = list.items.len() * size_of::<TemplateValue>();
                self.reserve_bytes(bytes.saturating_mul(count))?;
                let items = list.items.iter().cycle().cloned();
                let items = items.take(list.items.len() * count).collect();
                self.list(items)
            }
            _ => Err(self.fail(format!("{} cannot be repeated", value.kind()))),
        }
    }
}

/// Resolves an index, counted from the end if negative.
fn place(at: i64, len: usize) -> Option<usize> {
    let at = if at < 0 {
        at.checked_add(len as i64)?
    } else {
        at
    };
    usize::try_from(at).ok().filter(|at| *at < len)
}

/// The indices of a slice, with Python's semantics.
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

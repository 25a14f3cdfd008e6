//! Rendering: statements, and the account of steps and bytes.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use super::functions::Function;
use super::parser::{Args, For, Macro, Node, NodeKind, Target};
use super::value::{Internal, InternalKind, List};
use super::{Limits, Rendered, Template, TemplateError, Value, clip};

/// Lists and objects nest at most this deep.
const MAX_VALUE_DEPTH: u32 = 150;

/// What follows a statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flow {
    Next,
    Break,
    Continue,
}

type Frame = HashMap<String, Value>;

/// The values of arguments.
#[derive(Debug, Default)]
pub(super) struct Called {
    pub(super) plain: Vec<Value>,
    pub(super) named: Vec<(String, Value)>,
}

pub(super) struct Run<'t> {
    pub(super) template: &'t Template,
    pub(super) now: i64,
    limits: Limits,
    steps: u64,
    bytes: u64,
    depth: u32,
    pub(super) line: usize,
    frames: Vec<Frame>,
    pub(super) namespaces: Vec<Vec<(Arc<str>, Value)>>,
    macros: Vec<Arc<Macro>>,
    /// The text of the template, then of each block or macro that is being caught.
    out: Vec<String>,
    generated: Vec<Range<usize>>,
}

pub(super) fn render(
    template: &Template,
    variables: &[(&str, Value)],
    now: i64,
    limits: Limits,
) -> Result<Rendered, TemplateError> {
    let variables = variables.iter();
    let globals = variables.map(|(name, value)| ((*name).to_owned(), value.clone()));
    let mut run = Run {
        template,
        now,
        limits,
        steps: 0,
        bytes: 0,
        depth: 0,
        line: 1,
        frames: vec![globals.collect()],
        namespaces: Vec::new(),
        macros: Vec::new(),
        out: vec![String::new()],
        generated: Vec::new(),
    };
    run.body(&template.nodes)?;
    Ok(Rendered {
        text: run.out.pop().unwrap_or_default(),
        generated: run.generated,
    })
}

impl Run<'_> {
    pub(super) fn fail(&self, reason: impl Into<String>) -> TemplateError {
        TemplateError::Failed {
            line: self.line,
            reason: reason.into(),
        }
    }

    pub(super) fn unsupported(&self, what: impl Into<String>) -> TemplateError {
        TemplateError::Unsupported {
            line: self.line,
            what: what.into(),
        }
    }

    fn limit(&self, what: &'static str, limit: u64) -> TemplateError {
        let line = self.line;
        TemplateError::Limit { line, what, limit }
    }

    /// Accounts for steps.
    pub(super) fn step(&mut self, steps: usize) -> Result<(), TemplateError> {
        self.steps = self.steps.saturating_add(steps as u64);
        match self.steps > self.limits.steps {
            true => Err(self.limit("steps", self.limits.steps)),
            false => Ok(()),
        }
    }

    /// Accounts for going over `len` bytes of text.
    pub(super) fn scan(&mut self, len: usize) -> Result<(), TemplateError> {
        self.step(len / 64)
    }

    /// Accounts for `len` bytes that are about to be made.
    pub(super) fn make(&mut self, len: usize) -> Result<(), TemplateError> {
        self.bytes = self.bytes.saturating_add(len as u64);
        if self.bytes > self.limits.bytes {
            return Err(self.limit("bytes", self.limits.bytes));
        }
        self.scan(len)
    }

    /// Runs something one level deeper.
    pub(super) fn deeper<T>(
        &mut self,
        run: impl FnOnce(&mut Self) -> Result<T, TemplateError>,
    ) -> Result<T, TemplateError> {
        self.step(1)?;
        if self.depth == self.limits.depth {
            return Err(self.limit("levels of nesting", self.limits.depth.into()));
        }
        self.depth += 1;
        let result = run(self);
        self.depth -= 1;
        result
    }

    /// A text that was made here.
    pub(super) fn text(&mut self, text: &str) -> Result<Value, TemplateError> {
        self.make(text.len() + 32)?;
        Ok(Value::text(text))
    }

    /// A list that was made here.
    pub(super) fn list(&mut self, items: Vec<Value>) -> Result<Value, TemplateError> {
        self.make(items.len() * size_of::<Value>() + 32)?;
        self.checked(Value::list(items))
    }

    /// An object that was made here.
    pub(super) fn map(&mut self, entries: Vec<(Arc<str>, Value)>) -> Result<Value, TemplateError> {
        self.make(entries.len() * 4 * size_of::<Value>() + 32)?;
        self.checked(Value::map(entries))
    }

    fn checked(&self, value: Value) -> Result<Value, TemplateError> {
        match value.depth() > MAX_VALUE_DEPTH {
            true => Err(self.limit("levels of lists and objects", MAX_VALUE_DEPTH.into())),
            false => Ok(value),
        }
    }

    pub(super) fn lookup(&self, name: &str) -> Value {
        let found = self.frames.iter().rev().find_map(|f| f.get(name));
        match (found, Function::named(name)) {
            (Some(value), _) => value.clone(),
            (None, Some(function)) => Value::Internal(Internal(InternalKind::Function(function))),
            (None, None) => Value::Undefined,
        }
    }

    fn bind(&mut self, name: &str, value: Value) -> Result<(), TemplateError> {
        self.make(name.len() + 64)?;
        if let Some(frame) = self.frames.last_mut() {
            frame.insert(name.to_owned(), value);
        }
        Ok(())
    }

    fn assign(&mut self, target: &Target, value: Value) -> Result<(), TemplateError> {
        match target {
            Target::Name(name) => self.bind(name, value),
            Target::Attribute(name, attribute) => {
                let Value::Internal(Internal(InternalKind::Namespace(at))) = self.lookup(name)
                else {
                    return Err(self.fail(format!("`{}` is no namespace", clip(name))));
                };
                self.set_attribute(at, attribute, value)
            }
            Target::Names(names) => {
                let values = self.items(&value)?;
                if values.items.len() != names.len() {
                    let (wanted, found) = (names.len(), values.items.len());
                    return Err(self.fail(format!("{found} values for {wanted} names")));
                }
                let pairs = names.iter().zip(&values.items);
                for (name, value) in pairs {
                    self.bind(name, value.clone())?;
                }
                Ok(())
            }
        }
    }

    fn set_attribute(
        &mut self,
        namespace: usize,
        name: &str,
        value: Value,
    ) -> Result<(), TemplateError> {
        self.make(name.len() + 64)?;
        let entries = &mut self.namespaces[namespace];
        let searched = entries.len();
        match entries.iter_mut().find(|(k, _)| &**k == name) {
            Some(entry) => entry.1 = value,
            None => entries.push((Arc::from(name), value)),
        }
        self.step(searched)
    }

    fn print(&mut self, text: &str) -> Result<(), TemplateError> {
        self.make(text.len())?;
        if let Some(out) = self.out.last_mut() {
            out.push_str(text);
        }
        Ok(())
    }

    fn body(&mut self, nodes: &[Node]) -> Result<Flow, TemplateError> {
        for node in nodes {
            self.line = node.line;
            let flow = self.deeper(|run| run.node(&node.kind))?;
            if flow != Flow::Next {
                return Ok(flow);
            }
        }
        Ok(Flow::Next)
    }

    fn node(&mut self, node: &NodeKind) -> Result<Flow, TemplateError> {
        match node {
            NodeKind::Text(text) => self.print(text)?,
            NodeKind::Print(expr) => {
                let value = self.eval(*expr)?;
                let text = self.text_of(&value)?;
                self.print(&text)?;
            }
            NodeKind::If(arms, otherwise) => {
                for (condition, body) in arms {
                    if self.eval(*condition)?.is_true() {
                        return self.body(body);
                    }
                }
                return self.body(otherwise);
            }
            NodeKind::For(of) => return self.for_loop(of),
            NodeKind::Set(target, expr) => {
                let value = self.eval(*expr)?;
                self.assign(target, value)?;
            }
            NodeKind::SetBlock(target, filters, body) => {
                let value = self.caught(filters, body)?;
                self.assign(target, value)?;
            }
            NodeKind::FilterBlock(filters, body) => {
                let value = self.caught(filters, body)?;
                let text = self.text_of(&value)?;
                self.print(&text)?;
            }
            NodeKind::Macro(of) => {
                let value = InternalKind::Macro(self.macros.len());
                self.make(64)?;
                self.macros.push(Arc::clone(of));
                self.bind(&of.name, Value::Internal(Internal(value)))?;
            }
            NodeKind::Generation(body) => return self.generation(body),
            NodeKind::Break => return Ok(Flow::Break),
            NodeKind::Continue => return Ok(Flow::Continue),
        }
        Ok(Flow::Next)
    }

    /// Runs a body with names of its own.
    fn scoped(&mut self, frame: Frame, body: &[Node]) -> Result<Flow, TemplateError> {
        self.frames.push(frame);
        let flow = self.body(body);
        self.frames.pop();
        flow
    }

    fn generation(&mut self, body: &[Node]) -> Result<Flow, TemplateError> {
        if self.out.len() != 1 {
            return Err(
                self.unsupported("`generation` inside a macro, a `set` block or a `filter` block")
            );
        }
        let start = self.out[0].len();
        let flow = self.scoped(Frame::new(), body)?;
        self.generated.push(start..self.out[0].len());
        Ok(flow)
    }

    /// The text of a block, through filters.
    fn caught(
        &mut self,
        filters: &[(String, Args)],
        body: &[Node],
    ) -> Result<Value, TemplateError> {
        self.out.push(String::new());
        let flow = self.scoped(Frame::new(), body);
        let text = self.out.pop().unwrap_or_default();
        if flow? != Flow::Next {
            return Err(self.unsupported("leaving a loop from inside a block that is caught"));
        }
        let mut value = self.text(&text)?;
        for (name, args) in filters {
            let args = self.called(args)?;
            value = self.filter(name, value, args)?;
        }
        Ok(value)
    }

    fn for_loop(&mut self, of: &For) -> Result<Flow, TemplateError> {
        let over = self.eval(of.over)?;
        let mut items = self.items(&over)?;
        if let Some(condition) = of.condition {
            let mut kept = Vec::new();
            for item in &items.items {
                self.step(1)?;
                self.frames.push(Frame::new());
                let keep = self.assign(&of.target, item.clone());
                let keep = keep.and_then(|()| self.eval(condition));
                self.frames.pop();
                if keep?.is_true() {
                    kept.push(item.clone());
                }
            }
            let kept = self.list(kept)?;
            items = self.items(&kept)?;
        }
        if items.items.is_empty() {
            return self.body(&of.otherwise);
        }
        for (index, item) in items.items.iter().enumerate() {
            let this = InternalKind::Loop {
                items: Arc::clone(&items),
                index,
            };
            self.frames.push(Frame::new());
            let flow = self
                .assign(&of.target, item.clone())
                .and_then(|()| self.bind("loop", Value::Internal(Internal(this))))
                .and_then(|()| self.body(&of.body));
            self.frames.pop();
            match flow? {
                Flow::Next | Flow::Continue => {}
                Flow::Break => break,
            }
        }
        Ok(Flow::Next)
    }

    /// What a loop goes over.
    pub(super) fn items(&mut self, value: &Value) -> Result<Arc<List>, TemplateError> {
        let items = match value {
            Value::List(list) => return Ok(Arc::clone(list)),
            Value::Undefined => Vec::new(),
            Value::Map(map) => {
                let keys = map.entries.iter();
                keys.map(|(key, _)| Value::Text(Arc::clone(key))).collect()
            }
            Value::Text(text) => {
                self.make(text.len() * (size_of::<Value>() + 24))?;
                let mut buffer = [0; 4];
                let chars = text.chars();
                chars
                    .map(|c| Value::text(c.encode_utf8(&mut buffer)))
                    .collect()
            }
            Value::None | Value::Bool(_) | Value::Int(_) | Value::Float(_) | Value::Internal(_) => {
                return Err(self.fail(format!("{} has no items", value.kind())));
            }
        };
        match self.list(items)? {
            Value::List(list) => Ok(list),
            _ => unreachable!("invariant: a list was made"),
        }
    }

    pub(super) fn called(&mut self, args: &Args) -> Result<Called, TemplateError> {
        let mut called = Called::default();
        for arg in &args.plain {
            called.plain.push(self.eval(*arg)?);
        }
        for (name, arg) in &args.named {
            called.named.push((name.clone(), self.eval(*arg)?));
        }
        Ok(called)
    }

    /// A macro sees the template's own names and its parameters.
    pub(super) fn call_macro(&mut self, at: usize, args: Called) -> Result<Value, TemplateError> {
        let of = Arc::clone(&self.macros[at]);
        let names: Vec<&str> = of.params.iter().map(|(name, _)| name.as_str()).collect();
        let given = self.given(&of.name, args, &names)?;
        let around = self.frames.split_off(1);
        self.frames.push(Frame::new());
        self.out.push(String::new());
        let result = self.macro_body(&of, given);
        let text = self.out.pop().unwrap_or_default();
        self.frames.truncate(1);
        self.frames.extend(around);
        result?;
        self.text(&text)
    }

    fn macro_body(&mut self, of: &Macro, given: Vec<Option<Value>>) -> Result<(), TemplateError> {
        for ((name, default), value) in of.params.iter().zip(given) {
            let value = match (value, default) {
                (Some(value), _) => value,
                (None, Some(default)) => self.eval(*default)?,
                (None, None) => Value::Undefined,
            };
            self.bind(name, value)?;
        }
        self.body(&of.body).map(|_flow| ())
    }

    /// Sorts arguments by the names of parameters.
    pub(super) fn given(
        &self,
        callee: &str,
        args: Called,
        names: &[&str],
    ) -> Result<Vec<Option<Value>>, TemplateError> {
        let callee = clip(callee);
        if args.plain.len() > names.len() {
            let (most, found) = (names.len(), args.plain.len());
            return Err(self.fail(format!(
                "`{callee}` takes at most {most} arguments, not {found}"
            )));
        }
        let mut given: Vec<Option<Value>> = args.plain.into_iter().map(Some).collect();
        given.resize_with(names.len(), || None);
        for (name, value) in args.named {
            match names.iter().position(|n| *n == name) {
                Some(at) => given[at] = Some(value),
                None => {
                    let name = clip(&name);
                    return Err(self.fail(format!("`{callee}` has no parameter `{name}`")));
                }
            }
        }
        Ok(given)
    }
}

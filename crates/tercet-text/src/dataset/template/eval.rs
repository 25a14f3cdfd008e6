//! Rendering of statements, with accounting of steps and bytes.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use super::functions::TemplateFunction;
use super::parser::{
    TemplateArgs, TemplateFor, TemplateMacro, TemplateNode, TemplateNodeKind, TemplateTarget,
};
use super::spoken::{TemplateText, TemplateTextBuilder};
use super::value::{TemplateInternal, TemplateInternalKind, TemplateList};
use super::{RenderedTemplate, Template, TemplateError, TemplateLimits, TemplateValue, clip};

/// Maximum nesting depth of lists and objects.
const MAX_VALUE_DEPTH: u32 = 150;

/// Control flow after a statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TemplateFlow {
    Next,
    Break,
    Continue,
}

type TemplateScope = HashMap<String, TemplateValue>;

/// The values of call arguments.
#[derive(Debug, Default)]
pub(super) struct TemplateCallArgs {
    pub(super) plain: Vec<TemplateValue>,
    pub(super) named: Vec<(String, TemplateValue)>,
}

pub(super) struct TemplateEvaluator<'t> {
    pub(super) template: &'t Template,
    pub(super) now: i64,
    limits: TemplateLimits,
    steps: u64,
    bytes: u64,
    depth: u32,
    pub(super) line: usize,
    frames: Vec<TemplateScope>,
    pub(super) namespaces: Vec<Vec<(Arc<str>, TemplateValue)>>,
    macros: Vec<Arc<TemplateMacro>>,
    /// Stack of output buffers: the template's text, then one per captured block or macro.
    out: Vec<TemplateTextBuilder>,
    generated: Vec<Range<usize>>,
}

pub(super) fn render(
    template: &Template,
    variables: &[(&str, TemplateValue)],
    now: i64,
    limits: TemplateLimits,
) -> Result<RenderedTemplate, TemplateError> {
    let variables = variables.iter();
    let globals = variables.map(|(name, value)| ((*name).to_owned(), value.clone()));
    let mut run = TemplateEvaluator {
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
        out: vec![TemplateTextBuilder::default()],
        generated: Vec::new(),
    };
    run.body(&template.nodes)?;
    let (text, literal) = run.out.pop().unwrap_or_default().into_parts();
    Ok(RenderedTemplate {
        text,
        generated: run.generated,
        literal,
    })
}

impl TemplateEvaluator<'_> {
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

    /// Counts `steps` against the limit.
    pub(super) fn step(&mut self, steps: usize) -> Result<(), TemplateError> {
        self.steps = self.steps.saturating_add(steps as u64);
        match self.steps > self.limits.steps {
            true => Err(self.limit("steps", self.limits.steps)),
            false => Ok(()),
        }
    }

    /// Counts the steps of a scan of `len` bytes of text.
    pub(super) fn scan(&mut self, len: usize) -> Result<(), TemplateError> {
        self.step(len / 64)
    }

    /// Counts `len` bytes that are about to be allocated.
    pub(super) fn reserve_bytes(&mut self, len: usize) -> Result<(), TemplateError> {
        self.bytes = self.bytes.saturating_add(len as u64);
        if self.bytes > self.limits.bytes {
            return Err(self.limit("bytes", self.limits.bytes));
        }
        self.scan(len)
    }

    /// Runs a closure one nesting level deeper.
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

    /// A newly created text value of the template.
    pub(super) fn text(&mut self, text: &str) -> Result<TemplateValue, TemplateError> {
        self.made(TemplateText::new(text))
    }

    /// A newly created text value.
    pub(super) fn made(&mut self, text: TemplateText) -> Result<TemplateValue, TemplateError> {
        let ranges = text.range_count() * size_of::<Range<usize>>();
        self.reserve_bytes(text.len() + ranges + 32)?;
        Ok(TemplateValue::Text(text))
    }

    /// A newly created list.
    pub(super) fn list(
        &mut self,
        items: Vec<TemplateValue>,
    ) -> Result<TemplateValue, TemplateError> {
        self.reserve_bytes(items.len() * size_of::<TemplateValue>() + 32)?;
        self.checked(TemplateValue::list(items))
    }

    /// A newly created object.
    pub(super) fn map(
        &mut self,
        entries: Vec<(TemplateValue, TemplateValue)>,
        has_literal_keys: bool,
    ) -> Result<TemplateValue, TemplateError> {
        self.reserve_bytes(entries.len() * 4 * size_of::<TemplateValue>() + 32)?;
        self.checked(TemplateValue::map_with_keys(entries, has_literal_keys))
    }

    fn checked(&self, value: TemplateValue) -> Result<TemplateValue, TemplateError> {
        match value.depth() > MAX_VALUE_DEPTH {
            true => Err(self.limit("levels of lists and objects", MAX_VALUE_DEPTH.into())),
            false => Ok(value),
        }
    }

    pub(super) fn lookup(&self, name: &str) -> TemplateValue {
        let found = self.frames.iter().rev().find_map(|f| f.get(name));
        match (found, TemplateFunction::named(name)) {
            (Some(value), _) => value.clone(),
            (None, Some(function)) => {
                TemplateValue::Internal(TemplateInternal(TemplateInternalKind::Function(function)))
            }
            (None, None) => TemplateValue::Undefined,
        }
    }

    fn bind(&mut self, name: &str, value: TemplateValue) -> Result<(), TemplateError> {
        self.reserve_bytes(name.len() + 64)?;
        if let Some(frame) = self.frames.last_mut() {
            frame.insert(name.to_owned(), value);
        }
        Ok(())
    }

    fn assign(
        &mut self,
        target: &TemplateTarget,
        value: TemplateValue,
    ) -> Result<(), TemplateError> {
        match target {
            TemplateTarget::Name(name) => self.bind(name, value),
            TemplateTarget::Attribute(name, attribute) => {
                let TemplateValue::Internal(TemplateInternal(TemplateInternalKind::Namespace(at))) =
                    self.lookup(name)
                else {
                    return Err(self.fail(format!("`{}` is not a namespace", clip(name))));
                };
                self.set_attribute(at, attribute, value)
            }
            TemplateTarget::Names(names) => {
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
        value: TemplateValue,
    ) -> Result<(), TemplateError> {
        self.reserve_bytes(name.len() + 64)?;
        let entries = &mut self.namespaces[namespace];
        let searched = entries.len();
        match entries.iter_mut().find(|(k, _)| &**k == name) {
            Some(entry) => entry.1 = value,
            None => entries.push((Arc::from(name), value)),
        }
        self.step(searched)
    }

    fn print(&mut self, text: &str) -> Result<(), TemplateError> {
        self.reserve_bytes(text.len())?;
        if let Some(out) = self.out.last_mut() {
            out.push_str(text, false);
        }
        Ok(())
    }

    fn print_text(&mut self, text: &TemplateText) -> Result<(), TemplateError> {
        self.reserve_bytes(text.len() + text.range_count() * size_of::<Range<usize>>())?;
        if let Some(out) = self.out.last_mut() {
            out.push(text);
        }
        Ok(())
    }

    fn body(&mut self, nodes: &[TemplateNode]) -> Result<TemplateFlow, TemplateError> {
        for node in nodes {
            self.line = node.line;
            let flow = self.deeper(|run| run.node(&node.kind))?;
            if flow != TemplateFlow::Next {
                return Ok(flow);
            }
        }
        Ok(TemplateFlow::Next)
    }

    fn node(&mut self, node: &TemplateNodeKind) -> Result<TemplateFlow, TemplateError> {
        match node {
            TemplateNodeKind::Text(text) => self.print(text)?,
            TemplateNodeKind::Print(expr) => {
                let value = self.eval(*expr)?;
                let text = self.text_of(&value)?;
                self.print_text(&text)?;
            }
            TemplateNodeKind::If(arms, otherwise) => {
                for (condition, body) in arms {
                    if self.eval(*condition)?.is_true() {
                        return self.body(body);
                    }
                }
                return self.body(otherwise);
            }
            TemplateNodeKind::For(of) => return self.for_loop(of),
            TemplateNodeKind::Set(target, expr) => {
                let value = self.eval(*expr)?;
                self.assign(target, value)?;
            }
            TemplateNodeKind::SetBlock(target, filters, body) => {
                let value = self.caught(filters, body)?;
                self.assign(target, value)?;
            }
            TemplateNodeKind::FilterBlock(filters, body) => {
                let value = self.caught(filters, body)?;
                let text = self.text_of(&value)?;
                self.print_text(&text)?;
            }
            TemplateNodeKind::Macro(of) => {
                let value = TemplateInternalKind::Macro(self.macros.len());
                self.reserve_bytes(64)?;
                self.macros.push(Arc::clone(of));
                self.bind(&of.name, TemplateValue::Internal(TemplateInternal(value)))?;
            }
            TemplateNodeKind::Generation(body) => return self.generation(body),
            TemplateNodeKind::Break => return Ok(TemplateFlow::Break),
            TemplateNodeKind::Continue => return Ok(TemplateFlow::Continue),
        }
        Ok(TemplateFlow::Next)
    }

    /// Runs a body in a new scope.
    fn scoped(
        &mut self,
        frame: TemplateScope,
        body: &[TemplateNode],
    ) -> Result<TemplateFlow, TemplateError> {
        self.frames.push(frame);
        let flow = self.body(body);
        self.frames.pop();
        flow
    }

    fn generation(&mut self, body: &[TemplateNode]) -> Result<TemplateFlow, TemplateError> {
        if self.out.len() != 1 {
            return Err(
                self.unsupported("`generation` inside a macro, a `set` block or a `filter` block")
            );
        }
        let start = self.out[0].len();
        let flow = self.scoped(TemplateScope::new(), body)?;
        self.generated.push(start..self.out[0].len());
        Ok(flow)
    }

    /// Renders a block into a text and applies filters to it.
    fn caught(
        &mut self,
        filters: &[(String, TemplateArgs)],
        body: &[TemplateNode],
    ) -> Result<TemplateValue, TemplateError> {
        self.out.push(TemplateTextBuilder::default());
        let flow = self.scoped(TemplateScope::new(), body);
        let text = self.out.pop().unwrap_or_default();
        if flow? != TemplateFlow::Next {
            return Err(self.unsupported("leaving a loop from inside a captured block"));
        }
        let mut value = self.made(text.finish())?;
        for (name, args) in filters {
            let args = self.called(args)?;
            value = self.filter(name, value, args)?;
        }
        Ok(value)
    }

    fn for_loop(&mut self, of: &TemplateFor) -> Result<TemplateFlow, TemplateError> {
        let over = self.eval(of.over)?;
        let mut items = self.items(&over)?;
        if let Some(condition) = of.condition {
            let mut kept = Vec::new();
            for item in &items.items {
                self.step(1)?;
                self.frames.push(TemplateScope::new());
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
            let this = TemplateInternalKind::Loop {
                items: Arc::clone(&items),
                index,
            };
            self.frames.push(TemplateScope::new());
            let flow = self
                .assign(&of.target, item.clone())
                .and_then(|()| self.bind("loop", TemplateValue::Internal(TemplateInternal(this))))
                .and_then(|()| self.body(&of.body));
            self.frames.pop();
            match flow? {
                TemplateFlow::Next | TemplateFlow::Continue => {}
                TemplateFlow::Break => break,
            }
        }
        Ok(TemplateFlow::Next)
    }

    /// The items that a loop iterates over.
    pub(super) fn items(
        &mut self,
        value: &TemplateValue,
    ) -> Result<Arc<TemplateList>, TemplateError> {
        let items = match value {
            TemplateValue::List(list) => return Ok(Arc::clone(list)),
            TemplateValue::Undefined => Vec::new(),
            TemplateValue::Map(map) => (0..map.entries.len()).map(|at| map.key(at)).collect(),
            TemplateValue::Text(text) => {
                self.reserve_bytes(text.len() * (size_of::<TemplateValue>() + 24))?;
                let chars = text.char_indices();
                chars
                    .map(|(at, c)| TemplateValue::Text(text.part(at..at + c.len_utf8())))
                    .collect()
            }
            TemplateValue::None
            | TemplateValue::Bool(_)
            | TemplateValue::Int(_)
            | TemplateValue::BigInt(_)
            | TemplateValue::Float(_)
            | TemplateValue::Internal(_) => {
                return Err(self.fail(format!("{} has no items", value.kind())));
            }
        };
        match self.list(items)? {
            TemplateValue::List(list) => Ok(list),
            _ => unreachable!("invariant: a list was made"),
        }
    }

    pub(super) fn called(
        &mut self,
        args: &TemplateArgs,
    ) -> Result<TemplateCallArgs, TemplateError> {
        let mut called = TemplateCallArgs::default();
        for arg in &args.plain {
            called.plain.push(self.eval(*arg)?);
        }
        for (name, arg) in &args.named {
            called.named.push((name.clone(), self.eval(*arg)?));
        }
        Ok(called)
    }

    /// Calls a macro, whose scope has the template's top-level names and the macro's parameters.
    pub(super) fn call_macro(
        &mut self,
        at: usize,
        args: TemplateCallArgs,
    ) -> Result<TemplateValue, TemplateError> {
        let of = Arc::clone(&self.macros[at]);
        let names: Vec<&str> = of.params.iter().map(|(name, _)| name.as_str()).collect();
        let given = self.bind_args(&of.name, args, &names)?;
        let around = self.frames.split_off(1);
        self.frames.push(TemplateScope::new());
        self.out.push(TemplateTextBuilder::default());
        let result = self.macro_body(&of, given);
        let text = self.out.pop().unwrap_or_default();
        self.frames.truncate(1);
        self.frames.extend(around);
        result?;
        self.made(text.finish())
    }

    fn macro_body(
        &mut self,
        of: &TemplateMacro,
        given: Vec<Option<TemplateValue>>,
    ) -> Result<(), TemplateError> {
        for ((name, default), value) in of.params.iter().zip(given) {
            let value = match (value, default) {
                (Some(value), _) => value,
                (None, Some(default)) => self.eval(*default)?,
                (None, None) => TemplateValue::Undefined,
            };
            self.bind(name, value)?;
        }
        self.body(&of.body).map(|_flow| ())
    }

    /// Assigns arguments to parameters by position or name.
    pub(super) fn bind_args(
        &self,
        callee: &str,
        args: TemplateCallArgs,
        names: &[&str],
    ) -> Result<Vec<Option<TemplateValue>>, TemplateError> {
        let callee = clip(callee);
        if args.plain.len() > names.len() {
            let (most, found) = (names.len(), args.plain.len());
            return Err(self.fail(format!(
                "`{callee}` takes at most {most} arguments, not {found}"
            )));
        }
        let mut given: Vec<Option<TemplateValue>> = args.plain.into_iter().map(Some).collect();
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

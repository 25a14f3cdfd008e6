//! Expansion of the statements of a case into the text form of a graph.

use std::fmt::Write as _;

use crate::scan;

/// A statement of a file, with its line.
#[derive(Clone, Debug)]
pub(crate) struct Statement {
    pub(crate) line: u32,
    pub(crate) text: String,
}

/// A part of a text with its line, to be read when the graph is known.
#[derive(Debug)]
pub(crate) struct LateText {
    pub(crate) line: u32,
    pub(crate) text: String,
}

/// The text form of a graph, and what a graph does not contain.
#[derive(Debug, Default)]
pub(crate) struct ExpandedGraph {
    pub(crate) text: String,
    /// The line in the file of each line of `text`.
    lines: Vec<u32>,
    /// The line of `text` at which its last statement starts, from 1.
    pub(crate) last_statement: u32,
    /// The data of leaves by name.
    pub(crate) fills: Vec<(String, LateText)>,
    /// The expected values of outputs by index.
    pub(crate) expected: Vec<(usize, LateText)>,
    outputs: usize,
    unnamed: usize,
}

/// A message about a statement.
type Expanded<T> = Result<T, String>;

impl ExpandedGraph {
    /// Expands all statements.
    ///
    /// # Errors
    /// The line of a malformed statement, and a message.
    pub(crate) fn new(statements: &[Statement]) -> Result<ExpandedGraph, (u32, String)> {
        let mut graph = ExpandedGraph::default();
        graph.push(statements.first().map_or(0, |s| s.line), "graph {");
        for statement in statements {
            let done = graph.statement(statement.line, statement.text.trim());
            done.map_err(|message| (statement.line, message))?;
        }
        graph.text.push('}');
        Ok(graph)
    }

    /// The line in the file of a line of the text, both from 1.
    pub(crate) fn line(&self, line: u32) -> u32 {
        let at = (line as usize).clamp(1, self.lines.len().max(1)) - 1;
        self.lines.get(at).copied().unwrap_or_default()
    }

    fn push(&mut self, line: u32, text: &str) {
        self.last_statement = self.lines.len() as u32 + 1;
        for (line, part) in (line..).zip(text.split('\n')) {
            self.text.push_str(part);
            self.text.push('\n');
            self.lines.push(line);
        }
    }

    fn statement(&mut self, line: u32, text: &str) -> Expanded<()> {
        let (word, rest) = scan::identifier(text);
        match word {
            "return" => return self.output(line, rest.trim()),
            "assign" => {
                self.push(line, text);
                return Ok(());
            }
            _ => {}
        }
        let assigned = scan::position(text, |_, byte| byte == b'=');
        let (Some(name), Some(at)) = (text.strip_prefix('%'), assigned) else {
            return Err("expected `%name = ...`, `assign` or `return`".to_string());
        };
        let (name, value) = (name[..at - 1].trim(), text[at + 1..].trim());
        let (kind, rest) = scan::identifier(value);
        if matches!(kind, "input" | "param" | "state") && rest.starts_with(' ') {
            let (leaf, ty) = match scan::string(rest.trim()) {
                Some((leaf, ty)) => (leaf, ty),
                None => (name.to_string(), rest),
            };
            return self.leaf(line, kind, name, &leaf, ty.trim());
        }
        let node = self.node(line, value)?;
        self.push(line, &format!("%{name} = {node}"));
        Ok(())
    }

    /// Adds a leaf; `ty` is its type and perhaps its data.
    fn leaf(&mut self, line: u32, kind: &str, value: &str, leaf: &str, ty: &str) -> Expanded<()> {
        let (_, shape) = scan::identifier(ty);
        let closed = scan::bracketed(shape).filter(|_| shape.starts_with('['));
        let closed =
            closed.ok_or_else(|| format!("expected the type of `{leaf}`, found `{ty}`"))?;
        let (ty, fill) = ty.split_at(ty.len() - shape.len() + closed.end + 1);
        self.push(
            line,
            &format!("%{value} = {kind}{{name={leaf:?}, ty={ty}}}()"),
        );
        if !fill.trim().is_empty() {
            let text = fill.trim().to_string();
            self.fills.push((leaf.to_string(), LateText { line, text }));
        }
        Ok(())
    }

    /// The node with its operands, after the leaves among them have been added.
    fn node(&mut self, line: u32, text: &str) -> Expanded<String> {
        let malformed = || format!("expected `operator{{...}}(...)`, found `{text}`");
        let (operator, rest) = scan::identifier(text);
        let attrs = match rest.starts_with('{') {
            true => scan::bracketed(rest).ok_or_else(malformed)?.end + 1,
            false => 0,
        };
        let (attrs, rest) = rest.split_at(attrs);
        let operands = scan::bracketed(rest).filter(|_| rest.starts_with('('));
        let operands = operands.ok_or_else(malformed)?;
        let (list, rest) = (&rest[operands.clone()], &rest[operands.end + 1..]);
        let mut node = format!("{operator}{attrs}(");
        for (at, operand) in scan::list(list).into_iter().enumerate() {
            let value = match operand.starts_with('%') {
                true => operand.to_string(),
                false => self.operand(line, operand)?,
            };
            let _ = write!(node, "{}{value}", if at == 0 { "" } else { ", " });
        }
        Ok(format!("{node}){rest}"))
    }

    /// Adds the leaf that stands in place of an operand, and returns its value.
    fn operand(&mut self, line: u32, text: &str) -> Expanded<String> {
        let malformed = || format!("expected `%value` or `name: type data`, found `{text}`");
        let (word, rest) = scan::identifier(text);
        let (kind, text) = match word {
            "param" | "state" if rest.starts_with(' ') => (word, rest.trim()),
            _ => ("input", text),
        };
        let (name, value, rest) = match scan::string(text) {
            Some((name, rest)) => {
                self.unnamed += 1;
                (name, format!("_leaf{}", self.unnamed), rest)
            }
            None => {
                let (name, rest) = scan::identifier(text);
                (name.to_string(), name.to_string(), rest)
            }
        };
        let ty = rest.trim().strip_prefix(':').filter(|_| !name.is_empty());
        self.leaf(line, kind, &value, &name, ty.ok_or_else(malformed)?.trim())?;
        Ok(format!("%{value}"))
    }

    fn output(&mut self, line: u32, text: &str) -> Expanded<()> {
        let bytes = text.as_bytes();
        let equals = scan::position(text, |at, byte| {
            byte == b'=' && bytes.get(at + 1) == Some(&b'=')
        });
        let (value, expected) = match equals {
            Some(at) => (text[..at].trim(), Some(text[at + 2..].trim())),
            None => (text, None),
        };
        let index = self.outputs;
        self.outputs += 1;
        if let Some(expected) = expected {
            let text = expected.to_string();
            self.expected.push((index, LateText { line, text }));
        }
        if !value.starts_with('%') {
            let node = self.node(line, value)?;
            self.push(line, &format!("%_out{index} = {node}"));
            self.push(line, &format!("return %_out{index} as \"out{index}\""));
        } else if value.contains(' ') {
            self.push(line, &format!("return {value}"));
        } else {
            self.push(line, &format!("return {value} as \"out{index}\""));
        }
        Ok(())
    }
}

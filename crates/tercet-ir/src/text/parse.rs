//! Parser of the text form.

mod literal;

use std::collections::HashMap;
use std::str::FromStr;

use super::lex::{GraphToken, TextPosition, lex};
use crate::attr::AttrLiteral;
use crate::custom::CustomOps;
use crate::error::one_line;
use crate::graph::{Graph, Value};
use crate::ops::{Op, OpKind};

/// Maximum nesting of literals. The limit prevents stack overflow on malicious input.
const MAX_DEPTH: usize = 32;

/// A parse error with its position.
///
/// ```
/// use tercet_ir::parse;
/// let error = parse("graph {\n  %x = unknown()\n}").unwrap_err();
/// assert_eq!((error.line, error.column), (2, 8));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {message}")]
pub struct TextError {
    /// Line number, from 1.
    pub line: u32,
    /// Column number, from 1.
    pub column: u32,
    /// Description of the error.
    pub message: String,
}

impl TextError {
    pub(super) fn new(place: TextPosition, message: String) -> TextError {
        TextError {
            line: place.line,
            column: place.column,
            message,
        }
    }
}

/// Parses the text form.
///
/// ```
/// let text = r#"graph {
///   %x = input{name="x", ty=f32[s, 4]}()
///   %y = unary{f=relu}(%x)
///   return %y as "y"
/// }"#;
/// let graph = tercet_ir::parse(text)?;
/// assert_eq!(graph.len(), 2);
/// # Ok::<(), tercet_ir::TextError>(())
/// ```
///
/// # Errors
/// [`TextError`] with line and column. If an operator rejects its operands, the message includes
/// the operator's error.
pub fn parse(text: &str) -> Result<Graph, TextError> {
    parse_with(text, &CustomOps::new())
}

/// As [`parse`], with the custom operators of `ops` instead of the built-in ones.
///
/// # Errors
/// As [`parse`], and for a custom operator that `ops` does not contain.
pub fn parse_with(text: &str, ops: &CustomOps) -> Result<Graph, TextError> {
    let mut parser = GraphParser::new(text, ops)?;
    parser.graph()?;
    Ok(parser.graph)
}

/// Parses one literal: the value of an attribute, a type such as `f32[rows, 3]`, a dimension.
///
/// # Errors
/// As [`parse`].
///
/// ```
/// let literal = tercet_ir::parse_literal("f32[rows, 3]")?;
/// assert!(matches!(literal, tercet_ir::attr::AttrLiteral::Type(_)));
/// # Ok::<(), tercet_ir::TextError>(())
/// ```
pub fn parse_literal(text: &str) -> Result<AttrLiteral, TextError> {
    let ops = CustomOps::new();
    let mut parser = GraphParser::new(text, &ops)?;
    let literal = parser.literal(0)?;
    match parser.peek() {
        GraphToken::End => Ok(literal),
        _ => parser.expected("the end of the text"),
    }
}

impl FromStr for Graph {
    type Err = TextError;
    fn from_str(text: &str) -> Result<Graph, TextError> {
        parse(text)
    }
}

struct GraphParser<'a> {
    tokens: Vec<(GraphToken, TextPosition)>,
    at: usize,
    graph: Graph,
    names: HashMap<String, Value>,
    ops: &'a CustomOps,
    /// Nesting depth of the literals around this graph.
    depth: usize,
}

type GraphParseResult<T> = Result<T, TextError>;

fn check_depth(place: TextPosition, depth: usize) -> GraphParseResult<()> {
    if depth > MAX_DEPTH {
        return Err(TextError::new(
            place,
            "literals are nested too deeply".into(),
        ));
    }
    Ok(())
}

impl<'a> GraphParser<'a> {
    fn new(text: &str, ops: &'a CustomOps) -> GraphParseResult<GraphParser<'a>> {
        Ok(GraphParser {
            tokens: lex(text)?,
            at: 0,
            graph: Graph::new(),
            names: HashMap::new(),
            ops,
            depth: 0,
        })
    }

    fn peek(&self) -> &GraphToken {
        &self.tokens[self.at].0
    }

    fn place(&self) -> TextPosition {
        self.tokens[self.at].1
    }

    fn bump(&mut self) -> GraphToken {
        let token = self.tokens[self.at].0.clone();
        // The last token is `End`; the parser never advances beyond it.
        self.at = (self.at + 1).min(self.tokens.len() - 1);
        token
    }

    fn expected<T>(&self, what: &str) -> GraphParseResult<T> {
        let message = format!("expected {what}, found {}", self.peek().describe());
        Err(TextError::new(self.place(), message))
    }

    fn accept(&mut self, c: char) -> bool {
        let found = *self.peek() == GraphToken::Punct(c);
        if found {
            self.bump();
        }
        found
    }

    fn punct(&mut self, c: char) -> GraphParseResult<()> {
        if self.accept(c) {
            Ok(())
        } else {
            self.expected(&format!("`{c}`"))
        }
    }

    fn ident(&mut self, what: &str) -> GraphParseResult<String> {
        match self.peek().clone() {
            GraphToken::Ident(s) => {
                self.bump();
                Ok(s)
            }
            _ => self.expected(what),
        }
    }

    fn keyword(&mut self, word: &str) -> bool {
        let found = matches!(self.peek(), GraphToken::Ident(s) if s == word);
        if found {
            self.bump();
        }
        found
    }

    fn graph(&mut self) -> GraphParseResult<()> {
        if !self.keyword("graph") {
            return self.expected("`graph`");
        }
        self.statements()?;
        match self.peek() {
            GraphToken::End => Ok(()),
            _ => self.expected("the end of the text"),
        }
    }

    /// Parses a nested graph; its value names are local.
    fn subgraph(&mut self, depth: usize) -> GraphParseResult<AttrLiteral> {
        check_depth(self.place(), depth)?;
        let graph = std::mem::take(&mut self.graph);
        let names = std::mem::take(&mut self.names);
        let around = std::mem::replace(&mut self.depth, depth + 1);
        let done = self.statements();
        self.depth = around;
        self.names = names;
        let inner = std::mem::replace(&mut self.graph, graph);
        done.map(|()| AttrLiteral::Graph(inner.into()))
    }

    fn statements(&mut self) -> GraphParseResult<()> {
        self.punct('{')?;
        while !self.accept('}') {
            let place = self.place();
            if self.keyword("assign") {
                let state = self.value()?;
                self.punct('=')?;
                let value = self.value()?;
                let done = self.graph.assign(state, value);
                done.map_err(|e| TextError::new(place, one_line(&e)))?;
            } else if self.keyword("return") {
                self.returns()?;
            } else {
                self.node()?;
            }
        }
        Ok(())
    }

    fn returns(&mut self) -> GraphParseResult<()> {
        loop {
            let place = self.place();
            let value = self.value()?;
            if !self.keyword("as") {
                return self.expected("`as` and a name");
            }
            let GraphToken::Str(name) = self.peek().clone() else {
                return self.expected("a name in quotes");
            };
            self.bump();
            self.graph
                .output(&name, value)
                .map_err(|e| TextError::new(place, one_line(&e)))?;
            if !self.accept(',') {
                return Ok(());
            }
        }
    }

    /// `%name` or `%name.port`
    fn value(&mut self) -> GraphParseResult<Value> {
        let place = self.place();
        let GraphToken::Value(name) = self.peek().clone() else {
            return self.expected("a value such as %0");
        };
        self.bump();
        let unknown = |what| TextError::new(place, format!("`%{name}` {what}"));
        let value = *self
            .names
            .get(&name)
            .ok_or_else(|| unknown("is not defined above"))?;
        if !self.accept('.') {
            return Ok(value);
        }
        let GraphToken::Int(port) = *self.peek() else {
            return self.expected("a result number");
        };
        self.bump();
        let port = u8::try_from(port).map(|p| value.port(p)).ok();
        port.filter(|&v| self.graph.get_type(v).is_some())
            .ok_or_else(|| unknown("has no result with this port"))
    }

    fn node(&mut self) -> GraphParseResult<()> {
        let place = self.place();
        let GraphToken::Value(name) = self.peek().clone() else {
            return self.expected("`%name = operator`, `assign`, `return` or `}`");
        };
        self.bump();
        self.punct('=')?;
        let op_place = self.place();
        let op = self.ident("an operator")?;
        let kind = OpKind::ALL
            .iter()
            .find(|k| k.doc().name == op)
            .ok_or_else(|| {
                TextError::new(
                    op_place,
                    format!("`{op}` is not an operator; see docs/reference/text-format.md"),
                )
            })?;
        let attrs = self.attrs()?;
        let op = match kind {
            OpKind::Custom => self.ops.custom(&attrs).map(Op::from),
            kind => kind.parse(&attrs),
        };
        let op = op.map_err(|e| TextError::new(op_place, one_line(&e)))?;
        let operands = self.operands()?;
        let added = self.graph.add(op, &operands);
        let value = added.map_err(|e| TextError::new(op_place, one_line(&e)))?;
        if self.accept(':') {
            self.check_types(value)?;
        }
        if self.names.insert(name.clone(), value).is_some() {
            return Err(TextError::new(place, format!("`%{name}` is defined twice")));
        }
        Ok(())
    }

    fn attrs(&mut self) -> GraphParseResult<Vec<(String, AttrLiteral)>> {
        let mut attrs: Vec<(String, AttrLiteral)> = Vec::new();
        if !self.accept('{') || self.accept('}') {
            return Ok(attrs);
        }
        loop {
            let place = self.place();
            let name = self.ident("an attribute's name")?;
            if attrs.iter().any(|(n, _)| *n == name) {
                return Err(TextError::new(
                    place,
                    format!("attribute `{name}` is repeated"),
                ));
            }
            self.punct('=')?;
            attrs.push((name, self.literal(self.depth)?));
            if !self.accept(',') {
                self.punct('}')?;
                return Ok(attrs);
            }
        }
    }

    fn operands(&mut self) -> GraphParseResult<Vec<Value>> {
        let mut operands = Vec::new();
        self.punct('(')?;
        if self.accept(')') {
            return Ok(operands);
        }
        loop {
            operands.push(self.value()?);
            if !self.accept(',') {
                self.punct(')')?;
                return Ok(operands);
            }
        }
    }

    fn check_types(&mut self, value: Value) -> GraphParseResult<()> {
        let inferred = self.graph.node(value.node).outputs.clone();
        for (i, ty) in inferred.iter().enumerate() {
            if i > 0 {
                self.punct(',')?;
            }
            let place = self.place();
            let said = self.literal(0)?;
            if said != AttrLiteral::Type(ty.clone()) {
                return Err(TextError::new(
                    place,
                    format!("declared type {said} does not match the inferred type {ty}"),
                ));
            }
        }
        Ok(())
    }
}

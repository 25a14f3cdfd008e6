//! The statement parser. The expression parser is in `expressions.rs`, as methods of the same type.

use super::lexer::{TemplatePiece, TemplateToken, TemplateTokenKind};
use super::{Template, TemplateError, TemplateValue, clip};

/// Maximum nesting depth of statements and brackets.
const MAX_NESTING: u32 = 60;

/// Index of an expression in its template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TemplateExprId(pub(super) u32);

#[derive(Clone, Debug)]
pub(super) struct TemplateExpr {
    pub(super) line: usize,
    pub(super) kind: TemplateExprKind,
}

#[derive(Clone, Debug)]
pub(super) struct TemplateArgs {
    pub(super) plain: Vec<TemplateExprId>,
    pub(super) named: Vec<(String, TemplateExprId)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TemplateBinaryOp {
    Add,
    Sub,
    Mul,
    Div,
    FloorDiv,
    Rem,
    Pow,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TemplateCompareOp {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    In,
    NotIn,
}

#[derive(Clone, Debug)]
pub(super) enum TemplateExprKind {
    Literal(TemplateValue),
    Name(String),
    List(Vec<TemplateExprId>),
    Dict(Vec<(TemplateExprId, TemplateExprId)>),
    Attribute(TemplateExprId, String),
    Item(TemplateExprId, TemplateExprId),
    Slice(TemplateExprId, [Option<TemplateExprId>; 3]),
    Call(TemplateExprId, TemplateArgs),
    Filter(TemplateExprId, String, TemplateArgs),
    Test {
        subject: TemplateExprId,
        name: String,
        args: TemplateArgs,
        negated: bool,
    },
    Not(TemplateExprId),
    Negative(TemplateExprId),
    And(TemplateExprId, TemplateExprId),
    Or(TemplateExprId, TemplateExprId),
    Compare(TemplateExprId, Vec<(TemplateCompareOp, TemplateExprId)>),
    Binary(TemplateBinaryOp, TemplateExprId, TemplateExprId),
    /// `a ~ b ~ c`
    Concat(Vec<TemplateExprId>),
    Choose {
        condition: TemplateExprId,
        yes: TemplateExprId,
        no: Option<TemplateExprId>,
    },
}

/// The names that an assignment or a loop binds.
#[derive(Clone, Debug)]
pub(super) enum TemplateTarget {
    Name(String),
    /// An attribute of a namespace.
    Attribute(String, String),
    Names(Vec<String>),
}

#[derive(Clone, Debug)]
pub(super) struct TemplateNode {
    pub(super) line: usize,
    pub(super) kind: TemplateNodeKind,
}

#[derive(Clone, Debug)]
pub(super) enum TemplateNodeKind {
    Text(String),
    Print(TemplateExprId),
    If(Vec<(TemplateExprId, Vec<TemplateNode>)>, Vec<TemplateNode>),
    For(Box<TemplateFor>),
    Set(TemplateTarget, TemplateExprId),
    /// Assigns the rendered body, after filters, to the target.
    SetBlock(
        TemplateTarget,
        Vec<(String, TemplateArgs)>,
        Vec<TemplateNode>,
    ),
    FilterBlock(Vec<(String, TemplateArgs)>, Vec<TemplateNode>),
    Macro(std::sync::Arc<TemplateMacro>),
    Generation(Vec<TemplateNode>),
    Break,
    Continue,
}

#[derive(Clone, Debug)]
pub(super) struct TemplateFor {
    pub(super) target: TemplateTarget,
    pub(super) over: TemplateExprId,
    pub(super) condition: Option<TemplateExprId>,
    pub(super) body: Vec<TemplateNode>,
    pub(super) otherwise: Vec<TemplateNode>,
}

#[derive(Clone, Debug)]
pub(super) struct TemplateMacro {
    pub(super) name: String,
    pub(super) params: Vec<(String, Option<TemplateExprId>)>,
    pub(super) body: Vec<TemplateNode>,
}

/// A parser of statements over pieces, and of expressions over the current tag's tokens.
pub(super) struct TemplateParser {
    pieces: std::vec::IntoIter<TemplatePiece>,
    pub(super) tokens: std::iter::Peekable<std::vec::IntoIter<TemplateToken>>,
    pub(super) line: usize,
    pub(super) exprs: Vec<TemplateExpr>,
    nesting: u32,
    loops: u32,
    generation: bool,
}

pub(super) fn parse(pieces: Vec<TemplatePiece>) -> Result<Template, TemplateError> {
    let mut parser = TemplateParser {
        pieces: pieces.into_iter(),
        tokens: Vec::new().into_iter().peekable(),
        line: 1,
        exprs: Vec::new(),
        nesting: 0,
        loops: 0,
        generation: false,
    };
    let (nodes, _end) = parser.body(&[])?;
    Ok(Template {
        nodes,
        exprs: parser.exprs,
        generation: parser.generation,
    })
}

impl TemplateParser {
    pub(super) fn syntax(&self, reason: impl Into<String>) -> TemplateError {
        TemplateError::Syntax {
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

    pub(super) fn nested<T>(
        &mut self,
        parse: impl FnOnce(&mut Self) -> Result<T, TemplateError>,
    ) -> Result<T, TemplateError> {
        if self.nesting == MAX_NESTING {
            return Err(self.unsupported(format!("nesting deeper than {MAX_NESTING}")));
        }
        self.nesting += 1;
        let parsed = parse(self);
        self.nesting -= 1;
        parsed
    }

    /// Parses statements up to a tag that begins with one of `ends`, and returns that tag's name.
    /// If `ends` is empty, the parser reads to the end of the template.
    fn body(
        &mut self,
        ends: &[&'static str],
    ) -> Result<(Vec<TemplateNode>, &'static str), TemplateError> {
        let begun = self.line;
        let mut nodes = Vec::new();
        while let Some(piece) = self.pieces.next() {
            let tokens = match piece {
                TemplatePiece::Text(text) => {
                    let line = self.line;
                    self.line += text.bytes().filter(|b| *b == b'\n').count();
                    let kind = TemplateNodeKind::Text(text);
                    nodes.push(TemplateNode { line, kind });
                    continue;
                }
                TemplatePiece::Print(tokens) => {
                    self.enter_tag(tokens);
                    let line = self.line;
                    let kind = TemplateNodeKind::Print(self.tuple()?);
                    self.end_tag()?;
                    nodes.push(TemplateNode { line, kind });
                    continue;
                }
                TemplatePiece::Tag(tokens) => tokens,
            };
            self.enter_tag(tokens);
            let line = self.line;
            let name = self.name()?;
            if let Some(end) = ends.iter().find(|end| **end == name) {
                return Ok((nodes, end));
            }
            let kind = self.nested(|p| p.statement(&name))?;
            nodes.push(TemplateNode { line, kind });
        }
        match ends.last() {
            None => Ok((nodes, "")),
            Some(end) => {
                self.line = begun;
                Err(self.syntax(format!("the block that begins here has no `{end}`")))
            }
        }
    }

    fn enter_tag(&mut self, tokens: Vec<TemplateToken>) {
        if let Some(first) = tokens.first() {
            self.line = first.line;
        }
        self.tokens = tokens.into_iter().peekable();
    }

    fn end_tag(&mut self) -> Result<(), TemplateError> {
        match self.tokens.next() {
            None => Ok(()),
            Some(token) => Err(self.unexpected(Some(&token.kind), "the end of the tag")),
        }
    }

    fn statement(&mut self, name: &str) -> Result<TemplateNodeKind, TemplateError> {
        match name {
            "if" => self.if_statement(),
            "for" => self.for_statement(),
            "set" => self.set_statement(),
            "macro" => self.macro_statement(),
            "filter" => {
                let filters = self.filters()?;
                self.end_tag()?;
                let (body, _end) = self.closed_body(&["endfilter"])?;
                Ok(TemplateNodeKind::FilterBlock(filters, body))
            }
            "generation" => {
                self.end_tag()?;
                self.generation = true;
                let (body, _end) = self.closed_body(&["endgeneration"])?;
                Ok(TemplateNodeKind::Generation(body))
            }
            "break" | "continue" => {
                self.end_tag()?;
                match (self.loops, name) {
                    (0, _) => Err(self.syntax(format!("`{name}` is outside a loop"))),
                    (_, "break") => Ok(TemplateNodeKind::Break),
                    (_, _) => Ok(TemplateNodeKind::Continue),
                }
            }
            _ => Err(self.unsupported(format!("the statement `{}`", clip(name)))),
        }
    }

    /// Parses a body whose closing tag has only its name.
    fn closed_body(
        &mut self,
        ends: &[&'static str],
    ) -> Result<(Vec<TemplateNode>, &'static str), TemplateError> {
        let (body, end) = self.body(ends)?;
        self.end_tag()?;
        Ok((body, end))
    }

    fn if_statement(&mut self) -> Result<TemplateNodeKind, TemplateError> {
        let mut arms = Vec::new();
        loop {
            let condition = self.tuple()?;
            self.end_tag()?;
            let (body, end) = self.body(&["elif", "else", "endif"])?;
            arms.push((condition, body));
            if end == "elif" {
                continue;
            }
            self.end_tag()?;
            let otherwise = match end {
                "else" => self.closed_body(&["endif"])?.0,
                _ => Vec::new(),
            };
            return Ok(TemplateNodeKind::If(arms, otherwise));
        }
    }

    fn for_statement(&mut self) -> Result<TemplateNodeKind, TemplateError> {
        let target = self.names()?;
        self.expect_name("in")?;
        let over = self.tuple_without_condition()?;
        let condition = match self.take_name("if") {
            true => Some(self.expr()?),
            false => None,
        };
        if self.take_name("recursive") {
            return Err(self.unsupported("`recursive`"));
        }
        self.end_tag()?;
        self.loops += 1;
        let body = self.closed_body(&["else", "endfor"]);
        self.loops -= 1;
        let (body, end) = body?;
        let otherwise = match end {
            "else" => self.closed_body(&["endfor"])?.0,
            _ => Vec::new(),
        };
        Ok(TemplateNodeKind::For(Box::new(TemplateFor {
            target,
            over,
            condition,
            body,
            otherwise,
        })))
    }

    fn set_statement(&mut self) -> Result<TemplateNodeKind, TemplateError> {
        let mut target = self.names()?;
        if let TemplateTarget::Name(of) = &target
            && self.take_op(".")
        {
            target = TemplateTarget::Attribute(of.clone(), self.name()?);
        }
        if self.take_op("=") {
            let value = self.tuple()?;
            self.end_tag()?;
            return Ok(TemplateNodeKind::Set(target, value));
        }
        let filters = match self.take_op("|") {
            true => self.filters()?,
            false => Vec::new(),
        };
        self.end_tag()?;
        let (body, _end) = self.closed_body(&["endset"])?;
        Ok(TemplateNodeKind::SetBlock(target, filters, body))
    }

    fn macro_statement(&mut self) -> Result<TemplateNodeKind, TemplateError> {
        let name = self.name()?;
        self.expect_op("(")?;
        let mut params = Vec::new();
        while !self.take_op(")") {
            let param = self.name()?;
            let default = match self.take_op("=") {
                true => Some(self.expr()?),
                false => None,
            };
            params.push((param, default));
            if !self.take_op(",") {
                self.expect_op(")")?;
                break;
            }
        }
        self.end_tag()?;
        // A loop around the macro does not count as a loop around its body.
        let loops = std::mem::take(&mut self.loops);
        let body = self.body(&["endmacro"]);
        self.loops = loops;
        let (body, _end) = body?;
        self.take_name(&name);
        self.end_tag()?;
        Ok(TemplateNodeKind::Macro(std::sync::Arc::new(
            TemplateMacro { name, params, body },
        )))
    }

    /// Parses `name` or `name, name`, with optional brackets.
    fn names(&mut self) -> Result<TemplateTarget, TemplateError> {
        let bracket = self.take_op("(");
        let first = self.name()?;
        let mut names = vec![first];
        let mut several = false;
        while self.take_op(",") {
            several = true;
            match self.tokens.peek().map(|t| &t.kind) {
                Some(TemplateTokenKind::Name(name)) if name != "in" => names.push(self.name()?),
                _ => break,
            }
        }
        if bracket {
            self.expect_op(")")?;
        }
        match names.pop() {
            Some(name) if !several => Ok(TemplateTarget::Name(name)),
            last => {
                names.extend(last);
                Ok(TemplateTarget::Names(names))
            }
        }
    }
}

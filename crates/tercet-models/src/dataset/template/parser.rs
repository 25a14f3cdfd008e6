//! Statements. Expressions are in `expressions.rs`, as methods of the same parser.

use super::lexer::{Piece, Token, TokenKind};
use super::{Template, TemplateError, Value, clip};

/// Statements and brackets nest at most this deep.
const MAX_NESTING: u32 = 60;

/// The place of an expression in its template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ExprId(pub(super) u32);

#[derive(Clone, Debug)]
pub(super) struct Expr {
    pub(super) line: usize,
    pub(super) kind: ExprKind,
}

#[derive(Clone, Debug)]
pub(super) struct Args {
    pub(super) plain: Vec<ExprId>,
    pub(super) named: Vec<(String, ExprId)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BinaryOp {
    Add,
    Sub,
    Mul,
    Div,
    FloorDiv,
    Rem,
    Pow,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CompareOp {
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
pub(super) enum ExprKind {
    Literal(Value),
    Name(String),
    List(Vec<ExprId>),
    Dict(Vec<(ExprId, ExprId)>),
    Attribute(ExprId, String),
    Item(ExprId, ExprId),
    Slice(ExprId, [Option<ExprId>; 3]),
    Call(ExprId, Args),
    Filter(ExprId, String, Args),
    Test {
        subject: ExprId,
        name: String,
        args: Args,
        negated: bool,
    },
    Not(ExprId),
    Negative(ExprId),
    And(ExprId, ExprId),
    Or(ExprId, ExprId),
    Compare(ExprId, Vec<(CompareOp, ExprId)>),
    Binary(BinaryOp, ExprId, ExprId),
    /// `a ~ b ~ c`
    Concat(Vec<ExprId>),
    Choose {
        condition: ExprId,
        yes: ExprId,
        no: Option<ExprId>,
    },
}

/// What an assignment or a loop binds.
#[derive(Clone, Debug)]
pub(super) enum Target {
    Name(String),
    /// An attribute of a namespace.
    Attribute(String, String),
    Names(Vec<String>),
}

#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) line: usize,
    pub(super) kind: NodeKind,
}

#[derive(Clone, Debug)]
pub(super) enum NodeKind {
    Text(String),
    Print(ExprId),
    If(Vec<(ExprId, Vec<Node>)>, Vec<Node>),
    For(Box<For>),
    Set(Target, ExprId),
    /// The body's text, through filters.
    SetBlock(Target, Vec<(String, Args)>, Vec<Node>),
    FilterBlock(Vec<(String, Args)>, Vec<Node>),
    Macro(std::sync::Arc<Macro>),
    Generation(Vec<Node>),
    Break,
    Continue,
}

#[derive(Clone, Debug)]
pub(super) struct For {
    pub(super) target: Target,
    pub(super) over: ExprId,
    pub(super) condition: Option<ExprId>,
    pub(super) body: Vec<Node>,
    pub(super) otherwise: Vec<Node>,
}

#[derive(Clone, Debug)]
pub(super) struct Macro {
    pub(super) name: String,
    pub(super) params: Vec<(String, Option<ExprId>)>,
    pub(super) body: Vec<Node>,
}

/// A parser of statements over pieces, and of expressions over the tokens of the tag at hand.
pub(super) struct Parser {
    pieces: std::vec::IntoIter<Piece>,
    pub(super) tokens: std::iter::Peekable<std::vec::IntoIter<Token>>,
    pub(super) line: usize,
    pub(super) exprs: Vec<Expr>,
    nesting: u32,
    loops: u32,
    generation: bool,
}

pub(super) fn parse(pieces: Vec<Piece>) -> Result<Template, TemplateError> {
    let mut parser = Parser {
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

impl Parser {
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

    /// The statements up to a tag that begins with one of `ends`, whose name is taken and returned;
    /// to the end of the template where there are none.
    fn body(&mut self, ends: &[&'static str]) -> Result<(Vec<Node>, &'static str), TemplateError> {
        let begun = self.line;
        let mut nodes = Vec::new();
        while let Some(piece) = self.pieces.next() {
            let tokens = match piece {
                Piece::Text(text) => {
                    let line = self.line;
                    self.line += text.bytes().filter(|b| *b == b'\n').count();
                    let kind = NodeKind::Text(text);
                    nodes.push(Node { line, kind });
                    continue;
                }
                Piece::Print(tokens) => {
                    self.enter_tag(tokens);
                    let line = self.line;
                    let kind = NodeKind::Print(self.tuple()?);
                    self.end_tag()?;
                    nodes.push(Node { line, kind });
                    continue;
                }
                Piece::Tag(tokens) => tokens,
            };
            self.enter_tag(tokens);
            let line = self.line;
            let name = self.name()?;
            if let Some(end) = ends.iter().find(|end| **end == name) {
                return Ok((nodes, end));
            }
            let kind = self.nested(|p| p.statement(&name))?;
            nodes.push(Node { line, kind });
        }
        match ends.last() {
            None => Ok((nodes, "")),
            Some(end) => {
                self.line = begun;
                Err(self.syntax(format!("what begins here has no `{end}`")))
            }
        }
    }

    fn enter_tag(&mut self, tokens: Vec<Token>) {
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

    fn statement(&mut self, name: &str) -> Result<NodeKind, TemplateError> {
        match name {
            "if" => self.if_statement(),
            "for" => self.for_statement(),
            "set" => self.set_statement(),
            "macro" => self.macro_statement(),
            "filter" => {
                let filters = self.filters()?;
                self.end_tag()?;
                let (body, _end) = self.closed_body(&["endfilter"])?;
                Ok(NodeKind::FilterBlock(filters, body))
            }
            "generation" => {
                self.end_tag()?;
                self.generation = true;
                let (body, _end) = self.closed_body(&["endgeneration"])?;
                Ok(NodeKind::Generation(body))
            }
            "break" | "continue" => {
                self.end_tag()?;
                match (self.loops, name) {
                    (0, _) => Err(self.syntax(format!("`{name}` stands outside a loop"))),
                    (_, "break") => Ok(NodeKind::Break),
                    (_, _) => Ok(NodeKind::Continue),
                }
            }
            _ => Err(self.unsupported(format!("the statement `{}`", clip(name)))),
        }
    }

    /// A body whose closing tag has nothing behind its name.
    fn closed_body(
        &mut self,
        ends: &[&'static str],
    ) -> Result<(Vec<Node>, &'static str), TemplateError> {
        let (body, end) = self.body(ends)?;
        self.end_tag()?;
        Ok((body, end))
    }

    fn if_statement(&mut self) -> Result<NodeKind, TemplateError> {
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
            return Ok(NodeKind::If(arms, otherwise));
        }
    }

    fn for_statement(&mut self) -> Result<NodeKind, TemplateError> {
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
        Ok(NodeKind::For(Box::new(For {
            target,
            over,
            condition,
            body,
            otherwise,
        })))
    }

    fn set_statement(&mut self) -> Result<NodeKind, TemplateError> {
        let mut target = self.names()?;
        if let Target::Name(of) = &target
            && self.take_op(".")
        {
            target = Target::Attribute(of.clone(), self.name()?);
        }
        if self.take_op("=") {
            let value = self.tuple()?;
            self.end_tag()?;
            return Ok(NodeKind::Set(target, value));
        }
        let filters = match self.take_op("|") {
            true => self.filters()?,
            false => Vec::new(),
        };
        self.end_tag()?;
        let (body, _end) = self.closed_body(&["endset"])?;
        Ok(NodeKind::SetBlock(target, filters, body))
    }

    fn macro_statement(&mut self) -> Result<NodeKind, TemplateError> {
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
        // A loop around the macro is not one around its body.
        let loops = std::mem::take(&mut self.loops);
        let body = self.body(&["endmacro"]);
        self.loops = loops;
        let (body, _end) = body?;
        self.take_name(&name);
        self.end_tag()?;
        Ok(NodeKind::Macro(std::sync::Arc::new(Macro {
            name,
            params,
            body,
        })))
    }

    /// `name`, or `name, name`, in brackets or not.
    fn names(&mut self) -> Result<Target, TemplateError> {
        let bracket = self.take_op("(");
        let first = self.name()?;
        let mut names = vec![first];
        let mut several = false;
        while self.take_op(",") {
            several = true;
            match self.tokens.peek().map(|t| &t.kind) {
                Some(TokenKind::Name(name)) if name != "in" => names.push(self.name()?),
                _ => break,
            }
        }
        if bracket {
            self.expect_op(")")?;
        }
        match names.pop() {
            Some(name) if !several => Ok(Target::Name(name)),
            last => {
                names.extend(last);
                Ok(Target::Names(names))
            }
        }
    }
}

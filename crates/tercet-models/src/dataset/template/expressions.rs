//! Expressions, by the precedence that Jinja gives them: `if`, `or`, `and`, `not`, comparisons,
//! `+ -`, `~`, `* / // %`, signs and `**`, then what follows an operand.

use super::lexer::TokenKind;
use super::parser::{Args, BinaryOp, CompareOp, Expr, ExprId, ExprKind, Parser};
use super::{TemplateError, Value, clip};

/// Operands in a row at most.
const MAX_CHAIN: usize = 1000;

impl Parser {
    pub(super) fn unexpected(&self, found: Option<&TokenKind>, wanted: &str) -> TemplateError {
        let found = match found {
            None => "the end of the tag".to_owned(),
            Some(TokenKind::Name(name)) => format!("`{}`", clip(name)),
            Some(TokenKind::Text(text)) => format!("the text '{}'", clip(text)),
            Some(TokenKind::Int(_) | TokenKind::Float(_)) => "a number".to_owned(),
            Some(TokenKind::Op(op)) => format!("`{op}`"),
        };
        self.syntax(format!("{found} stands where {wanted} is expected"))
    }

    pub(super) fn name(&mut self) -> Result<String, TemplateError> {
        match self.tokens.next().map(|t| t.kind) {
            Some(TokenKind::Name(name)) => Ok(name),
            found => Err(self.unexpected(found.as_ref(), "a name")),
        }
    }

    fn at_name(&mut self, name: &str) -> bool {
        matches!(self.tokens.peek().map(|t| &t.kind), Some(TokenKind::Name(n)) if n == name)
    }

    fn at_op(&mut self, op: &str) -> bool {
        matches!(self.tokens.peek().map(|t| &t.kind), Some(TokenKind::Op(o)) if *o == op)
    }

    pub(super) fn take_name(&mut self, name: &str) -> bool {
        let taken = self.at_name(name);
        if taken {
            self.tokens.next();
        }
        taken
    }

    pub(super) fn take_op(&mut self, op: &str) -> bool {
        let taken = self.at_op(op);
        if taken {
            self.tokens.next();
        }
        taken
    }

    pub(super) fn expect_name(&mut self, name: &str) -> Result<(), TemplateError> {
        match self.tokens.next().map(|t| t.kind) {
            Some(TokenKind::Name(n)) if n == name => Ok(()),
            found => Err(self.unexpected(found.as_ref(), &format!("`{name}`"))),
        }
    }

    pub(super) fn expect_op(&mut self, op: &str) -> Result<(), TemplateError> {
        match self.tokens.next().map(|t| t.kind) {
            Some(TokenKind::Op(o)) if o == op => Ok(()),
            found => Err(self.unexpected(found.as_ref(), &format!("`{op}`"))),
        }
    }

    fn push(&mut self, kind: ExprKind) -> ExprId {
        let line = self.line;
        self.exprs.push(Expr { line, kind });
        // A template has at most 2^20 bytes, so there are fewer expressions than 2^32.
        ExprId((self.exprs.len() - 1) as u32)
    }

    /// An expression, or several with commas between them: a list.
    pub(super) fn tuple(&mut self) -> Result<ExprId, TemplateError> {
        self.listed(Parser::expr)
    }

    /// As [`Self::tuple`], up to an `if` that filters a loop.
    pub(super) fn tuple_without_condition(&mut self) -> Result<ExprId, TemplateError> {
        self.listed(|p| p.nested(Parser::or))
    }

    fn listed(
        &mut self,
        item: impl Fn(&mut Self) -> Result<ExprId, TemplateError>,
    ) -> Result<ExprId, TemplateError> {
        let first = item(self)?;
        if !self.at_op(",") {
            return Ok(first);
        }
        let mut items = vec![first];
        while self.take_op(",") {
            if self.tokens.peek().is_none() || self.at_op(")") {
                break;
            }
            items.push(item(self)?);
        }
        Ok(self.push(ExprKind::List(items)))
    }

    pub(super) fn expr(&mut self) -> Result<ExprId, TemplateError> {
        self.nested(|p| {
            let mut yes = p.or()?;
            while p.take_name("if") {
                let condition = p.or()?;
                let no = match p.take_name("else") {
                    true => Some(p.expr()?),
                    false => None,
                };
                yes = p.push(ExprKind::Choose { condition, yes, no });
            }
            Ok(yes)
        })
    }

    fn or(&mut self) -> Result<ExprId, TemplateError> {
        let mut left = self.and()?;
        while self.take_name("or") {
            let right = self.and()?;
            left = self.push(ExprKind::Or(left, right));
        }
        Ok(left)
    }

    fn and(&mut self) -> Result<ExprId, TemplateError> {
        let mut left = self.not()?;
        while self.take_name("and") {
            let right = self.not()?;
            left = self.push(ExprKind::And(left, right));
        }
        Ok(left)
    }

    fn not(&mut self) -> Result<ExprId, TemplateError> {
        if self.take_name("not") {
            let operand = self.nested(Parser::not)?;
            return Ok(self.push(ExprKind::Not(operand)));
        }
        self.compare()
    }

    fn compare(&mut self) -> Result<ExprId, TemplateError> {
        let first = self.sum()?;
        let mut rest = Vec::new();
        loop {
            let op = match self.tokens.peek().map(|t| &t.kind) {
                Some(TokenKind::Op("==")) => CompareOp::Eq,
                Some(TokenKind::Op("!=")) => CompareOp::Ne,
                Some(TokenKind::Op("<")) => CompareOp::Lt,
                Some(TokenKind::Op("<=")) => CompareOp::Le,
                Some(TokenKind::Op(">")) => CompareOp::Gt,
                Some(TokenKind::Op(">=")) => CompareOp::Ge,
                Some(TokenKind::Name(name)) if name == "in" => CompareOp::In,
                Some(TokenKind::Name(name)) if name == "not" => CompareOp::NotIn,
                _ => break,
            };
            self.tokens.next();
            if op == CompareOp::NotIn {
                self.expect_name("in")?;
            }
            let right = self.sum()?;
            rest.push((op, right));
        }
        match rest.is_empty() {
            true => Ok(first),
            false => Ok(self.push(ExprKind::Compare(first, rest))),
        }
    }

    /// Left-associative operators of one level.
    fn chain(
        &mut self,
        ops: &[(&str, BinaryOp)],
        operand: fn(&mut Self) -> Result<ExprId, TemplateError>,
    ) -> Result<ExprId, TemplateError> {
        let mut left = operand(self)?;
        while let Some((_, op)) = ops.iter().copied().find(|(text, _)| self.at_op(text)) {
            self.tokens.next();
            let right = operand(self)?;
            left = self.push(ExprKind::Binary(op, left, right));
        }
        Ok(left)
    }

    fn sum(&mut self) -> Result<ExprId, TemplateError> {
        let ops = [("+", BinaryOp::Add), ("-", BinaryOp::Sub)];
        self.chain(&ops, Parser::concat)
    }

    fn concat(&mut self) -> Result<ExprId, TemplateError> {
        let first = self.product()?;
        if !self.at_op("~") {
            return Ok(first);
        }
        let mut operands = vec![first];
        while self.take_op("~") {
            operands.push(self.product()?);
        }
        if operands.len() > MAX_CHAIN {
            return Err(self.unsupported(format!("a chain of more than {MAX_CHAIN} operands")));
        }
        Ok(self.push(ExprKind::Concat(operands)))
    }

    fn product(&mut self) -> Result<ExprId, TemplateError> {
        let ops = [
            ("*", BinaryOp::Mul),
            ("/", BinaryOp::Div),
            ("//", BinaryOp::FloorDiv),
            ("%", BinaryOp::Rem),
        ];
        self.chain(&ops, |p| {
            p.chain(&[("**", BinaryOp::Pow)], |p| p.signed(true))
        })
    }

    /// Filters and tests bind less tightly than a sign before the operand.
    fn signed(&mut self, filtered: bool) -> Result<ExprId, TemplateError> {
        let operand = if self.take_op("-") {
            let operand = self.nested(|p| p.signed(false))?;
            self.push(ExprKind::Negative(operand))
        } else if self.take_op("+") {
            self.nested(|p| p.signed(false))?
        } else {
            let operand = self.primary()?;
            self.postfix(operand)?
        };
        match filtered {
            true => self.filtered(operand),
            false => Ok(operand),
        }
    }

    fn primary(&mut self) -> Result<ExprId, TemplateError> {
        let token = self.tokens.next();
        if let Some(token) = &token {
            self.line = token.line;
        }
        let kind = match token.map(|t| t.kind) {
            Some(TokenKind::Name(name)) => match name.as_str() {
                "true" | "True" => ExprKind::Literal(Value::Bool(true)),
                "false" | "False" => ExprKind::Literal(Value::Bool(false)),
                "none" | "None" => ExprKind::Literal(Value::None),
                _ => ExprKind::Name(name),
            },
            Some(TokenKind::Text(mut text)) => {
                while let Some(TokenKind::Text(more)) = self.tokens.peek().map(|t| &t.kind) {
                    text.push_str(more);
                    self.tokens.next();
                }
                ExprKind::Literal(Value::text(&text))
            }
            Some(TokenKind::Int(number)) => ExprKind::Literal(Value::Int(number)),
            Some(TokenKind::Float(number)) => ExprKind::Literal(Value::Float(number)),
            Some(TokenKind::Op("(")) => {
                if self.take_op(")") {
                    ExprKind::List(Vec::new())
                } else {
                    let inner = self.tuple()?;
                    self.expect_op(")")?;
                    return Ok(inner);
                }
            }
            Some(TokenKind::Op("[")) => {
                let mut items = Vec::new();
                while !self.take_op("]") {
                    items.push(self.expr()?);
                    if !self.take_op(",") {
                        self.expect_op("]")?;
                        break;
                    }
                }
                ExprKind::List(items)
            }
            Some(TokenKind::Op("{")) => {
                let mut entries = Vec::new();
                while !self.take_op("}") {
                    let key = self.expr()?;
                    self.expect_op(":")?;
                    entries.push((key, self.expr()?));
                    if !self.take_op(",") {
                        self.expect_op("}")?;
                        break;
                    }
                }
                ExprKind::Dict(entries)
            }
            found => return Err(self.unexpected(found.as_ref(), "an expression")),
        };
        Ok(self.push(kind))
    }

    /// Attributes, items and calls.
    fn postfix(&mut self, mut operand: ExprId) -> Result<ExprId, TemplateError> {
        loop {
            if self.take_op(".") {
                let kind = match self.tokens.next().map(|t| t.kind) {
                    Some(TokenKind::Name(name)) => ExprKind::Attribute(operand, name),
                    Some(TokenKind::Int(number)) => {
                        let index = self.push(ExprKind::Literal(Value::Int(number)));
                        ExprKind::Item(operand, index)
                    }
                    found => return Err(self.unexpected(found.as_ref(), "a name")),
                };
                operand = self.push(kind);
            } else if self.take_op("[") {
                operand = self.subscript(operand)?;
            } else if self.take_op("(") {
                let args = self.args()?;
                operand = self.push(ExprKind::Call(operand, args));
            } else {
                return Ok(operand);
            }
        }
    }

    fn subscript(&mut self, operand: ExprId) -> Result<ExprId, TemplateError> {
        let mut parts: [Option<ExprId>; 3] = [None; 3];
        let mut colons = 0;
        loop {
            if self.take_op("]") {
                break;
            }
            if self.at_op(":") && colons < 2 {
                self.tokens.next();
                colons += 1;
            } else if parts[colons].is_none() {
                parts[colons] = Some(self.expr()?);
            } else {
                let found = self.tokens.next().map(|t| t.kind);
                return Err(self.unexpected(found.as_ref(), "`]`"));
            }
        }
        match (colons, parts[0]) {
            (0, Some(index)) => Ok(self.push(ExprKind::Item(operand, index))),
            (0, None) => Err(self.unexpected(Some(&TokenKind::Op("]")), "an index")),
            _ => Ok(self.push(ExprKind::Slice(operand, parts))),
        }
    }

    /// Arguments up to `)`, which is taken.
    fn args(&mut self) -> Result<Args, TemplateError> {
        let mut args = Args {
            plain: Vec::new(),
            named: Vec::new(),
        };
        while !self.take_op(")") {
            if self.at_op("*") || self.at_op("**") {
                return Err(self.unsupported("unpacking arguments with `*`"));
            }
            // A name before `=` parses as an expression, which is then dropped.
            let value = self.expr()?;
            if self.take_op("=") {
                let ExprKind::Name(name) = &self.exprs[value.0 as usize].kind else {
                    return Err(self.unexpected(Some(&TokenKind::Op("=")), "`,`"));
                };
                let name = name.clone();
                args.named.push((name, self.expr()?));
            } else {
                args.plain.push(value);
            }
            if !self.take_op(",") {
                self.expect_op(")")?;
                break;
            }
        }
        Ok(args)
    }

    fn opt_args(&mut self) -> Result<Args, TemplateError> {
        if self.take_op("(") {
            return self.args();
        }
        Ok(Args {
            plain: Vec::new(),
            named: Vec::new(),
        })
    }

    /// `name(args) | name ...`
    pub(super) fn filters(&mut self) -> Result<Vec<(String, Args)>, TemplateError> {
        let mut filters = Vec::new();
        loop {
            let name = self.name()?;
            filters.push((name, self.opt_args()?));
            if !self.take_op("|") {
                return Ok(filters);
            }
        }
    }

    /// Filters and tests behind an operand.
    fn filtered(&mut self, mut operand: ExprId) -> Result<ExprId, TemplateError> {
        loop {
            if self.take_op("|") {
                let name = self.name()?;
                let args = self.opt_args()?;
                operand = self.push(ExprKind::Filter(operand, name, args));
            } else if self.take_name("is") {
                operand = self.test(operand)?;
            } else if self.take_op("(") {
                let args = self.args()?;
                operand = self.push(ExprKind::Call(operand, args));
            } else {
                return Ok(operand);
            }
        }
    }

    fn test(&mut self, subject: ExprId) -> Result<ExprId, TemplateError> {
        let negated = self.take_name("not");
        let name = self.name()?;
        let bare = match self.tokens.peek().map(|t| &t.kind) {
            Some(TokenKind::Name(word)) => !matches!(
                word.as_str(),
                "else" | "or" | "and" | "is" | "if" | "in" | "not"
            ),
            Some(TokenKind::Text(_) | TokenKind::Int(_) | TokenKind::Float(_)) => true,
            Some(TokenKind::Op(op)) => matches!(*op, "[" | "{"),
            None => false,
        };
        let args = if bare {
            let operand = self.primary()?;
            Args {
                plain: vec![self.postfix(operand)?],
                named: Vec::new(),
            }
        } else {
            self.opt_args()?
        };
        Ok(self.push(ExprKind::Test {
            subject,
            name,
            args,
            negated,
        }))
    }
}

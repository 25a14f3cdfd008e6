//! The expression parser, in Jinja's order of precedence: `if`, `or`, `and`, `not`, comparisons, `+
//! -`, `~`, `* / // %`, signs and `**`, then postfix operators.

use super::lexer::TemplateTokenKind;
use super::parser::{
    TemplateArgs, TemplateBinaryOp, TemplateCompareOp, TemplateExpr, TemplateExprId,
    TemplateExprKind, TemplateParser,
};
use super::{TemplateError, TemplateValue, clip};

/// Maximum number of operands in a chain of equal operators.
const MAX_CHAIN: usize = 1000;

impl TemplateParser {
    pub(super) fn unexpected(
        &self,
        found: Option<&TemplateTokenKind>,
        wanted: &str,
    ) -> TemplateError {
        let found = match found {
            None => "the end of the tag".to_owned(),
            Some(TemplateTokenKind::Name(name)) => format!("`{}`", clip(name)),
            Some(TemplateTokenKind::Text(text)) => format!("the text '{}'", clip(text)),
            Some(TemplateTokenKind::Int(_) | TemplateTokenKind::Float(_)) => "a number".to_owned(),
            Some(TemplateTokenKind::Op(op)) => format!("`{op}`"),
        };
        self.syntax(format!("expected {wanted}, found {found}"))
    }

    pub(super) fn name(&mut self) -> Result<String, TemplateError> {
        match self.tokens.next().map(|t| t.kind) {
            Some(TemplateTokenKind::Name(name)) => Ok(name),
            found => Err(self.unexpected(found.as_ref(), "a name")),
        }
    }

    fn at_name(&mut self, name: &str) -> bool {
        matches!(self.tokens.peek().map(|t| &t.kind), Some(TemplateTokenKind::Name(n)) if n == name)
    }

    fn at_op(&mut self, op: &str) -> bool {
        matches!(self.tokens.peek().map(|t| &t.kind), Some(TemplateTokenKind::Op(o)) if *o == op)
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
            Some(TemplateTokenKind::Name(n)) if n == name => Ok(()),
            found => Err(self.unexpected(found.as_ref(), &format!("`{name}`"))),
        }
    }

    pub(super) fn expect_op(&mut self, op: &str) -> Result<(), TemplateError> {
        match self.tokens.next().map(|t| t.kind) {
            Some(TemplateTokenKind::Op(o)) if o == op => Ok(()),
            found => Err(self.unexpected(found.as_ref(), &format!("`{op}`"))),
        }
    }

    fn push(&mut self, kind: TemplateExprKind) -> TemplateExprId {
        let line = self.line;
        self.exprs.push(TemplateExpr { line, kind });
        // A template has at most 2^20 bytes, so the number of expressions fits 32 bits.
        TemplateExprId((self.exprs.len() - 1) as u32)
    }

    /// Parses an expression, or several with commas between them as a list.
    pub(super) fn tuple(&mut self) -> Result<TemplateExprId, TemplateError> {
        self.listed(TemplateParser::expr)
    }

    /// Parses as [`Self::tuple`] does, but stops before an `if`, which filters the loop.
    pub(super) fn tuple_without_condition(&mut self) -> Result<TemplateExprId, TemplateError> {
        self.listed(|p| p.nested(TemplateParser::or))
    }

    fn listed(
        &mut self,
        item: impl Fn(&mut Self) -> Result<TemplateExprId, TemplateError>,
    ) -> Result<TemplateExprId, TemplateError> {
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
        Ok(self.push(TemplateExprKind::List(items)))
    }

    pub(super) fn expr(&mut self) -> Result<TemplateExprId, TemplateError> {
        self.nested(|p| {
            let mut yes = p.or()?;
            while p.take_name("if") {
                let condition = p.or()?;
                let no = match p.take_name("else") {
                    true => Some(p.expr()?),
                    false => None,
                };
                yes = p.push(TemplateExprKind::Choose { condition, yes, no });
            }
            Ok(yes)
        })
    }

    fn or(&mut self) -> Result<TemplateExprId, TemplateError> {
        let mut left = self.and()?;
        while self.take_name("or") {
            let right = self.and()?;
            left = self.push(TemplateExprKind::Or(left, right));
        }
        Ok(left)
    }

    fn and(&mut self) -> Result<TemplateExprId, TemplateError> {
        let mut left = self.not()?;
        while self.take_name("and") {
            let right = self.not()?;
            left = self.push(TemplateExprKind::And(left, right));
        }
        Ok(left)
    }

    fn not(&mut self) -> Result<TemplateExprId, TemplateError> {
        if self.take_name("not") {
            let operand = self.nested(TemplateParser::not)?;
            return Ok(self.push(TemplateExprKind::Not(operand)));
        }
        self.compare()
    }

    fn compare(&mut self) -> Result<TemplateExprId, TemplateError> {
        let first = self.sum()?;
        let mut rest = Vec::new();
        loop {
            let op = match self.tokens.peek().map(|t| &t.kind) {
                Some(TemplateTokenKind::Op("==")) => TemplateCompareOp::Eq,
                Some(TemplateTokenKind::Op("!=")) => TemplateCompareOp::Ne,
                Some(TemplateTokenKind::Op("<")) => TemplateCompareOp::Lt,
                Some(TemplateTokenKind::Op("<=")) => TemplateCompareOp::Le,
                Some(TemplateTokenKind::Op(">")) => TemplateCompareOp::Gt,
                Some(TemplateTokenKind::Op(">=")) => TemplateCompareOp::Ge,
                Some(TemplateTokenKind::Name(name)) if name == "in" => TemplateCompareOp::In,
                Some(TemplateTokenKind::Name(name)) if name == "not" => TemplateCompareOp::NotIn,
                _ => break,
            };
            self.tokens.next();
            if op == TemplateCompareOp::NotIn {
                self.expect_name("in")?;
            }
            let right = self.sum()?;
            rest.push((op, right));
        }
        match rest.is_empty() {
            true => Ok(first),
            false => Ok(self.push(TemplateExprKind::Compare(first, rest))),
        }
    }

    /// Parses left-associative operators of one precedence level.
    fn chain(
        &mut self,
        ops: &[(&str, TemplateBinaryOp)],
        operand: fn(&mut Self) -> Result<TemplateExprId, TemplateError>,
    ) -> Result<TemplateExprId, TemplateError> {
        let mut left = operand(self)?;
        while let Some((_, op)) = ops.iter().copied().find(|(text, _)| self.at_op(text)) {
            self.tokens.next();
            let right = operand(self)?;
            left = self.push(TemplateExprKind::Binary(op, left, right));
        }
        Ok(left)
    }

    fn sum(&mut self) -> Result<TemplateExprId, TemplateError> {
        let ops = [("+", TemplateBinaryOp::Add), ("-", TemplateBinaryOp::Sub)];
        self.chain(&ops, TemplateParser::concat)
    }

    fn concat(&mut self) -> Result<TemplateExprId, TemplateError> {
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
        Ok(self.push(TemplateExprKind::Concat(operands)))
    }

    fn product(&mut self) -> Result<TemplateExprId, TemplateError> {
        let ops = [
            ("*", TemplateBinaryOp::Mul),
            ("/", TemplateBinaryOp::Div),
            ("//", TemplateBinaryOp::FloorDiv),
            ("%", TemplateBinaryOp::Rem),
        ];
        self.chain(&ops, |p| {
            p.chain(&[("**", TemplateBinaryOp::Pow)], |p| p.signed(true))
        })
    }

    /// Parses a signed operand. Filters and tests bind less tightly than the sign.
    fn signed(&mut self, filtered: bool) -> Result<TemplateExprId, TemplateError> {
        let operand = if self.take_op("-") {
            let operand = self.nested(|p| p.signed(false))?;
            self.push(TemplateExprKind::Negative(operand))
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

    fn primary(&mut self) -> Result<TemplateExprId, TemplateError> {
        let token = self.tokens.next();
        if let Some(token) = &token {
            self.line = token.line;
        }
        let kind = match token.map(|t| t.kind) {
            Some(TemplateTokenKind::Name(name)) => match name.as_str() {
                "true" | "True" => TemplateExprKind::Literal(TemplateValue::Bool(true)),
                "false" | "False" => TemplateExprKind::Literal(TemplateValue::Bool(false)),
                "none" | "None" => TemplateExprKind::Literal(TemplateValue::None),
                _ => TemplateExprKind::Name(name),
            },
            Some(TemplateTokenKind::Text(mut text)) => {
                while let Some(TemplateTokenKind::Text(more)) = self.tokens.peek().map(|t| &t.kind)
                {
                    text.push_str(more);
                    self.tokens.next();
                }
                TemplateExprKind::Literal(TemplateValue::text(&text))
            }
            Some(TemplateTokenKind::Int(number)) => {
                TemplateExprKind::Literal(TemplateValue::Int(number))
            }
            Some(TemplateTokenKind::Float(number)) => {
                TemplateExprKind::Literal(TemplateValue::Float(number))
            }
            Some(TemplateTokenKind::Op("(")) => {
                if self.take_op(")") {
                    TemplateExprKind::List(Vec::new())
                } else {
                    let inner = self.tuple()?;
                    self.expect_op(")")?;
                    return Ok(inner);
                }
            }
            Some(TemplateTokenKind::Op("[")) => {
                let mut items = Vec::new();
                while !self.take_op("]") {
                    items.push(self.expr()?);
                    if !self.take_op(",") {
                        self.expect_op("]")?;
                        break;
                    }
                }
                TemplateExprKind::List(items)
            }
            Some(TemplateTokenKind::Op("{")) => {
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
                TemplateExprKind::Dict(entries)
            }
            found => return Err(self.unexpected(found.as_ref(), "an expression")),
        };
        Ok(self.push(kind))
    }

    /// Parses attributes, items and calls after an operand.
    fn postfix(&mut self, mut operand: TemplateExprId) -> Result<TemplateExprId, TemplateError> {
        loop {
            if self.take_op(".") {
                let kind = match self.tokens.next().map(|t| t.kind) {
                    Some(TemplateTokenKind::Name(name)) => {
                        TemplateExprKind::Attribute(operand, name)
                    }
                    Some(TemplateTokenKind::Int(number)) => {
                        let index =
                            self.push(TemplateExprKind::Literal(TemplateValue::Int(number)));
                        TemplateExprKind::Item(operand, index)
                    }
                    found => return Err(self.unexpected(found.as_ref(), "a name")),
                };
                operand = self.push(kind);
            } else if self.take_op("[") {
                operand = self.subscript(operand)?;
            } else if self.take_op("(") {
                let args = self.args()?;
                operand = self.push(TemplateExprKind::Call(operand, args));
            } else {
                return Ok(operand);
            }
        }
    }

    fn subscript(&mut self, operand: TemplateExprId) -> Result<TemplateExprId, TemplateError> {
        let mut parts: [Option<TemplateExprId>; 3] = [None; 3];
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
            (0, Some(index)) => Ok(self.push(TemplateExprKind::Item(operand, index))),
            (0, None) => Err(self.unexpected(Some(&TemplateTokenKind::Op("]")), "an index")),
            _ => Ok(self.push(TemplateExprKind::Slice(operand, parts))),
        }
    }

    /// Parses arguments up to and including `)`.
    fn args(&mut self) -> Result<TemplateArgs, TemplateError> {
        let mut args = TemplateArgs {
            plain: Vec::new(),
            named: Vec::new(),
        };
        while !self.take_op(")") {
            if self.at_op("*") || self.at_op("**") {
                return Err(self.unsupported("unpacking arguments with `*`"));
            }
            // A name before `=` was parsed as an expression, which is discarded.
            let value = self.expr()?;
            if self.take_op("=") {
                let TemplateExprKind::Name(name) = &self.exprs[value.0 as usize].kind else {
                    return Err(self.unexpected(Some(&TemplateTokenKind::Op("=")), "`,`"));
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

    fn opt_args(&mut self) -> Result<TemplateArgs, TemplateError> {
        if self.take_op("(") {
            return self.args();
        }
        Ok(TemplateArgs {
            plain: Vec::new(),
            named: Vec::new(),
        })
    }

    /// Parses `name(args) | name ...`.
    pub(super) fn filters(&mut self) -> Result<Vec<(String, TemplateArgs)>, TemplateError> {
        let mut filters = Vec::new();
        loop {
            let name = self.name()?;
            filters.push((name, self.opt_args()?));
            if !self.take_op("|") {
                return Ok(filters);
            }
        }
    }

    /// Parses filters and tests after an operand.
    fn filtered(&mut self, mut operand: TemplateExprId) -> Result<TemplateExprId, TemplateError> {
        loop {
            if self.take_op("|") {
                let name = self.name()?;
                let args = self.opt_args()?;
                operand = self.push(TemplateExprKind::Filter(operand, name, args));
            } else if self.take_name("is") {
                operand = self.test(operand)?;
            } else if self.take_op("(") {
                let args = self.args()?;
                operand = self.push(TemplateExprKind::Call(operand, args));
            } else {
                return Ok(operand);
            }
        }
    }

    fn test(&mut self, subject: TemplateExprId) -> Result<TemplateExprId, TemplateError> {
        let negated = self.take_name("not");
        let name = self.name()?;
        let bare = match self.tokens.peek().map(|t| &t.kind) {
            Some(TemplateTokenKind::Name(word)) => !matches!(
                word.as_str(),
                "else" | "or" | "and" | "is" | "if" | "in" | "not"
            ),
            Some(
                TemplateTokenKind::Text(_)
                | TemplateTokenKind::Int(_)
                | TemplateTokenKind::Float(_),
            ) => true,
            Some(TemplateTokenKind::Op(op)) => matches!(*op, "[" | "{"),
            None => false,
        };
        let args = if bare {
            let operand = self.primary()?;
            TemplateArgs {
                plain: vec![self.postfix(operand)?],
                named: Vec::new(),
            }
        } else {
            self.opt_args()?
        };
        Ok(self.push(TemplateExprKind::Test {
            subject,
            name,
            args,
            negated,
        }))
    }
}

//! The lexer: text and tags with their tokens, after white-space trimming around tags.

use super::{TemplateError, clip};

/// A text or a tag of a template.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum TemplatePiece {
    Text(String),
    /// `{{ ... }}`
    Print(Vec<TemplateToken>),
    /// `{% ... %}`
    Tag(Vec<TemplateToken>),
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct TemplateToken {
    pub(super) kind: TemplateTokenKind,
    pub(super) line: usize,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum TemplateTokenKind {
    Name(String),
    Text(String),
    Int(i64),
    Float(f64),
    Op(&'static str),
}

/// Longer operators come first, so that they match first.
const OPERATORS: &[&str] = &[
    "//", "**", "==", "!=", "<=", ">=", "+", "-", "*", "/", "%", "~", "<", ">", "=", "|", "(", ")",
    "[", "]", "{", "}", ",", ":", ".",
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum TemplateTagKind {
    Print,
    Statement,
    Comment,
}

impl TemplateTagKind {
    fn end(self) -> &'static str {
        match self {
            TemplateTagKind::Print => "}}",
            TemplateTagKind::Statement => "%}",
            TemplateTagKind::Comment => "#}",
        }
    }
}

struct TemplateLexer<'a> {
    source: &'a str,
    at: usize,
    line: usize,
    /// Whether the position is directly after a line end.
    line_starting: bool,
    pieces: Vec<TemplatePiece>,
}

pub(super) fn lex(source: &str) -> Result<Vec<TemplatePiece>, TemplateError> {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    // Jinja drops one line end at the end of a template.
    let source = source.strip_suffix('\n').unwrap_or(&source);
    let mut lexer = TemplateLexer {
        source,
        at: 0,
        line: 1,
        line_starting: true,
        pieces: Vec::new(),
    };
    while lexer.at < source.len() {
        lexer.next_piece()?;
    }
    Ok(lexer.pieces)
}

impl TemplateLexer<'_> {
    fn rest(&self) -> &str {
        &self.source[self.at..]
    }

    fn advance(&mut self, len: usize) {
        let passed = &self.source[self.at..self.at + len];
        self.line += passed.bytes().filter(|b| *b == b'\n').count();
        self.at += len;
    }

    fn syntax(&self, reason: impl Into<String>) -> TemplateError {
        TemplateError::Syntax {
            line: self.line,
            reason: reason.into(),
        }
    }

    /// Reads the text up to the next tag, and the tag.
    fn next_piece(&mut self) -> Result<(), TemplateError> {
        let rest = self.rest();
        let Some((start, kind)) = find_tag(rest) else {
            let text = rest.to_owned();
            self.at = self.source.len();
            self.push_text(text);
            return Ok(());
        };
        let sign = rest[start + 2..].chars().next();
        let text = self.before_tag(&rest[..start], kind, sign).to_owned();
        self.push_text(text);
        let signed = matches!(sign, Some('-' | '+'));
        self.advance(start + 2 + usize::from(signed));
        match kind {
            TemplateTagKind::Comment => {
                let Some(len) = self.rest().find("#}") else {
                    return Err(self.syntax("the comment has no end `#}`"));
                };
                let sign = self.rest()[..len].chars().next_back();
                self.advance(len + 2);
                self.after_tag(kind, sign);
            }
            TemplateTagKind::Print => {
                let tokens = self.tokens(kind)?;
                self.pieces.push(TemplatePiece::Print(tokens));
            }
            TemplateTagKind::Statement => {
                let tokens = self.tokens(kind)?;
                if matches!(&tokens[..], [TemplateToken { kind: TemplateTokenKind::Name(name), .. }] if name == "raw")
                {
                    return self.raw();
                }
                self.pieces.push(TemplatePiece::Tag(tokens));
            }
        }
        Ok(())
    }

    fn push_text(&mut self, text: String) {
        if !text.is_empty() {
            self.pieces.push(TemplatePiece::Text(text));
        }
    }

    /// The text before a tag, without the white space that the tag strips.
    fn before_tag<'t>(&self, text: &'t str, kind: TemplateTagKind, sign: Option<char>) -> &'t str {
        match (sign, kind) {
            (Some('-'), _) => text.trim_end(),
            (Some('+'), _) | (_, TemplateTagKind::Print) => text,
            (_, TemplateTagKind::Statement | TemplateTagKind::Comment) => {
                let line = text.rfind('\n').map(|at| at + 1);
                match line {
                    None if !self.line_starting => text,
                    _ if text[line.unwrap_or(0)..].trim().is_empty() => &text[..line.unwrap_or(0)],
                    _ => text,
                }
            }
        }
    }

    /// Skips the white space that a tag strips after it; `sign` is the character before its end.
    fn after_tag(&mut self, kind: TemplateTagKind, sign: Option<char>) {
        let rest = self.rest();
        let skipped = match (sign, kind) {
            (Some('-'), _) => rest.len() - rest.trim_start().len(),
            (Some('+'), _) | (_, TemplateTagKind::Print) => 0,
            (_, TemplateTagKind::Statement | TemplateTagKind::Comment) => {
                usize::from(rest.starts_with('\n'))
            }
        };
        self.line_starting = rest[..skipped].ends_with('\n');
        self.advance(skipped);
    }

    /// Reads the text between `{% raw %}` and `{% endraw %}`.
    fn raw(&mut self) -> Result<(), TemplateError> {
        let mut from = 0;
        while let Some(at) = self.rest()[from..].find("{%") {
            let start = from + at;
            let inner = &self.rest()[start + 2..];
            let sign = inner.chars().next();
            let name = inner.trim_start_matches(['-', '+']).trim_start();
            if let Some(end) = name.strip_prefix("endraw")
                && let tail = end.trim_start()
                && let closing = tail.trim_start_matches(['-', '+'])
                && closing.starts_with("%}")
            {
                let text = self.before_tag(&self.rest()[..start], TemplateTagKind::Statement, sign);
                let text = text.to_owned();
                let end_sign = tail.chars().next();
                let len = self.rest().len() - closing.len() + 2;
                self.push_text(text);
                self.advance(len);
                self.after_tag(TemplateTagKind::Statement, end_sign);
                return Ok(());
            }
            from = start + 2;
        }
        Err(self.syntax("`raw` has no `endraw`"))
    }

    fn tokens(&mut self, tag: TemplateTagKind) -> Result<Vec<TemplateToken>, TemplateError> {
        let mut tokens = Vec::new();
        let mut open: Vec<&'static str> = Vec::new();
        loop {
            let rest = self.rest();
            let skipped = rest.len() - rest.trim_start().len();
            self.advance(skipped);
            if open.is_empty() {
                let rest = self.rest();
                let sign = rest.chars().next().filter(|c| matches!(c, '-' | '+'));
                let bare = rest.strip_prefix(['-', '+']).unwrap_or(rest);
                if rest.starts_with(tag.end()) || (sign.is_some() && bare.starts_with(tag.end())) {
                    self.advance(2 + usize::from(sign.is_some()));
                    self.after_tag(tag, sign);
                    return Ok(tokens);
                }
            }
            let line = self.line;
            let Some(first) = self.rest().chars().next() else {
                return Err(self.syntax(format!("a tag has no end `{}`", tag.end())));
            };
            let kind = match first {
                'a'..='z' | 'A'..='Z' | '_' => self.name(),
                '0'..='9' => self.number()?,
                '\'' | '"' => self.string(first)?,
                _ => self.operator(&mut open)?,
            };
            tokens.push(TemplateToken { kind, line });
        }
    }

    fn name(&mut self) -> TemplateTokenKind {
        let rest = self.rest();
        let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_');
        let name = rest[..end.unwrap_or(rest.len())].to_owned();
        self.advance(name.len());
        TemplateTokenKind::Name(name)
    }

    fn number(&mut self) -> Result<TemplateTokenKind, TemplateError> {
        let rest = self.rest();
        let digits = |text: &str| {
            let end = text.find(|c: char| !c.is_ascii_digit() && c != '_');
            end.unwrap_or(text.len())
        };
        let mut len = digits(rest);
        let fraction = rest[len..].strip_prefix('.').map_or(0, digits);
        if fraction > 0 {
            len += 1 + fraction;
        }
        let exponent = rest[len..].strip_prefix(['e', 'E']).map_or(0, |tail| {
            let sign = usize::from(tail.starts_with(['+', '-']));
            match digits(&tail[sign..]) {
                0 => 0,
                len => 1 + sign + len,
            }
        });
        len += exponent;
        let text = rest[..len].replace('_', "");
        let number = if fraction + exponent > 0 {
            text.parse().ok().map(TemplateTokenKind::Float)
        } else {
            text.parse().ok().map(TemplateTokenKind::Int)
        };
        let number =
            number.ok_or_else(|| self.syntax(format!("`{}` is out of range", clip(&text))))?;
        self.advance(len);
        Ok(number)
    }

    fn operator(
        &mut self,
        open: &mut Vec<&'static str>,
    ) -> Result<TemplateTokenKind, TemplateError> {
        let rest = self.rest();
        let Some(op) = OPERATORS.iter().find(|op| rest.starts_with(**op)) else {
            let c: String = rest.chars().take(1).collect();
            return Err(self.syntax(format!("`{c}` is unexpected")));
        };
        match *op {
            "(" => open.push(")"),
            "[" => open.push("]"),
            "{" => open.push("}"),
            ")" | "]" | "}" if open.pop() != Some(op) => {
                return Err(self.syntax(format!("`{op}` has no matching opening bracket")));
            }
            _ => {}
        }
        self.advance(op.len());
        Ok(TemplateTokenKind::Op(op))
    }

    fn string(&mut self, quote: char) -> Result<TemplateTokenKind, TemplateError> {
        let mut text = String::new();
        let mut chars = self.rest()[1..].char_indices();
        loop {
            let Some((at, c)) = chars.next() else {
                return Err(self.syntax("unterminated string"));
            };
            if c == quote {
                self.advance(1 + at + 1);
                return Ok(TemplateTokenKind::Text(text));
            }
            if c != '\\' {
                text.push(c);
                continue;
            }
            let Some((_, escaped)) = chars.next() else {
                return Err(self.syntax("unterminated string"));
            };
            let hex_digits = match escaped {
                'x' => 2,
                'u' => 4,
                'U' => 8,
                _ => 0,
            };
            match escaped {
                'n' => text.push('\n'),
                't' => text.push('\t'),
                'r' => text.push('\r'),
                '0' => text.push('\0'),
                'b' => text.push('\u{8}'),
                'f' => text.push('\u{c}'),
                'v' => text.push('\u{b}'),
                'a' => text.push('\u{7}'),
                '\\' | '\'' | '"' => text.push(escaped),
                '\n' => {}
                _ if hex_digits > 0 => {
                    let digits: String = chars.by_ref().take(hex_digits).map(|c| c.1).collect();
                    let code = u32::from_str_radix(&digits, 16).ok();
                    let c = code.and_then(char::from_u32).ok_or_else(|| {
                        self.syntax(format!("`\\{escaped}{}` is no character", clip(&digits)))
                    })?;
                    text.push(c);
                }
                _ => text.extend(['\\', escaped]),
            }
        }
    }
}

/// Offset and kind of the first tag.
fn find_tag(text: &str) -> Option<(usize, TemplateTagKind)> {
    let mut from = 0;
    while let Some(at) = text[from..].find('{') {
        let start = from + at;
        match text.as_bytes().get(start + 1) {
            Some(b'{') => return Some((start, TemplateTagKind::Print)),
            Some(b'%') => return Some((start, TemplateTagKind::Statement)),
            Some(b'#') => return Some((start, TemplateTagKind::Comment)),
            _ => from = start + 1,
        }
    }
    None
}

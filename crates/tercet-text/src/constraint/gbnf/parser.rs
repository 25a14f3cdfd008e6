//! The parser of GBNF.

use std::collections::HashMap;

use super::super::ConstraintError;
use super::{GbnfAlternatives, GbnfGrammar, GbnfItem};
use tercet_files::clip;

/// Maximum depth of groups.
const MAX_DEPTH: usize = 64;
/// Maximum number in a repetition `{n}`.
const MAX_REPEATS: u32 = 10_000;
/// Maximum length of a grammar, in bytes.
const MAX_BYTES: usize = 4 << 20;

/// Parses a grammar.
///
/// # Errors
/// [`ConstraintError::Grammar`] with line and column.
pub(super) fn parse(text: &str) -> Result<GbnfGrammar, ConstraintError> {
    let mut parser = GbnfParser {
        text,
        at: 0,
        names: HashMap::new(),
        rules: Vec::new(),
    };
    if text.len() > MAX_BYTES {
        let len = text.len();
        return Err(parser.error(0, format!("{len} bytes exceed the limit of {MAX_BYTES}")));
    }
    parser.skip_space(true);
    while parser.at < text.len() {
        parser.rule()?;
        parser.skip_space(true);
    }
    let mut rules = Vec::new();
    for (name, rule) in parser.rules.iter_mut().map(|rule| (rule.name, rule)) {
        match rule.body.take() {
            Some(body) => rules.push(body),
            None => {
                let at = rule.at;
                let reason = format!("the rule `{}` is not defined", clip(name));
                return Err(parser.error(at, reason));
            }
        }
    }
    let root = parser.names.get("root").copied();
    let root = root.ok_or_else(|| parser.error(text.len(), "there is no rule `root`".into()))?;
    Ok(GbnfGrammar { rules, root })
}

/// A rule that is defined or used.
struct GbnfRule<'a> {
    name: &'a str,
    /// The byte offset of its first use.
    at: usize,
    body: Option<GbnfAlternatives>,
}

struct GbnfParser<'a> {
    text: &'a str,
    /// Byte offset of the next character.
    at: usize,
    names: HashMap<&'a str, usize>,
    rules: Vec<GbnfRule<'a>>,
}

impl<'a> GbnfParser<'a> {
    fn error(&self, at: usize, reason: String) -> ConstraintError {
        let before = &self.text[..at];
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or("").chars().count() + 1;
        ConstraintError::Grammar {
            kind: "GBNF grammar",
            reason: format!("line {line}, column {column}: {reason}"),
        }
    }

    /// The error for text at the current position that differs from `expected`.
    fn unexpected(&self, expected: &str) -> ConstraintError {
        let found = match self.peek() {
            None => "the end".to_string(),
            Some('\n' | '\r') => "the end of the line".to_string(),
            Some(c) => format!("`{}`", c.escape_debug()),
        };
        self.error(self.at, format!("expected {expected}, found {found}"))
    }

    fn peek(&self) -> Option<char> {
        self.text[self.at..].chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.at += c.len_utf8();
        Some(c)
    }

    fn take(&mut self, text: &str) -> bool {
        let found = self.text[self.at..].starts_with(text);
        if found {
            self.at += text.len();
        }
        found
    }

    /// Skips spaces and comments, and line ends if `lines` is set.
    fn skip_space(&mut self, lines: bool) {
        while let Some(c) = self.peek() {
            match c {
                ' ' | '\t' => self.at += 1,
                '\n' | '\r' if lines => self.at += 1,
                '#' => {
                    let rest = &self.text[self.at..];
                    self.at += rest.find(['\n', '\r']).unwrap_or(rest.len());
                }
                _ => return,
            }
        }
    }

    fn name(&mut self) -> Result<&'a str, ConstraintError> {
        let rest = &self.text[self.at..];
        let known = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
        let len = rest.find(|c| !known(c)).unwrap_or(rest.len());
        if len == 0 {
            return Err(self.unexpected("the name of a rule"));
        }
        self.at += len;
        Ok(&rest[..len])
    }

    /// The index of the rule called `name`, which occurs at byte `at`.
    fn index(&mut self, name: &'a str, at: usize) -> usize {
        *self.names.entry(name).or_insert_with(|| {
            let body = None;
            self.rules.push(GbnfRule { name, at, body });
            self.rules.len() - 1
        })
    }

    /// Parses `NAME ::= ALTERNATIVES` and the end of the line. The last definition of a rule counts.
    fn rule(&mut self) -> Result<(), ConstraintError> {
        let at = self.at;
        let name = self.name()?;
        self.skip_space(false);
        if !self.take("::=") {
            return Err(self.unexpected("`::=`"));
        }
        self.skip_space(true);
        let body = self.alternatives(0)?;
        match self.peek() {
            None | Some('\n' | '\r') => {}
            Some(_) => return Err(self.unexpected("an item, `|` or the end of the line")),
        }
        let index = self.index(name, at);
        self.rules[index].body = Some(body);
        Ok(())
    }

    fn alternatives(&mut self, depth: usize) -> Result<GbnfAlternatives, ConstraintError> {
        let mut all = vec![self.sequence(depth)?];
        while self.take("|") {
            self.skip_space(true);
            all.push(self.sequence(depth)?);
        }
        Ok(all)
    }

    /// Parses items until `|`, `)` or the end of the rule. Groups may extend over several lines.
    fn sequence(&mut self, depth: usize) -> Result<Vec<GbnfItem>, ConstraintError> {
        let mut items = Vec::new();
        let nested = depth > 0;
        while let Some(c) = self.peek() {
            let item = match c {
                '"' => self.literal()?,
                '[' => Some(self.class()?),
                '.' => {
                    self.at += 1;
                    let ranges = vec![('\0', char::MAX)];
                    let negated = false;
                    Some(GbnfItem::Class { ranges, negated })
                }
                '<' => Some(self.token(false)?),
                '!' => Some(self.token(true)?),
                '(' => Some(self.group(depth)?),
                c if c.is_ascii_alphanumeric() || matches!(c, '-' | '_') => {
                    let at = self.at;
                    let name = self.name()?;
                    Some(GbnfItem::Rule(self.index(name, at)))
                }
                _ => break,
            };
            self.skip_space(nested);
            let item = item.unwrap_or_else(|| GbnfItem::Group(vec![Vec::new()]));
            items.push(self.repeated(item, nested)?);
        }
        if let Some('*' | '+' | '?' | '{') = self.peek() {
            return Err(self.unexpected("an item before the repetition"));
        }
        Ok(items)
    }

    fn group(&mut self, depth: usize) -> Result<GbnfItem, ConstraintError> {
        if depth == MAX_DEPTH {
            let reason = format!("groups are nested more than {MAX_DEPTH} deep");
            return Err(self.error(self.at, reason));
        }
        self.at += 1;
        self.skip_space(true);
        let inner = self.alternatives(depth + 1)?;
        if !self.take(")") {
            return Err(self.unexpected("an item, `|` or `)`"));
        }
        Ok(GbnfItem::Group(inner))
    }

    /// Applies all repetitions that follow an item.
    fn repeated(&mut self, item: GbnfItem, nested: bool) -> Result<GbnfItem, ConstraintError> {
        let mut item = item;
        let mut wraps = 0;
        while let Some(c) = self.peek() {
            let at = self.at;
            let (min, max) = match c {
                '*' => (0, None),
                '+' => (1, None),
                '?' => (0, Some(1)),
                '{' => (0, Some(0)),
                _ => break,
            };
            self.at += 1;
            let (min, max) = match c {
                '{' => self.bounds(at)?,
                _ => (min, max),
            };
            wraps += 1;
            if wraps > MAX_DEPTH {
                let reason = format!("more than {MAX_DEPTH} repetitions of one item");
                return Err(self.error(at, reason));
            }
            item = GbnfItem::Repeat(Box::new(item), min, max);
            self.skip_space(nested);
        }
        Ok(item)
    }

    /// Parses `m}`, `m,}`, `,n}` or `m,n}`; the brace is at byte `at`.
    fn bounds(&mut self, at: usize) -> Result<(u32, Option<u32>), ConstraintError> {
        self.skip_space(true);
        let min = self.number()?;
        self.skip_space(true);
        let (min, max) = match (min, self.take(",")) {
            (Some(min), false) => (min, Some(min)),
            (None, false) => return Err(self.unexpected("a number")),
            (min, true) => {
                self.skip_space(true);
                let max = self.number()?;
                self.skip_space(true);
                (min.unwrap_or(0), max)
            }
        };
        if !self.take("}") {
            return Err(self.unexpected("`}`"));
        }
        match max {
            Some(max) if max < min => {
                let reason = format!("the maximum {max} is less than the minimum {min}");
                Err(self.error(at, reason))
            }
            max => Ok((min, max)),
        }
    }

    fn number(&mut self) -> Result<Option<u32>, ConstraintError> {
        let rest = &self.text[self.at..];
        let len = rest
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(rest.len());
        if len == 0 {
            return Ok(None);
        }
        let at = self.at;
        self.at += len;
        let number = rest[..len].parse().ok().filter(|n| *n <= MAX_REPEATS);
        match number {
            Some(number) => Ok(Some(number)),
            None => Err(self.error(at, format!("expected a number of at most {MAX_REPEATS}"))),
        }
    }

    /// Parses a literal; `None` if it is empty.
    fn literal(&mut self) -> Result<Option<GbnfItem>, ConstraintError> {
        let at = self.at;
        self.at += 1;
        let mut text = Vec::new();
        loop {
            match self.peek() {
                None => return Err(self.error(at, "the text has no closing `\"`".to_string())),
                Some('"') => break,
                Some(_) => text.push(self.character()?),
            }
        }
        self.at += 1;
        Ok((!text.is_empty()).then_some(GbnfItem::Text(text)))
    }

    fn class(&mut self) -> Result<GbnfItem, ConstraintError> {
        let at = self.at;
        self.at += 1;
        let negated = self.take("^");
        let mut ranges = Vec::new();
        loop {
            let from = self.at;
            match self.peek() {
                None => return Err(self.error(at, "the class has no closing `]`".to_string())),
                Some(']') => break,
                Some(_) => {}
            }
            let first = self.character()?;
            let rest = &self.text[self.at..];
            let mut last = first;
            if rest.starts_with('-') && !rest.starts_with("-]") {
                self.at += 1;
                if self.peek().is_none() {
                    continue;
                }
                last = self.character()?;
            }
            if last < first {
                let (first, last) = (first.escape_debug(), last.escape_debug());
                let reason = format!("the range `{first}-{last}` is out of order");
                return Err(self.error(from, reason));
            }
            ranges.push((first, last));
        }
        if ranges.is_empty() {
            return Err(self.error(at, "the class has no characters".to_string()));
        }
        self.at += 1;
        Ok(GbnfItem::Class { ranges, negated })
    }

    /// A character of a literal or class, perhaps an escape.
    fn character(&mut self) -> Result<char, ConstraintError> {
        let at = self.at;
        let Some(c) = self.next() else {
            return Err(self.unexpected("a character"));
        };
        if c != '\\' {
            return Ok(c);
        }
        let digits = match self.next() {
            Some('n') => return Ok('\n'),
            Some('r') => return Ok('\r'),
            Some('t') => return Ok('\t'),
            Some(c @ ('\\' | '"' | '[' | ']' | '-' | '^')) => return Ok(c),
            Some('x') => 2,
            Some('u') => 4,
            Some('U') => 8,
            _ => {
                let known = r#"\n, \r, \t, \\, \", \[, \], \-, \^, \xXX, \uXXXX or \UXXXXXXXX"#;
                return Err(self.error(at, format!("unknown escape; expected {known}")));
            }
        };
        let hex = self.text.get(self.at..self.at + digits);
        let hex = hex.filter(|hex| hex.bytes().all(|b| b.is_ascii_hexdigit()));
        let Some(hex) = hex else {
            return Err(self.error(at, format!("expected {digits} hex digits")));
        };
        self.at += digits;
        let c = u32::from_str_radix(hex, 16).ok().and_then(char::from_u32);
        c.ok_or_else(|| self.error(at, format!("{hex} is not a Unicode character")))
    }

    /// Parses `<[ID]>` or `<NAME>`, negated after `!`.
    fn token(&mut self, negated: bool) -> Result<GbnfItem, ConstraintError> {
        let at = self.at;
        if negated {
            self.at += 1;
            if self.peek() != Some('<') {
                return Err(self.unexpected("a token such as `<[12]>`"));
            }
        }
        let rest = &self.text[self.at..];
        let end = rest.find('>').map(|end| &rest[..=end]);
        let plain = |t: &&str| !t[1..].contains(|c: char| c == '<' || c.is_whitespace());
        let Some(token) = end.filter(|t| t.len() > 2).filter(plain) else {
            return Err(self.error(at, "expected a token such as `<[12]>` or `<think>`".into()));
        };
        let id = token.strip_prefix("<[").and_then(|t| t.strip_suffix("]>"));
        let number = id.map(|id| id.parse::<u32>());
        let item = match (number, negated) {
            (Some(Ok(id)), false) => GbnfItem::Token(format!("<[{id}]>")),
            (Some(Ok(id)), true) => GbnfItem::OtherToken(id),
            (Some(Err(_)), _) => {
                return Err(self.error(at, format!("`{}` has no token id", clip(token))));
            }
            (None, false) => GbnfItem::Token(token.to_string()),
            (None, true) => {
                let reason = "`!` requires the id of a token, such as `!<[12]>`".to_string();
                return Err(self.error(at, reason));
            }
        };
        self.at += token.len();
        Ok(item)
    }
}

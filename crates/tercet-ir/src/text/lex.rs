//! Tokens of the text form, each with its position.

use super::TextError;

/// Position of a token: line and column, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TextPosition {
    pub(super) line: u32,
    pub(super) column: u32,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum GraphToken {
    /// `graph`, `f32`, `none`
    Ident(String),
    /// `%12`: the name without `%`
    Value(String),
    Int(i128),
    Float(f64),
    Str(String),
    /// One of `{ } ( ) [ ] = , : . + - * /`
    Punct(char),
    End,
}

impl GraphToken {
    pub(super) fn describe(&self) -> String {
        match self {
            GraphToken::Ident(s) => format!("`{s}`"),
            GraphToken::Value(s) => format!("`%{s}`"),
            GraphToken::Int(i) => format!("`{i}`"),
            GraphToken::Float(x) => format!("`{x:?}`"),
            GraphToken::Str(_) => "a string".to_string(),
            GraphToken::Punct(c) => format!("`{c}`"),
            GraphToken::End => "the end of the text".to_string(),
        }
    }
}

struct GraphLexer<'a> {
    rest: std::iter::Peekable<std::str::Chars<'a>>,
    place: TextPosition,
}

/// All tokens of `text`, with `End` last. `//` starts a comment up to the end of the line. A
/// byte-order mark at the start, which some editors write, is skipped.
pub(super) fn lex(text: &str) -> Result<Vec<(GraphToken, TextPosition)>, TextError> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut lexer = GraphLexer {
        rest: text.chars().peekable(),
        place: TextPosition { line: 1, column: 1 },
    };
    let mut tokens = Vec::new();
    loop {
        lexer.skip_space();
        let place = lexer.place;
        let token = lexer.token(place)?;
        let end = token == GraphToken::End;
        tokens.push((token, place));
        if end {
            return Ok(tokens);
        }
    }
}

impl GraphLexer<'_> {
    fn bump(&mut self) -> Option<char> {
        let c = self.rest.next()?;
        if c == '\n' {
            self.place = TextPosition {
                line: self.place.line + 1,
                column: 1,
            };
        } else {
            self.place.column += 1;
        }
        Some(c)
    }

    fn skip_space(&mut self) {
        while let Some(&c) = self.rest.peek() {
            if c == '/' {
                if self.rest.clone().nth(1) != Some('/') {
                    break;
                }
                while self.rest.peek().is_some_and(|&c| c != '\n') {
                    self.bump();
                }
            } else if c.is_whitespace() {
                self.bump();
            } else {
                break;
            }
        }
    }

    fn word(&mut self, accept: impl Fn(char) -> bool) -> String {
        let mut word = String::new();
        while let Some(&c) = self.rest.peek()
            && accept(c)
        {
            word.push(c);
            self.bump();
        }
        word
    }

    fn token(&mut self, place: TextPosition) -> Result<GraphToken, TextError> {
        let Some(&c) = self.rest.peek() else {
            return Ok(GraphToken::End);
        };
        let in_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        match c {
            '%' => {
                self.bump();
                let name = self.word(in_word);
                if name.is_empty() {
                    return Err(TextError::new(
                        place,
                        "`%` must be followed by a name".into(),
                    ));
                }
                Ok(GraphToken::Value(name))
            }
            '"' => self.string(place),
            '0'..='9' => self.number(place),
            c if c.is_ascii_alphabetic() || c == '_' => Ok(GraphToken::Ident(self.word(in_word))),
            '{' | '}' | '(' | ')' | '[' | ']' | '=' | ',' | ':' | '.' | '+' | '-' | '*' | '/' => {
                self.bump();
                Ok(GraphToken::Punct(c))
            }
            '\0' => Err(TextError::new(place, super::UTF_16.to_string())),
            c => Err(TextError::new(place, format!("unexpected character {c:?}"))),
        }
    }

    fn number(&mut self, place: TextPosition) -> Result<GraphToken, TextError> {
        let mut text = self.word(|c| c.is_ascii_digit());
        let mut float = false;
        if self.rest.peek() == Some(&'.') {
            float = true;
            self.bump();
            text.push('.');
            text += &self.word(|c| c.is_ascii_digit());
        }
        if let Some('e' | 'E') = self.rest.peek() {
            float = true;
            self.bump();
            text.push('e');
            if let Some(&c @ ('+' | '-')) = self.rest.peek() {
                self.bump();
                text.push(c);
            }
            text += &self.word(|c| c.is_ascii_digit());
        }
        let parsed = match float {
            true => text.parse().ok().map(GraphToken::Float),
            false => text.parse().ok().map(GraphToken::Int),
        };
        parsed.ok_or_else(|| TextError::new(place, format!("`{text}` is not a number")))
    }

    fn string(&mut self, place: TextPosition) -> Result<GraphToken, TextError> {
        let bad = |what: &str| TextError::new(place, format!("string with {what}"));
        self.bump();
        let mut s = String::new();
        loop {
            match self.bump().ok_or_else(|| bad("no closing quote"))? {
                '"' => return Ok(GraphToken::Str(s)),
                '\\' => {
                    let c = match self.bump() {
                        Some(c @ ('"' | '\\')) => Some(c),
                        Some('n') => Some('\n'),
                        Some('t') => Some('\t'),
                        Some('r') => Some('\r'),
                        Some('u') if self.bump() == Some('{') => {
                            let hex = self.word(|c| c.is_ascii_hexdigit());
                            let c = u32::from_str_radix(&hex, 16).ok().and_then(char::from_u32);
                            c.filter(|_| self.bump() == Some('}'))
                        }
                        _ => None,
                    };
                    s.push(c.ok_or_else(|| bad("an unknown escape"))?);
                }
                c => s.push(c),
            }
        }
    }
}

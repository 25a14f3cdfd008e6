//! Tokens of the text form, each with its place.

use super::TextError;

/// A token's place: line and column, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) line: u32,
    pub(super) column: u32,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Token {
    /// `graph`, `f32`, `none`
    Ident(String),
    /// `%12`: the name without the sign
    Value(String),
    Int(i128),
    Float(f64),
    Str(String),
    /// One of `{ } ( ) [ ] = , : . + - *`
    Punct(char),
    End,
}

impl Token {
    pub(super) fn describe(&self) -> String {
        match self {
            Token::Ident(s) => format!("`{s}`"),
            Token::Value(s) => format!("`%{s}`"),
            Token::Int(i) => format!("`{i}`"),
            Token::Float(x) => format!("`{x:?}`"),
            Token::Str(_) => "a string".to_string(),
            Token::Punct(c) => format!("`{c}`"),
            Token::End => "the end of the text".to_string(),
        }
    }
}

struct Lexer<'a> {
    rest: std::iter::Peekable<std::str::Chars<'a>>,
    place: Place,
}

/// All tokens of `text`, `End` last. `//` starts a comment up to the end of the line; a byte-order mark at
/// the start, which some editors write, is no part of the text.
pub(super) fn lex(text: &str) -> Result<Vec<(Token, Place)>, TextError> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut lexer = Lexer {
        rest: text.chars().peekable(),
        place: Place { line: 1, column: 1 },
    };
    let mut tokens = Vec::new();
    loop {
        lexer.skip_space()?;
        let place = lexer.place;
        let token = lexer.token(place)?;
        let end = token == Token::End;
        tokens.push((token, place));
        if end {
            return Ok(tokens);
        }
    }
}

impl Lexer<'_> {
    fn bump(&mut self) -> Option<char> {
        let c = self.rest.next()?;
        if c == '\n' {
            self.place = Place {
                line: self.place.line + 1,
                column: 1,
            };
        } else {
            self.place.column += 1;
        }
        Some(c)
    }

    fn skip_space(&mut self) -> Result<(), TextError> {
        while let Some(&c) = self.rest.peek() {
            if c == '/' {
                let place = self.place;
                self.bump();
                if self.bump() != Some('/') {
                    return Err(TextError::new(place, "expected `//`, a comment".into()));
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
        Ok(())
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

    fn token(&mut self, place: Place) -> Result<Token, TextError> {
        let Some(&c) = self.rest.peek() else {
            return Ok(Token::End);
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
                Ok(Token::Value(name))
            }
            '"' => self.string(place),
            '0'..='9' => self.number(place),
            c if c.is_ascii_alphabetic() || c == '_' => Ok(Token::Ident(self.word(in_word))),
            '{' | '}' | '(' | ')' | '[' | ']' | '=' | ',' | ':' | '.' | '+' | '-' | '*' => {
                self.bump();
                Ok(Token::Punct(c))
            }
            '\0' => Err(TextError::new(place, super::UTF_16.to_string())),
            c => Err(TextError::new(place, format!("unexpected character {c:?}"))),
        }
    }

    fn number(&mut self, place: Place) -> Result<Token, TextError> {
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
            true => text.parse().ok().map(Token::Float),
            false => text.parse().ok().map(Token::Int),
        };
        parsed.ok_or_else(|| TextError::new(place, format!("`{text}` is not a number")))
    }

    fn string(&mut self, place: Place) -> Result<Token, TextError> {
        let bad = |what: &str| TextError::new(place, format!("string with {what}"));
        self.bump();
        let mut s = String::new();
        loop {
            match self.bump().ok_or_else(|| bad("no closing quote"))? {
                '"' => return Ok(Token::Str(s)),
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

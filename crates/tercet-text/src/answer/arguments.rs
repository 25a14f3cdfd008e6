//! The arguments of calls as JSON, while they are written.

use serde_json::Value;

/// A scanner of a JSON object. It copies the object without white space between its tokens.
/// Numbers keep their digits.
#[derive(Clone, Debug, Default)]
pub(super) struct ObjectScanner {
    depth: usize,
    in_string: bool,
    escaped: bool,
}

impl ObjectScanner {
    /// Adds the next character; true at the end of the object.
    pub(super) fn push(&mut self, c: char, out: &mut String) -> bool {
        if self.in_string {
            match c {
                // JSON has no line ends in strings; some models write them.
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                c => out.push(c),
            }
            self.in_string = self.escaped || c != '"';
            self.escaped = !self.escaped && c == '\\';
            return false;
        }
        match c {
            '{' | '[' => self.depth += 1,
            '}' | ']' => self.depth = self.depth.saturating_sub(1),
            '"' => self.in_string = true,
            c if c.is_whitespace() => return false,
            _ => {}
        }
        out.push(c);
        self.depth == 0
    }

    /// Whether the next character is outside of strings.
    pub(super) fn is_outside(&self) -> bool {
        !self.in_string
    }
}

/// A decoder of the characters of a JSON string.
#[derive(Clone, Debug, Default)]
pub(super) struct StringDecoder {
    escape: String,
}

impl StringDecoder {
    /// Adds the next character. Returns `None` at the end of the string.
    pub(super) fn push(&mut self, c: char) -> Option<String> {
        if self.escape.is_empty() {
            return match c {
                '"' => None,
                '\\' => {
                    self.escape.push(c);
                    Some(String::new())
                }
                c => Some(c.to_string()),
            };
        }
        self.escape.push(c);
        let is_unicode = self.escape.starts_with("\\u");
        if is_unicode && self.escape.len() < 6 && c.is_ascii_alphanumeric() {
            return Some(String::new());
        }
        let quoted = format!("\"{}\"", self.escape);
        match serde_json::from_str::<String>(&quoted) {
            Ok(text) => {
                self.escape.clear();
                Some(text)
            }
            // The first half of a surrogate pair.
            Err(_) if is_unicode && self.escape.len() < 12 => Some(String::new()),
            Err(_) => Some(std::mem::take(&mut self.escape)),
        }
    }
}

/// A text as the inside of a JSON string.
pub(super) fn escaped(text: &str) -> String {
    let quoted = Value::from(text).to_string();
    quoted[1..quoted.len() - 1].to_string()
}

/// Kind of an open literal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LiteralFrame {
    /// Keys with values: `(a=1)` or `{a: 1}`.
    Map,
    List,
}

/// A converter of Python's literals, `a=1, b='x', c=[True])`, and of objects with bare keys,
/// `a:1,b:{c:[true]}}`, to JSON. The text begins after the opening bracket.
#[derive(Clone, Debug)]
pub(super) struct LiteralScanner {
    frames: Vec<LiteralFrame>,
    /// The quote of the string that the next character belongs to; `\0` for a marker.
    quote: Option<char>,
    is_escaped: bool,
    /// Hexadecimal digits of `\xhh`, `\uhhhh` that remain, and those so far.
    digits: (usize, String),
    /// A number, name or keyword so far.
    word: String,
    expects_key: bool,
    /// Whether the container has an item.
    has_item: bool,
}

impl LiteralScanner {
    pub(super) fn new(out: &mut String) -> LiteralScanner {
        out.push('{');
        LiteralScanner {
            frames: vec![LiteralFrame::Map],
            quote: None,
            is_escaped: false,
            digits: (0, String::new()),
            word: String::new(),
            expects_key: true,
            has_item: false,
        }
    }

    /// Whether the next character is outside of strings.
    pub(super) fn is_outside(&self) -> bool {
        self.quote.is_none()
    }

    /// Adds a marker that begins or ends a string.
    pub(super) fn push_quote(&mut self, out: &mut String) {
        match self.quote {
            None => self.begin_string('\0', out),
            Some('\0') => self.end_string(out),
            Some(_) => {}
        }
    }

    fn begin_string(&mut self, quote: char, out: &mut String) {
        self.item(out);
        self.quote = Some(quote);
        out.push('"');
    }

    fn end_string(&mut self, out: &mut String) {
        self.quote = None;
        out.push('"');
    }

    /// Writes the comma before an item, if it is not the first.
    fn item(&mut self, out: &mut String) {
        let is_key = self.expects_key || self.frames.last() == Some(&LiteralFrame::List);
        if is_key && self.has_item {
            out.push(',');
        }
        self.has_item = true;
    }

    fn end_word(&mut self, out: &mut String) {
        let word = std::mem::take(&mut self.word);
        let word = word.trim_end();
        if word.is_empty() {
            return;
        }
        self.item(out);
        let literal = match word {
            "True" | "true" => "true".to_string(),
            "False" | "false" => "false".to_string(),
            "None" | "null" => "null".to_string(),
            other if serde_json::from_str::<Value>(other).is_ok() => other.to_string(),
            other => Value::from(other).to_string(),
        };
        match self.expects_key && !literal.starts_with('"') {
            true => *out += &Value::from(word).to_string(),
            false => *out += &literal,
        }
    }

    /// Adds the next character; true at the end of the arguments.
    pub(super) fn push(&mut self, c: char, out: &mut String) -> bool {
        if let Some(quote) = self.quote {
            self.push_in_string(c, quote, out);
            return false;
        }
        match c {
            '"' | '\'' if self.word.is_empty() => self.begin_string(c, out),
            '=' | ':' if self.expects_key => {
                self.end_word(out);
                out.push(':');
                self.expects_key = false;
            }
            ',' => {
                self.end_word(out);
                self.expects_key = self.frames.last() == Some(&LiteralFrame::Map);
            }
            '[' | '(' | '{' => {
                self.end_word(out);
                self.item(out);
                let frame = match c {
                    '{' => LiteralFrame::Map,
                    _ => LiteralFrame::List,
                };
                self.frames.push(frame);
                out.push(if c == '{' { '{' } else { '[' });
                self.expects_key = frame == LiteralFrame::Map;
                self.has_item = false;
            }
            ']' | ')' | '}' => {
                self.end_word(out);
                let frame = self.frames.pop();
                out.push(if frame == Some(LiteralFrame::List) {
                    ']'
                } else {
                    '}'
                });
                self.expects_key = false;
                self.has_item = true;
                return self.frames.is_empty();
            }
            c if c.is_whitespace() && self.word.is_empty() => {}
            c => self.word.push(c),
        }
        false
    }

    fn push_in_string(&mut self, c: char, quote: char, out: &mut String) {
        if self.digits.0 > 0 {
            self.digits.0 -= 1;
            self.digits.1.push(c);
            if self.digits.0 == 0 {
                let digits = std::mem::take(&mut self.digits.1);
                let code = u32::from_str_radix(&digits, 16)
                    .ok()
                    .and_then(char::from_u32);
                *out += &escaped(&code.unwrap_or('\u{FFFD}').to_string());
            }
            return;
        }
        if std::mem::take(&mut self.is_escaped) {
            match c {
                'n' => *out += "\\n",
                't' => *out += "\\t",
                'r' => *out += "\\r",
                'x' => self.digits.0 = 2,
                'u' => self.digits.0 = 4,
                '\n' => {}
                '\\' | '\'' | '"' => *out += &escaped(&c.to_string()),
                c => *out += &escaped(&format!("\\{c}")),
            }
            return;
        }
        match c {
            '\\' if quote != '\0' => self.is_escaped = true,
            c if c == quote => self.end_string(out),
            c => *out += &escaped(&c.to_string()),
        }
    }
}

/// The JSON of a value that is written as plain text, for a property with this schema.
pub(super) fn value_json(raw: &str, schema: Option<&Value>) -> String {
    if schema.is_some_and(is_text) {
        return Value::from(raw).to_string();
    }
    let text = raw.trim();
    let is_json = |text: &str| serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok();
    if is_json(text) {
        let mut scanner = ObjectScanner::default();
        let mut out = String::new();
        for c in text.chars() {
            scanner.push(c, &mut out);
        }
        return out;
    }
    match text {
        "True" => return "true".to_string(),
        "False" => return "false".to_string(),
        "None" => return "null".to_string(),
        _ => {}
    }
    // Python's literals of lists and objects.
    if text.starts_with(['[', '{']) {
        let mut out = String::new();
        let mut scanner = LiteralScanner::new(&mut out);
        out.push_str("\"x\":");
        scanner.expects_key = false;
        for c in text.chars() {
            scanner.push(c, &mut out);
        }
        let value = &out["{\"x\":".len()..];
        if scanner.is_outside() && scanner.frames.len() == 1 && is_json(value) {
            return value.to_string();
        }
    }
    Value::from(raw).to_string()
}

/// Whether a schema allows only strings.
pub(super) fn is_text(schema: &Value) -> bool {
    let of = |key: &str| schema.get(key);
    if let Some(kind) = of("type") {
        let texts = |kind: &Value| kind == "string";
        return texts(kind) || kind.as_array().is_some_and(|all| all.iter().all(texts));
    }
    let values = of("enum").and_then(Value::as_array);
    values.is_some_and(|all| all.iter().all(Value::is_string))
        || of("const").is_some_and(Value::is_string)
}

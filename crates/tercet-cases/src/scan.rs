//! Scanning of texts with brackets and strings.

use std::ops::Range;

/// The bytes of a text that stand outside of strings and comments, each with its position and the
/// number of brackets around it. The brackets of a pair are outside of it.
pub(crate) struct CodeBytes<'a> {
    bytes: &'a [u8],
    at: usize,
    depth: i32,
}

impl<'a> CodeBytes<'a> {
    pub(crate) fn new(text: &'a str) -> CodeBytes<'a> {
        CodeBytes {
            bytes: text.as_bytes(),
            at: 0,
            depth: 0,
        }
    }

    /// Skips a string; `at` is behind its opening quote.
    fn skip_string(&mut self) {
        while let Some(&byte) = self.bytes.get(self.at) {
            self.at += if byte == b'\\' { 2 } else { 1 };
            if byte == b'"' {
                return;
            }
        }
    }
}

impl Iterator for CodeBytes<'_> {
    type Item = (usize, u8, i32);

    fn next(&mut self) -> Option<(usize, u8, i32)> {
        loop {
            let at = self.at;
            let byte = *self.bytes.get(at)?;
            self.at += 1;
            match byte {
                b'"' => self.skip_string(),
                b'/' if self.bytes.get(self.at) == Some(&b'/') => {
                    while self.bytes.get(self.at).is_some_and(|b| *b != b'\n') {
                        self.at += 1;
                    }
                }
                b'(' | b'[' | b'{' => {
                    self.depth += 1;
                    return Some((at, byte, self.depth - 1));
                }
                b')' | b']' | b'}' => {
                    self.depth -= 1;
                    return Some((at, byte, self.depth));
                }
                _ => return Some((at, byte, self.depth)),
            }
        }
    }
}

/// The number of brackets that remain open at the end; negative if more close than open.
pub(crate) fn depth(text: &str) -> i32 {
    let mut bytes = CodeBytes::new(text);
    let mut lowest = 0;
    for (_, _, depth) in bytes.by_ref() {
        lowest = lowest.min(depth);
    }
    if lowest < 0 { lowest } else { bytes.depth }
}

/// The position of the first byte outside of strings and brackets that satisfies a condition.
pub(crate) fn position(text: &str, is_wanted: impl Fn(usize, u8) -> bool) -> Option<usize> {
    let mut bytes = CodeBytes::new(text);
    bytes
        .find(|&(at, byte, depth)| depth == 0 && is_wanted(at, byte))
        .map(|(at, _, _)| at)
}

/// The parts of a list that commas outside of strings and brackets separate; none if it is empty.
pub(crate) fn list(text: &str) -> Vec<&str> {
    if text.trim().is_empty() {
        return Vec::new();
    }
    let mut parts = Vec::new();
    let mut start = 0;
    for (at, byte, depth) in CodeBytes::new(text) {
        if byte == b',' && depth == 0 {
            parts.push(text[start..at].trim());
            start = at + 1;
        }
    }
    parts.push(text[start..].trim());
    parts
}

/// The contents of the bracket pair that starts a text: `[a, b] c` gives the range of `a, b`.
pub(crate) fn bracketed(text: &str) -> Option<Range<usize>> {
    let mut bytes = CodeBytes::new(text);
    let (_, open, _) = bytes.next()?;
    if !matches!(open, b'(' | b'[' | b'{') {
        return None;
    }
    let end = bytes.find(|&(_, byte, depth)| depth == 0 && matches!(byte, b')' | b']' | b'}'));
    end.map(|(at, _, _)| 1..at)
}

/// The identifier that starts a text, and the rest.
pub(crate) fn identifier(text: &str) -> (&str, &str) {
    let is_inside = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.split_at(text.find(|c| !is_inside(c)).unwrap_or(text.len()))
}

/// The string literal that starts a text without its escapes, and the rest.
pub(crate) fn string(text: &str) -> Option<(String, &str)> {
    let mut chars = text.strip_prefix('"')?.char_indices();
    let mut value = String::new();
    loop {
        match chars.next()? {
            (at, '"') => return Some((value, &text[at + 2..])),
            (_, '\\') => match chars.next()?.1 {
                c @ ('"' | '\\') => value.push(c),
                _ => return None,
            },
            (_, c) => value.push(c),
        }
    }
}

/// The text with each identifier `T` outside of strings replaced by `dtype`.
pub(crate) fn with_dtype(text: &str, dtype: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut done = 0;
    let mut before = b' ';
    let bytes = text.as_bytes();
    let is_word = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'%';
    for (at, byte, _) in CodeBytes::new(text) {
        let after = bytes.get(at + 1).copied().unwrap_or(b' ');
        if byte == b'T' && !is_word(before) && !is_word(after) {
            out.push_str(&text[done..at]);
            out.push_str(dtype);
            done = at + 1;
        }
        before = byte;
    }
    out.push_str(&text[done..]);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_and_comments_are_no_code() {
        assert_eq!(depth("a(b, \")\", [1"), 2);
        assert_eq!(depth("a { // }\n}"), 0);
        assert_eq!(depth("a)("), -1);
        assert_eq!(
            list("x: T[2, 3] [1, 2], \"a,b\": T[]"),
            ["x: T[2, 3] [1, 2]", "\"a,b\": T[]"]
        );
        assert_eq!(list(" "), Vec::<&str>::new());
        assert_eq!(bracketed("[a[1], b] c").map(|r| r.end), Some(8));
        assert_eq!(string("\"a\\\"b\" c"), Some(("a\"b".to_string(), " c")));
        assert_eq!(string("\"open"), None);
    }

    #[test]
    fn only_the_word_is_a_dtype() {
        let text = "cast{to=T}(%T, x: T[T1, nT] \"T\")";
        let wanted = "cast{to=f16}(%T, x: f16[T1, nT] \"T\")";
        assert_eq!(with_dtype(text, "f16"), wanted);
    }
}

//! Finds the functions of a Rust file by scanning its tokens.

/// A function with a body; line numbers count from 0.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct FunctionLines {
    pub(super) name: String,
    /// The line of the function's `fn`.
    pub(super) first: usize,
    /// The line of the opening brace of the function's body.
    pub(super) body: usize,
    /// The line of the closing brace of the function's body.
    pub(super) last: usize,
}

impl FunctionLines {
    pub(super) fn lines(&self) -> usize {
        self.last - self.first + 1
    }
}

/// The functions of a file in the order of their ends, including nested ones. The result is
/// undefined for files that do not compile.
pub(super) fn find_functions(text: &str) -> Vec<FunctionLines> {
    let code = without_text(text);
    let (mut functions, mut open) = (Vec::new(), Vec::new());
    // A function whose body has not started, and the open brackets in its signature.
    let mut begun: Option<(String, usize, usize)> = None;
    for (line, code) in code.lines().enumerate() {
        let mut rest = code;
        while let Some(c) = rest.chars().next() {
            let word = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
            let (token, after) = rest.split_at(word.max(c.len_utf8()));
            rest = after;
            match (token, &mut begun) {
                ("fn", _) => {
                    let name = after.trim_start();
                    let end = name.find(|c| !is_word(c) && c != '$');
                    let name = &name[..end.unwrap_or(name.len())];
                    // Function pointer types have no name.
                    if !name.is_empty() {
                        begun = Some((name.to_string(), line, 0));
                    }
                }
                ("(" | "[", Some((.., depth))) => *depth += 1,
                (")" | "]", Some((.., depth))) => *depth = depth.saturating_sub(1),
                (";", Some((.., 0))) => begun = None,
                ("{", Some((.., 0))) => {
                    open.push(begun.take().map(|(name, first, _)| (name, first, line)));
                }
                ("{", _) => open.push(None),
                ("}", _) => {
                    if let Some(Some((name, first, body))) = open.pop() {
                        functions.push(FunctionLines {
                            name,
                            first,
                            body,
                            last: line,
                        });
                    }
                }
                _ => {}
            }
        }
    }
    functions
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The file with comments, strings and character literals replaced by blanks; line breaks stay.
fn without_text(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let skipped = text_at(rest, code.chars().next_back());
        let (taken, after) = rest.split_at(skipped.unwrap_or(c.len_utf8()));
        match skipped {
            Some(_) => code.extend(taken.chars().map(|c| if c == '\n' { c } else { ' ' })),
            None => code.push(c),
        }
        rest = after;
    }
    code
}

/// The length in bytes of the comment, string or character literal that starts here; `before` is
/// the previous character.
fn text_at(rest: &str, before: Option<char>) -> Option<usize> {
    let bytes = rest.as_bytes();
    let until = |end: &str, from: usize| {
        let found = rest.get(from..).and_then(|tail| tail.find(end));
        found.map_or(rest.len(), |at| from + at + end.len())
    };
    match bytes {
        [b'/', b'/', ..] => Some(rest.find('\n').unwrap_or(rest.len())),
        [b'/', b'*', ..] => Some(until("*/", 2)),
        [b'"', ..] => Some(quoted(bytes, b'"')),
        [b'r', b'"' | b'#', ..] if !before.is_some_and(is_plain_word) => {
            let hashes = bytes[1..].iter().take_while(|b| **b == b'#').count();
            let end = format!("\"{}", "#".repeat(hashes));
            // Without a quote, `r#` starts a raw identifier.
            (bytes.get(1 + hashes) == Some(&b'"')).then(|| until(&end, 2 + hashes))
        }
        [b'\'', b'\\', ..] => Some(quoted(bytes, b'\'')),
        // A character literal, as opposed to a lifetime.
        [b'\'', ..] => {
            let c = rest[1..].chars().next()?;
            let end = 1 + c.len_utf8();
            (bytes.get(end) == Some(&b'\'')).then_some(end + 1)
        }
        _ => None,
    }
}

/// True for characters after which `r` is part of an identifier; `b` and `c` start literals.
fn is_plain_word(c: char) -> bool {
    is_word(c) && c != 'b' && c != 'c'
}

/// The length in bytes of a literal with escapes that ends with `quote`.
fn quoted(bytes: &[u8], quote: u8) -> usize {
    let mut at = 1;
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'\\' => at += 2,
            byte if *byte == quote => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The function names with their first and last lines, counted from 1.
    fn found(text: &str) -> Vec<(String, usize, usize)> {
        let found = find_functions(text).into_iter();
        found.map(|f| (f.name, f.first + 1, f.last + 1)).collect()
    }

    fn one(name: &str, first: usize, last: usize) -> (String, usize, usize) {
        (name.to_string(), first, last)
    }

    #[test]
    fn functions_end_with_their_brace() {
        let text = "\
impl A {
    pub(crate) const fn a<'a>(
        x: [u8; 2],
    ) -> fn(&'a str) -> bool {
        if x { |y| { y } }
    }
}
trait T { fn none(&self, n: [u8; 3]); }
unsafe extern \"C\" fn b() {
    fn inner() {}
}
";
        let expected = [one("a", 2, 6), one("inner", 10, 10), one("b", 9, 11)];
        assert_eq!(found(text), expected);
    }

    #[test]
    fn text_holds_no_functions() {
        let text = "\
fn a() {
    // fn no() {
    /* { */
    let s = \"fn no() {\\\" {\";
    let s = r#\"}\" {\"#;
    let s = br\"{\\\";
    let (c, d, e) = ('{', '\\'', b'{');
    let s = \"one
    } {\";
    var();
}
";
        assert_eq!(found(text), [one("a", 1, 11)]);
    }
}

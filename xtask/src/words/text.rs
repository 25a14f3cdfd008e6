//! Splits a file into prose, string literals and identifiers.

/// The kind of a part of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PartKind {
    /// A block of comment lines, or a paragraph of Markdown.
    Prose,
    /// A string literal.
    String,
    /// An identifier or a keyword.
    Identifier,
}

/// A part of a file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) kind: PartKind,
    /// Line number of the start of the part, counted from 1.
    pub(super) line: usize,
    pub(super) text: String,
}

/// The parts of a Rust, WGSL or GLSL file. Consecutive comment lines form one part; code blocks and tables
/// of rustdoc are left out.
pub(super) fn source(text: &str) -> Vec<Part> {
    let mut parts = Vec::new();
    let mut comments: Vec<(usize, String)> = Vec::new();
    let mut rest = text;
    let mut line = 1;
    let mut before = None;
    // Whether the line has code before the current token.
    let mut has_code = false;
    while let Some(c) = rest.chars().next() {
        let taken = token(rest, before);
        let (token, after) = rest.split_at(taken);
        if let Some(comment) = token.strip_prefix("//") {
            let comment = comment.trim_start_matches(['/', '!']);
            let follows = comments.last().is_some_and(|(last, _)| last + 1 == line);
            if !follows || has_code {
                flush(&mut comments, &mut parts);
            }
            comments.push((line, comment.to_string()));
            if has_code {
                flush(&mut comments, &mut parts);
            }
        } else if !c.is_whitespace() {
            let kind = match c {
                'a'..='z' | 'A'..='Z' | '_' if !token.ends_with(['"', '#']) => {
                    Some(PartKind::Identifier)
                }
                _ if c != '\'' && token.len() > 1 && token.contains('"') => Some(PartKind::String),
                _ => None,
            };
            if let Some(kind) = kind {
                parts.push(Part {
                    kind,
                    line,
                    text: token.to_string(),
                });
            }
        }
        let breaks = token.matches('\n').count();
        line += breaks;
        has_code = breaks == 0 && (has_code || !c.is_whitespace());
        before = token.chars().next_back();
        rest = after;
    }
    flush(&mut comments, &mut parts);
    parts.sort_by_key(|part| part.line);
    parts
}

fn flush(comments: &mut Vec<(usize, String)>, parts: &mut Vec<Part>) {
    let Some((first, _)) = comments.first() else {
        return;
    };
    let first = *first;
    let text: Vec<String> = comments.drain(..).map(|(_, text)| text).collect();
    for mut part in markdown(&text.join("\n")) {
        part.line += first - 1;
        parts.push(part);
    }
}

/// The length in bytes of the token at the start of `rest`.
fn token(rest: &str, before: Option<char>) -> usize {
    let bytes = rest.as_bytes();
    let until = |end: &str, from: usize| {
        let found = rest.get(from..).and_then(|tail| tail.find(end));
        found.map_or(rest.len(), |index| from + index + end.len())
    };
    let word = rest
        .find(|c: char| !c.is_alphanumeric() && c != '_')
        .unwrap_or(rest.len());
    let is_name = before.is_some_and(|c| c.is_alphanumeric() || c == '_');
    match bytes {
        [b'/', b'/', ..] => rest.find('\n').unwrap_or(rest.len()),
        [b'/', b'*', ..] => until("*/", 2),
        [b'"', ..] => quoted(bytes, 0),
        [b'b' | b'c', b'"', ..] => quoted(bytes, 1),
        [b'r', b'"' | b'#', ..] if !is_name => {
            let hashes = bytes[1..].iter().take_while(|b| **b == b'#').count();
            match bytes.get(1 + hashes) {
                Some(b'"') => until(&format!("\"{}", "#".repeat(hashes)), 2 + hashes),
                _ => 1,
            }
        }
        [b'\'', b'\\', ..] => quoted(bytes, 0),
        [b'\'', ..] => match rest[1..].chars().next() {
            Some(c) if bytes.get(1 + c.len_utf8()) == Some(&b'\'') => c.len_utf8() + 2,
            _ => 1,
        },
        _ if word > 0 => word,
        _ => rest.chars().next().map_or(1, char::len_utf8),
    }
}

/// The length of a literal with escapes whose opening quote stands at `open`.
fn quoted(bytes: &[u8], open: usize) -> usize {
    let quote = bytes[open];
    let mut index = open + 1;
    while let Some(byte) = bytes.get(index) {
        match byte {
            b'\\' => index += 2,
            byte if *byte == quote => return index + 1,
            _ => index += 1,
        }
    }
    bytes.len()
}

/// The paragraphs of a Markdown text without fenced code, tables, HTML and link definitions. A heading, a
/// list item and a paragraph are one part each.
pub(super) fn markdown(text: &str) -> Vec<Part> {
    let mut parts: Vec<Part> = Vec::new();
    let mut fenced = false;
    let mut open = false;
    for (index, line) in text.lines().enumerate() {
        let trimmed = line.trim();
        if trimmed.starts_with("```") {
            fenced = !fenced;
            open = false;
            continue;
        }
        let skipped = fenced
            || trimmed.is_empty()
            || trimmed.starts_with('|')
            || trimmed.starts_with('<')
            || (trimmed.starts_with('[') && trimmed.contains("]:"));
        if skipped {
            open = false;
            continue;
        }
        let starts = trimmed.starts_with(['#', '*', '-', '+'])
            || trimmed
                .split_once(". ")
                .is_some_and(|(number, _)| number.parse::<u32>().is_ok());
        match parts.last_mut() {
            Some(last) if open && !starts => {
                last.text.push('\n');
                last.text.push_str(trimmed);
            }
            _ => parts.push(Part {
                kind: PartKind::Prose,
                line: index + 1,
                text: trimmed.to_string(),
            }),
        }
        open = !trimmed.starts_with('#');
    }
    parts
}

/// The sentences of a paragraph. A span of code counts as one word.
pub(super) fn sentences(text: &str) -> Vec<String> {
    let mut sentences = vec![String::new()];
    let mut code = false;
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        let current = match sentences.last_mut() {
            Some(current) => current,
            None => break,
        };
        match c {
            '`' => {
                code = !code;
                current.push('`');
            }
            _ if code => {}
            '.' | '!' | '?' | ':' | ';' if chars.peek().is_none_or(|c| c.is_whitespace()) => {
                current.push(c);
                sentences.push(String::new());
            }
            '\n' => current.push(' '),
            _ => current.push(c),
        }
    }
    sentences.retain(|sentence| !sentence.trim().is_empty());
    sentences
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_split_into_prose_strings_and_identifiers() {
        let text = "/// One line.\n/// Its next.\nlet x = \"a // b\"; // Why.\nlet c = '\"';\n";
        let parts: Vec<(PartKind, usize, String)> = source(text)
            .into_iter()
            .map(|part| (part.kind, part.line, part.text))
            .collect();
        let identifier = |line, name: &str| (PartKind::Identifier, line, name.to_string());
        assert_eq!(
            parts,
            [
                (PartKind::Prose, 1, "One line.\nIts next.".to_string()),
                identifier(3, "let"),
                identifier(3, "x"),
                (PartKind::String, 3, "\"a // b\"".to_string()),
                (PartKind::Prose, 3, "Why.".to_string()),
                identifier(4, "let"),
                identifier(4, "c"),
            ]
        );
    }

    #[test]
    fn sentences_end_at_stops_and_code_is_one_word() {
        let text = "Reads `a. b c`; then\nstops. Version 1.2 stays: yes";
        let found: Vec<usize> = sentences(text)
            .iter()
            .map(|sentence| sentence.split_whitespace().count())
            .collect();
        assert_eq!(found, [2, 2, 3, 1]);
    }
}

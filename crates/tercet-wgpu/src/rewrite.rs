//! Rewrites the storage declarations of a WGSL kernel for the bindings of one dispatch.
//!
//! A kernel declares its inputs as `var<storage, read>`. If the dispatch also writes the same
//! buffer, WebGPU requires that the binding is writable. If two writable bindings overlap, they
//! must be merged into one. The rewrite changes only declarations and names.

use std::collections::HashMap;
use std::ops::Range;

/// The rewrite of one argument's declaration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BindingRewrite {
    /// The argument is declared as `var<storage, read>`.
    Read,
    /// The argument is declared as `var<storage, read_write>`.
    ReadWrite,
    /// No declaration: the argument shares the declaration of the argument with this index.
    SameAs(usize),
}

/// A storage variable declaration of a kernel.
#[derive(Debug)]
struct StorageDecl<'a> {
    binding: usize,
    name: &'a str,
    ty: String,
    /// The byte range in the source of the address space and access mode, between `<` and `>`.
    mode: Range<usize>,
    /// The byte range in the source of the whole declaration, from the first attribute to the
    /// semicolon.
    whole: Range<usize>,
}

/// Rewrites the declarations of a kernel. `binds` are the rewrites of bindings 1, 2, ...
///
/// # Errors
/// The property of the source that prevents the rewrite.
pub fn rewrite(text: &str, binds: &[BindingRewrite]) -> Result<String, String> {
    let tokens = tokens(text);
    let decls = declarations(&tokens);
    let find = |arg: usize| {
        let decl = decls.iter().find(|d| d.binding == arg + 1);
        decl.ok_or_else(|| format!("no storage buffer is declared at binding {}", arg + 1))
    };
    let mut edits: Vec<(Range<usize>, String)> = Vec::new();
    let mut renamed: HashMap<&str, String> = HashMap::new();
    for (arg, bind) in binds.iter().enumerate() {
        let decl = find(arg)?;
        match *bind {
            BindingRewrite::Read => edits.push((decl.mode.clone(), "storage, read".to_string())),
            BindingRewrite::ReadWrite => {
                edits.push((decl.mode.clone(), "storage, read_write".to_string()))
            }
            BindingRewrite::SameAs(other) => {
                let other = find(other)?;
                if other.ty != decl.ty {
                    let (a, b) = (decl.name, other.name);
                    return Err(format!("`{a}` and `{b}` overlap but have different types"));
                }
                edits.push((decl.whole.clone(), String::new()));
                let shared = unused(&tokens, other.name);
                renamed.insert(other.name, shared.clone());
                renamed.insert(decl.name, shared);
            }
        }
    }
    if !renamed.is_empty() {
        let gone = |at: usize| {
            edits
                .iter()
                .any(|(r, new)| new.is_empty() && r.contains(&at))
        };
        let uses: Vec<WgslToken<'_>> = (globals(&tokens).into_iter())
            .filter(|t| !gone(t.at))
            .collect();
        edits.extend(uses.iter().filter_map(|t| {
            let new = renamed.get(t.text)?;
            Some((t.at..t.at + t.text.len(), new.clone()))
        }));
    }
    Ok(apply(text, edits))
}

/// An identifier that does not occur in the source, so that no local variable can shadow it.
fn unused(tokens: &[WgslToken<'_>], name: &str) -> String {
    let mut new = format!("{name}_shared");
    while tokens.iter().any(|t| t.text == new) {
        new.push('_');
    }
    new
}

/// The identifiers that refer to module scope; excludes members, fields and locals. A local is
/// visible from the end of its declaration to the end of its block, a parameter in the whole
/// function.
fn globals<'a>(tokens: &[WgslToken<'a>]) -> Vec<WgslToken<'a>> {
    let mut out = Vec::new();
    let mut scopes: Vec<LexicalScope<'a>> = Vec::new();
    // Parameters of the function being parsed, and locals of the statement being parsed.
    let (mut params, mut locals): (Vec<&str>, Vec<&str>) = (Vec::new(), Vec::new());
    let (mut in_struct, mut in_signature) = (false, false);
    for (i, token) in tokens.iter().enumerate() {
        let before = i.checked_sub(1).map_or("", |i| tokens[i].text);
        let after = tokens.get(i + 1).map_or("", |t| t.text);
        match token.text {
            "struct" => in_struct = true,
            "fn" => in_signature = true,
            "for" => scopes.push(LexicalScope {
                is_loop: true,
                ..LexicalScope::default()
            }),
            "{" => {
                in_signature = false;
                let hidden = std::mem::take(&mut params);
                scopes.push(LexicalScope {
                    hidden,
                    is_loop: false,
                });
            }
            "}" => {
                in_struct = false;
                scopes.pop();
                // The end of a loop body also ends the scope of the loop counter.
                if scopes.last().is_some_and(|s| s.is_loop) {
                    scopes.pop();
                }
            }
            ";" => {
                if let Some(scope) = scopes.last_mut() {
                    scope.hidden.append(&mut locals);
                }
                locals.clear();
            }
            _ if before == "." || in_struct => {}
            word if in_signature && after == ":" => params.push(word),
            word if matches!(before, "let" | "var" | "const") && !scopes.is_empty() => {
                locals.push(word);
            }
            word => {
                if !scopes.iter().any(|s| s.hidden.contains(&word)) {
                    out.push(*token);
                }
            }
        }
    }
    out
}

/// A block scope, or the scope of a loop and its counter.
#[derive(Default)]
struct LexicalScope<'a> {
    /// The locals declared so far.
    hidden: Vec<&'a str>,
    is_loop: bool,
}

fn apply(text: &str, mut edits: Vec<(Range<usize>, String)>) -> String {
    edits.sort_by_key(|(range, _)| range.start);
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    for (range, new) in edits {
        out.push_str(&text[at..range.start]);
        out.push_str(&new);
        at = range.end;
    }
    out.push_str(&text[at..]);
    out
}

/// A WGSL token and its byte offset.
#[derive(Clone, Copy, Debug)]
struct WgslToken<'a> {
    text: &'a str,
    at: usize,
}

/// The tokens of a source, without comments. Words and numbers are one token; every other character
/// is a token.
fn tokens(text: &str) -> Vec<WgslToken<'_>> {
    let word = |c: char| c == '_' || c.is_alphanumeric();
    let mut out = Vec::new();
    let mut at = 0;
    while let Some(c) = text[at..].chars().next() {
        let rest = &text[at..];
        let len = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            block_comment(rest)
        } else if word(c) {
            rest.find(|c| !word(c)).unwrap_or(rest.len())
        } else {
            c.len_utf8()
        };
        if !rest.starts_with("//") && !rest.starts_with("/*") && !c.is_whitespace() {
            out.push(WgslToken {
                text: &rest[..len],
                at,
            });
        }
        at += len;
    }
    out
}

/// The length of a block comment; block comments nest.
fn block_comment(text: &str) -> usize {
    let mut depth = 0;
    let mut at = 0;
    while at < text.len() {
        let rest = &text[at..];
        if rest.starts_with("/*") {
            depth += 1;
            at += 2;
        } else if rest.starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += rest.chars().next().map_or(1, char::len_utf8);
        }
    }
    text.len()
}

/// The storage variables. The expected form is `@group(0) @binding(1) var<storage, read> x:
/// array<u32>;`.
fn declarations<'a>(tokens: &[WgslToken<'a>]) -> Vec<StorageDecl<'a>> {
    let mut decls = Vec::new();
    let mut start = 0;
    for (i, token) in tokens.iter().enumerate() {
        match token.text {
            ";" | "}" => start = i + 1,
            "var" => decls.extend(declaration(tokens, start, i)),
            _ => {}
        }
    }
    decls
}

/// Parses the storage variable whose first attribute is token `start` and whose `var` keyword is
/// token `var`.
fn declaration<'a>(tokens: &[WgslToken<'a>], start: usize, var: usize) -> Option<StorageDecl<'a>> {
    let is = |i: usize, text: &str| tokens.get(i).is_some_and(|t| t.text == text);
    if !is(var + 1, "<") || !is(var + 2, "storage") {
        return None;
    }
    let number = (start..var).find(|&i| is(i, "binding") && is(i + 1, "("))? + 2;
    let binding = tokens[number].text.trim_end_matches('u').parse().ok()?;
    let close = (var..tokens.len()).find(|&i| is(i, ">"))?;
    let end = (close..tokens.len()).find(|&i| is(i, ";"))?;
    let ty = tokens.get(close + 3..end)?;
    Some(StorageDecl {
        binding,
        name: tokens.get(close + 1)?.text,
        ty: ty.iter().map(|t| t.text).collect(),
        mode: tokens[var + 2].at..tokens[close].at,
        whole: tokens[start].at..tokens[end].at + 1,
    })
}

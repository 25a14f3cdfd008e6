//! Writes a GBNF grammar in Lark notation.

use std::fmt::Write;

use super::{GbnfAlternatives, GbnfGrammar, GbnfItem};

/// The form of the rules, and the end tokens of the vocabulary.
#[derive(Clone, Copy)]
struct LarkSyntax<'a> {
    form: LarkForm,
    ends: &'a [u32],
}

/// The form of the rules.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LarkForm {
    /// Terminals `T0`, which the compiler joins to one regular expression.
    Terminals,
    /// Rules `r0`, whose terminals are single characters.
    Rules,
}

pub(super) fn write(grammar: &GbnfGrammar, ends: &[u32]) -> String {
    let form = match is_regular(grammar) && expanded_size(grammar) <= MAX_EXPANDED {
        true => LarkForm::Terminals,
        false => LarkForm::Rules,
    };
    let syntax = LarkSyntax { form, ends };
    let mut out = String::from("start: ");
    write_name(grammar.root, form, &mut out);
    for (index, alternatives) in grammar.rules.iter().enumerate() {
        out.push('\n');
        write_name(index, form, &mut out);
        out += ": ";
        write_alternatives(alternatives, syntax, &mut out);
    }
    out.push('\n');
    out
}

/// Maximum number of items of a grammar as one regular expression, in which each use of a rule is a
/// copy of it. A larger grammar keeps its rules.
const MAX_EXPANDED: u64 = 1 << 16;

/// The number of items of a grammar without recursion after each use of a rule is replaced by it.
fn expanded_size(grammar: &GbnfGrammar) -> u64 {
    let mut sizes: Vec<Option<u64>> = vec![None; grammar.rules.len()];
    // A rule after the rules that it uses: on the second visit, their sizes are known.
    let mut stack = vec![(grammar.root, false)];
    while let Some((rule, is_second)) = stack.pop() {
        if sizes[rule].is_some() {
            continue;
        }
        let alternatives = &grammar.rules[rule];
        if is_second {
            sizes[rule] = Some(size(alternatives, &sizes));
            continue;
        }
        stack.push((rule, true));
        let mut used = Vec::new();
        collect(alternatives, &mut used);
        stack.extend(used.into_iter().map(|rule| (rule, false)));
    }
    sizes[grammar.root].unwrap_or(1)
}

fn size(alternatives: &GbnfAlternatives, sizes: &[Option<u64>]) -> u64 {
    fn of(item: &GbnfItem, sizes: &[Option<u64>]) -> u64 {
        match item {
            GbnfItem::Rule(rule) => sizes[*rule].unwrap_or(1),
            GbnfItem::Group(inner) => size(inner, sizes),
            GbnfItem::Repeat(item, ..) => of(item, sizes),
            GbnfItem::Text(text) => text.len() as u64,
            GbnfItem::Class { .. } | GbnfItem::Token(_) | GbnfItem::OtherToken(_) => 1,
        }
    }
    let items = alternatives.iter().flatten();
    items.fold(1, |sum, item| sum.saturating_add(of(item, sizes)))
}

/// Whether no rule contains itself, and no item is a token.
fn is_regular(grammar: &GbnfGrammar) -> bool {
    let mut uses = Vec::new();
    for alternatives in &grammar.rules {
        let mut found = Vec::new();
        if !collect(alternatives, &mut found) {
            return false;
        }
        uses.push(found);
    }
    // Repeatedly remove the rules whose used rules are all removed. Rules that remain at the end
    // are recursive.
    let mut left: Vec<usize> = uses.iter().map(Vec::len).collect();
    let mut users = vec![Vec::new(); uses.len()];
    for (user, used) in uses.iter().enumerate() {
        used.iter().for_each(|used| users[*used].push(user));
    }
    let mut ready: Vec<usize> = (0..left.len()).filter(|rule| left[*rule] == 0).collect();
    let mut removed = 0;
    while let Some(rule) = ready.pop() {
        removed += 1;
        for user in &users[rule] {
            left[*user] -= 1;
            if left[*user] == 0 {
                ready.push(*user);
            }
        }
    }
    removed == uses.len()
}

/// Adds the rules that `alternatives` use to `used`; returns false if they use a token.
fn collect(alternatives: &GbnfAlternatives, used: &mut Vec<usize>) -> bool {
    alternatives.iter().flatten().all(|item| match item {
        GbnfItem::Rule(rule) => {
            used.push(*rule);
            true
        }
        GbnfItem::Group(inner) => collect(inner, used),
        GbnfItem::Repeat(item, ..) => collect(&vec![vec![(**item).clone()]], used),
        GbnfItem::Text(_) | GbnfItem::Class { .. } => true,
        GbnfItem::Token(_) | GbnfItem::OtherToken(_) => false,
    })
}

fn write_name(rule: usize, form: LarkForm, out: &mut String) {
    let letter = match form {
        LarkForm::Terminals => 'T',
        LarkForm::Rules => 'r',
    };
    put(out, format_args!("{letter}{rule}"));
}

fn put(out: &mut String, text: std::fmt::Arguments<'_>) {
    // Writing to a string cannot fail.
    let _ = out.write_fmt(text);
}

fn write_alternatives(alternatives: &GbnfAlternatives, syntax: LarkSyntax<'_>, out: &mut String) {
    for (at, sequence) in alternatives.iter().enumerate() {
        if at > 0 {
            *out += " | ";
        }
        if sequence.is_empty() {
            *out += "\"\"";
        }
        for (at, item) in sequence.iter().enumerate() {
            if at > 0 {
                out.push(' ');
            }
            write_item(item, syntax, out);
        }
    }
}

fn write_item(item: &GbnfItem, syntax: LarkSyntax<'_>, out: &mut String) {
    match item {
        GbnfItem::Text(text) => {
            // Brackets, because a repetition may follow, which then applies to the whole text.
            *out += "(";
            for (at, c) in text.iter().enumerate() {
                if at > 0 {
                    out.push(' ');
                }
                put(out, format_args!("/\\x{{{:x}}}/", u32::from(*c)));
            }
            *out += ")";
        }
        GbnfItem::Class { ranges, negated } => {
            *out += if *negated { "/[^" } else { "/[" };
            for (first, last) in ranges {
                let (first, last) = (u32::from(*first), u32::from(*last));
                put(out, format_args!("\\x{{{first:x}}}-\\x{{{last:x}}}"));
            }
            *out += "]/";
        }
        GbnfItem::Rule(rule) => write_name(*rule, syntax.form, out),
        GbnfItem::Token(token) => *out += token,
        // A text may end only where the grammar ends.
        GbnfItem::OtherToken(token) => {
            put(out, format_args!("<[^{token}"));
            let others = syntax.ends.iter().filter(|end| *end != token);
            others.for_each(|end| put(out, format_args!(",{end}")));
            *out += "]>";
        }
        GbnfItem::Group(inner) => {
            out.push('(');
            write_alternatives(inner, syntax, out);
            out.push(')');
        }
        // Lark does not have the repetition `{0}`, which is the empty text.
        GbnfItem::Repeat(_, _, Some(0)) => *out += "\"\"",
        GbnfItem::Repeat(item, min, max) => {
            out.push('(');
            write_item(item, syntax, out);
            out.push(')');
            match (min, max) {
                (0, None) => out.push('*'),
                (1, None) => out.push('+'),
                (0, Some(1)) => out.push('?'),
                (min, None) => put(out, format_args!("{{{min},}}")),
                (min, Some(max)) => put(out, format_args!("{{{min},{max}}}")),
            }
        }
    }
}

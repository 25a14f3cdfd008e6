//! Tests of the text format on graphs of every operator.

use tercet_cases::cases;
use tercet_ir::{OpKind, parse};

/// The printed graphs of a few cases of every operator.
fn printed() -> Vec<String> {
    let mut texts = Vec::new();
    for &kind in OpKind::ALL {
        for case in cases(kind).iter().take(2) {
            let dtype = kind.doc().dtypes.iter().find(|d| case.runs_with(**d));
            let dtype = *dtype.expect("every case runs with a dtype");
            texts.push(case.build(dtype).expect("cases build").graph.to_string());
        }
    }
    texts
}

/// Replaces each integer of the graphs, one at a time, by an extreme value. Neither parsing nor
/// type inference may panic.
#[test]
fn extreme_attributes_do_not_panic() {
    const EXTREMES: &[&str] = &[
        "0",
        "-1",
        "2147483648",
        "4611686018427387904",
        "9223372036854775807",
        "-9223372036854775808",
        "18446744073709551615",
        "s",
        "none",
        "[]",
        "1e300",
    ];
    for text in printed() {
        let bytes = text.as_bytes();
        let mut at = 0;
        while at < bytes.len() {
            let len = bytes[at..]
                .iter()
                .take_while(|b| b.is_ascii_digit())
                .count();
            let inside_word = at > 0
                && (bytes[at - 1].is_ascii_alphanumeric() || b"%_.".contains(&bytes[at - 1]));
            // Removes the declared types, so that the test reaches inference instead of the type
            // comparison.
            if len > 0 && !inside_word {
                for extreme in EXTREMES {
                    let changed = format!("{}{extreme}{}", &text[..at], &text[at + len..]);
                    let _ = parse(&changed);
                    let untyped: Vec<&str> = changed
                        .lines()
                        .map(|l| l.split(") : ").next().unwrap_or(l))
                        .collect();
                    let untyped = untyped.iter().map(|l| {
                        if l.contains(" = ") && !l.ends_with(')') {
                            format!("{l})")
                        } else {
                            l.to_string()
                        }
                    });
                    let _ = parse(&untyped.collect::<Vec<_>>().join("\n"));
                }
            }
            at += len.max(1);
        }
    }
}

#[test]
fn truncated_graphs_are_errors() {
    for text in printed().iter().step_by(7) {
        for end in (0..text.len()).filter(|&i| text.is_char_boundary(i)) {
            assert!(parse(&text[..end]).is_err(), "{}", &text[..end]);
        }
    }
}

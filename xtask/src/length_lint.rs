//! `cargo xtask tree`: finds files and functions above the length limits.
//!
//! A file may have 800 lines and a function 100 lines. A longer one needs a comment `Long: REASON`.
//! For a file, the comment is among its first [`HEAD`] lines. For a function, the comment is above
//! the function, among its attributes and documentation, or on the first line of its body.

mod functions;

use std::path::Path;
use std::process::Command;

use crate::error::{self, XtaskError};
use crate::process;

/// Maximum number of lines of a file without a reason.
const FILE_LINES: usize = 800;
/// Maximum number of lines of a function without a reason, from its `fn` to its closing brace.
const FUNCTION_LINES: usize = 100;
/// The number of lines at the start of a file that may contain the reason.
const HEAD: usize = 12;

/// The tracked files that the limits apply to.
const KINDS: [&str; 3] = ["*.rs", "*.wgsl", "*.glsl"];

/// Fails with the name of each file and function that is too long.
pub(crate) fn run() -> Result<(), XtaskError> {
    let mut command = Command::new("git");
    command
        .current_dir(process::root())
        .args(["ls-files", "-z", "--"]);
    let tracked = process::output(command.args(KINDS))?;
    let tracked = String::from_utf8_lossy(&tracked);
    let mut problems = Vec::new();
    for name in tracked.split_terminator('\0') {
        let path = process::root().join(name);
        // Skip files that are deleted but not yet committed as deleted.
        if path.is_file() {
            let text = std::fs::read_to_string(&path).map_err(error::file("read", &path))?;
            problems.extend(too_long(name, &text));
        }
    }
    match problems.is_empty() {
        true => Ok(()),
        false => Err(XtaskError::TooLong { problems }),
    }
}

/// The file, if it is too long without a reason, and each of its functions that is.
fn too_long(name: &str, text: &str) -> Vec<String> {
    let lines: Vec<&str> = text.lines().collect();
    let mut problems = Vec::new();
    if lines.len() > FILE_LINES && !lines.iter().take(HEAD).any(|line| says_why(line)) {
        problems.push(format!("{name}: {} lines", lines.len()));
    }
    if Path::new(name).extension().is_some_and(|e| e == "rs") {
        let long = functions::find_functions(text).into_iter();
        let long = long.filter(|f| f.lines() > FUNCTION_LINES && !has_reason(f, &lines));
        problems.extend(long.map(|f| {
            let (line, lines) = (f.first + 1, f.lines());
            format!("{name}:{line}: `{}` has {lines} lines", f.name)
        }));
    }
    problems
}

fn has_reason(function: &functions::FunctionLines, lines: &[&str]) -> bool {
    let is_about = |line: &&&str| {
        let line = line.trim_start();
        line.starts_with("//") || line.starts_with("#[")
    };
    let above = lines[..function.first].iter().rev().take_while(is_about);
    let inside = lines.get(function.body + 1);
    above.chain(inside).any(|line| says_why(line))
}

/// True for a comment `Long: REASON`.
fn says_why(line: &str) -> bool {
    let comment = line.trim_start().strip_prefix("//");
    let reason = comment.and_then(|text| text.split_once("Long: "));
    reason.is_some_and(|(_, reason)| !reason.trim().is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A function with `lines` lines, with `above` before it and `inside` at the start of its body.
    fn function(lines: usize, above: &str, inside: &str) -> String {
        let body = "    work();\n".repeat(lines - 2 - inside.lines().count());
        format!("{above}fn f() {{\n{inside}{body}}}\n")
    }

    #[test]
    fn this_tree_keeps_the_rule() {
        run().unwrap();
    }

    #[test]
    fn a_long_file_needs_a_reason_at_its_top() {
        let text = |head: &str, lines: usize| head.to_string() + &"\n".repeat(lines);
        assert_eq!(too_long("a.wgsl", &text("", 800)), [""; 0]);
        assert_eq!(too_long("a.wgsl", &text("", 801)), ["a.wgsl: 801 lines"]);
        assert_eq!(
            too_long("a.rs", &text("//! Long: a table.\n", 900)),
            [""; 0]
        );
        assert_eq!(too_long("a.rs", &text("//! Long: \n", 900)).len(), 1);
        let late = "\n".repeat(HEAD) + "// Long: a table.\n";
        assert_eq!(too_long("a.rs", &text(&late, 900)).len(), 1);
    }

    #[test]
    fn a_long_function_needs_a_reason_at_its_top() {
        assert_eq!(too_long("a.rs", &function(100, "", "")), [""; 0]);
        let long = function(101, "\n", "");
        assert_eq!(too_long("a.rs", &long), ["a.rs:2: `f` has 101 lines"]);
        assert_eq!(too_long("a.glsl", &long), [""; 0]);
        for (above, inside) in [
            (
                "/// Does it.\n// Long: a table, one row a case.\n#[test]\n",
                "",
            ),
            ("", "    // Long: a table, one row a case.\n"),
        ] {
            assert_eq!(too_long("a.rs", &function(110, above, inside)), [""; 0]);
        }
        let elsewhere = "// Long: of what comes before.\n\n";
        assert_eq!(too_long("a.rs", &function(110, elsewhere, "")).len(), 1);
    }
}

//! Digests of the programs of all operator cases on all device profiles.
//!
//! A digest covers the kernels, slots, steps, barriers, size expressions and checks of each
//! program. A digest leaves out names of Rust types, variants and fields, comments of shaders and
//! the text of errors. A change that only renames or documents the compiler thus keeps the digest.
//! `cargo xtask programs --digest` runs this test and compares its output with `digests.txt`.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;

use sha2::{Digest, Sha256};
use tercet_plan::{GpuProgram, KernelSource};

use crate::common::{for_each_case, in_parallel, profiles};

/// The environment variable that names the output file.
const OUTPUT: &str = "TERCET_PROGRAM_DIGESTS";

#[test]
#[ignore = "takes minutes; `cargo xtask programs --digest` runs it"]
fn write() {
    let path = std::env::var_os(OUTPUT).unwrap_or_else(|| panic!("{OUTPUT} is not set"));
    let lines = in_parallel(profiles(), |(profile, caps)| {
        let mut by_operator: BTreeMap<String, (usize, Sha256)> = BTreeMap::new();
        for_each_case(&caps, |planned| {
            let operator = planned.name.split('/').next().unwrap_or_default();
            let (count, hash) = by_operator.entry(operator.to_string()).or_default();
            *count += 1;
            hash.update(planned.name.as_bytes());
            match planned.program {
                Ok(program) => add_program(hash, program),
                Err(_) => hash.update(b"error"),
            }
        });
        let mut lines = String::new();
        for (operator, (count, hash)) in by_operator {
            let mut hex = String::new();
            for byte in &hash.finalize()[..8] {
                let _ = write!(hex, "{byte:02x}");
            }
            let _ = writeln!(lines, "{profile} {operator} {count} {hex}");
        }
        lines
    });
    std::fs::write(path, lines.concat()).expect("the output file can be written");
}

fn add_program(hash: &mut Sha256, mut program: GpuProgram) {
    for kernel in std::mem::take(&mut program.kernels) {
        hash.update(kernel.name.as_bytes());
        match &kernel.source {
            KernelSource::Wgsl(text) => add_wgsl(hash, text),
            KernelSource::UserWgsl { text, entry } => {
                add_wgsl(hash, text);
                hash.update(entry.as_bytes());
            }
            KernelSource::SpirV { module, constants } => {
                hash.update(module);
                constants.iter().for_each(|c| hash.update(c.to_le_bytes()));
            }
        }
        hash.update(canonical(&format!("{:?}", kernel.args)));
        hash.update(kernel.block_bytes.to_le_bytes());
    }
    // The digest omits the records of variant selection, because their reasons are texts for
    // people.
    program.variants.clear();
    for constant in std::mem::take(&mut program.consts) {
        hash.update(canonical(&format!("{:?}", constant.ty())));
        constant
            .to_f64s()
            .iter()
            .for_each(|x| hash.update(x.to_bits().to_le_bytes()));
    }
    hash.update(canonical(&format!("{program:?}")));
}

/// Adds a shader without its comments and empty lines.
fn add_wgsl(hash: &mut Sha256, text: &str) {
    for line in text.lines() {
        let code = line.split("//").next().unwrap_or_default().trim();
        if !code.is_empty() {
            hash.update(code.as_bytes());
            hash.update(b"\n");
        }
    }
}

/// The output of a derived `Debug` without names: a field name is dropped, and the name of a type
/// or variant becomes its number among the names that occur at the same path of fields.
fn canonical(debug: &str) -> String {
    let mut names: HashMap<Vec<u32>, Vec<&str>> = HashMap::new();
    let mut path: Vec<u32> = vec![0];
    let mut brackets: Vec<u8> = Vec::new();
    let mut out = String::with_capacity(debug.len());
    let bytes = debug.as_bytes();
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let start = at;
        match byte {
            b'"' => {
                at += 1;
                while bytes[at] != b'"' {
                    at += if bytes[at] == b'\\' { 2 } else { 1 };
                }
                at += 1;
                // The digest omits strings with spaces, because they are messages for people.
                if !debug[start..at].contains(' ') {
                    out.push_str(&debug[start..at]);
                }
                continue;
            }
            // The digest omits a map or a set with names in it, because its order may vary.
            b'{' if out.ends_with(':')
                && bytes.get(at + 1).is_some_and(u8::is_ascii_alphabetic) =>
            {
                at += closed(&debug[at..]);
                out.push_str("{}");
                continue;
            }
            b'A'..=b'Z' | b'a'..=b'z' | b'_' => {
                while bytes
                    .get(at)
                    .is_some_and(|b| b.is_ascii_alphanumeric() || *b == b'_')
                {
                    at += 1;
                }
                // A field name.
                if bytes.get(at) == Some(&b':') {
                    continue;
                }
                let here = names.entry(path.clone()).or_default();
                let name = &debug[start..at];
                let index = here
                    .iter()
                    .position(|known| *known == name)
                    .unwrap_or_else(|| {
                        here.push(name);
                        here.len() - 1
                    });
                let _ = write!(out, "#{index}");
                continue;
            }
            b'{' | b'(' | b'[' => {
                brackets.push(byte);
                path.push(0);
            }
            b'}' | b')' | b']' => {
                brackets.pop();
                path.pop();
            }
            // All elements of a list have the same path; each field of a struct has its own path.
            b',' if brackets.last() != Some(&b'[') => {
                if let Some(last) = path.last_mut() {
                    *last += 1;
                }
            }
            _ => {}
        }
        if !byte.is_ascii_whitespace() {
            out.push(char::from(byte));
        }
        at += 1;
        while !debug.is_char_boundary(at) {
            at += 1;
        }
    }
    out
}

/// The length of the bracketed group at the start of a text.
fn closed(debug: &str) -> usize {
    let mut depth = 0;
    let mut quoted = false;
    let mut escaped = false;
    for (at, byte) in debug.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b'{' if !quoted => depth += 1,
            b'}' if !quoted => {
                depth -= 1;
                if depth == 0 {
                    return at + 1;
                }
            }
            _ => {}
        }
    }
    debug.len()
}

#[test]
fn names_do_not_count_and_values_do() {
    let before =
        canonical(r#"Slot { id: Id(3), kind: Held, tail: [Held, Free(1)], name: "Held" }"#);
    let renamed =
        canonical(r#"Region { index: Key(3), kind: Busy, rest: [Busy, Idle(1)], name: "Held" }"#);
    let other = canonical(r#"Slot { id: Id(3), kind: Held, tail: [Held, Held], name: "Held" }"#);
    assert_eq!(before, renamed);
    assert_ne!(before, other);
    assert_ne!(before, canonical(&before.replace('3', "4")));
}

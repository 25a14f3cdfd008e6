//! Digests of the programs of all operator cases on all device profiles.
//!
//! A digest covers the kernels, slots, steps, barriers, size expressions and checks of each
//! program. A digest leaves out names of Rust types, variants and fields, comments of shaders and
//! the text of errors. A change that only renames or documents the compiler thus keeps the digest.
//! `cargo xtask programs --digest` runs this test and compares its output with `digests.txt`.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;

use sha2::{Digest, Sha256};
use tercet_plan::{GpuProgram, KernelSource, StepOp};

use crate::common::{for_each_case, in_parallel, profiles};

/// The environment variable that names the output file.
const OUTPUT: &str = "TERCET_PROGRAM_DIGESTS";

/// The environment variable that names the file for a line of each case, for `programs --diff`.
const CASES: &str = "TERCET_PROGRAM_CASES";

#[test]
#[ignore = "takes minutes; `cargo xtask programs --digest` runs it"]
fn write() {
    let path = std::env::var_os(OUTPUT).unwrap_or_else(|| panic!("{OUTPUT} is not set"));
    let lines = in_parallel(profiles(), |(profile, caps)| {
        let mut by_operator: BTreeMap<String, (usize, Sha256)> = BTreeMap::new();
        let mut cases = String::new();
        for_each_case(&caps, |planned| {
            let operator = planned.name.split('/').next().unwrap_or_default();
            let (count, hash) = by_operator.entry(operator.to_string()).or_default();
            *count += 1;
            hash.update(planned.name.as_bytes());
            let mut bytes = ProgramBytes::default();
            let summary = match planned.program {
                Ok(program) => {
                    let summary = summary(&program);
                    add_program(&mut bytes, program);
                    summary
                }
                Err(_) => {
                    bytes.update(b"error");
                    "error".to_string()
                }
            };
            hash.update(&bytes.0);
            let own = hex(&Sha256::digest(&bytes.0));
            let name = planned.name.replace(' ', "_");
            let _ = writeln!(cases, "{profile} {name} {own} {summary}");
        });
        let mut lines = String::new();
        for (operator, (count, hash)) in by_operator {
            let _ = writeln!(
                lines,
                "{profile} {operator} {count} {}",
                hex(&hash.finalize())
            );
        }
        (lines, cases)
    });
    let (lines, cases): (Vec<String>, Vec<String>) = lines.into_iter().unzip();
    std::fs::write(path, lines.concat()).expect("the output file can be written");
    if let Some(path) = std::env::var_os(CASES) {
        std::fs::write(path, cases.concat()).expect("the file of cases can be written");
    }
}

/// The first 8 bytes of a digest.
fn hex(digest: &[u8]) -> String {
    digest[..8].iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The kernels of a program with their numbers of dispatches, and its barriers.
fn summary(program: &GpuProgram) -> String {
    let mut kernels: BTreeMap<&str, usize> = BTreeMap::new();
    let mut barriers = 0;
    for step in &program.steps {
        barriers += usize::from(step.barrier);
        if let StepOp::Dispatch(dispatch) = &step.work {
            let name = &program.kernels[dispatch.kernel.0 as usize].name;
            *kernels.entry(name).or_default() += 1;
        }
    }
    let count: usize = kernels.values().sum();
    let kernels: Vec<String> = kernels
        .into_iter()
        .map(|(name, n)| match n {
            1 => name.to_string(),
            n => format!("{n} x {name}"),
        })
        .collect();
    let kernels = kernels.join(", ");
    format!("{count} dispatches, {barriers} barriers: {kernels}")
}

/// The bytes of a program that its digest covers.
#[derive(Default)]
struct ProgramBytes(Vec<u8>);

impl ProgramBytes {
    fn update(&mut self, bytes: impl AsRef<[u8]>) {
        self.0.extend_from_slice(bytes.as_ref());
    }
}

fn add_program(hash: &mut ProgramBytes, mut program: GpuProgram) {
    for kernel in std::mem::take(&mut program.kernels) {
        hash.update(kernel.name.as_bytes());
        match &kernel.source {
            KernelSource::Wgsl(text) => add_wgsl(hash, text),
            KernelSource::UserWgsl { text, entry } => {
                add_wgsl(hash, text);
                hash.update(entry.as_bytes());
            }
            KernelSource::SpirV { module, constants } => {
                let words = module.words().expect("a module");
                words.iter().for_each(|w| hash.update(w.to_le_bytes()));
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
    // Switches for diagnosis are the user's, and no part of a program.
    let debug = format!(", debug: {:?}", program.debug);
    hash.update(canonical(&format!("{program:?}").replace(&debug, "")));
}

/// Adds a shader without its comments and empty lines.
fn add_wgsl(hash: &mut ProgramBytes, text: &str) {
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

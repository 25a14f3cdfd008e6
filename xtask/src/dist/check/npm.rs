//! Installs the browser package by npm and runs a model on the CPU, under Node. `cargo xtask web` tests the same module
//! in a browser.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::programs::{ANSWER, PROMPT, refused};
use crate::dist::npm::NAME;
use crate::error::{self, XtaskError};
use crate::process;

/// Opens a model, and prints its greedy continuation of a prompt.
const PROGRAM: &str = "\
import init, { Tercet } from 'tercet-web';
import { readFile } from 'node:fs/promises';

const [model, prompt] = process.argv.slice(2);
const wasm = new URL('./node_modules/tercet-web/tercet-web_bg.wasm', import.meta.url);
await init({ module_or_path: await readFile(wasm) });
const tercet = Tercet.cpu();
tercet.openLanguage(await readFile(model));
let text = '';
const { tokens } = await tercet.write(prompt, 12, (piece) => { text += piece; });
if (tokens.length !== 12) throw new Error(`${tokens.length} tokens`);
console.log(text);
";
const MODEL: &str = "tests/data/tiny-rust-llama/tiny-rust-llama-q8_0.gguf";
/// Declarations that the types have.
const TYPES: [&str; 4] = [
    "export class Tercet",
    "openLanguage(gguf: Uint8Array",
    "write(prompt: string, most: number, text: Function): Promise<",
    "static cpu(): Tercet;",
];

/// Checks the package in a new folder; without npm, the reason why it cannot run.
pub(super) fn check(path: &Path, dir: &Path) -> Result<Result<(), String>, XtaskError> {
    for program in ["node", "npm"] {
        if !process::works(Command::new(program).arg("--version")) {
            return Ok(Err(format!("it needs `{program}`")));
        }
    }
    fs::create_dir_all(dir).map_err(error::file("create", dir))?;
    let write = |name: &str, text: &str| {
        let path = dir.join(name);
        fs::write(&path, text).map_err(error::file("write", &path))
    };
    write("package.json", r#"{ "private": true, "type": "module" }"#)?;
    write("program.js", PROGRAM)?;
    let mut npm = Command::new("npm");
    npm.args(["install", "--offline", "--no-audit", "--no-fund"]);
    process::run(npm.arg(path).current_dir(dir))?;
    let package = dir.join("node_modules").join(NAME);
    let types = package.join(format!("{NAME}.d.ts"));
    let text = fs::read_to_string(&types).map_err(error::file("read", &types))?;
    if let Some(missing) = TYPES.iter().find(|line| !text.contains(**line)) {
        return Err(refused(path, format!("its types lack `{missing}`")));
    }
    let mut node = Command::new("node");
    node.arg("program.js").arg(process::root().join(MODEL));
    let printed = process::output(node.arg(PROMPT).current_dir(dir))?;
    let printed = String::from_utf8_lossy(&printed);
    match printed.contains(ANSWER) {
        true => Ok(Ok(())),
        false => Err(refused(path, format!("no {ANSWER:?} in: {printed}"))),
    }
}

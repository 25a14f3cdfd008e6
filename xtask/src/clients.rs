//! `cargo xtask clients`: runs the official clients of OpenAI's, Anthropic's and Ollama's APIs, and
//! of MCP, against `tercet serve`.
//!
//! The clients are installed with the versions of [`REQUIREMENTS`] and [`NODE`] into the cache
//! folder, and are not modified. The server runs in a folder away from the checkout, with a copy of the tiny
//! model and a chat template that has tool calls. Each script of `xtask/clients` runs its cases and
//! prints a line for each; the lines become a table.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::error::{self, XtaskError};
use crate::fetch::PythonInterpreter;
use crate::{bench, cache, process};

const PURPOSE: &str = "run the clients";
/// The model of the server, in the test data.
const MODEL: &str = "tests/data/tiny-rust-llama/tiny-rust-llama-q8_0.gguf";
/// Maximum time of a script.
const LIMIT: Duration = Duration::from_secs(600);
/// The cases, which are the columns of the table.
const CASES: [&str; 4] = ["plain", "streamed", "tools", "structured"];

/// Packages of the Python scripts. Those of LlamaIndex need another version of `openai`.
const REQUIREMENTS: &str = "requirements.txt";
const LLAMA_INDEX_REQUIREMENTS: &str = "requirements-llama-index.txt";

/// Packages of the Node scripts.
const NODE: &[&str] = &[
    "openai@7.59.0",
    "ai@7.0.173",
    "@ai-sdk/openai@4.0.118",
    "@ai-sdk/openai-compatible@3.0.92",
    "zod@4.6.7",
];

/// A script, with the name of its client.
struct ClientScript {
    client: &'static str,
    file: &'static str,
}

const SCRIPTS: [ClientScript; 15] = [
    ClientScript::new("openai (Python)", "openai_python.py"),
    ClientScript::new("openai, responses", "openai_responses.py"),
    ClientScript::new("anthropic", "anthropic_client.py"),
    ClientScript::new("ollama", "ollama_client.py"),
    ClientScript::new("mcp", "mcp_client.py"),
    ClientScript::new("openai (npm)", "openai_node.mjs"),
    ClientScript::new("openai-agents", "openai_agents.py"),
    ClientScript::new("langchain-openai", "langchain_client.py"),
    ClientScript::new("litellm", "litellm_client.py"),
    ClientScript::new("instructor", "instructor_client.py"),
    ClientScript::new("llama-index-llms-openai-like", "llama_index_client.py"),
    ClientScript::new("llm", "llm_client.py"),
    ClientScript::new("autogen-ext[openai]", "autogen_client.py"),
    ClientScript::new("ai, @ai-sdk/openai-compatible", "ai_sdk.mjs"),
    ClientScript::new("ai, @ai-sdk/openai", "ai_sdk_openai.mjs"),
];

impl ClientScript {
    const fn new(client: &'static str, file: &'static str) -> ClientScript {
        ClientScript { client, file }
    }

    /// The list of the Python packages; `None` for scripts of Node.
    fn requirements(&self) -> Option<&'static str> {
        match self.file {
            "llama_index_client.py" => Some(LLAMA_INDEX_REQUIREMENTS),
            file => file.ends_with(".py").then_some(REQUIREMENTS),
        }
    }
}

/// The options of `cargo xtask clients`.
#[derive(clap::Args)]
pub(crate) struct ClientRunArgs {
    /// The `tercet` binary to test; without it, the release profile is built
    #[arg(long, value_name = "FILE")]
    server: Option<PathBuf>,
    /// Run only clients with this text in their names
    filter: Option<String>,
}

/// Runs the clients and prints a table.
///
/// # Errors
/// [`XtaskError::Clients`] with the failed cases.
pub(crate) fn run(options: &ClientRunArgs) -> Result<(), XtaskError> {
    let folder = cache::dir()?.join("clients");
    let binary = match &options.server {
        Some(path) => fs::canonicalize(path).map_err(error::file("find", path))?,
        None => build()?,
    };
    let filter = options.filter.as_deref().unwrap_or_default();
    let chosen = |script: &&ClientScript| script.client.contains(filter);
    let scripts: Vec<&ClientScript> = SCRIPTS.iter().filter(chosen).collect();
    let node = folder.join("node");
    prepare(&node)?;
    let mut pythons = BTreeMap::new();
    for list in scripts.iter().filter_map(|script| script.requirements()) {
        if !pythons.contains_key(list) {
            pythons.insert(list, install_python(&folder, list)?);
        }
    }
    if scripts.iter().any(|script| script.requirements().is_none()) {
        install_node(&node)?;
    }
    let server = ClientServer::start(&binary, &folder.join("run"))?;
    let mut results = Vec::new();
    for script in scripts {
        eprintln!("{}", script.client);
        let python = script.requirements().and_then(|list| pythons.get(list));
        let mut command = python.map_or_else(|| Command::new("node"), PythonInterpreter::command);
        command
            .arg(node.join(script.file))
            .current_dir(&node)
            .env("TERCET_URL", &server.url)
            .env("TERCET_BINARY", &binary)
            .env("TERCET_MODEL", folder.join("run/tiny.gguf"))
            // Clients take these instead of the defaults of their scripts, or report to them.
            .env_remove("OPENAI_BASE_URL")
            .env_remove("OPENAI_API_KEY")
            .env_remove("ANTHROPIC_BASE_URL")
            .env_remove("ANTHROPIC_API_KEY")
            .env_remove("ANTHROPIC_AUTH_TOKEN")
            .env_remove("OLLAMA_HOST")
            .env("PYTHONDONTWRITEBYTECODE", "1");
        let lines = process::limited_output(command, LIMIT)?;
        results.push(ClientResult::from_lines(script.client, &lines));
    }
    drop(server);
    print!("{}", table(&results));
    let failures = results.iter().flat_map(ClientResult::failures);
    let failures: Vec<String> = failures.collect();
    match failures.is_empty() {
        true => Ok(()),
        false => Err(XtaskError::Clients { failures }),
    }
}

/// Builds the binary with the release profile.
fn build() -> Result<PathBuf, XtaskError> {
    let mut build = process::cargo();
    build.args(["build", "--release", "--package", "tercet-cli"]);
    build.args(["--features", "serve,grammar"]);
    process::run(&mut build)?;
    Ok(bench::target_dir()?.join("release").join("tercet"))
}

/// Writes the scripts into the folder that has the Node packages.
fn prepare(node: &Path) -> Result<(), XtaskError> {
    fs::create_dir_all(node).map_err(error::file("create", node))?;
    let scripts = process::root().join("xtask/clients");
    let entries = fs::read_dir(&scripts).map_err(error::file("read", &scripts))?;
    for entry in entries {
        let from = entry.map_err(error::file("read", &scripts))?.path();
        let to = node.join(from.file_name().unwrap_or_default());
        fs::copy(&from, &to).map_err(error::file("copy", &from))?;
    }
    let package = node.join("package.json");
    let text = "{\"private\": true, \"type\": \"module\"}\n";
    fs::write(&package, text).map_err(error::file("write", &package))
}

/// Installs the packages of a list into a new virtual environment.
fn install_python(folder: &Path, list: &str) -> Result<PythonInterpreter, XtaskError> {
    let python = PythonInterpreter::find(PURPOSE)?;
    let name = list.trim_end_matches(".txt");
    let python = python.venv(&folder.join(name), PURPOSE)?;
    let list = process::root().join("xtask/clients").join(list);
    let mut install = python.command();
    install.args([
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
    ]);
    install.args(["--only-binary=:all:", "--no-deps", "--requirement"]);
    process::run(install.arg(list))?;
    Ok(python)
}

fn install_node(node: &Path) -> Result<(), XtaskError> {
    let mut install = Command::new("npm");
    install.args([
        "install",
        "--no-audit",
        "--no-fund",
        "--no-save",
        "--silent",
    ]);
    process::run(install.args(NODE).current_dir(node))
}

/// The server, which ends when it is dropped.
pub(crate) struct ClientServer {
    child: Child,
    pub(crate) url: String,
}

impl ClientServer {
    /// Starts the binary in `folder`, with copies of the model and the chat template. Its log is
    /// `server.log` there.
    fn start(binary: &Path, folder: &Path) -> Result<ClientServer, XtaskError> {
        fs::create_dir_all(folder).map_err(error::file("create", folder))?;
        for (from, to) in [
            (MODEL, "tiny.gguf"),
            ("xtask/clients/template.jinja", "template.jinja"),
        ] {
            let from = process::root().join(from);
            fs::copy(&from, folder.join(to)).map_err(error::file("copy", &from))?;
        }
        let mut command = Command::new(binary);
        command
            .args(["serve", "-m", "tiny.gguf", "--port", "0", "--device", "cpu"])
            .args(["--chat-template-file", "template.jinja"])
            .current_dir(folder);
        ClientServer::spawn(command, &folder.join("server.log"))
    }

    /// Starts a server, waits for its address, and writes its log to a file.
    pub(crate) fn spawn(mut command: Command, path: &Path) -> Result<ClientServer, XtaskError> {
        let program = command.get_program().to_string_lossy().into_owned();
        let failed = |source| XtaskError::Start {
            program: program.clone(),
            source,
        };
        let mut child = command.stderr(Stdio::piped()).spawn().map_err(failed)?;
        let errors = child.stderr.take().map(BufReader::new);
        let mut lines = errors.into_iter().flat_map(|errors| errors.lines());
        let address = lines.find_map(|line| {
            let line = line.ok()?;
            eprintln!("{line}");
            let (_, address) = line.split_once("http://")?;
            Some(format!("http://{}", address.trim()))
        });
        let mut log = fs::File::create(path).map_err(error::file("create", path))?;
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                // The log only explains failures.
                let _ = writeln!(log, "{line}");
            }
        });
        match address {
            Some(url) => Ok(ClientServer { child, url }),
            None => {
                let status = child.wait().map_err(failed)?;
                let command = format!("{program} serve");
                Err(XtaskError::Failed { command, status })
            }
        }
    }
}

impl Drop for ClientServer {
    fn drop(&mut self) {
        // The server may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The results of a client.
#[derive(Debug, PartialEq, Eq)]
struct ClientResult {
    client: String,
    version: String,
    /// The outcome of each case; `None` if the client does not have it.
    cases: [Option<String>; CASES.len()],
    /// Whether the script printed any case.
    has_run: bool,
}

impl ClientResult {
    /// Parses the lines of a script: a name and an outcome, separated by a tab.
    fn from_lines(client: &str, lines: &str) -> ClientResult {
        let of = |name: &str| {
            let mut pairs = lines.lines().filter_map(|line| line.split_once('\t'));
            pairs.find(|(own, _)| *own == name).map(|(_, text)| text)
        };
        let cases = CASES.map(|name| of(name).map(str::to_string));
        ClientResult {
            client: client.to_string(),
            version: of("version").unwrap_or("?").to_string(),
            has_run: cases.iter().any(Option::is_some),
            cases,
        }
    }

    fn failures(&self) -> Vec<String> {
        if !self.has_run {
            return vec![format!("{}: the script ran no case", self.client)];
        }
        let named = CASES.iter().zip(&self.cases);
        let failed = named.filter_map(|(name, outcome)| {
            let outcome = outcome.as_deref().filter(|outcome| *outcome != "ok")?;
            Some(format!("{}, {name}: {outcome}", self.client))
        });
        failed.collect()
    }
}

fn table(results: &[ClientResult]) -> String {
    let mut text = format!("| client | version | {} |\n", CASES.join(" | "));
    text += &format!("|---|---|{}\n", "---|".repeat(CASES.len()));
    for result in results {
        let cells = result.cases.iter().map(|outcome| match outcome.as_deref() {
            Some("ok") => "ok",
            Some(_) => "FAILED",
            None => "-",
        });
        let cells: Vec<&str> = cells.collect();
        let (client, version) = (&result.client, &result.version);
        text += &format!("| {client} | {version} | {} |\n", cells.join(" | "));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_become_a_row_and_failures() {
        let lines = "noise\nversion\t1.2\nplain\tok\ntools\tE: no\tcall\n";
        let result = ClientResult::from_lines("a", lines);
        assert_eq!(result.failures(), ["a, tools: E: no\tcall"]);
        let text = table(&[result]);
        assert!(
            text.ends_with("| a | 1.2 | ok | - | FAILED | - |\n"),
            "{text}"
        );
        let crashed = ClientResult::from_lines("b", "version\t1\n");
        assert_eq!(crashed.failures(), ["b: the script ran no case"]);
    }

    #[test]
    fn scripts_are_the_files_of_the_folder() {
        let folder = process::root().join("xtask/clients");
        let entries = fs::read_dir(folder)
            .unwrap()
            .map(|e| e.unwrap().file_name());
        let mut files: Vec<String> = entries.map(|e| e.into_string().unwrap()).collect();
        let shared = ["common.py", "common.mjs", "template.jinja"];
        let lists = [REQUIREMENTS, LLAMA_INDEX_REQUIREMENTS];
        files.retain(|file| !shared.contains(&file.as_str()) && !lists.contains(&file.as_str()));
        let mut scripts: Vec<&str> = SCRIPTS.iter().map(|script| script.file).collect();
        files.sort();
        scripts.sort_unstable();
        assert_eq!(files, scripts);
    }
}

//! `cargo xtask page`: opens the page of `tercet serve` in a headless Chromium, and does what a person does: chats,
//! stops, edits, reloads, adds a picture, answers a tool call, compares texts and changes colors.
//!
//! Keys and clicks go through the browser's own input, so a button that is covered or not reachable fails.

mod devtools;
mod steps;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::clients::ClientServer;
use crate::error::{self, XtaskError};
use crate::web::chromium;
use crate::{bench, cache, process};

/// Models of the server: a language model, an image-text model and a sentence encoder.
const MODELS: [(&str, &str); 3] = [
    ("tiny-rust-llama/tiny-rust-llama-q8_0.gguf", "tiny.gguf"),
    ("vision-language/smolvlm-b", "pictures"),
    ("encoders/sentence-c", "words"),
];
const TEMPLATE: &str = "xtask/page/template.jinja";

/// The options of `cargo xtask page`.
#[derive(clap::Args)]
pub(crate) struct PageArgs {
    /// The `tercet` binary to test; without it, the release profile is built
    #[arg(long, value_name = "FILE")]
    server: Option<PathBuf>,
    /// Write the screenshots of the documentation
    #[arg(long)]
    update: bool,
    /// Report the test as not run if there is no Chromium; it is installed on Debian as root
    #[arg(long)]
    check: bool,
}

/// Folder of the screenshots.
const SCREENSHOTS: &str = "docs/howto/images";

/// Tests the page.
///
/// # Errors
/// [`XtaskError::ServerPage`] with the first step that failed.
pub(crate) fn run(options: &PageArgs) -> Result<(), XtaskError> {
    let browser = match options.check {
        true => chromium::install().and_then(|()| chromium::find()),
        false => chromium::find(),
    };
    let browser = match browser {
        Err(e) if options.check => {
            println!("NOT RUN: {e}");
            return Ok(());
        }
        browser => browser?,
    };
    let binary = match &options.server {
        Some(path) => fs::canonicalize(path).map_err(error::file("find", path))?,
        None => build()?,
    };
    let folder = cache::dir()?.join("page");
    let server = start(&binary, &folder)?;
    let mut page = devtools::BrowserPage::open(&browser, &folder.join("profile"))?;
    steps::run(&mut page, &server.url)?;
    let screenshots = match options.update {
        true => process::root().join(SCREENSHOTS),
        false => folder.clone(),
    };
    steps::screenshots(&mut page, &server.url, &screenshots)?;
    println!("page: ok");
    Ok(())
}

fn build() -> Result<PathBuf, XtaskError> {
    let mut build = process::cargo();
    build.args(["build", "--release", "--package", "tercet-cli"]);
    build.args(["--features", "serve,grammar"]);
    process::run(&mut build)?;
    Ok(bench::target_dir()?.join("release").join("tercet"))
}

/// Starts the server in a folder away from the checkout, which has copies of the models.
fn start(binary: &Path, folder: &Path) -> Result<ClientServer, XtaskError> {
    fs::create_dir_all(folder).map_err(error::file("create", folder))?;
    for (from, to) in MODELS {
        let from = process::root().join("tests/data").join(from);
        copy(&from, &folder.join(to))?;
    }
    copy(
        &process::root().join(TEMPLATE),
        &folder.join("template.jinja"),
    )?;
    let list = folder.join("models.toml");
    let text = "[models.tiny]\npath = \"tiny.gguf\"\nchat_template_file = \"template.jinja\"\n\
                [models.pictures]\npath = \"pictures\"\n\
                [models.words]\npath = \"words\"\n";
    fs::write(&list, text).map_err(error::file("write", &list))?;
    let mut command = Command::new(binary);
    command
        .args(["serve", "--models", "models.toml", "--port", "0"])
        .args(["--device", "cpu", "--threads", "1"])
        .current_dir(folder);
    ClientServer::spawn(command, &folder.join("server.log"))
}

/// Copies a file, or the files of a folder.
fn copy(from: &Path, to: &Path) -> Result<(), XtaskError> {
    if from.is_file() {
        fs::copy(from, to).map_err(error::file("copy", from))?;
        return Ok(());
    }
    fs::create_dir_all(to).map_err(error::file("create", to))?;
    for entry in fs::read_dir(from).map_err(error::file("read", from))? {
        let entry = entry.map_err(error::file("read", from))?;
        copy(&entry.path(), &to.join(entry.file_name()))?;
    }
    Ok(())
}

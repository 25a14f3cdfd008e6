//! `cargo xtask site`: builds the documentation as a site in `target/site`, and checks it. The steps are:
//!
//! 1. mdBook with search, which is built into the cache folder,
//! 2. the book from `docs`,
//! 3. the browser demo of `target/web` in the folder `demo`, or a page that names the missing build,
//! 4. checks: each link and anchor of each page leads somewhere inside the site, and the search index has words.

mod links;

use std::env::consts::EXE_SUFFIX;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;

use crate::error::{self, XtaskError};
use crate::python::target_dir;
use crate::{cache, fetch, process};

const MDBOOK_VERSION: &str = "0.5.4";
/// A word of the guide that the search must find.
const SEARCHED: &str = "quantiz";
const NO_DEMO: &str = "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<title>No demo</title>\n\
    <p>This site was built without the demo: <code>cargo xtask web --build</code> builds it.</p>\n\
    <p><a href=\"../index.html\">Back to the documentation</a></p>\n</html>\n";

/// The options of `site`.
#[derive(Args)]
pub(crate) struct SiteArgs {
    /// The folder of the site; default: `site` in the target folder
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// The built browser demo; default: `web` in the target folder, if it exists
    #[arg(long, value_name = "DIR")]
    demo: Option<PathBuf>,
    /// The `mdbook` program, built with the feature `search`; default: one in the cache folder
    #[arg(long, value_name = "FILE")]
    mdbook: Option<PathBuf>,
}

/// Builds and checks the site.
pub(crate) fn run(options: &SiteArgs) -> Result<(), XtaskError> {
    let out = match &options.out {
        Some(out) => std::path::absolute(out).map_err(error::file("resolve", out))?,
        None => target_dir().join("site"),
    };
    let mdbook = match &options.mdbook {
        Some(path) => path.clone(),
        None => mdbook(&cache::dir()?)?,
    };
    let docs = process::root().join("docs");
    let mut build = Command::new(mdbook);
    build.arg("build").arg(docs).arg("--dest-dir").arg(&out);
    process::run(&mut build)?;
    let built = target_dir().join("web");
    let demo = options
        .demo
        .clone()
        .or_else(|| built.is_dir().then_some(built));
    add_demo(demo.as_deref(), &out.join("demo"))?;
    check(&out)?;
    println!("{}", out.join("index.html").display());
    Ok(())
}

/// The `mdbook` command with search. A debug build suffices and takes half the time.
fn mdbook(cache: &Path) -> Result<PathBuf, XtaskError> {
    let root = cache
        .join("tools")
        .join(format!("mdbook-search-{MDBOOK_VERSION}"));
    let program = root.join("bin").join(format!("mdbook{EXE_SUFFIX}"));
    if program.is_file() {
        return Ok(program);
    }
    let build = root.join("build");
    let mut cargo = process::cargo();
    cargo.args(["install", "--locked", "--debug", "--quiet", "mdbook"]);
    cargo.args(["--version", MDBOOK_VERSION, "--no-default-features"]);
    cargo.args(["--features", "search", "--root"]).arg(&root);
    cargo.env("CARGO_PROFILE_DEV_DEBUG", "0");
    process::run(cargo.env("CARGO_TARGET_DIR", &build))?;
    fetch::remove_dir(&build)?;
    Ok(program)
}

/// Copies the demo, or writes a page that says that there is none.
fn add_demo(demo: Option<&Path>, to: &Path) -> Result<(), XtaskError> {
    fetch::remove_dir(to)?;
    if let Some(demo) = demo {
        return copy(demo, to);
    }
    println!("NOT INCLUDED: the demo; `cargo xtask web --build` builds it");
    fs::create_dir_all(to).map_err(error::file("create", to))?;
    let page = to.join("index.html");
    fs::write(&page, NO_DEMO).map_err(error::file("write", &page))
}

fn copy(from: &Path, to: &Path) -> Result<(), XtaskError> {
    fs::create_dir_all(to).map_err(error::file("create", to))?;
    for entry in fs::read_dir(from).map_err(error::file("read", from))? {
        let path = entry.map_err(error::file("read", from))?.path();
        let to = to.join(path.file_name().unwrap_or_default());
        match path.is_dir() {
            true => copy(&path, &to)?,
            false => {
                fs::copy(&path, &to).map_err(error::file("copy", &path))?;
            }
        }
    }
    Ok(())
}

/// Checks links, anchors and the search index.
fn check(site: &Path) -> Result<(), XtaskError> {
    let (count, mut problems) = links::check(site)?;
    let entries = fs::read_dir(site).map_err(error::file("read", site))?;
    let names = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let index = names.into_iter().find(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("searchindex") && name.ends_with(".js")
    });
    let text = index.and_then(|path| fs::read_to_string(path).ok());
    if !text.is_some_and(|text| text.contains(SEARCHED)) {
        problems.push(format!("the search index lacks `{SEARCHED}`"));
    }
    println!("{count} links");
    match problems.is_empty() {
        true => Ok(()),
        false => Err(XtaskError::DeadLinks { problems }),
    }
}

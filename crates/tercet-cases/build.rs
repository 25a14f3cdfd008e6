//! Embeds the files of `cases/`, so that test programs run without the source tree.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let folder = |name| env::var_os(name).map(PathBuf::from).unwrap_or_default();
    let cases = folder("CARGO_MANIFEST_DIR").join("cases");
    println!("cargo::rerun-if-changed={}", cases.display());
    let entries = fs::read_dir(&cases)?.map(|entry| Ok(entry?.path()));
    let mut paths: Vec<PathBuf> = entries.collect::<io::Result<_>>()?;
    paths.sort();
    let mut text = String::from("&[\n");
    for path in &paths {
        if let Some(name) = path.file_name().and_then(|name| name.to_str())
            && let Some(operator) = name.strip_suffix(".txt")
        {
            let _ = writeln!(text, "    ({operator:?}, include_str!({path:?})),");
        }
    }
    text.push_str("]\n");
    fs::write(folder("OUT_DIR").join("files.rs"), text)
}

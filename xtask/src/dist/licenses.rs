//! `THIRD-PARTY.txt`: the licenses of all crates in the program, each text once.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use super::DistInput;
use super::dependencies::LinkedCrate;
use crate::error::{self, XtaskError};
use crate::process;

/// Starts of the names of license files, in lower case.
const NAMES: [&str; 6] = [
    "license",
    "licence",
    "copying",
    "notice",
    "copyright",
    "unlicense",
];
/// The largest file that counts as a license.
const MAX_BYTES: u64 = 256 << 10;

/// Writes the collected licenses of all crates.
pub(super) fn write(crates: &[LinkedCrate], input: &DistInput) -> Result<PathBuf, XtaskError> {
    let path = input.out.join(format!("{}-THIRD-PARTY.txt", input.stem()));
    super::write(&path, collect(crates)?.as_bytes())?;
    Ok(path)
}

/// The text of all licenses, each followed by the crates that have it.
pub(super) fn collect(crates: &[LinkedCrate]) -> Result<String, XtaskError> {
    let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut list = String::new();
    let mut count = 0;
    for linked in crates.iter().filter(|linked| !linked.is_own()) {
        let Some(license) = &linked.license else {
            return Err(XtaskError::DistInput {
                path: linked.folder.clone(),
                problem: "the crate names no license; replace it".to_string(),
            });
        };
        count += 1;
        let name = format!("{} {}", linked.name, linked.version);
        let source = linked.repository.as_deref().unwrap_or("on the registry");
        let _ = writeln!(list, "{name}: {license}; source: {source}");
        let mut own = files(&linked.folder)?;
        if own.is_empty() {
            own = vec![standard(linked, license)?];
        }
        for text in own {
            texts.entry(text).or_default().push(name.clone());
        }
    }
    let mut page =
        format!("Tercet contains {count} crates of other authors under these licenses.\n\n{list}");
    for (text, names) in texts {
        let _ = write!(
            page,
            "\n{}\n{}\n\n{text}\n",
            "=".repeat(80),
            names.join(", ")
        );
    }
    Ok(page)
}

/// The texts of the license files of a folder, sorted by name.
fn files(folder: &Path) -> Result<Vec<String>, XtaskError> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder).map_err(error::file("read", folder))? {
        let entry = entry.map_err(error::file("read", folder))?;
        let name = entry.file_name().to_string_lossy().to_lowercase();
        let is_text = entry
            .metadata()
            .is_ok_and(|m| m.is_file() && m.len() <= MAX_BYTES);
        if is_text && NAMES.iter().any(|start| name.starts_with(start)) && !name.ends_with(".rs") {
            paths.push(entry.path());
        }
    }
    paths.sort();
    let mut texts = Vec::new();
    for path in paths {
        let text = String::from_utf8_lossy(&super::read(&path)?).replace("\r\n", "\n");
        let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
        let text = lines.join("\n").trim().to_string();
        // Some packages have files that only name the file with the text.
        if text.lines().count() > 3 && !texts.contains(&text) {
            texts.push(text);
        }
    }
    Ok(texts)
}

/// The text for a package without a license file: the standard text with its authors, if the license has one here.
fn standard(linked: &LinkedCrate, license: &str) -> Result<String, XtaskError> {
    let root = process::root();
    let authors = match linked.authors.is_empty() {
        true => format!("the authors of {}", linked.name),
        false => linked.authors.join(", "),
    };
    let read = |name: &str| {
        let path = root.join(name);
        fs::read_to_string(&path).map_err(error::file("read", &path))
    };
    if license
        .split(&[' ', '(', ')'][..])
        .any(|word| word == "MIT")
    {
        let text = read("LICENSE-MIT")?;
        let lines = text
            .lines()
            .map(|line| match line.starts_with("Copyright") {
                true => format!("Copyright (c) {authors}"),
                false => line.to_string(),
            });
        return Ok(lines.collect::<Vec<_>>().join("\n").trim().to_string());
    }
    if license.contains("Apache-2.0") {
        return Ok(read("LICENSE-APACHE")?.trim().to_string());
    }
    let source = linked.repository.as_deref().unwrap_or_default();
    Ok(format!(
        "{}, copyright of {authors}.\nThe package contains no license file; the text is at {source}.",
        license
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn linked(name: &str, license: Option<&str>, folder: &Path) -> LinkedCrate {
        LinkedCrate {
            name: name.to_string(),
            version: "1.0.0".to_string(),
            license: license.map(str::to_string),
            authors: vec!["A. Author".to_string()],
            repository: None,
            description: None,
            folder: folder.to_path_buf(),
            checksum: Some(String::new()),
            uses: Default::default(),
        }
    }

    #[test]
    fn equal_texts_appear_once_with_all_crates() {
        let dir = std::env::temp_dir().join(format!("xtask-licenses-{}", std::process::id()));
        crate::fetch::remove_dir(&dir).unwrap();
        for (name, end) in [("a", "\r\n"), ("b", "\n"), ("c", "\n")] {
            fs::create_dir_all(dir.join(name)).unwrap();
            let text = format!("The license{end}of{end}these{end}crates.  {end}");
            fs::write(dir.join(name).join("LICENSE.md"), text).unwrap();
        }
        fs::remove_file(dir.join("c/LICENSE.md")).unwrap();
        let crates = ["a", "b", "c"].map(|name| linked(name, Some("MIT"), &dir.join(name)));
        let text = collect(&crates).unwrap();
        assert_eq!(text.matches("The license\nof").count(), 1, "{text}");
        assert!(text.contains("a 1.0.0, b 1.0.0\n"), "{text}");
        assert!(text.contains("Copyright (c) A. Author\n"), "{text}");
        assert!(text.contains("contains 3 crates"), "{text}");
        let error = collect(&[linked("d", None, &dir.join("c"))]).unwrap_err();
        assert!(error.to_string().contains("names no license"), "{error}");
        crate::fetch::remove_dir(&dir).unwrap();
    }
}

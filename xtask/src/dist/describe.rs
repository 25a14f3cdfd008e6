//! The files that need all archives of a release: install scripts with its URL, a Homebrew formula, winget manifests
//! and the list of checksums.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::VERSION;
use crate::error::{self, XtaskError};
use crate::fetch::sha256;
use crate::process;

const SUMS: &str = "SHA256SUMS";
/// The files of `packaging` with the folder of each, whose names may end in `.in`.
const TEMPLATES: [&str; 6] = [
    "install.sh",
    "install.ps1",
    "homebrew/tercet.rb.in",
    "winget/Tercet.Tercet.yaml.in",
    "winget/Tercet.Tercet.installer.yaml.in",
    "winget/Tercet.Tercet.locale.en-US.yaml.in",
];

/// Writes the files into the folder of the archives.
pub(super) fn run(dir: &Path, url: &str) -> Result<(), XtaskError> {
    let url = url.trim_end_matches('/');
    check_url(url)?;
    let folder = process::root().join("packaging");
    for template in TEMPLATES {
        let from = folder.join(template);
        let text = fs::read_to_string(&from).map_err(error::file("read", &from))?;
        let name = from.file_name().unwrap_or_default().to_string_lossy();
        let to = dir.join(name.trim_end_matches(".in"));
        match fill(&text, url, &digests(dir)?) {
            Ok(text) => super::write(&to, text.as_bytes())?,
            Err(missing) => {
                println!("NOT WRITTEN: {}; it needs {missing}", to.display());
                continue;
            }
        }
        println!("{}", to.display());
    }
    write_sums(dir)
}

/// Writes the list of checksums of a folder into it.
pub(super) fn write_sums(dir: &Path) -> Result<(), XtaskError> {
    let sums = digests(dir)?.into_iter();
    let sums: String = sums
        .map(|(name, digest)| format!("{digest}  {name}\n"))
        .collect();
    let path = dir.join(SUMS);
    super::write(&path, sums.as_bytes())?;
    println!("{}", path.display());
    Ok(())
}

/// Refuses characters that have a meaning in scripts and manifests.
fn check_url(url: &str) -> Result<(), XtaskError> {
    let has_scheme = ["https://", "http://"]
        .iter()
        .any(|scheme| url.starts_with(scheme));
    let is_plain = |c: char| c.is_ascii_alphanumeric() || ":/._~%+-".contains(c);
    match has_scheme && url.chars().all(is_plain) {
        true => Ok(()),
        false => Err(XtaskError::DistInput {
            path: PathBuf::from(url),
            problem: "expected an http or https URL of letters, digits and `:/._~%+-`".to_string(),
        }),
    }
}

/// The SHA-256 of each file of the folder except the list itself.
fn digests(dir: &Path) -> Result<BTreeMap<String, String>, XtaskError> {
    let mut digests = BTreeMap::new();
    for entry in fs::read_dir(dir).map_err(error::file("read", dir))? {
        let entry = entry.map_err(error::file("read", dir))?;
        let (path, name) = (
            entry.path(),
            entry.file_name().to_string_lossy().into_owned(),
        );
        if path.is_file() && name != SUMS && !name.ends_with(".partial") {
            let digest = sha256(&path).map_err(error::file("read", &path))?;
            digests.insert(name, digest);
        }
    }
    Ok(digests)
}

/// Replaces the fields of a template: `@VERSION@`, `@BASE_URL@`, `@HOMEPAGE@` and `@SHA256:FILE@`. If a file is
/// missing, its name is the error.
fn fill(template: &str, url: &str, digests: &BTreeMap<String, String>) -> Result<String, String> {
    let text = template
        .replace("@VERSION@", VERSION)
        .replace("@BASE_URL@", url);
    let home = url.split("/releases/").next().unwrap_or(url);
    let mut rest = text.replace("@HOMEPAGE@", home);
    let mut filled = String::new();
    while let Some((before, after)) = rest.split_once("@SHA256:") {
        let (name, after) = after.split_once('@').unwrap_or((after, ""));
        let digest = digests.get(name).ok_or_else(|| name.to_string())?;
        filled = filled + before + digest;
        rest = after.to_string();
    }
    Ok(filled + &rest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fetch::remove_dir;

    const URL: &str = "https://host.example/org/tercet/releases/download/v1";

    /// A folder with files in place of all archives.
    fn folder(name: &str) -> PathBuf {
        let dir =
            std::env::temp_dir().join(format!("xtask-describe-{name}-{}", std::process::id()));
        remove_dir(&dir).unwrap();
        fs::create_dir_all(&dir).unwrap();
        for (target, extension) in [
            ("aarch64-apple-darwin", "tar.gz"),
            ("x86_64-apple-darwin", "tar.gz"),
            ("aarch64-unknown-linux-gnu", "tar.gz"),
            ("x86_64-unknown-linux-gnu", "tar.gz"),
            ("x86_64-pc-windows-msvc", "zip"),
        ] {
            let name = format!("tercet-{VERSION}-{target}.{extension}");
            fs::write(dir.join(name), target).unwrap();
        }
        dir
    }

    #[test]
    fn every_field_is_filled_in_and_every_file_is_listed() {
        let dir = folder("all");
        run(&dir, &format!("{URL}/")).unwrap();
        run(&dir, URL).unwrap();
        let sums = fs::read_to_string(dir.join(SUMS)).unwrap();
        let names: Vec<&str> = sums
            .lines()
            .filter_map(|line| line.split_once("  "))
            .map(|(_, n)| n)
            .collect();
        assert_eq!(names.len(), 5 + TEMPLATES.len(), "{sums}");
        for name in names {
            let text = fs::read_to_string(dir.join(name)).unwrap();
            for field in ["@VERSION@", "@BASE_URL@", "@HOMEPAGE@", "@SHA256"] {
                assert!(!text.contains(field), "{name}: {field}");
            }
        }
        let formula = fs::read_to_string(dir.join("tercet.rb")).unwrap();
        assert_eq!(formula.matches("sha256 \"").count(), 4);
        assert!(
            formula.contains("homepage \"https://host.example/org/tercet\""),
            "{formula}"
        );
        let script = fs::read_to_string(dir.join("install.sh")).unwrap();
        assert!(
            script.contains(&format!("${{TERCET_BASE_URL:-{URL}}}")),
            "{script}"
        );
        let archive = format!("tercet-{VERSION}-x86_64-apple-darwin.tar.gz");
        assert!(formula.contains(&sha256(&dir.join(archive)).unwrap()));
        remove_dir(&dir).unwrap();
    }

    #[test]
    fn a_manifest_without_its_archive_is_not_written() {
        let dir = folder("some");
        fs::remove_file(dir.join(format!("tercet-{VERSION}-x86_64-apple-darwin.tar.gz"))).unwrap();
        run(&dir, URL).unwrap();
        assert!(!dir.join("tercet.rb").exists());
        assert!(dir.join("Tercet.Tercet.installer.yaml").exists());
        remove_dir(&dir).unwrap();
    }

    #[test]
    fn urls_with_characters_of_scripts_are_refused() {
        check_url(URL).unwrap();
        for url in [
            "https://x/$(id)",
            "https://x/a b",
            "https://x/\"",
            "https://x/}",
            "ftp://x",
            "x",
            "",
        ] {
            assert!(check_url(url).is_err(), "{url}");
        }
    }
}

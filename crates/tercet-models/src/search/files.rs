//! What is indexed: the files of a folder, and the passages of a file.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::SearchError;

/// Longer files are left out.
const MOST_BYTES: u64 = 256 << 20;

/// What a vector stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Unit {
    /// A line that is not blank.
    Lines,
    /// Lines that follow each other without a blank one between them.
    Paragraphs,
    /// A picture.
    Pictures,
}

impl Unit {
    /// Its name in an index.
    pub fn name(self) -> &'static str {
        match self {
            Unit::Lines => "lines",
            Unit::Paragraphs => "paragraphs",
            Unit::Pictures => "pictures",
        }
    }
}

/// The regular files below `folder`, by their names from there with `/` between folders, in order. Left out are hidden
/// files and folders, links, names that are no Unicode, and the file at `but`.
pub(super) fn walk(folder: &Path, but: &Path) -> Result<Vec<String>, SearchError> {
    let failed = |path: &Path| {
        let path = path.to_path_buf();
        move |source| SearchError::Folder { path, source }
    };
    let but = std::fs::canonicalize(but).ok();
    let mut found = Vec::new();
    let mut folders = vec![(folder.to_path_buf(), String::new())];
    while let Some((path, before)) = folders.pop() {
        for entry in std::fs::read_dir(&path).map_err(failed(&path))? {
            let entry = entry.map_err(failed(&path))?;
            let kind = entry.file_type().map_err(failed(&entry.path()))?;
            let Ok(name) = entry.file_name().into_string() else {
                continue;
            };
            if name.starts_with('.') {
                continue;
            }
            let name = format!("{before}{name}");
            if kind.is_dir() {
                folders.push((entry.path(), format!("{name}/")));
            } else if kind.is_file()
                && (but.is_none() || std::fs::canonicalize(entry.path()).ok() != but)
            {
                found.push(name);
            }
        }
    }
    found.sort();
    Ok(found)
}

/// The bytes of a file of the folder, unless they are too many.
pub(super) fn read(folder: &Path, name: &str) -> Result<Option<Vec<u8>>, SearchError> {
    let path = folder.join(name);
    let read = || {
        let len = std::fs::metadata(&path)?.len();
        (len <= MOST_BYTES)
            .then(|| std::fs::read(&path))
            .transpose()
    };
    read().map_err(|source| SearchError::Folder {
        path: path.clone(),
        source,
    })
}

/// The text of a file that is one: UTF-8 without zeros.
pub(super) fn text(bytes: Vec<u8>) -> Option<String> {
    let text = String::from_utf8(bytes).ok()?;
    (!text.contains('\0')).then_some(text)
}

/// Whether a name is that of a picture.
pub(super) fn is_picture(name: &str) -> bool {
    let end = PathBuf::from(name);
    let end = end.extension().and_then(|end| end.to_str());
    end.is_some_and(|end| ["png", "jpg", "jpeg"].contains(&end.to_ascii_lowercase().as_str()))
}

/// A digest of bytes, in hexadecimal.
pub(super) fn digest(bytes: &[u8]) -> String {
    hexadecimal(&Sha256::digest(bytes))
}

pub(super) fn hexadecimal(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The passages of a text: their first and last lines, from 1 on, and what they say.
pub(super) fn passages(text: &str, unit: Unit) -> Vec<([usize; 2], String)> {
    let mut all: Vec<([usize; 2], String)> = Vec::new();
    let mut open = false;
    for (at, line) in text.lines().enumerate() {
        let number = at + 1;
        if line.trim().is_empty() {
            open = false;
            continue;
        }
        match all.last_mut().filter(|_| open) {
            Some(([_, last], passage)) => {
                *last = number;
                passage.push('\n');
                passage.push_str(line);
            }
            None => all.push(([number; 2], line.to_string())),
        }
        open = unit == Unit::Paragraphs;
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passages_end_at_blank_lines() {
        let text = "\na\r\nb\n \t\n\nc\nd";
        let of = |unit| passages(text, unit);
        assert_eq!(
            of(Unit::Paragraphs),
            [([2, 3], "a\nb".to_string()), ([6, 7], "c\nd".to_string())]
        );
        let lines: Vec<[usize; 2]> = of(Unit::Lines).into_iter().map(|(at, _)| at).collect();
        assert_eq!(lines, [[2, 2], [3, 3], [6, 6], [7, 7]]);
        assert!(passages("\n \n", Unit::Paragraphs).is_empty());
    }
}

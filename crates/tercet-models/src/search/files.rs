//! The input of an index: the files of a folder, and the passages of a file.

use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::SearchError;

/// Maximum file size; larger files are skipped.
const MAX_BYTES: u64 = 256 << 20;

/// The unit that each vector represents.
///
/// ```
/// use tercet_models::search::IndexUnit;
/// assert_eq!(IndexUnit::Paragraphs.name(), "paragraphs");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum IndexUnit {
    /// A non-blank line.
    Lines,
    /// A paragraph: consecutive non-blank lines.
    Paragraphs,
    /// An image file.
    Pictures,
}

impl IndexUnit {
    /// The unit's name in an index.
    pub fn name(self) -> &'static str {
        match self {
            IndexUnit::Lines => "lines",
            IndexUnit::Paragraphs => "paragraphs",
            IndexUnit::Pictures => "pictures",
        }
    }
}

/// Lists the regular files below `folder` in order, as relative paths with `/` as separator. Hidden
/// files and folders, links, non-Unicode names and the file at `but` are skipped.
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

/// Reads a file of the folder; `None` if it is too large.
pub(super) fn read(folder: &Path, name: &str) -> Result<Option<Vec<u8>>, SearchError> {
    let path = folder.join(name);
    let read = || {
        let len = std::fs::metadata(&path)?.len();
        (len <= MAX_BYTES).then(|| std::fs::read(&path)).transpose()
    };
    read().map_err(|source| SearchError::Folder {
        path: path.clone(),
        source,
    })
}

/// The text of a file; `None` if it is not UTF-8 or contains zero bytes.
pub(super) fn text(bytes: Vec<u8>) -> Option<String> {
    let text = String::from_utf8(bytes).ok()?;
    (!text.contains('\0')).then_some(text)
}

/// Whether a file name has an image extension.
pub(super) fn is_image(name: &str) -> bool {
    let end = PathBuf::from(name);
    let end = end.extension().and_then(|end| end.to_str());
    end.is_some_and(|end| {
        ["png", "jpg", "jpeg", "webp", "gif"].contains(&end.to_ascii_lowercase().as_str())
    })
}

/// The SHA-256 digest of bytes, in hexadecimal.
pub(super) fn digest(bytes: &[u8]) -> String {
    hexadecimal(&Sha256::digest(bytes))
}

pub(super) fn hexadecimal(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A part of a text file that one vector represents.
#[doc(hidden)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Passage {
    /// First and last line, from 1.
    pub lines: [usize; 2],
    /// The bytes of the passage in the file, without the last line's end.
    pub bytes: Range<usize>,
}

impl Passage {
    /// The text of the passage; line ends are those of Unix.
    pub fn text(&self, text: &str) -> String {
        text[self.bytes.clone()].replace("\r\n", "\n")
    }

    /// A part of this passage of `text`.
    pub fn part(&self, text: &str, part: Range<usize>) -> Passage {
        let start = self.bytes.start;
        let ends = |range: Range<usize>| text[range].matches('\n').count();
        let bytes = start + part.start..start + part.end;
        let first = self.lines[0] + ends(start..bytes.start);
        Passage {
            lines: [first, first + ends(bytes.clone())],
            bytes,
        }
    }
}

/// The passages of a text.
pub fn passages(text: &str, unit: IndexUnit) -> Vec<Passage> {
    let mut all: Vec<Passage> = Vec::new();
    let (mut open, mut start) = (false, 0);
    for (at, line) in text.split_inclusive('\n').enumerate() {
        let number = at + 1;
        let content = line.strip_suffix('\n').unwrap_or(line);
        let content = content.strip_suffix('\r').unwrap_or(content);
        let bytes = start..start + content.len();
        start += line.len();
        if content.trim().is_empty() {
            open = false;
            continue;
        }
        match all.last_mut().filter(|_| open) {
            Some(passage) => {
                passage.lines[1] = number;
                passage.bytes.end = bytes.end;
            }
            None => all.push(Passage {
                lines: [number; 2],
                bytes,
            }),
        }
        open = unit == IndexUnit::Paragraphs;
    }
    all
}

//! The history of messages: a file in the user's state folder, one message a line.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use super::super::state_dir;

/// Maximum number of messages that are loaded.
pub const MAX_ENTRIES: usize = 1000;
/// Maximum number of bytes that are read from the end of the file.
const MAX_BYTES: u64 = 8 << 20;

/// The history file. Several conversations may append to it at the same time.
pub struct HistoryFile {
    pub path: PathBuf,
}

impl HistoryFile {
    /// The user's file; `None` if the environment names no folder.
    pub(super) fn of_user() -> Option<HistoryFile> {
        let path = state_dir()?.join("chat-history");
        Some(HistoryFile { path })
    }

    /// The last messages, oldest first. A file with many more is shortened to these.
    pub fn load(&self) -> io::Result<Vec<String>> {
        let bytes = match File::open(&self.path) {
            Ok(file) => last_bytes(file)?,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(e),
        };
        let text = String::from_utf8_lossy(&bytes);
        let lines: Vec<&str> = text.lines().filter(|line| !line.is_empty()).collect();
        let last = &lines[lines.len().saturating_sub(MAX_ENTRIES)..];
        if lines.len() > 2 * MAX_ENTRIES || bytes.len() as u64 == MAX_BYTES {
            let kept: String = last.iter().map(|line| format!("{line}\n")).collect();
            self.replace(kept.as_bytes())?;
        }
        Ok(last.iter().map(|line| unescape(line)).collect())
    }

    /// Adds a message.
    pub fn append(&self, message: &str) -> io::Result<()> {
        if let Some(folder) = self.path.parent() {
            fs::create_dir_all(folder)?;
        }
        let mut options = OpenOptions::new();
        private(options.append(true).create(true));
        let mut file = options.open(&self.path)?;
        // One write, so that messages of other conversations do not get in between.
        file.write_all(format!("{}\n", escape(message)).as_bytes())
    }

    fn replace(&self, bytes: &[u8]) -> io::Result<()> {
        let name = format!("chat-history.{}", std::process::id());
        let new = self.path.with_file_name(name);
        let write = |new: &Path| {
            let mut options = OpenOptions::new();
            private(options.write(true).create(true).truncate(true));
            options.open(new)?.write_all(bytes)?;
            fs::rename(new, &self.path)
        };
        write(&new).inspect_err(|_| drop(fs::remove_file(&new)))
    }
}

/// Creates files that only their owner can read.
#[cfg(unix)]
fn private(options: &mut OpenOptions) {
    use std::os::unix::fs::OpenOptionsExt;
    options.mode(0o600);
}

#[cfg(not(unix))]
fn private(_: &mut OpenOptions) {}

/// The end of a file, from the start of a line.
fn last_bytes(mut file: File) -> io::Result<Vec<u8>> {
    use std::io::Seek;
    let from = file.metadata()?.len().saturating_sub(MAX_BYTES);
    file.seek(io::SeekFrom::Start(from))?;
    let mut bytes = Vec::new();
    file.take(MAX_BYTES).read_to_end(&mut bytes)?;
    if from > 0 {
        let line = bytes.iter().position(|byte| *byte == b'\n');
        let line = line.unwrap_or(bytes.len());
        // The length stays, so that the file is recognized as too long.
        bytes[..line].fill(b'\n');
    }
    Ok(bytes)
}

/// Writes a message in one line: line ends and backslashes are escaped.
fn escape(message: &str) -> String {
    let escaped = message.replace('\\', "\\\\");
    escaped.replace('\n', "\\n").replace('\r', "\\r")
}

/// Reverses [`escape`]. An unknown escape stays as it is.
fn unescape(line: &str) -> String {
    let mut message = String::with_capacity(line.len());
    let mut rest = line.chars();
    while let Some(c) = rest.next() {
        if c != '\\' {
            message.push(c);
            continue;
        }
        match rest.next() {
            Some('n') => message.push('\n'),
            Some('r') => message.push('\r'),
            Some('\\') | None => message.push('\\'),
            Some(other) => message.extend(['\\', other]),
        }
    }
    message
}

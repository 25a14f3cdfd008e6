//! Reading, replacing and evicting cache files.
//!
//! A file is read as a whole, and only if it belongs to this user. A file is replaced atomically by
//! a rename, without `fsync`. After a power loss a file may be empty or truncated; its digest
//! detects that.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

/// A file's modification time is refreshed on use only if it is older than this, to avoid a write
/// on every read.
const TOUCHED_AFTER: Duration = Duration::from_secs(24 * 3600);
/// Age from which a temporary file is considered abandoned by a killed writer.
const ABANDONED_AFTER: Duration = Duration::from_secs(3600);
/// Extension of temporary files.
const TEMPORARY: &str = "tmp";

/// Reads a file. `None` if the file does not exist, is longer than `max_bytes`, or is writable by
/// other users. Marks the file as used, for [`evict_to`].
pub fn read(file: &Path, max_bytes: u64) -> Option<Vec<u8>> {
    // Checked before opening: opening a FIFO would block until a writer arrives.
    if !fs::symlink_metadata(file).ok()?.is_file() {
        return None;
    }
    let open = File::open(file).ok()?;
    let meta = open.metadata().ok()?;
    if !meta.is_file() || meta.len() > max_bytes || !is_trusted(&meta) {
        return None;
    }
    let mut bytes = Vec::with_capacity(meta.len() as usize);
    (&open).take(max_bytes + 1).read_to_end(&mut bytes).ok()?;
    let used = meta.modified().ok()?;
    if age(used) > TOUCHED_AFTER {
        // If the time cannot be set, the file is only evicted earlier.
        let _ = open.set_modified(SystemTime::now());
    }
    (bytes.len() as u64 <= max_bytes).then_some(bytes)
}

/// Replaces a file by one that only this user can write. Creates the folder if necessary.
///
/// # Errors
/// Errors of the file system; the old file then remains.
pub fn replace(file: &Path, bytes: &[u8]) -> io::Result<()> {
    if let Some(dir) = file.parent() {
        fs::create_dir_all(dir)?;
    }
    let temporary = temporary(file);
    let done = write_new(&temporary, bytes).and_then(|()| fs::rename(&temporary, file));
    if done.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    done
}

/// Evicts files with this extension, least recently used first, until their total size is at most
/// `max_bytes`. Also removes abandoned temporary files. Errors are ignored.
pub fn evict_to(dir: &Path, extension: &str, max_bytes: u64) {
    let Ok(entries) = fs::read_dir(dir) else {
        return;
    };
    let mut found = Vec::new();
    for entry in entries.flatten() {
        let path = entry.path();
        let Ok(meta) = entry.metadata() else { continue };
        let Ok(used) = meta.modified() else { continue };
        if !meta.is_file() {
            continue;
        }
        let ends = |with: &str| path.extension() == Some(OsStr::new(with));
        if ends(TEMPORARY) && age(used) > ABANDONED_AFTER {
            let _ = fs::remove_file(&path);
        } else if ends(extension) {
            found.push((used, meta.len(), path));
        }
    }
    let mut total: u64 = found.iter().map(|(_, len, _)| len).sum();
    if total <= max_bytes {
        return;
    }
    found.sort();
    // Evict down to three quarters of the limit, so that not every new file triggers an eviction.
    let enough = max_bytes / 4 * 3;
    for (_, len, path) in found {
        if total <= enough {
            break;
        }
        if fs::remove_file(&path).is_ok() {
            total -= len;
        }
    }
}

fn age(since: SystemTime) -> Duration {
    // A modification time in the future means that the clock was set back.
    SystemTime::now().duration_since(since).unwrap_or_default()
}

fn write_new(file: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(file)?.write_all(bytes)
}

/// A unique temporary name in the same folder.
fn temporary(file: &Path) -> PathBuf {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    // Processes in two machines or containers may share both the process id and the folder.
    let nanos = now.unwrap_or_default().as_nanos();
    file.with_extension(format!("{}-{count}-{nanos:x}.{TEMPORARY}", process::id()))
}

/// True if only this user and root can have written the file.
#[cfg(unix)]
fn is_trusted(meta: &fs::Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    let user = rustix::process::geteuid().as_raw();
    let owned = meta.uid() == user || meta.uid() == 0;
    owned && meta.mode() & 0o022 == 0
}

/// Without Unix permissions, a user's folders are assumed to be private.
#[cfg(not(unix))]
fn is_trusted(_: &fs::Metadata) -> bool {
    true
}

#[cfg(test)]
pub(crate) mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    /// Temporary folder of a test, removed on drop.
    pub(crate) struct TestFolder(pub(crate) PathBuf);

    impl TestFolder {
        pub(crate) fn new(name: &str) -> TestFolder {
            let dir = std::env::temp_dir().join(format!("tercet-{name}-{}", process::id()));
            fs::create_dir_all(&dir).unwrap();
            TestFolder(dir)
        }
    }

    impl Drop for TestFolder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn used_before(file: &Path, age: Duration) {
        let open = OpenOptions::new().write(true).open(file).unwrap();
        open.set_modified(SystemTime::now() - age).unwrap();
    }

    #[test]
    fn what_is_written_is_read_up_to_the_limit() {
        let folder = TestFolder::new("files");
        let file = folder.0.join("below/a.bin");
        assert_eq!(read(&file, 9), None);
        replace(&file, b"123456789").unwrap();
        replace(&file, b"abcdefghi").unwrap();
        assert_eq!(read(&file, 9).as_deref(), Some(&b"abcdefghi"[..]));
        assert_eq!(read(&file, 8), None);
        assert_eq!(read(&folder.0, 9), None, "a folder");
        // No other file remains.
        assert_eq!(fs::read_dir(folder.0.join("below")).unwrap().count(), 1);
    }

    #[cfg(unix)]
    #[test]
    fn files_that_others_can_write_are_not_read() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let folder = TestFolder::new("rights");
        let file = folder.0.join("a.bin");
        replace(&file, b"x").unwrap();
        for (mode, is_read) in [(0o600, true), (0o644, true), (0o664, false), (0o606, false)] {
            fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(read(&file, 9).is_some(), is_read, "{mode:o}");
        }
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        let link = folder.0.join("b.bin");
        symlink(&file, &link).unwrap();
        assert_eq!(read(&link, 9), None);
        // Only root can change the owner of a file.
        if std::os::unix::fs::chown(&file, Some(12345), None).is_ok() {
            assert_eq!(read(&file, 9), None);
        }
    }

    #[test]
    fn old_files_go_when_there_are_too_many() {
        let folder = TestFolder::new("sweep");
        for (i, name) in [
            "old.spv",
            "mid.spv",
            "new.spv",
            "other.bin",
            "1-2.tmp",
            "3-4.tmp",
        ]
        .iter()
        .enumerate()
        {
            let file = folder.0.join(name);
            replace(&file, &[0; 40]).unwrap();
            used_before(&file, Duration::from_secs(3 * 3600 - 1800 * i as u64));
        }
        let names = || {
            let entries = fs::read_dir(&folder.0).unwrap();
            let mut names: Vec<String> = entries
                .map(|e| e.unwrap().file_name().into_string().unwrap())
                .collect();
            names.sort();
            names
        };
        // "3-4.tmp" is half an hour old: a live process may still be writing it.
        evict_to(&folder.0, "spv", 120);
        let all = ["3-4.tmp", "mid.spv", "new.spv", "old.spv", "other.bin"];
        assert_eq!(names(), all);
        evict_to(&folder.0, "spv", 110);
        assert_eq!(names(), ["3-4.tmp", "mid.spv", "new.spv", "other.bin"]);
        evict_to(&folder.0.join("missing"), "spv", 1);
    }

    #[test]
    fn what_is_read_counts_as_used() {
        let folder = TestFolder::new("touch");
        let file = folder.0.join("a.spv");
        replace(&file, b"x").unwrap();
        used_before(&file, Duration::from_secs(48 * 3600));
        assert!(read(&file, 9).is_some());
        let used = fs::metadata(&file).unwrap().modified().unwrap();
        assert!(age(used) < Duration::from_secs(3600));
    }
}

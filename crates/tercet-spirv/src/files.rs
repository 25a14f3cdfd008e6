//! Files of a cache.
//!
//! They are read whole, if they are this user's own, and replaced whole. Nothing is forced to the disk: after a
//! loss of power a file may be empty or cut, which its digest tells.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

/// A file that was not used for so long is said to be used now; more often would cost a write each time.
const TOUCHED_AFTER: Duration = Duration::from_secs(24 * 3600);
/// A temporary file of this age was left by a process that was killed.
const ABANDONED_AFTER: Duration = Duration::from_secs(3600);
/// How temporary files end.
const TEMPORARY: &str = "tmp";

/// The bytes of a file; `None` where there is none, where it is longer than `max_bytes`, and where anybody else
/// could have written it. Says that it is in use, for [`keep_below`].
pub fn read(file: &Path, max_bytes: u64) -> Option<Vec<u8>> {
    // Asked before opening: opening a FIFO would wait for a writer.
    if !fs::symlink_metadata(file).ok()?.is_file() {
        return None;
    }
    let open = File::open(file).ok()?;
    let meta = open.metadata().ok()?;
    if !meta.is_file() || meta.len() > max_bytes || !is_own(&meta) {
        return None;
    }
    let mut bytes = Vec::with_capacity(meta.len() as usize);
    (&open).take(max_bytes + 1).read_to_end(&mut bytes).ok()?;
    let used = meta.modified().ok()?;
    if age(used) > TOUCHED_AFTER {
        // Where it cannot be said, the file goes earlier.
        let _ = open.set_modified(SystemTime::now());
    }
    (bytes.len() as u64 <= max_bytes).then_some(bytes)
}

/// Replaces a file by one that only this user can write, and makes its folder.
///
/// # Errors
/// What the file system says; the old file is then still there.
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

/// Removes files of this extension, those not used for longest first, until those left have at most `max_bytes`
/// together, and what killed writers left. Does what it can.
pub fn keep_below(dir: &Path, extension: &str, max_bytes: u64) {
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
    // Some more than must go, so that not every new file looks for an old one.
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
    // A time in the future is a clock that was set back.
    SystemTime::now().duration_since(since).unwrap_or_default()
}

fn write_new(file: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(file)?.write_all(bytes)
}

/// A name in the same folder that no other writer uses.
fn temporary(file: &Path) -> PathBuf {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    // Processes of two machines or containers may have one number and one folder.
    let nanos = now.unwrap_or_default().as_nanos();
    file.with_extension(format!("{}-{count}-{nanos:x}.{TEMPORARY}", process::id()))
}

/// Whether only this user and root can have written the file.
#[cfg(unix)]
fn is_own(meta: &fs::Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    let user = rustix::process::geteuid().as_raw();
    let owned = meta.uid() == user || meta.uid() == 0;
    owned && meta.mode() & 0o022 == 0
}

/// Folders of users are their own by default.
#[cfg(not(unix))]
fn is_own(_: &fs::Metadata) -> bool {
    true
}

#[cfg(test)]
pub(crate) mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    /// A folder of a test, removed at its end.
    pub(crate) struct Folder(pub(crate) PathBuf);

    impl Folder {
        pub(crate) fn new(name: &str) -> Folder {
            let dir = std::env::temp_dir().join(format!("tercet-{name}-{}", process::id()));
            fs::create_dir_all(&dir).unwrap();
            Folder(dir)
        }
    }

    impl Drop for Folder {
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
        let folder = Folder::new("files");
        let file = folder.0.join("below/a.bin");
        assert_eq!(read(&file, 9), None);
        replace(&file, b"123456789").unwrap();
        replace(&file, b"abcdefghi").unwrap();
        assert_eq!(read(&file, 9).as_deref(), Some(&b"abcdefghi"[..]));
        assert_eq!(read(&file, 8), None);
        assert_eq!(read(&folder.0, 9), None, "a folder");
        // Nothing else is left behind.
        assert_eq!(fs::read_dir(folder.0.join("below")).unwrap().count(), 1);
    }

    #[cfg(unix)]
    #[test]
    fn files_that_others_can_write_are_not_read() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let folder = Folder::new("rights");
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
        // Only root can give files away.
        if std::os::unix::fs::chown(&file, Some(12345), None).is_ok() {
            assert_eq!(read(&file, 9), None);
        }
    }

    #[test]
    fn old_files_go_when_there_are_too_many() {
        let folder = Folder::new("sweep");
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
        // "3-4.tmp" is half an hour old: somebody may write it.
        keep_below(&folder.0, "spv", 120);
        let all = ["3-4.tmp", "mid.spv", "new.spv", "old.spv", "other.bin"];
        assert_eq!(names(), all);
        keep_below(&folder.0, "spv", 110);
        assert_eq!(names(), ["3-4.tmp", "mid.spv", "new.spv", "other.bin"]);
        keep_below(&folder.0.join("missing"), "spv", 1);
    }

    #[test]
    fn what_is_read_counts_as_used() {
        let folder = Folder::new("touch");
        let file = folder.0.join("a.spv");
        replace(&file, b"x").unwrap();
        used_before(&file, Duration::from_secs(48 * 3600));
        assert!(read(&file, 9).is_some());
        let used = fs::metadata(&file).unwrap().modified().unwrap();
        assert!(age(used) < Duration::from_secs(3600));
    }
}

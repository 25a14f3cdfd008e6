//! The folder of a repository in the cache, which all tools of the hub share.
//!
//! ```text
//! models--ORG--NAME/blobs/DIGEST             contents
//! models--ORG--NAME/blobs/DIGEST.incomplete  a prefix of the contents
//! models--ORG--NAME/snapshots/COMMIT/FILE    a link to the contents
//! models--ORG--NAME/refs/main                the commit of a branch
//! .locks/models--ORG--NAME/DIGEST.lock       locked while the contents are downloaded
//! ```

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::error::HubError;
use crate::listing::{FileDigest, RepoFile, RepoListing};
use crate::name::{is_part, is_relative};
use crate::progress::{PullEvent, PullProgress};

/// Maximum size of a file in `refs`, in bytes; a commit has 40.
const MAX_REF_BYTES: u64 = 1024;
/// Maximum number of files of a snapshot, and of folders inside each other.
const MAX_FILES: usize = 100_000;
const MAX_DEPTH: usize = 8;
/// Interval at which a lock of another process is tried.
const LOCK_INTERVAL: Duration = Duration::from_millis(100);

/// The folder of one repository.
pub(crate) struct RepoCache {
    pub(crate) repo: String,
    /// The folder `models--ORG--NAME`.
    pub(crate) dir: PathBuf,
    locks: PathBuf,
}

impl RepoCache {
    pub(crate) fn new(cache: &Path, repo: &str) -> RepoCache {
        let folder = format!("models--{}", repo.replace('/', "--"));
        RepoCache {
            repo: repo.to_string(),
            locks: cache.join(".locks").join(&folder),
            dir: cache.join(folder),
        }
    }

    pub(crate) fn blobs(&self) -> PathBuf {
        self.dir.join("blobs")
    }

    pub(crate) fn blob(&self, digest: &FileDigest) -> PathBuf {
        self.blobs().join(digest.hex())
    }

    pub(crate) fn partial(&self, digest: &FileDigest) -> PathBuf {
        self.blobs().join(format!("{}.incomplete", digest.hex()))
    }

    fn snapshots(&self) -> PathBuf {
        self.dir.join("snapshots")
    }

    pub(crate) fn snapshot(&self, commit: &str) -> PathBuf {
        self.snapshots().join(commit)
    }

    /// The commits with a snapshot.
    pub(crate) fn commits(&self) -> Vec<String> {
        let entries = fs::read_dir(self.snapshots()).into_iter().flatten();
        let folders = entries.filter_map(|entry| {
            let entry = entry.ok().filter(|entry| entry.path().is_dir())?;
            entry.file_name().into_string().ok()
        });
        folders.filter(|name| is_part(name)).collect()
    }

    /// The commit of a revision: that of `refs`, the revision itself, or the only snapshot if there is
    /// no `main`, as in caches that tools copied. None if the cache does not have it.
    pub(crate) fn commit(&self, revision: &str) -> Result<Option<String>, HubError> {
        let path = self.dir.join("refs").join(revision);
        if path.is_file() {
            let bytes = fs::metadata(&path).map_err(HubError::read(&path))?.len();
            let damaged = || HubError::DamagedCache {
                path: path.clone(),
                repo: self.repo.clone(),
                reason: "it has no name of a commit".to_string(),
            };
            if bytes > MAX_REF_BYTES {
                return Err(damaged());
            }
            let text = fs::read(&path).map_err(HubError::read(&path))?;
            let commit = String::from_utf8_lossy(&text).trim().to_string();
            if !is_part(&commit) {
                return Err(damaged());
            }
            return Ok(self.snapshot(&commit).is_dir().then_some(commit));
        }
        if self.snapshot(revision).is_dir() {
            return Ok(Some(revision.to_string()));
        }
        let mut commits = self.commits();
        let only = commits.pop().filter(|_| commits.is_empty());
        Ok(only.filter(|_| revision == "main"))
    }

    /// The files of a snapshot that are there. Links without contents are left out.
    pub(crate) fn listing(&self, commit: &str) -> Result<RepoListing, HubError> {
        let root = self.snapshot(commit);
        let mut files = Vec::new();
        let mut folders = vec![(root.clone(), String::new(), 0)];
        while let Some((dir, prefix, depth)) = folders.pop() {
            for entry in fs::read_dir(&dir).map_err(HubError::read(&dir))? {
                let entry = entry.map_err(HubError::read(&dir))?;
                let Ok(name) = entry.file_name().into_string() else {
                    continue;
                };
                let path = format!("{prefix}{name}");
                let Ok(found) = fs::metadata(entry.path()) else {
                    continue;
                };
                if found.is_dir() && depth < MAX_DEPTH {
                    folders.push((entry.path(), format!("{path}/"), depth + 1));
                } else if found.is_file() && files.len() < MAX_FILES {
                    files.push(RepoFile {
                        bytes: Some(found.len()),
                        ..RepoFile::new(path)
                    });
                }
            }
        }
        files.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(RepoListing {
            repo: self.repo.clone(),
            commit: commit.to_string(),
            files,
        })
    }

    /// Whether a snapshot has a file of this size.
    pub(crate) fn has(&self, commit: &str, path: &str, bytes: u64) -> bool {
        let found = fs::metadata(self.snapshot(commit).join(path));
        found.is_ok_and(|found| found.is_file() && found.len() == bytes)
    }

    /// Locks the contents with a digest against other processes. The lock ends with the value, or
    /// with the process.
    pub(crate) fn lock(
        &self,
        digest: &FileDigest,
        progress: &dyn PullProgress,
    ) -> Result<File, HubError> {
        create_dir(&self.locks)?;
        let path = self.locks.join(format!("{}.lock", digest.hex()));
        let file = open_lock(&path)?;
        let mut is_waiting = false;
        loop {
            match fs4::FileExt::try_lock(&file) {
                Ok(()) => return Ok(file),
                Err(fs4::TryLockError::WouldBlock) => {}
                // Without locks two processes write the same bytes at the same places, which costs only
                // time.
                Err(fs4::TryLockError::Error(e)) if e.kind() == ErrorKind::Unsupported => {
                    return Ok(file);
                }
                Err(fs4::TryLockError::Error(e)) => {
                    return Err(HubError::write("lock", &path, 0)(e));
                }
            }
            if !is_waiting {
                progress.event(PullEvent::Waiting { lock: &path });
                is_waiting = true;
            }
            std::thread::sleep(LOCK_INTERVAL);
        }
    }

    /// Locks everything that is being downloaded, so that it can be removed.
    fn lock_all(&self) -> Result<Vec<File>, HubError> {
        let entries = fs::read_dir(&self.locks).into_iter().flatten().flatten();
        let mut held = Vec::new();
        for entry in entries {
            let file = open_lock(&entry.path())?;
            if fs4::FileExt::try_lock(&file).is_err() {
                return Err(HubError::Busy {
                    repo: self.repo.clone(),
                });
            }
            held.push(file);
        }
        Ok(held)
    }

    /// Puts the contents with a digest into a snapshot, as a link if the system has links.
    pub(crate) fn link(
        &self,
        commit: &str,
        path: &str,
        digest: &FileDigest,
        bytes: u64,
    ) -> Result<(), HubError> {
        let to = self.snapshot(commit).join(path);
        if self.has(commit, path, bytes) && self.is_of(&to, digest) {
            return Ok(());
        }
        if let Some(dir) = to.parent() {
            create_dir(dir)?;
        }
        let blob = self.blob(digest);
        let up = "../".repeat(2 + path.matches('/').count());
        let target = format!("{up}blobs/{}", digest.hex());
        // A rename replaces what another tool left there, in one step.
        let temporary =
            self.snapshot(commit)
                .join(format!(".{}.{}.tmp", digest.hex(), std::process::id()));
        let _ = fs::remove_file(&temporary);
        symlink(Path::new(&target), &temporary)
            .or_else(|_| fs::hard_link(&blob, &temporary))
            .or_else(|_| fs::copy(&blob, &temporary).map(drop))
            .map_err(HubError::write("link", &to, bytes))?;
        fs::rename(&temporary, &to).map_err(|e| {
            let _ = fs::remove_file(&temporary);
            HubError::write("link", &to, bytes)(e)
        })
    }

    /// Whether a file of a snapshot is a link to these contents, or a copy.
    fn is_of(&self, file: &Path, digest: &FileDigest) -> bool {
        match fs::read_link(file) {
            Ok(target) => target.file_name().is_some_and(|name| name == digest.hex()),
            Err(_) => true,
        }
    }

    /// Sets the commit of a branch.
    pub(crate) fn set_ref(&self, revision: &str, commit: &str) -> Result<(), HubError> {
        let path = self.dir.join("refs").join(revision);
        if revision == commit || fs::read(&path).is_ok_and(|text| text == commit.as_bytes()) {
            return Ok(());
        }
        let refs = self.dir.join("refs");
        create_dir(&refs)?;
        let temporary = refs.join(format!(".{revision}.{}.tmp", std::process::id()));
        let written = File::create(&temporary)
            .and_then(|mut file| file.write_all(commit.as_bytes()))
            .and_then(|()| fs::rename(&temporary, &path));
        written.map_err(|e| {
            let _ = fs::remove_file(&temporary);
            HubError::write("write", &path, 40)(e)
        })
    }

    /// Bytes of the contents, and of those that are incomplete.
    pub(crate) fn bytes(&self) -> (u64, u64) {
        let (mut whole, mut partial) = (0, 0);
        for entry in fs::read_dir(self.blobs()).into_iter().flatten().flatten() {
            let bytes = entry.metadata().map_or(0, |found| found.len());
            match entry.file_name().to_string_lossy().ends_with(".incomplete") {
                true => partial += bytes,
                false => whole += bytes,
            }
        }
        (whole, partial)
    }

    /// Removes the folders of a download of which nothing has arrived. A folder with files stays.
    pub(crate) fn remove_empty(&self) {
        let _ = fs::remove_dir(self.blobs());
        let _ = fs::remove_dir(&self.dir);
    }

    /// Removes the repository. Returns the freed bytes.
    pub(crate) fn remove(&self) -> Result<u64, HubError> {
        let held = self.lock_all()?;
        let (whole, partial) = self.bytes();
        // The folder disappears in one step; a name with a dot in front is no model.
        let name = self.dir.file_name().unwrap_or_default().to_string_lossy();
        let doomed = self
            .dir
            .with_file_name(format!(".removed-{}-{name}", std::process::id()));
        fs::rename(&self.dir, &doomed).map_err(HubError::write("remove", &self.dir, 0))?;
        fs::remove_dir_all(&doomed).map_err(HubError::write("remove", &doomed, 0))?;
        drop(held);
        let _ = fs::remove_dir_all(&self.locks);
        Ok(whole + partial)
    }

    /// Removes files of all snapshots, and the contents that no other file has. Returns the freed
    /// bytes.
    pub(crate) fn remove_files(&self, paths: &BTreeSet<String>) -> Result<u64, HubError> {
        let _held = self.lock_all()?;
        let (mut doomed, mut kept) = (BTreeSet::new(), BTreeSet::new());
        let mut freed = 0;
        for commit in self.commits() {
            for file in self.listing(&commit)?.files {
                let path = self.snapshot(&commit).join(&file.path);
                let blob = fs::read_link(&path).ok();
                let blob = blob.and_then(|to| Some(self.blobs().join(to.file_name()?)));
                if !paths.contains(&file.path) {
                    kept.extend(blob);
                    continue;
                }
                match blob {
                    Some(blob) => doomed.extend([blob]),
                    None => freed += file.bytes.unwrap_or_default(),
                }
                fs::remove_file(&path).map_err(HubError::write("remove", &path, 0))?;
            }
        }
        for blob in doomed.difference(&kept) {
            freed += fs::metadata(blob).map_or(0, |found| found.len());
            fs::remove_file(blob).map_err(HubError::write("remove", blob, 0))?;
        }
        Ok(freed)
    }
}

/// The repositories of a cache, sorted by name.
pub(crate) fn repos(cache: &Path) -> Result<Vec<RepoCache>, HubError> {
    let entries = match fs::read_dir(cache) {
        Ok(entries) => entries,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(HubError::read(cache)(e)),
    };
    let repo = |name: String| {
        let repo = name.strip_prefix("models--")?.replace("--", "/");
        (is_relative(&repo) && repo.split('/').count() <= 2).then_some(repo)
    };
    let mut repos: Vec<String> = entries
        .flatten()
        .filter(|entry| entry.path().is_dir())
        .filter_map(|entry| repo(entry.file_name().into_string().ok()?))
        .collect();
    repos.sort();
    let repos = repos.iter().map(|repo| RepoCache::new(cache, repo));
    Ok(repos.collect())
}

pub(crate) fn create_dir(dir: &Path) -> Result<(), HubError> {
    fs::create_dir_all(dir).map_err(HubError::write("create the folder", dir, 0))
}

fn open_lock(path: &Path) -> Result<File, HubError> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
        .map_err(HubError::write("create", path, 0))
}

#[cfg(unix)]
fn symlink(target: &Path, at: &Path) -> std::io::Result<()> {
    std::os::unix::fs::symlink(target, at)
}

/// Windows has links only for developers and administrators.
#[cfg(windows)]
fn symlink(target: &Path, at: &Path) -> std::io::Result<()> {
    let target = target.to_string_lossy().replace('/', "\\");
    std::os::windows::fs::symlink_file(target, at)
}

//! Files of stored prefixes.
//!
//! | bytes | content |
//! |---|---|
//! | 8 | magic `TERCETPX` |
//! | 4 | version, little-endian |
//! | 4 | length of the header |
//! | header | JSON: digests of model and scope, adapter, tokens, and the parts with their digests |
//! | 32 | SHA-256 of all bytes before |
//! | rest | the parts, one after the other |
//!
//! A file is written under another name and renamed, so it is complete or damaged by something else.
//! Readers check the header when a folder is opened, and all parts before any of them is used.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tercet::{DType, Tensor, TensorType};

use super::fingerprint::{self, Sha256Digest, from_hex, hex};
use super::{PrefixKey, PrefixRows};

const MAGIC: &[u8; 8] = b"TERCETPX";
/// Version of the format. Files of other versions are ignored.
const VERSION: u32 = 1;
/// Maximum bytes of a header: some million tokens.
const MAX_HEADER_BYTES: u32 = 64 << 20;
/// Bytes before the header.
const START_BYTES: usize = 16;
const DIGEST_BYTES: usize = 32;
/// Extension of the files.
const EXTENSION: &str = "prefix";
/// File with the salt of scopes.
const SALT: &str = "salt";
/// Age of an unfinished file that no process writes any more.
const ABANDONED: Duration = Duration::from_secs(3600);

/// The reason why a file is not used.
#[derive(Debug, thiserror::Error)]
pub(super) enum PrefixFileError {
    #[error(transparent)]
    Io(#[from] std::io::Error),
    #[error("it has the format version {found}; expected {VERSION}")]
    Version { found: u32 },
    #[error("it is damaged: {0}")]
    Damaged(&'static str),
    #[error("its rows do not fit the memory")]
    Memory(#[from] tercet::TensorError),
}

/// Header of a file.
#[derive(Serialize, Deserialize)]
pub(super) struct PrefixHeader {
    model: String,
    scope: String,
    adapter: Option<usize>,
    pub(super) is_branch: bool,
    pub(super) tokens: Vec<u32>,
    parts: Vec<PartHeader>,
}

/// Name, type and digest of a part.
#[derive(Serialize, Deserialize)]
struct PartHeader {
    name: String,
    dtype: String,
    elements: usize,
    sha256: String,
}

impl PartHeader {
    fn ty(&self) -> Option<TensorType> {
        Some(TensorType::new(
            DType::from_name(&self.dtype)?,
            &[self.elements],
        ))
    }

    fn bytes(&self) -> Option<u64> {
        let size = DType::from_name(&self.dtype)?.size_bytes();
        (self.elements as u64).checked_mul(size as u64)
    }
}

impl PrefixHeader {
    pub(super) fn new(
        key: &PrefixKey,
        tokens: &[u32],
        is_branch: bool,
        rows: &PrefixRows,
    ) -> PrefixHeader {
        let parts = rows.parts.par_iter().map(|(name, part)| PartHeader {
            name: name.clone(),
            dtype: part.dtype().name().to_string(),
            elements: part.numel(),
            sha256: hex(&Sha256::digest(part.loose_bytes())),
        });
        PrefixHeader {
            model: hex(&key.model),
            scope: hex(&key.scope),
            adapter: key.adapter,
            is_branch,
            tokens: tokens.to_vec(),
            parts: parts.collect(),
        }
    }

    /// The key of the entry. Digests that are none match no key.
    pub(super) fn key(&self) -> PrefixKey {
        PrefixKey {
            model: from_hex(&self.model).unwrap_or_default(),
            scope: from_hex(&self.scope).unwrap_or_default(),
            adapter: self.adapter,
        }
    }

    /// Bytes of all parts.
    fn part_bytes(&self) -> Option<u64> {
        let mut parts = self.parts.iter();
        parts.try_fold(0, |sum: u64, part| sum.checked_add(part.bytes()?))
    }

    /// Bytes of the entry in memory.
    pub(super) fn memory_bytes(&self) -> u64 {
        let tokens = std::mem::size_of_val(self.tokens.as_slice()) as u64;
        self.part_bytes().unwrap_or(u64::MAX).saturating_add(tokens)
    }

    /// Bytes of the file.
    pub(super) fn file_bytes(&self) -> Option<u64> {
        let start = self.start().ok()?.len() as u64;
        self.part_bytes()?.checked_add(start)
    }

    /// The bytes before the parts.
    fn start(&self) -> Result<Vec<u8>, PrefixFileError> {
        let header = serde_json::to_vec(self).map_err(std::io::Error::from)?;
        let len = u32::try_from(header.len()).unwrap_or(u32::MAX);
        if len > MAX_HEADER_BYTES {
            return Err(PrefixFileError::Damaged("the header is too long"));
        }
        let mut start = [&MAGIC[..], &VERSION.to_le_bytes(), &len.to_le_bytes()].concat();
        start.extend(header);
        let digest = Sha256::digest(&start);
        start.extend_from_slice(&digest);
        Ok(start)
    }
}

/// File name of an entry.
pub(super) fn name(key: &PrefixKey, tokens: &[u32]) -> String {
    let adapter = key.adapter.map_or(u64::MAX, |at| at as u64).to_le_bytes();
    let tokens: Vec<u8> = tokens.iter().flat_map(|id| id.to_le_bytes()).collect();
    let digest = fingerprint::digest(&[&key.model, &key.scope, &adapter, &tokens]);
    format!("{}.{EXTENSION}", hex(&digest[..16]))
}

/// Writes a file, which appears complete or not at all.
///
/// # Errors
/// [`PrefixFileError::Io`].
pub(super) fn write(
    path: &Path,
    header: &PrefixHeader,
    rows: &PrefixRows,
) -> Result<(), PrefixFileError> {
    let start = header.start()?;
    let parts = rows.parts.iter().map(|(_, part)| part.loose_bytes());
    let parts: Vec<&[u8]> = std::iter::once(&start[..]).chain(parts).collect();
    Ok(replace(path, &parts)?)
}

/// Writes these bytes to another file and renames it. Only the owner can read the file.
fn replace(path: &Path, parts: &[&[u8]]) -> std::io::Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let partial = path.with_file_name(format!(".{name}.{}.partial", std::process::id()));
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        options.mode(0o600);
    }
    let written = options.open(&partial).and_then(|mut file| {
        parts.iter().try_for_each(|part| file.write_all(part))?;
        file.flush()
    });
    let moved = written.and_then(|()| std::fs::rename(&partial, path));
    if moved.is_err() {
        // The original error is more informative than an error of this clean-up.
        let _ = std::fs::remove_file(&partial);
    }
    moved
}

/// Reads and checks the bytes before the parts. `bytes` is the length of the file.
fn read_start(file: &mut impl Read, bytes: u64) -> Result<PrefixHeader, PrefixFileError> {
    let damaged = PrefixFileError::Damaged;
    let mut start = vec![0; START_BYTES];
    read_exact(file, &mut start)?;
    let word = |at: usize| {
        let word = start[at..at + 4].try_into();
        word.map_or(0, u32::from_le_bytes)
    };
    if start[..8] != MAGIC[..] {
        return Err(damaged("it does not begin with the magic number"));
    }
    let (version, len) = (word(8), word(12));
    if version != VERSION {
        return Err(PrefixFileError::Version { found: version });
    }
    let rest = (len as usize).saturating_add(DIGEST_BYTES);
    if len > MAX_HEADER_BYTES || (START_BYTES + rest) as u64 > bytes {
        return Err(damaged("the header is longer than the file"));
    }
    start.resize(START_BYTES + rest, 0);
    read_exact(file, &mut start[START_BYTES..])?;
    let (checked, digest) = start.split_at(start.len() - DIGEST_BYTES);
    if Sha256::digest(checked)[..] != *digest {
        return Err(damaged("the checksum of the header differs"));
    }
    let header: PrefixHeader = serde_json::from_slice(&checked[START_BYTES..])
        .map_err(|_| damaged("the header cannot be read"))?;
    let parts = header.part_bytes();
    let expected = parts.and_then(|parts| parts.checked_add(start.len() as u64));
    match expected == Some(bytes) {
        true => Ok(header),
        false => Err(damaged("its length differs from that in the header")),
    }
}

fn read_exact(file: &mut impl Read, bytes: &mut [u8]) -> Result<(), PrefixFileError> {
    file.read_exact(bytes).map_err(|e| match e.kind() {
        ErrorKind::UnexpectedEof => PrefixFileError::Damaged("it is shorter than its parts"),
        _ => e.into(),
    })
}

/// Reads the rows of an entry. All parts are checked before any of them is returned.
///
/// # Errors
/// [`PrefixFileError`] if the file is not exactly the one that was written for this entry.
pub(super) fn read(
    path: &Path,
    key: &PrefixKey,
    tokens: &[u32],
) -> Result<PrefixRows, PrefixFileError> {
    let mut file = File::open(path)?;
    let bytes = file.metadata()?.len();
    let header = read_start(&mut file, bytes)?;
    if header.key() != *key || header.tokens != tokens {
        return Err(PrefixFileError::Damaged("it is that of another prefix"));
    }
    let mut parts = Vec::with_capacity(header.parts.len());
    for part in header.parts {
        // The length of the file contains that of every part, so no header can make this allocate more.
        let ty = part.ty().ok_or(PrefixFileError::Damaged("unknown dtype"))?;
        let mut tensor = Tensor::zeros(ty)?;
        read_exact(&mut file, tensor.bytes_mut())?;
        parts.push((part.name, part.sha256, tensor));
    }
    let is_same = |(_, sha256, part): &(String, String, Tensor)| {
        from_hex(sha256).is_some_and(|own| Sha256::digest(part.loose_bytes())[..] == own)
    };
    if !parts.par_iter().all(is_same) {
        return Err(PrefixFileError::Damaged("the checksum of its rows differs"));
    }
    let parts = parts.into_iter().map(|(name, _, part)| (name, part));
    Ok(PrefixRows {
        parts: parts.collect(),
    })
}

/// Sets the time of a file, by which the entries of a folder are ordered.
pub(super) fn mark_used(path: &Path) {
    // Without the time, the order after a restart is that of the writes.
    if let Ok(file) = OpenOptions::new().write(true).open(path) {
        let _ = file.set_modified(SystemTime::now());
    }
}

/// The headers of the files in a folder with the sizes of the files, those that were used the longest ago
/// first. Files that are not those of prefixes of this version are ignored with a warning each.
pub(super) fn scan(folder: &Path, warn: &dyn Fn(&str)) -> Vec<(PrefixHeader, u64)> {
    let mut found = Vec::new();
    let Ok(files) = std::fs::read_dir(folder) else {
        // The creation of the folder has been reported.
        return Vec::new();
    };
    for path in files.filter_map(|file| Some(file.ok()?.path())) {
        match path.extension().and_then(|end| end.to_str()) {
            Some(EXTENSION) => {}
            Some("partial") => {
                remove_abandoned(&path);
                continue;
            }
            _ => continue,
        }
        let header = File::open(&path).map_err(PrefixFileError::from);
        let header = header.and_then(|mut file| {
            let facts = file.metadata()?;
            let header = read_start(&mut file, facts.len())?;
            let used = facts.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            match path.file_name() == Some(name(&header.key(), &header.tokens).as_ref()) {
                true => Ok((used, header, facts.len())),
                false => Err(PrefixFileError::Damaged("it is that of another prefix")),
            }
        });
        match header {
            Ok(header) => found.push(header),
            Err(e) => warn(&format!(
                "stored prefix {} is ignored: {}",
                path.display(),
                tercet::one_line(&e)
            )),
        }
    }
    found.sort_by_key(|(used, ..)| *used);
    let found = found.into_iter();
    found.map(|(_, header, bytes)| (header, bytes)).collect()
}

/// Removes a file that a process began to write and that no process writes any more.
fn remove_abandoned(path: &Path) {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let is_own = name.starts_with('.') && name.contains(&format!(".{EXTENSION}."));
    let modified = std::fs::metadata(path).and_then(|facts| facts.modified());
    let age = modified.ok().and_then(|at| at.elapsed().ok());
    if is_own && age.is_some_and(|age| age > ABANDONED) {
        let _ = std::fs::remove_file(path);
    }
}

/// Creates a folder that only its owner can read.
fn create(folder: &Path) -> std::io::Result<()> {
    let mut options = std::fs::DirBuilder::new();
    options.recursive(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::DirBuilderExt;
        options.mode(0o700);
    }
    options.create(folder)
}

/// The salt of the scopes of a folder, which is created with the folder. If it cannot be written, the
/// entries of this store are not found by the next one.
pub(super) fn salt(folder: &Path, warn: &dyn Fn(&str)) -> Sha256Digest {
    let path: PathBuf = folder.join(SALT);
    if let Ok(salt) = std::fs::read(&path)
        && let Ok(salt) = salt.try_into()
    {
        return salt;
    }
    let salt = fingerprint::random();
    if let Err(e) = create(folder).and_then(|()| replace(&path, &[&salt])) {
        warn(&format!(
            "cannot write to the folder of prefixes {}: {e}",
            folder.display()
        ));
    }
    salt
}
